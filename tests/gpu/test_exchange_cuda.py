"""Files of torch.profiler, recorded here, beside what we record of the same program."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpustreamlab as gsl
from tests.helpers.same_run import FILES, TURNS, beside, work_by_lane


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


def test_both_have_the_same_work_in_the_same_streams(recorded):
    profile, _, kernels = recorded
    assert work_by_lane(profile) == work_by_lane(kernels)
    assert len({lane.context for lane in profile.lanes if lane.kind == "stream"}) >= 3, "two partitions and the whole card"
    assert {detail.graph for detail in profile.details} - {0}


@pytest.mark.parametrize("label", ["product", "scale", "upload"])
def test_times_agree_within_the_stated_errors(recorded, label):
    profile, ranges, _ = recorded
    late_ns, longer_ns = beside(profile, ranges, label)
    meta = ranges.metadata
    bound_ns = meta.range_error_ns + meta.clock_error_ns + profile.metadata.clock_error_ns
    assert len(late_ns) == TURNS
    print(label, "work later than its range by", late_ns, "shorter by", longer_ns, "stated", bound_ns, meta.host_error_ns)
    assert np.median(np.abs(longer_ns)) <= bound_ns + 1_000, "as far as a range without waiting is its work"
    assert np.abs(np.array(late_ns) - np.median(late_ns)).max() <= bound_ns + 2_000, "one clock beside the other"
    # Wall clocks are slewed: 290 us lay between both some seconds after the session's start on one machine, and stayed there.
    assert abs(np.median(late_ns)) <= 2_000_000, "both count from 1970"
