"""Kernels, copies, fills and whole graphs of a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.exchange._kineto_columns import Codes
from gpustreamlab.exchange._nsys_places import NO_STREAM
from gpustreamlab.exchange._nsys_report import Columns, Report, alike, chosen, joined, or_else, or_nought, timed
from gpustreamlab.model import SPAN_KINDS, WorkDetail
from gpustreamlab.record import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import Int64Array, SpanKind

MOST_DETAILS = 65_536
"""Most launches that differ in anything; further ones have a name and no detail."""
WORK_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": SpanKind.KERNEL,
    "CUPTI_ACTIVITY_KIND_MEMCPY": SpanKind.COPY,
    "CUPTI_ACTIVITY_KIND_MEMSET": SpanKind.FILL,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": SpanKind.KERNEL,
}
"""What becomes work of a device."""
GRAPH_TABLE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
"""Graphs of which nsys did not record the nodes."""

_PLACE = ("start", "end", "globalPid", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "bytes")
_GRID = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_KERNEL = ("registersPerThread", "staticSharedMemory", "dynamicSharedMemory")
_GRAPH = ("graphNodeId", "graphId")
_OF_TABLE = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", *_GRID, *_KERNEL, *_GRAPH),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("copyKind", "srcKind", "dstKind", *_GRAPH),
    "CUPTI_ACTIVITY_KIND_MEMSET": _GRAPH,
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("graphId",),
}
_CODES = ("demangledName", "shortName", "copyKind", "srcKind", "dstKind")
_MOST_X, _MOST_YZ = 1 << 31, 1 << 16
_LETTERS = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD")
"""Of copies by their kind, from 1; the last three are of managed memory."""
_FIRST_MANAGED = 11
_MEMORY = ("pageable", "pinned", "device", "array", "managed", "device static", "managed static")
"""By nsys's number, which is one lower than CUPTI's."""
_UNKNOWN_KERNEL = "unknown kernel"


_Maker: TypeAlias = Callable[..., tuple[str, WorkDetail]]


class Work(NamedTuple):
    """Work of devices, as columns of equal length."""

    columns: Columns
    """``start_ns``, ``end_ns``, ``name``, ``kind``, ``detail``, ``size_bytes``, and where: ``process`` (global), ``device``,
    ``context``, ``green``, ``stream``, ``correlation``."""
    details: tuple[WorkDetail, ...]
    refused: int
    """Rows whose times make no sense, or that tell no device."""
    whole_graphs: int
    """Launches of graphs without their nodes."""
    undetailed: int
    """Work beyond `MOST_DETAILS`."""


def read_work(report: Report, names: Codes) -> Work:
    """Return all work of a report."""
    tables, refused = {}, 0
    for table in WORK_TABLES:
        rows, bad = timed(report.numbers(table, (*_PLACE, *_OF_TABLE[table])))
        has_device = rows["deviceId"] >= 0
        tables[table] = chosen(rows, has_device)
        refused += bad + int(np.count_nonzero(~has_device))
    shaper = _Shaper(report, names, tables)
    whole = len(tables[GRAPH_TABLE]["start"])
    columns = joined([shaper.shape(table, tables.pop(table)) for table in WORK_TABLES])
    return Work(columns, tuple(shaper.details), refused, whole, int(np.count_nonzero(columns["detail"] < 0)))


def _columns(rows: Columns, kind: SpanKind) -> Columns:
    return {
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "kind": np.full(len(rows["start"]), SPAN_KINDS.index(kind), np.int64),
        "size_bytes": or_nought(rows["bytes"], below=1 << 61),
        "process": or_else(rows["globalPid"], 0),
        "device": rows["deviceId"],
        "context": or_else(rows["contextId"], 0),
        "green": or_else(rows["greenContextId"], 0),
        "stream": or_else(rows["streamId"], NO_STREAM),
        "correlation": rows["correlationId"],
    }


class _Shaper:
    """Finds names and details of work: each sort of launches has one."""

    def __init__(self, report: Report, names: Codes, tables: dict[str, Columns]) -> None:
        self._names = names
        self.details: dict[WorkDetail, int] = {}
        """Their codes, in order."""
        kernels = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
        used = np.unique(np.concatenate((kernels["demangledName"], kernels["shortName"])))
        self._strings = report.strings(used.tolist())

    def shape(self, table: str, rows: Columns) -> Columns:
        """Return the columns of a table's rows; the detail is -1 where they have none."""
        told = [rows[name] if name in _CODES else or_nought(rows[name]) for name in _OF_TABLE[table] if name not in _GRAPH]
        told.append(_graphs(rows) if "graphNodeId" in rows else or_nought(rows["graphId"]))
        first, sort = alike(told)
        sorts = np.stack([column[first] for column in told]).T.tolist()
        makers: tuple[_Maker, ...] = (self._kernel, self._copy, self._fill, self._whole_graph)
        make = dict(zip(WORK_TABLES, makers, strict=True))[table]
        name, detail = np.array([self._code(*make(*values)) for values in sorts], np.int64).reshape(-1, 2).T
        return _columns(rows, WORK_TABLES[table]) | {"name": name[sort], "detail": detail[sort]}

    def _code(self, name: str, detail: WorkDetail) -> tuple[int, int]:
        known = self.details.get(detail, -1)
        if known < 0 and len(self.details) < MOST_DETAILS:
            known = self.details[detail] = len(self.details)
        return self._names[name], known

    def _kernel(self, name: int, short: int, *numbers: int) -> tuple[str, WorkDetail]:
        full = cut_text(self._strings.get(name) or self._strings.get(short) or _UNKNOWN_KERNEL, MAX_FULL_NAME)
        grid, block = (_sizes(numbers[at : at + 3]) for at in (0, 3))
        registers, static, dynamic, graph = numbers[6:]
        detail = WorkDetail(
            full_name=full,
            grid=grid,
            block=block,
            registers=registers,
            static_shared_bytes=static,
            dynamic_shared_bytes=dynamic,
            graph=graph,
        )
        return short_name(full), detail

    def _copy(self, kind: int, source: int, target: int, graph: int) -> tuple[str, WorkDetail]:
        name = copy_name(kind, source, target)
        return name, WorkDetail(full_name=name, graph=graph)

    def _fill(self, graph: int) -> tuple[str, WorkDetail]:
        return "memset", WorkDetail(full_name="memset", graph=graph)

    def _whole_graph(self, graph: int) -> tuple[str, WorkDetail]:
        # Not `graph`: that is for nodes, which get a row around them.
        return f"graph {graph} (whole)", WorkDetail(full_name=f"CUDA graph {graph}, recorded as a whole")


def copy_name(kind: int, source: int, target: int) -> str:
    """Return the name that the same copy has in a trace of our own.

    Parameters
    ----------
    kind, source, target
        As nsys numbers copies and memory. Any number is taken: what is not known is left out.

    Examples
    --------
    >>> copy_name(1, 1, 2), copy_name(8, 2, 2), copy_name(2, 2, 0), copy_name(77, 7, 99)
    ('memcpy HtoD (pinned)', 'memcpy DtoD', 'memcpy DtoH (pageable)', 'memcpy')
    >>> copy_name(9, 0, 1), copy_name(11, 4, 4)
    ('memcpy HtoH (pageable to pinned)', 'memcpy HtoD (managed)')
    """
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
