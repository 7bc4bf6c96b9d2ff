"""Against Ctrl-C at the wrong instant, forked children, and copies of what one process owns."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import NoReturn, SupportsIndex
from weakref import WeakSet


class delayed_interrupts:  # noqa: N801 - used as a function
    """Keep an interrupt (Ctrl-C) until the end of the ``with`` block, and then deliver it.

    For blocks that change several objects which belong together, and for one call of a driver whose result must not be lost.
    Python interrupts the main thread only, so in other threads there is nothing to hold back.
    """

    __slots__ = ("_handler", "_is_due")

    def __enter__(self) -> None:
        self._is_due = False
        handler = signal.getsignal(signal.SIGINT)
        is_main = threading.current_thread() is threading.main_thread()
        self._handler = handler if is_main and callable(handler) else None
        if self._handler is not None:
            # From here on a signal only leaves a note, so that nothing in the block can be interrupted.
            signal.signal(signal.SIGINT, self._hold)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        handler = self._handler
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
            if self._is_due:
                signal.raise_signal(signal.SIGINT)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        # The frame is not kept: one of this class, or below it, would refer to itself, and keep what the block used from being
        # freed until the next garbage collection.
        self._is_due = True


LEFT_TO_PARENT = "belongs to the process that this one was forked from"  # Why a forked child's copy of it takes no work


class HomeProcess:
    """The process that made something: a forked child leaves that alone."""

    __slots__ = ("_number",)

    def __init__(self) -> None:
        self._number = os.getpid()

    @property
    def is_another(self) -> bool:
        """Whether this is a forked child of it."""
        return os.getpid() != self._number


def process_lock() -> threading.RLock:
    """Return a lock that is free in a forked child, where a thread that is not there may have held it.

    Re-entrant: a finaliser or a signal handler may come in the middle of what it guards.
    """
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def in_forked_child(call: Callable[[], object]) -> None:
    """Call something in every forked child, once its locks are free."""
    _calls.append(call)


_locks: WeakSet[threading.RLock] = WeakSet()
_calls: list[Callable[[], object]] = []


def _begin_child() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # noqa: SLF001 - what the standard library's own locks are renewed by
    for call in _calls:
        call()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


class ProcessBound:
    """Refuses `pickle`, and `copy` where a class has no copy of its own: a twin would be a second owner of the same thing."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            f"This {type(self).__name__} belongs to the process that made it, and cannot be pickled or copied. "
            "Send names, numbers and host copies of arrays, array.get(), and make a session there."
        )
