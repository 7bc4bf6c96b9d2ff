"""What Python in a browser lacks: threads, forks, and indices of 64 bits. Everything simulated does without."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from gpustreamlab._util.background import has_threads, thread_pool

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


def test_whether_threads_start_is_tried_once(monkeypatch):
    has_threads.cache_clear()
    started = []
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread, start=threading.Thread.start: (started.append(1), start(thread))
    )
    for _ in range(3):
        thread_pool(1).shutdown()
    assert (has_threads(), len(started)) == (True, 1)
    monkeypatch.undo()
