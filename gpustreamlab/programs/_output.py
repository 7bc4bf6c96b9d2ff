"""Output of runs on copies, which is kept back: a program prints, logs and shows once, when it runs."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

MOST_CHARACTERS = 1_000_000
"""How much of each stream is kept, to be shown if a run fails."""


class _Kept(io.TextIOBase):
    """Stands for a stream while runs on copies print to it; later, and for threads that were there before, it passes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._others = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
        self._text = io.StringIO()
        self.is_over = False

    def write(self, text: str) -> int:
        if self.is_over or threading.get_ident() in self._others:
            return self._stream.write(text)
        if self._text.tell() < MOST_CHARACTERS:
            self._text.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def show(self) -> None:
        """Write what was kept back."""
        self._stream.write(self._text.getvalue())


@contextmanager
def kept_back() -> Iterator[None]:
    """Keep back what is printed, logged, warned of and displayed in a ``with`` block, unless it fails.

    What handlers of `logging` write to the streams that are replaced, or to the process's own, is kept back as well. What is
    written past Python's streams, by C code or other processes, is not.
    """
    before = sys.stdout, sys.stderr
    streams = {id(one): one for one in (*before, sys.__stdout__, sys.__stderr__) if one is not None}
    kept = {number: _Kept(stream) for number, stream in streams.items()}
    with ExitStack() as stack:
        shown = stack.enter_context(_displays_kept_back())
        stack.enter_context(warnings.catch_warnings())  # behind it, each warning counts as not shown yet
        sys.stdout, sys.stderr = (kept.get(id(one), one) for one in before)
        _point_handlers(kept)
        try:
            yield
        except BaseException:
            stack.callback(_show, [*kept.values()], shown)
            raise
        finally:
            for one in kept.values():
                one.is_over = True
            sys.stdout, sys.stderr = before
            # Those that the block has made, too.
            _point_handlers({id(one): streams[number] for number, one in kept.items()})


def _show(kept: list[_Kept], shown: Any) -> None:
    for one in kept:
        one.show()
    if shown is not None:
        shown.show()


@contextmanager
def _displays_kept_back() -> Iterator[Any]:
    """Keep back what is displayed in a notebook; yield what holds it, or None without one."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        yield None
        return
    from IPython.utils.capture import capture_output

    with capture_output(stdout=False, stderr=False) as captured:
        yield captured


def _point_handlers(streams: Mapping[int, Any]) -> None:
    """Let handlers that write to some streams write to others."""
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    for handler in {handler for logger in loggers for handler in getattr(logger, "handlers", ())}:
        if isinstance(handler, logging.StreamHandler) and id(handler.stream) in streams:
            handler.setStream(streams[id(handler.stream)])
