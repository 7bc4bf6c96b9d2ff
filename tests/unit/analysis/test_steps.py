"""Steps and requests: what names say, shared time that counts once, and what held ranges up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import name_tags, tagged_name
from gpustreamlab.errors import InvalidNameError, OptionError
from gpustreamlab.model import EDGE_KINDS, Edges
from gpustreamlab.trace import Trace
from gpustreamlab.workloads import spin


@pytest.mark.parametrize(
    ("name", "phase", "requests", "step"),
    [
        ("decode request=7/9 step=3", "decode", ("7", "9"), 3),
        ("step 12", "step", (), 12),
        ("ProfilerStep#4", "step", (), 4),
        ("train iteration=5", "train", (), 5),
        ("prefill req_id: cmpl-8a", "prefill", ("cmpl-8a",), -1),
        ("request 17", "request", ("17",), -1),
        ("Optimizer.step#Adam.step", "Optimizer.step#Adam.step", (), -1),
        ("footsteps 3", "footsteps 3", (), -1),
        ("request handling", "request handling", (), -1),
    ],
)
def test_names_that_foreign_programs_give_are_read(name, phase, requests, step):
    assert name_tags(name) == (phase, requests, step)


def test_what_is_written_is_read_back():
    name = tagged_name("decode", request=["a b", np.int64(4)], step=np.int64(2))
    assert name_tags(name) == ("decode", ("a_b", "4"), 2)


@pytest.mark.parametrize("wrong", [{"step": -1}, {"step": True}, {"step": "3"}, {"request": []}, {"request": " "}])
def test_what_is_no_step_and_no_request_is_refused(wrong):
    with gsl.Session("sim") as lab:
        lab.stream("a")
        with pytest.raises(InvalidNameError):
            lab.on("a", "work", **wrong)


def _served():
    """Return a trace of four steps of decode, each of two requests, of which every other one waits for prefill."""
    with gsl.Session("sim") as lab:
        prefill, decode = lab.stream("prefill"), lab.stream("decode")
        for step in range(4):
            if step % 2 == 0:
                with lab.on("prefill", request=100 + step):
                    spin(lab, 300_000, blocks=132 * 32)
                decode.wait(prefill)
            with lab.on("decode", "decode", request=[step, step + 1], step=step):
                for _ in range(5):
                    spin(lab, 20_000, blocks=8)
            lab.synchronize()
        return lab.trace


def test_steps_are_told_by_number_with_the_causes_of_their_time():
    found = _served().steps()
    assert found.labels == ("0", "1", "2", "3")
    assert (found.busy_ns == found.part_ns).all()
    assert found.quantile_ns(0.95) == found.duration_ns.max() > 2 * found.duration_ns.min()
    (decode,) = found.phases
    assert (decode.name, decode.range_count, decode.p95_ns) == ("decode", 4, found.duration_ns.max())
    cause, share = decode.causes[0]
    # What waits: two of four steps, all of their time but the 100 us of work in each.
    waited_ns = sum(sorted(found.duration_ns.tolist())[2:]) - 200_000
    assert cause == "behind prefill"
    assert share == pytest.approx(waited_ns / found.duration_ns.sum(), abs=0.02)
    assert "behind prefill" in str(found)


def test_the_time_of_a_batch_counts_once_for_the_requests_that_share_it():
    trace = _served()
    found = trace.steps("request")
    work_ns = int(trace.duration_ns[trace.kind == 1].sum())
    assert found.part_ns.sum() == work_ns == 2 * 300_000 + 4 * 100_000
    by = dict(zip(found.labels, zip(found.busy_ns.tolist(), found.part_ns.tolist(), strict=True), strict=True))
    assert by["0"] == (100_000, 50_000)  # of one batch
    assert by["1"] == (200_000, 100_000)  # of two
    assert by["100"] == (300_000, 300_000)  # of none


def test_an_uneven_time_is_shared_out_to_the_last_nanosecond():
    trace = Trace.from_columns(start_ns=[0], end_ns=[10], stream=["a"], name=["decode request=a/b/c"])
    assert sorted(trace.steps("request").part_ns.tolist()) == [3, 3, 4]


def test_what_a_range_holds_is_of_its_step_and_the_nearest_one_counts():
    trace = Trace.from_columns(
        start_ns=[0, 0, 5, 20],
        end_ns=[30, 10, 8, 30],
        stream=["a"] * 4,
        name=["epoch step=1", "batch step=7 request=x", "gemm", "relu"],
        kind=["range", "range", "kernel", "kernel"],
        parent=[-1, 0, 1, 0],
    )
    frame = trace.to_pandas()
    assert frame["step"].tolist() == [1, 7, 7, 1]
    assert frame["request"].tolist()[1:3] == ["x", "x"]
    assert frame["request"].isna().tolist() == [True, False, False, True]


def test_work_is_of_the_step_of_the_annotation_around_its_launch():
    trace = Trace.from_columns(
        start_ns=[0, 1, 5],
        end_ns=[4, 2, 9],
        stream=["main", "main", "a"],
        name=["step 3", "cudaLaunchKernel", "gemm"],
        kind=["annotation", "host", "kernel"],
        parent=[-1, 0, -1],
    )
    trace = replace(trace, edges=Edges(source=[1], target=[2], kind=[EDGE_KINDS.index("launch")]))
    assert trace.steps().labels == ("3",)


def test_where_no_range_says_a_step_what_repeats_counts():
    with gsl.Session("sim") as lab:
        lab.stream("a")
        for _ in range(6):
            with lab.on("a", "train"):
                spin(lab, 20_000, blocks=8)
            with lab.on("a", "rest"):
                spin(lab, 10_000, blocks=8)
        lab.synchronize()
        found = lab.trace.steps()
    assert len(found) == 5  # where the last one ends nobody knows
    assert found.phases[0].name == "train"
    assert not lab.trace.steps("request")
    assert "no range says" in str(lab.trace.steps("request"))


def test_a_lane_for_each_request_shows_its_phases_and_promises_nothing():
    lanes = _served().steps("request").lanes_trace()
    assert sorted(lane.name for lane in lanes.lanes) == sorted(f"request {one}" for one in (0, 1, 2, 3, 4, 100, 102))
    own = lanes.where(stream="request 1")
    assert [own.names[code] for code in own.name] == ["decode, shared"] * 2
    assert own.start_ns[1] >= own.end_ns[0]
    assert lanes.metadata.simulated
    # A request is no stream: what would be said of streams is not said of it.
    assert not lanes.explain().findings
    assert len(_served().steps().lanes_trace().lanes) == 4


def test_columns_go_to_parquet_and_do_not_come_twice(tmp_path):
    trace = _served()
    trace.save(tmp_path / "run.parquet")
    again = gsl.load_trace(tmp_path / "run.parquet")
    again.save(tmp_path / "again.parquet")
    assert again.steps("request").labels == trace.steps("request").labels
    assert again.to_pandas().columns.tolist() == trace.to_pandas().columns.tolist()
    assert "step" in trace.to_pandas()


def test_another_word_is_refused():
    with pytest.raises(OptionError, match="by 'step' or 'request'"):
        _served().steps("steps")
