"""What a plan advises."""

from __future__ import annotations

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import ProgramError


@pytest.fixture
def lab():
    with Session("sim") as session:
        yield session


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
