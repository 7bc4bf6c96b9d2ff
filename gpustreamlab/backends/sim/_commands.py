"""What a simulated stream holds: kernels, copies, recorded points and waits."""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from gpustreamlab.analysis import Moment
from gpustreamlab.backends._activity import Activities, CallBatch, CallClass, DependencyBatch, MemoryBatch, WorkBatch
from gpustreamlab.errors import OptionError
from gpustreamlab.model import SM_SHARED_BYTES, SPAN_KINDS, WorkDetail
from gpustreamlab.typing import SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSpec:
    """A kernel as the scheduler sees it: a grid of equal blocks."""

    name: str
    """What the kernel is called in records."""
    blocks: int
    """Blocks of the grid."""
    block_slots: int
    """Slots of an SM that a block takes; a power of two."""
    block_ns: int
    """How long a block runs where memory is not contended."""
    block_bytes: int = 0
    """Bytes that a block moves from and to memory."""
    block_limit_bytes_per_s: int = 0
    """What a block may draw from memory at most."""
    operations: int = 0
    """Operations of the whole grid; only reported."""
    size_bytes: int = 0
    """Bytes of the whole grid; only reported."""
    kind: SpanKind = SpanKind.KERNEL
    """Kernel or fill."""
    efficiency: tuple[tuple[int, float], ...] = ()
    """Calibration of the speed by the number of SMs that the stream may use; empty for none."""

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.block_ns < 1:
            raise OptionError(
                f"Kernel {self.name!r} has {self.blocks} blocks of {self.block_ns} ns; give at least 1 block and 1 ns."
            )
        if self.block_slots < 1 or self.block_slots & (self.block_slots - 1):
            raise OptionError(f"Kernel {self.name!r} has block_slots={self.block_slots}; give a power of two, such as 1 or 32.")


class CopySpec(NamedTuple):
    """A copy between host and device."""

    name: str
    """What the copy is called in records."""
    engine: int
    """`HOST_TO_DEVICE` or `DEVICE_TO_HOST`."""
    size_bytes: int
    """How much is copied."""
    duration_ns: int
    """How long the engine is busy with it."""
    is_pinned: bool = True
    """Whether the host's memory is page-locked."""


HOST_TO_DEVICE = 0
DEVICE_TO_HOST = 1
COPY_PLACES = MappingProxyType(
    {
        (HOST_TO_DEVICE, True): "page-locked host memory to device memory",
        (HOST_TO_DEVICE, False): "pageable host memory to device memory",
        (DEVICE_TO_HOST, True): "device memory to page-locked host memory",
        (DEVICE_TO_HOST, False): "device memory to pageable host memory",
    }
)
"""What copies go between, by engine and by whether the host's memory is page-locked."""


class DeviceWork(NamedTuple):
    """Finished work of the simulated device, as an observer gets it. Times are on the virtual clock."""

    kind: SpanKind
    """Kernel, copy or fill."""
    name: str
    """The kernel's or copy's name."""
    stream: int
    """Number of the stream; 0 is the NULL stream."""
    queued_ns: int
    """Host time of the enqueue."""
    start_ns: int
    """When its first block, or byte, started."""
    end_ns: int
    """When its last block, or byte, ended."""
    blocks: int
    """Blocks of the grid; 0 for a copy."""
    size_bytes: int
    """Bytes moved."""
    operations: int
    """Arithmetic operations; 0 for a copy."""
    context: int
    """Number of the stream's green context; 0 is the primary context."""
    correlation: int
    """Number of the call that enqueued it; 0 if no source of activities was collecting."""


class StreamQueue:
    """The device's side of a stream: work in order."""

    __slots__ = (
        "context",
        "has_new_work",
        "is_blocking",
        "is_busy",
        "is_closed",
        "level",
        "mask",
        "null_count",
        "number",
        "queue",
        "sm_count",
    )

    def __init__(self, number: int, level: int, mask: int, sm_count: int) -> None:
        self.number = number
        """Number of the stream; 0 is the NULL stream."""
        self.context = 0
        """Number of its green context; 0 is the primary context."""
        self.level = level
        """Rank of the priority: 0 runs first."""
        self.mask = mask
        """Bit set of the SM groups that it may use."""
        self.sm_count = sm_count
        """How many SMs these groups have."""
        self.queue: deque[Command] = deque()
        """What has not started."""
        self.is_busy = False
        """Whether something of it runs or is due to start."""
        self.is_closed = False
        """Whether it was destroyed; what it holds still runs."""
        self.is_blocking = False
        """Whether it synchronises with the NULL stream."""
        self.has_new_work = False
        """Blocking streams: whether work came since the NULL stream last waited for it."""
        self.null_count = 0
        """Blocking streams: how much of the NULL stream's work it has waited for."""


class Origin(NamedTuple):
    """Where an event was recorded."""

    context: int
    """Context of the stream."""
    stream: int
    """Number of the stream."""
    correlation: int
    """Number of the call that recorded it."""


class Mark:
    """A point in a stream: what recording an event leaves behind."""

    __slots__ = ("moment", "origin", "submit_ns", "time_ns", "waiters")

    def __init__(self) -> None:
        self.submit_ns = 0
        self.origin: Origin | None = None
        """Who recorded it; None if no source of activities was collecting."""
        self.moment: Moment | None = None
        """What it stands for where accesses are watched; None for events of ranges, which nobody waits for."""
        self.time_ns = -1
        """When the stream reached it; -1 before."""
        self.waiters: list[StreamQueue] | None = None
        """Streams that stand still until then."""


class Wait:
    """A stream's order to stand still until a mark is reached."""

    __slots__ = ("mark", "submit_ns")

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.submit_ns = 0


class CopyRun:
    """A copy on its way."""

    __slots__ = ("correlation", "spec", "start_ns", "stream", "submit_ns")

    def __init__(self, stream: StreamQueue, spec: CopySpec, correlation: int = 0) -> None:
        self.stream = stream
        self.spec = spec
        self.correlation = correlation
        self.submit_ns = 0
        self.start_ns = -1


class Batch:
    """Blocks of one kernel that started together, and run in step, wave after wave on the same slots."""

    __slots__ = ("blocks", "end_work", "mask", "parts", "start_work")

    def __init__(self, blocks: int, parts: list[tuple[int, int]], mask: int, start_work: float, end_work: float) -> None:
        self.blocks = blocks
        self.parts = parts
        """(SM group, blocks on it)."""
        self.mask = mask
        """Bit set of these groups."""
        self.start_work = start_work
        """Where its first wave started, on the kernel's own progress in ns at full speed."""
        self.end_work = end_work
        """Where its planned waves end."""


class KernelRun:
    """A kernel on its way."""

    __slots__ = (
        "backlog",
        "batches",
        "block_draw",
        "block_ns",
        "correlation",
        "due_order",
        "is_planned",
        "order",
        "ref_ns",
        "ref_work",
        "running",
        "spec",
        "speed",
        "start_ns",
        "stream",
        "submit_ns",
    )

    def __init__(self, stream: StreamQueue, spec: KernelSpec, block_ns: int, correlation: int = 0) -> None:
        self.stream = stream
        self.spec = spec
        self.correlation = correlation
        self.submit_ns = 0
        self.order = 0
        """When it became ready, as a running number."""
        self.block_ns = block_ns
        """How long a block takes at full speed."""
        self.block_draw = spec.block_bytes * 1_000_000_000 // block_ns if spec.block_bytes else 0
        """What a block draws from memory at full speed, in bytes per second."""
        self.backlog = spec.blocks
        """Blocks that neither run nor are planned."""
        self.batches: list[Batch] = []
        self.running = 0
        """Blocks that run."""
        self.is_planned = False
        """Whether a batch may hold waves that have not started."""
        self.start_ns = -1
        self.ref_ns = 0
        """Time at which `ref_work` was reached."""
        self.ref_work: float = 0
        """The kernel's own progress, in ns at full speed."""
        self.speed: float = 1
        """Progress per ns: 1, or less where memory is contended."""
        self.due_order = -1
        """Order number of its valid entry among the due events."""

    def work_at(self, now_ns: int) -> float:
        """Return the progress at a time, in ns at full speed. It is an integer while nothing has slowed the kernel."""
        if self.speed == 1:
            return self.ref_work + (now_ns - self.ref_ns)
        return self.ref_work + (now_ns - self.ref_ns) * self.speed

    def drop_plan(self, now_ns: int) -> None:
        """Give the waves that have not started back to the backlog."""
        if not self.is_planned:
            return
        work = self.work_at(now_ns)
        for batch in self.batches:
            # A wave that would start at this very moment has not started, except the first: its blocks were just placed.
            waves = int((batch.end_work - work + 1e-6) // self.block_ns) - (batch.start_work == work)
            if waves > 0:
                batch.end_work -= waves * self.block_ns
                self.backlog += waves * batch.blocks
        self.is_planned = False

    def plan(self, open_mask: int) -> None:
        """Let the batches on open SM groups go on as many whole waves as the backlog gives.

        Batches of one kernel progress alike, so handing out whole rounds at once ends as handing out wave after wave would. The
        last round stays in the backlog: others may use what is left over from the moment it starts.
        """
        batches = [batch for batch in self.batches if not batch.mask & ~open_mask]
        width = sum(batch.blocks for batch in batches)
        waves = (self.backlog - 1) // width if width else 0
        if waves:
            for batch in batches:
                batch.end_work += waves * self.block_ns
            self.backlog -= waves * width
            self.is_planned = True


Command: TypeAlias = KernelRun | CopyRun | Mark | Wait


KEPT_RECORDS = 1_000_000
"""Records that wait to be drained, at most; newer ones are dropped and counted."""

B = TypeVar("B", WorkBatch, CallBatch, DependencyBatch, MemoryBatch)
_KIND_CODES = {kind: code for code, kind in enumerate(SPAN_KINDS)}


class ActivityLog:
    """Collects records. Its owner holds the driver's lock for every call.

    Parameters
    ----------
    take_number
        Returns the next number of a call.
    slots_per_sm
        Of the device: how many blocks fit on an SM is told as shared memory.
    record_limit
        Records that it keeps.
    """

    def __init__(self, take_number: Callable[[], int], *, slots_per_sm: int, record_limit: int = KEPT_RECORDS) -> None:
        self.take_number = take_number
        """Returns the number of the next call."""
        self._slot_bytes = SM_SHARED_BYTES // slots_per_sm
        self._record_limit = record_limit
        self._pending: dict[int, KernelSpec | CopySpec] = {}
        self.dropped_count = 0
        """Records for which there was no room."""
        self._empty()

    @property
    def is_waiting(self) -> bool:
        """Whether work that it was told of has not ended."""
        return bool(self._pending)

    # Calls

    def expect(self, spec: KernelSpec | CopySpec) -> int:
        """Give a call that enqueues work its number; the work is told of when it has ended."""
        number = self.take_number()
        self._pending[number] = spec
        return number

    def note_call(
        self, name: str, call_class: CallClass, start_ns: int, end_ns: int, *, number: int = 0, size_bytes: int = 0
    ) -> int:
        """Keep a call of this thread, and return its number: the one that it has, or the next."""
        number = number or self.take_number()
        if self._has_room():
            code = self._names.setdefault(name, len(self._names))
            thread = threading.get_ident() & 0xFFFF_FFFF
            self._calls.extend((start_ns, end_ns, start_ns, thread, code, call_class, number, size_bytes))
        return number

    def note_dependency(self, origin: Origin, stream: StreamQueue, number: int) -> None:
        """Keep that a stream waits for what another one recorded."""
        if self._has_room():
            self._dependencies.extend((*origin, stream.context, stream.number, number))

    # Device

    def note_work(self, work: DeviceWork) -> None:
        """Keep work that has ended, if its launch was told of."""
        spec = self._pending.pop(work.correlation, None)
        if spec is None or not self._has_room():
            return
        name = self._names.setdefault(work.name, len(self._names))
        key = work.name, work.blocks, *((spec[4],) if isinstance(spec, CopySpec) else (work.kind, spec.block_slots))
        detail = self._detail_codes.get(key)
        if detail is None:
            detail = self._detail_codes[key] = len(self._details)
            self._details.append(_describe(spec, self._slot_bytes))
        size_bytes = 0 if work.kind is SpanKind.KERNEL else work.size_bytes
        where = work.context, work.stream, name, detail, work.correlation, size_bytes
        self._work.extend((_KIND_CODES[work.kind], work.start_ns, work.end_ns, *where))

    def note_memory(self, time_ns: int, stream: StreamQueue, name: str, value_bytes: int) -> None:
        """Keep how much memory a stream holds."""
        if self._has_room():
            code = self._names.setdefault(name, len(self._names))
            self._memory.extend((time_ns, stream.context, stream.number, code, value_bytes))

    # Giving away

    def take(self) -> Callable[[], Activities]:
        """Give away what is there; the returned function, which needs no lock, makes columns of it."""
        work, calls, dependencies, memory = self._work, self._calls, self._dependencies, self._memory
        names, details = tuple(self._names), tuple(self._details)
        self._empty()
        return lambda: Activities(
            work=_make_batch(WorkBatch, work),
            calls=_make_batch(CallBatch, calls),
            dependencies=_make_batch(DependencyBatch, dependencies),
            memory=_make_batch(MemoryBatch, memory),
            names=names,
            details=details,
        )

    def clear(self) -> None:
        """Forget everything, also the work that has not ended."""
        self._empty()
        self._pending.clear()

    def _empty(self) -> None:
        self._left = self._record_limit
        self._work, self._calls, self._dependencies, self._memory = array("q"), array("q"), array("q"), array("q")
        self._names: dict[str, int] = {}
        self._detail_codes: dict[object, int] = {}
        self._details: list[WorkDetail] = []

    def _has_room(self) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        self.dropped_count += 1
        return False


def _describe(spec: KernelSpec | CopySpec, slot_bytes: int) -> WorkDetail:
    if isinstance(spec, CopySpec):
        return WorkDetail(full_name=COPY_PLACES[spec.engine, spec.is_pinned])
    if spec.kind is SpanKind.FILL:
        return WorkDetail(full_name="device memory")
    shared_bytes = spec.block_slots * slot_bytes
    return WorkDetail(full_name=f"simulated::{spec.name}", grid=(spec.blocks, 1, 1), dynamic_shared_bytes=shared_bytes)


def _make_batch(batch: type[B], flat: array[int]) -> B:
    """Turn rows that follow each other into the columns of a batch, in the order of its fields."""
    names = [column.name for column in fields(batch)]
    columns: dict[str, Any] = dict(zip(names, np.array(flat, np.int64).reshape(-1, len(names)).T.copy(), strict=True))
    if "value" in columns:
        columns["value"] = columns["value"].astype(np.float64)
    return batch(**columns)


class HostClock:
    """Virtual time of the simulated host, in ns since the backend was made. Only calls into the backend move it.

    Real Python time is never part of it: a loop that computes for a second between two launches costs nothing here.

    Examples
    --------
    >>> clock = HostClock()
    >>> clock.advance(4_000)
    4000
    >>> clock.jump_to(1_000)  # never backwards
    4000
    """

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = 0
        """The time."""

    def advance(self, duration_ns: int) -> int:
        """Let time pass, and return the new time."""
        return self.jump_to(self.now_ns + duration_ns)

    def jump_to(self, time_ns: int) -> int:
        """Block the host until a time, if that is ahead, and return the new time."""
        self.now_ns = max(self.now_ns, time_ns)
        return self.now_ns


class SimEvent:
    """A point that a stream can record and others can wait for. Recording it again forgets the point before."""

    __slots__ = ("mark",)

    def __init__(self) -> None:
        self.mark: Mark | None = None
        """What the last record left in its stream; None before the first."""

    def __repr__(self) -> str:
        if self.mark is None:
            return "<SimEvent, not recorded>"
        return f"<SimEvent, reached at {self.mark.time_ns} ns>" if self.mark.time_ns >= 0 else "<SimEvent, recorded>"
