"""How much memory a soak uses: samples of it, and how fast it grows.

Resident memory tells of a leak only where glibc keeps one arena: with one for each of many threads, what is free in one serves
no other thread, and the process grows for hours without a byte being lost. On an H200, 16 threads: 13 MiB a minute with glibc's
usual arenas, 1 to 4 with one (`MALLOC_ARENA_MAX`), and what malloc had given out at the end was 250 and 248 MiB. The first
minutes also fill caches that are bounded: closed lanes by name, pointers of streams that are gone.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

WARM_UP = 0.25
"""Share of the time after which memory has to be flat."""
_ARENAS = "MALLOC_ARENA_MAX"


class Sample(NamedTuple):
    """How much memory was in use."""

    seconds: float
    """Since the beginning."""
    host_bytes: int
    """Resident memory of this process."""
    heap_bytes: int
    """Of that, what malloc has given out and not had back; 0 where the C library does not tell."""
    device_bytes: int
    """Of the card, by everybody, less `torch_bytes`; 0 on the simulated device."""
    torch_bytes: int = 0
    """What torch's allocator keeps: 2 MiB and more for each stream that it ever saw, until its cache is emptied."""


MEASURED = {
    "host_bytes": "host memory",
    "heap_bytes": "malloc in use",
    "device_bytes": "device memory",
    "torch_bytes": "torch's cache",
}
"""Columns of a sample, and what a report calls them."""


def keep_one_arena() -> None:
    """Start this program again with one malloc arena, unless the environment says how many: glibc asks it only once."""
    if sys.platform == "linux" and _ARENAS not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, _ARENAS: "1"})


def count_arenas() -> int:
    """Return how many malloc arenas there may be; 0 for as many as the C library likes."""
    return int(os.environ.get(_ARENAS, "0"))


def sample(seconds: float, *, has_device: bool) -> Sample:
    """Measure now, `seconds` after the beginning."""
    device_bytes, torch_bytes = _read_device_bytes() if has_device else (0, 0)
    return Sample(seconds, _read_host_bytes(), _read_heap_bytes(), device_bytes, torch_bytes)


def slope_mib_per_minute(samples: Sequence[Sample], column: str) -> float:
    """Return how fast memory grows after the warm-up, by least squares."""
    kept = [sample for sample in samples if sample.seconds >= WARM_UP * samples[-1].seconds]
    if len(kept) < 2:
        return 0.0
    minutes = np.array([sample.seconds for sample in kept]) / 60
    return float(np.polyfit(minutes, np.array([getattr(sample, column) for sample in kept]) / 2**20, 1)[0])


def memory_rows(samples: Sequence[Sample]) -> list[dict[str, str | float]]:
    """Return rows of a report: memory after the warm-up, at the end, and its growth, for each column that was measured."""
    rows: list[dict[str, str | float]] = []
    for column, what in MEASURED.items():
        sizes_mib = [getattr(sample, column) / 2**20 for sample in samples]
        if not any(sizes_mib):
            continue
        rows += [
            {"what": f"{what}, MiB, after warm-up", "value": round(sizes_mib[int(WARM_UP * len(sizes_mib))], 1)},
            {"what": f"{what}, MiB, at the end", "value": round(sizes_mib[-1], 1)},
            {"what": f"{what}, MiB a minute after warm-up", "value": round(slope_mib_per_minute(samples, column), 2)},
        ]
    return rows


class _Mallinfo2(ctypes.Structure):
    """Source: glibc 2.33, ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


def _read_host_bytes() -> int:
    """Read how much memory of this process is resident. Source: Linux, /proc/self/statm."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _read_heap_bytes() -> int:
    """Ask all arenas of malloc, and the blocks it has mapped on their own, what is in use."""
    find = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if find is None:
        return 0
    find.restype = _Mallinfo2
    found = find()
    return int(found.uordblks + found.hblkhd)


def _read_device_bytes() -> tuple[int, int]:
    """Read how much memory of the card is in use, and how much of all that torch keeps."""
    import cupy

    free_bytes, total_bytes = cupy.cuda.runtime.memGetInfo()
    torch = sys.modules.get("torch")
    torch_bytes = 0 if torch is None else int(torch.cuda.memory_reserved())
    return int(total_bytes - free_bytes) - torch_bytes, torch_bytes
