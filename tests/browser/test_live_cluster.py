"""The live timeline of a cluster: spans of each engine arrive while a cell runs on all of them, and a lost one is told of."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.helpers.jupyter import KERNEL
from tests.helpers.live_notebook import LiveNotebook

pytestmark = pytest.mark.browser

START = """
%load_ext gpustreamlab
import gpustreamlab as gsl
lab = gsl.Cluster(workers=4, backend="sim", title="four engines")
lab.timeline()
"""
WORK = """%%gpustream compute --on all
import time
from pathlib import Path
from gpustreamlab.workloads import spin
step, end = 0, Path(END)
while not end.exists():
    with lab.on("compute", "step"):
        spin(lab, 300_000)
    if step % 10 == 9:
        lab.synchronize()
    step += 1
    time.sleep(0.1)
"""
"""Goes on until there is a file at `END`."""
RACE = """
def race(lab):
    lab.stream("produce"), lab.stream("take")
    with lab.on("produce", "fill"):
        x = lab.xp.ones(4096)
    with lab.on("take", "read"):
        x + 1
    lab.synchronize()
lab.run(race, on="0, 2")
"""
LABELS = "live.viewer.view.planned.groups.map(group => group.label)"
MARKS = "live.viewer.view.tables.marks.map(mark => mark.text)"
OPEN = "live.viewer.view.openWork.map(([lane]) => live.viewer.view.tables.lanes[lane].name).sort()"
SLOW_MS = 60_000
"""Four processes import the package and work on two cores."""


@pytest.fixture
def notebook(server, lab_windows):
    with lab_windows.lending() as lend:
        notebook = LiveNotebook(lend())
        notebook.load(server.write_notebook("cluster", [START]))
        yield notebook
    assert notebook.errors == []


def test_spans_of_engines_arrive_while_a_cell_runs_and_a_lost_engine_is_told_of_at_once(notebook, tmp_path):
    end = tmp_path / "end"
    notebook.command("notebook:run-all-cells")
    notebook.wait("() => document.querySelector('.gsl-live')?.gslView?.isStarted", timeout_ms=SLOW_MS)
    notebook.kernel(RACE)
    notebook.wait_until("live.viewer.view.why?.is_partial", timeout_ms=SLOW_MS)
    hazard = notebook.page.locator(".gsl-findings .gsl-reason", has_text="A missing wait")
    hazard.wait_for(timeout=SLOW_MS, state="attached")
    notebook.keep("cluster-hazards")
    notebook.kernel("lab.clear()")
    notebook.wait_until("!live.viewer.view.why", timeout_ms=SLOW_MS)
    victim = int(notebook.kernel("print(lab.engines[1].pid)"))
    notebook.watch()
    notebook.run_scratch(WORK.replace("END", repr(str(end))), is_awaited=False)
    notebook.show_view()
    notebook.wait_until("live.feed.store.spanCount > 80", timeout_ms=SLOW_MS)
    notebook.wait_until(f"{LABELS}.length === 5", timeout_ms=SLOW_MS)
    assert notebook.ask(LABELS) == [*(f"GPU {place} · 132 SMs" for place in range(4)), "host"]
    notebook.wait_until(f"{OPEN}.join() === '0:compute,1:compute,2:compute,3:compute'", timeout_ms=SLOW_MS)
    assert not notebook.ask("live.viewer.view.tables.header.has_common_time")
    notebook.keep("cluster-working")
    os.kill(victim, signal.SIGKILL)
    notebook.wait_until(f"{MARKS}.length === 1", timeout_ms=SLOW_MS)
    assert notebook.is_busy()
    assert re.fullmatch(r"engine 1 lost [\d:]{8} UTC", notebook.ask(MARKS)[0])
    notebook.wait_until(f"{OPEN}.join() === '0:compute,2:compute,3:compute'", timeout_ms=SLOW_MS)
    notebook.wait_for_seen(6, timeout_ms=SLOW_MS)
    end.touch()
    notebook.wait("status => KERNEL.status === status".replace("KERNEL", KERNEL), "idle", timeout_ms=SLOW_MS)
    notebook.wait_until(f"live.feed.store.spanCount === {notebook.recorded()}", timeout_ms=SLOW_MS)
    notebook.show_view()
    notebook.keep("cluster-lost")
    notebook.page.locator(".jp-OutputArea").last.filter(has_text="It failed on 1 of 4 engines").wait_for()
    assert "broadcast to" not in notebook.page.locator(".jp-Notebook").inner_text()  # what the scheduler thinks of it
    notebook.kernel("lab.close()")
    picture = notebook.page.wait_for_selector(".jp-OutputArea iframe").content_frame()
    picture.wait_for_function("document.documentElement.outerHTML.includes('Engine 1 was lost at')")
