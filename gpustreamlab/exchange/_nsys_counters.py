"""Read the GPU metrics of a report of Nsight Systems as counters of the cards."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.exchange._nsys_report import NO_NUMBER, SAMPLES, Report
from gpustreamlab.model import Counters, Lane
from gpustreamlab.typing import LaneKind

NAMES = "TARGET_INFO_GPU_METRICS"
MOST_SAMPLES = 1_000_000  # The first ones; 20 s of twelve metrics at 4 kHz
_SHARES, _CLOCKS = " [Throughput %]", " Clock Frequency [MHz]"  # Of the other kinds, whole numbers do not tell the unit
_HZ = 1e6  # Clocks are stored in Hz, whatever their name says
_KNOWN = {
    "SMs Active": "sm_active_percent",
    "SM Active": "sm_active_percent",
    "Compute Warps in Flight": "sm_occupancy_percent",
    "Tensor Active": "tensor_active_percent",
    "DRAM Read Bandwidth": "dram_active_percent",  # of the same peak as writing: both are added
    "DRAM Write Bandwidth": "dram_active_percent",
    "GPC": "sm_clock_mhz",
}


def read_gpu_metrics(report: Report, first_lane: int) -> tuple[list[Lane], Counters]:
    """Return a lane for the counters of each card, and its samples: shares of a peak, and clocks.

    Each holds until the next one of its card and name. What nsys counts in other units is left out: the report holds whole
    numbers without their scale.
    """
    told = report.facts(NAMES, ["typeId", "metricId", "metricName"])
    names: dict[int, str] = {}
    for one in told:
        name = _counter_name(str(one.get("metricName", "")))
        if name and isinstance(one.get("metricId"), int):
            names[int(one["metricId"])] = name
    found = report.numbers(SAMPLES, ["timestamp", "typeId", "metricId", "value"]) if names else {}
    if not found:
        return [], Counters()
    is_good = np.isin(found["metricId"], [*names]) & (found["timestamp"] >= 0) & (found["value"] != NO_NUMBER)
    kept = np.flatnonzero(is_good)[:MOST_SAMPLES]
    if not len(kept):
        return [], Counters()
    time_ns, kind, metric, value = (found[name][kept] for name in ("timestamp", "typeId", "metricId", "value"))
    known = list(dict.fromkeys(names.values()))
    cards, card = distinct(kind & 0xFF)
    metrics, place = distinct(metric)
    code = np.array([known.index(names[one]) for one in metrics.tolist()], np.int64)[place]
    scale = np.array([1 / _HZ if name.endswith("_mhz") else 1.0 for name in known])[code]
    # What is read and what is written are of one moment: one sample.
    keys = np.stack((card, code, time_ns))
    order = np.lexsort(keys[::-1])
    begins = np.flatnonzero(np.append(True, (np.diff(keys[:, order], axis=1) != 0).any(axis=0)))
    sums = np.add.reduceat((value * scale)[order], begins)
    first = order[begins]
    by_time = np.argsort(time_ns[first], kind="stable")
    rows = first[by_time]
    counters = Counters(
        time_ns=time_ns[rows],
        lane=(card[rows] + first_lane).astype(np.int32),
        name=code[rows].astype(np.int32),
        value=sums[by_time],
        names=tuple(known),
    )
    return _lanes(cards.tolist()), counters


def _lanes(cards: Sequence[int]) -> list[Lane]:
    return [Lane(name=f"counters of GPU {card}", device=card, kind=LaneKind.HOST) for card in cards]


def _counter_name(text: str) -> str:
    """Return what a metric is called here; nothing for one whose unit is not known."""
    for suffix, unit in ((_SHARES, "percent"), (_CLOCKS, "mhz")):
        if text.endswith(suffix):
            title = text.removesuffix(suffix)
            return _KNOWN.get(title) or re.sub(r"\W+", "_", title.lower()).strip("_") + f"_{unit}"
    return ""
