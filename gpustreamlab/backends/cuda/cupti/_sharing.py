"""What several sources share: CUPTI serves one reader in a process, and hands its records to that one alone."""

from __future__ import annotations

import ctypes
import logging
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.defences import process_lock
from gpustreamlab.backends.cuda.cupti._buffers import ActivityBuffers
from gpustreamlab.backends.cuda.cupti._library import Cupti
from gpustreamlab.backends.cuda.cupti._records import Records, concat_records, parse_buffer
from gpustreamlab.typing import BoolArray, Int64Array

_log = logging.getLogger(__name__)


class Sharer(Protocol):
    """A source that is given records."""

    is_collecting: bool
    """Whether it was started and not stopped."""

    def take_in(self, records: Records, dropped_count: int) -> None:
        """Take what was handed out, for the next drain, and how many records are missing."""


class Sharing:
    """The sources of a process, their streams, and the buffers that CUPTI writes into."""

    def __init__(self) -> None:
        self.lock = process_lock()
        """Held by whoever changes `sharers`, or hands records out; taken behind a source's own lock."""
        self.sharers: list[Any] = []
        """Sources that collect, or were not told of everything yet."""
        self._claims: dict[int, WeakSet[Any]] = {}  # which sources have a stream, by `stream_key`; none where those are gone
        self.contexts: dict[int, int] = {}
        """The contexts of streams that sessions have or had, by the numbers of those."""
        self._buffers: list[ActivityBuffers] = []

    @property
    def buffers(self) -> ActivityBuffers:
        """The buffers of the process, made on first use."""
        if not self._buffers:
            self._buffers.append(ActivityBuffers())
        return self._buffers[0]

    def claim(self, context: int, stream: int, source: Sharer) -> None:
        """Note that a stream is of a source's session."""
        self.contexts[stream] = context
        self._claims.setdefault(int(stream_key(np.array(context), np.array(stream))), WeakSet()).add(source)

    def of_others(self, source: Sharer) -> list[int]:
        """Return the keys of the streams that other sources have, or had, and this one has not."""
        return [key for key, claimed in self._claims.copy().items() if source not in claimed]

    def are_claimed(self, context: Int64Array, stream: Int64Array) -> BoolArray:
        """Tell which streams are of a session; all shapes are (n,)."""
        return np.isin(stream_key(context, stream), [*self._claims])

    def collecting(self, *, but: Sharer) -> bool:
        """Tell whether another source collects now."""
        return any(one.is_collecting and one is not but for one in self.sharers)

    def hand_out(self, cupti: Cupti) -> None:
        """Take what CUPTI has completed, and give it to each source. The lock is held."""
        buffers = self.buffers
        parts = []
        for ticket, data in buffers.take():
            try:
                parts.append(parse_buffer(data, cupti.layouts))
            finally:
                buffers.give_back(ticket)
        dropped = ctypes.c_size_t()
        if cupti.call("cuptiActivityGetNumDroppedRecords", None, 0, ctypes.byref(dropped)):
            dropped.value = 0
        records = concat_records(parts)
        if records.skipped_bytes:
            dropped.value += 1
            _log.warning(
                "%s wrote %d bytes that cannot be read: %s", cupti.title, records.skipped_bytes, dict(records.unknown_kinds)
            )
        for source in self.sharers:
            source.take_in(records, dropped.value)


def stream_key(context: NDArray[Any], stream: NDArray[Any]) -> Int64Array:
    """Return streams of contexts as one number each."""
    key: Int64Array = context.astype(np.int64) << 32 | stream.astype(np.int64)
    return key


SHARING = Sharing()
"""Of this process."""
