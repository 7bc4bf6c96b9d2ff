"""The real device: streams and events of cuda.core, arrays of CuPy."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.backends._features import WatchedArrays, lent_handle
from gpustreamlab.backends._protocol import BackendStream, ClockInfo, ContextSpec, EventPool, RangeTimes
from gpustreamlab.backends.cuda._clock import KERNEL_TAIL_NS, KERNEL_TAIL_SPREAD_NS, ClockLane, measure_timers
from gpustreamlab.backends.cuda._counters import NvmlCounters, open_counters
from gpustreamlab.backends.cuda._graph import CudaCapture, CudaGraphs, GraphParts
from gpustreamlab.backends.cuda._green import CudaContext, GreenContexts
from gpustreamlab.backends.cuda._idle import IdleEvents, idle_on
from gpustreamlab.backends.cuda._kernels import Fence, filling_spin_kernel, spin_kernel
from gpustreamlab.backends.cuda._libcuda import bindings_version, import_cuda_core, import_cupy, map_error, mapped_errors
from gpustreamlab.backends.cuda._memory import CudaScratch, StreamArenas, duplicate, has_memory_pools
from gpustreamlab.backends.cuda._nvtx import NvtxInjection, open_domain
from gpustreamlab.backends.cuda._probe import probe_sms, read_clocks, read_peer_access, why_unavailable
from gpustreamlab.backends.cuda._stream import AccessOrder, CudaStream, CupySelection, NullStream, check_lent_stream
from gpustreamlab.backends.cuda._tracked import TrackedModule, Tracker, cupy_library
from gpustreamlab.backends.cuda.cupti._clock import CuptiClock, anchor_launcher
from gpustreamlab.backends.cuda.cupti._library import Cupti, load_cupti
from gpustreamlab.backends.cuda.cupti._pm_sampling import PmSampler
from gpustreamlab.backends.cuda.cupti._source import CuptiSource
from gpustreamlab.errors import BackendUnavailableError, DeviceNotFoundError, InvalidHandleError, SessionClosedError
from gpustreamlab.model import ClockRates, Device, SMLimits
from gpustreamlab.typing import Int64Array, PeerAccess

if TYPE_CHECKING:
    from gpustreamlab.memory.hazards import AccessWatch


class CudaBackend:
    """One CUDA device, through its primary context.

    Parameters
    ----------
    ordinal
        The CUDA device number.
    beside
        Another card of the same node: accesses of both are told of as a whole. None for a card alone.

    Raises
    ------
    BackendUnavailableError
        If there is no driver, no device, or a package is missing.
    DeviceNotFoundError
        If there are devices, but none of this number.
    """

    name = "cuda"
    lends_streams = True

    def __init__(self, ordinal: int = 0, *, beside: CudaBackend | None = None) -> None:
        problem = why_unavailable()
        if problem is not None:
            raise BackendUnavailableError(problem[1], reason=problem[0])
        self.xp = import_cupy()
        self._core = import_cuda_core()
        self._ordinal = ordinal
        self._check_ordinal()
        self._events: EventPool[Any] = EventPool(lambda: self._find_event(self._idle.events, has_time=True))
        self.order_events: EventPool[Any] = EventPool(lambda: self._find_event(self._idle.order_events, has_time=False))
        self._selection = CupySelection(self.xp, ordinal)
        self._arenas = StreamArenas(self.xp.get_default_memory_pool(), ordinal, self._freeing_scope)
        # On the hot path of ranges, so nothing stands between: CuPy's current stream of this thread follows.
        self.select: Callable[[BackendStream], object] = self._selection.select
        self.restore: Callable[[object], None] = self._selection.restore
        self.host_time_ns = self.glance_ns = time.perf_counter_ns
        self._is_closed = False
        self._order: AccessOrder = AccessOrder(None if beside is None else beside._order)  # noqa: SLF001 - of this class
        self._graphs = CudaGraphs(
            GraphParts(
                cupy=self.xp,
                ordinal=ordinal,
                scope=self._device_scope,
                create_event=lambda: self._create_event(has_time=False),
                find_id=self._find_graph_id,
                tell=self._tell_accesses,
            )
        )
        self._sources: weakref.WeakSet[CuptiSource] = weakref.WeakSet()
        with mapped_errors(f"Starting on CUDA device {ordinal}"), self._device_scope():
            self._idle = idle_on(ordinal, self._read_context_id())
            is_ordered = has_memory_pools(self.xp, ordinal)
            self._scratch = CudaScratch(self.xp, ordinal, is_ordered=is_ordered, scope=self._device_scope)
            self._green = self._find_green_contexts(has_memory_pools=is_ordered)
            self.capabilities = self._green.capabilities
            self.device = self._describe_device()
            self.priority_range = self._read_priority_range()
            self._fence = Fence(self.xp.cuda.runtime)
            self._clock_lane = self._make_clock_lane()
            self._clock = self._clock_lane.start_clock()
            self._epoch_unix_ns = time.time_ns() - time.perf_counter_ns() + self._clock.origin_host_ns
            self._pair_cost = self._clock_lane.locate_pairs(self._clock, fence=self._fence.put, host_time_ns=self.host_time_ns)
        self._injection = NvtxInjection()
        domain = open_domain()
        self._attributes = domain.get_event_attributes
        self.push_range = domain.push_range
        self.pop_range = domain.pop_range
        self.acquire_event = self._events.acquire
        self.release_events: Callable[[Iterable[Any]], None] = self._events.release
        self.map_error = map_error

    def source(self) -> str:
        """Say in one line where this backend's numbers come from."""
        return f"CUDA events on {self.device.name}, driver {self.device.driver_version}"

    def create_stream(self, *, priority: int) -> CudaStream:
        """Make a non-blocking stream of the primary context."""
        self._require_open()
        with mapped_errors(f"Creating a stream of priority {priority}"), self._device_scope():
            return self._take_stream(None, 0, priority)

    def _take_stream(self, context: Any, number: int, priority: int) -> CudaStream:
        """Take a stream that an earlier session has closed, or make one: of a `cuda.core.Context`, or the primary one."""
        options = self._core.StreamOptions(nonblocking=True, priority=priority)

        def make() -> Any:
            if context is None:
                return self._core.Device(self._ordinal).create_stream(options=options)
            return context.create_stream(options)

        stream = self._idle.streams.take(context, priority, make)
        return self._wrap(
            stream, lender=None, context=number, give_back=lambda: self._idle.streams.give(context, priority, stream)
        )

    def create_context(self, spec: ContextSpec) -> CudaContext:
        """Return a green context. A new one costs about a millisecond, and some MiB of device and host memory for good."""
        self._require_open()
        with self._device_scope():
            return self._green.create(spec)

    def probe_sms(self, streams: Sequence[BackendStream]) -> list[Int64Array]:
        """Run a kernel on each stream whose blocks note their ``%smid``, and wait for it."""
        own = [stream for stream in streams if isinstance(stream, CudaStream)]
        with mapped_errors("Finding out which SMs the streams run on"):
            return probe_sms(
                own,
                ordinal=self._ordinal,
                sm_count=self.device.sm_count,
                pinned_empty=self.pinned_empty,
                select=self.select,
                restore=self.restore,
            )

    @contextlib.contextmanager
    def keeping_random_state(self) -> Iterator[None]:
        """Let another generator stand in for CuPy's in a ``with`` block: its own is on the device and cannot be copied."""
        random = self.xp.random
        if self._ordinal not in getattr(random._generator, "_random_states", {}):  # noqa: SLF001 - asking makes one
            yield
            return
        with self._device_scope():
            kept = random.get_random_state()
            random._generator.set_random_state(random.RandomState(0))  # noqa: SLF001 - there is no public place
        try:
            yield
        finally:
            with self._device_scope():
                random._generator.set_random_state(kept)  # noqa: SLF001 - likewise

    def adopt_stream(self, lender: object) -> CudaStream:
        """Take a stream that others own, through ``__cuda_stream__``; the lender is kept alive."""
        handle = lent_handle(lender)
        with mapped_errors(f"Taking the stream of a {type(lender).__name__}"), self._device_scope():
            check_lent_stream(lender, handle, self._ordinal)
            stream = self._core.Device(self._ordinal).create_stream(lender)
            return self._wrap(stream, lender=lender)

    def is_event_done(self, event: Any) -> bool:
        """Tell whether the work in front of a recorded event has ended."""
        with mapped_errors("Asking whether an event has happened"):
            is_done = bool(event.is_done)
        if is_done:
            self._order.host_wait(event)
        return is_done

    def synchronize_event(self, event: Any) -> None:
        """Block the host until the work in front of a recorded event has ended."""
        with mapped_errors("Waiting for an event"):
            event.sync()
        self._order.host_wait(event)

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the device time between two finished events, in ns: what ``cuEventElapsedTime`` says."""
        with mapped_errors("Measuring between two events"):
            elapsed_ms: float = end - start
        return round(elapsed_ms * 1e6)

    def synchronize(self) -> None:
        """Block the host until the whole device is idle."""
        with mapped_errors(f"Waiting for CUDA device {self._ordinal}"), self._device_scope():
            self.xp.cuda.runtime.deviceSynchronize()
        self._graphs.sweep()
        self._order.host_wait_all()
        self._graphs.sweep()

    def is_default_stream_idle(self) -> bool:
        """Tell whether the default stream, and those that synchronise with it, have no work left."""
        try:
            with self._device_scope():
                return bool(self.xp.cuda.Stream.null.done)
        except Exception:  # noqa: BLE001 - a device that has failed, or a capture that forbids the question
            return False

    def host_to_clock_ns(self, host_ns: int) -> int:
        """Put a host time on the event clock."""
        return self._clock.place_host(host_ns)

    @property
    def _tail_ns(self) -> int:
        """How much later a kernel ends than its last instruction."""
        measured = [tail_ns for source in tuple(self._sources) if (tail_ns := source.tail_ns) is not None]
        return max(measured, default=KERNEL_TAIL_NS)

    def _keep_time(self) -> None:
        with mapped_errors("Recording a clock anchor"), self._device_scope():
            self._clock.keep(self.host_time_ns())

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        """Let this thread's questions break no capture of a CUDA graph.

        In CUDA's global mode, torch's default, a capture fails where any thread asks for an event or allocates memory. Source:
        ``cuThreadExchangeStreamCaptureMode``.
        """
        from cuda.bindings import driver

        _, before = driver.cuThreadExchangeStreamCaptureMode(driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
        try:
            with self._order.looking_on():
                yield
        finally:
            driver.cuThreadExchangeStreamCaptureMode(before)

    @contextlib.contextmanager
    def _freeing_scope(self) -> Iterator[None]:
        with self._device_scope(), self.observing():
            yield

    def tick(self, now_ns: int) -> int:
        """Keep the clock precise; return the host time at which to call again."""
        with mapped_errors("Recording a clock anchor"):
            return self._clock.tick(now_ns)

    def resolve(self, starts: Sequence[Any], ends: Sequence[Any], queued_host_ns: Int64Array) -> RangeTimes:
        """Turn finished event pairs into times, corrected for the pair's own cost.

        Where two events stand around a kernel was measured; a kernel ends a little after its last instruction.
        """
        with mapped_errors("Reading the times of finished ranges"):
            times = self._clock.place(starts, ends, queued_host_ns)
        start_ns = times.start_ns + self._pair_cost.before_ns
        end_ns = times.end_ns - self._pair_cost.after_ns + self._tail_ns
        # A range that holds no device work is shorter than the events' own cost: it becomes an instant.
        middle_ns = (times.start_ns + times.end_ns) // 2
        empty = end_ns < start_ns
        return RangeTimes(np.where(empty, middle_ns, start_ns), np.where(empty, middle_ns, end_ns), times.queued_ns)

    def clock_info(self) -> ClockInfo:
        """Describe the clock and its errors as they are now."""
        calibration = self._clock.calibration
        return ClockInfo(
            description=f"CUDA events, {calibration.tick_ns} ns ticks, anchored at least every 0.25 s of recording",
            epoch_unix_ns=self._epoch_unix_ns,
            clock_error_ns=self._clock.error_ns,
            range_error_ns=calibration.pair_spread_ns + KERNEL_TAIL_SPREAD_NS,
            range_correction_ns=sum(self._pair_cost) - self._tail_ns,
            host_error_ns=self._clock.host_error_ns,
        )

    def annotation(self, name: str) -> Any:
        """Prepare the NVTX attributes of a range."""
        return self._attributes(message=name)

    def activity_source(self) -> CuptiSource:
        """Return what tells of every kernel, copy and call; it does not collect yet."""
        self._require_open()
        with self._device_scope():
            source = self._make_source(load_cupti())
        self._sources.add(source)
        return source

    @property
    def _source(self) -> CuptiSource | None:
        """The source that collects, of those of all sessions on this backend; where none does, any."""
        sources = tuple(self._sources)
        return next((source for source in sources if source.is_collecting), sources[0] if sources else None)

    def duplicate(self, arrays: Sequence[Any]) -> list[Any]:
        """Return copies of arrays, made in the selected stream, which share memory as the originals do."""
        with mapped_errors(f"Copying {len(arrays)} arrays"):
            return duplicate(arrays, self.xp, self.pinned_empty)

    def pinned_empty(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return page-locked host memory as an uninitialised NumPy array."""
        import cupyx

        with mapped_errors(f"Allocating page-locked memory of shape {shape}"):
            array: NDArray[Any] = cupyx.empty_pinned(shape, dtype)
        return array

    def allocate_scratch(self, stream: BackendStream, size_bytes: int) -> int:
        """Return the address of device memory from the stream's pool, for work enqueued there from now on."""
        return self._scratch.allocate(self._own_stream(stream), size_bytes)

    def free_scratch(self, stream: BackendStream, address: int) -> None:
        """Give memory of `allocate_scratch` back behind a stream's work."""
        self._scratch.free(self._own_stream(stream), address)

    def scratch_array(
        self, address: int, size_bytes: int, shape: int | tuple[int, ...], dtype: DTypeLike, owner: object
    ) -> Any:
        """Return a CuPy array in memory of `allocate_scratch`."""
        array = self._scratch.array(address, size_bytes, shape, dtype, owner)
        return array if self._order.tracker is None else self._order.tracker.track(array)

    def read_clocks(self) -> ClockRates | None:
        """Return how fast the card runs at the moment, by NVML; None without the package nvidia-ml-py."""
        with self._device_scope():
            return read_clocks(self.xp.cuda.runtime.deviceGetPCIBusId(self._ordinal))

    def counter_source(self) -> NvmlCounters | None:
        """Begin to count on the card, by NVML; None without the package nvidia-ml-py."""
        with self._device_scope():
            return open_counters(self.xp.cuda.runtime.deviceGetPCIBusId(self._ordinal), self.host_time_ns)

    def fine_counter_source(self, counters: Sequence[str], every_ns: int) -> PmSampler:
        """Begin to sample the card's counters, by CUPTI."""
        self._require_open()
        with self._device_scope():
            return PmSampler(
                load_cupti(), ordinal=self._ordinal, counters=counters, every_ns=every_ns, host_time_ns=self.host_time_ns
            )

    def watch_accesses(self, sink: AccessWatch) -> WatchedArrays | None:
        """Tell of accesses to arrays of a tracking CuPy from now on, and of what orders them. None if others watch already."""
        if self._order.sink is not None:
            return None
        tracker = next((card.tracker for card in self._order.cards if card.tracker is not None), None)
        self._order.tracker = tracker = tracker or Tracker(cupy_library(self.xp))
        tracker.watch(self._ordinal, sink, self._graphs.find_accesses)
        self._order.watch(sink)
        self.release_events = self._release_watched
        null = NullStream(self._core.LEGACY_DEFAULT_STREAM, self._order, self._device_scope)
        return WatchedArrays(TrackedModule(self.xp, tracker), tracker.find, null, tracker.track)

    def leave_accesses(self, sink: AccessWatch) -> None:
        """Tell of no more accesses. Idempotent."""
        if self._order.sink is sink:
            self._order.watch(None)
            if self._order.tracker is not None:
                self._order.tracker.leave(self._ordinal)
                self._order.tracker = None
            self.release_events = self._events.release

    def _tell_accesses(self, handle: int, accesses: list[Any]) -> None:
        if self._order.tracker is not None:
            self._order.tracker.tell_again(self._ordinal, handle, accesses)

    def _find_graph_id(self, handle: int, node_count: int) -> int:
        source = self._source
        return 0 if source is None else source.find_graph(handle, node_count)

    @property
    def captures(self) -> dict[int, CudaCapture]:
        """The captures of `begin_graph` that are under way, by the driver's numbers."""
        return self._graphs.captures

    def begin_graph(self, stream: BackendStream) -> CudaCapture:
        """Let a stream capture its work into a CUDA graph from now on, in CUDA's relaxed mode."""
        self._require_open()
        return self._graphs.begin(self._own_stream(stream))

    def find_capture(self, stream: BackendStream) -> CudaCapture | None:
        """Return the capture of `begin_graph` that a stream is part of; None where there is none."""
        return self._graphs.find(stream)

    def _release_watched(self, events: Iterable[Any]) -> None:
        events = list(events)
        self._order.forget(events)
        self._events.release(events)

    def launch_spin(self, stream: BackendStream, duration_ns: int, *, blocks: int, fill_sms: bool) -> None:
        """Launch a kernel whose blocks each stay busy for `duration_ns`."""
        token = self.select(stream)
        try:
            with mapped_errors(f"Launching a spin kernel of {blocks} blocks"):
                kernel, shared_bytes = filling_spin_kernel(self._ordinal) if fill_sms else (spin_kernel(self._ordinal), 0)
                kernel((blocks,), (32,), (np.int64(duration_ns), np.uint64(0)), shared_mem=shared_bytes)
        finally:
            self.restore(token)

    def close(self) -> None:
        """Release what this backend made: events, and the clock's own stream. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._injection.restore()
        self._graphs.close()
        with mapped_errors(f"Closing CUDA device {self._ordinal}"), self._device_scope():
            for source in tuple(self._sources):
                source.close()
            self._clock_lane.stream.sync()
            self._scratch.close()
            self._clock.close()
            self._fence.close()
            self._idle.events.give(self._events.clear())
            self._idle.order_events.give(self.order_events.clear())
            self._arenas.end(self._clock_lane.cupy_stream)
            self._clock_lane.stream.close()
            self._arenas.sweep()

    def _own_stream(self, stream: BackendStream) -> CudaStream:
        if not isinstance(stream, CudaStream) or stream.is_closed:
            raise InvalidHandleError(
                f"CUDA device {self._ordinal} has no {stream!r} to allocate on, or it is closed. Use a stream of lab.stream()."
            )
        return stream

    def _require_open(self) -> None:
        if self._is_closed:
            raise SessionClosedError(f"CUDA device {self._ordinal} is closed. Start another with gpustreamlab.Session('cuda').")

    def _check_ordinal(self) -> None:
        with mapped_errors("Counting CUDA devices"):
            count: int = self.xp.cuda.runtime.getDeviceCount()
        if not 0 <= self._ordinal < count:
            raise DeviceNotFoundError(
                f"There is no CUDA device {self._ordinal}; this machine has {count}, numbered from 0. "
                f"Use gpustreamlab.Session(device={min(max(self._ordinal, 0), count - 1)})."
            )

    @contextlib.contextmanager
    def _device_scope(self) -> Iterator[None]:
        """Make the device current for cuda.core and CuPy, and put back what was current."""
        with self.xp.cuda.Device(self._ordinal):
            self._core.Device(self._ordinal).set_current()
            yield

    def _describe_device(self) -> Device:
        facts = self.xp.cuda.runtime.getDeviceProperties(self._ordinal)
        major, minor = self._read_driver_version()
        attributes = self.xp.cuda.Device(self._ordinal).attributes
        # Two transfers a clock, in kHz, of so many bits. Source: CUDA runtime API, cudaDevAttrMemoryClockRate.
        memory_rate = 2_000 * attributes.get("MemoryClockRate", 0) * attributes.get("GlobalMemoryBusWidth", 0) // 8
        return Device(
            name=facts["name"].decode(),
            ordinal=self._ordinal,
            sm_count=facts["multiProcessorCount"],
            compute_capability=(facts["major"], facts["minor"]),
            memory_bytes=facts["totalGlobalMem"],
            memory_bytes_per_s=memory_rate or None,
            copy_engines=facts.get("asyncEngineCount") or None,
            driver_version=f"{major}.{minor}",
            sm_limits=SMLimits(
                blocks=attributes["MaxBlocksPerMultiprocessor"],
                threads=facts["maxThreadsPerMultiProcessor"],
                registers=facts["regsPerMultiprocessor"],
                shared_bytes=facts["sharedMemPerMultiprocessor"],
            ),
            sm_resource=self._green.resource,
        )

    def _read_driver_version(self) -> tuple[int, int]:
        version: int = self.xp.cuda.runtime.driverGetVersion()
        return version // 1000, version % 1000 // 10

    def _find_green_contexts(self, *, has_memory_pools: bool) -> GreenContexts:
        return GreenContexts(
            core=self._core,
            device=self._core.Device(self._ordinal),
            driver=self._read_driver_version(),
            bindings=bindings_version(),
            has_memory_pools=has_memory_pools,
            make_stream=self._take_stream,
            scope=self._device_scope,
            idle=self._idle.contexts,
        )

    def _read_context_id(self) -> int:
        """Return what the driver calls the current context, which is the primary one; 0 for a driver before 12.0."""
        from cuda.bindings import driver

        try:
            status, context_id = driver.cuCtxGetId(None)
        except (AttributeError, RuntimeError):
            return 0
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuCtxGetId gave {status!s}")
        return int(context_id)

    def _read_priority_range(self) -> tuple[int, int]:
        from cuda.bindings import driver

        status, lowest, highest = driver.cuCtxGetStreamPriorityRange()
        if status != driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"cuCtxGetStreamPriorityRange gave {status!s}")
        return int(lowest), int(highest)

    def _find_event(self, idle: IdleEvents, *, has_time: bool) -> Any:
        event = idle.take()
        return self._create_event(has_time=has_time) if event is None else event

    def _create_event(self, *, has_time: bool) -> Any:
        options = self._core.EventOptions(timing_enabled=has_time)
        with mapped_errors("Creating an event"), self._device_scope():
            return self._core.Device(self._ordinal).create_event(options=options)

    def _wrap(self, stream: Any, *, lender: object, context: int = 0, give_back: Callable[[], object] = bool) -> CudaStream:
        self._arenas.begin(int(stream.handle))
        made = CudaStream(
            core=stream,
            cupy=self.xp.cuda.Stream.from_external(stream),
            key=(self._ordinal, context, int(stream.handle)),
            priority=int(stream.priority),
            sm_count=self._sms_of(stream),
            lender=lender,
            order=self._order,
            free_arena=self._arenas.end,
            end_scratch=self._scratch.end,
            give_back=give_back,
            fence=self._fence.put,
        )
        self._graphs.streams[id(made)] = made
        return made

    def _sms_of(self, stream: Any) -> int:
        """Return how many SMs a stream's context has, as the driver says; all of the card where it has no green contexts."""
        if self._green.resource is None:
            return int(self.xp.cuda.Device(self._ordinal).attributes["MultiProcessorCount"])
        return int(stream.resources.sm.sm_count)

    def _make_clock_lane(self) -> ClockLane:
        stream = self._core.Device(self._ordinal).create_stream()
        self._arenas.begin(int(stream.handle))
        return ClockLane(
            stream,
            self.xp.cuda.Stream.from_external(stream),
            ordinal=self._ordinal,
            selection=self._selection,
            events=self._events,
            pinned_empty=self.pinned_empty,
            own_calls=self._own_calls,
        )

    def ahead_of(self, other: object) -> tuple[int, int]:
        """Return what times of this clock lack to be on the clock of another card, and the bound on the error, in ns."""
        if other is self or not isinstance(other, CudaBackend):
            return 0, 0
        with self.observing():
            timer_ns, error_ns = measure_timers(other, self)
        origins = self._clock.origin_timer_ns - other._clock.origin_timer_ns  # noqa: SLF001 - of this class
        return origins - timer_ns, error_ns

    def peer_access(self, other: Any) -> PeerAccess:
        """Tell whether this device reads the memory of another one directly. CUDA tells it only to who turns it on."""
        with self._device_scope(), self._own_calls():
            return read_peer_access(self.device.ordinal, other.device.ordinal)

    def launch_own(self, kernel: Any, arguments: tuple[Any, ...]) -> None:
        """Launch one thread of a kernel that is in no trace, beside the user's work."""
        with self._device_scope(), self._own_calls():
            self._clock_lane.launch(kernel, arguments)

    def await_own(self) -> None:
        """Block the host until what `launch_own` launched has ended."""
        with self._device_scope(), self._own_calls():
            self._clock_lane.stream.sync()

    def _own_calls(self) -> contextlib.AbstractContextManager[None]:
        """Leave out of traces what this thread calls inside."""
        source = self._source
        return contextlib.nullcontext() if source is None else source.own_calls()

    def _make_source(self, cupti: Cupti) -> CuptiSource:
        clock = CuptiClock(
            launch=anchor_launcher(self._clock_lane.spin, self.pinned_empty),
            origin_timer_ns=self._clock.origin_timer_ns,
            host_time_ns=self.host_time_ns,
        )
        return CuptiSource(
            cupti,
            ordinal=self._ordinal,
            sm_count=self.device.sm_count,
            clock=clock,
            clock_handle=int(self._clock_lane.stream.handle),
            host_time_ns=self.host_time_ns,
            watch=self._selection.watch,
            mark_range=self._mark_range,
            keep_time=self._keep_time,
        )

    def _mark_range(self) -> None:
        self.push_range(self.annotation("capture"))
        self.pop_range()
