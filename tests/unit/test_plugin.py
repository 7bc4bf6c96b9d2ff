"""The pytest plugin, as a project uses it: pytest in pytest, on the simulated device."""

from __future__ import annotations

import json
import subprocess
import sys

pytest_plugins = ["pytester"]

OVERLAPS = """
from gpustreamlab.workloads import spin

def run(lab, wait=False):
    for name in ("copy", "compute"):
        lab.stream(name)
        spin(lab, 1_000_000, stream=name)
        if wait:
            lab.synchronize()
"""
RUN = ("-p", "no:cacheprovider", "--gpulab-backend", "sim")


def test_a_failing_expectation_explains_itself_and_keeps_trace_and_timeline(pytester):
    pytester.makepyfile(
        f"""
        {OVERLAPS.replace(chr(10), chr(10) + " " * 8)}
        def test_overlaps(gpulab):
            with gpulab.expect.overlap("copy", "compute", at_least=0.6):
                run(gpulab)

        def test_waits(gpulab):
            with gpulab.expect.overlap("copy", "compute", at_least=0.6):
                run(gpulab, wait=True)
        """
    )
    done = pytester.runpytest_subprocess(*RUN, "--gpulab-trace", "kept")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["*copy and compute overlapped for 0 ns*", "*HOST_SYNC_DEVICE*"])
    kept = sorted(path.name.split("::")[-1] for path in (pytester.path / "kept").iterdir())
    assert [name.rsplit("-", 1)[-1] for name in kept] == ["test_waits.html", "test_waits.parquet"]


def test_a_baseline_is_written_compared_by_ratio_and_missed(pytester, monkeypatch):
    pytester.makepyfile(
        f"""
        import os
        {OVERLAPS.replace(chr(10), chr(10) + " " * 8)}
        def test_speed(gpulab, gpulab_baseline):
            run(gpulab, wait="SLOW" in os.environ)
            gpulab_baseline(noise=0.2)
        """
    )
    missing = pytester.runpytest_subprocess(*RUN)
    missing.assert_outcomes(failed=1)
    missing.stdout.fnmatch_lines(["*Write it with: pytest --gpulab-update-baseline*"])
    pytester.runpytest_subprocess(*RUN, "--gpulab-update-baseline").assert_outcomes(passed=1)
    ((key, wall_ns),) = json.loads((pytester.path / "gpulab-baseline.json").read_text()).items()
    assert key.endswith("test_speed on H200 (simulated)")
    assert 1_000_000 <= wall_ns < 1_100_000
    pytester.runpytest_subprocess(*RUN).assert_outcomes(passed=1)
    monkeypatch.setenv("SLOW", "1")
    slow = pytester.runpytest_subprocess(*RUN)
    slow.assert_outcomes(failed=1)
    slow.stdout.fnmatch_lines(["*expected were 0.83 times or more*"])


def test_a_start_of_pytest_loads_next_to_nothing():
    code = "import sys, gpustreamlab.testing.plugin; print([name for name in ('numpy', 'bokeh') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
