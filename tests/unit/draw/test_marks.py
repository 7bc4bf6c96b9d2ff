"""Moments with a name: which are marked, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

from gpustreamlab.draw._scene import MAX_MARKS, plan_marks
from gpustreamlab.model import Layout, LayoutChange, Marker
from tests.helpers.traces import PREFILL, make_trace


def test_changes_before_the_first_and_after_the_last_span_have_no_mark():
    layout = Layout(partitions=(PREFILL,))
    changes = (LayoutChange(time_ns=-5, layout=layout), LayoutChange(time_ns=200, layout=None))
    assert plan_marks(make_trace([("a", "x", 0, 100)], layouts=changes), 0, 100.0) == ((), [])


def test_layout_that_only_was_measured_anew_has_no_mark():
    seen, unseen = Layout(partitions=(PREFILL,)), Layout(partitions=(replace(PREFILL, sm_ids=None),))
    changes = (LayoutChange(time_ns=-5, layout=unseen), LayoutChange(time_ns=50, layout=seen))
    assert plan_marks(make_trace([("a", "x", 0, 100)], layouts=changes), 0, 100.0) == ((), [])


def test_too_many_changes_are_cut_and_counted():
    layout = Layout(partitions=(PREFILL,))
    changes = tuple(LayoutChange(time_ns=k + 1, layout=None if k % 2 else layout) for k in range(MAX_MARKS + 3))
    marks, notes = plan_marks(make_trace([("a", "x", 0, 10_000)], layouts=changes), 0, 10_000.0)
    assert len(marks) == MAX_MARKS
    assert notes == ["3 of 503 changes of the partitions are not marked"]


def test_markers_and_changes_are_marked_in_order_of_time():
    change = LayoutChange(time_ns=1_050, layout=Layout(partitions=(PREFILL,)))
    trace = make_trace([("a", "x", 1_000, 1_100)], layouts=(change,))
    markers = (Marker(time_ns=1_080, text="In [3]", kind="cell"), Marker(time_ns=1_020, text="warm\nup", kind="mark"))
    marks, _ = plan_marks(replace(trace, markers=markers), 1_000, 100.0)
    assert [(mark.time_ns, mark.text, mark.kind) for mark in marks] == [
        (20, "warm␣up", "mark"), (50, "prefill 96 SMs", "layout"), (80, "In [3]", "cell"),
    ]  # fmt: skip


def test_cells_far_before_the_first_span_have_no_mark():
    trace = replace(make_trace([("a", "x", 1_000, 1_100)]), markers=(Marker(time_ns=10, text="In [1]", kind="cell"),))
    assert plan_marks(trace, 1_000, 100.0) == ((), [])
