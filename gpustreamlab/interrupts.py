"""Hold back Ctrl-C for a few statements that must happen together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["delayed_interrupts"]


@contextmanager
def delayed_interrupts() -> Iterator[None]:
    """Keep an interrupt (Ctrl-C) until the end of the block, and then deliver it.

    For short blocks that change several objects and cannot wait for anything. Python interrupts the main thread only, so in
    other threads there is nothing to hold back.

    Examples
    --------
    >>> with delayed_interrupts():
    ...     pair = [1, 2]
    >>> pair
    [1, 2]
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    # From here on a signal only leaves a note, so that no line below can be interrupted.
    signal.signal(signal.SIGINT, lambda number, frame: held.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(*held[0])
