"""How much memory streams hold: CuPy's arenas, and what was allocated in stream order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpustreamlab.backends._activity import MemoryBatch
from gpustreamlab.backends.cuda._cupti_constants import MemoryOperation, RecordKind
from gpustreamlab.backends.cuda._cupti_records import Records
from gpustreamlab.backends.cuda._cupti_work import Texts
from gpustreamlab.backends.cuda._pool_watch import RESERVED, PoolWatch
from gpustreamlab.errors import GPUStreamLabError
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
    key_of
        Returns context and stream of a ``cudaStream_t``.
    """

    def __init__(self, watch: PoolWatch, key_of: Callable[[int], tuple[int, int]]) -> None:
        self._watch = watch
        self._key_of = key_of
        self._keys: dict[int, tuple[int, int] | None] = {}
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._used: dict[tuple[int, int], int] = {}

    def read(self, records: Records, texts: Texts, *, place: Callable[[Int64Array], Int64Array], wall_ns: int) -> MemoryBatch:
        """Return what is new.

        Parameters
        ----------
        records
            What was parsed.
        texts
            Takes the counters' names.
        place
            Puts CUPTI's times on the session's clock.
        wall_ns
            The wall clock minus the host's clock.
        """
        rows = self._async_rows(records, texts)
        rows += self._pool_rows(texts, wall_ns)
        time_ns, context, stream, name, value = np.array(rows, np.int64).reshape(-1, 5).T.copy()
        return MemoryBatch(time_ns=place(time_ns), context=context, stream=stream, name=name, value=value.astype(np.float64))

    def _pool_rows(self, texts: Texts, wall_ns: int) -> list[tuple[int, int, int, int, int]]:
        rows = []
        for sample in self._watch.take():
            key = self._known_key(sample.handle)
            if key is not None:
                rows.append((sample.host_ns + wall_ns, *key, texts.name(sample.name), sample.value_bytes))
        return rows

    def _known_key(self, handle: int) -> tuple[int, int] | None:
        if handle not in self._keys:
            try:
                self._keys[handle] = self._key_of(handle)
            except GPUStreamLabError:
                self._keys[handle] = None  # the stream is gone
        return self._keys[handle]

    def _async_rows(self, records: Records, texts: Texts) -> list[tuple[int, int, int, int, int]]:
        columns = records.columns.get(RecordKind.MEMORY2)
        if columns is None:
            return []
        order = np.argsort(columns["timestamp"], kind="stable")
        fields = ("timestamp", "memoryOperationType", "isAsync", "address", "bytes", "contextId", "streamId")
        rows = []
        for at_ns, operation, is_async, address, size, context, stream in zip(
            *(columns[name][order].tolist() for name in fields), strict=True
        ):
            if operation == MemoryOperation.RELEASE:
                self._watch.note_gone(RESERVED, address)
            held = self._follow(operation, is_async=bool(is_async), address=address, block=(context, stream, size))
            if held is not None:
                rows.append((at_ns, held[0], held[1], texts.name(ASYNC_USED), self._used[held]))
        return rows

    def _follow(self, operation: int, *, is_async: bool, address: int, block: tuple[int, int, int]) -> tuple[int, int] | None:
        """Take an allocation or release in stream order; return the stream whose sum has changed."""
        if operation == MemoryOperation.ALLOCATION and is_async and len(self._blocks) < FOLLOWED_BLOCKS:
            self._blocks[address] = block
            key, change = block[:2], block[2]
        elif operation == MemoryOperation.RELEASE and address in self._blocks:
            context, stream, size = self._blocks.pop(address)
            key, change = (context, stream), -size
        else:
            return None
        self._used[key] = max(0, self._used.get(key, 0) + change)
        return key
