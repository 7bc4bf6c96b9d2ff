"""Make traces of rows, with the tables that their codes point into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import distinct, turns_of
from gpustreamlab.backends import CERTAINTY_SHIFT, IS_HOST, IS_WRITE, NODE_SHIFT
from gpustreamlab.model import COLUMN_DTYPES, EDGE_KINDS, Accesses, Counters, Edges, Lane, Trace, WorkDetail, unchangeable
from gpustreamlab.recorder._chunks import ACCESS_COLUMNS, DEPENDENCY_COLUMNS, Chunk, join, newest_accesses, thinned
from gpustreamlab.recorder._extents import (
    ANNOTATION_CODE,
    HOST_CODE,
    RANGE_CODE,
    RowFinder,
    adopt_by_annotations,
    is_work,
    span_work,
)
from gpustreamlab.recorder._tables import Tables
from gpustreamlab.recorder._work import find_syncs, find_waits
from gpustreamlab.typing import CaptureTier, EdgeKind, Int32Array, Int64Array

WAIT_CODE = EDGE_KINDS.index(EdgeKind.WAIT)
LAUNCH_CODE = EDGE_KINDS.index(EdgeKind.LAUNCH)
SYNC_CODE = EDGE_KINDS.index(EdgeKind.SYNC)
FIRST_GRAPH_NUMBER = -2
"""Number of the first graph launch of a trace; further ones count down. Only rows that are made for a trace are negative."""


_NONE = np.empty(0, np.int64)


NO_SAMPLES = Counters()
NO_DEPENDENCIES: Mapping[str, Int64Array] = dict.fromkeys(DEPENDENCY_COLUMNS, _NONE)


MISSED_ACCESSES = (
    "What the oldest work read and wrote is not known any more: {:,} accesses made room for newer ones. Waits around that work "
    "count as needed. Record a shorter stretch: lab.clear() before it."
)


class TraceData(NamedTuple):
    """What a trace is made of."""

    tables: Tables  # What the codes in the rows mean, and how it was measured
    columns: Mapping[str, Int64Array]  # Rows, shape (n_rows,) each; see `SPAN_COLUMNS`
    names: Sequence[str] = ()  # Names of spans, by their code
    details: Sequence[WorkDetail] = ()  # How work was launched, likewise
    edges: Int64Array = _NONE.reshape(0, 2)  # Numbers of ranges, of which the second waited for the first; shape (n, 2)
    dependencies: Mapping[str, Int64Array] = NO_DEPENDENCIES
    """Which stream was told to wait for which, see `DEPENDENCY_COLUMNS`."""
    counters: Counters = NO_SAMPLES  # Samples of lanes' quantities, in order of time
    accesses: Int64Array = np.empty((len(ACCESS_COLUMNS), 0), np.int64)  # See `ACCESS_COLUMNS`; shape (5, n)


def fold(chunks: Sequence[Chunk], **facts: Any) -> Trace:
    """Return what chunks from the beginning on tell as a trace."""
    chunk = newest_accesses(join(chunks))
    data = trace_data(chunk)
    meta = data.tables.metadata
    windows = meta.capture_windows
    if windows and chunk.is_capturing:  # one that is open lasts as long as there are spans
        begin_ns, end_ns = windows[-1]
        windows = (*windows[:-1], (begin_ns, int(data.columns["end_ns"].max(initial=end_ns))))
    told: dict[str, Any] = {
        "dropped_spans": chunk.missed + chunk.lost,
        "pending_spans": chunk.pending,
        "capture_windows": windows,
    }
    if chunk.missed_accesses:
        told["missing"] = (*meta.missing, MISSED_ACCESSES.format(chunk.missed_accesses))
    new = {name: value for name, value in (told | facts).items() if getattr(meta, name) != value}
    return build_trace(data._replace(tables=data.tables._replace(metadata=replace(meta, **new))) if new else data)


def trace_data(chunk: Chunk) -> TraceData:
    """Return what a chunk tells, by columns; its tables are told in it."""
    if chunk.tables is None:
        raise ValueError("no chunk describes what the spans mean")
    return TraceData(
        chunk.tables._replace(markers=sorted(chunk.markers, key=lambda marker: marker.time_ns)),
        chunk.columns,
        names=chunk.names,
        details=chunk.details,
        edges=chunk.edges.T,
        dependencies=dict(zip(DEPENDENCY_COLUMNS, chunk.dependencies, strict=True)),
        counters=counters_of(chunk.samples, chunk.counter_names),
        accesses=chunk.accesses,
    )


def counters_of(samples: Int64Array, names: Sequence[str]) -> Counters:
    """Return samples as a trace has them; shape (4, n)."""
    if not samples.shape[1]:
        return NO_SAMPLES
    time_ns, lane, name, value = thinned(samples, names)
    return Counters(
        time_ns=time_ns,
        lane=lane.astype(np.int32),
        name=name.astype(np.int32),
        value=np.ascontiguousarray(value).view(np.float64),
        names=tuple(names),
    )


def add_graph_launches(
    columns: Mapping[str, Int64Array], names: Sequence[str], details: Sequence[WorkDetail]
) -> tuple[dict[str, Int64Array], tuple[str, ...]]:
    """Return the rows with one more for each launch, lane and part of a graph, which is the parent of its nodes; and the names.

    A part has the name that `KernelTier.name_graph` was told. Where no parts were named, the whole graph is one.
    """
    graph_of = np.array([*(one.graph for one in details), 0], np.int64)  # -1, no detail, is last
    nodes = np.flatnonzero(is_work(columns["kind"]) & (graph_of[columns["detail"]] != 0))
    if not len(nodes):
        return dict(columns), tuple(names)
    _, place = distinct(columns["correlation"][nodes] * (int(columns["lane"].max()) + 1) + columns["lane"][nodes])
    texts = [one.label or f"graph {one.graph}" for one in details]
    used = dict.fromkeys(texts[code] for code in np.unique(columns["detail"][nodes]).tolist())
    codes = {text: code for code, text in enumerate(dict.fromkeys((*names, *used)))}
    text_of = np.array([codes.get(text, -1) for text in texts], np.int64)
    keys, place = distinct(place * len(codes) + text_of[columns["detail"][nodes]])
    launches = _launches(columns, nodes, place, len(keys))
    launches["name"] = text_of[columns["detail"][launches.pop("node")]]
    joined = {name: np.concatenate((values, launches[name])) for name, values in columns.items()}
    joined["parent"][nodes] = launches["number"][place]
    return joined, tuple(codes)


def _launches(columns: Mapping[str, Int64Array], nodes: Int64Array, place: Int64Array, count: int) -> dict[str, Int64Array]:
    """Return the rows of the launches, each like its first node but for its times, and as ``node`` the row of that."""
    order = np.lexsort((columns["start_ns"][nodes], place))
    heads = np.searchsorted(place[order], np.arange(count))
    first = nodes[order[heads]]
    rows = {name: values[first] for name, values in columns.items()}
    rows["end_ns"] = np.maximum.reduceat(columns["end_ns"][nodes][order], heads)
    rows["kind"] = np.full(count, ANNOTATION_CODE, np.int64)
    rows["number"] = FIRST_GRAPH_NUMBER - np.arange(count)
    rows["detail"] = np.full(count, -1, np.int64)
    rows["size_bytes"] = np.zeros(count, np.int64)
    return rows | {"node": first}


def build_trace(data: TraceData, *, keeps_lanes: bool = False) -> Trace:
    """Return a trace, in the order of the starts."""
    tables, columns, names, counters = data.tables, data.columns, data.names, data.counters
    were_captured = tables.metadata.tier is CaptureTier.KERNELS
    has_work = were_captured and bool(is_work(columns["kind"]).any())
    if has_work:
        columns, names = add_graph_launches(columns, names, data.details)
    rows = _in_order(columns)
    place = RowFinder(rows["number"])
    parent = place.rows_of(rows["parent"])
    rows["start_ns"], rows["end_ns"] = _clip_to_parents(rows, parent)
    rows["queued_ns"] = np.minimum(rows["queued_ns"], rows["start_ns"])
    if were_captured:
        parent = adopt_by_annotations(rows, parent)
    used = np.arange(len(tables.lanes)) if keeps_lanes else rows["lane"]
    kept, code = _worth_lanes(tables.lanes, used, counters.lane)
    extra = extra_columns(rows, parent, data.details) if were_captured else {}
    if not tables.metadata.imported:  # what other tools tell has no numbers but those that its reader gave
        extra["number"] = rows["number"]
    edges = _edges(rows, place, data.edges, data.dependencies if has_work else None, tables.lanes)
    accesses = find_accesses(rows, data.details, data.accesses)
    del place
    found: dict[str, NDArray[Any]] = rows | {"lane": code[rows["lane"]], "parent": parent}
    return Trace(
        **{name: unchangeable(found.pop(name).astype(dtype, copy=False)) for name, dtype in COLUMN_DTYPES.items()},
        names=tuple(names),
        lanes=kept,
        threads=tuple(tables.threads),
        partitions=tuple(tables.partitions),
        layout=tables.layouts[-1].layout if tables.layouts else None,
        layouts=tuple(tables.layouts),
        markers=tuple(tables.markers),
        notes=(),
        edges=edges,
        accesses=accesses,
        metadata=tables.metadata,
        extra={name: unchangeable(extra.pop(name)) for name in [*extra]},
        details=tuple(data.details),
        counters=replace(counters, lane=code[counters.lane]),
    )


def _in_order(columns: Mapping[str, Int64Array]) -> dict[str, Int64Array]:
    """Return the rows in the order of their starts; of those that begin at once the lower number comes first."""
    start_ns, number = columns["start_ns"], columns["number"]
    later, same = start_ns[1:] > start_ns[:-1], start_ns[1:] == start_ns[:-1]
    if (later | (same & (number[1:] >= number[:-1]))).all():  # a copy of millions of rows less
        return dict(columns)
    order = np.lexsort((number, start_ns))
    return {name: values[order] for name, values in columns.items()}


def extra_columns(rows: Mapping[str, Int64Array], parent: Int64Array, details: Sequence[WorkDetail]) -> dict[str, NDArray[Any]]:
    """Return the columns that a trace has beside those of all traces."""
    facts = [
        (one.grid_blocks, one.block_threads, one.registers, one.static_shared_bytes + one.dynamic_shared_bytes)
        for one in details
    ]
    table = np.array([*facts, (0, 0, 0, 0)], np.int64).T  # -1, no detail, is last
    detail = rows["detail"]
    columns: dict[str, NDArray[Any]] = {"detail": detail.astype(np.int32)}
    columns |= {name: rows[name] for name in ("correlation", "size_bytes")}
    for name, fact in zip(("grid_blocks", "block_threads", "registers", "shared_bytes"), table, strict=True):
        columns[name] = fact[detail]
    return columns | span_work(rows, parent)


def work_edges(
    rows: Mapping[str, Int64Array], dependencies: Mapping[str, Int64Array], lanes: Sequence[Lane]
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return edges as source, target and code of the kind: waits between work, what calls launched, what they waited for."""
    work = np.flatnonzero(is_work(rows["kind"]))
    correlation, lane = rows["correlation"][work], rows["lane"][work].astype(np.int64)
    first, second = find_waits(dependencies, lane, correlation)
    calls = np.flatnonzero((rows["kind"] == HOST_CODE) & (rows["correlation"] != 0))
    call_of = RowFinder(rows["correlation"][calls])
    found = call_of.rows_of(correlation)
    call, launched = calls[found[found >= 0]], work[found >= 0]
    awaited, number = find_syncs(dependencies, lane, correlation, lanes)
    place = call_of.rows_of(number)
    awaited, blocked = work[awaited[place >= 0]], calls[place[place >= 0]]
    process = np.array([one.process for one in lanes], np.int64)  # numbers of devices may be those of several
    is_own = process[rows["lane"][awaited]] == process[rows["lane"][blocked]]
    parts = ((work[first], work[second]), (call, launched), (awaited[is_own], blocked[is_own]))
    codes = [np.full(len(part[0]), code) for part, code in zip(parts, (WAIT_CODE, LAUNCH_CODE, SYNC_CODE), strict=True)]
    source, target = map(np.concatenate, zip(*parts, strict=True))
    return source, target, np.concatenate(codes)


def find_accesses(rows: Mapping[str, Int64Array], details: Sequence[WorkDetail], told: Int64Array) -> Accesses:
    """Return what work touched by its rows; `told` is by the numbers of calls, see `ACCESS_COLUMNS`."""
    correlation, *region, flags = told
    work = np.flatnonzero(is_work(rows["kind"]) & (rows["correlation"] > 0)) if len(flags) else _NONE
    if not len(work):
        return Accesses()
    node_of = np.array([*(one.node for one in details), -1], np.int64)  # -1, no detail, is last
    width = int(node_of.max()) + 2
    work = work[np.lexsort((node_of[rows["detail"][work]], rows["correlation"][work]))]
    calls, code = distinct(rows["correlation"][work])
    call = np.searchsorted(calls, correlation)
    call = np.where(calls[np.minimum(call, len(calls) - 1)] == correlation, call, len(calls))
    # By call and node: one launch of a graph is many works. What has no node is of all that its call has enqueued.
    keys, node = code * width + node_of[rows["detail"][work]] + 1, (flags >> NODE_SHIFT) - 1
    first = np.searchsorted(keys, call * width + np.maximum(node + 1, 0))
    behind = np.searchsorted(keys, call * width + np.where(node < 0, width - 1, node + 1), side="right")
    count = np.where(node + 1 < width, behind - first, 0)
    source = np.repeat(np.arange(len(count)), count.astype(np.intp, copy=False))
    span = work[turns_of(count) + first[source]]
    order = np.argsort(span, kind="stable")
    source, span = source[order], span[order]
    buffer, begin, end = (column[source] for column in region)
    flags = flags[source]
    return Accesses(
        span=span,
        buffer=buffer,
        begin=begin,
        end=end,
        is_write=(flags & IS_WRITE) != 0,
        is_host=(flags & IS_HOST) != 0,
        certainty=((flags >> CERTAINTY_SHIFT) & 3).astype(np.int8),
    )


def _worth_lanes(lanes: Sequence[Lane], *used: Int64Array | Int32Array) -> tuple[tuple[Lane, ...], Int32Array]:
    """Leave out streams of others of which nothing is told but that somebody waited for them."""
    is_worth = np.array([not lane.outside for lane in lanes], bool)
    for codes in used:
        is_worth[codes] = True
    code = np.where(is_worth, np.cumsum(is_worth) - 1, -1).astype(np.int32)
    return tuple(lane for lane, stays in zip(lanes, is_worth.tolist(), strict=True) if stays), code


def _edges(
    rows: Mapping[str, Int64Array],
    place: RowFinder,
    pairs: Int64Array,
    dependencies: Mapping[str, Int64Array] | None,
    lanes: Sequence[Lane],
) -> Edges:
    source, target = place.rows_of(pairs[:, 0]), place.rows_of(pairs[:, 1])
    known = (source >= 0) & (target >= 0)
    found = [(source[known], target[known], np.full(int(known.sum()), WAIT_CODE))]
    if dependencies is not None:
        found.append(work_edges(rows, dependencies, lanes))
    source, target, kind = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Edges(source=source, target=target, kind=kind.astype(np.int8))


def _clip_to_parents(rows: Mapping[str, Int64Array], parent: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Keep each range inside its parent on the same lane: correcting for the events' cost may move them apart by that cost."""
    lane = rows["lane"]
    children = np.flatnonzero((rows["kind"] == RANGE_CODE) & (parent >= 0) & (lane[parent] == lane))
    if not children.size:
        return rows["start_ns"], rows["end_ns"]
    start_ns, end_ns = rows["start_ns"].copy(), rows["end_ns"].copy()
    for _ in range(len(start_ns)):
        outside = children[
            (start_ns[children] < start_ns[parent[children]])
            | (end_ns[children] > end_ns[parent[children]])
            | (start_ns[children] > end_ns[parent[children]])
        ]
        if not outside.size:
            break
        low, high = start_ns[parent[outside]], end_ns[parent[outside]]
        start_ns[outside] = np.clip(start_ns[outside], low, high)
        end_ns[outside] = np.clip(end_ns[outside], low, high)
    return start_ns, end_ns
