"""What Python in a browser lacks: threads and forks. Everything simulated does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WITHOUT = """
import os, sys, threading

from IPython.utils.capture import capture_output
from tests.helpers.shells import one_shell


def refuse(thread):
    raise RuntimeError("can't start new thread")


with one_shell() as shell:  # IPython keeps its history in a thread, in a browser as well as here not needed
    threading.Thread.start = refuse
    for name in ("register_at_fork", "fork"):
        delattr(os, name)
    assert not any(name.startswith("gpustreamlab") for name in sys.modules)
    from tests.unit.test_docs import ROOT, cells_of, run_cell

    for block, printed in cells_of(ROOT / "docs/tutorials/ten-minutes.md"):
        out = run_cell(shell, block)
        assert printed is None or out.split() == printed.split(), out
    shell.kernel = "as in a notebook"
    with shell.ev("gsl.Session('sim')") as lab, lab.on(lab.stream("a"), "x"):
        timeline = lab.timeline()
    # What cannot grow is a picture.
    print("drawn:", type(timeline).__name__, sorted(timeline._repr_mimebundle_()))
"""


def test_the_ten_minutes_run_where_no_thread_starts_and_nothing_forks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "drawn: Timeline ['image/svg+xml', 'text/html', 'text/plain']"
    assert (tmp_path / "timeline.html").stat().st_size > 100_000
