"""The text of many events at once, as Arrow joins it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Trace, WorkDetail
from gpustreamlab.record import cut_text
from gpustreamlab.typing import BoolArray, Int64Array

FIRST_THREAD = 100
"""Lowest number of a thread: 0 is the idle thread of a system."""
SHOWN_CHARACTERS = 1_000
"""How much of a name stands in each of its events."""
SHOWN_DETAIL = 256
"""How much of a kernel's full name stands in each of its events."""

_THOUSANDTHS = pa.array([f".{part:03}" for part in range(1_000)], pa.large_string())


class Plan(NamedTuple):
    """What stands where."""

    base_ns: int
    """The first moment of the trace, from which times are counted."""
    place: Int64Array
    """Which thread each span stands in; shape (n_spans,)."""
    threads: list[tuple[int, int, int]]
    """Process, lane and sub-lane of each thread, in our order."""
    processes: list[str]
    """Names, in our order."""
    drawn: BoolArray
    """Which edges are drawn as flows: viewers know none that goes back in time, or ends at an instant; shape (n_edges,)."""


class SpanText:
    """Writes the spans, some rows at a time."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        self._trace, self._plan = trace, plan
        places = [
            f'"pid":{process + 1},"tid":{FIRST_THREAD + number},"ts":' for number, (process, _, _) in enumerate(plan.threads)
        ]
        self._places = _table(places)
        self._kinds = _table([kind.value for kind in SPAN_KINDS])
        self._names = _table([json.dumps(cut_text(name, SHOWN_CHARACTERS)) for name in trace.names])
        self._threads = _table([f',"thread":{json.dumps(thread)}' for thread in trace.threads])
        parts = [{"code": code, "name": one.name, "sms": one.granted_sms} for code, one in enumerate(trace.partitions)]
        self._partitions = _table([f',"partition":{json.dumps(part)}' for part in parts])
        details = [{"code": code} | _facts(one) for code, one in enumerate(trace.details)]
        self._details = _table([f',"detail":{json.dumps(detail)}' for detail in details])
        self._edges = _table([f',"cat":"{kind.value}","name":"{kind.value}","id":' for kind in EDGE_KINDS])

    def text(self, rows: slice) -> memoryview:
        """Return the text of each span of some rows, with the flows that begin and end there."""
        trace, plan = self._trace, self._plan
        parent, start_ns, end_ns = trace.parent[rows], trace.start_ns[rows], trace.end_ns[rows]
        parts: list[Any] = [
            ',\n{"ph":"X","cat":"',
            _chosen(self._kinds, trace.kind[rows]),
            '","name":',
            _chosen(self._names, trace.name[rows]),
            ",",
            _chosen(self._places, plan.place[rows]),
            *_microseconds(_since(start_ns, plan)),
            ',"dur":',
            *_microseconds(end_ns.view(np.uint64) - start_ns.view(np.uint64)),
            ',"args":{"queued_ns":',
            _numbers(_since(trace.queued_ns[rows], plan).view(np.int64)),
            _chosen(self._threads, trace.thread[rows]),
            _chosen(self._partitions, trace.partition[rows]),
            pc.if_else(pa.array(parent >= 0), _joined([',"parent":', _numbers(parent)]), ""),
        ]
        for name, values in trace.extra.items():
            if name == "detail":
                parts.append(_chosen(self._details, values[rows]))
            else:
                parts += [f",{json.dumps(name)}:", _numbers(values[rows])]
        return _bytes(_joined([*parts, "}}", self._flows(rows.start, rows.start + len(parent))]))

    def _flows(self, first: int, last: int) -> pa.Array:
        """Return for each row the ends of flows that stand there: behind its span, so that they are bound to this one."""
        trace, plan = self._trace, self._plan
        texts, places = [], []
        for phase, ends in (('"s"', trace.edges.source), ('"f","bp":"e"', trace.edges.target)):
            found = np.flatnonzero(plan.drawn & (ends >= first) & (ends < last))
            row = ends[found]
            begin = [f',\n{{"ph":{phase}', _chosen(self._edges, trace.edges.kind[found]), _numbers(found), ","]
            where = [_chosen(self._places, plan.place[row]), *_microseconds(_since(trace.start_ns[row], plan)), "}"]
            texts.append(_joined(begin + where))
            places.append(row - first)
        place = np.concatenate(places)
        order = np.argsort(place, kind="stable")
        offsets = np.searchsorted(place[order], np.arange(last - first + 1))
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.concat_arrays(texts).take(pa.array(order)))
        return pc.binary_join(lists, _constant(""))


def _facts(detail: WorkDetail) -> dict[str, object]:
    """Return what a viewer shows of a detail."""
    facts: dict[str, object] = {"full_name": detail.full_name[:SHOWN_DETAIL]}
    if detail.grid_blocks:
        facts |= {"grid": list(detail.grid), "block": list(detail.block), "registers": detail.registers}
        facts |= {"static_shared_bytes": detail.static_shared_bytes, "dynamic_shared_bytes": detail.dynamic_shared_bytes}
    return facts | ({"graph": detail.graph, "node": detail.node, "label": detail.label} if detail.graph else {})


def sample_text(trace: Trace, plan: Plan) -> memoryview | bytes:
    """Return the text of every sample of a quantity."""
    samples = trace.counters
    if not len(samples):
        return b""
    keys, track = np.unique(samples.lane.astype(np.int64) * len(samples.names) + samples.name, return_inverse=True)
    process = {lane: number for number, lane, _ in plan.threads}
    texts = [
        f',\n{{"ph":"C","name":{json.dumps(f"{samples.names[name]} of {trace.lanes[lane].name}")},'
        f'"pid":{process[lane] + 1},"args":'
        for lane, name in (divmod(key, len(samples.names)) for key in keys.tolist())
    ]
    times = _microseconds(_since(samples.time_ns, plan))
    is_number = pa.array(np.isfinite(samples.value))  # viewers know nothing else
    values = pc.if_else(is_number, _joined(['{"value":', _numbers(samples.value), "}"]), "{}")
    return _bytes(_joined([_chosen(_table(texts), track), values, ',"ts":', *times, "}"]))


def _since(time_ns: Int64Array, plan: Plan) -> NDArray[np.uint64]:
    """Return times since the trace's first moment, which may lie further apart than 64 bits with a sign can tell."""
    return np.ascontiguousarray(time_ns).view(np.uint64) - np.uint64(plan.base_ns % (1 << 64))


def _numbers(values: NDArray[Any]) -> pa.Array:
    """Return numbers as JSON, which knows no others than finite ones."""
    if values.dtype.kind != "f":
        return pc.cast(pa.array(values), pa.large_string())
    wide = values.astype(np.float64)
    return pc.if_else(pa.array(np.isfinite(wide)), pc.cast(pa.array(wide), pa.large_string()), "null")


def _microseconds(time_ns: NDArray[np.uint64]) -> list[pa.Array]:
    """Return decimals of microseconds, as their whole part and their three digits."""
    whole, part = np.divmod(time_ns, np.uint64(1_000))
    return [pc.cast(pa.array(whole), pa.large_string()), _THOUSANDTHS.take(pa.array(part.astype(np.int32)))]


def _table(texts: Sequence[str]) -> pa.Array:
    """Return texts by their code; the last one, of -1, is empty."""
    return pa.array([*texts, ""], pa.large_string())


def _chosen(table: pa.Array, codes: NDArray[Any]) -> pa.Array:
    return table.take(pa.array(np.where(codes < 0, len(table) - 1, codes).astype(np.int64)))


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _joined(parts: Sequence[Any]) -> pa.Array:
    """Return the parts of each row as one text; a plain text is the same in all rows."""
    columns = [_constant(part) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*columns, _constant(""))


def _bytes(rows: pa.Array) -> memoryview:
    """Return the texts of all rows, one behind the other, without a copy."""
    offsets = np.frombuffer(rows.buffers()[1], np.int64)[rows.offset : rows.offset + len(rows) + 1]
    return memoryview(rows.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
