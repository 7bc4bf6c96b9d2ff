"""The live timeline of a node: spans of each GPU arrive while a cell runs."""

from __future__ import annotations

import pytest

from tests.helpers.live_notebook import LiveNotebook

pytestmark = pytest.mark.browser

SHOWN = """
import time
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Node(backend="sim", title="two cards")
prefill, decode = lab.stream("prefill"), lab.stream("decode", device=1)
lab.timeline()
"""
WORK = """
for step in range(40):
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


@pytest.fixture
def notebook(server, lab_windows):
    with lab_windows.lending() as lend:
        notebook = LiveNotebook(lend())
        notebook.load(server.write_notebook("node", [SHOWN]))
        yield notebook
    assert notebook.errors == []


def test_spans_of_each_gpu_arrive_while_a_cell_runs_and_stay_when_the_node_is_closed(notebook):
    notebook.command("notebook:run-all-cells")
    notebook.wait_for_views(1)
    notebook.watch()
    notebook.run_scratch(WORK)
    assert any(0 < count < 200 for count in notebook.seen_while_busy())
    notebook.wait_until(f"live.feed.store.spanCount === {notebook.recorded()}")
    assert notebook.ask("live.viewer.view.planned.groups.map(group => group.label)") == ["GPU 0 · 132 SMs", "GPU 1 · 132 SMs"]
    assert notebook.ask("live.viewer.view.planned.lanes.map(lane => lane.name)") == ["prefill", "decode"]
    notebook.kernel("lab.close()")
    notebook.page.wait_for_selector(".jp-OutputArea iframe")
