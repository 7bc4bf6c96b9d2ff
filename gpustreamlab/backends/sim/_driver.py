"""The host's side of the simulated device: what a CUDA driver does between a call and the hardware."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from gpustreamlab._util.defences import LEFT_TO_PARENT, delayed_interrupts, in_forked_child, process_lock
from gpustreamlab.backends._activity import CallClass
from gpustreamlab.backends.sim._memory import MemoryPool
from gpustreamlab.backends.sim._preset import DevicePreset
from gpustreamlab.errors import (
    EventNotRecordedError,
    GraphCaptureError,
    InvalidHandleError,
    OptionError,
    SessionClosedError,
    SessionError,
    StreamClosedError,
)
from gpustreamlab.schedule._commands import (
    DEVICE_TO_HOST,
    CopyRun,
    CopySpec,
    HostClock,
    KernelSpec,
    Mark,
    SimEvent,
    StreamQueue,
    Wait,
)
from gpustreamlab.schedule._scheduler import Scheduler
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpustreamlab.backends.sim._source import Collecting, SimActivitySource
    from gpustreamlab.backends.sim._stream import NodeWork, SimCapture
    from gpustreamlab.memory.hazards import AccessWatch

_NULL = 0
_FIRST_HANDLE = 3  # 0, 1 and 2 are CUDA's NULL, legacy and per-thread handles
_LAZY_COMMANDS = 4_096  # commands that may wait to be simulated
_LAUNCH_NAMES = {SpanKind.KERNEL: "cudaLaunchKernel", SpanKind.FILL: "cudaMemsetAsync"}


class SimDriver:
    """Charges each call to the host's clock, hands work to the scheduler, and waits for it.

    Every method may be called from any thread. Virtual time depends on the order of calls, so a program that submits from
    several threads is as deterministic as their order.
    """

    def __init__(self, preset: DevicePreset, *, beside: SimDriver | None = None) -> None:
        self.preset = preset
        self.lock: threading.RLock = process_lock() if beside is None else beside.lock
        self.is_closed = False
        self._why_closed = "was closed, with its session, before this call"
        self.clock: HostClock = HostClock() if beside is None else beside.clock
        self.scheduler = Scheduler(preset)
        if beside is not None:
            self.scheduler.cards = beside.scheduler.cards
            self.scheduler.cards.append(self.scheduler)
        self.null_stream = self.scheduler.add_stream(_NULL, preset.priority_range[0], None)
        self.streams: dict[int, StreamQueue] = {}
        """Streams by handle, without the NULL stream."""
        self.source: Collecting | None = None
        """Gets every call and what comes of it, while sources of activities collect."""
        self.claims: dict[int, WeakSet[SimActivitySource]] = {}
        """Which sources have a stream, by its number."""
        self.accesses: AccessWatch | None = None
        """Is told of every access to memory and of what orders them, while somebody watches."""
        self.captures: dict[StreamQueue, SimCapture] = {}
        """Streams that capture a graph, and into which."""
        self.take_graph_id = count(1).__next__
        """Returns the id of the next graph."""
        self.memory = MemoryPool(self)
        """Which stream's memory arrays hold."""
        self.take_call_number: Callable[[], int] = count(1).__next__ if beside is None else beside.take_call_number
        """Returns the number of the next call that is told of."""
        self._context_sms = [preset.sm_count]
        self.unselected_work = 0
        """Kernels, copies and fills that went to the NULL stream and that nobody was told of."""
        # No stream of one card has the handle of a stream of another: records name them by it.
        self._take_handle: Callable[[], int] = count(_FIRST_HANDLE).__next__ if beside is None else beside._take_handle  # noqa: SLF001
        self._lazy_left = _LAZY_COMMANDS
        self._thread = threading.local()
        self.cards: list[SimDriver] = [] if beside is None else beside.cards
        """The drivers of all cards of the host, by their numbers."""
        self.ordinal = len(self.cards)
        """The number of the card on its host."""
        self.cards.append(self)
        _drivers.add(self)

    # Streams

    def create_stream(self, priority: int, sm_ids: frozenset[int] | None, *, context: int = 0) -> StreamQueue:
        """Make a stream."""
        with self.lock:
            self.check_open()
            low, high = self.preset.priority_range
            if not high <= priority <= low:
                raise OptionError(
                    f"A simulated stream was given priority {priority}; this device takes {low} (lowest) to {high} (highest). "
                    f"Use priority={min(max(priority, high), low)}."
                )
            began_ns = self.clock.now_ns
            self._charge(self.preset.host.create_stream_ns)
            self._note_creation("cuGreenCtxStreamCreate" if context else "cudaStreamCreateWithPriority", began_ns)
            self._catch_up()
            with delayed_interrupts():  # the SMs are cut and the stream is known, or nothing of it
                handle = self._take_handle()
                stream = self.scheduler.add_stream(handle, priority, sm_ids)
                stream.context = context
                self.streams[handle] = stream
            return stream

    def destroy_stream(self, stream: StreamQueue) -> None:
        """Destroy a stream; the work that it holds still runs."""
        with delayed_interrupts(), self.lock:
            if self.streams.pop(stream.number, None) is None:
                return
            if stream in self.captures:
                self.captures.pop(stream).refuse(f"Destroying stream {stream.number}", "Close it after the capture.")
            self.scheduler.remove_stream(stream)
            stream.spare.clear()
            if self.accesses is not None:
                self.accesses.close_stream(stream.number)

    @property
    def context_count(self) -> int:
        """Green contexts that were ever made."""
        return len(self._context_sms) - 1

    def context_sms(self, context: int) -> int:
        """Return how many SMs a context has, also one that was destroyed; all of them for one that is not known."""
        return self._context_sms[context if 0 <= context < len(self._context_sms) else 0]

    def create_context(self, sm_count: int) -> int:
        """Spend what a green context of so many SMs costs, and return its number."""
        with self.lock:
            self.check_open()
            began_ns = self.clock.now_ns
            self._charge(self.preset.host.create_context_ns)
            self._note_creation("cuGreenCtxCreate", began_ns)
            self._context_sms.append(sm_count)
            return self.context_count

    def destroy_context(self) -> None:
        """Spend what destroying a green context costs."""
        with self.lock:
            if not self.is_closed:
                self._charge(self.preset.host.destroy_context_ns)

    # Enqueue

    def launch(self, stream: StreamQueue, spec: KernelSpec, work: NodeWork | None = None) -> None:
        """Launch a kernel or a fill, or capture it, with what it computes."""
        with self.lock:
            if self._is_captured(stream, spec, self.preset.host.launch_ns, work):
                return
            began_ns = self.clock.now_ns
            now_ns = self._enter(stream, self.preset.host.launch_ns)
            number, source = 0, self.source
            if source is not None:
                name = "cudaLaunchCooperativeKernel" if spec.is_cooperative else _LAUNCH_NAMES[spec.kind]
                number = source.note_call(name, CallClass.LAUNCH, began_ns, now_ns)
                if work is not None:
                    source.note_accesses(number, self.memory.find_accesses(work))
            elif stream is self.null_stream:
                self.unselected_work += 1
            self.scheduler.submit_kernel(stream, spec, now_ns, number, source)

    def enter_graph(self, stream: StreamQueue, node_count: int) -> tuple[int, int, Collecting | None]:
        """Do what comes before the launch of a graph; return its time, its number and whom to tell of the nodes' ends."""
        began_ns, host = self.clock.now_ns, self.preset.host
        now_ns = self._enter(stream, host.graph_launch_ns + node_count * host.graph_node_ns)
        source = self.source
        number = 0 if source is None else source.note_call("cudaGraphLaunch", CallClass.LAUNCH, began_ns, now_ns)
        self.unselected_work += node_count * (source is None and stream is self.null_stream)
        return now_ns, number, source

    def note_accesses(
        self,
        stream: StreamQueue,
        name: str,
        reads: Sequence[NDArray[Any]],
        writes: Sequence[NDArray[Any]],
        some: NDArray[Any] | None = None,
    ) -> None:
        """Tell who watches what work of a stream is about to read and to write; of `some` only some elements are meant."""
        sink = self.accesses
        if sink is None or not (reads or writes):
            return
        with self.lock:
            find = self.memory.find_touches
            sink.work(stream.number, name, find(reads, some), find(writes, some))
            for piece, lender in self.memory.find_ended((*reads, *writes)):
                sink.ended(stream.number, name, piece, lender)
        if sink.pending:
            sink.finish()

    def copy(self, stream: StreamQueue, spec: CopySpec, work: NodeWork | None = None) -> None:
        """Enqueue a copy, or capture it; the host is blocked until it has ended where its memory is not page-locked."""
        with self.lock:
            if self._is_captured(stream, spec, self.preset.host.copy_ns, work):
                return
            began_ns = self.clock.now_ns
            now_ns = self._enter(stream, self.preset.host.copy_ns)
            source = self.source
            number = 0 if source is None else self.take_call_number()
            self.unselected_work += source is None and stream is self.null_stream
            if source is not None and work is not None:
                source.note_accesses(number, self.memory.find_accesses(work))
            self.scheduler.submit(stream, CopyRun(stream, spec, number, source), now_ns)
            try:
                if not spec.is_pinned:
                    self._block_until(lambda: not stream.is_busy)
                    if self.accesses is not None and spec.engine == DEVICE_TO_HOST:
                        # A copy to the device may return once its source was read: CuPy stages it. Not an order to build on.
                        self.accesses.host_wait_stream(stream.number)
            finally:
                if source is not None:
                    source.note_call("cudaMemcpyAsync", CallClass.LAUNCH, began_ns, self.clock.now_ns, number=number)

    def record(self, stream: StreamQueue, event: SimEvent, *, is_noted: bool = True) -> None:
        """Record an event; what it held before is forgotten. One that nobody will wait for need not be noted."""
        with self.lock:
            if type(event) is not SimEvent:
                raise _refuse_event(event)
            mark = Mark()
            capture = self.captures.get(stream)
            if capture is not None:
                self._charge(self.preset.host.record_ns)
                mark.capture, mark.behind = capture, capture.tails(stream)
                event.mark = mark
                return
            now_ns = self._enter(stream, self.preset.host.record_ns)
            if self.source is not None:
                # As with CUPTI the call is numbered and not told of: each range makes two.
                mark.origin, mark.correlation = stream, self.take_call_number()
            self.scheduler.submit(stream, mark, now_ns)
            if is_noted and self.accesses is not None:
                mark.moment = self.accesses.record(stream.number)
            event.mark = mark  # last: nothing may wait for a mark that no stream will reach

    def wait(self, stream: StreamQueue, event: SimEvent) -> None:
        """Make later work of a stream wait for the event as it is recorded now. Without a record nothing waits, as in CUDA."""
        with self.lock:
            if type(event) is not SimEvent:
                raise _refuse_event(event)
            began_ns, mark = self.clock.now_ns, event.mark
            if self._joins_capture(stream, mark):
                return
            now_ns = self._enter(stream, self.preset.host.wait_ns)
            if self.source is not None:
                number = self.source.note_call("cudaStreamWaitEvent", CallClass.EVENT, began_ns, now_ns)
                if mark is not None and mark.origin is not None and mark.origin is not stream:
                    self.source.note_dependency(mark.origin, mark.correlation, stream, number)
            if mark is not None and mark.time_ns < 0:
                self.scheduler.submit(stream, Wait(mark), now_ns)
            if mark is not None and self.accesses is not None:
                self.accesses.wait(stream.number, mark.moment)

    # Ask and wait

    def is_stream_idle(self, stream: StreamQueue) -> bool:
        """Tell whether a stream has no work left."""
        with self.lock:
            self.check_open()
            if stream in self.captures:
                raise self._refuse_waiting(self.captures[stream], f"Asking stream {stream.number} whether it is done")
            self._charge(self.preset.host.query_ns)
            self._catch_up()
            if self.accesses is not None and not stream.is_busy and not self._is_observing:
                self.accesses.host_wait_stream(stream.number)
            return not stream.is_busy

    def is_event_done(self, event: SimEvent) -> bool:
        """Tell whether an event was reached; one that was never recorded counts as reached, as in CUDA."""
        with self.lock:
            mark = self._read_mark(event)
            self._check_not_captured(mark, "Asking whether an event has happened")
            self._charge(self.preset.host.query_ns)
            if mark is None:
                return True
            if not 0 <= mark.time_ns < self.clock.now_ns:
                self._catch_up()
            if self.accesses is not None and mark.time_ns >= 0 and not self._is_observing:
                self.accesses.host_wait(mark.moment)
            return mark.time_ns >= 0

    def elapsed_ns(self, start: SimEvent, end: SimEvent) -> int:
        """Return the time between two events that were reached."""
        with self.lock:
            self._charge(self.preset.host.elapsed_ns)
            return self.time_of(end) - self.time_of(start)

    def time_of(self, event: SimEvent) -> int:
        """Return when an event was reached."""
        with self.lock:
            mark = self._read_mark(event)
            if mark is None:
                raise EventNotRecordedError(
                    "This event was never recorded, so it has no time. Record it on a stream first: stream.record(event)."
                )
            self._check_not_captured(mark, "Reading an event's time")
            if mark.time_ns < 0:
                self._catch_up()
            if mark.time_ns < 0:
                raise SessionError("The work in front of this event has not ended. Wait for it first: event.synchronize().")
            return mark.time_ns

    def synchronize_stream(self, stream: StreamQueue) -> None:
        """Block the host until a stream has no work left."""
        with self.lock:
            if stream in self.captures:
                raise self._refuse_waiting(self.captures[stream], f"Waiting for stream {stream.number}")
            self._synchronize("cudaStreamSynchronize", lambda: not stream.is_busy, stream)
            if self.accesses is not None:
                self.accesses.host_wait_stream(stream.number)

    def synchronize_event(self, event: SimEvent) -> None:
        """Block the host until an event is reached."""
        with self.lock:
            mark = self._read_mark(event)
            self._check_not_captured(mark, "Waiting for an event")
            self._synchronize("cudaEventSynchronize", lambda: mark is None or mark.time_ns >= 0, mark or Mark())
            if self.accesses is not None and mark is not None:
                self.accesses.host_wait(mark.moment)

    def synchronize(self) -> None:
        """Block the host until nothing runs."""
        with self.lock:
            for capture in {*self.captures.values()}:
                raise self._refuse_waiting(capture, "Waiting for the device")
            self._synchronize("cudaDeviceSynchronize", lambda: not self.scheduler.busy_count, None)
            if self.accesses is not None:
                self.accesses.host_wait_all()

    # Clock

    def read_clock(self) -> int:
        """Return the host's time; reading it takes a moment, so a loop that waits for a time ends."""
        with self.lock:
            self._charge(self.preset.host.clock_read_ns)
            return self.clock.now_ns

    def charge(self, duration_ns: int) -> None:
        """Let the host spend time."""
        with self.lock:
            self._charge(duration_ns)

    def rest(self) -> None:
        """Let all work end while the host does nothing. It is no call: nothing has waited for the work."""
        with self.lock:
            if not self.is_closed and not self.captures:
                self._catch_up()
                self.scheduler.run_until(lambda: not self.scheduler.busy_count, self.clock.jump_to)

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Make this thread's questions free of charge: a tool that looks on must not move the clock it looks at."""
        before = getattr(self._thread, "is_observing", False)
        self._thread.is_observing = True
        try:
            yield
        finally:
            self._thread.is_observing = before

    def catch_up(self) -> None:
        """Simulate what has happened by the host's present time; the clock does not move."""
        with self.lock:
            if not self.is_closed:
                self._catch_up()

    # Life

    def check_open(self) -> None:
        """Raise if the device was closed."""
        if self.is_closed:
            raise SessionClosedError(
                f"The simulated device {self._why_closed}. Open another session, and make arrays anew in it: "
                "lab = gpustreamlab.Session('sim')."
            )

    def close(self) -> None:
        """Let everything end, and refuse work from now on."""
        with self.lock:
            if not self.is_closed:
                for capture in {*self.captures.values()}:
                    capture.abandon()
                if not self.scheduler.is_stepping:  # else a step was cut off, and nothing can be waited for
                    self.synchronize()
                self.is_closed = True
                self.streams.clear()

    def leave_to_parent(self) -> None:
        """Refuse work in a forked child, as CUDA's driver does there; nothing is waited for."""
        self._why_closed = LEFT_TO_PARENT
        self.is_closed = True
        self.accesses = None
        self.streams.clear()

    # Graphs

    def _is_captured(self, stream: StreamQueue, spec: KernelSpec | CopySpec, cost_ns: int, work: NodeWork | None) -> bool:
        """Let a stream that captures take work as a node, and tell whether it does."""
        capture = self.captures.get(stream)
        if capture is None:
            return False
        if isinstance(spec, CopySpec) and not spec.is_pinned:
            raise capture.refuse(
                f"A copy of {spec.size_bytes:,} bytes from or to pageable host memory",
                "Use page-locked memory, lab.memory.pinned_empty(shape, dtype): array.set(pinned), or "
                "array.get(out=pinned, blocking=False).",
            )
        self.check_open()
        self._charge(cost_ns)
        capture.add(stream, spec, work)
        return True

    def _joins_capture(self, stream: StreamQueue, mark: Mark | None) -> bool:
        """Let a stream wait inside a capture, which it joins by that; tell whether this is such a wait."""
        capture = self.captures.get(stream)
        if mark is None or (capture is None and mark.capture is None):
            return False
        if mark.capture is None or mark.capture.is_over or capture not in {None, mark.capture}:
            waiting = capture or mark.capture
            assert waiting is not None  # noqa: S101 - for the type checker
            raise waiting.refuse(
                f"A wait of stream {stream.number} for an event of outside the capture that it is part of",
                "Let the stream that launches the graph wait for it before the launch.",
            )
        self._charge(self.preset.host.wait_ns)
        mark.capture.join(stream, mark.behind)
        return True

    def _check_not_captured(self, mark: Mark | None, call: str) -> None:
        if mark is not None and mark.capture is not None:
            raise self._refuse_waiting(mark.capture, call)

    def _refuse_waiting(self, capture: SimCapture, call: str) -> GraphCaptureError:
        return capture.refuse(call, "Do it before the capture, or after the graph's launch.")

    # Inside

    def _enter(self, stream: StreamQueue, cost_ns: int) -> int:
        """Do what comes before every enqueue, and return its time."""
        if self.is_closed or stream.is_closed:
            self.check_open()
            raise closed_stream(stream)
        if self.source is not None:
            self.memory.settle()
        limit = self.preset.queue_limit
        if len(stream.queue) >= limit:  # the host waits until there is room, as a full launch queue does on hardware
            self._catch_up()
            self.scheduler.run_until(lambda: len(stream.queue) < limit, self.clock.jump_to)
        self._lazy_left -= 1
        if self._lazy_left < 0:
            self._lazy_left = _LAZY_COMMANDS
            self._catch_up()
        self.clock.now_ns += cost_ns
        return self.clock.now_ns

    def _catch_up(self) -> None:
        self.scheduler.run_before(self.clock.now_ns)

    def _synchronize(self, name: str, is_reached: Callable[[], bool], awaited: StreamQueue | Mark | None) -> None:
        """Block the host in a call of its own; one that is interrupted is told of up to there.

        It waits for a stream, for an event as it was recorded, or (None) for the whole device.
        """
        with self.lock:
            self.check_open()
            if self.source is not None:
                self.memory.settle()
            began_ns = self.clock.now_ns
            try:
                self._block_until(is_reached)
            finally:
                if self.source is not None:
                    number = self.source.note_call(name, CallClass.SYNCHRONIZE, began_ns, self.clock.now_ns)
                    if not isinstance(awaited, Mark):
                        self.source.note_sync(awaited, number, number)
                    elif awaited.origin is not None:
                        self.source.note_sync(awaited.origin, awaited.correlation, number)

    def _note_creation(self, name: str, began_ns: int) -> None:
        if self.source is not None:
            self.source.note_call(name, CallClass.CREATE, began_ns, self.clock.now_ns)

    def instantiate(self, cost_ns: int) -> None:
        """Spend what it takes to make a graph that can be launched of what was captured."""
        with self.lock:
            began_ns = self.clock.now_ns
            self._charge(cost_ns)
            self._note_creation("cudaGraphInstantiate", began_ns)

    def _block_until(self, is_reached: Callable[[], bool]) -> None:
        """Let the clock go on until something is reached."""
        self._catch_up()
        self.scheduler.run_until(is_reached, self.clock.jump_to)
        self.clock.advance(self.preset.host.synchronize_ns)

    def _charge(self, duration_ns: int) -> None:
        if not self._is_observing:
            self.clock.now_ns += duration_ns

    @property
    def _is_observing(self) -> bool:
        """Whether this thread only looks on: what it sees done is not what the user's program waited for."""
        return getattr(self._thread, "is_observing", False)

    def _read_mark(self, event: SimEvent) -> Mark | None:
        self.check_open()
        if type(event) is not SimEvent:
            raise _refuse_event(event)
        return event.mark


def closed_stream(stream: StreamQueue) -> StreamClosedError:
    """Return the error for using a closed stream."""
    return StreamClosedError(
        f"Stream {stream.number} of the simulated device was closed before this call, and may still be selected here. "
        "Make it anew, then select it: lab.stream('name'), with lab.on('name'): ..."
    )


def _refuse_event(event: object) -> InvalidHandleError:
    return InvalidHandleError(
        f"The simulated device was given {type(event).__name__!r} as an event. It only knows its own: lab.event(), or "
        "lab.stream('name').record()."
    )


_drivers: WeakSet[SimDriver] = WeakSet()  # All of this process


def _leave_to_the_parent() -> None:
    for driver in list(_drivers):
        driver.leave_to_parent()
    _drivers.clear()


in_forked_child(_leave_to_the_parent)
