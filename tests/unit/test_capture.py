"""Choosing what is captured, what is in force, and what takes kernels away again."""

from __future__ import annotations

import gc
import logging
import threading
import time
import warnings
import weakref

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import (
    CaptureUnavailableError,
    CaptureWarning,
    MissingExtraError,
    OptionError,
)
from gpustreamlab.typing import CaptureTier
from gpustreamlab.workloads import spin
from tests.helpers.fake_activity import FakeActivitySource, FakeSourceBackend
from tests.helpers.instant_backend import InstantBackend

KERNELS, RANGES = CaptureTier.KERNELS, CaptureTier.RANGES


@pytest.fixture
def source():
    return FakeActivitySource()


@pytest.fixture
def lab(source):
    with Session(FakeSourceBackend(source), capture="ranges") as session:
        session.stream("a")
        yield session


def capture_threads():
    return [thread for thread in threading.enumerate() if thread.name == "gpustreamlab capture"]


def kernel_names(trace):
    return [trace.names[code] for code in trace.name[np.isin(trace.kind, (1, 2, 3))]]


def push(lab, source, name="kernel"):
    source.push_work(1_000, 2_000, stream=lab.stream("a")._backend_stream, name=name)


# What is in force


def test_kernels_are_captured_from_now_on_until_stopped(lab, source):
    assert lab.recording.tier is RANGES
    capture = lab.capture("kernels")
    push(lab, source)

    assert (lab.recording.tier, capture.tier, capture.note, capture.is_active) == (KERNELS, KERNELS, "", True)
    assert kernel_names(lab.trace) == ["kernel"]
    capture.stop()
    assert (lab.recording.tier, capture.is_active, repr(capture)) == (RANGES, False, "<Capture: stopped>")
    assert source.history.count("start") == 1
    assert source.history[-2:] == ["stop", "drain"]


def test_a_block_goes_back_to_what_was_before(lab, source):
    with lab.capture("kernels") as outer:
        with lab.capture("ranges"):
            assert lab.recording.tier is RANGES
            with lab.capture("kernels"):
                assert lab.recording.tier is KERNELS
            assert lab.recording.tier is RANGES
        assert lab.recording.tier is KERNELS
        assert repr(outer) == "<Capture: kernels and host calls (fake source)>"
    assert lab.recording.tier is RANGES


def test_calls_of_the_host_can_be_left_out(lab, source):
    with lab.capture("kernels", host=False):
        source.push_launch(10, 20, 30, stream=lab.stream("a")._backend_stream, correlation=1)
    assert len(lab.trace) == 1


# What cannot be had


@pytest.mark.parametrize("error", [MissingExtraError("pip install"), CaptureUnavailableError("no counters here")])
def test_kernels_that_a_machine_cannot_capture_are_an_error_and_auto_is_not(error):
    with Session(FakeSourceBackend(error), capture="ranges") as lab:
        with pytest.raises(type(error), match=str(error)):
            lab.capture("kernels")
        assert (lab.recording.tier, lab.trace.metadata.capture_note) == (RANGES, "")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            capture = lab.capture("auto")
        assert str(error) in capture.note
        assert str(error) in lab.trace.metadata.capture_note
        assert lab.trace.metadata.tier is RANGES


def test_a_backend_of_ones_own_needs_no_source():
    with Session(InstantBackend()) as lab:
        assert "activity_source" in lab.capture().note
        with pytest.raises(CaptureUnavailableError, match="lab.capture\\('ranges'\\)"):
            lab.capture("kernels")


def test_another_tool_in_the_way_is_a_warning_and_ranges(lab, source, caplog):
    source.refusal = "torch.profiler is collecting"
    with pytest.warns(CaptureWarning, match=r"torch\.profiler") as warned:
        capture = lab.capture("kernels")
    with lab.on("a", "work"):
        pass

    assert warned[0].filename == __file__
    assert (lab.recording.tier, capture.is_active) == (RANGES, True)
    assert "torch.profiler" in capture.note
    assert "torch.profiler" in repr(capture)
    source.refusal = ""
    assert lab.capture("kernels").note == ""
    assert lab.trace.metadata.capture_note == ""
    assert any(record.levelno == logging.WARNING for record in caplog.records)


@pytest.mark.parametrize(("options", "message"), [
    ({"tier": "kernel"}, "Did you mean 'kernels'"),
    ({"tier": None}, "no capture tier None"),
    ({"tier": "kernels", "host": 1}, "host is 1"),
])  # fmt: skip
def test_what_cannot_be_asked_for(lab, options, message):
    with pytest.raises(OptionError, match=message):
        lab.capture(**options)
    assert lab.recording.tier is RANGES


# What takes kernels away


def test_a_client_that_is_lost_is_told_once_and_ranges_go_on(lab, source):
    capture = lab.capture("kernels")
    push(lab, source, "before")
    source.lose_client("torch.profiler took over")
    with pytest.warns(CaptureWarning, match=r"torch\.profiler took over") as warned, lab.on("a", "outer"):
        trace = lab.trace
    trace = lab.trace

    assert len(warned) == 1
    assert (lab.recording.tier, capture.is_active) == (RANGES, True)
    assert "torch.profiler took over" in capture.note
    assert "torch.profiler took over" in trace.metadata.capture_note
    assert trace.metadata.tier is KERNELS
    assert len(trace.metadata.capture_windows) == 1
    assert "before" in kernel_names(trace)
    capture.stop()
    with lab.capture("kernels"):
        assert lab.recording.tier is KERNELS


def test_a_source_that_raises_ends_the_capture_only(lab, source):
    lab.capture("kernels")
    source.drain_error = RuntimeError("bang")
    with pytest.warns(CaptureWarning, match="RuntimeError: bang"):
        assert len(lab.trace) == 0
    source.drain_error = None
    with lab.on("a", "after"):
        pass
    lab.synchronize()
    assert len(lab.trace) == 1
    with lab.capture("kernels"):
        push(lab, source)
        assert kernel_names(lab.trace) == ["kernel"]


def test_closing_stops_takes_the_rest_and_then_closes_the_source(source):
    backend = FakeSourceBackend(source)
    with Session(backend) as lab:
        lab.stream("a")
        lab.capture("kernels")
        push(lab, source)
    assert source.history[-3:] == ["stop", "last drain", "close"]
    assert kernel_names(lab.trace) == ["kernel"]
    assert not capture_threads()
    backend.close()


def test_a_session_that_is_dropped_gives_its_source_back(source):
    backend = FakeSourceBackend(source)
    lab = Session(backend)
    lab.capture("kernels")
    (thread,) = capture_threads()
    known = weakref.ref(lab)
    with pytest.warns(ResourceWarning):
        del lab
        gc.collect()
    thread.join(60)
    assert known() is None
    assert source.is_closed
    backend.close()


# From the start


def test_kernels_and_host_calls_are_captured_from_the_start_unless_without():
    with Session("sim") as lab:
        assert (lab.recording.tier, lab._captures.text) == (KERNELS, "kernels and host calls (simulated device)")
    with Session("sim", capture="kernels", host=False) as lab:
        with lab.on(lab.stream("a"), "first"):
            spin(lab, 1_000)
        with lab.capture("kernels"), lab.on("a", "second"):
            spin(lab, 1_000)
        with lab.capture("ranges"), lab.on("a", "third"):
            spin(lab, 1_000)
        assert (lab.recording.tier, lab._captures.text) == (KERNELS, "kernels (simulated device)")
        lab.synchronize()
        frame = lab.trace.to_pandas()
        told = [(kind, name) for kind, name in zip(frame["kind"], frame["name"], strict=True) if kind != "host"]
        assert told == [("range", "first"), ("kernel", "spin"), ("range", "second"), ("kernel", "spin"), ("range", "third")]
        assert frame["name"][frame["kind"] == "host"].tolist() == ["cudaLaunchKernel"]


def test_sessions_of_one_device_capture_at_once_each_what_is_in_its_own_streams():
    backend = SimBackend()
    first, second = Session(backend), Session(backend)
    assert [lab.recording.tier for lab in (first, second)] == [KERNELS, KERNELS]
    with first.on(first.stream("a"), "step"):
        spin(first, 1_000)
    with Session(backend) as third:
        with third.on(third.stream("b"), "later"):
            spin(third, 2_000)
            kept = third.xp.empty(1 << 20)  # memory that its stream holds
    first.xp.ones(4)  # in the NULL stream, which is of nobody
    first.synchronize()
    second.synchronize()
    told = [[lab.trace.names[code] for code in lab.trace.where(kind="kernel").name] for lab in (first, second, third)]
    assert told == [["spin", "ones"], ["ones"], ["spin"]]
    assert sorted(lane.name for lane in first.trace.lanes if lane.kind == "stream") == ["a", "default stream"]
    assert kept.size == 1 << 20
    first.close()
    second.close()
    backend.close()


def test_a_session_that_cannot_capture_what_it_was_asked_for_is_not_made(source):
    refusing = FakeSourceBackend(CaptureUnavailableError("no counters here"))
    with pytest.raises(CaptureUnavailableError, match="no counters here"):
        Session(refusing, capture="kernels")
    with Session(refusing) as lab:
        assert "no counters here" in repr(lab)
    with pytest.raises(OptionError, match="Did you mean 'kernels'"):
        Session("sim", capture="kernel")


@pytest.mark.parametrize("options", [{}, {"capture": "ranges"}])
def test_no_capture_and_no_slow_python_moves_the_virtual_clock(options):
    def run(nap_s, toggles):
        with Session("sim", **options) as lab:
            stream = lab.stream("a")
            for turn in range(12):
                with lab.on("a", "step"):
                    spin(lab, 1_000)
                if turn % 2:
                    stream.synchronize()
                if toggles:
                    with lab.capture("ranges" if turn % 3 else "kernels"):
                        pass
                time.sleep(nap_s)
            lab.synchronize()
            return int(lab.trace.end_ns.max())

    # A thread on the side reads what has ended, five times a second.
    assert len({run(0, toggles=False), run(0.05, toggles=False), run(0, toggles=True)}) == 1
