"""What a page knows beside the spans, planned anew where it has changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from gpustreamlab.analysis import Basis, LiveRows, display_name
from gpustreamlab.draw import Header, NameLooks, detail_entries, plan_header, plan_tables
from gpustreamlab.live._spans import SpanReader
from gpustreamlab.model import DEVICE_WORK, Counters, Trace
from gpustreamlab.recorder import Recorder
from gpustreamlab.typing import SpanKind

NAME_CHARACTERS = 200
"""How many characters of a name a page gets."""

COUNT_EVERY_S = 0.5
"""How often the number of spans above the picture is sent anew."""

MEMORY_EVERY_S = 2.0
"""How often the memory of the lanes is sent anew, with the tables."""

_ADDED = ("names", "name_styles", "details")
_COUNTED = (SpanKind.RANGE, *DEVICE_WORK)
"""Kinds that count as busy; the page leaves out the ranges that start while kernels are captured."""


class TablePlanner:
    """Keeps the tables of one page.

    Parameters
    ----------
    recorder
        Whose lanes, partitions, layouts, markers and names.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._source: tuple[object, ...] = ()
        self._header: dict[str, Any] = {}
        self._version: tuple[object, ...] = ()
        self._counted = 0
        self._counted_s = 0.0
        self._name_count = 0
        self._looks = NameLooks()
        self._detail_count = 0
        self._counters = Counters()
        self._memory_s = -MEMORY_EVERY_S
        self.planned: dict[str, Any] = {}
        """The tables as they were sent last, without names."""

    def changes(
        self,
        reader: SpanReader,
        *,
        title: str,
        now_ns: int,
        finding: str = "",
        basis: Basis | None = None,
        pending_count: int = 0,
    ) -> dict[str, Any]:
        """Return what has changed since the last time: ``tables``, ``header`` and ``names``."""
        pending_count = 0 if reader.span_count else pending_count  # the header says it only where there is nothing else
        version = self._recorder.tables_version(), title, finding, basis, reader.zero_ns, pending_count
        now_s = time.monotonic()
        is_stale = reader.span_count != self._counted and now_s - self._counted_s >= COUNT_EVERY_S
        if (*version, reader.rows.version) == self._version and not is_stale:
            return {}
        self._counted, self._counted_s = reader.span_count, now_s
        trace = self._with_memory(self._recorder.tables(title=title), now_s)
        spans_ns = float(reader.end_ns - reader.start_ns)
        header = plan_header(
            trace,
            finding=finding,
            span_count=reader.span_count,
            width_ns=spans_ns,
            pending_count=pending_count,
            basis=basis,
        )
        changed = self._new_tables(trace, reader, header, now_ns) | self._new_header(header)
        changed |= self._new_names() | self._new_details()
        self._version = (*version, reader.rows.version)  # lanes without spans were given rows
        return changed

    def whole(self) -> dict[str, Any]:
        """Return all tables as they were sent last, with all names sent so far."""
        details = self._recorder.details_from(0)[: self._detail_count]
        return (
            self.planned
            | _name_tables(self._recorder.names_from(0)[: self._name_count], self._looks)
            | {"details": detail_entries(details)}
        )

    def _with_memory(self, trace: Trace, now_s: float) -> Trace:
        """Add the memory of the lanes, as it was when it was last asked for."""
        if now_s - self._memory_s >= MEMORY_EVERY_S:
            self._memory_s = now_s
            self._counters, _ = self._recorder.counters_from(0)
        is_known = len(self._counters) and int(self._counters.lane.max()) < len(trace.lanes)
        return replace(trace, counters=self._counters) if is_known else trace

    def _new_tables(self, trace: Trace, reader: SpanReader, header: Header, now_ns: int) -> dict[str, Any]:
        reader.rows.reserve(len(trace.lanes))
        source = (*_source_of(trace, reader.rows), header.busy_word, reader.zero_ns, reader.clear_count)
        if source == self._source:
            return {}
        self._source = source
        width_ns = float(max(0, reader.end_ns - reader.zero_ns, now_ns - reader.zero_ns))
        rows = reader.rows.table(lane_count=len(trace.lanes))
        self.planned = plan_tables(trace, rows, zero_ns=reader.zero_ns, width_ns=width_ns, header=header, counted=_COUNTED)
        return {"tables": {name: entry for name, entry in self.planned.items() if name not in _ADDED}}

    def _new_header(self, header: Header) -> dict[str, Any]:
        facts = asdict(header)
        changed = {name: fact for name, fact in facts.items() if fact != self._header.get(name)}
        self._header = self.planned["header"] = facts
        return {"header": changed} if changed else {}

    def _new_names(self) -> dict[str, Any]:
        fresh = self._recorder.names_from(self._name_count)
        if not fresh:
            return {}
        tables = _name_tables(fresh, self._looks)
        start, self._name_count = self._name_count, self._name_count + len(fresh)
        return {"names": {"from": start} | tables}

    def _new_details(self) -> dict[str, Any]:
        fresh = self._recorder.details_from(self._detail_count)
        if not fresh:
            return {}
        start, self._detail_count = self._detail_count, self._detail_count + len(fresh)
        return {"details": {"from": start, "entries": detail_entries(fresh)}}


def _source_of(trace: Trace, rows: LiveRows) -> tuple[object, ...]:
    """Return what the tables depend on."""
    meta = trace.metadata
    tables = (trace.lanes, trace.threads, trace.partitions, trace.layouts, trace.layout, trace.markers, len(trace.counters))
    return (*tables, meta.device, meta.epoch_unix_ns, *rows.version)


def _name_tables(names: Sequence[str], looks: NameLooks) -> dict[str, list[Any]]:
    return {
        "names": [_shown(name) for name in names],
        "name_styles": [[style.fill, style.hatch, style.text] for style in looks.add(names)],
    }


def _shown(name: str) -> str:
    # Most names are short and plain; looking at each of their letters takes far longer.
    return name if name and len(name) <= NAME_CHARACTERS and name.isprintable() else display_name(name, NAME_CHARACTERS)
