"""Why a piece of work began late: each cause is tested by the records that it must leave, and by those that exclude it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from gpustreamlab.analysis._busy import (
    count_durations,
    interval_sum_ns,
    is_work,
    lane_devices,
    lane_processes,
    map_threaded,
    per_row,
    union_edges,
)
from gpustreamlab.analysis._calls import contain, lasted_ns, longest_call, named_calls, thread_lanes, time_in_calls
from gpustreamlab.analysis._host_waits import is_blocking, pageable_copies
from gpustreamlab.analysis._pieces import CLOSE_NS, Pieces, StepTime, last_of_others, work_before
from gpustreamlab.analysis._strays import strays
from gpustreamlab.analysis._utilization import block_needs, blocks_that_fit, size_of
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, Cause, Certainty, EdgeKind, FloatArray, Int64Array, LaneKind, SpanKind

HARDWARE_QUEUES = 8
"""How many streams have a queue of their own by default. Source: CUDA's CUDA_DEVICE_MAX_CONNECTIONS."""
LAUNCH_SPACING_NS = 100_000
"""Launches of one thread that follow closer than this are in a row: it does little else."""
SLOW_CALL_NS, SLOW_CALL_TIMES = 100_000, 10
"""A launch that takes longer than this, and this many times the median of its kind, did more than to launch."""
QUEUE_LENGTH = 1_000
"""From how many launches outstanding a slow one is that of a full queue. Source: HolisticTraceAnalysis, 1,024."""
RETURN_NS = 1_000
"""How long after its kernel a launch returns that waited for it, at least. On an H200 it was 2.4 us or more with
CUDA_LAUNCH_BLOCKING=1; without, no launch of 400 kernels of 1 us returned behind its kernel."""
MOST_SKEW_NS = 300_000
"""Two launches of one thread cannot be at once: work that begins so much later, beside the work in front, is not late."""
MOST_ROW_NS = 1_000_000
"""Nor can the launches of many streams: what a thread launched without a pause is not late for so long."""
TOGETHER_SHARE = 0.01
"""Processes whose kernels ran at once for more than this share of their time do not take turns."""
TAIL_SHARE = 0.1
"""For the last tenth of its time a grid that fills the SMs leaves room: its blocks do not end at once."""
FEW = 5
"""From how many launches on a median is told, or a rule of all of them."""
MEDIAN_ROWS = 1_000_000
"""Of more kernels than this a sample tells which may have been slowed."""
SLOWED_TIMES = 1.2
"""From how many times its median alone a kernel beside others counts as slowed."""
MOST_SLOWED_TIMES = 1.5
"""Streams that share a card fairly slow each other as many times as they are. What took so many times that did more work."""
EVEN_TIMES = 1.2
"""A kernel of which nine of ten launches take at most this many times their median takes always the same."""
COPY_SHARE = 0.5
"""A call that copies pageable memory is held up by the copy if that takes this share of it, else by what stood in front."""
LEAST_SHARE = 0.1
"""A cause of the host counts from this share of the time for which the launch was late."""

_DIRECTION = (re.compile(r"\bHto[DA]\b"), re.compile(r"\b[DA]toH\b"))
_ALLOCATES = re.compile(
    r"^(cu(da)?|hip)(mem)?(malloc|alloc|free(?!tile)|host(malloc|alloc|free|register|unregister))", re.IGNORECASE
)
_OF_CARD = re.compile(r"^(cu|hip|nccl|ur[A-Z]|ze[A-Z])")
_LOADS = re.compile(r"^(cu(da)?|hip)(module|library)load|^overhead: (driver compiler|.*loading)$", re.IGNORECASE)
_FILLS_QUEUE = re.compile(r"^overhead: command buffer full$")
_PROFILES = re.compile(r"^overhead: (CUPTI .*|activity buffer request|uvm activity init)$")
_ADDS_FUNCTION = re.compile(r"^(cu(da)?|hip)(LaunchHostFunc|StreamAddCallback)")
_FAULTS = re.compile(r"\((managed|managed, page fault)\)$|^GPU page faults$")
_COOPERATIVE = re.compile(r"Cooperative", re.IGNORECASE)
_OF_DEVICE = re.compile(r"(device|ctx|context)synchronize", re.IGNORECASE)

LONGER = (Cause.SLOWED_DOWN, Cause.PAGE_FAULTS)
"""Causes by which work began in time and took longer: without them it is shorter by as much, whatever else runs."""
CODES = tuple(Cause)
SURE = tuple(Certainty)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What held pieces up, a row for each piece and cause. int64 arrays of shape (n_found,)."""

    piece: Int64Array
    """Which piece."""
    cause: Int64Array
    """Code of the `Cause`, by its order."""
    certainty: Int64Array
    """Code of the `Certainty`, by its order."""
    before: Int64Array
    """Row of the work that stood in front, or -1."""
    call: Int64Array
    """Row of the call that proves it, or -1."""
    waited_ns: Int64Array
    """For how long others ran meanwhile, but no longer than the rest of its run lasted; if slowed, how much longer it took."""
    saves_ns: Int64Array
    """The most that it would save without, in ns: no longer than the rest of its run was alone."""

    def among(self, rows: BoolArray | Int64Array) -> Found:
        """Return some of them; shape (n_found,), bool, or their places."""
        return Found(**{name: getattr(self, name)[rows] for name in self.__slots__})

    def once_each(self) -> Found:
        """Return the same, with one row for a piece that the same work held up until its launch, and from then to its start."""
        key = (self.piece * len(CODES) + self.cause) * (self.before.max() + 2) + self.before
        ordered = np.sort(key)  # np.unique hashes, which takes four times as long
        if (ordered[1:] != ordered[:-1]).all():
            return self
        order = np.lexsort((-self.waited_ns, key))
        firsts = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
        sums = {name: np.add.reduceat(getattr(self, name)[order], firsts) for name in ("waited_ns", "saves_ns")}
        return replace(self.among(order[firsts]), **sums)


def find_causes(trace: Trace, pieces: Pieces) -> Found:
    """Find out what held each piece up: first the host, until its launch; then the device, until its start."""
    if not len(pieces.row):
        return Found(**{name: np.empty(0, np.int64) for name in Found.__slots__})
    searches = (_serialised if is_serialised(trace) else _held_up, _strayed, _slowed, _faulted)
    found = map_threaded(lambda search: [*search(trace, pieces)], searches, row_count=len(trace))
    parts = chain.from_iterable(found)
    piece, cause, certainty, before, call, waited_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    is_longer = np.isin(cause, [CODES.index(code) for code in LONGER])
    saves_ns = np.where(is_longer, waited_ns, np.minimum(waited_ns, pieces.alone_ns[piece]))
    return Found(
        piece=piece, cause=cause, certainty=certainty, before=before, call=call, waited_ns=waited_ns, saves_ns=saves_ns
    )


def _held_up(trace: Trace, pieces: Pieces) -> list[_Part]:
    slow = tuple(_slow_launches(trace))
    return [*_of_host(trace, pieces, slow), *_of_device(trace, pieces, slow)]


_Calls = tuple[Cause, Int64Array]  # A cause, and the rows of the calls that have it
_Part = tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]


def _part(piece: Int64Array, cause: Cause | Int64Array, sure: Certainty | Int64Array, *rest: Int64Array) -> _Part:
    codes = np.full(len(piece), CODES.index(cause)) if isinstance(cause, Cause) else cause
    sures = np.full(len(piece), SURE.index(sure)) if isinstance(sure, Certainty) else sure
    before, call, waited_ns = rest
    return piece, codes, sures, before, call, waited_ns


def is_serialised(trace: Trace) -> bool:
    """Tell whether every launch waited for its own kernel, as with CUDA_LAUNCH_BLOCKING=1 and under some tools."""
    launches = trace.edges.select(EdgeKind.LAUNCH)
    is_kernel = trace.kind[launches.target] == SPAN_KINDS.index(SpanKind.KERNEL)
    call, kernel = launches.source[is_kernel], launches.target[is_kernel]
    return len(call) > 1 and bool((trace.end_ns[call] - trace.end_ns[kernel] > RETURN_NS).all())


def _serialised(trace: Trace, pieces: Pieces) -> Iterator[_Part]:
    held = pieces.costly
    waited_ns = pieces.host_ns[held] + pieces.device_ns[held]
    call = pieces.launch[pieces.before[held]]
    yield _part(held, Cause.SERIALISED_BY_TOOL, Certainty.PROVED, pieces.before[held], call, waited_ns)


# Work that was not where it should be, or not as fast as it is alone.


def _strayed(trace: Trace, pieces: Pieces) -> Iterator[_Part]:
    """Find work that ran alone, behind other work of a stream that was not the selected one."""
    stray = strays(trace)
    if not len(stray.row):
        return
    selected = np.full(len(trace) + 1, -1, np.int64)
    selected[stray.row] = stray.selected
    behind = pieces.behind[stray.row]
    near = (behind >= 0) & (trace.start_ns[stray.row] - trace.end_ns[behind] <= pieces.latency_ns)
    row = stray.row[near & (selected[behind] != stray.selected)]
    piece = piece_of(trace, pieces, row)
    row, piece = row[piece >= 0], piece[piece >= 0]
    alone_ns = pieces.steps.between(trace.start_ns[row], trace.end_ns[row], alone=True)
    first_of = np.full(len(trace.lanes), -1, np.int64)
    first_of[trace.lane[::-1]] = np.arange(len(trace))[::-1]
    none = np.full(len(row), -1, np.int64)
    yield _part(piece, Cause.OTHER_STREAM, Certainty.PROVED, first_of[selected[row]], none, alone_ns)


def _faulted(trace: Trace, pieces: Pieces) -> Iterator[_Part]:
    """Find kernels during which pages of managed memory were fetched, as they were not there when they were used."""
    migrates = named_calls(trace, _FAULTS.search, SpanKind.ANNOTATION)
    migrates &= np.array([lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)[trace.lane]
    kernel = np.flatnonzero(pieces.counted & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)))
    device, process = lane_devices(trace), lane_processes(trace)
    key = device.astype(np.int64) * (int(process.max(initial=0)) + 1) + process
    for tenant in np.unique(key[trace.lane[migrates]]).tolist():
        own, row = (rows[key[trace.lane[rows]] == tenant] for rows in (np.flatnonzero(migrates), kernel))
        steps = StepTime([union_edges(trace.start_ns[own], trace.end_ns[own])])
        inside_ns, piece = steps.between(trace.start_ns[row], trace.end_ns[row]), piece_of(trace, pieces, row)
        hit = np.flatnonzero((inside_ns > 0) & (piece >= 0))
        none = np.full(len(hit), -1, np.int64)
        yield _part(piece[hit], Cause.PAGE_FAULTS, Certainty.PROVED, none, none, inside_ns[hit])


def _slowed(trace: Trace, pieces: Pieces) -> Iterator[_Part]:
    """Find kernels that took longer beside others than alone, by launches of one kernel with one grid."""
    rows = np.flatnonzero((trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)) & (trace.end_ns > trace.start_ns))
    sample = rows[:: -(-len(rows) // MEDIAN_ROWS) or 1]
    row, lost_ns = _slowed_rows(trace, pieces, sample)
    if len(sample) < len(rows):
        # Of many rows a sample tells which kernels are looked at in full.
        named = np.zeros(len(trace.names), bool)
        named[trace.name[row]] = True
        row, lost_ns = _slowed_rows(trace, pieces, rows[named[trace.name[rows]]])
    other = np.full(len(row), -1, np.int64)
    if len(row):
        device, work = lane_devices(trace)[trace.lane], np.flatnonzero(pieces.counted)
        for place in np.unique(device[row]).tolist():
            own = device[row] == place
            on_card = work[device[work] == place]
            other[own] = last_of_others(trace, on_card, trace.start_ns, row[own], trace.end_ns[row[own]] - 1)
    piece = piece_of(trace, pieces, row)
    yield _part(piece, Cause.SLOWED_DOWN, Certainty.LIKELY, other, np.full(len(row), -1, np.int64), lost_ns)


def _slowed_rows(trace: Trace, pieces: Pieces, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return which of these kernels took longer beside others, and how much longer than is typical of them alone, in ns."""
    rows = rows[piece_of(trace, pieces, rows) >= 0]
    if not len(rows):
        return rows, rows
    kernel, duration_ns = _kernel_codes(trace, rows), lasted_ns(trace, rows)
    beside = 1 - _alone_on_card_ns(pieces, rows) / duration_ns
    alone, together = beside <= 0.05, beside >= 0.5
    count = int(kernel.max()) + 1
    typical_ns, most_ns = _quantiles(kernel[alone], duration_ns[alone], count, 0.5, 0.9)
    (beside_ns,) = _quantiles(kernel[together], duration_ns[together], count, 0.5)
    # The longer a kernel, the likelier it meets another: of one whose time varies when alone nothing is claimed.
    is_even = most_ns <= EVEN_TIMES * typical_ns
    most_times = MOST_SLOWED_TIMES * np.bincount(lane_devices(trace)).max()
    is_slowed = is_even & (beside_ns >= SLOWED_TIMES * typical_ns) & (beside_ns <= most_times * typical_ns)
    is_slow = together & is_slowed[kernel] & (duration_ns > typical_ns[kernel])
    return rows[is_slow], (duration_ns - typical_ns[kernel])[is_slow].astype(np.int64)


def _alone_on_card_ns(pieces: Pieces, rows: Int64Array) -> Int64Array:
    """Return for how long no other stream of its card was busy while each row ran, in ns."""
    trace, device = pieces.trace, lane_devices(pieces.trace)
    if len(trace.devices) < 2:
        return pieces.steps.between(trace.start_ns[rows], trace.end_ns[rows], alone=True)
    alone_ns = np.zeros(len(rows), np.int64)
    for place in range(len(trace.devices)):
        own = device[trace.lane[rows]] == place
        steps = StepTime([edges for lane, edges in enumerate(pieces.edges) if device[lane] == place])
        alone_ns[own] = steps.between(trace.start_ns[rows[own]], trace.end_ns[rows[own]], alone=True)
    return alone_ns


def _kernel_codes(trace: Trace, rows: Int64Array) -> Int64Array:
    """Return for each row a number for its kernel, grid, partition and device; equal where all are."""
    import pandas as pd

    # A short name may stand for many kernels, which full names tell apart.
    shapes: dict[object, int] = {}
    kernels = [shapes.setdefault((one.full_name, one.grid, one.block), len(shapes)) for one in trace.details]
    if kernels and "detail" in trace.extra:
        column = np.array([*kernels, -1], np.int64)[trace.extra["detail"]]
    else:
        column = trace.extra.get("grid_blocks", np.zeros(len(trace), np.int64))
    grids, _ = pd.factorize(column[rows])
    parts = (trace.partition[rows] + 1) * len(trace.devices) + per_row(trace, range(len(trace.devices)))[rows]
    key = (trace.name[rows].astype(np.int64) * (int(grids.max()) + 1) + grids) * (int(parts.max()) + 1) + parts
    codes: Int64Array = pd.factorize(key)[0].astype(np.int64)
    return codes


def _quantiles(group: Int64Array, values: Int64Array, count: int, *shares: float) -> list[FloatArray]:
    """Return these quantiles of each group that has at least `FEW` values, NaN for the others; each of shape (count,)."""
    order = np.lexsort((values, group))
    sizes = np.bincount(group, minlength=count)
    last = np.cumsum(sizes) - 1
    enough = sizes >= FEW
    found = []
    for share in shares:
        quantiles = np.full(count, np.nan)
        below, above = (last[enough] - turn((sizes[enough] - 1) * (1 - share)).astype(np.int64) for turn in (np.ceil, np.floor))
        quantiles[enough] = (values[order[below]] + values[order[above]]) / 2
        found.append(quantiles)
    return found


def piece_of(trace: Trace, pieces: Pieces, row: Int64Array) -> Int64Array:
    """Return the piece that each row is in, or -1; pieces are in order of lane and start."""
    if not len(pieces.row):
        return np.full(len(row), -1, np.int64)
    base_ns = int(pieces.start_ns.min())
    width = int(pieces.end_ns.max()) - base_ns + 1
    key = pieces.lane * width + pieces.start_ns - base_ns
    inside = np.clip(trace.start_ns[row] - base_ns, 0, width - 1)
    place = np.searchsorted(key, trace.lane[row].astype(np.int64) * width + inside, side="right") - 1
    is_in = (place >= 0) & (pieces.lane[place] == trace.lane[row]) & (trace.end_ns[row] <= pieces.end_ns[place])
    found: Int64Array = np.where(is_in, place, -1)
    return found


# The host: what it did while the stream was idle, until it launched.


def _of_host(trace: Trace, pieces: Pieces, slow: Sequence[_Calls]) -> Iterator[_Part]:
    """Share out the time until the launch among what the launching thread did meanwhile."""
    late = pieces.costly[(pieces.is_launch_known & (pieces.host_ns > 0))[pieces.costly]]
    row, before = pieces.row[late], pieces.before[late]
    from_ns, to_ns = pieces.idle_since_ns[late], pieces.launched_ns[late]
    lane = thread_lanes(trace, pieces.launch)(row)
    none = np.full(len(late), -1, np.int64)
    # What its stream was told to wait for would have held it up, however early it had been launched.
    source, _ = event_waits(trace, row, pieces.latency_ns)
    awaited_ns = np.clip(np.where(source >= 0, trace.end_ns[source], from_ns), from_ns, to_ns)
    waited_ns = _part_of(pieces.host_ns[late], awaited_ns - from_ns, to_ns - from_ns)
    held = np.flatnonzero(waited_ns > LEAST_SHARE * pieces.host_ns[late])
    yield _part(late[held], Cause.EVENT_WAIT, Certainty.PROVED, source[held], none[held], waited_ns[held])
    left_ns, from_ns = pieces.host_ns[late] - waited_ns, awaited_ns
    other, load, behind_ns = _loads_of_others(pieces, slow, row, lane, from_ns)
    yield _part(other, Cause.LAZY_LOAD, Certainty.PROVED, none[: len(other)], load, 0 * load)
    behind_ns = np.minimum(behind_ns, to_ns)
    left_ns = np.where(behind_ns > from_ns, np.minimum(left_ns, pieces.steps.between(behind_ns, to_ns)), left_ns)
    from_ns = np.maximum(from_ns, behind_ns)
    host_ns = left_ns.copy()
    for cause, calls in _blocking_calls(trace, slow):
        blocked_ns, _ = time_in_calls(trace, calls, lane, from_ns, to_ns)
        share_ns = np.minimum(_part_of(host_ns, blocked_ns, to_ns - from_ns), left_ns)
        held = share_ns >= LEAST_SHARE * pieces.host_ns[late]
        waited_ns = np.where(held, share_ns, 0).astype(np.int64)
        left_ns -= waited_ns
        chosen = np.flatnonzero(held & (waited_ns > 0))
        longest = longest_call(trace, calls, lane[chosen], from_ns[chosen], to_ns[chosen])
        yield _part(late[chosen], cause, Certainty.PROVED, before[chosen], longest, waited_ns[chosen])
    rest = np.flatnonzero(left_ns > LEAST_SHARE * pieces.host_ns[late])
    yield _late_launches(pieces, late[rest], row[rest], before[rest], to_ns[rest] - from_ns[rest], from_ns[rest], left_ns[rest])


def _loads_of_others(
    pieces: Pieces, slow: Sequence[_Calls], row: Int64Array, lane: Int64Array, from_ns: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Find loads of code that held up launches before these of their thread: a load is billed once, to the launch it held.

    Returned are pieces that loads held, with the loads, each once; and of each row until when such loads went on, in ns.
    """
    trace, behind_ns = pieces.trace, np.full(len(row), np.iinfo(np.int64).min)
    calls = np.concatenate([rows for cause, rows in slow if cause is Cause.LAZY_LOAD] or [row[:0]])
    launched = trace.edges.select(EdgeKind.LAUNCH)
    held: dict[int, int] = {}
    for call in np.unique(calls).tolist():
        own = (trace.lane[launched.source] == trace.lane[call]) & (trace.start_ns[launched.source] >= trace.start_ns[call])
        if not own.any():
            continue
        first = launched.source[own][np.argmin(trace.start_ns[launched.source[own]])]
        is_later = (lane == trace.lane[call]) & (trace.queued_ns[row] > trace.start_ns[first]) & (trace.end_ns[call] > from_ns)
        behind_ns[is_later] = np.maximum(behind_ns[is_later], trace.end_ns[call])
        if is_later.any():
            held[call] = int(launched.target[launched.source == first][0])
    works = np.array([*held.values()], np.int64)
    place = piece_of(trace, pieces, works)
    return place[place >= 0], np.array([*held], np.int64)[place >= 0], behind_ns


def _late_launches(
    pieces: Pieces,
    late: Int64Array,
    row: Int64Array,
    before: Int64Array,
    late_ns: Int64Array,
    from_ns: Int64Array,
    waited_ns: Int64Array,
) -> _Part:
    """Name late launches for which no call of the host stands, but not those that were next to the work in front."""
    trace = pieces.trace
    first_ns, spacing_ns = _launch_rows(pieces)
    is_bound = _is_launch_bound(trace, spacing_ns, row, before)
    is_row = (late_ns <= MOST_ROW_NS) & (first_ns[row] <= from_ns) & ~is_bound
    is_next = (late_ns <= MOST_SKEW_NS) & (trace.queued_ns[row] - trace.queued_ns[before] <= lasted_ns(trace, before))
    kept = ~((before >= 0) & (is_row | is_next))
    codes = np.where(is_bound, CODES.index(Cause.LAUNCH_BOUND), CODES.index(Cause.HOST_LATE))
    # Without its call the host may have waited for the device.
    sure = np.where(pieces.launch[row] >= 0, SURE.index(Certainty.PROVED), SURE.index(Certainty.LIKELY))
    none = np.full(int(kept.sum()), -1, np.int64)
    return _part(late[kept], codes[kept], sure[kept], before[kept], none, waited_ns[kept])


def _part_of(whole_ns: Int64Array, part_ns: Int64Array, of_ns: Int64Array) -> Int64Array:
    """Return as large a part of some times as one time is of another one; shape (n,), in ns."""
    found: Int64Array = (whole_ns * np.minimum(part_ns / np.maximum(of_ns, 1), 1)).astype(np.int64)
    return found


def _blocking_calls(trace: Trace, slow: Sequence[_Calls]) -> Iterator[_Calls]:
    """Yield the rows of calls that hold up the host, by what they do; each call once."""
    if not (trace.kind == SPAN_KINDS.index(SpanKind.HOST)).any():
        return
    of = partial(named_calls, trace)
    allocates, syncs = of(_ALLOCATES.search), of(lambda name: "synchronize" in name.lower())
    copy = pageable_copies(trace)
    # A copy that takes little of its call waited for the work in front of it: pinned memory would change nothing.
    pageable = (copy >= 0) & ~syncs & (lasted_ns(trace, copy) >= COPY_SHARE * trace.duration_ns)
    of_device = syncs & of(_OF_DEVICE.search)
    blocks = (of(is_blocking) | (copy >= 0)) & ~allocates & ~pageable & ~of_device
    yield Cause.HOST_SYNC_DEVICE, np.flatnonzero(of_device)
    yield Cause.HOST_SYNC_STREAM, np.flatnonzero(blocks)
    yield Cause.PAGEABLE_COPY, np.flatnonzero(pageable)
    yield from slow
    yield Cause.ALLOC_SYNC, np.flatnonzero(allocates & ~of(lambda name: "async" in name.lower()))
    known = blocks | of_device | pageable | allocates
    yield Cause.HOST_CALL, long_calls(trace, np.concatenate([np.flatnonzero(known), *(rows for _, rows in slow)]))
    yield Cause.PROFILER_OVERHEAD, np.flatnonzero(of(_PROFILES.search))


def long_calls(trace: Trace, known: Int64Array) -> Int64Array:
    """Return the rows of calls that took far longer than a launch does, but those of which it is known why."""
    is_long = named_calls(trace, _OF_CARD.match)
    is_long[known] = False
    rows = np.flatnonzero(is_long)
    return rows[lasted_ns(trace, rows) > SLOW_CALL_NS]


IN_CALLS = (Cause.PAGEABLE_COPY, Cause.LAZY_LOAD, Cause.ALLOC_SYNC, Cause.HOST_CALL)
"""Causes of the host that are told as well where the whole card was idle meanwhile; waits have changes of their own."""


def idle_in_calls(trace: Trace, pieces: Pieces) -> Iterator[tuple[Cause, Int64Array, Int64Array, Int64Array]]:
    """Find calls in which a thread was while the whole card was idle, before it launched what came next.

    Yields a cause, and for each such pause the row that came next, the longest call, and the time in such calls in ns.
    """
    busy = union_edges(trace.start_ns[pieces.counted], trace.end_ns[pieces.counted])
    from_ns, to_ns = busy[1:-1:2], busy[2::2]
    rows = np.flatnonzero(pieces.counted)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    row = rows[np.searchsorted(trace.start_ns[rows], to_ns)]
    lane = thread_lanes(trace, pieces.launch)(row)
    for cause, calls in _blocking_calls(trace, tuple(_slow_launches(trace))):
        if cause in IN_CALLS and len(calls):
            inside_ns, _ = time_in_calls(trace, calls, lane, from_ns, to_ns)
            hit = np.flatnonzero(inside_ns)
            yield cause, row[hit], longest_call(trace, calls, lane[hit], from_ns[hit], to_ns[hit]), inside_ns[hit]


def blocked_ns(trace: Trace, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array) -> Int64Array:
    """Return for how long threads, by their lanes, were in calls that hold up the host between two times, in ns."""
    calls = [np.empty(0, np.int64), *(rows for _, rows in _blocking_calls(trace, ()))]
    return time_in_calls(trace, np.concatenate(calls), lane, from_ns, to_ns)[0]


def _slow_launches(trace: Trace) -> Iterator[_Calls]:
    """Yield the rows of launches that took far longer than their kind does, by what they did meanwhile."""
    launches = trace.edges.select(EdgeKind.LAUNCH)
    calls, kernels = launches.source, launches.target
    (typical_ns,) = _quantiles(trace.name[calls].astype(np.int64), lasted_ns(trace, calls), len(trace.names), 0.5)
    took_ns = lasted_ns(trace, calls)
    is_slow = (took_ns > SLOW_CALL_NS) & ~(took_ns <= SLOW_CALL_TIMES * typical_ns[trace.name[calls]])
    is_slow &= trace.kind[kernels] == SPAN_KINDS.index(SpanKind.KERNEL)
    first = np.full(len(trace.names), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, trace.name[kernels], trace.queued_ns[kernels])
    is_first = trace.queued_ns[kernels] == first[trace.name[kernels]]
    loading, full = (np.flatnonzero(named_calls(trace, sign.search)) for sign in (_LOADS, _FILLS_QUEUE))
    if any(name.startswith("overhead: ") for name in trace.names):
        # Where such records were taken, a launch that was slow without one of loading did something else.
        is_slow &= ~contain(trace, calls, np.flatnonzero(named_calls(trace, _PROFILES.search)))
        is_first &= contain(trace, calls, loading)
    queued_ns, start_ns = np.sort(trace.queued_ns[kernels]), np.sort(trace.start_ns[kernels])
    end_ns = trace.end_ns[calls]
    outstanding = np.searchsorted(queued_ns, end_ns) - np.searchsorted(start_ns, end_ns)
    is_full = outstanding >= QUEUE_LENGTH
    yield Cause.QUEUE_FULL, np.concatenate((calls[is_slow & is_full], full))
    yield Cause.LAZY_LOAD, np.concatenate((calls[is_slow & is_first & ~is_full], loading))


def _launch_rows(pieces: Pieces) -> tuple[Int64Array, Int64Array]:
    """Return of each row since when its thread had launched one thing after the other, and how long after the last one.

    Pauses between the calls are `MOST_SKEW_NS` at most. Shape (n_spans,) each, in ns; the largest number where not known.
    """
    trace = pieces.trace
    known = np.flatnonzero(pieces.counted & (trace.queued_ns < trace.start_ns))
    thread = trace.thread[known]
    is_one = not len(thread) or bool((thread == thread[0]).all())
    keys = (trace.queued_ns[known],) if is_one else (trace.queued_ns[known], thread)
    order = known[np.lexsort(keys)]
    call, queued_ns = pieces.launch[order], trace.queued_ns[order]
    # A launch may itself take long, as the first one of a stream does.
    returned_ns = np.where(call >= 0, trace.end_ns[call], queued_ns)
    is_new = np.diff(trace.thread[order], prepend=-2) != 0
    begins = is_new.copy()
    begins[1:] |= queued_ns[1:] - returned_ns[:-1] > MOST_SKEW_NS
    unknown_ns = np.iinfo(np.int64).max
    first_ns, spacing_ns = (np.full(len(trace), unknown_ns, np.int64) for _ in range(2))
    if len(order):
        first = np.flatnonzero(begins)
        first_ns[order] = np.repeat(queued_ns[first], np.diff(first, append=len(order)))
        apart_ns = np.diff(queued_ns, prepend=0)
        apart_ns[is_new] = unknown_ns
        spacing_ns[order] = apart_ns
    return first_ns, spacing_ns


def _is_launch_bound(trace: Trace, spacing_ns: Int64Array, row: Int64Array, before: Int64Array) -> BoolArray:
    """Tell which pieces were launched one behind the other by a thread whose launches take longer than the work in front."""
    is_bound: BoolArray = (spacing_ns[row] <= LAUNCH_SPACING_NS) & (before >= 0)
    is_bound &= lasted_ns(trace, before) < spacing_ns[row]
    return is_bound


# The device: what was in front of work that had been launched.


def _of_device(trace: Trace, pieces: Pieces, slow: Sequence[_Calls]) -> Iterator[_Part]:
    """Name what kept pieces from starting when they were launched; where the launch is not known, as far as it goes."""
    waited_ns = np.where(pieces.is_launch_known, pieces.device_ns, pieces.host_ns)
    held = pieces.costly[waited_ns[pieces.costly] > 0]
    row, before, known = pieces.row[held], pieces.before[held].copy(), pieces.is_launch_known[held]
    call = pieces.launch[row]
    cause = np.full(len(held), CODES.index(Cause.UNKNOWN), np.int64)
    sure = np.full(len(held), SURE.index(Certainty.UNKNOWN), np.int64)
    source, waits = event_waits(trace, row, pieces.latency_ns)
    for code, certainty, fits, front in _tests(trace, pieces, held, (source, waits), call, slow):
        chosen = fits & (cause == CODES.index(Cause.UNKNOWN))
        cause[chosen] = CODES.index(code)
        before[chosen] = front[chosen]
        # Without the time of its launch nobody can say that it stood in a queue, nor where it may have waited for an event that
        # is not told of; a recorded wait needs none.
        is_sure = (known & trace.metadata.waits_told) | (code is Cause.EVENT_WAIT)
        sure[chosen] = np.where(is_sure, SURE.index(certainty), SURE.index(Certainty.LIKELY))[chosen]
    # Until what it was told to wait for had ended nothing else mattered, whatever came then.
    launched_ns, queued_for_ns = pieces.launched_ns[held], trace.start_ns[row] - pieces.launched_ns[held]
    awaited_ns = np.where((source >= 0) & ~waits, np.clip(trace.end_ns[source] - launched_ns, 0, queued_for_ns), 0)
    event_ns = _part_of(waited_ns[held], np.where(awaited_ns > pieces.latency_ns, awaited_ns, 0), queued_for_ns)
    some = np.flatnonzero(event_ns)
    yield _part(held[some], Cause.EVENT_WAIT, Certainty.PROVED, source[some], call[some], event_ns[some])
    yield _part(held, cause, sure, before, call, waited_ns[held] - event_ns)


def event_waits(trace: Trace, row: Int64Array, latency_ns: int) -> tuple[Int64Array, BoolArray]:
    """Return for each row the last to end of what its stream waited for, and whether it began as that ended."""
    waits = trace.edges.select(EdgeKind.WAIT)
    found = last_awaited(trace, waits.source, waits.target)[row] if len(waits) else np.full(len(row), -1)
    began_as = (found >= 0) & (np.abs(trace.start_ns[row] - trace.end_ns[found]) <= latency_ns)
    return found, began_as


def last_awaited(trace: Trace, source: Int64Array, target: Int64Array) -> Int64Array:
    """Return for each row, as a target, the source that ended last, or -1; shape (n_spans,), int64."""
    last = np.full(len(trace), -1, np.int64)
    # Written in this order, the last to end stays.
    order = np.argsort(trace.end_ns[source], kind="stable")
    last[target[order]] = source[order]
    return last


_Test = tuple[Cause, Certainty, BoolArray, Int64Array]
"""A cause, how sure it is, which rows it fits, and the work in front of each."""
_Front = Callable[[BoolArray], tuple[Int64Array, BoolArray]]
"""Of some work: which stood in front of each row, on its card, and whether the row began as that ended."""


def _tests(
    trace: Trace,
    pieces: Pieces,
    held: Int64Array,
    awaited: tuple[Int64Array, BoolArray],
    call: Int64Array,
    slow: Sequence[_Calls],
) -> Iterator[_Test]:
    """Yield each cause of the device with the rows that it fits; the first that fits a row counts."""
    row, before = pieces.row[held], pieces.before[held]
    device = lane_devices(trace)

    def near(front: Int64Array) -> BoolArray:
        began_as: BoolArray = (front >= 0) & (trace.start_ns[row] - trace.end_ns[front] <= pieces.latency_ns)
        began_as &= device[trace.lane[row]] == device[trace.lane[front]]
        return began_as

    def front(work: BoolArray) -> tuple[Int64Array, BoolArray]:
        found = _front_on_card(trace, work, row, pieces.idle_since_ns[held], pieces.latency_ns)
        return found, near(found)

    source, waits = awaited
    yield Cause.EVENT_WAIT, Certainty.PROVED, waits, source
    behind = pieces.behind[row]
    # Where only some work of a stream is looked at, other work of it may stand in front.
    is_behind = (behind >= 0) & (trace.start_ns[row] - trace.end_ns[behind] <= CLOSE_NS)
    yield Cause.SAME_LANE, Certainty.PROVED, is_behind & (piece_of(trace, pieces, behind) < 0), behind
    half_ns = 0.5 * (trace.start_ns[row] - trace.queued_ns[row])
    profiling = np.flatnonzero(named_calls(trace, _PROFILES.search))
    profiled_ns, _ = time_in_calls(
        trace, profiling, np.where(call >= 0, trace.lane[call], -1), trace.start_ns[call], trace.end_ns[call]
    )
    yield Cause.PROFILER_OVERHEAD, Certainty.PROVED, profiled_ns > half_ns, before
    for cause, calls in slow:
        # The launch itself must have lasted for most of the wait: else it only was slow, too.
        is_long = lasted_ns(trace, call) >= half_ns
        yield cause, Certainty.PROVED, contain(trace, call, calls) & is_long, before
        yield cause, Certainty.LIKELY, np.isin(call, calls) & is_long, before
    yield Cause.GRAPH_ORDER, Certainty.LIKELY, _of_one_graph(trace, row, before), before
    yield from _legacy_streams(pieces, row, front)
    shares = np.array([one.share_engine for one in trace.devices], bool)[device[trace.lane[row]]]
    ways = [named_calls(trace, sign.search, SpanKind.COPY) for sign in _DIRECTION]
    for goes_so, some in ((ways[0], True), (ways[1], True), (ways[0] | ways[1], shares)):
        copy, is_near = front(goes_so)
        yield Cause.COPY_ENGINE, Certainty.PROVED, is_near & goes_so[row] & some, copy
    yield from _full_sms(trace, row, front)
    functions = np.flatnonzero(named_calls(trace, _ADDS_FUNCTION.search))
    if len(functions):
        since_ns = np.where(behind >= 0, trace.queued_ns[behind], np.iinfo(np.int64).min)
        last = time_in_calls(trace, functions, thread_lanes(trace, pieces.launch)(row), since_ns, trace.queued_ns[row])[1]
        yield Cause.HOST_FUNC, Certainty.LIKELY, (last >= 0) & (trace.start_ns[last] >= since_ns), before
    long = long_calls(trace, np.concatenate([row[:0], *(rows for _, rows in slow)]))
    is_long = (lasted_ns(trace, call) >= half_ns) & (trace.end_ns[call] <= trace.start_ns[row] + pieces.latency_ns)
    yield Cause.HOST_CALL, Certainty.LIKELY, np.isin(call, long) & is_long & ~near(before), before
    other, is_near = _other_tenant(trace, row, front)
    yield Cause.TIME_SLICED, Certainty.LIKELY, is_near, other
    yield from _one_queue(pieces, row, before, near(before))


def _one_queue(pieces: Pieces, row: Int64Array, before: Int64Array, near: BoolArray) -> Iterator[_Test]:
    """Yield work that came through one hardware queue with what was in front: as recorded, or as all that is known fits."""
    trace = pieces.trace
    device, channels = lane_devices(trace), hardware_queues(trace)
    is_known = (channels[row] >= 0) & (channels[before] >= 0) & (before >= 0)
    yield Cause.QUEUE_ALIAS, Certainty.PROVED, near & is_known & (channels[row] == channels[before]), before
    used = np.bincount(device[np.unique(trace.lane[pieces.counted])], minlength=len(trace.devices))
    is_many = (used > HARDWARE_QUEUES)[device[trace.lane[row]]]
    yield Cause.QUEUE_ALIAS, Certainty.LIKELY, near & ~is_known & is_many, before
    yield Cause.QUEUE_ALIAS, Certainty.LIKELY, near & ~is_known & _in_launch_order(trace, row, before), before


def _other_tenant(trace: Trace, row: Int64Array, front: _Front) -> tuple[Int64Array, BoolArray]:
    """Find kernels that began as one of another process, or of another context, ended: such take turns on a card.

    Those that ever ran at once with others do not take turns (MPS). Green contexts of one process do not, either.
    """
    found, is_near = np.full(len(row), -1, np.int64), np.zeros(len(row), bool)
    device = lane_devices(trace)
    shares = {lane.process for lane in trace.lanes if lane.partition is not None or "green context" in lane.name}
    keys = [(device[at], one.process, 0 if one.process in shares else one.context) for at, one in enumerate(trace.lanes)]
    tenant = np.array([keys.index(key) for key in keys], np.int64)[trace.lane]
    is_kernel = is_work(trace) & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    for one in np.unique(tenant[row]).tolist():
        own = is_kernel & (tenant == one)
        others = is_kernel & (tenant != one) & (device[trace.lane] == keys[one][0])
        if not own.any() or not others.any():
            continue
        edges = [union_edges(trace.start_ns[rows], trace.end_ns[rows]) for rows in (own, others)]
        if count_durations(edges)[2] > TOGETHER_SHARE * min(map(interval_sum_ns, edges)):
            continue
        before, near = front(others)
        asked = own[row]
        found[asked], is_near[asked] = before[asked], near[asked]
    return found, is_near


def _in_launch_order(trace: Trace, row: Int64Array, before: Int64Array) -> BoolArray:
    """Tell which rows are of a pair of streams whose kernels all ran one after the other as launched, and often in turn."""
    found = np.zeros(len(row), bool)
    if any("WaitEvent" in name for name in trace.names) or len(trace.edges.select(EdgeKind.WAIT)):
        return found  # streams that wait for each other keep that order, too
    lanes = trace.lane[row], trace.lane[before]
    pairs = np.stack([np.minimum(*lanes), np.maximum(*lanes)])
    for first, second in np.unique(pairs[:, before >= 0], axis=1).T.tolist():
        own = np.flatnonzero(((trace.lane == first) | (trace.lane == second)) & is_work(trace))
        own = own[np.argsort(trace.queued_ns[own], kind="stable")]
        is_ordered = (trace.start_ns[own[1:]] >= trace.end_ns[own[:-1]]).all()
        in_turn = (trace.lane[own[1:]] != trace.lane[own[:-1]]) & (trace.queued_ns[own[1:]] < trace.start_ns[own[:-1]])
        if is_ordered and in_turn.sum() >= FEW and (trace.kind[own] == SPAN_KINDS.index(SpanKind.KERNEL)).all():
            found |= (pairs[0] == first) & (pairs[1] == second) & (before >= 0)
    return found


def _front_on_card(trace: Trace, work: BoolArray, row: Int64Array, idle_since_ns: Int64Array, latency_ns: int) -> Int64Array:
    """Return which of some work of its card stood in front of each row, or -1; see `work_before`."""
    device, found = lane_devices(trace)[trace.lane], np.full(len(row), -1, np.int64)
    for place in range(len(trace.devices)):
        chosen, asked = np.flatnonzero(work & (device == place)), np.flatnonzero(device[row] == place)
        if len(chosen) and len(asked):
            found[asked] = work_before(trace, chosen, row[asked], idle_since_ns[asked], latency_ns)
    return found


def _of_one_graph(trace: Trace, row: Int64Array, before: Int64Array) -> BoolArray:
    """Tell which rows are of one launch of a graph with the work in front."""
    if "detail" not in trace.extra:
        return np.zeros(len(row), bool)
    graphs = np.array([*(detail.graph for detail in trace.details), 0])[trace.extra["detail"]]
    correlation = trace.extra.get("correlation", np.zeros(len(trace), np.int64))
    found: BoolArray = (graphs[row] != 0) & (correlation[row] == correlation[before]) & (before >= 0)
    # What only waits for room begins while the last blocks of the other still run; what is ordered begins 1 us before its end
    # at most (an H200).
    return found & (trace.start_ns[row] >= trace.end_ns[before] - CLOSE_NS)


def hardware_queues(trace: Trace) -> Int64Array:
    """Return the hardware queue that each kernel came through, -1 where unknown; shape (n_spans,), int64."""
    if "detail" not in trace.extra:
        return np.broadcast_to(np.int64(-1), len(trace))
    channels = np.array([*(detail.channel for detail in trace.details), -1], np.int64)
    found: Int64Array = channels[trace.extra["detail"]]
    return found


def _legacy_streams(pieces: Pieces, row: Int64Array, front: _Front) -> Iterator[_Test]:
    """Yield pairs of the legacy default stream and a blocking stream: those of a session are not, and cannot be hit."""
    trace = pieces.trace
    is_legacy = np.array([lane.outside and lane.name.startswith("default stream") for lane in trace.lanes])
    blocks = np.array([bool(lane.is_blocking) for lane in trace.lanes]) & ~is_legacy
    may_block = np.array([lane.kind is LaneKind.STREAM and lane.outside and lane.is_blocking is None for lane in trace.lanes])
    for certainty, hit in ((Certainty.PROVED, blocks), (Certainty.LIKELY, may_block & ~is_legacy)):
        for own, other in ((is_legacy, hit), (hit, is_legacy)):
            if own.any() and other.any():
                before, near = front(pieces.counted & other[trace.lane])
                yield Cause.LEGACY_STREAM, certainty, near & own[trace.lane[row]], before


def _full_sms(trace: Trace, row: Int64Array, front: _Front) -> Iterator[_Test]:
    """Yield kernels that found no room on the SMs: grids that fill them, blocks that do not fit beside, priorities."""
    blocks = trace.extra.get("grid_blocks")
    card_sms = per_row(trace, [device.sm_count for device in trace.devices])
    if blocks is None or not card_sms.any():
        return
    granted_sms = np.array([*(size_of(trace, part).granted_sms for part in trace.partitions), 0], np.int64)
    sms = np.where(trace.partition < 0, card_sms, granted_sms[trace.partition])
    is_kernel = (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)) & (blocks > 0) & (card_sms > 0)
    fit = blocks_that_fit(trace)
    waves = blocks / np.maximum(sms * fit, 1)

    def shared(before: Int64Array) -> BoolArray:
        """Tell which kernels had to share SMs with what was in front; one on the whole card takes those of all partitions."""
        found: BoolArray = (trace.partition[row] == trace.partition[before]) | (trace.partition[before] < 0)
        found &= is_kernel[row] & (before >= 0)
        return found

    before, near = front(is_kernel & (waves >= 1))
    tail_ns = lasted_ns(trace, before) * np.maximum(1 / np.maximum(waves[before], 1), TAIL_SHARE)
    fills = shared(before) & near & (trace.start_ns[row] >= trace.end_ns[before] - tail_ns)
    priority = np.array([lane.priority for lane in trace.lanes])
    # A lower number goes first. Only where it overtook does the priority count: launched later, and yet in front.
    overtaken = (priority[trace.lane[row]] > priority[trace.lane[before]]) & (trace.queued_ns[before] > trace.queued_ns[row])
    yield Cause.SAME_SM_PRIORITY, Certainty.LIKELY, fills & overtaken, before
    is_small = (trace.partition[row] >= 0) & (trace.partition[before] >= 0) & (sms[row] < card_sms[row])
    yield Cause.PARTITION_SMALL, Certainty.PROVED, fills & is_small, before
    yield Cause.GRID_FILLS_DEVICE, Certainty.PROVED, fills, before
    is_whole = is_kernel & _are_cooperative(trace)
    if is_whole[row].any():
        before, near = front(is_kernel)
        crowded = np.zeros(len(row), bool)
        for needed, there_are in block_needs(trace):
            crowded |= needed[before] + needed[row] > there_are[row]
        lacks = np.ceil(blocks[row] / fit[row]) + np.minimum(blocks[before], sms[before]) > sms[row]
        lacks &= shared(before) & near & is_whole[row]
        yield Cause.COOPERATIVE, Certainty.PROVED, lacks & crowded, before
        yield Cause.COOPERATIVE, Certainty.LIKELY, lacks, before
    before, near = front(is_kernel & (blocks >= sms))
    resident = np.ceil(np.minimum(blocks[before] / np.maximum(sms[before], 1), fit[before]))
    crowded = np.zeros(len(row), bool)
    for needed, there_are in block_needs(trace):
        crowded |= resident * needed[before] + needed[row] > there_are[row]
    yield Cause.SM_RESOURCES, Certainty.PROVED, shared(before) & near & crowded, before


def _are_cooperative(trace: Trace) -> BoolArray:
    """Tell which kernels were launched cooperatively, as their launches or their calls say; shape (n_spans,), bool."""
    found = np.zeros(len(trace), bool)
    if "detail" in trace.extra:
        found |= np.array([*(one.is_cooperative for one in trace.details), False], bool)[trace.extra["detail"]]
    launches = trace.edges.select(EdgeKind.LAUNCH)
    found[launches.target] |= named_calls(trace, _COOPERATIVE.search)[launches.source]
    return found
