"""Random programs, planned onto random streams: the results of one stream, no hazards, and a check that can fail."""

import pytest

from tests.helpers.long_runs import count
from tests.helpers.random_programs import STREAMS, random_program, values_of

CHUNK = 10
SEEDS = count(30, 60)


def new_inputs(lab, program):
    """Return variables to run on, made on the first stream."""
    lab.clear()
    with lab.select(STREAMS[0]):
        return program.inputs(lab)


def on_one_stream(lab, program):
    """Return what a program gives on one stream."""
    values = new_inputs(lab, program)
    with lab.select(STREAMS[0]):
        exec(program.text, values)
        return values_of(values)


def read_back(lab, values):
    """Return what variables hold, read on the stream on which a plan ends."""
    with lab.select(STREAMS[0]):
        return values_of(values)


@pytest.mark.parametrize("first", range(0, count(20, 200), CHUNK))
def test_a_plan_gives_what_one_stream_gives_and_has_no_hazards(lab, first):
    stream_counts, wait_count = set(), 0
    for seed in range(first, first + CHUNK):
        program = random_program(seed)
        expected = on_one_stream(lab, program)
        plan = lab.program(program.text, new_inputs(lab, program)).plan(program.streams)
        first = read_back(lab, plan.run(new_inputs(lab, program)))
        assert first == expected, f"seed {seed}, first run"
        lab.synchronize()
        check = plan.check()
        assert check, f"seed {seed}: {check}"

        found = read_back(lab, plan.run(new_inputs(lab, program)))
        assert found == expected, f"seed {seed}, run"
        assert not lab.memory.hazards(), f"seed {seed}: {lab.memory.hazards()}"

        values = new_inputs(lab, program)
        exec(plan.code, values)  # as text that a user pastes
        assert read_back(lab, values) == expected, f"seed {seed}, text"
        assert not lab.memory.hazards(), f"seed {seed}, text: {lab.memory.hazards()}"
        stream_counts.add(len(plan.streams))
        wait_count += sum(len(one.waits_for) for one in plan.statements)
    assert len(stream_counts) > 1
    assert wait_count > CHUNK / 2, "programs that need no wait show nothing"


def without(code, kind):
    """Return the code once for each of its lines of a kind, without that line, also in a block."""
    lines = code.splitlines()
    for place, line in enumerate(lines):
        if f".{kind}(" in line and line.strip().startswith("lab.stream("):
            yield "\n".join([*lines[:place], line[: len(line) - len(line.lstrip())] + "pass", *lines[place + 1 :]])


def test_a_missing_wait_is_found_and_a_missing_hold_where_the_memory_is_used_again(lab):
    found, tried = {"wait": 0, "hold": 0}, {"wait": 0, "hold": 0}
    for seed in range(SEEDS):
        program = random_program(seed)
        plan = lab.program(program.text, new_inputs(lab, program)).plan(program.streams)
        plan.run()
        lab.synchronize()
        for kind in found:
            for mutated in without(plan.code, kind):
                values = new_inputs(lab, program)
                exec(mutated, values)
                read_back(lab, values)
                tried[kind] += 1
                found[kind] += bool(lab.memory.hazards())
                lab.synchronize()
    assert tried["wait"] > SEEDS
    assert found["wait"] * 5 > tried["wait"] * 3, f"{found} of {tried}; others order a beginning or a barrier"
    assert tried["hold"] > SEEDS / 4
    assert found["hold"], f"none of {tried}: most memory is not used again before the program ends, but some is"
