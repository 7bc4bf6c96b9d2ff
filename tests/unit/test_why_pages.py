"""The pages on causes: what they say is saved, beside what the same program takes where it is mended."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from IPython.utils.capture import capture_output

from gpustreamlab.analysis import is_work
from tests.helpers.shells import one_shell

PAGES = Path(__file__).parents[2] / "docs" / "how-to" / "why"
SAME_WORK = (
    "copy-engine",
    "event-wait",
    "grid-fills-device",
    "host-late",
    "host-sync-device",
    "host-sync-stream",
    "launch-bound",
    "not-offered",
    "other-stream",
    "pageable-copy",
    "partition-small",
    "queue-full",
    "same-lane",
)
"""Pages whose mended program, the last one, does the same work as the one before, changed in one thing."""


def walls_of(page):
    """Run a page's blocks; return what the last finding saves, or may, and what the work took before and after, in ns."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    walls, saves = [], []
    with one_shell() as shell, capture_output():
        for block in blocks:
            shell.run_cell(block).raise_error()
            trace = shell.user_ns["lab"].trace
            rows = np.flatnonzero(is_work(trace))
            walls.append(int(trace.end_ns[rows].max() - trace.start_ns[rows].min()))
            finding = shell.user_ns.get("finding")
            saves.append(finding.saves_ns or finding.bound_ns if finding else 0)
        shell.user_ns["lab"].close()
    return saves[-2], *walls[-2:]


@pytest.mark.parametrize("page", SAME_WORK)
def test_what_is_said_to_be_saved_is_what_mending_saves(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saves_ns, before_ns, after_ns = walls_of(page)
    assert saves_ns == pytest.approx(before_ns - after_ns, rel=0.15, abs=0.02 * before_ns), (before_ns, after_ns)
