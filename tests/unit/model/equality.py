"""Bit-for-bit equality of traces."""

from __future__ import annotations

import dataclasses

import numpy as np

from gpustreamlab import Trace
from gpustreamlab.model import COLUMN_DTYPES


def assert_same_trace(got: Trace, wanted: Trace) -> None:
    """Fail unless the traces are equal in every value and dtype; NaN equals NaN of the same bits."""
    for name in COLUMN_DTYPES:
        assert_same_column(getattr(got, name), getattr(wanted, name))
    assert list(got.extra) == list(wanted.extra)
    for name, column in wanted.extra.items():
        assert_same_column(got.extra[name], column)
    for part in ("edges", "counters"):
        assert_same_part(getattr(got, part), getattr(wanted, part))
    for name in ("names", "lanes", "threads", "metadata", "partitions", "layout", "layouts", "markers", "notes"):
        assert getattr(got, name) == getattr(wanted, name)


def assert_same_part(got: object, wanted: object) -> None:
    for item in dataclasses.fields(wanted):
        mine, theirs = getattr(got, item.name), getattr(wanted, item.name)
        if isinstance(theirs, np.ndarray):
            assert_same_column(mine, theirs)
        else:
            assert mine == theirs


def assert_same_column(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.dtype == wanted.dtype
    assert got.tobytes() == wanted.tobytes()
