"""What a finding says: what happened, with its figures, and what to type."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gpustreamlab.analysis._pieces import Pieces
from gpustreamlab.analysis._scale import format_ns
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Cause, SpanKind

_NAME_WIDTH = 40

TEXTS: Mapping[Cause, tuple[str, str]] = MappingProxyType(
    {
        Cause.EVENT_WAIT: (
            "{work} waited {queued} for an event behind {other}, and began as that ended.",
            "If it does not need that result, leave out lab.stream({stream}).wait(...); else record the event earlier.",
        ),
        Cause.LEGACY_STREAM: (
            "{work} began as {other} ended: the legacy default stream and blocking streams wait for each other.",
            "Launch it on a stream of the session, with lab.on(...): those are non-blocking.",
        ),
        Cause.HOST_SYNC_DEVICE: (
            "The host was in {call}, which waits for the whole device, before it launched {work}.",
            "Launch on {stream} first, then wait. If it needs the result of {other_stream}, this order is real.",
        ),
        Cause.HOST_SYNC_STREAM: (
            "The host was in {call} while {other} ran, before it launched {work}.",
            "Launch on {stream} first, then wait. If it needs the result of {other_stream}, this order is real.",
        ),
        Cause.HOST_LATE: (
            "{work} was launched {late} after its stream had become idle, while {other} ran.",
            "Launch it earlier, from a second thread, or as part of a CUDA graph.",
        ),
        Cause.LAUNCH_BOUND: (
            "{other} took {took}, less than the host needs from one launch to the next.",
            "Make fewer, longer kernels, or launch them as one CUDA graph.",
        ),
        Cause.LAZY_LOAD: (
            "The first launch of {work} took {queued} until it began: its code was loaded.",
            "Run it once before you measure, or set CUDA_MODULE_LOADING=EAGER before the process starts.",
        ),
        Cause.ALLOC_SYNC: (
            "{call} held up the host before it launched {work}.",
            "Allocate before the loop, or from a pool: lab.xp arrays, or lab.stream({stream}).scratch(size_bytes).",
        ),
        Cause.PAGEABLE_COPY: (
            "{call} of pageable memory held up the host before it launched {work}.",
            "Copy from pinned memory: lab.memory.pinned_empty(shape, dtype).",
        ),
        Cause.COPY_ENGINE: (
            "{work} waited {queued} and began as {other} ended: copies in one direction share an engine.",
            "They cannot overlap. Put other work beside them, or a copy in the other direction.",
        ),
        Cause.GRID_FILLS_DEVICE: (
            "{other} has {blocks} blocks and fills all {sms} SMs; {work} waited {queued} until some were free.",
            "Launch the shorter one first, give its stream priority, or share out the SMs: lab.partition(...).",
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
            "Give both streams one priority: lab.stream(name, priority=0).",
        ),
        Cause.QUEUE_ALIAS: (
            "{work} began as {other} ended, with room left on the SMs; of more streams than hardware queues some share one.",
            "Set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process starts, or use fewer streams.",
        ),
        Cause.GRAPH_ORDER: (
            "{work} and {other} are of one launch of a CUDA graph, which holds their order.",
            "Fork with an event during the capture, so that the graph holds no order between them.",
        ),
        Cause.QUEUE_FULL: (
            "The launch of {work} took {queued} until it began, with the launch queue full.",
            "Launch fewer, longer kernels, or from a second thread.",
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
            "{name} took {waited} longer beside {other} than it takes alone (median of its launches).",
            "Share out the SMs: lab.partition(...). If both are bound by memory, nothing is gained by overlap.",
        ),
        Cause.UNKNOWN: (
            "{work} began {after}, while {other} ran, and nothing in the trace tells why.",
            "Ruled out: {ruled_out}.",
        ),
    }
)
"""What happened and what to do, by cause; filled in by `finding_texts`."""


def finding_texts(
    code: Cause, trace: Trace, pieces: Pieces, *, piece: int, before: int, call: int, waited_ns: int
) -> tuple[str, str]:
    """Write what happened, and what to do.

    Parameters
    ----------
    code
        Why.
    trace, pieces
        Where.
    piece
        Which piece began late.
    before, call
        Rows of the work in front of it and of the call that held it up, -1 for none.
    waited_ns
        For how long others ran meanwhile, in ns.
    """
    row = int(pieces.row[piece])

    def name(row: int) -> str:
        return display_name(trace.names[int(trace.name[row])], _NAME_WIDTH) if row >= 0 else "other work"

    def stream(row: int) -> str:
        return repr(display_name(trace.lanes[int(trace.lane[row])].name, _NAME_WIDTH)) if row >= 0 else "another stream"

    part = int(trace.partition[before]) if before >= 0 else -1
    blocks = trace.extra.get("grid_blocks")
    launched_ns, is_known = int(pieces.launched_ns[piece]), bool(pieces.is_launch_known[piece])
    words = {
        "name": name(row),
        "work": f"{name(row)} on {stream(row)}",
        "other": f"{name(before)} on {stream(before)}" if before >= 0 else "work of other streams",
        "stream": stream(row),
        "other_stream": stream(before),
        "call": f"{name(call)} ({format_ns(int(trace.duration_ns[call]))})" if call >= 0 else "a call",
        "took": format_ns(int(trace.duration_ns[before])) if before >= 0 else "little",
        "waited": format_ns(waited_ns),
        "queued": format_ns(int(pieces.start_ns[piece]) - launched_ns),
        "after": f"{format_ns(int(pieces.start_ns[piece]) - launched_ns)} after its launch" if is_known else "late",
        "ruled_out": ", ".join(_ruled_out(trace, row, before, is_launch_known=is_known)),
        "late": format_ns(launched_ns - int(pieces.idle_since_ns[piece])),
        "blocks": "many" if blocks is None or before < 0 else f"{int(blocks[before]):,}",
        "sms": str(trace.partitions[part].granted_sms if part >= 0 else trace.metadata.device.sm_count),
    }
    happened, fix = (text.format(**words) for text in TEXTS[code])
    return happened, fix


def _ruled_out(trace: Trace, row: int, before: int, *, is_launch_known: bool) -> list[str]:
    """Name the causes that the trace has the records to tell of, and does not."""
    blocks, has_sms = trace.extra.get("grid_blocks"), bool(trace.metadata.device.sm_count)
    has_grids = blocks is not None and has_sms and before >= 0 and bool(blocks[row] and blocks[before])
    told = {
        "a wait of the session": trace.metadata.waits_told and not trace.metadata.imported,
        "a wait for an event": trace.metadata.waits_told and bool(trace.metadata.imported),
        "one copy engine": True,
        "full SMs": has_grids or trace.kind[row] != SPAN_KINDS.index(SpanKind.KERNEL),
        "a slow launch": is_launch_known,
    }
    return [cause for cause, is_told in told.items() if is_told]
