"""Which ranges may hold work that was not captured."""

from __future__ import annotations

import numpy as np

from gpustreamlab.analysis._busy import RANGE_CODE, uncut_ns, union_edges
from gpustreamlab.analysis._require import require_trace
from gpustreamlab.model import Trace
from gpustreamlab.typing import BoolArray


def partly_captured(trace: Trace) -> BoolArray:
    """Tell which ranges were open both while kernels were captured and while they were not.

    Their ``work_count``, ``work_start_ns`` and ``work_end_ns`` may tell of a part of their work only.

    Parameters
    ----------
    trace
        The spans.

    Returns
    -------
    ndarray of bool, shape (n_spans,)
        False for all that is no range, for ranges from whose enqueueing to whose end kernels were captured throughout, and for
        those that saw no capture. True, too, for a range whose launches were all captured but whose work ended after that.

    Raises
    ------
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 40, 60], end_ns=[30, 55, 90], queued_ns=[0, 40, 60], lane=[0, 0, 0], name=[0, 0, 0], kind=[0, 0, 0],
    ...     parent=[-1, -1, -1], thread=[0, 0, 0], names=("step",), threads=("MainThread",), lanes=(Lane(name="a", stream=1),),
    ...     metadata=TraceMetadata(
    ...         backend="sim", device=Device(name="demo", sm_count=4), tier="kernels", capture_windows=((50, 100),)
    ...     ),
    ... )
    >>> partly_captured(trace).tolist()
    [False, True, False]
    """
    require_trace(trace, "partly_captured")
    partly: BoolArray = trace.kind == RANGE_CODE
    rows = np.flatnonzero(partly)
    windows = np.array(trace.metadata.capture_windows, np.int64).reshape(-1, 2)
    edges_ns = union_edges(windows[:, 0].copy(), windows[:, 1].copy())
    # A window begins, and a range is enqueued, on the host: their distance is known no better than that clock.
    error_ns = trace.metadata.host_error_ns
    from_ns, until_ns = trace.queued_ns[rows], uncut_ns(trace)[1][rows]
    begun = np.searchsorted(edges_ns, from_ns + error_ns, side="right")
    partly[rows] = np.searchsorted(edges_ns, until_ns - error_ns, side="left") > begun
    return partly
