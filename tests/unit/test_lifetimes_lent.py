"""Streams of others: what can be told to be none of this device is refused before anything is enqueued."""

from __future__ import annotations

import enum
import re
import sys
import types

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.cuda._stream import check_lent_stream
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import StreamClosedError, StreamRefusedError

STREAMS = ("a",)


class Lender:
    """Lends whatever it is given."""

    def __init__(self, lent):
        self.lent = lent

    def __cuda_stream__(self):
        return self.lent


NO_HANDLES = {
    "text": "3",
    "negative": -3,
    "too large": 1 << 64,
    "nothing": None,
    "truth": True,
    "fraction": 3.0,
    "a pair": (3, 4),
}


@pytest.mark.parametrize("handle", NO_HANDLES.values(), ids=NO_HANDLES.keys())
def test_what_is_no_address_is_refused(lab, handle):
    with pytest.raises(StreamRefusedError, match="Lender.*gave .*the address of a stream"):
        lab.on(Lender((0, handle)))


NO_LENDERS = {
    **{repr(number): (number, rf"^{re.escape(repr(number))}, of type \w+, lends") for number in (3, 1 << 46, np.int64(3), 3.0)},
    "None": (None, "^None, of type NoneType, lends no CUDA stream.*not its handle or its class"),
    "a class": (Lender, r"Lender'>, of type type, lends no CUDA stream.*or its class"),
    "an attribute": (
        types.SimpleNamespace(__cuda_stream__=(0, 512)),
        "of type SimpleNamespace, lends no CUDA stream: it has no method",
    ),
    "garbage": (Lender((0, 0x7FDE_ADBE_EF00)), "0x7fdeadbeef00.*does not know"),
}


@pytest.mark.parametrize(("lender", "told"), NO_LENDERS.values(), ids=NO_LENDERS)
def test_what_lends_no_stream_is_refused(lab, lender, told):
    with pytest.raises(StreamRefusedError, match=told):
        lab.on(lender)


def test_a_lender_of_a_script_or_notebook_is_named_for_its_class(lab):
    made = type("Pipeline", (Lender,), {"__module__": "__main__"})
    with lab.on(made((0, lab._backend.create_stream().handle))) as lane:
        assert lane.name == "Pipeline-1"


def test_a_stream_of_another_simulated_device_is_refused_though_its_number_is_known_here(lab):
    theirs = SimBackend().create_stream()
    assert theirs.handle == lab.stream("a").handle
    with pytest.raises(StreamRefusedError, match="another simulated device"):
        lab.on(theirs)
    with pytest.raises(StreamRefusedError, match="another simulated device"):
        lab.stream("lent", external=theirs)
    assert list(lab.streams) == ["a"]


@pytest.mark.parametrize("door", ["on", "stream", "guard", "run_on"])
def test_a_lane_of_a_closed_session_is_refused(lab, door):
    with Session(lab._backend) as other:
        lane = other.stream("theirs")
    doors = {
        "on": lambda: lab.on(lane),
        "stream": lambda: lab.stream("mine", external=lane),
        "guard": lambda: lab.memory.guard(object()).on(lane),
        "run_on": lambda: lab.run_on(lane, print),
    }
    with pytest.raises(StreamClosedError, match="'theirs' is closed"):
        doors[door]()


# The driver's answer, from a stand-in


class Status(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709


class CaptureStatus(enum.IntEnum):
    CU_STREAM_CAPTURE_STATUS_NONE = 0
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2


@pytest.fixture
def driver(monkeypatch):
    """Stand for cuda.bindings.driver; a test gives it its calls."""
    bindings, module = types.ModuleType("cuda.bindings"), types.ModuleType("cuda.bindings.driver")
    bindings.driver = module
    module.CUresult, module.CUstream, module.CUstreamCaptureStatus = Status, int, CaptureStatus
    module.cuStreamIsCapturing = lambda stream: (Status.CUDA_SUCCESS, CaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)
    for name, value in (("cuda", types.ModuleType("cuda")), ("cuda.bindings", bindings), ("cuda.bindings.driver", module)):
        monkeypatch.setitem(sys.modules, name, value)
    return module


def test_a_stream_of_another_device_is_refused(driver):
    driver.cuStreamGetDevice = lambda stream: (Status.CUDA_SUCCESS, 1)
    check_lent_stream(object(), 0x1000, 1)
    with pytest.raises(StreamRefusedError, match=r"0x1000 of a Lender is on CUDA device 1, .* device 0.*Session\(device=1\)"):
        check_lent_stream(Lender(None), 0x1000, 0)


@pytest.mark.parametrize("capture", [CaptureStatus.CU_STREAM_CAPTURE_STATUS_ACTIVE, CaptureStatus(2)])
def test_a_stream_that_is_being_captured_is_asked_nothing_that_ends_the_capture(driver, capture):
    driver.cuStreamIsCapturing = lambda stream: (Status.CUDA_SUCCESS, capture)  # and there is no other call
    check_lent_stream(object(), 0x1000, 1)


def test_a_stream_that_the_driver_refuses_at_once_is_refused(driver):
    driver.cuStreamIsCapturing = lambda stream: (Status.CUDA_ERROR_INVALID_HANDLE, None)
    with pytest.raises(StreamRefusedError, match="INVALID_HANDLE"):
        check_lent_stream(Lender(None), 0x1000, 0)


@pytest.mark.parametrize("status", [Status.CUDA_ERROR_INVALID_HANDLE, Status.CUDA_ERROR_CONTEXT_IS_DESTROYED])
def test_a_stream_that_the_driver_does_not_know_is_refused(driver, status):
    driver.cuStreamGetDevice = lambda stream: (status, None)
    with pytest.raises(StreamRefusedError, match=f"not known to the driver .{status.name}.*destroyed"):
        check_lent_stream(Lender(None), 0x1000, 0)


def absent(stream):
    raise RuntimeError("Function cuStreamGetDevice not found")


@pytest.mark.parametrize("getter", [None, absent], ids=["old bindings", "old driver"])
def test_before_cuda_12_8_the_context_is_asked_for(driver, getter):
    if getter is not None:
        driver.cuStreamGetDevice = getter
    driver.cuStreamGetCtx = lambda stream: (Status.CUDA_SUCCESS if stream == 0x1000 else Status.CUDA_ERROR_INVALID_HANDLE, 7)
    check_lent_stream(Lender(None), 0x1000, 0)
    with pytest.raises(StreamRefusedError, match="INVALID_HANDLE"):
        check_lent_stream(Lender(None), 0x2000, 0)
