"""How much of the lanes' work ran at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab.analysis._busy import busy_edges, counted_kinds, counted_rows, range_only_ns
from gpustreamlab.analysis._overlap_pair import OverlapPair
from gpustreamlab.analysis._report import Report, Reported
from gpustreamlab.analysis._require import require_trace
from gpustreamlab.analysis._shared import NOTHING_SHARED, Shared, shared_time
from gpustreamlab.analysis._sweep import MASK_LANES, count_durations, mask_durations
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import Lane, Trace, TraceMetadata
from gpustreamlab.typing import FloatArray, Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Overlap(Reported):
    """Busy time of lanes, alone and together. All times are exact integers of nanoseconds.

    A lane is busy while at least one of its counted spans runs: nested and repeated spans count once. See `counted` for which
    spans count. Where those are ranges they also contain the queueing inside them, so the overlap is an upper
    bound of what the hardware did at the same time.
    """

    lanes: tuple[Lane, ...]
    """The streams, in the order of the rows and columns. No threads of the host, no streams of others on which nothing ran."""
    busy_ns: Int64Array
    """Busy time of each lane; shape (n_lanes,), int64, in ns."""
    common_ns: Int64Array
    """Time in which both lanes were busy; shape (n_lanes, n_lanes), int64, in ns, symmetric; the diagonal is `busy_ns`."""
    concurrency_ns: Int64Array
    """Time with exactly k lanes busy, from k = 0; shape (n_lanes + 1,), int64, in ns. Its sum is `wall_ns`."""
    wall_ns: int
    """From the first start to the last end of the counted spans, in ns."""
    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as busy time."""
    metadata: TraceMetadata
    """Where the numbers come from."""
    range_only_ns: int = 0
    """How much of `sum_ns` is known from ranges only, in ns: an upper bound, as they also contain queueing."""
    shared: Shared = NOTHING_SHARED
    """What the lanes share, as far as it is known."""

    _columns: ClassVar = ("busy_ns", "common_ns", "concurrency_ns")

    @property
    def sum_ns(self) -> int:
        """What the lanes' busy times add up to, in ns: how long the same spans take one after the other."""
        return int(self.busy_ns.sum())

    @property
    def active_ns(self) -> int:
        """Time in which at least one lane was busy, in ns."""
        return int(self.concurrency_ns[1:].sum())

    @property
    def ideal_ns(self) -> int:
        """Least time that this work takes at full speed, in ns: the busiest lane's, or that of what several lanes share."""
        return max(int(self.busy_ns.max(initial=0)), self.shared.busy_ns)

    @property
    def mean_concurrency(self) -> float:
        """Mean number of lanes busy while any is: `sum_ns` / `active_ns`; NaN if none ever was.

        It is no speed-up: work that was slowed by other work was busy for longer.
        """
        return _ratio(self.sum_ns, self.active_ns)

    @property
    def max_concurrency(self) -> float:
        """The same if this work took `ideal_ns`: `sum_ns` / `ideal_ns`; NaN if no lane was ever busy."""
        return _ratio(self.sum_ns, self.ideal_ns)

    @property
    def common_share(self) -> FloatArray:
        """`common_ns` as a share of the shorter busy time of the two lanes.

        1.0 means that the lane with less work was hidden behind the other one completely.

        Returns
        -------
        ndarray of float64, shape (n_lanes, n_lanes)
            From 0 to 1; NaN where one of the two was never busy.
        """
        shorter_ns = np.minimum(self.busy_ns[:, None], self.busy_ns[None, :])
        shares: FloatArray = np.full(shorter_ns.shape, np.nan)
        np.divide(self.common_ns, shorter_ns, out=shares, where=shorter_ns > 0)
        return shares

    def __getitem__(self, streams: tuple[str, str]) -> OverlapPair:
        """Return the figures of two streams, by their names: ``overlap["copy", "compute"]``.

        Raises
        ------
        StreamNotFoundError
            If there is no such stream.
        OptionError
            If these are not two names.
        """
        names: list[str] = [lane.name for lane in self.lanes]
        given: object = streams
        if not isinstance(given, tuple) or len(given) != 2:
            raise OptionError(f"overlap[{streams!r:.60}] is no pair of streams. Use overlap['copy', 'compute'].")
        for name in streams:
            if name not in names:
                raise StreamNotFoundError(f"The overlap has no stream {name!r}. {nearest_hint(str(name), names)}")
        first, second = map(names.index, streams)
        return OverlapPair(
            streams=streams,
            busy_ns=(int(self.busy_ns[first]), int(self.busy_ns[second])),
            common_ns=int(self.common_ns[first, second]),
            device=self.metadata.device.label,
            is_upper_bound=SpanKind.RANGE in self.counted,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each ordered pair of lanes, as a `pandas.DataFrame`.

        The columns are ``stream``, ``other``, ``common_ns`` and ``common_share``. A lane with itself has its busy time, so
        ``pivot(index="stream", columns="other", values="common_ns")`` gives the whole matrix.
        """
        import pandas as pd

        names = np.array([lane.name for lane in self.lanes], dtype=object)
        count = len(names)
        return pd.DataFrame(
            {
                "stream": np.repeat(names, count),
                "other": np.tile(names, count),
                "common_ns": self.common_ns.ravel(),
                "common_share": self.common_share.ravel(),
            }
        )

    def _line(self) -> str:
        from gpustreamlab.analysis._overlap_text import overlap_line

        return overlap_line(self)

    def _report(self) -> Report:
        from gpustreamlab.analysis._overlap_text import overlap_report

        return overlap_report(self)


def overlap(trace: Trace) -> Overlap:
    """Compute how much of the lanes' work ran at the same time.

    Parameters
    ----------
    trace
        The spans. Their order does not matter.

    Returns
    -------
    Overlap
        Exact to the nanosecond of the trace's own times.

    Raises
    ------
    TraceError
        If the trace lasts longer than 9 years, which only wrong times do.
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.analysis import overlap
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 250], queued_ns=[0, 0], lane=[0, 1], name=[0, 1], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("copy", "gemm"), threads=("MainThread",),
    ...     lanes=(Lane(name="copies", stream=1), Lane(name="compute", stream=2)),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> result = overlap(trace)
    >>> result.common_ns.tolist(), result.concurrency_ns.tolist(), result.wall_ns, result.mean_concurrency
    ([[100, 50], [50, 200]], [0, 200, 50], 250, 1.2)
    """
    require_trace(trace, "overlap")
    kinds = counted_kinds(trace)
    edges_of_all = busy_edges(trace, kinds)
    lanes = [
        place
        for place, lane in enumerate(trace.lanes)
        if lane.kind is LaneKind.STREAM and (edges_of_all[place].size or not lane.outside)
    ]
    edges = [edges_of_all[place] for place in lanes]
    first_ns, last_ns = _extent(trace, kinds)
    common_ns, concurrency_ns = _matrix(edges) if len(edges) <= MASK_LANES else _matrix_in_blocks(edges)
    concurrency_ns[0] = (last_ns - first_ns) - int(concurrency_ns[1:].sum())
    return Overlap(
        lanes=tuple(trace.lanes[place] for place in lanes),
        busy_ns=np.diagonal(common_ns),
        common_ns=common_ns,
        concurrency_ns=concurrency_ns,
        wall_ns=last_ns - first_ns,
        counted=kinds,
        metadata=trace.metadata,
        range_only_ns=range_only_ns(trace, kinds, int(np.diagonal(common_ns).sum())),
        shared=shared_time(trace, kinds),
    )


def _extent(trace: Trace, kinds: Sequence[SpanKind]) -> tuple[int, int]:
    rows = counted_rows(trace, kinds)
    if not rows.any():
        return 0, 0
    if rows.all():
        return int(trace.start_ns.min()), int(trace.end_ns.max())
    return int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())


def _matrix(edges: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the common times and the concurrency of at most `MASK_LANES` lanes."""
    durations_ns = mask_durations(edges)
    set_sizes = _set_sizes(len(edges))
    concurrency_ns = np.zeros(len(edges) + 1, np.int64)
    np.add.at(concurrency_ns, set_sizes, durations_ns)
    at_least_ns = _superset_sums(durations_ns, len(edges))
    bits = np.left_shift(1, np.arange(len(edges)))
    return at_least_ns[bits[:, None] | bits[None, :]], concurrency_ns


def _matrix_in_blocks(edges: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the same for any number of lanes: half a mask of lanes against every other half."""
    half = MASK_LANES // 2
    blocks = [range(first, min(first + half, len(edges))) for first in range(0, len(edges), half)]
    common_ns = np.zeros((len(edges), len(edges)), np.int64)
    for index, block in enumerate(blocks):
        for other in blocks[index + 1 :]:
            members = [*block, *other]
            common_ns[np.ix_(members, members)] = _matrix([edges[lane] for lane in members])[0]
    return common_ns, count_durations(edges)


def _set_sizes(lane_count: int) -> Int64Array:
    """Return how many bits each index below 2 ** lane_count has set."""
    sizes = np.zeros(1, np.int64)
    for _ in range(lane_count):
        sizes = np.concatenate((sizes, sizes + 1))
    return sizes


def _superset_sums(durations_ns: Int64Array, lane_count: int) -> Int64Array:
    """Return, for each set of lanes, how long at least these were busy."""
    sums = durations_ns.copy()
    for lane in range(lane_count):
        pairs = sums.reshape(-1, 2, 1 << lane)
        pairs[:, 0] += pairs[:, 1]
    return sums


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
