"""JSON lines of Nsight Systems, ``nsys export --type=jsonlines``, as the tables that its other exports have.

Each line is an event, a string, or a list of all strings, which stands before the events or behind them. Numbers of 64 bits
are texts. Source: "JSON and Text Format Description" of Nsight Systems, and lines that people published.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpustreamlab._util.host import require_room
from gpustreamlab.exchange._formats import BYTE_ORDER_MARK
from gpustreamlab.exchange._frame import Columns
from gpustreamlab.exchange._nsys_report import NO_NUMBER, Report

_CUDA = "startNs endNs globalPid deviceId contextId greenContextId streamId correlationId graphNodeId"
_SIZES = "gridX gridY gridZ blockX blockY blockZ registersPerThread staticSharedMemory dynamicSharedMemory launchType"
_PARTS = {
    "kernel": ("CUPTI_ACTIVITY_KIND_KERNEL", f"demangledName shortName graphId {_SIZES}"),
    "memcpy": ("CUPTI_ACTIVITY_KIND_MEMCPY", "sizebytes copyKind srcKind dstKind migrationCause"),
    "memset": ("CUPTI_ACTIVITY_KIND_MEMSET", "sizebytes"),
    "sync": ("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "eventId eventSyncId"),
    "cudaEventRecord": ("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "eventId eventSyncId"),
}
"""What an event of CUDA has in it: of which table that makes it, and the numbers that are read of it."""
_CALL, _NVTX = "startNs endNs globalTid correlationId name eventClass", "Timestamp EndTimestamp Type GlobalTid TextId DomainId"
_NAMES = {"startNs": "start", "endNs": "end", "sizebytes": "bytes", "name": "nameId", "EndTimestamp": "end"}
_NAMES |= {"Timestamp": "start", "Type": "eventType", "TextId": "textId", "DomainId": "domainId", "GlobalTid": "globalTid"}
"""How other exports call columns, where that differs."""
_CALLS = (0, 1, 13)  # Classes of calls: runtime, driver, EGL; others are of the system. Source: ENUM_NSYS_EVENT_CLASS
_SEVERITY = {"Warning": 2, "Error": 3}
_LOOK_BYTES = 4_096
_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError)


def _struct(names: str, **more: Any) -> Any:
    """Return a kind of objects that have numbers of some names, and more."""
    fields = [*((name, int, NO_NUMBER) for name in names.split()), *((name, kind | None, None) for name, kind in more.items())]
    return msgspec.defstruct("Told", fields, gc=False)


_LINE = _struct(
    "id",
    value=str,
    data=list[Any],
    CudaEvent=_struct(_CUDA, **{part: _struct(names) for part, (_, names) in _PARTS.items()}),
    TraceProcessEvent=_struct(_CALL),
    NvtxEvent=_struct(_NVTX, Text=str),
    DiagnosticEvent=_struct("", Level=str, Text=str),
)


def is_lines(path: str | PathLike[str]) -> bool:
    """Tell whether a report is one of JSON lines."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(_LOOK_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()[:1] == b"{"


class Lines(Report):
    """A file of JSON lines, read as a whole."""

    def __init__(self, path: str | PathLike[str]) -> None:
        require_room(Path(path).stat().st_size, repr(str(path)))
        named = {table: f"{_CUDA} {names}" for table, names in _PARTS.values()}
        named |= {"CUPTI_ACTIVITY_KIND_RUNTIME": _CALL, "NVTX_EVENTS": _NVTX, "StringIds": "id", "DIAGNOSTIC_EVENT": "severity"}
        named |= {"others": "start", "TARGET_INFO_SYSTEM_ENV": "start"}  # by the last one it is known as nsys's
        columns = {table: [_NAMES.get(name, name) for name in names.split()] for table, names in named.items()}
        self._numbers = {table: array("q") for table in columns}
        self._said: dict[str, list[str | None]] = {"StringIds": [], "NVTX_EVENTS": [], "DIAGNOSTIC_EVENT": []}
        decode = msgspec.json.Decoder(_LINE, strict=False).decode  # which takes texts for numbers
        with Path(path).open("rb") as file:
            for line in file:
                try:
                    self._take(decode(line.removeprefix(BYTE_ORDER_MARK)))
                except _WRONG:
                    self.damaged_count += bool(line.strip())
                    self.cut = "" if line.endswith(b"\n") else "its last line is not whole"
        super().__init__(str(path), {table: [*names, "text", "value"] for table, names in columns.items()})

    def _take(self, line: Any) -> None:
        """Take what a line tells."""
        if told := line.CudaEvent:
            self._take_work(*msgspec.structs.astuple(told))
        elif (told := line.TraceProcessEvent) and told.eventClass in _CALLS:
            self._add("CUPTI_ACTIVITY_KIND_RUNTIME", msgspec.structs.astuple(told))
        elif told := line.NvtxEvent:
            *numbers, text = msgspec.structs.astuple(told)
            self._add("NVTX_EVENTS", numbers, text)
        elif told := line.DiagnosticEvent:
            self._add("DIAGNOSTIC_EVENT", (_SEVERITY.get(told.Level, 0),), told.Text)
        elif line.value is not None:
            self._add("StringIds", (line.id,), line.value)
        elif line.data is None:
            self._add("others", (0,))
        for number, text in enumerate(line.data or ()):
            if isinstance(text, str):  # else the names of threads
                self._add("StringIds", (number,), text)

    def _take_work(self, *told: Any) -> None:
        numbers, parts = told[: -len(_PARTS)], told[-len(_PARTS) :]
        for (table, _), part in zip(_PARTS.values(), parts, strict=True):
            if part:
                self._add(table, (*numbers, *msgspec.structs.astuple(part)))
                return
        self._add("others", (0,))

    def _add(self, table: str, numbers: Iterable[int], text: str | None = None) -> None:
        """Add a whole row, or none where a number is too large."""
        self._numbers[table].extend(array("q", numbers))
        if table in self._said:
            self._said[table].append(text)

    def _table(self, table: str) -> Any:
        """Return the numbers of a table; shape (n_rows, n_columns)."""
        return np.frombuffer(self._numbers[table], np.int64).reshape(-1, len(self._columns[table]) - 2)

    def _count(self, table: str) -> int:
        return len(self._table(table))

    def _fill(self, table: str, columns: Columns) -> None:
        numbers = self._table(table)
        for name, values in columns.items():
            if name not in {"text", "value"}:
                values[:] = numbers[:, self._columns[table].index(name)]

    def _rows(self, table: str, columns: Sequence[str], length: int = 0) -> Iterable[Sequence[Any]]:
        del length  # whoever asks cuts it
        numbers, said = self._table(table), self._said.get(table, ())
        of = {name: values.tolist() for name, values in zip(self._columns[table], numbers.T, strict=False)}
        return zip(*(of.get(name, said) for name in columns), strict=True)
