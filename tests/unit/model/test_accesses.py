"""What work touched stays with its work: in parts of a trace, merged ones and files."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab.errors import TraceError
from gpustreamlab.model import Accesses, Trace, merge, read_trace, write_trace

ROWS = {
    "span": [2, 0, 0, 1],
    "buffer": [2, 1, 0, 1],
    "begin": [0, 0, 0, 8],
    "end": [64, 8, 0, 16],
    "is_write": [True, False, False, True],
    "is_host": [False, True, False, False],
    "certainty": [0, 1, 2, 0],
}


@pytest.fixture
def trace():
    made = Trace.from_columns(
        start_ns=[0, 10, 20], end_ns=[10, 20, 30], stream=["a", "b", "a"], kind="kernel", name=["x", "y", "z"], sm_count=4
    )
    return replace(made, accesses=Accesses(**{name: np.array(values) for name, values in ROWS.items()}))


def rows(accesses):
    return list(zip(*(values.tolist() for values in accesses.columns.values()), strict=True))


def test_accesses_are_ordered_by_their_work_and_cannot_be_changed(trace):
    assert trace.accesses.span.tolist() == [0, 0, 1, 2]
    assert trace.accesses.buffer.tolist() == [1, 0, 1, 2]
    assert trace.accesses.is_write.dtype == bool
    with pytest.raises(ValueError, match="read-only"):
        trace.accesses.buffer[0] = 7


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"span": [3, 0, 0, 1]}, "outside the 3 spans"),
        ({"span": [-1, 0, 0, 1]}, "outside the 3 spans"),
        ({"certainty": [3, 1, 2, 0]}, "certainty"),
        ({"end": [-1, 8, 0, 16]}, "ends before it begins"),
        ({"end": [64]}, "differ in length"),
    ],
    ids=["behind", "before", "certainty", "backwards", "lengths"],
)
def test_what_makes_no_sense_is_refused(trace, change, told):
    with pytest.raises(TraceError, match=told):
        replace(trace, accesses=Accesses(**{name: np.array(values) for name, values in (ROWS | change).items()}))


def test_a_part_has_the_accesses_of_its_work(trace):
    turned = trace[[2, 0]]
    assert rows(turned.accesses) == [(0, 2, 0, 64, True, False, 0), (1, 1, 0, 8, False, True, 1), (1, 0, 0, 0, False, False, 2)]
    assert trace.where(stream="b").accesses.buffer.tolist() == [1]
    assert trace.between(25, 30).accesses.span.tolist() == [0]
    assert len(trace.where(name="y").where(name="y")[:0].accesses) == 0


def test_merged_traces_share_memory_where_they_are_of_one_process(trace):
    later = replace(trace, start_ns=trace.start_ns + 100, end_ns=trace.end_ns + 100, queued_ns=trace.queued_ns + 100)
    same = merge([trace, later], ahead_ns=[0, 0], error_ns=0)
    assert same.accesses.buffer.tolist() == [1, 0, 1, 2] * 2
    assert same.accesses.span.tolist() == [0, 0, 1, 2, 3, 3, 4, 5]
    other = merge([trace, later], ahead_ns=[0, 0], error_ns=0, processes=[0, 1])
    first, second = other.accesses.buffer.reshape(2, 4).tolist()
    assert first == [1, 0, 1, 2]
    assert second[1] == 0
    assert second[0] == second[2]
    assert len({*first, *second}) == 5
    again = merge([other], ahead_ns=[0])
    assert rows(again.accesses) == rows(other.accesses)


def test_files_tables_and_pickles_keep_them(trace, tmp_path):
    path = tmp_path / "run.parquet"
    write_trace(trace, path)
    kept = [read_trace(path), pickle.loads(pickle.dumps(trace))]
    for one in kept:
        assert rows(one.accesses) == rows(trace.accesses)
    plain = replace(trace, accesses=Accesses())
    write_trace(plain, path)
    assert rows(read_trace(path).accesses) == []
