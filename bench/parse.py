"""What reading costs: a record of CUPTI, beside copying its bytes; and a kernel, from raw buffers and the ring to the trace.

Buffers are made here, so no GPU is needed: one kind in a long run, a launch call and its kernel in turn, and a mix without
order. The floor is a memcpy of the bytes, and cupti-python's own callback stands beside it. Whole reading is that of a session:
buffers of 1 MiB as CUPTI fills them, calls with their arguments in the ring of callbacks.c, anchors, a recorder; by stage, in
time of its thread, beside a memcpy of the same bytes. Figures are medians over the rounds; of how long Python's lock is held in
one stretch, which others on the machine make longer, the least.

    python -m bench.parse --json bench/results/parse.json
"""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bench._common import report
from gpustreamlab.backends.cuda._probe import why_unavailable
from gpustreamlab.backends.cuda.cupti import _calls, _clients, _clock, _records, _source
from gpustreamlab.backends.cuda.cupti._accesses import AccessReader
from gpustreamlab.backends.cuda.cupti._buffers import BUFFER_BYTES, ActivityBuffers
from gpustreamlab.backends.cuda.cupti._layouts import Layouts, RecordKind, find_layouts
from gpustreamlab.backends.cuda.cupti._records import parse_buffer
from gpustreamlab.recorder import Recorder, _recorder
from gpustreamlab.recorder._in_flight import RangesInFlight
from gpustreamlab.recorder._kernel_tier import KernelTier
from gpustreamlab.recorder._work import WorkReader
from gpustreamlab.typing import SpanKind
from tests.helpers.cupti_buffers import record
from tests.helpers.fake_cupti import FakeCard, FakeCuptiLibrary, FakeDriver, make_source
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.recorded_buffers import CALL_NAMES

NEEDS_GPU = False

_PEER = """
import time
import cupy
from cupti import cupti

LAUNCHES = 20_000
seen = []

def complete(activities):
    seen.extend((activity.name, activity.start, activity.end, activity.stream_id) for activity in activities)

kernel = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
kernel((1,), (32,), ())
cupy.cuda.runtime.deviceSynchronize()
cupti.activity_register_callbacks(lambda: (16 << 20, 0), complete)
cupti.activity_enable(cupti.ActivityKind.CONCURRENT_KERNEL)
for _ in range(LAUNCHES):
    kernel((1,), (32,), ())
cupy.cuda.runtime.deviceSynchronize()
began = time.perf_counter()
cupti.activity_flush_all(1)
print((time.perf_counter() - began) / len(seen) * 1e9)
"""
VERSION = 130001
ROUNDS = 15
READ_KERNELS, READ_ROUNDS = 100_000, 5


def main(argv: list[str] | None = None) -> None:
    layouts = find_layouts(VERSION)
    assert layouts is not None
    rows = [_row(name, make_buffer(kinds, layouts), layouts) for name, kinds in streams().items()]
    peer_ns = peer_cupti_python()
    rows.append(
        {"records": "kernels, cupti-python's callback", "ns a record": "not measured here" if peer_ns is None else peer_ns}
    )
    rows += [row for name, program in PROGRAMS.items() for row in read_program(name, program)]
    report(
        f"Reading of CUPTI's records and of whole programs (CUPTI {VERSION}, medians of {ROUNDS} and {READ_ROUNDS})", rows, argv
    )


def streams() -> dict[str, NDArray[np.int64]]:
    """Return a stretch of kinds for each case; it is repeated until the buffer is full."""
    kernel, runtime, driver = RecordKind.CONCURRENT_KERNEL, RecordKind.RUNTIME, RecordKind.DRIVER
    others = [kernel, runtime, driver, RecordKind.MEMCPY, RecordKind.MEMSET, RecordKind.SYNCHRONIZATION, RecordKind.CUDA_EVENT]
    return {
        "kernels, one run": np.array([kernel]),
        "launch calls, one run": np.array([runtime]),
        "launch call and kernel in turn": np.array([runtime, kernel]),
        "runs of 500": np.repeat([runtime, kernel], 500),
        "runs of 20": np.repeat([runtime, kernel], 20),
        "seven kinds without order": np.random.default_rng(0).choice(others, 4_096),
    }


def make_buffer(kinds: NDArray[np.int64], layouts: Layouts) -> NDArray[np.uint8]:
    """Fill a buffer with records of noise."""
    sizes = np.array([layouts.sizes[int(kind)] for kind in kinds])
    times = max(BUFFER_BYTES // int(sizes.sum()), 1)
    ends = np.cumsum(np.tile(sizes, times))
    data = np.random.default_rng(1).integers(0, 256, int(ends[-1]), dtype=np.uint8)
    data.view("<u4")[(ends - np.tile(sizes, times)) // 4] = np.tile(kinds, times)
    return data


def peer_cupti_python() -> float | None:
    """Return what cupti-python's own callback costs a kernel, in ns; None where it, or a GPU, is missing.

    It runs in a process of its own: CUPTI has room for one client.
    """
    if why_unavailable() is not None or importlib.util.find_spec("cupti") is None:
        return None
    done = subprocess.run([sys.executable, "-c", _PEER], capture_output=True, text=True, check=True, timeout=120)
    return round(float(done.stdout), 1)


def _row(name: str, data: NDArray[np.uint8], layouts: Layouts) -> dict[str, Any]:
    count = parse_buffer(data, layouts=layouts).record_count
    works: dict[str, Callable[[], object]] = {"parse": partial(parse_buffer, data, layouts=layouts), "floor": data.copy}
    times: dict[str, list[float]] = {work: [] for work in works}
    for _ in range(ROUNDS):
        for work, call in works.items():
            began = time.perf_counter()
            call()
            times[work].append((time.perf_counter() - began) / count * 1e9)
    parse, floor = statistics.median(times["parse"]), statistics.median(times["floor"])
    return {
        "records": name,
        "bytes a record": round(data.size / count),
        "ns a record": round(parse, 1),
        "best": round(min(times["parse"]), 1),
        "memcpy ns": round(floor, 1),
        "times memcpy": round(parse / floor, 1),
    }


# Whole reading: programs of launches, as (function, grid, stream, addresses); None for an event that the other stream waits
# for, an address for memory that is allocated there, a negative one for memory that is freed

A_KERNEL = tuple[int, int, int, tuple[int, ...]] | int


def loop() -> Iterator[A_KERNEL | None]:
    """Return one kernel with the same arguments, as `x.add_(1)` launches it."""
    return itertools.repeat((0, 1, 0, (BLOCKS[0],)))


def training() -> Iterator[A_KERNEL | None]:
    """Return steps of 400 kernels of 24 functions on two streams, with memory that is used again in each step."""
    chosen = np.random.default_rng(0)
    step: list[A_KERNEL | None] = []
    for place in range(400):
        words = tuple(int(chosen.choice(BLOCKS)) + 512 * int(chosen.integers(64)) for _ in range(3))
        step.append((int(chosen.integers(24)), int(chosen.integers(1, 4)), place // 64 % 2, words))
        if place % 64 == 63:
            step.append(None)
    return itertools.cycle(step)


def unlike() -> Iterator[A_KERNEL | None]:
    """Return launches of which none has the arguments of another, as where each step writes to the next row."""
    chosen = np.random.default_rng(0).integers(1 << 12, size=(READ_KERNELS, 2))
    return (
        (place % 24, 1, 0, (BLOCKS[place % 64] + 8 * int(one), BLOCKS[0] + 8 * int(other)))
        for place, (one, other) in enumerate(chosen)
    )


def allocating() -> Iterator[A_KERNEL | None]:
    """Return launches of which each is given new memory, as `x = x + 1` does without a pool."""
    for turn in itertools.count():
        target = FRESH + turn % 2 * (1 << 21)
        yield target
        yield 0, 1, 0, (BLOCKS[0], target)
        yield -target


PROGRAMS: dict[str, Callable[[], Iterator[A_KERNEL | None]]] = {
    "the same launch again and again": loop,
    "training, two streams": training,
    "no launch like another": unlike,
    "new memory for each launch": allocating,
}
BLOCKS = [0x7F00_0000_0000 + place * (1 << 22) for place in range(64)]
FRESH = 0x7E00_0000_0000
STREAMS = (0, 0x6000)
LAUNCH, EVENT_RECORD, STREAM_WAIT, ALLOCATE, FREE = 307, 119, 295, 243, 245
MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorI{}EESt5arrayIPcLm1EEEEviT0_T1_"
QUESTION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)


class Driver(FakeDriver):
    """Knows of each function three parameters of 8 bytes, and the memory of `BLOCKS`."""

    def __init__(self) -> None:
        super().__init__()
        self.allocations = [(address, 1 << 22, 2) for address in BLOCKS]

        def parameter(function: int, place: int, offset: Any, size: Any) -> int:
            offset[0], size[0] = 8 * place, 8
            return int(place >= 3)

        self.cuFuncGetParamInfo = QUESTION(parameter)


class Card(FakeCard):
    """A card on which time is the machine's."""

    WALL_NS = time.time_ns() - time.perf_counter_ns()
    now_ns = property(lambda _: time.perf_counter_ns(), lambda _, now_ns: None)

    def __init__(self) -> None:
        super().__init__(FakeCuptiLibrary(VERSION))
        self.driver = Driver()

    def host_time_ns(self) -> int:
        """Return the machine's time."""
        return time.perf_counter_ns()


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData, as far as it is read."""

    _fields_ = (
        ("site", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
        ("context_number", ctypes.c_uint32),
        ("own", ctypes.POINTER(ctypes.c_uint64)),
        ("number", ctypes.c_uint32),
    )


class Driven:
    """Makes the calls of a program, and lays the records of their work into CUPTI's buffers."""

    def __init__(self, card: Card, buffers: ActivityBuffers) -> None:
        self.card, self.buffers = card, buffers
        self._note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(
            buffers.note_call.value
        )
        self._kept = ctypes.c_uint64()
        self._data = CallbackData(own=ctypes.pointer(self._kept))
        self._words = (ctypes.c_uint64 * 3)()
        self._given = (ctypes.c_void_p * 3)(*(ctypes.addressof(self._words) + 8 * place for place in range(3)))

    def call(self, function: int, parameters: Any) -> int:
        """Call back as CUPTI does at the begin and the end of a call; return its number."""
        self.card.correlation += 1
        data, address = self._data, ctypes.addressof(self._data)
        data.number, data.parameters = self.card.correlation, ctypes.addressof(parameters)
        for data.site in (0, 1):
            self._note(None, 1, function, address)
        return self.card.correlation

    def run(self, program: Iterator[A_KERNEL | None], count: int) -> None:
        """Launch so many kernels, and let them have run."""
        made: list[tuple[int, dict[str, int]]] = []
        while count:
            one = next(program)
            count -= isinstance(one, tuple)
            begun_ns = time.perf_counter_ns()
            if isinstance(one, int):
                place = ctypes.c_uint64(one)
                facts = (ctypes.addressof(place), 1 << 20) if one > 0 else (-one, 0)
                self.call(ALLOCATE if one > 0 else FREE, (ctypes.c_uint64 * 2)(*facts))
                continue
            if one is None:
                wanted = (EVENT_RECORD, (0x9000, STREAMS[0])), (STREAM_WAIT, (STREAMS[1], 0x9000, 0))
                first, second = (self.call(number, (ctypes.c_uint64 * 3)(*facts)) for number, facts in wanted)
                made.append((RecordKind.CUDA_EVENT, {"eventId": 5, "correlationId": first, "contextId": 1, "streamId": 7}))
                wait = {"cudaEventId": 5, "correlationId": second, "contextId": 1, "streamId": 13, "type": 2}
                made.append((RecordKind.SYNCHRONIZATION, wait))
                continue
            function, grid, stream, addresses = one
            self._words[:] = (*addresses, *[7] * (3 - len(addresses)))
            facts = (ctypes.c_uint64 * 8)(0x1000 + function, 0, 0, 0, 0, STREAMS[stream], ctypes.addressof(self._given), 0)
            number = self.call(LAUNCH, facts)
            begin_ns = self.card.cupti_ns(begun_ns + 3_000)
            work = {"start": begin_ns, "end": begin_ns + 2_000, "correlationId": number, "streamId": 13 if stream else 7}
            made.append((RecordKind.CONCURRENT_KERNEL, work | {"gridX": grid, "function": function}))
        self._deliver(made)

    def _deliver(self, made: list[tuple[int, dict[str, int]]]) -> None:
        """Write records as CUPTI does: behind each other in the buffers that it asks for."""
        library, layouts = self.card.library, self.card.library.layouts
        kinds = np.array([kind for kind, _ in made])
        sizes = np.array([layouts.sizes[int(kind)] for kind in kinds])
        ends = np.cumsum(sizes)
        data = np.zeros(int(ends[-1]), np.uint8)
        fixed = {"contextId": 1, "gridY": 1, "gridZ": 1, "blockX": 64, "blockY": 1, "blockZ": 1, "registersPerThread": 24}
        for kind in set(kinds.tolist()):
            given = [facts for one, facts in made if one == kind]
            begins = (ends - sizes)[kinds == kind]
            first = record(kind, layouts, fixed if kind == RecordKind.CONCURRENT_KERNEL else {})
            data[begins[:, None] + np.arange(len(first))] = first
            told = {name: np.array([facts[name] for facts in given]) for name in given[0]}
            if kind == RecordKind.CONCURRENT_KERNEL:
                names = np.array(
                    [library.text(MANGLED.format("ijlmfdbhcatsxywz"[place % 16] * (1 + place // 16))) for place in range(24)]
                )
                told["name"] = names[told.pop("function")]
            for name, values in told.items():
                offset, form = layouts.fields[kind][name]
                column = values.astype(form)[:, None].view(np.uint8)
                data[begins[:, None] + offset + np.arange(column.shape[1])] = column
        cuts = [0, *ends[np.flatnonzero(np.diff(ends // (BUFFER_BYTES - 256)))].tolist(), int(ends[-1])]
        library.pending += [data[begin:end] for begin, end in itertools.pairwise(cuts)]


class Stages:
    """Adds up the time of this thread by stage; what a stage calls of another one is that one's."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = 0.0

    def wrap(self, patch: pytest.MonkeyPatch, owner: Any, name: str, stage: str) -> None:
        """Count the time in a function to a stage."""
        inner = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            self._turn()
            self._open.append(stage)
            try:
                return inner(*args, **options)
            finally:
                self._turn()
                self._open.pop()

        patch.setattr(owner, name, timed)

    def _turn(self) -> None:
        now = time.thread_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


FAKE = "the fake libcupti's own"
STAGES = (
    (FakeCuptiLibrary, "activity_flush_all", FAKE),
    (_clients, "parse_buffer", "buffers to columns"),
    (ActivityBuffers, "take_calls", "calls out of the ring"),
    (AccessReader, "read", "accesses"),
    (_clients, "concat_records", "columns joined"),
    (_source, "concat_records", "columns joined"),
    (_source, "join_staged", "columns joined"),
    (_records.CallNumbers, "continue_in", "columns joined"),
    (_source, "work_batch", "work"),
    (_calls.CallReader, "read", "calls of the host"),
    (_calls.DependencyReader, "read", "waits"),
    (_source, "told_until", "what threads were told"),
    (_clock.CuptiClock, "place", "the session's clock"),
    (_source.CuptiSource, "drain", "source, all else"),
    (WorkReader, "read", "recorder: rows"),
    (RangesInFlight, "store", "recorder: journal"),
    (KernelTier, "take", "recorder, all else"),
    (_recorder, "fold", "trace"),
    (Recorder, "trace", "trace"),
)


def read_program(name: str, program: Callable[[], Iterator[A_KERNEL | None]]) -> list[dict[str, Any]]:
    """Time how a session reads a program, by stage: into the journal, and then into a trace."""
    found: list[Counter[str]] = []
    held: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        source, driven = open_source(patch)
        for _ in range(READ_ROUNDS):
            recorder, stages = Recorder(InstantBackend(), ring_size=8 * READ_KERNELS), Stages()
            recorder.start_capture(source)
            driven.run(program(), 100)
            recorder.kernels.take(is_complete=False)
            driven.run(program(), READ_KERNELS)
            with pytest.MonkeyPatch.context() as timed:
                for owner, function, stage in STAGES:
                    stages.wrap(timed, owner, function, stage)
                floor = memcpy_s(driven)
                recorder.kernels.take(is_complete=False)
                trace = recorder.trace()
            stages.seconds["floor: memcpy of records and calls"] = floor
            driven.run(program(), READ_KERNELS)
            held.append(longest_hold_s(partial(recorder.kernels.take, is_complete=False)))
            recorder.end_capture()
            found.append(stages.seconds)
            kernels = int((trace.kind == list(SpanKind).index(SpanKind.KERNEL)).sum())
            assert kernels == READ_KERNELS + 100, kernels
        source.close()
    us = {stage: statistics.median(one[stage] for one in found) / READ_KERNELS * 1e6 for stage in found[0] if stage != FAKE}
    journal = sum(took for stage, took in us.items() if stage != "trace" and not stage.startswith("floor"))
    us = {"into the journal": journal, "the same without accesses": journal - us["accesses"]} | us
    rows = [{"program": name, "stage": stage, "us a kernel": round(took, 3)} for stage, took in us.items()]
    return [
        *rows,
        {"program": name, "stage": "longest stretch with Python's lock, ms", "us a kernel": round(min(held) * 1e3, 2)},
    ]


def memcpy_s(driven: Driven) -> float:
    """Return the time of this thread for copying what waits: the records in their buffers, and as much as calls take."""
    waiting = [*driven.card.library.pending, np.zeros(driven.buffers.call_count * _CALL_BYTES, np.uint8)]
    began = time.thread_time()
    for data in waiting:
        data.copy()
    return time.thread_time() - began


def longest_hold_s(work: Callable[[], object]) -> float:
    """Return how long this thread ran at most while another one waited for Python's lock; too long where a machine is busy."""
    clock, is_over, gaps = time.pthread_getcpuclockid(threading.get_ident()), threading.Event(), [0.0]
    interval = sys.getswitchinterval()

    def watch() -> None:
        last = time.clock_gettime(clock)
        while not is_over.is_set():
            now = time.clock_gettime(clock)
            gaps[0], last = max(gaps[0], now - last), now

    watcher = threading.Thread(target=watch)
    sys.setswitchinterval(1e-5)
    watcher.start()
    try:
        work()
    finally:
        is_over.set()
        watcher.join()
        sys.setswitchinterval(interval)
    return gaps[0]


_CALL_BYTES = 64
"""Of a slot of the ring."""


_process: list[Any] = []


def open_source(patch: pytest.MonkeyPatch) -> tuple[Any, Driven]:
    """Return a source of a card whose clock is this machine's, with the true ring; once in a process."""
    if not _process:
        real = {
            name: getattr(ActivityBuffers, name)
            for name in ("take_calls", "begin_calls", "set_shape", "tell_memory", "function_name")
        }
        CALL_NAMES[1] |= {STREAM_WAIT: "cuStreamWaitEvent", FREE: "cuMemFree_v2"}
        card = Card()
        keep = pytest.MonkeyPatch()
        source = make_source(keep, card)
        for name, function in real.items():
            keep.setattr(ActivityBuffers, name, function)
        keep.setattr(_source, "time", time)
        _process.append((source, Driven(card, _source.SHARING.buffers)))
    return _process[0]


if __name__ == "__main__":
    main()
