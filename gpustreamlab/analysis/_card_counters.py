"""What counters of the card say of a time: means over it, of samples that each hold until the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gpustreamlab.analysis._busy import is_work, union_edges
from gpustreamlab.analysis._scale import rate_text
from gpustreamlab.model import CARD_COUNTERS, Trace
from gpustreamlab.typing import Cause, FloatArray, Int64Array

_UNITS = {"_percent": "%", "_bytes_per_s": "B/s", "_watts": "W", "_mhz": "MHz"}
_SIGNS = {"sm": "SM", "dram": "DRAM", "pcie": "PCIe", "nvlink": "NVLink"}
LEAST_COVER = 0.5  # Share of a time that has to be counted, for its mean to say anything of it
LEAST_WITHIN = 0.95  # Share of a sample that has to lie within a time: between kernels there are pauses
LIMIT_WITHIN = 0.8  # The same, where it is asked whether something was at its limit
MEMORY = "dram_active_percent"
MEMORY_GIVES = 0.88  # Of what a GPU's memory is rated at; a copy within an H200 draws 87%
OF_THE_MOMENT = ("sm_clock_mhz", "memory_clock_mhz", "clocks_held_down")


def counter_means(trace: Trace, start_ns: Int64Array, end_ns: Int64Array, device: int | None = None) -> dict[str, float]:
    """Return the mean of each counter of a card over times, of the samples that lie within, by how long each value held.

    Parameters
    ----------
    trace
        The trace.
    start_ns, end_ns
        The times, which do not overlap, in order; shape (n_times,), int64, in ns since the trace's epoch.
    device
        Number of the card; None for the only one.

    Returns
    -------
    dict
        By name of `gpustreamlab.model.CARD_COUNTERS`, in that order, in the unit that the name ends in. Without those that
        were counted in less than half of the times. A sample counts of which 95% lie within; a clock, of which half does, as
        it is of the moment.
    """
    means = ((name, _mean(trace, name, start_ns, end_ns, device)) for name in CARD_COUNTERS)
    return {name: mean for name, mean in means if not math.isnan(mean)}


def _mean(
    trace: Trace, name: str, start_ns: Int64Array, end_ns: Int64Array, device: int | None = None, within: float = LEAST_WITHIN
) -> float:
    """Return the mean of one counter, as `counter_means` does; NaN where it was not counted, or in too little of the times."""
    asked_ns = int((end_ns - start_ns).sum())
    if asked_ns <= 0 or name not in trace.counters.names:
        return math.nan
    least, parts = 0.5 if name in OF_THE_MOMENT else within, []
    for from_ns, until_ns, value in _samples(trace, name, device, int(end_ns[-1])):
        held_ns = _common(from_ns, until_ns, start_ns, end_ns)
        held_ns[np.isnan(value) | (held_ns < least * (until_ns - from_ns))] = 0  # else it says as much of the outside
        parts.append((held_ns, value))
    # Of those who counted enough of the times, who samples most finely tells.
    parts = [part for part in parts if part[0].sum() >= LEAST_COVER * asked_ns]
    if not parts:
        return math.nan
    held_ns, value = max(parts, key=lambda part: np.count_nonzero(part[0]))
    return float(np.average(value[held_ns > 0], weights=held_ns[held_ns > 0]))


def memory_bytes_per_s(trace: Trace, start_ns: Int64Array, end_ns: Int64Array) -> float:
    """Return what the card's memory moved in times, as `counter_means` takes them; NaN where that is not known."""
    return _mean(trace, MEMORY, start_ns, end_ns) / 100 * (trace.metadata.device.memory_bytes_per_s or math.nan)


def memory_gives(trace: Trace) -> float:
    """Return the share of what the card's memory is rated at that it gives at most, where it was counted; else all of it."""
    return MEMORY_GIVES if MEMORY in trace.counters.names and not trace.metadata.simulated else 1.0


def counted_bytes(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return what each of some work moved in the card's memory, by what was counted while the card did nothing else.

    Kernels of one name and grid move the same: it is counted over their runs one behind the other, pauses included.

    Parameters
    ----------
    trace
        The trace, of one card.
    rows
        All work of the card.

    Returns
    -------
    ndarray
        Shape (n_rows,), int64; -1 where it is not known.
    """
    found = np.full(len(rows), -1, np.int64)
    most = trace.metadata.device.memory_bytes_per_s
    if MEMORY not in trace.counters.names or not most or not len(rows):
        return found
    order = np.argsort(trace.start_ns[rows], kind="stable")
    start_ns, end_ns = trace.start_ns[rows][order], trace.end_ns[rows][order]
    grid = trace.extra.get("grid_blocks", np.zeros(len(trace), np.int64))
    _, kind = np.unique(np.stack([trace.name[rows], grid[rows]]), axis=1, return_inverse=True)
    kind = kind.reshape(-1)[order]
    joins = np.maximum.accumulate(end_ns)[:-1] > start_ns[1:]  # the work behind it
    is_shared = np.append(False, joins) | np.append(joins, False)
    first = np.flatnonzero(np.append(True, is_shared[1:] | is_shared[:-1] | (kind[1:] != kind[:-1])))
    last = np.append(first[1:], len(rows)) - 1
    first, last = first[~is_shared[first]], last[~is_shared[first]]
    device = trace.lanes[int(trace.lane[rows[0]])].device
    told = _samples(trace, MEMORY, device, int(end_ns.max()))
    if not told:
        return found
    from_ns, until_ns, value = max(told, key=lambda one: (one[1] - one[0])[~np.isnan(one[2])].sum())
    held_ns = np.where(np.isnan(value), 0, until_ns - from_ns)
    sums = np.stack([np.append(0, np.cumsum(part)) for part in (held_ns, held_ns * np.nan_to_num(value))])
    begin, end = np.searchsorted(from_ns, start_ns[first]), np.searchsorted(until_ns, end_ns[last], side="right")
    counted_ns, moved = sums[:, np.maximum(begin, end)] - sums[:, begin]
    lasted_ns = end_ns[last] - start_ns[first]
    is_told = counted_ns >= np.maximum(1, LEAST_COVER * lasted_ns)
    per_kind = [
        np.bincount(kind[first[is_told]], weights=weights[is_told], minlength=int(kind.max()) + 1)
        for weights in (moved / np.maximum(counted_ns, 1) * lasted_ns, last - first + 1)
    ]
    with np.errstate(invalid="ignore"):
        bytes_of_kind = np.nan_to_num(per_kind[0] / per_kind[1] / 100 * most / 1e9, nan=-1)
    found[order] = bytes_of_kind[kind]
    return found


def _samples(trace: Trace, name: str, device: int | None, end_ns: int) -> list[tuple[Int64Array, Int64Array, FloatArray]]:
    """Return from when until when each sample of a counter holds, and its value, in order and by who counts."""
    counters, found = trace.counters, []
    is_ours = np.array([device is None or lane.device == device for lane in trace.lanes], bool)[counters.lane]
    own = np.flatnonzero(is_ours & (counters.name == counters.names.index(name)))
    for lane in np.unique(counters.lane[own]):
        rows = own[counters.lane[own] == lane]
        rows = rows[np.argsort(counters.time_ns[rows], kind="stable")]
        from_ns = counters.time_ns[rows]
        until_ns = np.append(from_ns[1:], max(end_ns, int(from_ns[-1])))
        found.append((from_ns, until_ns, counters.value[rows]))
    return found


def means_text(means: Mapping[str, float]) -> str:
    """Write the means of counters, those that are not 0.

    Examples
    --------
    >>> means_text({"sm_active_percent": 41.2, "tensor_active_percent": 0.0, "pcie_rx_bytes_per_s": 5.5e10})
    'SM active 41 %, PCIe rx 55.0 GB/s'
    """
    return ", ".join(
        f"{title} {_amount(value, unit)}" for name, value in means.items() if value for title, unit in [_words(name)]
    )


def counter_label(name: str, most: float) -> str:
    """Write what a counter counts, with its unit, and what is at the top of its scale where that is not 100%.

    Examples
    --------
    >>> counter_label("sm_active_percent", 100), counter_label("pcie_rx_bytes_per_s", 5.5e10), counter_label("queue length", 3)
    ('SM active (%)', 'PCIe rx, to 55.0 GB/s', 'queue length, to 3')
    """
    title, unit = _words(name)
    if name == "clocks_held_down":
        return title
    return f"{title} ({unit})" if unit == "%" else f"{title}, to {_amount(most, unit)}"


def _words(name: str) -> tuple[str, str]:
    """Return what stands for a counter's name, and its unit."""
    for suffix, unit in _UNITS.items():
        if name.endswith(suffix):
            return " ".join(_SIGNS.get(word, word) for word in name.removesuffix(suffix).split("_")), unit
    return (name.replace("_", " ") if name in CARD_COUNTERS else name), ""


def _amount(value: float, unit: str) -> str:
    return rate_text(value) if unit == "B/s" else f"{value:,.0f} {unit}".rstrip()


def _common(from_ns: Int64Array, until_ns: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> FloatArray:
    """Return how much of each piece lies in times that do not overlap; shape (n_pieces,)."""
    passed_ns = np.append(0, np.cumsum(end_ns - start_ns))

    def within(moment_ns: Int64Array) -> Int64Array:
        """Return how much of the times has passed at each moment."""
        place = np.searchsorted(start_ns, moment_ns, side="right") - 1
        inside = np.minimum(moment_ns, end_ns[np.maximum(place, 0)]) - start_ns[np.maximum(place, 0)]
        found: Int64Array = np.where(place < 0, 0, passed_ns[np.maximum(place, 0)] + inside)
        return found

    common: FloatArray = (within(until_ns) - within(from_ns)).astype(np.float64)
    return common


CLOCK_STAYS_NS = 200_000_000  # An idle card lowers its clocks, but not at once; what it idles at says nothing of its kernels
LEAST_CLOCK_CHANGE = 0.02  # Of the SMs' clock between two traces, from which on it is said


def clock_note(a: Trace, b: Trace) -> str:
    """Say that the SMs of one of two traces were clocked lower, where both counted it; else nothing."""
    whole = (counter_means(one, *_worked(one)) if len(one) else {} for one in (a, b))
    means = dict(zip(("a", "b"), whole, strict=True))
    clocks = {side: found["sm_clock_mhz"] for side, found in means.items() if found.get("sm_clock_mhz")}
    if len(clocks) < 2:
        return ""
    (low, low_mhz), (high, high_mhz) = sorted(clocks.items(), key=lambda item: item[1])
    if high_mhz < (1 + LEAST_CLOCK_CHANGE) * low_mhz:
        return ""
    held = means[low].get("clocks_held_down", 0.0)
    why = f", held down by power, heat or hardware in {held:.0%} of the time" if held else ""
    more = high_mhz / low_mhz - 1
    return (
        f"The SMs ran at {low_mhz:,.0f} MHz in {low}, at {high_mhz:,.0f} MHz in {high}{why}: kernels that the SMs bound take "
        f"up to {more:.0%} longer in {low} for that alone."
    )


def _worked(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return from when until when the card worked, with pauses in which its clock stays."""
    rows = work if (work := is_work(trace)).any() else np.ones(len(trace), bool)
    edges_ns = union_edges(trace.start_ns[rows], trace.end_ns[rows])
    stays = np.flatnonzero(edges_ns[2::2] - edges_ns[1:-1:2] < CLOCK_STAYS_NS)
    edges_ns = np.delete(edges_ns, np.concatenate([2 * stays + 1, 2 * stays + 2]))
    return edges_ns[::2], edges_ns[1::2]


MEMORY_FULL, SMS_FULL = 75.0, 90.0
"""Percent from which on memory, or the SMs, are the limit; a copy draws 87 of an H200's memory."""


def counted_text(trace: Trace, code: Cause, rows: Int64Array) -> tuple[str, bool]:
    """Say what was counted while kernels ran that were slowed down or filled the card, and whether that shows the limit.

    The text is empty where nothing was counted while they ran, or nothing that changes what is to be said.
    """
    if not len(trace.counters) or not len(rows) or code not in (Cause.SLOWED_DOWN, Cause.GRID_FILLS_DEVICE):
        return "", False
    edges_ns = union_edges(trace.start_ns[rows], trace.end_ns[rows])
    device = trace.lanes[int(trace.lane[rows[0]])].device
    # Streams that work at once wait for each other now and then: what a limit showed in most of a sample, it showed.
    times = edges_ns[::2], edges_ns[1::2]
    sms, memory = (_mean(trace, name, *times, device, LIMIT_WITHIN) for name in ("sm_active_percent", MEMORY))
    if math.isnan(sms) or math.isnan(memory):
        return "", False
    if code is Cause.GRID_FILLS_DEVICE:
        is_held = sms < SMS_FULL - 30
        return (f" Counted: {sms:.0f}% of the SMs were active meanwhile: they were held, not busy." if is_held else ""), False
    told = f" Counted meanwhile: memory {memory:.0f}% active, SMs {sms:.0f}%"
    if memory >= MEMORY_FULL:
        return f"{told}; whoever has the SMs, they share the memory's bandwidth.", True
    if sms >= SMS_FULL:
        return f"{told}; they share the SMs.", True
    return f"{told}; neither was at its limit.", False
