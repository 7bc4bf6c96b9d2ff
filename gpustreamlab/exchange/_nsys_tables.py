"""The tables of a report of Nsight Systems that are read: work, calls, ranges and marks, as columns, with names and details.

Everything is found by names of tables and columns: nsys leaves out tables without rows, and adds columns with every version.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._frame import ANNOTATION, HOST, Codes, Columns
from gpustreamlab.exchange._nsys_report import LARGEST, NO_NUMBER, SAMPLES, Report
from gpustreamlab.model import SPAN_KINDS, Marker, WorkDetail
from gpustreamlab.recorder import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import BoolArray, Int32Array, Int64Array, MarkerKind, SpanKind

MOST_DETAILS = 65_536  # Most launches that differ in anything; further ones have a name and no detail
MOST_MARKS = 10_000  # Most marks that are kept; the first count
NO_STREAM = -1  # Migrations of managed memory, which the driver makes by itself, and page faults are on none

_PREFIX = "CUPTI_ACTIVITY_KIND_"
KERNELS, _COPIES, _GRAPHS = f"{_PREFIX}KERNEL", f"{_PREFIX}MEMCPY", f"{_PREFIX}GRAPH_TRACE"
WORK_TABLES = {KERNELS: SpanKind.KERNEL, _COPIES: SpanKind.COPY, f"{_PREFIX}MEMSET": SpanKind.FILL, _GRAPHS: SpanKind.KERNEL}
"""What becomes work of a device; of the graphs in the last one nsys did not record the nodes."""
_CALLS, _NVTX = f"{_PREFIX}RUNTIME", "NVTX_EVENTS"
_FAULTS, _DIAGNOSTICS, _OVERHEAD = "CUDA_UM_GPU_PAGE_FAULT_EVENTS", "DIAGNOSTIC_EVENT", "PROFILER_OVERHEAD"
_NVPROF = f"{_PREFIX}CONCURRENT_KERNEL", "StringTable"  # Tables that nvprof writes and nsys does not
TELLING = (f"{_PREFIX}SYNCHRONIZATION", f"{_PREFIX}CUDA_EVENT")  # What they tell is in waits of streams and in calls
_READ = (*WORK_TABLES, _CALLS, _NVTX, *TELLING, _FAULTS, _DIAGNOSTICS, _OVERHEAD, SAMPLES)
_TIMES = {"start", "timestamp", "rawTimestamp"}  # Columns by which a table is known to hold events
_FACT_TABLES = ("ENUM_", "META_", "TARGET_INFO_", "ANALYSIS_")

WHERE = {"device": "deviceId", "context": "contextId", "green": "greenContextId", "stream": "streamId"}
_OF_WORK = ("start", "end", "globalPid", *WHERE.values(), "correlationId", "bytes")
_NAMED = ("demangledName", "shortName", "copyKind", "srcKind", "dstKind", "migrationCause")
_NUMBERED = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory", "launchType"),
)
_OF_TABLE = {KERNELS: (*_NAMED[:2], *_NUMBERED), f"{_PREFIX}MEMCPY": _NAMED[2:], f"{_PREFIX}MEMSET": (), _GRAPHS: ()}
"""What tells launches of each table apart, beside the graph."""
_MOST_X, _MOST_YZ = 1 << 31, 1 << 16
LETTERS = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
"""Of copies by their kind, from 1; the last three are of managed memory."""
_FIRST_MANAGED = 11
_CAUSES = {1: ", asked for", 2: ", page fault", 3: ", prefetch", 4: ", eviction", 5: ", access counters"}
"""Why managed memory went. Source: CUPTI, ``CUpti_ActivityUnifiedMemoryMigrationCause``."""
_COOPERATIVE = (2, 3)  # Sorts of launches. Source: CUPTI, ``CUpti_ActivityLaunchType``, from 1 in what nsys exports
_WARNINGS = (2, 3)  # Severities of diagnostics that tell of a loss. Source: ENUM_DIAGNOSTIC_SEVERITY_LEVEL
MEMORY = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static")
"""By nsys's number, which is one lower than CUPTI's."""

_VERSION = re.compile(r"_v\d{4,5}(?=$|_pt[sd]z$)")  # Behind the names of calls: of which CUDA they are
_MAKES_WORK, _MOST_ERRORS = re.compile(r"Launch|Mem(cpy|set)"), 1_000
_FAILED = " (error "  # So that nobody misses their work; see `quality`
_STREAM_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent")
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_NUMBERED_BY_PAYLOAD = re.compile(r"(?i)(?<![a-z])(step|iteration|iter|request)$")
"""Names whose number may be the payload, as of ``nvtx.annotate("step", payload=3)``: ``step 3`` counts as a step."""
_PUSH_POP, _START_END, _MARK, _DOMAIN = 59, 60, 34, 75
_LONGEST_TEXT = 1_000


class Tables:
    """What the tables of one report tell; what makes no sense of it is counted."""

    def __init__(self, report: Report, name: str) -> None:
        self._report, self._name = report, name
        self.names, self.details = Codes(cut_text), dict[WorkDetail, int]()
        self.refused_count = 0
        self.left_out = Counter({"damaged lines": report.damaged_count})
        self.version = self._version()
        self.work = self._read_work()
        self.calls, self.is_wait = self._read_calls()
        self.markers: list[Marker] = []
        self.ranges = self._read_ranges()
        self.row_count = self._count_rows()

    def diagnostics(self) -> tuple[str, ...]:
        """Return the warnings and errors that nsys wrote into the report, each once."""
        told = self._report.facts(_DIAGNOSTICS, ["severity", "text"])
        return tuple(
            dict.fromkeys(cut_text(str(one["text"])) for one in told if one.get("severity") in _WARNINGS and one.get("text"))
        )

    def _timed(self, rows: Columns) -> Columns:
        """Return the rows whose times make sense."""
        kept = timed(rows)
        self.refused_count += len(rows["start"]) - len(kept["start"])
        return kept

    def _read_work(self) -> Columns:
        """Return all work."""
        tables = {}
        if _NVPROF[0] in self._report.tables or (_NVPROF[1] in self._report.tables and not self.version):
            raise TraceFileError(
                f"{self._name!r} is a file of nvprof, which is not read. Record again with Nsight Systems, which took its "
                "place: nsys profile --trace=cuda,nvtx python run.py"
            )
        for table in WORK_TABLES:
            wanted = (*_OF_WORK, *_OF_TABLE[table], "graphNodeId", "graphId")
            rows = self._timed(self._report.numbers(table, wanted))
            tables[table] = chosen(rows, rows["deviceId"] >= 0)
            self.refused_count += len(rows["start"]) - len(tables[table]["start"])
        used = np.unique(np.concatenate([tables[KERNELS][name] for name in _NAMED[:2]]))
        self._strings = self._report.strings(used.tolist())
        self.whole_graph_count = len(tables[_GRAPHS]["start"])
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
            if detail not in self.details and len(self.details) < MOST_DETAILS:
                self.details[detail] = len(self.details)
            found.append((self.names[name], self.details.get(detail, -1)))
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
            **{key: or_else(rows[column], NO_STREAM if key == "stream" else 0) for key, column in WHERE.items()},
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
            "name": np.full(count, self.names["GPU page faults"] if count else 0, np.int64),
            "detail": none,
        }

    def profiler_ns(self) -> int:
        """Return how long nsys itself took, in ns."""
        rows = self._timed(self._report.numbers(_OVERHEAD, ("start", "end")))
        return int((rows["end"] - rows["start"]).sum())

    def _read_calls(self) -> tuple[Columns, Int64Array]:
        """Return all calls, of the runtime and of the driver, and whether each makes a stream wait for an event."""
        wanted = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
        rows = self._timed(self._report.numbers(_CALLS, wanted))
        error = np.where((rows["returnValue"] > 0) & (rows["returnValue"] < _MOST_ERRORS), rows["returnValue"], 0)
        first, sort = alike([rows["nameId"], *([error] if error.any() else [])])
        numbers = rows["nameId"][first].tolist()
        strings = self._report.strings(numbers)
        texts = [_VERSION.sub("", strings.get(number, "unknown call")) for number in numbers]
        # What failed to launch made no work; other calls answer by "errors", too, as cudaEventQuery does.
        errors = zip(texts, error[first].tolist(), strict=True)
        texts = [f"{text}{_FAILED}{code})" if code and _MAKES_WORK.search(text) else text for text, code in errors]
        columns = _host_columns(rows, self.names.of(texts)[sort], HOST) | {"correlation": rows["correlationId"]}
        return columns, np.array([text.startswith(_STREAM_WAITS) for text in texts], bool)[sort]

    def _read_ranges(self) -> Columns:
        """Return the ranges of NVTX, of two that begin at once the longer first; take its marks."""
        rows = self._report.numbers(_NVTX, ("start", "end", "eventType", "globalTid", "textId", "domainId", *_PAYLOADS))
        texts = _Texts(self._report, rows)
        kind = rows["eventType"]
        is_range, is_mark, is_domain = np.isin(kind, (_PUSH_POP, _START_END)), kind == _MARK, kind == _DOMAIN
        is_open = is_range & (rows["end"] == NO_NUMBER)
        rows |= {"row": np.arange(len(kind))}
        marks = self._timed(chosen(rows | {"end": rows["start"]}, is_mark))
        order = np.argsort(marks["start"], kind="stable")[:MOST_MARKS]
        self.markers = [
            Marker(time_ns=time_ns, text=cut_text(texts.text(row)), kind=MarkerKind.MARK)
            for time_ns, row in zip(marks["start"][order].tolist(), marks["row"][order].tolist(), strict=True)
        ]
        self.domain_count = int(np.count_nonzero(is_domain))
        self.left_out["others of NVTX"] = int(np.count_nonzero(~is_range & ~is_mark & ~is_domain))
        self.left_out["ranges that nobody closed"] = int(np.count_nonzero(is_open))
        self.left_out["further marks"] = len(marks["start"]) - len(order)
        kept = self._timed(chosen(rows, is_range & ~is_open))
        kept = {name: values[np.lexsort((-kept["end"], kept["start"]))] for name, values in kept.items()}
        return _host_columns(kept, self.names.of(map(texts.text, kept["row"].tolist())), ANNOTATION)

    def _version(self) -> str:
        """Return the version of nsys; of all else that these tables hold nothing is read."""
        tables = ("META_DATA_EXPORT", "EXPORT_META_DATA")
        rows = [row for table in tables for row in self._report.facts(table, ["name", "value"])]
        told = [row.get("value", "") for row in rows if row.get("name") == "EXPORT_PRODUCT_VERSION"]
        return cut_text(str(told[0]), 40) if told else ""

    def _count_rows(self) -> int:
        """Count what is in tables that are not read; return how many rows of events there are."""
        report, found = self._report, Counter[str]()
        for table in report.tables:
            if table not in _READ and not table.startswith(_FACT_TABLES) and _TIMES & {*report.columns(table)}:
                found[cut_text(table.removeprefix(_PREFIX), 40)] = report.count(table)
        self.left_out = found | self.left_out
        return found.total() + sum(report.count(table) for table in _READ)


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
        text = self._own.get(row) or self._registered.get(int(self._rows["textId"][row])) or "(no text)"
        if not _NUMBERED_BY_PAYLOAD.search(text):
            return text
        return " ".join([text, *(str(value) for name in _PAYLOADS if (value := self._rows[name][row]) != NO_NUMBER)])

    def _domain_key(self, row: int) -> tuple[int, int]:
        """Return what a domain is known by: each process numbers its own."""
        return int(self._rows["globalTid"][row]) >> 24, int(self._rows["domainId"][row])


def _host_columns(rows: Columns, name: Int32Array, kind: int) -> Columns:
    columns = {"start_ns": rows["start"], "end_ns": rows["end"], "name": name, "kind": np.full(len(name), kind, np.int8)}
    return columns | {"thread": or_else(rows["globalTid"], 0)}


def copy_name(kind: int, source: int, target: int) -> str:
    """Return the name that the same copy has in a trace of our own; of any numbers, as nsys gives to copies and memory."""
    name = f"memcpy {LETTERS[kind - 1]}" if 1 <= kind <= len(LETTERS) else "memcpy"
    if kind >= _FIRST_MANAGED:
        return f"{name} (managed)" if kind <= len(LETTERS) else name
    first, last = (MEMORY[end] if 0 <= end < len(MEMORY) else "" for end in (source, target))
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


def timed(rows: Columns) -> Columns:
    """Return the rows whose times make sense."""
    start_ns, end_ns = rows["start"], rows["end"]
    is_timed = (start_ns != 0) | (end_ns != 0)  # CUPTI could not tell when it ran
    return chosen(rows, (start_ns > -LARGEST) & (end_ns < LARGEST) & (start_ns <= end_ns) & is_timed)


def chosen(rows: Columns, which: BoolArray) -> Columns:
    """Return some of the rows."""
    return rows if which.all() else {name: values[which] for name, values in rows.items()}


def or_nought(values: Int64Array, below: int = 1 << 40) -> Int64Array:
    """Return the numbers, with 0 for those that are none, or beyond all reason."""
    found: Int64Array = np.where((values >= 0) & (values < below), values, 0)
    return found


def alike(columns: Sequence[Int64Array]) -> tuple[Int64Array, Int64Array]:
    """Return the first of each sort of rows that are equal in all columns, as they come, and the sort of each row."""
    import pandas as pd  # slow to load

    sorts = pd.DataFrame(dict(enumerate(columns))).groupby([*range(len(columns))], sort=False)
    sort = sorts.ngroup().to_numpy(np.int64)
    return np.flatnonzero(np.diff(np.maximum.accumulate(sort), prepend=-1)), sort


def or_else(values: Int64Array, other: int) -> Int64Array:
    """Return the numbers, with another one where there is none."""
    if not len(values) or values.min() != NO_NUMBER:
        return values
    found: Int64Array = np.where(values == NO_NUMBER, other, values)
    return found


def joined(parts: Sequence[Columns]) -> Columns:
    """Return rows behind each other."""
    some = [part for part in parts if len(next(iter(part.values())))] or parts[:1]
    return some[0] if len(some) == 1 else {name: np.concatenate([part[name] for part in some]) for name in some[0]}
