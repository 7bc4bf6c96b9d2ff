"""Read reports of Nsight Systems: SQLite exports of 2022 and later, and what nsys here can export.

Everything is found by names of tables and columns: nsys leaves out tables without rows, and adds columns with every version.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from os import PathLike
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import not_read
from gpustreamlab.exchange._kineto_columns import Codes
from gpustreamlab.exchange._nsys_host import Calls, Ranges, read_calls, read_ranges, read_waits
from gpustreamlab.exchange._nsys_places import NO_STREAM, Lanes, Places, Processes, Streams, find_threads
from gpustreamlab.exchange._nsys_report import Columns, Report, export_hint, joined, open_report
from gpustreamlab.exchange._nsys_work import MOST_DETAILS, WORK_TABLES, Work, read_work
from gpustreamlab.model import NSYS_BACKEND, SPAN_KINDS, Trace, TraceMetadata
from gpustreamlab.record import FIRST_WORK_NUMBER, SPAN_COLUMNS, RowFinder, Tables, TraceData, build_trace, cut_text
from gpustreamlab.typing import CaptureTier, Int64Array, SpanKind

_NVTX = "NVTX_EVENTS"
_PREFIX = "CUPTI_ACTIVITY_KIND_"
_TELLING = (f"{_PREFIX}SYNCHRONIZATION", f"{_PREFIX}CUDA_EVENT")
"""What they tell is in waits of streams and in calls."""
_READ = (*WORK_TABLES, f"{_PREFIX}RUNTIME", _NVTX, *_TELLING)
_TIMES = {"start", "timestamp", "rawTimestamp"}
"""Columns by which a table is known to hold events."""
_FACTS = ("ENUM_", "META_", "TARGET_INFO_", "ANALYSIS_")


def read_nsys(path: str | PathLike[str]) -> Trace:
    """Read a report of Nsight Systems; see `gpustreamlab.load_trace`.

    Parameters
    ----------
    path
        An SQLite export of 2022 or later, packed by gzip or not; a folder of ``nsys export --type=parquetdir``; or a
        ``.nsys-rep``, which nsys then exports for this.

    Returns
    -------
    Trace
        Its times are those of the report, in ns since the session of nsys began.

    Raises
    ------
    TraceFileError
        If it is no such file, is damaged, holds nothing of CUDA or NVTX, or nsys is needed and not installed.

    Examples
    --------
    >>> import sqlite3
    >>> path = getfixture("tmp_path") / "run.sqlite"
    >>> with sqlite3.connect(path) as base:
    ...     _ = base.execute("create table CUPTI_ACTIVITY_KIND_MEMSET (start, end, deviceId, contextId, streamId, bytes)")
    ...     _ = base.execute("insert into CUPTI_ACTIVITY_KIND_MEMSET values (1000, 1500, 0, 1, 7, 4096)")
    >>> base.close()
    >>> trace = read_nsys(path)
    >>> trace.lanes[0].name, trace.start_ns.tolist(), trace.extra["size_bytes"].tolist()
    ('stream 7', [1000], [4096])
    """
    name = str(path)
    try:
        with open_report(path) as report:
            delta = _Reader(report, name).read()
        return build_trace(delta)
    except TraceFileError:
        raise
    except (sqlite3.Error, pa.ArrowException, OSError, UnicodeError) as error:
        raise TraceFileError(
            f"{name!r} cannot be read as a report of Nsight Systems: {error}. It was cut off or is damaged. "
            f"{export_hint('run.nsys-rep')}"
        ) from error


class _Parts(NamedTuple):
    """What was read of a report."""

    work: Work
    calls: Calls
    ranges: Ranges
    wait_count: int
    """Waits of streams for events of which the record is known."""
    has_records: bool
    """Whether nsys recorded events."""
    unlaunched: int
    """Work without a call."""
    has_pairs: bool
    """Whether there are streams that may have waited for each other."""
    lanes: Lanes


class _Reader:
    """Turns the tables of one report into a trace."""

    def __init__(self, report: Report, name: str) -> None:
        self._report, self._name = report, name
        self._names = Codes(cut_text)
        self._places = Places(report)

    def read(self) -> TraceData:
        """Return the rows of the trace."""
        report = self._report
        work, calls, ranges = read_work(report, self._names), read_calls(report, self._names), read_ranges(report, self._names)
        self._require_some(work, calls, ranges)
        numbers = [ranges.columns["thread"], calls.columns["thread"]]
        processes = Processes([work.columns["process"], *numbers], self._name)
        threads, streams = find_threads(numbers, processes), Streams(work.columns, processes, self._places)
        called = processes.calls(processes.codes(calls.columns["thread"]), calls.columns["correlation"])
        waits, has_records = read_waits(report, np.unique(called[calls.is_wait]), processes)
        lanes = streams.lanes()
        of_work = _work_columns(work.columns, streams, lanes, processes)
        _add_launches(of_work, called, calls.columns["start_ns"], threads.codes[1])
        columns = joined(
            [
                _host_columns(ranges.columns, threads.codes[0], streams.count, SpanKind.ANNOTATION),
                _host_columns(calls.columns, threads.codes[1], streams.count, SpanKind.HOST) | {"correlation": called},
                of_work,
            ]
        )
        unlaunched = int(np.count_nonzero(of_work["thread"] < 0))
        wait_count = len(np.unique(waits["wait"]))
        parts = _Parts(work, calls, ranges, wait_count, has_records, unlaunched, streams.has_pairs, lanes)
        metadata = self._metadata(columns, parts)
        tables = Tables((*lanes.lanes, *threads.lanes), threads.names, lanes.partitions, (), ranges.markers, metadata)
        delta = TraceData(tables, _numbered(columns), names=(*self._names.known,), details=work.details)
        return delta._replace(dependencies=streams.dependencies(waits))

    def _require_some(self, *parts: Work | Calls | Ranges) -> None:
        if not any(len(part.columns["start_ns"]) for part in parts):
            raise TraceFileError(
                f"{self._name!r} holds no kernels, calls or ranges of Nsight Systems, in {len(self._report.tables):,} tables: "
                "another program wrote it, or nothing ran. Record with: nsys profile --trace=cuda,nvtx python run.py"
            )

    def _metadata(self, columns: Columns, parts: _Parts) -> TraceMetadata:
        """Return what the report tells of itself."""
        first_ns, last_ns = int(columns["start_ns"].min()), int(columns["end_ns"].max())
        started = [told.get("utcEpochNs") for told in self._report.facts("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])]
        epoch_ns = next((given for given in started if type(given) is int and 0 < given < 1 << 62), 0)
        lanes = parts.lanes.lanes
        counts = np.bincount(columns["lane"], minlength=len(lanes))[: len(lanes)]
        devices = tuple(self._places.device(number) for number in sorted({lane.device for lane in lanes}))
        return TraceMetadata(
            backend=NSYS_BACKEND,
            device=self._places.device(lanes[int(counts.argmax())].device if lanes else 0),
            devices=devices,
            clock="that of the report, in steps of 1 ns",
            tier=CaptureTier.KERNELS,
            capture_windows=((first_ns, last_ns),),
            capture_source=f"Nsight Systems {self._version()}".strip(),
            epoch_unix_ns=epoch_ns,
            imported=self._used(parts),
            missing=tuple(_missing(parts, self._places)),
            waits_told=not _lacks_waits(parts),
            pending_spans=parts.ranges.open_count,
            dropped_markers=parts.ranges.dropped_marks,
        )

    def _version(self) -> str:
        """Return the version of nsys; of all else that these tables hold nothing is read."""
        rows = [
            row for table in ("META_DATA_EXPORT", "EXPORT_META_DATA") for row in self._report.facts(table, ["name", "value"])
        ]
        told = [row.get("value", "") for row in rows if row.get("name") == "EXPORT_PRODUCT_VERSION"]
        return cut_text(str(told[0]), 40) if told else ""

    def _used(self, parts: _Parts) -> str:
        """Say how many rows were read, used, left out and refused."""
        work, calls, ranges, report = parts.work, parts.calls, parts.ranges, self._report
        counts = Counter(
            {
                cut_text(table.removeprefix(_PREFIX), 40): report.count(table)
                for table in report.tables
                if table not in _READ and not table.startswith(_FACTS) and _TIMES & {*report.columns(table)}
            }
        )
        total = sum(counts.values()) + sum(report.count(table) for table in _READ)
        counts["others of NVTX"] = ranges.others
        counts["ranges that nobody closed"] = ranges.open_count
        counts["further marks"] = ranges.dropped_marks
        marks = f", {len(ranges.markers):,} marks" if ranges.markers else ""
        waits = f", {parts.wait_count:,} waits of streams" if parts.wait_count else ""
        said_count = sum(report.count(table) for table in _TELLING) - parts.wait_count + ranges.domains
        waits += f", {said_count:,} that say the same again or name domains" if said_count else ""
        refused = work.refused + calls.refused + ranges.refused
        return (
            f"{len(work.columns['name']):,} kernels, copies and fills, {len(calls.is_wait):,} calls, "
            f"{len(ranges.columns['name']):,} ranges{marks}{waits} of {total:,} rows{not_read(counts)}"
            + (f"; {refused:,} refused, as their times or devices make no sense" if refused else "")
        )


def _host_columns(rows: Columns, thread: Int64Array, first_lane: int, kind: SpanKind) -> Columns:
    """Return the columns of calls, or of ranges; of two ranges that begin at once the longer one is first."""
    columns = _blank(len(thread)) | {
        "start_ns": rows["start_ns"],
        "end_ns": rows["end_ns"],
        "queued_ns": rows["start_ns"],
        "lane": thread + first_lane,
        "thread": thread,
        "name": rows["name"],
        "kind": np.full(len(thread), SPAN_KINDS.index(kind), np.int64),
    }
    if kind is SpanKind.HOST:
        return columns
    order = np.lexsort((-rows["end_ns"], rows["start_ns"]))
    return {name: values[order] for name, values in columns.items()}


def _work_columns(work: Columns, streams: Streams, lanes: Lanes, processes: Processes) -> Columns:
    kept = ("start_ns", "end_ns", "name", "kind", "detail", "size_bytes")
    return _blank(len(streams.lane)) | {
        **{name: work[name] for name in kept},
        "lane": streams.lane,
        "partition": np.array([*lanes.partition_of, -1], np.int64)[streams.lane],
        "correlation": processes.calls(processes.codes(work["process"]), work["correlation"]),
    }


def _add_launches(of_work: Columns, called: Int64Array, called_ns: Int64Array, thread: Int64Array) -> None:
    """Add to work when it was launched, and by which thread."""
    correlation = of_work["correlation"]
    call = np.where(correlation > 0, RowFinder(called).rows_of(correlation), -1)
    of_work["queued_ns"] = np.where(call >= 0, np.append(called_ns, 0)[call], of_work["start_ns"])
    of_work["thread"] = np.append(thread, -1)[call]


def _blank(count: int) -> Columns:
    """Return columns for what rows have not."""
    empty = {"parent": -1, "partition": -1, "detail": -1, "size_bytes": 0, "correlation": 0}
    return {name: np.full(count, value, np.int64) for name, value in empty.items()}


def _numbered(columns: Columns) -> Columns:
    columns["number"] = FIRST_WORK_NUMBER + np.arange(len(columns["start_ns"]))
    return {name: columns[name] for name in SPAN_COLUMNS}


def _lacks_waits(parts: _Parts) -> bool:
    """Tell whether streams may have waited for each other without a row that says so."""
    is_whole = len(parts.calls.is_wait) and not parts.unlaunched
    return parts.has_pairs and not (is_whole and parts.wait_count == np.count_nonzero(parts.calls.is_wait))


def _missing(parts: _Parts, places: Places) -> list[str]:
    """Say what the report does not tell."""
    work, said = parts.work, []
    lanes, unsized = parts.lanes.lanes, parts.lanes.unsized
    if parts.unlaunched:
        said.append(
            f"{parts.unlaunched:,} of {len(work.columns['name']):,} kernels, copies and fills have no call in the file to tell "
            "their launch: the report was cut, or begins in the middle."
        )
    cards = sorted({lane.device for lane in lanes if not places.device(lane.device).sm_count})
    if cards:
        unknown = ", ".join(f"GPU {card}" for card in cards)
        said.append(f"The file has no properties of {unknown}: when kernels fill its SMs is not known.")
    if parts.has_pairs and any(lane.is_blocking is None and lane.stream != NO_STREAM for lane in lanes):
        said.append("Of some streams the file does not tell whether they and the legacy default stream wait for each other.")
    if _lacks_waits(parts):
        wait_calls = int(np.count_nonzero(parts.calls.is_wait))
        told = f"{parts.wait_count:,} of {wait_calls:,} waits of streams for events are told"
        told = told if wait_calls else "Whether streams waited for events is not told"
        said.append(f"{told}{'' if parts.has_records else '; nsys tells it with --trace=cuda --cuda-event-trace=true'}.")
    if work.whole_graphs:
        said.append(
            f"{work.whole_graphs:,} launches of graphs are one span each, and what ran in them is not told; nsys tells it "
            "with --cuda-graph-trace=node."
        )
    if unsized:
        said.append(f"How many SMs {unsized:,} streams in green contexts may use is not told; nsys 2026.1 or later does it.")
    if work.undetailed:
        said.append(f"{work.undetailed:,} launches have no grid: more than {MOST_DETAILS:,} sorts of launches differ.")
    return said
