"""Make traces of rows, with the tables that their codes point into and how all of it was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends import Backend
from gpustreamlab.model import Edges, Lane, Trace, TraceMetadata, WorkDetail
from gpustreamlab.record._extents import ANNOTATION_CODE, RANGE_CODE, NumberPlaces, adopt_by_annotations, is_work
from gpustreamlab.record._journal import Delta, Tables
from gpustreamlab.record._kernel_tier import WAIT_CODE, KernelTier, extra_columns, work_edges
from gpustreamlab.record._lanes import LaneTable, Places
from gpustreamlab.record._markers import Markers
from gpustreamlab.record._names import ThreadNames
from gpustreamlab.typing import CaptureTier, Int32Array, Int64Array

FIRST_GRAPH_NUMBER = -2
"""Number of the first graph launch of a trace; further ones count down. Only rows that are made for a trace are negative."""


def add_graph_launches(
    columns: Mapping[str, Int64Array], names: Sequence[str], details: Sequence[WorkDetail]
) -> tuple[dict[str, Int64Array], tuple[str, ...]]:
    """Return the rows with one more for each launch of a graph and lane, which is the parent of its nodes; and the names.

    Parameters
    ----------
    columns
        The columns of a `Delta`, shape (n_spans,) each.
    names
        What the codes of the column ``name`` mean.
    details
        What the codes of the column ``detail`` mean; they say which graph a node is of.
    """
    graph_of = np.array([*(one.graph for one in details), 0], np.int64)  # -1, no detail, is last
    nodes = np.flatnonzero(is_work(columns["kind"]) & (graph_of[columns["detail"]] != 0))
    if not len(nodes):
        return dict(columns), tuple(names)
    keys, place = distinct(columns["correlation"][nodes] * (int(columns["lane"].max()) + 1) + columns["lane"][nodes])
    launches = _launches(columns, nodes, place, len(keys))
    texts = [f"graph {number}" for number in graph_of[columns["detail"][launches.pop("node")]].tolist()]
    codes = {text: code for code, text in enumerate(dict.fromkeys((*names, *texts)))}
    launches["name"] = np.array([codes[text] for text in texts], np.int64)
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


def build_trace(delta: Delta, *, keeps_lanes: bool = False) -> Trace:
    """Return what a delta since the beginning tells as a trace, in the order of the starts.

    Parameters
    ----------
    delta
        Edges whose ranges are not among the rows are left out.
    keeps_lanes
        Whether streams of others stay of which nothing is told: rows that come later may be theirs.
    """
    tables, columns, names, counters = delta.tables, delta.columns, delta.names, delta.counters
    were_captured = tables.metadata.tier is CaptureTier.KERNELS
    if were_captured:
        columns, names = add_graph_launches(columns, names, delta.details)
    order = np.lexsort((columns["number"], columns["start_ns"]))
    rows = {name: values[order] for name, values in columns.items()}
    place = NumberPlaces(rows["number"])
    parent = place.rows_of(rows["parent"])
    rows["start_ns"], rows["end_ns"] = _clip_to_parents(rows, parent)
    rows["queued_ns"] = np.minimum(rows["queued_ns"], rows["start_ns"])
    if were_captured:
        parent = adopt_by_annotations(rows, parent)
    used = np.arange(len(tables.lanes)) if keeps_lanes else rows["lane"]
    kept, code = _worth_lanes(tables.lanes, used, counters.lane)
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
        threads=tuple(tables.threads),
        partitions=tuple(tables.partitions),
        layout=tables.layouts[-1].layout if tables.layouts else None,
        layouts=tuple(tables.layouts),
        markers=tuple(tables.markers),
        edges=_edges(rows, place, delta.edges, delta.dependencies if were_captured else None),
        metadata=tables.metadata,
        extra=extra_columns(rows, parent, delta.details) if were_captured else {},
        details=tuple(delta.details),
        counters=replace(counters, lane=code[counters.lane]),
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


def _edges(
    rows: Mapping[str, Int64Array], place: NumberPlaces, pairs: Int64Array, dependencies: Mapping[str, Int64Array] | None
) -> Edges:
    source, target = place.rows_of(pairs[:, 0]), place.rows_of(pairs[:, 1])
    known = (source >= 0) & (target >= 0)
    found = [(source[known], target[known], np.full(int(known.sum()), WAIT_CODE))]
    if dependencies is not None:
        found.append(work_edges(rows, dependencies))
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


class TableMaker:
    """Knows what the codes in the rows of a recorder mean, but for names.

    Parameters
    ----------
    backend
        Whose device and clock are told of.
    threads, lanes, places, markers, kernels
        The recorder's tables.
    now_ns
        The present time on the backend's clock; asking costs no virtual time.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        threads: ThreadNames,
        lanes: LaneTable,
        places: Places,
        markers: Markers,
        kernels: KernelTier,
        now_ns: Callable[[], int],
    ) -> None:
        self._backend = backend
        self._threads = threads
        self._lanes = lanes
        self._places = places
        self._markers = markers
        self._kernels = kernels
        self._now_ns = now_ns
        self._unselected_before = 0
        self._made: tuple[tuple[object, ...], Tables | None] = (), None
        self.forget()

    @property
    def version(self) -> tuple[int, ...]:
        """What changes whenever a table does."""
        self._markers.settle_cell()
        counts = self._threads.count, self._places.edit_count, self._markers.edit_count
        return (*counts, self._lanes.edit_count, self._kernels.edit_count)

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected that no span tells of, since `forget`; 0 where the backend does not count it."""
        return getattr(self._backend, "unselected_work", 0) - self._unselected_before

    def forget(self) -> None:
        """Count work with no stream selected from now on."""
        self._unselected_before = getattr(self._backend, "unselected_work", 0)

    def make(self, version: tuple[object, ...], *, title: str, dropped_count: int, is_anew: bool) -> Tables:
        """Return all tables as they are now, or for a reader that knows this version, as they were when it was new."""
        kept_version, kept = self._made
        if version == kept_version and kept is not None and not is_anew:
            return kept
        to_clock_ns = self._backend.host_to_clock_ns
        made = Tables(
            lanes=self._lanes.all,
            threads=self._threads.texts,
            partitions=self._places.partitions,
            layouts=self._places.changes(to_clock_ns),
            markers=self._markers.changes(to_clock_ns),
            metadata=self._metadata(title, dropped_count),
        )
        self._made = version, made
        return made

    def _metadata(self, title: str, dropped_count: int) -> TraceMetadata:
        clock, kernels = self._backend.clock_info(), self._kernels
        return TraceMetadata(
            backend=self._backend.name,
            device=self._backend.device,
            clock=clock.description,
            clock_error_ns=clock.clock_error_ns,
            range_error_ns=clock.range_error_ns,
            range_correction_ns=clock.range_correction_ns,
            host_error_ns=clock.host_error_ns,
            tier=CaptureTier.KERNELS if kernels.windows.were_any else CaptureTier.RANGES,
            capture_windows=kernels.windows.until(self._now_ns),
            capture_source=kernels.description if kernels.windows.were_any else "",
            capture_note=kernels.note,
            kernel_error_ns=kernels.error_ns if kernels.windows.were_any else 0,
            dropped_spans=dropped_count,
            dropped_records=kernels.dropped_count,
            dropped_markers=self._markers.dropped_count,
            epoch_unix_ns=clock.epoch_unix_ns,
            title=title,
        )
