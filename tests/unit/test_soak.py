"""The soak on the simulated device for some seconds, and the parts that would tell if something were wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from scripts import soak_actions, soak_memory
from tests.helpers import long_runs

TURNS = ("--turns", "300")
"""By then each usual action was done, however slow the machine is."""
ROOT = Path(__file__).resolve().parents[2]


def run(*command, **options):
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120, **options
    )


def test_a_short_soak_on_the_simulated_device_finds_nothing_wrong(tmp_path):
    # GIVEN the command, as a user runs it
    done = run(
        "scripts/soak.py",
        "--backend",
        "sim",
        "--seconds",
        long_runs.count(1, 30),
        *TURNS,
        "--threads",
        "4",
        "--json",
        tmp_path / "soak.json",
    )

    # THEN nothing was wrong, the usual actions were done, and the figures are those that a table of benchmarks needs
    assert done.returncode == 0, done.stderr[-5000:]
    report = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    values = {row["what"]: row["value"] for row in report["rows"]} | report["counts"]
    assert (values["wrong results"], values["other failures"]) == (0, 0)
    assert values["turns"] >= 300
    usual = {action.__name__.replace("_", " ") for action, weight in soak_actions.ACTIONS.items() if weight >= 3}
    assert usual <= set(values)
    assert values["host memory, MiB, at the end"] > values["malloc in use, MiB, at the end"] > 1
    assert values["malloc arenas (0: as many as glibc likes)"] == 1
    assert "device memory, MiB, at the end" not in values
    assert len(report["samples"]) > 1


PLANTED = """
    import sys, threading
    from scripts import soak, soak_actions
    {plant}
    sys.exit(soak.main(["--backend", "sim", "--seconds", "{seconds}", "--threads", "2", "--patience", "{patience}"]))
    """


def run_with(plant, *, seconds, patience):
    return run("-c", textwrap.dedent(PLANTED).format(plant=plant, seconds=seconds, patience=patience))


def test_a_thread_that_stops_is_told_with_the_stacks_of_all():
    plant = "soak_actions.ACTIONS.clear(); soak_actions.ACTIONS[lambda turn: threading.Event().wait()] = 1"
    done = run_with(plant, seconds=60, patience=1)
    assert done.returncode == 1
    assert "made no progress for 1 s" in done.stderr
    assert done.stderr.count("hread 0x") >= 3
    assert "in work" in done.stderr


def test_a_wrong_result_fails_the_run_and_says_where():
    plant = "soak_actions.Turn.full = lambda turn, number=None: turn.lab.xp.zeros(turn.size, dtype='int64'); "
    plant += "soak_actions.ACTIONS.clear(); soak_actions.ACTIONS[soak_actions.compute] = 1"  # each thread ends its first turn
    done = run_with(plant, seconds=1, patience=60)
    assert done.returncode == 1
    assert "WrongResultError: compute: " in done.stderr
    assert "not" in done.stderr


def test_growth_is_that_of_the_time_after_the_warm_up():
    samples = [soak_memory.Sample(second, (500 if second < 30 else 1_000 + second) << 20, 0, 0) for second in range(121)]
    assert soak_memory.slope_mib_per_minute(samples, "host_bytes") == pytest.approx(60)
    assert soak_memory.slope_mib_per_minute(samples, "device_bytes") == 0
    assert soak_memory.slope_mib_per_minute(samples[:1], "host_bytes") == 0


def test_memory_in_use_is_what_was_allocated_and_not_freed():
    before = soak_memory.sample(0, has_device=False)
    kept = np.ones(64 << 20, np.uint8)
    during = soak_memory.sample(1, has_device=False)
    del kept
    after = soak_memory.sample(2, has_device=False)
    assert during.heap_bytes - before.heap_bytes == pytest.approx(64 << 20, rel=0.05)
    assert after.heap_bytes - before.heap_bytes == pytest.approx(0, abs=4 << 20)
    assert during.host_bytes >= during.heap_bytes - before.heap_bytes
    assert during.device_bytes == during.torch_bytes == 0
