"""Named ranges on a lane: an NVTX range, and two events on the stream where kernels do not tell when its work ran.

This is the hot path: well under a microsecond of Python beside the event records. A range holds no state of its own, so it
is made once for each name and used again; what is open stands on the thread's stack. Nothing here waits for the device.
"""

# What a range costs decides whether users name their work. One that is timed by the work in it takes 1.2 us of the host, one
# that records events 7.3 us, of which Python has the smaller part (3,000 empty blocks in a row, H200).
#
# Tried or weighed, and left:
# - `@contextmanager`: 1.6 us for an empty block; an object with `__enter__` and `__exit__` takes 0.5. So a range is such an
#   object, made once for each name, thread and lane. It has no state, or it could not be entered inside itself: what is open
#   stands on the thread's stack, as plain tuples, since a named tuple takes 0.3 us more.
# - Two events for every range. On more than 8 streams, which then share the queues of the hardware, events alone took the
#   overlap away: 32 streams with a kernel of 1 ms each took 2.8 times as long, with kernels recorded instead 1.13 times. An
#   event behind a copy waits, too, for copies of other streams, unless a fill of four bytes stands in between. So while
#   kernels are recorded a range puts nothing on its stream, and lasts as long as the work inside it.
# - Two stacks, one of selections and one of ranges. Each exit then had to find out what lay above it on the other one. Now
#   there is one, which holds both in the order of their entering.
# - Counting references, to find out whether a block had ended without its exit. An exit out of turn now takes its own entry
#   away, wherever that stands.
# - A note on the stack for what was left out of turn, so that no entry changes its place. Entries are found by their owners.
# - Letting another thread leave a range. Its rows would not be in the order of the stream any more, or need a lock. A range is
#   left in its own thread, so a `LaneWriter` takes none; what begins in one thread and ends in another is an `OpenRange`.
#
# Where NVTX stands in the order matters twice. Closing reads the host's clock before NVTX ends the range: what CUPTI records
# behind that marker was launched later. And the entry leaves the stack after NVTX has ended the range, so that an interrupt in
# between finds it still there: `_settle` keeps the range whole, or counts it as dropped.
#
# Numbers are given as ranges open, so a parent has a smaller number than what is in it, and the trace has its parents without
# a look at times.

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from gpustreamlab._util.defences import ProcessBound, delayed_interrupts
from gpustreamlab._util.tasks import LoopWatch
from gpustreamlab.errors import SelectionError, StickyDeviceError, StreamClosedError
from gpustreamlab.recorder._extents import NEVER
from gpustreamlab.recorder._tables import cut_text

if TYPE_CHECKING:
    from gpustreamlab.backends import BackendStream, ContextSpec
    from gpustreamlab.model import Lane, Partition
    from gpustreamlab.recorder._recorder import Recorder
    from gpustreamlab.recorder._tables import Threads

_log = logging.getLogger(__name__)


FinishedRange: TypeAlias = tuple[tuple[Any, Any], int, int, int, int, int]
"""A closed range whose device work may still run: its pair of events or `NO_EVENTS`, its name's code, when it was queued
(host ns), its number, its parent's number or -1, and when it was closed (host ns). A plain tuple: a named one takes 0.3 us."""

Entry: TypeAlias = tuple[tuple[Any, Any], int, int, Any]
"""An entry of a thread's stack: a `Range`, a selection or `STEP` stands last.

Of a range: its pair of events, when it was queued (host ns), and its number. What is no range has the time and the number of
the range below it, so that the parent of a range is the number of the entry below."""

NO_EVENTS: tuple[None, None] = (None, None)  # Stands for the events of a range that is timed by the work inside it

CAPTURED: tuple[None, Any] = (None, object())
"""Stands for the events of a range that is not recorded, since its stream captured a CUDA graph as it was opened."""

NOTHING_OPEN: Entry = (NO_EVENTS, 0, -1, None)  # What lies below the outermost entry, so that every range has one below it

STEP: Final = object()  # Stands on the stack below what one step of a task enters

COLLECT_EVERY = 4_096  # Closed ranges after which finished ones are collected in passing, so that their events are used again


@dataclass(slots=True, eq=False, kw_only=True)
class RecordedLane:
    """One stream in one place: on the whole card, or in one partition. A stream that moves gets another."""

    index: int  # Of the lane in a trace's table
    lane: Lane  # The stream as the timeline shows it while it works here
    stream: BackendStream  # The backend's stream there
    spec: ContextSpec | None  # What its green context is made of; None for the primary context
    part: Partition | None  # The partition that it works in; None for the whole card
    partition: int  # Code of that, or -1
    is_lent: bool  # True if others own the stream: it does not move
    is_closed: bool = False  # True once the stream is about to be destroyed: nothing can be recorded any more
    is_retired: bool = False
    """True once another one has taken its place; what is selected or waiting here still comes to its end."""
    last_number: int = -1  # Number of the range opened last, or -1
    incoming: list[int] = field(default_factory=list)  # Numbers of ranges that the next range of this lane waits for
    writers: list[LaneWriter | HandedOver] = field(default_factory=list)
    """One for each thread that has ranges here, and for each closed range that any thread could end."""
    started: weakref.WeakSet[OpenRange] = field(default_factory=weakref.WeakSet)
    """Ranges that any thread may end, and none has. Changed and read under the recorder's lock."""

    @property
    def name(self) -> str:
        """Of the stream."""
        return self.lane.name

    @property
    def is_selected(self) -> bool:
        """True if any thread has the stream selected, or a range open on it."""
        states = [writer.owner() for writer in tuple(self.writers)]
        return bool(self.started) or any(state is not None and state.uses(self.index) for state in states)

    @property
    def has_waiting(self) -> bool:
        """True if closed ranges wait for the device, or for records of their work."""
        return any(queue for queue, _ in self.queues())

    @property
    def is_idle(self) -> bool:
        """True if nothing of it is open, and nothing waits for the device."""
        # In this order: a range that is being left is open until it waits.
        return not self.is_selected and not self.has_waiting

    @property
    def is_spent(self) -> bool:
        """True if nothing more can come from here."""
        return self.is_closed or (self.is_retired and self.is_idle)

    def queues(self) -> list[tuple[tuple[FinishedRange, ...], int]]:
        """Return the closed ranges that wait: together what the stream ends in order, with its thread; -1 for any thread."""
        return [(tuple(writer.finished), writer.ident) for writer in tuple(self.writers)]

    def take_over(self, before: RecordedLane) -> None:
        """Go on where the same stream was before: with its waits, and the range that others wait for."""
        self.incoming, before.incoming = before.incoming, []
        self.last_number = before.last_number

    def close(self) -> None:
        """Refuse to record from now on: some drivers take the handle of a destroyed stream for the NULL stream."""
        self.is_closed = True

    def refuse(self) -> NoReturn:
        """Raise what a range on a closed stream raises."""
        raise StreamClosedError(
            f"Stream {self.name!r} is closed; it takes no ranges. "
            f"Make another with lab.stream({self.name!r}) on an open session."
        )


class ThreadState:
    """Open ranges and selections of one thread."""

    __slots__ = ("__weakref__", "cell_depth", "ident", "name", "stack", "thread", "watch", "writer", "writers")

    def __init__(self, threads: Threads) -> None:
        self.ident = threading.get_ident() & 0xFFFF_FFFF  # The thread as activities number it
        self.name = cut_text(threading.current_thread().name)  # Its name
        self.thread = threads.code(self.ident, self.name)  # Its code
        self.stack: list[Entry] = [NOTHING_OPEN]  # `NOTHING_OPEN`, then selections and ranges in the order of their entering
        self.cell_depth = 1  # How high the stack was as the notebook's cell began
        self.writer: LaneWriter | None = None  # Writer of the selected lane
        self.writers: dict[RecordedLane, LaneWriter] = {}  # Writers by lane
        self.watch = LoopWatch()
        """Tells whether an event loop ran other tasks meanwhile; kept for `gpustreamlab.streams.selection`."""

    @property
    def open_ranges(self) -> list[Entry]:
        """The open ranges, innermost last."""
        return [entry for entry in tuple(self.stack) if isinstance(entry[3], Range) and entry[0] is not CAPTURED]

    @property
    def top_number(self) -> int:
        """Number of the innermost open range, or -1."""
        return self.stack[-1][2]

    def open_number(self, lane: RecordedLane) -> int:
        """Return the number of the innermost range that is open on a stream, wherever it works, or -1."""
        return next((number for _, _, number, opened in reversed(self.open_ranges) if opened.lane.index == lane.index), -1)

    def uses(self, index: int) -> bool:
        """Tell whether a lane is selected, or a range is open on it."""
        owners = [entry[3] for entry in tuple(self.stack)]
        return any(owner.lane.index == index for owner in owners if hasattr(owner, "lane"))

    def place_of(self, owner: object) -> int:
        """Return where the innermost entry of an owner stands; 0 where there is none."""
        return next((place for place in range(len(self.stack) - 1, 0, -1) if self.stack[place][3] is owner), 0)

    def take_out(self, place: int) -> None:
        """Take an entry away from below others, which stay."""
        _, queued_host_ns, number, _ = self.stack[place - 1]
        del self.stack[place]
        self.cell_depth -= place < self.cell_depth
        for later, (events, _, _, owner) in enumerate(self.stack[place:], place):
            if isinstance(owner, Range):
                break
            self.stack[later] = (events, queued_host_ns, number, owner)


class LaneWriter:
    """One thread's way to one lane: since a thread closes its ranges in the stream's order, no lock is needed."""

    __slots__ = ("collect_at", "finished", "ident", "lane", "owner", "ranges", "record", "recorder", "stack", "thread")

    def __init__(self, recorder: Recorder, lane: RecordedLane, state: ThreadState, *, collect_at: int) -> None:
        self.recorder = recorder
        self.lane = lane
        self.record: Callable[[Any], object] = lane.stream.record_raw
        self.stack = state.stack
        self.thread, self.ident = state.thread, state.ident
        self.owner = weakref.ref(state)
        """The thread's state, which ends with the thread. Not the thread: Ctrl-C inside ``Thread.is_alive`` marks a running
        thread as stopped (seen with CPython 3.11)."""
        self.ranges: dict[str, Range] = {}  # Ranges made so far, by name
        self.finished: list[FinishedRange] = []  # Closed ranges in the order in which the stream ends them
        self.collect_at = collect_at  # How many closed ranges bring about the next collection in passing

    def range(self, name: str) -> Range:
        """Return the range of this name, to enter with ``with`` any number of times, inside itself too."""
        try:
            return self.ranges[name]
        except KeyError:
            return self.recorder.make_range(self, name)


class HandedOver:
    """Stands for a thread's writer where any thread could end a range, which is in no order with others of the stream."""

    __slots__ = ("finished", "thread")
    ident: Final = -1  # Of no thread

    def __init__(self, row: FinishedRange, thread: int) -> None:
        self.finished, self.thread = [row], thread

    def owner(self) -> None:
        """Tell that no thread's state is waited for."""


class Range:
    """A named range on a lane, for one thread, as a context manager.

    Opening and closing return at once. While kernels are recorded they put nothing on the stream: the work inside times
    the range. Else each enqueues an event. An exception inside passes through unchanged and the range
    is kept. An interrupt (Ctrl-C) while it opens or closes leaves no range open: it is kept whole, or counted as dropped.
    """

    __slots__ = ("_annotation", "_writer", "name", "name_code")

    def __init__(self, writer: LaneWriter, name: str, code: int, annotation: Any) -> None:
        self._writer = writer
        self.name = name  # As the user gave it
        self.name_code = code
        self._annotation = annotation

    @property
    def lane(self) -> RecordedLane:
        """The lane that it records on."""
        return self._writer.lane

    @property
    def is_listed(self) -> bool:
        """Whether it is the range that its writer returns for its name."""
        return self._writer.ranges.get(self.name) is self

    def __enter__(self) -> None:
        writer = self._writer
        recorder = writer.recorder
        now_ns = recorder.host_time_ns()
        if now_ns >= recorder.next_tick_ns:
            recorder.tick(now_ns)
        lane = writer.lane
        if lane.is_closed:
            lane.refuse()
        if recorder.captures and lane.stream.is_capturing:
            self._enter_captured(now_ns)
            return
        try:
            if recorder.is_timed_by_work:
                events = NO_EVENTS
            else:
                try:
                    events = recorder.pop_pair()
                except IndexError:
                    events = recorder.new_pair()
                writer.record(events[0])
        except Exception as error:
            recorder.count_failed(1)
            raise recorder.explain(error, self.name, lane) from error
        lane.last_number = number = next(recorder.numbers)
        entry = (events, now_ns, number, self)
        stack = writer.stack
        try:
            recorder.push_range(self._annotation)
            stack.append(entry)
            if lane.incoming:
                recorder.close_edges(lane, number)
        except BaseException:
            # The block does not run, so nothing will be missing: the range is not counted.
            if stack[-1] is entry:
                del stack[-1]
            recorder.pop_range()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        writer = self._writer
        recorder = writer.recorder
        # Before the NVTX range ends: what CUPTI records behind that marker was launched later.
        closed_ns = recorder.host_time_ns()
        stack = writer.stack
        if (stack[-1][3] is not self and not self._uncover(error)) or (
            (recorder.captures or stack[-1][0] is CAPTURED) and self._left_captured()
        ):
            return
        events, queued_host_ns, number, _ = entry = stack[-1]
        try:
            # No call stands before this one, so an interrupt comes after the NVTX range has ended.
            recorder.pop_range()
            if writer.lane.is_closed:
                writer.lane.refuse()
            if events is NO_EVENTS:
                if not recorder.is_timed_by_work:
                    events = recorder.new_end()
                elif error is not None:
                    recorder.look_for_loss(writer.record)
            if events[1] is not None:
                writer.record(events[1])
            finished = writer.finished
            finished.append((events, self.name_code, queued_host_ns, number, stack[-2][2], closed_ns))
            del stack[-1]
            if len(finished) >= writer.collect_at:
                writer.recorder.collect_in_passing(writer)
        except Exception as failure:  # noqa: BLE001 - raised again, unless the user's own error is on its way
            try:
                self._tell(failure, error)
            finally:
                self._settle(entry)
        except BaseException:
            self._settle(entry)
            raise

    def _enter_captured(self, now_ns: int) -> None:
        """Open it for other tools alone: its work runs at each launch of the graph, and its events would be part of that."""
        writer = self._writer
        entry = (CAPTURED, now_ns, writer.stack[-1][2], self)
        with delayed_interrupts():
            writer.recorder.push_range(self._annotation)
            writer.stack.append(entry)

    def _left_captured(self) -> bool:
        """Forget it where its stream captured a graph as it was opened, or does so by now; tell whether that is so."""
        writer = self._writer
        events = writer.stack[-1][0]
        if events is not CAPTURED and not writer.lane.stream.is_capturing:
            return False
        with delayed_interrupts():
            writer.recorder.pop_range()
            del writer.stack[-1]
            if events is not CAPTURED:
                writer.recorder.forget_events(events)
        return True

    def set_aside(self) -> Range:
        """Return what opens it again later, maybe in another thread; the writer does not return this object any more."""
        if self.is_listed:
            del self._writer.ranges[self.name]
        return self

    def abandon(self) -> None:
        """Do nothing, where it is not opened again: leaving a range that is not open is an error anyway."""

    def resume(self) -> None:
        """Open it again: for its thread and lane, or a stand-in where the task that opened it has moved."""
        writer = self._writer.recorder.thread_state().writer
        if writer is None or writer is self._writer:
            self.__enter__()
        else:
            StandInRange(writer, self).__enter__()

    def drop(self) -> None:
        """Forget it, as the innermost entry: its block may end later, and must then not end a range of the same name."""
        self.set_aside()
        del self._writer.stack[-1]
        self._writer.recorder.pop_range()

    def _uncover(self, error: BaseException | None) -> bool:
        """Leave it where others were entered after it and not left; tell whether it is the innermost one now.

        An exit out of turn takes only itself away, as where a generator that holds it is dropped inside a later block. What an
        interrupt has left open above it is dropped, and counted.
        """
        if self._left_stand_in(error):
            return False
        state = self._writer.recorder.thread_state()
        if self._writer.owner() is not state:
            self._refuse_to_leave(error, "in a thread that did not enter it")
            return False
        place = state.place_of(self)
        if not place:
            self._refuse_to_leave(error)
            return False
        later = [entry[3] for entry in state.stack[place + 1 :]]
        if isinstance(error, KeyboardInterrupt) and all(isinstance(opened, Range) for opened in later):
            for opened in reversed(later):
                opened.drop()
            self._writer.recorder.count_failed(len(later))
            return True
        self.end_below(state, place, error)
        return False

    def _left_stand_in(self, error: BaseException | None) -> bool:
        """Leave its stand-in where its task goes on; tell whether there was one."""
        innermost = self._writer.recorder.thread_state().stack[-1][3]
        if isinstance(innermost, StandInRange) and innermost.original is self:
            innermost.__exit__(None, error, None)
            return True
        return False

    def end_below(self, state: ThreadState, place: int, error: BaseException | None) -> None:
        """End it below those entered later, which stay; NVTX, which ends the last one, then shows a later one as ended."""
        writer, stack = self._writer, state.stack
        with delayed_interrupts():
            writer.stack = stack[: place + 1]  # a copy: other threads still see what this one has selected
            try:
                self.__exit__(None, error, None)
            finally:
                writer.stack = stack
                state.take_out(place)

    def _refuse_to_leave(self, error: BaseException | None, how: str = "twice, or after a range around it") -> None:
        lane = self._writer.lane
        if lane.is_closed:
            return
        message = (
            f"Range {self.name[:60]!r} on stream {lane.name!r} was left {how}; it is not in the trace. "
            "Enter and leave ranges with nested `with` blocks."
        )
        if error is None:
            raise SelectionError(message)
        _log.warning(message)

    def _settle(self, entry: Entry) -> None:
        """Leave no half a range where closing was cut off: it is kept already, or it counts as dropped."""
        writer = self._writer
        if writer.stack[-1] is entry:
            del writer.stack[-1]
            if not writer.finished or writer.finished[-1][3] != entry[2]:
                writer.recorder.count_failed(1)

    def _tell(self, failure: Exception, error: BaseException | None) -> None:
        lane = self._writer.lane
        if lane.is_closed:
            return  # closing a stream ends what is open on it
        mapped = self._writer.recorder.explain(failure, self.name, lane)
        if error is None:
            raise mapped from failure
        # The user's own exception matters more than a range that could not be closed after it.
        if not isinstance(mapped, StickyDeviceError):
            _log.warning("%s", mapped)
        elif not any(mapped.where in note for note in getattr(error, "__notes__", ())):
            error.add_note(str(mapped))


class StandInRange(Range):
    """A range that a task opened in another thread or lane, and goes on with here; leaving the original leaves this one."""

    __slots__ = ("original",)

    def __init__(self, writer: LaneWriter, original: Range) -> None:
        super().__init__(writer, original.name, original.name_code, original._annotation)  # noqa: SLF001 - of its base class
        self.original = original

    def set_aside(self) -> Range:
        """Return the original, which is opened again."""
        return self.original


class OpenRange(ProcessBound):
    """A range that any thread may end: for work that starts in one callback and ends in another.

    It is no parent of other ranges, since those follow the thread, and other tools do not see it; close it with `end`.
    """

    def __init__(self, recorder: Recorder, lane: RecordedLane, name: str) -> None:
        self._recorder = recorder
        if lane.is_closed:
            lane.refuse()
        self._lane = lane
        self._name = name
        state = recorder.thread_state()
        self._thread = state.thread
        opened_ns, (code, _) = recorder.host_time_ns(), recorder.prepare(name)
        self._is_ended = bool(recorder.captures) and lane.stream.is_capturing  # then it is not recorded
        events: tuple[Any, Any] = NO_EVENTS if recorder.is_timed_by_work or self._is_ended else recorder.new_pair()
        self._record(events[0])
        lane.last_number = number = next(recorder.numbers)
        self.row: FinishedRange = (events, code, opened_ns, number, state.top_number, NEVER)
        """What it is once it is closed, but for when that was."""
        with recorder.lock:
            if not self._is_ended:
                lane.started.add(self)

    def end(self) -> None:
        """Close the range behind the work enqueued so far. Idempotent; on a closed stream the range counts as dropped."""
        if self._is_ended:
            return
        self._is_ended = True
        recorder = self._recorder
        try:
            if self._lane.is_closed:
                recorder.count_failed(1)
                return
            events, code, opened_ns, number, parent, _ = self.row
            if recorder.captures and self._lane.stream.is_capturing:
                recorder.forget_events(events)
                return
            if events is NO_EVENTS and not recorder.is_timed_by_work:
                events = recorder.new_end()
            self._record(events[1])
            row = (events, code, opened_ns, number, parent, recorder.host_time_ns())
            with recorder.lock:
                recorder.in_flight.hand_over(self._lane, row, self._thread)
        finally:
            with recorder.lock:  # at the end: until it waits, records of its work are laid against it as open
                self._lane.started.discard(self)

    def _record(self, event: Any) -> None:
        if event is None:
            return
        try:
            self._lane.stream.record_raw(event)
        except Exception as error:
            self._recorder.count_failed(1)
            raise self._recorder.explain(error, self._name, self._lane) from error
