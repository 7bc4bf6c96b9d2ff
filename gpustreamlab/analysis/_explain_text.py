"""What a finding says: what happened, with its figures, and what to type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from gpustreamlab.analysis._device_causes import SURE, hardware_queues
from gpustreamlab.analysis._host_waits import named_calls
from gpustreamlab.analysis._makers import AMD, AWAITED, OF_RANKS, awaits_ranks, maker_of
from gpustreamlab.analysis._needed_waits import NEEDED, NOT_NEEDED, strongest_need
from gpustreamlab.analysis._pieces import LatePieces
from gpustreamlab.analysis._scale import format_ns, format_share
from gpustreamlab.analysis._utilization import block_needs, blocks_that_fit
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Cause, Certainty, EdgeKind, LaneKind, SpanKind

_NAME_WIDTH = 40
OF_CALL_ROW = (Cause.SLOWED_DOWN, Cause.OTHER_RANK)  # Of what took longer the kernel stands in place of a call
LESS_LAUNCHES = (
    "Capture the launches once as a CUDA graph, and launch that, where each turn does the same with the same numbers "
    "(in torch: torch.compile(model, mode='reduce-overhead')), or make fewer, longer kernels: a larger batch, fused operations."
)
LEAST_NEED = 1 / 8  # From which share of an SM on it is told what a block takes

TEXTS: Mapping[Cause, tuple[str, str]] = MappingProxyType(
    {
        Cause.SAME_LANE: (
            "{other} was in front of {work}: a stream runs its work in order.",
            "If neither needs the other's result, put one on a stream of its own: lab.stream('other').",
        ),
        Cause.EVENT_WAIT: (
            "{stream} waited {awaited} for an event behind {other}, before {work} began.",
            "{mend_wait}",
        ),
        Cause.LEGACY_STREAM: (
            "{work} began as {other} ended: the legacy default stream and blocking streams wait for each other.",
            "Launch it on a stream of the session, with lab.on(...): those are non-blocking.",
        ),
        Cause.HOST_SYNC_DEVICE: (
            "The host was in {call}, which waits for the whole device, before it launched {work}.",
            "{wait_instead}",
        ),
        Cause.HOST_SYNC_STREAM: (
            "The host was in {call} while {other} ran, before it launched {work}.",
            "{wait_instead}",
        ),
        Cause.HOST_LATE: (
            "{work} was launched {late} later than its stream could have begun it, while {other} ran.",
            "{launch_earlier}",
        ),
        Cause.LAUNCH_BOUND: (
            "{other} took {took}, less than the host took from one launch to the next.",
            "{may_wait}" + LESS_LAUNCHES,
        ),
        Cause.LAZY_LOAD: (
            "The host was in {call} before {work} began: code was loaded, the first time that it was needed.",
            "Run it once before you measure, or set CUDA_MODULE_LOADING=EAGER before the process starts.",
        ),
        Cause.ALLOC_SYNC: (
            "{call} held up the host before it launched {work}.",
            "Allocate before the loop, or from a pool: lab.xp arrays, or lab.stream({stream}).scratch(size_bytes).",
        ),
        Cause.HOST_CALL: (
            "{call} held up the host before it launched {work}.",
            "Make that call before the loop, from another thread, or before you wait for what runs{upload}.",
        ),
        Cause.COOPERATIVE: (
            "{work} is a cooperative launch, all blocks of which have to be on the SMs at once; {other} had some of these for "
            "{queued}.",
            "Give it no more blocks than fit beside the other one, which may have SMs of its own: lab.partition(...).",
        ),
        Cause.TIME_SLICED: (
            "{work} waited {queued} and began as {other} ended: two processes, or contexts, share the card by slices of time.",
            "Start the processes under MPS (nvidia-cuda-mps-control -d), or put the work into one process, with streams, or "
            "with green contexts where each needs SMs of its own: lab.partition(...).",
        ),
        Cause.PAGE_FAULTS: (
            "Pages of managed memory were moved for {waited} while kernels ran that used some of them: {name} took "
            "{lasted}."
            "{evicted}",
            "Fetch the pages before: cudaMemPrefetchAsync on its stream, or cudaMemAdvise; or use device memory and copies. "
            "Where it goes on, look at the order in which its threads use them.",
        ),
        Cause.PAGEABLE_COPY: (
            "{call} of pageable memory held up the host before it launched {work}.",
            "Let the host's side of the copy be pinned memory: lab.memory.pinned_empty(shape, dtype).{then_wait}",
        ),
        Cause.COPY_ENGINE: (
            "{work} waited {queued} and began as {other} ended: {engine}.",
            "The two never run at once. Give the streams kernels to run meanwhile{or_back}.",
        ),
        Cause.GRID_FILLS_DEVICE: (
            "{other} has {blocks} blocks{each} and fills all {sms} SMs; {work} waited {queued} until some were free.",
            "{make_room}",
        ),
        Cause.PARTITION_SMALL: (
            "{other} has {blocks} blocks and fills the {sms} SMs of the partition; {work} waited {queued} for them.",
            "Make the partition larger, or put the two into partitions of their own: lab.partition(...).",
        ),
        Cause.SM_RESOURCES: (
            "Beside the blocks of {other} no SM had registers, threads or shared memory left for a block of {work}.",
            "Use smaller blocks or less shared memory, or share out the SMs: lab.partition(...).",
        ),
        Cause.SAME_SM_PRIORITY: (
            "{other} was launched later and went first, as its stream has the higher priority; {work} waited {queued}.",
            "Put it on a stream of that priority: lab.stream('new', priority={priority}).",
        ),
        Cause.QUEUE_ALIAS: (
            "{work} began as {other} ended, with room left on the SMs: {queue}.",
            "{in_order}Set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts, or use fewer streams. If they then run at "
            "once, it was that.",
        ),
        Cause.GRAPH_ORDER: (
            "{work} and {other} are of one launch of a CUDA graph, which holds their order.",
            "Fork with an event during the capture, so that the graph holds no order between them.",
        ),
        Cause.QUEUE_FULL: (
            "The host was in {call} before {work} began: the launch queue was full.",
            "Launch fewer, longer kernels, or from a second thread.",
        ),
        Cause.HOST_FUNC: (
            "{work} began {queued} after its launch; a function of the host had been enqueued between it and the work before.",
            "Put the function into a stream of its own, or make it shorter: Python in it also waits for the GIL.",
        ),
        Cause.PROFILER_OVERHEAD: (
            "{call} of the profiler held up the host before it launched {work}.",
            "Without the profiler this gap is shorter: compare with a run that records ranges only, lab.capture('ranges').",
        ),
        Cause.OTHER_STREAM: (
            "{work} was launched with {other_stream} selected, and did not run there.",
            "Pass lab.stream({other_stream}) to the library that launched it; lab.trace.strays() lists all such work.",
        ),
        Cause.SERIALISED_BY_TOOL: (
            "Every launch waited for its own kernel: {call} lasted until {other} had ended.",
            "Unset CUDA_LAUNCH_BLOCKING, and run without tools that serialise kernels.",
        ),
        Cause.SLOWED_DOWN: (
            "{name} took {waited} longer beside {other} than it takes alone (median of its launches).{shares_taken}",
            "{share_out}If both are bound by memory, nothing is gained by overlap.",
        ),
        Cause.OTHER_RANK: (
            "{name} took {lasted}, {waited} longer than on the last rank: a collective ends on no rank before the last one has "
            "begun it.",
            "Look at what the last rank did before: trace.stragglers() of the files of all ranks names it. Share out the work "
            "evenly, or begin it earlier on that rank.",
        ),
        Cause.NOT_OFFERED: (
            "For {missing} only one stream had work queued or running, the longest time {stream} for {longest}.",
            "If other work does not need its result, launch that first, in the same cell or from a second thread.",
        ),
        Cause.UNKNOWN: (
            "{work} began {after}, while {other} ran, and nothing in the trace tells why.",
            "Ruled out: {ruled_out}.",
        ),
    }
)
"""What happened and what to do, by cause; filled in by `finding_texts`."""

_OWN_UNITS = "hipExtStreamCreateWithCUMask"
_AMD_FIXES: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.LEGACY_STREAM: "Launch it on a stream made by hipStreamCreateWithFlags(&stream, hipStreamNonBlocking).",
        Cause.LAZY_LOAD: "Run it once before you measure, or set HIP_ENABLE_DEFERRED_LOADING=0 before the process starts.",
        Cause.ALLOC_SYNC: "Allocate before the loop, or from a pool: hipMallocAsync, or the caching allocator of torch.",
        Cause.COOPERATIVE: f"Give it no more blocks than fit beside the other one, which may have its own units: {_OWN_UNITS}.",
        Cause.TIME_SLICED: "Put the work into one process, with streams.",
        Cause.PAGEABLE_COPY: "Let the host's side of the copy be pinned memory: hipHostMalloc, or tensor.pin_memory()."
        "{then_wait}",
        Cause.SM_RESOURCES: f"Use smaller blocks or less shared memory, or share out the compute units: {_OWN_UNITS}.",
        Cause.QUEUE_ALIAS: "{in_order}Set GPU_MAX_HW_QUEUES=8 before the process starts, or use fewer streams. If they then "
        "run at once, it was that.",
        Cause.SERIALISED_BY_TOOL: "Unset HIP_LAUNCH_BLOCKING and AMD_SERIALIZE_KERNEL, and run without tools that serialise "
        "kernels.",
        Cause.SLOWED_DOWN: f"Share out the compute units: {_OWN_UNITS}; RCCL's blocks by NCCL_MAX_NCHANNELS. If both are bound "
        "by memory, nothing is gained by overlap.",
    }
)
"""What to do on a card of AMD, where that is something else."""


def finding_texts(code: Cause, trace: Trace, pieces: LatePieces, place: int = 0) -> tuple[str, str]:
    """Write what happened to one piece that began late, and what to do."""
    piece = LatePieces(*(column[place] for column in pieces))
    row, before, call, since_ns, launched_ns, start_ns, waited_ns, certainty, _ = map(int, piece)
    is_proved = SURE[certainty] is Certainty.PROVED  # of a late host, that the launching call is known

    def name(row: int) -> str:
        return display_name(trace.names[int(trace.name[row])], _NAME_WIDTH) if row >= 0 else "other work"

    def stream(row: int) -> str:
        return repr(display_name(trace.lanes[int(trace.lane[row])].name, _NAME_WIDTH)) if row >= 0 else "another stream"

    def lasted(row: int) -> str:
        return format_ns(int(trace.end_ns[row] - trace.start_ns[row]))

    part = int(trace.partition[before]) if before >= 0 else -1
    blocks = trace.extra.get("grid_blocks")
    is_known = bool(trace.queued_ns[row] < trace.start_ns[row])
    shares = any(one.share_engine for one in trace.devices if one.ordinal == trace.lanes[int(trace.lane[row])].device)
    words = {
        "name": name(call if code in OF_CALL_ROW else row),
        "work": f"{name(row)} on {stream(row)}",
        "other": f"{name(before)} on {stream(before)}" if before >= 0 else "work of other streams",
        "stream": stream(row),
        "other_stream": stream(before),
        "call": f"{name(call)} ({lasted(call)})" if call >= 0 else "a call",
        "upload": _upload(name(call)),
        "then_wait": _then_wait(trace, call, row) if code is Cause.PAGEABLE_COPY else "",
        "lasted": lasted(call if code in OF_CALL_ROW else row),
        "took": lasted(before) if before >= 0 else "little",
        "waited": format_ns(waited_ns),
        "queued": format_ns(start_ns - launched_ns),
        "after": f"{format_ns(start_ns - launched_ns)} after its launch" if is_known else "late",
        "late": format_ns(launched_ns - since_ns),
        "each": _each(trace, before) if code is Cause.GRID_FILLS_DEVICE and before >= 0 else "",
        "blocks": "many" if blocks is None or before < 0 else f"{int(blocks[before]):,}",
        "awaited": format_ns(min(start_ns, int(trace.end_ns[before])) - since_ns),
        "priority": str(trace.lanes[int(trace.lane[before])].priority),
        "may_wait": "" if is_proved else _MAY_WAIT,
        "launch_earlier": _launch_earlier(trace, has_call=is_proved),
        "mend_wait": _mend_wait(stream(row), stream(before), need=strongest_need(pieces.need)),
        "wait_instead": _wait_instead(name(call), stream(row), stream(before)),
        "ruled_out": _ruled_out(trace, [row, before]) if code is Cause.UNKNOWN else "",
        "engine": "the card has one copy engine, which both directions share"
        if shares
        else "copies in one direction share an engine",
        "or_back": "" if shares else ", or a copy in the other direction",
        "queue": _queue(trace, row, before) if code is Cause.QUEUE_ALIAS else "",
        "in_order": _in_order(trace, row, before) if code is Cause.QUEUE_ALIAS else "",
        "make_room": make_room(trace, row, before),
        "share_out": "" if _have_own_sms(trace, call, before) else _SHARE_OUT,
        "shares_taken": _shares_taken(trace, call, before, waited_ns) if code is Cause.SLOWED_DOWN else "",
        "evicted": _evicted(trace, row) if code is Cause.PAGE_FAULTS else "",
        "sms": str(trace.partitions[part].granted_sms if part >= 0 else trace.metadata.device.sm_count),
    }
    happened, fix = TEXTS[code]
    if (
        before >= 0
        and code not in OF_CALL_ROW
        and AWAITED not in trace.extra
        and awaits_ranks(trace.names[int(trace.name[before])])
    ):
        happened += _PERHAPS_RANKS
    maker = maker_of(trace)
    fix = _AMD_FIXES.get(code, fix) if maker is AMD else fix
    return maker.words(happened.format(**words)), maker.words(fix.format(**words))


_PERHAPS_RANKS = " That may have waited for another rank itself: files of all ranks, read as one trace, tell."
THEN_WAIT = "The host then goes on before the copy has ended, so a stream that uses what is copied must wait for it: "
"""What is said of copies that blocked the host, where other streams work behind them."""


def _then_wait(trace: Trace, call: int, row: int) -> str:
    """Say that the stream of some work has to wait for the copy of a call, which held that work up; empty in one stream."""
    launches = trace.edges.select(EdgeKind.LAUNCH)
    lanes = {int(trace.lane[copy]) for copy in launches.target[launches.source == call].tolist()}
    if call < 0 or not lanes or int(trace.lane[row]) in lanes:
        return ""
    copying, stream = (repr(display_name(trace.lanes[lane].name, _NAME_WIDTH)) for lane in (min(lanes), int(trace.lane[row])))
    return f" {THEN_WAIT}lab.stream({stream}).wait({copying})."


def _in_order(trace: Trace, row: int, before: int) -> str:
    """Say where one queue may be meant: collectives then begin in the order of their launches, on each rank the same."""
    is_of_ranks = any(one >= 0 and OF_RANKS.search(trace.names[int(trace.name[one])]) for one in (row, before))
    return "If it needs that result, or one queue is meant, as in Megatron, leave it. Else: " if is_of_ranks else ""


def _queue(trace: Trace, row: int, before: int) -> str:
    """Say why two streams may share a hardware queue, and what would tell."""
    queue, other = hardware_queues(trace)[[row, before]].tolist()
    if before >= 0 and queue == other >= 0:
        return "both came through one hardware queue"
    maker = maker_of(trace)
    if sum(lane.kind is LaneKind.STREAM for lane in trace.lanes) > maker.queue_count:
        return "more streams than hardware queues share them"
    setting, tool = "CUDA_DEVICE_MAX_CONNECTIONS", "lab.capture('kernels')"
    if maker is AMD:
        setting, tool = "GPU_MAX_HW_QUEUES", "rocprofv3"
    return (
        "all work of the two ran one after the other, in the order of its launches, as it does through one hardware queue "
        f"({setting}=1). Queues of kernels, which would tell, are not recorded; {tool} does it"
    )


def _have_own_sms(trace: Trace, row: int, other: int) -> bool:
    """Tell whether two pieces of work ran on partitions that share no SM."""
    parts = [int(trace.partition[one]) for one in (row, other) if one >= 0]
    return len(set(parts)) > 1 and min(parts) >= 0


REST = "; the rest is memory, caches or clocks"
_SHARE_OUT = "Share out the SMs: lab.partition(...); NCCL's blocks by NCCL_MAX_CTAS. "


def _shares_taken(trace: Trace, row: int, before: int, waited_ns: int) -> str:
    """Say what share other work had of the SMs or of the memory, and how much of what one kernel lost that explains.

    Only what records tell is said: the grids of kernels, and the bytes of copies.
    """
    blocks, part = trace.extra.get("grid_blocks"), int(trace.partition[row])
    sms = trace.partitions[part].granted_sms if part >= 0 else trace.metadata.device.sm_count
    rate = trace.metadata.device.memory_bytes_per_s
    if before < 0 or not sms:
        return ""
    if trace.kind[before] == SPAN_KINDS.index(SpanKind.COPY):
        moved = int(trace.extra["size_bytes"][before]) if "size_bytes" in trace.extra else 0
        lasted_ns = int(trace.end_ns[before] - trace.start_ns[before])
        if not (rate and moved and lasted_ns):
            return ""
        took = moved * 1e9 / lasted_ns / rate
        return f" The other takes {format_share(took)} of the memory's bandwidth and no SMs; the rest is caches or clocks."
    if _have_own_sms(trace, row, before):
        return " Each has SMs of its own: it is memory, caches or clocks."
    if blocks is None or not (blocks[row] > 0 and blocks[before] > 0):
        return ""
    fit = blocks_that_fit(trace)[[row, before]]
    taken = min(sms - 1, -(-int(blocks[before]) // max(1, int(fit[1]))), int(blocks[before]))
    alone, beside = (-(-int(blocks[row]) // int(fit[0] * count)) for count in (sms, sms - taken))
    told = f" The other takes {taken:,} or more of the {sms:,} SMs"
    if beside > alone:
        alone_ns = int(trace.end_ns[row] - trace.start_ns[row]) - waited_ns
        share = min(1.0, alone_ns * (beside / alone - 1) / max(1, waited_ns))
        explains = "all" if share == 1.0 else format_share(share)
        told += f", so that its {int(blocks[row]):,} blocks take {beside:,} turns in place of {alone:,}: {explains} of it"
        if share == 1.0:
            return f"{told}."
    return f"{told}{REST}."


def _each(trace: Trace, row: int) -> str:
    """Say what each block of a kernel takes most of, as a share of what an SM has; empty where that is little, or unknown."""
    limits = trace.metadata.device.sm_limits
    is_known = (limits.threads > 0, limits.registers > 0, limits.shared_bytes > 0)
    needs = [(int(needed[row]), int(there_are[row])) for needed, there_are in block_needs(trace)]
    shares = [told * needed / there_are for told, (needed, there_are) in zip(is_known, needs, strict=True)]
    most = int(np.argmax(shares))
    if shares[most] <= LEAST_NEED:
        return ""
    what = ("threads", "registers", "bytes of shared memory")[most]
    return f", each of which takes {needs[most][0]:,} of the {needs[most][1]:,} {what} of an SM,"


def _evicted(trace: Trace, row: int) -> str:
    """Say that pages were thrown out to make room while a kernel ran, if any were."""
    out = named_calls(trace, lambda name: name.endswith("(managed, eviction)"), SpanKind.ANNOTATION)
    out &= (trace.start_ns < trace.end_ns[row]) & (trace.end_ns > trace.start_ns[row])
    return " Others had to leave meanwhile: more is used than fits into the card's memory." if out.any() else ""


def make_room(trace: Trace, row: int, before: int) -> str:
    """Say what to do for work that waits for SMs; priority is not advised to a stream that has it."""
    own, other = (trace.lanes[int(trace.lane[one])] for one in (row, before))
    share = "lab.partition(new=16, rest='rest') and lab.stream('new', partition='new')"
    if maker_of(trace) is AMD:
        share = f"with {_OWN_UNITS}"
    if own.priority < other.priority:
        return (
            f"Its stream has priority already ({own.priority}), which does not push out blocks that run. Give it SMs of "
            f"its own, {share}, or let the other kernel have more blocks that each take less time."
        )
    return (
        "Launch the shorter one first, or give it a stream with priority or with SMs of its own. "
        f"Type lab.stream('new', priority=-1), or {share}."
    )


def _mend_wait(stream: str, other: str, *, need: int) -> str:
    """Say what to do where a stream waited for another: what is needed, or not known, is never to be left out."""
    if need == NEEDED:
        return (
            f"Keep this wait: {stream} uses arrays of {other}. It can only begin earlier: give it each part as soon as that is "
            "there, with an event recorded right behind it; or, where it writes over what the other reads, a second array."
        )
    if need == NOT_NEEDED:
        return f"Leave out lab.stream({stream}).wait({other}): no array asks for it."
    return (
        f"It is not known what all this work reads and writes, so keep the wait. If {stream} needs that result, record the "
        "event as soon as the result is there."
    )


def _ruled_out(trace: Trace, rows: list[int]) -> str:
    """Say what the records of a trace exclude of two pieces of work, and what nobody can tell without them."""
    are_copies = bool((trace.kind[rows] == SPAN_KINDS.index(SpanKind.COPY)).all())
    has_calls = bool((trace.kind == SPAN_KINDS.index(SpanKind.HOST)).any())
    known: dict[str, bool] = {
        "one copy engine": not are_copies or trace.metadata.device.copy_engines is not None or not trace.metadata.imported,
        "an event that its stream waited for": has_calls and trace.metadata.waits_told,
        "a slow launch": has_calls,
        "full SMs": "grid_blocks" in trace.extra and _knows_sms(trace),
    }
    if min(hardware_queues(trace)[rows], default=-1) >= 0:
        known["one hardware queue"] = True
    if trace.metadata.waits_told and any("WaitEvent" in name for name in trace.names):
        # A wait whose event was recorded before the capture leaves no edge.
        del known["an event that its stream waited for"]
    lacks = [what for what, is_known in known.items() if not is_known]
    unknown = f". Not recorded, so that nobody can tell: {', '.join(lacks)}" if lacks else ""
    return (", ".join(what for what, is_known in known.items() if is_known) or "nothing") + unknown


def _knows_sms(trace: Trace) -> bool:
    """Tell whether all is known by which kernels fill the SMs of a card."""
    limits = [
        (one.sm_count, one.sm_limits.threads, one.sm_limits.registers, one.sm_limits.shared_bytes) for one in trace.devices
    ]
    return all(map(all, limits))


_MAY_WAIT = "It may have waited in between: lab.capture('kernels', host=True), and run it again. Else: "
"""What is said of launches of which no call is known."""


def _launch_earlier(trace: Trace, *, has_call: bool) -> str:
    """Say what to do where the host launched late."""
    if not has_call:
        return "What the host did is not in the trace: lab.capture('kernels', host=True), and run it again."
    thread = ", from a second thread," if len(trace.threads) < 2 else ""  # what has several may well do that
    return f"Launch it earlier{thread} or as part of a CUDA graph."


def _upload(call: str) -> str:
    """Say of a call for a graph what makes its launch short."""
    return f"; upload the graph first, with {call[: call.index('Graph')]}GraphUpload" if "Graph" in call else ""


def _wait_instead(call: str, stream: str, other: str) -> str:
    """Say what to do where the host waited, in which call."""
    if "memcpy" in call.lower():
        return (
            f"If it read a result, read that after the launch on {stream}, or copy to pinned memory without blocking. What it "
            "brought to the card, the launch may need: then let the stream wait for a copy that does not block."
        )
    return (
        f"Launch on {stream} first, then wait. If it needs the result, let the stream wait instead of the host: "
        f"lab.stream({stream}).wait({other})."
    )


CAUSE_TITLES: Mapping[Cause, str] = MappingProxyType(
    {
        Cause.SAME_LANE: "Work stood in line on one stream",
        Cause.EVENT_WAIT: "A stream waited for another",
        Cause.LEGACY_STREAM: "The default stream and others waited for each other",
        Cause.HOST_SYNC_DEVICE: "The host waited for the whole card",
        Cause.HOST_SYNC_STREAM: "The host waited before it launched more",
        Cause.HOST_LATE: "The host launched late",
        Cause.LAUNCH_BOUND: "Kernels are shorter than their launches",
        Cause.LAZY_LOAD: "A kernel's code was loaded first",
        Cause.ALLOC_SYNC: "Allocating or freeing memory held the host",
        Cause.PAGEABLE_COPY: "A copy from ordinary memory held the host",
        Cause.COPY_ENGINE: "Copies in one direction took turns",
        Cause.GRID_FILLS_DEVICE: "One kernel filled the whole card",
        Cause.SM_RESOURCES: "Two kernels did not fit on the SMs together",
        Cause.QUEUE_ALIAS: "Streams shared one hardware queue",
        Cause.PARTITION_SMALL: "One kernel filled its partition",
        Cause.SAME_SM_PRIORITY: "Work of higher priority went first",
        Cause.GRAPH_ORDER: "A CUDA graph held the order",
        Cause.QUEUE_FULL: "The launch queue was full",
        Cause.HOST_FUNC: "A function of the host stood in the stream",
        Cause.PROFILER_OVERHEAD: "The profiler held the host",
        Cause.OTHER_STREAM: "Work ran on another stream than was chosen",
        Cause.SERIALISED_BY_TOOL: "Each launch waited for its kernel",
        Cause.SLOWED_DOWN: "Kernels slowed each other down",
        Cause.OTHER_RANK: "A collective waited for another rank",
        Cause.HOST_CALL: "A call held the host",
        Cause.COOPERATIVE: "A cooperative launch waited for all its blocks",
        Cause.TIME_SLICED: "Processes took turns on the card",
        Cause.PAGE_FAULTS: "Pages of managed memory moved while kernels ran",
        Cause.NOT_OFFERED: "Only one stream had work to do",
        Cause.UNKNOWN: "The cause is not known",
    }
)
"""What a cause is called on a page, before its code."""

_CODE = re.compile(r"\bstreams = \[|(?:\b\w+ = )?\b(?:lab|node|torch|x)\.\w")  # Where code begins in advice


def code_lines(advice: str) -> list[str]:
    """Return the lines to type that stand in a text of advice, without those to leave out and those that are only named.

    Examples
    --------
    >>> code_lines("Leave out lab.stream('b').wait('a'). Then lab.stream('b').wait(done), or use lab.partition(...).")
    ["lab.stream('b').wait(done)"]
    """
    lines, end = [], 0
    for found in _CODE.finditer(advice):
        if found.start() < end:
            continue
        end = _code_end(advice, found.start())
        line, sentence = advice[found.start() : end], advice[advice.rfind(". ", 0, found.start()) + 1 : found.start()]
        if "leave out" in sentence.lower():
            continue
        if line.endswith((")", "]")) and "..." not in line and (" = " in line or not line.endswith("()")) and line not in lines:
            lines.append(line)
    return lines


def _code_end(text: str, at: int) -> int:
    """Return where an expression ends: at the first sign behind its brackets that goes on with no other."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] in "([") - (text[place] in ")]")
        following = text[place + 1 : place + 2]
        if not depth and text[place] in ")]" and not (following == "." and text[place + 2 : place + 3].isalpha()):
            return place + 1
    return at + 1
