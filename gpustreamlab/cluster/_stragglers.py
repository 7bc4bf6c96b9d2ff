"""Which engine takes longer than the others for the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpustreamlab.errors import OptionError
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import SpanKind

LEAST_ENGINES = 3
"""Of two that differ nobody knows which is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """An engine that took longer for ranges of one name than the others."""

    engine: str
    """Which."""
    name: str
    """The ranges."""
    total_ns: int
    """How long they took there together, in ns."""
    median_ns: float
    """How long they took on the engines that have them, the median, in ns."""
    count: int
    """How many there were."""
    median_count: float
    """How many there were on those engines, the median: an engine that has more to do is no slower."""

    @property
    def factor(self) -> float:
        """How many times as long it took."""
        return self.total_ns / self.median_ns

    def __str__(self) -> str:
        more = "" if self.count == self.median_count else f", for {self.count:,} ranges instead of {self.median_count:,.0f}"
        return f"engine {self.engine}: {self.name!r} takes {self.factor:.2f} times as long as the median of all{more}"


def find_stragglers(traces: Mapping[str, Trace], at_least: object) -> tuple[Straggler, ...]:
    """Return the engines that took so many times as long as the median for ranges of a name, the worst first.

    Names that fewer than three engines have are left out.

    Raises
    ------
    OptionError
        If `at_least` is not above 1.
    """
    if isinstance(at_least, bool) or not isinstance(at_least, (int, float)) or not at_least > 1:
        raise OptionError(f"at_least is {at_least!r}; it is a factor above 1: lab.stragglers(at_least=1.2).")
    totals: dict[str, dict[str, tuple[int, int]]] = {}
    for engine, trace in traces.items():
        rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.RANGE))
        codes = trace.name[rows]
        counts = np.bincount(codes, minlength=len(trace.names))
        sums = np.zeros(len(trace.names), np.int64)
        np.add.at(sums, codes, trace.duration_ns[rows])
        for code in np.flatnonzero(counts).tolist():
            totals.setdefault(trace.names[code], {})[engine] = int(sums[code]), int(counts[code])
    found = []
    for name, by_engine in totals.items():
        median_ns, median_count = np.median(np.array([*by_engine.values()]), axis=0).tolist()
        if len(by_engine) < LEAST_ENGINES or not median_ns:
            continue
        found += [
            Straggler(engine=engine, name=name, total_ns=total_ns, median_ns=median_ns, count=count, median_count=median_count)
            for engine, (total_ns, count) in by_engine.items()
            if total_ns >= at_least * median_ns
        ]
    return tuple(sorted(found, key=lambda one: -one.factor))
