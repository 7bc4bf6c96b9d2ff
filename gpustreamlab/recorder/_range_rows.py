"""Turn closed ranges whose work has ended into rows of the ring."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpustreamlab.backends import Backend
from gpustreamlab.recorder._ancestry import RANGE_CODE
from gpustreamlab.recorder._ranges import FinishedRange, RecordedLane
from gpustreamlab.typing import Int64Array


def range_columns(
    backend: Backend, lane: RecordedLane, rows: Sequence[FinishedRange], threads: Sequence[int]
) -> dict[str, Int64Array]:
    """Return the columns of ranges of one lane; their times are put on the backend's clock."""
    pairs, names, queued, numbers, parents, _ = zip(*rows, strict=True)
    starts, ends = zip(*pairs, strict=True)
    times = backend.resolve(starts, ends, np.array(queued, np.int64))
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
        "correlation": np.zeros(count, np.int64),
    }
