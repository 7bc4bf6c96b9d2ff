"""500 random programs on a GPU: planned onto streams they give, bit for bit, what they give on one stream."""

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
        check = plan.check()
        assert check, f"seed {seed}: {check}\n{plan.code}"
        assert check.hazards.access_count, "the accesses of the planned run were watched"
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
        text = "u = m @ m  #: lane-1\nv = u[:64] + 1  #: lane-2\nu *= 2  #: lane-1\n"
        plan = lab.program(text, dict(values)).plan(STREAMS[:2])
        assert plan.check()
        waits = [line for line in plan.code.splitlines() if ".wait(" in line]
        assert len(waits) == 2
        for code, is_clean in ((plan.code, True), *((plan.code.replace(line, "pass", 1), False) for line in waits)):
            lab.synchronize(), lab.clear()
            exec(code, dict(values))
            assert bool(lab.memory.hazards()) is not is_clean, code
