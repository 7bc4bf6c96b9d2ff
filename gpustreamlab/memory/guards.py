"""What one lane at a time may use: an engine's execution context, a workspace."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from gpustreamlab._util.defences import ProcessBound, delayed_interrupts, process_lock
from gpustreamlab._util.tasks import works_later
from gpustreamlab.errors import GPUStreamLabError, GuardClosedError, InvalidNameError, OptionError, SelectionError
from gpustreamlab.memory.lifetimes import Keeper, KeptStream, LaneSelection
from gpustreamlab.model import MAX_NAME_LENGTH

__all__ = ["Guard", "GuardedUse", "check_guard_name"]


WAIT_S = 0.000_2
"""How often a thread that waits for a guard looks again."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Guard(ProcessBound):
    """Lets one lane at a time use what two cannot: an execution context, a workspace. Made by `Memory.guard`.

    A use on another lane than the last one waits for that on the device; the host does not wait. A use by another thread waits
    until this thread's ``with`` block has ended, that is until its work is enqueued. The thing itself is never destroyed here:
    it is kept until its last work is done, also where the guard is forgotten.

    Parameters
    ----------
    keeper
        The session's.
    select
        Makes a selection of a lane, given the lane and the label of its range.
    resource
        What is guarded.
    name
        What it is called in messages and, where no label is given, on the timeline.

    Examples
    --------
    >>> from gpustreamlab import Session
    >>> with Session("sim") as lab:
    ...     lanes = lab.stream("a"), lab.stream("b")
    ...     workspace = lab.xp.zeros(8)
    ...     guard = lab.memory.guard(workspace, "workspace")
    ...     with guard.on("a"):
    ...         workspace += 1
    ...     with guard.on("b"):  # waits for "a", on the device
    ...         workspace *= 2
    ...     guard.close()
    ...     workspace.tolist()[0]
    2.0
    """

    def __init__(self, keeper: Keeper, select: Callable[[Any, str | None], LaneSelection], resource: object, name: str) -> None:
        self.name = name
        """What it is called."""
        self._keeper = keeper
        self._select = select
        self._resource = resource
        self._lock = process_lock()
        self._owner = 0  # the thread whose turn it is; 0 if it is nobody's
        self._uses: list[GuardedUse] = []  # that go on now, innermost last
        self._last: KeptStream | None = None
        self._done: Any = None  # behind the last use
        self._is_closed = False
        keeper.add_guard(self)

    def __repr__(self) -> str:
        if self._is_closed:
            return f"<Guard {self.name!r} closed>"
        uses = tuple(self._uses)
        if uses:
            thread = next((thread.name for thread in threading.enumerate() if thread.ident == self._owner), str(self._owner))
            return f"<Guard {self.name!r}, in use on {uses[-1].lane.name!r} by thread {thread!r}>"
        last = self._last
        return f"<Guard {self.name!r}, {'not used yet' if last is None else f'last used on {last.name!r}'}>"

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def resource(self) -> object:
        """What is guarded; None once it was let go."""
        return self._resource

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed

    def on(self, stream: object, label: str | None = None) -> GuardedUse:
        """Return a use on a lane, for a ``with`` block or to decorate a function; it selects the lane and gives it.

        Parameters
        ----------
        stream
            A lane, its name, or any object with ``__cuda_stream__``.
        label
            Name of the range; the guard's name if None.

        Raises
        ------
        GuardClosedError
            If the guard is closed.
        """
        self._require_open()
        chosen = label or self.name or None
        return GuardedUse(self, self._select(stream, chosen), chosen)

    def query(self) -> bool:
        """Tell whether the work of the last use has ended; True if there was none."""
        return self._done is None or bool(self._done.query())

    def close(self) -> None:
        """Wait for the work of the last use, and let go of what is guarded. Closing twice is silent.

        Raises
        ------
        SelectionError
            If this thread uses it just now.
        """
        if self._owner == threading.get_ident():
            raise SelectionError(f"Guard {self.name!r} cannot close inside `with guard.on(...)`. Leave the block first.")
        self._wait_for_turn()  # another thread may be in the middle of enqueuing
        self._is_closed = True
        self.give()
        if self._done is not None:
            self._done.synchronize()
        self.abandon()
        self._keeper.sweep()

    def abandon(self) -> None:
        """Let go without waiting: the work of all streams was waited for. Idempotent."""
        self._is_closed = True
        done, self._done = self._done, None
        self._resource = self._last = None
        if done is not None:
            done.close()

    def end_left_uses(self) -> None:
        """End the uses of this thread, which runs none of their blocks any more: an interrupt has left them."""
        if self._owner == threading.get_ident():
            while self._uses:
                self.end(self._uses.pop())
            self.give()

    def begin(self, use: GuardedUse) -> None:
        """Make a lane wait for the last use, or for what a block around this one has enqueued so far."""
        if self._uses:
            self._note_use(self._uses[-1].lane)
        if self._done is not None and self._last is not use.lane:
            use.lane.wait(self._done)
        self._uses.append(use)

    def end(self, use: GuardedUse) -> None:
        """Record an event behind what the lane holds; a block around this one on another lane goes on behind it."""
        lane = use.lane
        if self._is_closed:
            return  # closing the session waits for its work
        if lane.is_closed:
            with suppress(GPUStreamLabError):  # it is gone
                lane._backend_stream.synchronize()  # no event can be recorded there, and what came after its close still runs
            return
        self._note_use(lane)
        self._keeper.hold(lane, (self._resource,))
        if self._uses and self._uses[-1].lane is not lane:
            self._uses[-1].lane.wait(self._done)

    def leave(self, use: GuardedUse) -> bool:
        """Forget a use; tell whether it went on."""
        try:
            self._uses.remove(use)
        except ValueError:
            return False
        return True

    def take(self) -> None:
        """Wait until no other thread is inside a use."""
        self._wait_for_turn()
        if self._is_closed:
            self.give()
            self._require_open()

    def give(self) -> None:
        """Let the next thread in once no use goes on; a block may end in another thread than it began in."""
        if not self._uses:
            self._owner = 0

    def _wait_for_turn(self) -> None:
        mine = threading.get_ident()
        while True:
            # No lock that is waited for: an interrupt in the instant in which it is got would leave it locked.
            with delayed_interrupts(), self._lock:
                if self._owner in (0, mine):
                    self._owner = mine
                    return
            time.sleep(WAIT_S)

    def _note_use(self, lane: KeptStream) -> None:
        self._done = lane._record_order(self._done)
        self._last = lane

    def _require_open(self) -> None:
        if self._is_closed:
            raise GuardClosedError(
                f"Guard {self.name!r} is closed, or of the process that this one was forked from. "
                f"Make another with lab.memory.guard(resource, {self.name!r}) on an open session."
            )


class GuardedUse(ProcessBound):
    """One use of what a `Guard` guards: a ``with`` block, or each call of a function that it decorates."""

    __slots__ = ("_guard", "_label", "_selection", "lane")

    def __init__(self, guard: Guard, selection: LaneSelection, label: str | None) -> None:
        self._guard = guard
        self._selection = selection
        self.lane: KeptStream = selection.stream
        """The lane."""
        self._label = label

    def __repr__(self) -> str:
        return f"<Use of guard {self._guard.name!r} on {self.lane.name!r}, for a `with` block or a decorator>"

    def __call__(self, function: _Function) -> _Function:
        """Use what is guarded around each call of a function: ``@guard.on("decode")``."""
        _check_decorated(function, self.lane.name)

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            with self._guard.on(self.lane, self._label):
                return function(*args, **options)

        return cast(_Function, call)

    def __enter__(self) -> Any:
        guard = self._guard
        guard.take()
        with delayed_interrupts():  # another thread is locked out from here on
            try:
                guard.begin(self)  # before the range, which then holds no waiting
                return self._selection.__enter__()
            except BaseException:
                guard.leave(self)
                guard.give()
                raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with delayed_interrupts():
            is_in = self._guard.leave(self)
            try:
                if is_in:
                    self._end(error)
            finally:
                try:
                    self._selection.__exit__(kind, error, trace)
                finally:
                    if is_in:
                        self._guard.give()

    def _end(self, error: BaseException | None) -> None:
        try:
            self._guard.end(self)
        except GPUStreamLabError as failure:
            if error is None:
                raise
            error.add_note(f"The end of this use of {self._guard!r} could not be recorded: {failure}")


def check_guard_name(name: object) -> str:
    """Return the name of a guard, which is any short text; raise `InvalidNameError` otherwise."""
    if not isinstance(name, str):
        raise InvalidNameError(
            f"A guard's name is a str, not {type(name).__name__}. "
            f"Use for example lab.memory.guard(resource, {str(name)[:40]!r})."
        )
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidNameError(
            f"A guard's name has at most {MAX_NAME_LENGTH} characters; {name[:20]!r}… has {len(name):,}. Shorten it, and put "
            "the rest into a range's label: guard.on(lane, label)."
        )
    return name


def _check_decorated(function: object, lane_name: str) -> None:
    if isinstance(function, type) or not callable(function) or works_later(function):
        raise OptionError(
            f"guard.on(...) cannot decorate {function!r:.80}: it takes a function that enqueues and returns. In a coroutine or "
            f"generator, write `with guard.on({lane_name!r}):` around the calls that enqueue, with no await or yield in it."
        )
