"""What a trace tells of kernels, copies and fills beyond when they ran: in which range, how, and how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import display_name, host_waits, is_work, nearest_ranges, strays
from gpustreamlab.model import SPAN_KINDS, Trace, WorkDetail
from gpustreamlab.typing import CaptureTier, Int64Array, SpanKind

DETAIL_CHARACTERS = 1_000
"""How many characters of a kernel's full name the viewer gets."""

NO_WAIT = -2
"""What stands for the name of what a call waited for where a span is no call that blocked the host; -1: for nothing known."""


def owner_rows(trace: Trace) -> Int64Array:
    """Return the range in which each kernel, copy and fill was launched, -1 for none and for all else; shape (n_spans,)."""
    owner = np.full(len(trace), -1, np.int64)
    work = np.flatnonzero(is_work(trace))
    owner[work] = nearest_ranges(trace, work)
    return owner


def stray_facts(trace: Trace) -> list[str]:
    """Say in one line what left the stream that its range had selected; empty where nothing did."""
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return []
    found = strays(trace)
    return [str(found).partition("\n")[0]] if found else []


def work_columns(trace: Trace) -> Mapping[str, NDArray[Any]]:
    """Return the columns of `SpanColumns` that tell of device work; empty where no kernels were captured.

    Returns
    -------
    mapping of str to ndarray, shape (n_spans,) each
        ``detail``, ``size_bytes``, ``owner_name``, ``owner_lane``, ``work_lead_ns``, ``work_tail_ns``, ``work_count``,
        ``waited_name``.
    """
    extra = trace.extra
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return {}
    columns: dict[str, NDArray[Any]] = {name: extra[name] for name in ("detail", "size_bytes") if name in extra}
    owner = owner_rows(trace)
    columns["owner_name"] = np.where(owner >= 0, trace.name[owner], -1)
    columns["owner_lane"] = np.where(owner >= 0, trace.lane[owner], -1)
    if "work_count" in extra:
        is_holder = (extra["work_count"] > 0) & ~is_work(trace)
        columns["work_lead_ns"] = np.where(is_holder, extra["work_start_ns"] - trace.start_ns, 0)
        columns["work_tail_ns"] = np.where(is_holder, trace.end_ns - extra["work_end_ns"], 0)
        columns["work_count"] = np.where(is_holder, extra["work_count"], 0)
    if SPAN_KINDS.index(SpanKind.HOST) in trace.kind:
        waits = host_waits(trace)
        columns["waited_name"] = np.full(len(trace), NO_WAIT)
        columns["waited_name"][waits.row] = waits.waited_name
    return columns


def detail_entries(details: Sequence[WorkDetail]) -> list[list[Any]]:
    """Write details as the viewer reads them: full name, grid, block, registers, static and dynamic shared memory, graph.

    Examples
    --------
    >>> detail_entries([WorkDetail(full_name="scale(float*)", grid=(4, 1, 1), block=(256, 1, 1), registers=24)])
    [['scale(float*)', [4, 1, 1], [256, 1, 1], 24, 0, 0, 0]]
    """
    return [
        [
            display_name(detail.full_name, DETAIL_CHARACTERS),
            list(detail.grid),
            list(detail.block),
            detail.registers,
            detail.static_shared_bytes,
            detail.dynamic_shared_bytes,
            detail.graph,
        ]
        for detail in details
    ]
