"""What a thread of the soak may do in one turn: small pieces of work in random lanes, each with a result that is known before.

An action is a function of a `Turn`. It raises nothing of its own, except what it is there to raise and catches itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np

from gpustreamlab import Session
from gpustreamlab.errors import SessionClosedError
from gpustreamlab.streams.stream import Stream
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin

SPIN_NS = 200_000
"""How long work is held back that should still be waiting when something else happens."""
MOST_ELEMENTS = 1 << 15


class WrongResultError(Exception):
    """A result that is not what it must be."""


class Turn:
    """One turn of one thread: its session, its lanes, its random numbers."""

    def __init__(self, lab: Session, lanes: list[Stream], rng: random.Random, guarded: Guarded) -> None:
        self.lab = lab
        self.a, self.b = lanes
        """Two different lanes; nobody closes or moves them during the turn."""
        self.rng = rng
        self.guarded = guarded
        """What all threads count in, under a guard."""
        self.size = rng.randrange(1, MOST_ELEMENTS)
        """Elements of this turn's arrays."""
        self.number = rng.randrange(1, 1_000)
        """What they are made of."""

    def full(self, number: int | None = None) -> Any:
        """Return an array on the selected lane that holds the turn's number, or another."""
        return self.lab.xp.full(self.size, self.number if number is None else number, dtype="int64")

    def check(self, found: Any, expected: int, what: str) -> None:
        """Raise unless a host array holds one number throughout."""
        wrong = np.flatnonzero(np.asarray(found) != expected)
        if len(wrong):
            raise WrongResultError(
                f"{what}: {len(wrong):,} of {np.size(found):,} are wrong, the first at {wrong[0]}: "
                f"{np.ravel(found)[wrong[0]]}, not {expected}; lanes {self.a.name!r}, {self.b.name!r}"
            )

    def check_same(self, found: object, expected: object, what: str) -> None:
        """Raise unless two are the same object."""
        if found is not expected and self.lab.state != "open":  # tasks of a session that is gone are steered no more
            raise SessionClosedError(f"{what}: the session was closed in the middle of this turn")
        if found is not expected:
            raise WrongResultError(f"{what}: {found!r}, not {expected!r}")


class Guarded:
    """A device array in which every thread counts, on its own lane; only a guard makes that right."""

    def __init__(self, lab: Session) -> None:
        self.array = lab.xp.zeros(1 << 12, dtype="int64")
        lab.synchronize()
        self.guard = lab.memory.guard(self.array, "counter")
        self.use_count = 0
        """How often it was counted up; changed inside the guard only."""


def compute(turn: Turn) -> None:
    """Compute in one lane and read the result."""
    with turn.lab.on(turn.a, "compute"):
        found = (turn.full() * 3 + 1).get()
    turn.check(found, turn.number * 3 + 1, "compute")


def multiply(turn: Turn) -> None:
    """Multiply two matrices in one lane."""
    side = 1 + turn.size % 64
    with turn.lab.on(turn.a, "multiply"):
        x = turn.lab.xp.full((side, side), float(turn.number % 10))
        found = (x @ x).get()
    turn.check(found, side * (turn.number % 10) ** 2, "multiply")


def nest(turn: Turn) -> None:
    """Select one lane inside another, with a range between them."""
    lab = turn.lab
    with lab.on(turn.a, "outer"):
        x = turn.full()
        with lab.range("between"), lab.on(turn.b, "inner"):
            turn.check_same(lab.current, turn.b, "inner lane")
            other = turn.full(7).get()
        turn.check_same(lab.current, turn.a, "outer lane again")
        found = (x - 1).get()
    turn.check_same(lab.current, None, "no lane again")
    turn.check(other, 7, "inner")
    turn.check(found, turn.number - 1, "outer")


def fail(turn: Turn) -> None:
    """Raise inside nested lanes: the exception passes unchanged, and nothing stays selected."""
    planned = KeyError("planned")
    try:
        with turn.lab.on(turn.a, "fails"):
            x = turn.full()
            with turn.lab.on(turn.b, "fails inside"), turn.lab.range("deepest"):
                raise planned
    except KeyError as error:
        turn.check_same(error, planned, "exception")
    turn.check_same(turn.lab.current, None, "no lane after an exception")
    with turn.lab.select(turn.a):
        turn.check(x.get(), turn.number, "array of a block that failed")


def hand_over(turn: Turn) -> None:
    """Make in one lane, use in another behind an event."""
    with turn.lab.on(turn.a, "produce"):
        spin(turn.lab, SPIN_NS)
        x = turn.full()
    with turn.a.record() as done:
        turn.b.wait(done)
    with turn.lab.on(turn.b, "consume"):
        found = (x + 1).get()
    turn.check(found, turn.number + 1, "hand-over")


def hold(turn: Turn) -> None:
    """Drop an array that another lane still has to read, once that lane holds it; then fill its memory with something else."""
    with turn.lab.on(turn.a, "produce"):
        x = turn.full()
    turn.b.wait(turn.a)
    with turn.lab.on(turn.b, "read late"):
        spin(turn.lab, SPIN_NS)
        y = x + 1
    turn.b.hold(x)
    del x
    _fill_again(turn)
    with turn.lab.select(turn.b):
        turn.check(y.get(), turn.number + 1, "held array")


def use(turn: Turn) -> None:
    """Do the same with `Stream.use`, which also waits."""
    with turn.lab.on(turn.a, "produce"):
        x = turn.full()
    x = turn.b.use(x, after=turn.a)
    with turn.lab.on(turn.b, "read late"):
        spin(turn.lab, SPIN_NS)
        y = x * 2
    del x
    _fill_again(turn)
    with turn.lab.select(turn.b):
        turn.check(y.get(), turn.number * 2, "used array")


def use_scratch(turn: Turn) -> None:
    """Compute in scratch memory of a lane."""
    with turn.lab.on(turn.a, "scratch") as lane, lane.scratch(turn.size * 8) as work:
        array = work.array(turn.size, "int64")
        array[...] = turn.number
        found = (array + 5).get()
    turn.check(found, turn.number + 5, "scratch")


def count_guarded(turn: Turn) -> None:
    """Count in an array that all threads change, each on its own lane."""
    with turn.guarded.guard.on(turn.a, "count"):
        turn.guarded.array += 1
        turn.guarded.use_count += 1


def run_engine(turn: Turn) -> None:
    """Run what takes a stream."""

    def engine(lane: Stream, factor: int) -> Any:
        turn.check_same(turn.lab.current, lane, "lane of the engine")
        return turn.full() * factor

    out = turn.lab.run_on(turn.a, engine, 5, label="engine")
    with turn.lab.select(turn.a):
        turn.check(out.get(), turn.number * 5, "engine")


def copy(turn: Turn) -> None:
    """Copy page-locked memory to the device and back, on a stream that is told."""
    lab = turn.lab
    there, back = (lab.memory.pinned_empty(turn.size, "int64") for _ in range(2))
    there[:], back[:] = turn.number, 0
    with lab.select(turn.a):
        device = lab.xp.empty(turn.size, "int64")
    copy_to_device(lab, there, device, stream=turn.a)
    copy_to_host(lab, device, back, stream=turn.a)
    turn.a.synchronize()
    turn.check(back, turn.number, "copy there and back")


def measure(turn: Turn) -> None:
    """Measure between events, and wait for them on the host."""
    with turn.lab.event() as start, turn.lab.event() as end:
        start.record(turn.a)
        spin(turn.lab, SPIN_NS // 10, stream=turn.a)
        turn.a.record(end)
        elapsed_ns = start.elapsed_ns(end)
        if elapsed_ns < SPIN_NS // 20 or not end.query():
            raise WrongResultError(f"time between two events: {elapsed_ns} ns around a spin of {SPIN_NS // 10} ns")


def look(turn: Turn) -> None:
    """Read the trace while it grows, in one of the ways there are."""
    trace = turn.lab.trace
    if (trace.end_ns < trace.start_ns).any():
        raise WrongResultError("a span of the trace ends before it starts")
    turn.rng.choice((turn.lab.trace.overlap, turn.lab.trace.strays, turn.lab.trace.utilization, turn.lab.__repr__))()


def interleave(turn: Turn) -> None:
    """Run two tasks in turns, each of which has its own lane between its steps."""
    lab = turn.lab

    async def step(lane: Stream, number: int) -> Any:
        with lab.on(lane, "task"):
            x = turn.full(number)
            for _ in range(3):
                await asyncio.sleep(0)
                turn.check_same(lab.current, lane, "lane of a task")
                x += 1
            return x.get()

    async def both() -> list[Any]:
        return await asyncio.gather(lab.on(turn.a, "task a")(step)(turn.a, 1), lab.on(turn.b, "task b")(step)(turn.b, 2))

    for number, found in enumerate(asyncio.run(both()), 1):
        turn.check(found, number + 3, "task")
    turn.check_same(lab.current, None, "no lane after tasks")


def compute_in_torch(turn: Turn) -> None:
    """Compute with torch on the selected lane."""
    import torch

    with turn.lab.on(turn.a, "torch"):
        if torch.cuda.current_stream().cuda_stream != turn.a.handle:
            raise WrongResultError(f"torch works on {torch.cuda.current_stream()}, and lane {turn.a!r} is selected")
        x = torch.full((turn.size,), turn.number, device="cuda", dtype=torch.int64)
        found = (x * 2).cpu().numpy()
    turn.check(found, turn.number * 2, "torch")


ACTIONS: dict[Callable[[Turn], None], int] = {
    compute: 8, multiply: 4, nest: 6, fail: 4, hand_over: 6, hold: 4, use: 4, use_scratch: 6, count_guarded: 6, run_engine: 4,
    copy: 4, measure: 3, look: 1, interleave: 1,
}  # fmt: skip
"""What a thread does, with how often it does it."""
CUDA_ACTIONS: dict[Callable[[Turn], None], int] = {compute_in_torch: 6}
"""The same, where there is a GPU."""


def _fill_again(turn: Turn) -> None:
    """Fill memory of the first lane with something else: what was freed too early comes here."""
    with ExitStack() as stack:
        stack.enter_context(turn.lab.on(turn.a, "fill again"))
        for _ in range(3):
            turn.full(-1)
