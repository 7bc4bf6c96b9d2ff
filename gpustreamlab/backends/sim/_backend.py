"""The simulated device behind the backend protocol."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.analysis import Touch
from gpustreamlab.backends._activity import PROBE_NAME
from gpustreamlab.backends._features import WatchedArrays, duplicate_host, lent_handle, refuse_stream
from gpustreamlab.backends._protocol import BackendStream, ClockInfo, ContextSpec, RangeTimes
from gpustreamlab.backends.sim._array import SimArray
from gpustreamlab.backends.sim._cost import ModelledKernel, explain_kernel, plan_kernel, plan_spin
from gpustreamlab.backends.sim._counters import SimCounters
from gpustreamlab.backends.sim._driver import SimDriver
from gpustreamlab.backends.sim._memory import SimScratch, create_pinned, is_pinned
from gpustreamlab.backends.sim._preset import DevicePreset, SMSplitter, find_preset
from gpustreamlab.backends.sim._source import SimActivitySource
from gpustreamlab.backends.sim._stream import NodeWork, SimCapture, SimContext, SimStream
from gpustreamlab.backends.sim._xp import ArrayModule, check_dtype
from gpustreamlab.errors import InvalidHandleError, OptionError, SelectionError, StreamRefusedError
from gpustreamlab.model import Device
from gpustreamlab.schedule._commands import KernelRun, KernelSpec, SimEvent, StreamQueue
from gpustreamlab.typing import Int64Array, PeerAccess

if TYPE_CHECKING:
    from gpustreamlab.memory.hazards import AccessWatch

_BLOCK_NS = 10_000


def _probe(driver: SimDriver, streams: Iterable[StreamQueue]) -> dict[int, set[int]]:
    """Run a kernel on each stream that would fill the whole device, all at once; return the SM ids of its blocks by stream."""
    preset, scheduler = driver.preset, driver.scheduler
    spec = KernelSpec(name=PROBE_NAME, blocks=preset.sm_count, block_slots=preset.slots_per_sm, block_ns=_BLOCK_NS)
    seen: dict[int, set[int]] = {stream.number: set() for stream in streams}

    def note(run: KernelRun, parts: list[tuple[int, int]]) -> None:
        if run.spec is spec:
            for number, blocks in parts:
                # SMs of a group are alike to the scheduler: fewer blocks than SMs are on the first of them.
                seen[run.stream.number].update(sorted(scheduler.pool.groups[number])[:blocks])

    scheduler.placement_observer = note
    try:
        for stream in streams:
            driver.launch(stream, spec)
        for stream in streams:
            driver.synchronize_stream(stream)
    finally:
        scheduler.placement_observer = None
    return seen


_NEVER_NS = 1 << 62


class SimBackend:
    """A GPU that does not exist: results are NumPy's, times are modelled on a virtual clock.

    The same program gives the same times, bit for bit. See docs/explanations/simulated-device.md for what is modelled.

    Parameters
    ----------
    preset
        ``"h200"``, ``"h200-cuda13.1"`` (structured splits and work queues), ``"h200-cuda12.2"`` (a driver too old for green
        contexts), ``"laptop"`` (a card without them), or sizes and speeds of your own.
    beside
        Another card, of whose host this is one more: both live in one virtual time, and their streams can wait for each other's
        events. None for a host with one card.

    Raises
    ------
    BackendNotFoundError
        If no preset has this name.

    Examples
    --------
    >>> backend = SimBackend("laptop")
    >>> stream = backend.create_stream(priority=0)
    >>> start, end = backend.acquire_event(), backend.acquire_event()
    >>> stream.record(start)
    >>> backend.launch_spin(stream, 1_000_000, blocks=48, fill_sms=True)  # two waves on 24 SMs
    >>> stream.record(end)
    >>> stream.synchronize()
    >>> backend.elapsed_ns(start, end)
    2004000
    """

    name = "sim"
    lends_streams = False

    def __init__(self, preset: str | DevicePreset = "h200", *, beside: SimBackend | None = None) -> None:
        self.preset = find_preset(preset)
        """Sizes and speeds of the device."""
        self.driver: SimDriver = SimDriver(self.preset, beside=None if beside is None else beside.driver)
        """The driver; for tests and for the array module."""
        self.host = self.driver.clock
        """What all cards of one simulated host have in common: their time."""
        self._splitter = SMSplitter(self.preset)
        self.capabilities = self._splitter.capabilities
        """What the device and its driver can do with SMs and work queues."""
        self.device = Device(
            name=self.preset.name,
            ordinal=self.driver.ordinal,
            sm_count=self.preset.sm_count,
            compute_capability=self.preset.compute_capability,
            memory_bytes=self.preset.memory_bytes,
            memory_bytes_per_s=self.preset.memory_bytes_per_s,
            h2d_bytes_per_s=self.preset.h2d_bytes_per_s,
            d2h_bytes_per_s=self.preset.d2h_bytes_per_s,
            driver_version=self.preset.driver_version,
            simulated=True,
            sm_limits=self.preset.sm_limits,
            sm_resource=self._splitter.resource,
        )
        """The device, marked as simulated."""
        self.priority_range = self.preset.priority_range
        """Lowest and highest priority."""
        self.null_stream = SimStream(self.driver, self.driver.null_stream, is_owned=False)
        """Where work goes while no stream is selected. No session can take it."""
        self.xp = ArrayModule(self)
        """NumPy-compatible array module; each call is a modelled kernel or copy on the selected stream."""
        self.captures = self.driver.captures
        """What streams capture at present; empty where none does."""
        self._scratch = SimScratch(self.driver)
        self._selected = threading.local()

    def __repr__(self) -> str:
        return f"<SimBackend {self.device.label!r}{', closed' if self.driver.is_closed else ''}>"

    def source(self) -> str:
        """Say in one line where this backend's numbers come from."""
        sizes = f"{self.preset.name} ({self.preset.sm_count} SMs)"
        return f"simulated {sizes}: modelled times on a virtual clock, not measured"

    # Streams

    def map_error(self, error: Exception, doing: str) -> Exception:
        """Return the error as it is: the simulated device raises errors of ours only."""
        return error

    def create_stream(self, *, priority: int = 0, sm_ids: Iterable[int] | None = None) -> SimStream:
        """Make a stream that does not synchronise with the NULL stream; `sm_ids` are the SMs that it may use, None for all."""
        wanted = None if sm_ids is None else self.driver.scheduler.pool.check_sm_ids(sm_ids)
        return SimStream(self.driver, self.driver.create_stream(priority, wanted), is_owned=True)

    def create_context(self, spec: ContextSpec) -> SimContext:
        """Make a green context: its streams' kernels run on its SMs only."""
        self.driver.check_open()
        return SimContext(self.driver, self._splitter.find_sm_ids(spec))

    def probe_sms(self, streams: Sequence[BackendStream]) -> list[Int64Array]:
        """Run a kernel on each stream, all at once, and return the SM ids on which the scheduler placed its blocks."""
        queues = [self._own_stream(stream).queue for stream in streams]
        with self.driver.lock:
            seen = _probe(self.driver, queues)
            for queue in queues:
                if len(seen[queue.number]) < queue.sm_count:  # others kept it from as many SMs as it should have: now alone
                    seen[queue.number] |= _probe(self.driver, [queue])[queue.number]
        return [np.array(sorted(seen[queue.number]), np.int64) for queue in queues]

    @contextlib.contextmanager
    def keeping_random_state(self) -> Iterator[None]:
        """Put the generator of ``xp.random`` back at the end of a ``with`` block."""
        generator = self.xp.random.source
        kept = generator.get_state()
        try:
            yield
        finally:
            generator.set_state(kept)

    def adopt_stream(self, lender: object) -> SimStream:
        """Take a stream of this device that others own."""
        self.driver.check_open()
        if isinstance(lender, SimStream):
            lender.check_open()
        handle = lent_handle(lender)
        if isinstance(lender, SimStream) and lender.driver is not self.driver:
            raise refuse_stream(
                lender, handle, "is of another simulated device", fix="Make one here: lab.stream('name'), or share the backend."
            )
        queue = self.driver.streams.get(handle)
        if queue is None:
            raise StreamRefusedError(
                f"{type(lender).__name__} lends the handle {handle:#x}, which the simulated device does not know. It takes "
                "only its own streams; for streams of a real GPU use Session(backend='cuda')."
            )
        return SimStream(self.driver, queue, is_owned=False)

    def select(self, stream: BackendStream) -> object:
        """Make `xp` of this thread work on the stream; return a token for `restore`."""
        self.driver.check_open()
        own = self._own_stream(stream)
        self.driver.charge(self.preset.host.select_ns)
        before = self.selected_stream
        self._selected.stream = own
        return before

    def restore(self, token: object) -> None:
        """Put back what was selected in this thread before the `select` that gave the token."""
        if not isinstance(token, SimStream):
            raise SelectionError(f"restore() was given {token!r}; give it what select() returned.")
        self._selected.stream = token

    @property
    def selected_stream(self) -> SimStream:
        """The stream that `xp` of this thread works on."""
        return getattr(self._selected, "stream", self.null_stream)

    @property
    def unselected_work(self) -> int:
        """Kernels, copies and fills so far that were launched with no stream selected, while kernels were not captured."""
        return self.driver.unselected_work

    # Events

    def acquire_event(self) -> SimEvent:
        """Make an event, for free: when events are given back depends on a thread on the side, on no virtual time."""
        self.driver.check_open()
        return SimEvent()

    def release_events(self, events: Iterable[SimEvent]) -> None:
        """Take events back; they forget what they recorded."""
        for event in events:
            event.mark = None

    def is_event_done(self, event: SimEvent) -> bool:
        """Tell whether the work in front of an event has ended; True for one that was never recorded, as in CUDA."""
        return self.driver.is_event_done(event)

    def synchronize_event(self, event: SimEvent) -> None:
        """Block the host until the work in front of an event has ended."""
        self.driver.synchronize_event(event)

    def elapsed_ns(self, start: SimEvent, end: SimEvent) -> int:
        """Return the device time between two finished events, in ns."""
        return self.driver.elapsed_ns(start, end)

    # Clock

    def synchronize(self) -> None:
        """Block the host until the whole device is idle."""
        self.driver.synchronize()

    def host_time_ns(self) -> int:
        """Read the virtual host's clock; the reading itself takes 40 ns, so a loop that waits for a time ends."""
        return self.driver.read_clock()

    def glance_ns(self) -> int:
        """Read the virtual host's clock for nothing."""
        return self.driver.clock.now_ns

    def ahead_of(self, _other: object) -> tuple[int, int]:
        """Return zeros: cards of one simulated host have one clock."""
        return 0, 0

    def peer_access(self, _other: object) -> PeerAccess:
        """Return that it is on: as CuPy, which turns it on for the first copy."""
        return PeerAccess.ON

    def host_to_clock_ns(self, host_ns: int) -> int:
        """Return the time as it is: host and device share one clock here."""
        return host_ns

    def tick(self, now_ns: int) -> int:
        """Do nothing: the virtual clock stays exact."""
        return max(now_ns, _NEVER_NS)

    def resolve(self, starts: Sequence[SimEvent], ends: Sequence[SimEvent], queued_host_ns: Int64Array) -> RangeTimes:
        """Turn finished event pairs into times. Host and device share one clock here, so they are exact."""
        time_of = self.driver.time_of
        return RangeTimes(
            np.fromiter((time_of(event) for event in starts), np.int64, len(starts)),
            np.fromiter((time_of(event) for event in ends), np.int64, len(ends)),
            np.asarray(queued_host_ns, np.int64),
        )

    def clock_info(self) -> ClockInfo:
        """Describe the virtual clock: exact, and without a wall-clock time."""
        return ClockInfo(
            description="virtual, kept by the simulated device; exact, starts at 0",
            epoch_unix_ns=0,
            clock_error_ns=0,
            range_error_ns=0,
            range_correction_ns=0,
            host_error_ns=0,
        )

    def is_default_stream_idle(self) -> bool:
        """Tell whether the default stream has no work left."""
        return self.driver.is_stream_idle(self.driver.null_stream)

    def observing(self) -> AbstractContextManager[None]:
        """Make this thread's queries and clock reads free of virtual time, for tools that look on from outside."""
        return self.driver.observing()

    def rest(self) -> None:
        """Let all work end, as on a GPU while nobody types: the host's clock goes on to there."""
        self.driver.rest()

    def activity_source(self) -> SimActivitySource:
        """Return what tells of every kernel, copy and call; it does not collect yet. Several may be made, one collects."""
        self.driver.check_open()
        return SimActivitySource(self.driver)

    def watch_accesses(self, sink: AccessWatch) -> WatchedArrays | None:
        """Tell of every access to arrays from now on, exactly. None if others watch already."""
        with self.driver.lock:
            if self.driver.accesses is not None:
                return None
            sink.lock = self.driver.lock
            for card in self.driver.cards:
                if card.accesses is not None:
                    sink.stand_beside(card.accesses)
                    break
            self.driver.memory.forget_pieces()
            self.driver.accesses = sink
            return WatchedArrays(self.xp, self._find_touch, self.null_stream)

    def leave_accesses(self, sink: AccessWatch) -> None:
        """Tell of no more accesses. Idempotent."""
        with self.driver.lock:
            if self.driver.accesses is sink:
                self.driver.accesses = None
                self.driver.memory.forget_pieces()

    # Ranges for other tools

    def annotation(self, name: str) -> str:
        """Return the name: no other tool sees a simulated device."""
        return name

    def push_range(self, annotation: str) -> None:
        """Spend the time that opening a range takes."""
        self.driver.charge(self.preset.host.push_ns)

    def pop_range(self) -> None:
        """Spend the time that closing a range takes."""
        self.driver.charge(self.preset.host.push_ns)

    # Work

    def duplicate(self, arrays: Sequence[Any]) -> list[Any]:
        """Return copies of arrays, which share memory as the originals do; they take no virtual time."""

        def copy(owner: NDArray[Any]) -> NDArray[Any]:
            made = self.pinned_empty(owner.shape, owner.dtype) if is_pinned(owner) else np.empty_like(owner, subok=False)
            made[...] = owner
            return made

        known = [array.sim_values if isinstance(array, SimArray) else array for array in arrays]
        is_known = [isinstance(values, np.ndarray) for values in known]
        made = iter(duplicate_host([values for values in known if isinstance(values, np.ndarray)], copy))
        copies = [next(made) if known else None for known in is_known]
        return [
            self.xp.wrap(values) if isinstance(array, SimArray) and values is not None else values
            for array, values in zip(arrays, copies, strict=True)
        ]

    def pinned_empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return an uninitialised NumPy array in memory that counts as page-locked. Its views count too, copies do not."""
        return create_pinned(shape, dtype)

    def allocate_scratch(self, stream: BackendStream, size_bytes: int) -> int:
        """Return the address of memory from the stream's pool; modelled, and counted against the device's size."""
        return self._scratch.allocate(self._own_stream(stream).queue, size_bytes)

    def free_scratch(self, stream: BackendStream, address: int) -> None:
        """Give memory of `allocate_scratch` back behind the stream's work."""
        self._scratch.free(self._own_stream(stream).queue, address)

    def scratch_array(
        self, address: int, size_bytes: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: object
    ) -> SimArray:
        """Return an array of `xp` in memory of `allocate_scratch`; what is written by one array of a block is seen by all."""
        del size_bytes  # a block knows its own
        check_dtype(np.dtype(dtype))
        return SimArray(self._scratch.array(address, shape, dtype, owner), self.xp)

    def read_clocks(self) -> None:
        """Return None: the simulated device has one speed."""

    def counter_source(self) -> SimCounters:
        """Begin to count what the model does."""
        return SimCounters(self.driver)

    def fine_counter_source(self, counters: Sequence[str], every_ns: int) -> SimCounters:
        """Begin to count some of what the model does, in pieces of a period."""
        source = SimCounters(self.driver, counters, every_ns)
        source.description = f"the simulated device, each {every_ns / 1_000:g} us"
        return source

    def launch_spin(self, stream: BackendStream, duration_ns: int, *, blocks: int, fill_sms: bool) -> None:
        """Launch a kernel whose blocks each stay busy for a time; with `fill_sms` each takes a whole SM, else one slot."""
        touches_nothing = NodeWork("spin", None, (), (), None)
        self.launch_kernel(stream, plan_spin(self.preset.slots_per_sm, duration_ns, blocks, fill_sms=fill_sms), touches_nothing)

    def launch_kernel(self, stream: BackendStream, spec: KernelSpec, work: NodeWork | None = None) -> None:
        """Launch a kernel that takes time; see `gpustreamlab.backends.sim.plan_streaming` and its like.

        A graph that captures it computes and touches what `work` says at each launch; None for nothing.
        """
        self.driver.launch(self._own_stream(stream).queue, spec, work)

    def launch_own(self, stream: BackendStream, name: str, **takes: Any) -> ModelledKernel:
        """Launch a kernel that is only said to take what `plan_kernel` asks for; return what that comes to."""
        spec = plan_kernel(self.preset, name, **takes)
        sm_count = self._own_stream(stream).sm_count
        most = sm_count * (self.preset.slots_per_sm // spec.block_slots)
        if spec.is_cooperative and spec.blocks > most:
            raise OptionError(
                f"Cooperative kernel {name!r} has {spec.blocks:,} blocks, and the stream's {sm_count} SMs hold {most:,} at "
                f"once. Use blocks={most}."
            )
        told = explain_kernel(self.preset, spec, sm_count)
        self.launch_kernel(stream, spec)
        return told

    def begin_graph(self, stream: BackendStream) -> SimCapture:
        """Let a stream capture its work into a CUDA graph from now on, instead of running it.

        Values are computed once meanwhile, aside, and anew at each launch, into the memory that the arrays have.
        """
        queue = self._own_stream(stream).queue
        with self.driver.lock:
            self.driver.check_open()
            if queue in self.driver.captures:
                raise self.driver.captures[queue].refuse("A capture inside another", "End the first one before.")
            return SimCapture(self.driver, queue)

    def find_capture(self, stream: BackendStream) -> SimCapture | None:
        """Return what a stream captures into; None where it does not capture."""
        return self.driver.captures.get(stream.queue) if isinstance(stream, SimStream) else None

    def _find_touch(self, array: object) -> Touch | None:
        values = array.sim_values if isinstance(array, SimArray) else array
        return self.driver.memory.touch(values) if isinstance(values, np.ndarray) else None

    def _own_stream(self, stream: object) -> SimStream:
        if not isinstance(stream, SimStream) or stream.driver is not self.driver:
            raise InvalidHandleError(
                f"The simulated device has no {stream!r} to work on: it is not one of its streams. Use one of this "
                "session: lab.stream('name')."
            )
        stream.check_open()
        return stream

    # Life

    def close(self) -> None:
        """Let everything end and refuse work from now on. Idempotent."""
        self.driver.close()
