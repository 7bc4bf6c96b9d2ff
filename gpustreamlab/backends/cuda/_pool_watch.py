"""What CuPy's memory pool holds for each stream, followed allocation by allocation while kernels are captured.

CuPy keeps one arena a stream and tells of none of them; its memory hooks tell of each allocation, per thread. So a hook follows
in every thread that selects a stream. What is freed in a thread that never did is noticed when its address is used again.

What the pool held before cannot be told apart by stream, nor what was freed of it while nobody looked. So every capture counts
from zero: the sums are what was allocated since it began and is still held.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gpustreamlab.errors import GPUStreamLabError

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

    Parameters
    ----------
    cupy
        The module.
    ordinal
        The CUDA device.
    host_time_ns
        Reads the host's clock.
    """

    def __init__(self, cupy: Any, ordinal: int, host_time_ns: Callable[[], int]) -> None:
        self._ordinal = ordinal
        self._host_time_ns = host_time_ns
        self._stream = cupy.cuda.get_current_stream
        self._changes: deque[_Change] = deque(maxlen=KEPT_SAMPLES)
        self._samples: deque[PoolSample] = deque(maxlen=KEPT_SAMPLES)
        self._held: dict[str, dict[tuple[int, int], int]] = {USED: {}, RESERVED: {}}
        self._blocks: dict[str, dict[int, Block]] = {USED: {}, RESERVED: {}}
        self._key_of: Callable[[int], tuple[int, int]] | None = None
        # Never waited for in a hook: this thread may hold it.
        self._lock = threading.Lock()
        self.is_on = False
        self._hook = _make_hook(cupy, self)
        self._local = threading.local()

    def start(self, key_of: Callable[[int], tuple[int, int]]) -> None:
        """Follow from now on, from zero; this thread first.

        Parameters
        ----------
        key_of
            Returns context and stream, as records number them, of a ``cudaStream_t`` that exists.
        """
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

    def note_new(self, name: str, device: int, address: int, size_bytes: int) -> None:
        """Take an allocation on the current stream."""
        if device != self._ordinal or not address:
            return
        key = self._find_key()
        now_ns = self._host_time_ns()
        if key is None:
            self.note_gone(name, address)
        else:
            self._note(_Change(name, address, Block(key, size_bytes, now_ns), now_ns, now_ns))

    def note_gone(self, name: str, address: int, *, at_host_ns: int | None = None) -> None:
        """Take that an allocation is given back, now or at a host time; one that is not known, or is newer, is ignored."""
        now_ns = self._host_time_ns()
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
                _try(watch.note_new, USED, facts["device_id"], facts["mem_ptr"], facts["mem_size"])

        def alloc_postprocess(self, **facts: Any) -> None:
            if watch.is_on:
                _try(watch.note_new, RESERVED, facts["device_id"], facts["mem_ptr"], facts["mem_size"])

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
