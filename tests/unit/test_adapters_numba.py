"""Numba-CUDA follows the selected stream: checked against a stand-in with its documented calls, as numba-cuda 0.30 has them."""

from __future__ import annotations

import ctypes
import sys
import threading
import types
import typing

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import AdapterWarning, OptionError
from gpustreamlab.typing import AdapterState
from tests.helpers.lending_backend import LendingBackend, StandIn, fresh_registry


class Handle:
    """A ``CUstream`` of cuda.bindings: a number inside, true whatever it is."""

    def __init__(self, number):
        self.number = number

    def __int__(self):
        return self.number


def flattened(values):
    for value in values:
        yield from flattened(value) if isinstance(value, tuple) else (value,)


class OnDevice:
    __cuda_array_interface__ = None


def make_numba(*, has_core=True, device=0):  # noqa: C901 - one stand-in of many small parts
    """Return a stand-in of ``numba.cuda`` and the list of what reached the driver: name, handle, whether it is asynchronous."""
    calls = []

    class Stream:
        def __init__(self, handle):
            self.handle = handle

        def synchronize(self):
            calls.append(("synchronize", int(self.handle)))

    class CoreStream:
        def __init__(self, handle):
            self.handle = Handle(handle)

    class Event:
        def record(self, stream=0):
            calls.append(("record", _number(stream)))

        def wait(self, stream=0):
            calls.append(("wait", _number(stream)))

    class Context:
        device = types.SimpleNamespace()

        def create_external_stream(self, handle):
            assert isinstance(handle, int)
            return Stream(Handle(handle))

    class Kernel:
        def launch(self, args, griddim, blockdim, stream=0, sharedmem=0):
            assert isinstance(stream, CoreStream if has_core else Stream | int)
            calls.append(("launch", _number(stream), griddim, sharedmem))
            for value in flattened(args):
                assert not _number(stream) or type(value) is not np.ndarray  # as numba-cuda 0.30.4 does
            return "launched"

    class Hint:
        def __init__(self, value):
            self.value = value

    class In(Hint): ...

    def _number(stream):
        return int(getattr(stream, "handle", stream))

    def copy_named(name):
        def copy(dst, src, size, stream=0):
            calls.append((name, _number(stream), "async" if stream else "sync"))

        return copy

    Context.device.id = device
    driver = types.SimpleNamespace(__name__="driver", Stream=Stream, Event=Event, Context=Context)
    for name in ("host_to_device", "device_to_host", "device_to_device", "device_memset"):
        setattr(driver, name, copy_named(name))
    if has_core:
        driver._to_core_stream = lambda stream: CoreStream(int(stream.handle))
    cuda = StandIn(
        "numba.cuda",
        __version__="0.30.4",
        dispatcher=types.SimpleNamespace(_Kernel=Kernel),
        cudadrv=types.SimpleNamespace(driver=driver, devices=types.SimpleNamespace(get_context=Context)),
        In=In,
    )
    return types.SimpleNamespace(
        cuda=cuda, driver=driver, kernel=Kernel(), stream=Stream, core=CoreStream, event=Event(), calls=calls
    )


@pytest.fixture
def numba(monkeypatch):
    fresh_registry(monkeypatch)
    numba = make_numba()
    monkeypatch.setitem(sys.modules, "numba.cuda", numba.cuda)
    return numba


@pytest.fixture
def lab(numba):
    with Session(LendingBackend()) as session:
        session.stream("a")
        session.stream("b")
        yield session


def test_a_launch_without_a_stream_goes_to_the_lane(numba, lab):
    a, b = lab.stream("a").handle, lab.stream("b").handle
    default = numba.core(0)
    with lab.on("a"):
        assert numba.kernel.launch((1, 2.0, OnDevice()), (4,), (32,), default, 16) == "launched"
        with lab.select("b"):
            numba.kernel.launch((), (5,), (32,), stream=default)
        numba.kernel.launch((), (6,), (32,), default)
    numba.kernel.launch((), (7,), (32,), default)
    assert numba.calls == [
        *(("launch", a, (4,), 16), ("launch", b, (5,), 0), ("launch", a, (6,), 0), ("launch", 0, (7,), 0)),
    ]


@pytest.mark.parametrize("handle", [1, 2, 77])
def test_a_stream_that_the_user_names_stays(numba, lab, handle):
    mine = numba.stream(Handle(handle))
    with lab.on("a"):
        numba.kernel.launch((), (1,), (1,), numba.core(handle))
        numba.driver.host_to_device(None, None, 8, stream=mine)
        numba.driver.device_to_host(None, None, 8, mine)
        numba.event.record(mine)
        mine.synchronize()
    assert [call[1] for call in numba.calls] == [handle] * 5


class Pair(typing.NamedTuple):
    number: int
    array: object


ON_HOST = {
    "array": lambda cuda, array: array,
    "In": lambda cuda, array: cuda.In(array),
    "in a tuple": lambda cuda, array: (1, (array, 2)),
    "in a named tuple": lambda cuda, array: Pair(3, array),
}


@pytest.mark.parametrize("wrap", ON_HOST.values(), ids=ON_HOST)
def test_a_launch_on_a_lane_refuses_arrays_of_the_host(numba, lab, wrap):
    lab.stream("a")
    with lab.on("a"), pytest.raises(OptionError, match=r"cuda\.to_device\(array\)"):
        numba.kernel.launch((OnDevice(), wrap(numba.cuda, np.zeros((2, 3))), 2), (1,), (1,), stream=numba.core(0))
    assert numba.calls == []


@pytest.mark.parametrize("name", ["host_to_device", "device_to_host", "device_to_device", "device_memset"])
def test_a_copy_without_a_stream_runs_on_the_lane_and_waits_for_the_lane_only(numba, lab, name):
    a = lab.stream("a").handle
    with lab.on("a"):
        getattr(numba.driver, name)(None, None, 8)
        getattr(numba.driver, name)(None, None, 8, stream=0)
        getattr(numba.driver, name)(None, None, 8, 0)
        default = numba.stream(Handle(0))
        getattr(numba.driver, name)(None, None, 8, stream=default)  # its object means the lane, without a wait
        default.synchronize()
    getattr(numba.driver, name)(None, None, 8)
    assert numba.calls[:6] == [(name, a, "async"), ("synchronize", a)] * 3
    assert numba.calls[6:] == [(name, a, "async"), ("synchronize", a), ("synchronize", 0), (name, 0, "sync")]


def test_events_are_recorded_in_the_lane(numba, lab):
    a = lab.stream("a").handle
    with lab.on("a"):
        numba.event.record()
        numba.event.wait(stream=0)
        numba.event.record(types.SimpleNamespace(handle=ctypes.c_void_p(0)))
        numba.event.record(types.SimpleNamespace(handle=Handle(9)))
    thread = threading.Thread(target=numba.event.record)  # other threads see nothing of a selection
    with lab.on("a"):
        thread.start()
        thread.join()
    numba.event.record()
    assert numba.calls == [("record", a), ("wait", a), ("record", a), ("record", 9), ("record", 0), ("record", 0)]


def test_an_older_numba_that_launches_through_its_own_streams_follows(monkeypatch, numba, lab):
    old = make_numba(has_core=False)
    monkeypatch.setitem(sys.modules, "numba.cuda", old.cuda)
    with lab.on("a"):
        old.kernel.launch((), (1,), (1,))
    assert old.calls == [("launch", lab.stream("a").handle, (1,), 0)]


def functions_of(numba):
    driver = numba.driver
    return [
        type(numba.kernel).launch,
        *(driver.host_to_device, driver.device_to_host, driver.device_to_device, driver.device_memset),
        *(driver.Event.record, driver.Event.wait, driver.Stream.synchronize),
    ]


def test_nothing_is_hooked_before_the_first_selection_nor_after_the_last_session(numba):
    before = functions_of(numba)
    first, second = Session(LendingBackend()), Session(LendingBackend())
    for session in (first, second):
        session.stream("a")
    assert functions_of(numba) == before
    for session in (first, second):
        with session.on("a"):
            assert not set(functions_of(numba)) & set(before)
    first.close()
    assert not set(functions_of(numba)) & set(before)
    theirs = numba.driver.host_to_device = lambda *args: None
    second.close()
    assert numba.driver.host_to_device is theirs  # what others put in place of a hook stays
    assert [*functions_of(numba)[:1], *functions_of(numba)[2:]] == [*before[:1], *before[2:]]


MISSING = {
    "dispatcher._Kernel": "numba.cuda.dispatcher._Kernel",
    "dispatcher._Kernel.launch": "Kernel.launch",
    "cudadrv.driver": "numba.cuda.cudadrv.driver",
    "cudadrv.driver.device_memset": "driver.device_memset",
    "cudadrv.driver.Event": "numba.cuda.cudadrv.driver.Event",
    "cudadrv.driver.Event.wait": "Event.wait",
    "cudadrv.driver.Stream.synchronize": "Stream.synchronize",
    "cudadrv.driver.Context.create_external_stream": "create_external_stream",
    "cudadrv.devices.get_context": "get_context",
}


@pytest.mark.parametrize("path", MISSING)
def test_where_a_function_is_missing_nothing_is_hooked_and_it_is_named(monkeypatch, numba, lab, path):
    *owners, name = path.split(".")
    owner = numba.cuda
    for part in owners:
        owner = getattr(owner, part)
    original = {item: value for item, value in vars(numba.driver).items() if callable(value)}
    launch = type(numba.kernel).launch
    delattr(owner, name)
    with (
        pytest.warns(AdapterWarning, match=f"numba.cuda 0.30.4 cannot follow .*{MISSING[path]}.*trace.strays"),
        lab.on("a"),
    ):
        pass
    assert all(getattr(numba.driver, item) is value for item, value in original.items() if hasattr(numba.driver, item))
    assert getattr(type(numba.kernel), "launch", launch) is launch
    assert lab.recording.adapters["numba-cuda"].state == AdapterState.CANNOT_FOLLOW


def test_work_on_another_device_stays_there(monkeypatch, numba, lab):
    second = make_numba(device=1)
    monkeypatch.setitem(sys.modules, "numba.cuda", second.cuda)
    with lab.on("a"):
        second.driver.host_to_device(None, None, 8)
    assert second.calls == [("host_to_device", 0, "sync")]


def test_numbas_simulator_is_left_alone_without_a_warning(numba, lab):
    numba.cuda.simulator_init = types.SimpleNamespace()
    with lab.on("a"):
        numba.event.record()
    assert numba.calls == [("record", 0)]
    assert "NUMBA_ENABLE_CUDASIM" in lab.recording.adapters["numba-cuda"].reason
