"""Late launches by thread, calls and Python function; and the streams that waited for the host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import sweep, union_edges
from gpustreamlab.analysis._causes import Found, blocked_ns
from gpustreamlab.analysis._device_causes import CODES, event_waits
from gpustreamlab.analysis._host_waits import open_operations, thread_lanes
from gpustreamlab.analysis._pieces import PAUSE_NS, Pieces
from gpustreamlab.analysis._scale import format_ns, format_share
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Cause, EdgeKind, Int64Array, MarkerKind, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis._explanation import Finding

_OF_HOST = (Cause.HOST_LATE, Cause.LAUNCH_BOUND)
BY_CALL = (
    *(Cause.HOST_SYNC_DEVICE, Cause.HOST_SYNC_STREAM, Cause.LAZY_LOAD, Cause.ALLOC_SYNC, Cause.HOST_CALL),
    Cause.PAGEABLE_COPY,
)
"""Causes that are one call of the host, which is named."""
READS_VALUE = re.compile(r"^aten::(item|_local_scalar_dense|nonzero|is_nonzero|equal|masked_select|_unique2|unique_\w+)$")
"""Operations of torch that return when the host knows a value of the card, or a size that depends on one."""
KEEP_VALUE = "It reads a value of the card: keep that on the card, or read it behind the loop."
_HINTS = (
    (
        re.compile(r"^aten::(_to_copy|to|copy_|contiguous|clone|pin_memory)$"),
        "It copies or converts on the host: let the data have the type and layout of the card before, or convert on the card.",
    ),
    (READS_VALUE, KEEP_VALUE),
    (re.compile(r"DataLoader"), "It waits for the next batch: use more workers, and pin_memory=True."),
)
"""What to do about an operation of torch in which the host was."""
LEAST_BOUND_SHARE = 0.5  # From which share of its time idle for the host a stream is bound by it
LEAST_BOUND_GAPS = 20  # From how many gaps on that is a habit
LEAST_BOUND_NS = 10_000_000  # From which time on it is worth telling
LEAST_SAMPLES = 12  # Of fewer samples the number is shown, not a share
_NAME_WIDTH = 40
_FUNCTION_WIDTH = 80


class FunctionCount(NamedTuple):
    """In how many samples a thread stood in a function."""

    function: str
    """The function, with its file and its first line."""
    sample_count: int
    """Number of samples."""


class HostBound(NamedTuple):
    """A stream that stood idle for most of its time as its next launch had not come, and that was no wait for the device."""

    stream: str
    """The stream."""
    late_ns: int
    """For how long it was idle until the launch, without the calls in which the thread was held up, in ns."""
    idle_card_ns: int
    """For how long of that no other stream worked, either, in ns."""
    text: str
    """How often, which thread, the calls around most of these launches, and where its Python stood; what helps."""

    def __str__(self) -> str:
        return self.text


def count_functions(trace: Trace, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array) -> tuple[FunctionCount, ...]:
    """Count in which functions threads stood between some times; the most frequent first."""
    rows = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.SAMPLE))
    inside = np.zeros(len(rows), bool)
    for thread in np.unique(trace.lane[rows]).tolist():
        asked, own = lane == thread, trace.lane[rows] == thread
        edges = union_edges(from_ns[asked], to_ns[asked])
        inside[own] = np.searchsorted(edges, trace.start_ns[rows[own]], side="right") % 2 == 1
    counts = np.bincount(trace.name[rows[inside]], minlength=len(trace.names))
    order = np.argsort(-counts, kind="stable")
    return tuple(FunctionCount(trace.names[code], int(counts[code])) for code in order.tolist() if counts[code])


def functions_text(functions: Sequence[FunctionCount]) -> str:
    """Say in which share of the samples the first function was met."""
    count = sum(one.sample_count for one in functions)
    most, function = functions[0].sample_count, display_name(functions[0].function, _FUNCTION_WIDTH)
    share = format_share(most / count) if count >= LEAST_SAMPLES else f"{most}"
    return f"{share} of {count:,} samples of the Python stack stand in {function}"


def name_threads(trace: Trace, pieces: Pieces, found: Found, findings: Iterable[Finding]) -> list[Finding]:
    """Add to each finding of a late host the thread, the calls around the gap, and the function in which it stood."""
    findings = list(findings)
    findings = [with_operation(trace, pieces, finding) for finding in findings]
    if not any(finding.code in _OF_HOST for finding in findings):
        return findings
    launch, lanes_of = pieces.launch, thread_lanes(trace, pieces.launch)

    def told(finding: Finding) -> Finding:
        row = finding.row
        thread = _thread_name(trace, row, int(lanes_of(np.array([row]))[0]))
        if finding.code not in _OF_HOST or thread is None:
            return finding
        last = int(_calls_before(trace, launch[[row]])[0]) if launch[row] >= 0 else -1
        is_such = found.cause == CODES.index(finding.code)
        if finding.pair_count == 1:
            is_such &= pieces.lane[found.piece] == trace.lane[row]
        late = found.piece[is_such]
        lanes = lanes_of(pieces.row[late])
        functions = count_functions(trace, lanes, pieces.idle_since_ns[late], pieces.launched_ns[late])
        count = sum(one.sample_count for one in functions)
        function, most = functions[0] if functions else (None, 0)
        stood = f". In all such gaps {functions_text(functions)}" if functions else ""
        result = replace(
            finding,
            thread=thread,
            last_call_row=last,
            launch_row=int(launch[row]),
            function=function,
            function_share=most / max(count, 1),
            sample_count=count,
        )
        return replace(result, text=f"{finding.text} {_launch_text(trace, result)}{stood}.")

    return [told(finding) for finding in findings]


def with_operation(trace: Trace, pieces: Pieces, finding: Finding) -> Finding:
    """Name the operation in which the thread was: around the call, or for most of the time until the launch.

    Of calls also the function of Python that most of them came from.
    """
    row, call = finding.row, finding.call_row
    if finding.code not in (*_OF_HOST, *BY_CALL):
        return finding
    if call >= 0:
        calls = finding.pieces.call_row[finding.pieces.call_row >= 0]
        functions = count_functions(trace, trace.lane[calls].astype(np.int64), trace.start_ns[calls], trace.end_ns[calls])
        count = sum(one.sample_count for one in functions)
        if functions:
            share = functions[0].sample_count / count
            finding = replace(finding, function=functions[0].function, function_share=share, sample_count=count)
        return in_operation(trace, finding, int(trace.lane[call]), int(trace.start_ns[call]), int(trace.end_ns[call]))
    lane = int(thread_lanes(trace, pieces.launch)(np.array([row]))[0])
    return in_operation(trace, finding, lane, int(finding.pieces.idle_since_ns[0]), int(finding.pieces.launched_ns[0]))


def in_operation(trace: Trace, finding: Finding, lane: int, from_ns: int, to_ns: int) -> Finding:
    """Name the operation in which a thread, by its lane, was for most of some time, and what to do about it."""
    asked = (np.array([one]) for one in (lane, from_ns, to_ns))
    found = int(open_operations(trace, *asked, of_call=finding.call_row >= 0)[0])
    if found < 0:
        return finding
    name = trace.names[int(trace.name[found])]
    inside_ns = int(min(trace.end_ns[found], to_ns) - max(trace.start_ns[found], from_ns))
    told = f" The host was in {display_name(name, _NAME_WIDTH)} meanwhile ({format_ns(inside_ns)})."
    hints = [f"{hint} " for sign, hint in _HINTS if sign.search(name) and finding.code not in BY_CALL]
    return replace(finding, operation=name, text=f"{finding.text}{told}", fix=f"{''.join(hints)}{finding.fix}")


def find_host_bound(trace: Trace, streams: Iterable[int], pieces: Pieces) -> tuple[HostBound, ...]:
    """Return which of some streams stood idle for most of their time because the host launched late; the longest first."""
    if not len(trace.edges.select(EdgeKind.LAUNCH)):
        return ()  # it is not known whether the thread waited for the device
    cells_ns = np.array([mark.time_ns for mark in trace.markers if mark.kind is MarkerKind.CELL], np.int64)
    wanted, found = {*streams}, []
    for part in sweep(trace).by_lane:
        reach_ns = np.maximum.accumulate(trace.end_ns[part])
        row, since_ns, start_ns = part[1:], reach_ns[:-1], trace.start_ns[part[1:]]
        # An earlier launch would have changed nothing until the work that its stream waits for had ended.
        source, _ = event_waits(trace, row, 0)
        free_ns = np.maximum(since_ns, np.where(source >= 0, trace.end_ns[source], since_ns))
        is_pause = start_ns - since_ns > PAUSE_NS
        is_pause |= np.searchsorted(cells_ns, start_ns) > np.searchsorted(cells_ns, since_ns)
        late = (trace.queued_ns[row] > free_ns) & (trace.queued_ns[row] < start_ns) & ~is_pause
        if int(trace.lane[part[0]]) in wanted and late.sum() >= LEAST_BOUND_GAPS:
            total_ns = int(reach_ns[-1] - trace.start_ns[part[0]] - (start_ns - since_ns)[is_pause].sum())
            found.append(_host_bound(trace, row[late], free_ns[late], total_ns, pieces))
    return tuple(sorted(filter(None, found), key=lambda one: -one.late_ns))


def _host_bound(trace: Trace, row: Int64Array, since_ns: Int64Array, total_ns: int, pieces: Pieces) -> HostBound | None:
    """Report gaps before some rows of a stream, since some times, if they are most of its time."""
    launched_ns, least_ns = trace.queued_ns[row], max(LEAST_BOUND_SHARE * total_ns, LEAST_BOUND_NS)
    if (launched_ns - since_ns).sum() < least_ns:
        return None
    lanes, launch = thread_lanes(trace, pieces.launch)(row), pieces.launch[row]
    calls = _usual_calls(trace, launch)
    late_ns = launched_ns - since_ns - blocked_ns(trace, lanes, since_ns, launched_ns)
    if calls is None or late_ns.sum() < least_ns:
        return None
    longest = int(np.argmax(late_ns))
    stream, thread = trace.lanes[int(trace.lane[row[0]])].name, _thread_name(trace, int(row[longest]), int(lanes[longest]))
    who = "the host" if thread is None else f"thread {display_name(thread, _NAME_WIDTH)!r}"
    first, second = (display_name(call, _NAME_WIDTH) for call in calls)
    functions = count_functions(trace, lanes, since_ns, launched_ns)
    stood = f". In these gaps {functions_text(functions)}" if functions else ""
    idle, whole, each = map(format_ns, (int(late_ns.sum()), total_ns, int(np.median(late_ns))))
    return HostBound(
        stream,
        int(late_ns.sum()),
        max(0, int((late_ns - pieces.steps.between(since_ns, launched_ns)).sum())),
        f"{display_name(stream, _NAME_WIDTH)!r} was idle for {idle} of {whole}, as {who} had not launched its next work: "
        f"{len(row):,} times, {each} each (median), most often between {first} and {second}{stood}. If it should be faster: "
        "more SMs do not help it, less work between its launches or a CUDA graph does.",
    )


def _usual_calls(trace: Trace, launch: Int64Array) -> tuple[str, str] | None:
    """Return the names of the call before most of some launches and of the launch."""
    launch = launch[launch >= 0]
    before = _calls_before(trace, launch)
    pairs = trace.name[before[before >= 0]].astype(np.int64) * len(trace.names) + trace.name[launch[before >= 0]]
    if not len(pairs):
        return None
    unique, counts = np.unique(pairs, return_counts=True)
    first, second = divmod(int(unique[np.argmax(counts)]), len(trace.names))
    return trace.names[first], trace.names[second]


def _calls_before(trace: Trace, launch: Int64Array) -> Int64Array:
    """Return the row of the call of the same thread that returned last before each call, or -1; shape (n,)."""
    calls = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.HOST))
    before = np.full(len(launch), -1, np.int64)
    for thread in np.unique(trace.lane[launch]).tolist():
        own = calls[trace.lane[calls] == thread]
        own = own[np.argsort(trace.end_ns[own], kind="stable")]
        asked = np.flatnonzero(trace.lane[launch] == thread)
        place = np.searchsorted(trace.end_ns[own], trace.start_ns[launch[asked]], side="right") - 1
        before[asked] = np.where(place >= 0, own[place], -1)
    return before


def _thread_name(trace: Trace, row: int, lane: int) -> str | None:
    """Return what the thread is called that launched a row."""
    if trace.thread[row] >= 0:
        return trace.threads[int(trace.thread[row])]
    return trace.lanes[lane].name.removeprefix("host: ") if lane >= 0 else None


def _launch_text(trace: Trace, finding: Finding) -> str:
    def name(row: int) -> str:
        return display_name(trace.names[int(trace.name[row])], _NAME_WIDTH)

    stream = display_name(finding.stream, _NAME_WIDTH)
    text = f"Thread {display_name(str(finding.thread), _NAME_WIDTH)!r} launched {name(finding.row)} on {stream!r}"
    if finding.launch_row >= 0:
        text += f" with {name(finding.launch_row)}"
    if finding.last_call_row >= 0:
        # Of launches in a row the time from one to the next counts; else what the thread did between two calls.
        since_ns = trace.start_ns if finding.code is Cause.LAUNCH_BOUND else trace.end_ns
        apart_ns = int(trace.start_ns[finding.launch_row] - since_ns[finding.last_call_row])
        word = "after the start of" if finding.code is Cause.LAUNCH_BOUND else "after"
        text += f", {format_ns(apart_ns)} {word} its call before, {name(finding.last_call_row)}"
    return text
