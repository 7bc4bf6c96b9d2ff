"""How much memory streams hold: CuPy's arenas, and what was allocated in stream order."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.backends._activity import MemoryBatch
from gpustreamlab.backends.cuda.cupti._clock import WallClock
from gpustreamlab.backends.cuda.cupti._layouts import MemoryOperation, RecordKind
from gpustreamlab.backends.cuda.cupti._records import Records
from gpustreamlab.backends.cuda.cupti._work import Texts
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.typing import Int64Array

_log = logging.getLogger(__name__)


KEPT_SAMPLES = 262_144
"""Samples that wait to be drained; the oldest make room."""
FOLLOWED_BLOCKS = 1_000_000
"""Allocations whose stream is remembered at once; further ones are not counted."""

USED, RESERVED = "pool_used_bytes", "pool_reserved_bytes"


class Block(NamedTuple):
    """An allocation."""

    key: tuple[int, int]
    """The stream on which it was made, as records number it: its handle may be another stream's when it is freed."""
    size_bytes: int
    """Its size."""
    host_ns: int
    """When it was made, by the host's clock."""


class PoolSample(NamedTuple):
    """What a stream held at a moment."""

    host_ns: int
    """By the host's clock."""
    key: tuple[int, int]
    """The stream as records number it."""
    name: str
    """Which of the two."""
    value_bytes: int
    """How much."""


class _Change(NamedTuple):
    """An allocation, or its end."""

    name: str
    address: int
    block: Block | None
    """None where it ends."""
    host_ns: int
    newest_host_ns: int
    """A block that was made later is another one."""


class PoolWatch:
    """Follows CuPy's pool on one device.

    Hooks only leave word of each change: an allocation may run the garbage collector anywhere, also in here, and that frees
    arrays, whose hooks come here again. Who finds the sums idle brings them up to date for all.
    """

    def __init__(self, cupy: Any, ordinal: int, host_time_ns: Callable[[], int]) -> None:
        self._ordinal = ordinal
        self._host_time_ns = host_time_ns
        self._stream = cupy.cuda.get_current_stream
        self._current_device = cupy.cuda.runtime.getDevice
        self._changes: deque[_Change] = deque(maxlen=KEPT_SAMPLES)
        self._samples: deque[PoolSample] = deque(maxlen=KEPT_SAMPLES)
        self._given: deque[tuple[int, int, int, int]] = deque(maxlen=KEPT_SAMPLES)
        self._held: dict[str, dict[tuple[int, int], int]] = {USED: {}, RESERVED: {}}
        self._blocks: dict[str, dict[int, Block]] = {USED: {}, RESERVED: {}}
        self._key_of: Callable[[int], tuple[int, int]] | None = None
        # Never waited for in a hook: this thread may hold it.
        self._lock = threading.Lock()
        self.is_on = False
        self._hook = _make_hook(cupy, self)
        self._local = threading.local()

    def start(self, key_of: Callable[[int], tuple[int, int]]) -> None:
        """Follow from now on, from zero; this thread first."""
        with self._lock:
            self._key_of = key_of
            self._changes.clear()
            for name in (USED, RESERVED):
                self._held[name].clear()
                self._blocks[name].clear()
        self.is_on = True
        self.enter()

    def stop(self) -> None:
        """Follow no more: this thread's hook goes, that of another thread with the next stream that it selects."""
        self.is_on = False
        self.leave()

    def enter(self) -> None:
        """Follow this thread."""
        if getattr(self._local, "is_in", False):
            return
        self._hook.__enter__()
        self._local.is_in = True

    def leave(self) -> None:
        """Follow this thread no more."""
        if getattr(self._local, "is_in", False):
            self._local.is_in = False
            self._hook.__exit__(None, None, None)

    def take(self) -> list[PoolSample]:
        """Return the samples since the last time."""
        self._settle()
        taken = []
        while self._samples:
            taken.append(self._samples.popleft())
        return taken

    def take_given(self) -> list[tuple[int, int, int, int]]:
        """Return what was given out and taken back since the last time: host time, address, bytes or 0, and stream's handle."""
        taken = []
        while self._given:
            taken.append(self._given.popleft())
        return taken

    def note_new(self, name: str, address: int, size_bytes: int) -> None:
        """Take an allocation on the current stream and device: CuPy 14.2 told hooks of the first card for one on the second."""
        if not address or self._current_device() != self._ordinal:
            return
        key = self._find_key()
        now_ns = self._host_time_ns()
        if name == USED:
            self._given.append((now_ns, address, size_bytes, int(self._stream().ptr)))
        if key is None:
            self.note_gone(name, address)
        else:
            self._note(_Change(name, address, Block(key, size_bytes, now_ns), now_ns, now_ns))

    def note_gone(self, name: str, address: int, *, at_host_ns: int | None = None) -> None:
        """Take that an allocation is given back, now or at a host time; one that is not known, or is newer, is ignored."""
        now_ns = self._host_time_ns()
        if name == USED:
            self._given.append((now_ns, address, 0, 0))
        self._note(_Change(name, address, None, now_ns, now_ns if at_host_ns is None else at_host_ns))

    def _find_key(self) -> tuple[int, int] | None:
        """Return the current stream's number, asked for while it exists: asking for one that is gone may crash.

        CuPy gives the same object for as long as a stream stays current; another stream may have the same handle.
        """
        stream = self._stream()
        known = getattr(self._local, "known", None)
        if known is not None and known[0] is self._key_of and known[1]() is stream:
            key: tuple[int, int] | None = known[2]
            return key
        if self._key_of is None:
            return None
        try:
            key = self._key_of(int(stream.ptr))
        except GPUStreamLabError:
            key = None
        self._local.known = self._key_of, weakref.ref(stream), key
        return key

    def _note(self, change: _Change) -> None:
        self._changes.append(change)
        self._settle()

    def _settle(self) -> None:
        """Bring the sums up to date, unless somebody is at it: who is looks again before they leave."""
        while self._changes and self._lock.acquire(blocking=False):
            try:
                while self._changes:
                    self._apply(self._changes.popleft())
            finally:
                self._lock.release()

    def _apply(self, change: _Change) -> None:
        blocks = self._blocks[change.name]
        block = blocks.get(change.address)
        # A new one in the place of one that is known: that was freed where nobody looked.
        if block is not None and block.host_ns <= change.newest_host_ns:
            del blocks[change.address]
            self._add(change, block.key, -block.size_bytes)
        if change.block is not None and len(blocks) < FOLLOWED_BLOCKS:
            blocks[change.address] = change.block
            self._add(change, change.block.key, change.block.size_bytes)

    def _add(self, change: _Change, key: tuple[int, int], change_bytes: int) -> None:
        held = self._held[change.name]
        value = held.pop(key, 0) + change_bytes
        if value:
            held[key] = value
        self._samples.append(PoolSample(change.host_ns, key, change.name, value))


def _make_hook(cupy: Any, watch: PoolWatch) -> Any:
    """Return a hook of CuPy that tells a watch of what happens."""

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = f"gpustreamlab-{id(watch):x}"

        def malloc_postprocess(self, **facts: Any) -> None:
            if watch.is_on:
                _try(watch.note_new, USED, facts["mem_ptr"], facts["mem_size"])

        def alloc_postprocess(self, **facts: Any) -> None:
            if watch.is_on:
                _try(watch.note_new, RESERVED, facts["mem_ptr"], facts["mem_size"])

        def free_postprocess(self, **facts: Any) -> None:
            if watch.is_on:
                _try(watch.note_gone, USED, facts["mem_ptr"])

    return Hook()


def _try(note: Callable[..., None], *facts: Any) -> None:
    """Call, and log what fails: an allocation of the user must not fail for it."""
    try:
        note(*facts)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not the user's
        _log.debug("An allocation was not followed: %s", error)


ASYNC_USED = "async_used_bytes"
"""Counter of what was allocated with ``cudaMallocAsync`` in a stream and not freed."""


class MemoryReader:
    """Turns samples of the pool, and records of allocations, into columns."""

    def __init__(self, watch: PoolWatch, *, ordinal: int) -> None:
        self._watch = watch
        self._ordinal = ordinal
        self._blocks: dict[int, tuple[int, int, int]] = {}
        self._used: dict[tuple[int, int], int] = {}

    def read(
        self, records: Records, texts: Texts, *, place: Callable[[Int64Array], Int64Array], wall: WallClock
    ) -> MemoryBatch:
        """Return what is new."""
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
