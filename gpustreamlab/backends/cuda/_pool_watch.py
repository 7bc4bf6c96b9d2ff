"""What CuPy's memory pool holds for each stream, followed allocation by allocation while kernels are captured.

CuPy keeps one arena a stream and tells of none of them; its memory hooks tell of each allocation, per thread. So a hook follows
in every thread that selects a stream. What is freed in a thread that never did is noticed when its address is used again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

KEPT_SAMPLES = 262_144
"""Samples that wait to be drained; the oldest make room."""
FOLLOWED_BLOCKS = 1_000_000
"""Allocations whose stream is remembered at once; further ones are not counted."""

USED, RESERVED = "pool_used_bytes", "pool_reserved_bytes"


class PoolSample(NamedTuple):
    """What a stream held at a moment."""

    host_ns: int
    """By the host's clock."""
    handle: int
    """The ``cudaStream_t``."""
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
        self._blocks: dict[str, dict[int, tuple[int, int]]] = {USED: {}, RESERVED: {}}
        self._lock = threading.Lock()
        self.is_on = False
        self._hook = _make_hook(cupy, self)
        self._local = threading.local()

    def start(self) -> None:
        """Follow from now on; this thread first."""
        self.is_on = True
        self.enter()

    def stop(self) -> None:
        """Follow no more; the hook leaves each thread with its next allocation there."""
        self.is_on = False

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
            blocks = self._blocks[name]
            if address in blocks:
                self._drop(name, address)  # it was freed where nobody looked
            if len(blocks) < FOLLOWED_BLOCKS:
                blocks[address] = (handle, size_bytes)
                self._add(name, handle, size_bytes)

    def note_gone(self, name: str, address: int) -> None:
        """Take that an allocation is given back; one that is not known is ignored."""
        with self._lock:
            self._drop(name, address)

    def _drop(self, name: str, address: int) -> None:
        handle, size_bytes = self._blocks[name].pop(address, (0, 0))
        if size_bytes:
            self._add(name, handle, -size_bytes)

    def _add(self, name: str, handle: int, change_bytes: int) -> None:
        held = self._held[name]
        held[handle] = value = max(0, held.get(handle, 0) + change_bytes)
        self._samples.append(PoolSample(self._host_time_ns(), handle, name, value))


def _make_hook(cupy: Any, watch: PoolWatch) -> Any:
    """Return a hook of CuPy that tells a watch of what happens."""

    class Hook(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = f"gpustreamlab-{id(watch):x}"

        def malloc_postprocess(self, **facts: Any) -> None:
            if watch.is_on:
                watch.note_new(USED, facts["device_id"], facts["mem_ptr"], facts["mem_size"])

        def alloc_postprocess(self, **facts: Any) -> None:
            if watch.is_on:
                watch.note_new(RESERVED, facts["device_id"], facts["mem_ptr"], facts["mem_size"])

        def free_postprocess(self, **facts: Any) -> None:
            watch.note_gone(USED, facts["mem_ptr"])

    return Hook()
