"""Waits that are in a trace twice: between two ranges, and between the work in them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpustreamlab.analysis import is_work
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, EdgeKind, Int64Array, SpanKind

_CLIMB_LIMIT = 32


def wait_twins(trace: Trace) -> Int64Array:
    """Return for each wait between two ranges where the wait between work in them is.

    Returns
    -------
    ndarray of int64, shape (n_edges,)
        How many waits behind it that one comes, other edges not counted; less than 0 where it comes before; 0 where there is
        none, and for all other edges.
    """
    twins = np.zeros(len(trace.edges), np.int64)
    edges = np.flatnonzero(trace.edges.kind == EDGE_KINDS.index(EdgeKind.WAIT))
    source, target = trace.edges.source[edges].astype(np.int64), trace.edges.target[edges].astype(np.int64)
    is_range, works = trace.kind == SPAN_KINDS.index(SpanKind.RANGE), is_work(trace)
    of_ranges = np.flatnonzero(is_range[source] & is_range[target])
    of_work = np.flatnonzero(works[source] & works[target])
    if not (of_ranges.size and of_work.size):
        return twins
    keys = source[of_ranges] * len(trace) + target[of_ranges]
    order = np.argsort(keys, kind="stable")
    own, keys = of_ranges[order], keys[order]
    for outer_source, is_left in _ancestors(trace, source[of_work]):
        for outer_target, is_there in _ancestors(trace, target[of_work]):
            known = np.flatnonzero(is_left & is_there)
            wanted = outer_source[known] * len(trace) + outer_target[known]
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            found = keys[place] == wanted
            twins[edges[own[place[found]]]] = of_work[known[found]] - own[place[found]]
    return twins


def _ancestors(trace: Trace, rows: Int64Array) -> Iterator[tuple[Int64Array, BoolArray]]:
    """Yield the parents of rows, then the parents of those and so on, and which there are."""
    for _ in range(_CLIMB_LIMIT):
        rows = np.where(rows >= 0, trace.parent[rows], -1).astype(np.int64)
        if not (rows >= 0).any():
            return
        yield rows, rows >= 0
