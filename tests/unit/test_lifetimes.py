"""What is kept until the device is done with it: by `hold`, `use` and `run_on`, and when a lane or a session closes."""

from __future__ import annotations

import functools
import gc
import random
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import (
    DeviceError,
    OptionError,
    SessionClosedError,
    StreamNotFoundError,
)
from gpustreamlab.workloads import spin
from tests.helpers.instant_backend import InstantBackend
from tests.helpers.threads import run_all

OPTIONS = {"capture": "ranges"}
STREAMS = ("a", "b")

LONG_NS = 1_000_000_000


class Thing:
    """Stands for anything that work needs; notes when it dies."""

    def __init__(self, on_death=None):
        if on_death is not None:
            weakref.finalize(self, on_death)


def fail(*_):
    raise DeviceError("lost")


def work(lab, lane, duration_ns=LONG_NS):
    """Enqueue work; return a function that tells whether it has ended, at no virtual time."""
    with lab.on(lane, "work"):
        spin(lab, duration_ns)
    event = lab._backend.acquire_event()
    lab.stream(lane)._backend_stream.record(event)

    def is_done():
        with lab._backend.observing():
            return lab._backend.is_event_done(event)

    return is_done


def pass_time(lab, duration_ns=2 * LONG_NS):
    """Let the virtual host spend time on other things."""
    lab._backend.driver.charge(duration_ns)


# hold


def test_what_is_held_lives_until_the_work_is_done_and_no_longer(lab):
    # GIVEN a thing that work in flight needs, and nobody else knows
    is_done = work(lab, "a")
    states = []
    lab.stream("a").hold(Thing(lambda: states.append(is_done())))
    assert lab.memory.held_count == 1
    # WHEN the lane is asked while it works, and after it has ended
    lab.stream("a").hold(Thing())
    assert states == []
    pass_time(lab)
    lab.stream("a").hold(Thing())
    # THEN it died behind the work
    assert states == [True]
    assert lab.memory.held_count == 1
    lab.stream("a").hold(np.zeros(3), "text", None)  # anything can be held
    assert lab.memory.held_count == 3


def test_holding_waits_for_nothing_and_holding_nothing_records_nothing(lab):
    is_done = work(lab, "a")
    before_ns = lab._backend.driver.clock.now_ns
    lab.stream("a").hold(Thing())
    assert not is_done()
    assert lab._backend.driver.clock.now_ns - before_ns < 10_000
    backend = InstantBackend()
    with Session(backend) as instant:
        lane = instant.stream("a")
        before = len(backend.recorded)
        lane.hold()
        assert (len(backend.recorded), instant.memory.held_count) == (before, 0)
        for _ in range(100):  # events are used again
            lane.hold(Thing())
        assert instant.memory.held_count <= 1
    assert backend.released_count >= 100


SWEEPERS = {
    "lab.synchronize": lambda lab: lab.synchronize(),
    "lane.synchronize": lambda lab: lab.stream("a").synchronize(),
    "who follows the session": lambda lab: lab._recorder.changes(),
    "a live timeline": lambda lab: lab._recorder.follow(0),
    "another hold": lambda lab: lab.stream("a").hold(Thing()),
    "its close": lambda lab: lab.stream("a").close(),
    "a move to other SMs": lambda lab: (lab.partition(left=96), lab.stream("a", partition="left"), lab.synchronize()),
}


@pytest.mark.parametrize("sweep", SWEEPERS.values(), ids=SWEEPERS.keys())
def test_what_is_done_is_let_go(lab, sweep):
    died = []
    work(lab, "a")
    lab.stream("a").hold(Thing(lambda: died.append(1)))
    pass_time(lab)
    sweep(lab)
    assert died == [1]


# use


NO_PRODUCERS = {
    "of no library": (lambda lab: Thing(), r"Which stream wrote this Thing is not known.*'a'.*after="),
    "of another library": (lambda lab: Lent(2, 3), "Which stream wrote this Lent is not known"),
    "written on no lane": (lambda lab: lab.xp.ones(8), r"If nothing was selected.*lab\.synchronize\(\)"),
}


@pytest.mark.parametrize(("make", "told"), NO_PRODUCERS.values(), ids=NO_PRODUCERS)
def test_the_producer_has_to_be_known(lab, make, told):
    with pytest.raises(OptionError, match=told):
        lab.stream("a").use(make(lab))
    with pytest.raises(StreamNotFoundError, match="'bb'"):
        lab.stream("a").use(make(lab), after="bb")


class Lent:
    """An array of a library that only tells where it lies."""

    def __init__(self, *shape):
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "<f4", "data": (0, False), "version": 3}


EMPTY = {
    "without a match": lambda lab: lab.xp.nonzero(lab.xp.asarray([0, 0]))[0],
    "of the simulated device": lambda lab: lab.xp.empty((4, 0)),
    "of NumPy": lambda lab: np.zeros(0),
    "of another library": lambda lab: Lent(0, 3),
}


def test_an_array_without_elements_has_no_producer_to_wait_for_and_what_is_no_array_is_refused(lab):
    for make in EMPTY.values():
        array = make(lab)
        assert lab.stream("a").use(array) is array
    for thing in (5, 2.5, "x", b"x", None, int, [Thing()], (Thing(),), {"x": Thing()}):
        what = "each of its arrays for itself" if isinstance(thing, (list, tuple, dict)) else "the array itself"
        for options in ({}, {"after": "b"}):
            with pytest.raises(OptionError, match=rf"is not an array. Pass {what}: lab\.stream\('a'\)\.use\(array"):
                lab.stream("a").use(thing, **options)


AFTERS = {
    "a lane": lambda lab: lab.stream("a"),
    "a name": lambda lab: "a",
    "an event": lambda lab: lab.stream("a").record(),
}


@pytest.mark.parametrize("after", AFTERS.values(), ids=AFTERS.keys())
def test_the_lane_waits_for_the_producer_on_the_device(lab, after):
    # GIVEN an array that long work on another lane writes
    x = lab.xp.zeros(4)
    work(lab, "a")
    # WHEN this lane uses it
    used = lab.stream("b").use(x, after=after(lab))
    with lab.on("b", "reader"):
        used.sum()
    reached = lab.stream("b").record()
    # THEN its work comes behind, and the host went on at once
    assert used is x
    assert not reached.query()
    lab.synchronize()
    trace = lab.trace
    ends = {trace.names[name]: row for row, name in enumerate(trace.name)}
    assert trace.start_ns[ends["reader"]] >= trace.end_ns[ends["work"]] - 1


def test_a_lane_waits_neither_for_itself_nor_for_nobody(lab, monkeypatch):
    lane, x = lab.stream("a"), lab.xp.zeros(4)
    monkeypatch.setattr(type(lane), "wait", lambda *_: pytest.fail("waited"))
    lane.use(x, after="a")
    lab.synchronize()
    lane.use(x)  # its writers are done
    monkeypatch.undo()
    with lab.on("b"):
        spin(lab, LONG_NS)
        y = lab.xp.zeros(4)
    assert lane.use(y) is y  # its writer is known
    lane.synchronize()
    assert lab.stream("b").query()


def test_memory_that_crossed_lanes_lives_until_the_consumer_is_done_however_early_it_is_dropped(lab):
    # GIVEN an array of "a" that "b" reads in long work
    with lab.on("a"):
        x = lab.xp.zeros(1 << 16)
    lab.stream("b").use(x, after="a")
    owner = weakref.ref(x.sim_values)
    is_done = work(lab, "b")
    # WHEN it is dropped at once, and more work comes to "b" afterwards
    del x
    lab._keeper.sweep()
    is_later_done = work(lab, "b")
    # THEN its memory is not given to the next array of "a", and is when the work that could use it is done
    assert lab.memory.held_count == 1
    assert owner() is not None
    pass_time(lab, LONG_NS + 100_000)
    lab._keeper.sweep()
    assert (is_done(), is_later_done()) == (True, False)
    assert owner() is None
    assert lab.memory.held_count == 0


def test_memory_is_kept_as_long_as_a_view_of_it_is_used(lab):
    x = lab.xp.zeros((4, 4))
    view = x.T[1:]
    owner = weakref.ref(x.sim_values)
    lab.stream("b").use(x, after="a")
    del x
    lab.synchronize()
    assert lab.memory.held_count == 1
    work(lab, "b")
    del view
    lab._keeper.sweep()
    assert owner() is not None
    lab.synchronize()
    assert (owner(), lab.memory.held_count) == (None, 0)


def test_one_of_two_lanes_that_closes_leaves_the_memory_to_the_other(lab):
    x = lab.xp.zeros(8)
    owner = weakref.ref(x.sim_values)
    lab.stream("b").use(x, after="a")
    lab.stream("c").use(x, after="a")
    assert lab.memory.held_count == 1
    work(lab, "b", LONG_NS)
    is_c_done = work(lab, "c", 5 * LONG_NS)
    del x
    lab._keeper.sweep()
    assert lab.memory.held_count == 2
    lab.stream("b").close()
    lab._keeper.sweep()
    assert not is_c_done()
    assert owner() is not None
    lab.stream("c").close()
    assert owner() is None


def test_dropped_arrays_are_found_in_passing_and_one_used_again_and_again_is_kept_once(lab):
    lane, weights = lab.stream("b"), lab.xp.zeros(8)
    for _ in range(100):
        lane.use(weights, after="a")
    assert lab.memory.held_count == 1
    for _ in range(1000):
        lane.use(lab.xp.zeros(2), after="b")
        pass_time(lab, 1_000)
    assert lab.memory.held_count <= 128


# Closing


def test_closing_a_session_lets_go_behind_the_work_and_leaks_nothing():
    states = []
    lab = Session("sim")
    lab.stream("a")
    is_done = work(lab, "a")
    lab.stream("a").hold(Thing(lambda: states.append(("held", is_done()))))
    x = Thing(lambda: states.append(("used", is_done())))
    lab.stream("a").use(x, after="a")
    del x
    kept = Thing()
    lab.stream("a").use(kept, after="a")
    known = weakref.ref(kept)
    theirs = lab._backend.create_stream()
    lab.stream("lent", external=theirs).hold(Thing())
    lab.close()
    lab.close()
    assert sorted(states) == [("held", True), ("used", True)]
    assert lab.memory.held_count == 0
    assert known() is kept  # still used: it stays its user's
    assert not theirs.is_closed
    for call in (lambda: lab.stream("a"), lambda: lab.run_on("a", print)):
        with pytest.raises(SessionClosedError):
            call()


# Many threads


def test_many_threads_hold_and_use_at_once(lab):
    died = []

    def run(number):
        chance = random.Random(number)
        lane = lab.stream(f"lane-{number}")
        for _ in range(60):
            with lab.on(lane):
                x = lab.xp.zeros(16)
                spin(lab, chance.randrange(1, 50_000))
            lane.hold(Thing(lambda: died.append(1)), x)
            lab.stream(chance.choice(["a", "b"])).use(x, after=lane)
            if chance.random() < 0.05:
                lane.close()
                lane = lab.stream(lane.name)

    run_all(run, 8)
    lab.synchronize()
    lab.synchronize()
    gc.collect()
    assert len(died) == 60 * 8
    assert lab.memory.held_count == 0
    assert lab._backend.driver.memory.block_count == 0


# run_on


@pytest.mark.parametrize("fails", [False, True])
def test_run_on_holds_what_the_call_got_and_gave_also_where_it_fails(lab, fails):
    died = []

    def engine(lane, *things, **named):
        assert lab.current is lane is lab.stream("a")
        spin(lab, LONG_NS)
        if fails:
            raise ValueError("half-way")
        return Thing(lambda: died.append("result"))

    thing = [Thing(lambda name=name: died.append(name)) for name in ("positional", "named", "hold")]
    with pytest.raises(ValueError, match="half-way") if fails else nullcontext() as caught:
        lab.run_on("a", engine, thing[0], 3, "text", None, named=thing[1], hold=[thing[2]])
    del thing, caught
    gc.collect()
    assert died == []
    assert lab.memory.held_count == 4 - fails
    lab.synchronize()
    assert sorted(died) == ["hold", "named", "positional", *["result"] * (not fails)]


@pytest.mark.parametrize(
    "wrong", [3, "abc", b"abc", np.zeros((3, 4)), {"x": Thing()}, None], ids=lambda one: type(one).__name__
)
def test_run_on_needs_a_function_and_several_objects_to_hold(lab, wrong):
    ran = []
    with pytest.raises(OptionError, match=r"(?s)lab\.run_on calls a function, and .* is none. Use: lab\.run_on\('a', function"):
        lab.run_on("a", wrong)
    with pytest.raises(OptionError, match=r"hold= takes several objects, not one .*hold=\[x\]"):
        lab.run_on("a", ran.append, hold=wrong)
    assert ran == []
    lab.run_on(lab._backend.adopt_stream(lab.stream("a")), ran.append, hold=[wrong])
    assert ran == [lab.stream("a")]


class Asynchronous:
    async def __call__(self, lane):
        raise AssertionError("it ran")


async def coroutine(lane, *_):
    raise AssertionError("it ran")


async def asynchronous_generator(lane):
    raise AssertionError("it ran")
    yield


def generator(lane):
    raise AssertionError("it ran")
    yield


LATER = {
    "coroutine function": coroutine,
    "generator function": generator,
    "asynchronous generator function": asynchronous_generator,
    "partial": functools.partial(coroutine, 3),
    "callable object": Asynchronous(),
    "its method": Asynchronous().__call__,
    "decorated": None,
}


@pytest.mark.parametrize("call", LATER.values(), ids=LATER)
def test_run_on_refuses_what_would_run_later(lab, call):
    call = call or lab.on("b")(coroutine)
    with pytest.raises(OptionError, match=r"would run later, with nothing selected.*@lab\.on\('a'\).*What it made is closed"):
        lab.run_on("a", call)
    gc.collect()  # a coroutine that was never awaited would warn, and a warning is an error here
    assert lab.current is None


@pytest.mark.parametrize("make", [coroutine, lambda lane: (one for one in [lane]), asynchronous_generator], ids=range(3))
def test_run_on_closes_and_refuses_what_a_call_made_for_later(lab, make):
    with pytest.raises(OptionError, match=r"would run later.*@lab\.on\('a'\).*What it made is closed"):
        lab.run_on("a", lambda lane: make(lane))
    gc.collect()  # a coroutine that was never awaited would warn, and a warning is an error here
    assert lab.current is None
