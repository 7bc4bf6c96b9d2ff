"""Ranges that may hold work that was not captured."""

from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import partly_captured
from gpustreamlab.workloads import spin
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import empty_trace, make_kernel_trace, pipeline_trace

WINDOWS = ((100, 200), (200, 300), (400, 500))


@pytest.mark.parametrize(
    ("queued_ns", "start_ns", "end_ns", "is_partly"),
    [
        (0, 10, 90, False),
        (0, 10, 100, False),
        (0, 10, 101, True),
        (100, 110, 300, False),
        (110, 250, 301, True),
        (90, 110, 150, True),
        (300, 310, 400, False),
        (310, 320, 600, True),
        (500, 510, 600, False),
    ],
    ids=["before", "up to", "into", "within two that touch", "out of", "enqueued before", "between", "around", "behind"],
)
def test_a_range_that_was_open_at_an_edge_of_a_window_is_partly_captured(queued_ns, start_ns, end_ns, is_partly):
    spans = [("a", "step", start_ns, end_ns, {"kind": "range", "queued_ns": queued_ns})]
    assert partly_captured(make_kernel_trace(spans, windows=WINDOWS)).tolist() == [is_partly]


def test_the_error_of_the_host_s_clock_makes_no_range_partly_captured():
    spans = [("a", "step", 98, 110, {"kind": "range"}), ("a", "step", 98, 302, {"kind": "range"})]
    spans.append(("a", "step", 390, 450, {"kind": "range"}))
    trace = make_kernel_trace(spans, windows=WINDOWS, host_error_ns=5)
    assert partly_captured(trace).tolist() == [False, False, True]


def test_work_and_calls_and_whole_traces_are_not():
    assert not partly_captured(kernel_trace()).any()
    assert not partly_captured(pipeline_trace()).any()
    assert len(partly_captured(empty_trace())) == 0


def test_ranges_of_a_session_in_and_around_its_captures():
    # GIVEN a range in a capture, one that a capture begins in, and one without
    with Session("sim", capture="ranges") as lab:
        lab.stream("a")
        with lab.on("a", "without"):
            spin(lab, 1_000)
        lab.synchronize()
        with lab.capture("kernels"):
            with lab.on("a", "within"):
                spin(lab, 1_000)
            lab.synchronize()
        with lab.on("a", "cut"):
            spin(lab, 1_000)
            with lab.capture("kernels"):
                spin(lab, 1_000)
                lab.synchronize()
        trace = lab.trace

    # THEN one of them looks complete and is not
    names = [trace.names[code] for code in trace.name[partly_captured(trace)]]
    assert names == ["cut"]
