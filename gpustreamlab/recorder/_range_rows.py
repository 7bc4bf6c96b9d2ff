"""Turn closed ranges whose work has ended into rows of the ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpustreamlab.backends import Backend, RangeTimes
from gpustreamlab.recorder._ancestry import RANGE_CODE
from gpustreamlab.recorder._extents import WorkExtents
from gpustreamlab.recorder._ranges import NO_EVENTS, FinishedRange, RecordedLane
from gpustreamlab.typing import Int64Array

TIMED_BY_WORK = -1
"""Stands in the column ``correlation``, which says nothing else of a range, where it was timed by the work inside it."""


def range_columns(
    backend: Backend, lane: RecordedLane, rows: Sequence[FinishedRange], threads: Sequence[int], extents: WorkExtents
) -> dict[str, Int64Array]:
    """Return the columns of ranges of one lane; their times are put on the backend's clock.

    Parameters
    ----------
    rows
        All with two events, all without, or all with one at their end: what has no event is timed by `extents`.
    """
    pairs, names, queued, numbers, parents, _ = zip(*rows, strict=True)
    queued_host_ns = np.array(queued, np.int64)
    starts, ends = zip(*pairs, strict=True)
    if starts[0] is None:
        times = _times_by_work(backend, queued_host_ns, np.array(numbers, np.int64), extents)
        if ends[0] is not None:
            times = times._replace(end_ns=np.maximum(times.start_ns, backend.resolve(ends, ends, queued_host_ns).end_ns))
    else:
        times = backend.resolve(starts, ends, queued_host_ns)
    count = len(rows)
    return {
        "start_ns": times.start_ns,
        "end_ns": times.end_ns,
        "queued_ns": times.queued_ns,
        "lane": np.full(count, lane.index, np.int64),
        "name": np.array(names, np.int64),
        "kind": np.full(count, RANGE_CODE, np.int64),
        "parent": np.array(parents, np.int64),
        "thread": np.array(threads, np.int64),
        "partition": np.full(count, lane.partition, np.int64),
        "number": np.array(numbers, np.int64),
        "detail": np.full(count, -1, np.int64),
        "size_bytes": np.zeros(count, np.int64),
        "correlation": np.full(count, TIMED_BY_WORK if pairs[0] is NO_EVENTS else 0, np.int64),
    }


def _times_by_work(backend: Backend, queued_host_ns: Int64Array, numbers: Int64Array, extents: WorkExtents) -> RangeTimes:
    # Between the first and the last the two clocks drift evenly, as far as the host's error goes: two questions are enough.
    bounds = [int(queued_host_ns.min()), int(queued_host_ns.max())]
    ahead_ns = [backend.host_to_clock_ns(bound) - bound for bound in bounds]
    queued_ns = queued_host_ns + np.rint(np.interp(queued_host_ns, bounds, ahead_ns)).astype(np.int64)
    start_ns, end_ns = extents.times(numbers, queued_ns)
    return RangeTimes(start_ns, end_ns, np.minimum(queued_ns, start_ns))
