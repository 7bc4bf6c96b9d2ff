"""Turn drained rows into a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpustreamlab.model import Edges, Lane, LayoutChange, Marker, Partition, Trace, TraceMetadata
from gpustreamlab.recorder._ancestry import RANGE_CODE, NumberPlaces, adopt_by_annotations
from gpustreamlab.recorder._graphs import add_graph_launches
from gpustreamlab.recorder._trace_work import NO_WORK, WAIT_CODE, WorkTables, extra_columns, work_edges
from gpustreamlab.typing import Int32Array, Int64Array


def build_trace(
    columns: Mapping[str, Int64Array],
    *,
    names: Sequence[str],
    lanes: Sequence[Lane],
    threads: Sequence[str],
    edges: Sequence[tuple[int, int]],
    partitions: Sequence[Partition],
    layouts: Sequence[LayoutChange],
    markers: Sequence[Marker] = (),
    metadata: TraceMetadata,
    work: WorkTables = NO_WORK,
    keeps_lanes: bool = False,
) -> Trace:
    """Return rows as a trace in the order of their starts.

    Parameters
    ----------
    columns
        The columns of `SPAN_COLUMNS`, shape (n_spans,) each.
    edges
        Pairs of range numbers: the second waited for the first. Pairs whose ranges are not among the rows are left out.
    partitions
        What the codes of the column ``partition`` mean.
    layouts
        When the SMs were shared out anew, in order of time.
    markers
        Moments that were marked, in order of time.
    work
        What is known of kernels, copies and calls beside their rows.
    keeps_lanes
        Whether streams of others stay of which nothing is told: rows that come later may be theirs.
    """
    if work.were_captured:
        columns, names = add_graph_launches(columns, names, work.details)
    order = np.lexsort((columns["number"], columns["start_ns"]))
    rows = {name: values[order] for name, values in columns.items()}
    place = NumberPlaces(rows["number"])
    parent = place.rows_of(rows["parent"])
    rows["start_ns"], rows["end_ns"] = _clip_to_parents(rows, parent)
    rows["queued_ns"] = np.minimum(rows["queued_ns"], rows["start_ns"])
    if work.were_captured:
        parent = adopt_by_annotations(rows, parent)
    used = np.arange(len(lanes)) if keeps_lanes else rows["lane"]
    kept, code = _worth_lanes(lanes, used, work.counters.lane)
    return Trace(
        start_ns=rows["start_ns"],
        end_ns=rows["end_ns"],
        queued_ns=rows["queued_ns"],
        lane=code[rows["lane"]],
        name=rows["name"].astype(np.int32),
        kind=rows["kind"].astype(np.int8),
        parent=parent,
        thread=rows["thread"].astype(np.int32),
        partition=rows["partition"].astype(np.int32),
        names=tuple(names),
        lanes=kept,
        threads=tuple(threads),
        partitions=tuple(partitions),
        layout=layouts[-1].layout if layouts else None,
        layouts=tuple(layouts),
        markers=tuple(markers),
        edges=_edges(rows, place, edges, work),
        metadata=metadata,
        extra=extra_columns(rows, parent, work.details) if work.were_captured else {},
        details=work.details,
        counters=replace(work.counters, lane=code[work.counters.lane]),
    )


def _worth_lanes(lanes: Sequence[Lane], *used: Int64Array | Int32Array) -> tuple[tuple[Lane, ...], Int32Array]:
    """Leave out streams of others of which nothing is told but that somebody waited for them.

    Returns
    -------
    tuple of Lane
        Those that stay.
    ndarray of int32, shape (n_lanes,)
        The new code of each lane; -1 for one that goes.
    """
    is_worth = np.array([not lane.outside for lane in lanes], bool)
    for codes in used:
        is_worth[codes] = True
    code = np.where(is_worth, np.cumsum(is_worth) - 1, -1).astype(np.int32)
    return tuple(lane for lane, stays in zip(lanes, is_worth.tolist(), strict=True) if stays), code


def _edges(rows: Mapping[str, Int64Array], place: NumberPlaces, edges: Sequence[tuple[int, int]], work: WorkTables) -> Edges:
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    source, target = place.rows_of(pairs[:, 0]), place.rows_of(pairs[:, 1])
    known = (source >= 0) & (target >= 0)
    found = [(source[known], target[known], np.full(int(known.sum()), WAIT_CODE))]
    if work.were_captured:
        found.append(work_edges(rows, work.dependencies))
    source, target, kind = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return Edges(source=source, target=target, kind=kind.astype(np.int8))


def _clip_to_parents(rows: Mapping[str, Int64Array], parent: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Keep each range inside its parent on the same lane: correcting for the events' cost may move them apart by that cost."""
    start_ns, end_ns, lane = rows["start_ns"].copy(), rows["end_ns"].copy(), rows["lane"]
    children = np.flatnonzero((rows["kind"] == RANGE_CODE) & (parent >= 0) & (lane[parent] == lane))
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
