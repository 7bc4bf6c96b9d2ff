"""The pytest plugin, as a project uses it: pytest in pytest, on the simulated device."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from gpustreamlab import Session, load_trace
from gpustreamlab.analysis import _advice
from gpustreamlab.errors import ExpectationError, OptionError, StreamNotFoundError
from gpustreamlab.testing import plugin
from gpustreamlab.workloads import spin

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
RUN = ("-p", "no:cacheprovider", "-W", "default", "--gpulab-backend", "sim")


@pytest.fixture(autouse=True)
def modules_stay(monkeypatch):
    """Let pytest in pytest leave what it has imported: a second copy of the package would fail later tests."""
    monkeypatch.setattr("_pytest.pytester.SysModulesSnapshot", lambda preserve: SimpleNamespace(restore=lambda: None))


def test_a_failing_test_explains_itself_and_keeps_trace_and_timeline_of_its_own_also_where_it_closed_its_session(pytester):
    pytester.makepyfile(
        f"""
        import pytest
        {OVERLAPS.replace(chr(10), chr(10) + " " * 8)}
        def test_overlaps(gpulab):
            with gpulab.expect.overlap("copy", "compute", at_least=0.6):
                run(gpulab)

        @pytest.mark.parametrize("name", ["a/b", "a-b"])
        def test_waits(gpulab, name):
            with gpulab.expect.overlap("copy", "compute", at_least=0.6):
                run(gpulab, wait=True)

        def test_closes(gpulab):
            gpulab.stream("s")
            with gpulab.on("s", "step"):
                gpulab.xp.ones(4)
            gpulab.close()
            assert 0
        """
    )
    done = pytester.runpytest_inprocess(*RUN, "--gpulab-trace", "kept")
    done.assert_outcomes(passed=1, failed=3)
    done.stdout.fnmatch_lines(["*copy and compute overlapped for 0 ns*", "*HOST_SYNC_DEVICE*"])
    kept = [*(pytester.path / "kept").iterdir()]
    assert sorted(path.suffix for path in kept) == [".html"] * 3 + [".parquet"] * 3
    traces = {path: load_trace(path) for path in kept if path.suffix == ".parquet"}
    assert sorted(trace.metadata.title for trace in traces.values()) == ["test_closes", "test_waits[a-b]", "test_waits[a/b]"]
    assert "step" in next(trace for path, trace in traces.items() if "test_closes" in path.name).to_pandas()["name"].tolist()


def test_a_baseline_is_written_where_something_ran_compared_by_ratio_and_missed(pytester, monkeypatch):
    pytester.makepyfile(
        f"""
        import os
        {OVERLAPS.replace(chr(10), chr(10) + " " * 8)}
        def test_speed(gpulab, gpulab_baseline):
            with gpulab_baseline(noise=0.2):
                run(gpulab)

        def test_slow_speed(gpulab, gpulab_baseline):
            with gpulab_baseline(noise=0.2):
                run(gpulab, wait="SLOW" in os.environ)

        def test_nothing(gpulab, gpulab_baseline):
            gpulab_baseline(noise=0.2).check()

        def test_unasked(gpulab, gpulab_baseline):
            gpulab_baseline(noise=0.2)
        """
    )
    missing = pytester.runpytest_inprocess(*RUN, "-k", "slow_speed")
    missing.assert_outcomes(failed=1, deselected=3)
    missing.stdout.fnmatch_lines(["*Write it with: pytest --gpulab-update-baseline*"])
    written = pytester.runpytest_inprocess(*RUN, "--gpulab-update-baseline")
    written.assert_outcomes(passed=3, failed=1, warnings=1)
    written.stdout.fnmatch_lines(["*Nothing ran, so no time can be compared*", "*An expectation was never checked*"])
    times = json.loads((pytester.path / "gpulab-baseline.json").read_text())
    assert [key.rpartition("::")[2] for key in times] == [
        f"{name} on H200 (simulated)" for name in ("test_slow_speed", "test_speed")
    ]
    assert all(1_000_000 <= wall_ns < 1_100_000 for wall_ns in times.values())
    monkeypatch.setenv("SLOW", "1")
    slow = pytester.runpytest_inprocess(*RUN, "-k", "speed")
    slow.assert_outcomes(passed=1, failed=1, deselected=2)
    slow.stdout.fnmatch_lines(["*expected were 0.83 times or more*"])


WRITES = """
import sys
from pathlib import Path
from gpustreamlab.testing.plugin import Baseline

baseline = Baseline(Path("times.json"))
for number in range(50):
    baseline.write(f"{sys.argv[1]} {number}", 1)
    if not number:
        print("ready", flush=True)
        sys.stdin.readline()
"""


def test_processes_that_write_a_baseline_at_once_lose_no_time_and_nobody_reads_half_a_file(tmp_path):
    command, pipe = (sys.executable, "-c", WRITES), subprocess.PIPE
    with (
        subprocess.Popen([*command, "a"], cwd=tmp_path, stdin=pipe, stdout=pipe) as one,
        subprocess.Popen([*command, "b"], cwd=tmp_path, stdin=pipe, stdout=pipe) as other,
    ):
        assert [process.stdout.readline() for process in (one, other)] == [b"ready\n"] * 2
        for process in (one, other):
            process.stdin.close()
        baseline = plugin.Baseline(tmp_path / "times.json")
        while one.poll() is None or other.poll() is None:
            assert len(baseline.read()) >= 2
    assert len(baseline.read()) == 100


@pytest.fixture
def lab():
    with Session("sim", capture="ranges") as session:
        session.capture("kernels", host=True)
        session.stream("copy"), session.stream("compute")
        yield session


def step(lab, *, wait):
    with lab.on("copy", "load"):
        spin(lab, 1_000_000)
    if wait:
        lab.synchronize()
    with lab.on("compute", "gemm"):
        spin(lab, 1_000_000)


@pytest.mark.parametrize("pair", [("load", "gemm"), ("load", "compute"), ("copy", "compute")])
def test_streams_and_names_of_ranges_are_expected_to_overlap(lab, pair):
    with lab.expect.overlap(*pair, at_least=0.99):
        step(lab, wait=False)
    with (
        pytest.raises(ExpectationError, match=rf"{pair[0]} and {pair[1]} overlapped for 0 ns[^$]*HOST_SYNC_DEVICE"),
        lab.expect.overlap(*pair, at_least=0.1),
    ):
        step(lab, wait=True)
    with (
        pytest.raises(ExpectationError, match=f"nothing of {pair[0]} and {pair[1]} ran"),
        lab.expect.overlap(*pair, at_least=0.1),
    ):
        pass


@pytest.mark.parametrize("most_works", [1_600, 4], ids=["whole", "by pieces"])
def test_overlap_that_gains_nothing_is_not_what_was_expected(lab, most_works, monkeypatch):
    monkeypatch.setattr(_advice, "MOST_WORKS", most_works)
    monkeypatch.setattr(_advice, "PIECES", 2)
    values = lab.xp.ones((2048, 2048), np.float32)
    lab.synchronize()

    def products():
        for name in ("copy", "compute") * 3:
            with lab.on(name, name):
                values @ values
        lab.synchronize()

    told = r"copy and compute overlapped for [0-9.]+ ms, and that gained 0 ns: .* as they share the SMs"
    with pytest.raises(ExpectationError, match=told), lab.expect.overlap("copy", "compute", at_least=0.5):
        products()
    said = [note for note in lab.explain().notes if note.startswith("Streams overlapped for ")]
    assert len(said) == 1
    assert "that gained 0 ns" in said[0]


def race(lab):
    with lab.on("copy", "write"):
        x = lab.xp.ones(1_000)
    with lab.on("compute", "read"):
        x.sum()


def test_no_hazards_are_expected_of_the_block_alone_and_cannot_be_told_where_nothing_was_watched(lab):
    race(lab)
    lab.synchronize()
    with lab.expect.no_hazards():
        step(lab, wait=False)
    with pytest.raises(ExpectationError, match="write.*read|read.*write"):
        lab.expect.no_hazards().check()
    with pytest.raises(ExpectationError), lab.expect.no_hazards():
        with lab.on("copy", "later"):
            y = lab.xp.ones(500)
        with lab.on("compute", "last"):
            y.sum()
    with Session("sim", hazards="off") as other:
        with pytest.raises(ExpectationError, match=r"cannot be told.*hazards='report'"):
            other.expect.no_hazards().check()


def test_what_cannot_be_expected_to_overlap_is_refused_with_the_nearest_name(lab):
    step(lab, wait=False)
    with pytest.raises(StreamNotFoundError, match="No stream, range or kernel 'gem'.*'gemm'"):
        lab.expect.overlap("load", "gem", at_least=0.5).check()
    with pytest.raises(OptionError, match="'compute' and 'gemm' are the same work"):
        lab.expect.overlap("compute", "gemm", at_least=0.5).check()


def test_a_baseline_is_a_trace_a_file_or_a_time_in_ns(lab, tmp_path):
    step(lab, wait=False)
    lab.synchronize()
    saved = lab.trace
    saved.save(tmp_path / "run.parquet")
    for baseline in (saved, tmp_path / "run.parquet", 1e6):
        lab.expect.faster_than(baseline, by=0.9).check()
        with pytest.raises(ExpectationError, match=r"times as fast; expected were 1\.20 times"):
            lab.expect.faster_than(baseline, by=1.2).check()
    for nothing in (0, float("nan"), float("inf"), saved[:0]):
        with pytest.raises(OptionError, match="Take a run in which work ended"):
            lab.expect.faster_than(nothing)


def test_a_start_of_pytest_loads_next_to_nothing():
    code = "import sys, gpustreamlab.testing.plugin; print([name for name in ('numpy', 'bokeh') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_pytest_6_and_pluggy_1_0_know_all_that_the_plugin_asks_of_them(monkeypatch):
    def hookimpl(*, hookwrapper):  # wrapper=True came with pluggy 1.2
        return lambda function: function

    monkeypatch.setattr(pytest, "hookimpl", hookimpl)
    monkeypatch.delattr(pytest, "StashKey")
    runpy.run_path(plugin.__file__)
