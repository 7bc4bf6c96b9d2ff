"""The h200 preset against the H200 that was measured, and the document that says how far it is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.simulator import MEASURED, calibration_table, card_filling_kernels, memory_bound_kernels, model_row, tiny_kernels
from gpustreamlab.backends.sim._scheduler import interpolate

DOCUMENT = Path(__file__).parents[3] / "docs" / "explanations" / "simulated-device.md"


@pytest.mark.parametrize("sm_count", MEASURED)
def test_every_row_is_within_ten_percent(sm_count):
    measured_ms, measured_gb_per_s = MEASURED[sm_count]
    ms, gb_per_s = model_row(sm_count)
    assert ms == pytest.approx(measured_ms, rel=0.1)
    if measured_gb_per_s is not None:
        assert gb_per_s == pytest.approx(measured_gb_per_s, rel=0.1)


def test_the_document_shows_the_table_as_it_is():
    assert calibration_table() in DOCUMENT.read_text(encoding="utf-8"), (
        "Run `python -m bench.simulator` and put its table into docs/explanations/simulated-device.md."
    )


@pytest.mark.parametrize(("at", "factor"), [(8, 1.0), (48, 1.0), (56, 0.9), (64, 0.8), (500, 0.8)])
def test_calibration_is_straight_between_points_and_flat_outside(at, factor):
    assert interpolate(((48, 1.0), (64, 0.8)), at) == pytest.approx(factor)


@pytest.mark.parametrize("work", [tiny_kernels, card_filling_kernels, memory_bound_kernels])
def test_the_benchmarks_run(work):
    assert work(200) == 200
