"""The protocol of a backend. Two implementations ship, `sim` and `cuda`; one contract battery tests both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from numpy.typing import DTypeLike, NDArray

from gpustreamlab.model import Capabilities, ClockRates, Device, WorkqueueOptions
from gpustreamlab.typing import Int64Array, PeerAccess

if TYPE_CHECKING:
    from gpustreamlab.backends._activity import ActivitySource
    from gpustreamlab.backends._features import WatchedArrays
    from gpustreamlab.memory.hazards import AccessWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockInfo:
    """A backend's clock and its errors. All errors are bounds, in ns."""

    description: str
    """The clock, in words."""
    epoch_unix_ns: int
    """Wall-clock time of the clock's zero, in ns since 1970 (UTC)."""
    clock_error_ns: int
    """Error of the distance between any two time stamps."""
    range_error_ns: int
    """Rest of the events' own cost in a corrected range, at most."""
    range_correction_ns: int
    """Time subtracted from each range for the events' own cost."""
    host_error_ns: int
    """Error of a host time put on this clock."""


class RangeTimes(NamedTuple):
    """When ranges ran, on the backend's clock."""

    start_ns: Int64Array
    """Shape (n,), int64."""
    end_ns: Int64Array
    """Shape (n,), int64, never before ``start_ns``."""
    queued_ns: Int64Array
    """Host times of the enqueue on the same clock; shape (n,), int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitGroup:
    """One group of a structured split. Source: CUDA driver API, ``CU_DEV_SM_RESOURCE_GROUP_PARAMS``."""

    sms: int
    """Number of SMs."""
    coscheduled_sms: int = 0
    """SMs that must be scheduled together; 0 for the device's default."""
    preferred_coscheduled_sms: int = 0
    """SMs that should be, where possible; 0 for no wish."""
    backfill: bool = False
    """Whether that may be relaxed to reach the count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSpec:
    """Resources of a green context: equal specs share one context."""

    groups: tuple[int, ...] = ()
    """Numbers of the smallest groups of the device, ascending; `SMResource.group_count` stands for the remainder."""
    split: tuple[SplitGroup, ...] = ()
    """Instead of groups: every group of a structured split of the whole device."""
    place: int = 0
    """Which of them."""
    workqueue: WorkqueueOptions | None = None
    """Work queues; None for the driver's default."""


class BackendContext(Protocol):
    """A green context: some SMs of the device. It is never made current; its streams are used."""

    number: int
    """Number of the context within the backend, from 1; 0 is the primary context."""
    sm_count: int
    """Number of SMs that the device granted, read back from it."""

    def create_stream(self, *, priority: int) -> BackendStream:
        """Make a non-blocking stream whose kernels run on these SMs only."""

    def close(self) -> None:
        """Destroy the context, after its streams. Idempotent."""


class BackendStream(Protocol):
    """A stream of a backend. Every method returns at once except `synchronize`."""

    @property
    def handle(self) -> int:
        """Address of the ``cudaStream_t``, or the stream's number on the simulated device."""

    @property
    def key(self) -> tuple[int, int, int]:
        """Device ordinal, context number, handle."""

    @property
    def priority(self) -> int:
        """CUDA priority: lower runs first."""

    @property
    def sm_count(self) -> int:
        """Number of SMs that its kernels may run on; a lent stream may be of a green context that others made."""

    @property
    def is_blocking(self) -> bool:
        """Whether it and the legacy default stream wait for each other, as a lent one may."""

    @property
    def is_capturing(self) -> bool:
        """Whether its work is being captured into a CUDA graph: an event would become part of that."""

    def record(self, event: Any) -> object:
        """Record the event behind the work enqueued so far."""

    def record_raw(self, event: Any) -> object:
        """Do what `record` does, on the hot path of ranges: errors are the driver's own, see `Backend.map_error`."""

    def wait(self, event: Any) -> None:
        """Make work enqueued from now on wait for the event."""

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended."""

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""

    def close(self) -> None:
        """Destroy the stream if the backend made it; forget it if it was lent. Idempotent."""


class BackendGraph(Protocol):
    """A CUDA graph: work that runs again with one call."""

    @property
    def id(self) -> int:
        """As `WorkDetail.graph` of its kernels says it; 0 where no kernels were ever captured by a session of this process."""

    @property
    def node_count(self) -> int:
        """Its kernels, copies and fills."""

    def launch(self, stream: BackendStream) -> None:
        """Run its work behind what a stream holds now; the stream's later work comes behind all of it.

        Raises
        ------
        GraphCaptureError
            If the stream captures.
        InvalidHandleError
            If the graph is closed.
        """

    def close(self) -> None:
        """Let go of the graph, and of what it keeps as soon as no launch is in flight. Idempotent."""


class GraphCapture(Protocol):
    """Capture of a CUDA graph by a stream and those that join it, by waiting for an event of one that captures."""

    keep: list[object]
    """Objects that live as long as the graph."""

    @property
    def node_count(self) -> int:
        """Kernels, copies and fills that were captured so far."""

    def instantiate(self) -> BackendGraph:
        """End the capture, and return what runs it again.

        Raises
        ------
        GraphCaptureError
            If a call could not be captured, a stream was not joined back into the first one (`GraphCaptureError.unjoined`),
            or the capture has ended before.
        """

    def abandon(self) -> None:
        """End the capture without a graph. Idempotent."""


class Backend(Protocol):
    """A device, its streams, its events and its clock."""

    name: str
    """``"cuda"`` or ``"sim"``."""
    device: Device
    """The device, real or simulated."""
    capabilities: Capabilities
    """Features of the device and its driver for SMs and work queues."""
    xp: Any
    """The array module: CuPy, or the simulated device's NumPy-compatible one."""
    priority_range: tuple[int, int]
    """Lowest and highest priority that streams take, for example (0, -5)."""
    lends_streams: bool
    """True if its streams are CUDA streams that other libraries can work on, so that they follow a selection."""

    def source(self) -> str:
        """Say in one line where this backend's numbers come from."""

    def map_error(self, error: Exception, doing: str) -> Exception:
        """Return the error of ours that stands for one that the driver raised in `record_raw`."""

    def create_stream(self, *, priority: int) -> BackendStream:
        """Make a stream that does not synchronise with the NULL stream."""

    def create_context(self, spec: ContextSpec) -> BackendContext:
        """Make a green context.

        Raises
        ------
        DeviceError
            If the driver refuses, or lacks a feature that the spec needs.
        """

    def probe_sms(self, streams: Sequence[BackendStream]) -> list[Int64Array]:
        """Run a kernel on each stream, all at once, whose blocks note the SM they run on, and wait for it.

        Returns
        -------
        list of ndarray of int64, shape (n_seen,)
            For each stream the SM ids that were seen, ascending.
        """

    def adopt_stream(self, lender: object) -> BackendStream:
        """Take a stream that others own.

        Raises
        ------
        StreamRefusedError
            For the NULL, legacy and per-thread default streams, and for objects that lend no stream.
        """

    def select(self, stream: BackendStream) -> object:
        """Make `xp` of this thread work on the stream; return a token for `restore`."""

    def restore(self, token: object) -> None:
        """Put back what was selected in this thread before the `select` that gave the token."""

    def acquire_event(self) -> Any:
        """Take a timing event from the pool, or make one."""

    def release_events(self, events: Iterable[Any]) -> None:
        """Give events back to the pool."""

    def is_event_done(self, event: Any) -> bool:
        """Tell whether the work in front of a recorded event has ended."""

    def synchronize_event(self, event: Any) -> None:
        """Block the host until the work in front of a recorded event has ended."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the device time between two finished events, in ns, uncorrected."""

    def synchronize(self) -> None:
        """Block the host until the whole device is idle."""

    def is_default_stream_idle(self) -> bool:
        """Tell whether the default (legacy) stream, and those that synchronise with it, have no work left; False if unknown."""

    def host_time_ns(self) -> int:
        """Read the host's clock, in ns: a real monotonic clock, or the simulated host's."""

    def glance_ns(self) -> int:
        """Do what `host_time_ns` does, for nothing on the simulated host."""

    def host_to_clock_ns(self, host_ns: int) -> int:
        """Put a host time on the backend's clock, within `ClockInfo.host_error_ns`."""

    def ahead_of(self, other: Backend) -> tuple[int, int]:
        """Return what times of this clock lack to be on the clock of another card of the host, and the error's bound, in ns."""

    def peer_access(self, other: Backend) -> PeerAccess:
        """Tell whether this device reads the memory of another card of the host directly."""

    def tick(self, now_ns: int) -> int:
        """Keep the clock precise; return the host time at which to call again. Called when a range opens."""

    def resolve(self, starts: Sequence[Any], ends: Sequence[Any], queued_host_ns: Int64Array) -> RangeTimes:
        """Turn finished event pairs into times on the clock, corrected for the events' own cost."""

    def clock_info(self) -> ClockInfo:
        """Describe the clock and its errors as they are now."""

    def annotation(self, name: str) -> Any:
        """Prepare what `push_range` takes for a range of this name (NVTX attributes on CUDA)."""

    def push_range(self, annotation: Any) -> object:
        """Open a range for other tools to see (NVTX on CUDA), in this thread."""

    def pop_range(self) -> object:
        """Close what `push_range` opened last in this thread."""

    def activity_source(self) -> ActivitySource:
        """Return the source of records of every kernel, copy and call; it does not collect yet.

        Raises
        ------
        MissingExtraError
            If a package is missing.
        CaptureUnavailableError
            If kernels cannot be captured on this machine.
        """

    def watch_accesses(self, sink: AccessWatch) -> WatchedArrays | None:
        """Report every access to arrays from now on, and what orders them; None if others watch already."""

    def leave_accesses(self, sink: AccessWatch) -> None:
        """Report no more accesses. Idempotent."""

    def duplicate(self, arrays: Sequence[Any]) -> list[Any]:
        """Return copies of arrays of `xp` and of NumPy, made in the selected stream; None for those of other libraries.

        Copies of arrays that share memory share theirs, at the same places; those of page-locked memory are page-locked.
        """

    def keeping_random_state(self) -> AbstractContextManager[None]:
        """Put the global generator of ``xp.random`` back at the end of a ``with`` block."""

    def pinned_empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return page-locked host memory as an uninitialised NumPy array: copies from and to it are asynchronous."""

    def allocate_scratch(self, stream: BackendStream, size_bytes: int) -> int:
        """Return the address of device memory from the stream's pool, for work enqueued there from now on.

        Parameters
        ----------
        stream
            The stream. Its pool ends with it, once all that came from it is freed.
        size_bytes
            How much, a multiple of 512, as the address is.

        Raises
        ------
        DeviceMemoryError
            If there is not enough.
        DeviceError
            If the stream is being captured into a graph: the memory would be the graph's.
        """

    def free_scratch(self, stream: BackendStream, address: int) -> None:
        """Give memory of `allocate_scratch` back behind a stream's work; wait for it where the device has no memory pools."""

    def scratch_array(
        self, address: int, size_bytes: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: object
    ) -> Any:
        """Return an array of `xp` in the first bytes of memory of `allocate_scratch`; it keeps the owner alive."""

    def read_clocks(self) -> ClockRates | None:
        """Return how fast the card runs at the moment; None where that cannot be asked."""

    def launch_spin(self, stream: BackendStream, duration_ns: int, *, blocks: int, fill_sms: bool) -> None:
        """Launch a kernel whose blocks each stay busy for `duration_ns`; with `fill_sms` each block takes a whole SM."""

    @property
    def captures(self) -> Mapping[Any, GraphCapture]:
        """The captures of `begin_graph` that are under way; always the same object."""

    def begin_graph(self, stream: BackendStream) -> GraphCapture:
        """Let a stream capture its work into a CUDA graph from now on, instead of running it.

        Selecting, recording events and waiting go on as before and become part of the graph; ranges are not recorded, and what
        is held for the stream is kept with the graph. Arrays hold what they held. Calls that have to wait raise
        `GraphCaptureError`.

        Raises
        ------
        GraphCaptureError
            If the stream captures already.
        """

    def find_capture(self, stream: BackendStream) -> GraphCapture | None:
        """Return the capture of `begin_graph` that a stream is part of; None where there is none."""

    def close(self) -> None:
        """Release everything that the backend made. Idempotent."""


E = TypeVar("E")


class EventPool(Generic[E]):
    """Events that wait to be used again.

    ``list.append`` and ``list.pop`` are atomic, so any thread may take and give back without a lock.
    """

    def __init__(self, create: Callable[[], E], *, keep_count: int = 262_144) -> None:
        self._create = create
        self._keep_count = keep_count
        self._idle: list[E] = []

    def __len__(self) -> int:
        return len(self._idle)

    def acquire(self) -> E:
        """Take an idle event, or make one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._create()

    def release(self, events: Iterable[E]) -> None:
        """Give events back."""
        self._idle.extend(events)
        del self._idle[self._keep_count :]

    def clear(self) -> list[E]:
        """Empty the pool and return what was in it, for closing."""
        idle, self._idle = self._idle, []
        return idle


def acquire_order_event(backend: Backend) -> Any:
    """Take an event that orders work and has no time: on CUDA it never waits in the queue of a copy engine."""
    pool = getattr(backend, "order_events", None)
    return backend.acquire_event() if pool is None else pool.acquire()


def release_order_events(backend: Backend, events: Iterable[Any]) -> None:
    """Give events of `acquire_order_event` back."""
    pool = getattr(backend, "order_events", None)
    if pool is None:
        backend.release_events(events)
    else:
        pool.release(events)


def order_behind(backend: Backend, stream: BackendStream, ahead: BackendStream) -> None:
    """Let a stream's later work wait for all that another one holds now; the event goes back to its pool in any case."""
    event = acquire_order_event(backend)
    try:
        ahead.record(event)
        stream.wait(event)
    finally:
        release_order_events(backend, (event,))
