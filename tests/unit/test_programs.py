"""Programs through their doors: assignment, the code that is written, same results, memory, and what is refused."""

import ast
import linecache
import random
import re
import sys
import threading
import traceback
import types
import warnings

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import OptionError, ProgramError, SelectionError, StreamNotFoundError
from gpustreamlab.programs._calls import CALL, instrumented
from gpustreamlab.workloads import spin
from tests.helpers.selections import names_of

SIZE = 1_024


STREAMS = ("a", "b", "c")


def variables(lab, **more):
    """Return what a program runs on, made on stream a."""
    with lab.select("a"):
        values = {"lab": lab, "xp": lab.xp, "x": lab.xp.ones(SIZE), "y": lab.xp.full(SIZE, 2.0)}
        return values | {name: make(values) for name, make in more.items()}


def planned(lab, program, streams=("a", "b"), **more):
    return recorded(lab, program, variables(lab, **more), streams, variables(lab, **more))


def recorded(lab, program, values, streams, others):
    """Return the plan of a program, which was recorded on other variables than those that it has."""
    plan = lab.program(program, values).plan(streams)
    plan.run(others)
    lab.synchronize(), lab.clear()
    return plan


def streams_of(plan):
    return [one.stream for one in plan.statements]


def barriers_of(plan):
    return [one.barrier for one in plan.statements if one.barrier]


# Which stream a statement gets


def test_statements_get_the_streams_that_they_name(lab):
    text = 'u = x + 1  #: a\nwith lab.on("b"):\n    v = y * 2\n    w = y * 3  #: c\n#: c\nz = u + v\n'
    plan = planned(lab, text, ["a", "b", "c"])
    assert streams_of(plan) == ["a", "b", "c", "c"]
    assert plan.check()


def test_the_innermost_block_counts_and_keeps_its_label(lab):
    plan = planned(lab, 'with lab.on("a", "outer"):\n    u = x + 1\n    with lab.on("b", "inner"):\n        v = y * 2\n')
    assert streams_of(plan) == ["a", "b"]
    assert "with lab.on('b', 'inner'):\n    v = y * 2" in plan.code


def test_what_is_independent_goes_to_streams_of_its_own(lab):
    plan = planned(lab, "u = m @ m\nv = n @ n\nw = u + v\n", 2, m=square, n=square)
    assert len({one.stream for one in plan.statements[:2]}) == 2
    assert plan.check()


def square(values):
    return values["xp"].ones((512, 512))


def test_statements_without_work_stay_with_their_neighbours(lab):
    plan = planned(lab, "u = x + 1  #: b\nn = 3\nv = u * n  #: b\n")
    assert streams_of(plan) == ["b", None, "b"]
    assert plan.code.count("with lab.on(") == 1, "no switch for what enqueues nothing"


def test_the_stream_is_switched_only_where_it_changes(lab):
    plan = planned(lab, "u = x + 1  #: a\nv = u * 2  #: a\nw = y + 1  #: b\nz = w * 2  #: b\n")
    assert plan.code.count("with lab.on(") == 2
    assert plan.code.count(".wait(") == 2, "b behind the beginning, and a behind b at the end"


def test_one_stream_is_planned_where_nothing_is_gained(lab):
    plan = planned(lab, "u = x + 1\nv = u * 2\nw = v - 1\n")
    assert plan.streams == ("a",)
    assert "one stream" in repr(plan)
    assert ".wait(" not in plan.code
    assert ".hold(" not in plan.code


def test_streams_of_a_plan_are_bounded(lab):
    text = "\n".join(f"v{k} = m @ m" for k in range(12))
    plan = planned(lab, text, 3, m=square)
    assert len(plan.streams) <= 3
    before = len(lab.streams)
    for _ in range(3):
        planned(lab, text, 3, m=square)
    assert len(lab.streams) == before, "the same streams are used again"
    for wrong in (0, 33, True, -1, "a", [], ["a", "a"]):
        with pytest.raises(OptionError, match="streams is"):
            planned(lab, text, wrong)


def test_names_of_the_plan_do_not_hide_those_of_the_program(lab):
    text = "done_2 = 5\nu = x + 1  #: b\nv = y * done_2  #: b\nw = u + 1  #: a\ndel u\nbegan = 1\n"
    plan = planned(lab, text)
    assert plan.check()
    assert plan.run()["done_2"] == 5


# The code


def test_the_code_can_be_pasted_and_kept(lab):
    plan = planned(lab, "u = x * 2  #: a\nv = u + 1  #: b\nw = u + v  #: a\n")
    values = variables(lab)
    exec(plan.code, values)
    lab.synchronize()
    assert values["w"].get().tolist() == [5.0] * SIZE
    assert not lab.memory.hazards()


def test_texts_of_many_lines_stay_as_they_are(lab):
    text = 'def f(v):\n    """Say\n\n    what.\n    """\n    return v * 2\nu = f(x)  #: b\ns = """a\n  b"""\n'
    values = planned(lab, text).run()
    assert values["s"] == "a\n  b"
    pasted = variables(lab)
    exec(planned(lab, text).code, pasted)
    assert pasted["s"] == "a\n  b"
    block = 'with lab.on("b"):\n    if y.size:\n        u = x + 1\n        s = """a\nb"""\n'
    exec(planned(lab, block).code, pasted)
    assert pasted["s"] == "a\nb"


def test_an_event_is_waited_for_where_the_other_stream_holds_more(lab):
    plan = planned(lab, "u = x * 2  #: a\nw = y * 3  #: a\nv = u + 1  #: b\n")
    assert "done_1 = lab.stream('a').record()" in plan.code
    assert "lab.stream('b').wait(done_1)" in plan.code


def test_nothing_moves_across_a_wait_of_the_users_own(lab):
    text = "u = x * 2  #: a\nlab.stream('b').wait('a')\nv = y * 2  #: b\nlab.current.synchronize()\nw = v + 1  #: c\n"
    plan = planned(lab, text, ["a", "b", "c"])
    assert barriers_of(plan) == ["orders streams itself, or asks which is selected"] * 2
    lines = [line.strip() for line in plan.code.splitlines()]
    order = [lines.index(line) for line in text.replace("  #: a", "").replace("  #: b", "").replace("  #: c", "").splitlines()]
    assert order == sorted(order)
    assert plan.check()


def test_what_the_host_waits_for_itself_is_waited_for_on_the_right_stream(lab):
    text = "y.get(out=host, blocking=False)  #: b\nlab.current.synchronize()\nf = float(host.sum())\nu = x * f  #: a\n"
    values = planned(lab, text, host=lambda values: values["lab"].memory.pinned_empty(SIZE)).run()
    assert values["f"] == 2.0 * SIZE


# Results and inputs


def accumulator(values):
    total = values["x"]

    def add(v):
        nonlocal total
        total += v
        return total

    return add


def with_default(values):
    def add(v: np.ndarray, total: object = values["x"], *, scale: float = 1.0) -> object:
        total += v * scale
        return total

    return add


class Model:
    """Has an array as an attribute."""

    def __init__(self, weights):
        self.weights = weights

    def step(self, v):
        self.weights += v
        return self.weights * 2


class Slotted:
    """Has an array in a slot."""

    __slots__ = ("weights",)

    def __init__(self, weights):
        self.weights = weights


HIDDEN = {
    "closure": ("u = f(y)  #: b\nv = f(u)  #: a\n", accumulator),
    "default": ("u = f(y)  #: b\nv = f(u)  #: a\n", with_default),
    "attribute": ("u = f.step(y)  #: b\nv = f.step(u)  #: a\nf.weights *= 2  #: b\n", lambda values: Model(values["x"])),
    "slot": ("u = f.weights + 1  #: b\nf.weights += u  #: a\n", lambda values: Slotted(values["x"])),
    "bound method": ("u = f(y)  #: b\nv = f(u)  #: a\n", lambda values: Model(values["x"]).step),
    "iterator": ("u = next(f)  #: b\nu += 1  #: b\nx *= 2  #: a\n", lambda values: iter([values["x"]])),
    "list": ("f[0] += 1  #: b\nx *= 2  #: a\n", lambda values: [values["x"]]),
    "view": ("f += 1  #: b\nx *= 2  #: a\n", lambda values: values["x"][::2]),
    "strided views": ("f[::2] += 1  #: b\nf[1::2] *= 2  #: a\nf -= 1  #: b\n", lambda values: values["x"]),
    "lambda": ("f = lambda v: v * x\nx += 1  #: b\nu = f(y)  #: a\nx *= 2  #: b\n", accumulator),
    "generator": ("f = (x * k for k in range(3))\nu = next(f)  #: a\nx += 1  #: b\nv = next(f)  #: a\n", accumulator),
    "walrus": ("u = (f := x + 1) * 2  #: b\nf += 1  #: a\n", accumulator),
    "global": ("def g(v):\n    global x\n    x = v + x\n    return x\nu = g(y)  #: b\nv = x * 2  #: a\n", accumulator),
    "class": ("class C:\n    def go(self):\n        x.fill(3)\nC().go()  #: b\nu = x + 1  #: a\n", accumulator),
    "key": ("u = sorted([y, x], key=lambda v: float(v.sum()))  #: b\nu[0] += 1  #: a\n", accumulator),
    "operator": ("class C:\n    def __add__(self, v):\n        v.fill(7)\nu = C() + x  #: b\nv = x + 1  #: a\n", accumulator),
    "cycle": ("f = [x]\nf.append(f)\nf[0] += 1  #: b\ny += x  #: a\n", accumulator),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_arrays_are_found_however_they_are_reached(lab, name):
    text, make = HIDDEN[name]
    expected = variables(lab, f=make)
    with lab.select("a"):
        exec(text, expected)
    lab.synchronize()
    values = variables(lab, f=make)
    plan = recorded(lab, text, values, ["a", "b"], variables(lab, f=make))
    assert plan.check(), f"{plan.check()}\n{plan.code}"
    assert values["x"].get().tolist() == [1.0] * SIZE, "to check changes nothing"
    lab.synchronize(), lab.clear()
    plan.run()
    assert not lab.memory.hazards(), f"{lab.memory.hazards()}\n{plan.code}"
    for held in ("x", "y"):
        assert values[held].get().tolist() == expected[held].get().tolist()


LET_GO = {
    "del": "t = x * 2  #: a\nu = t + 1  #: b\ndel t\nv = xp.ones(1024)  #: a\n",
    "rebound": "t = x * 2  #: a\nu = t + 1  #: b\nt = xp.ones(1024)  #: a\nv = xp.zeros(1024)  #: a\n",
    "rebound there": "t = x * 2  #: a\nt = t + 1  #: b\nv = xp.zeros(1024)  #: a\n",
    "item": "d = {'k': x * 2}  #: a\nu = d['k'] + 1  #: b\nd['k'] = y  #: b\nv = xp.zeros(1024)  #: a\n",
    "item there": "d = {'k': x * 2}  #: a\nd['k'] = d['k'] + 1  #: b\nv = xp.zeros(1024)  #: a\n",
    "attribute": "m.weights = x * 2  #: a\nm.weights = m.weights + 1  #: b\nv = xp.zeros(1024)  #: a\n",
    "list": "f = [x * 2, x * 3]  #: a\nf = [one + 1 for one in f]  #: b\nv = xp.zeros(1024)  #: a\n",
    "popped": "f = [x * 2]  #: a\nu = f.pop() + 1  #: b\nv = xp.zeros(1024)  #: a\n",
}


@pytest.mark.parametrize("name", LET_GO)
def test_memory_that_is_let_go_is_kept_until_the_other_stream_is_done(lab, name):
    def model(values):
        return Model(values["y"])

    plan = planned(lab, LET_GO[name], m=model)
    assert ".hold(" in plan.code
    assert plan.check(), plan.code
    without = "\n".join(line.replace(line.strip(), "pass") if ".hold(" in line else line for line in plan.code.splitlines())
    for code, is_clean in ((plan.code, True), (without, False)):
        values = variables(lab, m=model)
        lab.synchronize(), lab.clear()
        exec(code, values)
        assert bool(lab.memory.hazards()) is not is_clean, code
        lab.synchronize()


def test_what_was_held_until_its_work_was_done_is_no_hazard_to_the_next(lab):
    with lab.on("a"):
        x = lab.xp.ones(SIZE)
    lab.stream("b").wait("a")
    with lab.on("b"):
        y = x * 2
    lab.stream("b").hold(x)
    del x
    for _ in range(40):  # the host goes on meanwhile: the memory is given back, and used again
        with lab.on("a"):
            z = lab.xp.zeros(SIZE) + 1
        lab.stream("b").hold(y)
    assert lab.memory.held_count < 3
    assert not lab.memory.hazards(), lab.memory.hazards()
    del y, z


def test_a_stream_holds_the_arrays_that_are_in_a_container_now(lab):
    values = variables(lab)
    table = {"k": [values["x"]]}
    lab.stream("b").hold(table)
    kept = lab.memory.arrays_in(table, Model(values["y"]))
    assert [one.get()[0] for one in kept] == [2.0, 1.0] or [one.get()[0] for one in kept] == [1.0, 2.0]


def test_a_plan_runs_again_and_on_other_variables(lab):
    text = "for i in range(3):\n    t = x[i] * 2\n    y[i] += t\n"
    values = variables(lab)
    plan = lab.program(text, values).plan(["a", "b"])
    plan.run(), plan.run()
    assert values["y"].get()[:4].tolist() == [6.0, 6.0, 6.0, 2.0]
    others = variables(lab)
    assert plan.run(others)["y"].get()[0] == 4.0


def test_memory_of_an_earlier_run_is_kept_too(lab):
    values = variables(lab)
    plan = lab.program("u = x + 1  #: a\nx = y * 3  #: b\nz = y + 4  #: b\nw = z * 2  #: b\n", values).plan(["a", "b"])
    lab.synchronize(), lab.clear()
    for _ in range(3):  # from the second run on x is out of the memory of b, where the first run made it
        plan.run()
    assert not lab.memory.hazards(), lab.memory.hazards()


def test_what_a_condition_may_not_bind_is_an_input(lab):
    values = variables(lab, flag=lambda values: False)
    plan = lab.program("if flag:\n    x = xp.zeros(4)\nx += 1  #: b\n", values).plan(["a", "b"])
    assert values["x"].get()[0] == 1.0, "to plan changes no input"
    assert plan.run()["x"].get()[0] == 2.0


CHANGED = {
    "shape": lambda values: values.update(x=values["x"][:4]),
    "dtype": lambda values: values.update(x=values["x"].astype("float32")),
    "value": lambda values: values.update(n=3),
    "shared memory": lambda values: values.update(y=values["x"]),
    "part of shared memory": lambda values: values.update(v=values["x"][1:9]),
    "attribute": lambda values: setattr(values["m"], "weights", values["x"][:1]),
}


@pytest.mark.parametrize("what", CHANGED)
def test_inputs_that_changed_run_in_order_and_are_planned_anew(lab, what):
    values = variables(lab, n=lambda values: 2, m=lambda values: Model(values["x"] * 2))
    values["v"] = values["x"][:8]
    plan = lab.program("u = x * n  #: b\nw = y + m.weights  #: a\nv += 1\n", values).plan(["a", "b"])
    assert not plan.fits()
    plan.run()
    assert plan.fits()
    values["m"] = Model(values["m"].weights)  # another object with the same in it
    assert plan.fits()
    CHANGED[what](values)
    assert not plan.fits()
    lab.synchronize(), lab.clear()
    plan.run()
    lab.synchronize()
    trace = lab.trace.where(kind=["range", "kernel", "copy"])
    assert {trace.lanes[code].name for code in trace.lane} == {"a"}
    assert plan.fits()


OUTSIDE = {
    "an uncopied object": (
        "u = x * next(f)\n",
        lambda values: (k for k in range(9)),
        "'f', a builtins.generator, cannot be copied",
    ),
    "a class": (
        "f.count += 1\nu = x * f.count\n",
        lambda values: type("Counter", (), {"count": 0}),
        "it changes class Counter",
    ),
    "a global of a function": ("u = x * f()\n", lambda values: tick, "it changes function tick"),
    "a file": ("f = open('/dev/null')\nf.close()\nu = x + 1\n", tuple, "line 1 calls open"),
}
ticks = [0]


def tick():
    ticks[0] += 1
    return ticks[0]


@pytest.mark.parametrize("what", OUTSIDE)
@pytest.mark.parametrize("method", ["check", "compare"])
def test_what_copies_would_share_is_not_run_on_copies(lab, method, what):
    text, make, why = OUTSIDE[what]
    values = variables(lab, f=make)
    plan = lab.program(text, values).plan(["a", "b"])
    plan.run(values)
    before = ticks[0], getattr(values["f"], "count", None)
    with pytest.raises(ProgramError, match=why):
        getattr(plan, method)()
    assert (ticks[0], getattr(values["f"], "count", None)) == before


@pytest.mark.parametrize("method", ["check", "compare", "capture"])
def test_what_needs_a_run_before_it_says_so(lab, method):
    plan = lab.program("u = x + 1", variables(lab)).plan()
    with pytest.raises(ProgramError, match=rf"not run yet, so plan\.{method}\(\).*plan\.run\(\)"):
        getattr(plan, method)()
    assert "not run yet" in repr(plan)
    assert plan.code == "with lab.on('plan-1', 'u = x + 1'):\n    u = x + 1\n"


@pytest.mark.parametrize("options", [{"hazards": "off"}, {"hazards": "wait"}, {"capture": "ranges"}])
def test_every_kind_of_session_plans_and_checks(options):
    with Session("sim", **options) as lab:
        lab.stream("a"), lab.stream("b")
        plan = planned(lab, "u = x * 2  #: b\nx += 1  #: a\nv = u + x  #: b\n")
        check = plan.check()
        assert check, check
        assert check.hazards.access_count > 0
        assert plan.run()["v"].get()[0] == 4.0
    if "capture" in options:
        assert "Kernels were not captured" in "".join(plan.notes)


def test_plans_of_several_threads_do_not_meet(lab):
    failures = []

    def work(stream):
        try:
            plan = lab.program("u = p * 2\nv = u + 1\n", {"p": lab.xp.ones(8), "lab": lab}).plan([stream])
            assert plan.run()["v"].get().tolist() == [3.0] * 8
        except Exception:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures, failures[0]


# What is refused, and what it says

REFUSED = {
    "y = await f()": (ProgramError, r"Line 1 of <program \d+> awaits.*Await in a cell of its own"),
    "u = 1\ny = yield x": (ProgramError, r"Line 2 .* yields.*list"),
    "if x:\n    return 3\n": (ProgramError, "Line 2 .* returns before the end.*function that it calls"),
    "global x\nx = 1": (ProgramError, "Line 1 .* declares a global name"),
    "from math import *": (ProgramError, "Line 1 .* imports .*from math import name"),
    "u = x + 1\nlab.stream('a').close()": (ProgramError, "Line 2 closes a stream"),
    "u = x + 1\nlab.close()": (ProgramError, "Line 2 closes a session"),
    "u = x + 1  #: nope": (StreamNotFoundError, r"Line 1 .* no stream 'nope'.*lab\.stream\('nope'\)"),
    "u = 1\nwith lab.on('nope'):\n    u = x + 1": (StreamNotFoundError, "Line 3 .* no stream 'nope'"),
    "p = lab.program('u = x')": (ProgramError, r"Line 1 calls program\(\) of a session within a program"),
    "p = lab.on('a')\nq = lab.on('b')\np.__enter__()\nq.__enter__()\np.__exit__(None, None, None)": (
        SelectionError,
        "Line 3 leaves another stream selected",
    ),
    "u = x + 1\np = lab.on('a')\np.__enter__()\nu += 1": (SelectionError, "Line 3 leaves another stream selected"),
    "": (ProgramError, "no statements"),
    "# nothing\n'''but this'''\n": (ProgramError, "no statements"),
    "u = nothing": (NameError, "nothing"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_planned_says_which_line_and_what_to_type(lab, text):
    error, message = REFUSED[text]
    values = variables(lab)
    with pytest.raises(error, match=message):
        lab.program(text, values).plan(["a", "b"] if "nope" not in text else 2).run()
    assert lab.current is None
    assert values["x"].get()[0] == 1.0


def test_syntax_errors_have_their_line(lab):
    with pytest.raises(SyntaxError) as caught:
        lab.program("u = 1\nv = = 2\n", variables(lab))
    assert caught.value.lineno == 2


@pytest.mark.parametrize("call", ["exec('x += 1')", "u = eval('x * 2')"])
def test_what_runs_text_is_a_barrier(lab, call):
    plan = planned(lab, f"{call}\nv = x * 2  #: b\n")
    assert "runs what is not known before" in barriers_of(plan)[0]
    assert "Line 1 is ordered before and after everything" in "".join(plan.notes)
    assert plan.check()


def test_functions_that_call_themselves_are_followed(lab):
    text = "def f(n, v):\n    return v if not n else f(n - 1, v * 2)\nu = f(3, x)  #: b\nx += 1  #: a\n"
    plan = planned(lab, text)
    assert not barriers_of(plan)
    assert plan.run()["u"].get()[0] == 8.0


def test_an_array_that_two_statements_write_is_written_in_order(lab):
    plan = planned(lab, "x += 1  #: a\nx *= 3  #: b\nx -= 1  #: c\n", ["a", "b", "c"])
    assert [one.waits_for for one in plan.statements] == [(), (0,), (1,)]
    assert plan.run()["x"].get()[0] == 5.0


@pytest.mark.parametrize("broken", ["w = u.nothing", "def f(v):\n    return v.nothing\nw = f(u)"])
def test_an_error_of_a_statement_keeps_its_line_and_source_and_the_timeline_so_far(lab, broken):
    values = variables(lab, flag=lambda values: [])
    text = f"u = x + 1  #: b\nif flag:\n    {broken.splitlines()[-1]}\nv = u * 2  #: a\n"
    text = "\n".join([*broken.splitlines()[:-1], text])
    plan = lab.program(text, values).plan(["a", "b"])
    values["flag"].append(1)
    lab.synchronize(), lab.clear()
    with pytest.raises(AttributeError, match="nothing") as caught:
        plan.run()
    shown = "".join(traceback.format_exception(caught.value))
    assert ".nothing" in shown
    assert "<program " in shown
    assert lab.current is None
    lab.synchronize()
    assert "u = x + 1" in lab.trace.names
    assert not plan.has_run
    values["flag"].clear()
    plan.run(), plan.run()
    values["flag"].append(1)
    with pytest.raises(AttributeError, match="nothing") as caught:
        plan._program.execute(plan._code, values)  # past the look at the inputs
    assert ".nothing" in "".join(traceback.format_exception(caught.value))
    assert lab.current is None


def test_a_function_is_a_program_with_its_own_lines(lab):
    def program(x, y):
        u = x * 2  #: a
        v = y + 1  #: b
        return u + v

    plan = lab.program(program, variables(lab)).plan(["a", "b"])
    assert plan.run()["result"].get()[0] == 5.0
    first = program.__code__.co_firstlineno
    assert [one.line for one in plan.statements] == [first + 1, first + 2, first + 3]
    with pytest.raises(ProgramError, match=r"needs 'x', 'y'.*namespace"):
        lab.program(program, {"lab": lab})


async def coroutine():
    pass


def several(*values):
    return values


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (coroutine, "coroutine"),
        (several, r"\* or \*\*"),
        (3, "takes a function"),
        (dict, "takes a function"),
        (lambda: 3, "def"),
    ],
)
def test_what_is_no_program_says_so(lab, program, message):
    with pytest.raises(ProgramError, match=message):
        lab.program(program, variables(lab))


ELSEWHERE = """
import functools
def decorated(f):
    @functools.wraps(f)
    def inner(*values):
        return f(*values)
    return inner
@decorated
def look(v):
    return v + x
class M:
    def step(self, v):
        return v + x
m = M()
"""


@pytest.mark.parametrize("call", ["look(y)", "m.step(y)"])
def test_variables_that_methods_and_decorated_functions_look_up_are_followed(lab, call, monkeypatch):
    values = variables(lab)
    monkeypatch.setitem(linecache.cache, "<cell>", (len(ELSEWHERE), None, ELSEWHERE.splitlines(keepends=True), "<cell>"))
    exec(compile(ELSEWHERE, "<cell>", "exec"), values)
    plan = lab.program(f"x += 1  #: a\nu = {call}  #: b\nx *= 2  #: a\n", values).plan(["a", "b"])
    plan.run()
    assert not barriers_of(plan)
    lab.synchronize(), lab.clear()
    plan.run()
    assert not lab.memory.hazards(), lab.memory.hazards()
    lab.synchronize()
    assert values["u"].get()[0] == 7.0


# What a trial by fresh eyes found


def test_to_plan_runs_nothing_and_the_first_run_is_in_order(lab):
    names = {"lab": lab, "k": lab.xp.ones((1024, 1024), "float32")}
    lab.synchronize(), lab.clear()
    plan = lab.program("a = k @ k\nb = k @ k", names).plan()
    assert names_of(lab.trace) == ["cudaStreamCreateWithPriority"] * 2  # the streams that it takes
    for most in (1, 2):
        plan.run()
        lab.synchronize()
        assert lab.trace.overlap().max_concurrency == most
        assert {"a = k @ k", "b = k @ k"} <= {*lab.trace.names}
        lab.clear()


def test_checks_draw_no_random_numbers(lab):
    def drawn(values):
        exec("u = xp.random.standard_normal((2,))\nv = random.random()\nw = np.random.rand()\nz = r.random(2)", values)
        return values["u"].get().tolist(), values["v"], values["w"], values["z"].get().tolist()

    def values():
        lab.xp.random.seed(0), random.seed(1)
        np.random.seed(1)  # noqa: NPY002 - the global one is what is tested
        return {"xp": lab.xp, "random": random, "np": np, "lab": lab, "r": lab.xp.random.default_rng(2)}

    names = values()
    expected = drawn(names), drawn(names)
    names = values()
    text = "u = xp.random.standard_normal((2,))\nv = random.random()\nw = np.random.rand()\nz = r.random(2)"
    plan = lab.program(text, names).plan()
    for one in expected:
        plan.run()
        assert plan.check(), "each run begins with the same numbers"
        assert (names["u"].get().tolist(), names["v"], names["w"], names["z"].get().tolist()) == one


def test_variables_of_the_caller_are_looked_up_when_it_runs(lab):
    made = types.ModuleType("made")
    made.lab, made.xp = lab, lab.xp
    code = "x = xp.ones((4, 4))\nplan = lab.program('acc = x.sum()').plan()\nx = xp.zeros((4, 4))\nresult = plan.run()"
    exec(code, vars(made))
    assert list(made.result) == ["acc"]
    assert float(made.result["acc"]) == 0
    assert not hasattr(made, "acc")
    exec("x = xp.ones((2, 2))\nfits = plan.fits()", vars(made))
    assert not made.fits


def test_a_namespace_that_is_given_gets_results_and_nothing_else(lab):
    names = {"lab": lab, "x": lab.xp.ones(4)}
    assert lab.program("y = x + 1", names).plan().run() is names
    assert set(names) == {"lab", "x", "y"}


def test_a_synchronisation_at_the_end_takes_no_overlap_away(lab):
    names = {"lab": lab, "f": lambda p: (spin(lab, 400_000), p * 2)[1], "spin": spin}
    names |= {name: lab.xp.ones((256, 256)) for name in "xy"}
    lab.synchronize()
    plan = lab.program("a = f(x)\nb = f(y)\nc = a + b\nlab.synchronize()", names).plan()
    plan.run()
    assert len(plan.streams) == 2
    assert plan.predicted_speedup > 1.8


def test_streams_that_cost_the_host_more_than_they_gain_are_not_planned(lab):
    names = {"lab": lab} | {name: lab.xp.ones((512, 512), "float32") for name in "xy"}
    lab.synchronize()
    plan = lab.program("a = x.sum(axis=0)\nb = y.sum(axis=0)\nc = a + b", names).plan()
    plan.run()
    assert len(plan.streams) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("outs = []\nfor p in (x, y):\n    outs.append(f(p))", "line 2 .* is a loop"),
        ("a = x @ x\nh = a.get()\nb = y @ y\nk = b.get()", "waits for the device in line 2"),
    ],
)
def test_a_plan_of_one_stream_says_what_to_write_instead(lab, text, reason):
    names = {"lab": lab, "f": lambda p: (spin(lab, 400_000), p * 2)[1], "spin": spin}
    names |= {name: lab.xp.ones((1024, 1024), "float32") for name in "xy"}
    lab.synchronize()
    plan = lab.program(text, names).plan()
    plan.run()
    assert re.search(reason, repr(plan))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = x + 1\nb = x + 2\nloss = float(a.sum())\nc = x + 3", 3),
        ("a = lab.xp.asarray(host)\nb = a + 1\nc = a + 2", 1),
        ("a = x + 1\nb = x + 2\nc = b.get()", 3),
        ("a = x + 1\nlab.synchronize()\nb = a + 1\nc = a + 2\nd = a + 3", 2),
        ("a = x + 1\nb = a + 1", None),
    ],
)
def test_a_graph_is_advised_only_where_it_can_be_captured(lab, text, line):
    values = {"lab": lab, "x": lab.xp.ones((16, 16)), "host": np.ones((16, 16))}
    plan = lab.program(text, values).plan()
    plan.run()
    shown = repr(plan)
    assert "the host is the limit" in shown
    assert ("plan.capture() launches all with one call" in shown) == (line is None)
    if line is None:
        plan.capture().close()
        return
    assert f"for line {line}, where the host waits" in shown
    with pytest.raises(ProgramError, match=f"line {line}"):
        plan.capture()


# What runs on copies print is kept back

LOUD = "print('out')\nprint('err', file=sys.stderr)\nwarn()\nb = x + 1\n"


@pytest.fixture
def values(lab):
    return {"lab": lab, "x": lab.xp.ones((16, 16)), "sys": sys, "warn": warn}


def warn():
    warnings.warn("warned", stacklevel=1)


@pytest.mark.filterwarnings("default::UserWarning")
def test_runs_on_copies_print_nothing_and_a_run_prints_once(lab, values, capsys):
    plan = lab.program(LOUD, values).plan()
    for _ in range(2):  # in order, and as planned
        with pytest.warns(UserWarning, match="warned"):
            plan.run()
        out, err = capsys.readouterr()
        assert (out, err.count("err")) == ("out\n", 1)
    assert plan.check()
    plan.compare(repeats=2)
    assert tuple(capsys.readouterr()) == ("", "")


class _Uncopyable:
    def __deepcopy__(self, memo):
        raise AssertionError("all of another file would be copied")


def test_a_statement_is_copied_without_what_other_tools_have_put_onto_its_nodes(monkeypatch):
    node = ast.parse("\n\ny = f(x, *rest, key=[g(1)])").body[0]
    monkeypatch.setattr(node.value.args[0].ctx, "parent", _Uncopyable(), raising=False)  # one `Load()` for all code
    made = instrumented(node)
    assert ast.unparse(node) == "y = f(x, *rest, key=[g(1)])"
    assert ast.unparse(made) == f"y = {CALL}(f)(x, *rest, key=[{CALL}(g)(1)])"
    assert {one.lineno for one in ast.walk(made) if hasattr(one, "lineno")} == {3}
