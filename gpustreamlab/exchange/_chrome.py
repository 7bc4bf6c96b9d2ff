"""Read JSON in Chrome's trace event format: what JAX and XLA, VizTracer and many others write, and `write_chrome`.

What is a stream of a GPU is told by names as XLA gives them: a process ``/device:GPU:0`` with threads ``Stream #17(Kernel)``. All
other threads are threads of the host. Times are decimals of microseconds, and read as such.

Source: "Trace Event Format" (Chromium), and ``tsl/profiler/convert/trace_events_to_json.cc`` (OpenXLA).
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab._util.progress import steps
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._chrome_json import WRONG, Event, EventFile, guess_writer, read_head
from gpustreamlab.exchange._chrome_match import match_begins, slices_at
from gpustreamlab.exchange._chrome_own import read_own
from gpustreamlab.exchange._chrome_tracks import Tracks
from gpustreamlab.exchange._kineto_json import nanoseconds, whole_number
from gpustreamlab.model import CHROME_BACKEND, EDGE_KINDS, SPAN_KINDS, Counters, Device, Edges, Marker, Trace, TraceMetadata, WorkDetail
from gpustreamlab.record import FIRST_WORK_NUMBER, MAX_FULL_NAME, SPAN_COLUMNS, Delta, RowFinder, Tables, build_trace, cut_text
from gpustreamlab.typing import CaptureTier, EdgeKind, Int64Array, MarkerKind, SpanKind

MOST_SPANS = 20_000_000
"""Most slices that are read of a file; 2 GB in memory."""
MOST_MARKERS = 10_000
"""Most instants that become markers across all lanes; later ones are left out, and counted."""
MOST_QUANTITIES = 4_096
"""Most quantities of counters."""
LEAST_WALL_CLOCK_NS = 10**18
"""Earlier times, of 2001, are not counted from 1970."""
_MOST_LISTED = 4

_LAUNCH, _WAIT = EDGE_KINDS.index(EdgeKind.LAUNCH), EDGE_KINDS.index(EdgeKind.WAIT)
_ANNOTATION, _HOST, _MARKER = (SPAN_KINDS.index(kind) for kind in (SpanKind.ANNOTATION, SpanKind.HOST, SpanKind.MARKER))
_SENSELESS = "refused, as their times make no sense"

_Columns: TypeAlias = dict[str, Int64Array]


class _Args(msgspec.Struct, gc=False):
    """What XLA tells of work. Its values are texts."""

    correlation: object = msgspec.field(name="correlation_id", default=None)
    context: object = msgspec.field(name="context_id", default=None)
    kernel: object = msgspec.field(name="kernel_details", default=None)
    copy: object = msgspec.field(name="memcpy_details", default=None)
    fill: object = msgspec.field(name="Memset_details", default=None)
    allocated: object = msgspec.field(name="memalloc_details", default=None)
    freed: object = msgspec.field(name="MemFree_details", default=None)
    resident: object = msgspec.field(name="MemoryResidency_details", default=None)


class _Shape(NamedTuple):
    """What many slices share."""

    name: str
    kernel: str = ""
    copy: str = ""
    fill: str = ""
    is_memory: bool = False


_NO_ARGS = _Args()
_ARGS = msgspec.json.Decoder(_Args)
_VALUES = msgspec.json.Decoder(dict[str, object])
_GRID = re.compile(r"\bgrid:(\d+),(\d+),(\d+)")
_BLOCK = re.compile(r"\bblock:(\d+),(\d+),(\d+)")
_NUMBER = re.compile(r"\b(regs|static_shared|dynamic_shared|size|num_bytes):(\d{1,18})\b")


def read_chrome(path: str | PathLike[str]) -> Trace:
    """Read JSON in Chrome's trace event format, packed by gzip or not.

    A file that `write_chrome` wrote comes back exactly. Of other files, slices (X, B and E, async ones), instants, counters,
    flows and names are read; what is not is counted in ``trace.metadata.imported``. Arguments of events are not read, but for what
    XLA tells of kernels and copies; colours, stack frames, samples (P), objects and memory dumps are not, either.

    Parameters
    ----------
    path
        The file: an object with ``traceEvents``, or a list of events, which may lack its end.

    Returns
    -------
    Trace
        Streams of GPUs first, then threads of the host. What was whole of a file that was cut off, or is damaged, is in it;
        ``trace.metadata.recovery_note`` says what is not.

    Raises
    ------
    TraceFileError
        If the file cannot be read, is no such JSON, or holds nothing to show.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "run.json"
    >>> _ = path.write_text('[{"ph": "B", "name": "load", "pid": 1, "tid": 7, "ts": 1.5}, {"ph": "E", "pid": 1, "tid": 7, "ts": 4}')
    >>> trace = read_chrome(path)
    >>> trace.lanes[0].name, trace.names, trace.start_ns.tolist(), trace.end_ns.tolist()
    ('host: thread 7', ('load',), [1500], [4000])
    """
    file, name = EventFile(path), str(path)
    if guess_writer(read_head(path)) == "gpustreamlab":
        return read_own(file, name)
    return _Reader(file, name).read()


class _Reader:
    """Turns the events of one file into a trace."""

    def __init__(self, file: EventFile, path: str) -> None:
        self._file, self._path = file, path
        self._tracks = Tracks()
        self._shapes: dict[_Shape, int] = {}
        self._slices = {name: array("q") for name in ("start_ns", "end_ns", "track", "shape", "correlation", "kind")}
        self._halves = {name: array("q") for name in ("group", "time_ns", "is_begin", "track", "shape")}
        self._groups: dict[object, int] = {}
        self._flows = {name: array("q") for name in ("id", "phase", "time_ns", "track", "is_next")}
        self._flow_ids: dict[object, int] = {}
        self._quantities: dict[tuple[int, str], int] = {}
        self._samples = array("q"), array("q"), array("d")
        self._markers: list[Marker] = []
        self._left_out: Counter[str] = Counter()
        self._take: dict[object, Callable[[Event, int], None]] = {
            "X": self._slice,
            **dict.fromkeys("BEbeSF", self._half),
            **dict.fromkeys("iIRn", self._instant),
            **dict.fromkeys("stf", self._flow),
            "C": self._sample,
        }

    def read(self) -> Trace:
        """Return the trace."""
        with steps(1, "reading events") as step:
            for events in self._file.blocks():
                self._read_block(events)
                if len(self._slices["start_ns"]) > MOST_SPANS:
                    self._file.damage = f"only its first {MOST_SPANS:,} slices are read"
                    break
                step(f"{self._file.event_count:,}")
        self._match_halves()
        columns = {name: np.frombuffer(values, np.int64) for name, values in self._slices.items()}
        if not (len(columns["start_ns"]) or len(self._samples[0]) or self._markers):
            raise TraceFileError(
                f"{self._path!r} holds no slices, instants or counters in {self._file.event_count:,} events: nothing was recorded, "
                f"or it is another tool's. {self._file.damage}".rstrip()
            )
        order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
        return self._trace({name: values[order] for name, values in columns.items()})

    def _read_block(self, events: list[Event]) -> None:
        for event in events:
            if event.ph == "M":
                self._tracks.take_name(event)
                continue
            take = self._take.get(event.ph) if isinstance(event.ph, str) else None
            if take is None:
                if event.ph is not None:  # XLA ends its list with an empty event
                    self._left_out[f"of phase {str(event.ph)[:8]!r}"] += 1
                continue
            time_ns = nanoseconds(event.ts)
            if time_ns is None:
                self._left_out[_SENSELESS] += 1
            else:
                take(event, time_ns)

    def _add(self, start_ns: int, end_ns: int, track: int, shape: int, correlation: int = 0, kind: int = _ANNOTATION) -> None:
        for values, value in zip(self._slices.values(), (start_ns, end_ns, track, shape, correlation, kind), strict=True):
            values.append(value)

    def _shape(self, event: Event, args: _Args = _NO_ARGS) -> int:
        is_memory = not (args.allocated is args.freed is args.resident is None)
        details = [str(given)[:256] if given is not None else "" for given in (args.kernel, args.copy, args.fill)]
        shape = _Shape(str("" if event.name is None else event.name), *details, is_memory)
        known = self._shapes.get(shape)
        if known is not None:
            return known
        return self._shapes.setdefault(shape._replace(name=cut_text(shape.name, MAX_FULL_NAME)), len(self._shapes))

    def _slice(self, event: Event, time_ns: int) -> None:
        lasts_ns = nanoseconds(event.dur)
        if lasts_ns is None or lasts_ns < 0:
            self._left_out[_SENSELESS] += 1
            return
        args = _NO_ARGS
        if len(bytes(event.args)) > 4:
            with suppress(*WRONG):
                args = _ARGS.decode(event.args)
        correlation, track = max(_whole(args.correlation), 0), self._tracks.thread(event)
        if args.context is not None:
            self._tracks.take_context(track, _whole(args.context))
        self._add(time_ns, time_ns + lasts_ns, track, self._shape(event, args), correlation, _HOST if correlation else _ANNOTATION)

    def _half(self, event: Event, time_ns: int) -> None:
        """Take a begin or an end: of a thread, or of an id (async)."""
        is_async = event.ph not in {"B", "E"}
        track = self._tracks.asynchronous(event) if is_async else self._tracks.thread(event)
        key: object = ("async", str(event.cat), _id_of(event), str(event.scope)) if is_async else track
        group = self._groups.setdefault(key, len(self._groups))
        is_begin = event.ph in {"B", "b", "S"}
        row = (group, time_ns, is_begin, track, self._shape(event) if is_begin else -1)
        for values, value in zip(self._halves.values(), row, strict=True):
            values.append(value)

    def _match_halves(self) -> None:
        """Make slices of begins and ends; count those without a partner."""
        halves = {name: np.frombuffer(values, np.int64) for name, values in self._halves.items()}
        is_begin = halves["is_begin"] == 1
        begins, ends = match_begins(halves["group"], halves["time_ns"], is_begin)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            start_ns, end_ns = int(halves["time_ns"][begin]), int(halves["time_ns"][end])
            self._add(start_ns, end_ns, int(halves["track"][begin]), int(halves["shape"][begin]))
        without_end = int(is_begin.sum()) - len(begins)
        without_begin = len(is_begin) - int(is_begin.sum()) - len(ends)
        self._left_out |= Counter({"begins without an end": without_end, "ends without a begin": without_begin})

    def _instant(self, event: Event, time_ns: int) -> None:
        if event.s == "g" and event.ph != "n":
            if len(self._markers) < MOST_MARKERS:
                self._markers.append(Marker(time_ns=time_ns, text=cut_text(str(event.name)), kind=MarkerKind.MARK))
            else:
                self._left_out["instants of all lanes"] += 1
            return
        track = self._tracks.asynchronous(event) if event.ph == "n" else self._tracks.thread(event)
        self._add(time_ns, time_ns, track, self._shape(event), kind=_MARKER)

    def _flow(self, event: Event, time_ns: int) -> None:
        key = str(event.cat), str(event.name), _id_of(event)
        number = self._flow_ids.setdefault(key, len(self._flow_ids))
        is_next = event.ph == "f" and event.bp != "e"
        row = (number, "stf".index(str(event.ph)), time_ns, self._tracks.thread(event), is_next)
        for values, value in zip(self._flows.values(), row, strict=True):
            values.append(value)

    def _sample(self, event: Event, time_ns: int) -> None:
        try:
            given = _VALUES.decode(event.args)
        except WRONG:
            given = {}
        title = str(event.name) + ("" if event.id is None else f" {event.id}")
        numbers = {key: number for key, value in given.items() if (number := _float(value)) is not None}
        self._left_out["values of counters that are no numbers"] += len(given) - len(numbers)
        for key, number in numbers.items():
            name = title if key == "value" or len(given) == 1 else f"{title} {key}"
            quantity = self._tracks.process(event), cut_text(name)
            if quantity not in self._quantities and len(self._quantities) >= MOST_QUANTITIES:
                self._left_out["values of further counters"] += 1
                continue
            code = self._quantities.setdefault(quantity, len(self._quantities))
            for values, value in zip(self._samples, (time_ns, code, number), strict=True):
                values.append(value)

    def _trace(self, slices: _Columns) -> Trace:
        """Return the trace of slices in order of their starts."""
        shapes = [*self._shapes]
        is_gpu = np.array([*self._tracks.is_stream, False], bool)[slices["track"]]
        is_memory = is_gpu & np.array([shape.is_memory for shape in shapes] or [False], bool)[slices["shape"]]
        self._left_out["spans of allocated memory on streams"] += int(is_memory.sum())
        kept = ~is_memory
        slices, is_gpu = {name: values[kept] for name, values in slices.items()}, is_gpu[kept]
        lanes = self._tracks.lanes(np.unique(slices["track"]), [process for process, _ in self._quantities])
        columns, names, details = self._columns(slices, is_gpu, shapes)
        columns["lane"], columns["thread"] = lanes.lane[slices["track"]], lanes.thread[slices["track"]]
        self._launches(columns, is_gpu)
        first_ns = self._to_zero(columns)
        pairs, flow_note = self._flow_pairs(slices)
        metadata = self._metadata(columns, is_gpu, first_ns, flow_note)
        tables = Tables(lanes.lanes, lanes.threads, (), (), self._moved_markers(first_ns), metadata)
        counters = self._counters(lanes.of_process, first_ns)
        delta = Delta(
            tables, columns, names=names, details=details, edges=columns["number"][pairs.reshape(-1)].reshape(-1, 2), counters=counters
        )
        return _with_launches(build_trace(delta))

    def _columns(self, slices: _Columns, is_gpu: Any, shapes: list[_Shape]) -> tuple[_Columns, list[str], tuple[WorkDetail, ...]]:
        """Return the columns of a trace but for lanes and threads, the names and the details."""
        count = len(is_gpu)
        columns = {name: np.zeros(count, np.int64) for name in SPAN_COLUMNS}
        columns |= {name: slices[name].copy() for name in ("start_ns", "end_ns", "kind")}
        columns |= {name: np.full(count, -1, np.int64) for name in ("parent", "partition", "detail")}
        columns["correlation"] = slices["correlation"].copy()
        columns["queued_ns"] = columns["start_ns"].copy()
        columns["number"] = FIRST_WORK_NUMBER + np.arange(count)
        names: dict[str, int] = {}
        plain = [names.setdefault(cut_text(shape.name), len(names)) for shape in shapes]
        works = [_work(shape) for shape in shapes]
        short = [names.setdefault(cut_text(short_name(shape.name)), len(names)) for shape in shapes]
        known = {detail: code for code, detail in enumerate(dict.fromkeys(detail for _, detail, _ in works))}
        table = np.array([(SPAN_KINDS.index(kind), known[detail], size) for kind, detail, size in works] or [(0, -1, 0)], np.int64)
        code = slices["shape"]
        is_work = is_gpu & (slices["kind"] != _MARKER)
        columns["name"] = np.where(is_work, np.array(short or [0])[code], np.array(plain or [0])[code])
        columns["kind"] = np.where(is_work, table[code, 0], columns["kind"])
        columns["detail"] = np.where(is_work, table[code, 1], -1)
        columns["size_bytes"] = np.where(is_work, table[code, 2], 0)
        return columns, [*names], tuple(known)

    def _launches(self, columns: _Columns, is_gpu: Any) -> None:
        """Give work the thread and the time of the call that launched it."""
        calls = np.flatnonzero((columns["kind"] == _HOST) & ~is_gpu)
        work = np.flatnonzero(is_gpu & (columns["correlation"] > 0))
        call = RowFinder(columns["correlation"][calls]).rows_of(columns["correlation"][work])
        work, call = work[call >= 0], calls[call[call >= 0]]
        columns["thread"][work] = columns["thread"][call]
        columns["queued_ns"][work] = columns["start_ns"][call]
        self._launched_count = len(work)

    def _to_zero(self, columns: _Columns) -> int:
        """Count times from the first one where they are of the wall clock; return what was taken off."""
        moments = [columns["start_ns"], np.frombuffer(self._samples[0], np.int64), [one.time_ns for one in self._markers]]
        first_ns = min(int(np.min(times)) for times in moments if len(times))
        base_ns = whole_number(self._file.top.base_ns)
        told = self._file.top.viztracer
        base_ns = base_ns or whole_number(told.get("baseTimeNanoseconds") if isinstance(told, dict) else 0)
        self._epoch_ns = base_ns + first_ns if base_ns + first_ns >= LEAST_WALL_CLOCK_NS else 0
        taken_ns = first_ns if self._epoch_ns else 0
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] -= taken_ns
        return taken_ns

    def _flow_pairs(self, slices: _Columns) -> tuple[Int64Array, int]:
        """Return rows of slices of which the first leads to the second, shape (n, 2), and how many ends lead nowhere."""
        flows = {name: np.frombuffer(values, np.int64) for name, values in self._flows.items()}
        rows = np.flatnonzero(slices["kind"] != _MARKER)
        bound = slices_at(
            *(slices[name][rows] for name in ("track", "start_ns", "end_ns")),
            flows["track"],
            flows["time_ns"],
            flows["is_next"] == 1,
        )
        bound = np.append(rows, -1)[bound]
        order = np.lexsort((flows["phase"], flows["time_ns"]))
        last: dict[int, int] = {}
        pairs, loose = [], 0
        for number, phase, row in zip(*(values[order].tolist() for values in (flows["id"], flows["phase"], bound)), strict=True):
            source = last.pop(number, -1) if phase == 2 else last.get(number, -1)
            if phase and (source < 0 or row < 0):
                loose += 1
            elif phase and source != row:
                pairs.append((source, row))
            if phase < 2:
                last[number] = row
        return np.array(pairs, np.int64).reshape(-1, 2), loose

    def _moved_markers(self, first_ns: int) -> tuple[Marker, ...]:
        return tuple(sorted((replace(one, time_ns=one.time_ns - first_ns) for one in self._markers), key=lambda one: one.time_ns))

    def _counters(self, lane_of: dict[int, int], first_ns: int) -> Counters:
        names = {name: code for code, name in enumerate(dict.fromkeys(name for _, name in self._quantities))}
        table = np.array([(lane_of[process], names[name]) for process, name in self._quantities] or [(0, 0)], np.int64)
        time_ns, code = (np.array(values, np.int64) for values in self._samples[:2])
        order = np.argsort(time_ns, kind="stable")
        return Counters(
            time_ns=time_ns[order] - first_ns,
            lane=table[code[order], 0],
            name=table[code[order], 1],
            value=np.array(self._samples[2], np.float64)[order],
            names=tuple(names),
        )

    def _metadata(self, columns: _Columns, is_gpu: Any, first_ns: int, loose_flows: int) -> TraceMetadata:
        work_count, count = int(is_gpu.sum()), len(is_gpu)
        is_in_us = not (columns["start_ns"] % 1_000).any() and not first_ns % 1_000
        step_ns = 1_000 if is_in_us else 1
        ordinal = self._tracks.first_device
        extent = (int(columns["start_ns"].min()), int(columns["end_ns"].max())) if count else (0, 0)
        self._left_out["ends of flows that lead from or to no slice"] += loose_flows
        self._left_out["events that are no objects"] += self._file.refused
        return TraceMetadata(
            backend=CHROME_BACKEND,
            device=Device(name=f"GPU {ordinal}" if work_count else "unknown device", ordinal=ordinal, sm_count=0),
            clock=f"that of the file, in steps of {'1 us' if is_in_us else '1 ns'}",
            clock_error_ns=step_ns,
            host_error_ns=step_ns,
            kernel_error_ns=step_ns,
            tier=CaptureTier.KERNELS,
            capture_windows=(extent,),
            capture_source="another tool, as Chrome's JSON",
            epoch_unix_ns=self._epoch_ns,
            imported=self._used(work_count, count),
            missing=self._missing(columns, work_count),
            waits_told=len(self._tracks.streams) < 2,
            recovery_note=f"the file was not read to its end: {self._file.damage}" if self._file.damage else "",
        )

    def _used(self, work_count: int, count: int) -> str:
        """Say how many events were read, used, left out and refused."""
        used = f"{count:,} spans ({work_count:,} of GPUs), {len(self._samples[0]):,} values of counters, {len(self._markers):,} markers"
        left_out = [f"{number:,} {what}" for what, number in self._left_out.most_common() if number]
        more = ["others"] if len(left_out) > _MOST_LISTED else []
        not_read = f"; not read: {', '.join(left_out[:_MOST_LISTED] + more)}" if left_out else ""
        return f"{used} of {self._file.event_count:,} events{not_read}"

    def _missing(self, columns: _Columns, work_count: int) -> tuple[str, ...]:
        """Say what the file does not tell."""
        if not work_count:
            return (
                "No thread of the file is a stream of a GPU as JAX and XLA name them (process '/device:GPU:0', thread "
                "'Stream #7(Kernel)'): all are shown as threads of the host.",
            )
        facts = ["The file has no properties of GPUs: when kernels fill their SMs is not known."]
        if self._launched_count < work_count:
            facts.append(
                f"{work_count - self._launched_count:,} of {work_count:,} kernels, copies and fills have no call in the file to tell "
                "their launch."
            )
        if not any(shape.kernel for shape in self._shapes):
            facts.append("The file does not tell grids and blocks of kernels; JAX's .xplane.pb beside it does.")
        if len(self._tracks.streams) > 1:
            facts.append("Whether streams waited for events is not told.")
        return tuple(facts)


def _with_launches(trace: Trace) -> Trace:
    """Tell flows from a call to what it launched from others, and drop those that correlations tell, too."""
    edges = trace.edges
    on_host = np.isin(trace.kind, (_HOST, _ANNOTATION))
    on_device = np.isin(trace.kind, [SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)])
    kind = np.where(on_host[edges.source] & on_device[edges.target], _LAUNCH, edges.kind)
    rows = np.stack((edges.source, edges.target, kind))
    _, first = np.unique(rows, axis=1, return_index=True)
    source, target, kind = rows[:, np.sort(first)]
    return replace(trace, edges=Edges(source=source, target=target, kind=kind))


def _work(shape: _Shape) -> tuple[SpanKind, WorkDetail, int]:
    """Return what work on a stream is, how it was launched, and its bytes."""
    numbers = {key: int(value) for text in shape[1:4] for key, value in _NUMBER.findall(str(text))}
    name = shape.name.lower()
    kind = (
        SpanKind.COPY
        if shape.copy or name.startswith("memcpy")
        else SpanKind.FILL
        if shape.fill or name.startswith("memset")
        else SpanKind.KERNEL
    )
    detail = WorkDetail(
        full_name=shape.name,
        grid=_three(_GRID.search(shape.kernel)),
        block=_three(_BLOCK.search(shape.kernel)),
        registers=numbers.get("regs", 0),
        static_shared_bytes=numbers.get("static_shared", 0),
        dynamic_shared_bytes=numbers.get("dynamic_shared", 0),
    )
    return kind, detail, numbers.get("size", numbers.get("num_bytes", 0))


def _three(found: re.Match[str] | None) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in found.groups()) if found else (0, 0, 0)
    return sizes if max(sizes) < 1 << 32 else (0, 0, 0)  # type: ignore[return-value] # it has three groups


def _id_of(event: Event) -> object:
    """Return the id that an event shares with its partners; one that is local to its process is so."""
    if isinstance(event.id2, dict):
        known = event.id2.get("global")
        return str(known) if known is not None else (str(event.pid), str(event.id2.get("local")))
    return str(event.id)


def _whole(value: object) -> int:
    """Return a whole number, also of a text such as XLA writes."""
    if isinstance(value, str):
        digits = value.removeprefix("$$")
        return whole_number(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 20 else 0
    return whole_number(value)


def _float(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else None
    except (ValueError, OverflowError):
        return None
