"""Streams selected per thread: nested, and restored on every exit."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from gpustreamlab._util import tasks
from gpustreamlab._util.defences import ProcessBound, delayed_interrupts, is_listed_only
from gpustreamlab._util.tasks import LoopWatch, loop_finder
from gpustreamlab.adapters import Adapters, Followers, adapters_table
from gpustreamlab.backends import Backend
from gpustreamlab.errors import AdapterWarning, DeviceError, SelectionError, SelectionWarning, SessionClosedError
from gpustreamlab.record import LaneWriter, Range, Recorder, ThreadState
from gpustreamlab.streams.stream import Stream, check_label

__all__ = ["Selection", "Selections"]

_log = logging.getLogger(__name__)


_NOTHING: Final = object()

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Selections:
    """What is selected in each thread of one session."""

    def __init__(self, backend: Backend, recorder: Recorder) -> None:
        self.backend = backend
        self.recorder = recorder
        self.local = recorder.local
        self.select, self.restore = backend.select, backend.restore
        self.followers: Followers | None = None  # libraries that follow, beside the backend's own
        self.module_count = -1  # how many modules were loaded as libraries were looked for
        if getattr(backend, "lends_streams", False):  # a backend of others may be older than this
            self.followers = Followers(backend.select, backend.restore, backend.device.ordinal)
        self.find_loop = loop_finder()
        self.is_closed = False
        tasks.note(self)

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        entered = self.entered()
        return entered[-1].stream if entered else None

    def require(self, what: str) -> Stream:
        """Return the stream selected in this thread; raise `SelectionError` where there is none."""
        stream = self.current
        if stream is None:
            raise SelectionError(
                f"A lane for {what} is needed, and none is selected in this thread. Use: with lab.on('name'): ..., or "
                "lab.stream('name').scratch(nbytes)."
            )
        return stream

    def entered(self) -> list[Selection]:
        """Return this thread's selections, innermost last."""
        return self.recorder.thread_state().selections

    @property
    def adapters(self) -> Adapters:
        """What each library does about a selected lane."""
        return adapters_table(self.followers)

    def look(self) -> None:
        """Take the libraries that were imported since the last time; from the first on, selections go through adapters."""
        self.find_loop = loop_finder()
        followers = self.followers
        if followers is None or self.is_closed:
            self.module_count = len(sys.modules)
            return
        untold = followers.look()
        if followers.active:
            self.select, self.restore = followers.select, followers.restore
        self.module_count = followers.module_count
        for text in untold:
            warnings.warn(text, AdapterWarning, stacklevel=3)

    def range(self, label: str) -> Range:
        """Return a range on the stream selected in this thread, to enter with ``with``."""
        state = self.recorder.thread_state()
        if state.writer is None:
            raise SelectionError(
                f"Range {label!r} needs a stream, and none is selected in this thread. Use: with lab.on('name', {label!r}): ..."
            )
        return state.writer.range(check_label(label))

    def close(self) -> None:
        """Close this thread's open ranges and put back what was selected before them; leaving one later is then silent."""
        self.is_closed = True
        tasks.forget(self)
        state = self.recorder.thread_state()
        while (opened := state.open_ranges[-1][3]) is not None:
            with suppress(DeviceError):  # closing the stream tells of a device that has failed
                opened.__exit__(None, None, None)
        try:
            if state.selections:
                state.selections[0].put_back()
        finally:
            if self.followers is not None:
                self.followers.close()

    def put_back_left(self) -> None:
        """Leave what this thread entered in blocks that an interrupt has left without their ends."""
        state = self.recorder.thread_state()
        entered = state.selections
        for place in range(len(entered) - 1, -1, -1):
            if is_listed_only(entered, place):
                entered[place].step_out(state, None)

    def disown(self) -> None:
        """Touch nothing any more, and be silent where a ``with`` block ends: in a forked child, all this is the parent's."""
        self.is_closed = True
        tasks.forget(self)
        state = getattr(self.local, "state", None)
        if state is None:
            return
        for lane in state.writers:
            lane.is_closed = True
        for selection in state.selections:
            selection.forgo()
        state.selections.clear()
        del state.open_ranges[1:]
        state.writer = None

    # What tasks ask for

    def depth(self) -> tasks.Depth:
        """Return how many selections this thread has entered, and how many ranges it has open."""
        try:
            state: ThreadState = self.local.state
        except AttributeError:
            return 0, 1
        return len(state.selections), len(state.open_ranges)

    def entered_ns(self, depth: tasks.Depth) -> int:
        """Return when this thread opened the first range above a depth."""
        opened = self.recorder.thread_state().open_ranges
        return opened[depth[1]][1] if len(opened) > depth[1] else 0

    def park(self, depth: tasks.Depth, into: list[tuple[int, tasks.Parked]]) -> BaseException | None:
        """Leave what this thread has entered above a depth, innermost first; see `gpustreamlab._util.tasks.Steerable.park`."""
        state = self.recorder.thread_state()
        failure: BaseException | None = None
        while (before := self.depth()) > depth or before[1] > depth[1]:
            try:
                self._park_top(state, depth, into)
            except BaseException as error:  # noqa: BLE001 - told by who called, after everything is left
                failure = failure or error
            if self.depth() == before:
                self.drop(depth)
                break
        return failure

    def drop(self, depth: tasks.Depth) -> None:
        """Put back what was selected at a depth, and complain if anything was entered above it."""
        entered = self.depth()
        if entered[0] <= depth[0] and entered[1] <= depth[1]:
            return
        state = self.recorder.thread_state()
        left = [entered.stream.name for entered in state.selections[depth[0] :]]
        if left:
            state.selections[depth[0]].put_back()
        self.recorder.count_failed(self.recorder.drop_open(state.open_ranges, depth[1]))
        _log.warning(
            "A task ended inside %s. Enter and leave with nested `with` blocks.",
            f"its selection of stream {left[-1]!r}" if left else "a range of its own",
        )

    def lower(self, place: int) -> None:
        """Note that this thread has left a range from below others; see `gpustreamlab._util.tasks.Steerable.lower`."""
        for selection in self.recorder.thread_state().selections:
            selection.lower(place)

    def inherited(self) -> tasks.Base | None:
        """Return what selects the lane of this thread once more, for a task that is made now; None if none is selected."""
        current = self.current
        return None if current is None else InheritedSelection(self, current, None)

    def _park_top(self, state: ThreadState, depth: tasks.Depth, into: list[tuple[int, tasks.Parked]]) -> None:
        entry = state.open_ranges[-1]
        top = state.selections[-1] if len(state.selections) > depth[0] else None
        if top is not None and top.is_innermost(state):
            into.append((entry[1], top))
            top.park()
        elif entry[3] is not None:
            into.append((entry[1], entry[3].set_aside()))
            entry[3].__exit__(None, None, None)


class Selection(ProcessBound):
    """A stream selected for one thread, with a range around it; made by `Session.on`, entered with ``with``.

    Every exit puts back what was selected before, an interrupt (Ctrl-C) too. One instant is beyond Python's reach: an
    interrupt between the last call of the block and the first instruction of ``__exit__``. The selection around it, if there
    is one, then puts everything back.

    An exit out of turn takes only itself away: what was entered later stays selected, and at its own end puts back what was
    before both. NVTX, which ends ranges by their number and not by their name, then shows the later one as ended.
    """

    __slots__ = (
        "_above",
        "_depth",
        "_inherited",
        "_is_taken",
        "_label",
        "_own_count",
        "_range",
        "_round_count",
        "_selections",
        "_state",
        "_token",
        "_watch",
        "stream",
    )

    def __init__(self, selections: Selections, stream: Stream, label: str | None) -> None:
        self._selections = selections
        self._label = label
        self._own_count = 0 if label is None else 1
        self.stream = stream
        """The selected stream."""
        self._state: ThreadState | None = None  # of the thread that entered it; None while it is not entered
        self._is_taken = False  # whether the selection around it was left first and took this one along
        self._inherited: tuple[object, ...] = ()  # tokens of those right below it that were left first, innermost first
        # Set as it is entered:
        self._token: object  # what the backend needs to put back the selection before this one
        self._above: LaneWriter | None  # writer of the lane selected before
        self._depth: int  # how many ranges were open in this thread before
        self._watch: LoopWatch | None  # of the event loop that runs in this thread
        self._round_count: int  # of the loop

    def __enter__(self) -> Stream:
        stream = self.stream
        if self._state is not None or stream.is_closed:
            self._refuse_to_enter()
        selections = self._selections
        recorder = selections.recorder
        try:
            state: ThreadState = selections.local.state
        except AttributeError:
            state = recorder.thread_state()
        place = stream._place
        try:
            writer = state.writers[place.recorded]
        except KeyError:
            writer = recorder.writer(place.recorded, state)
        if len(sys.modules) != selections.module_count:
            selections.look()
        self._watch = None
        if (find_loop := selections.find_loop) is not None and (loop := find_loop()) is not None:
            self._watch = watch = state.watch
            if watch.waits_in is not loop:
                watch.start(loop)
            self._round_count = watch.round_count
        # Last, since what is garbage may leave a selection in any call: from here to the next one nothing is allocated.
        self._token, self._above, self._depth = _NOTHING, state.writer, len(state.open_ranges)
        try:
            self._state = state
            state.selections.append(self)
            if stream._is_leaving or stream._place is not place:  # asked only now that who moves or closes it sees this one
                return self._enter_again(state)
            self._token = selections.select(place.backend_stream)
            state.writer = writer
            label = self._label
            if label is not None:
                self._range = entered = writer.ranges.get(label) or writer.range(label)
                entered.__enter__()
            return stream
        except BaseException:
            recorder.drop_open(state.open_ranges, self._depth)  # the block does not run, so nothing will be missing
            self.put_back()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state = self._state
        try:
            is_mine = state is not None and getattr(self._selections.local, "state", None) is state
            is_in_turn = True
            if state is not None and is_mine:
                # No `try` inside this one: CPython 3.11 can be interrupted, uncaught, where an inner one begins.
                if state.selections[-1] is self and len(state.open_ranges) == self._depth + self._own_count:
                    if self._own_count:
                        self._range.__exit__(None, error, None)
                    # What `put_back` does, without what it asks: this is the hot path.
                    state.writer = self._above
                    self._selections.restore(self._token)
                    if self._inherited:
                        self._restore_inherited()
                    del state.selections[-1]
                    self._state = None
                    if self.stream.is_closed:
                        self.stream._close_left()
                else:
                    is_in_turn = self._leave_out_of_turn(state, error)
        except BaseException:
            # An interrupt may have stopped the putting back; doing it again changes nothing that is done.
            self.put_back()
            raise
        if not is_mine:
            self._refuse_to_leave(error)
        elif self._watch is not None and self._watch.round_count != self._round_count:
            self._tell_of_other_tasks(error)
        elif not is_in_turn:
            self._complain(
                error,
                "before one that was entered after it",
                f"; a generator keeps its selection to itself where @lab.on({self.stream.name!r}) decorates it",
            )

    def __repr__(self) -> str:
        label = "" if self._label is None else f", range {self._label!r}"
        how = "for a `with` block or a decorator" if self._state is None else "entered"
        return f"<Selection of stream {self.stream.name!r}{label}, {how}>"

    def __call__(self, function: _Function) -> _Function:
        """Select the stream around each call of a function: ``@lab.on("decode", "serve")``.

        Each call has a selection of its own, so that the function may be called from several threads at once and call itself.
        Coroutines, generators and asynchronous generators have the stream selected in each of their steps. Between the steps
        the thread has what it had, and what they have entered inside is left and entered again. Each step is a range.

        Parameters
        ----------
        function
            A function, coroutine function, generator function or asynchronous generator function.

        Raises
        ------
        OptionError
            If it is none of these.

        Examples
        --------
        >>> import asyncio
        >>> from gpustreamlab import Session
        >>> with Session("sim") as lab:
        ...     lab.stream("decode")
        ...     @lab.on("decode", "serve")
        ...     async def serve(x):
        ...         await asyncio.sleep(0)
        ...         return lab.current.name, (lab.xp.ones(x) * 2).get()
        ...     asyncio.run(serve(2))
        <Stream 'decode', priority 0, handle 0x3>
        ('decode', array([2., 2.]))
        """
        return tasks.steered_function(function, self._again)

    def is_innermost(self, state: ThreadState) -> bool:
        """Tell whether nothing was entered after it, if it is the last selection of its thread."""
        return len(state.open_ranges) <= self._depth + self._own_count

    def lower(self, place: int) -> None:
        """Note that a range was left at a place among the open ones, from below others."""
        if self._depth > place:
            self._depth -= 1

    def park(self) -> None:
        """Leave it until `resume`; what ends its block meanwhile is silent."""
        self._watch = None
        self._is_taken = True
        self.__exit__(None, None, None)

    def resume(self) -> None:
        """Enter it again."""
        self.__enter__()
        self._is_taken = False

    def abandon(self) -> None:
        """Be silent when its block ends, since it was not entered again."""
        self._is_taken = True

    def forgo(self) -> None:
        """Be left silently without putting anything back."""
        self._is_taken, self._state, self._inherited = True, None, ()

    def put_back(self) -> None:
        """Leave this selection and those entered after it, whose own exits are then silent. Nothing to do the second time."""
        state = self._state
        if state is None:
            return
        if len(state.open_ranges) > self._depth:
            self._drop_open(state, self._depth)
        state.writer = self._above
        self._take_along(state)
        try:
            self.restore_token()
        except Exception:
            self._forget(state)
            raise
        self._forget(state)

    def restore_token(self) -> None:
        """Let the backend and the libraries work on what they had before; nothing else."""
        try:
            if self._token is not _NOTHING:
                self._selections.restore(self._token)
        finally:
            if self._inherited:
                self._restore_inherited()

    def _restore_inherited(self) -> None:
        for token in self._inherited:
            self._selections.restore(token)
        self._inherited = ()

    def _refuse_to_enter(self) -> None:
        if self._state is not None:
            raise SelectionError(
                f"The selection of stream {self.stream.name!r} is entered already. "
                f"Make another with lab.on({self.stream.name!r})."
            )
        self.stream._require_open()

    def _enter_again(self, state: ThreadState) -> Stream:
        """Enter it when another thread has moved the stream; raise if that has closed it."""
        del state.selections[-1]
        self._state = None
        self.stream._wait_for_move()
        if self.stream.is_closed:
            self.stream._close_left()  # the close may have seen this selection
        return self.__enter__()

    def _again(self) -> Selection:
        if self._selections.is_closed:
            raise SessionClosedError(
                f"The session of stream {self.stream.name!r} is closed, or belongs to the process that this one was forked "
                "from. Decorate the function with the lab.on(...) of an open session."
            )
        return Selection(self._selections, self.stream, self._label)

    def _tell_of_other_tasks(self, error: BaseException | None) -> None:
        message = (
            f"The event loop ran other tasks while stream {self.stream.name!r} was selected here: their work may have gone to "
            f"it, or this task's to another. Decorate the coroutine with @lab.on({self.stream.name!r}), or call "
            "asyncio.get_running_loop().set_task_factory(gpustreamlab.task_factory) before the task is made."
        )
        with suppress(*(() if error is None else (SelectionWarning,))):  # a user's own error passes through unchanged
            warnings.warn(message, SelectionWarning, stacklevel=3)

    def _leave_out_of_turn(self, state: ThreadState, error: BaseException | None) -> bool:
        """Leave it where something was entered after it and not left; tell whether that was no selection."""
        entered = state.selections
        above = range(entered.index(self) + 1, len(entered))
        lost = [place for place in above if _is_lost(entered, place, error)]
        if len(lost) < len(above):
            for place in reversed(lost):
                entered[place].step_out(state, error)
            self.step_out(state, error)
            return False
        self._drop_open(state, self._depth + self._own_count)
        try:
            if self._own_count:
                self._range.__exit__(None, error, None)
        finally:
            self.put_back()
        return not above

    def step_out(self, state: ThreadState, error: BaseException | None) -> None:
        """Leave it and nothing else, from below others; the one above it will put back what this one would have."""
        entered = state.selections
        if entered[-1] is self:
            self.put_back()
            return
        with delayed_interrupts():
            place = entered.index(self)
            count = 0
            try:
                count = self._end_range_below(state, error)
            finally:
                heir: Selection = entered[place + 1]
                inherited = () if self._token is _NOTHING else (self._token,)
                heir._inherited = (*heir._inherited, *inherited, *self._inherited)
                heir._above = self._above
                for later in entered[place + 1 :]:
                    later._depth -= count
                tasks.lower(self._selections, (place, self._depth), (1, count))
                del entered[place]
                self._forget(state)

    def _end_range_below(self, state: ThreadState, error: BaseException | None) -> int:
        """End its range below those opened later; return 1, or 0 where something else has dropped it."""
        opened = state.open_ranges
        place = self._depth
        if not self._own_count or place >= len(opened) or opened[place][3] is not self._range:
            return 0
        self._range.end_below(opened, place, error)
        return 1

    def _drop_open(self, state: ThreadState, depth: int) -> None:
        """Drop and count ranges that an interrupt or wrong nesting left open."""
        if len(state.open_ranges) > depth:
            recorder = self._selections.recorder
            recorder.count_failed(recorder.drop_open(state.open_ranges, depth))

    def _take_along(self, state: ThreadState) -> None:
        """Put back those entered after this one: a library may have begun to follow with one of them."""
        entered = state.selections
        while self in entered and (taken := entered[-1]) is not self:
            try:
                taken.restore_token()
            except Exception:  # noqa: BLE001 - what is below it is put back all the same
                _log.warning("The selection of stream %r could not be put back.", taken.stream.name, exc_info=True)
            taken.forgo()
            del entered[-1]

    def _forget(self, state: ThreadState) -> None:
        entered = state.selections
        if entered and entered[-1] is self:
            del entered[-1]
        self._state = None
        self._inherited = ()
        if self.stream.is_closed:
            self.stream._close_left()

    def _refuse_to_leave(self, error: BaseException | None) -> None:
        if self._state is not None:
            self._complain(error, "in a thread that did not enter it")
        elif self._is_taken or self._selections.is_closed:
            self._is_taken = False
        else:
            self._complain(error, "twice, or before it was entered")

    def _complain(self, error: BaseException | None, how: str, hint: str = "") -> None:
        message = (
            f"The selection of stream {self.stream.name!r} was left {how}. Enter and leave with nested `with` blocks{hint}."
        )
        if error is None:
            raise SelectionError(message)
        _log.warning(message)


class InheritedSelection(Selection):
    """The lane selected where a task was made, for that task, without a range."""

    __slots__ = ()

    def resume(self) -> None:
        """Enter it again, unless the stream was closed meanwhile: the task may have nothing to do with it."""
        if not self.stream.is_closed:
            super().resume()
            return
        self.abandon()
        if not self._selections.is_closed:
            warnings.warn(
                f"Stream {self.stream.name!r} was closed while a task that was made on it still runs. The task goes on with no "
                "stream selected. Close the stream when its tasks have ended, or select another inside the task.",
                SelectionWarning,
                stacklevel=2,
            )


def _is_lost(entered: list[Selection], place: int, error: BaseException | None) -> bool:
    """Tell whether the block of a selection has ended without leaving it: by an interrupt in the instant beyond reach."""
    if isinstance(error, KeyboardInterrupt) or is_listed_only(entered, place):
        return True
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            frame, trace = trace.tb_frame, trace.tb_next
            if frame.f_code is Selection.__exit__.__code__ and frame.f_locals.get("self") is entered[place]:
                return True
        error = error.__context__
    return False
