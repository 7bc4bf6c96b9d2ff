"""A guard lets one lane at a time use a thing, orders lanes on the device, and keeps the thing until its last work is done."""

from __future__ import annotations

import itertools
import weakref
from contextlib import suppress

import pytest

from gpustreamlab.errors import GuardClosedError, SelectionError, SessionClosedError
from gpustreamlab.workloads import spin
from tests.helpers.threads import run_all, run_in_thread

OPTIONS = {"capture": "ranges"}
STREAMS = ("a", "b")

LONG_NS = 1_000_000_000


class Thing:
    """Stands for an execution context."""


def spans(lab):
    """Return when each named range began and ended."""
    lab.synchronize()
    trace = lab.trace
    rows = zip(trace.name, trace.start_ns.tolist(), trace.end_ns.tolist(), strict=True)
    return {trace.names[name]: (start, end) for name, start, end in rows}


def use(lab, guard, lane, label=None, duration_ns=LONG_NS):
    """Enqueue work that uses what is guarded."""
    with guard.on(lane, label):
        spin(lab, duration_ns)


@pytest.fixture
def guard(lab):
    return lab.memory.guard(Thing(), "context")


def test_uses_on_two_lanes_come_one_behind_the_other_and_the_host_waits_for_none(lab, guard):
    before_ns = lab._backend.driver.clock.now_ns
    theirs = lab.stream("theirs", external=lab._backend.create_stream())
    for lane, label in (("a", "first"), ("b", "second"), (theirs, "third")):
        with suppress(ValueError), guard.on(lane, label) as used:
            assert used is lab.current
            spin(lab, LONG_NS)
            raise ValueError
    use(lab, guard, theirs)  # behind what the lane holds anyway
    use(lab, lab.memory.guard(Thing()), theirs)
    for lane in ("a", "b"):
        with lab.on(lane, f"unguarded {lane}"):
            spin(lab, LONG_NS)

    assert lab._backend.driver.clock.now_ns - before_ns < 1_000_000
    assert not guard.query()
    ran = spans(lab)
    assert ran["second"][0] >= ran["first"][1] - 1
    assert ran["third"][0] >= ran["second"][1] - 1
    assert ran["unguarded a"][0] < ran["second"][1]  # without a guard they overlap
    assert {"context", "theirs"} < set(ran)  # the guard's name, or the stream's
    assert guard.query()


def test_a_guard_shows_what_it_is(lab, guard):
    assert repr(guard) == "<Guard 'context', not used yet>"
    with guard.on("a"):
        with guard.on("b"):
            assert repr(guard) == "<Guard 'context', in use on 'b'>"
        assert repr(guard) == "<Guard 'context', in use on 'a'>"
        with pytest.raises(SelectionError, match="inside"):
            guard.close()
    assert repr(guard) == "<Guard 'context', last used on 'a'>"
    assert repr(guard.on("b")) == "<Use of guard 'context' on 'b', for a `with` block>"
    guard.close()
    assert repr(guard) == "<Guard 'context' closed>"


# Nested uses of one guard


def test_one_guard_used_inside_itself_on_another_lane_stays_in_order(lab, guard):
    with guard.on("a", "outer"):
        with lab.range("before"):
            spin(lab, LONG_NS)
        with guard.on("b", "inner"):
            spin(lab, LONG_NS)
        with lab.range("after"):
            spin(lab, LONG_NS)
    ran = spans(lab)
    assert ran["inner"][0] >= ran["before"][1] - 1
    assert ran["after"][0] >= ran["inner"][1] - 1
    assert ran["outer"][1] >= ran["after"][1]


# Threads


def test_many_threads_never_share_it(lab, guard):
    inside, most = [], []

    def run(number):
        lane = lab.stream(f"lane-{number}")
        for turn in range(20):
            with guard.on(lane, f"{number}.{turn}"):
                inside.append(number)
                most.append(len(inside))
                spin(lab, 1_000)
                inside.remove(number)

    run_all(run, 8)
    assert max(most) == 1
    ran = sorted(spans(lab).values())
    assert len(ran) == 160
    assert all(before[1] <= after[0] + 1 for before, after in itertools.pairwise(ran))


# Lifetimes


def test_closing_waits_for_the_last_use_and_lets_go(lab):
    thing = Thing()
    known = weakref.ref(thing)
    guard = lab.memory.guard(thing, "context")
    del thing
    with guard.on("a"):
        spin(lab, LONG_NS)
    guard.close()
    guard.close()
    assert guard.is_closed
    assert guard.resource is None
    assert known() is None
    with lab._backend.observing():
        assert lab.stream("a").query()


def test_a_closed_guard_cannot_be_used(lab):
    with lab.memory.guard(Thing(), "context") as guard:
        late = guard.on("a")
    with pytest.raises(GuardClosedError, match=r"Guard 'context' is closed.*lab.memory.guard"):
        guard.on("a")
    with pytest.raises(GuardClosedError, match="context"), late:
        pytest.fail("entered")
    with pytest.raises(GuardClosedError, match="context"), guard:
        pytest.fail("entered")
    assert lab.current is None


def test_a_session_that_closes_lets_go_behind_the_work_and_the_guard_closes_silently(lab):
    thing, states = Thing(), []
    weakref.finalize(thing, lambda: states.append(lab._backend.driver.scheduler.busy_count))
    guard = lab.memory.guard(thing, "context")
    del thing
    with guard.on("a"):
        spin(lab, LONG_NS)
    lab.close()
    assert states == [0]
    assert guard.query()
    guard.close()
    with pytest.raises(GuardClosedError):
        guard.on("a")
    with pytest.raises(SessionClosedError):
        lab.memory.guard(Thing())


def test_a_lane_closed_inside_or_after_a_use_harms_nobody(lab, guard):
    with guard.on("a", "first"):
        spin(lab, LONG_NS)
        assert run_in_thread(lab.stream("a").close) is None
    use(lab, guard, "b", "second", 10)
    assert spans(lab)["second"][0] >= LONG_NS
    lab.stream("b").close()
    use(lab, guard, lab.stream("c"), duration_ns=10)
    guard.close()
    assert guard.is_closed
