"""Programs of torch: what its operators read and write decides which statements may overlap."""

from __future__ import annotations

import ast
import itertools
from dataclasses import replace
from typing import Any

import pytest

from gpustreamlab import Session
from gpustreamlab.programs import Plan
from gpustreamlab.workloads import spin

CAPTURE = "auto"
torch = pytest.importorskip("torch")


def planned(lab: Session, text: str, streams: int = 2, **names: Any) -> Plan:
    """Return the plan of statements of torch, as a graph would run them: the host's time is left out."""
    torch.cuda.synchronize()
    plan = lab.program(text, {"lab": lab, "torch": torch, **names}).plan(streams)
    plan.run(dict(plan._program.values))
    lab.synchronize()
    return plan


def behind(plan: Plan) -> list[set[int]]:
    """Return for each statement those that it is behind, directly or by others."""
    found: list[set[int]] = []
    for one in plan.statements:
        found.append(set(one.behind).union(*(found[place] for place in one.behind)))
    return found


def square(size: int = 256) -> Any:
    return torch.randn(size, size, device="cuda")


def test_two_branches_of_a_model_depend_on_their_input_alone(lab: Session) -> None:
    left, right = (torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda().eval() for _ in range(2))
    text = "with torch.no_grad():\n    a = left(x)\nwith torch.no_grad():\n    b = right(x)\nc = a + b\ns = c.sum().item()"
    plan = planned(lab, text, left=left, right=right, x=square())
    assert behind(plan) == [set(), set(), {0, 1}, {0, 1, 2}]
    assert not any(one.barrier for one in plan.statements)
    check = plan.check()
    assert check, check


def test_a_view_is_of_the_memory_of_its_tensor(lab: Session) -> None:
    plan = planned(lab, "v = x[:128]\nw = x[128:]\nv.mul_(2)\nw.mul_(3)\ny = x + 1\nx.zero_()", x=square())
    found = behind(plan)
    assert found[3] == set(), "the halves share no byte"
    assert found[4] >= {2, 3}
    assert 4 in found[5]
    assert plan.check()


def test_what_is_changed_in_place_is_read_behind_it(lab: Session) -> None:
    text = "a.copy_(x)\na.add_(1)\nb = a * 2\ntorch.mm(x, x, out=a)\nc = b + a\ntorch._foreach_mul_([a, b], 2.0)\nd = a - b"
    plan = planned(lab, text, a=square(), x=square())
    found = behind(plan)
    assert [place in found[place + 1] for place in range(6)] == [True] * 6
    assert plan.check()


def test_memory_that_two_libraries_share_is_one_piece(lab: Session) -> None:
    text = "t.mul_(2)\ny = x + 1\nx *= 3\nu = t + 1"
    x = lab.xp.ones((64, 64), dtype="f4")
    lab.synchronize()
    plan = planned(lab, text, x=x, t=torch.from_dlpack(x), xp=lab.xp)
    found = behind(plan)
    assert 0 in found[1]
    assert 2 in found[3]


def test_autograd_is_a_barrier(lab: Session) -> None:
    text = "a = x * 2\nloss = (w * x).sum()\nloss.backward()\nb = x * 3"
    plan = planned(lab, text, x=square(), w=square().requires_grad_())
    assert [bool(one.barrier) for one in plan.statements] == [False, False, True, False]
    assert behind(plan)[3] >= {2}


def test_side_streams_of_torch_are_a_barrier(lab: Session) -> None:
    text = "a = x * 2\nside.wait_stream(torch.cuda.current_stream())\nwith torch.cuda.stream(side):\n    b = a + 1\n"
    text += "torch.cuda.current_stream().wait_stream(side)\nc = b * 2"
    plan = planned(lab, text, x=square(), side=torch.cuda.Stream())
    assert [bool(one.barrier) for one in plan.statements] == [False, True, True, True, False]
    assert plan.check()


@pytest.mark.filterwarnings("ignore")  # of torch's own modules
def test_a_compiled_function_is_a_statement(lab: Session) -> None:
    def product(x: Any, y: Any) -> Any:
        return torch.relu(x @ y).sum(0)

    function = torch.compile(product)
    x, y = square(), square()
    function(x, y)
    plan = planned(lab, "a = function(x, y)\nb = function(y, x)\nc = a + b", function=function, x=x, y=y)
    assert behind(plan) == [set(), set(), {0, 1}]
    assert plan.check()


def test_branches_that_leave_room_overlap(lab: Session) -> None:
    """Long matrix products of few blocks: the plan gives each chain a stream, and they run at once."""
    names = {"a": square(1024), "b": square(1024)}
    chain = itertools.chain.from_iterable(("x = spin_a(x)", "y = spin_b(y)") for _ in range(3))

    def spinning(tensor: Any) -> Any:
        spin(lab, 300_000)
        return tensor * 2

    plan = planned(lab, "\n".join([*chain, "z = x + y"]), x=names["a"], y=names["b"], spin_a=spinning, spin_b=spinning)
    assert len(plan.streams) == 2
    comparison = plan.compare(5)
    assert comparison.speedup > 1.2, comparison
    assert plan.check()


def test_a_wait_that_is_left_out_is_found_among_tensors(lab: Session) -> None:
    """The detector follows torch while a plan is checked; here a plan whose only wait is taken out."""
    lab.stream("left"), lab.stream("right")
    plan = planned(lab, "a = x * 2  #: left\nb = a + 1  #: right", x=square(), streams=2)
    assert plan.check()
    code = plan._code
    tree = type(code.tree)([one for one in code.tree.body if "wait" not in ast.unparse(one)], [])
    assert len(tree.body) < len(code.tree.body)
    plan._code = replace(code, tree=tree, blocks=frozenset(range(len(tree.body))), compiled={})
    assert plan.check().hazards.hazard_count > 0
