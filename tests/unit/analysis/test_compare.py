"""Comparing two traces: by hand, against a brute-force count, with what only one has, and whether both did the same work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab.analysis import compare_traces, comparison_line, comparison_tables
from gpustreamlab.model import Lane
from tests.helpers.traces import (
    empty_trace,
    evil_trace,
    lanes_of,
    make_kernel_trace,
    make_trace,
    nested_trace,
    pipeline_trace,
    random_trace,
    unnumbered,
)


def rows_of(items):
    return {
        item: (int(items.a.span_count[row]), int(items.b.span_count[row]), int(items.difference_ns[row]))
        for row, item in enumerate(items.items)
    }


def test_lanes_and_names_by_hand():
    before = make_trace([("up", "copy", 0, 100), ("run", "gemm", 100, 500), ("run", "gemm", 500, 700)])
    after = make_trace([("up", "copy", 0, 100), ("run", "gemm", 50, 350), ("run", "relu", 350, 400)])
    result = compare_traces(before, after)
    assert result.lanes.items == ("up", "run")
    assert rows_of(result.lanes) == {"up": (1, 1, 0), "run": (2, 2, -250)}
    assert rows_of(result.names) == {"gemm": (2, 1, -300), "relu": (0, 1, 50), "copy": (1, 1, 0)}
    assert result.names.items == ("gemm", "relu", "copy")
    assert result.names.ratio[0] == 0.5
    assert result.names.a.median_ns[0] == 300
    assert result.names.median_ratio[0] == 1.0
    assert result.names.a.is_there.tolist() == [True, False, True]
    assert result.names.b.is_there.all()
    assert (result.a.wall_ns, result.b.wall_ns, result.b.together_ns) == (700, 400, 50)


def test_lanes_of_another_order_are_matched_by_name():
    before = make_trace([("a", "x", 0, 10), ("b", "y", 0, 20), ("gone", "x", 0, 5)])
    after = make_trace([("b", "y", 0, 30), ("a", "x", 0, 40), ("new", "x", 0, 1)])
    lanes = compare_traces(before, after).lanes
    assert lanes.items == ("a", "b", "gone", "new")
    assert lanes.difference_ns.tolist() == [30, 10, -5, 1]
    assert lanes.a.is_there.tolist() == [True, True, True, False]
    assert lanes.b.is_there.tolist() == [True, True, False, True]
    assert math.isnan(lanes.ratio[3])
    assert lanes.ratio[2] == 0.0
    assert math.isnan(lanes.b.median_ns[2])


def test_empty_traces_compare():
    result = compare_traces(empty_trace(), empty_trace())
    assert (len(result.lanes), len(result.names), result.a.wall_ns, result.notes) == (0, 0, 0, ())
    assert result.to_pandas()["level"].tolist() == ["total"] * 4
    assert comparison_line(result) == "wall time 0 ns in a, 0 ns in b"


def test_notes_say_what_makes_the_traces_unlike():
    notes = compare_traces(nested_trace(), evil_trace()).notes
    assert notes[0].startswith("Not the same work: ")
    assert notes[1].startswith("Unlike: times are those of kernels, copies, fills in a and of ranges in b.")
    assert "Capture both alike: lab.capture('kernels')" in notes[1]
    assert notes[2].startswith("Not the same device: a is NVIDIA H200 (SIMULATED), b is ")
    dropped = compare_traces(pipeline_trace(), pipeline_trace(dropped_spans=2)).notes
    assert dropped == ("In b: 2 spans dropped (a full buffer, a closed stream, an error or an interrupt).",)


def same_run(tier):
    """Ten steps on one stream, each around a kernel; one kernel of another library."""
    spans = []
    for at in range(0, 2_000, 200):
        spans.append(("a", "step", at, at + 100, {"kind": "range"}))
        if tier == "kernels":
            spans.append(("a", "gemm", at + 20, at + 70, {"parent": len(spans) - 1}))
    if tier == "ranges":
        return make_kernel_trace(spans, windows=(), tier=tier)
    outside = Lane(name="stream 13", stream=13, outside=True)
    return make_kernel_trace([*spans, ("stream 13", "step", 50, 60)], lanes=(*lanes_of([{"lane": "a"}]), outside))


def test_ranges_are_compared_with_ranges_and_kernels_are_not_called_new():
    # GIVEN a run by ranges and the same run by kernels, in which a kernel is called as a range is
    result = compare_traces(same_run("ranges"), same_run("kernels"))

    # THEN the ranges are the same in both, and what only kernels tell is last
    names = result.names
    assert list(zip(names.items, names.groups, strict=True)) == [("step", "range"), ("gemm", "work"), ("step", "work")]
    assert names.difference_ns[0] == 0
    assert names.a.is_captured.tolist() == [True, False, False]
    assert names.b.is_captured.all()
    assert (result.lanes.items, result.lanes.is_comparable.tolist()) == (("a", "stream 13"), [True, False])


def test_tables_tell_what_was_not_captured():
    result = compare_traces(same_run("kernels"), same_run("ranges"))
    _, ranges, work, lanes = comparison_tables(result, limit=10)
    assert ranges.caption.startswith("Ranges")
    assert ranges.rows[1:] == [["step", "10", "1.00 µs", "1.00 µs", "0 ns", "×1.00", "100 ns"]]
    assert work.rows[1] == ["gemm", "10→0", "500 ns", "-", "-", "not captured in b", "50 ns→-"]
    assert lanes.rows[2][5] == "not captured in b"
    frame = result.to_pandas()
    assert frame.loc[frame["group"] == "work", "captured_b"].tolist() == [False, False]
    assert frame["group"].isna().sum() == 4 + 2


def test_a_run_with_some_kernels_is_unlike_one_without():
    part = make_kernel_trace([("a", "step", 0, 100, {"kind": "range"}), ("a", "gemm", 150, 200)], windows=((120, 300),))
    result = compare_traces(same_run("ranges"), part)
    assert "are those of ranges in a and of ranges, kernels, copies, fills in b" in result.notes[1]


SPANS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(0, 50), st.integers(0, 30)), max_size=20
).map(lambda rows: [(lane, name, start, start + length) for lane, name, start, length in rows])


@settings(max_examples=60, deadline=None)
@given(SPANS, SPANS)
def test_counts_sums_and_medians_are_those_of_a_brute_force_count(spans_a, spans_b):
    result = compare_traces(make_trace(spans_a), make_trace(spans_b))
    for side, spans in ((result.names.a, spans_a), (result.names.b, spans_b)):
        for row, name in enumerate(result.names.items):
            durations = [end - start for _, own, start, end in spans if own == name]
            assert side.span_count[row] == len(durations)
            assert side.busy_ns[row] == sum(durations)
            assert side.is_there[row] == bool(durations)
            expected = np.median(durations) if durations else np.nan
            np.testing.assert_equal(side.median_ns[row], expected)
    for side, spans in ((result.lanes.a, spans_a), (result.lanes.b, spans_b)):
        for row, lane in enumerate(result.lanes.items):
            covered = {at for own, _, start, end in spans if own == lane for at in range(start, end)}
            assert side.busy_ns[row] == len(covered)


def test_frame_holds_totals_lanes_and_names():
    frame = compare_traces(pipeline_trace(), pipeline_trace(4)).to_pandas()
    assert frame["level"].value_counts().to_dict() == {"total": 4, "name": 4, "lane": 3}
    wall = frame[(frame["level"] == "total") & (frame["item"] == "wall_ns")].iloc[0]
    assert (wall["busy_ns_a"], wall["busy_ns_b"], wall["difference_ns"]) == (7_500_000, 5_500_000, -2_000_000)
    upload = frame[(frame["level"] == "lane") & (frame["item"] == "upload")].iloc[0]
    assert (upload["span_count_a"], upload["span_count_b"], upload["median_ns_a"]) == (6, 4, 900_000)


def test_tables_are_cut_with_a_sign():
    result = compare_traces(*(unnumbered(random_trace(500, 3, name_count=40, seed=seed)) for seed in (0, 1)))
    totals, names, lanes = comparison_tables(result, limit=10)
    assert [len(table.rows) for table in (names, lanes)] == [12, 4]
    assert names.rows[-1][0] == "… 30 more: see .to_pandas()"
    assert all(len(row) == len(table.rows[0]) for table in (totals, names, lanes) for row in table.rows)


def test_names_that_differ_by_a_number_are_one_row():
    # GIVEN copies that are numbered from 0 to 3 in one run, and to 1 in the other, which also has a step
    a = make_trace([("a", f"h2d {k}", 10 * k, 10 * k + 5) for k in range(4)] + [("a", "fp16", 40, 50)])
    b = make_trace([("a", f"h2d {k}", 10 * k, 10 * k + 8) for k in range(2)] + [("a", "step 0", 40, 50), ("a", "fp32", 50, 60)])
    names = compare_traces(a, b).names
    place = names.items.index("h2d *")
    assert (names.a.span_count[place], names.b.span_count[place]) == (4, 2)
    assert (names.a.busy_ns[place], names.b.busy_ns[place], names.b.median_ns[place]) == (20, 16, 8)
    assert sorted(names.items) == ["fp16", "fp32", "h2d *", "step 0"]


def test_table_says_what_is_only_in_one():
    idle = make_trace([("a", "y", 0, 20), ("never used", "z", 0, 1)])
    result = compare_traces(make_trace([("a", "x", 0, 10)]), idle.where(name="y"))
    assert result.lanes.items == ("a", "never used")
    _, names, lanes = comparison_tables(result, limit=10)
    assert names.rows[1:] == [
        ["y", "0→1", "-", "20 ns", "+20 ns", "only in b", "-→20 ns"],
        ["x", "1→0", "10 ns", "-", "−10 ns", "only in a", "10 ns→-"],
    ]
    assert lanes.rows[1:] == [["a", "1", "10 ns", "20 ns", "+10 ns", "×2.00", "10→20 ns"]]


def kernels(*names, size_bytes=None, end_ns=100):
    """One span a name, one after the other; a name that begins with "memcpy" is a copy."""
    spans = []
    for place, name in enumerate(names):
        is_copy = name.startswith("memcpy")
        options = {"kind": "copy" if is_copy else "kernel"}
        if is_copy and size_bytes is not None:
            options["size_bytes"] = size_bytes
        spans.append(("a", name, place * end_ns, (place + 1) * end_ns, options))
    return make_kernel_trace(spans)


def ranges(*names):
    return make_trace([("a", name, place * 100, (place + 1) * 100) for place, name in enumerate(names)])


def around(name, kernel):
    """A range and a kernel in it, captured."""
    return make_kernel_trace([("a", name, 0, 100, {"kind": "range"}), ("a", kernel, 20, 70, {"parent": 0})])


@pytest.mark.parametrize(
    ("a", "b", "note"),
    [
        (kernels("gemm"), kernels("gemm", end_ns=50), ""),
        (kernels(*["gemm"] * 4), kernels("gemm", "gemm"), "Not the same work: 4 kernels against 2"),
        (kernels("gemm"), kernels("gemm", "gemm"), "Not the same work: 1 kernel against 2"),
        (
            kernels("gemm", "gemm", "memcpy HtoD"), kernels("gemm", "memcpy HtoD"),
            "Not the same work: 3 kernels and copies against 2",
        ),
        (
            kernels("gemm", "gemm", "relu"), kernels("gemm", "relu", "relu"),
            "Not the same work: 3 kernels in both, but not the same ones; gemm 2 times in a, 1 time in b",
        ),
        # Names that differ by a number are one, and so are copies from pinned memory and not.
        (kernels("step 0", "step 1"), kernels("step 2", "step 3"), ""),
        (kernels("memcpy HtoD (pinned)"), kernels("memcpy HtoD (pageable)"), ""),
        (kernels("memcpy HtoD", size_bytes=2_000), kernels("memcpy HtoD", size_bytes=1_000),
         "Not the same work: 2,000 B copied against 1,000 B"),
        (kernels("memcpy HtoD", size_bytes=2_000), kernels("memcpy HtoD"), ""),
        # Of ranges only those are known; beside kernels they are only how the work is called.
        (ranges("step 0", "step 1"), ranges("step 0"), "Not the same work: 2 ranges against 1"),
        (ranges("step 0", "step 1"), ranges("step 0", "step 7"), ""),
        (around("naive", "gemm"), around("fused", "gemm"), ""),
        (around("step", "gemm"), ranges("step"), ""),
        (around("step", "gemm"), ranges("step 0", "step 1"), "Not the same work: 1 range against 2"),
        # Where one has no ranges, nothing is known.
        (kernels("gemm", "gemm"), ranges("step"), ""),
        (empty_trace(), empty_trace(), ""),
        (empty_trace(), ranges("step"), "Not the same work: 0 ranges against 1"),
    ],
)  # fmt: skip
def test_work_is_compared_by_what_is_known_of_both(a, b, note):
    result = compare_traces(a, b)
    assert result.work_note == note
    assert (result.notes[:1] == (f"{note}.",)) is bool(note)
    assert ("faster" in comparison_line(result)) <= (not note)
