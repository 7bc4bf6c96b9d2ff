"""Times, shares and names as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import display_name, format_ms, format_ns, format_share, time_ticks


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


def test_emoji_of_several_parts_stay_whole():
    assert display_name("👩‍🚀 go") == "👩‍🚀 go"


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


def test_axis_of_no_width_has_no_ticks():
    assert time_ticks(5, 5) == []


def test_axis_of_less_than_a_nanosecond_is_in_nanoseconds():
    assert time_ticks(0, 0.5)[-1][1].endswith(" ns")
