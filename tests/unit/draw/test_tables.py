"""What the viewer knows beside the spans."""

from __future__ import annotations

import json

import pytest

from gpustreamlab.analysis import span_rows
from gpustreamlab.draw import plan_header, plan_tables
from gpustreamlab.typing import CaptureTier, SpanKind
from tests.helpers.traces import (
    EVIL_NAME,
    empty_trace,
    evil_trace,
    make_trace,
    many_partitions_trace,
    nested_trace,
    partition_trace,
    pipeline_trace,
    random_trace,
    repartition_trace,
    without_spans,
)

TRACES = {
    "empty": empty_trace(), "pipeline": pipeline_trace(), "nested": nested_trace(), "evil": evil_trace(),
    "partitions": partition_trace(), "repartition": repartition_trace(), "8-partitions": many_partitions_trace(),
    "100-lanes": random_trace(500, 100),
}  # fmt: skip


def tables_of(trace, **options):
    width_ns = float(trace.end_ns.max() - trace.start_ns.min()) if len(trace) else 0.0
    return plan_tables(trace, span_rows(trace)[0], zero_ns=0, width_ns=width_ns, header=plan_header(trace), **options)


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_tables_are_json_and_every_code_points_into_its_table(trace):
    tables = json.loads(json.dumps(tables_of(trace), allow_nan=False))
    assert len(tables["names"]) == len(tables["name_styles"]) == len(trace.names)
    assert len(tables["kinds"]) == len(tables["kind_styles"]) == len(tables["kind_counted"]) == len(SpanKind)
    assert len(tables["partitions"]) == len(trace.partitions) + 1
    assert all(0 <= row["lane"] < len(trace.lanes) for row in tables["rows"])
    assert all(-1 <= lane["group"] < len(tables["groups"]) for lane in tables["lanes"])
    assert all(-1 <= part["band"] < len(tables["bands"]) for part in tables["partitions"])
    assert {row["lane"] for row in tables["rows"]} == set(range(len(trace.lanes)))


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_tables_of_a_live_view_need_no_spans(trace):
    full = tables_of(trace)
    tables = plan_tables(
        without_spans(trace),
        span_rows(trace)[0],
        zero_ns=0,
        width_ns=full["extent_ns"],
        header=plan_header(trace),
        counted=(SpanKind.RANGE,),
    )
    # The page sees itself whether the work of a lane is kernels or copies.
    for lane in (*full["lanes"], *tables["lanes"]):
        lane["parts"] = [[{"kernels": "work"}.get(label, label), *borders] for label, *borders in lane["parts"]]
    differing = {key for key in full if full[key] != tables[key]}
    assert differing <= {"kind_counted", "kind_on_sms"}


def test_times_of_the_axis_are_texts_as_javascript_has_not_enough_digits():
    tables = tables_of(make_trace([("a", "x", 0, 10)], epoch_unix_ns=1_763_000_000_123_456_789))
    assert (tables["zero_ns"], tables["epoch_unix_ns"]) == ("0", "1763000000123456789")


def test_names_are_short_and_hold_no_signs_that_turn_a_line_round():
    tables = tables_of(make_trace([("a\u202eb", "x" * 10_000, 0, 1), ("a\u202eb", "\u202e🙂 שלום", 1, 2)]))
    assert tables["names"] == ["x" * 100 + "…" + "x" * 99, "␣🙂 שלום"]
    # The label is for reading; the name selects the stream in a DataFrame.
    assert (tables["lanes"][0]["label"], tables["lanes"][0]["name"]) == ("a␣b", "a\u202eb")


def test_counted_kinds_are_those_of_the_trace_or_as_said():
    trace = nested_trace()
    assert tables_of(trace)["kind_counted"] == [False, True, True, True, *[False] * 4]
    assert tables_of(trace, counted=(SpanKind.RANGE,))["kind_counted"] == [True] + [False] * 7


def test_header_is_in_the_tables_as_plain_text():
    header = tables_of(evil_trace())["header"]
    assert header["title"] == EVIL_NAME
    assert header["badge"] == "REAL HARDWARE"
    assert header["missing"] == []


def test_header_of_a_live_view_counts_what_it_is_told():
    trace = pipeline_trace(dropped_spans=3, tier=CaptureTier.KERNELS)
    header = plan_header(without_spans(trace), span_count=1_234, width_ns=5e9)
    assert header.facts == "NVIDIA H200 · 1,234 spans in 3 streams · 5.00 s"
    assert "Tier: kernels" in header.source
    assert header.missing[0].startswith("3 spans dropped")


def test_ten_thousand_lanes_have_their_place():
    tables = tables_of(random_trace(100, 10_000))
    assert len(tables["lanes"]) == 10_000
    assert tables["lanes"][-1]["bottom"] == tables["height_px"]
