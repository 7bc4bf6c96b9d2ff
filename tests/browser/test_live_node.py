"""The live timeline of a node: spans of each GPU arrive while a cell runs."""

from __future__ import annotations

import pytest

from tests.helpers.live_notebook import LiveNotebook

pytestmark = pytest.mark.browser

SHOWN = """
import time
from pathlib import Path
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Node(backend="sim", title="two cards")
prefill, decode = lab.stream("prefill"), lab.stream("decode", device=1)
lab.timeline()
"""
WORK = """
end = Path(END)
while not end.exists():
    with lab.on("prefill", "prefill"):
        spin(lab[0], 300_000)
        made = lab[0].xp.ones(1 << 20)
    decode.wait(prefill)
    with lab.on("decode", "decode"):
        taken = lab[1].xp.asarray(made)
        spin(lab[1], 200_000)
    time.sleep(0.05)
lab.synchronize()
"""
"""Goes on until there is a file at `END`."""


@pytest.fixture
def notebook(server, lab_windows):
    with lab_windows.lending() as lend:
        notebook = LiveNotebook(lend())
        notebook.load(server.write_notebook("node", [SHOWN]))
        yield notebook
    assert notebook.errors == []


def test_spans_of_each_gpu_arrive_while_a_cell_runs_and_stay_when_the_node_is_closed(notebook, tmp_path):
    notebook.command("notebook:run-all-cells")
    notebook.wait_for_views(1)
    notebook.watch()
    end = tmp_path / "end"
    notebook.run_scratch(WORK.replace("END", repr(str(end))), is_awaited=False)
    notebook.wait_for_seen(1)
    end.touch()
    notebook.wait_until_idle()
    notebook.wait_until(f"live.feed.store.spanCount === {notebook.recorded()}")
    labels = notebook.ask("live.viewer.view.planned.groups.map(group => group.label)")
    assert labels == ["GPU 0 · 132 SMs", "GPU 1 · 132 SMs", "host"]
    lanes = "live.viewer.view.planned.lanes.toSorted((one, other) => one.top - other.top).map(lane => lane.name)"
    assert notebook.ask(lanes) == ["prefill", "decode", "host: MainThread"]  # from top to bottom
    notebook.kernel("lab.close()")
    notebook.page.wait_for_selector(".jp-OutputArea iframe")
