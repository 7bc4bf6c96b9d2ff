"""The thread that made a widget, to go back to for what touches the device."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable


class HomeThread:
    """The thread, and the event loop, in which this was made: in a notebook, those that run the cells.

    JupyterLab may pass messages of widgets on a subshell, a thread of its own, while a cell runs. Work for the device is then
    handed back to the cells' thread, where it waits for the running cell.
    """

    def __init__(self) -> None:
        self._thread_id = threading.get_ident()
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None

    @property
    def has_loop(self) -> bool:
        """True in a notebook: the thread has an event loop that is not closed."""
        return self._loop is not None and not self._loop.is_closed()

    def run(self, call: Callable[[], None]) -> None:
        """Call a function in this thread: at once if it is the current one or has no event loop, else as soon as it is free."""
        if self._loop is None or self._loop.is_closed() or threading.get_ident() == self._thread_id:
            call()
        else:
            self._loop.call_soon_threadsafe(_run_interruptibly, call)


def _run_interruptibly(call: Callable[[], None]) -> None:
    """Call a function that Ctrl-C reaches: between cells, the kernel ignores it."""
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        call()
    finally:
        signal.signal(signal.SIGINT, before)
