"""Read what AMD's profilers write beside Perfetto's traces: rocpd databases, JSON and CSV of rocprofv3, databases of RPD.

Sources: ``rocpd_tables.sql`` (schemas 3 and 4) and ``generateJSON.cpp``, ``generateCSV.cpp`` of rocprofiler-sdk; ``rocpd`` of
rocmProfileData for RPD. A grid there counts threads, not blocks. Times are ns since the machine was started.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpustreamlab._util.host import require_room
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._frame import ANNOTATION, COPY, HOST, KERNEL, Columns, reading
from gpustreamlab.exchange._nsys_report import NO_NUMBER, Report, open_report
from gpustreamlab.exchange._rows import NULL_STREAM, Rows, Shape, Stream, kind_of, sizes, whole
from gpustreamlab.model import Device, SMLimits, Trace
from gpustreamlab.recorder import RowFinder, cut_text

ROCM_BACKEND = "rocm"
_AGAIN = "Record with: rocprofv3 --sys-trace --output-format rocpd -- python run.py"
_GPU = 2  # Type of an agent that is a GPU. Source: rocprofiler-sdk, ``rocprofiler_agent_type_t``
_LONGEST_NAME = 1_000
_LAUNCHES = re.compile(r"hip(Ext)?(Module)?Launch\w*Kernel")
_WAITS = re.compile(r"hip(StreamWait|GraphLaunch)")  # Calls by which streams come to wait for each other
_SQLITE = b"SQLite format 3\0"
_THREE = tuple("xyz")
_AGENT = ("id", "type", "type_index", "product_name", "uuid", "extdata")
_OF_TRACKS = ("agent_id", "queue_id", "stream_id", "tid")
_DISPATCH = "start end agent_id queue_id stream_id kernel_id event_id group_segment_size"
_DISPATCH += "".join(f" {what}_size_{axis}" for what in ("workgroup", "grid") for axis in _THREE)
_COPIES = "start end dst_agent_id src_agent_id queue_id stream_id name_id event_id size"

_Row = dict[str, Any]


def read_rocm(path: str | PathLike[str]) -> Trace:
    """Read a rocpd database, or JSON of rocprofv3."""
    with reading(path, "a trace of AMD's rocprofv3", _AGAIN, sqlite3.Error, msgspec.MsgspecError):
        with Path(path).open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
        if not is_database:
            return _trace_of(path, _Json(path))
        with open_report(path) as report:
            is_rocpd = any(name.startswith("rocpd_kernel_dispatch") for name in report.tables)
            return _trace_of(path, _Rocpd(report) if is_rocpd else _Rpd(report))


def _trace_of(path: str | PathLike[str], reader: _Rocpd | _Rpd | _Json) -> Trace:
    name_streams(reader.rows)
    calls = [*reader.rows.names.known]
    has_waits = not any(map(_LAUNCHES.match, calls)) or any(map(_WAITS.match, calls))  # all calls of HIP are recorded, or none
    return reader.rows.trace(path, reader.source, _AGAIN, backend=ROCM_BACKEND, cards=reader.cards, has_waits=has_waits)


def name_streams(rows: Rows) -> None:
    """Let all work of one HIP stream be one lane. Where no stream is told but the null one, hardware queues are streams.

    As many as they are, then: what was launched without HIP has the null stream's number, too.
    """
    told = [*rows.streams.known]
    has_streams = any(one.number > 0 for one in told)
    queues = {(one.device, one.queue) for one in told if one.queue >= 0}
    many = {device for device, _ in queues if sum(other == device for other, _ in queues) > 1}

    def named(one: Stream) -> Stream:
        if one.number >= 0 and (has_streams or one.device not in many):
            null = NULL_STREAM + (f" of {one.name.strip()}" if one.name else "")
            return Stream(one.device, one.number, f"{one.name}stream {one.number}" if one.number else null)
        return Stream(one.device, max(one.queue, 0), f"{one.name}queue {one.queue}" if one.queue >= 0 else f"{one.name}copies")

    rows.change_streams(named)


class _Rocpd:
    """A database of rocprofv3, or of several processes or nodes: the tables of each end in its own number."""

    source = "AMD's rocprofv3"

    def __init__(self, report: Report) -> None:
        self.rows, self._report, self.cards = Rows(), report, dict[int, Device]()
        suffixes = [name.removeprefix("rocpd_kernel_dispatch") for name in report.tables if "kernel_dispatch" in name]
        for place, self._suffix in enumerate(suffixes):
            self._read(place << 40, f"process {place} " if len(suffixes) > 1 else "")

    def _read(self, shift: int, where: str) -> None:
        self._strings, self._shift = self._texts("string", "string"), shift
        agents = self._report.facts(f"rocpd_info_agent{self._suffix}", _AGENT)
        self._agents = {_number(told, "id"): told for told in agents}
        for told in self._agents.values():
            if told.get("type") == "GPU":
                self.cards.setdefault(_number(told, "type_index"), _card(_number(told, "type_index"), _details(told)))
        rows = self._rows("event", "id correlation_id stack_id")
        launch = {number: one + shift for number, *both in rows for one in both if 0 < one < 1 << 40}  # of both the last
        self._dispatches(launch, where)
        self._copies(launch, where)
        self._regions(launch, where)

    def _dispatches(self, launch: Mapping[int, int], where: str) -> None:
        names = self._texts("info_kernel_symbol", "kernel_name") | self._texts("info_kernel_symbol", "display_name")
        for start, end, agent, queue, stream, kernel, event, shared, *six in self._rows("kernel_dispatch", _DISPATCH):
            blocks, threads = _blocks(six[3:], six[:3]), sizes(six[:3])
            name, own = names.get(kernel, "unknown kernel"), queue + self._shift if queue >= 0 else -1
            shape = Shape(name, blocks, threads, shared_bytes=whole(shared), queue=own)
            self.rows.add_work(start, end, self._stream(agent, queue, stream, where), shape, launch=launch.get(event, 0))

    def _copies(self, launch: Mapping[int, int], where: str) -> None:
        for start, end, target, source, queue, stream, name, event, size in self._rows("memory_copy", _COPIES):
            agent = target if self._agents.get(target, {}).get("type") == "GPU" else source
            shape = Shape(self._strings.get(name, "memcpy"))
            self.rows.add_work(start, end, self._stream(agent, queue, stream, where), shape, COPY, size, launch.get(event, 0))

    def _regions(self, launch: Mapping[int, int], where: str) -> None:
        threads = {number: tid for number, tid in self._rows("info_thread", "id tid")}  # noqa: C416 - rows are no pairs to mypy
        kinds = {number: self._strings.get(kind, "") for number, kind in self._rows("event", "id category_id")}
        for start, end, thread, name, event in self._rows("region", "start end tid name_id event_id"):
            kind = ANNOTATION if "MARKER" in kinds.get(event, "").upper() else HOST
            called = f"{where}thread {threads.get(thread, thread)}"
            self.rows.add_on_host(start, end, called, self._strings.get(name, "unknown call"), kind, launch.get(event, 0))

    def _stream(self, agent: int, queue: int, stream: int, where: str) -> Stream:
        return Stream(_number(self._agents.get(agent, {}), "type_index"), max(stream, -1), where, max(queue, -1))

    def _texts(self, table: str, column: str) -> dict[int, str]:
        texts = self._report.texts(f"rocpd_{table}{self._suffix}", column, _LONGEST_NAME)
        return {number: text for (number,), text in zip(self._rows(table, "id"), texts, strict=False) if text}

    def _rows(self, table: str, names: str) -> Iterator[tuple[int, ...]]:
        """Return rows of whole numbers."""
        given = f"rocpd_{table}{self._suffix}"
        columns = self._report.numbers(given, names.split())
        if "start_id" in self._report.columns(given):  # of schema 4: times and tracks are tables of their own
            ids = self._report.numbers(given, ["start_id", "end_id", "track_id"])
            at = {"start": ids["start_id"], "end": ids["end_id"]} | dict.fromkeys(_OF_TRACKS, ids["track_id"])
            for name in columns.keys() & at.keys():
                other, column = ("track", name) if name in _OF_TRACKS else ("timestamp", "value")
                found = self._report.numbers(f"rocpd_{other}{self._suffix}", ["id", column])
                columns[name] = np.append(found[column], NO_NUMBER)[RowFinder(found["id"]).rows_of(at[name])]
        return _tuples(columns)


class _Rpd:
    """A database of rocmProfileData."""

    source = "AMD's rocmProfileData"

    def __init__(self, report: Report) -> None:
        self.rows, self.cards = Rows(), dict[int, Device]()

        def rows(table: str, names: str) -> Iterator[tuple[int, ...]]:
            return _tuples(report.numbers(table, names.split()))

        numbers = report.numbers("rocpd_string", ["id"])["id"].tolist()
        strings = dict(zip(numbers, report.texts("rocpd_string", "string", _LONGEST_NAME), strict=False))
        launch = {op: api for api, op in rows("rocpd_api_ops", "api_id op_id")}
        for number, gpu, queue, start, end, name, sort in rows(
            "rocpd_op", "id gpuId queueId start end description_id opType_id"
        ):
            sort_name = strings.get(sort) or ""
            kind = kind_of(sort_name)
            shape = Shape(strings.get(name) or sort_name or "unknown kernel" if kind == KERNEL else sort_name)
            stream = Stream(max(gpu, 0), -1, "", max(queue, 0))
            self.rows.add_work(start, end, stream, shape, kind, launch=launch.get(number, 0))
        for number, _, thread, start, end, name in rows("rocpd_api", "id pid tid start end apiName_id"):
            self.rows.add_on_host(start, end, f"thread {thread}", strings.get(name) or "unknown call", launch=number)


class _Json:
    """JSON of rocprofv3, which is read as a whole."""

    source = "AMD's rocprofv3"

    def __init__(self, path: str | PathLike[str]) -> None:
        self.rows, self.cards = Rows(), dict[int, Device]()
        require_room(Path(path).stat().st_size * 6, repr(str(path)))
        told = msgspec.json.decode(Path(path).read_bytes())
        tools = told.get("rocprofiler-sdk-tool") if isinstance(told, dict) else None
        if not isinstance(tools, list):
            raise TraceFileError(f"{str(path)!r} is no JSON of AMD's rocprofv3: it lacks 'rocprofiler-sdk-tool'. {_AGAIN}")
        for place, tool in enumerate(tools):
            self._read(_map(tool), place << 40, f"process {place} " if len(tools) > 1 else "")

    def _read(self, tool: _Row, shift: int, where: str) -> None:
        gpus = [one for one in map(_map, _list(tool.get("agents"))) if one.get("type") == _GPU]
        self._ordinals = {_handle(one.get("id")): place for place, one in enumerate(gpus)}
        self.cards |= {place: _card(place, one) for place, one in enumerate(gpus)}
        names = {_number(one, "kernel_id"): one for one in map(_map, _list(tool.get("kernel_symbols")))}
        strings = _map(tool.get("strings"))
        self._kinds = [_map(one) for one in _list(strings.get("buffer_records"))]
        texts = {_number(one, "key"): str(one.get("value")) for one in map(_map, _list(strings.get("marker_api")))}
        records = {name: [_map(one) for one in _list(rows)] for name, rows in _map(tool.get("buffer_records")).items()}
        for one in records.pop("kernel_dispatch", []):
            info = _map(one.get("dispatch_info"))
            threads, grid = ([_map(info.get(size)).get(axis) for axis in _THREE] for size in ("workgroup_size", "grid_size"))
            symbol = names.get(_number(info, "kernel_id"), {})
            name = symbol.get("formatted_kernel_name") or symbol.get("truncated_kernel_name") or symbol.get("kernel_name")
            shape = Shape(
                str(name or "unknown kernel"),
                _blocks(grid, threads),
                sizes(threads),
                shared_bytes=_number(info, "group_segment_size"),
                queue=shift + _id(info.get("queue_id")) if "queue_id" in info else -1,
            )
            stream = Stream(
                self._ordinals.get(_handle(info.get("agent_id")), 0),
                _id(one.get("stream_id")),
                where,
                _id(info.get("queue_id")),
            )
            self.rows.add_work(*_times(one), stream, shape, launch=_launch(one, shift))
        for one in records.pop("memory_copy", []):
            agent = one.get("dst_agent_id") if _handle(one.get("dst_agent_id")) in self._ordinals else one.get("src_agent_id")
            stream = Stream(self._ordinals.get(_handle(agent), 0), _id(one.get("stream_id")), where)
            self.rows.add_work(*_times(one), stream, Shape(self._operation(one)), COPY, one.get("bytes"), _launch(one, shift))
        for name, rows in records.items():
            self._on_host(name, rows, texts, shift, where)

    def _on_host(self, name: str, rows: Iterable[_Row], texts: Mapping[int, str], shift: int, where: str) -> None:
        is_marker = "marker" in name
        for one in rows:
            if not (is_marker or name.endswith("_api")):
                self.rows.left_out[f"of {cut_text(name, 40)}"] += 1
                continue
            told = texts.get(_number(_map(one.get("correlation_id")), "internal")) if is_marker else None
            kind = ANNOTATION if is_marker else HOST
            thread = f"{where}thread {whole(one.get('thread_id'))}"
            self.rows.add_on_host(*_times(one), thread, told or self._operation(one), kind, _launch(one, shift))

    def _operation(self, record: _Row) -> str:
        """Return what a record is of: kinds and operations are numbers of the tables in strings."""
        kind, operation = (record.get(name) for name in ("kind", "operation"))
        known = _list(self._kinds[kind].get("operations")) if type(kind) is int and 0 <= kind < len(self._kinds) else []
        return str(known[operation]) if type(operation) is int and 0 <= operation < len(known) else "unknown call"


def _tuples(columns: Columns) -> Iterator[tuple[int, ...]]:
    return zip(*(values.tolist() for values in columns.values()), strict=True)


def _card(ordinal: int, told: _Row) -> Device:
    """Return what is told of a card. Source: rocprofiler-sdk, ``rocprofiler_agent_v0_t``."""
    simds, waves, width = (_number(told, name) for name in ("simd_per_cu", "max_waves_per_simd", "wave_front_size"))
    threads = simds * waves * width
    limits = SMLimits(shared_bytes=_number(told, "lds_size_in_kb") << 10 or 65_536, threads=threads or 2_048)
    name = str(told.get("product_name") or told.get("name") or f"GPU {ordinal}")
    uuid = told.get("uuid")
    return Device(
        name=cut_text(name),
        ordinal=ordinal,
        uuid=cut_text(str(uuid)) if uuid and isinstance(uuid, int | str) else "",
        sm_count=min(_number(told, "cu_count"), 1 << 16),
        sm_limits=limits,
    )


def _details(told: _Row) -> _Row:
    """Return what a row of an agent tells, with what it has as JSON."""
    try:
        more = _map(json.loads(str(told.get("extdata") or "{}")))
    except (ValueError, RecursionError):
        more = {}
    return more | {name: value for name, value in told.items() if name != "extdata"}


def _blocks(grid: Iterable[object], threads: Iterable[object]) -> tuple[int, int, int]:
    """Return how many blocks so many threads make."""
    return sizes([-(-whole(all_) // max(whole(one), 1)) for all_, one in zip(grid, threads, strict=True)])


def _times(record: _Row) -> tuple[object, object]:
    return record.get("start_timestamp"), record.get("end_timestamp")


def _launch(record: _Row, shift: int) -> int:
    found = _number(_map(record.get("correlation_id")), "internal")
    return found + shift if found else 0


def _handle(told: object) -> int:
    return whole(told.get("handle")) if isinstance(told, dict) else whole(told)


def _id(told: object) -> int:
    """Return the number of a queue or stream; -1 where it is not told."""
    return -1 if told is None else _handle(told)


def _number(told: Mapping[str, Any], name: str) -> int:
    return whole(told.get(name))


def _map(told: object) -> _Row:
    return told if isinstance(told, dict) else {}


def _list(told: object) -> list[Any]:
    return told if isinstance(told, list) else []
