"""Read JSON in Chrome's trace event format: what JAX and XLA, VizTracer and many others write, and `write_chrome`.

What is a stream of a GPU is told by names as XLA gives them: a process ``/device:GPU:0`` with threads ``Stream #17(Kernel)``.
All other threads are threads of the host. Times are decimals of microseconds, and read as such.

Source: "Trace Event Format" (Chromium), and ``tsl/profiler/convert/trace_events_to_json.cc`` (OpenXLA).
"""

from __future__ import annotations

import base64
import zlib
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._chrome_events import ANNOTATION, HOST, MARKER, OF_VALUES, Events
from gpustreamlab.exchange._chrome_json import LONGEST_BEGIN, OURS, Event, Top
from gpustreamlab.exchange._chrome_xla import Shape, work_of
from gpustreamlab.exchange._event_file import EventFile, whole_number
from gpustreamlab.exchange._formats import LEAST_WALL_CLOCK_NS, not_read
from gpustreamlab.exchange._matching import slices_at
from gpustreamlab.exchange._packed import unpacked
from gpustreamlab.model import (
    CHROME_BACKEND,
    EDGE_KINDS,
    SPAN_KINDS,
    Counters,
    Device,
    Edges,
    Marker,
    Trace,
    TraceMetadata,
    WorkDetail,
    parquet_trace,
)
from gpustreamlab.record import FIRST_WORK_NUMBER, SPAN_COLUMNS, Delta, RowFinder, Tables, build_trace, cut_text
from gpustreamlab.typing import CaptureTier, EdgeKind, Int64Array, SpanKind

MOST_EVENTS = 10_000_000
"""Most events that are read of a file; some 5 GB in memory, while they become a trace."""

_LAUNCH, _WAIT = EDGE_KINDS.index(EdgeKind.LAUNCH), EDGE_KINDS.index(EdgeKind.WAIT)

_Columns: TypeAlias = dict[str, Int64Array]


def read_chrome(path: str | PathLike[str]) -> Trace:
    """Read JSON in Chrome's trace event format, packed by gzip or not.

    A file that `write_chrome` wrote comes back exactly. Of other files, slices (X, B and E, async ones), instants, counters,
    flows and names are read; what is not is counted in ``trace.metadata.imported``. Arguments of events are not read,
    but for what XLA tells of kernels and copies; colours, stack frames, samples (P), objects and memory dumps are not, either.

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
    >>> _ = path.write_text('[{"ph": "B", "name": "load", "tid": 7, "ts": 1.5}, {"ph": "E", "tid": 7, "ts": 4}')
    >>> trace = read_chrome(path)
    >>> trace.lanes[0].name, trace.names, trace.start_ns.tolist(), trace.end_ns.tolist()
    ('host: thread 7', ('load',), [1500], [4000])
    """
    try:
        data = _own_data(Path(path))
    except TraceFileError:
        raise
    except OSError:  # told where events are read
        data = None
    except ValueError as error:
        raise TraceFileError(
            f"{str(path)!r} was written by gpustreamlab, and is damaged or was cut off: {error}. Copy it again."
        ) from error
    return _Reader(EventFile(path, Event, Top)).read() if data is None else parquet_trace(data, repr(str(path)))


def _own_data(path: Path) -> bytearray | None:
    """Return the trace that a file of ours holds, as a Parquet file; None for a file of others."""
    text, data = b"", None
    with suppress(EOFError, zlib.error), path.open("rb") as file:  # likewise
        for part in unpacked(file):
            text += part
            if data is None and (begin := OURS.match(text)):
                text, data = text[begin.end() :], bytearray()
            if data is not None:
                letters, end, _ = text.partition(b'"')
                whole = len(letters) if end else len(letters) // 4 * 4
                data += base64.b64decode(letters[:whole], validate=True)
                text = letters[whole:]
                if end:
                    return data
            elif len(text) > LONGEST_BEGIN:
                return None
    if data is not None:
        raise ValueError("its data has no end")
    return None


class _Reader:
    """Turns the events of one file into a trace."""

    def __init__(self, file: EventFile[Event, Top]) -> None:
        self._file = file
        self._events = Events()
        self._launched_count = self._epoch_ns = 0

    def read(self) -> Trace:
        """Return the trace."""
        for events in self._file.blocks():
            self._events.take(events)
            if self._file.event_count > MOST_EVENTS:
                self._file.cut = f"only its first {self._file.event_count:,} events are read"
                break
        columns = self._events.close()
        if not (len(columns["start_ns"]) or len(self._events.samples[0]) or self._events.markers):
            raise TraceFileError(
                f"{self._file.path!r} holds no slices, instants or counters in {self._event_count:,} events: nothing was "
                f"recorded, or it is another tool's{f', or {self._file.cut}' if self._file.cut else ''}."
            )
        order = np.lexsort((-columns["end_ns"], columns["start_ns"]))
        columns = {name: values[order] for name, values in columns.items()}
        return self._trace(columns)

    @property
    def _event_count(self) -> int:
        return self._file.event_count + self._file.damaged_count

    def _trace(self, slices: _Columns) -> Trace:
        """Return the trace of slices in order of their starts."""
        shapes = [*self._events.shapes]
        is_gpu = np.array([*self._events.tracks.is_stream, False], bool)[slices["track"]] & (slices["kind"] != MARKER)
        is_memory = is_gpu & np.array([shape.is_memory for shape in shapes] or [False], bool)[slices["shape"]]
        self._events.left_out["spans of allocated memory on streams"] += int(is_memory.sum())
        if is_memory.any():
            slices, is_gpu = {name: slices.pop(name)[~is_memory] for name in [*slices]}, is_gpu[~is_memory]
        is_summary = np.array([*self._events.tracks.is_summary, False], bool)[slices["track"]]
        slices["kind"] = np.where(is_summary & (slices["kind"] == HOST), ANNOTATION, slices["kind"])
        lanes = self._events.tracks.lanes(np.unique(slices["track"]), [process for process, _ in self._events.quantities])
        pairs, flow_note = self._flow_pairs(slices)
        track = slices.pop("track")
        columns, names, details = self._columns(slices, is_gpu, shapes)
        columns["lane"], columns["thread"] = lanes.lane[track], lanes.thread[track]
        self._launches(columns, is_gpu)
        first_ns = self._to_zero(columns)
        metadata = self._metadata(columns, is_gpu, first_ns, flow_note)
        tables = Tables(lanes.lanes, lanes.threads, (), (), self._moved_markers(first_ns), metadata)
        counters = self._counters(lanes.of_process, first_ns)
        delta = Delta(
            tables,
            columns,
            names=names,
            details=details,
            edges=columns["number"][pairs.reshape(-1)].reshape(-1, 2),
            counters=counters,
        )
        return _with_launches(build_trace(delta))

    def _columns(
        self, slices: _Columns, is_gpu: Any, shapes: list[Shape]
    ) -> tuple[_Columns, list[str], tuple[WorkDetail, ...]]:
        """Return the columns of a trace but for lanes and threads, the names and the details; slices are taken away."""
        count = len(is_gpu)
        columns = {name: np.broadcast_to(np.int64(0), count) for name in SPAN_COLUMNS}
        columns |= {name: slices.pop(name) for name in ("start_ns", "end_ns", "kind", "correlation")}
        columns |= {name: np.broadcast_to(np.int64(-1), count) for name in ("parent", "partition")}
        columns["queued_ns"] = columns["start_ns"].copy()
        columns["number"] = FIRST_WORK_NUMBER + np.arange(count)
        names: dict[str, int] = {}
        plain = [names.setdefault(cut_text(shape.name), len(names)) for shape in shapes]
        works = [work_of(shape) for shape in shapes]
        short = [names.setdefault(cut_text(short_name(shape.name)), len(names)) for shape in shapes]
        known = {detail: code for code, detail in enumerate(dict.fromkeys(detail for _, detail, _ in works))}
        table = np.array(
            [(SPAN_KINDS.index(kind), known[detail], size) for kind, detail, size in works] or [(0, -1, 0)], np.int64
        )
        code = slices.pop("shape")
        columns["name"] = np.where(is_gpu, np.array(short or [0])[code], np.array(plain or [0])[code])
        columns["kind"] = np.where(is_gpu, table[code, 0], columns["kind"])
        columns["detail"] = np.where(is_gpu, table[code, 1], -1)
        columns["size_bytes"] = np.where(is_gpu, table[code, 2], 0)
        return columns, [*names], tuple(known)

    def _launches(self, columns: _Columns, is_gpu: Any) -> None:
        """Give work the thread and the time of the call that launched it."""
        calls = np.flatnonzero((columns["kind"] == HOST) & ~is_gpu)
        work = np.flatnonzero(is_gpu & (columns["correlation"] > 0))
        call = RowFinder(columns["correlation"][calls]).rows_of(columns["correlation"][work])
        work, call = work[call >= 0], calls[call[call >= 0]]
        columns["thread"][work] = columns["thread"][call]
        columns["queued_ns"][work] = columns["start_ns"][call]
        self._launched_count = len(work)

    def _to_zero(self, columns: _Columns) -> int:
        """Count times from the first one where they are of the wall clock; return what was taken off."""
        marked_ns = np.array([one.time_ns for one in self._events.markers], np.int64)
        moments = np.concatenate((columns["start_ns"], np.frombuffer(self._events.samples[0], np.int64), marked_ns))
        first_ns = int(moments.min())
        base_ns = whole_number(self._file.facts.base_ns)
        told = self._file.facts.viztracer
        base_ns = base_ns or whole_number(told.get("baseTimeNanoseconds") if isinstance(told, dict) else 0)
        self._epoch_ns = base_ns + first_ns if base_ns + first_ns >= LEAST_WALL_CLOCK_NS else 0
        taken_ns = first_ns if self._epoch_ns else 0
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] -= taken_ns
        return taken_ns

    def _flow_pairs(self, slices: _Columns) -> tuple[Int64Array, int]:
        """Return rows of slices of which the first leads to the second, shape (n, 2), and how many ends lead nowhere."""
        flows = {name: np.frombuffer(values, np.int64) for name, values in self._events.flows.items()}
        rows = np.flatnonzero(slices["kind"] != MARKER)
        bound = slices_at(
            slices["track"][rows],
            slices["start_ns"][rows],
            slices["end_ns"][rows],
            flows["track"],
            flows["time_ns"],
            flows["is_next"] == 1,
        )
        bound = np.append(rows, -1)[bound]
        order = np.lexsort((flows["phase"], flows["time_ns"]))
        last: dict[int, int] = {}
        pairs, loose = [], 0
        for number, phase, row in zip(
            *(values[order].tolist() for values in (flows["id"], flows["phase"], bound)), strict=True
        ):
            source = last.pop(number, -1) if phase == 2 else last.get(number, -1)
            if phase and (source < 0 or row < 0):
                loose += 1
            elif phase and source != row:
                pairs.append((source, row))
            if phase < 2:
                last[number] = row
        return np.array(pairs, np.int64).reshape(-1, 2), loose

    def _moved_markers(self, first_ns: int) -> tuple[Marker, ...]:
        return tuple(
            sorted((replace(one, time_ns=one.time_ns - first_ns) for one in self._events.markers), key=lambda one: one.time_ns)
        )

    def _counters(self, lane_of: dict[int, int], first_ns: int) -> Counters:
        names = {name: code for code, name in enumerate(dict.fromkeys(name for _, name in self._events.quantities))}
        table = np.array([(lane_of[process], names[name]) for process, name in self._events.quantities] or [(0, 0)], np.int64)
        time_ns, code = (np.array(values, np.int64) for values in self._events.samples[:2])
        order = np.argsort(time_ns, kind="stable")
        return Counters(
            time_ns=time_ns[order] - first_ns,
            lane=table[code[order], 0],
            name=table[code[order], 1],
            value=np.array(self._events.samples[2], np.float64)[order],
            names=tuple(names),
        )

    def _metadata(self, columns: _Columns, is_gpu: Any, first_ns: int, loose_flows: int) -> TraceMetadata:
        work_count, count = int(is_gpu.sum()), len(is_gpu)
        is_in_us = not (columns["start_ns"] % 1_000).any() and not first_ns % 1_000
        step_ns = 1_000 if is_in_us else 1
        ordinal = self._events.tracks.first_device
        extent = (int(columns["start_ns"].min()), int(columns["end_ns"].max())) if count else (0, 0)
        self._events.left_out["ends of flows that lead from or to no slice"] += loose_flows
        self._events.left_out["damaged events"] += self._file.damaged_count
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
            waits_told=len(self._events.tracks.streams) < 2,
            recovery_note=f"not all of the file was read: {self._file.cut}" if self._file.cut else "",
        )

    def _used(self, work_count: int, count: int) -> str:
        """Say how many events were read, used, left out and refused."""
        told = self._events
        used = f"{count:,} spans ({work_count:,} of GPUs), {len(told.samples[0]):,} samples, {len(told.markers):,} markers"
        used_count = self._event_count - sum(number for what, number in told.left_out.items() if what not in OF_VALUES)
        return f"{used} from {used_count:,} of {self._event_count:,} events{not_read(told.left_out)}"

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
                f"{work_count - self._launched_count:,} of {work_count:,} kernels, copies and fills have no call in the file "
                "to tell their launch."
            )
        if not any(shape.kernel for shape in self._events.shapes):
            facts.append("The file does not tell grids and blocks of kernels; JAX's .xplane.pb beside it does.")
        if len(self._events.tracks.streams) > 1:
            facts.append("Whether streams waited for events is not told.")
        return tuple(facts)


def _with_launches(trace: Trace) -> Trace:
    """Tell flows from a call to what it launched from others, and drop those that correlations tell, too."""
    edges = trace.edges
    on_host = np.isin(trace.kind, (HOST, ANNOTATION))
    on_device = np.isin(trace.kind, [SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)])
    kind = np.where(on_host[edges.source] & on_device[edges.target], _LAUNCH, edges.kind)
    rows = np.stack((edges.source, edges.target, kind))
    _, first = np.unique(rows, axis=1, return_index=True)
    source, target, kind = rows[:, np.sort(first)]
    return replace(trace, edges=Edges(source=source, target=target, kind=kind))
