"""What a program could gain is always told: as kept, as tried and not kept, or as advice with why no machine made it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin
from tests.helpers.improve_programs import KEPT, MENDED
from tests.helpers.improve_random import function_of, names_for
from tests.helpers.improve_random import random_program as random_loop
from tests.helpers.long_runs import count

WORTH = 0.02
SIDE = 384

LOADS = {
    "asarray": "x = lab.xp.asarray(h)",
    "set": "x = frame\nx.set(h)",
    "pinned": "x = frame\nx.set(pinned)",
}
WORK = {
    "product": "y = x @ x",
    "small kernels": "y = x\nfor _ in range(12):\n    y = y * 2",
    "two chains": "y = x @ x\nz = k @ k\ny = y @ x\nz = z @ k\ny = y + z",
    "two streams": "with lab.on('a'):\n    u = k @ k\nlab.synchronize()\nwith lab.on('b'):\n    y = x @ u",
    "spins": "for _ in range(4):\n    spin(lab, 80_000, blocks=8, stream='a')\nb.wait(a)\n"
    "for _ in range(4):\n    spin(lab, 80_000, blocks=8, stream='b')\ny = x",
}
READS = {
    "sum": "total = float(y.sum())",
    "get": "out = y.get()",
    "out": "y.get(out=pinned)",
    "decides": "if float(y.sum()) > 0:\n    y = y @ x",
    "printed": "print(y.get().shape, float(y.max()))",
}


def indented(text, by=4):
    return "\n".join(" " * by + line for line in text.splitlines())


def texts():
    """Yield programs by what they do: as text, and as a loop of a function that prepares."""
    for load, work, read in itertools.product(LOADS, WORK, READS):
        body = "\n".join((LOADS[load], WORK[work], READS[read]))
        yield f"{load}, {work}, {read}", body
        yield f"{load}, {work}, {read}, in a loop", f"for n in range(3):\n{indented(body)}"


ALL = dict(texts())
FEW = [name for place, name in enumerate(ALL) if place % 13 == 0]
"""Each of the loads, works and reads is among them."""


def values_of(lab):
    pinned = lab.memory.pinned_empty((SIDE, SIDE), "f4")
    pinned[...] = 1
    a, b = lab.stream("a"), lab.stream("b")
    frame, k = lab.xp.zeros((SIDE, SIDE), "f4"), lab.xp.ones((SIDE, SIDE), "f4")
    h = np.ones((SIDE, SIDE), "f4")
    return {"lab": lab, "h": h, "pinned": pinned, "a": a, "b": b, "frame": frame, "k": k, "spin": spin, "np": np}


def untold(found):
    """Return the codes of findings of the program as it was that are nowhere in the result; and assert that each has words."""
    told = {code for one in (*found.kept, *found.left) for code in one.mends} | {one.finding.code for one in found.advice}
    worth_ns = WORTH * found.before_ns[0]
    wanted = {one.code for one in found.before.explain().findings if one.saves_ns >= worth_ns}
    text = " ".join(str(found).split())
    assert all(code in text for code in wanted & told), f"{wanted & told} are not in: {text}"
    assert all(one.why and " " in one.why for one in (*found.left, *found.advice))
    assert all(one.finding.saves_ns > 0 for one in found.advice)
    return wanted - told


@pytest.mark.parametrize("name", ALL if count(0, 1) else FEW)
def test_each_finding_of_a_small_program_is_told(name):
    with gsl.Session("sim") as lab:
        found = lab.improve(ALL[name], seconds=60, namespace=values_of(lab))
        assert not untold(found), str(found)


@pytest.mark.parametrize("name", ["three_loops", "losses_of_each_step", *KEPT] if count(0, 1) else ["losses_of_each_step"])
def test_each_finding_of_a_program_that_prepares_is_told(lab, name):
    program, arguments = (MENDED[name], ("bad",)) if name in MENDED else (KEPT[name][0], ())
    assert not untold(lab.improve(program, lab, *arguments, seconds=120))


@pytest.mark.parametrize("seed", range(count(1, 40)))
def test_each_finding_of_a_random_loop_is_told(lab, seed):
    program = function_of(random_loop(seed).text, names_for(lab, 160))
    assert not untold(lab.improve(program, lab, seconds=120))


def test_one_copy_and_one_value_are_left_with_the_reason(lab):
    found = lab.improve("x = lab.xp.asarray(h); y = x @ x; float(y.sum())", namespace=values_of(lab))

    assert not found.kept
    assert [one.finding.code for one in found.advice] == [Cause.PAGEABLE_COPY]
    assert "in x = lab.xp.asarray(h): page-locked memory has to be made before what is measured" in found.advice[0].why


def test_what_the_host_uses_is_named_with_its_line(lab):
    text = (
        "for n in range(4):\n    with lab.on('a'):\n        y = k @ k\n        total = float(y.sum())\n"
        "    if total > n:\n        print(n)"
    )
    found = lab.improve(text, namespace=values_of(lab))
    why = {one.finding.code: one.why for one in found.advice}

    assert "in line 4, total = float(y.sum()): it reads a value that is used at once" in why[Cause.HOST_SYNC_STREAM]


def test_where_the_time_is_over_that_is_the_reason(lab):
    found = lab.improve(MENDED["three_loops"], lab, "bad", seconds=0)
    assert {one.why for one in found.advice} == {"its 0 s were over before it was tried"}
    assert not untold(found)
