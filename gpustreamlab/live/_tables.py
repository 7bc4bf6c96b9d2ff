"""What a page knows beside the spans, planned anew where it has changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpustreamlab.analysis import LiveRows, display_name
from gpustreamlab.draw import Header, plan_header, plan_tables
from gpustreamlab.draw._colours import name_styles
from gpustreamlab.live._spans import SpanReader
from gpustreamlab.model import Trace
from gpustreamlab.recorder import Recorder
from gpustreamlab.typing import SpanKind

FIRST_NAMES = 64
"""The looks of the first 28 names depend on each other; those of later ones are their own."""
NAME_CHARACTERS = 200
"""How many characters of a name a page gets."""

_COUNTED = (SpanKind.RANGE,)


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
        self._header: Header | None = None
        self._name_count = 0
        self.planned: dict[str, Any] = {}
        """The tables as they were sent last, without names."""

    def changes(self, reader: SpanReader, *, title: str, now_ns: int) -> dict[str, Any]:
        """Return what has changed since the last time: ``tables``, ``header`` and ``names``."""
        trace = self._recorder.tables(title=title)
        spans_ns = float(max(0, reader.end_ns - reader.zero_ns))
        header = plan_header(trace, span_count=reader.span_count, width_ns=spans_ns)
        reader.rows.reserve(len(trace.lanes))
        source = (*_source_of(trace, reader.rows), reader.zero_ns, reader.clear_count)
        changed: dict[str, Any] = {}
        if source != self._source:
            rows = reader.rows.table(lane_count=len(trace.lanes))
            width_ns = max(spans_ns, float(now_ns - reader.zero_ns))
            changed["tables"] = self.planned = plan_tables(
                trace, rows, zero_ns=reader.zero_ns, width_ns=width_ns, header=header, counted=_COUNTED
            )
            self._source = source
        if header != self._header:
            changed["header"] = self.planned["header"] = asdict(header)
            self._header = header
        return changed | self._new_names()

    def whole(self) -> dict[str, Any]:
        """Return all tables as they were sent last, with all names sent so far."""
        return self.planned | _name_tables(self._recorder.names_from(0)[: self._name_count])

    def _new_names(self) -> dict[str, Any]:
        fresh = self._recorder.names_from(self._name_count)
        if not fresh:
            return {}
        first = self._recorder.names_from(0)[: min(self._name_count, FIRST_NAMES)]
        tables = {name: entries[len(first) :] for name, entries in _name_tables((*first, *fresh)).items()}
        start, self._name_count = self._name_count, self._name_count + len(fresh)
        return {"names": {"from": start} | tables}


def _source_of(trace: Trace, rows: LiveRows) -> tuple[object, ...]:
    """Return what the tables depend on."""
    meta = trace.metadata
    tables = (trace.lanes, trace.threads, trace.partitions, trace.layouts, trace.layout, trace.markers)
    return (*tables, meta.device, meta.epoch_unix_ns, *rows.version)


def _name_tables(names: Sequence[str]) -> dict[str, list[Any]]:
    return {
        "names": [_shown(name) for name in names],
        "name_styles": [[style.fill, style.hatch, style.text] for style in name_styles(names)],
    }


def _shown(name: str) -> str:
    # Most names are short and plain; looking at each of their letters takes far longer.
    return name if name and len(name) <= NAME_CHARACTERS and name.isprintable() else display_name(name, NAME_CHARACTERS)
