"""What a simulated stream holds: kernels and what their blocks take of an SM, copies, recorded points and waits."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gpustreamlab.errors import OptionError
from gpustreamlab.model import SMLimits
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis import Moment
    from gpustreamlab.backends.sim._source import Collecting
    from gpustreamlab.backends.sim._stream import SimCapture


MAX_BLOCK_THREADS = 1_024
"""Most threads of a block. Source: CUDA C++ Programming Guide, technical specifications per compute capability."""
MAX_THREAD_REGISTERS = 255  # Most registers of a thread. Source: as above
RESERVED_SHARED_BYTES = 1 << 10
"""Shared memory of an SM that a block cannot have: the system keeps it. Source: as above, compute capability 8.0 and newer."""


class BlockShape(NamedTuple):
    """What a block takes of an SM, as the records tell it.

    Examples
    --------
    >>> BlockShape(threads=128, registers=64).blocks_per_sm(SMLimits())  # 65,536 registers for 8,192 of each block
    8
    """

    threads: int
    """Threads of a block."""
    registers: int = 0
    """Registers of a thread."""
    shared_bytes: int = 0
    """Shared memory of a block."""

    def limits(self, limits: SMLimits) -> dict[str, int]:
        """Return how many blocks fit on an SM by each of what it has: blocks, threads, registers, shared memory."""
        return {
            "blocks": limits.blocks,
            "threads": limits.threads // max(self.threads, 1),
            "registers": limits.registers // max(self.threads * self.registers, 1),
            "shared memory": limits.shared_bytes // max(self.shared_bytes, 1),
        }

    def blocks_per_sm(self, limits: SMLimits) -> int:
        """Return how many blocks an SM holds at once: what the scarcest of it allows, 0 where none fits."""
        return min(self.limits(limits).values())


def plain_shape(blocks_per_sm: int, limits: SMLimits) -> BlockShape:
    """Return a block of which so many fit on an SM, and no more, for a kernel of which no more is known.

    Examples
    --------
    >>> [plain_shape(count, SMLimits()).threads for count in (1, 2, 8, 32)]
    [1024, 1024, 256, 64]
    """
    threads = max(1, min(MAX_BLOCK_THREADS, limits.threads // blocks_per_sm))
    return BlockShape(threads=threads, registers=min(MAX_THREAD_REGISTERS, limits.registers // (threads * blocks_per_sm)))


STREAMING = BlockShape(threads=128, registers=32)  # Of element-wise work: 16 on an SM
LARGE_TILE = BlockShape(threads=384, registers=168, shared_bytes=227 << 10)
"""Of a matrix product in large tiles: an SM each, as kernels of Hopper have them that load and multiply in groups of warps."""
SMALL_TILE = BlockShape(threads=128, registers=64, shared_bytes=16 << 10)  # Of a matrix product in small tiles: 8 on an SM
SPIN = BlockShape(threads=32, registers=16)  # Of a kernel that waits, as on a GPU: 32 on an SM
SPIN_CARD = BlockShape(threads=32, registers=16, shared_bytes=227 << 10)
"""Of one that takes an SM for each block, by its shared memory, as on a GPU."""


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
    extra_waves: float = 0.0
    """How many waves more than its grid has the kernel takes alone; each of its blocks runs longer in proportion."""
    shape: BlockShape | None = None
    """What a block has of threads, registers and shared memory, for the records; None for what its slots would suggest."""
    is_generic: bool = False
    """Whether its time follows from its bytes and elements alone, and from nothing of what it computes; the records say so."""
    is_cooperative: bool = False
    """Whether its blocks begin all at once, when there is room for all of them."""

    def __post_init__(self) -> None:
        if self.blocks < 1 or self.block_ns < 1:
            raise OptionError(
                f"Kernel {self.name!r} has {self.blocks} blocks of {self.block_ns} ns; give at least 1 block and 1 ns."
            )
        if self.block_slots < 1 or self.block_slots & (self.block_slots - 1):
            raise OptionError(f"Kernel {self.name!r} has block_slots={self.block_slots}; give a power of two, such as 1 or 32.")

    def block_ns_on(self, slots: int) -> int:
        """Return how long a block runs where the stream may use so many slots, alone and with memory not contended.

        Without extra waves this is `block_ns`. With them the last of w waves ends when w waves and the extra ones have passed,
        so fewer waves never take longer.

        Examples
        --------
        >>> product = KernelSpec(name="product", blocks=8, block_slots=32, block_ns=1_000, extra_waves=1.0)
        >>> [product.block_ns_on(32 * sms) for sms in (1, 2, 8)]  # 8, 4 and 1 waves take 9, 5 and 2 us
        [1125, 1250, 2000]
        """
        if not self.extra_waves:
            return self.block_ns
        waves = -(-self.blocks // max(1, slots // self.block_slots))
        return max(1, round(self.block_ns * (waves + self.extra_waves) / waves))


class CopySpec(NamedTuple):
    """A copy between host and device, or between two devices."""

    name: str  # what the copy is called in records
    engine: int  # `HOST_TO_DEVICE`, `DEVICE_TO_HOST` or `PEER`
    size_bytes: int  # how much is copied
    duration_ns: int  # how long the engine is busy with it
    is_pinned: bool = True  # whether the host's memory is page-locked
    places: str = ""  # between which devices, for one between two


HOST_TO_DEVICE = 0
DEVICE_TO_HOST = 1
PEER = 2
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

    kind: SpanKind  # kernel, copy or fill
    name: str  # the kernel's or copy's name
    stream: int  # number of the stream; 0 is the NULL stream
    queued_ns: int  # host time of the enqueue
    start_ns: int  # when its first block, or byte, started
    end_ns: int  # when its last block, or byte, ended
    blocks: int  # blocks of the grid; 0 for a copy
    size_bytes: int  # bytes moved
    operations: int  # arithmetic operations; 0 for a copy
    context: int  # number of the stream's green context; 0 is the primary context
    correlation: int  # number of the call that enqueued it; 0 if no source of activities was collecting


class StreamPool:
    """The memory of one stream: what arrays hold, the most that they held, and where memory that was freed may be used again.

    Memory is used again by an array of its size, what was freed last first. How pieces are cut and joined is not modelled: what
    was held at most stays reserved.
    """

    __slots__ = ("_free", "_top", "reserved_bytes", "used_bytes")

    def __init__(self) -> None:
        self.used_bytes = self.reserved_bytes = self._top = 0
        self._free: dict[int, list[int]] = {}  # where memory that was freed is, by its size

    def allocate(self, size_bytes: int) -> int:
        """Return the place of memory that was freed, or of new memory."""
        free = self._free.get(size_bytes)
        if free:
            offset = free.pop()
        else:
            offset, self._top = self._top, self._top + size_bytes
        self.used_bytes += size_bytes
        self.reserved_bytes = max(self.reserved_bytes, self.used_bytes)
        return offset

    def free(self, offset: int, size_bytes: int) -> None:
        """Take memory back; it stays reserved."""
        self.used_bytes -= size_bytes
        self._free.setdefault(size_bytes, []).append(offset)


@dataclass(slots=True, eq=False)
class StreamQueue:
    """The device's side of a stream: work in order."""

    number: int  # number of the stream; 0 is the NULL stream
    level: int  # rank of the priority: 0 runs first
    mask: int  # bit set of the SM groups that it may use
    sm_count: int  # how many SMs these groups have
    context: int = 0  # number of its green context; 0 is the primary context
    card: Any = None  # the scheduler that it is of
    queue: deque[Command] = field(default_factory=deque)  # what has not started
    is_busy: bool = False  # whether something of it runs or is due to start
    is_closed: bool = False  # whether it was destroyed; what it holds still runs
    pool: StreamPool = field(default_factory=StreamPool)  # the memory of its arrays
    spare: dict[int, list[Any]] = field(default_factory=dict)  # scratch memory that its pool may give out again, by size


@dataclass(slots=True, eq=False)
class Mark:
    """A point in a stream: what recording an event leaves behind."""

    submit_ns: int = 0
    origin: StreamQueue | None = None  # where it was recorded; None if no source of activities was collecting
    correlation: int = 0  # number of the call that recorded it
    moment: Moment | None = None
    """What it stands for where accesses are watched; None for events of ranges, which nobody waits for."""
    time_ns: int = -1  # when the stream reached it; -1 before
    waiters: list[StreamQueue] = field(default_factory=list)  # streams that stand still until then
    capture: SimCapture | None = None  # of what capture of a graph it is; no stream ever reaches such a point
    behind: frozenset[int] = frozenset()  # which nodes of that are in front of it


@dataclass(slots=True, eq=False)
class Wait:
    """A stream's order to stand still until a mark is reached."""

    mark: Mark
    submit_ns: int = 0


@dataclass(slots=True, eq=False)
class CopyRun:
    """A copy on its way."""

    stream: StreamQueue
    spec: CopySpec
    correlation: int = 0  # number of the call that enqueued it
    source: Collecting | None = None  # is told when it has ended
    node: tuple[int, int] = (0, -1)
    """The id of the graph that launched it, and its place among the graph's nodes; 0 and -1 for none."""
    submit_ns: int = 0
    start_ns: int = -1


@dataclass(slots=True, eq=False)
class Batch:
    """Blocks of one kernel that started together, and run in step, wave after wave on the same slots."""

    blocks: int
    parts: list[tuple[int, int]]  # (SM group, blocks on it)
    mask: int  # bit set of these groups
    start_work: float  # where its first wave started, on the kernel's own progress in ns at full speed
    end_work: float  # where its planned waves end


@dataclass(slots=True, eq=False)
class KernelRun:
    """A kernel on its way."""

    stream: StreamQueue
    spec: KernelSpec
    block_ns: int  # how long a block takes at full speed
    correlation: int = 0  # number of the call that enqueued it
    source: Collecting | None = None  # is told when it has ended
    node: tuple[int, int] = (0, -1)
    """The id of the graph that launched it, and its place among the graph's nodes; 0 and -1 for none."""
    submit_ns: int = 0
    order: int = 0  # when it became ready, as a running number
    block_draw: int = 0  # what a block draws from memory at full speed, in bytes per second
    backlog: int = 0  # blocks that neither run nor are planned
    batches: list[Batch] = field(default_factory=list)
    running: int = 0  # blocks that run
    is_planned: bool = False  # whether a batch may hold waves that have not started
    start_ns: int = -1
    ref_ns: int = 0  # time at which `ref_work` was reached
    ref_work: float = 0  # the kernel's own progress, in ns at full speed
    speed: float = 1  # progress per ns: 1, or less where memory is contended
    due_order: int = -1  # order number of its valid entry among the due events
    least_blocks: int = 1  # blocks that there must be room for before any begins

    def __post_init__(self) -> None:
        if self.spec.is_cooperative:
            self.least_blocks = self.spec.blocks
        self.backlog = self.spec.blocks
        self.block_draw = self.spec.block_bytes * 1_000_000_000 // self.block_ns

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


@dataclass(slots=True)
class HostClock:
    """Virtual time of the simulated host, in ns since the backend was made. Only calls into the backend move it.

    Real Python time is never part of it: a loop that computes for a second between two launches costs nothing here.
    """

    now_ns: int = 0
    """The time."""

    def advance(self, duration_ns: int) -> int:
        """Let time pass, and return the new time."""
        return self.jump_to(self.now_ns + duration_ns)

    def jump_to(self, time_ns: int) -> int:
        """Block the host until a time, if that is ahead, and return the new time."""
        self.now_ns = max(self.now_ns, time_ns)
        return self.now_ns


@dataclass(slots=True, eq=False, repr=False)
class SimEvent:
    """A point that a stream can record and others can wait for. Recording it again forgets the point before."""

    mark: Mark | None = None
    """What the last record left in its stream; None before the first."""

    def __repr__(self) -> str:
        if self.mark is None:
            return "<SimEvent, not recorded>"
        return f"<SimEvent, reached at {self.mark.time_ns} ns>" if self.mark.time_ns >= 0 else "<SimEvent, recorded>"
