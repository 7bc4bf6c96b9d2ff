"""Noise of the simulated device: as stated, the same in each run, and none unless asked for."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import Noise, SimBackend
from gpustreamlab.errors import OptionError
from gpustreamlab.workloads import spin, streaming_add
from tests.helpers.selections import names_of

COUNT = 4_000


def run(noise, *, count=60, touch=None):
    """Run kernels, copies, fills and a graph on two streams; return names and times."""
    with Session(SimBackend("h200", noise=noise)) as lab:
        host = lab.memory.pinned_empty(1 << 20, "float32")
        for number in range(count):
            name = "ab"[number % 2]
            lab.stream(name)
            with lab.on(name):
                array = lab.xp.zeros(1 << 20, "float32")
                array.set(host)
                streaming_add(lab, array, array, array)
                spin(lab, 50_000, blocks=140)
                array.get(out=host, blocking=False)
            lab.stream("ab"[1 - number % 2]).wait(lab.stream(name).record())
            if touch is not None:
                touch(lab)
        lab.synchronize()
        trace = lab.trace
        return names_of(trace), trace.start_ns.tolist(), trace.duration_ns.tolist()


def durations_of(noise, *, duration_ns=1_000_000):
    backend = SimBackend(noise=noise)
    stream = backend.create_stream(priority=0)
    told = []
    backend.set_observer(lambda work: told.append(work.end_ns - work.start_ns))
    for _ in range(COUNT):
        backend.launch_spin(stream, duration_ns, blocks=8, fill_sms=True)
    backend.synchronize()
    return np.array(told)


def test_the_same_seed_gives_the_same_times_to_the_bit():
    noise = Noise(seed=7, outlier_share=0.1)
    assert run(noise) == run(noise)
    assert run(Noise(seed=8, outlier_share=0.1))[2] != run(noise)[2]


def test_looking_on_moves_nothing():
    noise = Noise(seed=7)
    assert run(noise) == run(noise, touch=lambda lab: lab.recording.backend.activity_source())
    assert run(noise) == run(noise, touch=lambda lab: lab.trace)


def test_without_noise_each_time_is_what_it_was():
    names, _, plain = run(None)
    assert {time for name, time in zip(names, plain, strict=True) if name == "memset"} == {min(plain)}
    assert run(Noise(seed=1, spread=0, outlier_share=0)) == run(None)


def test_kernels_copies_and_fills_vary():
    names, _, varied = run(Noise(seed=3, spread=0.05))
    plain = run(None)[2]
    by_name = {name: set() for name in names}
    for name, time, exact in zip(names, varied, plain, strict=True):
        by_name[name].add(round(time / exact, 6))
    assert {"spin", "add", "memset", "memcpy HtoD", "memcpy DtoH"} <= by_name.keys()
    assert all(len(ratios) > 20 for ratios in by_name.values())


@pytest.mark.parametrize("spread", [0.02, 0.3])
def test_the_logarithm_has_the_spread_that_was_asked_for(spread):
    logs = np.log(durations_of(Noise(seed=5, spread=spread, outlier_share=0)) / 1e6)
    assert np.std(logs) == pytest.approx(spread, rel=0.05)
    assert np.median(logs) == pytest.approx(0, abs=spread / 10)
    assert np.mean(((logs - logs.mean()) / logs.std()) ** 3) == pytest.approx(0, abs=0.15)


def test_outliers_are_as_many_and_as_long_as_stated_and_move_nothing_else():
    with_some, with_none = (
        durations_of(Noise(seed=5, spread=0.02, outlier_share=share, outlier_factor=4)) for share in (0.05, 0)
    )
    ratios = with_some / with_none
    outliers = ratios > 2
    assert np.mean(outliers) == pytest.approx(0.05, abs=0.012)
    assert ratios[outliers] == pytest.approx(4, rel=1e-5)
    assert (ratios[~outliers] == 1).all()


def test_a_kernel_bound_by_memory_varies_as_much():
    def add(noise):
        backend = SimBackend(noise=noise)
        x = backend.xp.empty(1 << 22, "float32")
        told = []
        backend.set_observer(lambda work: told.append(work.end_ns - work.start_ns))
        for _ in range(400):
            backend.xp.add(x, x, out=x)
        backend.synchronize()
        return np.array(told)

    ratios = add(Noise(seed=2, spread=0.1, outlier_share=0)) / add(None)
    assert np.std(np.log(ratios)) == pytest.approx(0.1, rel=0.15)


def test_each_launch_of_a_graph_draws_anew():
    backend = SimBackend(noise=Noise(seed=2))
    stream = backend.create_stream(priority=0)
    capture = backend.begin_graph(stream)
    backend.launch_spin(stream, 100_000, blocks=8, fill_sms=True)
    graph = capture.instantiate()
    told = []
    backend.set_observer(lambda work: told.append(work.end_ns - work.start_ns))
    for _ in range(20):
        graph.launch(stream)
    backend.synchronize()
    assert len(set(told)) == 20


def test_a_saved_trace_names_the_seed(tmp_path):
    with Session(SimBackend(noise=Noise(seed=41))) as lab:
        spin(lab, 1_000, stream=lab.stream("a"))
        lab.synchronize()
        assert lab.trace.metadata.clock.endswith("varied at random, seed 41")
    assert "varied" not in SimBackend().source() + SimBackend().clock_info().description


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": -1},
        {"seed": 1.0},
        {"seed": True},
        {"spread": -0.1},
        {"spread": float("nan")},
        {"outlier_share": 1.1},
        {"outlier_factor": 0.5},
        {"outlier_factor": "3"},
    ],
    ids=str,
)
def test_what_makes_no_sense_is_told(wrong):
    (what,) = wrong
    with pytest.raises(OptionError, match=rf"Noise has {what}="):
        Noise(**{"seed": 1, **wrong})


def test_what_is_no_noise_is_told():
    with pytest.raises(OptionError, match=r"Noise\(seed=1\)"):
        SimBackend(noise=1)
