"""Streams selected per thread: nested, and restored on every exit."""

# This is the hot path: users select in their innermost loops. So `__enter__` and `__exit__` have each step written out, and
# call only what is rare. `put_back` does the same once more, for all other ends.
#
# Tried or weighed, and left:
# - `stream.use()` of CuPy. What it sets is lost when a `with stream` inside it ends (CuPy 14.2): work then ran on the NULL
#   stream, and no error said so. A selection enters the stream as `with` does.
# - A lock for selecting against moving and closing. It is on every path and in the way of every thread. Instead the selection
#   first stands on the thread's stack and then asks whether the stream is leaving; who moves or closes a stream says so first
#   and then looks who has it selected. At least one of the two sees the other. Without that order a thread worked in a place
#   that its stream had just left, in 1 of 45,000 turns of the soak, and a launch on a destroyed stream ends the process.
# - Being safe from Ctrl-C between any two instructions: by the order of lines that CPython 3.11 needs, by frames and reference
#   counts. Each was a trick of one interpreter. Now there is one plain guard. What a selection cannot catch, the one around it
#   puts back, or the end of the cell; a plain script that catches Ctrl-C in that instant keeps the stream selected.
# - Context variables for tasks. Nothing is called when a loop switches tasks, so what a C library has selected cannot follow.
#   Nor is asyncio patched. `@lab.on` drives the coroutine, and enters before each step what the task had entered. An `await`
#   inside a plain selection is found, not prevented: a callback in the loop has run by the end of the block.
# - Asking each library at each selection whether it is there. `sys.modules` has grown when one was imported, and only then are
#   adapters made; nothing is imported for them.
#
# An exit out of turn, as of a generator that is dropped inside a later block, takes only itself away. What it has found is put
# back by the next selection that was entered later, when that ends: to put it back at once would take its stream from it.

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Final, TypeVar

from gpustreamlab._util import tasks
from gpustreamlab._util.defences import ProcessBound, delayed_interrupts
from gpustreamlab._util.tasks import LoopWatch, loop_finder
from gpustreamlab.adapters import Adapters, Followers, adapters_table
from gpustreamlab.backends import Backend
from gpustreamlab.errors import AdapterWarning, DeviceError, SelectionError, SelectionWarning, SessionClosedError
from gpustreamlab.recorder import NO_EVENTS, STEP, LaneWriter, Range, RecordedLane, Recorder, ThreadState
from gpustreamlab.streams.stream import Stream, check_label

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
        if backend.lends_streams:
            self.followers = Followers(backend.select, backend.restore, backend.device.ordinal)
        self.find_loop = loop_finder()
        self.is_closed = False
        tasks.known[id(self)] = self

    @property
    def current(self) -> Stream | None:
        """The stream selected in this thread, or None."""
        entered = (entry[3] for entry in reversed(self.recorder.thread_state().stack))
        return next((selection.stream for selection in entered if isinstance(selection, Selection)), None)

    def require(self, what: str) -> Stream:
        """Return the stream selected in this thread; raise `SelectionError` where there is none."""
        stream = self.current
        if stream is None:
            raise SelectionError(
                f"A stream for {what} is needed, and none is selected in this thread. Use: with lab.on('name'): ..., or "
                "lab.stream('name').scratch(nbytes)."
            )
        return stream

    @property
    def adapters(self) -> Adapters:
        """What each library does about a selected stream."""
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
        tasks.known.pop(id(self), None)
        state = self.recorder.thread_state()
        stack = state.stack
        try:
            while len(stack) > 1:
                top = stack[-1]
                if isinstance(top[3], Range):
                    with suppress(DeviceError):  # closing the stream tells of a device that has failed
                        top[3].__exit__(None, None, None)
                if stack[-1] is top:
                    self.unwind(state, len(stack) - 1)
        finally:
            if self.followers is not None:
                self.followers.close()

    def begin_cell(self) -> None:
        """Note that what this thread has entered so far is of earlier cells."""
        state = self.recorder.thread_state()
        state.cell_depth = len(state.stack)

    def put_back_left(self) -> None:
        """Leave all that this thread has entered since the notebook's cell began; in a script, all that it has entered."""
        state = self.recorder.thread_state()
        self.unwind(state, state.cell_depth)

    @contextmanager
    def same_behind(self) -> Iterator[None]:
        """Leave, at the end of a ``with`` block, all that this thread has entered in it and not left."""
        state = self.recorder.thread_state()
        depth = len(state.stack)
        try:
            yield
        finally:
            self.unwind(state, depth, is_counted=False)

    def unwind(self, state: ThreadState, depth: int, *, is_counted: bool = True) -> None:
        """Leave what a thread has entered above a depth, innermost first; what ends its block later is silent."""
        failure: Exception | None = None
        stack = state.stack
        while len(stack) > depth:
            entered = (top := stack[-1])[3]
            if isinstance(entered, Range):
                entered.drop()
                self.recorder.count_failed(int(is_counted))
                continue
            try:
                if isinstance(entered, Selection):
                    entered.take_back(state)
            except Exception as error:  # noqa: BLE001 - raised below, when what is below it is put back
                failure = error
            if stack[-1] is top:
                del stack[-1]
            if isinstance(entered, Selection):
                entered.forgo()
        if failure is not None:
            raise failure

    # What tasks ask for

    def begin_step(self) -> None:
        """Note that this thread begins a step of a task."""
        stack = self.recorder.thread_state().stack
        below = stack[-1]
        stack.append((NO_EVENTS, below[1], below[2], STEP))

    def park(self, into: list[tasks.Parked]) -> BaseException | None:
        """Leave what this thread has entered in a step of a task, innermost first; return what failed."""
        state = self.recorder.thread_state()
        depth, failure = state.place_of(STEP) + 1, None
        while (height := len(state.stack)) > depth:
            try:
                self._park_top(state, into)
            except BaseException as error:  # noqa: BLE001 - told by who called, after everything is left
                failure = failure or error
            if len(state.stack) == height:
                self.unwind(state, height - 1)
        return failure

    def end_step(self) -> None:
        """Put back what was selected when the step began, and complain if anything entered in it was not left."""
        state = self.recorder.thread_state()
        stack, depth = state.stack, state.place_of(STEP) + 1
        left = [entry[3] for entry in stack[depth:] if isinstance(entry[3], (Range, Selection))]
        if left:
            lanes = [selection.stream.name for selection in left if isinstance(selection, Selection)]
            _log.warning(
                "A task ended inside %s. Enter and leave with nested `with` blocks.",
                f"its selection of stream {lanes[-1]!r}" if lanes else "a range of its own",
            )
        self.unwind(state, depth)
        if stack[-1][3] is STEP:
            del stack[-1]

    def _park_top(self, state: ThreadState, into: list[tasks.Parked]) -> None:
        top = state.stack[-1][3]
        below = state.stack[-2][3]
        if isinstance(below, Selection) and below.is_around(top):
            top = below
        if isinstance(top, Selection):
            into.append(top)
            top.park()
        elif isinstance(top, Range):
            into.append(top.set_aside())
            top.__exit__(None, None, None)


class Selection(ProcessBound):
    """A stream selected for one thread, with a range around it; made by `Session.on`, entered with ``with``.

    Every exit puts back what was selected before. An interrupt (Ctrl-C) before ``__exit__`` has begun to do so leaves it to
    the selection around it, through which that interrupt passes, or to the end of the cell: `Selections.put_back_left`.

    An exit out of turn takes only itself away: what was entered later stays selected, and what was before both is put back when
    the later one ends. NVTX, which ends ranges by their number and not by their name, then shows the later one as ended.
    """

    __slots__ = (
        "_above",
        "_inherited",
        "_is_taken",
        "_label",
        "_range",
        "_round_count",
        "_selections",
        "_size",
        "_state",
        "_token",
        "_watch",
        "stream",
    )

    def __init__(self, selections: Selections, stream: Stream, label: str | None) -> None:
        self._selections = selections
        self._label = label
        self._size = 1 if label is None else 2  # entries on the stack
        self.stream = stream
        """The selected stream."""
        self._state: ThreadState | None = None  # of the thread that entered it; None while it is not entered
        self._is_taken = False  # whether the selection around it was left first and took this one along
        # Set as it is entered:
        self._token: object  # what the backend needs to put back the selection before this one
        self._above: LaneWriter | None  # writer of the stream selected before
        self._inherited: tuple[object, ...]  # likewise for those below it that were left first
        self._watch: LoopWatch | None  # of the event loop that runs in this thread
        self._round_count: int  # of the loop

    def __enter__(self) -> Stream:
        stream = self.stream
        if self._state is not None or stream.is_closed:
            self._refuse_to_enter()
        selections = self._selections
        try:
            state: ThreadState = selections.local.state
        except AttributeError:
            state = selections.recorder.thread_state()
        lane = stream._recorded
        try:
            writer = state.writers[lane]
        except KeyError:
            writer = selections.recorder.writer(lane, state)
        if len(sys.modules) != selections.module_count:
            selections.look()
        self._watch = None
        if (find_loop := selections.find_loop) is not None and (loop := find_loop()) is not None:
            self._watch = watch = state.watch
            if watch.waits_in is not loop:
                watch.start(loop)
            self._round_count = watch.round_count
        stack = state.stack
        below = stack[-1]
        entry = (NO_EVENTS, below[1], below[2], self)
        self._token, self._above, self._inherited = _NOTHING, state.writer, ()
        try:
            self._state = state
            stack.append(entry)
            # Asked only now that who moves or closes it sees this one; garbage may have ended what was below.
            if stream._is_leaving or stream._recorded is not lane or stack[-2] is not below:
                return self._enter_again(state)
            self._token = selections.select(lane.stream)
            state.writer = writer
            label = self._label
            if label is not None:
                self._range = entered = writer.ranges.get(label) or writer.range(label)
                entered.__enter__()
            return stream
        except BaseException:
            self.put_back(is_counted=False)  # the block does not run, so nothing will be missing
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        state = self._state
        if getattr(self._selections.local, "state", None) is not state or state is None:
            self._refuse_to_leave(error)
            return
        try:
            stack = state.stack
            is_in_turn = stack[-self._size][3] is self
            if is_in_turn:
                if self._label is not None:
                    self._range.__exit__(None, error, None)
                # What `put_back` does, without what it asks: this is the hot path.
                state.writer = self._above
                self._selections.restore(self._token)
                del stack[-1]
                self._state = None
                if self._inherited:  # garbage may have left one just now
                    self._restore_inherited(state)
            else:
                is_in_turn = self._leave_out_of_turn(state, error)
        except BaseException:
            # Doing it again changes nothing that is done.
            self.put_back()
            raise
        if self._watch is not None and self._watch.round_count != self._round_count:
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
        """
        return tasks.steered_function(function, self._again)

    @property
    def lane(self) -> RecordedLane:
        """The stream that it selects."""
        return self.stream._recorded

    def is_around(self, entered: object) -> bool:
        """Tell whether a range is its own."""
        return self._label is not None and entered is self._range

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
        """Be left silently: who takes it away has put everything back."""
        self._is_taken, self._state = True, None

    def put_back(self, *, is_counted: bool = True) -> None:
        """Leave this selection and those entered after it, whose own exits are then silent. Nothing to do the second time."""
        state = self._state
        if state is None:
            return
        try:
            if place := state.place_of(self):
                self._selections.unwind(state, place, is_counted=is_counted)
        except Exception:
            self._forget()
            raise
        self._forget()

    def take_back(self, state: ThreadState) -> None:
        """Put back what it has found, as the innermost entry of its thread."""
        state.writer = self._above
        if self._token is not _NOTHING:
            self._selections.restore(self._token)
        self._restore_inherited(state)

    def _restore_inherited(self, state: ThreadState) -> None:
        tokens, self._inherited = self._inherited, ()
        for token in tokens:
            self._selections.restore(token)
        state.writer = self._above

    def _refuse_to_enter(self) -> None:
        if self._state is not None:
            raise SelectionError(
                f"The selection of stream {self.stream.name!r} is entered already. "
                f"Make another with lab.on({self.stream.name!r})."
            )
        self.stream._require_open()

    def _enter_again(self, state: ThreadState) -> Stream:
        """Enter it when another thread has moved the stream, or garbage held what was below; raise if it was closed."""
        self.take_back(state)  # of what was left meanwhile
        del state.stack[-1]
        self._state = None
        self.stream._wait_for_move()
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
            f"it, or this task's to another. Decorate the coroutine with @lab.on({self.stream.name!r})."
        )
        with suppress(*(() if error is None else (SelectionWarning,))):  # a user's own error passes through unchanged
            warnings.warn(message, SelectionWarning, stacklevel=3)

    def _leave_out_of_turn(self, state: ThreadState, error: BaseException | None) -> bool:
        """Leave it where something was entered after it and not left; tell whether that was no selection."""
        behind = state.place_of(self) + self._size
        later = [entry[3] for entry in state.stack[behind:]]
        is_below_others = any(isinstance(entered, Selection) for entered in later)
        if (is_below_others or STEP in later) and not isinstance(error, KeyboardInterrupt):
            self._leave_below(state, error)
            return not is_below_others
        self._selections.unwind(state, behind)
        try:
            if self._label is not None:
                self._range.__exit__(None, error, None)
        finally:
            self.put_back()
        return not is_below_others

    def _leave_below(self, state: ThreadState, error: BaseException | None) -> None:
        """Leave it and nothing else; what it has found is put back by the next one above it, or at once where none is."""
        place, stack = state.place_of(self), state.stack
        with delayed_interrupts():
            try:
                if self._label is not None and stack[place + 1][3] is self._range:
                    self._range.end_below(state, place + 1, error)
            finally:
                state.take_out(place)
                heir = next((entry[3] for entry in stack[place:] if isinstance(entry[3], Selection)), None)
                if heir is None:
                    self.take_back(state)
                else:
                    heir._above = self._above
                    heir._inherited += (self._token, *self._inherited)
                self._forget()

    def _forget(self) -> None:
        self._state, self._is_taken = None, False

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
