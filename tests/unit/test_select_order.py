"""Selections left in another order than entered: each takes only itself away."""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import SelectionWarning
from tests.helpers.nvtx_stacks import CheckedSim
from tests.helpers.selections import parents as parents_of
from tests.helpers.selections import selected

LANES = ("a", "b", "c")


@pytest.fixture
def backend():
    return CheckedSim()


@pytest.fixture
def lab(backend):
    with Session(backend, capture="ranges") as session:
        for name in LANES:
            session.stream(name)
        yield session
        assert selected(session) is None
    backend.check()  # NVTX and the backend's own selections: as many ends as beginnings, and the last first


def parents(lab):
    found = parents_of(lab)
    assert lab.trace.metadata.dropped_spans == 0
    return found


def batches(lab, lane="a", label="load"):
    with lab.on(lane, label):
        yield from range(3)


def test_a_generator_that_ends_inside_a_later_block_leaves_that_selected(lab, caplog):
    steps = batches(lab)
    next(steps)
    with lab.on("b", "important"):
        del steps
        gc.collect()
        assert selected(lab) == "b"
        with lab.range("inside"):
            pass
    assert selected(lab) is None
    assert parents(lab) == {"load": None, "important": None, "inside": "important"}
    assert "'a' was left before one" in caplog.text
    assert "@lab.on('a')" in caplog.text


def test_a_step_of_a_task_still_leaves_all_of_its_own(lab):
    @lab.on("b", "step")
    def steps():
        older.close()  # from below the step
        with lab.on("c", "inner"), lab.range("range"):
            yield selected(lab)
            yield selected(lab)

    older = batches(lab)
    next(older)
    running = steps()
    assert next(running) == "c"
    assert selected(lab) is None
    assert list(running) == ["c"]
    assert selected(lab) is None
    assert len(lab._recorder.thread_state().stack) == 1


def test_what_is_left_in_turns_does_not_pile_up(lab, caplog):
    caplog.set_level(logging.CRITICAL)
    stack = lab._recorder.thread_state().stack
    for _ in range(50):
        first, second = batches(lab, "a"), batches(lab, "b")
        next(first), next(second)
        first.close(), second.close()
        assert (len(stack), selected(lab)) == (1, None)
    with lab.on("a"):
        for _ in range(50):
            first = batches(lab, "b")
            next(first)
            with lab.on("c"):
                first.close()
            assert (len(stack), selected(lab)) == (3, "a")


# Tasks


async def request(lab, lane, label):
    with lab.on(lane, label):
        lab.xp.ones(8)
        await asyncio.sleep(0)
        lab.xp.ones(8)


def test_plain_tasks_in_turns_are_all_told_what_to_do_and_lose_no_range(lab):
    async def main():
        return await asyncio.gather(*(request(lab, "ab"[n % 2], f"r{n}") for n in range(4)), return_exceptions=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert asyncio.run(main()) == [None] * 4
    assert [warning.category for warning in told] == [SelectionWarning] * 4
    assert all("Decorate the coroutine with @lab.on('" in str(warning.message) for warning in told)
    assert {warning.filename for warning in told} == {__file__}
    assert parents(lab) == {"r0": None, "r1": None, "r2": None, "r3": None}
