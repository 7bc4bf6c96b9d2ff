"""A fake libcupti, and a fake card whose work it tells of: no GPU, no driver, and time goes on only as a test says."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
import time
import types
from functools import cached_property

import numpy as np

from gpustreamlab.backends.cuda.cupti import _clients
from gpustreamlab.backends.cuda.cupti import _library as _cupti
from gpustreamlab.backends.cuda.cupti import _source as _cupti_source
from gpustreamlab.backends.cuda.cupti._buffers import CALL, ActivityBuffers
from gpustreamlab.backends.cuda.cupti._clients import Sharing
from gpustreamlab.backends.cuda.cupti._clock import CuptiClock
from gpustreamlab.backends.cuda.cupti._layouts import CallbackDomain, MarkerFlag, RecordKind, find_layouts
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._source import CuptiSource
from tests.helpers.cupti_buffers import record
from tests.helpers.python_buffers import PythonBuffers
from tests.helpers.recorded_buffers import CALL_NAMES

SUCCESS, INVALID_KIND, NOT_COMPATIBLE, INSUFFICIENT_PRIVILEGES, MULTIPLE_SUBSCRIBERS = 0, 21, 14, 35, 39
RESULTS = {
    INVALID_KIND: b"CUPTI_ERROR_INVALID_KIND",
    NOT_COMPATIBLE: b"CUPTI_ERROR_NOT_COMPATIBLE",
    INSUFFICIENT_PRIVILEGES: b"CUPTI_ERROR_INSUFFICIENT_PRIVILEGES",
    MULTIPLE_SUBSCRIBERS: b"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED",
}
CALL_KINDS = {RecordKind.DRIVER: CallbackDomain.DRIVER_API, RecordKind.RUNTIME: CallbackDomain.RUNTIME_API}
LAUNCH, SYNCHRONIZE, MALLOC, GET_VERSION = (1, 307), (1, 126), (1, 243), (1, 2)
"""Domain and callback id of cuLaunchKernel, cuStreamSynchronize, cuMemAlloc, cuDriverGetVersion."""

TICK_NS = 32

CLOCK = ctypes.CFUNCTYPE(ctypes.c_uint64)
"""A function that tells CUPTI the time."""


class FakeCuptiLibrary:
    """Answers as libcupti does; a function that it does not know raises AttributeError, as ctypes does.

    Parameters
    ----------
    version
        Its API version.
    lacking
        Functions that this version does not have.
    refused
        Result codes by function, or by record kind for enabling it.
    """

    def __init__(self, version=130001, *, lacking=(), refused=None):
        self.version = version
        self.lacking = set(lacking)
        self.refused = dict(refused or {})
        self.layouts = find_layouts(version)
        self.kinds = set()
        self.left_out = set()
        """Functions whose calls are not recorded, as (domain, callback id)."""
        self.subscriber = None
        self.allows_others = False
        """Whether who has subscribed lets others do so, too."""
        self._beside = None
        self.followed = set()
        """Functions at whose calls our callback is called, as (domain, callback id)."""
        self.lost_call_count = 0
        """Calls that found no room in the ring."""
        self.dropped_count = 0
        self.was_refused = False
        """Whether it once asked for a buffer and got none, on which CUPTI before 12.9 crashes."""
        self.history = []
        """Names of the functions that were called, in order."""
        self.contexts = {}
        """Number by address."""
        self.streams = {}
        """Number by (address of the context, handle)."""
        self.pending = []
        """Bytes of records that are complete; those in `late` come with a forced flush only."""
        self.late = []
        self.is_held_up = False
        """Whether a record that is not complete lies in the buffer: all come with a forced flush only."""
        self.clock_address = None
        """The function that tells the time; None for the wall clock."""
        self.finalized_count = 0
        self.is_in_callback = False
        self._client = None
        self._texts = {}
        self._calls = []
        self._words = []
        self.shapes = {}
        """Names of the functions whose calls are read, by number."""

    @cached_property
    def loaded(self):
        """As the process has it: one object for all sources."""
        return Cupti(self, "/fake/libcupti.so")

    def __getattr__(self, name):
        if not name.startswith("cupti") or name in self.lacking:
            raise AttributeError(name)
        own = getattr(type(self), re.sub(r"(?<!^)(?=[A-Z])", "_", name.removeprefix("cupti")).lower(), None)
        if own is None:
            raise AttributeError(name)

        def call(*arguments):
            self.history.append(name)
            return self.refused[name] if name in self.refused else own(self, *arguments) or SUCCESS

        return call

    # What the library offers

    def get_version(self, place):
        place._obj.value = self.version

    def get_result_string(self, code, place):
        if code not in RESULTS:
            return 1
        place._obj.value = RESULTS[code]
        return SUCCESS

    def subscribe(self, handle, callback, user_data):
        if self.subscriber is not None:
            return MULTIPLE_SUBSCRIBERS
        self.subscriber = "ours"
        self._callback = callback
        return SUCCESS

    def subscribe_v2(self, handle, callback, user_data, params):
        given = params._obj
        assert given.structSize == 40
        if not (self.allows_others and given.allowMultipleSubscribers):
            return MULTIPLE_SUBSCRIBERS
        self._beside, self.subscriber = self.subscriber, "ours"
        self._callback = callback
        return SUCCESS

    def enable_callback(self, is_on, handle, domain, number):
        assert self.subscriber == "ours"
        (self.followed.add if is_on.value else self.followed.discard)((domain, number.value))
        self._watched = (domain, number.value)

    def finalize(self):
        assert self.is_in_callback
        self.finalized_count += 1
        self.subscriber = None
        self.kinds.clear()

    def unsubscribe(self, handle):
        assert self.subscriber == "ours"
        self.subscriber, self._beside = self._beside, None
        self.followed.clear()

    def get_callback_name(self, domain, number, place):
        name = CALL_NAMES[domain].get(number.value)
        if name is None:
            return 1
        place._obj.value = name.encode()
        return SUCCESS

    def get_timestamp(self, place):
        place._obj.value = time.time_ns() if self.clock_address is None else CLOCK(self.clock_address)()

    def activity_register_timestamp_callback(self, address):
        self.clock_address = address.value

    def activity_register_callbacks(self, request, complete):
        self._client = request, complete

    def activity_enable(self, kind):
        if kind not in self.layouts.sizes:
            return INVALID_KIND
        if kind in self.refused:
            return self.refused[kind]
        self.kinds.add(kind)
        return SUCCESS

    activity_enable_and_dump = activity_enable

    def activity_disable(self, kind):
        self.kinds.discard(kind)

    def activity_enable_driver_api(self, number, is_on):
        self._set_call((1, number.value), is_on.value)

    def activity_enable_runtime_api(self, number, is_on):
        self._set_call((2, number.value), is_on.value)

    def activity_flush_all(self, flag):
        if self.is_held_up and not flag:
            return
        records = self.pending + (self.late if flag else [])
        self.pending = []
        self.late = [] if flag else self.late
        if records:
            self._deliver(records)

    def activity_get_num_dropped_records(self, context, stream, place):
        place._obj.value, self.dropped_count = self.dropped_count, 0

    def get_context_id(self, context, place):
        place._obj.value = self.contexts[context.value or 0]

    def get_stream_id_ex(self, context, stream, per_thread, place):
        assert per_thread.value == 0
        place._obj.value = self.streams[context.value or 0, stream.value or 0]

    # What a test does with it

    def make_detaching_call(self):
        """Make the call of the driver in whose callback CUPTI is to be left: the callback comes at its begin and at its end."""
        self.is_in_callback = True
        for site in (0, 1):
            info = (ctypes.c_int * 8)(site)
            self._callback(None, self._watched[0], self._watched[1], ctypes.addressof(info))
        self.is_in_callback = False

    def emit(self, kind, *, is_late=False, **fields):
        """Record something, if its kind is on."""
        call = (CALL_KINDS.get(kind), fields.get("cbid"))
        if call in self.followed:
            self._calls.append(tuple(fields.get(name, 0) for name in CALL.names))
            self._words += fields.get("own_words", [])
        elif kind in self.kinds and call not in self.left_out:
            (self.late if is_late else self.pending).append(record(int(kind), self.layouts, fields))

    def take_calls(self):
        """Stand for the ring of callbacks.c, whose clock is the real one."""
        calls, self._calls = np.array(self._calls, CALL), []
        words, self._words = np.array(self._words, np.uint64), []
        lost_count, self.lost_call_count = self.lost_call_count, 0
        return calls, words, lost_count

    def emit_raw(self, data):
        """Record these bytes."""
        self.pending.append(data)

    def text(self, text):
        """Return the address of a text that stays."""
        if text not in self._texts:
            self._texts[text] = ctypes.create_string_buffer(text.encode() if isinstance(text, str) else text)
        return ctypes.addressof(self._texts[text])

    def be_taken_over(self):
        """Let another client register its callbacks, as torch.profiler does: records go there from now on."""
        self.taken = []
        foreign = ctypes.create_string_buffer(1 << 16)
        self._foreign = foreign

        def request(address, size, most):
            address._obj.value, size._obj.value = ctypes.addressof(foreign), len(foreign)

        self._client = request, lambda *arguments: self.taken.append(arguments)

    def complete_foreign(self, address=4096, valid_bytes=64):
        """Hand a buffer that another client gave to whoever is registered now."""
        self._client[1](None, 0, address, valid_bytes, valid_bytes)

    def _set_call(self, call, is_on):
        (self.left_out.discard if is_on else self.left_out.add)(call)

    def _deliver(self, records):
        while records:
            address, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(7)
            self._client[0](ctypes.byref(address), ctypes.byref(size), ctypes.byref(most))
            if not address.value:
                self.dropped_count += len(records)
                self.was_refused = True
                return
            assert address.value % 8 == 0
            filled = 0
            while records and filled + len(records[0]) <= size.value:
                data = np.ascontiguousarray(records.pop(0))
                ctypes.memmove(address.value + filled, data.ctypes.data, len(data))
                filled += len(data)
            self._client[1](None, 0, address.value, size.value, filled)


class FakeDriver:
    """Answers which allocation an address is in: of those that a test puts here, as first address, size and memory type."""

    def __init__(self):
        self.allocations = []

    def cuPointerGetAttributes(self, count, attributes, places, address):  # noqa: N802 - the driver's name
        kind, _, start, size = places
        for begin, length, memory_type in self.allocations:
            if begin <= address.value < begin + length:
                ctypes.c_uint.from_address(kind).value = memory_type
                ctypes.c_uint64.from_address(start).value = begin
                ctypes.c_size_t.from_address(size).value = length
        return SUCCESS


class FakeCard:
    """Runs kernels at moments that a test chooses, and lets a fake libcupti tell of them.

    Host and card share one clock here, `now_ns`; CUPTI's wall clock runs faster by a drift.

    Parameters
    ----------
    library
        What tells of the work.
    drift_ppm
        By how much CUPTI's clock is too fast.
    """

    WALL_NS = 1_795_297_293_000_000_000
    ORIGIN_TIMER_NS = 777_000_000_000
    CLOCK_HANDLE = 0x5000

    def __init__(self, library, *, drift_ppm=0.0):
        self.library = library
        self.drift_ppm = drift_ppm
        self.now_ns = 0
        self.is_stuck = False
        """Whether kernels do not run: anchors stay on their way."""
        self.is_slow = False
        """Whether records of kernels come with the second flush after them."""
        self.wall_step_ns = 0
        """By how much somebody has set the wall clock."""
        self.correlation = 100
        self.driver = FakeDriver()
        library.contexts[0x100] = 1
        library.streams |= {(0x100, 0): 7, (0x100, self.CLOCK_HANDLE): 12, (0x100, 0x6000): 13, (0x100, 0x7000): 14}

    def host_time_ns(self):
        self.now_ns += 100  # time goes on while it is read
        return self.now_ns

    def advance(self, ns):
        self.now_ns += int(ns)

    def cupti_ns(self, device_ns):
        """Return what CUPTI says for a moment of the card."""
        return self.WALL_NS + int(device_ns) + round(device_ns * self.drift_ppm * 1e-6)

    def call(self, call=LAUNCH, *, duration_ns=5_000, thread=None, **fields):
        """Make a call of the host; return its number."""
        self.correlation += 1 if (self.correlation + 1) & 0xFFFF_FFFF else 2  # 0 stands for none
        domain, number = call
        self.library.emit(
            RecordKind.DRIVER if domain == 1 else RecordKind.RUNTIME,
            cbid=number,
            start=self.WALL_NS + self.wall_step_ns + self.now_ns,
            end=self.WALL_NS + self.wall_step_ns + self.now_ns + duration_ns,
            threadId=(threading.get_ident() if thread is None else thread) & 0xFFFF_FFFF,
            correlationId=self.correlation & 0xFFFF_FFFF,
            **fields,
        )
        self.advance(duration_ns)
        return self.correlation

    def kernel(self, name="spin", *, duration_ns=10_000, stream=13, is_late=False, **fields):
        """Launch a kernel that runs at once, and wait for it; return when it began, on the session's clock."""
        given = {"contextId": 1, "deviceId": 0, "gridX": 4, "blockX": 64, **fields}
        correlation = self.call()
        begin_ns = self.now_ns
        self.advance(duration_ns)
        self.library.emit(
            RecordKind.CONCURRENT_KERNEL,
            is_late=is_late,
            **{"start": self.cupti_ns(begin_ns), "end": self.cupti_ns(self.now_ns), "correlationId": correlation & 0xFFFF_FFFF}
            | given,
            streamId=stream,
            name=self.library.text(name),
        )
        return begin_ns

    def marker(self, flag, number, text="", domain="cudf", thread=77):
        """Begin or end an NVTX range."""
        self.library.emit(
            RecordKind.MARKER,
            flags=flag,
            id=number,
            timestamp=self.cupti_ns(self.now_ns),
            threadId=thread & 0xFFFF_FFFF,
            name=self.library.text(text) if flag & MarkerFlag.START else 0,
            domain=self.library.text(domain) if domain else 0,
        )
        self.advance(1_000)

    def launch_anchor(self, tag):
        """Launch a kernel of the clock, as `anchor_launcher` does."""
        timers = np.zeros(2, np.uint64)
        correlation = self.call()
        if not self.is_stuck:
            begin_ns, end_ns = self.now_ns, self.now_ns + 1_000
            timers[:] = [(ns + self.ORIGIN_TIMER_NS) // TICK_NS * TICK_NS for ns in (begin_ns, end_ns)]
            self.library.emit(
                RecordKind.CONCURRENT_KERNEL,
                is_late=self.is_slow,
                start=self.cupti_ns(begin_ns),
                end=self.cupti_ns(end_ns + 700),
                contextId=1,
                streamId=12,
                correlationId=correlation & 0xFFFF_FFFF,
                dynamicSharedMemory=tag,
                name=self.library.text("spin"),
            )
        return timers


class FakePoolWatch:
    """Stands for the watch of CuPy's pool: gives the samples that it was fed."""

    def __init__(self):
        self.is_on = False
        self.samples = []
        self.gone = []

    def start(self, key_of):
        assert callable(key_of)
        self.is_on = True

    def stop(self):
        self.is_on = False

    def take(self):
        taken, self.samples = self.samples, []
        return taken

    def take_given(self):
        return []

    def note_gone(self, name, address, *, at_host_ns):
        self.gone.append((name, address, at_host_ns))


def install_driver_bindings(monkeypatch, contexts=None):
    """Put a `cuda.bindings.driver` in place that knows the context of each stream, by its handle; all are 0x100 by default."""
    driver = types.ModuleType("cuda.bindings.driver")
    driver.CUresult = types.SimpleNamespace(CUDA_SUCCESS=0)
    driver.CUstream = int

    def get_context(handle):
        context = 0x100 if contexts is None else contexts.get(handle)
        return (0, context) if context is not None else (400, 0)

    driver.cuStreamGetCtx = get_context
    for name, module in {"cuda": types.ModuleType("cuda"), "cuda.bindings": types.ModuleType("cuda.bindings")}.items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["cuda.bindings"].driver = driver
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", driver)
    return driver


def install_torch(monkeypatch, *, is_profiling):
    torch = types.ModuleType("torch")
    torch.autograd = types.SimpleNamespace(_profiler_enabled=lambda: torch.is_profiling)
    torch.is_profiling = is_profiling
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def make_source(monkeypatch, card, *, mark_range=lambda: None, keep_time=lambda: None, watch=None, ordinal=0):
    """Return a source of a card, and forget those of earlier tests."""
    monkeypatch.setattr(_cupti_source, "SHARING", Sharing())
    return add_source(monkeypatch, card, mark_range=mark_range, keep_time=keep_time, watch=watch, ordinal=ordinal)


def add_source(monkeypatch, card, *, mark_range=lambda: None, keep_time=lambda: None, watch=None, ordinal=0):
    """Return a further source of the same process."""
    install_driver_bindings(monkeypatch)
    monkeypatch.setattr(ActivityBuffers, "take_calls", lambda _: card.library.take_calls())
    monkeypatch.setattr(_clients, "load_libcuda", lambda: card.driver)
    for buffers in (ActivityBuffers, PythonBuffers):
        monkeypatch.setattr(buffers, "begin_calls", lambda _, driver: None)
        monkeypatch.setattr(buffers, "set_shape", lambda _, number, name: card.library.shapes.update({number: name}))
        monkeypatch.setattr(buffers, "tell_memory", lambda _, address, size_bytes: None)
        monkeypatch.setattr(buffers, "function_name", lambda _, function: f"function {function:#x}")
    monkeypatch.setattr(_cupti, "_make_detaching_call", card.library.make_detaching_call)
    time = types.SimpleNamespace(
        time_ns=lambda: card.WALL_NS + card.wall_step_ns + card.now_ns, sleep=card.advance, strftime=lambda form: "12:34:56"
    )
    monkeypatch.setattr(_cupti_source, "time", time)
    clock = CuptiClock(launch=card.launch_anchor, origin_timer_ns=card.ORIGIN_TIMER_NS, host_time_ns=card.host_time_ns)
    return CuptiSource(
        card.library.loaded,
        ordinal=ordinal,
        sm_count=132,
        clock=clock,
        clock_handle=card.CLOCK_HANDLE,
        host_time_ns=card.host_time_ns,
        watch=watch or FakePoolWatch(),
        mark_range=mark_range,
        keep_time=keep_time,
    )
