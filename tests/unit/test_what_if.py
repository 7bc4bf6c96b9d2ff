"""Predictions of other layouts, against really running there on the simulated device."""

from functools import partial

import numpy as np
import pytest

from gpustreamlab import Layout, Session, Trace, compare, load_trace
from gpustreamlab.errors import MeasureError, OptionError, PartitionError
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from gpustreamlab.workloads import spin
from tests.helpers.what_if_programs import PROGRAMS, SIZES, Bench

WORK = [SPAN_KINDS.index(kind) for kind in DEVICE_WORK]
TWO = ({"a": 64, "b": "rest"}, {"a": 32, "b": "rest"}, {"a": 96, "b": "rest"}, {"a": 24, "b": "rest"}, None)
THREE = ({"a": 64, "b": 32, "c": "rest"}, {"a": 32, "b": 64, "c": "rest"}, {"a": 80, "b": 24, "c": "rest"}, None)


def makespan(trace):
    rows = np.isin(trace.kind, WORK)
    return int(trace.end_ns[rows].max() - trace.start_ns[rows].min())


def record(program, layout, spread=0.0):
    bench = Bench(spread)
    try:
        return bench.run(PROGRAMS[program], layout)
    finally:
        bench.lab.close()


@pytest.fixture(scope="module")
def swept():
    bench = Bench()
    found = {name: bench.sweep(name) for name in bench.tasks if name not in {"copy", "tile"}}
    bench.lab.close()
    return found


def sweeps_of(program, swept):
    return {name: swept[name] for name in {step[1] for step in PROGRAMS[program]} & set(swept)}


# Against what really runs


@pytest.mark.parametrize("program", PROGRAMS)
def test_predictions_are_near_what_runs(program, swept):
    layouts = THREE if any(step[0] == "c" for step in PROGRAMS[program]) else TWO
    trace = record(program, layouts[0])
    found = [trace.what_if(layout, sweep=sweeps_of(program, swept)) for layout in layouts]

    assert abs(found[0].own_error) < 0.03
    assert found[0].makespan_ns == pytest.approx(makespan(trace), rel=0.03)
    errors = [
        one.makespan_ns / makespan(record(program, layout)) - 1 for one, layout in zip(found[1:], layouts[1:], strict=True)
    ]
    assert np.median(np.abs(errors)) <= 0.02
    assert np.abs(errors).max() <= 0.05
    assert all(abs(error) <= one.error for error, one in zip(errors, found[1:], strict=True))


@pytest.mark.parametrize("program", ["products beside adds", "three tasks"])
def test_predictions_hold_where_times_vary(program):
    bench = Bench(spread=0.02)
    swept = {name: bench.sweep(name, SIZES[2::2], repeats=9) for name in {step[1] for step in PROGRAMS[program]}}
    bench.lab.close()
    layouts = THREE if program == "three tasks" else TWO
    trace = record(program, layouts[0], 0.02)
    for layout in layouts[1:]:
        found = trace.what_if(layout, sweep=swept)
        assert found.makespan_ns == pytest.approx(makespan(record(program, layout, 0.02)), rel=0.15)


def test_bandwidth_is_shared(swept):
    """Two streams of adds take as long on any split: the memory is what they wait for."""
    trace = record("adds beside adds", TWO[0])
    found = trace.what_if(TWO[2], sweep={"add": swept["add"]})
    alone_ns = 8 * swept["add"].predict(96)
    assert found.makespan_ns > 1.8 * alone_ns
    assert not any("nothing from memory" in note for note in found.notes)


# What is kept


def test_waits_are_kept(swept):
    program = "a chain across streams"
    trace = record(program, TWO[0])
    for layout in TWO[1:]:
        found = trace.what_if(layout, sweep=sweeps_of(program, swept))
        sizes = {lane.name: lane.sm_count for lane in found.trace.lanes}
        parts = sum(swept[task].predict(sizes[stream]) for stream, task, *_ in PROGRAMS[program])
        assert found.makespan_ns >= parts * 0.99
        made, waits = found.trace, found.trace.edges.select("wait")
        assert len(waits)
        assert (made.start_ns[waits.target] >= made.end_ns[waits.source]).all()


def test_nothing_begins_before_its_launch_and_streams_stay_in_order(swept):
    trace = record("three tasks", THREE[0])
    made = trace.what_if(None, sweep=sweeps_of("three tasks", swept)).trace
    assert (made.start_ns >= made.queued_ns).all()
    rows = np.flatnonzero(np.isin(made.kind, WORK))
    for lane in range(len(made.lanes)):
        own = rows[made.lane[rows] == lane]
        assert (np.diff(made.queued_ns[own]) > 0).all()
        assert (made.start_ns[own][1:] >= made.end_ns[own][:-1]).all()


def uploads(lab, work, more):
    """Copy from pageable memory between two kernels, which blocks the host: what comes behind is launched when it ends."""
    x, host = lab.xp.empty(1 << 16, "f4"), np.zeros(1 << 16, "f4")
    lab.synchronize()
    lab.clear()
    for _ in range(3):
        work()
        with lab.on("a", "copy"):
            x.set(host)
        more()


def synchronisations(lab, work, more, *, count):
    """Wait for the device between two kernels, while calls of the host are captured."""
    with lab.capture("kernels", host=True):
        for _ in range(count):
            work()
            lab.synchronize()
            more()
        lab.synchronize()


@pytest.mark.parametrize("run", [uploads, *(partial(synchronisations, count=count) for count in (1, 20))])
def test_launches_move_with_what_the_host_waited_for(run):
    def record_on(layout):
        with Session("sim") as lab:
            lab.partition(layout)
            tasks = {"a": partial(spin, lab, 100_000, blocks=128 * 32), "b": partial(spin, lab, 50_000, blocks=32 * 32)}

            def on(name):
                with lab.on(lab.stream(name, partition=name), f"on {name}"):
                    tasks[name]()

            run(lab, partial(on, "a"), partial(on, "b"))
            lab.synchronize()
            trace = lab.trace
            return trace, {f"on {name}": lab.bench.sweep(task, [32, 64, 96, 100]) for name, task in tasks.items()}

    trace, swept = record_on({"a": 32, "b": 64})
    other, _ = record_on({"a": 96, "b": 32})
    found = trace.what_if({"a": 96, "b": 32}, sweep=swept)
    assert abs(found.own_error) < 0.03
    assert found.makespan_ns == pytest.approx(makespan(other), rel=0.03)
    assert makespan(other) < 0.8 * makespan(trace)
    if run is not uploads:
        assert trace.host_waits().call_count
        assert not any("no calls of the host" in note for note in found.notes)


def test_sweeps_are_found_by_the_innermost_range_by_kernel_and_by_their_own_names(swept):
    def work():
        spin(bench.lab, 20_000, blocks=132 * 32 * 3)
        spin(bench.lab, 20_000, blocks=132 * 32 * 3)

    bench = Bench()
    lab = bench.lab
    lab.partition(a=64, b="rest")
    lab.stream("a", partition="a")
    lab.stream("b", partition="b")
    lab.synchronize()
    lab.clear()
    with lab.on("a", "step"):
        with lab.range("work"):
            work()
            work()  # twice as much as a call of the sweep
    with lab.on("b"):
        bench.tasks["add"]()
    lab.synchronize()
    trace = lab.trace
    sweeps = [lab.bench.sweep(work, [32, 64, 96]), swept["add"]]
    lab.close()
    named = {"work": sweeps[0], "add": swept["add"]}
    found = trace.what_if({"a": 32, "b": "rest"}, sweep=named)
    assert found.makespan_ns == pytest.approx(4 * 13 * 20_000, rel=0.01)
    assert (
        found.makespan_ns
        == trace.what_if({"a": 32, "b": "rest"}, sweep={"spin": sweeps[0]} | {"add": swept["add"]}).makespan_ns
    )
    with pytest.raises(OptionError, match="no kernel 'call'"):
        trace.what_if({"a": 32}, sweep=sweeps)  # lambdas have no name that tells
    assert found.makespan_ns == trace.what_if({"a": 32, "b": "rest"}, sweep=named | {"step": swept["fill"]}).makespan_ns


# What it is


def test_the_trace_says_that_it_is_predicted(swept, tmp_path):
    trace = record("three tasks", THREE[0])
    found = trace.what_if(THREE[1], sweep=sweeps_of("three tasks", swept))
    made = found.trace
    assert "predicted" in made.metadata.device.label
    assert made.metadata.simulated
    assert "predicted" in repr(made)
    assert made.layout["b"].granted_sms == 64
    assert len(made) == len(trace) - len(trace.where(kind="host"))  # calls are not scheduled anew
    assert {lane.name: lane.sm_count for lane in made.lanes}["c"] == 36
    made.save(tmp_path / "predicted.parquet")
    assert load_trace(tmp_path / "predicted.parquet").end_ns.tolist() == made.end_ns.tolist()
    assert found.measured is trace
    assert "a is H200 (SIMULATED), b is H200, predicted (PREDICTED)" in " ".join(str(compare(trace, made)).split())
    assert str(found.compare()) == str(compare(trace, made))
    assert "predicted" in repr(found)
    assert "At its own layout it is off by" in str(found)
    assert "Predicted, not measured" in found._repr_html_()


def test_layouts_that_were_planned_and_partitions_by_the_streams_names(swept):
    trace = record("adds beside adds", None)
    sweeps = {"add": swept["add"]}
    planned = trace.what_if({"a": 32, "b": "rest"}, sweep=sweeps).layout
    assert isinstance(planned, Layout)
    assert trace.what_if(planned, sweep=sweeps).makespan_ns == trace.what_if({"a": 32, "b": "rest"}, sweep=sweeps).makespan_ns
    half = trace.what_if({"a": 32}, sweep=sweeps)
    assert {lane.name: lane.partition for lane in half.trace.lanes if lane.name in "ab"} == {"a": "a", "b": None}


# What is refused


def test_without_sweeps_it_says_what_to_sweep(swept):
    trace = record("spins beside adds", TWO[0])
    with pytest.raises(MeasureError, match=r"Nothing is predicted: what 'add'.*sweep=\{'add': lab.bench.sweep\(f0\)\}"):
        trace.what_if(TWO[1], sweep={"fill": swept["fill"]})
    with pytest.raises(MeasureError, match=r"'add'.*'fill'|'fill'.*'add'"):
        trace.what_if(TWO[1], sweep={})


def test_what_takes_next_to_nothing_needs_no_sweep(swept):
    with Session("sim") as lab:
        lab.partition(a=64, b="rest")
        for name, task, ns in (("a", "work", 3_000_000), ("b", "tiny", 10_000)):
            with lab.on(lab.stream(name, partition=name), task):
                spin(lab, ns)
        trace, found = lab.trace, lab.bench.sweep(lambda: spin(lab, 3_000_000), [32, 64])
        lab.synchronize()
        trace = lab.trace
    prediction = trace.what_if({"a": 32, "b": "rest"}, sweep={"work": found})
    assert prediction.makespan_ns == 3_000_000
    assert any("without a sweep" in note for note in prediction.notes)


def test_a_size_that_no_sweep_tells_is_refused_and_sizes_that_were_measured_are_enough():
    bench = Bench()
    swept = bench.sweep("add", [64, 68, 132])
    bench.lab.close()
    trace = record("adds beside adds", TWO[0])
    found = trace.what_if(None, sweep={"add": swept})
    assert found.makespan_ns == pytest.approx(8 * swept.predict(132) * 2, rel=0.05)
    with pytest.raises(MeasureError, match=r"not measured on 96 SMs, and no model fits.*sms=\[96\]"):
        trace.what_if(TWO[2], sweep={"add": swept})


@pytest.mark.parametrize(
    ("layout", "sweep", "error", "words"),
    [
        ({"a": 64, "x": "rest"}, "add", OptionError, "No stream would run in partition 'x'"),
        ({"a": 400}, "add", PartitionError, "400"),
        ({"a": 64}, "sub", OptionError, "no range and no kernel 'sub'"),
        ({"a": 64}, None, OptionError, "what lab.bench.sweep"),
    ],
)
def test_what_cannot_be_is_refused(layout, sweep, error, words, swept):
    trace = record("adds beside adds", TWO[0])
    with pytest.raises(error, match=words):
        trace.what_if(layout, sweep=None if sweep is None else {sweep: swept["add"]})


def test_traces_without_kernels_or_with_several_layouts_are_refused(swept):
    ranges = Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"], sm_count=132)
    with pytest.raises(MeasureError, match="no kernels"):
        ranges.what_if(None, sweep={"add": swept["add"]})
    kernels = Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"], kind="kernel", name=["add"])
    with pytest.raises(MeasureError, match="How many SMs"):
        kernels.what_if(None, sweep={"add": swept["add"]})
    with Session("sim") as lab:
        for size in (32, 64):
            lab.partition(a=size)
            with lab.on(lab.stream("a", partition="a"), "work"):
                spin(lab, 10_000)
        lab.synchronize()
        found = lab.bench.sweep(lambda: spin(lab, 10_000), [32, 64])
        with pytest.raises(OptionError, match="several sizes"):
            lab.trace.what_if(None, sweep={"work": found})


def test_traces_of_columns_can_be_predicted(swept):
    """Nothing is known of grids and launches: kernels are taken to fill their SMs and to be launched at once."""
    fill_ns = int(swept["fill"].predict(64))
    trace = Trace.from_columns(
        start_ns=[0, 0],
        end_ns=[fill_ns, fill_ns],
        stream=["a", "b"],
        kind="kernel",
        name=["fill", "fill"],
        partition=["a", "b"],
        partition_sms={"a": 64, "b": 64},
        sm_count=132,
    )
    found = trace.what_if(None, sweep={"fill": swept["fill"]})
    assert found.own_error == pytest.approx(0, abs=0.01)
    assert found.makespan_ns == pytest.approx(2 * swept["fill"].predict(132), rel=0.01)
    assert any("launched at once" in note for note in found.notes)
    assert any("rules of the simulated device" in note for note in found.notes)
