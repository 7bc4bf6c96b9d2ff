"""Bars as high as the SMs that their span had, where a partition changed its size."""

from __future__ import annotations

import numpy as np

from gpustreamlab.model import Trace
from gpustreamlab.typing import FloatArray, Int64Array

LEAST_SHARE = 0.3
"""Lowest bar beside the highest of its lane, so that it can still be seen and hit."""


def add_lower_rows(
    trace: Trace, row: Int64Array, row_top: FloatArray, row_bottom: FloatArray, row_lane: Int64Array
) -> tuple[Int64Array, FloatArray, FloatArray, Int64Array]:
    """Give spans that ran with fewer SMs than others of their lane a lower row in the middle of theirs.

    Parameters
    ----------
    trace
        The spans.
    row : ndarray of int64, shape (n_spans,)
        The row of each span.
    row_top, row_bottom : ndarray of float64, shape (n_rows,)
        Borders of the rows' bars, in px from the top.
    row_lane : ndarray of int64, shape (n_rows,)
        Lane of each row.

    Returns
    -------
    tuple of four ndarrays
        The same, with rows added behind the others; unchanged where no lane changed its SMs.
    """
    sms = _sms_of_spans(trace)
    most = np.zeros(len(trace.lanes), np.int64)
    np.maximum.at(most, trace.lane, sms)
    lower = np.flatnonzero(sms < most[trace.lane])
    if not lower.size:
        return row, row_top, row_bottom, row_lane
    pairs, code = np.unique(np.stack((row[lower], sms[lower])), axis=1, return_inverse=True)
    base, share = pairs[0], np.maximum(LEAST_SHARE, pairs[1] / most[row_lane[pairs[0]]])
    middle = (row_top[base] + row_bottom[base]) / 2
    half = (row_bottom[base] - row_top[base]) / 2 * share
    placed = row.copy()
    placed[lower] = len(row_top) + code.ravel()
    return (
        placed,
        np.concatenate((row_top, middle - half)),
        np.concatenate((row_bottom, middle + half)),
        np.concatenate((row_lane, row_lane[base])),
    )


def _sms_of_spans(trace: Trace) -> Int64Array:
    """Return how many SMs each span could use; shape (n_spans,), int64."""
    counts = [part.granted_sms for part in trace.partitions] + [trace.metadata.device.sm_count]  # -1, the whole card, is last
    sms: Int64Array = np.array(counts, np.int64)[trace.partition]
    return sms
