"""Calls of the host: in which a thread was when, and for how long it was blocked in those that wait for the device."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from gpustreamlab.analysis._busy import StepTime, interval_sum_ns, is_work, lane_processes, require_trace, union_edges
from gpustreamlab.analysis._report import Answer, ReportTable, add_up, listed
from gpustreamlab.analysis._scale import count_text, format_ns, format_share, ratios
from gpustreamlab.model import KINETO_BACKEND, NSYS_BACKEND, SPAN_KINDS, Device, Trace, TraceMetadata, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, EdgeKind, FloatArray, Int64Array, LaneKind, SpanKind

LEAST_BLOCKED_SHARE = 0.1
"""Which share of a copy from pageable memory its call lasts through if it blocks. One that was staged runs behind its call."""
HELD_SHARE, LEAST_UNTOLD_NS = 0.5, 100_000
"""The same share where it is not told what memory it is, and how long such a copy takes at least."""
RETURN_WITHIN_NS = 50_000
"""Within this time of the end of what it waited for a synchronisation returns."""
MOST_OF, TIMES, TIMES_CALL = 0.5, 1.5, 4
"""An operation counts for a time in which it was open for more than this share of it, and if it lasts no longer than so many
times: what does much else says little."""
_BLOCKS_ANYWAY = re.compile(r"^(cuda|hip)Memcpy(2D|3D)?(WithStream)?(_v\d+|_ptds)?$|^cuMemcpy(DtoH|HtoD)(_v2)?$")
"""Copies that return when they are done, whatever the memory is."""
ALLOCATES = re.compile(
    r"^(cu(da)?|hip)(mem)?(malloc|alloc|free(?!tile)|host(malloc|alloc|free|register|unregister))", re.IGNORECASE
)
"""Calls that allocate memory, or free it."""
_COOPERATIVE = re.compile(r"Cooperative", re.IGNORECASE)
_CALLS_OF = {
    KINETO_BACKEND: "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])",
    NSYS_BACKEND: "nsys profile --trace=cuda,nvtx",
}
"""How other tools record the calls of the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitGroup:
    """Calls of one name that one thread made."""

    call: str  # The call
    thread: str  # The lane of the thread
    call_count: int  # How many there were
    total_ns: int  # What their durations add up to, in ns
    longest_ns: int  # How long the longest took, in ns
    waited_for: str | None  # What the longest most probably waited for; None where nothing ended while it ran


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HostWaits(Answer):
    """Calls of the host that block until the device is done: synchronisations, copies and frees that are not asynchronous.

    False where there are none. Calls are seen only while kernels are captured, with ``host=True``; `call_count` is 0 where none
    were.
    """

    row: Int64Array
    """Rows of the trace; shape (n_calls,), int64."""
    lane: Int64Array
    """The thread, index into `lanes`; shape (n_calls,), int64."""
    name: Int64Array
    """The call, index into `names`; shape (n_calls,), int64."""
    start_ns: Int64Array
    """When it was made; shape (n_calls,), int64, in ns."""
    duration_ns: Int64Array
    """How long it took; shape (n_calls,), int64, in ns."""
    waited_for: Int64Array
    """Row of the kernel, copy or fill that it waited for and that was the last to end while it ran, where an edge (`EdgeKind`
    "sync") says so. Else most probably what it waited for: what was launched before it and was the last to end while it ran; of
    a stream's synchronisation what its own thread launched, if that ended last on its stream. -1 where nothing ended while it
    ran; shape (n_calls,), int64."""
    waited_name: Int64Array
    """Name of that, index into `names`, or -1; shape (n_calls,), int64."""
    waited_ns: Int64Array
    """Time within `captured_ns` in which each lane was blocked, 0 for streams; shape (n_lanes,), int64, in ns."""
    captured_ns: int
    """For how long calls were seen: the trace from its first to its last span, where kernels were captured, in ns; 0 where the
    trace has no calls."""
    call_count: int
    """How many calls of the host the trace has, those that do not block too."""

    _columns: ClassVar = ("row", "lane", "name", "start_ns", "duration_ns", "waited_for", "waited_name", "waited_ns")

    _title: ClassVar = "Host:"
    _frame: ClassVar = {
        "row": "row",
        "call": ("name", "names"),
        "thread": ("lane", "lanes"),
        "start_ns": "start_ns",
        "duration_ns": "duration_ns",
        "waited_for_row": "waited_for",
        "waited_for": ("waited_name", "names"),
    }

    @property
    def share(self) -> FloatArray:
        """`waited_ns` as a share of `captured_ns`; shape (n_lanes,), float64; NaN where nothing was captured."""
        return ratios(self.waited_ns, np.full(len(self.lanes), self.captured_ns))

    @property
    def groups(self) -> tuple[WaitGroup, ...]:
        """Calls of one name and thread together; what took longest first."""
        return tuple(
            self._group(name, lane, count, total_ns)
            for (name, lane), count, total_ns in add_up((self.name, self.lane), self.duration_ns)
        )

    def _group(self, name: int, lane: int, count: int, total_ns: int) -> WaitGroup:
        own = np.flatnonzero((self.name == name) & (self.lane == lane))
        longest_ns = int(self.duration_ns[own].max())
        waited_name = int(self.waited_name[own[self.duration_ns[own] == longest_ns][-1]])
        return WaitGroup(
            call=self.names[name],
            thread=self.lanes[lane].name,
            call_count=count,
            total_ns=total_ns,
            longest_ns=longest_ns,
            waited_for=self.names[waited_name] if waited_name >= 0 else None,
        )

    def _line(self) -> str:
        return wait_line(self)

    def _tables(self) -> list[ReportTable]:
        head = ["call", "thread", "calls", "total", "share", "longest", "waited for"]
        caption = "Calls that blocked the host, and what the longest of them waited for"
        return [listed(caption, head, self.groups, partial(_row, self), names=(0, 1, 6))]

    def _notes(self) -> list[str]:
        note = "What a call waited for is most probably the last work launched before it that ended while it ran."
        is_told = np.isin(self.row, self.trace.edges.select(EdgeKind.SYNC).target)
        return [] if is_told.all() else [note]


def host_waits(trace: Trace) -> HostWaits:
    """Find the calls in which the host was blocked until the device was done.

    Parameters
    ----------
    trace
        The spans. Without calls of the host in it nothing is found.

    Raises
    ------
    OptionError
        If it is no trace.

    Notes
    -----
    Calls are told by their names: ``Synchronize``, and ``Memcpy`` and ``Free`` that are not asynchronous. A copy from the
    device into pageable memory blocks whatever its call is named: that is what ``float(array)`` does. A copy from pageable
    memory to the device blocks until its source was read, which may be at once: it counts where its call went on for more than
    a tenth of the copy itself. Source: CUDA Runtime API, "API synchronization behavior".

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 20], end_ns=[90, 100], queued_ns=[0, 20], lane=[0, 1], name=[0, 1], kind=[1, 5],
    ...     parent=[-1, -1], thread=[0, 0], names=("gemm", "cudaStreamSynchronize"), threads=("MainThread",),
    ...     lanes=(Lane(name="compute", stream=1), Lane(name="host: MainThread", kind="host")),
    ...     metadata=TraceMetadata(
    ...         backend="sim", device=Device(name="demo", sm_count=4), tier="kernels", capture_windows=((0, 100),)
    ...     ),
    ... )
    >>> result = host_waits(trace)
    >>> result.waited_ns.tolist(), result.share.tolist(), result.waited_for.tolist()
    ([0, 80], [0.0, 0.8], [0])
    """
    require_trace(trace, "host_waits")
    is_call = trace.kind == SPAN_KINDS.index(SpanKind.HOST)
    blocks = np.array([*(is_blocking(name) for name in trace.names), False])
    copy_of = pageable_copies(trace)
    row = np.flatnonzero(is_call & (blocks[trace.name] | (copy_of >= 0)))
    waited_for = _told_by_calls(trace, row, _last_to_end(trace, row, copy_of[row]))
    windows = capture_edges(trace) if is_call.any() else np.empty(0, np.int64)
    waited_ns = np.zeros(len(trace.lanes), np.int64)
    for lane in np.unique(trace.lane[row]).tolist():
        own = row[trace.lane[row] == lane]
        blocked = StepTime([union_edges(trace.start_ns[own], trace.end_ns[own])])
        waited_ns[lane] = blocked.between(windows[::2], windows[1::2]).sum()
    return HostWaits(
        row=row,
        lane=trace.lane[row].astype(np.int64),
        name=trace.name[row].astype(np.int64),
        start_ns=trace.start_ns[row],
        duration_ns=trace.end_ns[row] - trace.start_ns[row],
        waited_for=waited_for,
        waited_name=np.append(trace.name, -1)[waited_for],
        waited_ns=waited_ns,
        captured_ns=interval_sum_ns(windows),
        call_count=int(is_call.sum()),
        trace=trace,
    )


def is_blocking(call: str) -> bool:
    """Tell by its name whether a call of CUDA or HIP blocks until the device is done."""
    word = call.lower()
    if "synchronize" in word:
        return True
    return word.startswith(("cu", "hip")) and ("memcpy" in word or "free" in word) and "async" not in word


def capture_edges(trace: Trace) -> Int64Array:
    """Return when kernels were captured between the first start and the last end of a trace: start, end, start, end, in ns."""
    if not len(trace):
        return np.empty(0, np.int64)
    # Where no windows are known it is all of that time.
    first_ns, last_ns = int(trace.start_ns.min()), int(trace.end_ns.max())
    windows = np.array(trace.metadata.capture_windows or ((first_ns, last_ns),), np.int64)
    bounds_ns = np.clip(windows, first_ns, last_ns)
    return union_edges(bounds_ns[:, 0].copy(), bounds_ns[:, 1].copy())


def pageable_copies(trace: Trace) -> Int64Array:
    """Return for each row that is a call the copy of pageable memory in which it blocked, or -1; shape (n_spans,), int64."""
    copy_of = np.full(len(trace), -1, np.int64)
    launches = trace.edges.select(EdgeKind.LAUNCH)
    is_copy = trace.kind == SPAN_KINDS.index(SpanKind.COPY)
    call, copy = (rows[is_copy[launches.target]] for rows in (launches.source, launches.target))
    detail = trace.extra.get("detail")

    def tell(by_name: Iterable[bool], by_detail: Iterable[bool]) -> BoolArray:
        told: BoolArray = np.array([*by_name, False])[trace.name[copy]]
        return told if detail is None else told | np.array([*by_detail, False])[detail[copy]]

    is_into = tell(
        (name.startswith("memcpy DtoH") and "pageable" in name for name in trace.names),
        ("to pageable" in text.full_name for text in trace.details),
    )
    is_from = tell(
        (name.startswith("memcpy HtoD") and "pageable" in name for name in trace.names),
        (text.full_name.startswith("pageable") for text in trace.details),
    )
    shared_ns = np.minimum(trace.end_ns[call], trace.end_ns[copy]) - np.maximum(trace.start_ns[call], trace.start_ns[copy])
    shared_ns -= trace.metadata.kernel_error_ns + trace.metadata.host_error_ns
    is_held = shared_ns > LEAST_BLOCKED_SHARE * (trace.end_ns[copy] - trace.start_ns[copy])
    blocks = is_into | (is_from & is_held)
    # Where nothing tells what memory it was, a call that lasts as its copy does tells it.
    is_told = tell(
        ("pinned" in name or "pageable" in name for name in trace.names),
        ("pinned" in text.full_name or "pageable" in text.full_name for text in trace.details),
    )
    is_way = tell((name.startswith(("memcpy HtoD", "memcpy DtoH")) for name in trace.names), (False for _ in trace.details))
    lasts_ns = trace.end_ns[copy] - trace.start_ns[copy]
    may_return = np.array([not _BLOCKS_ANYWAY.search(name) for name in trace.names], bool)[trace.name[call]]
    blocks |= is_way & ~is_told & may_return & (lasts_ns > LEAST_UNTOLD_NS) & (shared_ns > HELD_SHARE * lasts_ns)
    copy_of[call[blocks]] = copy[blocks]
    return copy_of


LEAST_RATE_BYTES = 1 << 20
"""Copies of fewer bytes say little of how fast the link is."""


class CopyRates(NamedTuple):
    """How fast a card copies from and to page-locked memory of the host, in bytes a second; None where that is not known."""

    h2d: float | None
    d2h: float | None


def copy_rates(trace: Trace, device: Device | None = None) -> CopyRates:
    """Return how fast a card copies, as it says itself; else the fastest copy of the trace, which is a little less."""
    # Copies count where their details tell page-locked from pageable memory.
    card = trace.metadata.device if device is None else device
    if card.h2d_bytes_per_s is not None and card.d2h_bytes_per_s is not None:
        return CopyRates(card.h2d_bytes_per_s, card.d2h_bytes_per_s)
    none = np.zeros(len(trace), np.int64)
    size_bytes, detail = trace.extra.get("size_bytes", none), trace.extra.get("detail", none - 1)
    of_card = np.array([lane.device == card.ordinal for lane in trace.lanes], bool)[trace.lane]
    is_slow = np.array([*("pageable" in text.full_name.lower() for text in trace.details), True])[detail]
    is_copy = of_card & ~is_slow & (trace.kind == SPAN_KINDS.index(SpanKind.COPY)) & (size_bytes >= LEAST_RATE_BYTES)

    def fastest(direction: str) -> float | None:
        rows = np.flatnonzero(is_copy & np.array([direction in name for name in trace.names], bool)[trace.name])
        return float((size_bytes[rows] / np.maximum(trace.duration_ns[rows], 1)).max() * 1e9) if len(rows) else None

    return CopyRates(card.h2d_bytes_per_s or fastest("HtoD"), card.d2h_bytes_per_s or fastest("DtoH"))


def _last_to_end(trace: Trace, row: Int64Array, own: Int64Array) -> Int64Array:
    """Return for each call the row of the work launched before it that was the last to end while it ran, or -1.

    A call's own copy (`own`, -1 for none) stands for what was in front of it, where the call waited for its start for longer
    than the copy took.
    """
    error_ns = trace.metadata.kernel_error_ns + trace.metadata.host_error_ns
    until_ns = trace.end_ns[row] + error_ns
    has_own = (own >= 0) & (trace.end_ns[own] <= until_ns)
    found = _last_launched(trace, row, np.where(has_own, trace.end_ns[own] - 1, until_ns))
    was_late = trace.start_ns[own] - trace.start_ns[row] > trace.end_ns[own] - trace.start_ns[own]
    awaited: Int64Array = np.where(has_own & (~was_late | (found < 0)), own, found)
    return awaited


def _told_by_calls(trace: Trace, row: Int64Array, guess: Int64Array) -> Int64Array:
    """Return for each call what it waited for as its edges tell: what ended last, if that was while it ran; else the guess."""
    syncs, place = trace.edges.select(EdgeKind.SYNC), np.full(len(trace), -1, np.int64)
    place[row] = np.arange(len(row))
    order = np.argsort(trace.end_ns[syncs.source], kind="stable")  # of several edges the last one counts below
    order = order[place[syncs.target[order]] >= 0]
    source, call = syncs.source[order], place[syncs.target[order]]
    found = guess.copy()
    found[call] = np.where(trace.end_ns[source] >= trace.start_ns[row[call]], source, -1)
    return found


def _last_launched(trace: Trace, row: Int64Array, until_ns: Int64Array) -> Int64Array:
    """Return for each call the last work to end from its start up to a time that was launched before it, or -1."""
    found, is_found_own = np.full(len(row), -1, np.int64), np.zeros(len(row), bool)
    work, process = np.flatnonzero(is_work(trace)), lane_processes(trace)[trace.lane]
    if not len(row) or not len(work):
        return found
    of_stream = np.array([*("streamsynchronize" in name.lower() for name in trace.names), False])[trace.name[row]]
    queued_ns = np.where(trace.queued_ns < trace.start_ns, trace.queued_ns, np.iinfo(np.int64).min)  # unknown: long ago
    order = work[np.lexsort((trace.start_ns[work], trace.thread[work], trace.lane[work]))]
    is_new = (np.diff(trace.lane[order]) != 0) | (np.diff(trace.thread[order]) != 0)
    for part in np.split(order, 1 + np.flatnonzero(is_new)):
        # What one thread launched on one stream is done in this order.
        launched = np.searchsorted(np.maximum.accumulate(queued_ns[part]), trace.start_ns[row], side="right")
        ended = np.searchsorted(np.maximum.accumulate(trace.end_ns[part]), until_ns, side="right")
        last = np.append(part, -1)[np.minimum(launched, ended) - 1]
        last[(last >= 0) & (trace.end_ns[last] < trace.start_ns[row])] = -1
        # A stream that was waited for has nothing left of what was launched before.
        is_own = of_stream & (launched <= ended) & (trace.thread[part[:1]] == trace.thread[row])
        is_own &= until_ns - trace.end_ns[last] <= RETURN_WITHIN_NS
        is_later = (found < 0) | (trace.end_ns[last] > trace.end_ns[found])
        is_better = (last >= 0) & (process[part[0]] == process[row])  # a thread waits for its own process only
        is_better &= np.where(is_own == is_found_own, is_later, is_own)
        found[is_better], is_found_own[is_better] = last[is_better], is_own[is_better]
    return found


_NAME_WIDTH = 32


def wait_line(result: HostWaits) -> str:
    """Say which thread waited longest, and where, in one line."""
    if not result.call_count:
        return _nothing_captured(result)
    if not result.waited_ns.any():  # calls that took no time, or that lie outside of what was captured
        return "no call of the host waited for the device"
    lane = int(result.waited_ns.argmax())
    thread = result.lanes[lane].name
    mine = [group for group in result.groups if group.thread == thread]
    calls = "in" if len(mine) == 1 else "most of it in"
    comma = "" if len(mine) == 1 else ","
    times = count_text(mine[0].call_count, "call")
    awaited = f" for {display_name(mine[0].waited_for, _NAME_WIDTH)}" if mine[0].waited_for else ""
    return (
        f"{thread_text(thread)} waited {format_share(float(result.share[lane]))} of the time{comma} {calls} "
        f"{display_name(mine[0].call, _NAME_WIDTH)}: {times}, the longest {format_ns(mine[0].longest_ns)}{awaited}"
    )


def thread_text(lane: str) -> str:
    """Name a thread by its lane."""
    return display_name(lane.removeprefix("host: "), _NAME_WIDTH)


def calls_by(meta: TraceMetadata) -> str:
    """Return what would tell of the host's calls, where a trace has none."""
    if meta.part_of_spans:
        return "the trace that this is a part of, if it has them,"
    if meta.imported:
        return _CALLS_OF.get(meta.backend, "the tool that recorded it, if it can,")
    return "lab.capture('kernels', host=True)"


def _nothing_captured(result: HostWaits) -> str:
    """Say that calls were not captured, and what to type."""
    if result.metadata.imported:
        return f"no calls of the host are in the trace: {calls_by(result.metadata)} records them"
    if result.metadata.tier is CaptureTier.KERNELS:
        return "no calls of the host were captured: capture them with lab.capture('kernels'), without host=False"
    return "calls of the host were not captured, only ranges: capture them with lab.capture('kernels')"


def _row(result: HostWaits, group: WaitGroup) -> list[str]:
    share = group.total_ns / result.captured_ns if result.captured_ns else float("nan")
    return [
        display_name(group.call, _NAME_WIDTH),
        thread_text(group.thread),
        f"{group.call_count:,}",
        format_ns(group.total_ns),
        format_share(share),
        format_ns(group.longest_ns),
        display_name(group.waited_for, _NAME_WIDTH) if group.waited_for else "-",
    ]


# In which calls a thread was


def named_calls(trace: Trace, told: Callable[[str], object], kind: SpanKind = SpanKind.HOST) -> BoolArray:
    """Tell which rows are calls of the host, or of another kind, with a name that fits; shape (n_spans,), bool."""
    by_name = np.array([*(bool(told(name)) for name in trace.names), False])
    found: BoolArray = trace.kind == SPAN_KINDS.index(kind)
    rows = np.flatnonzero(found)
    found[rows] = by_name[trace.name[rows]]
    return found


def are_cooperative(trace: Trace) -> BoolArray:
    """Tell which kernels were launched cooperatively, as their launches or their calls say; shape (n_spans,), bool."""
    found = np.zeros(len(trace), bool)
    if "detail" in trace.extra:
        found |= np.array([*(one.is_cooperative for one in trace.details), False], bool)[trace.extra["detail"]]
    launches = trace.edges.select(EdgeKind.LAUNCH)
    found[launches.target] |= named_calls(trace, _COOPERATIVE.search)[launches.source]
    return found


def thread_lanes(trace: Trace, call: Int64Array) -> Callable[[Int64Array], Int64Array]:
    """Return what tells of rows the lane of the thread that launched them, or -1; given what `launch_calls` returns."""
    places = {lane.name: place for place, lane in enumerate(trace.lanes) if lane.kind is LaneKind.HOST}
    by_thread = np.array([*(places.get(f"host: {thread}", -1) for thread in trace.threads), -1], np.int64)

    def tell(row: Int64Array) -> Int64Array:
        lanes: Int64Array = np.where(call[row] >= 0, trace.lane[call[row]], by_thread[trace.thread[row]])
        return lanes

    return tell


def time_in_calls(
    trace: Trace, calls: Int64Array, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return for how long a thread was in some calls between two times, and the last of these calls, or -1."""
    inside_ns, last = np.zeros(len(lane), np.int64), np.full(len(lane), -1, np.int64)
    for thread in np.unique(trace.lane[calls]).tolist():
        own = calls[trace.lane[calls] == thread]
        own = own[np.argsort(trace.start_ns[own], kind="stable")]
        asked = np.flatnonzero(lane == thread)
        steps = StepTime([union_edges(trace.start_ns[own], trace.end_ns[own])])
        inside_ns[asked] = steps.between(from_ns[asked], to_ns[asked])
        place = np.searchsorted(trace.start_ns[own], to_ns[asked], side="left") - 1
        last[asked] = np.where(place >= 0, own[place], -1)
    return inside_ns, last


def longest_call(trace: Trace, calls: Int64Array, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array) -> Int64Array:
    """Return the longest of some calls in which a thread was between two times, or -1."""
    longest = np.full(len(lane), -1, np.int64)
    for thread in np.unique(lane).tolist():
        own = calls[trace.lane[calls] == thread]
        own = own[np.argsort(trace.start_ns[own], kind="stable")]
        asked = np.flatnonzero(lane == thread)
        by_duration = np.argsort(lasted_ns(trace, own), kind="stable")
        rank = np.empty(len(own) + 1, np.int64)
        rank[by_duration], rank[-1] = np.arange(len(own)), -1
        first = np.searchsorted(np.maximum.accumulate(trace.end_ns[own]), from_ns[asked], side="right")
        # Slices of a piece each: between them lie those that are not asked for.
        behind = np.maximum(np.searchsorted(trace.start_ns[own], to_ns[asked], side="left"), first)
        most = np.maximum.reduceat(rank, np.stack((first, behind), axis=1).ravel())[::2]
        longest[asked] = np.where(behind > first, np.append(own, -1)[np.append(by_duration, -1)[most]], -1)
    return longest


def open_operations(
    trace: Trace, lane: Int64Array, from_ns: Int64Array, to_ns: Int64Array, *, of_call: bool = False
) -> Int64Array:
    """Return the innermost range that others named on a thread, in which it was for most of some time, or -1.

    Such are operations of a framework (``aten::copy_``) and ranges of NVTX. An operation that made a call may take longer than
    what was done in a gap.
    """
    found, ranges = np.full(len(lane), -1, np.int64), np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.ANNOTATION))
    is_operation = np.array([of_call and "::" in name for name in trace.names], bool)
    for thread in np.unique(lane).tolist():
        own = ranges[trace.lane[ranges] == thread]
        start_ns, end_ns = trace.start_ns[own], trace.end_ns[own]
        times = np.where(is_operation[trace.name[own]], TIMES_CALL, TIMES)
        for place in np.flatnonzero(lane == thread).tolist():
            inside_ns = np.minimum(end_ns, to_ns[place]) - np.maximum(start_ns, from_ns[place])
            asked_ns = to_ns[place] - from_ns[place]
            fits = np.flatnonzero((inside_ns > MOST_OF * asked_ns) & (end_ns - start_ns <= times * asked_ns))
            if len(fits):
                found[place] = own[fits[np.argmin((end_ns - start_ns)[fits])]]
    return found


def contain(trace: Trace, outer: Int64Array, inner: Int64Array) -> BoolArray:
    """Tell which calls (-1 for none) another call began in; same shape as `outer`."""
    found = np.zeros(len(outer), bool)
    for thread in np.unique(trace.lane[inner]).tolist():
        starts_ns = np.sort(trace.start_ns[inner[trace.lane[inner] == thread]])
        own = (outer >= 0) & (trace.lane[outer] == thread)
        first, last = trace.start_ns[outer[own]], trace.end_ns[outer[own]]
        found[own] = np.searchsorted(starts_ns, last) > np.searchsorted(starts_ns, first, side="right")
    return found


def calls_alike(trace: Trace, calls: Int64Array) -> Int64Array:
    """Return some calls with all others that have the name of one, its thread, and no launch of that thread between them."""
    launches, some = trace.edges.select(EdgeKind.LAUNCH).source, [calls]
    alike = np.flatnonzero(np.isin(trace.name, trace.name[calls]) & np.isin(trace.lane, trace.lane[calls]))
    for lane in np.unique(trace.lane[calls]).tolist():
        starts_ns = np.sort(trace.start_ns[launches[trace.lane[launches] == lane]])
        own, told = (rows[trace.lane[rows] == lane] for rows in (alike, calls))
        launched_count, told_count = (np.searchsorted(starts_ns, trace.start_ns[rows]) for rows in (own, told))
        keys, known = launched_count * len(trace.names) + trace.name[own], told_count * len(trace.names) + trace.name[told]
        some.append(own[np.isin(keys, known)])
    return np.unique(np.concatenate(some))


def lasted_ns(trace: Trace, row: Int64Array) -> Int64Array:
    """Return `Trace.duration_ns` of some rows, without computing that of all."""
    return trace.end_ns[row] - trace.start_ns[row]


def innermost_range(trace: Trace, ranges: Int64Array, at_ns: Int64Array) -> Int64Array:
    """Return for each time the row of the innermost of a thread's ranges around it, or -1."""
    if not len(ranges):
        return np.full(len(at_ns), -1, np.int64)
    ranges = ranges[np.lexsort((-trace.end_ns[ranges], trace.start_ns[ranges]))]
    found = np.append(ranges, -1)[np.searchsorted(trace.start_ns[ranges], at_ns, side="right") - 1]
    is_own = np.zeros(len(trace) + 1, bool)
    is_own[ranges] = True
    while (is_over := (found >= 0) & (trace.end_ns[found] <= at_ns)).any():
        found[is_over] = trace.parent[found[is_over]]
        found[~is_own[found]] = -1
    return found
