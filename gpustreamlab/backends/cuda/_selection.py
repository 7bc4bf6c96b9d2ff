"""Select a stream for CuPy, so that what others select inside or outside stays as it is."""

from __future__ import annotations

import threading
import time
from typing import Any, TypeAlias

from gpustreamlab.backends.cuda._pool_watch import PoolWatch

SelectionToken: TypeAlias = tuple[int, Any, int]
"""What was current before a selection: device, CuPy stream, and how many selections were entered in this thread."""


class CupySelection:
    """CuPy's current stream of each thread, as a stack.

    CuPy keeps a stack of streams for ``with stream``, and what ``stream.use()`` sets is not on it: leaving a ``with`` inside
    puts back what an outer ``with`` selected, or the NULL stream (seen with CuPy 14.2). So a selection enters the stream as
    ``with`` does, and what ``use`` had set before is set again at the end.
    """

    def __init__(self, cupy: Any, ordinal: int) -> None:
        self.watch = PoolWatch(cupy, ordinal, time.perf_counter_ns)
        """Follows what CuPy's pool holds for each stream, in threads that select one while kernels are captured."""
        self._device = cupy.cuda.Device
        self._get_ordinal = cupy.cuda.runtime.getDevice
        self._get_stream = cupy.cuda.get_current_stream
        self._ordinal = ordinal
        self._local = threading.local()

    def select(self, stream: Any) -> SelectionToken:
        """Make the CuPy stream in ``stream.cupy`` current in this thread; the device is switched only where it differs."""
        ordinal = self._get_ordinal()
        if ordinal != self._ordinal:
            self._device(self._ordinal).use()
        try:
            entered = self._local.entered
        except AttributeError:
            entered = self._local.entered = []
        token = ordinal, self._get_stream(), len(entered)
        cupy_stream = stream.cupy
        cupy_stream.__enter__()
        entered.append(cupy_stream)
        if self.watch.is_on:
            self.watch.enter()
        else:
            self.watch.leave()  # from a capture that another thread has ended
        return token

    def restore(self, token: Any) -> None:
        """Put back what was current before the selection that gave the token; selections entered after it are left too."""
        ordinal, stream, depth = token
        entered = self._local.entered
        while len(entered) > depth:
            entered.pop().__exit__(None, None, None)
        current = self._get_stream()
        if current is not stream and current != stream:  # comparing two streams of CuPy takes a quarter of a microsecond
            stream.use()
        if ordinal != self._ordinal:
            self._device(ordinal).use()
