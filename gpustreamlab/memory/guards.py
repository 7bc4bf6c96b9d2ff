"""What one stream at a time may use: an engine's execution context, a workspace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from gpustreamlab._util.defences import ProcessBound, delayed_interrupts, process_lock
from gpustreamlab.errors import GPUStreamLabError, GuardClosedError, InvalidNameError, SelectionError
from gpustreamlab.memory.lifetimes import Keeper, KeptStream, LaneSelection
from gpustreamlab.model import MAX_NAME_LENGTH

__all__ = ["Guard", "GuardedUse"]


WAIT_S = 0.000_2  # How often a thread that waits for a guard looks again


class Guard(ProcessBound):
    """Lets one stream at a time use what two cannot: an execution context, a workspace. Made by `Memory.guard`.

    A use on another stream than the last one waits for that on the device; the host does not wait. A use by another thread
    waits until this thread's ``with`` block has ended, that is until its work is enqueued. The thing itself is never destroyed
    here: it is kept until its last work is done, also where the guard is forgotten.

    Examples
    --------
    >>> from gpustreamlab import Session
    >>> with Session("sim") as lab:
    ...     streams = lab.stream("a"), lab.stream("b")
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

    def __init__(
        self, keeper: Keeper, select: Callable[[Any, str | None], LaneSelection], resource: object, name: object
    ) -> None:
        if not isinstance(name, str) or len(name) > MAX_NAME_LENGTH:
            raise InvalidNameError(
                f"A guard's name is a str of at most {MAX_NAME_LENGTH} characters, not {name!r:.40}. Use for example "
                "lab.memory.guard(resource, 'workspace'), and put the rest into a range's label: guard.on(stream, label)."
            )
        self.name: str = name
        """What it is called."""
        self.resource: object = resource
        """What is guarded; None once it was let go."""
        self.is_closed = False
        """True once `close` was called."""
        self._keeper = keeper
        self._select = select
        self._lock = process_lock()
        self._owner = 0  # the thread whose turn it is; 0 if it is nobody's
        self._uses: list[GuardedUse] = []  # that go on now, innermost last
        self._last: KeptStream | None = None
        self._done: Any = None  # behind the last use
        keeper.add_guard(self)

    def __repr__(self) -> str:
        uses, last = tuple(self._uses), self._last
        if self.is_closed:
            return f"<Guard {self.name!r} closed>"
        state = f"in use on {uses[-1].stream.name!r}" if uses else f"last used on {last.name!r}" if last else "not used yet"
        return f"<Guard {self.name!r}, {state}>"

    def __enter__(self) -> Self:
        self._require_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def on(self, stream: object, label: str | None = None) -> GuardedUse:
        """Return a use on a stream, for a ``with`` block; it selects the stream and gives it.

        Parameters
        ----------
        stream
            A stream, its name, or any object with ``__cuda_stream__``.
        label
            Name of the range; the guard's name if None.

        Raises
        ------
        GuardClosedError
            If the guard is closed.
        """
        self._require_open()
        chosen = label or self.name or None
        return GuardedUse(self, self._select(stream, chosen))

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
        self.is_closed = True
        self._give()
        if self._done is not None:
            self._done.synchronize()
        self.abandon()
        self._keeper.sweep()

    def abandon(self) -> None:
        """Let go without waiting: the work of all streams was waited for. Idempotent."""
        self.is_closed = True
        done, self._done = self._done, None
        self.resource = self._last = None
        if done is not None:
            done.close()

    def end_left_uses(self) -> None:
        """End the uses of this thread, which runs none of their blocks any more: an interrupt has left them."""
        if self._owner == threading.get_ident():
            while self._uses:
                self._end(self._uses.pop())
            self._give()

    def _begin(self, use: GuardedUse) -> Any:
        """Let a use begin, behind the last one, or behind what a block around it has enqueued so far."""
        self._wait_for_turn()
        if self.is_closed:
            self._give()
            self._require_open()
        with delayed_interrupts():  # another thread is locked out from here on
            try:
                if self._uses:
                    self._note_use(self._uses[-1].stream)
                if self._done is not None and self._last is not use.stream:
                    use.stream.wait(self._done)
                self._uses.append(use)
                return use.selection.__enter__()  # after the wait, which is no part of the range
            except BaseException:
                self._forget(use)
                self._give()
                raise

    def _leave(self, use: GuardedUse, error: BaseException | None) -> None:
        """Let a use end; one that `end_left_uses` has ended is only selected no more."""
        with delayed_interrupts():
            is_in = self._forget(use)
            try:
                if is_in:
                    self._end(use)
            except GPUStreamLabError as failure:
                if error is None:
                    raise
                error.add_note(f"The end of this use of {self!r} could not be recorded: {failure}")
            finally:
                try:
                    use.selection.__exit__(None if error is None else type(error), error, None)
                finally:
                    if is_in:
                        self._give()

    def _end(self, use: GuardedUse) -> None:
        """Record an event behind what the stream holds; a block around this one on another stream goes on behind it."""
        stream = use.stream
        if self.is_closed:
            return  # closing the session waits for its work
        if stream.is_closed:
            with suppress(GPUStreamLabError):  # it is gone
                stream._backend_stream.synchronize()  # no event can be recorded there, and what came after its close still runs
            return
        self._note_use(stream)
        self._keeper.hold(stream, (self.resource,))
        if self._uses and self._uses[-1].stream is not stream:
            self._uses[-1].stream.wait(self._done)

    def _forget(self, use: GuardedUse) -> bool:
        is_in = use in self._uses
        if is_in:
            self._uses.remove(use)
        return is_in

    def _give(self) -> None:
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

    def _note_use(self, stream: KeptStream) -> None:
        self._done = stream._record_order(self._done)
        self._last = stream

    def _require_open(self) -> None:
        if self.is_closed:
            raise GuardClosedError(
                f"Guard {self.name!r} is closed, or of the process that this one was forked from. "
                f"Make another with lab.memory.guard(resource, {self.name!r}) on an open session."
            )


class GuardedUse(ProcessBound):
    """One use of what a `Guard` guards: a ``with`` block."""

    __slots__ = ("_guard", "selection", "stream")

    def __init__(self, guard: Guard, selection: LaneSelection) -> None:
        self._guard = guard
        self.selection = selection
        """Selects the stream."""
        self.stream: KeptStream = selection.stream
        """The stream."""

    def __repr__(self) -> str:
        return f"<Use of guard {self._guard.name!r} on {self.stream.name!r}, for a `with` block>"

    def __enter__(self) -> Any:
        return self._guard._begin(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._guard._leave(self, error)
