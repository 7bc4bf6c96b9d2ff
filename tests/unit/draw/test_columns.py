"""Spans as the page gets them, read back by a reader of our own."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab.draw import SpanColumns, columns_of, pack_columns
from gpustreamlab.draw._columns import PIECE_BYTES, deflate
from tests.helpers.traces import empty_trace, nested_trace, partition_trace, pipeline_trace, random_trace

LEVELS = (None, 6)
NAMES = ("name", "kind", "thread", "partition", "queueing")


def make_columns(row, start_ns, end_ns, **more):
    row, start_ns, end_ns = (np.asarray(column, np.int64) for column in (row, start_ns, end_ns))
    zeros = np.zeros(len(row), np.int64)
    given = {
        "name": zeros,
        "kind": zeros,
        "thread": zeros,
        "partition": zeros,
        "queueing_ns": zeros,
        "place": np.arange(len(row)),
    }
    return SpanColumns(row=row, start_ns=start_ns, end_ns=end_ns, **(given | {k: np.asarray(v) for k, v in more.items()}))


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
    n, is_deflated = manifest["n"], manifest["deflated"]
    data = zlib.decompress(blob, wbits=-15) if is_deflated else blob
    found = {name: read_column(data, spec, n, is_deflated) for name, spec in manifest["columns"].items() if spec is not None}
    row, start, end, place = [], [], [], []
    at = 0
    for code, count in manifest["runs"]:
        part = slice(at, at + count)
        both = np.stack((found["gap"][part], found["duration"][part]), axis=1).ravel().cumsum()
        row += [code] * count
        start += both[0::2].tolist()
        end += both[1::2].tolist()
        place += (
            found["place"][part].cumsum().tolist() if manifest["columns"]["placeFrom"] == 1 else found["place"][part].tolist()
        )
        at += count
    if manifest["columns"]["placeFrom"] != 1:
        order = np.argsort(start, kind="stable") if manifest["columns"]["placeFrom"] == 2 else np.arange(n)
        ranks = np.empty(n, int)
        ranks[order] = np.arange(n)
        place = (place + ranks).tolist()
    edges = {
        name: read_column(data, spec, manifest["edges"]["n"], is_deflated)
        for name, spec in manifest["edges"]["columns"].items()
    }
    x0 = edges["step"].cumsum()
    return {
        "row": row, "start_ns": start, "end_ns": end, "place": place, "count": found["count"].tolist(),
        "busy_ns": found["busy"].tolist() if "busy" in found else (np.array(end, int) - np.array(start, int)).tolist(),
        "edges": np.stack((x0, edges["source"], x0 + edges["width"], edges["target"]), axis=1).tolist(),
    } | {{"queueing": "queueing_ns"}.get(name, name): found[name].tolist() for name in NAMES}  # fmt: skip


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

    start_ns = column(st.one_of(small, big))
    more = {name: column(st.one_of(small, st.just(7))) for name in ("name", "kind", "partition")}
    more |= {
        "thread": column(st.integers(-1, 300)),
        "queueing_ns": column(st.one_of(small, big)),
        "place": column(st.integers(0, 1 << 53)),
    }
    if draw(st.booleans()):
        more |= {"count": column(st.integers(1, 1 << 40)), "busy_ns": column(st.integers(0, 1 << 52))}
    edges = draw(st.lists(st.tuples(big, small, big, small), max_size=5))
    return make_columns(
        np.sort(column(st.integers(0, 5))), start_ns, start_ns + column(st.one_of(small, st.integers(0, 1 << 52))),
        edges=np.array(edges, np.int64).reshape(-1, 4), **more,
    )  # fmt: skip


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


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "trace",
    [empty_trace(), pipeline_trace(), nested_trace(), partition_trace(), random_trace(3_000)],
    ids=lambda trace: str(len(trace)),
)
def test_a_trace_comes_back_exactly(trace, level):
    check_round_trip(columns_of(trace, trace.lane, 0), level)


@pytest.mark.parametrize("trace", [pipeline_trace(), nested_trace(), random_trace(3_000)], ids=lambda trace: str(len(trace)))
def test_columns_of_a_trace_are_its_spans_sorted(trace):
    columns = columns_of(trace, trace.lane, 1_000)
    keys = list(zip(columns.row, columns.start_ns, columns.end_ns, strict=True))
    assert keys == sorted(keys)
    assert sorted(columns.place.tolist()) == list(range(len(trace)))
    place = columns.place
    assert columns.start_ns.tolist() == (trace.start_ns[place] - 1_000).tolist()
    assert columns.end_ns.tolist() == (trace.end_ns[place] - 1_000).tolist()
    assert columns.queueing_ns.tolist() == (trace.start_ns - trace.queued_ns)[place].tolist()
    assert columns.partition.tolist() == (trace.partition[place] + 1).tolist()
    for name in ("name", "kind", "thread"):
        assert getattr(columns, name).tolist() == getattr(trace, name)[place].tolist()


def test_edges_lead_from_the_end_of_the_source_to_the_start_of_the_target():
    trace = pipeline_trace(batch_count=1)
    columns = columns_of(trace, trace.lane + 5, 0)
    assert columns.edges.tolist() == [
        [trace.end_ns[source], trace.lane[source] + 5, trace.start_ns[target], trace.lane[target] + 5]
        for source, target in zip(trace.edges.source, trace.edges.target, strict=True)
    ]


def test_constant_and_derived_columns_take_no_bytes():
    manifest, blob = pack_columns(make_columns([0] * 9, np.arange(9) * 10, np.arange(9) * 10 + 4), level=None)
    assert manifest["columns"]["kind"] == 0
    assert manifest["columns"]["place"] == 0
    assert manifest["columns"]["busy"] is None
    # Starts only: the first gap differs from the others.
    assert len(blob) == 9


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("row_count", [1, 5, 64, 65])
def test_places_in_order_of_start_come_back_and_take_few_bytes(row_count, level):
    rng = np.random.default_rng(row_count)
    # Many start together, in any order.
    start_ns = np.sort(rng.integers(0, 2_000, 4_000)) // 3
    row = rng.integers(0, row_count, 4_000)
    place = np.lexsort((start_ns, row))
    columns = make_columns(row[place], start_ns[place], start_ns[place], place=place)
    check_round_trip(columns, level)
    assert pack_columns(columns, level=None)[0]["columns"]["placeFrom"] == (
        0 if row_count == 1 else 2 if row_count <= 64 else 1
    )


def test_places_of_spans_that_start_apart_take_no_bytes():
    trace = random_trace(500, 4, mean_ns=8_000_000)
    manifest, _ = pack_columns(columns_of(trace, trace.lane, 0), level=None)
    assert (manifest["columns"]["place"], manifest["columns"]["placeFrom"]) == (0, 2)


def test_a_refresh_takes_few_bytes_a_span():
    trace = random_trace(1_000)
    manifest, blob = pack_columns(columns_of(trace, trace.lane, 0), level=None)
    assert len(blob) / len(trace) <= 14
    assert len(json.dumps(manifest)) < 2_500


def test_a_page_takes_few_bytes_a_span():
    trace = random_trace(100_000)
    _, blob = pack_columns(columns_of(trace, trace.lane, 0), level=6)
    # 13-bit durations, 12-bit gaps and queueing of 14 bits are noise; names and the steps of places are the rest.
    assert len(blob) / len(trace) <= 7.2


@pytest.mark.parametrize("level", range(1, 10))
def test_deflated_pieces_are_one_stream(level):
    rng = np.random.default_rng(0)
    chunks = [
        b"", b"a", rng.bytes(PIECE_BYTES + 7), bytes(3 * PIECE_BYTES), b"kernel " * 90_000,
        rng.normal(0, 9, PIECE_BYTES).astype(np.int8).tobytes(),
    ]  # fmt: skip
    assert zlib.decompress(deflate(chunks, level), wbits=-15) == b"".join(chunks)


def test_nothing_deflates_to_an_empty_stream():
    assert zlib.decompress(deflate([], 6), wbits=-15) == b""
