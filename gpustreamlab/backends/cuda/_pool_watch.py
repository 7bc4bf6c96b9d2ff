"""What CuPy's memory pool holds for each stream, followed allocation by allocation while kernels are captured.

CuPy keeps one arena a stream and tells of none of them; its memory hooks tell of each allocation, per thread. So a hook follows
in every thread that selects a stream. What is freed in a thread that never did is noticed when its address is used again.
"""

from __future__ import annotations

import logging
import threading
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

    handle: int
    """The ``cudaStream_t`` on which it was made."""
    size_bytes: int
    """Its size."""
    host_ns: int
    """When it was noted, by the host's clock."""


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


class PoolWatch:
    """Follows CuPy's pool on one device.

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
        self._samples: deque[PoolSample] = deque(maxlen=KEPT_SAMPLES)
        self._held: dict[str, dict[int, int]] = {USED: {}, RESERVED: {}}
        self._blocks: dict[str, dict[int, Block]] = {USED: {}, RESERVED: {}}
        self._keys: dict[int, tuple[int, int] | None] = {}
        self._key_of: Callable[[int], tuple[int, int]] | None = None
        self._lock = threading.Lock()
        self.is_on = False
        self._hook = _make_hook(cupy, self)
        self._local = threading.local()

    def start(self, key_of: Callable[[int], tuple[int, int]]) -> None:
        """Follow from now on; this thread first.

        Parameters
        ----------
        key_of
            Returns context and stream, as records number them, of a ``cudaStream_t`` that exists.
        """
        with self._lock:
            self._key_of = key_of
            self._keys.clear()  # a handle may have been given to another stream meanwhile
        self.is_on = True
        self.enter()

    def stop(self) -> None:
        """Follow no more: this thread's hook goes, those of other threads do nothing until they are of use again."""
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
        taken = []
        while self._samples:
            taken.append(self._samples.popleft())
        return taken

    def note_new(self, name: str, device: int, address: int, size_bytes: int) -> None:
        """Take an allocation on the current stream."""
        if device != self._ordinal or not address:
            return
        handle = int(self._stream().ptr)
        with self._lock:
            self._learn(handle)
            blocks = self._blocks[name]
            if address in blocks:
                self._drop(name, address)  # it was freed where nobody looked
            if len(blocks) < FOLLOWED_BLOCKS:
                blocks[address] = Block(handle, size_bytes, self._host_time_ns())
                self._add(name, handle, size_bytes)

    def note_gone(self, name: str, address: int, *, at_host_ns: int | None = None) -> None:
        """Take that an allocation is given back, now or at a host time; one that is not known, or is newer, is ignored."""
        with self._lock:
            block = self._blocks[name].get(address)
            if block is not None and (at_host_ns is None or block.host_ns <= at_host_ns):
                self._drop(name, address)

    def _learn(self, handle: int) -> None:
        """Ask for a stream's number while it exists: asking for one that is gone may crash."""
        if handle in self._keys or self._key_of is None:
            return
        try:
            self._keys[handle] = self._key_of(handle)
        except GPUStreamLabError:
            self._keys[handle] = None

    def _drop(self, name: str, address: int) -> None:
        block = self._blocks[name].pop(address, None)
        if block is not None:
            self._add(name, block.handle, -block.size_bytes)

    def _add(self, name: str, handle: int, change_bytes: int) -> None:
        held = self._held[name]
        held[handle] = value = max(0, held.get(handle, 0) + change_bytes)
        key = self._keys.get(handle)
        if key is not None:
            self._samples.append(PoolSample(self._host_time_ns(), key, name, value))


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
            _try(watch.note_gone, USED, facts["mem_ptr"])

    return Hook()


def _try(note: Callable[..., None], *facts: Any) -> None:
    """Call, and log what fails: an allocation of the user must not fail for it."""
    try:
        note(*facts)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is not the user's
        _log.debug("An allocation was not followed: %s", error)
