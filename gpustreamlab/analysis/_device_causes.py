"""What kept work from starting once it was launched: each cause by the records that it must leave; the first that fits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpustreamlab.analysis._busy import (
    count_durations,
    distinct,
    interval_sum_ns,
    is_work,
    lane_devices,
    per_row,
    sweep,
    union_edges,
)
from gpustreamlab.analysis._host_waits import are_cooperative, contain, lasted_ns, named_calls, thread_lanes, time_in_calls
from gpustreamlab.analysis._makers import OF_RANKS, maker_of
from gpustreamlab.analysis._pieces import CLOSE_NS, Pieces, work_before
from gpustreamlab.analysis._utilization import block_needs, blocks_that_fit, size_of
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, Cause, Certainty, EdgeKind, Int64Array, LaneKind, SpanKind

TOGETHER_SHARE = 0.01  # Processes whose kernels ran at once for more than this share of their time do not take turns
SWITCH_NS = 500_000  # Within this time a card has changed from one context to another (assumed)
TAIL_SHARE = 0.1  # For the last tenth of its time a grid that fills the SMs leaves room: its blocks do not end at once
FEW = 5  # From how many launches on a median is told, or a rule of all of them
SLOW_CALL_NS, SLOW_CALL_TIMES = 100_000, 10
"""A launch that takes longer than this, and this many times the median of its kind, did more than to launch."""

LONG_CALL_NS = 20_000  # A call that launches nothing and takes longer holds the host for several launches

_DIRECTION = (re.compile(r"\bHto[DA]\b"), re.compile(r"\b[DA]toH\b"))
_OF_CARD = re.compile(r"^(cu|hip|nccl|ur[A-Z]|ze[A-Z])")
PROFILES = re.compile(r"^overhead: (CUPTI .*|activity buffer request|uvm activity init)$")
_ADDS_FUNCTION = re.compile(r"^(cu(da)?|hip)(LaunchHostFunc|StreamAddCallback)")
_STREAM_WAITS = re.compile(r"^(cu(da)?|hip|aclrt)StreamWait(Event|Value)")
_STOOD_WAITING = re.compile(r"^(remote_)?(event|notify|capture|mem)_?wait", re.IGNORECASE)  # On a stream of Ascend's

CODES = tuple(Cause)
SURE = tuple(Certainty)


Calls = tuple[Cause, Int64Array]  # A cause, and the rows of the calls that have it
Part = tuple[Int64Array, Int64Array, Int64Array, Int64Array, Int64Array, Int64Array]


def part(piece: Int64Array, cause: Cause | Int64Array, sure: Certainty | Int64Array, *rest: Int64Array) -> Part:
    codes = np.full(len(piece), CODES.index(cause)) if isinstance(cause, Cause) else cause
    sures = np.full(len(piece), SURE.index(sure)) if isinstance(sure, Certainty) else sure
    before, call, waited_ns = rest
    return piece, codes, sures, before, call, waited_ns


def part_of(whole_ns: Int64Array, part_ns: Int64Array, of_ns: Int64Array) -> Int64Array:
    """Return as large a part of some times as one time is of another one; shape (n,), in ns."""
    found: Int64Array = (whole_ns * np.minimum(part_ns / np.maximum(of_ns, 1), 1)).astype(np.int64)
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


def long_calls(trace: Trace, known: Int64Array) -> Int64Array:
    """Return the rows of calls that took far longer than a launch does, but those of which it is known why."""
    is_long = named_calls(trace, _OF_CARD.match)
    is_long[known] = False
    rows = np.flatnonzero(is_long)
    least_ns = np.full(len(trace), LONG_CALL_NS)
    least_ns[trace.edges.select(EdgeKind.LAUNCH).source] = SLOW_CALL_NS
    return rows[lasted_ns(trace, rows) > least_ns[rows]]


def of_device(trace: Trace, pieces: Pieces, slow: Sequence[Calls]) -> Iterator[Part]:
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
    event_ns = part_of(waited_ns[held], np.where(awaited_ns > pieces.latency_ns, awaited_ns, 0), queued_for_ns)
    some = np.flatnonzero(event_ns)
    yield part(held[some], Cause.EVENT_WAIT, Certainty.PROVED, source[some], call[some], event_ns[some])
    yield part(held, cause, sure, before, call, waited_ns[held] - event_ns)


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
    slow: Sequence[Calls],
) -> Iterator[_Test]:
    """Yield each cause of the device with the rows that it fits; the first that fits a row counts."""
    row, before = pieces.row[held], pieces.before[held]
    device = lane_devices(trace)

    def near(front: Int64Array) -> BoolArray:
        began_as: BoolArray = (front >= 0) & (trace.start_ns[row] - trace.end_ns[front] <= pieces.latency_ns)
        began_as &= device[trace.lane[row]] == device[trace.lane[front]]
        return began_as

    def front(work: BoolArray) -> tuple[Int64Array, BoolArray]:
        if not work.any():
            return np.full(len(row), -1, np.int64), np.zeros(len(row), bool)
        found = _front_on_card(trace, work, row, pieces.idle_since_ns[held], pieces.latency_ns)
        return found, near(found)

    yield Cause.EVENT_WAIT, Certainty.PROVED, awaited[1], awaited[0]
    behind = pieces.behind[row]
    # Where only some work of a stream is looked at, other work of it may stand in front.
    is_behind = (behind >= 0) & (trace.start_ns[row] - trace.end_ns[behind] <= CLOSE_NS)
    yield Cause.SAME_LANE, Certainty.PROVED, is_behind & (piece_of(trace, pieces, behind) < 0), behind
    half_ns = 0.5 * (trace.start_ns[row] - trace.queued_ns[row])
    profiling = np.flatnonzero(named_calls(trace, PROFILES.search))
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
    yield from _legacy_streams(pieces, row, front, Certainty.PROVED)
    shares = np.array([one.share_engine for one in trace.devices], bool)[device[trace.lane[row]]]
    ways = [named_calls(trace, sign.search, SpanKind.COPY) for sign in _DIRECTION]
    for goes_so, some in ((ways[0], True), (ways[1], True), (ways[0] | ways[1], shares)):
        copy, is_near = front(goes_so)
        yield Cause.COPY_ENGINE, Certainty.PROVED, is_near & goes_so[row] & some, copy
    yield from _of_full_sms(trace, row, front)
    functions = np.flatnonzero(named_calls(trace, _ADDS_FUNCTION.search))
    if len(functions):
        since_ns = np.where(behind >= 0, trace.queued_ns[behind], np.iinfo(np.int64).min)
        last = time_in_calls(trace, functions, thread_lanes(trace, pieces.launch)(row), since_ns, trace.queued_ns[row])[1]
        yield Cause.HOST_FUNC, Certainty.LIKELY, (last >= 0) & (trace.start_ns[last] >= since_ns), before
    yield Cause.EVENT_WAIT, Certainty.LIKELY, near(before) & _told_to_wait(trace, pieces, row, behind), before
    long = long_calls(trace, np.concatenate([row[:0], *(rows for _, rows in slow)]))
    is_long = (lasted_ns(trace, call) >= half_ns) & (trace.end_ns[call] <= trace.start_ns[row] + pieces.latency_ns)
    yield Cause.HOST_CALL, Certainty.LIKELY, np.isin(call, long) & is_long & ~near(before), before
    other, is_near = _other_tenant(trace, row, front)
    yield Cause.TIME_SLICED, Certainty.LIKELY, is_near, other
    yield from _one_queue(pieces, row, before, near(before), _legacy_streams(pieces, row, front, Certainty.LIKELY))


def _told_to_wait(trace: Trace, pieces: Pieces, row: Int64Array, behind: Int64Array) -> BoolArray:
    """Tell which rows were launched behind a call that lets a stream wait, made since the launch before on their stream.

    Which stream waits for what is not recorded where a trace has such calls and no edges of waits. Some makers record that a
    stream stood waiting, which says as much of what came right behind.
    """
    stood = np.flatnonzero(named_calls(trace, _STOOD_WAITING.match, SpanKind.ANNOTATION))
    told = np.zeros(len(row), bool)
    for lane in np.unique(trace.lane[stood]).tolist():
        own, asked = np.sort(trace.end_ns[stood[trace.lane[stood] == lane]]), np.flatnonzero(trace.lane[row] == lane)
        place = np.searchsorted(own, trace.start_ns[row[asked]], side="right") - 1
        told[asked] = (place >= 0) & (trace.start_ns[row[asked]] - own[place] <= pieces.latency_ns)
    waits = np.flatnonzero(named_calls(trace, _STREAM_WAITS.match))
    if not len(waits) or len(trace.edges.select(EdgeKind.WAIT)):
        return told
    since_ns = np.where(behind >= 0, trace.queued_ns[behind], np.iinfo(np.int64).min)
    last = time_in_calls(trace, waits, thread_lanes(trace, pieces.launch)(row), since_ns, trace.queued_ns[row])[1]
    return told | ((last >= 0) & (trace.start_ns[last] >= since_ns))


def _one_queue(
    pieces: Pieces, row: Int64Array, before: Int64Array, near: BoolArray, less_sure: Iterator[_Test]
) -> Iterator[_Test]:
    """Yield work that came through one hardware queue with what was in front: as recorded, or as all that is known fits.

    Tests that are less sure than a record come between the two.
    """
    trace = pieces.trace
    queues = hardware_queues(trace)
    is_known = (queues[row] >= 0) & (queues[before] >= 0) & (before >= 0)
    yield Cause.QUEUE_ALIAS, Certainty.PROVED, near & is_known & (queues[row] == queues[before]), before
    yield from less_sure
    near = near & ~is_known
    queue_count = maker_of(trace).queue_count
    if not queue_count:
        return
    device = lane_devices(trace)
    used_lane = [int(trace.lane[part[0]]) for part in sweep(trace).by_lane]
    used = np.bincount(device[used_lane].astype(np.intp, copy=False), minlength=len(trace.devices))
    is_many = (used > queue_count)[device[trace.lane[row]]]
    yield Cause.QUEUE_ALIAS, Certainty.LIKELY, near & is_many, before
    left = np.flatnonzero(near)
    in_order = np.zeros(len(row), bool)
    in_order[left] = _in_launch_order(trace, row[left], before[left])
    yield Cause.QUEUE_ALIAS, Certainty.LIKELY, in_order, before


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
        before, _ = front(others)
        asked = own[row]
        found[asked] = before[asked]
        is_near[asked] = (before >= 0)[asked] & (trace.start_ns[row] - trace.end_ns[before] <= SWITCH_NS)[asked]
    return found, is_near


def _in_launch_order(trace: Trace, row: Int64Array, before: Int64Array) -> BoolArray:
    """Tell which rows are of a pair of streams whose kernels all ran one after the other as launched, and often in turn."""
    found = np.zeros(len(row), bool)
    if any("WaitEvent" in name for name in trace.names) or len(trace.edges.select(EdgeKind.WAIT)):
        return found  # streams that wait for each other keep that order, too
    pair = np.where(before >= 0, _pair(trace, row, before), -1)
    work = np.flatnonzero(is_work(trace))
    work = work[np.argsort(trace.start_ns[work], kind="stable")]
    one, other = work[:-1], work[1:]
    # Streams of which anything ran at once are most, and are found by one look at all work.
    meets = (trace.start_ns[other] < trace.end_ns[one]) & (trace.end_ns[other] > trace.start_ns[one])
    met = distinct(_pair(trace, one[meets], other[meets]))[0]
    for key in np.setdiff1d(pair[pair >= 0], met).tolist():
        own = work[np.isin(trace.lane[work], divmod(key, len(trace.lanes)))]
        own = own[np.argsort(trace.queued_ns[own], kind="stable")]
        is_ordered = (trace.start_ns[own[1:]] >= trace.end_ns[own[:-1]]).all()
        in_turn = (trace.lane[own[1:]] != trace.lane[own[:-1]]) & (trace.queued_ns[own[1:]] < trace.start_ns[own[:-1]])
        if is_ordered and in_turn.sum() >= FEW and (trace.kind[own] == SPAN_KINDS.index(SpanKind.KERNEL)).all():
            found |= pair == key
    return found


def _pair(trace: Trace, row: Int64Array, other: Int64Array) -> Int64Array:
    """Return one number for the lanes of two rows, whichever comes first."""
    lanes = trace.lane[row].astype(np.int64), trace.lane[other].astype(np.int64)
    pair: Int64Array = np.minimum(*lanes) * len(trace.lanes) + np.maximum(*lanes)
    return pair


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


def _legacy_streams(pieces: Pieces, row: Int64Array, front: _Front, certainty: Certainty) -> Iterator[_Test]:
    """Yield pairs of the legacy default stream and a blocking stream, or one that may be: those of a session never are."""
    trace = pieces.trace
    is_legacy = np.array([lane.outside and lane.name.startswith("default stream") for lane in trace.lanes])
    hit = np.array([bool(lane.is_blocking) for lane in trace.lanes]) & ~is_legacy
    if certainty is Certainty.LIKELY:
        is_made = bool(trace.metadata.imported)  # by others
        hit = np.array([one.is_blocking is None and (one.outside or is_made) for one in trace.lanes]) & ~is_legacy
        hit &= np.array([one.kind is LaneKind.STREAM for one in trace.lanes])
    for own, other in ((is_legacy, hit), (hit, is_legacy)):
        if own.any() and other.any():
            before, near = front(pieces.counted & other[trace.lane])
            yield Cause.LEGACY_STREAM, certainty, near & own[trace.lane[row]], before


def _of_full_sms(trace: Trace, row: Int64Array, front: _Front) -> Iterator[_Test]:
    """Yield what full SMs held up. A collective takes what was made before it, so that it rather waited for that to end."""
    is_of_ranks = named_calls(trace, OF_RANKS.search, SpanKind.KERNEL)[row]
    for cause, certainty, fits, before in _full_sms(trace, row, front):
        is_behind = trace.start_ns[row] >= trace.end_ns[before] - CLOSE_NS
        yield Cause.EVENT_WAIT, Certainty.LIKELY, fits & is_of_ranks & is_behind, before
        yield cause, certainty, fits, before


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
    is_whole = is_kernel & are_cooperative(trace)
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
