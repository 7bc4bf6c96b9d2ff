"""What a trace has beyond ranges once kernels were captured: its columns, and the edges of calls and kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.model import EDGE_KINDS, Counters, WorkDetail
from gpustreamlab.recorder._ancestry import HOST_CODE, is_work, span_work
from gpustreamlab.recorder._dependencies import DEPENDENCY_COLUMNS, find_waits
from gpustreamlab.typing import EdgeKind, Int64Array

WAIT_CODE = EDGE_KINDS.index(EdgeKind.WAIT)
LAUNCH_CODE = EDGE_KINDS.index(EdgeKind.LAUNCH)


class WorkTables(NamedTuple):
    """What the recorder knows of work beside its rows."""

    details: tuple[WorkDetail, ...]
    """By their code."""
    counters: Counters
    """Memory of streams."""
    dependencies: Mapping[str, Int64Array]
    """Which stream was told to wait for which."""
    were_captured: bool
    """Whether kernels were captured at any time."""


NO_WORK = WorkTables((), Counters(), dict.fromkeys(DEPENDENCY_COLUMNS, np.empty(0, np.int64)), were_captured=False)
"""Stands where no kernels were captured."""


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
    rows: Mapping[str, Int64Array], dependencies: Mapping[str, Int64Array]
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return edges as source, target and code of the kind: from calls to what they launched, and between work that waited."""
    work = np.flatnonzero(is_work(rows["kind"]))
    correlation = rows["correlation"][work]
    first, second = find_waits(dependencies, rows["lane"][work], correlation)
    call, launched = _find_launches(rows, work, correlation)
    codes = np.concatenate((np.full(len(first), WAIT_CODE), np.full(len(call), LAUNCH_CODE)))
    return np.concatenate((work[first], call)), np.concatenate((work[second], launched)), codes


def _find_launches(rows: Mapping[str, Int64Array], work: Int64Array, correlation: Int64Array) -> tuple[Int64Array, Int64Array]:
    calls = np.flatnonzero((rows["kind"] == HOST_CODE) & (rows["correlation"] != 0))
    if not len(calls) or not len(work):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(rows["correlation"][calls], kind="stable")
    known = rows["correlation"][calls][order]
    at = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    is_found = known[at] == correlation
    return calls[order[at[is_found]]], work[is_found]
