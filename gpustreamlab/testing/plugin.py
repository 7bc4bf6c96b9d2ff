"""A pytest plugin: a session for each test, kept with its picture where the test fails, and baselines by ratio.

pytest loads it by its entry point, ``gpulab``. ::

    def test_copy_and_compute_overlap(gpulab):
        with gpulab.expect.overlap("copy", "compute", at_least=0.6):
            run_pipeline(gpulab)

    def test_the_pipeline_is_not_slower(gpulab, gpulab_baseline):
        with gpulab_baseline(noise=0.1):
            run_pipeline(gpulab)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpustreamlab import Session
    from gpustreamlab.groups import Expectation
    from gpustreamlab.model import Trace

__all__ = ["Baseline"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what to run on, and what to keep."""
    group = parser.getgroup("gpulab", "streams of a GPU, real or simulated (gpustreamlab)")
    group.addoption("--gpulab-backend", default="auto", help="what sessions run on: auto, cuda or sim (default: %(default)s)")
    group.addoption("--gpulab-trace", metavar="DIR", type=Path, help="keep trace and timeline of each failing test here")
    group.addoption("--gpulab-baseline", metavar="FILE", type=Path, help="the baselines (default: gpulab-baseline.json)")
    group.addoption("--gpulab-update-baseline", action="store_true", help="write the baselines of the tests that run")


@pytest.hookimpl(hookwrapper=True)  # not wrapper=True: pluggy < 1.2 would stop every run of pytest
def pytest_runtest_makereport(item: Any) -> Generator[None, Any, None]:
    """Note for the fixture whether the test failed."""
    report = (yield).get_result()
    if report.when == "call":
        item.gpulab_failed = report.failed


@pytest.fixture
def gpulab(request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session that captures kernels and calls of the host; where the test fails, trace and timeline are kept."""
    from gpustreamlab import Session

    backend = request.config.getoption("--gpulab-backend")
    with Session(None if backend == "auto" else backend, capture="kernels", title=request.node.name) as lab:
        yield lab
    # Closed now, by the test or here: all work has ended, and the last trace is kept.
    folder, test = request.config.getoption("--gpulab-trace"), request.node.nodeid
    if folder is not None and getattr(request.node, "gpulab_failed", False):
        folder.mkdir(parents=True, exist_ok=True)
        readable = re.sub(r"[^\w.-]+", "-", test).strip("-")[-150:]
        stem = folder / f"{readable}-{hashlib.sha256(ascii(test).encode()).hexdigest()[:10]}"  # "a/b" and "a-b" are two tests
        lab.trace.save(f"{stem}.parquet")
        lab.trace.timeline().save(f"{stem}.html")
        request.node.add_report_section("teardown", "gpulab", f"Timeline: {stem}.html\n{lab.explain()}")


class Baseline:
    """The times of tests in a file, by test and device."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, int]:
        """Return the time of each test, by its name and device, in ns."""
        return json.loads(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}

    def write(self, key: str, wall_ns: int) -> None:
        """Put in a time; processes that do so at once (pytest-xdist) wait for each other."""
        import fcntl

        from gpustreamlab.model import write_file_whole

        folder = os.open(self.path.parent, os.O_RDONLY)  # the file itself is another one after each write
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            text = json.dumps(self.read() | {key: wall_ns}, indent=1, sort_keys=True) + "\n"
            write_file_whole(self.path, lambda partial: partial.write_text(text, encoding="utf-8"))
        finally:
            os.close(folder)


@pytest.fixture
def gpulab_baseline(request: pytest.FixtureRequest, gpulab: Session) -> Callable[..., Expectation]:
    """Return what expects the work in a ``with`` block to take no longer than its baseline, but for the noise, as a ratio."""
    from gpustreamlab.analysis import NOTHING_TIMED, Missed, concurrency, expect_faster
    from gpustreamlab.groups import Expectation

    config = request.config
    baseline = Baseline(config.getoption("--gpulab-baseline") or config.rootpath / "gpulab-baseline.json")
    key = f"{request.node.nodeid} on {gpulab.device.label}"

    def expect(*, noise: float = 0.1) -> Expectation:
        def check(trace: Trace) -> Missed:
            wall_ns = concurrency(trace).wall_ns
            if not wall_ns:
                return Missed(trace=trace, text=NOTHING_TIMED)
            if config.getoption("--gpulab-update-baseline"):
                baseline.write(key, wall_ns)
                return Missed(trace=trace, text="")
            baseline_ns = baseline.read().get(key)
            if not baseline_ns:
                text = f"{baseline.path.name} has no time of {key!r}. Write it with: pytest --gpulab-update-baseline"
                return Missed(trace=trace, text=text)
            return expect_faster(baseline_ns, 1 / (1 + noise))(trace)

        return Expectation(gpulab, check)

    return expect
