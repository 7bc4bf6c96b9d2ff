"""What is merged, and that nothing is lost by it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.analysis import bin_width_ns, merge_narrow
from tests.helpers.traces import random_trace

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
