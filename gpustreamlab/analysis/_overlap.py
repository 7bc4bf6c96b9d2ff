"""How much of each two lanes' work ran at the same time, and of all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab.analysis._busy import (
    MASK_LANES,
    busy_edges,
    busy_word,
    count_durations,
    counted_extent,
    counted_kinds,
    mask_durations,
    range_only_ns,
    require_trace,
)
from gpustreamlab.analysis._concurrency import NOTHING_SHARED, Concurrency, Shared, bound_note, shared_time
from gpustreamlab.analysis._report import Answer, ReportTable, more_row, text_column, text_lines
from gpustreamlab.analysis._scale import count_text, format_ms, format_ns, format_share, ratios
from gpustreamlab.analysis._summary import empty_hint, pending_text
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import NO_COMMON_TIME, Lane, Trace, TraceMetadata, display_name
from gpustreamlab.typing import FloatArray, Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OverlapPair:
    """Two lanes of an `Overlap`, as ``overlap["copy", "compute"]`` gives them.

    Examples
    --------
    >>> pair = OverlapPair(streams=("copy", "gemm"), busy_ns=(100, 200), common_ns=50, device="demo", is_upper_bound=False)
    >>> print(pair)
    copy and gemm on demo: 50 ns in common, 50% of copy, 25% of gemm
    >>> pair.shares, pair.common_share
    ((0.5, 0.25), 0.5)
    """

    streams: tuple[str, str]
    """Their names."""
    busy_ns: tuple[int, int]
    """Busy time of each, in ns."""
    common_ns: int
    """Time in which both were busy, in ns."""
    device: str
    """The device, or how many there are, marked where simulated."""
    is_upper_bound: bool
    """True where ranges count, which also contain the queueing inside them."""

    @property
    def shares(self) -> tuple[float, float]:
        """`common_ns` as a share of the busy time of each, from 0 to 1; NaN for one that was never busy."""
        first, second = (self.common_ns / busy_ns if busy_ns else math.nan for busy_ns in self.busy_ns)
        return first, second

    @property
    def common_share(self) -> float:
        """`common_ns` as a share of the shorter busy time, from 0 to 1; NaN where one of both was never busy."""
        return self.common_ns / min(self.busy_ns) if min(self.busy_ns) else math.nan

    def __str__(self) -> str:
        names = [display_name(name, 32) for name in self.streams]
        most = "at most " if self.is_upper_bound else ""
        shares = [f"{format_share(share)} of {name}" for share, name in zip(self.shares, names, strict=True)]
        where = f"{' and '.join(names)} on {display_name(self.device)}"
        return f"{where}: {most}{format_ns(self.common_ns)} in common, {', '.join(shares)}"

    def __repr__(self) -> str:
        return f"<OverlapPair: {self}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Overlap(Answer):
    """Busy time of lanes, alone and together. All times are exact integers of nanoseconds.

    A lane is busy while at least one of its counted spans runs: nested and repeated spans count once. See `counted` for which
    spans count. Where those are ranges they also contain the queueing inside them, so the overlap is an upper
    bound of what the hardware did at the same time.
    """

    lanes: tuple[Lane, ...] = field()  # without it the property of all answers were its default
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
    range_only_ns: int = 0
    """How much of `sum_ns` is known from ranges only, in ns: an upper bound, as they also contain queueing."""
    shared: Shared = NOTHING_SHARED
    """What the lanes share, as far as it is known."""

    _columns: ClassVar = ("busy_ns", "common_ns", "concurrency_ns")
    _title: ClassVar = "Overlap of"

    @property
    def _together(self) -> Concurrency:
        return Concurrency(
            wall_ns=self.wall_ns,
            sum_ns=int(self.busy_ns.sum()),
            active_ns=int(self.concurrency_ns[1:].sum()),
            together_ns=int(self.concurrency_ns[2:].sum()),
            busiest_ns=int(self.busy_ns.max(initial=0)),
            peak_lanes=int(np.flatnonzero(self.concurrency_ns).max(initial=0)),
            range_only_ns=self.range_only_ns,
            shared=self.shared,
        )

    @property
    def sum_ns(self) -> int:
        """What the lanes' busy times add up to, in ns: how long the same spans take one after the other."""
        return self._together.sum_ns

    @property
    def active_ns(self) -> int:
        """Time in which at least one lane was busy, in ns."""
        return self._together.active_ns

    @property
    def ideal_ns(self) -> int:
        """Least time that this work takes at full speed, in ns: the busiest lane's, or that of what several lanes share."""
        return self._together.ideal_ns

    @property
    def mean_concurrency(self) -> float:
        """Mean number of lanes busy while any is: `sum_ns` / `active_ns`; NaN if none ever was.

        It is no speed-up: work that was slowed by other work was busy for longer.
        """
        return self._together.mean_concurrency

    @property
    def max_concurrency(self) -> float:
        """The same if this work took `ideal_ns`: `sum_ns` / `ideal_ns`; NaN if no lane was ever busy."""
        return self._together.max_concurrency

    @property
    def common_share(self) -> FloatArray:
        """`common_ns` as a share of the shorter busy time of the two lanes.

        1.0 means that the lane with less work was hidden behind the other one completely.

        Returns
        -------
        ndarray of float64, shape (n_lanes, n_lanes)
            From 0 to 1; NaN where one of the two was never busy.
        """
        return ratios(self.common_ns, np.minimum(self.busy_ns[:, None], self.busy_ns[None, :]))

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
            device=_devices_label(self.metadata, (self.lanes[first], self.lanes[second])),
            is_upper_bound=SpanKind.RANGE in self.counted,
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each ordered pair of lanes, as a `pandas.DataFrame`.

        The columns are ``stream``, ``other``, ``common_ns`` and ``common_share``. A lane with itself has its busy time, so
        ``pivot(index="stream", columns="other", values="common_ns")`` gives the whole matrix.
        """
        import pandas as pd

        first, second = np.indices(self.common_ns.shape)
        names = [lane.name for lane in self.lanes]
        return pd.DataFrame(
            {
                "stream": text_column(names, first.ravel()),
                "other": text_column(names, second.ravel()),
                "common_ns": self.common_ns.ravel(),
                "common_share": self.common_share.ravel(),
            }
        )

    def _line(self) -> str:
        lanes = f"{count_text(len(self.lanes), 'stream')} on {display_name(self.metadata.device_label)}"
        if not self.sum_ns:
            return f"{lanes}, no time recorded"
        total = f"sum over streams {format_ns(self.sum_ns)}, mean concurrency {self._together.mean_text(self.counted)}"
        return f"{lanes}, wall {format_ns(self.wall_ns)}, {total}"

    def _tables(self) -> list[ReportTable]:
        if not self.sum_ns:
            return []
        common = [_matrix_table(self)] if len(self.lanes) <= MATRIX_LANES else [_times(self), _pairs(self)]
        return [*common, _histogram(self)]

    def _notes(self) -> list[str]:
        if self.sum_ns:
            return [*_meaning(self), *_missing(self.metadata)]
        hint = empty_hint(self.metadata, nothing="Nothing to compare yet")
        return [*([f"{hint}."] if hint else []), *_missing(self.metadata)]


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
    OptionError
        If it is no trace, or one of several simulated engines, which have no time in common.

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
    _require_common_time(trace.metadata, [trace.lanes[place] for place in lanes if edges_of_all[place].size])
    first_ns, last_ns = counted_extent(trace, kinds)
    common_ns, concurrency_ns = _matrix(edges) if len(edges) <= MASK_LANES else _matrix_in_blocks(edges)
    concurrency_ns[0] = (last_ns - first_ns) - int(concurrency_ns[1:].sum())
    return Overlap(
        lanes=tuple(trace.lanes[place] for place in lanes),
        busy_ns=np.diagonal(common_ns),
        common_ns=common_ns,
        concurrency_ns=concurrency_ns,
        wall_ns=last_ns - first_ns,
        counted=kinds,
        trace=trace,
        range_only_ns=range_only_ns(trace, kinds, int(np.diagonal(common_ns).sum())),
        shared=shared_time(trace, kinds),
    )


def _matrix(edges: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the common times and the concurrency of at most `MASK_LANES` lanes."""
    durations_ns = mask_durations(edges)
    lane_counts = np.zeros(1, np.int64)  # by mask: how many bits it has set
    for _ in edges:
        lane_counts = np.concatenate((lane_counts, lane_counts + 1))
    concurrency_ns = np.zeros(len(edges) + 1, np.int64)
    np.add.at(concurrency_ns, lane_counts, durations_ns)
    at_least_ns = durations_ns.copy()  # by mask: for how long its lanes were busy, whatever the others were
    for lane in range(len(edges)):
        pairs = at_least_ns.reshape(-1, 2, 1 << lane)
        pairs[:, 0] += pairs[:, 1]
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


def _devices_label(meta: TraceMetadata, lanes: Sequence[Lane]) -> str:
    """Name the devices of some lanes, marked where they are simulated."""
    own = {lane.device for lane in lanes}
    devices = tuple(device for device in meta.devices if device.ordinal in own)
    return replace(meta, device=devices[0], devices=devices).device_label if devices else meta.device_label


def _require_common_time(meta: TraceMetadata, lanes: Sequence[Lane]) -> None:
    """Raise `OptionError` where lanes are of several simulated engines, whose times have nothing to do with each other."""
    cards = sorted({lane.device for lane in lanes})
    if len(cards) > 1 and NO_COMMON_TIME in meta.missing:
        raise OptionError(
            "overlap() compares times, and simulated engines have none in common: each begins at 0. Ask each alone: "
            f"one of lab.traces of the cluster, or trace.where(device={cards[0]}).overlap()."
        )


MATRIX_LANES = 16
"""Up to how many lanes the whole matrix is written; beyond it, the pairs with most time in common."""

LISTED_PAIRS = 30
"""How many pairs are listed where the matrix is too large."""

_NAME_WIDTH = 24


def _meaning(result: Overlap) -> Iterator[str]:
    """Say what the figures mean, one sentence an entry."""
    yield (
        f"Mean concurrency: sum over streams / time with any stream {busy_word(result.counted)}. It is no speed-up: work that "
        "slows other work raises it too; gsl.compare measures speed-ups."
    )
    if SpanKind.RANGE not in result.counted:
        yield bound_note(result.shared)
        yield "Busy means kernels, copies and fills, and wall is from the first to the last of them: ranges do not count."
        return
    yield (
        "Ranges contain the queueing inside them: their overlap is an upper bound of what ran at the same time, and so is "
        "the mean concurrency. What the ranges contain is not known: they may share SMs and copy engines."
    )
    if 0 < result.range_only_ns < result.sum_ns:
        share = format_share(result.range_only_ns / result.sum_ns)
        yield f"{share} of that time is by ranges only, the rest by kernels, copies and fills."


def _missing(meta: TraceMetadata) -> list[str]:
    """Say which spans no figure counts, one sentence an entry."""
    dropped = f"Not counted: {count_text(meta.dropped_spans, 'span')} dropped."
    pending = f"{pending_text(meta.pending_spans, meta)}."
    return [note for count, note in ((meta.dropped_spans, dropped), (meta.pending_spans, pending)) if count]


def _names(result: Overlap) -> list[str]:
    return [display_name(lane.name, _NAME_WIDTH) for lane in result.lanes]


def _matrix_table(result: Overlap) -> ReportTable:
    names, shares = _names(result), result.common_share
    rows = [["in common, ms", busy_word(result.counted), *names]]
    for index, name in enumerate(names):
        cells = [
            "" if index == other else f"{format_ms(result.common_ns[index, other])} ({format_share(shares[index, other])})"
            for other in range(len(names))
        ]
        rows.append([name, format_ms(result.busy_ns[index]), *cells])
    shade = np.zeros((len(names), len(names) + 2))
    shade[:, 2:] = np.nan_to_num(shares)
    shade[:, 2:][np.diag_indices(len(names))] = 0
    caption = "Time in common in ms, and as a share of the shorter time of the two"
    lines = [*text_lines(_times(result)), "", *text_lines(_pairs(result))]
    return ReportTable(caption=caption, rows=rows, has_row_heads=True, shade=shade, lines=lines)


def _times(result: Overlap) -> ReportTable:
    order = np.argsort(-result.busy_ns, kind="stable")[:LISTED_PAIRS].tolist()
    names = _names(result)
    rows = [["stream", f"{busy_word(result.counted)}, ms"], *([names[row], format_ms(result.busy_ns[row])] for row in order)]
    rows += more_row(len(names) - len(order), 2, "more streams: see .busy_ns")
    return ReportTable(caption="Time of each stream, in ms", rows=rows)


def _pairs(result: Overlap) -> ReportTable:
    names, shares = _names(result), result.common_share
    first, second = np.triu_indices(len(names), k=1)
    order = np.argsort(-result.common_ns[first, second], kind="stable")[:LISTED_PAIRS]
    rows = [["stream", "other", "in common, ms", "share of shorter"]]
    for row, column in zip(first[order].tolist(), second[order].tolist(), strict=True):
        rows.append([names[row], names[column], format_ms(result.common_ns[row, column]), format_share(shares[row, column])])
    rows += more_row(len(first) - len(order), 4, "more pairs: see .to_pandas()")
    return ReportTable(caption="Pairs with most time in common", rows=rows, names=(0, 1))


def _histogram(result: Overlap) -> ReportTable:
    word = busy_word(result.counted)
    rows, bars = [[f"streams {word}", "ms", "of time any was"], ["0", format_ms(result.concurrency_ns[0]), ""]], [0.0]
    for count, time_ns in enumerate(result.concurrency_ns[1:].tolist(), 1):
        if time_ns or count < 2:
            bars.append(time_ns / result.active_ns)
            rows.append([str(count), format_ms(time_ns), format_share(bars[-1])])
    return ReportTable(caption=f"How many streams were {word} at once", rows=rows, bars=bars)
