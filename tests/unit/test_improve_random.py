"""Random programs of streams are improved, and who did not improve them says that nothing else changed."""

import pytest

from gpustreamlab import Session
from tests.helpers.improve_random import SELDOM, faults_of, function_of, names_for, on_paper, random_program
from tests.helpers.long_runs import count

SIDE = 160


@pytest.mark.parametrize("seed", range(count(2, 500)))
def test_an_improved_program_gives_the_same_has_no_new_race_and_is_never_slower(seed):
    program = random_program(seed)
    with Session("sim") as lab:
        found = lab.improve(function_of(program.text, names_for(lab, SIDE)), lab, seconds=300)
    assert not any("raises" in one.why for one in found.left), str(found.left)
    assert faults_of(program, found.source, SIDE) == [], found.diff


@pytest.mark.parametrize("seed", range(count(3, 300)))
def test_a_program_on_one_stream_gives_the_same_on_several(seed):
    program = random_program(seed, is_alone=True)
    with Session("sim") as lab:
        found = lab.improve(function_of(program.text, names_for(lab, 2 * SIDE)), lab, seconds=300)
    assert not any("raises" in one.why for one in found.left), str(found.left)
    assert faults_of(program, found.source, 2 * SIDE) == [], found.diff


def waits_of(text):
    """Yield a text once for each wait in it, without it."""
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if ".wait(" in line or "synchronize()" in line:
            yield "\n".join([*lines[:place], line[: len(line) - len(line.lstrip())] + "pass", *lines[place + 1 :]]) + "\n"


def test_on_paper_a_missing_wait_is_found():
    found = tried = 0
    for seed in range(20):
        program = random_program(seed)
        results = on_paper(program.text, SELDOM[0])
        for mutated in waits_of(program.text):
            tried += 1
            other = on_paper(mutated, SELDOM[0])
            found += bool(other.met or other.pending > results.pending)
    assert tried > 60
    assert found * 6 > tried, f"{found} of {tried}; others wait for nothing, or twice"
