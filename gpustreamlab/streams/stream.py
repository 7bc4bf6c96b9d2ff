"""Streams and events of a session."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType, TracebackType
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, cast

from gpustreamlab import adapters
from gpustreamlab._util.arrays import find_arrays
from gpustreamlab._util.defences import LEFT_TO_PARENT, ProcessBound, delayed_interrupts, process_lock
from gpustreamlab._util.words import StandsElsewhere
from gpustreamlab.backends import Backend, BackendGraph, ContextSpec, GraphCapture, acquire_order_event, release_order_events
from gpustreamlab.errors import (
    EventClosedError,
    EventNotRecordedError,
    InvalidNameError,
    NotSimulatedError,
    OptionError,
    SelectionError,
    StreamClosedError,
)
from gpustreamlab.memory.lifetimes import Keeper
from gpustreamlab.memory.scratch import LaneScratch, Scratch, check_held
from gpustreamlab.model import Lane
from gpustreamlab.recorder import LossReport, RecordedLane, Recorder
from gpustreamlab.streams.life import SessionLocks, failure_of, raise_first

__all__ = ["Event", "Graph", "Stream"]

_log = logging.getLogger(__name__)

ArrayT = TypeVar("ArrayT")


class StreamParts(NamedTuple):
    """What all streams of one session stand on."""

    backend: Backend
    recorder: Recorder
    locks: SessionLocks
    keeper: Keeper


class Stream(ProcessBound, StandsElsewhere):
    """An ordered queue of device work, and a lane of the timeline. Made by `Session.stream`.

    Work enqueued in one stream runs in order; work of different streams may overlap. Every method returns at once, except
    `synchronize` and `close`. Any library that reads ``__cuda_stream__`` (CuPy, torch, cuda.core, ...) takes it as its own.

    A stream that moves to other SMs becomes another ``cudaStream_t``: ask for the handle when you need it. One that was given
    out before goes on working where it was, and stays valid until the stream is closed.
    """

    _guesses: ClassVar = {
        "stream.synchronize()": "sync",
        "stream.wait(event)": "wait_event wait_stream wait_for",
        "stream.record()": "record_event",
        "stream.query()": "is_done done",
        "stream.handle": "ptr cuda_stream",
        "lab.on(stream)": "run launch select",
        "lab.timeline()": "timeline",
    }

    def __init__(self, name: str, place: RecordedLane, parts: StreamParts) -> None:
        self.name = name
        """How the user calls it."""
        self.is_closed = False
        """True once `close` has begun."""
        self._is_leaving = False
        """True while it may go to other SMs, and once `close` has begun: who selects it now looks again afterwards."""
        self._why_closed = "is closed"
        self._backend, self._recorder, self._locks, self._keeper = parts
        # Held by who waits for the backend's streams and by who destroys them. Who has it takes no lock of the session but
        # that of the state.
        self._life = process_lock()
        self._wanted_partition: str | None = place.part.name if place.part else None
        """The partition that it goes to where the layout has one of this name."""
        self._places: dict[ContextSpec | None, RecordedLane] = {place.spec: place}
        """Where it works or worked, by what its green contexts are made of; None is the primary context."""
        self._scratch = LaneScratch(self, self._backend)
        self._work_in(place)

    def __enter__(self) -> NoReturn:
        raise SelectionError(f"A session selects its streams. Use: with lab.on({self.name!r}): ...")

    def __exit__(self, *failure: object) -> None:
        """Nothing: `with` looks for it before it enters."""

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        where = f", {self.sm_count} SMs of {self.partition}" if self.partition is not None else ""
        return f"<Stream {self.name!r}, priority {self.priority}{where}, handle {self.lane.stream:#x}{state}>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """Lend the stream to other libraries: protocol version 0 and the handle. Source: the CUDA Python stream protocol."""
        self._require_open()
        return (0, self._backend_stream.handle)

    @property
    def lane(self) -> Lane:
        """The lane of the timeline, as a value."""
        return self._recorded.lane

    @property
    def priority(self) -> int:
        """CUDA priority: lower numbers run first; 0 is the lowest priority."""
        return self.lane.priority

    @property
    def handle(self) -> int:
        """Address of the ``cudaStream_t``, or the stream's number on the simulated device; a closed stream has none.

        Raises
        ------
        StreamClosedError
            If the stream is closed.
        """
        self._require_open()
        return self.lane.stream

    @property
    def cupy(self) -> Any:
        """The stream as CuPy has it, a ``cupy.cuda.Stream``. Like all of these it is the stream as it is now, not its owner."""
        return self._as_of("cupy")

    @property
    def torch(self) -> Any:
        """The stream as torch has it, a ``torch.cuda.ExternalStream``."""
        return self._as_of("torch")

    @property
    def numba(self) -> Any:
        """The stream as Numba-CUDA has it, to name in ``kernel[grid, block, stream.numba]``."""
        return self._as_of("numba.cuda")

    @property
    def core(self) -> Any:
        """The stream as cuda.core has it, a ``cuda.core.Stream``, to pass to ``launch``."""
        return self._as_of("cuda.core")

    @property
    def partition(self) -> str | None:
        """Name of the partition that it works in; None for the whole card."""
        return self.lane.partition

    @property
    def sm_count(self) -> int:
        """How many SMs its kernels may run on: size a grid by this, not by the card."""
        return self.lane.sm_count

    @property
    def is_lent(self) -> bool:
        """True if another library owns the stream; it then decides on its SMs."""
        return self._recorded.is_lent

    def record(self, event: Event | None = None) -> Event:
        """Record an event behind the work enqueued so far.

        Parameters
        ----------
        event
            An event to record again; a new one if None.

        Raises
        ------
        StreamClosedError
            If the stream is closed.
        EventClosedError
            If the event is closed.
        """
        self._require_open()
        if event is None:
            event = Event(self._backend)
        elif not isinstance(event, Event):
            raise OptionError(
                f"Stream {self.name!r} cannot record a {type(event).__name__}. Pass an event of lab.event(), "
                "or nothing for a new one."
            )
        event.record(self)
        return event

    def wait(self, other: Event | Stream | str) -> None:
        """Make work enqueued from now on wait for an event, or for all that another stream, or the one of a name, holds now.

        Waiting for an event that was never recorded is nothing to wait for, as in CUDA.

        Raises
        ------
        StreamClosedError
            If either stream is closed.
        EventClosedError
            If the event is closed.
        StreamNotFoundError
            If no stream has the name.
        OptionError
            If `other` is none of these, or is of another simulated device.
        """
        self._require_open()
        if isinstance(other, str):
            other = cast(Stream, self._keeper.find(other))
        if isinstance(other, Stream):
            with other._record_order() as event:
                self.wait(event)
            return
        if not isinstance(other, Event):
            raise OptionError(
                f"Stream {self.name!r} cannot wait for {other!r:.40}. Pass an event of lab.stream(name).record(), a stream "
                "of the session, or its name."
            )
        other.make_wait(self)

    def graph(self) -> Graph:
        """Return a CUDA graph: a ``with`` block of it captures what is enqueued on this stream, and runs nothing.

        What the caller's variables hold stays as it was. Streams that wait for this one in the block are captured too, and have
        to be waited for at its end. Calls that wait for the device cannot be captured, nor can copies of ordinary memory.

        Raises
        ------
        StreamClosedError
            If the stream is closed.
        OptionError
            At the end of the block, if nothing was enqueued on the stream.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     x = lab.xp.ones(4)
        ...     with lab.stream("a").graph() as turn, lab.on("a"):
        ...         x *= 2
        ...     for _ in range(3):
        ...         turn.launch()
        ...     turn.close()
        ...     x.tolist()
        [8.0, 8.0, 8.0, 8.0]
        """
        self._require_open()
        return Graph(self, self._arrays_in(sys._getframe(1)))

    def _arrays_in(self, frame: FrameType) -> list[Any]:
        """Return the arrays that variables hold where code runs; none on a card, where a capture computes nothing."""
        names = {**frame.f_globals, **frame.f_locals} if self._backend.device.simulated else {}
        # Not a module's own ones: a __loader__ may lead to all that there is.
        return [array for name, value in names.items() if not name.startswith("__") for array in find_arrays(value)]

    def hold(self, *objects: object) -> None:
        """Keep objects alive until what is enqueued now is done: what the work reads and writes. Nothing waits.

        Of lists, dictionaries and objects with attributes, the arrays that are in them now are kept.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     stream = lab.stream("a")
        ...     with lab.on(stream):
        ...         spin(lab, 1_000_000)
        ...     stream.hold(lab.xp.zeros(8))
        ...     print(lab.memory.held_count)
        ...     stream.synchronize()
        ...     lab.memory.held_count
        1
        0
        """
        self._require_open()
        check_held(objects)
        self._keeper.hold(self, objects)

    def use(self, array: ArrayT, after: str | Event | Stream | None = None) -> ArrayT:
        """Use an array that another stream wrote: wait for that stream, and keep the memory until this one is done with it.

        The memory is kept until nobody refers to it any more, and then until what this stream holds at that moment is done,
        however early its last user drops it. Nothing waits on the host.

        Parameters
        ----------
        array
            An array of CuPy, torch or NumPy, or of the simulated device: all its views count. Of another library: the object.
        after
            What wrote it: a stream, its name, or an event. If None, the streams that are known to have written it.

        Returns
        -------
        object
            The array.

        Raises
        ------
        OptionError
            If what wrote the array is not known and not given.
        """
        check_held((array,))
        return self._keeper.use(self, array, after)

    def scratch(self, nbytes: int) -> Scratch:
        """Return device memory for work of this stream: from a pool of its own, in its order, without a wait.

        Parameters
        ----------
        nbytes
            How many bytes; 0 gives the smallest block.

        Returns
        -------
        Scratch
            To use in a ``with`` block, at whose end the stream may give the memory to its later work; or until `close`, or
            until it is garbage.

        Raises
        ------
        OptionError
            If it is no size.
        DeviceMemoryError
            If the device has no more.
        StreamClosedError
            If the stream is closed.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     stream = lab.stream("a")
        ...     with lab.on(stream), stream.scratch(1 << 20) as work:
        ...         work.array((512, 512), "float32")[:] = 1
        ...     lab.memory.statistics["a"].peak_bytes
        1048576
        """
        self._require_open()
        return Scratch(self._scratch, nbytes)

    def query(self) -> bool:
        """Tell whether all work enqueued so far has ended, without waiting for it."""
        self._require_open()
        with self._recorder.loss_report:
            return self._backend_stream.query()

    def synchronize(self) -> None:
        """Block the host until all work enqueued so far has ended."""
        self._require_open()
        with self._keeper.waiting(), self._recorder.loss_report:
            self._backend_stream.synchronize()

    def close(self) -> None:
        """Wait for the stream's work, keep its ranges, and destroy it if the session made it. Closing twice is silent.

        New work is refused from the beginning. A second thread that closes it waits until it is closed; nobody else waits.
        A range that is open on it cannot end any more: it is counted as dropped.
        """
        with self._locks.state:  # from here on it moves no more
            self.is_closed = self._is_leaving = True
        with self._life:
            if self._is_gone:
                return  # its name, and its place in every table, may be those of another stream by now
            failures = []
            while self._places:
                failures.append(failure_of(lambda: self._close_place(next(iter(self._places.values())))))
        raise_first(failures)

    @property
    def _is_gone(self) -> bool:
        """True once it is closed and nothing of it is left, so that its name can be used again."""
        return self.is_closed and not self._places

    def _drain(self) -> None:
        """Wait for its work where it works now; nothing to do where somebody closes it."""
        with self._life:
            if not self.is_closed:
                self._backend_stream.synchronize()

    @contextmanager
    def _staying(self) -> Iterator[bool]:
        """Keep it from being destroyed in a ``with`` block; tells whether it is still there."""
        with self._life:
            yield not self.is_closed

    def _wait_for_move(self) -> None:
        """Wait until no other thread is about to move it to other SMs, or to close it."""
        with self._locks.state:
            self._is_leaving = self.is_closed  # left by an interrupt, or this runs amid its own move

    def _disown(self) -> None:
        """Take no work any more, and touch nothing: in a forked child the stream is the parent's."""
        self.is_closed = self._is_leaving = True
        self._why_closed = LEFT_TO_PARENT
        self._scratch.is_closed = True
        for place in self._places.values():
            place.close()
        self._places.clear()  # they are not waited for, and not destroyed

    def _settle(self, place: RecordedLane) -> None:
        """Work there from now on. Nothing here waits: what the old place holds still runs there."""
        replaced = self._places.get(place.spec)
        if replaced is not None and replaced is not place:
            replaced.is_retired = True
        self._places[place.spec] = place
        if place is not self._recorded:
            place.take_over(self._recorded)
            self._work_in(place)

    def _work_in(self, place: RecordedLane) -> None:
        self._recorded = place
        """Where it works now, and what is recorded of it there."""
        with self._scratch.lock:
            self._backend_stream = place.stream
        self._recorder.show_lane(place)

    def _close_place(self, place: RecordedLane) -> None:
        # An interrupt of these comes through: work may still run there, so all stays as it is for the next call.
        failures = [failure_of(lambda: self._end_work(place))]
        # Before the stream goes: CuPy's pool takes memory back into the arena of its stream.
        is_last = len(self._places) == 1
        try:
            failures.append(failure_of(lambda: self._keeper.settle(self, place.stream, is_last=is_last)))
        finally:
            with delayed_interrupts():  # what is not destroyed stays known
                failures.append(failure_of(lambda: self._destroy(place)))
                self._places.pop(place.spec, None)  # at the very end: without it the stream counts as gone
        raise_first(failures)

    def _end_work(self, place: RecordedLane) -> None:
        for known in self._recorder.places_of(place):
            if known.stream is place.stream:
                known.close()  # before anything else, see there
        capture = self._backend.find_capture(place.stream) if self._recorder.captures else None
        if capture is not None:  # else it could not be waited for
            capture.abandon()
        place.stream.synchronize()
        self._recorder.collect(place)

    def _destroy(self, place: RecordedLane) -> None:
        is_kept = self._may_be_launched_on(place)
        free = partial(self._scratch.close, keeps_held=is_kept) if place is self._recorded else bool
        raise_first([failure_of(free), failure_of(bool if is_kept else place.stream.close)])
        if is_kept:
            _log.warning(
                "Stream %r was closed while a thread has it selected. What that thread enqueues there is not recorded; the "
                "stream and its scratch stay for that thread.",
                self.name,
            )

    def _may_be_launched_on(self, place: RecordedLane) -> bool:
        """Tell whether a library may still launch there: on a stream of another's, or of nobody, that may end the process."""
        return self._backend.lends_streams and any(known.is_selected for known in self._recorder.places_of(place))

    def _as_of(self, library: str) -> Any:
        self._require_open()
        if self._backend.device.simulated and not self._backend.lends_streams:
            raise NotSimulatedError(
                f"Stream {self.name!r} is of the simulated device, so no library can work on it. Use lab.on({self.name!r}) and "
                "lab.xp, or a GPU."
            )
        return adapters.view_of(library, self, self._backend.device.ordinal)

    def _record_order(self, event: Event | None = None) -> Event:
        """Do what `record` does, with an event that has no time: for what orders work."""
        self._require_open()
        made = Event(self._backend, has_time=False) if event is None else event
        made.record(self)
        return made

    @property
    def _loss_report(self) -> LossReport:
        """Names the ranges where the device's context is lost."""
        return self._recorder.loss_report

    def _require_open(self) -> None:
        """Raise `StreamClosedError` if the stream is closed."""
        if self.is_closed:
            raise StreamClosedError(
                f"Stream {self.name!r} {self._why_closed}. Make another with lab.stream({self.name!r}) on an open session."
            )


class Graph:
    """Work that was captured, and runs again with one call. Made by `Stream.graph`."""

    def __init__(self, stream: Stream, unchanged: Sequence[Any]) -> None:
        self._stream, self._unchanged = stream, unchanged
        self._capture: GraphCapture | None = None
        self._graph: BackendGraph | None = None

    def __repr__(self) -> str:
        return f"<Graph of stream {self._stream.name!r}, {f'{self.node_count} nodes' if self._graph else 'not captured'}>"

    def __enter__(self) -> Graph:
        self.close()
        unchanged = [*self._unchanged, *self._stream._arrays_in(sys._getframe(1))]  # what was bound since it was made, too
        self._capture = self._stream._backend.begin_graph(self._stream._backend_stream, unchanged)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        capture, self._capture, self._unchanged = self._capture, None, ()
        if capture is not None and error is None:
            self._graph = capture.instantiate()
            if not self.node_count:
                self.close()
                name = self._stream.name
                raise OptionError(
                    f"Nothing was enqueued on stream {name!r} in the block, so there is nothing to launch. Select it there: "
                    f"with lab.stream({name!r}).graph() as graph, lab.on({name!r}): ..."
                )
        elif capture is not None:
            capture.abandon()

    @property
    def node_count(self) -> int:
        """Kernels, copies and fills that one launch runs."""
        return self._captured.node_count

    def launch(self) -> None:
        """Run its work behind what the stream holds now; nothing waits for it.

        Raises
        ------
        OptionError
            If nothing was captured, or it is closed.
        StreamClosedError
            If the stream is closed.
        """
        self._stream._require_open()
        self._captured.launch(self._stream._backend_stream)

    def close(self) -> None:
        """Let go of it, and of what it keeps as soon as no launch is in flight. Idempotent."""
        if self._graph is not None:
            self._graph.close()
            self._graph = None

    @property
    def _captured(self) -> BackendGraph:
        if self._graph is None:
            raise OptionError("This graph holds no work. Capture some: with lab.stream(name).graph() as graph, then launch it.")
        return self._graph


class Event(ProcessBound, StandsElsewhere):
    """A point in a stream that others can wait for, and that has a time. Made by `Session.event` or `Stream.record`.

    An event means the work in front of it when it was last recorded. As a context manager it gives its device event back
    to the pool at the end.
    """

    _guesses: ClassVar = {"start.elapsed_ns(end)": "elapsed_time elapsed elapsed_ms", "stream.wait(event)": "wait"}

    def __init__(self, backend: Backend, *, has_time: bool = True) -> None:
        self._backend = backend
        self._has_time = has_time
        self._event: Any = backend.acquire_event() if has_time else acquire_order_event(backend)
        self._stream: Stream | None = None
        self._range_number = -1

    def __enter__(self) -> Event:
        self._require_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._event is None:
            return "<Event closed>"
        return f"<Event recorded on {self._stream.name!r}>" if self._stream else "<Event not recorded>"

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._event is None

    def record(self, stream: Stream) -> None:
        """Record behind the work that the stream holds now; an earlier recording is forgotten."""
        event = self._require_use_on(stream, "An event is recorded on")
        with stream._loss_report:
            stream._backend_stream.record(event)
        self._stream = stream
        self._range_number = stream._recorded.last_number

    def make_wait(self, stream: Stream) -> None:
        """Make a stream's later work wait for this event; what `Stream.wait` does."""
        event = self._require_use_on(stream, "An event makes wait")
        if self._stream is None:
            return
        with stream._loss_report:
            stream._backend_stream.wait(event)
        if stream is not self._stream:
            stream._recorder.add_edge(self._range_number, stream._recorded)  # for the timeline

    def query(self) -> bool:
        """Tell whether the work in front of the event has ended; True if it was never recorded, as in CUDA."""
        event = self._require_open()
        if self._stream is None:
            return True
        with self._stream._loss_report:
            return self._backend.is_event_done(event)

    def synchronize(self) -> None:
        """Block the host until the work in front of the event has ended."""
        event = self._require_open()
        if self._stream is not None:
            with self._stream._loss_report:
                self._backend.synchronize_event(event)

    def elapsed_ns(self, end: Event) -> int:
        """Return the device time from this event to a later one, in ns, waiting for both.

        The value is what the device's own event clock says, uncorrected: a float32 of milliseconds on CUDA, so it is
        coarser than 1 ns above 16 ms. Source: CUDA driver API, ``cuEventElapsedTime``.

        Raises
        ------
        EventNotRecordedError
            If either event was never recorded.
        EventClosedError
            If either event is closed.
        OptionError
            If `end` is no event, or is of another simulated device.
        """
        if not isinstance(end, Event):
            raise OptionError(f"The time to a {type(end).__name__} is not known. Pass an event of lab.stream(name).record().")
        if not share_a_clock(self._backend, end._backend):
            raise OptionError(
                "These events are of two sessions, and each simulated device has a clock of its own. Use events of one session."
            )
        for event in (self, end):
            event._require_open()
            if event._stream is None:
                raise EventNotRecordedError(
                    "Time between two events needs both recorded. Record them with stream.record(event) around the work."
                )
            event.synchronize()
        return self._backend.elapsed_ns(self._require_open(), end._require_open())

    def close(self) -> None:
        """Give the device event back to the pool. Closing twice is silent; work that waits for it still does."""
        event, self._event = self._event, None
        if event is not None and self._has_time:
            self._backend.release_events((event,))
        elif event is not None:
            release_order_events(self._backend, (event,))

    def _require_open(self) -> Any:
        if self._event is None:
            raise EventClosedError("This event is closed. Record a new one with lab.stream(name).record().")
        return self._event

    def _require_use_on(self, stream: object, what: str) -> Any:
        """Return the device event, to be used on a stream: both are open, and of one clock."""
        event = self._require_open()
        if not isinstance(stream, Stream):
            raise OptionError(f"{what} a stream of the session, not a {type(stream).__name__}. Use lab.stream('name').")
        stream._require_open()
        if not share_a_clock(stream._backend, self._backend):
            raise OptionError(
                f"This event and stream {stream.name!r} are of two sessions, and each simulated device has a clock of its own. "
                "Use streams and events of one session."
            )
        return event


def check_label(label: object) -> str:
    """Return the name of a range, which is any text; raise `InvalidNameError` for what is no text."""
    if not isinstance(label, str):
        example = "load" if label is None else str(label)[:40]
        raise InvalidNameError(f"A range's label is a str, not {type(label).__name__}. Pass a text, for example {example!r}.")
    return label


def check_priority(priority: object, priority_range: tuple[int, int]) -> int:
    """Return a priority that the device takes; raise `OptionError` otherwise."""
    lowest, highest = priority_range
    if isinstance(priority, bool) or not isinstance(priority, int) or not highest <= priority <= lowest:
        raise OptionError(
            f"Priority {priority!r} is outside what the device takes: a whole number from {highest} (runs first) to {lowest} "
            f"(the default). Use priority={highest} for the most urgent stream."
        )
    return priority


def share_a_clock(one: Backend, other: Backend) -> bool:
    """Tell whether two backends are one, or both of real devices, or of cards of one simulated host."""
    if one.device.simulated or other.device.simulated:
        return getattr(one, "host", one) is getattr(other, "host", other)
    return True
