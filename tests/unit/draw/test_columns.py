"""Spans as the page gets them, read back by a reader of our own."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.draw import columns_of, pack_columns
from gpustreamlab.draw._columns import PIECE_BYTES, deflate, told_by_work
from gpustreamlab.model import SPAN_KINDS
from tests.helpers.engine import make_columns
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import (
    empty_trace,
    make_kernel_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
)

LEVELS = (None, 6)
NAMES = {"name": "name", "kind": "kind", "thread": "thread", "partition": "partition", "queueing": "queueing_ns"}


def read_column(blob, spec, n, is_deflated):
    if not isinstance(spec, dict):
        return np.full(n, spec)

    def stored(at, count, dtype):
        raw = np.frombuffer(blob, np.uint8, count * np.dtype(dtype).itemsize, at)
        return (raw.reshape(-1, count).T.copy().ravel() if is_deflated else raw).view(dtype)

    width = spec["bytes"]
    if width == 8:
        return stored(spec["at"], n, "<i8")
    raw = stored(spec["at"], n, f"<u{width}")
    values = raw.astype(np.int64) + spec["bias"]
    if "exceptions" in spec:
        values[raw == (1 << 8 * width) - 1] = stored(spec["exceptionsAt"], spec["exceptions"], "<i8")
    return values


def unpack(manifest, blob):
    manifest = json.loads(json.dumps(manifest))
    n, is_deflated, place_from = manifest["n"], manifest["deflated"], manifest["columns"]["placeFrom"]
    data = zlib.decompress(blob, wbits=-15) if is_deflated else blob
    found = {name: read_column(data, spec, n, is_deflated) for name, spec in manifest["columns"].items() if spec is not None}
    row, start, end, place = [], [], [], []
    for code, count in manifest["runs"]:
        part = slice(len(row), len(row) + count)
        both = np.stack((found["gap"][part], found["duration"][part]), axis=1).ravel().cumsum()
        row += [code] * count
        start += both[0::2].tolist()
        end += both[1::2].tolist()
        place += (found["place"][part].cumsum() if place_from == 1 else found["place"][part]).tolist()
    if place_from != 1:
        ranks = np.empty(n, int)
        ranks[np.argsort(start, kind="stable") if place_from == 2 else np.arange(n)] = np.arange(n)
        place = (place + ranks).tolist()
    specs = manifest["edges"]["columns"]
    edges = {name: read_column(data, spec, manifest["edges"]["n"], is_deflated) for name, spec in specs.items()}
    x0 = edges["step"].cumsum()
    return {
        "row": row, "start_ns": start, "end_ns": end, "place": place, "count": found["count"].tolist(),
        "busy_ns": found["busy"].tolist() if "busy" in found else (np.array(end, int) - np.array(start, int)).tolist(),
        "edges": np.stack((x0, edges["source"], x0 + edges["width"], edges["target"]), axis=1).tolist(),
    } | {ours: found[name].tolist() for name, ours in NAMES.items()}  # fmt: skip


def check_round_trip(columns, level):
    found = unpack(*pack_columns(columns, level=level))
    assert found == {name: getattr(columns, name).tolist() for name in found}


big = st.integers(-(1 << 52), 1 << 52)
small = st.integers(0, 300)


@st.composite
def any_columns(draw):
    count = draw(st.integers(0, 30))

    def column(values):
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), np.int64)

    start_ns, few = column(st.one_of(small, big)), st.one_of(small, st.just(7))
    more = {name: column(few) for name in ("name", "kind", "partition")}
    more |= {"thread": column(st.integers(-1, 300)), "queueing_ns": column(st.one_of(small, big))}
    more |= {"place": column(st.integers(0, 1 << 53))}
    if draw(st.booleans()):
        more |= {"count": column(st.integers(1, 1 << 40)), "busy_ns": column(st.integers(0, 1 << 52))}
    edges = np.array(draw(st.lists(st.tuples(big, small, big, small), max_size=5)), np.int64).reshape(-1, 4)
    ends_ns = start_ns + column(st.one_of(small, st.integers(0, 1 << 52)))
    return make_columns(column(st.integers(0, 5)), start_ns, ends_ns, edges=edges, **more)


@given(columns=any_columns(), level=st.sampled_from(LEVELS))
def test_columns_come_back_exactly(columns, level):
    check_round_trip(columns, level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("most", [254, 255, 256, 65_534, 65_535, 65_536, (1 << 32) - 2, (1 << 32) - 1, 1 << 32, 1 << 52])
@pytest.mark.parametrize("least", [0, -1, -1000])
def test_values_at_the_borders_of_the_types_come_back(level, least, most):
    values = np.arange(400) % 7 + 3
    values[[5, 399]] = least, most
    check_round_trip(make_columns(np.zeros(400), np.zeros(400), np.zeros(400), queueing_ns=values), level)


@pytest.mark.parametrize(
    "trace", [empty_trace(), pipeline_trace(), nested_trace(), partition_trace(), random_trace(3_000)], ids=len
)
def test_columns_of_a_trace_are_its_spans_sorted_and_come_back(trace):
    columns, place = (found := columns_of(trace, trace.lane, 1_000)), found.place
    for level in LEVELS:
        check_round_trip(columns, level)
    keys = list(zip(columns.row, columns.start_ns, columns.end_ns, strict=True))
    assert keys == sorted(keys)
    assert sorted(place.tolist()) == list(range(len(trace)))
    assert columns.start_ns.tolist() == (trace.start_ns[place] - 1_000).tolist()
    assert columns.end_ns.tolist() == (trace.end_ns[place] - 1_000).tolist()
    assert columns.queueing_ns.tolist() == (trace.start_ns - trace.queued_ns)[place].tolist()
    assert columns.partition.tolist() == (trace.partition[place] + 1).tolist()
    for name in ("name", "kind", "thread"):
        assert getattr(columns, name).tolist() == getattr(trace, name)[place].tolist()


def test_edges_lead_from_the_end_of_the_source_to_the_start_of_the_target():
    trace = pipeline_trace(batch_count=1)
    assert columns_of(trace, trace.lane + 5, 0).edges.tolist() == [
        [trace.end_ns[source], trace.lane[source] + 5, trace.start_ns[target], trace.lane[target] + 5]
        for source, target in zip(trace.edges.source, trace.edges.target, strict=True)
    ]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("row_count", "place_from"), [(1, 0), (5, 2), (64, 2), (65, 1)])
def test_places_in_order_of_start_come_back_and_take_few_bytes(row_count, place_from, level):
    rng = np.random.default_rng(row_count)
    # Many start together, in any order.
    start_ns, row = np.sort(rng.integers(0, 2_000, 4_000)) // 3, rng.integers(0, row_count, 4_000)
    columns = make_columns(row, start_ns, start_ns)
    check_round_trip(columns, level)
    assert pack_columns(columns, level=None)[0]["columns"]["placeFrom"] == place_from


def test_few_bytes_are_taken():
    # Constant and derived columns take none; the first gap differs from the others.
    manifest, blob = pack_columns(make_columns([0] * 9, np.arange(9) * 10, np.arange(9) * 10 + 4), level=None)
    assert [manifest["columns"][name] for name in ("kind", "place", "busy")] == [0, 0, None]
    assert len(blob) == 9
    # Nor do places of spans that start apart.
    trace = random_trace(500, 4, mean_ns=8_000_000)
    manifest, _ = pack_columns(columns_of(trace, trace.lane, 0), level=None)
    assert (manifest["columns"]["place"], manifest["columns"]["placeFrom"]) == (0, 2)
    assert not {"detail", "size"} & set(manifest["columns"])
    # A refresh, and a page: 13-bit durations, 12-bit gaps and queueing of 14 bits are noise.
    for span_count, level, most in ((1_000, None, 14), (100_000, 6, 7.2)):
        trace = random_trace(span_count)
        manifest, blob = pack_columns(columns_of(trace, trace.lane, 0), level=level)
        assert len(blob) / len(trace) <= most
        assert len(json.dumps(manifest)) < 2_600


@pytest.mark.parametrize("level", range(1, 10))
def test_deflated_pieces_are_one_stream(level):
    rng = np.random.default_rng(0)
    chunks = [
        b"", b"a", rng.bytes(PIECE_BYTES + 7), bytes(3 * PIECE_BYTES), b"kernel " * 90_000,
        rng.normal(0, 9, PIECE_BYTES).astype(np.int8).tobytes(),
    ]  # fmt: skip
    assert zlib.decompress(deflate(chunks, level), wbits=-15) == b"".join(chunks)
    assert zlib.decompress(deflate([], level), wbits=-15) == b""


def test_a_wait_of_ranges_is_told_by_that_of_the_work_in_them():
    trace = kernel_trace()
    is_told, edges = told_by_work(trace), trace.edges
    assert [SPAN_KINDS[code].value for code in trace.kind[edges.source[is_told]]] == ["range"] * 4
    assert not edges.kind[is_told].any()


@pytest.mark.parametrize(("options", "told"), [({}, [False, False]), ({"parent": 0}, [True, False])])
def test_waits_of_other_ranges_are_not(options, told):
    step = {"kind": "range"}
    spans = [("a", "x", 0, 10, step), ("b", "y", 20, 90, step), ("a", "k", 1, 9, options), ("b", "m", 30, 40, {"parent": 1})]
    assert told_by_work(make_kernel_trace(spans, edges=[(0, 1), (2, 3)])).tolist() == told
