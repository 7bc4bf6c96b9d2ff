"""Selections left in another order than entered: each takes only itself away."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import warnings

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import SelectionError, SelectionWarning
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


def test_what_was_there_before_both_is_put_back(lab):
    with lab.on("c", "around"):
        steps = batches(lab)
        next(steps)
        with lab.on("b", "inner"), lab.range("range"):
            steps.close()
            assert selected(lab) == "b"
        assert selected(lab) == "c"
        with lab.range("later"):  # on the lane around
            pass
    assert parents(lab) == {"around": None, "load": "around", "inner": "around", "range": "inner", "later": "around"}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
def test_any_order_leaves_nothing_and_keeps_every_range(lab, order, caplog):
    caplog.set_level(logging.CRITICAL)
    entered = [lab.on(lane, f"{lane}{place}") for place, lane in enumerate("abca")]
    for selection in entered:
        selection.__enter__()
    left = set()
    for place in order:
        left.add(place)
        is_last = place == max({0, 1, 2, 3} - left | {place})
        if is_last:
            entered[place].__exit__(None, None, None)
        else:
            with pytest.raises(SelectionError, match="before one that was entered after it"):
                entered[place].__exit__(None, None, None)
        stays = sorted({0, 1, 2, 3} - left)
        assert selected(lab) == ("abca"[stays[-1]] if stays else None)
    assert sorted(parents(lab)) == ["a0", "a3", "b1", "c2"]


def test_a_selection_left_out_of_turn_can_be_entered_again_but_not_left_twice(lab):
    outer, inner = lab.on("a", "outer"), lab.select("b")
    outer.__enter__()
    inner.__enter__()
    for message in ("before one", "twice"):
        with pytest.raises(SelectionError, match=message):
            outer.__exit__(None, None, None)
    with outer:
        assert selected(lab) == "a"
    assert selected(lab) == "b"
    inner.__exit__(None, None, None)
    with inner:
        assert selected(lab) == "b"


def test_a_stream_closed_meanwhile_is_over_when_its_selection_is_left(lab):
    outer = lab.on("a", "outer")
    outer.__enter__()
    with lab.on("b", "inner"):
        lab.stream("a").close()
        with pytest.raises(SelectionError, match="before one"):
            outer.__exit__(None, None, None)
        assert selected(lab) == "b"
    assert "a" not in lab.streams


def test_one_that_ends_while_another_is_being_left_is_put_back_with_it(lab):
    outer, inner = lab.select("a"), lab.select("b")
    outer.__enter__()
    inner.__enter__()
    restore = lab._selections.restore

    def collect(token):
        lab._selections.restore = restore
        with pytest.raises(SelectionError):
            outer.__exit__(None, None, None)  # as of a generator that the call finds to be garbage
        restore(token)

    lab._selections.restore = collect
    inner.__exit__(None, None, None)
    assert selected(lab) is None


def test_one_that_ends_while_another_is_being_entered_is_put_back_with_it(lab):
    outer, inner = lab.on("a", "outer"), lab.on("b", "inner")
    outer.__enter__()
    select = lab._selections.select

    def collect(stream):
        lab._selections.select = select
        with pytest.raises(SelectionError):
            outer.__exit__(None, None, None)
        return select(stream)

    lab._selections.select = collect
    with inner:
        assert selected(lab) == "b"
    assert parents(lab) == {"outer": None, "inner": None}


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


def test_an_interrupt_is_over_where_an_older_selection_ends(lab):
    steps = interrupted(lab)
    next(steps)
    inner = lab.on("b", "inner")
    with pytest.raises(KeyboardInterrupt):
        inner.__enter__()
        next(steps)
    assert selected(lab) is None
    inner.__exit__(None, None, None)
    lab._backend.forgive()


def interrupted(lab):
    with lab.on("a"):
        yield
        raise KeyboardInterrupt


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


# How it shows itself


def test_a_selection_shows_what_it_is(lab):
    selection = lab.on("a", "load")
    assert repr(selection) == "<Selection of stream 'a', range 'load', for a `with` block or a decorator>"
    with selection:
        assert repr(selection) == "<Selection of stream 'a', range 'load', entered>"
    assert repr(lab.select("a")) == "<Selection of stream 'a', for a `with` block or a decorator>"


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
