"""Which sub-row of its lane each span is drawn in, so that no span hides another."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.analysis._regions import LAYER_OF_LEVEL, LEVEL_COUNT, LEVEL_OF_KIND, LEVEL_TOLERANCE_NS, Level
from gpustreamlab.analysis._sweep import distinct
from gpustreamlab.model import Trace
from gpustreamlab.typing import BoolArray, FloatArray, Int32Array, Int64Array

MAX_LANE_ROWS = 64
"""How many sub-rows spans of one level have in a lane at most; what would need more is folded into the last, and counted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Where the spans of a trace are drawn, from the top."""

    row: Int32Array
    """Row of each span, over all lanes; shape (n_spans,), int32."""
    first_row: Int64Array
    """First row of each lane; shape (n_lanes,), int64."""
    row_count: Int64Array
    """How many rows each lane has, at least 1; shape (n_lanes,), int64."""
    layer: Int64Array
    """`Layer` of each row; shape (n_rows,), int64."""
    is_folded: BoolArray
    """Rows into which spans were folded; shape (n_rows,), bool."""
    folded_spans: int
    """Spans that were folded into the last row of their level and lane, where they may cover others."""

    @property
    def total(self) -> int:
        """How many rows all lanes have."""
        return int(self.row_count.sum())


class _Spans(NamedTuple):
    """Spans of one level, as columns."""

    lane: Int64Array | Int32Array
    start_ns: Int64Array
    end_ns: Int64Array


def assign_rows(trace: Trace) -> Rows:
    """Give each span a row within its lane.

    On top are ranges: one that nothing encloses is drawn on the lane's first row, a range within it one row below, and so on.
    Where ranges overlap without one enclosing the other, as those of two threads that use one stream do, each gets its own
    block of rows. Kernels, copies and fills come below all ranges, in rows of their own. In a thread of the host, ranges of
    others come first, then its calls; both nest by time.

    Parameters
    ----------
    trace
        The spans. Ranges that overlap by no more than its own stated error count as following each other.

    Notes
    -----
    Linear but for sorting, except that spans which overlap on one row without nesting are placed one by one.
    """
    tolerance_ns = trace.metadata.clock_error_ns + trace.metadata.range_error_ns
    level = LEVEL_OF_KIND[trace.kind]
    has_levels = bool(level.any())
    shelf = _level_shelves(trace, level, tolerance_ns) if has_levels else _range_shelves(trace, tolerance_ns)
    is_beyond = shelf >= MAX_LANE_ROWS
    shelf = np.minimum(shelf, MAX_LANE_ROWS - 1)
    block = trace.lane * LEVEL_COUNT + level if has_levels else trace.lane.astype(np.int64) * LEVEL_COUNT
    block_rows = np.zeros(len(trace.lanes) * LEVEL_COUNT, np.int64)
    np.maximum.at(block_rows, block, shelf + 1)
    row_count = block_rows.reshape(-1, LEVEL_COUNT).sum(axis=1)
    block_rows[::LEVEL_COUNT] += row_count == 0
    first_row = np.cumsum(block_rows) - block_rows
    row = (first_row[block] + shelf).astype(np.int32)
    is_folded = np.zeros(int(block_rows.sum()), bool)
    is_folded[row[is_beyond]] = True
    rows = Rows(
        row=row,
        first_row=first_row[::LEVEL_COUNT].copy(),
        row_count=np.maximum(row_count, 1),
        layer=np.repeat(np.tile(LAYER_OF_LEVEL, len(trace.lanes)), block_rows),
        is_folded=is_folded,
        folded_spans=int(is_beyond.sum()),
    )
    for column in (rows.row, rows.first_row, rows.row_count, rows.layer, rows.is_folded):
        column.flags.writeable = False
    return rows


def _level_shelves(trace: Trace, level: Int64Array, tolerance_ns: int) -> Int64Array:
    """Return the row of each span within its level and lane."""
    shelf = np.zeros(len(trace), np.int64)
    is_range = level == Level.RANGE
    if is_range.any():
        ranges = np.flatnonzero(is_range)
        shelf[ranges] = _range_shelves(trace, tolerance_ns, ranges)
    by_time = np.flatnonzero(~is_range)
    group = trace.lane[by_time] * LEVEL_COUNT + level[by_time]
    shelf[by_time] = place_in_slots(group, trace.start_ns[by_time], trace.end_ns[by_time], LEVEL_TOLERANCE_NS)
    return shelf


def _range_shelves(trace: Trace, tolerance_ns: int, rows: Int64Array | None = None) -> Int64Array:
    """Return the row of each range within its lane; None stands for all rows of the trace."""
    if rows is None:
        spans, parent = _Spans(trace.lane, trace.start_ns, trace.end_ns), trace.parent
    else:
        spans, parent = _Spans(trace.lane[rows], trace.start_ns[rows], trace.end_ns[rows]), trace.parent[rows]
    if not (parent >= 0).any():
        return place_in_slots(*spans, tolerance_ns)
    depth, root = climb(_enclosing_in_lane(trace, parent, rows))
    track = np.zeros(len(root), np.int64)
    outermost = np.flatnonzero(depth == 0)
    outer = _Spans(spans.lane[outermost], spans.start_ns[outermost], spans.end_ns[outermost])
    track[outermost] = place_in_slots(*outer, tolerance_ns)
    return _shelves(spans, track[root], depth, tolerance_ns)


def _enclosing_in_lane(trace: Trace, parent: Int64Array, rows: Int64Array | None) -> Int64Array:
    """Return the nearest enclosing range on the same lane, by its place among `rows`, or -1; shape (n_rows,), int64."""
    above, lane = parent.copy(), trace.lane if rows is None else trace.lane[rows]
    place = np.arange(len(trace))
    if rows is not None:
        place = np.full(len(trace), -1, np.int64)
        place[rows] = np.arange(len(rows))
    for _ in range(4 * MAX_LANE_ROWS):
        # Ranges may nest across lanes, and within ranges of others: climb on where the parent is elsewhere.
        away = np.flatnonzero((above >= 0) & ((trace.lane[above] != lane) | (place[above] < 0)))
        if not away.size:
            return np.where(above >= 0, place[above], -1)
        above[away] = trace.parent[above[away]]
    # Parents that point in a circle through other lanes enclose nothing here.
    above[away] = -1
    return np.where(above >= 0, place[above], -1)


def climb(above: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return how many spans enclose each one, and the outermost of them, or itself where there is none.

    Parameters
    ----------
    above : ndarray of int64, shape (n,)
        Row of the nearest enclosing span, or -1.

    Returns
    -------
    tuple of two ndarrays of int64, shape (n,)
        How many; row of the outermost.
    """
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


def _shelves(spans: _Spans, track: Int64Array, depth: Int64Array, tolerance_ns: int) -> Int64Array:
    """Return the row of each span within its lane: by track, then by depth, then by what still overlaps."""
    lane = spans.lane.astype(np.int64)
    key = (lane * (int(track.max()) + 1) + track) * (int(depth.max()) + 1) + depth
    groups, group = distinct(key)
    slot = place_in_slots(group, spans.start_ns, spans.end_ns, tolerance_ns)
    slot_count = np.zeros(len(groups), np.int64)
    np.maximum.at(slot_count, group, slot + 1)
    group_lane = np.zeros(len(groups), np.int64)
    group_lane[group] = lane
    offset = np.cumsum(slot_count) - slot_count
    lane_offset = np.zeros(int(lane.max()) + 1, np.int64)
    # Groups are sorted by lane first: written backwards, each lane keeps the offset of its first group.
    lane_offset[group_lane[::-1]] = offset[::-1]
    shelf: Int64Array = (offset - lane_offset[group_lane])[group] + slot
    return shelf


def place_in_slots(
    group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array, tolerance_ns: int = 0
) -> Int64Array:
    """Place intervals in the lowest slot of their group that is free, as long as it is one of the first `MAX_LANE_ROWS`.

    What has no length may get a higher one where others end just then.

    Parameters
    ----------
    group : ndarray of int, shape (n,)
        Intervals of different groups are independent.
    start_ns, end_ns : ndarray of int64, shape (n,)
        The intervals.
    tolerance_ns
        Intervals that overlap by no more than this fit into one slot, unless one would be covered.

    Returns
    -------
    ndarray of int64, shape (n,)
        The slot of each interval, from 0.
    """
    slots = np.zeros(len(group), np.int64)
    if len(group) < 2:
        return slots
    order = _by_group_and_start(group, start_ns, end_ns)
    group, start_ns, end_ns = group[order], start_ns[order], end_ns[order]
    same = np.concatenate(([False], group[1:] == group[:-1]))
    if not (same[1:] & (start_ns[1:] < end_ns[:-1])).any():
        # What follows its neighbour follows all before that one too, as their ends are in order.
        return slots
    reach_ns = _reach_before(group, end_ns)
    begins = ~same | (start_ns >= reach_ns)
    conflicts = ~begins & ((start_ns < reach_ns - tolerance_ns) | (end_ns <= reach_ns))
    if not conflicts.any():
        return slots
    cluster = np.cumsum(begins) - 1
    crowded = np.zeros(int(cluster[-1]) + 1, bool)
    crowded[cluster[conflicts]] = True
    rows = np.flatnonzero(crowded[cluster])
    crowd = begins[rows], start_ns[rows], end_ns[rows]
    nested = _nested_slots(*crowd, tolerance_ns)
    slots[order[rows]] = _first_fit(*crowd, tolerance_ns) if nested is None else nested
    return slots


def _by_group_and_start(group: Int64Array | Int32Array, start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the order of intervals by group, then start: first those of no length, then the longest."""
    # numpy sorts 16-bit keys by radix, in linear time; a trace is most often in order of time within each group already.
    order = np.argsort(group.astype(np.uint16) if int(group.max()) < 1 << 16 else group, kind="stable")
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
    """Give each interval the slot below all that run when it starts; None where that is not the lowest free one, or is covered.

    Of intervals that nest, as calls that are made of others do, it always is. Intervals are sorted by start, the longest
    first; where `begins`, none before reaches any further.
    """
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
    """Tell whether in every slot above an interval, the last one before it still runs when it starts.

    Slots from `MAX_LANE_ROWS` on are not asked for: there may be as many as intervals, and what lies in them is folded.
    """
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


LEAST_SHARE = 0.3
"""Lowest bar beside the highest of its lane, so that it can still be seen and hit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """Rows by their code. Rows are only ever added, so that a code keeps its meaning."""

    lane: Int64Array
    """Lane of each row; shape (n_rows,), int64."""
    shelf: Int64Array
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
    folded_spans: int = field(default=0)
    """Spans that were folded into a row where they may cover others."""

    def __post_init__(self) -> None:
        if not len(self.layer):
            object.__setattr__(self, "layer", np.zeros(len(self.lane), np.int64))

    def __len__(self) -> int:
        return len(self.lane)


def span_rows(trace: Trace) -> tuple[RowTable, Int64Array]:
    """Give each span of a trace its row.

    Returns
    -------
    tuple of RowTable and ndarray of int64, shape (n_spans,)
        The rows: those of the first lane, then those of the second, and so on, and behind them lower ones for spans that ran
        with fewer SMs than others of their lane. Then the code of each span's row. Every lane has a row.

    Notes
    -----
    Spans of a row that does not overlap still may by as much as the trace's own stated error, as `assign_rows` says.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 500, 0], end_ns=[1000, 900, 5], queued_ns=[0, 0, 0], lane=[0, 0, 1], name=[0, 1, 1], kind=[0, 0, 0],
    ...     parent=[-1, 0, -1], thread=[-1, -1, -1], names=("step", "gemm"), lanes=(Lane(name="a"), Lane(name="b")),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> rows, codes = span_rows(trace)
    >>> codes.tolist(), rows.lane.tolist(), rows.shelf.tolist()
    ([0, 1, 2], [0, 0, 1], [0, 1, 0])
    """
    rows = assign_rows(trace)
    table = RowTable(
        lane=np.repeat(np.arange(len(trace.lanes)), rows.row_count),
        shelf=np.arange(rows.total) - np.repeat(rows.first_row, rows.row_count),
        share=np.ones(rows.total),
        layer=rows.layer,
        overlaps=rows.is_folded,
        folded_spans=rows.folded_spans,
    )
    row = rows.row.astype(np.int64)
    return _add_lower_rows(trace, table, row) if trace.partitions else (table, row)


def _add_lower_rows(trace: Trace, table: RowTable, row: Int64Array) -> tuple[RowTable, Int64Array]:
    """Give spans that ran with fewer SMs than others of their lane a lower row in the middle of theirs."""
    counts = [part.granted_sms for part in trace.partitions] + [trace.metadata.device.sm_count]  # -1, the whole card, is last
    sms = np.array(counts, np.int64)[trace.partition]
    most = np.zeros(len(trace.lanes), np.int64)
    np.maximum.at(most, trace.lane, sms)
    table = replace(table, lane_sms=most)
    lower = np.flatnonzero(sms < most[trace.lane])
    if not lower.size:
        return table, row
    key = row[lower] * (int(most.max()) + 1) + sms[lower]
    keys, number = distinct(key)
    place = np.empty(len(keys), np.int64)
    place[number] = lower
    base = row[place]
    share = np.maximum(LEAST_SHARE, sms[place] / most[table.lane[base]])
    codes = row.copy()
    codes[lower] = len(table) + number
    both = {name: (getattr(table, name), getattr(table, name)[base]) for name in ("lane", "shelf", "layer", "overlaps")}
    columns: dict[str, Any] = {name: np.concatenate(pair) for name, pair in (both | {"share": (table.share, share)}).items()}
    return replace(table, **columns), codes
