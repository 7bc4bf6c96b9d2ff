"""What the host did in a report: calls, ranges and marks of NVTX, and the waits of streams for events."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpustreamlab.exchange._kineto_columns import Codes
from gpustreamlab.exchange._nsys_places import Processes
from gpustreamlab.exchange._nsys_report import NO_NUMBER, Columns, Report, alike, chosen, or_else, timed
from gpustreamlab.model import Marker
from gpustreamlab.record import cut_text
from gpustreamlab.typing import BoolArray, Int64Array, MarkerKind

MOST_MARKS = 10_000
"""Most marks that are kept; the first count."""

_VERSION = re.compile(r"_v\d{4,5}(?=$|_pt[sd]z$)")
"""Behind the names of calls: of which CUDA they are."""
_STREAM_WAITS = ("cudaStreamWaitEvent", "cuStreamWaitEvent")
_NO_EVENT = (NO_NUMBER, 0xFFFF_FFFF)
_NO_TIE = (*_NO_EVENT, 0)
_PUSH_POP, _START_END, _MARK, _DOMAIN = 59, 60, 34, 75
_NVTX = "NVTX_EVENTS"
_LONGEST_TEXT = 1_000
_PLACE = ("deviceId", "contextId", "greenContextId", "streamId")


class Calls(NamedTuple):
    """Calls of CUDA, as columns of equal length."""

    columns: Columns
    """``start_ns``, ``end_ns``, ``name``, ``thread`` (global), ``correlation``."""
    is_wait: BoolArray
    """Whether each makes a stream wait for an event."""
    refused: int


def read_calls(report: Report, names: Codes) -> Calls:
    """Return all calls of a report, of the runtime and of the driver."""
    wanted = ("start", "end", "globalTid", "correlationId", "nameId")
    rows, refused = timed(report.numbers("CUPTI_ACTIVITY_KIND_RUNTIME", wanted))
    first, sort = alike([rows["nameId"]])
    numbers = rows["nameId"][first].tolist()
    strings = report.strings(numbers)
    texts = [_VERSION.sub("", strings.get(number, "unknown call")) for number in numbers]
    codes = names.of(texts).astype(np.int64)
    waits = np.array([text.startswith(_STREAM_WAITS) for text in texts], bool)
    columns = {
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "name": codes[sort],
        "thread": or_else(rows["globalTid"], 0),
        "correlation": rows["correlationId"],
    }
    return Calls(columns, waits[sort], refused)


class Ranges(NamedTuple):
    """Ranges of NVTX, as columns of equal length; and marks."""

    columns: Columns
    """``start_ns``, ``end_ns``, ``name``, ``thread`` (global)."""
    markers: tuple[Marker, ...]
    open_count: int
    """Ranges that nobody closed while nsys recorded."""
    dropped_marks: int
    refused: int
    others: int
    """Rows that are not read: names of threads and categories."""
    domains: int
    """Rows that name domains."""


def read_ranges(report: Report, names: Codes) -> Ranges:
    """Return the ranges and marks of NVTX; those of domains have its name in front."""
    wanted = ("start", "end", "eventType", "globalTid", "textId", "domainId")
    rows = report.numbers(_NVTX, wanted)
    texts = _Texts(report, rows)
    kind = rows["eventType"]
    is_range, is_mark = np.isin(kind, (_PUSH_POP, _START_END)), kind == _MARK
    is_open = is_range & (rows["end"] == NO_NUMBER)
    row = np.arange(len(kind))
    kept, refused = timed(chosen(rows | {"row": row}, is_range & ~is_open))
    marks, no_marks = timed(chosen(rows | {"row": row, "end": rows["start"]}, is_mark))
    order = np.argsort(marks["start"], kind="stable")[:MOST_MARKS].tolist()
    columns = {
        "start_ns": kept["start"],
        "end_ns": kept["end"],
        "name": texts.codes(kept, names),
        "thread": or_else(kept["globalTid"], 0),
    }
    return Ranges(
        columns,
        tuple(
            Marker(time_ns=int(marks["start"][one]), text=cut_text(texts.text(int(marks["row"][one]))), kind=MarkerKind.MARK)
            for one in order
        ),
        int(np.count_nonzero(is_open)),
        len(marks["start"]) - len(order),
        refused + no_marks,
        int(np.count_nonzero(~is_range & ~is_mark & (kind != _DOMAIN))),
        int(np.count_nonzero(kind == _DOMAIN)),
    )


class _Texts:
    """What NVTX rows say: a text of their own, or a registered one, behind the name of their domain."""

    def __init__(self, report: Report, rows: Columns) -> None:
        self._rows = rows
        self._own: dict[int, str] = {}
        if "text" in report.columns(_NVTX):
            for row, text in enumerate(report.texts(_NVTX, "text", _LONGEST_TEXT)):
                if text is not None:
                    self._own[row] = text
        self._registered = report.strings(np.unique(rows["textId"]).tolist())
        named = np.flatnonzero(rows["eventType"] == _DOMAIN).tolist()
        self._domains = {self._domain_key(row): self._plain(row) for row in named}

    def text(self, row: int) -> str:
        """Return what a row says."""
        domain = int(self._rows["domainId"][row])
        if domain in {0, NO_NUMBER}:
            return self._plain(row)
        name = self._domains.get(self._domain_key(row)) or f"domain {domain}"
        return f"{name}: {self._plain(row)}"

    def codes(self, rows: Columns, names: Codes) -> Int64Array:
        """Return the codes of what rows say."""
        return names.of(map(self.text, rows["row"].tolist())).astype(np.int64)

    def _plain(self, row: int) -> str:
        return self._own.get(row) or self._registered.get(int(self._rows["textId"][row])) or "(no text)"

    def _domain_key(self, row: int) -> tuple[int, int]:
        """Return what a domain is known by: each process numbers its own."""
        return int(self._rows["globalTid"][row]) >> 24, int(self._rows["domainId"][row])


def read_waits(report: Report, wait_calls: Int64Array, processes: Processes) -> tuple[Columns, bool]:
    """Return the waits of which the record that they waited for is told, one of each call.

    Parameters
    ----------
    report
        Its rows say what sort each is wrongly, in several versions of nsys: here their calls say it.
    wait_calls
        The calls that make a stream wait, sorted; numbers that no two processes share.
    processes
        All of the report.

    Returns
    -------
    dict of ndarrays of int64
        ``wait`` and ``record``, the calls, as numbers that no two processes share; and where: ``process``, ``device``,
        ``context``, ``green``, ``stream``, and the same of the record, as ``source_device`` and so on.
    bool
        Whether nsys was asked to record events.
    """
    wanted = ("globalPid", "correlationId", *_PLACE, "eventId", "eventSyncId")
    waits = report.numbers("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", wanted)
    records = report.numbers("CUPTI_ACTIVITY_KIND_CUDA_EVENT", wanted)
    has_records = len(records["eventId"]) > 0
    for rows in (waits, records):
        rows["call"] = processes.calls(processes.codes(rows["globalPid"]), rows["correlationId"])
    waits = chosen(waits, np.isin(waits["call"], wait_calls) & (waits["call"] > 0) & ~np.isin(waits["eventId"], _NO_EVENT))
    records = chosen(records, (records["call"] > 0) & ~np.isin(records["eventId"], _NO_EVENT))
    found = _last_records(waits, records)
    known = found >= 0
    waits, records = chosen(waits, known), {name: values[found[known]] for name, values in records.items()}
    columns = {"wait": waits["call"], "record": records["call"], "process": waits["globalPid"]}
    for name, own in zip(("device", "context", "green", "stream"), _PLACE, strict=True):
        columns |= {name: or_else(waits[own], 0), f"source_{name}": or_else(records[own], 0)}
    return columns, has_records


def _last_records(waits: Columns, records: Columns) -> Int64Array:
    """Return for each wait the last record of its event before it, or -1: that is what CUDA lets a stream wait for.

    An event's number is one of a handle, which is used again. Newer versions also tell a number that ties both together.
    """
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
