"""500 random programs on a GPU: planned onto streams they give, bit for bit, what they give on one stream."""

from typing import Any

import pytest

from gpustreamlab import Session
from tests.helpers.random_programs import STREAMS, random_program, values_of

COUNT = 500
CHUNK = 50


@pytest.fixture
def streams(lab):
    for name in STREAMS:
        lab.stream(name)
    return lab


def inputs_of(lab, program):
    """Return variables to run on, made on the first stream."""
    lab.clear()
    with lab.select(STREAMS[0]):
        return program.inputs(lab)


def read_back(lab, values):
    """Return what variables hold, read on the stream on which a plan ends."""
    with lab.select(STREAMS[0]):
        return values_of(values)


@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_a_plan_gives_what_one_stream_gives_and_has_no_hazards(streams, first):
    lab, stream_counts = streams, set()
    for seed in range(first, first + CHUNK):
        program = random_program(seed)
        alone = inputs_of(lab, program)
        with lab.select(STREAMS[0]):
            exec(program.text, alone)
        expected = read_back(lab, alone)
        plan = lab.program(program.text, inputs_of(lab, program)).plan(program.streams)
        first = plan.run(inputs_of(lab, program))
        assert read_back(lab, first) == expected, f"seed {seed}, first run"
        assert all(type(value) is lab.xp.ndarray for value in first.values() if isinstance(value, lab.xp.ndarray))
        check = plan.check()
        assert check, f"seed {seed}: {check}\n{plan.code}"
        has_work = any(work.accesses for work in plan._recording.works)
        assert bool(check.hazards.access_count) is has_work, f"seed {seed}: the accesses of the planned run were watched"
        assert read_back(lab, plan.run(inputs_of(lab, program))) == expected, f"seed {seed}, run"
        values = inputs_of(lab, program)
        exec(plan.code, values)  # as text that a user pastes
        assert read_back(lab, values) == expected, f"seed {seed}, text"
        stream_counts.add(len(plan.streams))
    assert len(stream_counts) > 1


def test_a_missing_wait_is_found():
    with Session("cuda", hazards="report", capture="ranges") as lab:
        lab.stream(STREAMS[0]), lab.stream(STREAMS[1])
        with lab.select(STREAMS[0]):
            values = {"lab": lab, "xp": lab.xp, "m": lab.xp.ones((1_024, 1_024), "float32")}
        text = "u = m @ m  #: plan-1\nv = u[:64] + 1  #: plan-2\nu *= 2  #: plan-1\n"
        plan = lab.program(text, dict(values)).plan(STREAMS[:2])
        plan.run(dict(values))
        lab.synchronize()
        assert plan.check()
        waits = [line for line in plan.code.splitlines() if ".wait(" in line]
        assert len(waits) == 2
        for code, is_clean in ((plan.code, True), *((plan.code.replace(line, "pass", 1), False) for line in waits)):
            lab.synchronize(), lab.clear()
            exec(code, dict(values))
            assert bool(lab.memory.hazards()) is not is_clean, code


class Counter:
    """Has state in its class, and an array."""

    calls = 0
    weights: Any = None

    def __call__(self, x: Any) -> Any:
        Counter.calls += 1
        return x * Counter.calls + Counter.weights


HIDDEN: dict[str, Any] = {}


def hidden(x: Any) -> Any:
    HIDDEN["a"] += 1
    return x + HIDDEN["a"]


TEXT = """
u = counter(x)  #: plan-1
v = hidden(y)  #: plan-2
w = pair[0] * rng.random((64, 64)) + closed(y)  #: plan-2
boxes.append(v)
z = u + boxes[-1]  #: plan-1
"""


def state_of(lab: Session) -> dict[str, Any]:
    """Return variables that lead to arrays in every way, made anew."""
    xp = lab.xp
    with lab.select(STREAMS[0]):
        made = {name: xp.full((64, 64), number, "float64") for number, name in enumerate("xyacb", 1)}
        generator = xp.random.default_rng(5)  # its state is made on the device, too
    lab.synchronize()
    Counter.calls, Counter.weights, HIDDEN["a"] = 0, made["c"], made["a"]
    calls = [0]

    def closed(x: Any, scale: Any = made["b"]) -> Any:
        calls[0] += 1
        return x * calls[0] + scale

    names = {"x": made["x"], "y": made["y"], "counter": Counter(), "hidden": hidden, "closed": closed, "boxes": [made["a"]]}
    return names | {"rng": generator, "pair": (made["x"], made["y"]), "lab": lab}


def objects(names: dict[str, Any]) -> list[Any]:
    """Return what has to stay the same objects."""
    found = [names[name] for name in ("x", "pair", "boxes", "counter")]
    return [*found, names["boxes"][0], Counter.weights, HIDDEN["a"], names["closed"].__defaults__]


@pytest.mark.parametrize("hazards", ["off", "report"])
def test_state_is_what_it_is_without_a_plan_and_arrays_are_the_same_objects(hazards: str) -> None:
    with Session("cuda", hazards=hazards) as lab:
        lab.stream(STREAMS[0]), lab.stream(STREAMS[1])
        alone, expected = state_of(lab), []
        for _ in range(4):
            with lab.select(STREAMS[0]):
                exec(TEXT, alone)
                expected.append({name: alone[name].get().tolist() for name in "uvwz"} | {"calls": Counter.calls})
        names = state_of(lab)
        kept = objects(names)
        plan = lab.program(TEXT, names).plan(STREAMS[:2])
        for one in expected:
            plan.run()
            lab.synchronize()
            with lab.select(STREAMS[0]):
                assert {name: names[name].get().tolist() for name in "uvwz"} | {"calls": Counter.calls} == one
            now = objects(names)
            assert all(first is second for first, second in zip(kept, now, strict=True))
            if hazards == "off":
                arrays = [*names.values(), *names["boxes"]]
                assert all(type(one) is lab.xp.ndarray for one in arrays if isinstance(one, lab.xp.ndarray))
        if hazards == "report":
            assert not lab.memory.hazards(), lab.memory.hazards().to_pandas().to_string()
