"""What a simulated stream holds: kernels, copies, recorded points and waits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from gpustreamlab.analysis import Moment
from gpustreamlab.errors import OptionError
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
