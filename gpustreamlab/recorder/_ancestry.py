"""Parents among all rows of a trace, and what work lies below each range."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.recorder._intervals import Intervals, find_innermost
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
ANNOTATION_CODE = SPAN_KINDS.index(SpanKind.ANNOTATION)
HOST_CODE = SPAN_KINDS.index(SpanKind.HOST)


class NumberPlaces:
    """Finds rows by their numbers.

    Parameters
    ----------
    numbers
        Of the rows; shape (n,), int64.
    """

    def __init__(self, numbers: Int64Array) -> None:
        self._order = np.argsort(numbers, kind="stable")
        self._sorted = numbers[self._order]

    def rows_of(self, numbers: Int64Array) -> Int64Array:
        """Return the row of each number, or -1 where there is none."""
        if not self._sorted.size:
            return np.full(len(numbers), -1, np.int64)
        at = np.minimum(np.searchsorted(self._sorted, numbers), len(self._sorted) - 1)
        return np.where(self._sorted[at] == numbers, self._order[at], -1).astype(np.int64)


def is_work(kind: Int64Array) -> BoolArray:
    """Tell which rows are kernels, copies and fills."""
    found: BoolArray = (kind > RANGE_CODE) & (kind <= SPAN_KINDS.index(SpanKind.FILL))
    return found


def adopt_by_annotations(rows: Mapping[str, Int64Array], parent: Int64Array) -> Int64Array:
    """Return the parents, with annotations where those are nearer than the range.

    Parameters
    ----------
    rows
        Columns of the trace in its order. Work is inside what its thread had open when it was launched.
    parent
        The row of each one's range, or -1; shape (n,), int64.
    """
    is_launch = rows["number"] < 0  # of a graph: it was launched as its nodes were
    annotated = np.flatnonzero((rows["kind"] == ANNOTATION_CODE) & ~is_launch)
    asking = np.flatnonzero((rows["kind"] != RANGE_CODE) & (rows["thread"] >= 0))
    if not len(annotated):
        return parent
    columns = (rows["thread"], rows["start_ns"], rows["end_ns"], np.arange(len(parent)))
    intervals = Intervals(*(column[annotated] for column in columns))
    at_ns = np.where(is_work(rows["kind"]) | is_launch, rows["queued_ns"], rows["start_ns"])
    found = find_innermost(intervals, rows["thread"][asking], at_ns[asking], itself=_places_among(asking, annotated))
    row = np.where(found >= 0, annotated[found], -1)
    known = parent[asking]
    # A range that is around the annotation too was open when that began, and is no newer than the innermost one then.
    is_around = ~is_launch[known] & (rows["parent"][asking] <= rows["parent"][row])
    is_nearer = (row >= 0) & ((known < 0) | is_around)
    adopted = parent.copy()
    adopted[asking] = np.where(is_nearer, row, known)
    return adopted


def _places_among(rows: Int64Array, wanted: Int64Array) -> Int64Array:
    """Return the place of each row among the wanted ones, both ascending, or -1."""
    at = np.minimum(np.searchsorted(wanted, rows), len(wanted) - 1)
    return np.where(wanted[at] == rows, at, -1)


def span_work(rows: Mapping[str, Int64Array], parent: Int64Array) -> dict[str, Int64Array]:
    """Return for each row the first start, the last end and the number of the work at any depth below it.

    Ranges and annotations without any, and calls, have their own start twice; work has its own start and end.
    """
    kind, start_ns, end_ns = rows["kind"], rows["start_ns"], rows["end_ns"]
    works = is_work(kind)
    first_ns, last_ns = start_ns.copy(), np.where(works, end_ns, start_ns)
    count = works.astype(np.int64)
    holds = (kind == RANGE_CODE) | (kind == ANNOTATION_CODE)
    first_ns[holds], last_ns[holds] = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    inside = np.flatnonzero(works & (parent >= 0))
    for level in (inside, *_levels(np.flatnonzero(holds), parent)):
        above = parent[level]
        order = np.argsort(above, kind="stable")
        level, above = level[order], above[order]  # noqa: PLW2901 - the same, in order
        heads = np.flatnonzero(np.diff(above, prepend=-1))
        if len(heads):
            into = above[heads]
            first_ns[into] = np.minimum(first_ns[into], np.minimum.reduceat(first_ns[level], heads))
            last_ns[into] = np.maximum(last_ns[into], np.maximum.reduceat(last_ns[level], heads))
            count[into] += np.add.reduceat(count[level], heads)
    is_empty = holds & (count == 0)
    first_ns[is_empty] = last_ns[is_empty] = start_ns[is_empty]
    return {"work_start_ns": first_ns, "work_end_ns": last_ns, "work_count": count}


def _levels(holders: Int64Array, parent: Int64Array) -> list[Int64Array]:
    """Return the rows that have parents, those that lie deepest first."""
    depth = np.zeros(len(holders), np.int64)
    climbing, above = np.arange(len(holders)), parent[holders]
    while climbing.size:
        is_inside = above >= 0
        climbing, above = climbing[is_inside], above[is_inside]
        depth[climbing] += 1
        above = parent[above]
    order = np.argsort(-depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order], prepend=-1))
    return [block for block in np.split(holders[order], bounds[1:]) if len(block) and parent[block[0]] >= 0]
