"""The lesson on partitions, executed on the simulated device: what it shows is checked as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gpustreamlab import load_trace
from gpustreamlab.model import SPAN_KINDS
from tests.helpers.notebooks import read_tables, run_lesson

pytestmark = pytest.mark.notebook

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "02-partitions.ipynb"
TABLES = ("plain", "parted", "four", "latency", "sweep")
"""Tables that the notebook makes, read back by the tests."""
WHOLE_CARD_SMS = 132


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    """Run the notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    return run_lesson(NOTEBOOK, tmp_path_factory.mktemp("lesson"), TABLES, "proof.holds, needs", tags=["show"])


@pytest.fixture(scope="module")
def tables(lesson):
    return read_tables(lesson[0], TABLES)


@pytest.fixture(scope="module")
def trace(lesson):
    return load_trace(lesson[0] / "partitions.parquet")


def test_the_plan_says_what_is_granted_and_what_would_work(lesson):
    planned = re.findall(r"(up|down) +Layout: prefill (\d+) SMs \(asked for (\d+)\)", lesson[1])

    (up, down) = [(rule, int(granted), int(asked)) for rule, granted, asked in planned]
    assert (up[0], down[0]) == ("up", "down")
    assert up[1] >= up[2] == down[2] >= down[1]
    assert re.search(r"error .* The nearest plan that works: prefill=\d+, decode=\d+\.", lesson[1])


def test_the_partitions_are_verified(lesson):
    assert "SMs of H200 (simulated): verified" in lesson[1]
    assert re.search(r"stream decode \(decode\): \d+ SMs inside, 0 outside", lesson[1])
    assert lesson[1].count("(True, {") == 1


def test_four_kernels_on_plain_streams_are_a_staircase(tables):
    # GIVEN four kernels of 1 ms that each fill the card
    ends_ms = tables["plain"]["end, ms"]

    # THEN each ends a millisecond after the one before, though all ranges begin at once
    assert ends_ms.diff().dropna().tolist() == pytest.approx([1, 1, 1], abs=0.02)
    assert tables["plain"]["start, ms"].max() < 0.1
    assert set(tables["plain"]["SMs"]) == {WHOLE_CARD_SMS}


def test_in_four_partitions_they_run_side_by_side_in_whole_waves(tables):
    parted = tables["parted"]

    # THEN none waits for another: each takes its own waves, and they end together
    assert parted["SMs"].sum() <= WHOLE_CARD_SMS
    assert (parted["end, ms"] - parted["start, ms"]).tolist() == pytest.approx(parted["waves"].tolist(), abs=0.02)
    assert parted["end, ms"].max() - parted["end, ms"].min() < 0.1

    # AND the notebook does not hide the price
    assert tables["four"].loc["four partitions", "last ends, ms"] > tables["four"].loc["plain streams", "last ends, ms"]
    assert tables["four"].loc["four partitions", "mean end, ms"] > tables["four"].loc["plain streams", "mean end, ms"]


def test_a_partition_keeps_a_short_kernel_from_waiting_and_a_priority_does_half_of_it(tables):
    p50_us, p99_us = tables["latency"]["p50, us"], tables["latency"]["p99, us"]
    bulk_us = tables["latency"]["one bulk kernel, us"]

    # THEN a request waits for a whole kernel, for one wave of it, or for nothing
    assert p99_us["plain"] > 900
    assert 200 < p99_us["priority"] < 350
    assert p99_us["partition"] == pytest.approx(p99_us["alone"], rel=0.05)
    assert p50_us["partition"] < p50_us["priority"] < p50_us["plain"]

    # AND the bulk work pays for it with its last wave
    assert bulk_us["partition"] == pytest.approx(1.25 * bulk_us["plain"], rel=0.01)


def test_arithmetic_grows_with_its_sms_and_streaming_saturates(tables):
    sweep = tables["sweep"]
    product_ms, rate = sweep["product, ms"], sweep["GB/s"]

    # THEN the product falls from each size to the next (2% for a wave that comes with it), in all to a tenth
    assert (product_ms.to_numpy()[1:] < 1.02 * product_ms.to_numpy()[:-1]).all()
    assert product_ms.iloc[-1] < 0.1 * product_ms.iloc[0]

    # AND streaming grows with its SMs at first, and not at all once the memory is busy
    few, many = rate[sweep["granted"] <= 32], rate[sweep["granted"] >= 64]
    assert few.iloc[-1] == pytest.approx(4 * few.iloc[0], rel=0.02)
    assert many.max() == pytest.approx(many.min(), rel=0.02)
    assert (sweep["granted"] >= sweep["requested"]).all()


def test_the_conclusion_on_sizes_is_what_the_table_says(lesson, tables):
    said = re.search(r"streaming with (\d+) SMs, the product with (\d+)\.", lesson[1])
    sweep = tables["sweep"]

    for sms, column in zip(said.groups(), ("GB/s", "TFLOP/s"), strict=True):
        reached = sweep[sweep[column] >= 0.9 * sweep[column].max()]
        assert int(sms) == reached["granted"].min()
    assert int(said[1]) < int(said[2])


def test_the_streams_move_with_work_in_flight_and_the_trace_knows_it(lesson, trace):
    # GIVEN what streams did in the trace of the last part
    trace = trace.where(kind=["range", "kernel", "copy", "fill"])
    assert "prefill has work in flight: True" in lesson[1]
    assert "would drain and move: prefill decode" in lesson[1]
    sizes = {
        name: list(dict.fromkeys(trace.partitions[code].granted_sms for code in trace.partition[trace.name == row]))
        for row, name in enumerate(trace.names)
    }

    # THEN both streams worked in two sizes, the cell in the second, and no span was lost or ran elsewhere
    assert (trace.partition >= 0).all()
    assert [trace.lanes[lane].name for lane in np.unique(trace.lane)] == ["prefill", "decode"]
    assert sizes["prompt"] == sizes["token"][::-1]
    assert sizes["attention"] == [sizes["token"][1]]
    assert (trace.kind == SPAN_KINDS.index("range")).sum() == 8 + 4 + 4 + 8 + 1
    assert trace.metadata.dropped_spans == 0
    assert [change.layout.names for change in trace.layouts if change.layout is not None][-1] == ("prefill", "decode")


def test_no_kernel_begins_before_those_in_flight_have_ended(trace):
    second = trace.layouts[-1].layout["decode"].granted_sms
    after = pd.Series([trace.partitions[code].granted_sms == second for code in trace.partition])[
        trace.lane == [lane.name for lane in trace.lanes].index("decode")
    ]
    rows = after.index

    assert trace.end_ns[rows[~after]].max() <= trace.start_ns[rows[after]].min()


def test_coming_back_to_a_layout_costs_no_new_contexts(lesson):
    new_us, known_us = re.search(r"to new contexts ([\d,]+) us, to known ones ([\d,]+) us", lesson[1]).groups()

    assert float(known_us.replace(",", "")) < 100 < float(new_us.replace(",", ""))


def test_the_charts_follow_the_theme_and_are_small(lesson):
    outputs = [output.data for cell in lesson[2].cells for output in cell.get("outputs", ()) if "data" in output]
    charts = [data["text/html"] for data in outputs if 'class="gsl-still"' in data.get("text/html", "")]

    assert len(charts) >= 3
    assert max(map(len, charts)) < 150_000
    assert not [kind for data in outputs for kind in data if "javascript" in kind or "bokehjs" in kind]


def test_it_says_that_the_device_is_simulated(lesson):
    folder, printed, _ = lesson

    assert "simulated, no hardware behind them" in printed
    assert "(measured" not in printed
    assert printed.count("(simulated H200)") >= 4
    assert "SIMULATED" in (folder / "partitions.html").read_text(encoding="utf-8")
    assert str(folder / "partitions.html") in printed


def test_the_utilization_is_printed_for_both_sizes(lesson):
    table = lesson[1].partition("Utilization of ")[2]

    assert len(re.findall(r"^(?:prefill|decode) ", table, re.MULTILINE)) == 4
