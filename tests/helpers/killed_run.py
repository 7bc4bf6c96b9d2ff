"""A run that is spooled and killed: what it does, and what must be left of it."""

from __future__ import annotations

import gpustreamlab as gsl
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind

RUN = """
import itertools
import gpustreamlab as gsl
from gpustreamlab.workloads import spin

lab = gsl.Session("sim", spool={path!r}, title="doomed")
lab.partition(left=32, right="rest")
lab.stream("copy", partition="left")
lab.stream("compute", partition="right")
lab.recording.spool.refresh()
lab.capture({tier!r})

def step(number):
    with lab.on("copy", f"step {{number}}"):
        spin(lab, 1_000)
    lab.stream("compute").wait(lab.stream("copy").record())
    with lab.on("compute", "gemm"):
        spin(lab, 2_000)
    if number == 40:
        lab.partition(left=64, right="rest")
    if number % {refresh_every} == 0:
        lab.recording.spool.refresh()

def acknowledge(tell):
    tell(f"{{lab.recording.spool.span_count}}\\n")

def run(tell):
    for number in itertools.count():
        step(number)
        acknowledge(tell)
"""
"""What runs until it is killed; ``run(tell)`` tells after each step how many spans the spool says that it has on disk."""


def check_what_is_left(path, refreshed_count):
    """Check that a killed run has left everything up to what it told last, whole and in order; return the trace."""
    trace = gsl.load_trace(path)
    kinds = [SPAN_KINDS[code] for code in trace.kind]
    names = [trace.names[code] for code in trace.name]
    lanes = [trace.lanes[code].name for code in trace.lane]
    copies, waiting = (
        [row for row, kind in enumerate(kinds) if kind is SpanKind.RANGE and lanes[row] == lane] for lane in ("copy", "compute")
    )
    steps, gemms = [names[row] for row in copies], [names[row] for row in waiting]

    assert len(trace) >= refreshed_count
    assert steps == [f"step {number}" for number in range(len(steps))]
    assert gemms == ["gemm"] * len(gemms)
    assert [lane.name for lane in trace.lanes][:2] == ["copy", "compute"]
    assert [[part.granted_sms for part in change.layout] for change in trace.layouts] in ([[32, 100]], [[32, 100], [64, 68]])
    assert {trace.partitions[code].name for code in trace.partition} <= {"left", "right"}
    pairs = zip(trace.edges.source.tolist(), trace.edges.target.tolist(), strict=True)
    edges = sorted(pair for pair in pairs if kinds[pair[0]] is SpanKind.RANGE)
    # The lanes are collected one after the other while work goes on: either may be ahead.
    assert edges == list(zip(copies, waiting, strict=False))
    kernels = [row for row, kind in enumerate(kinds) if kind is SpanKind.KERNEL]
    assert {names[row] for row in kernels} <= {"spin"}
    assert all(trace.details[trace.extra["detail"][row]].grid_blocks > 0 for row in kernels)
    assert trace.metadata.title == "doomed"
    assert "was not closed" in trace.metadata.recovery_note
    return trace
