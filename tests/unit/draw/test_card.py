"""The card above the lanes, and where the time went."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gpustreamlab.analysis import _busy, basis_of, concurrency, explain
from gpustreamlab.draw import plan_scene, timeline_svg
from gpustreamlab.draw._card import MOST_CARDS, card_layers, row_weights, span_sms, stack_layers
from gpustreamlab.draw._html import timeline_page
from gpustreamlab.draw._went import MOST_WORDS, plan_went, went_entry
from gpustreamlab.model import Counters, Device, Lane, Layout, LayoutChange, Partition, WorkDetail
from gpustreamlab.typing import EdgeKind, LaneKind
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import DECODE, PREFILL, make_kernel_trace, make_trace, pipeline_trace, random_trace

MS = 1_000_000


def grid(blocks, threads=256, registers=32):
    return {"detail": WorkDetail(full_name="k", grid=(blocks, 1, 1), block=(threads, 1, 1), registers=registers)}


@pytest.mark.parametrize(
    ("options", "sms"),
    [
        pytest.param(grid(1), 1, id="one block, never the whole card"),
        pytest.param(grid(8), 1, id="eight blocks of 256 threads fit on one SM"),
        pytest.param(grid(9), 2, id="a ninth needs another"),
        pytest.param(grid(10_000), 132, id="no more than there are"),
        pytest.param(grid(10_000) | {"partition": 0}, 36, id="no more than its partition has"),
        pytest.param(grid(3, threads=1_024, registers=64), 3, id="registers let one block fit"),
        pytest.param({}, 132, id="without a grid, its place"),
    ],
)
def test_work_has_as_many_sms_as_its_grid_can_fill_within_its_place(options, sms):
    trace = make_kernel_trace([("a", "x", 0, 10, options)], partitions=(DECODE,), layout=Layout(partitions=(DECODE,)))
    assert span_sms(trace).tolist() == [sms]


def test_copies_and_ranges_with_kernels_have_no_sms():
    trace = make_kernel_trace(
        [("a", "step", 0, 9, {"kind": "range"}), ("a", "gemm", 1, 5, grid(64)), ("a", "memcpy HtoD", 6, 9, {"kind": "copy"})]
    )
    assert span_sms(trace).tolist() == [0, 8, 0]


def rows_of(trace, edges_ns):
    """The height of each row of the card in each column, and its areas."""
    scene = plan_scene(trace)
    weights, own = row_weights(trace, scene.card_rows), np.zeros((len(edges_ns) - 1, max(0, len(scene.bands) - 1)))
    found = {}
    for row in scene.card_rows:
        layers = card_layers(trace, scene, row, weights, np.array(edges_ns, float))
        areas = stack_layers(layers, own if row.kind == "sms" else own[:, :0], row.most)
        found[row.device, row.kind] = sum((high - low for _, low, high in areas), np.zeros(len(edges_ns) - 1)).tolist()
    return found


def test_sms_of_work_at_once_add_up_and_copies_have_rows_by_their_way():
    trace = make_kernel_trace(
        [
            ("a", "x", 0, 20, grid(64)), ("b", "y", 10, 30, grid(160)),
            ("c", "memcpy HtoD (pinned)", 0, 10, {"kind": "copy"}), ("c", "Memcpy DtoH", 20, 30, {"kind": "copy"}),
        ]
    )  # fmt: skip
    assert rows_of(trace, [0, 10, 20, 30]) == {(-1, "sms"): [8, 28, 20], (-1, "in"): [1, 0, 0], (-1, "out"): [0, 0, 1]}


def test_more_work_than_there_are_sms_shares_them():
    trace = make_kernel_trace([(name, "x", 0, 10) for name in "abc"])
    assert rows_of(trace, [0, 10])[-1, "sms"] == [pytest.approx(132)]


def test_means_of_columns_are_exact_however_the_columns_lie():
    trace = random_trace(400, 5, seed=3)
    edges = np.linspace(0, float(trace.end_ns.max() - trace.start_ns.min()), 7)
    scene = plan_scene(trace)
    (row,) = (row for row in scene.card_rows if row.kind == "sms")
    weight = span_sms(trace)
    layers = card_layers(trace, scene, row, {"sms": weight}, edges)
    start, end = trace.start_ns - scene.zero_ns, trace.end_ns - scene.zero_ns
    for column, (low, high) in enumerate(pairwise(edges.tolist())):
        inside = np.clip(end, low, high) - np.clip(start, low, high)
        assert sum(layer.mean[column] for layer in layers) == pytest.approx((inside * weight).sum() / (high - low))


def test_each_partition_stands_at_the_place_of_its_own_sms_and_the_whole_card_in_what_is_free():
    lanes = (Lane(name="a", partition="prefill"), Lane(name="b", partition="decode"), Lane(name="c"))
    spans = [("b", "y", 0, 10, {"partition": 1}), ("c", "z", 0, 10, grid(800))]
    trace = make_kernel_trace(spans, lanes=lanes, partitions=(PREFILL, DECODE), layout=Layout(partitions=(PREFILL, DECODE)))
    scene = plan_scene(trace)
    row, weights = scene.card_rows[0], row_weights(trace, scene.card_rows)
    layers = card_layers(trace, scene, row, weights, np.array([0.0, 10.0]))
    areas = stack_layers(layers, np.array([[96.0, 36.0]]), row.most)
    # 800 blocks fill 100 SMs, and decode has its 36: the whole card's work is where prefill is idle.
    assert [(layer.band, low[0], high[0]) for layer, low, high in areas] == [(1, 96, 132), (2, 0, 96)]


@pytest.mark.parametrize(("cards", "devices"), [(1, {-1}), (2, {0, 1}), (8, set(range(8))), (MOST_CARDS + 1, {-1})])
def test_every_card_of_a_node_has_its_rows_and_of_too_many_all_are_one(cards, devices):
    known = tuple(Device(name="H200", ordinal=card, sm_count=132) for card in range(cards))
    lanes = tuple(Lane(name=f"s{card}", device=card) for card in range(cards))
    trace = make_kernel_trace([(lane.name, "x", 0, 10) for lane in lanes], lanes=lanes, devices=known, device=known[0])
    scene = plan_scene(trace)
    assert {row.device for row in scene.card_rows} == devices
    assert scene.card_rows[0].most == (132 if cards <= MOST_CARDS else 132 * cards)
    assert scene.head_px <= min(box.top for box in scene.lanes)
    # THEN a card of which nothing is known has no rows
    unknown = replace(trace, metadata=replace(trace.metadata, device=Device(name="?", sm_count=0), devices=()))
    assert cards > 1 or plan_scene(unknown).card_rows == ()


# ---- where the time went


def shares(trace):
    return {piece.label: piece.total_ns for piece in plan_went(trace, basis_of(trace))}


def test_the_pieces_are_the_whole_run_from_first_to_last_work_as_findings_count_it():
    for trace in (kernel_trace(), pipeline_trace(), random_trace(300, 4), make_kernel_trace([("a", "x", 5, 9)])):
        pieces = plan_went(trace, basis_of(trace))
        assert sum(piece.total_ns for piece in pieces) == concurrency(trace).wall_ns
        forecast = trace.explain().forecast if len(trace.lanes) > 1 else None
        assert forecast is None or forecast.measured_ns == concurrency(trace).wall_ns
        for piece in pieces:
            assert (piece.places_ns[:, 1] > piece.places_ns[:, 0]).all()


def test_pieces_that_nobody_could_see_are_one():
    spans = [("a", "x", 0, 500 * MS), ("b", "y", 1_000, 500 * MS + 2_000), ("c", "z", 250 * MS, 250 * MS + 3_000)]
    *_, rest = pieces = plan_went(make_kernel_trace(spans), basis_of(make_kernel_trace(spans)))
    assert [piece.label for piece in pieces] == ["2 streams at once", "the rest"]
    assert rest.total_ns == 1_000 + 2_000 + 3_000
    assert sorted(map(tuple, rest.places_ns.tolist())) == [
        (0, 1_000),
        (250 * MS, 250 * MS + 3_000),
        (500 * MS, 500 * MS + 2_000),
    ]
    assert "3 streams at once 3.00 µs" in rest.about


def test_a_pipeline_fills_and_drains_and_a_copy_alone_binds():
    spans = [("up", "memcpy HtoD", 10 * MS * k, 10 * MS * (k + 1), {"kind": "copy", "queued_ns": 0}) for k in range(4)]
    spans += [("comp", "gemm", 10 * MS * (k + 1), 10 * MS * (k + 1) + 6 * MS, {"queued_ns": 0}) for k in range(4)]
    edges = [(k, 4 + k, EdgeKind.WAIT) for k in range(4)]
    order = sorted(range(8), key=lambda row: spans[row][2])
    place = {row: number for number, row in enumerate(order)}
    edges = [(place[source], place[target], kind) for source, target, kind in edges]
    trace = make_kernel_trace([spans[row] for row in order], edges=edges)
    assert shares(trace) == {
        "2 streams at once": 18 * MS, "copies bound": 8 * MS, "pipeline fills": 10 * MS,
        "pipeline drains": 10 * MS,
    }  # fmt: skip


def test_a_late_launch_and_a_blocked_host_are_told_apart():
    spans = [
        ("a", "x", 0, MS), ("a", "y", 3 * MS, 4 * MS, {"queued_ns": 3 * MS - 9}),
        ("host: MainThread", "cudaStreamSynchronize", 4 * MS, 6 * MS, {"kind": "host"}),
        ("a", "z", 7 * MS, 8 * MS, {"queued_ns": 7 * MS - 9}),
    ]  # fmt: skip
    trace = make_kernel_trace(spans)
    assert shares(trace) == {
        "one stream": 3 * MS, "nothing ran: launch late": 2 * MS, "nothing ran: host waits": 3 * MS,
    }  # fmt: skip


def test_ranges_are_queued_or_running_and_have_no_reasons():
    assert {label.split(" queued")[0] for label in shares(pipeline_trace())} <= {
        "2 streams",
        "3 streams",
        "one alone",
        "nothing ran",
    }
    entry = went_entry(pipeline_trace(), 0, None)
    assert entry["said"].endswith("what ran at once in them is not known.")


@pytest.mark.parametrize(
    "trace", [kernel_trace(), random_trace(300, 4), pipeline_trace(), make_kernel_trace([("a", "x", 0, 9)])]
)
def test_the_sentence_has_at_most_twenty_words_and_the_figures_of_explain(trace):
    found = explain(trace)
    entry = went_entry(trace, int(trace.start_ns.min()), found)
    assert len(entry["said"].split()) <= MOST_WORDS
    assert all(0 <= start < end for piece in entry["pieces"] for start, end in piece["places"])


def test_a_page_sweeps_its_trace_once(monkeypatch):
    swept, sweep_of = [], _busy.sweep_of
    monkeypatch.setattr(_busy, "sweep_of", lambda trace, rows: swept.append(rows.tobytes()) or sweep_of(trace, rows))
    timeline_page(kernel_trace())
    assert swept
    assert len(swept) == len({*swept})


def test_nothing_ran_has_no_bar():
    assert went_entry(make_trace([], lanes=()), 0, None) == {}


def test_a_gap_in_which_the_sms_were_shared_out_is_called_so():
    parts = Partition(name="p", requested_sms=8, granted_sms=8)
    trace = make_kernel_trace(
        [("a", "x", 0, MS), ("a", "y", 3 * MS, 4 * MS)],
        layouts=(LayoutChange(time_ns=2 * MS, layout=Layout(partitions=(parts,))),),
        layout=Layout(partitions=(parts,)),
    )
    assert shares(trace)["nothing ran: repartition"] == 2 * MS


@pytest.mark.parametrize(
    ("begins_ms", "is_shown"),
    [((-8, 2), False), ((-8,), False), ((-40, 60), False), ((-5, 30, 60), True), ((1, 30), True), ((15, 90), False)],
)
def test_means_over_a_time_that_is_mostly_not_of_the_run_are_not_drawn(begins_ms, is_shown):
    lanes = (Lane(name="a"), Lane(name="counters of GPU 0", kind=LaneKind.HOST))
    value = np.where(np.arange(len(begins_ms)) < max(1, len(begins_ms) - 1), 70.0, np.nan)
    counters = Counters(
        time_ns=np.array(begins_ms) * MS,
        lane=np.ones(len(value), np.int64),
        name=np.zeros(len(value), np.int64),
        value=value,
        names=("sm_active_percent",),
    )
    trace = replace(make_kernel_trace([("a", "x", 0, 40 * MS)]), lanes=lanes, counters=counters)
    assert ("SM active" in timeline_svg(trace)) is is_shown


def test_counters_that_are_no_memory_are_rows_of_the_card_and_hold_their_values():
    lanes = (Lane(name="a"), Lane(name="host: counters", kind=LaneKind.HOST))
    spans = [("a", "x", 0, 40 * MS)]
    counters = Counters(
        time_ns=np.array([0, 10, 30, 0]) * MS,
        lane=np.array([1, 1, 1, 0]),
        name=np.array([0, 0, 0, 1]),
        value=np.array([100.0, 300.0, 200.0, 5e9]),
        names=("power_watts", "pool_used_bytes"),
    )
    trace = replace(make_kernel_trace(spans, lanes=lanes), counters=counters)
    scene = plan_scene(trace)
    (row,) = (row for row in scene.card_rows if row.kind == "counter")
    assert (row.label, row.most) == ("power, to 300 W", 300)
    assert row.bottom <= scene.head_px
    (layer,) = card_layers(trace, scene, row, {}, np.array([0, 10, 20, 40.0]) * MS)
    assert layer.mean.tolist() == pytest.approx([100, 300, 250])
    # THEN the picture has it, and the memory of streams stays folded
    picture = timeline_svg(trace)
    assert "power, to 300 W" in picture
    assert "pool" not in picture


def test_what_runs_alone_binds_where_launched_work_waits_for_it_and_else_had_no_company():
    spans = [
        ("a", "x", 0, 4 * MS, {"queued_ns": 0}), ("b", "y", 4 * MS, 5 * MS, {"queued_ns": MS}),
        ("a", "z", 5 * MS, 9 * MS, {"queued_ns": 5 * MS}),
    ]  # fmt: skip
    # Most of the time of x y was launched, and waited; before and behind it no other stream had work.
    assert shares(make_kernel_trace(spans)) == {"kernels bound": 4 * MS, "only one had work": 5 * MS}


def test_a_blocked_host_that_has_yet_to_launch_is_why_one_stream_works_alone():
    spans = [
        ("a", "x", 0, 4 * MS), ("host: MainThread", "cudaDeviceSynchronize", 100, 4 * MS, {"kind": "host"}),
        ("b", "y", 4 * MS + 9, 8 * MS, {"queued_ns": 4 * MS + 9}),
    ]  # fmt: skip
    found = shares(make_kernel_trace(spans))
    assert found["host waits"] == 4 * MS
    # THEN the last wait of a program, behind which nothing is launched, holds nothing up
    found = shares(make_kernel_trace([*spans, ("host: MainThread", "cudaDeviceSynchronize", 5 * MS, 8 * MS, {"kind": "host"})]))
    assert found["host waits"] == 4 * MS
