"""Ctrl-C at chosen instants, as the user's own would come."""

from __future__ import annotations

import gc
import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Send this process SIGINT after a time, in a ``with`` block of the main thread, again and again.

    It is SIGINT itself, as that is what `gpustreamlab._util.defences.delayed_interrupts` holds back; the alarm's own
    handler only sends it. One that raised would come in the middle of blocks that no Ctrl-C can come into.

    Meanwhile nothing collects garbage: an interrupt in a callback of the collector, such as Hypothesis has, is raised where
    nobody can catch it. Python reports it as unraisable, which pytest makes an error of whatever test runs.
    """

    def __init__(self) -> None:
        self.is_armed = False
        """True until the interrupt that was asked for has come, or was cancelled."""

    def __enter__(self) -> Self:
        self._is_collecting = gc.isenabled()
        gc.disable()
        self._before = {
            signal.SIGINT: signal.signal(signal.SIGINT, self._interrupt),
            signal.SIGALRM: signal.signal(signal.SIGALRM, _send),
        }
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._is_collecting:
            gc.enable()

    def send_after(self, delay_s: float) -> None:
        """Send one after a time; it is raised as KeyboardInterrupt."""
        self.is_armed = True
        signal.setitimer(signal.ITIMER_REAL, delay_s)

    def cancel(self) -> None:
        """Send none, if it has not come yet."""
        self.is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.is_armed:
            self.is_armed = False
            raise KeyboardInterrupt


def _send(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)
