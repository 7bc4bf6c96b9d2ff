"""Which row each span is drawn in, so that no span hides another: of a finished trace, and while spans come in.

On top are ranges: one that nothing encloses is drawn on the lane's first row, a range within it one row below, and so on.
Where ranges overlap without one enclosing the other, as those of two threads that use one stream do, each gets its own block
of rows. Kernels, copies and fills come below all ranges, in rows of their own. In a thread of the host, ranges of others come
first, then its calls; both nest by time.

While spans come in, rows are only added and never change their meaning, and no span moves. A range arrives when it has ended,
so after all that it encloses; how deep it lies is known from the ranges that are still open. How far those will reach is not:
ranges of several threads of one stream lie side by side at each depth, and may be on other rows when the page is loaded anew.
Kernels, copies and fills come late and not in order; each finds room in the rows below the ranges. Of ranges of others, and of
calls, nothing is known before they have ended: each is put above all that it covers.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import distinct
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, FloatArray, Int32Array, Int64Array, SpanKind

MAX_LANE_ROWS = 64
"""How many sub-rows spans of one level have in a lane at most; what would need more is folded into the last, and counted."""
KEPT_INTERVALS = 512  # How many of a sub-row's last spans are known, to place one that comes late between them
LEAST_SHARE = 0.3  # Lowest bar beside the highest of its lane, so that it can still be seen and hit
NEVER_NS = 1 << 62


class Layer(IntEnum):
    """A layer of a lane, from the top."""

    NAMED = 0  # Ranges on streams; ranges of others (NVTX) and samples of the Python stack on threads of the host
    WORK = 1  # Kernels, copies and fills on streams, and calls on threads of the host


class Level(IntEnum):
    """Spans that share rows. Those of two levels never lie in one row."""

    RANGE = 0  # Ranges: they nest by their parents, and so does all that is of no other level
    ANNOTATION = 1  # Ranges of others: they nest by time
    SAMPLE = 2  # Samples of a thread's Python stack: they follow each other
    WORK = 3  # Kernels, copies and fills: they follow each other, but for those of one graph
    CALL = 4  # Calls of the host: they nest by time, where one is made of others


_LEVELS = {
    SpanKind.KERNEL: Level.WORK,
    SpanKind.COPY: Level.WORK,
    SpanKind.FILL: Level.WORK,
    SpanKind.HOST: Level.CALL,
    SpanKind.ANNOTATION: Level.ANNOTATION,
    SpanKind.SAMPLE: Level.SAMPLE,
}
LEVEL_OF_KIND: Int64Array = np.array([_LEVELS.get(kind, Level.RANGE) for kind in SPAN_KINDS], np.int64)
"""Level by the code of the kind; shape (n_kinds,), int64."""
LEVEL_TOLERANCE_NS = 100
"""Spans of any level but ranges that overlap by no more than this follow each other: no clock of a device is better."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """Rows by their code. Rows are only ever added, so that a code keeps its meaning."""

    lane: Int64Array  # Lane of each row; shape (n_rows,), int64
    sub_row: Int64Array
    """Which sub-row of its lane each is, from the top, over all layers; several rows may share one; shape (n_rows,), int64."""
    share: FloatArray
    """Height of its bars as a share of the sub-row: less than 1 where a partition had fewer SMs; shape (n_rows,), float64."""
    overlaps: BoolArray
    """Whether its spans may cover each other. In all other rows starts and ends both are in order; shape (n_rows,), bool."""
    layer: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """`Layer` of each row: 0 for ranges, 1 for the work, or the calls, below them; shape (n_rows,), int64; all 0 if left
    out."""
    lane_sms: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """The most SMs that spans of each lane ran with, 0 where there are none: those of a share of 1; shape (n_lanes,), int64;
    empty if nothing ran in a partition."""
    folded_spans: int = field(default=0)  # Spans that were folded into a row where they may cover others

    def __post_init__(self) -> None:
        if not len(self.layer):
            object.__setattr__(self, "layer", np.zeros(len(self.lane), np.int64))

    def __len__(self) -> int:
        return len(self.lane)


def span_rows(trace: Trace) -> tuple[RowTable, Int64Array]:
    """Give each span of a trace its row.

    Notes
    -----
    Ranges that overlap by no more than the trace's own stated error count as following each other. Linear but for sorting,
    except that spans which overlap on one row without nesting are placed one by one.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 500, 0], end_ns=[1000, 900, 5], queued_ns=[0, 0, 0], lane=[0, 0, 1], name=[0, 1, 1], kind=[0, 0, 0],
    ...     parent=[-1, 0, -1], thread=[-1, -1, -1], names=("step", "gemm"), lanes=(Lane(name="a"), Lane(name="b")),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> rows, codes = span_rows(trace)
    >>> codes.tolist(), rows.lane.tolist(), rows.sub_row.tolist()
    ([0, 1, 2], [0, 0, 1], [0, 1, 0])
    """
    tolerance_ns = trace.metadata.clock_error_ns + trace.metadata.range_error_ns
    planner = RowPlanner(tolerance_ns, is_whole=True)
    counts = [part.granted_sms for part in trace.partitions] + [trace.metadata.device.sm_count]  # -1, the whole card, is last
    spans = Spans(trace.lane.astype(np.int64), trace.start_ns, trace.end_ns, np.array(counts, np.int64)[trace.partition])
    level, depth, track = LEVEL_OF_KIND[trace.kind], np.zeros(len(trace), np.int64), np.zeros(len(trace), np.int64)
    ranges = np.flatnonzero(level == Level.RANGE)
    if (trace.parent[ranges] >= 0).any():
        depth[ranges], track[ranges] = _nesting(trace, ranges, tolerance_ns)
    codes = planner.place(spans, level, depth, track)
    table = planner.table(lane_count=len(trace.lanes))
    order = np.lexsort((table.share, table.sub_row, table.lane, table.share < 1))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    columns: dict[str, Any] = {name: getattr(table, name)[order] for name in ("lane", "sub_row", "share", "overlaps", "layer")}
    if not trace.partitions:
        columns["lane_sms"] = np.empty(0, np.int64)
    return replace(table, **columns), place[codes]


def _nesting(trace: Trace, rows: Int64Array, tolerance_ns: int) -> tuple[Int64Array, Int64Array]:
    """Return how many ranges enclose each of these, which are all, and the track of the outermost; shape (n,) each."""
    # What is no range is in no lane, so that it encloses nothing.
    lane, above = np.full(len(trace), -1), np.full(len(trace), -1)
    lane[rows] = trace.lane[rows]
    above[rows] = enclosing(trace.parent, lane)[rows]
    depth, root = climb(above)
    roots, place = distinct(root[rows])
    start_ns = np.full(len(roots), NEVER_NS)
    np.minimum.at(start_ns, place, trace.start_ns[rows])
    lanes, end_ns = trace.lane[roots].astype(np.int64), trace.end_ns[roots]
    order = by_group_and_start(lanes, start_ns, end_ns)
    slots = np.empty(len(roots), np.int64)
    slots[order] = place_in_slots(lanes[order], start_ns[order], end_ns[order], tolerance_ns)
    return depth[rows], np.minimum(slots, MAX_LANE_ROWS)[place]


def enclosing(above: Int64Array, lane: Int64Array | Int32Array) -> Int64Array:
    """Return for each span the nearest one around it that is of its own lane, or -1; shape (n,), int64."""
    found = above.copy()
    for _ in range(4 * MAX_LANE_ROWS):
        away = np.flatnonzero((found >= 0) & (lane[found] != lane))
        if not away.size:
            return found
        found[away] = above[found[away]]
    # Parents that point in a circle through other lanes enclose nothing here.
    found[away] = -1
    return found


def climb(above: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return how many spans enclose each one, and the place of the outermost, or its own; shape (n,), int64 each."""
    depth, root = np.zeros(len(above), np.int64), np.arange(len(above))
    climbing = np.flatnonzero(above >= 0)
    position = above[climbing]
    # One round per level of nesting. Parents that point in a circle end at the depth at which rows are folded anyway.
    for _ in range(4 * MAX_LANE_ROWS):
        if not climbing.size:
            break
        depth[climbing] += 1
        root[climbing] = position
        further = above[position] >= 0
        climbing, position = climbing[further], above[position[further]]
    return depth, root


class ArrivedSpans(NamedTuple):
    """Spans in the order in which they came, as columns of equal length."""

    number: Int64Array  # Numbers that tell spans apart; shape (n,), int64
    parent: Int64Array  # Number of the enclosing span, or -1; shape (n,), int64
    lane: Int64Array  # Shape (n,), int64
    start_ns: Int64Array  # Shape (n,), int64
    end_ns: Int64Array  # Shape (n,), int64
    sms: Int64Array  # How many SMs each could use; shape (n,), int64
    kind: Int64Array  # Code of the `SpanKind`; shape (n,), int64


class OpenSpans(NamedTuple):
    """Ranges that have not come yet and enclose some spans that have, as columns of equal length."""

    number: Int64Array  # Shape (n,), int64
    parent: Int64Array  # Shape (n,), int64
    lane: Int64Array  # Shape (n,), int64


class Spans(NamedTuple):
    """What of spans tells their rows, as columns of equal length."""

    lane: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array
    sms: Int64Array  # How many SMs each could use

    def select(self, rows: Int64Array) -> Spans:
        """Return some of them."""
        return Spans(*(column[rows] for column in self))


class Place(NamedTuple):
    """Where spans belong that lie directly below each other, in one sub-row as far as they follow each other."""

    lane: int
    level: int  # Code of the `Level`
    track: int = 0
    depth: int = 0


_UPWARDS = frozenset({Level.ANNOTATION, Level.CALL})  # While they come in, what fits nowhere goes above the others


class RowPlanner:
    """Gives spans sub-rows of their lanes, and rows to sub-rows: batch by batch, or all at once where there is but one.

    Examples
    --------
    >>> rows = RowPlanner()
    >>> column = lambda *values: np.array(values, np.int64)
    >>> gemm = ArrivedSpans(column(1), column(0), column(0), column(500), column(900), column(132), column(0))
    >>> rows.add(gemm, OpenSpans(column(0), column(-1), column(0))).tolist()
    [0]
    >>> step = ArrivedSpans(column(0), column(-1), column(0), column(0), column(1000), column(132), column(0))
    >>> rows.add(step, OpenSpans(column(), column(), column())).tolist()
    [1]
    >>> rows.table(lane_count=1).sub_row.tolist()
    [1, 0]
    """

    def __init__(self, tolerance_ns: int = 0, *, is_whole: bool = False) -> None:
        self._tolerance_ns, self._is_whole = tolerance_ns, is_whole
        self._stacks: dict[Place, _Stack] = {}
        self._sub_rows: list[tuple[int, tuple[int, int, int, int]]] = []
        """Lane of each sub-row, and by what those of a lane are sorted, from the top: level, track, depth, slot."""
        self._numbers: dict[tuple[Place, int], tuple[int, bool]] = {}
        self._of_level: dict[tuple[int, int], list[int]] = {}  # The sub-rows of each lane and level
        self._folded: set[int] = set()  # Sub-rows that took what fits nowhere
        self._codes: dict[tuple[int, int], int] = {}  # The code of a row by its sub-row and the SMs that its spans had
        self.folded_spans = 0  # Spans in rows where they may cover others

    @property
    def version(self) -> tuple[int, ...]:
        """What changes whenever the table does."""
        return len(self._codes), len(self._sub_rows), self.folded_spans

    def add(self, spans: ArrivedSpans, open_spans: OpenSpans) -> Int64Array:
        """Return the code of each span's row; shape (n,), int64."""
        level, depth = LEVEL_OF_KIND[spans.kind], np.zeros(len(spans.number), np.int64)
        ranges = np.flatnonzero(level == Level.RANGE)
        if (spans.parent[ranges] >= 0).any():
            columns = zip((spans.number, spans.parent, spans.lane), open_spans, strict=True)
            number, parent, lane = (np.concatenate((own[ranges], opened)) for own, opened in columns)
            depth[ranges] = climb(enclosing(_rows_of(number, parent), lane))[0][: len(ranges)]
        return self.place(Spans(spans.lane, spans.start_ns, spans.end_ns, spans.sms), level, depth, 0 * depth)

    def place(self, spans: Spans, level: Int64Array, depth: Int64Array, track: Int64Array) -> Int64Array:
        """Return the code of each span's row; shape (n,)."""
        is_range = level == Level.RANGE
        if is_range.all():
            return self._encode(spans, level, depth, track)
        codes = np.empty(len(level), np.int64)
        for rows in map(np.flatnonzero, (is_range, ~is_range)):
            codes[rows] = self._encode(spans.select(rows), level[rows], depth[rows], track[rows])
        return codes

    def _slots(self, places: Sequence[Place], group: Int64Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
        """Return which sub-row of its place each span has, `MAX_LANE_ROWS` where it fits nowhere; shape (n,)."""
        tolerance_ns = self._tolerance_ns if places[0].level == Level.RANGE else LEVEL_TOLERANCE_NS
        order = by_group_and_start(group, start_ns, end_ns)
        group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
        slots = place_in_slots(group, start_ns, end_ns, tolerance_ns)
        borders = [] if self._is_whole else np.flatnonzero(np.diff(group, prepend=-1, append=-1)).tolist()
        for first, last in pairwise(borders):
            place, own = places[group[first]], slice(first, last)
            if place not in self._stacks:
                self._stacks[place] = _Stack(tolerance_ns, is_upwards=place.level in _UPWARDS)
            self._stacks[place].fill(start_ns[own], end_ns[own], slots[own])
        found = np.empty(len(order), np.int64)
        found[order] = np.minimum(slots, MAX_LANE_ROWS)
        return found

    def _encode(self, spans: Spans, level: Int64Array, depth: Int64Array, track: Int64Array) -> Int64Array:
        """Return the code of each span's row, where these are all ranges or none; shape (n,)."""
        if not len(level):
            return level
        widest, deepest = int(track.max()) + 1, int(depth.max()) + 1
        keys, group = distinct(((spans.lane * len(Level) + level) * widest + track) * deepest + depth)
        places = []
        for key in keys.tolist():
            rest, of_depth = divmod(key, deepest)
            rest, of_track = divmod(rest, widest)
            places.append(Place(rest // len(Level), rest % len(Level), of_track, of_depth))
        slot = self._slots(places, group, spans.start_ns, spans.end_ns)
        width = int(spans.sms.max()) + 1
        keys, row = distinct((group * (MAX_LANE_ROWS + 1) + slot) * width + spans.sms)
        codes, folded = np.empty(len(keys), np.int64), np.zeros(len(keys), bool)
        for at, key in enumerate(keys.tolist()):
            rest, sms = divmod(key, width)
            number, folded[at] = self._sub_row(places[rest // (MAX_LANE_ROWS + 1)], rest % (MAX_LANE_ROWS + 1))
            codes[at] = self._codes.setdefault((number, sms), len(self._codes))
        self.folded_spans += int(folded[row].sum())
        return codes[row]

    def _sub_row(self, place: Place, slot: int) -> tuple[int, bool]:
        """Return the number of a sub-row, which may be made, or where it finds no room in the lane the last one's, and True."""
        if (place, slot) not in self._numbers:
            own = self._of_level.setdefault((place.lane, place.level), [])
            is_folded = MAX_LANE_ROWS in (slot, len(own))
            if is_folded:
                self._folded.add(own[-1])
            else:
                own.append(len(self._sub_rows))
                slot_down = -slot if place.level in _UPWARDS and not self._is_whole else slot
                self._sub_rows.append((place.lane, (place.level, place.track, place.depth, slot_down)))
            self._numbers[place, slot] = own[-1], is_folded
        return self._numbers[place, slot]

    def table(self, *, lane_count: int) -> RowTable:
        """Return the rows so far. A lane that has none has one behind them all, which gives way to its first spans."""
        lanes = np.array([lane for lane, _ in self._sub_rows], np.int64)
        by_place = sorted(range(len(lanes)), key=self._sub_rows.__getitem__)
        rank = np.empty(len(lanes), np.int64)
        rank[by_place] = np.arange(len(lanes)) - np.searchsorted(lanes[by_place], lanes[by_place])
        layers = np.array([Layer.WORK if order[0] >= Level.WORK else Layer.NAMED for _, order in self._sub_rows], np.int64)
        number, sms = np.array(list(self._codes), np.int64).reshape(-1, 2).T
        lane, empty = lanes[number], np.setdiff1d(np.arange(lane_count), lanes)
        most = np.zeros(lane_count, np.int64)
        np.maximum.at(most, lane, sms)
        share = np.maximum(LEAST_SHARE, sms / np.maximum(most[lane], 1))
        return RowTable(
            lane=np.append(lane, empty),
            sub_row=np.append(rank[number], 0 * empty),
            share=np.append(np.where(most[lane] > 0, share, 1.0), np.ones(len(empty))),
            lane_sms=most,
            layer=np.append(layers[number], 0 * empty),
            overlaps=np.append(np.isin(number, list(self._folded)), empty < 0),
            folded_spans=self.folded_spans,
        )


class _Stack:
    """Sub-rows directly below each other: each takes spans that follow each other."""

    def __init__(self, tolerance_ns: int, *, is_upwards: bool) -> None:
        self._tolerance_ns, self._is_upwards = tolerance_ns, is_upwards
        self._reach_ns = -NEVER_NS  # latest end of all
        self._rows: list[_SubRow] = []

    def fill(self, starts: Int64Array, ends: Int64Array, slots: Int64Array) -> None:
        """Put spans where there is room. `slots` has what they need by themselves, and then where they are."""
        if self._is_upwards and slots.any():
            order = np.lexsort((-starts, ends))
            slots[order] = [self._fit(*span) for span in zip(starts[order].tolist(), ends[order].tolist(), strict=True)]
            return
        at = 0  # what comes late finds room one by one
        while at < len(starts) and _collides(int(starts[at]), int(ends[at]), self._reach_ns, self._tolerance_ns):
            slots[at] = self._fit(int(starts[at]), int(ends[at]))
            at += 1
        if at:
            slots[at:] = place_in_slots(0 * starts[at:], starts[at:], ends[at:], self._tolerance_ns)
        self._reach_ns = max(self._reach_ns, int(ends[at:].max(initial=-NEVER_NS)))
        behind = np.minimum(slots[at:], MAX_LANE_ROWS)
        for slot in np.unique(behind[behind < MAX_LANE_ROWS]).tolist():
            rows = at + np.flatnonzero(behind == slot)
            self._row(slot).extend(starts[rows], ends[rows])

    def _fit(self, start_ns: int, end_ns: int) -> int:
        """Put one span into the first sub-row that has room."""
        for slot in range(MAX_LANE_ROWS):
            if self._row(slot).take(start_ns, end_ns, self._tolerance_ns):
                self._reach_ns = max(self._reach_ns, end_ns)
                return slot
        return MAX_LANE_ROWS

    def _row(self, slot: int) -> _SubRow:
        while len(self._rows) <= slot:
            self._rows.append(_SubRow())
        return self._rows[slot]


@dataclass(slots=True)
class _SubRow:
    """Spans that follow each other: the last of them, in order of time."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    since_ns: int = -NEVER_NS  # End of the last one that is not known any more

    def extend(self, starts: Int64Array, ends: Int64Array) -> None:
        """Take spans that come behind all others."""
        if len(starts) > KEPT_INTERVALS:
            self.starts, self.ends, self.since_ns = [], [], int(ends[-KEPT_INTERVALS - 1])
        self.starts += starts[-KEPT_INTERVALS:].tolist()
        self.ends += ends[-KEPT_INTERVALS:].tolist()
        self._trim()

    def take(self, start_ns: int, end_ns: int, tolerance_ns: int) -> bool:
        """Take a span if it has room between the others."""
        at = bisect_right(self.starts, start_ns)
        if _collides(start_ns, end_ns, self.ends[at - 1] if at else self.since_ns, tolerance_ns):
            return False
        if at < len(self.starts) and _collides(self.starts[at], self.ends[at], end_ns, tolerance_ns):
            return False
        self.starts.insert(at, start_ns)
        self.ends.insert(at, end_ns)
        self._trim()
        return True

    def _trim(self) -> None:
        excess = len(self.starts) - KEPT_INTERVALS
        if excess > KEPT_INTERVALS:
            self.since_ns = self.ends[excess - 1]
            del self.starts[:excess], self.ends[:excess]


def _collides(start_ns: int, end_ns: int, before_ns: int, tolerance_ns: int) -> bool:
    """Tell whether a span cannot follow one that ends at `before_ns` in one sub-row."""
    return start_ns < before_ns and (start_ns < before_ns - tolerance_ns or end_ns <= before_ns)


def _rows_of(number: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the row of each wanted number, or -1."""
    order = np.argsort(number, kind="stable")
    at = np.minimum(np.searchsorted(number[order], wanted), len(order) - 1)
    rows: Int64Array = np.where((number[order][at] == wanted) & (wanted >= 0), order[at], -1)
    return rows


def place_in_slots(
    group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int = 0
) -> Int64Array:
    """Place intervals in the lowest slot of their group that is free, as long as it is one of the first `MAX_LANE_ROWS`."""
    # What has no length may get a higher one where others end just then.
    slots = np.zeros(len(group), np.int64)
    same = group[1:] == group[:-1]
    if not (same & (start_ns[1:] < end_ns[:-1])).any():
        # What follows its neighbour follows all before that one too, as their ends are in order.
        return slots
    reach_ns = _reach_before(group, end_ns)
    begins = np.append(True, ~same) | (start_ns >= reach_ns)
    conflicts = ~begins & ((start_ns < reach_ns - tolerance_ns) | (end_ns <= reach_ns))
    if not conflicts.any():
        return slots
    cluster = np.cumsum(begins) - 1
    crowded = np.zeros(int(cluster[-1]) + 1, bool)
    crowded[cluster[conflicts]] = True
    rows = np.flatnonzero(crowded[cluster])
    crowd = begins[rows], start_ns[rows], end_ns[rows]
    nested = _nested_slots(*crowd, tolerance_ns)
    slots[rows] = _first_fit(*crowd, tolerance_ns) if nested is None else nested
    return slots


def by_group_and_start(group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the order of intervals by group, then start: first those of no length, then the longest."""
    # numpy sorts 16-bit keys by radix, in linear time; a trace is most often in order of time within each group already.
    order = np.argsort(group.astype(np.uint16) if int(group.max(initial=0)) < 1 << 16 else group, kind="stable")
    code, start, end = group[order], start_ns[order], end_ns[order]
    rest = np.flatnonzero((start[1:] <= start[:-1]) & (code[1:] == code[:-1]))
    is_tie, before, after = start[rest + 1] == start[rest], end[rest], end[rest + 1]
    is_ordered = is_tie & ((before == start[rest]) | ((after <= before) & (after > start[rest])))
    return order if is_ordered.all() else np.lexsort((-end_ns, end_ns > start_ns, start_ns, group))


def _reach_before(group: Int64Array | Int32Array, end_ns: Int64Array) -> Int64Array:
    """Return the latest end of the intervals before each one in its group; rows are sorted by group."""
    number = np.cumsum(np.concatenate(([0], group[1:] != group[:-1])))
    first_ns, width_ns = int(end_ns.min()), int(end_ns.max()) - int(end_ns.min()) + 1
    if width_ns * (int(number[-1]) + 1) < 1 << 62:
        # Each group lies behind all before it, so that none reaches into the next.
        shift_ns = number * width_ns - first_ns
        latest_ns = np.maximum.accumulate(end_ns + shift_ns) - shift_ns
        return np.concatenate((latest_ns[:1], latest_ns[:-1]))
    by_end = np.argsort(end_ns, kind="stable")
    rank = np.empty(len(end_ns), np.int64)
    rank[by_end] = np.arange(len(end_ns))
    latest = np.maximum.accumulate(rank + number * len(end_ns)) - number * len(end_ns)
    reach_ns: Int64Array = end_ns[by_end[np.concatenate(([0], latest[:-1]))]]
    return reach_ns


def _nested_slots(begins: BoolArray, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int) -> Int64Array | None:
    """Give each interval the slot below all that run when it starts; None where that is not the lowest that is free."""
    # Of intervals that nest, as calls that are made of others do, it is. They are sorted by start, the longest first.
    cluster = np.cumsum(begins) - 1
    least_ns = int(start_ns.min())
    width_ns = int(end_ns.max()) - least_ns + tolerance_ns + 1
    if width_ns * (int(cluster[-1]) + 1) >= 1 << 62:
        return None
    shift_ns = cluster * width_ns - least_ns
    ended = np.searchsorted(np.sort(end_ns + shift_ns), start_ns + shift_ns + tolerance_ns, side="right")
    slots: Int64Array = np.arange(len(cluster)) - ended
    if slots.min() < 0 or not _lie_below_running(slots, start_ns, end_ns, tolerance_ns):
        return None
    key = cluster * (int(slots.max()) + 1) + slots
    order = np.argsort(key, kind="stable")
    follows = key[order][1:] == key[order][:-1]
    start_ns, end_ns, before_ns = start_ns[order][1:], end_ns[order][1:], end_ns[order][:-1]
    collides = (start_ns < before_ns) & ((start_ns < before_ns - tolerance_ns) | (end_ns <= before_ns))
    return None if (collides & follows).any() else slots


def _lie_below_running(slots: Int64Array, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int) -> bool:
    """Tell whether in every slot above an interval, the last one before it still runs when it starts."""
    low = np.flatnonzero(slots < MAX_LANE_ROWS)
    slots, start_ns, end_ns = slots[low], start_ns[low], end_ns[low]
    by_slot = np.split(np.argsort(slots, kind="stable"), np.cumsum(np.bincount(slots))[:-1])
    above, until_ns = by_slot[0], end_ns[by_slot[0]]
    for rows in by_slot[1:]:
        place = np.searchsorted(above, rows) - 1
        if not len(rows) or place[0] < 0 or (until_ns[place] <= start_ns[rows] + tolerance_ns).any():
            return False
        above, until_ns = rows, np.minimum(end_ns[rows], until_ns[place])
    return True


def _first_fit(begins: BoolArray, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int) -> list[int]:
    """Place intervals, sorted by start, one by one; where `begins`, all slots are free again."""
    slots: list[int] = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    last_end_ns: list[int] = []
    for begin, start, end in zip(begins.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True):
        if begin:
            free, busy, last_end_ns = [], [], []
        while busy and busy[0][0] - tolerance_ns <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = _take_slot(free, last_end_ns, end)
        last_end_ns[slot] = end
        heapq.heappush(busy, (end, slot))
        slots.append(slot)
    return slots


def _take_slot(free: list[int], last_end_ns: list[int], end: int) -> int:
    """Take the lowest free slot in which the interval is not covered by the one before it, or open a new one."""
    covered = []
    while free and last_end_ns[free[0]] >= end:
        covered.append(heapq.heappop(free))
    slot = heapq.heappop(free) if free else len(last_end_ns)
    if slot == len(last_end_ns):
        last_end_ns.append(end)
    for other in covered:
        heapq.heappush(free, other)
    return slot
