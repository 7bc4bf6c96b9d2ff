"""The pages on causes: what they say is saved, beside what the same program takes where it is mended."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from IPython.utils.capture import capture_output

import gpustreamlab as gsl
from gpustreamlab.analysis import is_work
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin
from tests.helpers.shells import one_shell

PAGES = Path(__file__).parents[2] / "docs" / "how-to" / "why"
SAME_WORK = (
    "cooperative",
    "copy-engine",
    "event-wait",
    "grid-fills-device",
    "host-late",
    "host-sync-device",
    "host-sync-stream",
    "launch-bound",
    "not-offered",
    "other-rank",
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
            trace = shell.user_ns.get("trace") or shell.user_ns["lab"].trace
            rows = np.flatnonzero(is_work(trace))
            walls.append(int(trace.end_ns[rows].max() - trace.start_ns[rows].min()))
            finding = shell.user_ns.get("finding")
            saves.append(finding.saves_ns or finding.bound_ns if finding else 0)
        if "lab" in shell.user_ns:
            shell.user_ns["lab"].close()
    return saves[-2], *walls[-2:]


@pytest.mark.parametrize("page", SAME_WORK)
def test_what_is_said_to_be_saved_is_what_mending_saves(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    saves_ns, before_ns, after_ns = walls_of(page)
    assert saves_ns == pytest.approx(before_ns - after_ns, rel=0.15, abs=0.02 * before_ns), (before_ns, after_ns)


def stepped(*names, steps=20):
    """A process that launches a kernel of 1 ms on each stream, and waits for them, again and again."""
    with gsl.Session("sim") as lab:
        streams = [lab.stream(name) for name in names]
        lab.synchronize()
        lab.clear()
        for _ in range(steps):
            for stream in streams:
                spin(lab, 1_000_000, stream=stream)
            for stream in streams:
                stream.synchronize()
        return lab.trace


def taking_turns(switch_ns=30_000):
    """Two such processes that share a card by slices of time, as the simulated device does not have them."""
    traces = []
    for name in "ab":
        trace = stepped(name)
        is_kernel = is_work(trace)
        # Each kernel begins, in place of when its launch ends, when one of the other process has ended; but for the very first.
        held_ns = trace.start_ns[is_kernel][name == "a" :]
        moved = {}
        for column in ("start_ns", "end_ns", "queued_ns"):
            times_ns = getattr(trace, column) + is_kernel * (column == "start_ns")
            moved[column] = times_ns + (1_000_000 + 2 * switch_ns) * np.searchsorted(held_ns, times_ns)
        card = replace(trace.metadata.device, simulated=False)
        traces.append(replace(trace, **moved, metadata=replace(trace.metadata, device=card)))
    return gsl.merge(traces, ahead_ns=[0, -switch_ns], processes=[0, 1])


def wall_ns(trace):
    return int(trace.end_ns[is_work(trace)].max() - trace.start_ns[is_work(trace)].min())


def test_what_slices_of_time_are_said_to_cost_at_most_is_what_one_process_saves():
    found = taking_turns()
    first = found.explain().findings[0]
    saved_ns = wall_ns(found) - wall_ns(stepped("a", "b"))
    assert first.code == Cause.TIME_SLICED
    assert (first.saves_ns, first.bound_ns) == (0, pytest.approx(saved_ns, rel=0.15))
