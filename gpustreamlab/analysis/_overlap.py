"""How much of the streams' work ran at the same time, what they share, and how that is said."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab._util.words import StandsElsewhere
from gpustreamlab.analysis._busy import (
    MASK_LANES,
    busy_edges,
    busy_sum_ns,
    busy_word,
    counted_extent,
    counted_kinds,
    counted_rows,
    interval_sum_ns,
    is_work,
    mask_durations,
    of_device,
    of_each_trace,
    range_only_ns,
    require_trace,
    sweep,
    used_stream_count,
)
from gpustreamlab.analysis._card_idle import card_idle
from gpustreamlab.analysis._report import Answer, ReportTable, empty_hint, more_row, pending_text, text_column, text_lines
from gpustreamlab.analysis._scale import count_text, format_ms, format_ns, format_share, ratios, three_digits
from gpustreamlab.analysis._utilization import blocks_that_fit, size_of
from gpustreamlab.errors import OptionError, StreamNotFoundError, nearest_hint
from gpustreamlab.model import NO_COMMON_TIME, SPAN_KINDS, Lane, Trace, TraceMetadata, display_name
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd

# As CUPTI's constants are named, in the names of copies; within the device, no such engine is needed.
_DIRECTIONS = (
    ("copies to the device share an engine", re.compile(r"\bHto[DA]\b")),
    ("copies to the host share an engine", re.compile(r"\b[DA]toH\b")),
)
_EITHER_WAY = (("copies both ways share the one engine of the card", re.compile(r"\b(Hto[DA]|[DA]toH)\b")),)
SMS_SHARED = "kernels share the SMs"  # What bounds the streams where the SMs do


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """How long what the streams share is needed at least, one user after the other."""

    busy_ns: int = 0  # Time of the resource that is needed longest, in ns; 0 where none is known to be shared
    reason: str = ""  # Which that is, in words; empty where none is
    are_copies_known: bool = False  # Whether copies were seen one by one
    are_grids_known: bool = False  # Whether the grid of each counted kernel is known; without, the SMs are not in it


NOTHING_SHARED = Shared()  # Where nothing is known of what ran


def shared_time(trace: Trace, kinds: Sequence[SpanKind]) -> Shared:
    """Find the shared resource of a device that spans of these kinds need longest."""
    # Assumed is one copy engine for each direction, and that a kernel fills the SMs of its partition if its grid has as many
    # blocks as fit on them at once. Kernels of several partitions share the card by the SMs that each has.
    if not is_work(trace).any():
        return NOTHING_SHARED
    rows = counted_rows(trace, kinds)
    is_kernel = rows & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    blocks = trace.extra.get("grid_blocks")
    needed: list[tuple[int, str]] = []
    are_grids_known = bool(is_kernel.any()) and blocks is not None and bool((blocks[is_kernel] > 0).all())
    for device in trace.devices:
        own = of_device(trace, device)
        needed += _copy_times(trace, rows & own, _EITHER_WAY if device.share_engine else _DIRECTIONS)
        if blocks is not None and device.sm_count:
            needed += _sm_times(trace, is_kernel & own, blocks, device.sm_count)
        are_grids_known &= bool(device.sm_count) or not (is_kernel & own).any()
    busy_ns, reason = max(needed, default=(0, ""))
    return Shared(busy_ns=busy_ns, reason=reason, are_copies_known=True, are_grids_known=are_grids_known)


def bound_note(shared: Shared) -> str:
    """Say what the bound of the mean concurrency assumes, where kernels, copies and fills are known."""
    sms = (
        "Kernels whose blocks fill the SMs of their partition share them"
        if shared.are_grids_known
        else "That kernels may share SMs is left out where their grids are not known"
    )
    return f"At most: the busiest stream hides all others, copies in one direction share one engine. {sms}."


def _copy_times(trace: Trace, rows: BoolArray, ways: Sequence[tuple[str, re.Pattern[str]]]) -> Iterator[tuple[int, str]]:
    is_copy = rows & (trace.kind == SPAN_KINDS.index(SpanKind.COPY))
    for reason, sign in ways:
        is_named = np.array([sign.search(name) is not None for name in trace.names], bool)
        if is_named.any():
            yield busy_sum_ns(trace, is_copy & is_named[trace.name]), reason


def _sm_times(trace: Trace, is_kernel: BoolArray, blocks: np.ndarray, card_sms: int) -> Iterator[tuple[int, str]]:
    """Yield how long the SMs of each partition are needed, and those of the card, to which a partition adds its part."""
    sm_counts = np.array([*(size_of(trace, part).granted_sms for part in trace.partitions), card_sms], np.int64)
    fills = is_kernel & (blocks >= sm_counts[trace.partition] * blocks_that_fit(trace))
    card_sm_ns = 0
    for partition in np.unique(trace.partition[fills]).tolist():
        time_ns = busy_sum_ns(trace, fills & (trace.partition == partition))
        card_sm_ns += time_ns * int(sm_counts[partition])
        yield time_ns, SMS_SHARED
    yield card_sm_ns // card_sms, SMS_SHARED


def mean_text(result: Overlap) -> str:
    """Write a mean concurrency with its bound, and what it is bounded by where that is not the busiest stream."""
    # Where ranges count it is itself a bound, as they contain waiting, and has no other. The bound holds for work at full
    # speed: a mean above it says that work which shares something slowed each other.
    mean, most = result.mean_concurrency, result.max_concurrency
    reason = result.shared.reason if result.shared.busy_ns > result.busiest_ns else ""
    if SpanKind.RANGE in result.counted:
        return f"up to {three_digits(mean)}"
    # As written: a hair above the bound is the bound.
    if reason and float(f"{mean:.2f}") > float(f"{most:.2f}"):
        return f"{three_digits(mean)}; at full speed at most {three_digits(most)}: {reason}, so they slowed each other"
    return f"{three_digits(mean)} of at most {three_digits(most)}{f' at full speed: {reason}' if reason else ''}"


def finding_text(result: Overlap) -> str:
    """Say in one line how much of some streams ran at once, of one when it was idle; empty where that is not known."""
    # Where ranges count all is an upper bound, and the line says so, and how much of the busy time that is. Of what share of
    # the time that is nothing is said then: nobody knows for how long any stream worked.
    trace, has_ranges = result.trace, SpanKind.RANGE in result.counted
    if not result.sum_ns or NO_COMMON_TIME in trace.metadata.missing:
        return ""
    if used_stream_count(trace) < 2:
        word = "Queued or running" if has_ranges else "Busy"
        idle = "" if has_ranges or len(trace.devices) > 1 else card_idle(trace).brief
        return f"{word} {format_share(result.active_ns / result.wall_ns)} of the time, on one stream{idle and f'; {idle}'}"
    if has_ranges and result.together_ns:
        together = f"What ran at once is not known, at most {format_ns(result.together_ns)}"
    else:
        # Of many streams a high share says little: 2 of 100 may have been all.
        counts = f"2 to {result.peak_lanes:,}" if result.peak_lanes > 2 else "2"
        together = f"{counts} streams at once {format_share(result.together_share)} of the time any worked"
    bound = f"{together}; mean concurrency {mean_text(result)}"
    if not has_ranges:
        return bound
    if not 0 < result.range_only_ns < result.sum_ns:
        return f"{bound}. Ranges contain waiting"
    by_ranges = format_share(result.range_only_ns / result.sum_ns)
    return f"{bound}. {by_ranges} of the busy time is by ranges only, which contain waiting"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class OverlapPair(StandsElsewhere):
    """Two streams of an `Overlap`, as ``overlap["copy", "compute"]`` gives them.

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
    """Busy time of streams, alone and together. All times are exact integers of nanoseconds.

    A stream is busy while at least one of its counted spans runs: nested and repeated spans count once. See `counted` for which
    spans count. Where those are ranges they also contain the queueing inside them, so the overlap is an upper
    bound of what the hardware did at the same time.
    """

    lanes: tuple[Lane, ...] = field()  # without it the property of all answers were its default
    """The streams, in the order of the rows and columns. No threads of the host, no streams of others on which nothing ran."""
    busy_ns: Int64Array
    """Busy time of each stream; shape (n_lanes,), int64, in ns."""
    concurrency_ns: Int64Array
    """Time with exactly k streams busy, from k = 0; shape (n_lanes + 1,), int64, in ns. Its sum is `wall_ns`."""
    wall_ns: int
    """From the first start to the last end of the counted spans, in ns."""
    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as busy time."""
    range_only_ns: int
    """How much of `sum_ns` is known from ranges only, in ns: an upper bound, as they also contain queueing."""
    shared: Shared
    """What the streams share, as far as it is known."""

    _columns: ClassVar = ("busy_ns", "concurrency_ns")
    _title: ClassVar = "Overlap of"

    @property
    def sum_ns(self) -> int:
        """What the streams' busy times add up to, in ns: how long the same spans take one after the other."""
        return int(self.busy_ns.sum())

    @property
    def busiest_ns(self) -> int:
        """Busy time of the busiest stream, in ns."""
        return int(self.busy_ns.max(initial=0))

    @property
    def active_ns(self) -> int:
        """Time in which at least one stream was busy, in ns."""
        return int(self.concurrency_ns[1:].sum())

    @property
    def together_ns(self) -> int:
        """Time in which two or more streams were busy, in ns."""
        return int(self.concurrency_ns[2:].sum())

    @property
    def peak_lanes(self) -> int:
        """Most streams that were busy at one time."""
        return int(np.flatnonzero(self.concurrency_ns[1:]).max(initial=-1)) + 1

    @property
    def ideal_ns(self) -> int:
        """Least time that this work takes at full speed, in ns: the busiest stream's, or that of what several streams share."""
        return max(self.busiest_ns, self.shared.busy_ns)

    @property
    def mean_concurrency(self) -> float:
        """Mean number of streams busy while any is: `sum_ns` / `active_ns`; NaN if none ever was. It is no speed-up."""
        return self.sum_ns / self.active_ns if self.active_ns else math.nan

    @property
    def max_concurrency(self) -> float:
        """The same if this work took `ideal_ns`: `sum_ns` / `ideal_ns`; NaN if no stream was ever busy."""
        return self.sum_ns / self.ideal_ns if self.ideal_ns else math.nan

    @property
    def together_share(self) -> float:
        """`together_ns` as a share of `active_ns`: pauses between cells do not count; NaN where nothing ran."""
        return self.together_ns / self.active_ns if self.active_ns else math.nan

    @property
    def common_ns(self) -> Int64Array:
        """Time in which both streams were busy; shape (n_lanes, n_lanes), int64, in ns; on the diagonal `busy_ns`."""
        found: Int64Array = _common_ns(self.trace, self.counted)
        return found

    @property
    def common_share(self) -> FloatArray:
        """`common_ns` as a share of the shorter busy time of the two; shape (n_lanes, n_lanes), float64, from 0 to 1.

        1.0 means that the stream with less work was hidden behind the other one; NaN that one of the two was never busy.
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
        """Return one row for each ordered pair of streams, as a `pandas.DataFrame`.

        The columns are ``stream``, ``other``, ``common_ns`` and ``common_share``. A stream with itself has its busy time, so
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
        total = f"sum over streams {format_ns(self.sum_ns)}, mean concurrency {mean_text(self)}"
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


def overlap(trace: Trace, *streams: str) -> Overlap:
    """Compute how much of the streams' work ran at the same time, exact to the nanosecond of the trace's own times.

    Parameters
    ----------
    trace
        The spans. Their order does not matter.
    streams
        None: ``overlap(trace)["copy", "compute"]`` is what two of them have in common.

    Raises
    ------
    OptionError
        If streams are named, it is no trace, or one of several simulated engines, which have no time in common.

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
    if streams:
        raise OptionError(
            "overlap() is of all streams. Use overlap()['copy', 'compute'] for two, and .common_share for a share."
        )
    found = concurrency(trace)
    _require_common_time(trace.metadata, [lane for lane, busy_ns in zip(found.lanes, found.busy_ns, strict=True) if busy_ns])
    return found


def concurrency(trace: Trace, kinds: tuple[SpanKind, ...] | None = None) -> Overlap:
    """Return the same, of all kinds that count if none are given, also where streams have no time in common."""
    require_trace(trace, "concurrency")
    kinds = counted_kinds(trace) if kinds is None else kinds
    _, edges, steps = sweep(trace, kinds)
    times_ns, counts = steps.steps
    lanes = _lanes_of(trace, edges)
    first_ns, last_ns = counted_extent(trace, kinds)
    busy_ns = [interval_sum_ns(edges[place]) for place in lanes]
    concurrency_ns = np.zeros(len(lanes) + 1, np.int64)
    np.add.at(concurrency_ns, counts[:-1], np.diff(times_ns))
    concurrency_ns[0] = (last_ns - first_ns) - int(concurrency_ns[1:].sum())
    return Overlap(
        lanes=tuple(trace.lanes[place] for place in lanes),
        busy_ns=np.array(busy_ns, np.int64),
        concurrency_ns=concurrency_ns,
        wall_ns=last_ns - first_ns,
        counted=kinds,
        trace=trace,
        range_only_ns=range_only_ns(trace, kinds, sum(busy_ns)),
        shared=shared_time(trace, kinds),
    )


def _lanes_of(trace: Trace, edges: Sequence[Int64Array]) -> list[int]:
    """Return which lanes are told of: streams, of others those on which anything ran."""
    lanes = enumerate(trace.lanes)
    return [place for place, lane in lanes if lane.kind is LaneKind.STREAM and (edges[place].size or not lane.outside)]


@of_each_trace
def _common_ns(trace: Trace, kinds: tuple[SpanKind, ...]) -> Int64Array:
    """Return the common times of the streams; of many, half a mask of them against every other half at a time."""
    all_edges = busy_edges(trace, kinds)
    edges = [all_edges[place] for place in _lanes_of(trace, all_edges)]
    half = MASK_LANES if len(edges) <= MASK_LANES else MASK_LANES // 2
    blocks = [range(first, min(first + half, len(edges))) for first in range(0, len(edges), half)]
    common_ns = np.zeros((len(edges), len(edges)), np.int64)
    for block, other in [*combinations(blocks, 2)] or [(block, range(0)) for block in blocks]:
        members = [*block, *other]
        common_ns[np.ix_(members, members)] = _matrix([edges[lane] for lane in members])
    common_ns.flags.writeable = False
    return common_ns


def _matrix(edges: Sequence[Int64Array]) -> Int64Array:
    """Return the common times of at most `MASK_LANES` streams."""
    at_least_ns = mask_durations(edges)  # by mask: for how long its lanes were busy, whatever the others were
    for lane in range(len(edges)):
        pairs = at_least_ns.reshape(-1, 2, 1 << lane)
        pairs[:, 0] += pairs[:, 1]
    bits = np.left_shift(1, np.arange(len(edges)))
    found: Int64Array = at_least_ns[bits[:, None] | bits[None, :]]
    return found


def _devices_label(meta: TraceMetadata, lanes: Sequence[Lane]) -> str:
    """Name the devices of some streams, marked where they are simulated."""
    own = {lane.device for lane in lanes}
    devices = tuple(device for device in meta.devices if device.ordinal in own)
    return replace(meta, device=devices[0], devices=devices).device_label if devices else meta.device_label


def _require_common_time(meta: TraceMetadata, lanes: Sequence[Lane]) -> None:
    """Raise `OptionError` where streams are of several simulated engines, whose times have nothing to do with each other."""
    cards = sorted({lane.device for lane in lanes})
    if len(cards) > 1 and NO_COMMON_TIME in meta.missing:
        raise OptionError(
            "overlap() compares times, and simulated engines have none in common: each begins at 0. Ask each alone: "
            f"one of lab.traces of the cluster, or trace.where(device={cards[0]}).overlap()."
        )


MATRIX_LANES = 16  # Up to how many streams the whole matrix is written; beyond it, the pairs with most time in common

LISTED_PAIRS = 30  # How many pairs are listed where the matrix is too large

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
