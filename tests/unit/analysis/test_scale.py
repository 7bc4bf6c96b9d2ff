"""Times, shares and names as text, ticks, and what a picture merges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import bin_width_ns, display_name, format_ms, format_ns, format_share, merge_narrow, time_ticks
from tests.helpers.traces import random_trace


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"), (1, "1 ns"), (999, "999 ns"), (1_000, "1.00 µs"), (9_994, "9.99 µs"), (9_996, "10.0 µs"),
        (99_960, "100 µs"),
        (999_400, "999 µs"), (999_600, "1.00 ms"), (1_000_000, "1.00 ms"), (59 * 10**9, "59.0 s"), (119 * 10**9, "119 s"),
        (120 * 10**9, "2.00 min"), (36_000 * 10**9, "600 min"), (-1_500, "-1.50 µs"),
    ],
)  # fmt: skip
def test_times_have_three_digits_and_a_fitting_unit(duration_ns, text):
    assert format_ns(duration_ns) == text


@given(st.integers(0, 10**15))
def test_a_written_time_is_within_half_a_percent(duration_ns):
    value, unit = format_ns(duration_ns).replace(",", "").split()
    scale = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}[unit]
    assert abs(float(value) * scale - duration_ns) <= 0.0051 * duration_ns


@pytest.mark.parametrize(
    ("duration_ns", "text"), [(0, "0"), (1, "0.000001"), (123_456, "0.123"), (1_234_567, "1.23"), (10**12, "1,000,000")]
)
def test_milliseconds_keep_three_digits(duration_ns, text):
    assert format_ms(duration_ns) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0%"), (1e-9, "<1%"), (0.5, "50%"), (0.9999999, ">99%"), (1, "100%"), (float("nan"), "-")]
)
def test_shares_never_round_to_nothing_or_to_all(share, text):
    assert format_share(share) == text


@given(st.text(max_size=300), st.integers(2, 100))
def test_shown_names_are_short_and_hold_no_control_signs(name, limit):
    shown = display_name(name, limit)
    assert len(shown) <= max(limit, len("(no name)"))
    assert not set(shown) & {"\n", "\r", "\x00", "\u202e", "\u2028"}


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "labels"),
    [
        (0, 100, ["0 ns", "20 ns", "40 ns", "60 ns", "80 ns", "100 ns"]),
        (0, 1_000_000, ["0.0 ms", "0.2 ms", "0.4 ms", "0.6 ms", "0.8 ms", "1.0 ms"]),
        (3_000_000_000, 3_000_004_000, ["3,000,000 µs", "3,000,001 µs", "3,000,002 µs", "3,000,003 µs", "3,000,004 µs"]),
        (0, 600 * 10**9, ["0 min", "2 min", "4 min", "6 min", "8 min", "10 min"]),
    ],
    ids=["ns", "ms", "far-from-zero", "min"],
)
def test_ticks_are_round(start_ns, end_ns, labels):
    assert [label for _, label in time_ticks(start_ns, end_ns, 6)] == labels


@given(st.floats(-1e15, 1e15), st.floats(1, 1e15), st.integers(2, 12))
def test_ticks_are_in_view_in_order_and_not_too_many(start_ns, width_ns, tick_count):
    places = [place for place, _ in time_ticks(start_ns, start_ns + width_ns, tick_count)]
    assert places == sorted(places)
    assert len(places) <= tick_count + 2


BINS_NS = (1, 2, 3, 4, 6, 8, 12, 1024, 1536, 1 << 40)


def merge(spans, bin_ns):
    """Merge spans given as (row, start, end), in any order."""
    columns = np.array(sorted(spans), np.int64).reshape(-1, 3).T
    return merge_narrow(*columns, bin_ns)


def merge_one_by_one(spans, bin_ns):
    """The rule, span by span, as it is written down."""
    items = []
    for place, (row, start, end) in enumerate(spans):
        key = (row, start // bin_ns) if end - start < bin_ns else None
        if key is not None and items and items[-1]["key"] == key:
            items[-1]["places"].append(place)
        else:
            items.append({"key": key, "places": [place]})
    return [item["places"] for item in items]


spans_strategy = st.lists(
    st.tuples(st.integers(0, 2), st.integers(-50, 200), st.integers(0, 40)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=60,
)


def test_bin_width_is_the_smallest_that_is_wide_enough():
    allowed = sorted({1 << k for k in range(50)} | {3 << k for k in range(50)})
    for scale in (0, 1e-9, 0.5, 0.7, 1, 4 / 3, 1.5, 2, 2.1, 7.9, 1e3, 123_456.7, 1e12):
        assert bin_width_ns(scale) == next(width for width in allowed if width >= 1.5 * scale)


@given(spans=spans_strategy, bin_ns=st.sampled_from(BINS_NS))
def test_items_follow_the_rule(spans, bin_ns):
    spans = sorted(spans)
    items = merge(spans, bin_ns)
    groups = merge_one_by_one(spans, bin_ns)
    assert [list(range(first, last + 1)) for first, last in zip(items.first, items.last, strict=True)] == groups
    assert items.left_ns.tolist() == [spans[group[0]][1] for group in groups]
    assert items.right_ns.tolist() == [max(spans[place][2] for place in group) for group in groups]
    assert items.busy_ns.tolist() == [sum(spans[place][2] - spans[place][1] for place in group) for group in groups]
    assert items.count.tolist() == [len(group) for group in groups]
    # and the pick is the first longest of eight samples

    for first, last, pick in zip(items.first.tolist(), items.last.tolist(), items.pick.tolist(), strict=True):
        samples = [first + (last - first) * number // 7 for number in range(8)]
        assert pick == max(samples, key=lambda place: spans[place][2] - spans[place][1])


@pytest.mark.parametrize("bin_ns", BINS_NS)
def test_counts_and_busy_time_of_each_row_stay_exact(bin_ns):
    trace = random_trace(20_000, 7, mean_ns=900)
    order = np.lexsort((trace.start_ns, trace.lane))
    row = trace.lane[order].astype(np.int64)
    items = merge_narrow(row, trace.start_ns[order], trace.end_ns[order], bin_ns)
    of_item = row[items.first]
    assert np.bincount(of_item, items.count).tolist() == np.bincount(row).tolist()
    assert np.bincount(of_item, items.busy_ns).tolist() == np.bincount(row, trace.duration_ns[order]).tolist()
    assert (items.right_ns >= items.left_ns).all()
