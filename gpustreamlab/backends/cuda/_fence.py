"""Keep the events of ranges out of the queues of the copy engines.

The driver puts a timing event into the queue of the engine that the stream used last. Behind an upload or a download that is
the queue of a copy engine, which all streams share: the event waits for copies of other streams that were enqueued before it,
and what comes behind it on its own stream waits too (H200, driver 580; bench/event_queue.py). Filling four bytes runs in the
queue of kernels, but on no SM, and the event behind it stays there. An event without timing, or behind a kernel, needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpustreamlab.backends.cuda._cupti_records import Columns
from gpustreamlab.typing import BoolArray

FENCE_BYTES = 4
"""How much is filled."""
FENCE_VALUE = 0xC7
"""With what: CUPTI tells of it, so that these can be left out."""

_WORD = FENCE_VALUE * 0x0101_0101
"""The same where the driver fills words."""


class Fence:
    """Four bytes of one device to be filled in front of an event.

    Parameters
    ----------
    runtime
        ``cupy.cuda.runtime``, with the device current here and in `close`.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._address: int = runtime.malloc(FENCE_BYTES)
        self.put = self._make_put()
        """Put a fence into the stream of a handle, whose device has to be current; a CUDA graph that is captured gets none."""

    def close(self) -> None:
        """Free the memory; nothing may use it any more. Idempotent."""
        address, self._address = self._address, 0
        if address:
            self._runtime.free(address)

    def _make_put(self) -> Callable[[int], object]:
        # On the hot path of ranges: what it needs is at hand.
        fill, is_capturing, address = self._runtime.memsetAsync, self._runtime.streamIsCapturing, self._address

        def put(handle: int) -> None:
            if not is_capturing(handle):
                fill(address, FENCE_VALUE, FENCE_BYTES, handle)

        return put


def are_fences(fills: Columns) -> BoolArray:
    """Tell which records of fills are fences."""
    found: BoolArray = (fills["bytes"] == FENCE_BYTES) & np.isin(fills["value"], [FENCE_VALUE, _WORD])
    return found
