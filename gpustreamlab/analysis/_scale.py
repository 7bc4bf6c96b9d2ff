"""What a picture's scale needs: levels of detail, ticks, units, groups of names."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.typing import FloatArray, Int64Array

BIN_PX = 1.5  # How wide a bin is at least, in px

PICK_SAMPLES = 8  # How many spans of a merged item are asked for the longest, which gives it its colour


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """Items that stand for spans, in the order of these."""

    first: Int64Array  # Place of the first span of each item; shape (n_items,), int64
    last: Int64Array  # Place of the last one; shape (n_items,), int64
    left_ns: Int64Array  # Start of the first span; shape (n_items,), int64
    right_ns: Int64Array  # Latest end of the spans; shape (n_items,), int64
    count: Int64Array  # How many spans there are; shape (n_items,), int64
    busy_ns: Int64Array  # Sum of their durations; shape (n_items,), int64
    pick: Int64Array  # Place of the longest of up to eight evenly spaced ones; shape (n_items,), int64

    def __len__(self) -> int:
        return len(self.first)


def bin_width_ns(ns_per_px: float) -> int:
    """Return the smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 … ns that is at least 1.5 px."""
    wanted_ns = BIN_PX * ns_per_px
    width_ns = 1
    while width_ns < wanted_ns:
        if width_ns > 1 and width_ns * 3 // 2 >= wanted_ns:
            return width_ns * 3 // 2
        width_ns *= 2
    return width_ns


def merge_narrow(row: Int64Array, start_ns: Int64Array, end_ns: Int64Array, bin_ns: int) -> Merged:
    """Merge spans that are narrower than a bin."""
    duration_ns = end_ns - start_ns
    bin_number, is_long = start_ns // bin_ns, duration_ns >= bin_ns
    follows = (row[1:] == row[:-1]) & (bin_number[1:] == bin_number[:-1]) & ~is_long[1:] & ~is_long[:-1]
    first = np.flatnonzero(np.append(True, ~follows)[: len(row)])
    last = np.append(first[1:], len(row))[: len(first)] - 1
    if not len(first):
        return Merged(first=first, last=last, left_ns=first, right_ns=first, count=first, busy_ns=first, pick=first)
    return Merged(
        first=first,
        last=last,
        left_ns=start_ns[first],
        right_ns=np.maximum.reduceat(end_ns, first),
        count=last - first + 1,
        busy_ns=np.add.reduceat(duration_ns, first),
        pick=_pick_longest(duration_ns, first, last),
    )


def _pick_longest(duration_ns: Int64Array, first: Int64Array, last: Int64Array) -> Int64Array:
    pick = first.copy()
    several = np.flatnonzero(last > first)
    width = (last - first)[several]
    samples = first[several, None] + width[:, None] * np.arange(PICK_SAMPLES) // (PICK_SAMPLES - 1)
    longest = duration_ns[samples].argmax(axis=1)
    pick[several] = samples[np.arange(len(several)), longest]
    return pick


UNITS = (("ns", 1), ("µs", 10**3), ("ms", 10**6), ("s", 10**9), ("min", 60 * 10**9))  # Units of time, and how many ns each has

FIRST_MINUTE_NS = 120 * 10**9  # From here on times are written in minutes


def format_ns(duration_ns: float) -> str:
    """Write a time with three significant digits in the unit that suits it: ns, µs, ms, s or min."""
    if duration_ns < 0:
        return f"-{format_ns(-duration_ns)}"
    if duration_ns < 999.5:
        return f"{duration_ns:.3g} ns"
    # A time that would be written as 1,000 of a unit is written as 1 of the next.
    limits_ns = (10**6, 10**9, FIRST_MINUTE_NS, math.inf)
    unit, scale = next(unit for unit, limit_ns in zip(UNITS[1:], limits_ns, strict=True) if duration_ns < limit_ns * 0.9995)
    return f"{three_digits(duration_ns / scale)} {unit}"


def format_ms(duration_ns: float) -> str:
    """Write a time in ms with three significant digits, without the unit."""
    value = duration_ns / 1e6
    if not value:
        return "0"
    if abs(value) < 1:
        return f"{value:#.3g}" if abs(value) >= 1e-4 else f"{value:.6f}"
    return three_digits(value)


def three_digits(value: float) -> str:
    """Write a number of at least 1 with three significant digits, and all digits in front of the point."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def rate_text(bytes_per_s: float) -> str:
    """Write a rate to three digits; nothing for one that is not known.

    Examples
    --------
    >>> rate_text(5.65e10), rate_text(4.25e12), rate_text(5e6), rate_text(float("nan"))
    ('56.5 GB/s', '4,250 GB/s', '0.005 GB/s', '')
    """
    rate = bytes_per_s / 1e9
    return "" if math.isnan(rate) else f"{three_digits(rate) if rate >= 1 else f'{rate:.3g}'} GB/s"


def count_text(count: int, one: str, many: str = "") -> str:
    """Write how many there are of something."""
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def ratios(parts: Int64Array | FloatArray, wholes: Int64Array | FloatArray) -> FloatArray:
    """Divide, entry by entry; NaN where there is nothing to divide by."""
    shares: FloatArray = np.divide(parts, wholes, out=np.full(wholes.shape, np.nan), where=wholes > 0)
    return shares


def format_share(share: float) -> str:
    """Write a share of 0 to 1 as a percentage, without rounding something to nothing or a part to the whole."""
    if share != share:
        return "-"
    if 0 < share <= 0.005:
        return "<1%"
    if 0.995 <= share < 1:
        return ">99%"
    return f"{share:.0%}"


_MINUTE_STEPS = (30, 60, 120, 300, 600, 900, 1800, 3600)


def time_ticks(start_ns: float, end_ns: float, tick_count: int = 8) -> list[tuple[float, str]]:
    """Choose round ticks for a time axis."""
    width_ns = end_ns - start_ns
    if not width_ns > 0:
        return []
    step_ns = _round_step(width_ns / max(1, tick_count), width_ns)
    unit, scale = _axis_unit(width_ns)
    decimals = max(0, math.ceil(-math.log10(step_ns / scale) - 1e-9)) if unit != "min" else int(step_ns % scale > 0)
    first, last = math.ceil(start_ns / step_ns - 1e-9), math.floor(end_ns / step_ns + 1e-9)
    return [(index * step_ns, f"{index * step_ns / scale:,.{decimals}f} {unit}") for index in range(first, last + 1)]


def _axis_unit(width_ns: float) -> tuple[str, int]:
    """Return the unit for an axis that shows this much time, and how many ns it has."""
    if width_ns > FIRST_MINUTE_NS:
        return UNITS[-1]
    return next((unit for unit in reversed(UNITS[:-1]) if width_ns >= unit[1]), UNITS[0])


def _round_step(least_ns: float, width_ns: float) -> float:
    if width_ns > FIRST_MINUTE_NS:
        minutes = next((step * 10**9 for step in _MINUTE_STEPS if step * 10**9 >= least_ns), 0)
        return minutes or _decimal_step(least_ns / (3600 * 10**9)) * 3600 * 10**9
    return _decimal_step(least_ns)


def _decimal_step(least: float) -> float:
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


# As `nameGroup` of viewer/legend.js. A number that stands by itself; "fp16" and "128x64" have none.
_NUMBER = re.compile(r"(?<![^\s_\-#:/.=\[(])[0-9]+(?![^\s_\-:/.,\])])")
# What PyTorch writes behind the name of an operator: its how many-th call it is.
_CALL_NUMBER = re.compile(r"\b(seq|op_id) = [0-9]+")


def name_group(name: str) -> str:
    """Return the name with a star for each number that stands by itself; of names of C++ only for those that count calls."""
    if "<" in name or "::" in name:
        return _CALL_NUMBER.sub(r"\1 = *", name)
    return _NUMBER.sub("*", name)


def group_labels(names: Sequence[str]) -> list[str]:
    """Return for each name that of its group; its own where it is the only one."""
    sizes = Counter(map(name_group, set(names)))
    return [group if sizes[group := name_group(name)] > 1 else name for name in names]
