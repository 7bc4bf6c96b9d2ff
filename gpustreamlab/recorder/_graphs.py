"""Launches of CUDA graphs as spans of their own: each covers the nodes that it ran in one lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.model import WorkDetail
from gpustreamlab.recorder._ancestry import ANNOTATION_CODE, is_work
from gpustreamlab.typing import Int64Array

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
