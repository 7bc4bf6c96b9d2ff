"""What Python in a browser lacks: threads, forks, and indices of 64 bits. Everything simulated does without."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_ten_minutes_run_where_no_thread_starts_and_nothing_forks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.as_in_a_browser"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # What cannot grow is a picture.
    assert done.stdout.splitlines()[-1] == "drawn: Timeline ['image/svg+xml', 'text/html', 'text/plain']"
    assert (tmp_path / "timeline.html").stat().st_size > 100_000
