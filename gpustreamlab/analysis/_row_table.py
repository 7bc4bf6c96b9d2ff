"""The rows of bars of a timeline, with codes that spans refer to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from gpustreamlab.analysis._distinct import distinct
from gpustreamlab.analysis._rows import Rows, assign_rows
from gpustreamlab.model import Trace
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array

LEAST_SHARE = 0.3
"""Lowest bar beside the highest of its lane, so that it can still be seen and hit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTable:
    """Rows by their code. Rows are only ever added, so that a code keeps its meaning."""

    lane: Int64Array
    """Lane of each row; shape (n_rows,), int64."""
    shelf: Int64Array
    """Which sub-row of its lane each is, from the top, over all layers; several rows may share one; shape (n_rows,), int64."""
    share: FloatArray
    """Height of its bars as a share of the sub-row: less than 1 where a partition had fewer SMs; shape (n_rows,), float64."""
    overlaps: BoolArray
    """Whether its spans may cover each other. In all other rows starts and ends both are in order; shape (n_rows,), bool."""
    layer: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """`Layer` of each row: 0 for ranges, 1 for the work, or the calls, below them; shape (n_rows,), int64; all 0 if left
    out."""
    lane_sms: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """The most SMs that spans of each lane ran with, 0 where there are none: those of a share of 1; shape (n_lanes,), int64;
    empty if nothing ran in a partition."""
    folded_spans: int = field(default=0)
    """Spans that were folded into a row where they may cover others."""

    def __post_init__(self) -> None:
        if not len(self.layer):
            object.__setattr__(self, "layer", np.zeros(len(self.lane), np.int64))

    def __len__(self) -> int:
        return len(self.lane)


def span_rows(trace: Trace) -> tuple[RowTable, Int64Array]:
    """Give each span of a trace its row.

    Returns
    -------
    tuple of RowTable and ndarray of int64, shape (n_spans,)
        The rows: those of the first lane, then those of the second, and so on, and behind them lower ones for spans that ran
        with fewer SMs than others of their lane. Then the code of each span's row. Every lane has a row.

    Notes
    -----
    Spans of a row that does not overlap still may by as much as the trace's own stated error, as `assign_rows` says.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 500, 0], end_ns=[1000, 900, 5], queued_ns=[0, 0, 0], lane=[0, 0, 1], name=[0, 1, 1], kind=[0, 0, 0],
    ...     parent=[-1, 0, -1], thread=[-1, -1, -1], names=("step", "gemm"), lanes=(Lane(name="a"), Lane(name="b")),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> rows, codes = span_rows(trace)
    >>> codes.tolist(), rows.lane.tolist(), rows.shelf.tolist()
    ([0, 1, 2], [0, 0, 1], [0, 1, 0])
    """
    rows = assign_rows(trace)
    table = _plain_table(trace, rows)
    if not trace.partitions:
        return table, rows.row.astype(np.int64)
    return _add_lower_rows(trace, table, rows.row.astype(np.int64))


def _plain_table(trace: Trace, rows: Rows) -> RowTable:
    lane = np.repeat(np.arange(len(trace.lanes)), rows.row_count)
    shelf = np.arange(rows.total) - np.repeat(rows.first_row, rows.row_count)
    return RowTable(
        lane=lane,
        shelf=shelf,
        share=np.ones(rows.total),
        layer=rows.layer,
        overlaps=rows.is_folded,
        folded_spans=rows.folded_spans,
    )


def _add_lower_rows(trace: Trace, table: RowTable, row: Int64Array) -> tuple[RowTable, Int64Array]:
    """Give spans that ran with fewer SMs than others of their lane a lower row in the middle of theirs."""
    sms = _sms_of_spans(trace)
    most = np.zeros(len(trace.lanes), np.int64)
    np.maximum.at(most, trace.lane, sms)
    table = replace(table, lane_sms=most)
    lower = np.flatnonzero(sms < most[trace.lane])
    if not lower.size:
        return table, row
    key = row[lower] * (int(most.max()) + 1) + sms[lower]
    keys, number = distinct(key)
    place = np.empty(len(keys), np.int64)
    place[number] = lower
    base = row[place]
    share = np.maximum(LEAST_SHARE, sms[place] / most[table.lane[base]])
    codes = row.copy()
    codes[lower] = len(table) + number
    lowered = replace(
        table,
        lane=np.concatenate((table.lane, table.lane[base])),
        shelf=np.concatenate((table.shelf, table.shelf[base])),
        share=np.concatenate((table.share, share)),
        layer=np.concatenate((table.layer, table.layer[base])),
        overlaps=np.concatenate((table.overlaps, table.overlaps[base])),
    )
    return lowered, codes


def _sms_of_spans(trace: Trace) -> Int64Array:
    """Return how many SMs each span could use; shape (n_spans,), int64."""
    counts = [part.granted_sms for part in trace.partitions] + [trace.metadata.device.sm_count]  # -1, the whole card, is last
    sms: Int64Array = np.array(counts, np.int64)[trace.partition]
    return sms
