"""Programs as CUDA graphs of the simulated device."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab.errors import ProgramError


def captured(lab, text, names):
    """Return a program as a graph; its first run, which it needs, was on other arrays."""
    plan = lab.program(text, names).plan()
    plan.run({name: lab.xp.zeros_like(value) if name == "x" else value for name, value in names.items()})
    return plan.capture()


def test_a_capture_leaves_inputs_as_they_are_and_each_launch_changes_them(lab):
    x = lab.xp.zeros(4)
    lab.synchronize()
    with captured(lab, "x += 1\ny = x * 2", {"lab": lab, "x": x}) as replay:
        assert x.tolist() == [0, 0, 0, 0]
        for count in (1, 2):
            results = replay.launch()
            lab.synchronize()
            assert x.tolist() == [count] * 4
            assert results["y"].tolist() == [2 * count] * 4


def test_a_program_that_launches_nothing_can_be_captured(lab):
    plan = lab.program("import math\nq = math.pi", {}).plan(2)
    plan.run()
    assert "0 kernels" in repr(plan.capture())


def test_kernels_of_a_replay_are_below_their_statements(lab):
    x = lab.xp.ones((64, 64))
    lab.synchronize()
    with captured(lab, "a = x @ x\nb = a + 1", {"lab": lab, "x": x}) as replay:
        lab.clear()
        replay.launch()
        lab.synchronize()
        trace = lab.trace
    above = {
        trace.names[trace.name[row]]: trace.names[trace.name[trace.parent[row]]] for row in np.flatnonzero(trace.parent >= 0)
    }
    assert above["matmul"] == "a = x @ x"
    assert above["add"] == "b = a + 1"


def test_a_value_read_on_the_host_is_named_with_its_line_and_the_streams_work_on(lab):
    x = lab.xp.ones(8)
    lab.synchronize()
    plan = lab.program("y = x * 2\ns = float(y.sum())", {"lab": lab, "x": x}).plan()
    plan.run()
    with pytest.raises(ProgramError, match="line 2"):
        plan.capture()
    assert plan.run()["s"] == 16


def test_an_error_of_the_program_passes_through_a_capture(lab):
    plan = lab.program("y = x * 2\nz = 1 / n", {"lab": lab, "x": lab.xp.ones(8), "n": 1}).plan()
    plan.run()
    plan._program.values["n"] = 0
    with pytest.raises(ZeroDivisionError):
        plan.capture()
    with lab.on(plan.streams[0]):
        assert (lab.xp.ones(3) * 2).tolist() == [2, 2, 2]


def test_chains_of_a_graph_run_at_once_although_the_host_launches_once(lab):
    names = {"lab": lab, **{name: lab.xp.ones((256, 256)) for name in "xyw"}}
    lab.synchronize()
    text = "\n".join(f"{chain} = {chain} @ w" for _ in range(4) for chain in "xy")
    plan = lab.program(text, names).plan(streams=2)
    plan.run()
    comparison = plan.compare(3)
    one, _, replayed = comparison.runs
    assert replayed.how == "replayed"
    assert replayed.wall_ns < 0.7 * one.wall_ns
    assert replayed.host_ns < one.host_ns / 3
    assert replayed.together_share > 0.5
