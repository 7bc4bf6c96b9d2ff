"""Activity records of a device, in one form for all backends: kernels, copies, calls of the host, NVTX ranges of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from gpustreamlab.backends._protocol import BackendStream
from gpustreamlab.model import WorkDetail
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array

OWN_PREFIX = "gpustreamlab_"
"""Prefix of the kernels of this package, those of its clocks and its probe of SMs: no trace has them."""
PROBE_NAME = f"{OWN_PREFIX}probe"  # The kernel by which `PartitionTools.verify` finds where streams run
SPIN_NAME = "_ZN12gpustreamlab4spinExPy"  # The linker's, of the kernel of `workloads.spin`: no kernel of a user has it


PEER_COPY = "memcpy PtoP"
"""Name of a copy from one device to another. It may run on a stream of the driver's; its stream is the one that launched it."""
STAGED_COPY = "memcpy PtoP (through the host)"
"""Likewise, where neither device may read the other's memory. Its start is the earliest that it can have had."""


class CallClass(IntEnum):
    """Purpose of a call of the host."""

    LAUNCH = 0
    """It enqueued a kernel, a graph, a copy or a fill."""
    SYNCHRONIZE = 1
    """It waited for the device."""
    MEMORY = 2
    """It allocated or freed memory."""
    EVENT = 3
    """It recorded an event, or made a stream wait for one."""
    OTHER = 4
    """It loaded code, or enqueued a function of the host; or no call, but what the driver or the profiler did meanwhile."""
    CREATE = 5
    """It made a stream, a context of a partition, or a graph that can be launched."""


def _nothing() -> Int64Array:
    return np.empty(0, np.int64)


class _Batch:
    """Columns of equal length."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]  # each is a dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkBatch(_Batch):
    """Kernels, copies and fills that have ended, as columns of equal length, int64 each."""

    kind: Int64Array = field(default_factory=_nothing)
    """Code of the `SpanKind`: kernel, copy or fill."""
    start_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock."""
    end_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock, never before the start."""
    context: Int64Array = field(default_factory=_nothing)
    """The context as `ActivitySource.key_of` numbers it."""
    stream: Int64Array = field(default_factory=_nothing)
    """The stream as `ActivitySource.key_of` numbers it."""
    name: Int64Array = field(default_factory=_nothing)
    """Index into `Activities.names`: the short name."""
    detail: Int64Array = field(default_factory=_nothing)
    """Index into `Activities.details`, or -1."""
    correlation: Int64Array = field(default_factory=_nothing)
    """Number of the call that enqueued it, 0 where unknown. No number is used twice by a source; those of one thread ascend."""
    size_bytes: Int64Array = field(default_factory=_nothing)
    """Bytes that were copied or filled; 0 for a kernel."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallBatch(_Batch):
    """Calls of the host that have returned, as columns of equal length, int64 each."""

    start_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock."""
    end_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock."""
    start_host_ns: Int64Array = field(default_factory=_nothing)
    """The start by `Backend.host_time_ns`."""
    thread: Int64Array = field(default_factory=_nothing)
    """The thread: ``threading.get_ident() & 0xFFFF_FFFF`` of the caller."""
    name: Int64Array = field(default_factory=_nothing)
    """Index into `Activities.names`: the function."""
    call_class: Int64Array = field(default_factory=_nothing)
    """Code of the `CallClass`."""
    correlation: Int64Array = field(default_factory=_nothing)
    """Number of the call."""
    size_bytes: Int64Array = field(default_factory=_nothing)
    """Bytes that were allocated or freed; 0 otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnnotationBatch(_Batch):
    """Ranges that others named (NVTX) and that have ended, as columns of equal length, int64 each."""

    start_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock."""
    end_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock."""
    start_host_ns: Int64Array = field(default_factory=_nothing)
    """The start by `Backend.host_time_ns`."""
    thread: Int64Array = field(default_factory=_nothing)
    """As in `CallBatch.thread`."""
    name: Int64Array = field(default_factory=_nothing)
    """Index into `Activities.names`: the range's text, with its domain in front: ``"cudf: join"``."""


EVERY_STREAM = -1  # Stands in `DependencyBatch.source_stream` for all streams of the source's device
THE_HOST = -1  # Stands in `DependencyBatch.target_stream` for the thread that made the call


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DependencyBatch(_Batch):
    """Waits of streams for events (`cudaStreamWaitEvent`), and of the host, as columns of equal length, int64 each."""

    source_context: Int64Array = field(default_factory=_nothing)
    """Of the stream in which the event was recorded."""
    source_stream: Int64Array = field(default_factory=_nothing)
    """That stream; of a synchronization of a stream, that, and of one of the device `EVERY_STREAM`."""
    record: Int64Array = field(default_factory=_nothing)
    """Correlation of the call that recorded the event: what was enqueued in that stream before it is waited for. Without an
    event that of the waiting call."""
    target_context: Int64Array = field(default_factory=_nothing)
    """Of the stream that waits."""
    target_stream: Int64Array = field(default_factory=_nothing)
    """The stream that waits, or `THE_HOST`."""
    wait: Int64Array = field(default_factory=_nothing)
    """Correlation of the call that made it wait: what is enqueued in it afterwards waits; or of the call that blocked."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryBatch(_Batch):
    """Memory that streams hold, as columns of equal length."""

    time_ns: Int64Array = field(default_factory=_nothing)
    """On the backend's clock; int64."""
    context: Int64Array = field(default_factory=_nothing)
    """As in `WorkBatch`; int64."""
    stream: Int64Array = field(default_factory=_nothing)
    """As in `WorkBatch`; int64."""
    name: Int64Array = field(default_factory=_nothing)
    """Index into `Activities.names`: ``pool_used_bytes``, ``pool_reserved_bytes``, ``async_used_bytes``; int64. What a GPU's
    streams held before the source was started is in none of them: CuPy and CUDA report changes only."""
    value: FloatArray = field(default_factory=lambda: np.empty(0, np.float64))
    """The bytes; float64."""


IS_WRITE, IS_HOST = 1, 2  # Bits of `AccessBatch.flags`: the memory was written, else read; it is the host's
CERTAINTY_SHIFT = 2  # From this bit on two bits hold the code of the `AccessCertainty`, by its order
NODE_SHIFT = 8
"""From this bit on stands the place of a node within its graph and 1; 0 for what is of all work that the call enqueued."""
take_buffer_number: Callable[[], int] = count(1).__next__
"""Returns the number of memory that was allocated: no number is used twice in a process."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessBatch(_Batch):
    """Memory that work reads and writes, as columns of equal length, int64 each. All rows of one call follow each other."""

    correlation: Int64Array = field(default_factory=_nothing)
    """Number of the call that enqueued the work."""
    buffer: Int64Array = field(default_factory=_nothing)
    """Number of the allocation, from `take_buffer_number`; 0 for further memory that is not known."""
    begin: Int64Array = field(default_factory=_nothing)
    """First byte within the allocation."""
    end: Int64Array = field(default_factory=_nothing)
    """Byte behind the last one."""
    flags: Int64Array = field(default_factory=_nothing)
    """See `IS_WRITE`, `IS_HOST`, `CERTAINTY_SHIFT`, `NODE_SHIFT`."""


class StepKind(IntEnum):
    """What a `Step` is."""

    WORK = 0
    """A kernel, a copy or a fill was enqueued."""
    MADE = 1
    """Memory was allocated, or handed out by a library's pool."""
    GONE = 2
    """It was given back."""
    RECORD = 3
    """An event was recorded."""
    WAIT = 4
    """A stream's later work waits for an event."""
    SEEN_EVENT = 5
    """The host has seen an event reached."""
    SEEN_STREAM = 6
    """The host has seen a stream idle."""
    SEEN_ALL = 7
    """The host has seen the device idle."""
    CLOSED = 8
    """A stream was destroyed."""
    LOST = 9
    """Calls are missing: memory is not known any more, and all before counts as in order."""


class StepTouch(NamedTuple):
    """What work does to memory."""

    buffer: int
    """Number of the allocation."""
    begin: int
    """First byte within it."""
    end: int
    """Byte behind the last one; of an argument one byte, as nobody knows how much more is used."""
    is_write: bool


class Step(NamedTuple):
    """What uses memory or changes the order of work, of the whole process, in the order of the calls."""

    kind: StepKind
    wall_ns: int = 0
    """When the call began, on a clock of the source's; see `Activities.step_host_ns`."""
    thread: int = 0
    """As in `CallBatch.thread`."""
    stream: int = 0
    """The stream's handle; 0 for the legacy default stream, negative for that of a thread."""
    is_blocking: bool = False
    """Whether it and the legacy default stream wait for each other."""
    event: int = 0
    """The event's handle."""
    name: str = ""
    """The function of a kernel as linkers know it; ``"copy"`` or ``"fill"``."""
    touches: tuple[StepTouch, ...] = ()
    """What work uses."""
    buffer: int = 0
    """What is made or goes; 0 for nothing."""
    start: int = 0
    """Its first address."""
    size_bytes: int = 0
    """Its size."""
    function: int = 0
    """The handle of a kernel's function."""
    numbers: int = 0
    """What stands for the other arguments of a launch: launches that differ in them may use other parts of memory."""
    is_known: bool = False
    """Whether reads and writes are told by the call, and not learned."""
    is_ordered: bool = False
    """Whether memory goes back behind the work of the stream."""
    hides: bool = False
    """Whether it uses more memory than is known, as where pointers lie in memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Activities:
    """Records since the last `ActivitySource.drain`."""

    work: WorkBatch = field(default_factory=WorkBatch)
    calls: CallBatch = field(default_factory=CallBatch)
    annotations: AnnotationBatch = field(default_factory=AnnotationBatch)
    dependencies: DependencyBatch = field(default_factory=DependencyBatch)
    memory: MemoryBatch = field(default_factory=MemoryBatch)
    accesses: AccessBatch = field(default_factory=AccessBatch)
    steps: tuple[Step, ...] = ()
    """What hazards are found from, where that was asked for."""
    step_host_ns: Int64Array = field(default_factory=_nothing)
    """When the call of each step began, by `Backend.host_time_ns`; int64."""
    names: tuple[str, ...] = ()
    """Texts of this batch."""
    details: tuple[WorkDetail, ...] = ()
    """Details of this batch."""
    told_until: Mapping[int, int] = field(default_factory=dict)
    """By thread, numbered as in `CallBatch`, a host time: of what the thread launched before it, all that has ended has been
    drained."""


class StreamFacts(NamedTuple):
    """Name, SMs and context of a stream that no session made."""

    name: str
    """Name to show, for example ``"default stream"`` or ``"stream 13"``."""
    sm_count: int
    """Number of SMs of its context."""
    device: int
    """CUDA device ordinal."""
    priority: int = 0
    """CUDA priority: lower runs first; 0 where unknown."""
    is_blocking: bool | None = None
    """Whether it and the legacy default stream wait for each other; None where unknown."""
    context: int | None = None
    """The backend's number of its context; None where unknown."""


class ActivitySource(Protocol):
    """Collects what a device does. Every method may be called from any thread.

    `keep_up` and `drain` never wait for the device, but for a moment for a small kernel of their own. `start` and `stop` may
    also measure what events cost, where the device is free.
    """

    times_ranges: bool
    """Whether ranges can be timed by the work inside them, without events: `Activities.told_until` then has every thread that
    closes a range. Read after `start`; one that lacks this attribute does not."""

    def start(self) -> None:
        """Begin to collect; may be called again after `stop`, and twice.

        Raises
        ------
        CaptureUnavailableError
            If another client is collecting, or the tool refuses.
        """

    def stop(self) -> None:
        """Stop collecting; what was collected can still be drained. Idempotent, never raises."""

    def keep_up(self) -> bool:
        """Do what cannot wait, at little cost, and tell whether it is time to `drain`; called some times a second meanwhile."""

    def drain(self, *, is_last: bool = False) -> Activities:
        """Return what is complete by now; with `is_last` also what would otherwise be waited for.

        Each record is returned once.
        """

    @property
    def description(self) -> str:
        """Where the records come from, for example ``"CUPTI 13.0"``."""

    @property
    def lost_reason(self) -> str:
        """Why nothing comes any more although nobody stopped it, for example that another tool took over; empty if not so."""

    @property
    def complete_until_host_ns(self) -> int:
        """The time by `Backend.host_time_ns` up to which nothing is missing: now, or before the moment at which it was lost."""

    @property
    def dropped_count(self) -> int:
        """Records that are missing so far."""

    @property
    def error_ns(self) -> int:
        """Bound on the error of a start or end of device work on the backend's clock."""

    def key_of(self, stream: BackendStream) -> tuple[int, int]:
        """Return the context and the stream as the records number them."""

    def are_foreign(self, context: Int64Array, stream: Int64Array) -> BoolArray:
        """Tell which streams are of other sessions, also once those are closed, and not of this one; all shapes are (n,).

        What runs in them belongs to a session only if it was launched in a range of it.
        """

    def describe_stream(self, context: int, stream: int) -> StreamFacts:
        """Describe a stream that is in the records and of no session."""

    def close(self) -> None:
        """Stop, and release everything. Idempotent."""
