"""Programs as CUDA graphs: captured with their streams, launched with one call, told of by statement."""

from __future__ import annotations

from typing import Any

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import ProgramError
from gpustreamlab.programs import Plan

CAPTURE = "auto"
CHAINS = """
a = x * w
a = xp.tanh(a + w)
a = xp.tanh(a - w)
b = y * w
b = xp.tanh(b + w)
b = xp.tanh(b - w)
c = (a + b) * alpha
"""


def inputs(lab: Session, size: int = 256) -> dict[str, object]:
    xp = lab.xp
    made = {name: xp.random.rand(size, size).astype("f4") / size for name in ("x", "y", "w")}
    xp.cuda.Device().synchronize()
    return {"lab": lab, "xp": xp, "alpha": 2.0, **made}


def planned(lab: Session, text: str, names: dict[str, Any], streams: int = 2) -> Plan:
    """Return a plan that has run once; its inputs are not changed by it here."""
    plan = lab.program(text, names).plan(streams=streams)
    plan.run(dict(names))
    lab.synchronize()
    return plan


def test_a_replay_gives_what_the_program_gives(lab: Session) -> None:
    names = inputs(lab)
    xp = lab.xp
    plan = planned(lab, CHAINS, names)
    with plan.capture() as replay:
        assert len({line for line in replay.code.splitlines() if line.startswith("with")}) == 2, "two chains, two streams"
        results = replay.launch()
        lab.synchronize()
        expected = plan.run(dict(names))
        lab.synchronize()
        assert xp.array_equal(results["c"], expected["c"])
        names["x"] *= 3  # in place: the graph reads it where it is
        lab.synchronize()
        xp.cuda.Device().synchronize()
        results = replay.launch()
        lab.synchronize()
        expected = plan.run(dict(names))
        lab.synchronize()
        assert xp.array_equal(results["c"], expected["c"])


def test_kernels_of_a_replay_are_told_of_by_statement(lab: Session) -> None:
    plan = planned(lab, CHAINS, inputs(lab))
    with plan.capture() as replay:
        replay.launch()
        lab.synchronize()
        lab.clear()
        replay.launch()
        lab.synchronize()
        trace = lab.trace
        named = [trace.names[code] for code in trace.name]
        for line in ("a = x * w", "b = xp.tanh(b + w)", "c = (a + b) * alpha"):
            assert line in named
        parents = {trace.names[trace.name[row]] for row in trace.parent.tolist() if row >= 0}
        assert "a = x * w" in parents, "its kernels are below it"


def test_a_replay_takes_the_host_less_than_half_of_the_time(lab: Session) -> None:
    """A quarter or less is usual; how much less depends on the host, and is measured by `bench.programs`."""
    text = "\n".join(f"h{chain} = xp.tanh(h{chain} * 2)" for _ in range(10) for chain in range(4))
    xp = lab.xp
    names = {"lab": lab, "xp": xp, **{f"h{chain}": xp.ones((64, 64), dtype="f4") for chain in range(4)}}
    xp.cuda.Device().synchronize()
    comparison = planned(lab, text, names, 4).compare(9)
    by_name = {run.how: run for run in comparison.runs}
    assert by_name["replayed"].host_ns * 2 < by_name["one stream"].host_ns, comparison


def test_a_value_read_on_the_host_is_named_with_its_line(lab: Session) -> None:
    plan = planned(lab, "z = x + y\ns = float(z.sum())", inputs(lab))
    with pytest.raises(ProgramError, match="line 2"):
        plan.capture()
    assert float(plan.run()["s"]) > 0, "the streams work on"


def test_memory_of_a_replay_is_its_own(lab: Session) -> None:
    """Temporaries of a graph go to nobody else while it can be launched."""
    names = inputs(lab)
    plan = planned(lab, "t = (x + y) * 2\nz = (t * 3) + w", names)
    xp = lab.xp
    with plan.capture() as replay:
        replay.launch()
        lab.synchronize()
        first = replay.results["z"].copy()
        others = [xp.full((256, 256), 7.0, dtype="f4") for _ in range(50)]
        xp.cuda.Device().synchronize()
        for _ in range(10):
            replay.launch()
        lab.synchronize()
        assert all(bool((one == 7).all()) for one in others)
        assert xp.array_equal(replay.results["z"], first)


@pytest.mark.parametrize("statement", ["z = x @ w", "z = xp.fft.fft(x)", "z = xp.asarray(host)"])
def test_what_cupy_refuses_to_capture_is_named_with_its_line(lab: Session, statement: str) -> None:
    """CuPy 14 calls no cuBLAS and copies nothing from the host while a stream captures; newer ones may."""
    names = inputs(lab) | {"host": lab.memory.pinned_empty((16,), "f4")}
    plan = planned(lab, f"y = x + 1\n{statement}", names)
    try:
        plan.capture().close()
    except ProgramError as error:
        assert "line 2" in str(error)  # noqa: PT017 - newer versions may not refuse
    plan.run()
    lab.synchronize()


def test_matrix_products_of_torch_are_replayed(lab: Session) -> None:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        tensors = {name: torch.randn(256, 256, device="cuda") for name in ("x", "y", "w")}
        torch.cuda.synchronize()
        text = "a = torch.tanh(x @ w) @ w\nb = torch.tanh(y @ w) @ w\nc = a + b"
        plan = planned(lab, text, {"lab": lab, "torch": torch, **tensors})
        expected = plan.run()["c"]
        lab.synchronize()
        with plan.capture() as replay:
            for _ in range(3):
                results = replay.launch()
                lab.synchronize()
                assert torch.equal(results["c"], expected)
            tensors["x"].mul_(2)
            torch.cuda.synchronize()
            results = replay.launch()
            lab.synchronize()
            again = (
                torch.tanh(tensors["x"] @ tensors["w"]) @ tensors["w"] + torch.tanh(tensors["y"] @ tensors["w"]) @ tensors["w"]
            )
            torch.cuda.synchronize()
            assert torch.allclose(results["c"], again, rtol=1e-4, atol=1e-4)
