"""Files of torch.profiler, recorded here, beside what we record of the same program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpustreamlab as gsl
from tests.helpers.same_run import FILES, check


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Record in a process of its own: CUPTI serves one at a time. GPUSTREAMLAB_FIXTURES names a folder that keeps the files."""
    folder = tmp_path_factory.mktemp("exchange")
    code = f"from pathlib import Path; from tests.helpers.same_run import record; record(Path({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    if kept := os.environ.get("GPUSTREAMLAB_FIXTURES"):
        for name in FILES:
            shutil.copy(folder / name, Path(kept) / name)
    return [gsl.load_trace(folder / name) for name in FILES]


def test_a_profile_of_torch_agrees_with_what_we_record(recorded):
    check(*recorded)
