from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpustreamlab import Trace
from gpustreamlab.errors import OptionError, TraceError
from gpustreamlab.model import (
    COLUMN_DTYPES,
    Counters,
    Device,
    Edges,
    Lane,
    Layout,
    Marker,
    Partition,
    SMResource,
    TraceMetadata,
    table_to_trace,
)
from gpustreamlab.trace import as_trace
from gpustreamlab.typing import EdgeKind
from tests.unit.model.equality import assert_same_trace
from tests.unit.model.strategies import traces

DEVICE = Device(name="demo", sm_count=4)
METADATA = TraceMetadata(backend="sim", device=DEVICE)
VALID = {
    "start_ns": [0, 500],
    "end_ns": [1000, 900],
    "queued_ns": [-50, 10],
    "lane": [0, 1],
    "name": [0, 1],
    "kind": [0, 0],
    "parent": [-1, 0],
    "thread": [0, -1],
    "names": ("step", "gemm"),
    "lanes": (Lane(name="copy", stream=1), Lane(name="compute", stream=2)),
    "threads": ("MainThread",),
    "metadata": METADATA,
}


def make(**changes):
    return Trace(**(VALID | changes))


@settings(max_examples=40, deadline=None)
@given(traces(), st.integers(1, 3))
def test_arrow_round_trips_are_exact_in_chunks_and_through_the_capsule_interface(trace, rows_per_chunk):
    chunks = pa.table(trace).to_batches(max_chunksize=rows_per_chunk)
    table = pa.Table.from_batches(chunks, schema=pa.table(trace).schema)

    assert_same_trace(table_to_trace(table), trace)
    assert_same_trace(table_to_trace(pa.RecordBatchReader.from_stream(trace).read_all()), trace)


def test_arrow_text_columns_are_readable():
    table = pa.table(make())

    assert table.column_names == list(COLUMN_DTYPES)
    assert table["lane"].to_pylist() == ["copy", "compute"]
    assert table["name"].to_pylist() == ["step", "gemm"]
    assert table["kind"].to_pylist() == ["range", "range"]
    assert table["thread"].to_pylist() == ["MainThread", None]


@settings(max_examples=40, deadline=None)
@given(traces())
def test_pandas_has_every_row_and_the_duration(trace):
    frame = trace.to_pandas()

    assert len(frame) == len(trace)
    assert frame["duration_ns"].tolist() == (trace.end_ns - trace.start_ns).tolist()
    assert frame["name"].tolist() == [trace.names[code] for code in trace.name]
    assert frame["lane"].tolist() == [trace.lanes[code].name for code in trace.lane]


@pytest.mark.parametrize("column", [*COLUMN_DTYPES, "extra"])
def test_columns_share_nothing_with_the_caller(column):
    # GIVEN the caller's own array, of the dtype that is stored
    dtype = COLUMN_DTYPES.get(column, np.int64)
    given_array = np.zeros(2, dtype)
    trace = make(parent=[-1, -1], extra={"x": given_array}) if column == "extra" else make(**_safe(column, given_array))
    stored = trace.extra["x"] if column == "extra" else getattr(trace, column)
    before = stored.tolist()

    # WHEN the caller writes into it
    given_array[:] = 1

    # THEN the trace does not change, and neither can it be written
    assert not np.shares_memory(stored, given_array)
    assert stored.tolist() == before
    with pytest.raises(ValueError, match="read-only"):
        stored[0] = 7


def _safe(column, given_array):
    if column in {"parent", "partition"}:
        given_array[:] = -1
    return {"start_ns": [0, 0], "end_ns": [1, 1], column: given_array}


def test_tables_cannot_be_changed_either():
    names, extra = ["step", "gemm"], {"x": np.array([1, 2], ">i4")}
    trace = make(names=names, extra=extra)
    names[0], extra["z"] = "other", np.array([3, 4])

    assert (trace.names, list(trace.extra), trace.extra["x"].dtype) == (("step", "gemm"), ["x"], np.dtype("=i4"))
    with pytest.raises(TypeError):
        trace.extra["y"] = np.array([1, 2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        trace.names = ("x", "y")
    with pytest.raises(ValueError, match="read-only"):
        Edges(source=[0], target=[1], kind=[0]).kind[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        Counters(time_ns=[0], lane=[0], name=[0], value=[np.nan], names=("pool_bytes",)).value[0] = 0
    marks = [Marker(time_ns=np.int64(time_ns), text="a", kind="mark") for time_ns in (9, 2)]
    assert make(markers=marks).markers == (marks[1], marks[0])
    assert Lane(name="a\ud800", device=1, context=2, stream=3).key == (1, 2, 3)
    assert Lane(name="é\ud800").name == "é?"


def test_repr_counts_spans_and_lanes():
    simulated = dataclasses.replace(METADATA, device=dataclasses.replace(DEVICE, simulated=True), dropped_spans=1200)

    assert repr(make()) == "<Trace: 2 spans in 2 lanes on demo>"
    assert repr(make(metadata=simulated)) == "<Trace: 2 spans in 2 lanes on demo (simulated), 1,200 dropped>"


INVALID_TRACES = {
    "two dimensions": ({"start_ns": [[0, 500]]}, r"'start_ns' has 2 dimensions"),
    "unequal lengths": ({"end_ns": [1000]}, r"differ in length.*'end_ns': 1"),
    "fractional time": ({"start_ns": [0.5, 500]}, r"'start_ns' holds values that int64 cannot store exactly"),
    "NaN time": ({"start_ns": [np.nan, 500]}, r"'start_ns' holds NaN or infinity"),
    "time beyond int64": ({"end_ns": np.array([2**63, 900], np.uint64)}, r"'end_ns' holds values that int64 cannot"),
    "text as time": ({"start_ns": ["0", "500"]}, r"'start_ns' holds .*, not numbers"),
    "end before start": ({"end_ns": [1000, 499]}, r"Span 1 ends at 499 ns, before its start at 500 ns"),
    "lane code too large": ({"lane": [0, 2]}, r"'lane' points outside its table of 2 entries"),
    "lane code beyond int32": ({"lane": [0, 2**31]}, r"'lane' holds values that int32 cannot store"),
    "partition code too large": ({"partition": [-1, 0]}, r"'partition' points outside"),
    "parent too large": ({"parent": [-1, 2]}, r"'parent' points outside the 2 spans; use -1"),
    "own parent": ({"parent": [-1, 1]}, r"its own parent; use -1"),
    "names repeat": ({"names": ("a", "a")}, r"'names' repeat"),
    "name is no text": ({"names": ("a", 1)}, r"names is .*Expected `str`, got `int`"),
    "lone surrogate in a name": ({"names": ("a", "\ud800")}, r"'names' holds .*lone surrogates"),
    "threads repeat": ({"threads": ("a", "a")}, r"'threads' repeat"),
    "lane names repeat": ({"lanes": (Lane(name="a", stream=1), Lane(name="a", stream=2))}, r"Two lanes have the same name"),
    "extra column too short": ({"extra": {"x": [1]}}, r"differ in length.*'x': 1"),
    "extra column of text": ({"extra": {"x": ["a", "b"]}}, r"'x' holds .*; extra columns are integers or floats"),
    "extra column with a taken name": ({"extra": {"start_ns": [1, 2]}}, r"may not be named \['start_ns'\]"),
    "edge beyond the spans": ({"edges": Edges(source=[0], target=[2], kind=[0])}, r"Edges.target points outside the 2 spans"),
    "counter of an unknown lane": (
        {"counters": Counters(time_ns=[0], lane=[2], name=[0], value=[0.0], names=("x",))},
        r"'Counters.lane' points outside",
    ),
}


@pytest.mark.parametrize(("changes", "message"), INVALID_TRACES.values(), ids=INVALID_TRACES.keys())
def test_an_invalid_trace_cannot_be_made(changes, message):
    with pytest.raises(TraceError, match=message):
        make(**changes)


INVALID_PARTS = {
    "device of negative SMs": (lambda: Device(name="x", sm_count=-1), r"sm_count is -1.*>= 0"),
    "negative grant": (lambda: Partition(name="p", requested_sms=0, granted_sms=-8), r"granted_sms is -8.*>= 0"),
    "partition named twice": (
        lambda: Layout(partitions=(Partition(name="p", requested_sms=1, granted_sms=8),) * 2),
        r"names each partition once",
    ),
    "error that is no number": (
        lambda: dataclasses.replace(METADATA, clock_error_ns=float("nan")),
        r"clock_error_ns is nan.*`int`",
    ),
    "device without a name": (lambda: Device(name=None, sm_count=1), r"Device\.name is None.*`str`"),
    "lane of a huge device": (lambda: Lane(name="a", device=1 << 70), r"Lane\.device is .*<= "),
    "layout of texts": (lambda: Layout(partitions=("a",)), r"Layout\.partitions is .*object"),
    "trace with a text as layout": (lambda: make(layout="all"), r"Trace\.layout is 'all'"),
    "a moment that is no number": (lambda: Marker(time_ns=float("nan"), text="a", kind="mark"), "time_ns is nan"),
    "a moment far away": (lambda: Marker(time_ns=1 << 70, text="a", kind="mark"), "time_ns is "),
    "an unknown marker": (lambda: Marker(time_ns=0, text="a", kind="celll"), "Marker.kind is 'celll'"),
    "SMs of no group": (lambda: SMResource(min_sms=0, alignment_sms=1, group_sms=1, group_count=1), "Expected `int` >= 1"),
    "negative error": (lambda: dataclasses.replace(METADATA, clock_error_ns=-1), r"clock_error_ns is -1"),
    "unknown tier": (lambda: dataclasses.replace(METADATA, tier="everything"), r"everything"),
    "edges of unequal length": (lambda: Edges(source=[0], target=[], kind=[]), r"columns of Edges differ in length"),
    "unknown edge kind": (lambda: Edges(source=[0], target=[1], kind=[9]), r"'kind' points outside"),
    "unknown counter": (lambda: Counters(time_ns=[0], lane=[0], name=[0], value=[0.0]), r"'name' points outside"),
    "counter names repeat": (lambda: Counters(names=("a", "a")), r"'Counters.names' repeat"),
}


@pytest.mark.parametrize(("build", "message"), INVALID_PARTS.values(), ids=INVALID_PARTS.keys())
def test_an_invalid_part_cannot_be_made(build, message):
    with pytest.raises(TraceError, match=message):
        build()


@pytest.mark.parametrize("kind", ["launch", EdgeKind.LAUNCH])
def test_edges_of_one_kind_are_selected(kind):
    edges = Edges(source=[0, 2, 4], target=[1, 3, 5], kind=[1, 0, 1]).select(kind)

    assert (edges.source.tolist(), edges.target.tolist(), edges.kind.tolist()) == ([0, 4], [1, 5], [1, 1])
    assert len(edges.select("wait")) == 0


@pytest.mark.parametrize(("kind", "hint"), [("launches", "Did you mean 'launch'"), (1, "Choose from 'launch', 'sync', 'wait'")])
def test_an_unknown_kind_of_edge_is_told_with_the_nearest(kind, hint):
    with pytest.raises(OptionError, match=hint):
        Edges().select(kind)


def test_what_metadata_says_steers_no_terminal_whoever_prints_it(tmp_path):
    text, shown = "\x1b]0;PWN\x07\x1b[2J\u202e H200", "␣]0;PWN␣␣[2J␣ H200"
    fields = [field for field in dataclasses.fields(TraceMetadata) if field.type == "str"]
    told = dataclasses.replace(METADATA, missing=(text,), device=Device(name=text, host=text, sm_count=4))
    told = dataclasses.replace(told, **{field.name: text for field in fields})
    made = make(metadata=told)
    table = pa.table(made)  # as another program writes it
    facts = {key: value.replace("␣".encode("unicode_escape"), b"\\u001b") for key, value in table.schema.metadata.items()}
    facts = {key: value for key, value in facts.items() if not key.endswith(b"checksum")}
    for trace in (made, as_trace(table_to_trace(table.replace_schema_metadata(facts)))):
        found = trace.metadata
        assert not {"\x1b", "\x07", "\u202e"} & set(f"{found}{trace!r}{trace.explain()}")
        assert [found.title, found.missing[0], found.device.name, found.device.host] == [shown] * 4
    assert make(metadata=dataclasses.replace(METADATA, title="")).metadata.title == ""
