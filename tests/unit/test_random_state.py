"""Random programs with state: planned and unplanned give the same values, prints, side effects and exceptions."""

import pytest

from tests.helpers.long_runs import count
from tests.helpers.random_state import cell_difference, difference, known_programs, random_state_program

CHUNK = 10
CELLS = 3


OPTIONS = {"hazards": "report"}
STREAMS = ("s1", "s2", "s3")


@pytest.mark.parametrize("first", range(0, count(10, 2000), CHUNK))
def test_a_planned_program_does_what_it_does_without_a_plan(lab, first):
    for seed in range(first, first + CHUNK):
        program = random_state_program(seed)
        found = difference(lab, program)
        assert not found, f"seed {seed}: {found}\n{program.text}"


def test_a_number_that_nobody_knows_chooses_arrays_and_nothing_races(lab):
    programs = known_programs()
    for program in programs[:: len(programs) // count(5, len(programs))]:
        found = difference(lab, program)
        assert not found, f"{found}\n{program.text}"


@pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")
@pytest.mark.parametrize("first", range(0, count(3, 150), CELLS))
def test_a_planned_cell_does_what_it_does_without_a_plan(lab, first):
    for seed in range(first, first + CELLS):
        program = random_state_program(seed, is_function=False)
        found = cell_difference(lab, program)
        assert not found, f"seed {seed}: {found}\n{program.text}"
