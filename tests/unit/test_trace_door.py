"""Whoever gives a user a trace gives one that can be asked; what it holds is a value of the model."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import gpustreamlab as gsl
from gpustreamlab import Node, Session, Trace, compare, load_trace, merge, model, workloads
from gpustreamlab.trace import as_trace
from tests.helpers.traces import pipeline_trace


@pytest.fixture(scope="module")
def recorded():
    with Session("sim") as lab:
        before = lab.recording.checkpoint()
        with lab.on(lab.stream("a"), "work"):
            workloads.spin(lab, 100_000, blocks=132)
        lab.synchronize()
        swept = {"work": lab.bench.sweep(lambda: workloads.spin(lab, 100_000), [64, 132])}
        return {
            "session": lab.trace,
            "checkpoint": lab.recording.since(before),
            "timeline": lab.timeline(live=False).trace,
            "prediction": lab.trace.what_if(None, sweep=swept).trace,
        }


@pytest.mark.parametrize("source", ["session", "checkpoint", "timeline", "prediction"])
def test_a_session_gives_traces_that_can_be_asked(recorded, source):
    assert type(recorded[source]) is Trace
    assert recorded[source].overlap().metadata == recorded[source].metadata


def test_nodes_files_merges_parts_and_comparisons_do(tmp_path):
    trace = pipeline_trace()
    with Node() as node:
        of_node = node.trace
    for name in ("run.parquet", "run.json"):
        trace.save(tmp_path / name)
    trace.timeline().save(tmp_path / "run.html", with_data=True)
    files = [load_trace(tmp_path / name) for name in ("run.parquet", "run.json", "run.html")]
    parts = [trace[:3], trace.between(0, 10**6), trace.where(kind="range"), merge([trace]), pickle.loads(pickle.dumps(trace))]
    compared = compare(tmp_path / "run.parquet", model.Trace.from_columns(start_ns=[0], end_ns=[1], stream=["a"]))
    assert {type(one) for one in (of_node, *files, *parts, compared.a, compared.b)} == {Trace}


def test_what_a_trace_holds_is_shared_with_that_which_can_be_asked():
    held = model.Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"])
    asked = as_trace(held)
    assert (type(held), type(asked)) == (model.Trace, Trace)
    assert asked.start_ns is held.start_ns
    assert as_trace(asked) is asked
    assert len({name for name in dir(gsl.Trace) if not name.startswith("_")}) == 43


def test_the_number_of_a_span_is_its_own_and_is_kept(tmp_path):
    with Session("sim") as one, Session("sim") as other:
        for lab in (one, other):
            with lab.on(lab.stream("a"), "work"), lab.range("part"):
                workloads.spin(lab, 1_000)
            lab.synchronize()
        traces = [one.trace, other.trace]
    numbers = [number for trace in traces for number in trace.extra["number"].tolist()]
    assert len(set(numbers)) == len(numbers) == sum(map(len, traces))
    traces[0].save(tmp_path / "run.parquet")
    assert load_trace(tmp_path / "run.parquet")[1:].extra["number"].tolist() == traces[0].extra["number"][1:].tolist()
    assert "number" in merge(traces, ahead_ns=[0, 0], processes=[0, 1]).extra
    assert "number" not in merge([traces[0], traces[0]], ahead_ns=[0, 10**9], processes=[0, 1]).extra


def test_a_trace_loads_no_library_of_tables_or_pictures():
    code = (
        "import sys, gpustreamlab as g; g.Trace; sys.exit(any(name in sys.modules for name in ('pandas', 'pyarrow', 'bokeh')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
