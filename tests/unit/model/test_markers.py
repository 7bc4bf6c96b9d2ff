"""Markers as values of a trace."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.errors import TraceError
from gpustreamlab.model import Marker, Trace
from gpustreamlab.typing import MarkerKind
from tests.helpers.files import rewrite
from tests.helpers.traces import pipeline_trace


def with_markers(trace, *markers):
    fields = {name: getattr(trace, name) for name in trace.__slots__} | {"markers": markers}
    return Trace(**fields)


def test_markers_are_saved_and_loaded(tmp_path):
    marker = Marker(time_ns=5, text="名前", kind=MarkerKind.CELL)
    with_markers(pipeline_trace(), marker).save(tmp_path / "run.parquet")

    assert Trace.load(tmp_path / "run.parquet").markers == (marker,)


def test_a_file_from_before_markers_has_none(tmp_path):
    path = tmp_path / "run.parquet"
    pipeline_trace().save(path)

    def make_old(table, facts, metadata):
        del facts["markers"], facts["metadata"]["dropped_markers"]

    rewrite(path, make_old)

    loaded = Trace.load(path)
    assert (loaded.markers, loaded.metadata.dropped_markers) == ((), 0)


@pytest.mark.parametrize(("text", "kind"), [(5, "mark"), ("a", "celll")])
def test_a_marker_that_cannot_be_is_refused(text, kind):
    with pytest.raises(TraceError, match="Marker"):
        Marker(time_ns=0, text=text, kind=kind)


@pytest.mark.parametrize("time_ns", ["x", None, 1.5, float("nan"), True, 1 << 70])
def test_a_moment_that_cannot_be_is_refused(time_ns):
    with pytest.raises(TraceError, match="time_ns"):
        Marker(time_ns=time_ns, text="a", kind="mark")


def test_a_moment_of_numpy_is_saved_as_any_other(tmp_path):
    marker = Marker(time_ns=np.int64(5), text="a", kind="mark")
    with_markers(pipeline_trace(), marker).save(tmp_path / "run.parquet")

    assert Trace.load(tmp_path / "run.parquet").markers[0].time_ns == 5


def test_markers_stand_in_order_of_time():
    late, early = (Marker(time_ns=time_ns, text="a", kind="mark") for time_ns in (9, 2))

    assert with_markers(pipeline_trace(), late, early).markers == (early, late)
