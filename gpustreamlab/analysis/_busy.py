"""When each lane was busy, and how many at once: the union of its spans, and one sweep over the edges of all lanes.

All figures of time are made of these two. The sweep works in windows of time that fit the processor's cache. A lane's edges
alternate between start and end, so their number before a window tells whether it is busy there, and windows are independent of
each other: threads share them, as numpy releases the GIL. All sums are integers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import wraps
from itertools import pairwise
from threading import RLock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.background import thread_pool
from gpustreamlab.errors import OptionError
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Device, Trace
from gpustreamlab.typing import BoolArray, CaptureTier, Int32Array, Int64Array, LaneKind, SpanKind

RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
KIND_WORDS = {kind: (kind.value, "copies" if kind is SpanKind.COPY else f"{kind.value}s") for kind in SPAN_KINDS}
"""What one span of each kind is called, and what several are."""

LEAST_RANGE_SHARE = 0.01
"""From which share of all busy time on ranges count beside kernels: less than that would only blur what is known exactly."""

THREADED_ROWS = 500_000  # From how many rows on a second thread pays
WINDOW_EDGES = 1 << 17  # About how many edges one window of the sweep holds
MASK_LANES = 16  # How many lanes one bit mask holds: 2 to the power of this many sums are kept
LONGEST_WINDOW_NS = 1 << 57  # Times within a window and what they are of share 64 bits
KEPT_TRACES = 2  # Of how many traces it is remembered what was found, about as much memory again as they take
_HASH_FACTOR = np.uint64(0x9E37_79B9_7F4A_7C15)
SMALL_RANGE = 1 << 16  # Values within a range like this are looked up in a table, however few there are

_ON_STREAMS = np.array([kind in {SpanKind.RANGE, *DEVICE_WORK} for kind in SPAN_KINDS])
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Window = tuple[int, int]


def of_each_trace(function: Callable[..., _Result]) -> Callable[..., _Result]:
    """Let a function of a trace remember what it returned for the last ones, as long as they live: no trace changes.

    What it returns must not hold the trace, and nobody may write into it.
    """
    kept: WeakKeyDictionary[Trace, dict[tuple[Any, ...], _Result]] = WeakKeyDictionary()
    lock = RLock()  # who asks while another thread works it out waits for that

    @wraps(function)
    def asked(trace: Trace, *options: Any) -> _Result:
        with lock:
            known = kept.get(trace)
            if known is None:
                for old in [*kept][: 1 + len(kept) - KEPT_TRACES]:
                    kept.pop(old, None)
                known = kept[trace] = {}
            if options not in known:
                known[options] = function(trace, *options)
            return known[options]

    return asked


class Basis(NamedTuple):
    """What the figures of a trace are of."""

    counted: tuple[SpanKind, ...]  # Kinds of spans that count as busy time, see `counted_kinds`
    tier: CaptureTier
    """Ranges where nothing but ranges counts, also where kernels were captured at other times; else as the metadata say."""


def basis_of(trace: Trace, counted: tuple[SpanKind, ...] | None = None) -> Basis:
    """Say what the figures of a trace are of, given which kinds of spans count where that is known already."""
    counted = counted_kinds(trace) if counted is None else counted
    is_ranges_only = SpanKind.RANGE in counted and not is_work(trace).any()
    return Basis(counted, CaptureTier.RANGES if is_ranges_only else trace.metadata.tier)


def counted_kinds(trace: Trace) -> tuple[SpanKind, ...]:
    """Say which kinds of spans count as busy time in this trace, in the order of `SpanKind`."""
    # Waits, work of the host, ranges of others and markers never do; kernels, copies and fills always do. A range contains the
    # queueing of its kernels, so it counts only where they were not captured: if it starts outside of all capture windows.
    # Where next to nothing is known from ranges only, none counts: the figures are then of kernels alone.
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return (SpanKind.RANGE, *DEVICE_WORK)
    if not trace.metadata.capture_windows:
        # Of an older version, or made by hand: where nothing but ranges is there, they are all there is to count.
        return DEVICE_WORK if not len(trace) or is_work(trace).any() else (SpanKind.RANGE, *DEVICE_WORK)
    return (SpanKind.RANGE, *DEVICE_WORK) if _has_many_ranges(trace) else DEVICE_WORK


def _has_many_ranges(trace: Trace) -> bool:
    """Tell whether ranges outside the capture windows are so much of the busy time that they count."""
    ranges = _uncaptured_ranges(trace)
    if not ranges.any():
        return False
    works = is_work(trace)
    if not works.any():
        return True
    sum_ns = busy_sum_ns(trace, works | ranges)
    return sum_ns - busy_sum_ns(trace, works) >= LEAST_RANGE_SHARE * sum_ns


def busy_word(counted: Collection[SpanKind]) -> str:
    """Say what a stream is while one of its counted spans lasts: ranges contain waiting, so "busy" would be too much."""
    return "queued or running" if SpanKind.RANGE in counted else "busy"


def sm_kinds(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> tuple[SpanKind, ...]:
    """Say which of the kinds that count as busy time count as time in which SMs were in use."""
    # Copies and fills use none: copy engines do them. What is in a range nobody knows, so it counts.
    kinds = counted_kinds(trace) if kinds is None else kinds
    return tuple(kind for kind in kinds if kind in {SpanKind.RANGE, SpanKind.KERNEL})


def counted_rows(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> BoolArray:
    """Tell which rows are of kinds that count; beside kernels, ranges in a capture window do not; shape (n_spans,), new."""
    kinds = counted_kinds(trace) if kinds is None else kinds
    counted = _of_kinds(trace, kinds)
    if SpanKind.RANGE in kinds and SpanKind.KERNEL in kinds and trace.metadata.capture_windows:
        counted &= (trace.kind != RANGE_CODE) | _uncaptured_ranges(trace)
    return counted


def is_work(trace: Trace) -> BoolArray:
    """Tell which spans are kernels, copies and fills of a stream; shape (n_spans,), bool."""
    return _of_kinds(trace, DEVICE_WORK)


def _of_kinds(trace: Trace, kinds: Sequence[SpanKind]) -> BoolArray:
    """Tell which spans are of these kinds; work and ranges only on streams: no thread of the host does the device's work."""
    found = np.zeros(len(trace), bool)
    for kind in kinds:
        found |= trace.kind == SPAN_KINDS.index(kind)
    is_host = np.array([lane.kind is LaneKind.HOST for lane in trace.lanes], bool)
    if is_host.any():
        found &= ~(_ON_STREAMS[trace.kind] & is_host[trace.lane])
    return found


def _uncaptured_ranges(trace: Trace) -> BoolArray:
    """Tell which rows are ranges that start where kernels were not captured; shape (n_spans,), bool."""
    uncaptured = _of_kinds(trace, (SpanKind.RANGE,))
    rows = np.flatnonzero(uncaptured)
    start_ns = uncut_ns(trace)[0][rows]
    windows_ns = np.array(trace.metadata.capture_windows, np.int64).reshape(-1, 2)
    begun, ended = (np.searchsorted(np.sort(bounds_ns), start_ns, side="right") for bounds_ns in windows_ns.T)
    uncaptured[rows] = begun <= ended
    return uncaptured


def uncut_ns(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return the starts and ends of the spans as they were before the trace was cut; shape (n_spans,), int64, in ns."""
    return trace.extra.get("uncut_start_ns", trace.start_ns), trace.extra.get("uncut_end_ns", trace.end_ns)


def range_only_ns(trace: Trace, kinds: Sequence[SpanKind], sum_ns: int) -> int:
    """Return how much of the lanes' busy time only ranges tell of: no kernel, copy or fill ran there meanwhile; in ns."""
    return sum_ns - busy_sum_ns(trace, is_work(trace)) if SpanKind.RANGE in kinds else 0


def counted_extent(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> tuple[int, int]:
    """Return the first start and the last end of all that counts as busy, in ns; zeros where there are none."""
    return extent_of(trace, counted_rows(trace, kinds))


def stream_extent(trace: Trace) -> tuple[int, int]:
    """Return the first start and the last end of all spans on streams, else on threads, in ns; zeros where there are none."""
    own = np.array([lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)[trace.lane]
    return extent_of(trace, own if own.any() else np.ones(len(trace), bool))


def told_ns(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> int:
    """Return how long a run took, in ns: from its first to its last work, or of all there is where nothing worked."""
    first_ns, last_ns = counted_extent(trace, kinds)
    if first_ns == last_ns:
        first_ns, last_ns = stream_extent(trace)
    return last_ns - first_ns


def extent_of(trace: Trace, rows: BoolArray) -> tuple[int, int]:
    """Return the first start and the last end of some rows, in ns; zeros where there are none."""
    if not rows.any():
        return 0, 0
    if rows.all():
        return int(trace.start_ns.min()), int(trace.end_ns.max())
    return int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())


def stream_count(trace: Trace) -> int:
    """Return how many lanes of a trace are streams: the others are threads of the host."""
    return sum(lane.kind is LaneKind.STREAM for lane in trace.lanes)


def used_streams(trace: Trace) -> list[int]:
    """Return the places of the lanes that are streams and have spans."""
    counts = np.bincount(trace.lane, minlength=len(trace.lanes)).tolist()
    return [place for place, lane in enumerate(trace.lanes) if lane.kind is LaneKind.STREAM and counts[place]]


def used_stream_count(trace: Trace) -> int:
    """Return how many streams have spans; of a trace without spans, as a live view has, how many streams there are."""
    return len(used_streams(trace)) if len(trace) else stream_count(trace)


def join_words(words: Sequence[str], last: str) -> str:
    """Write words as a list: "kernels, copies and fills"."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def require_trace(value: object, function: str) -> None:
    """Raise `OptionError`, with what to type instead, where a value is no trace."""
    if isinstance(value, Trace):
        return
    kind, advice = type(value).__name__, "Pass lab.trace, or gsl.load_trace('run.parquet')."
    if hasattr(type(value), "trace"):  # asked of its class: to look at the trace itself may take long
        advice = f"Pass the trace of the {kind}: {function}(lab.trace)."
    raise OptionError(f"{function}() got a {kind}; it takes a Trace. {advice}")


# Devices and processes: engines and SMs are of one card, and threads of one process


def lane_devices(trace: Trace) -> Int64Array:
    """Return for each lane the place of its device in `Trace.devices`; 0 for threads of the host; shape (n_lanes,), int64."""
    places = {device.ordinal: place for place, device in enumerate(trace.devices)}
    return np.array([places.get(lane.device, 0) if lane.kind is LaneKind.STREAM else 0 for lane in trace.lanes], np.int64)


def lane_processes(trace: Trace) -> Int64Array:
    """Return for each lane the number of its process; shape (n_lanes,), int64."""
    return np.array([lane.process for lane in trace.lanes], np.int64)


def of_device(trace: Trace, device: Device) -> BoolArray:
    """Tell which rows are of a device of the trace; all where it has no other; shape (n_spans,), bool."""
    if len(trace.devices) < 2:
        return np.ones(len(trace), bool)
    is_own = [lane.kind is LaneKind.STREAM and lane.device == device.ordinal for lane in trace.lanes]
    found: BoolArray = np.array(is_own, bool)[trace.lane]
    return found


def per_row(trace: Trace, of_devices: Sequence[int]) -> Int64Array:
    """Return for each row the number of its device, given one for each device of the trace; shape (n_spans,), int64."""
    if len(of_devices) < 2:
        return np.broadcast_to(np.int64(of_devices[0]), len(trace))
    found: Int64Array = np.array(of_devices, np.int64)[lane_devices(trace)][trace.lane]
    return found


def require_one_rank(trace: Trace, rows: BoolArray, function: str) -> None:
    """Raise `OptionError` where work is of several processes on several devices: nobody knows how those hang together."""
    if len(trace.devices) < 2:
        return
    used = [trace.lanes[place] for place in np.unique(trace.lane[rows]).tolist()]
    processes, cards = {lane.process for lane in used}, {lane.device for lane in used}
    if len(processes) < 2 or len(cards) < 2:
        return
    own = sorted({lane.device for lane in used if lane.process == min(processes)})
    raise OptionError(
        f"{function}() answers for one rank: here {len(processes):,} processes work on {len(cards):,} GPUs, and the trace does "
        f"not tell how they waited for each other. Use trace.where(device={own[0] if len(own) == 1 else own}).{function}(); "
        "trace.stragglers() tells who was late."
    )


# Edges: when something became busy and idle


def busy_sum_ns(trace: Trace, rows: BoolArray) -> int:
    """Add up for how long each lane was busy with some of the rows, in ns."""
    return sum(map(interval_sum_ns, edges_of(trace, rows))) if rows.any() else 0


def edges_of(
    trace: Trace, counted: BoolArray, group: Int32Array | Int64Array | None = None, group_count: int | None = None
) -> list[Int64Array]:
    """Return when each group of the counted rows, which are the lanes if none are given, was busy; see `busy_edges`."""
    group_count = group_count or len(trace.lanes)
    rows, offsets = rows_by_group(trace.lane if group is None else group, group_count, counted)

    def edges_of(place: int) -> Int64Array:
        part = slice(int(offsets[place]), int(offsets[place + 1]))
        own = part if rows is None else rows[part]
        return union_edges(trace.start_ns[own], trace.end_ns[own])

    return map_threaded(edges_of, range(group_count), row_count=len(trace))


def rows_by_group(group: Int32Array | Int64Array, group_count: int, counted: BoolArray) -> tuple[Int64Array | None, Int64Array]:
    """Return the counted rows in the order of their groups (None: all rows, as they are) and where each group begins."""
    kept = None if counted.all() else np.flatnonzero(counted)
    group = group if kept is None else group[kept]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(group.astype(np.intp, copy=False), minlength=group_count))))
    if (group[1:] >= group[:-1]).all():
        return kept, offsets
    # numpy sorts 16-bit keys by radix, in linear time.
    order = np.argsort(group.astype(np.uint16) if group_count <= 1 << 16 else group, kind="stable")
    return (order if kept is None else kept[order]), offsets


def union_edges(start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the union of intervals, given in any order, overlapping or not, as start, end, start, end, strictly increasing."""
    if not len(start_ns):
        return np.empty(0, np.int64)
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach_ns = np.maximum.accumulate(end_ns)
    opens = start_ns[1:] > reach_ns[:-1]
    if not opens.all():
        start_ns = start_ns[np.concatenate(([True], opens))]
        reach_ns = reach_ns[np.concatenate((opens, [True]))]
    lasting = start_ns < reach_ns
    if not lasting.all():
        start_ns, reach_ns = start_ns[lasting], reach_ns[lasting]
    edges = np.empty(2 * len(start_ns), np.int64)
    edges[0::2] = start_ns
    edges[1::2] = reach_ns
    return edges


def interval_sum_ns(edges_ns: Int64Array) -> int:
    """Add up intervals that are given as start, end, start, end."""
    return int((edges_ns[1::2] - edges_ns[0::2]).sum())


def map_threaded(work: Callable[[_Item], _Result], items: Sequence[_Item], *, row_count: int) -> list[_Result]:
    """Apply `work` to every item, in threads where the data is large enough."""
    thread_count = min(os.cpu_count() or 1, 8, len(items))
    if row_count < THREADED_ROWS or thread_count < 2:
        return [work(item) for item in items]
    with thread_pool(thread_count) as pool:
        return list(pool.map(work, items))


# The sweep


def mask_durations(edges: Sequence[Int64Array]) -> Int64Array:
    """Return how long exactly each set of at most `MASK_LANES` lanes was busy, in ns; shape (2 ** n_lanes,), int64."""
    # Bit i of the index says that lane i was busy; index 0 is the time in which all were idle.
    bits = np.left_shift(1, np.arange(MASK_LANES, dtype=np.int64))

    def durations(window: _Window) -> Int64Array:
        parts, initial = [], 0
        for lane, lane_edges in enumerate(edges):
            first, last = np.searchsorted(lane_edges, window)
            initial |= int(first & 1) << lane
            # The lane goes along in the lowest bits: sorting the times is far faster than finding their order.
            parts.append(((lane_edges[first:last] - window[0]) << 4) | lane)
        keys = _merged(parts)
        masks = np.bitwise_xor.accumulate(np.concatenate(([initial], bits[keys & 15])))
        sums = np.zeros(1 << len(edges), np.int64)
        np.add.at(sums, masks, np.diff(keys >> 4, prepend=0, append=window[1] - window[0]))
        return sums

    sums = np.zeros(1 << len(edges), np.int64)
    for part in _swept(durations, edges):
        sums += part
    return sums


def count_steps(edges: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return when the number of busy lanes changes, in ns, strictly increasing, and to what; the last number is 0."""

    def steps(window: _Window) -> tuple[Int64Array, Int64Array]:
        parts, initial = [], 0
        for lane_edges in edges:
            first, last = np.searchsorted(lane_edges, window)
            initial += int(first & 1)
            parts.append(((lane_edges[first:last] - window[0]) << 1) | (np.arange(first, last) & 1))  # 1: it is an end
        keys = _merged(parts)
        times_ns, counts = keys >> 1, np.cumsum(np.concatenate(([initial], 1 - 2 * (keys & 1))))
        last_of_time = np.flatnonzero(np.append(times_ns[1:] > times_ns[:-1], [True] * (len(times_ns) > 0)))
        counts = counts[np.append(0, last_of_time + 1)]
        changed = counts[1:] != counts[:-1]
        return times_ns[last_of_time[changed]] + window[0], counts[1:][changed]

    parts = _swept(steps, edges)
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    # The last edges are at the end of the last window, which is not within.
    end_ns = max(int(own[-1]) for own in edges if len(own))
    times_ns, counts = (np.concatenate(column) for column in zip(*parts, ([end_ns], [0]), strict=True))
    return times_ns, counts


class StepTime:
    """How long, up to any time, any stream was busy, and how long exactly one was."""

    def __init__(self, edges: list[Int64Array]) -> None:
        self.steps = count_steps(edges)
        """As `count_steps` returns them."""
        time_ns, depth = self.steps
        # When any, and when exactly one, began and ceased to be busy: far fewer times than steps.
        self._edges = [time_ns[np.diff(counts, prepend=False)] for counts in (depth > 0, depth == 1)]
        self._sums_ns = [np.append(0, np.cumsum(edges_ns[1::2] - edges_ns[::2])) for edges_ns in self._edges]

    @property
    def pauses_ns(self) -> tuple[Int64Array, Int64Array]:
        """Between two times of work: from when and until when nothing ran; shape (n_pauses,) each, in ns."""
        return self._edges[False][1:-1:2], self._edges[False][2::2]

    def up_to(self, time_ns: Int64Array, *, alone: bool = False) -> Int64Array:
        """Return for how long any stream had been busy by these times, or for how long exactly one; same shape, in ns.

        Examples
        --------
        >>> steps = StepTime([np.array([0, 10]), np.array([5, 20])])
        >>> steps.up_to(np.array([7, 25])), steps.up_to(np.array([7, 25]), alone=True)
        (array([ 7, 20]), array([ 5, 15]))
        """
        edges_ns, sums_ns = self._edges[alone], self._sums_ns[alone]
        if not len(edges_ns):
            return np.zeros(len(time_ns), np.int64)
        place = np.searchsorted(edges_ns, time_ns, side="right")
        found: Int64Array = sums_ns[place >> 1] + (time_ns - edges_ns[place - 1]) * (place & 1)
        return found

    def between(self, from_ns: Int64Array, to_ns: Int64Array, *, alone: bool = False) -> Int64Array:
        """Return for how long between two times any stream was busy, or exactly one; same shape as the times, in ns.

        Examples
        --------
        >>> StepTime([np.array([0, 10, 20, 30])]).between(np.array([5, 12]), np.array([25, 15])).tolist()
        [10, 0]
        """
        return self.up_to(to_ns, alone=alone) - self.up_to(from_ns, alone=alone)

    @property
    def longest_alone_ns(self) -> tuple[int, int]:
        """The longest time in which exactly one was busy: from when to when, in ns."""
        place = 2 * int(np.argmax(np.diff(self._edges[True])[::2]))
        return int(self._edges[True][place]), int(self._edges[True][place + 1])


def count_durations(edges: Sequence[Int64Array]) -> Int64Array:
    """Return how long exactly k lanes were busy, for any number of lanes; shape (n_lanes + 1,), int64, in ns; [0] is 0."""
    times_ns, counts = count_steps(edges)
    sums = np.zeros(len(edges) + 1, np.int64)
    np.add.at(sums, counts[:-1], np.diff(times_ns))
    sums[0] = 0
    return sums


def _merged(parts: list[Int64Array]) -> Int64Array:
    keys = np.concatenate(parts)
    keys.sort(kind="stable")  # the parts are sorted, and numpy's stable sort merges sorted runs
    return keys


def _swept(work: Callable[[_Window], _Result], edges: Sequence[Int64Array]) -> list[_Result]:
    """Apply `work` to windows of about `WINDOW_EDGES` edges, from the first edge to the last, in order."""
    busy = [lane_edges for lane_edges in edges if len(lane_edges)]
    if not busy:
        return []
    begin_ns, end_ns = min(int(own[0]) for own in busy), max(int(own[-1]) for own in busy)
    stride = max(1, WINDOW_EDGES // (4 * len(busy)))
    samples = np.sort(np.concatenate([lane_edges[::stride] for lane_edges in busy]))
    inner = {*samples[:: max(1, WINDOW_EDGES // stride)].tolist(), *range(begin_ns, end_ns, LONGEST_WINDOW_NS)}
    borders = [*sorted(border for border in inner if begin_ns <= border < end_ns), end_ns]
    return map_threaded(work, list(pairwise(borders)), row_count=sum(map(len, busy)))


# The sweep of a trace: what most answers begin with


class Sweep(NamedTuple):
    """When the lanes of a trace were busy with what counts, and how many at once."""

    by_lane: tuple[Int64Array, ...]  # Rows of each lane that has any, in the order of their starts
    edges: list[Int64Array]  # When each lane became busy and idle, see `busy_edges`
    steps: StepTime  # How many were busy


@of_each_trace
def sweep(trace: Trace, kinds: tuple[SpanKind, ...] | None = None) -> Sweep:
    """Return the sweep of a trace, of all kinds that count if none are given."""
    if kinds is None:
        return sweep(trace, counted_kinds(trace))
    return sweep_of(trace, counted_rows(trace, kinds))


def sweep_of(trace: Trace, rows: BoolArray) -> Sweep:
    """Return the sweep of some rows of a trace."""
    kept, offsets = rows_by_group(trace.lane, len(trace.lanes), rows)
    parts = np.split(np.arange(len(trace)) if kept is None else kept, offsets[1:-1])

    def swept(part: Int64Array) -> tuple[Int64Array, Int64Array]:
        start_ns = trace.start_ns[part]
        if not (start_ns[1:] >= start_ns[:-1]).all():
            part = part[np.argsort(start_ns, kind="stable")]
        return part, union_edges(trace.start_ns[part], trace.end_ns[part])

    found = map_threaded(swept, parts, row_count=len(trace))
    edges = [edges for _, edges in found]
    return Sweep(tuple(part for part, _ in found if len(part)), edges, StepTime(edges))


def busy_edges(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> list[Int64Array]:
    """Return when each lane became busy and idle with spans of kinds that count: start, end, start, end, increasing."""
    # Nested, repeated and touching spans count once; spans of no length do not count. One array a lane, threads too.
    return sweep(trace, None if kinds is None else tuple(kinds)).edges


def distinct(column: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return the distinct integers, in order, and the place of each entry's among them: what `numpy.unique` does, faster."""
    if not len(column):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    least = int(column.min())
    width = int(column.max()) - least + 1
    if width == 1:  # as of most batches: one stream, one thread
        return np.array([least], np.int64), np.zeros(len(column), np.int64)
    if width <= max(SMALL_RANGE, 4 * len(column)):
        present = np.zeros(width, bool)
        present[column - least] = True
        return np.flatnonzero(present) + least, (np.cumsum(present, dtype=np.intp) - 1)[column - least]
    heads = np.flatnonzero(np.concatenate(([True], column[1:] != column[:-1])))
    values = np.unique(column[heads])
    return values, np.repeat(
        np.searchsorted(values, column[heads]), np.diff(np.append(heads, len(column))).astype(np.intp, copy=False)
    )


def first_of_each(column: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return where each distinct integer stands first, in order of that, and the place of each entry's among them."""
    values, place = distinct(column)
    if len(values) == 1:
        return np.zeros(1, np.int64), place
    first = np.empty(len(values), np.int64)
    first[place[::-1]] = np.arange(len(place))[::-1]
    order = np.argsort(first)
    return first[order], np.argsort(order)[place]


def turns_of(counts: Int64Array) -> Int64Array:
    """Count from 0 to each of these: of 2 and 3 it is 0, 1, 0, 1, 2."""
    turns: Int64Array = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts.astype(np.intp, copy=False))
    return turns


def hash_rows(columns: Sequence[NDArray[Any]]) -> Int64Array:
    """Return one 63-bit number for each row, equal for equal rows; that two others meet has odds of 1 in 10**19."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        is_one = len(column) > 1 and (column == column[0]).all()  # as most columns of a batch do, it says the same of all
        values = column[:1] if is_one else column
        mixed = (mixed ^ values.astype(np.int64).view(np.uint64)) * _HASH_FACTOR
        mixed ^= mixed >> np.uint64(29)
    return (mixed >> np.uint64(1)).astype(np.int64)
