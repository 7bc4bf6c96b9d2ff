"""Ctrl-C before one line of some files, so that every line can be tried."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Self


def interrupt() -> None:
    """Stand in for Python's own handler: it raises where the line is."""
    raise KeyboardInterrupt


def send_interrupt() -> None:
    """Send a real SIGINT, which `gpustreamlab._util.defences.delayed_interrupts` holds back."""
    signal.raise_signal(signal.SIGINT)


class LineInterrupts:
    """Interrupts before one line of the watched modules, counted from the start of the ``with`` block.

    Parameters
    ----------
    modules
        Those whose lines count.
    at
        Which line, from 1.
    act
        What interrupts.
    """

    def __init__(self, modules: Iterable[ModuleType], at: int, act: Callable[[], None] = interrupt) -> None:
        self._files = {str(Path(str(module.__file__))) for module in modules}
        self._act = act
        self.left = at
        """How many lines are left."""
        self.place: tuple[CodeType, int] | None = None
        """Where it came: the code, and the line within it from 0; None if it has not come."""

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._trace_call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._trace_line if frame.f_code.co_filename in self._files else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.place = frame.f_code, frame.f_lineno - frame.f_code.co_firstlineno
                sys.settrace(None)
                self._act()
        return self._trace_line
