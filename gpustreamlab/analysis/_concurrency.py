"""How many lanes were busy at once, for any number of lanes: what `overlap` says without its matrix of pairs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis._busy import busy_edges, counted_kinds, counted_rows, range_only_ns
from gpustreamlab.analysis._require import require_trace
from gpustreamlab.analysis._shared import NOTHING_SHARED, Shared, concurrency_text, shared_time
from gpustreamlab.analysis._sweep import count_steps
from gpustreamlab.model import Trace
from gpustreamlab.typing import Int64Array, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Busy time of all lanes together. All times are exact integers of nanoseconds."""

    wall_ns: int
    """From the first start to the last end of the counted spans, in ns."""
    sum_ns: int
    """What the lanes' busy times add up to, in ns."""
    active_ns: int
    """Time in which at least one lane was busy, in ns."""
    together_ns: int
    """Time in which two or more lanes were busy, in ns."""
    busiest_ns: int
    """Busy time of the busiest lane, in ns."""
    peak_lanes: int
    """Most lanes that were busy at one time."""
    range_only_ns: int = 0
    """How much of `sum_ns` is known from ranges only, in ns: an upper bound, as they also contain queueing."""
    shared: Shared = NOTHING_SHARED
    """What the lanes share, as far as it is known."""

    @property
    def mean_concurrency(self) -> float:
        """Mean number of lanes busy while any is: `sum_ns` / `active_ns`; NaN if none ever was.

        It is no speed-up: work that was slowed by other work was busy for longer.
        """
        return self.sum_ns / self.active_ns if self.active_ns else float("nan")

    @property
    def max_concurrency(self) -> float:
        """The same if this work took `ideal_ns`: `sum_ns` / `ideal_ns`; NaN if no lane was ever busy."""
        return self.sum_ns / self.ideal_ns if self.ideal_ns else float("nan")

    @property
    def ideal_ns(self) -> int:
        """Least time that this work takes at full speed, in ns: the busiest lane's, or that of what several lanes share."""
        return max(self.busiest_ns, self.shared.busy_ns)

    def mean_text(self, counted: Collection[SpanKind]) -> str:
        """Write `mean_concurrency` and its bound in words, given which kinds of spans count."""
        reason = self.shared.reason if self.shared.busy_ns > self.busiest_ns else ""
        return concurrency_text(self.mean_concurrency, self.max_concurrency, reason, counted)

    @property
    def together_share(self) -> float:
        """`together_ns` as a share of `wall_ns`; NaN where nothing ran."""
        return self.together_ns / self.wall_ns if self.wall_ns else float("nan")


def concurrency(
    trace: Trace,
    edges: Sequence[Int64Array] | None = None,
    steps: tuple[Int64Array, Int64Array] | None = None,
) -> Concurrency:
    """Compute how much of a trace's work ran at the same time.

    Parameters
    ----------
    trace
        The spans. Their order does not matter.
    edges
        What `busy_edges` returned for them, where it is known already.
    steps
        What `count_steps` returned for those, where it is known already.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 250], queued_ns=[0, 0], lane=[0, 1], name=[0, 1], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("copy", "gemm"), threads=("MainThread",),
    ...     lanes=(Lane(name="copies", stream=1), Lane(name="compute", stream=2)),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> result = concurrency(trace)
    >>> result.wall_ns, result.sum_ns, result.together_ns, result.peak_lanes, result.mean_concurrency
    (250, 300, 50, 2, 1.2)
    """
    require_trace(trace, "concurrency")
    kinds = counted_kinds(trace)
    edges = busy_edges(trace, kinds) if edges is None else edges
    times_ns, counts = count_steps(edges) if steps is None else steps
    lasting_ns = np.diff(times_ns)
    counts_then = counts[: len(lasting_ns)]
    lanes_ns = [int((lane[1::2] - lane[0::2]).sum()) for lane in edges]
    rows = counted_rows(trace, kinds)
    wall_ns = int(trace.end_ns[rows].max()) - int(trace.start_ns[rows].min()) if rows.any() else 0
    return Concurrency(
        wall_ns=wall_ns,
        sum_ns=sum(lanes_ns),
        active_ns=int(lasting_ns[counts_then > 0].sum()),
        together_ns=int(lasting_ns[counts_then > 1].sum()),
        busiest_ns=max(lanes_ns, default=0),
        peak_lanes=int(counts.max(initial=0)),
        range_only_ns=range_only_ns(trace, kinds, sum(lanes_ns)),
        shared=shared_time(trace, kinds),
    )
