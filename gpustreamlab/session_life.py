"""Where a session is in its life, and what may be done there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpustreamlab.errors import SessionClosedError
from gpustreamlab.locks import SessionLocks
from gpustreamlab.process_bound import LEFT_TO_PARENT
from gpustreamlab.recorder import Blame
from gpustreamlab.typing import SessionState

__all__ = ["SessionLife"]


class SessionLife:
    """Closed until `begin`: before everything is made, there is nothing to close.

    Parameters
    ----------
    locks
        The session's.
    blame
        Names the ranges where the device's context is lost.
    """

    __slots__ = ("_blame", "_locks", "_why_closed", "state")

    def __init__(self, locks: SessionLocks, blame: Blame) -> None:
        self._locks = locks
        self._blame = blame
        self._why_closed = "is closed"
        self.state = SessionState.CLOSED
        """Where it is."""

    def begin(self) -> None:
        """Take work from now on."""
        self.state = SessionState.OPEN

    def refuse_work(self) -> None:
        """Take no new work from now on: the session is being closed."""
        with self._locks.state:
            if self.state is SessionState.OPEN:
                self.state = SessionState.CLOSING

    def end(self) -> None:
        """Note that everything is released."""
        self.state = SessionState.CLOSED

    def leave_to_parent(self) -> None:
        """End in a forked child, where other threads' locks are never given back."""
        self._why_closed = LEFT_TO_PARENT
        self._locks.renew()
        self.state = SessionState.CLOSED

    def require_open(self, doing: str) -> None:
        """Raise `SessionClosedError`, with what the session cannot do, unless it is open."""
        if self.state is not SessionState.OPEN:
            # A child may have been forked in the middle of a change of what the trace is made from.
            trace = "Read its trace there." if self._why_closed is LEFT_TO_PARENT else "Its trace can still be read."
            raise SessionClosedError(
                f"This session {self._why_closed}; it cannot {doing}. {trace} Start another with gpustreamlab.Session()."
            )

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        """Hold the lock of the session's state, in a session that is open. Nobody waits for the device in here."""
        with self._locks.state, self._blame:
            self.require_open(doing)
            yield

    @contextmanager
    def moving(self, doing: str) -> Iterator[None]:
        """Hold the session's lock for moves, in a session that is open: it may have been closed while this thread waited."""
        with self._locks.moves, self._blame:
            self.require_open(doing)
            yield
