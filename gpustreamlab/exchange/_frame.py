"""The import frame: what a file of another tool tells, as plain columns, and the one builder that makes a trace of it.

A dialect reads its files and fills a `Frame`: rows of what ran, in parts (ranges of the host, calls, work of devices), the
lanes, names and details that they point to, flows, waits, samples, marks, what the file says of the cards, and notes on what it
does not say or what of it was not read. The frame joins the parts, counts times from the first moment where they are those of
the wall clock, leaves out names that nothing has, and tells how all of it was measured.
"""

from __future__ import annotations

import zlib
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import quality
from gpustreamlab.errors import TraceFileError
from gpustreamlab.model import (
    EDGE_KINDS,
    SPAN_KINDS,
    Counters,
    Device,
    Edges,
    Lane,
    Marker,
    Partition,
    SMLimits,
    Trace,
    TraceMetadata,
    WorkDetail,
    unchangeable,
)
from gpustreamlab.recorder import NO_DEPENDENCIES, SPAN_COLUMNS, Chunk, RowFinder, Tables, TraceData, build_trace
from gpustreamlab.typing import BoolArray, CaptureTier, EdgeKind, Int32Array, Int64Array, LaneKind, SpanKind

LEAST_WALL_CLOCK_NS = 10**18  # Earlier times, of 2001, are not counted from 1970
MOST_KNOWN = 1_000_000  # Most different names, ways of launching, streams or threads of a file
MOST_OPEN = 512  # Among so many open begins one of the same name is looked for: viewers nest no deeper
MOST_LANES = 4_096  # Most streams and threads of a file, or of those of all ranks

Columns: TypeAlias = dict[str, NDArray[Any]]

KERNEL, COPY, FILL, HOST, ANNOTATION, MARKER = (
    SPAN_KINDS.index(kind)
    for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL, SpanKind.HOST, SpanKind.ANNOTATION, SpanKind.MARKER)
)
_UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, UnicodeError, RecursionError, zlib.error)
_DEFAULTS = {"queued_ns": 0, "kind": 0, "size_bytes": 0, "correlation": 0}  # Where a part lacks them; others are -1
TIMES = ("start_ns", "end_ns", "queued_ns")


class Codes(dict[Any, int]):
    """Numbers things as they come, equal ones alike."""

    def __init__(self, tidy: Callable[[Any], Any]) -> None:
        self._tidy = tidy
        self.known: dict[Any, int] = {}

    def __missing__(self, key: Any) -> int:
        if len(self.known) >= MOST_KNOWN:
            raise TraceFileError(
                f"The file has more than {MOST_KNOWN:,} different names, ways of launching, streams or threads. Profile fewer "
                "steps."
            )
        code = self[key] = self.known.setdefault(self._tidy(key), len(self.known))
        return code

    def of(self, keys: Iterable[Any]) -> Int32Array:
        """Return the number of each."""
        return np.array([self[key] for key in keys], np.int32)


@dataclass(kw_only=True)
class Frame:
    """What a file of another tool tells, or those of all ranks of a job."""

    backend: str
    source: str  # What recorded it
    path: str  # What messages call it
    told_by: str = "file"  # What tells of the clock
    lanes: Sequence[Lane]
    threads: Sequence[str] = ()
    names: Sequence[str]
    parts: list[Columns]
    """Rows, see `SPAN_COLUMNS`; each part has times, lane, name and kind. Of rows that begin at once the order stays."""
    details: Sequence[WorkDetail] = ()
    partitions: Sequence[Partition] = ()
    flows: Int64Array = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Rows of the parts behind each other, of which the first leads to the second; shape (n, 2)."""
    dependencies: Mapping[str, Int64Array] = field(default_factory=lambda: NO_DEPENDENCIES)
    accesses: Int64Array = field(default_factory=lambda: Chunk().accesses)  # See `ACCESS_COLUMNS`; shape (5, n)
    counters: Counters = field(default_factory=Counters)
    markers: Sequence[Marker] = ()
    devices: Mapping[int, Device] = field(default_factory=dict)  # What the file says of the cards, by their ordinals
    idle_device: Device | None = None  # The card where none worked
    base_ns: int = 0  # What makes times those of the wall clock
    epoch_ns: int = 0  # When the time was 0 where that makes none of them, in ns since 1970
    least_step_ns: int = 0
    is_in_us: bool | None = None  # Whether all times are whole microseconds, where that cannot be seen from them
    imported: str = ""
    missing: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # Further metadata

    def trace(self) -> Trace:
        """Return the trace; the parts are used up."""
        if len(self.lanes) > MOST_LANES:
            raise TraceFileError(
                f"{self.path!r} has {len(self.lanes):,} streams and threads; {MOST_LANES:,} are read. Profile for a shorter "
                "time, or read fewer files at once."
            )
        columns, order = self.joined()
        metadata = self.described(columns, *self._to_zero(columns))
        used, number = by_appearance(columns["name"], len(self.names))
        columns["name"] = number[columns["name"]]
        # A trace takes these as they are: else the rows would be in memory twice while it is made.
        for name, values in columns.items():
            columns[name] = unchangeable(values) if values.strides[0] else values
        del values
        tables = Tables(tuple(self.lanes), tuple(self.threads), tuple(self.partitions), (), tuple(self.markers), metadata)
        data = TraceData(
            tables,
            columns,
            names=[self.names[code] for code in used.tolist()],
            details=tuple(self.details),
            edges=self._edges(order),
            dependencies=self.dependencies,
            counters=self.counters,
            accesses=self.accesses,
        )
        trace = build_trace(data)
        trace = self._with_launches(trace) if len(self.flows) else trace
        found, meta = quality(trace), trace.metadata
        return replace(trace, metadata=replace(meta, doubt=found.grave, missing=(*meta.missing, *found.remarks)))

    def joined(self) -> tuple[Columns, Int32Array]:
        """Return the columns of all parts, in the order of their starts, and which row of the parts each is."""
        parts = [part for part in self.parts if len(part["start_ns"])] or self.parts[:1]
        counts = [len(part["start_ns"]) for part in parts]
        for part in parts:
            part.setdefault("queued_ns", part["start_ns"])
        order = np.argsort(np.concatenate([part["start_ns"] for part in parts]), kind="stable").astype(np.int32)
        columns: Columns = {}
        for name in SPAN_COLUMNS:
            default = np.int8(_DEFAULTS.get(name, -1))
            found = [part.pop(name, None) for part in parts]
            if all(values is None for values in found):
                columns[name] = np.broadcast_to(np.int64(default), len(order))
                continue
            told = [np.full(n, default) if one is None else one for n, one in zip(counts, found, strict=True)]
            columns[name] = np.concatenate(told)[order]
        columns["number"] = np.arange(len(order), dtype=np.int32)
        return columns, order

    def _edges(self, order: Int32Array) -> Int64Array:
        """Return the flows between numbers of spans."""
        if not len(self.flows):
            return self.flows
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        edges: Int64Array = place[self.flows]
        return edges

    def _to_zero(self, columns: Columns) -> tuple[bool, int]:
        """Count times from the first one where they are those of the wall clock."""
        marked_ns = np.array([one.time_ns for one in self.markers], np.int64)
        moments = (columns["start_ns"], self.counters.time_ns, marked_ns)
        first_ns = min(int(times.min()) for times in moments if len(times))
        is_in_us = self.is_in_us
        if is_in_us is None:
            is_in_us = not (first_ns % 1_000 or any((columns[name] % 1_000).any() for name in ("start_ns", "end_ns")))
        if self.base_ns + first_ns < LEAST_WALL_CLOCK_NS:
            return is_in_us, self.epoch_ns
        for name in TIMES:
            columns[name] -= first_ns
        self.counters = replace(self.counters, time_ns=self.counters.time_ns - first_ns)
        self.markers = [replace(one, time_ns=one.time_ns - first_ns) for one in self.markers]
        return is_in_us, self.base_ns + first_ns

    def described(self, columns: Columns, is_in_us: bool, epoch_ns: int) -> TraceMetadata:  # noqa: FBT001 - from above
        """Return how it was measured; the device is the one that did most."""
        step_ns = 1_000 if is_in_us else self.least_step_ns
        starts = columns["start_ns"]
        return TraceMetadata(
            backend=self.backend,
            device=self._busiest(columns["lane"]),
            devices=tuple(self.devices.values()),
            clock=f"that of the {self.told_by}, in steps of {'1 us' if is_in_us else '1 ns'}",
            clock_error_ns=step_ns,
            host_error_ns=step_ns,
            kernel_error_ns=step_ns,
            tier=CaptureTier.KERNELS,
            capture_windows=((int(starts.min()), int(columns["end_ns"].max())),) if len(starts) else (),
            capture_source=self.source,
            epoch_unix_ns=epoch_ns,
            imported=self.imported,
            missing=tuple(self.missing),
            **self.facts,
        )

    def _busiest(self, lane: NDArray[Any]) -> Device:
        counts = Counter[int]()
        for one, count in zip(self.lanes, np.bincount(lane, minlength=len(self.lanes)).tolist(), strict=True):
            if one.kind is LaneKind.STREAM and count:
                counts[one.device] += count
        if not counts:
            return self.idle_device or unknown_device(0)
        ordinal = counts.most_common(1)[0][0]
        return self.devices.get(ordinal) or unknown_device(ordinal)

    @staticmethod
    def _with_launches(trace: Trace) -> Trace:
        """Tell flows from the host to work from others, and drop those that correlations tell, too."""
        edges, is_stream = trace.edges, np.array([lane.kind is LaneKind.STREAM for lane in trace.lanes], bool)[trace.lane]
        is_launch = ~is_stream[edges.source] & is_stream[edges.target]
        is_sync = is_stream[edges.source] & ~is_stream[edges.target]
        kinds = [EDGE_KINDS.index(kind) for kind in (EdgeKind.LAUNCH, EdgeKind.SYNC)]
        rows = np.stack((edges.source, edges.target, np.select([is_launch, is_sync], kinds, edges.kind)))
        _, first = np.unique(rows, axis=1, return_index=True)
        source, target, kind = rows[:, np.sort(first)]
        queued_ns = trace.queued_ns.copy()
        np.minimum.at(queued_ns, edges.target[is_launch], trace.start_ns[edges.source[is_launch]])
        return replace(trace, queued_ns=queued_ns, edges=Edges(source=source, target=target, kind=kind))


@contextmanager
def reading(path: object, what: str, again: str, *wrong: type[Exception]) -> Iterator[None]:
    """Say of a file that cannot be read what it is, and what to record or export again."""
    try:
        yield
    except TraceFileError:
        raise
    except _UNREADABLE + wrong as error:
        told = f"{str(path)!r} cannot be read as {what}: {error}. It was cut off or is damaged. {again}"
        raise TraceFileError(told) from error


def unknown_device(ordinal: int) -> Device:
    """Return a card of which the file says nothing."""
    limits = SMLimits(blocks=0, threads=0, registers=0, shared_bytes=0)
    return Device(name=f"GPU {ordinal}", ordinal=ordinal, sm_count=0, sm_limits=limits)


def by_appearance(codes: NDArray[Any], count: int) -> tuple[Int64Array, Int32Array]:
    """Return which of so many codes there are, as they come first; and the place of each code among those, or -1."""
    first = np.full(count, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]  # the last one that is written stays
    used = np.argsort(first, kind="stable")[: np.count_nonzero(first < len(codes))]
    number = np.full(count, -1, np.int32)
    number[used] = np.arange(len(used))
    return used, number


def add_launches(work: Columns, calls: Columns) -> Int64Array:
    """Give work the thread and the time of the call that launched it; return that call's row, or -1."""
    correlation = work["correlation"]
    call = np.where(correlation > 0, RowFinder(calls["correlation"]).rows_of(correlation), -1)
    work["queued_ns"] = np.where(call >= 0, np.append(calls["start_ns"], 0)[call], work["start_ns"])
    work["thread"] = np.append(calls["thread"], calls["thread"].dtype.type(-1))[call]
    return call


def launch_note(call: Int64Array, where: str = "in the file", why: str = "") -> list[str]:
    """Say how much work has no call, if any."""
    count = int(np.count_nonzero(call < 0))
    work = f"{count:,} of {len(call):,} kernels, copies and fills"
    return [f"{work} have no call {where} to tell their launch{why}."] if count else []


def card_note(cards: str, whose: str = "its") -> str:
    """Say of which cards the file says nothing."""
    return f"The file has no properties of {cards}: when kernels fill {whose} SMs is not known."


def wait_note(told_count: int, call_count: int, advice: str) -> str:
    """Say how many waits of streams for events are told, with what makes a profiler tell them."""
    waits = f"{told_count:,} of {call_count:,} waits of streams for events are told"
    return f"{waits if call_count else 'Whether streams waited for events is not told'}{advice}."


def not_read(left_out: Counter[str], most: int = 4) -> str:
    """Say what of a file was left out, the most frequent first."""
    listed = (+left_out).most_common(most)
    told = [f"{count:,} {what}" for what, count in listed]
    other_count = (+left_out).total() - sum(count for _, count in listed)
    told += [f"{other_count:,} others"] if other_count else []
    return f"; not read: {', '.join(told)}" if told else ""


def own_name(name: str, taken: Counter[str]) -> str:
    """Return a name that nobody has yet: further ones of it are numbered."""
    taken[name] += 1
    while taken[name] > 1:
        name = f"{name} ({taken[name]})"
        taken[name] += 1
    return name


def match_begins(
    group: NDArray[np.integer], time_ns: Int64Array, is_begin: BoolArray, name: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Match each end with the newest begin of its group and name that has none yet, else with the newest one."""
    begins, ends = array("q"), array("q")
    opened: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # Of each group name and place
    order = np.lexsort((time_ns, group))
    columns = (order, group[order], is_begin[order], name[order])
    for place, mine, opens, code in zip(*(column.tolist() for column in columns), strict=True):
        some = opened[mine]
        if opens:
            some.append((code, place))
        elif some:
            alike = (at for at in range(1, min(len(some), MOST_OPEN) + 1) if some[-at][0] == code)
            begins.append(some.pop(-next(alike, 1))[1])
            ends.append(place)
    return np.frombuffer(begins, np.int64), np.frombuffer(ends, np.int64)
