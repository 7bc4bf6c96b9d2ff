"""Samples of Python stacks: whose they are, how long they last, and that nothing is left of them behind a capture."""

from __future__ import annotations

import threading
import time

import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import counted_rows
from gpustreamlab.errors import OptionError
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin
from tests.helpers.planted import MS, pair

LOOKER = "gpustreamlab stacks"


def slow_host(stream, seconds=0.2):
    """Compute in Python; the simulated device's clock goes on by the queries only."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        stream.query()


def recorded(program, *, stacks):
    with gsl.Session("sim", capture="ranges") as lab:
        with lab.capture("kernels", stacks=stacks):
            thread = threading.Thread(target=program, args=(lab,), name="worker")
            thread.start()
            thread.join()
            lab.synchronize()
        assert LOOKER not in [one.name for one in threading.enumerate()]
        return lab.trace


def late(lab):
    first, _ = pair(lab)
    with lab.on("a", "load"):
        spin(lab, 50 * MS)
    slow_host(first)
    spin(lab, 50 * MS, stream="b")


@pytest.fixture(scope="module")
def trace():
    return recorded(late, stacks=True)


def test_a_late_host_is_told_with_thread_calls_and_function(trace):
    (finding,) = trace.explain("a", "b").findings
    line = slow_host.__code__.co_firstlineno
    assert (finding.code, finding.thread) == (Cause.HOST_LATE, "worker")
    assert finding.function == f"slow_host (test_stacks.py:{line})"
    assert finding.sample_count >= 1
    assert finding.function_share > 0.5
    assert [trace.names[trace.name[row]] for row in (finding.last_call_row, finding.launch_row)] == ["cudaLaunchKernel"] * 2
    assert trace.start_ns[finding.launch_row] == trace.queued_ns[finding.row]
    assert "Thread 'worker' launched spin on 'b' with cudaLaunchKernel, " in finding.text
    assert f"stand in {finding.function}." in finding.text
    assert finding.function in trace.explain().to_pandas().function.tolist()


def test_samples_are_on_the_lane_of_their_thread_and_count_as_nothing(trace):
    samples = trace.where(kind="sample")
    assert {trace.lanes[lane].name for lane in trace.lane[trace.kind == samples.kind[0]]} == {
        "host: MainThread",
        "host: worker",
    }
    assert not (counted_rows(trace) & (trace.kind == samples.kind[0])).any()
    rest = trace[trace.kind != samples.kind[0]]
    assert trace.host_waits().call_count == rest.host_waits().call_count
    assert trace.critical_path().parts == rest.critical_path().parts
    assert trace.critical_path().functions[0].function.startswith("slow_host")
    assert "samples of the Python stack stand in slow_host" in " ".join(str(trace.critical_path()).split())
    assert not rest.critical_path().functions


def test_stacks_begin_and_end_with_their_capture():
    def looking():
        return LOOKER in [one.name for one in threading.enumerate()]

    with gsl.Session("sim") as lab:
        assert not looking()
        outer = lab.capture("kernels", stacks=True)
        assert looking()
        assert repr(outer) == "<Capture: kernels, stacks and host calls (simulated device)>"
        with lab.capture("kernels"):
            assert not looking(), "the inner one did not ask for them"
        assert looking()
        lab.capture("ranges")
        assert not looking()
        lab.capture("auto", stacks=True)
        assert looking()
    assert not looking()


@pytest.mark.parametrize(("tier", "stacks"), [("ranges", True), ("kernels", 200), ("kernels", None)])
def test_stacks_without_kernels_are_refused(tier, stacks):
    with gsl.Session("sim") as lab, pytest.raises(OptionError, match=r"lab.capture\('kernels', stacks=True\)"):
        lab.capture(tier, stacks=stacks)
