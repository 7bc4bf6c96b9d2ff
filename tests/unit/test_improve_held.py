"""What objects, closures, classes and modules hold is compared between runs, and is the user's own behind them."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import io
import sys
import types
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from gpustreamlab.errors import ProgramError
from gpustreamlab.improve._draft import read_draft
from gpustreamlab.improve._held import Unseen, leaves, same
from gpustreamlab.improve._run import Runner


@dataclass
class Result:
    total: float = 0.0
    seen: list = field(default_factory=list)


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


class Stack(list):
    name = "stack"


class Kind(enum.Enum):
    A = 1
    B = 2


def counter(start):
    values = [start]

    def step():
        values[0] += 1
        return values[0]

    return step


def in_itself(value):
    made = [value]
    made.append(made)
    return made


MAKERS = {
    "a number": lambda n: n,
    "a float": lambda n: float(n),
    "a sign of zero": lambda n: -0.0 if n else 0.0,
    "a text": lambda n: f"text {n}",
    "a scalar of NumPy": lambda n: np.float32(n),
    "a dataclass": lambda n: Result(total=n),
    "a list in a dataclass": lambda n: Result(seen=[1, {"k": (n,)}]),
    "a slot": lambda n: Slotted(Slotted(n)),
    "an item of a list with attributes": lambda n: Stack([n]),
    "a set": lambda n: {1, n + 5},
    "the order of a dictionary": lambda n: {n: 1, 1 - n: 1},
    "a key that is an object": lambda n: {Slotted(n): 1},
    "a counter": lambda n: Counter("a" * (n + 1)),
    "an ordered dictionary": lambda n: OrderedDict(k=n),
    "a deque": lambda n: deque([n], maxlen=3),
    "a namespace": lambda n: types.SimpleNamespace(k=types.SimpleNamespace(n=n)),
    "a number of many digits": lambda n: decimal.Decimal(n) / 3,
    "a day": lambda n: dt.date(2026, 11, 1 + n),
    "a member": lambda n: Kind(n + 1),
    "a generator of random numbers": lambda n: np.random.default_rng(n),
    "an iterator": lambda n: iter([n, 3]),
    "a text in memory": lambda n: io.StringIO(str(n)),
    "a variable that a function closes over": counter,
    "a default": lambda n: lambda k=n: k,
    "a method of the user's": lambda n: Slotted(n).__init__,
    "what is in itself": in_itself,
    "a list that is longer": lambda n: [0] * n,
    "another type": lambda n: [1, 1.0][n],
    "an array in an object": lambda n: Slotted(np.full(2, n)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_what_is_equal_is_equal_and_what_differs_is_found(name):
    first, again, other = (dict(leaves("x", MAKERS[name](n))) for n in (0, 0, 1))

    def differing(one, two):
        return [key for key in {*one, *two} if key not in one or key not in two or not same(one[key], two[key])]

    assert not differing(first, again)
    assert differing(first, other)
    assert not any(isinstance(one, Unseen) for one in first.values())


@pytest.mark.parametrize(("value", "kind"), [(sys.stdout.buffer, "_io."), ((one for one in "ab"), "generator")])
def test_what_nobody_sees_into_is_told(value, kind):
    ((_, one),) = leaves("x", value)
    assert isinstance(one, Unseen)
    assert kind in one.kind


class Net:
    steps = 0
    log: list = []  # noqa: RUF012 - what all have

    def __init__(self):
        self.total = 0.0

    def add(self, value):
        self.total += value
        Net.steps += 1
        Net.log.append(value)


SEEN = []
COUNT = 0


def note(value):
    global COUNT, MADE  # noqa: PLW0603 - what a program of the user's does
    COUNT += 1
    MADE = value
    SEEN.append(value)


PROGRAM = "y = k @ k\nnet.add(1.0)\nnote(1.0)\nstep()\nresult = dict(net=net, day='monday')\n"
CHANGES = {
    "net.total": ("net.add(1.0)", "net.add(1.0); net.total += 1"),
    "steps in Net": ("net.add(1.0)", "net.add(1.0); type(net).steps += 1"),
    "log in Net[0]": ("net.add(1.0)", "net.add(1.0); type(net).log[0] = 2.0"),
    "result['net'].total": ("net.add(1.0)", "net.add(1.5)"),
    "result['day']": ("'monday'", "'tuesday'"),
    f"SEEN in {__name__}[0]": ("note(1.0)", "note(2.0)"),
    f"COUNT in {__name__}": ("note(1.0)", "note(1.0); note(1.0)"),
    f"MADE in {__name__}": ("note(1.0)", "note(3.0)"),
    "step.values[0]": ("step()", "step(); step()"),
    "rate in settings": ("step()", "step(); settings.rate = 2"),
    "new in settings": ("step()", "step(); settings.new = 2"),
    "new in Net": ("step()", "step(); Net.new = 2"),
}


@pytest.fixture
def names(lab):
    settings = types.ModuleType("settings")
    settings.rate = 1
    return {
        "lab": lab,
        "k": lab.xp.ones((4, 4)),
        "net": Net(),
        "note": note,
        "step": counter(0),
        "Net": Net,
        "settings": settings,
    }


@pytest.mark.parametrize("path", CHANGES)
def test_what_a_variant_does_to_objects_differs_by_its_path(lab, names, path):
    runner = Runner(lab, names, ())
    with runner.aside():
        old = runner.run(read_draft(f"{PROGRAM}settings.rate, settings.new, Net.new = 1, 1, 1\n"))
        again = runner.run(read_draft(f"{PROGRAM}settings.rate, settings.new, Net.new = 1, 1, 1\n"))
        new = runner.run(read_draft(f"settings.rate, settings.new, Net.new = 1, 1, 1\n{PROGRAM.replace(*CHANGES[path])}"))

    assert not again.differs_from(old, None)
    assert path in new.differing(old, None)
    assert not hasattr(names["settings"], "new")
    assert not hasattr(Net, "new")


def test_objects_functions_classes_and_modules_are_as_they_were(lab, names):
    held = {one: dict(leaves(one, names[one])) for one in ("net", "step")}
    found = lab.improve(PROGRAM, namespace=names)

    assert not found.notes
    assert (Net.steps, Net.log, SEEN, COUNT) == (0, [], [], 0)
    assert "MADE" not in globals()
    assert {one: dict(leaves(one, names[one])) for one in held} == held
    assert names["step"]() == 1


def test_what_is_no_value_is_named_and_what_differs_each_time_too(lab):
    text = "import time\ny = k @ k\nnet.began = time.perf_counter()\nrest = (one for one in 'ab')"
    found = lab.improve(text, namespace={"lab": lab, "k": lab.xp.ones(4), "net": Net()})
    assert found.notes == ("Not compared between runs: rest, a generator; net.began, another value in each run.",)


def test_what_a_closure_holds_and_cannot_be_copied_is_refused_by_name(lab):
    numbers = (one for one in "ab")

    def step():
        return next(numbers)

    with pytest.raises(ProgramError, match="'numbers', a builtins.generator, cannot be copied"):
        lab.improve("step()", namespace={"lab": lab, "step": step})
    assert next(numbers) == "a"


def test_an_open_file_is_refused_by_name(lab, tmp_path):
    with (tmp_path / "data").open("w") as file, pytest.raises(ProgramError, match=r"'file', a _io\.TextIOWrapper"):
        lab.improve("file.write('x')", namespace={"lab": lab, "file": file})
    assert not (tmp_path / "data").read_text(encoding="utf-8")
