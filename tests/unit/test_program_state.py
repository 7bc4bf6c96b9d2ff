"""State behind a program: what runs as a program does what it does alone, and a plan knows what it depends on."""

from __future__ import annotations

import functools
import io
import itertools
import queue
import sqlite3
import threading
import types
from contextlib import contextmanager

import numpy as np
import pytest

SIZE = 64


class Counter:
    """Counts in its class, in itself, and behind a lock that cannot be copied."""

    calls = 0
    index = 0

    def __init__(self):
        self.count = 0
        self.lock = threading.Lock()

    def step(self):
        with self.lock:
            Counter.calls += 1
            self.count += 1
            return self.count * 100 + Counter.calls


@functools.lru_cache
def cached(number):
    seen.append(number)
    return number


seen: list[int] = []
HELD = {"offset": 0}
offset = 0
ticks = itertools.count()


def tick():
    return next(ticks)


def remembered(number, history=[]):  # noqa: B006 - that it is mutable is what is tested
    history.append(number)
    return len(history)


def bump():
    global offset  # noqa: PLW0603 - as users do
    offset += 1
    return offset


def region():
    return offset


def held_region():
    return HELD["offset"]


def made_counter():
    count = 0

    def f():
        nonlocal count
        count += 1
        return count

    return f


@contextmanager
def noted(log):
    log.append("in")
    yield
    log.append("out")


def fresh_state(lab, folder):
    """Return variables that lead to state of every kind, made anew."""
    global offset, ticks
    offset, ticks, Counter.calls, Counter.index, HELD["offset"] = 0, itertools.count(), 0, 0, 0
    seen.clear(), cached.cache_clear(), remembered.__defaults__[0].clear()
    lab.xp.random.seed(3)
    np.random.seed(3)  # noqa: NPY002 - the global one is what is tested
    (folder / "lines.txt").write_text("\n".join(map(str, range(1, 40))))
    waiting = queue.Queue()
    for number in range(20):
        waiting.put(number)
    names = {"xp": lab.xp, "np": np, "lab": lab, "rng": lab.xp.random.default_rng(0), "host_rng": np.random.default_rng(0)}
    names |= {"counter": Counter(), "Counter": Counter, "cached": cached, "seen": seen, "tick": tick, "remembered": remembered}
    names |= {"bump": bump, "closed": made_counter(), "noted": noted, "log": [], "waiting": waiting}
    names |= {"lines": (folder / "lines.txt").open(), "text": io.StringIO("1\n" * 40), "data": sqlite3.connect(":memory:")}
    names |= {"generated": (k for k in range(40)), "listed": iter(range(40)), "module": types.SimpleNamespace(n=0)}
    names["data"].execute("create table t(a)")
    with lab.select("s1"):
        names |= {"x": lab.xp.ones(SIZE), "y": lab.xp.full(SIZE, 2.0)}
    lab.synchronize()
    return names


STATE = {
    "generator of xp": "a = x * rng.random(64)",
    "global random numbers": "a = xp.random.rand(64) * np.random.rand() * host_rng.random()",
    "closure": "a = x * closed()",
    "class and instance": "a = x * counter.step()\nCounter.calls += 5",
    "mutable default": "a = x * remembered(2)",
    "cache": "a = x * cached(3)\nk = len(seen)",
    "module's counter": "a = x * tick()",
    "module's global": "a = x * bump()",
    "generator": "a = x * next(generated)\nb = y * next(generated)",
    "iterator": "a = x * next(listed)\nfor n in [1, 2]:\n    a = a + next(listed)",
    "file": "a = x * int(lines.readline()) * int(text.readline())",
    "queue": "a = x * waiting.get_nowait()",
    "data base": "_ = data.execute('insert into t values (1)')\na = x * data.execute('select count(*) from t').fetchone()[0]",
    "own counter": "module.n += 1\nlog.append(module.n)\na = x * module.n",
    "annotations": "class P:\n    q: int = 3\na = x * (P.__annotations__['q'] is int)",
    "context manager and print": "with noted(log):\n    a = x + 1\nprint(log, a.sum())",
    "caught error": "try:\n    a = x + 1\n    raise ValueError(bump())\nexcept ValueError as error:\n    told = str(error)",
    "error": "a = x + closed()\nlog.append(a)\nb = 1 // (2 - len(log))\nc = y + 1",
    "frame": "import sys\nframe = sys._getframe(0).f_code.co_name\nline = sys._getframe(0).f_lineno\na = x + 1",
    "deep recursion": "def deep(n):\n    return 0 if n == 0 else 1 + deep(n - 1)\nd = deep(600)\na = x + d",
}


def held(names):
    """Return what variables hold that were made, as values that can be compared."""
    found = {}
    for name, value in names.items():
        if hasattr(value, "get") and hasattr(value, "shape"):
            found[name] = value.get().tolist()
        elif isinstance(value, (int, float, str, list)):
            found[name] = (
                [type(one).__name__ if hasattr(one, "shape") else one for one in value] if type(value) is list else value
            )
    return found | {
        "calls": Counter.calls,
        "count": names["counter"].count,
        "left": names["waiting"].qsize(),
        "n": names["module"].n,
    }


OPTIONS = {"hazards": "report"}
STREAMS = ("s1", "s2")


def ran(lab, capsys, names, run):
    """Run something; return what it left, printed and raised."""
    error = None
    with lab.select("s1"):
        try:
            run()
        except Exception as raised:
            error = type(raised), str(raised)
        lab.synchronize()
        return held(names), capsys.readouterr().out, error


@pytest.mark.parametrize("kind", STATE)
def test_a_program_does_what_its_statements_do_alone(lab, kind, tmp_path, capsys):
    text = STATE[kind]
    names = fresh_state(lab, tmp_path)
    code = compile(text, "<alone>", "exec", dont_inherit=True)
    expected = [ran(lab, capsys, names, lambda: exec(code, names)) for _ in range(4)]
    close(names)
    names = fresh_state(lab, tmp_path)
    plan = lab.program(text, names).plan(["s1", "s2"])
    found = [ran(lab, capsys, names, plan.run) for _ in range(4)]
    close(names)
    assert found == expected


def close(names):
    names["lines"].close()
    names["data"].close()


CHANGES = {
    "class attribute": ("x1[C.index:C.index + 8] += 1  #: s2", lambda names: setattr(Counter, "index", 32)),
    "module's global": ("i = region()\nx1[i:i + 8] += 1  #: s2", lambda names: globals().update(offset=32)),
    "module's dictionary": ("i = held_region()\nx1[i:i + 8] += 1  #: s2", lambda names: HELD.update(offset=32)),
    "iterator": ("i = next(it)\nx1[i:i + 8] += 1  #: s2", lambda names: next(names["it"])),
    "default": ("i = g()\nx1[i:i + 8] += 1  #: s2", lambda names: setattr(names["g"], "__defaults__", (32,))),
    "bytes": ("x1[raw[0]:raw[0] + 8] += 1  #: s2", lambda names: names["raw"].__setitem__(0, 32)),
    "host array": ("x1[host[0]:host[0] + 8] += 1  #: s2", lambda names: names["host"].__setitem__(0, 32)),
    "array of a list, chosen by an iterator": ("y = next(arrays)\ny[:8] += 1  #: s2", lambda names: None),
    "host array beside a list": ("l[0] += float(host[0]) + 1  #: s2", lambda names: names["l"].__setitem__(0, names["x1"])),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_a_plan_depends_on_is_seen_or_ordered(lab, what):
    statement, change = CHANGES[what]
    globals()["offset"], Counter.index, HELD["offset"] = 0, 0, 0
    with lab.select("s1"):
        x0, x1 = lab.xp.ones((SIZE, SIZE)), lab.xp.ones((SIZE, SIZE))
    lab.synchronize()

    def g(start=0):
        return start

    names = {"x0": x0, "x1": x1, "C": Counter, "region": region, "held_region": held_region, "g": g, "raw": bytearray(1)}
    names |= {
        "it": iter([0, 0] + [32] * 90),
        "host": np.zeros(1, int),
        "arrays": itertools.cycle([x0 * 2, x1, x1]),
        "l": [x0 * 2],
    }
    lab.synchronize()
    plan = lab.program(f"a = x0 @ x0  #: s1\n{statement}\nc = x1[32:40] @ a  #: s1\n", names).plan(["s1", "s2"])
    for turn in range(8):
        if turn == 3:
            change(names)
        plan.run()
        lab.synchronize()
        assert not lab.memory.hazards(), f"turn {turn}: {lab.memory.hazards()}\n{plan.code}"


def test_functions_of_a_program_have_their_own_code_again(lab):
    names = {"x": lab.xp.ones(4), "made": made_counter}
    lab.synchronize()
    lab.program("def f(v):\n    return g(v) + 1\ng = lambda v: abs(v)\ncount = made()\nu = f(x)\n", names).plan().run()
    for name in ("f", "g", "count"):
        code = names[name].__code__
        assert not [one for one in code.co_names if "gpustreamlab" in one], name
    assert names["count"].__code__ == made_counter().__code__
    assert names["count"].__qualname__ == "made_counter.<locals>.f"


class Loud:
    """Says so when it is asked for anything."""

    __slots__ = ("told", "weight")

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        self.told.append(name)
        raise AttributeError(name)

    @property
    def __class__(self):
        self.told.append("__class__")
        return list

    def __eq__(self, other):
        self.told.append("__eq__")
        return NotImplemented

    __hash__ = None

    def __call__(self):
        return 3


def test_objects_are_looked_at_without_being_asked(lab):
    loud = Loud()
    names = {"x": lab.xp.ones(4), "loud": loud, "inside": [loud, {"k": loud}]}
    lab.synchronize()
    plan = lab.program("a = x * loud()\nb = len(inside)", names).plan()
    for _ in range(4):
        plan.run()
    assert plan.fits()
    assert object.__getattribute__(loud, "told") == []


def test_a_function_looks_up_its_module_and_its_closure_as_they_are_now(lab):
    total = 0

    def program(x):
        first = offset
        bump()
        second = offset
        u = x * (second + total)
        return u, first, second

    globals()["offset"] = 0
    x = lab.xp.ones(4)
    lab.synchronize()
    plan = lab.program(program, {"x": x}).plan()
    for turn in range(4):
        total = turn
        u, first, second = plan.run()["result"]
        lab.synchronize()
        assert (first, second, u.get().tolist()) == (turn, turn + 1, [turn + 1.0 + turn] * 4)
