"""What is kept of golden files, as JSON: everything that a trace holds and answers, read through public doors only."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gpustreamlab.model import SPAN_KINDS

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
COLUMNS = ("start_ns", "end_ns", "queued_ns", "lane", "name", "kind", "parent", "thread", "partition")
COUNTERS = ("time_ns", "lane", "name", "value", "names")
TABLES = ("names", "lanes", "threads", "partitions", "layout", "layouts", "markers", "details")
AT_ONCE = ("sum_ns", "active_ns", "together_ns", "busiest_ns", "peak_lanes")
ANSWERS = {
    "overlap": ("common_ns", *AT_ONCE, "mean_concurrency", "max_concurrency", "common_share"),
    "utilization": ("sm_ns", "share", "card_share"),
    "strays": ("names", "left_partition", "groups"),
    "host_waits": ("names", "share", "groups"),
}
"""The questions that are asked, and what each answer computes beside its fields."""
_REPEATED = {"metadata", "partitions", "lanes", "trace"}
"""What an answer has of its trace."""


def golden_files():
    """Return the names of the traces and spools that are kept."""
    return sorted(path.name for path in GOLDEN.iterdir() if path.suffix in {".parquet", ".gsl"})


def answers_path(name):
    """Return where the answers of a golden file are."""
    return GOLDEN / f"{name}.json"


def read_answers(name):
    """Return the answers that are kept for a golden file."""
    return json.loads(answers_path(name).read_text(encoding="utf-8"))


def write_answers(name, answers):
    """Keep answers; each table and column has a line of its own, so that a change can be read."""
    answers_path(name).write_text(f"{_lines(answers)}\n", encoding="utf-8")


def describe(trace, cuts):
    """Return everything that a trace holds and answers, and in what the parts that `cuts` names differ from it."""
    whole = contents(trace) | ask(trace)
    parts = [(call, options, getattr(trace, call)(**options)) for call, options in cuts]
    return whole | {"cuts": [{"call": call, "options": options, "part": _beside(whole, part)} for call, options, part in parts]}


def _beside(whole, part):
    """Return what a part holds and answers, and only the names of what is that of the whole: it is long."""
    found = contents(part) | ask(part)
    same = [name for name, value in found.items() if value == whole[name]]
    return {"same": same} | {name: value for name, value in found.items() if name not in same}


def contents(trace):
    """Return everything that a trace holds."""
    columns = {name: getattr(trace, name) for name in COLUMNS} | dict(trace.extra)
    return {
        "span_count": len(trace),
        "extra": sorted(set(trace.extra) - {"number"}),  # which old files lack
        "columns": {name: as_json(values) for name, values in columns.items()},
        "dtypes": {name: values.dtype.name for name, values in columns.items()},
        **{name: as_json(getattr(trace, name)) for name in TABLES},
        "edges": {name: as_json(getattr(trace.edges, name)) for name in ("source", "target", "kind")},
        "counters": {name: as_json(getattr(trace.counters, name)) for name in COUNTERS},
        "metadata": {name: value for name, value in as_json(trace.metadata).items() if name != "schema_version"},
    }


def ask(trace):
    """Return what a trace answers."""
    return {question: answer(getattr(trace, question)(), more) for question, more in ANSWERS.items()}


def answer(result, more=()):
    """Return the fields of a result, what else it computes, and the line in which it shows itself."""
    kept = {name: value for name, value in as_json(result).items() if name not in _REPEATED}
    # What is kept of partitions has no lanes.
    lanes = [] if "granted_sms" in kept else [lane.name for lane in getattr(result, "lanes", ())]
    return kept | {name: as_json(getattr(result, name)) for name in more} | {"lanes": lanes, "shown": repr(result)}


def describe_comparison(comparison):
    """Return what two traces differ in."""
    result = {name: value for name, value in as_json(comparison.result).items() if name != "metadata"}
    for side in ("a", "b"):
        result[side] |= {name: as_json(getattr(getattr(comparison.result, side), name)) for name in AT_ONCE}
    table = {name: as_json(column.tolist()) for name, column in comparison.to_pandas().items()}
    return result | {"notes": as_json(comparison.result.notes), "table": table, "shown": repr(comparison)}


def as_json(value):
    """Return plain data: a number that is none as text, records by the names of their fields."""
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value) if field.name != "trace"}
    if isinstance(value, Mapping):
        return {name: as_json(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json(entry) for entry in value]
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


def difference(wanted, got, place="answers"):
    """Say where what was got first differs from what is kept; empty where nowhere. A field that is new is no difference."""
    if isinstance(wanted, dict) and isinstance(got, dict):
        missing = [name for name in wanted if name not in got]
        if missing:
            return f"{place} lacks {missing}"
        found = (difference(wanted[name], got[name], f"{place}.{name}") for name in wanted)
        return next(filter(None, found), "")
    if isinstance(wanted, list) and isinstance(got, list) and len(wanted) == len(got):
        found = (difference(*pair, f"{place}[{row}]") for row, pair in enumerate(zip(wanted, got, strict=True)))
        return next(filter(None, found), "")
    # JSON has one kind of number: what is 1 must not become 1.0 or True.
    return "" if wanted == got and type(wanted) is type(got) else f"{place} is {got!r:.200}; {wanted!r:.200} is kept"


def rows_of(trace):
    """Return a trace as text, a line for each span, edge, mark and layout."""
    kinds = [SPAN_KINDS[code].value for code in trace.kind.tolist()]
    lines = ["row      start        end     queued  lane    kind     parent  thread      partition  name"]
    for row, kind in enumerate(kinds):
        thread, part = int(trace.thread[row]), int(trace.partition[row])
        size = f"{trace.partitions[part].name} {trace.partitions[part].granted_sms}" if part >= 0 else "-"
        lines.append(
            f"{row:3} {trace.start_ns[row]:10} {trace.end_ns[row]:10} {trace.queued_ns[row]:10}  "
            f"{trace.lanes[trace.lane[row]].name:7} {kind:8} {trace.parent[row]:6}  "
            f"{trace.threads[thread] if thread >= 0 else '-':11} {size:10} {trace.names[trace.name[row]]}"
        )
    edges = zip(trace.edges.source.tolist(), trace.edges.target.tolist(), trace.edges.kind.tolist(), strict=True)
    lines += [f"edge {source} -> {target}, kind {kind}" for source, target, kind in sorted(edges)]
    lines += [f"{marker.kind.value} at {marker.time_ns}: {marker.text}" for marker in trace.markers]
    for change in trace.layouts:
        parts = () if change.layout is None else change.layout.partitions
        sizes = ", ".join(f"{part.name} {part.granted_sms} of {part.requested_sms}" for part in parts)
        lines.append(f"layout at {change.time_ns}: {sizes or 'whole card'}")
    return "\n".join(lines)


def _lines(answers, depth=0):
    """Write JSON with a line for each column and table, however long."""
    if not isinstance(answers, dict) or depth == 2:
        if isinstance(answers, list) and answers and isinstance(answers[0], dict) and "part" in answers[0]:
            return "[\n" + ",\n".join(_lines(part, depth - 1) for part in answers) + "\n]"
        return json.dumps(answers, ensure_ascii=False)
    inner = ",\n".join(f"{json.dumps(name)}: {_lines(value, depth + 1)}" for name, value in answers.items())
    return f"{{\n{inner}\n}}"
