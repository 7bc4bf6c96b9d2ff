"""Every session of this process that is not closed, for its end and for its children."""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

from gpustreamlab.session_closing import failure_of

__all__ = ["known_sessions"]

_log = logging.getLogger(__name__)


class KnownSession(Protocol):
    """What is done to a session from outside."""

    def close(self) -> None:
        """Release everything."""
        ...

    def _disown(self) -> None:
        """Give everything up without touching it."""
        ...


known_sessions: weakref.WeakSet[KnownSession] = weakref.WeakSet()
"""Those that are open."""


def _leave_to_the_parent() -> None:
    """Give up the sessions of the parent in a forked child: a CUDA context does not survive a fork."""
    for session in list(known_sessions):
        session._disown()  # noqa: SLF001 - what the registry is for
    known_sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


@atexit.register
def _close_open_sessions() -> None:
    """Close what is still open before the interpreter takes its modules apart."""
    for session in list(known_sessions):
        failure = failure_of(session.close)
        if failure is not None:
            _log.debug("A session could not be closed at exit: %s", failure)
