"""Turn drained rows into a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Edges, Lane, LayoutChange, Marker, Partition, Trace, TraceMetadata
from gpustreamlab.typing import EdgeKind, Int64Array, SpanKind

RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
_WAIT_CODE = EDGE_KINDS.index(EdgeKind.WAIT)


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
    """
    order = np.lexsort((columns["number"], columns["start_ns"]))
    rows = {name: values[order] for name, values in columns.items()}
    place = _NumberPlaces(rows["number"])
    parent = place.rows_of(rows["parent"])
    start_ns, end_ns = _clip_to_parents(rows["start_ns"], rows["end_ns"], rows["lane"], parent)
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    source, target = place.rows_of(pairs[:, 0]), place.rows_of(pairs[:, 1])
    known = (source >= 0) & (target >= 0)
    return Trace(
        start_ns=start_ns,
        end_ns=end_ns,
        queued_ns=np.minimum(rows["queued_ns"], start_ns),
        lane=rows["lane"].astype(np.int32),
        name=rows["name"].astype(np.int32),
        kind=rows["kind"].astype(np.int8),
        parent=parent,
        thread=rows["thread"].astype(np.int32),
        partition=rows["partition"].astype(np.int32),
        names=tuple(names),
        lanes=tuple(lanes),
        threads=tuple(threads),
        partitions=tuple(partitions),
        layout=layouts[-1].layout if layouts else None,
        layouts=tuple(layouts),
        markers=tuple(markers),
        edges=Edges(source=source[known], target=target[known], kind=np.full(int(known.sum()), _WAIT_CODE, np.int8)),
        metadata=metadata,
    )


class _NumberPlaces:
    """Finds the row of a range by its number."""

    def __init__(self, numbers: Int64Array) -> None:
        self._order = np.argsort(numbers)
        self._sorted = numbers[self._order]

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """Return the row of each number, or -1 where there is none."""
        if not self._sorted.size:
            return np.full(len(numbers), -1, np.int64)
        at = np.clip(np.searchsorted(self._sorted, numbers), 0, len(self._sorted) - 1)
        return np.where(self._sorted[at] == numbers, self._order[at], -1).astype(np.int64)


def _clip_to_parents(
    start_ns: Int64Array, end_ns: Int64Array, lane: Int64Array, parent: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Keep each range inside its parent on the same lane: correcting for the events' cost may move them apart by that cost."""
    start_ns, end_ns = start_ns.copy(), end_ns.copy()
    children = np.flatnonzero((parent >= 0) & (lane[parent] == lane))
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
