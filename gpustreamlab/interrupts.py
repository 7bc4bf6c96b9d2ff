"""Hold back Ctrl-C for a few statements that must happen together."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["delayed_interrupts"]


class delayed_interrupts:  # noqa: N801 - used as a function
    """Keep an interrupt (Ctrl-C) until the end of the ``with`` block, and then deliver it.

    For blocks that change several objects which belong together, and for one call of a driver whose result must not be lost.
    Python interrupts the main thread only, so in
    other threads there is nothing to hold back.

    Examples
    --------
    >>> with delayed_interrupts():
    ...     pair = [1, 2]
    >>> pair
    [1, 2]
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
