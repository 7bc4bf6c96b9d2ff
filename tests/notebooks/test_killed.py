"""``kill -9`` at any moment loses nothing that was refreshed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from jupyter_client import KernelManager

from tests.helpers import long_runs
from tests.helpers.killed_run import RUN, check_what_is_left

pytestmark = [
    pytest.mark.notebook,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL"),
]

START_LIMIT_S = 60
MOMENTS = long_runs.count(sample=8, full=20)
TIERS = ("ranges", "kernels")
ZYGOTE = """
import os, sys
import gpustreamlab.sinks.spool, gpustreamlab.workloads, gpustreamlab.session, pyarrow
for line in sys.stdin:
    child = os.fork()
    if not child:
        exec(open(line.strip()).read())
        run(lambda text: os.write(1, text.encode()))
    os.write(1, f"pid {child}\\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(1, f"ended {status}\\n".encode())
"""
"""Imports once, then forks a run for each program that it is told of."""


def last_told(lines):
    return max((int(line) for line in lines if line.strip().isdigit()), default=0)


@pytest.fixture(scope="module")
def zygote():
    with subprocess.Popen([sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_killed_process_has_left_all_that_was_refreshed(tmp_path, zygote, moment):
    chance = random.Random(moment)
    path, program = tmp_path / "run.gsl", tmp_path / "program.py"
    # Every few steps: it is killed while it writes. Never: only by the thread, 5 times a second.
    source = RUN.format(path=str(path), refresh_every=chance.choice((1, 3, 1 << 40)), tier=TIERS[moment % 2])
    program.write_text(source)
    zygote.stdin.write(f"{program}\n".encode())
    zygote.stdin.flush()
    child, lines = 0, []
    while not child or not lines:
        line = zygote.stdout.readline().decode()
        if line.startswith("pid"):
            child = int(line.split()[1])
        else:
            lines.append(line)
    end_s = time.monotonic() + chance.uniform(0, 0.8)
    while time.monotonic() < end_s:
        lines.append(zygote.stdout.readline().decode())
    os.kill(child, signal.SIGKILL)
    while not lines[-1].startswith("ended"):
        lines.append(zygote.stdout.readline().decode())

    assert lines[-1].split()[1] == str(int(signal.SIGKILL))
    check_what_is_left(path, last_told(lines))


@pytest.mark.parametrize("moment", range(long_runs.count(sample=2, full=4)))
def test_a_killed_jupyter_kernel_has_left_all_that_was_refreshed(tmp_path, moment):
    chance = random.Random(100 + moment)
    path = tmp_path / "run.gsl"
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=START_LIMIT_S)
        refresh_every = (3, 1 << 40)[(moment + moment // 2) % 2]  # each with each tier in a long run
        source = RUN.format(path=str(path), refresh_every=refresh_every, tier=TIERS[moment % 2])
        client.execute(f"{source}\nimport sys\nrun(lambda text: print(text, end='', flush=True))")
        told = ""
        end_s = None
        while end_s is None or time.monotonic() < end_s:
            message = client.get_iopub_msg(timeout=START_LIMIT_S)
            assert message["msg_type"] != "error", message["content"]["evalue"]
            if message["msg_type"] == "stream":
                told += message["content"]["text"]
                end_s = end_s or time.monotonic() + chance.uniform(0.3, 1.2)
        manager.provisioner.process.send_signal(signal.SIGKILL)
        manager.provisioner.process.wait()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)

    trace = check_what_is_left(path, last_told(told.splitlines()))
    assert len(trace) > 0
