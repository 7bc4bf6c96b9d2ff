"""Files and answers of an earlier day: what was saved then loads, and says the same; what was run then runs the same.

The files of tests/golden were written by scripts/make_goldens.py, on the simulated device. Everything here goes through public
doors only, so that the modules behind them may change.
"""

from __future__ import annotations

import pytest

import gpustreamlab as gsl
from tests.helpers.golden import (
    GOLDEN,
    answers_path,
    describe,
    describe_comparison,
    difference,
    golden_files,
    read_answers,
    rows_of,
)
from tests.helpers.golden_program import run_program

FILES = golden_files()


def described(path, wanted):
    """Return what a file holds and answers, and the parts of it that are asked for in what is kept."""
    return describe(gsl.load_trace(path), [(cut["call"], cut["options"]) for cut in wanted["cuts"]])


def test_every_golden_file_has_answers():
    assert len(FILES) == 11
    assert {path.name for path in GOLDEN.glob("*.json")} == {answers_path(name).name for name in [*FILES, "before-after"]}


@pytest.mark.parametrize("name", FILES)
def test_an_old_file_loads_and_answers_the_same(name):
    wanted = read_answers(name)

    assert difference(wanted, described(GOLDEN / name, wanted)) == ""


@pytest.mark.parametrize("name", FILES)
def test_an_old_file_that_is_saved_anew_answers_the_same(name, tmp_path):
    wanted = read_answers(name)

    gsl.load_trace(GOLDEN / name).save(tmp_path / "again.parquet")

    assert difference(wanted, described(tmp_path / "again.parquet", wanted)) == ""


def test_two_old_files_compare_the_same():
    found = describe_comparison(gsl.compare(GOLDEN / "before.parquet", GOLDEN / "after.parquet"))

    assert difference(read_answers("before-after"), found) == ""


@pytest.mark.parametrize("tier", ["ranges", "kernels"])
def test_a_program_has_the_rows_that_it_had(tier):
    trace, told = run_program(tier)

    assert f"{rows_of(trace)}\ntold: {told}\n" == (GOLDEN / f"program-{tier}.txt").read_text(encoding="utf-8")


def test_a_program_that_is_spooled_has_the_rows_that_it_had(tmp_path):
    trace, _ = run_program("kernels", spool=tmp_path / "run.gsl")

    kept = (GOLDEN / "program-kernels.txt").read_text(encoding="utf-8").rpartition("told: ")[0]
    assert f"{rows_of(trace)}\n" == kept
    assert f"{rows_of(gsl.load_trace(tmp_path / 'run.gsl'))}\n" == kept


@pytest.mark.parametrize(
    ("wanted", "got", "said"),
    [
        ({"a": [1, 2]}, {"a": [1, 2], "b": 3}, ""),  # a field that is new
        ({"a": [1, 2]}, {"a": [1, 3]}, "answers.a[1] is 3; 2 is kept"),
        ({"a": [1, 2]}, {"a": [1]}, "answers.a is [1]; [1, 2] is kept"),
        ({"a": 1}, {"a": True}, "answers.a is True; 1 is kept"),
        ({"a": 1, "b": 2}, {"a": 1}, "answers lacks ['b']"),
        ({"a": None}, {"a": 0}, "answers.a is 0; None is kept"),
    ],
    ids=["new field", "value", "length", "type", "lost field", "none"],
)
def test_a_difference_is_found(wanted, got, said):
    assert difference(wanted, got) == said
