"""How much memory streams hold: CuPy's arenas, and what was allocated in stream order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpustreamlab.backends._activity import MemoryBatch
from gpustreamlab.backends.cuda._cupti_constants import MemoryOperation, RecordKind
from gpustreamlab.backends.cuda._cupti_records import Records
from gpustreamlab.backends.cuda._cupti_wall import WallClock
from gpustreamlab.backends.cuda._cupti_work import Texts
from gpustreamlab.backends.cuda._pool_watch import RESERVED, PoolWatch
from gpustreamlab.typing import Int64Array

ASYNC_USED = "async_used_bytes"
"""Counter of what was allocated with ``cudaMallocAsync`` in a stream and not freed."""
FOLLOWED_BLOCKS = 1_000_000
"""Allocations in stream order whose stream is remembered at once; further ones are not counted."""


class MemoryReader:
    """Turns samples of the pool, and records of allocations, into columns.

    Parameters
    ----------
    watch
        Follows CuPy's pool.
    ordinal
        The CUDA device.
    """

    def __init__(self, watch: PoolWatch, *, ordinal: int) -> None:
        self._watch = watch
        self._ordinal = ordinal
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._used: dict[tuple[int, int], int] = {}

    def read(
        self, records: Records, texts: Texts, *, place: Callable[[Int64Array], Int64Array], wall: WallClock
    ) -> MemoryBatch:
        """Return what is new.

        Parameters
        ----------
        records
            What was parsed.
        texts
            Takes the counters' names.
        place
            Puts CUPTI's times on the session's clock.
        wall
            Ties CUPTI's times of the host to the host's clock.
        """
        rows = self._async_rows(records, texts, wall)
        rows += self._pool_rows(texts, wall)
        time_ns, context, stream, name, value = np.array(rows, np.int64).reshape(-1, 5).T.copy()
        return MemoryBatch(time_ns=place(time_ns), context=context, stream=stream, name=name, value=value.astype(np.float64))

    def _pool_rows(self, texts: Texts, wall: WallClock) -> list[tuple[int, int, int, int, int]]:
        return [
            (wall.to_wall_ns(sample.host_ns), *sample.key, texts.name(sample.name), sample.value_bytes)
            for sample in self._watch.take()
        ]

    def _async_rows(self, records: Records, texts: Texts, wall: WallClock) -> list[tuple[int, int, int, int, int]]:
        columns = records.columns.get(RecordKind.MEMORY2)
        if columns is None:
            return []
        order = np.argsort(columns["timestamp"], kind="stable")
        order = order[columns["deviceId"][order] == self._ordinal]
        fields = ("timestamp", "memoryOperationType", "isAsync", "address", "bytes", "contextId", "streamId")
        host_ns = wall.to_host_ns(columns["timestamp"][order].astype(np.int64)).tolist()
        rows = []
        for at_host_ns, at_ns, operation, is_async, address, size, context, stream in zip(
            host_ns, *(columns[name][order].tolist() for name in fields), strict=True
        ):
            if operation == MemoryOperation.RELEASE:
                self._watch.note_gone(RESERVED, address, at_host_ns=at_host_ns)
            held = self._follow(operation, is_async=bool(is_async), address=address, block=(context, stream, size))
            if held is not None:
                rows.append((at_ns, held[0], held[1], texts.name(ASYNC_USED), self._used[held]))
        return rows

    def _follow(self, operation: int, *, is_async: bool, address: int, block: tuple[int, int, int]) -> tuple[int, int] | None:
        """Take an allocation or release in stream order; return the stream whose sum has changed."""
        if operation == MemoryOperation.ALLOCATION and is_async:
            self._take_out(address)  # its release was not told of
            if len(self._blocks) >= FOLLOWED_BLOCKS:
                return None
            self._blocks[address] = block
            self._used[block[:2]] = self._used.get(block[:2], 0) + block[2]
            return block[:2]
        return self._take_out(address) if operation == MemoryOperation.RELEASE else None

    def _take_out(self, address: int) -> tuple[int, int] | None:
        """Forget an allocation; return the stream that holds less now."""
        if address not in self._blocks:
            return None
        context, stream, size = self._blocks.pop(address)
        self._used[context, stream] -= size
        return context, stream
