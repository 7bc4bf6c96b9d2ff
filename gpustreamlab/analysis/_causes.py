"""Why a piece of work began late: each cause is tested by the records that it must leave, and by those that exclude it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from gpustreamlab.analysis._busy import (
    StepTime,
    distinct,
    lane_devices,
    lane_processes,
    map_threaded,
    per_row,
    sweep,
    union_edges,
)
from gpustreamlab.analysis._device_causes import (
    CODES,
    FEW,
    PROFILES,
    SLOW_CALL_NS,
    SLOW_CALL_TIMES,
    SURE,
    Calls,
    Part,
    event_waits,
    long_calls,
    of_device,
    part,
    part_of,
    piece_of,
)
from gpustreamlab.analysis._host_waits import (
    ALLOCATES,
    contain,
    is_blocking,
    lasted_ns,
    longest_call,
    named_calls,
    pageable_copies,
    thread_lanes,
    time_in_calls,
)
from gpustreamlab.analysis._makers import AWAITED, OF_RANKS, awaits_ranks
from gpustreamlab.analysis._pieces import CLOSE_NS, Pieces, last_of_others
from gpustreamlab.analysis._strays import strays
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, Cause, Certainty, EdgeKind, FloatArray, Int64Array, LaneKind, SpanKind

LAUNCH_SPACING_NS = 100_000  # Launches of one thread that follow closer than this are in a row: it does little else
QUEUE_LENGTH = 1_000
"""From how many launches outstanding a slow one is that of a full queue. Source: HolisticTraceAnalysis, 1,024."""
RETURN_NS = 1_000
"""How long after its kernel a launch returns that waited for it, at least. On an H200 it was 2.4 us or more with
CUDA_LAUNCH_BLOCKING=1; without, no launch of 400 kernels of 1 us returned behind its kernel."""
MOST_SKEW_NS = 300_000
"""Two launches of one thread cannot be at once: work that begins so much later, beside the work in front, is not late."""
MOST_ROW_NS = 1_000_000  # Nor can the launches of many streams: what a thread launched without a pause is not late for so long
MEDIAN_ROWS = 1_000_000  # Of more kernels than this a sample tells which may have been slowed
SLOWED_TIMES = 1.2  # From how many times its median alone a kernel beside others counts as slowed
MOST_SLOWED_TIMES = 1.5
"""Streams that share a card fairly slow each other as many times as they are. What took so many times that did more work."""
EVEN_TIMES = 1.2  # A kernel of which nine of ten launches take at most this many times their median takes always the same
COPY_SHARE = 0.5
"""A call that copies pageable memory is held up by the copy if that takes this share of it, else by what stood in front."""
LEAST_SHARE = 0.1  # A cause of the host counts from this share of the time for which the launch was late

_LOADS = re.compile(r"^(cu(da)?|hip)(module|library)load|^overhead: (driver compiler|.*loading)$", re.IGNORECASE)
_FILLS_QUEUE = re.compile(r"^overhead: command buffer full$")
_FAULTS = re.compile(r"[HD]toD \(managed(, page fault)?\)$|\(managed, eviction\)$|^GPU page faults$")
_OF_DEVICE = re.compile(r"(device|ctx|context)synchronize", re.IGNORECASE)

LONGER = (Cause.SLOWED_DOWN, Cause.PAGE_FAULTS, Cause.OTHER_RANK)
"""Causes by which work began in time and took longer: without them it is shorter by as much, whatever else runs."""


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
    """Row of the call that proves it, or -1; of what was slowed the row of that kernel."""
    waited_ns: Int64Array
    """For how long others ran meanwhile, but no longer than the rest of its run lasted; if slowed, how much longer it took."""
    saves_ns: Int64Array
    """The most that it would save without, in ns: no longer than the rest of its run was alone."""

    def among(self, rows: BoolArray | Int64Array) -> Found:
        """Return some of them; shape (n_found,), bool, or their places."""
        return Found(**{name: getattr(self, name)[rows] for name in self.__slots__})

    def once_each(self) -> Found:
        """Return the same, with one row for a piece that the same work held up until its launch, and from then to its start."""
        if np.bincount(self.piece.astype(np.intp, copy=False)).max(initial=0) < 2:
            return self
        key = (self.piece * len(CODES) + self.cause) * (self.before.max() + 2) + self.before
        order = np.lexsort((-self.waited_ns, key))
        firsts = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
        sums = {name: np.add.reduceat(getattr(self, name)[order], firsts) for name in ("waited_ns", "saves_ns")}
        return replace(self.among(order[firsts]), **sums)


def find_causes(trace: Trace, pieces: Pieces) -> Found:
    """Find out what held each piece up: first the host, until its launch; then the device, until its start."""
    if not len(pieces.row):
        return Found(**{name: np.empty(0, np.int64) for name in Found.__slots__})
    searches = (_serialised if is_serialised(trace) else _held_up, _strayed, _slowed, _faulted, _awaited_ranks)
    found = map_threaded(lambda search: [*search(trace, pieces)], searches, row_count=len(trace))
    parts = chain.from_iterable(found)
    piece, cause, certainty, before, call, waited_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    is_longer = np.isin(cause, [CODES.index(code) for code in LONGER])
    saves_ns = np.where(is_longer, waited_ns, np.minimum(waited_ns, pieces.alone_ns[piece]))
    return Found(
        piece=piece, cause=cause, certainty=certainty, before=before, call=call, waited_ns=waited_ns, saves_ns=saves_ns
    )


def _held_up(trace: Trace, pieces: Pieces) -> list[Part]:
    slow = tuple(_slow_launches(trace))
    return [*_of_host(trace, pieces, slow), *of_device(trace, pieces, slow)]


def is_serialised(trace: Trace) -> bool:
    """Tell whether every launch waited for its own kernel, as with CUDA_LAUNCH_BLOCKING=1 and under some tools."""
    launches = trace.edges.select(EdgeKind.LAUNCH)
    is_kernel = trace.kind[launches.target] == SPAN_KINDS.index(SpanKind.KERNEL)
    call, kernel = launches.source[is_kernel], launches.target[is_kernel]
    return len(call) > 1 and bool((trace.end_ns[call] - trace.end_ns[kernel] > RETURN_NS).all())


def _serialised(trace: Trace, pieces: Pieces) -> Iterator[Part]:
    held = pieces.costly
    waited_ns = pieces.host_ns[held] + pieces.device_ns[held]
    call = pieces.launch[pieces.before[held]]
    yield part(held, Cause.SERIALISED_BY_TOOL, Certainty.PROVED, pieces.before[held], call, waited_ns)


# Work that was not where it should be, or not as fast as it is alone.


def _strayed(trace: Trace, pieces: Pieces) -> Iterator[Part]:
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
    yield part(piece, Cause.OTHER_STREAM, Certainty.PROVED, first_of[selected[row]], none, alone_ns)


def _faulted(trace: Trace, pieces: Pieces) -> Iterator[Part]:
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
        yield part(piece[hit], Cause.PAGE_FAULTS, Certainty.PROVED, none, none, inside_ns[hit])


def _awaited_ranks(trace: Trace, pieces: Pieces) -> Iterator[Part]:
    """Find kernels of collectives that waited for another rank, where files of all ranks told for how long."""
    row = np.flatnonzero(pieces.counted & (trace.extra.get(AWAITED, np.zeros(len(trace), np.int64)) > 0))
    row = row[piece_of(trace, pieces, row) >= 0]
    is_told = trace.extra.get("communicator", np.zeros(len(trace), np.int64))[row] != 0  # else they are matched by order
    sure = np.where(is_told, SURE.index(Certainty.PROVED), SURE.index(Certainty.LIKELY))
    lost_ns = trace.extra[AWAITED][row] if len(row) else row
    yield part(piece_of(trace, pieces, row), Cause.OTHER_RANK, sure, np.full(len(row), -1, np.int64), row, lost_ns)


def _slowed(trace: Trace, pieces: Pieces) -> Iterator[Part]:
    """Find kernels that took longer beside others than alone, by launches of one kernel with one grid."""
    is_kernel = (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)) & ~named_calls(trace, awaits_ranks, SpanKind.KERNEL)
    rows = np.flatnonzero(is_kernel & (trace.end_ns > trace.start_ns))
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
    yield part(piece_of(trace, pieces, row), Cause.SLOWED_DOWN, Certainty.LIKELY, other, row, lost_ns)


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
    most_times = MOST_SLOWED_TIMES * np.bincount(lane_devices(trace).astype(np.intp, copy=False)).max()
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
    # A short name may stand for many kernels, which full names tell apart.
    shapes: dict[object, int] = {}
    kernels = [shapes.setdefault((one.full_name, one.grid, one.block), len(shapes)) for one in trace.details]
    if kernels and "detail" in trace.extra:
        column = np.array([*kernels, -1], np.int64)[trace.extra["detail"]]
    else:
        column = trace.extra.get("grid_blocks", np.zeros(len(trace), np.int64))
    _, grids = distinct(column[rows])
    parts = (trace.partition[rows] + 1) * len(trace.devices) + per_row(trace, range(len(trace.devices)))[rows]
    key = (trace.name[rows].astype(np.int64) * (int(grids.max()) + 1) + grids) * (int(parts.max()) + 1) + parts
    return distinct(key)[1].astype(np.int64)


def _quantiles(group: Int64Array, values: Int64Array, count: int, *shares: float) -> list[FloatArray]:
    """Return these quantiles of each group that has at least `FEW` values, NaN for the others; each of shape (count,)."""
    order = np.lexsort((values, group))
    sizes = np.bincount(group.astype(np.intp, copy=False), minlength=count)
    last = np.cumsum(sizes) - 1
    enough = sizes >= FEW
    found = []
    for share in shares:
        quantiles = np.full(count, np.nan)
        below, above = (last[enough] - turn((sizes[enough] - 1) * (1 - share)).astype(np.int64) for turn in (np.ceil, np.floor))
        quantiles[enough] = (values[order[below]] + values[order[above]]) / 2
        found.append(quantiles)
    return found


def _of_host(trace: Trace, pieces: Pieces, slow: Sequence[Calls]) -> Iterator[Part]:
    """Share out the time until the launch among what the launching thread did meanwhile."""
    late = pieces.costly[(pieces.is_launch_known & (pieces.host_ns > 0))[pieces.costly]]
    row, before = pieces.row[late], pieces.before[late]
    from_ns, to_ns = pieces.idle_since_ns[late], pieces.launched_ns[late]
    lane = thread_lanes(trace, pieces.launch)(row)
    none = np.full(len(late), -1, np.int64)
    # What its stream was told to wait for would have held it up, however early it had been launched.
    source, _ = event_waits(trace, row, pieces.latency_ns)
    sure = np.where(source >= 0, SURE.index(Certainty.PROVED), SURE.index(Certainty.LIKELY))
    source = np.where((source < 0) & _collects(pieces, row, before), before, source)
    awaited_ns = np.clip(np.where(source >= 0, trace.end_ns[source], from_ns), from_ns, to_ns)
    waited_ns = part_of(pieces.host_ns[late], awaited_ns - from_ns, to_ns - from_ns)
    held = np.flatnonzero(waited_ns > LEAST_SHARE * pieces.host_ns[late])
    yield part(late[held], Cause.EVENT_WAIT, sure[held], source[held], none[held], waited_ns[held])
    left_ns, from_ns = pieces.host_ns[late] - waited_ns, awaited_ns
    other, load, behind_ns = _loads_of_others(pieces, slow, row, lane, from_ns)
    yield part(other, Cause.LAZY_LOAD, Certainty.PROVED, none[: len(other)], load, 0 * load)
    behind_ns = np.minimum(behind_ns, to_ns)
    left_ns = np.where(behind_ns > from_ns, np.minimum(left_ns, pieces.steps.between(behind_ns, to_ns)), left_ns)
    from_ns = np.maximum(from_ns, behind_ns)
    host_ns = left_ns.copy()
    for cause, calls in _blocking_calls(trace, slow):
        blocked_ns, _ = time_in_calls(trace, calls, lane, from_ns, to_ns)
        share_ns = np.minimum(part_of(host_ns, blocked_ns, to_ns - from_ns), left_ns)
        held = share_ns >= LEAST_SHARE * pieces.host_ns[late]
        waited_ns = np.where(held, share_ns, 0).astype(np.int64)
        left_ns -= waited_ns
        chosen = np.flatnonzero(held & (waited_ns > 0))
        longest = longest_call(trace, calls, lane[chosen], from_ns[chosen], to_ns[chosen])
        yield part(late[chosen], cause, Certainty.PROVED, before[chosen], longest, waited_ns[chosen])
    rest = np.flatnonzero(left_ns > LEAST_SHARE * pieces.host_ns[late])
    yield _late_launches(pieces, late[rest], row[rest], before[rest], to_ns[rest] - from_ns[rest], from_ns[rest], left_ns[rest])


def _collects(pieces: Pieces, row: Int64Array, before: Int64Array) -> BoolArray:
    """Tell which rows are collectives that began as what stood in front ended, of which no wait is recorded.

    A collective takes what was made before it: launched earlier, it would have waited for that all the same.
    """
    trace = pieces.trace
    found = named_calls(trace, OF_RANKS.search, SpanKind.KERNEL)[row] & (before >= 0)
    behind_ns = trace.start_ns[row] - trace.end_ns[before]
    return found & (behind_ns >= -CLOSE_NS) & (behind_ns <= pieces.latency_ns) & (trace.end_ns[before] > trace.queued_ns[row])


def _loads_of_others(
    pieces: Pieces, slow: Sequence[Calls], row: Int64Array, lane: Int64Array, from_ns: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Find loads of code that held up launches before these of their thread: a load is billed once, to the launch it held.

    Returned are pieces that loads held, with the loads, each once; and of each row until when such loads went on, in ns.
    """
    trace, behind_ns = pieces.trace, np.full(len(row), np.iinfo(np.int64).min)
    calls = np.unique(np.concatenate([rows for cause, rows in slow if cause is Cause.LAZY_LOAD] or [row[:0]]))
    launched = trace.edges.select(EdgeKind.LAUNCH)
    works, loads = [row[:0]], [row[:0]]
    for thread in np.unique(trace.lane[calls]).tolist():
        load, own = calls[trace.lane[calls] == thread], np.flatnonzero(trace.lane[launched.source] == thread)
        own = own[np.argsort(trace.start_ns[launched.source[own]], kind="stable")]
        load = load[np.argsort(trace.start_ns[load], kind="stable")]
        place = np.searchsorted(trace.start_ns[launched.source[own]], trace.start_ns[load])
        load, held = load[place < len(own)], own[place[place < len(own)]]
        asked = np.flatnonzero(lane == thread)
        last = np.searchsorted(trace.start_ns[launched.source[held]], trace.queued_ns[row[asked]]) - 1
        asked, last = asked[last >= 0], last[last >= 0]
        is_later = trace.end_ns[load[last]] > from_ns[asked]
        behind_ns[asked[is_later]] = trace.end_ns[load[last[is_later]]]
        some = np.unique(last[is_later])
        works.append(launched.target[held[some]])
        loads.append(load[some])
    place = piece_of(trace, pieces, np.concatenate(works))
    return place[place >= 0], np.concatenate(loads)[place >= 0], behind_ns


def _late_launches(
    pieces: Pieces,
    late: Int64Array,
    row: Int64Array,
    before: Int64Array,
    late_ns: Int64Array,
    from_ns: Int64Array,
    waited_ns: Int64Array,
) -> Part:
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
    return part(late[kept], codes[kept], sure[kept], before[kept], none, waited_ns[kept])


def _blocking_calls(trace: Trace, slow: Sequence[Calls]) -> Iterator[Calls]:
    """Yield the rows of calls that hold up the host, by what they do; each call once."""
    if not (trace.kind == SPAN_KINDS.index(SpanKind.HOST)).any():
        return
    of = partial(named_calls, trace)
    allocates, syncs = of(ALLOCATES.search), of(lambda name: "synchronize" in name.lower())
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
    yield Cause.PROFILER_OVERHEAD, np.flatnonzero(of(PROFILES.search))


IN_CALLS = (Cause.PAGEABLE_COPY, Cause.LAZY_LOAD, Cause.ALLOC_SYNC, Cause.HOST_CALL)
"""Causes of the host that are told as well where the whole card was idle meanwhile; waits have changes of their own."""


def idle_in_calls(trace: Trace, pieces: Pieces, least_ns: int) -> Iterator[tuple[Cause, Int64Array, Int64Array, Int64Array]]:
    """Find calls in which a thread was while the whole card was idle, before it launched what came next.

    Yields a cause, and for each such pause the row that came next, the longest call, and the time in such calls in ns; nothing
    where the card was idle for less than `least_ns` in all.
    """
    from_ns, to_ns = sweep(trace).steps.pauses_ns
    if (to_ns - from_ns).sum() < least_ns:
        return
    told = [(cause, calls) for cause, calls in _blocking_calls(trace, tuple(_slow_launches(trace))) if cause in IN_CALLS]
    if not any(len(calls) for _, calls in told):
        return
    rows = np.flatnonzero(pieces.counted)
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    row = rows[np.searchsorted(trace.start_ns[rows], to_ns)]
    lane = thread_lanes(trace, pieces.launch)(row)
    for cause, calls in told:
        if len(calls):
            inside_ns, _ = time_in_calls(trace, calls, lane, from_ns, to_ns)
            hit = np.flatnonzero(inside_ns)
            yield cause, row[hit], longest_call(trace, calls, lane[hit], from_ns[hit], to_ns[hit]), inside_ns[hit]


def blocked_ns(trace: Trace, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array) -> Int64Array:
    """Return for how long threads, by their lanes, were in calls that hold up the host between two times, in ns."""
    calls = [np.empty(0, np.int64), *(rows for _, rows in _blocking_calls(trace, ()))]
    return time_in_calls(trace, np.concatenate(calls), lane, from_ns, to_ns)[0]


def _slow_launches(trace: Trace) -> Iterator[Calls]:
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
        is_slow &= ~contain(trace, calls, np.flatnonzero(named_calls(trace, PROFILES.search)))
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
        first_ns[order] = np.repeat(queued_ns[first], np.diff(first, append=len(order)).astype(np.intp, copy=False))
        apart_ns = np.diff(queued_ns, prepend=0)
        apart_ns[is_new] = unknown_ns
        spacing_ns[order] = apart_ns
    return first_ns, spacing_ns


def launched_in_a_row(pieces: Pieces, row: Int64Array, before: Int64Array) -> Int64Array:
    """Return how long after the launch in front of it each row was launched, if bound by launches as `before` is; else 0."""
    _, spacing_ns = _launch_rows(pieces)
    return np.where(_is_launch_bound(pieces.trace, spacing_ns, row, before), spacing_ns[row], 0)


def _is_launch_bound(trace: Trace, spacing_ns: Int64Array, row: Int64Array, before: Int64Array) -> BoolArray:
    """Tell which pieces were launched one behind the other by a thread whose launches take longer than the work in front."""
    is_bound: BoolArray = (spacing_ns[row] <= LAUNCH_SPACING_NS) & (before >= 0)
    is_bound &= lasted_ns(trace, before) < spacing_ns[row]
    return is_bound
