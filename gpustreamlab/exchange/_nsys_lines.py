"""JSON lines of Nsight Systems, ``nsys export --type=jsonlines``, as the tables that its other exports have.

Each line is an event, a string, or a list of all strings, which stands before the events or behind them. Numbers of 64 bits
are texts. Source: "JSON and Text Format Description" of Nsight Systems, and lines that people published.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from gpustreamlab._util.host import require_room
from gpustreamlab.exchange._frame import Columns
from gpustreamlab.exchange._nsys_report import NO_NUMBER, Report

_CUDA = {"kernel": "KERNEL", "memcpy": "MEMCPY", "memset": "MEMSET", "sync": "SYNCHRONIZATION", "cudaEventRecord": "CUDA_EVENT"}
"""What an event of CUDA has in it, and of which table that makes it."""
_CALLS = (0, 1, 13)  # Classes of calls: runtime, driver, EGL; others are of the system. Source: ENUM_NSYS_EVENT_CLASS
_NAMES = {"startNs": "start", "endNs": "end", "sizebytes": "bytes", "name": "nameId", "EndTimestamp": "end"}
_NAMES |= {"Timestamp": "start", "Type": "eventType", "TextId": "textId", "DomainId": "domainId", "GlobalTid": "globalTid"}
"""How other exports call columns, where that differs."""
_FIRST = {"StringIds": "id"}  # The column that each row has, where it is not the start
_SEVERITY = {"warning": 2, "error": 3}
_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def is_lines(path: str | PathLike[str]) -> bool:
    """Tell whether a report is one of JSON lines."""
    if not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return file.read(1) == b"{"


class Lines(Report):
    """A file of JSON lines, read as a whole."""

    def __init__(self, path: str | PathLike[str]) -> None:
        require_room(Path(path).stat().st_size, repr(str(path)))
        self._tables: dict[str, dict[str, array[int]]] = {}
        self._said: dict[str, list[object]] = {}
        decode = msgspec.json.Decoder(dict[str, Any]).decode
        with Path(path).open("rb") as file:
            for line in file:
                try:
                    self._take(decode(line))
                except _WRONG:
                    self.damaged_count += bool(line.strip())
        columns = {table: [*there, "text", "value"] for table, there in self._tables.items()}
        super().__init__(str(path), columns)

    def _take(self, line: Mapping[str, Any]) -> None:
        """Take what a line tells."""
        if "value" in line:
            self._add("StringIds", line, line["value"])
        for number, text in enumerate(line["data"] if isinstance(line.get("data"), list) else ()):
            if isinstance(text, str):  # else the names of threads
                self._add("StringIds", {"id": number}, text)
        for event, told in line.items():
            if isinstance(told, dict):
                self._take_event(event, told)

    def _take_event(self, event: str, told: Mapping[str, Any]) -> None:
        part = next((part for part in _CUDA if event == "CudaEvent" and isinstance(told.get(part), dict)), None)
        if part:
            self._add(f"CUPTI_ACTIVITY_KIND_{_CUDA[part]}", {**told, **told[part]})
        elif event == "TraceProcessEvent" and told.get("eventClass") in _CALLS:
            self._add("CUPTI_ACTIVITY_KIND_RUNTIME", told)
        elif event == "NvtxEvent":
            self._add("NVTX_EVENTS", told, told.get("Text"))
        elif event == "DiagnosticEvent":
            severity = _SEVERITY.get(str(told.get("Level")).lower(), 0)
            self._add("DIAGNOSTIC_EVENT", {"severity": severity}, told.get("Text"))
        else:  # counted, and not read
            self._add(event, {"start": 0})

    def _add(self, table: str, told: Mapping[str, Any], text: object = None) -> None:
        """Add a row to a table: the numbers of it, and a text."""
        columns = self._tables.setdefault(table, {_FIRST.get(table, "start"): array("q")})
        first = next(iter(columns.values()))
        count = len(first)
        for key, value in told.items():
            if (number := _number(value)) != NO_NUMBER:
                column = columns.setdefault(_NAMES.get(key, key), array("q"))
                column.extend(repeat(NO_NUMBER, count - len(column)))
                column[count:] = array("q", (number,))
        first.extend(repeat(NO_NUMBER, count + 1 - len(first)))
        self._said.setdefault(table, []).append(text)

    def _count(self, table: str) -> int:
        return len(next(iter(self._tables[table].values())))

    def _fill(self, table: str, columns: Columns) -> None:
        for name, values in columns.items():
            found = self._tables[table].get(name, ())
            values[: len(found)] = found

    def _rows(self, table: str, columns: Sequence[str], length: int = 0) -> Iterable[Sequence[Any]]:
        del length  # whoever asks cuts it
        return zip(*(self._tables[table].get(name, self._said.get(table, ())) for name in columns), strict=True)


def _number(value: object) -> int:
    """Return a whole number, also of a text."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and -(1 << 63) < value < 1 << 63 else NO_NUMBER
