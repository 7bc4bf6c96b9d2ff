"""Make traces of rows, with the tables that their codes point into and how all of it was measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends import Backend
from gpustreamlab.model import Edges, Lane, LayoutChange, Marker, Partition, Trace, TraceMetadata, WorkDetail
from gpustreamlab.record._buffer import SPAN_COLUMNS
from gpustreamlab.record._extents import ANNOTATION_CODE, RANGE_CODE, NumberPlaces, adopt_by_annotations, is_work
from gpustreamlab.record._kernel_tier import NO_WORK, WAIT_CODE, KernelTier, WorkTables, extra_columns, work_edges
from gpustreamlab.record._lanes import LaneTable, Places
from gpustreamlab.record._markers import Markers
from gpustreamlab.record._names import NameTable, ThreadNames
from gpustreamlab.record._ranges import RecordedLane
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
        The columns of `SPAN_COLUMNS`, shape (n_spans,) each.
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


class TraceMaker:
    """Knows what the codes in the rows of a recorder mean.

    Parameters
    ----------
    backend
        Whose device and clock are told of.
    names, threads, lanes, places, markers, kernels
        The recorder's tables.
    now_ns
        The present time on the backend's clock; asking costs no virtual time.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        names: NameTable,
        threads: ThreadNames,
        lanes: LaneTable,
        places: Places,
        markers: Markers,
        kernels: KernelTier,
        now_ns: Callable[[], int],
    ) -> None:
        self._backend = backend
        self._names = names
        self._threads = threads
        self._lanes = lanes
        self._places = places
        self._markers = markers
        self._kernels = kernels
        self._now_ns = now_ns
        self._unselected_before = 0
        self.forget()

    @property
    def version(self) -> tuple[int, ...]:
        """What changes whenever a table does."""
        self._markers.settle_cell()
        counts = self._names.count, self._threads.count, self._places.edit_count, self._markers.edit_count
        return (*counts, self._lanes.edit_count, self._kernels.edit_count)

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected that no span tells of, since `forget`; 0 where the backend does not count it."""
        return getattr(self._backend, "unselected_work", 0) - self._unselected_before

    def forget(self) -> None:
        """Count work with no stream selected from now on."""
        self._unselected_before = getattr(self._backend, "unselected_work", 0)

    def make(
        self,
        columns: Mapping[str, Int64Array],
        edges: Sequence[tuple[int, int]],
        *,
        title: str,
        dropped_count: int,
        pending_count: int,
        unselected_work: int,
    ) -> Trace:
        """Return rows as a trace; `edges` are pairs of range numbers, of which the second waited for the first."""
        metadata = self._metadata(
            title, dropped_count=dropped_count, pending_count=pending_count, unselected_work=unselected_work
        )
        return self._build(columns, names=self._names.texts, edges=edges, metadata=metadata, work=self._kernels.tables())

    def make_tables(self, *, title: str, dropped_count: int) -> Trace:
        """Return a trace without spans, their names and edges: all that stays small. It has every lane."""
        columns = {name: np.empty(0, np.int64) for name in SPAN_COLUMNS}
        metadata = self._metadata(title, dropped_count=dropped_count, pending_count=0)
        return self._build(columns, names=(), edges=(), metadata=metadata, work=NO_WORK, keeps_lanes=True)

    def _build(
        self,
        columns: Mapping[str, Int64Array],
        *,
        names: Sequence[str],
        edges: Sequence[tuple[int, int]],
        metadata: TraceMetadata,
        work: WorkTables,
        keeps_lanes: bool = False,
    ) -> Trace:
        # The tables are read last: what points into them is known by now, and they only grow.
        return build_trace(
            columns,
            names=names,
            lanes=self._lanes.all,
            threads=self._threads.texts,
            edges=edges,
            partitions=self._places.partitions,
            layouts=self._places.changes(self._backend.host_to_clock_ns),
            markers=self._markers.changes(self._backend.host_to_clock_ns),
            metadata=metadata,
            work=work,
            keeps_lanes=keeps_lanes,
        )

    def _metadata(self, title: str, *, dropped_count: int, pending_count: int, unselected_work: int = 0) -> TraceMetadata:
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
            pending_spans=pending_count,
            unselected_work=unselected_work,
            epoch_unix_ns=clock.epoch_unix_ns,
            title=title,
        )


KEPT_EDGES = 256
"""Edges kept that wait for the next range of a lane; the newest count."""


class RangeEdges:
    """Pairs of range numbers, of which the second waited for the first. Who uses them holds the recorder's lock.

    Parameters
    ----------
    limit
        How many are kept; the newest count.
    """

    def __init__(self, limit: int) -> None:
        self._pairs: deque[tuple[int, int]] = deque(maxlen=limit)
        self._count = 0

    @property
    def all(self) -> tuple[tuple[int, int], ...]:
        """Those that are kept."""
        return tuple(self._pairs)

    def add(self, source_number: int, target_number: int) -> None:
        """Note that an open range waits for an earlier range."""
        self._count += 1
        self._pairs.append((source_number, target_number))

    def begin(self, source_number: int, target: RecordedLane) -> None:
        """Note that the next range of a lane waits for an earlier range."""
        target.incoming.append(source_number)
        del target.incoming[:-KEPT_EDGES]

    def end(self, lane: RecordedLane, number: int) -> None:
        """Let those that wait for a lane's next range end at it."""
        incoming, lane.incoming = lane.incoming, []
        for source in incoming:
            self.add(source, number)

    def since(self, cursor: int) -> tuple[tuple[tuple[int, int], ...], int]:
        """Return those that came since a cursor, and the next cursor."""
        fresh = min(self._count - cursor, len(self._pairs))
        return tuple(islice(self._pairs, len(self._pairs) - fresh, None)), self._count

    def clear(self) -> None:
        """Forget them; cursors go on."""
        self._pairs.clear()
