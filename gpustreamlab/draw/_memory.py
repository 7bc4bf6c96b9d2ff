"""The memory that lanes hold over time, as step lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpustreamlab.draw._scene import Scene
from gpustreamlab.model import Trace
from gpustreamlab.typing import FloatArray

MAX_SAMPLES = 4_000
"""Samples of one line beyond which each stretch of time keeps its highest and its last."""

_WORDS = {
    "pool_used_bytes": ("pool in use", True),
    "pool_reserved_bytes": ("pool reserved", False),
    "async_used_bytes": ("stream-ordered in use", True),
    "scratch_used_bytes": ("scratch in use", True),
    "scratch_reserved_bytes": ("scratch reserved", False),
}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryLine:
    """One quantity of one lane: each value holds until the next time."""

    label: str
    """What it is."""
    is_filled: bool
    """True for memory in use, false for what is only reserved."""
    time_ns: FloatArray
    """When it changed, in ns since zero; shape (n,), float64, in order."""
    value: FloatArray
    """To what, in bytes; shape (n,), float64."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryStrip:
    """The lines below one lane, on one scale."""

    lane: int
    """The lane."""
    top: float
    """Upper border, in px from the top of all lanes."""
    bottom: float
    """Lower border."""
    most_bytes: float
    """The top of the scale: the highest value."""
    lines: tuple[MemoryLine, ...]
    """What is reserved, then what is in use."""


def plan_memory(trace: Trace, scene: Scene) -> tuple[MemoryStrip, ...]:
    """Return the strips of all lanes of which counters tell."""
    counters, strips = trace.counters, []
    for lane in np.unique(counters.lane).tolist():
        part = scene.lanes[lane].parts[-1]
        lines = [_line(trace, lane, code, scene.zero_ns) for code in range(len(counters.names))]
        known = sorted((line for line in lines if len(line.time_ns)), key=lambda line: line.is_filled)
        most = max((float(line.value.max()) for line in known), default=0.0)
        strips.append(MemoryStrip(lane=lane, top=part.top, bottom=part.bottom, most_bytes=most, lines=tuple(known)))
    return tuple(strips)


def memory_entries(trace: Trace, scene: Scene) -> list[dict[str, Any]]:
    """Write the strips as the viewer reads them."""
    return [
        {
            "lane": strip.lane,
            "top": round(strip.top, 2),
            "bottom": round(strip.bottom, 2),
            "most": strip.most_bytes,
            "most_text": format_bytes(strip.most_bytes),
            "lines": [
                {
                    "label": line.label,
                    "filled": line.is_filled,
                    "time": line.time_ns.tolist(),
                    "value": line.value.tolist(),
                }
                for line in strip.lines
            ],
        }
        for strip in plan_memory(trace, scene)
    ]


def format_bytes(size_bytes: float) -> str:
    """Write a number of bytes with three digits and its unit.

    Examples
    --------
    >>> format_bytes(0), format_bytes(1000), format_bytes(1536), format_bytes(16 << 20)
    ('0 B', '1000 B', '1.50 KiB', '16.0 MiB')
    """
    place = 0
    while abs(size_bytes) >= 1023.5 and place < len(_UNITS) - 1:
        size_bytes, place = size_bytes / 1024, place + 1
    digits = 0 if place == 0 or abs(size_bytes) >= 100 else 1 if abs(size_bytes) >= 10 else 2
    return f"{size_bytes:.{digits}f} {_UNITS[place]}"


def _line(trace: Trace, lane: int, code: int, zero_ns: int) -> MemoryLine:
    counters = trace.counters
    rows = np.flatnonzero((counters.lane == lane) & (counters.name == code) & np.isfinite(counters.value))
    rows = rows[np.argsort(counters.time_ns[rows], kind="stable")]
    kept = rows[_kept(counters.value[rows])]
    label, is_filled = _WORDS.get(counters.names[code], (counters.names[code].removesuffix("_bytes").replace("_", " "), True))
    time_ns = (counters.time_ns[kept] - zero_ns).astype(np.float64)
    return MemoryLine(label=label, is_filled=is_filled, time_ns=time_ns, value=counters.value[kept])


def _kept(values: FloatArray) -> Sequence[int] | slice:
    """Return the places of the samples that are kept: all, or the highest and the last of equally many."""
    if len(values) <= MAX_SAMPLES:
        return slice(None)
    bins = np.array_split(np.arange(len(values)), MAX_SAMPLES // 2)
    return sorted({int(place) for places in bins for place in (places[np.argmax(values[places])], places[-1])})
