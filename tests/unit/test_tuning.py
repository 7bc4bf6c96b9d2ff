"""Measuring, sweeping, co-running and tuning on the simulated device, against what its rules say."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from IPython.core.error import UsageError

from gpustreamlab.analysis import format_ns
from gpustreamlab.errors import MeasureError, OptionError, PartitionInUseError
from gpustreamlab.tuning import Place, fit_times, interval
from gpustreamlab.tuning._tune import candidates
from gpustreamlab.workloads import spin

WAVE_NS = 20_000
BLOCKS = 132 * 32 * 3
MADE = "cudaStreamCreateWithPriority"


def full(lab, waves=3):
    """Return work that fills the card some times over: ceil(132 waves / n) waves on n SMs."""
    return lambda: spin(lab, WAVE_NS, blocks=132 * 32 * waves)


def small(lab, duration_ns=50_000):
    return lambda: spin(lab, duration_ns)


# Measure


def test_a_measurement_is_what_the_device_took_and_leaves_no_trace(lab):
    with lab.on(lab.stream("mine"), "before"):
        spin(lab, 1_000)
    found = lab.bench.measure(small(lab), repeats=7, warmup=2)
    assert found.samples_ns.tolist() == [50_000] * 7
    assert found.interval_ns == (50_000, 50_000)
    assert found.launch_count == 1
    lab.synchronize()
    assert [lane.name for lane in lab.trace.lanes if lane.kind == "stream"] == ["mine"]
    trace = lab.trace
    assert [trace.names[code] for code in trace.where(kind=["range", "kernel"]).name] == ["before", "spin"]
    assert [trace.names[code] for code in trace.where(kind="host").name] == [MADE, "cudaLaunchKernel", "cudaDeviceSynchronize"]


def test_what_is_recorded_around_a_measurement_is_the_users_alone(lab):
    x = lab.xp.ones((64, 64))
    lab.stream("mine")
    before = lab.recording.checkpoint()
    lab.bench.measure(lambda: (x @ x).sum().get(), repeats=3)  # launches, copies, allocates and waits
    lab.bench.measure(small(lab), stream="mine", repeats=3)
    assert [lab.trace.names[code] for code in lab.trace.name] == ["cudaMalloc", "cudaLaunchKernel", MADE, "ones"]
    trace = lab.recording.since(before)
    assert (len(trace), [lane.name for lane in trace.lanes if lane.kind == "stream"]) == (0, ["mine", "default stream"])
    with lab.on("mine", "after"):
        spin(lab, 1_000)
    lab.synchronize()
    trace = lab.recording.since(before)
    assert [trace.names[code] for code in trace.name] == ["after", "cudaLaunchKernel", "spin", "cudaDeviceSynchronize"]


def test_a_trace_is_no_part_because_something_was_measured(lab):
    with lab.on(lab.stream("mine"), "work"):
        spin(lab, 1_000_000)
    lab.synchronize()
    lab.bench.measure(lambda: spin(lab, 1_000_000))
    assert "cut" not in repr(lab.trace)
    assert lab.trace.metadata.part_of_spans == 0


def test_it_is_measured_on_the_stream_that_is_selected_or_given(lab):
    lab.partition(part=32)
    lab.stream("there", partition="part")
    expected = WAVE_NS * -(-132 * 3 // 32)
    assert lab.bench.measure(full(lab), stream="there", repeats=3).median_ns == expected
    with lab.select("there"):
        found = lab.bench.measure(full(lab), repeats=3)
    assert (found.median_ns, found.sm_count) == (expected, 32)
    assert lab.layout["part"].granted_sms == 32


def test_work_of_a_setup_does_not_count(lab):
    calls = []
    found = lab.bench.measure(small(lab), repeats=4, warmup=1, setup=lambda: (calls.append(1), spin(lab, 500_000)))
    assert found.samples_ns.tolist() == [50_000] * 4
    assert len(calls) == 5


def test_the_functions_own_error_passes_and_the_session_works_on(lab):
    def fails():
        spin(lab, 1_000)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        lab.bench.measure(fails)
    assert lab.current is None
    assert lab.bench.measure(small(lab), repeats=2).median_ns == 50_000


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda lab: lab.bench.measure(lambda: None), MeasureError, "enqueued no work"),
        (lambda lab: lab.bench.measure(3), OptionError, "without arguments"),
        (lambda lab: lab.bench.measure(small(lab), repeats=1), OptionError, "repeats"),
        (lambda lab: lab.bench.measure(small(lab), warmup=-1), OptionError, "warmup"),
        (lambda lab: lab.bench.sweep(small(lab), [13]), OptionError, "nearest size is 12"),
        (lambda lab: lab.bench.sweep(small(lab), []), OptionError, "no sizes"),
        (lambda lab: lab.bench.sweep(small(lab), "some"), OptionError, "'all'"),
        (lambda lab: lab.bench.corun({"a": small(lab)}), OptionError, "two or more"),
        (lambda lab: lab.bench.corun({"a": small(lab), "b": small(lab)}, {"a": 32}), OptionError, "no partition for task 'b'"),
        (lambda lab: lab.bench.corun({"a": small(lab), "b": small(lab)}, priorities={"c": -1}), OptionError, "no task"),
        (lambda lab: lab.bench.tune({"a": small(lab), "b": small(lab)}, "best"), OptionError, "'makespan'"),
        (
            lambda lab: lab.bench.tune({"a": small(lab), "b": small(lab)}, constraint="b.p95 2 ms"),
            OptionError,
            "cannot be read",
        ),
        (
            lambda lab: lab.bench.tune({"a": small(lab), "b": small(lab)}, constraint="c.p95 < 2 ms"),
            OptionError,
            "names no figure",
        ),
        (lambda lab: lab.bench.tune({"a": small(lab), "b": small(lab)}, constraint="b.p95 < 2"), OptionError, "no unit"),
        (lambda lab: lab.bench.tune({"a": small(lab), "b": small(lab)}, budget_s=0), OptionError, "budget_s"),
    ],
)
def test_bad_input_is_told_in_one_sentence(lab, call, error, words):
    with pytest.raises(error, match=words):
        call(lab)
    assert lab.bench.measure(small(lab), repeats=2).median_ns == 50_000


def test_work_on_other_streams_and_gaps_of_the_host_are_told(lab):
    other = lab.stream("other")
    strays = lab.bench.measure(lambda: (spin(lab, 50_000), spin(lab, 50_000, stream=other)), repeats=4)
    assert any("no number of SMs" in note for note in strays.notes) or strays.notes
    slow = lab.bench.measure(lambda: [spin(lab, 100) for _ in range(10)], repeats=8)
    assert any("Bound by the host" in note for note in slow.notes)


# Statistics


def test_intervals_hold_the_median_as_often_as_they_say():
    chance = np.random.default_rng(3)
    held = sum(low <= 10 <= high for low, high in (interval(chance.normal(10, 1, 30)) for _ in range(200)))
    assert 180 <= held <= 200


# Sweep


def test_a_sweep_finds_the_waves_of_the_device(lab):
    found = lab.bench.sweep(full(lab), repeats=2)
    assert tuple(found.sizes) == lab.device.grantable_sms
    assert [one.median_ns for one in found.points] == [WAVE_NS * -(-132 * 3 // size) for size in found.sizes.tolist()]
    assert found.fit.model == "waves"
    assert found.fit.worst_error < 1e-9
    assert found.knee == 132
    assert lab.layout is None
    assert list(found.to_pandas()["sm_count"]) == found.sizes.tolist()
    chart = ET.fromstring(found.plot().svg)
    assert len([*chart.iter("{http://www.w3.org/2000/svg}circle")]) == len(found.points) + 1
    assert f"knee: {found.knee} SMs" in found.plot()._repr_html_()


def test_a_kernel_of_one_block_needs_no_more_than_the_smallest_partition(lab):
    found = lab.bench.sweep(small(lab), [8, 16, 64, 120], repeats=2)
    assert found.knee == 8
    assert found.predict(100) == pytest.approx(50_000)


@pytest.mark.parametrize(
    ("model", "times"),
    [
        ("Amdahl", lambda n: 5e4 + 8e6 / n),
        ("roofline", lambda n: np.maximum(9e4, 4e6 / n)),
        ("waves", lambda n: 2e4 * np.ceil(396 / n)),
        ("waves and a floor", lambda n: 3e5 + 2e4 * np.ceil(396 / n)),
    ],
)
def test_each_model_is_found_where_it_holds(model, times):
    sizes = np.arange(8, 133, 4.0)
    chance = np.random.default_rng(1)
    noisy = times(sizes) * chance.normal(1, 0.005, len(sizes))
    best = fit_times(sizes, noisy, {396: 1.0})[0]
    assert best.model == model
    assert best.median_error < 0.02


def test_no_model_fits_noise(lab):
    chance = np.random.default_rng(2)
    fits = fit_times(np.arange(8, 133, 8.0), chance.uniform(1, 100, 16))
    assert fits[0].median_error > 0.15


# Co-run


def test_full_cards_beside_each_other_gain_nothing_and_small_work_everything(lab):
    cards = lab.bench.corun({"a": full(lab), "b": full(lab)})
    assert cards.speedup == pytest.approx(1, rel=0.05)
    small_ones = lab.bench.corun({"a": small(lab), "b": small(lab)})
    assert small_ones.speedup == pytest.approx(2, rel=0.05)
    assert [one.slowdown for one in small_ones.tasks] == pytest.approx([1] * len(small_ones.tasks), rel=0.05)


def test_partitions_take_what_the_waves_say(lab):
    found = lab.bench.corun({"a": full(lab), "b": full(lab)}, {"a": 64, "b": "rest"})
    assert found["a"].sm_count == 64
    assert found["a"].interference == pytest.approx(1, rel=0.02)
    assert found["a"].slowdown == pytest.approx(-(-396 // 64) / 3, rel=0.02)
    assert found["b"].slowdown == pytest.approx(-(-396 // 68) / 3, rel=0.02)
    assert lab.layout is None


def test_a_task_that_starves_is_told_of_and_ends(lab):
    found = lab.bench.corun({"a": full(lab), "b": small(lab)}, priorities={"a": -5})
    assert found["b"].slowdown > 5
    assert any("starves" in note for note in found.notes)
    assert found.speedup < 1.2


# Tune


def test_tuning_is_as_good_as_the_best_of_all_splits_and_so_is_a_climb(lab, monkeypatch):
    tasks = {"a": full(lab, 6), "b": full(lab, 2)}
    tuning = lab.bench.tune(tasks, "makespan", repeats=4)
    assert len(tuning.trials) == tuning.candidate_count == 18
    best = min(one.corun.metric("makespan") for one in tuning.trials)
    assert tuning.best.corun.metric("makespan") == best
    assert tuning.best.is_confirmed
    assert len(tuning.table) == 18
    assert tuning.pareto
    assert f"<title>{tuning.best.place}: " in tuning.plot().svg
    monkeypatch.setattr("gpustreamlab.tuning._tune.FEW_PLACES", 5)
    climbed = lab.bench.tune(tasks, "makespan", repeats=4, priorities=False)
    assert len(climbed.trials) < len(tuning.trials)
    assert climbed.best.corun.metric("makespan") <= 1.03 * best


@pytest.fixture
def few_splits(monkeypatch):
    """Three of the splits of two tasks: 32, 64 and 96 SMs for the first. What is looked at then does not need all."""

    def some(*args, **options):
        plain, splits = candidates(*args, **options)
        return plain, splits[3::4]

    monkeypatch.setattr("gpustreamlab.bench.candidates", some)


@pytest.mark.usefixtures("few_splits")
def test_a_constraint_is_kept_or_the_nearest_is_shown(lab):
    tasks = {"a": full(lab, 6), "b": full(lab, 2)}
    kept = lab.bench.tune(tasks, constraint="b.slowdown < 1.6", repeats=4)
    assert kept.is_feasible
    assert kept.best.corun["b"].slowdown < 1.6
    never = lab.bench.tune(tasks, constraint="b.p95 < 1 us", repeats=4)
    assert not never.is_feasible
    assert never.best.excess == min(one.excess for one in never.trials)
    with pytest.raises(MeasureError, match="No candidate keeps"):
        never.apply()
    assert lab.layout is None


def test_a_share_of_calls_is_one_of_them_and_too_few_are_told(lab, monkeypatch):
    found = lab.bench.measure(small(lab), repeats=6)
    times = replace(found, samples_ns=np.array([10, 20, 30, 40, 50, 1_000]))
    assert [times.percentile_ns(share) for share in (0, 0.5, 0.51, 0.95, 1)] == [10, 30, 40, 1_000, 1_000]
    assert replace(times, samples_ns=np.arange(20)).percentile_ns(0.95) == 18
    with pytest.raises(OptionError, match=r"percentile_ns\(0\.95\)"):
        times.percentile_ns(95)
    monkeypatch.setattr("gpustreamlab.bench.candidates", lambda *_, **__: ([Place()], []))
    for what, is_told in (("p95", True), ("p50", False), ("slowdown", False)):
        limit = f"b.{what} < 1{' s' * (what != 'slowdown')}"
        tuning = lab.bench.tune({"a": full(lab, 6), "b": full(lab, 6)}, constraint=limit, repeats=4, priorities=False)
        assert any("the longest of" in note and "repeats=20" in note for note in tuning.notes) == is_told


def test_a_tuning_keeps_the_notes_of_its_best_and_says_what_was_sought_first(lab, monkeypatch):
    monkeypatch.setattr("gpustreamlab.bench.candidates", lambda *_, **__: ([Place()], []))
    tasks = {"a": lambda: spin(lab, 1_000), "b": lambda: spin(lab, 1_000)}
    fastest = lab.bench.tune(tasks, "makespan", repeats=4)
    assert [note.partition(":")[0] for note in fastest.notes] == ["a is bound by the host", "b is bound by the host"]
    once = format_ns(fastest.best.corun.metric("makespan"))
    assert fastest._line().startswith(f"plain streams: each called once takes {once} ({once} to {once}; one after the other ")
    assert lab.bench.tune(tasks, sms_of_a, repeats=4)._line().startswith("plain streams: sms_of_a 132, ")


def sms_of_a(found):
    return found["a"].sm_count


@pytest.mark.usefixtures("few_splits")
def test_what_was_tuned_is_applied(lab, monkeypatch):
    tasks = {"a": full(lab, 6), "b": full(lab, 2)}
    tuning = lab.bench.tune(tasks, lambda found: -abs(found["a"].sm_count - 96), priorities=False, repeats=4)
    assert tuning.best.place == Place((("a", 96), ("b", "rest")))
    layout = tuning.apply()
    assert {part.name: part.granted_sms for part in layout} == {"a": 96, "b": 36}
    assert lab.stream("b").sm_count == 36
    ticks = count()  # a second for each look at the clock
    monkeypatch.setattr("gpustreamlab.tuning._tune.time", SimpleNamespace(monotonic=lambda: next(ticks)))
    again = lab.bench.tune(tasks, repeats=4, budget_s=2.5)  # while streams work in partitions
    assert (len(again.trials), again.notes[0]) == (2, "The budget was over before all candidates were measured.")
    assert lab.layout["a"].granted_sms == 96


@pytest.mark.usefixtures("few_splits")
def test_a_layout_whose_streams_would_lose_their_partition_is_not_replaced(lab):
    lab.partition(mine=32)
    lab.stream("busy", partition="mine")
    tuning = lab.bench.tune({"a": full(lab), "b": small(lab)}, lambda found: found["a"].sm_count == 64, repeats=4)
    with pytest.raises(PartitionInUseError, match="busy"):
        tuning.apply()
    assert lab.layout["mine"].granted_sms == 32


def test_where_the_host_sets_the_pace_that_is_told(lab):
    """Launches of 4 us for kernels of 1 us: what each loses beside the other is the host's doing."""
    short = lab.bench.corun({"a": lambda: spin(lab, 1_000), "b": lambda: spin(lab, 1_000)}, repeats=8)
    assert any("The host made calls for" in note for note in short.notes)
    long = lab.bench.corun({"a": lambda: spin(lab, 500_000), "b": lambda: spin(lab, 500_000)}, repeats=8)
    assert not any("The host made calls for" in note for note in long.notes)


def test_ctrl_c_keeps_what_was_measured(lab):
    calls = []

    def interrupted():
        calls.append(1)
        if len(calls) == 150:
            raise KeyboardInterrupt
        spin(lab, 50_000)

    tuning = lab.bench.tune({"a": full(lab), "b": interrupted}, repeats=4)
    assert 0 < len(tuning.trials) < tuning.candidate_count
    assert any("interrupted" in note for note in tuning.notes)


# The magic


@pytest.fixture
def notebook():
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "gpustreamlab")
    shell.run_line_magic("gpulab", "start --backend sim")
    shell.user_ns["spin"] = spin
    shell.run_cell("def f():\n    spin(lab, 20_000, blocks=132 * 32 * 6)\ndef g():\n    spin(lab, 20_000, blocks=64)")
    yield shell
    shell.user_ns["lab"].close()
    InteractiveShell.clear_instance()


@pytest.mark.usefixtures("few_splits")
def test_the_magic_tunes_functions_of_the_notebook_and_applies(notebook):
    found = notebook.run_line_magic("gputune", "f g --constraint g.slowdown<1.3 --apply")
    assert found.is_feasible
    assert {"f", "g"} <= set(notebook.user_ns["lab"].streams)
    with pytest.raises(UsageError, match="'nothing' is no function of the notebook"):
        notebook.run_line_magic("gputune", "f nothing")
    with pytest.raises(UsageError, match="without spaces"):
        notebook.run_line_magic("gputune", "f g --constraint g.p95 < 2ms")
