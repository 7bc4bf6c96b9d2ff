"""Spans as CSV and as Arrow IPC files."""

from __future__ import annotations

import csv
import random
from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings

from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange._flat_files import read_arrow, write_arrow, write_csv
from gpustreamlab.model import Lane
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import make_trace, nested_trace, partition_trace
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1")


def test_a_row_of_csv_is_a_span_with_the_columns_of_pandas_and_its_place(tmp_path):
    trace = kernel_trace()
    write_csv(trace, tmp_path / "run.csv")
    frame, wanted = pd.read_csv(tmp_path / "run.csv"), trace.to_pandas()
    assert list(frame.columns) == [*wanted.columns, "partition_name", "device", "stream"]
    for name in wanted.columns:
        assert frame[name].tolist() == wanted[name].tolist()
    assert frame["stream"].tolist() == [trace.lanes[lane].stream for lane in trace.lane]
    assert frame["device"].tolist() == [trace.lanes[lane].device for lane in trace.lane]


def test_the_partition_is_named(tmp_path):
    trace = partition_trace()
    write_csv(trace, tmp_path / "run.csv")
    names = pd.read_csv(tmp_path / "run.csv", keep_default_na=False)["partition_name"].tolist()
    assert names == [trace.partitions[code].name if code >= 0 else "" for code in trace.partition]


def test_no_text_is_a_formula(tmp_path):
    """A spreadsheet takes what begins with one of these signs for a formula, also between quotes."""
    texts = (*FORMULAS, 'plain, "quoted"\nline')
    spans = [(f"{text} lane", text, number, number + 1) for number, text in enumerate(texts)]
    trace = make_trace(spans, lanes=tuple(Lane(name=f"{text} lane", stream=number) for number, text in enumerate(texts)))
    trace = replace(trace, extra={"=cmd": [1] * len(texts)}, threads=("-thread",))
    write_csv(trace, tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert "'=cmd" in head
    name, lane, thread = (head.index(column) for column in ("name", "lane", "thread"))
    assert [row[name] for row in rows] == [f"'{text}" for text in FORMULAS] + [texts[-1]]
    assert [row[lane][0] for row in rows] == ["'"] * len(FORMULAS) + ["p"]
    assert {row[thread] for row in rows} == {"'-thread"}


def test_an_empty_trace_has_a_head_alone(tmp_path):
    write_csv(nested_trace()[:0], tmp_path / "run.csv")
    assert len((tmp_path / "run.csv").read_text().splitlines()) == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(traces())
def test_any_trace_comes_back_from_arrow_as_it_was(tmp_path, trace):
    path = tmp_path / "run.arrow"
    write_arrow(trace, path)
    assert_same_trace(read_arrow(path), trace)
    write_csv(trace, tmp_path / "run.csv")


def test_any_arrow_tool_maps_it(tmp_path):
    trace = kernel_trace()
    write_arrow(trace, tmp_path / "run.feather")
    with pa.memory_map(str(tmp_path / "run.feather")) as mapped:
        table = pa.ipc.open_file(mapped).read_all()
        assert table["start_ns"].to_pylist() == trace.start_ns.tolist()
        assert pa.total_allocated_bytes() < table.nbytes + (1 << 20)


def test_suffixes_and_missing_files(tmp_path):
    for write, name in ((write_csv, "run.arrow"), (write_arrow, "run.csv")):
        with pytest.raises(OptionError, match="is no name for"):
            write(nested_trace(), tmp_path / name)
    with pytest.raises(TraceFileError, match=r"none\.arrow"):
        read_arrow(tmp_path / "none.arrow")


def test_an_arrow_file_that_is_no_trace_says_so(tmp_path):
    path = tmp_path / "run.arrow"
    table = pa.table({"a": [1]})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(TraceFileError, match=r"run\.arrow.*no gpustreamlab metadata"):
        read_arrow(path)


def test_a_mutated_arrow_file_gives_a_trace_or_an_error_of_ours(tmp_path):
    path, found = tmp_path / "run.arrow", set()
    write_arrow(kernel_trace(1), path)
    seed = path.read_bytes()
    messages = []
    for number in range(100):
        rng = random.Random(number)
        data = bytearray(seed)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 8)] = rng.randbytes(rng.randint(0, 8))
        path.write_bytes(data)
        try:
            found.add(type(read_arrow(path)).__name__)
        except TraceFileError as error:
            found.add(type(error).__name__)
            messages.append(str(error))
    assert "TraceFileError" in found
    assert all("run.arrow" in message for message in messages)


def test_a_file_that_is_cut_while_it_is_read_is_damaged(tmp_path, monkeypatch):
    path, open_file = tmp_path / "run.arrow", pa.ipc.open_file
    write_arrow(nested_trace(), path)

    def cut(file):
        opened = open_file(file)
        with path.open("r+b") as other:
            other.truncate(3_000)
        return opened

    monkeypatch.setattr(pa.ipc, "open_file", cut)
    with pytest.raises(TraceFileError, match="damaged"):
        read_arrow(path)
