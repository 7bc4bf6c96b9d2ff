"""Which layer of its lane a span is drawn in: named ranges above, what they enqueued below."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import Int64Array, SpanKind


class Layer(IntEnum):
    """A layer of a lane, from the top."""

    NAMED = 0
    """Ranges on streams, and ranges of others (NVTX) on threads of the host."""
    WORK = 1
    """Kernels, copies and fills on streams, and calls on threads of the host."""


class Level(IntEnum):
    """Spans that share rows. Those of two levels never lie in one row."""

    RANGE = 0
    """Ranges: they nest by their parents, and so does all that is of no other level."""
    ANNOTATION = 1
    """Ranges of others: they nest by time."""
    WORK = 2
    """Kernels, copies and fills: they follow each other, but for those of one graph."""
    CALL = 3
    """Calls of the host: they nest by time, where one is made of others."""

    @property
    def layer(self) -> Layer:
        """The layer that it belongs to."""
        return Layer.NAMED if self in {Level.RANGE, Level.ANNOTATION} else Layer.WORK


_LEVELS = {
    SpanKind.KERNEL: Level.WORK,
    SpanKind.COPY: Level.WORK,
    SpanKind.FILL: Level.WORK,
    SpanKind.HOST: Level.CALL,
    SpanKind.ANNOTATION: Level.ANNOTATION,
}

LEVEL_OF_KIND: Int64Array = np.array([_LEVELS.get(kind, Level.RANGE) for kind in SPAN_KINDS], np.int64)
"""Level by the code of the kind; shape (n_kinds,), int64."""

LAYER_OF_LEVEL: Int64Array = np.array([level.layer for level in Level], np.int64)
"""Layer by level; shape (n_levels,), int64."""

LEVEL_COUNT = len(Level)

LEVEL_TOLERANCE_NS = 100
"""Spans of any level but ranges that overlap by no more than this follow each other: no clock of a device is better."""
