"""A program of torch on an H100, recorded by torch.profiler and by us: tests/gpu/test_exchange_cuda.py made the files."""

from __future__ import annotations

from pathlib import Path

import gpustreamlab as gsl
from gpustreamlab.workloads import sample_profile
from tests.helpers.same_run import FILES, check

FOLDER = Path(__file__).parents[2] / "golden" / "exchange"


def test_a_profile_of_torch_agrees_with_what_we_recorded():
    check(*(gsl.load_trace(path) for path in (sample_profile(), *(FOLDER / name for name in FILES[1:]))))
