"""Programs of CuPy and torch that know nothing of sessions: what is found in them, predicted and measured, on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.tuning._measure import interval
from tests.helpers.real_programs import REAL

GAINS = {"cupy_image_pipeline": 1.5, "torch_inference": 1.5}
"""Programs whose copies block for a large part of their time, with how many times as fast they have to be at least. Seen were
2.5 and 3.5, and 2.2 to 2.8."""
SECONDS = 25


def on_host(value: Any) -> list[np.ndarray]:
    """Return what a program gives as arrays of the host."""
    if isinstance(value, list):
        return [part for one in value for part in on_host(one)]
    return [np.asarray(value)]


@pytest.mark.parametrize("name", REAL)
def test_a_program_of_a_library_gives_the_same_and_is_not_slower(name):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    with gsl.Session("cuda") as lab:
        found = lab.improve(REAL[name], seconds=SECONDS)
    print(f"\n== {name} ==\n{found}", flush=True)

    scope: dict[str, Any] = {}
    exec(found.source.replace("@real\n", ""), scope)
    before, after = on_host(REAL[name]()()), on_host(scope[name]()())
    assert len(before) == len(after)
    assert all(one.dtype == other.dtype and one.tobytes() == other.tobytes() for one, other in zip(before, after, strict=True))
    gains_ns = np.subtract(found.before_ns, found.after_ns)
    assert interval(gains_ns)[1] >= 0, str(found)
    assert found.speedup >= GAINS.get(name, 0.98), str(found)
    assert all(one.interval_ns[0] > 0 for one in found.kept)
