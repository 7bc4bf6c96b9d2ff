"""Read reports of Nsight Systems: SQLite exports of 2022 and later, Parquet folders, and what nsys here can export.

Everything is found by names of tables and columns: nsys leaves out tables without rows, and adds columns with every version.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from os import PathLike

import numpy as np
import pyarrow as pa

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.analysis import distinct
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._frame import (
    ANNOTATION,
    HOST,
    Codes,
    Columns,
    Frame,
    add_launches,
    card_note,
    launch_note,
    not_read,
    own_name,
)
from gpustreamlab.exchange._nsys_report import (
    LARGEST,
    NO_NUMBER,
    Place,
    Places,
    Report,
    alike,
    chosen,
    export_hint,
    joined,
    open_report,
    or_else,
    or_nought,
    timed,
)
from gpustreamlab.model import NSYS_BACKEND, SPAN_KINDS, Lane, Marker, Partition, Trace, WorkDetail
from gpustreamlab.recorder import DEPENDENCY_COLUMNS, MAX_FULL_NAME, RowFinder, cut_text
from gpustreamlab.typing import Int32Array, Int64Array, LaneKind, MarkerKind, SpanKind

MOST_DETAILS = 65_536  # Most launches that differ in anything; further ones have a name and no detail
MOST_MARKS = 10_000  # Most marks that are kept; the first count
NO_STREAM = -1  # Migrations of managed memory, which the driver makes by itself, and page faults are on none

_PREFIX = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _COPIES, _GRAPHS = f"{_PREFIX}KERNEL", f"{_PREFIX}MEMCPY", f"{_PREFIX}GRAPH_TRACE"
WORK_TABLES = {
    _KERNELS: SpanKind.KERNEL,
    _COPIES: SpanKind.COPY,
    f"{_PREFIX}MEMSET": SpanKind.FILL,
    _GRAPHS: SpanKind.KERNEL,
}
"""What becomes work of a device; of the graphs in the last one nsys did not record the nodes."""
_CALLS, _NVTX = f"{_PREFIX}RUNTIME", "NVTX_EVENTS"
_FAULTS, _DIAGNOSTICS, _OVERHEAD = "CUDA_UM_GPU_PAGE_FAULT_EVENTS", "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD"
_NVPROF = f"{_PREFIX}CONCURRENT_KERNEL", "StringTable"  # Tables that nvprof writes and nsys does not
_TELLING = (f"{_PREFIX}SYNCHRONIZATION", f"{_PREFIX}CUDA_EVENT")  # What they tell is in waits of streams and in calls
_READ = (*WORK_TABLES, _CALLS, _NVTX, *_TELLING, _FAULTS, _DIAGNOSTICS, _OVERHEAD)
_TIMES = {"start", "timestamp", "rawTimestamp"}  # Columns by which a table is known to hold events
_FACT_TABLES = ("ENUM_", "META_", "TARGET_INFO_", "ANALYSIS_")

_WHERE = {"device": "deviceId", "context": "contextId", "green": "greenContextId", "stream": "streamId"}
_OF_WORK = ("start", "end", "globalPid", *_WHERE.values(), "correlationId", "bytes")
_NAMED = ("demangledName", "shortName", "copyKind", "srcKind", "dstKind", "migrationCause")
_NUMBERED = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "launchType"),
)
_OF_TABLE = {
    _KERNELS: (*_NAMED[:2], *_NUMBERED),
    f"{_PREFIX}MEMCPY": _NAMED[2:],
    f"{_PREFIX}MEMSET": (),
    _GRAPHS: (),
}
"""What tells launches of each table apart, beside the graph."""
_MOST_X, _MOST_YZ = 1 << 31, 1 << 16
_LETTERS = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
"""Of copies by their kind, from 1; the last three are of managed memory."""
_FIRST_MANAGED = 11
_CAUSES = {1: ", asked for", 2: ", page fault", 3: ", prefetch", 4: ", eviction", 5: ", access counters"}
"""Why managed memory went. Source: CUPTI, ``CUpti_ActivityUnifiedMemoryMigrationCause``."""
_COOPERATIVE = (2, 3)  # Sorts of launches. Source: CUPTI, ``CUpti_ActivityLaunchType``, from 1 in what nsys exports
_WARNINGS = (2, 3)  # Severities of diagnostics that tell of a loss. Source: ENUM_DIAGNOSTIC_SEVERITY_LEVEL
_MEMORY = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static")
"""By nsys's number, which is one lower than CUPTI's."""

_VERSION = re.compile(r"_v\d{4,5}(?=$|_pt[sd]z$)")  # Behind the names of calls: of which CUDA they are
_STREAM_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent")
_NO_EVENT = (NO_NUMBER, 0xFFFF_FFFF)
_NO_TIE = (*_NO_EVENT, 0)
_PUSH_POP, _START_END, _MARK, _DOMAIN = 59, 60, 34, 75
_LONGEST_TEXT = 1_000

_CALL_BITS = 32
_PROCESS_MASK = -(1 << 24)  # What a thread's global number has in common with its process's


def read_nsys(path: str | PathLike[str]) -> Trace:
    """Read a report of Nsight Systems; see `gpustreamlab.load_trace`."""
    name = str(path)
    try:
        with open_report(path) as report:
            frame = _Maker(report, name).frame()
        return frame.trace()
    except TraceFileError:
        raise
    except (sqlite3.Error, pa.ArrowException, OSError, UnicodeError) as error:
        raise TraceFileError(
            f"{name!r} cannot be read as a report of Nsight Systems: {error}. It was cut off or is damaged. "
            f"{export_hint('run.nsys-rep')}"
        ) from error


class _Maker:
    """Turns the tables of one report into a frame."""

    def __init__(self, report: Report, name: str) -> None:
        self._report, self._name = report, name
        self._names, self._details = Codes(cut_text), dict[WorkDetail, int]()
        self._places = Places(report)
        self._refused = 0
        self._left_out = Counter[str]()
        self._work = self._read_work()
        self._calls, self._is_wait = self._read_calls()
        self._markers: list[Marker] = []
        self._ranges = self._read_ranges()

    def frame(self) -> Frame:
        """Return what the report tells."""
        work, calls, ranges = self._work, self._calls, self._ranges
        if not any(len(part["start_ns"]) for part in (work, calls, ranges)):
            raise self._nothing()
        self._count_rows()
        owners = [
            distinct(part[name] & _PROCESS_MASK)[0] for part, name in ((work, "process"), (ranges, "thread"), (calls, "thread"))
        ]
        self._processes = np.unique(np.concatenate(owners))
        self._pids = [number >> 24 & 0xFF_FFFF for number in self._processes.tolist()]
        for part, owner in ((calls, calls["thread"]), (work, work["process"])):
            part["correlation"] = self._call_numbers(owner, part["correlation"])
        lanes, partitions = self._stream_lanes()
        threads, thread_lanes = self._thread_lanes(len(lanes))
        call = add_launches(work, calls)
        self._wait_count = 0
        dependencies = self._dependencies()
        self._lacks_waits = self._has_pairs and not (
            len(self._is_wait)
            and (call >= 0)[work["kind"] != ANNOTATION].all()
            and self._wait_count == np.count_nonzero(self._is_wait)
        )
        started = [told.get("utcEpochNs") for told in self._report.facts("TARGET_INFO_SESSION_START_TIME", ["utcEpochNs"])]
        return Frame(
            backend=NSYS_BACKEND,
            source=f"Nsight Systems {self._version()}".strip(),
            path=self._name,
            told_by="report",
            lanes=[*lanes, *thread_lanes],
            threads=threads,
            names=[*self._names.known],
            parts=[ranges, calls, work],
            details=[*self._details],
            partitions=partitions,
            dependencies=dependencies,
            markers=self._markers,
            devices={number: self._places.device(number) for number in sorted({lane.device for lane in lanes})},
            idle_device=self._places.device(0),
            epoch_ns=next((given for given in started if type(given) is int and 0 < given < 1 << 62), 0),
            is_in_us=False,
            imported=self._used(),
            missing=self._missing(lanes, call),
            facts={
                "refused_records": self._refused,
                "diagnostics": self._diagnostics(),
                "profiler_ns": self._profiler_ns(),
                "waits_told": not self._lacks_waits,
                "pending_spans": self._left_out["ranges that nobody closed"],
                "dropped_markers": self._left_out["further marks"],
            },
        )

    def _nothing(self) -> TraceFileError:
        """Say that a report has nothing of CUDA in it, or is none."""
        if self._version() or "TARGET_INFO_SYSTEM_ENV" in self._report.tables:
            what = "is a report of Nsight Systems in which no CUDA was recorded: no kernels, calls or ranges"
        else:
            what = f"holds no kernels, calls or ranges of Nsight Systems, in {len(self._report.tables):,} tables: another "
            what += "program wrote it"
        return TraceFileError(f"{self._name!r} {what}. Record with: nsys profile --trace=cuda,nvtx python run.py")

    def _diagnostics(self) -> tuple[str, ...]:
        """Return the warnings and errors that nsys wrote into the report, each once."""
        told = self._report.facts(_DIAGNOSTICS, ["severity", "text"])
        return tuple(
            dict.fromkeys(cut_text(str(one["text"])) for one in told if one.get("severity") in _WARNINGS and one.get("text"))
        )

    def _timed(self, rows: Columns) -> Columns:
        """Return the rows whose times make sense."""
        kept = timed(rows)
        self._refused += len(rows["start"]) - len(kept["start"])
        return kept

    def _read_work(self) -> Columns:
        """Return all work."""
        tables = {}
        if _NVPROF[0] in self._report.tables or (_NVPROF[1] in self._report.tables and not self._version()):
            raise TraceFileError(
                f"{self._name!r} is a file of nvprof, which is not read. Record again with Nsight Systems, which took its "
                "place: nsys profile --trace=cuda,nvtx python run.py"
            )
        for table in WORK_TABLES:
            wanted = (*_OF_WORK, *_OF_TABLE[table], "graphNodeId", "graphId")
            rows = self._timed(self._report.numbers(table, wanted))
            tables[table] = chosen(rows, rows["deviceId"] >= 0)
            self._refused += len(rows["start"]) - len(tables[table]["start"])
        used = np.unique(np.concatenate([tables[_KERNELS][name] for name in _NAMED[:2]]))
        self._strings = self._report.strings(used.tolist())
        self._whole_graphs = len(tables[_GRAPHS]["start"])
        return joined([*(self._work_of(table, tables.pop(table)) for table in WORK_TABLES), self._read_faults()])

    def _work_of(self, table: str, rows: Columns) -> Columns:
        """Return the columns of a table's rows; the detail is -1 where they have none."""
        told = [rows[name] if name in _NAMED else or_nought(rows[name]) for name in _OF_TABLE[table]]
        told.append(_graphs(rows) if table != _GRAPHS else or_nought(rows["graphId"]))
        first, sort = alike(told)
        makers: tuple[Callable[..., tuple[str, WorkDetail]], ...] = (self._kernel, self._copy, self._fill, self._whole_graph)
        make = dict(zip(WORK_TABLES, makers, strict=True))[table]
        found = []
        for values in np.stack([column[first] for column in told]).T.tolist():
            name, detail = make(*values)
            if detail not in self._details and len(self._details) < MOST_DETAILS:
                self._details[detail] = len(self._details)
            found.append((self._names[name], self._details.get(detail, -1)))
        name, detail = np.array(found, np.int64).reshape(-1, 2)[sort].T
        kind = np.full(len(sort), SPAN_KINDS.index(WORK_TABLES[table]), np.int8)
        if table == _COPIES:
            is_managed = rows["copyKind"] >= _FIRST_MANAGED
            kind[is_managed] = ANNOTATION  # no stream does it, so that it is no work of one
            rows["streamId"] = np.where(is_managed, NO_STREAM, rows["streamId"])
        return {
            "start_ns": rows["start"],
            "end_ns": rows["end"],
            "kind": kind,
            "size_bytes": or_nought(rows["bytes"], below=LARGEST),
            "process": or_else(rows["globalPid"], 0),
            **{key: or_else(rows[column], NO_STREAM if key == "stream" else 0) for key, column in _WHERE.items()},
            "correlation": rows["correlationId"],
            "name": name,
            "detail": detail,
        }

    def _kernel(self, name: int, short: int, *numbers: int) -> tuple[str, WorkDetail]:
        full = cut_text(self._strings.get(name) or self._strings.get(short) or "unknown kernel", MAX_FULL_NAME)
        grid, block = (_sizes(numbers[at : at + 3]) for at in (0, 3))
        registers, static, dynamic, sort, graph = numbers[6:]
        detail = WorkDetail(
            full_name=full,
            grid=grid,
            block=block,
            registers=registers,
            static_shared_bytes=static,
            dynamic_shared_bytes=dynamic,
            graph=graph,
            is_cooperative=sort in _COOPERATIVE,
        )
        return short_name(full), detail

    def _copy(self, kind: int, source: int, target: int, cause: int, graph: int) -> tuple[str, WorkDetail]:
        name = copy_name(kind, source, target)
        name = name.replace("(managed)", f"(managed{_CAUSES.get(cause, '')})")
        return name, WorkDetail(full_name=name, graph=graph)

    def _fill(self, graph: int) -> tuple[str, WorkDetail]:
        return "memset", WorkDetail(full_name="memset", graph=graph)

    def _whole_graph(self, graph: int) -> tuple[str, WorkDetail]:
        # Not `graph`: that is for nodes, which get a row around them.
        return f"graph {graph} (whole)", WorkDetail(full_name=f"CUDA graph {graph}, recorded as a whole")

    def _read_faults(self) -> Columns:
        """Return page faults of devices, a row for each group of them, beside the migrations that they cause."""
        rows = self._timed(self._report.numbers(_FAULTS, ("start", "end", "globalPid", "deviceId")))
        none, count = np.full(len(rows["start"]), NO_STREAM), len(rows["start"])
        columns = {"size_bytes": none * 0, "context": none * 0, "green": none * 0, "correlation": none * 0}
        return columns | {
            "start_ns": rows["start"],
            "end_ns": rows["end"],
            "kind": np.full(count, ANNOTATION, np.int8),
            "process": or_else(rows["globalPid"], 0),
            "device": or_nought(rows["deviceId"]),
            "stream": none,
            "name": np.full(count, self._names["GPU page faults"] if count else 0, np.int64),
            "detail": none,
        }

    def _profiler_ns(self) -> int:
        """Return how long nsys itself took, in ns."""
        rows = self._timed(self._report.numbers(_OVERHEAD, ("start", "end")))
        return int((rows["end"] - rows["start"]).sum())

    def _read_calls(self) -> tuple[Columns, Int64Array]:
        """Return all calls, of the runtime and of the driver, and whether each makes a stream wait for an event."""
        rows = self._timed(self._report.numbers(_CALLS, ("start", "end", "globalTid", "correlationId", "nameId")))
        first, sort = alike([rows["nameId"]])
        numbers = rows["nameId"][first].tolist()
        strings = self._report.strings(numbers)
        texts = [_VERSION.sub("", strings.get(number, "unknown call")) for number in numbers]
        columns = _host_columns(rows, self._names.of(texts)[sort], HOST) | {"correlation": rows["correlationId"]}
        return columns, np.array([text.startswith(_STREAM_WAITS) for text in texts], bool)[sort]

    def _read_ranges(self) -> Columns:
        """Return the ranges of NVTX, of two that begin at once the longer first; take its marks."""
        rows = self._report.numbers(_NVTX, ("start", "end", "eventType", "globalTid", "textId", "domainId"))
        texts = _Texts(self._report, rows)
        kind = rows["eventType"]
        is_range, is_mark, is_domain = np.isin(kind, (_PUSH_POP, _START_END)), kind == _MARK, kind == _DOMAIN
        is_open = is_range & (rows["end"] == NO_NUMBER)
        rows |= {"row": np.arange(len(kind))}
        marks = self._timed(chosen(rows | {"end": rows["start"]}, is_mark))
        order = np.argsort(marks["start"], kind="stable")[:MOST_MARKS]
        self._markers = [
            Marker(time_ns=time_ns, text=cut_text(texts.text(row)), kind=MarkerKind.MARK)
            for time_ns, row in zip(marks["start"][order].tolist(), marks["row"][order].tolist(), strict=True)
        ]
        self._domain_count = int(np.count_nonzero(is_domain))
        self._left_out["others of NVTX"] = int(np.count_nonzero(~is_range & ~is_mark & ~is_domain))
        self._left_out["ranges that nobody closed"] = int(np.count_nonzero(is_open))
        self._left_out["further marks"] = len(marks["start"]) - len(order)
        kept = self._timed(chosen(rows, is_range & ~is_open))
        kept = {name: values[np.lexsort((-kept["end"], kept["start"]))] for name, values in kept.items()}
        return _host_columns(kept, self._names.of(map(texts.text, kept["row"].tolist())), ANNOTATION)

    def _thread_lanes(self, first_lane: int) -> tuple[list[str], list[Lane]]:
        """Return the threads and their lanes. Their own names are not read: they may be those of programs."""
        ranges, calls = self._ranges, self._calls
        known, place = distinct(np.concatenate((ranges["thread"], calls["thread"])))
        owners, taken = self._owners(known).tolist(), Counter[str]()
        has_processes = len(set(owners)) > 1
        names = [
            own_name((f"process {self._pids[owner]} " if has_processes else "") + f"thread {number & 0xFF_FFFF}", taken)
            for number, owner in zip(known.tolist(), owners, strict=True)
        ]
        bound = len(ranges["thread"])
        ranges["thread"], calls["thread"] = place[:bound].astype(np.int64), place[bound:].astype(np.int64)
        for part in (ranges, calls):
            part["lane"] = part["thread"] + first_lane
        lanes = [
            Lane(name=f"host: {name}", kind=LaneKind.HOST, process=max(owner, 0))
            for name, owner in zip(names, owners, strict=True)
        ]
        return names, lanes

    def _owners(self, numbers: Int64Array) -> Int64Array:
        """Return the place of the process of each process or thread among all; -1 for one that is not known."""
        return RowFinder(self._processes).rows_of(numbers & _PROCESS_MASK)

    def _call_numbers(self, process: Int64Array, correlation: Int64Array) -> Int64Array:
        """Return numbers of calls that no two processes share; 0 for none. Those of the first stay as they are."""
        owner = self._owners(process)
        is_there = (correlation > 0) & (correlation < 1 << _CALL_BITS) & (owner >= 0)
        return np.where(is_there, correlation + (owner << _CALL_BITS), 0)

    def _stream_lanes(self) -> tuple[list[Lane], list[Partition]]:
        """Return a lane for each stream, named by what tells it from the others, and the partitions; work gets both."""
        work, places = self._work, self._places
        owner = self._owners(work["process"])
        first, sort = alike([owner, *(work[name] for name in _WHERE)])
        keys = []
        for code, device, context, green, stream in zip(
            owner[first].tolist(), *(work[name][first].tolist() for name in _WHERE), strict=True
        ):
            pid = self._pids[code]
            keys.append((code, Place(pid, device, context, places.green_of(pid, context, green), stream)))
        self._streams = sorted(set(keys))
        number_of = {key: number for number, key in enumerate(self._streams)}
        own = Counter(code for code, place in self._streams if place.stream != NO_STREAM)
        self._has_pairs = any(count > 1 for count in own.values())
        some = [place for _, place in self._streams]
        gpus = [places.gpu_of(place.process, place.device) for place in some]
        devices = {gpu: places.device(gpu) for gpu in gpus}
        has_processes = len({(gpu, place.process) for gpu, place in zip(gpus, some, strict=True)}) > len(devices)
        has_contexts = len({place[:3] for place in some}) > len({place[:2] for place in some})
        partitions: dict[Partition, int] = {}
        lanes, codes, taken = list[Lane](), list[int](), Counter[str]()
        self._unsized = 0
        for (code, place), gpu in zip(self._streams, gpus, strict=True):
            process = f"process {place.process} " if has_processes else ""
            green = f"green context {place.green} " if place.green else ""
            partition = places.partition(place.process, place.green, f"{process}{green}".strip()) if green else None
            self._unsized += bool(green) and partition is None
            where = process + (f"GPU {gpu} " if len(devices) > 1 else "")
            where += f"context {place.context} " if has_contexts and place.context != place.green else ""
            is_null, (priority, is_blocking) = places.is_null(place), places.stream(place)
            lanes.append(
                Lane(
                    name=own_name(_lane_name(place, where + green, is_null=is_null), taken),
                    device=gpu,
                    context=place.green or place.context,
                    stream=place.stream,
                    partition=None if partition is None else partition.name,
                    sm_count=partition.granted_sms if partition else 0 if green else devices[gpu].sm_count,
                    priority=priority,
                    is_blocking=is_blocking,
                    outside=is_null or place.stream == NO_STREAM,
                    process=max(code, 0),
                )
            )
            codes.append(-1 if partition is None else partitions.setdefault(partition, len(partitions)))
        work["lane"] = np.array([number_of[key] for key in keys], np.int64)[sort]
        work["partition"] = np.array([*codes, -1], np.int64)[work["lane"]]
        return lanes, [*partitions]

    def _lanes_at(self, owner: Int64Array, where: Sequence[Int64Array]) -> Int64Array:
        """Return the lanes of streams, or -1. These rows may lack the green context, or tell it as their context."""
        lanes: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        for number, (code, place) in enumerate(self._streams):
            for context in {place.context, place.green or place.context}:
                lanes.setdefault((code, place.device, context, place.stream), []).append((place.green, number))
        first, sort = alike([owner, *where])
        found = np.full(len(first), -1, np.int64)
        rows = zip(owner[first].tolist(), *(column[first].tolist() for column in where), strict=True)
        for at, (code, device, context, green, stream) in enumerate(rows):
            some = lanes.get((code, device, context, stream), [])
            if len(some) > 1:
                some = [one for one in some if one[0] == green]
            if len(some) == 1:
                found[at] = some[0][1]
        return found[sort]

    def _dependencies(self) -> Columns:
        """Return which lane waited for which, of waits of which the record is told, one of each call."""
        # What sort a row is these tables tell wrongly, in several versions of nsys: here their calls say it.
        wanted = ("globalPid", "correlationId", *_WHERE.values(), "eventId", "eventSyncId")
        waits, records = (self._report.numbers(table, wanted) for table in _TELLING)
        self._has_records = len(records["eventId"]) > 0
        for rows in (waits, records):
            rows["call"] = self._call_numbers(rows["globalPid"], rows["correlationId"])
        wait_calls = np.unique(self._calls["correlation"][self._is_wait])
        waits = chosen(waits, np.isin(waits["call"], wait_calls))
        waits, records = (chosen(rows, (rows["call"] > 0) & ~np.isin(rows["eventId"], _NO_EVENT)) for rows in (waits, records))
        found = _last_records(waits, records)
        waits = chosen(waits, found >= 0)
        records = {name: values[found[found >= 0]] for name, values in records.items()}
        self._wait_count = len(np.unique(waits["call"]))
        owner = self._owners(waits["globalPid"])
        source, target = (
            self._lanes_at(owner, [or_else(rows[column], 0) for column in _WHERE.values()]) for rows in (records, waits)
        )
        is_known = (source >= 0) & (target >= 0)
        columns = (source, records["call"], target, waits["call"])
        return {name: column[is_known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}

    def _version(self) -> str:
        """Return the version of nsys; of all else that these tables hold nothing is read."""
        tables = ("META_DATA_EXPORT", "EXPORT_META_DATA")
        rows = [row for table in tables for row in self._report.facts(table, ["name", "value"])]
        told = [row.get("value", "") for row in rows if row.get("name") == "EXPORT_PRODUCT_VERSION"]
        return cut_text(str(told[0]), 40) if told else ""

    def _count_rows(self) -> None:
        """Count what is in tables that are not read."""
        report, found = self._report, Counter[str]()
        for table in report.tables:
            if table not in _READ and not table.startswith(_FACT_TABLES) and _TIMES & {*report.columns(table)}:
                found[cut_text(table.removeprefix(_PREFIX), 40)] = report.count(table)
        self._total = found.total() + sum(report.count(table) for table in _READ)
        self._left_out = found | self._left_out

    def _used(self) -> str:
        """Say how many rows were read, used, left out and refused."""
        work, calls, ranges = (len(part["start_ns"]) for part in (self._work, self._calls, self._ranges))
        used = f"{work:,} kernels, copies and fills, {calls:,} calls, {ranges:,} ranges"
        used += f", {len(self._markers):,} marks" if self._markers else ""
        used += f", {self._wait_count:,} waits of streams" if self._wait_count else ""
        said_count = sum(self._report.count(table) for table in _TELLING) - self._wait_count + self._domain_count
        used += f", {said_count:,} that say the same again or name domains" if said_count else ""
        refused = f"; {self._refused:,} refused, as their times or devices make no sense" if self._refused else ""
        return f"{used} of {self._total:,} rows{not_read(self._left_out)}{refused}"

    def _missing(self, lanes: Sequence[Lane], call: Int64Array) -> list[str]:
        """Say what the report does not tell."""
        said = launch_note(call[self._work["kind"] != ANNOTATION], why=": the report was cut, or begins in the middle")
        cards = sorted({lane.device for lane in lanes if not self._places.device(lane.device).sm_count})
        if cards:
            said.append(card_note(", ".join(f"GPU {card}" for card in cards)))
        if self._has_pairs and any(lane.is_blocking is None and lane.stream != NO_STREAM for lane in lanes):
            said.append(
                "Of some streams the file does not tell whether they and the legacy default stream wait for each other."
            )
        if self._lacks_waits:
            wait_calls = int(np.count_nonzero(self._is_wait))
            told = f"{self._wait_count:,} of {wait_calls:,} waits of streams for events are told"
            told = told if wait_calls else "Whether streams waited for events is not told"
            said.append(f"{told}{'' if self._has_records else '; nsys tells it with --trace=cuda --cuda-event-trace=true'}.")
        if self._whole_graphs:
            said.append(
                f"{self._whole_graphs:,} launches of graphs are one span each, and what ran in them is not told; nsys tells it "
                "with --cuda-graph-trace=node."
            )
        if self._unsized:
            said.append(
                f"How many SMs {self._unsized:,} streams in green contexts may use is not told; nsys 2026.1 or later does it."
            )
        if undetailed := int(np.count_nonzero(self._work["detail"] < 0)):
            said.append(f"{undetailed:,} launches have no grid: more than {MOST_DETAILS:,} sorts of launches differ.")
        return said


class _Texts:
    """What NVTX rows say: a text of their own, or a registered one, behind the name of their domain."""

    def __init__(self, report: Report, rows: Columns) -> None:
        self._rows = rows
        texts = report.texts(_NVTX, "text", _LONGEST_TEXT) if "text" in report.columns(_NVTX) else ()
        self._own = {row: text for row, text in enumerate(texts) if text is not None}
        self._registered = report.strings(np.unique(rows["textId"]).tolist())
        named = np.flatnonzero(rows["eventType"] == _DOMAIN).tolist()
        self._domains = {self._domain_key(row): self._plain(row) for row in named}

    def text(self, row: int) -> str:
        """Return what a row says."""
        domain = int(self._rows["domainId"][row])
        if domain in {0, NO_NUMBER}:
            return self._plain(row)
        return f"{self._domains.get(self._domain_key(row)) or f'domain {domain}'}: {self._plain(row)}"

    def _plain(self, row: int) -> str:
        return self._own.get(row) or self._registered.get(int(self._rows["textId"][row])) or "(no text)"

    def _domain_key(self, row: int) -> tuple[int, int]:
        """Return what a domain is known by: each process numbers its own."""
        return int(self._rows["globalTid"][row]) >> 24, int(self._rows["domainId"][row])


def _host_columns(rows: Columns, name: Int32Array, kind: int) -> Columns:
    columns = {"start_ns": rows["start"], "end_ns": rows["end"], "name": name, "kind": np.full(len(name), kind, np.int8)}
    return columns | {"thread": or_else(rows["globalTid"], 0)}


def _last_records(waits: Columns, records: Columns) -> Int64Array:
    """Return for each wait the last record of its event before it, or -1: that is what CUDA lets a stream wait for."""
    # An event's number is one of a handle, which is used again. Newer versions also tell a number that ties both together.
    found = _match(waits, records, ("globalPid", "eventId", "eventSyncId"))
    untied = np.flatnonzero(np.isin(waits["eventSyncId"], _NO_TIE))
    found[untied] = _match({name: values[untied] for name, values in waits.items()}, records, ("globalPid", "eventId"))
    return found


def _match(waits: Columns, records: Columns, columns: Sequence[str]) -> Int64Array:
    """Return for each wait the last record before it that is equal in some columns, or -1."""
    import pandas as pd  # slow to load

    wanted, known = (
        pd.DataFrame({name: rows[name] for name in ("call", *columns)}).rename_axis("row").reset_index().sort_values("call")
        for rows in (waits, records)
    )
    pairs = pd.merge_asof(wanted, known, on="call", by=[*columns], suffixes=("", "_before"), allow_exact_matches=False)
    return np.array(pairs.sort_values("row")["row_before"].fillna(-1), np.int64)


def copy_name(kind: int, source: int, target: int) -> str:
    """Return the name that the same copy has in a trace of our own; of any numbers, as nsys gives to copies and memory."""
    name = f"memcpy {_LETTERS[kind - 1]}" if 1 <= kind <= len(_LETTERS) else "memcpy"
    if kind >= _FIRST_MANAGED:
        return f"{name} (managed)" if kind <= len(_LETTERS) else name
    first, last = (_MEMORY[end] if 0 <= end < len(_MEMORY) else "" for end in (source, target))
    if "HtoD" in name or "HtoA" in name:
        last = first
    elif "DtoH" in name or "AtoH" in name:
        first = last
    if first == last:
        return name if first in {"", "device"} else f"{name} ({first})"
    return f"{name} ({first or 'unknown'} to {last or 'unknown'})"


def _graphs(rows: Columns) -> Int64Array:
    """Return the graph of each node: the upper half of a node's number, which is there where the graph's own is not."""
    node, graph = or_else(rows["graphNodeId"], 0), or_nought(rows["graphId"])
    return np.where(node != 0, np.maximum((node >> 32) & 0x7FFF_FFFF, 1), graph)


def _sizes(three: Sequence[int]) -> tuple[int, int, int]:
    """Return three sizes, or zeros where one of them cannot be."""
    x, y, z = three
    return (x, y, z) if 0 < x < _MOST_X and 0 < y < _MOST_YZ and 0 < z < _MOST_YZ else (0, 0, 0)


def _lane_name(place: Place, where: str, *, is_null: bool) -> str:
    if place.stream == NO_STREAM:
        return f"{where}managed memory"
    if is_null:  # reports look for the legacy stream by how its name begins
        return f"default stream {place.stream}" + (f" of {where.strip()}" if where else "")
    return f"{where}stream {place.stream}"
