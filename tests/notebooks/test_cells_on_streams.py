"""Cells on streams that are chosen for them, in a real kernel on the simulated device."""

from __future__ import annotations

import json

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.notebook

LONG = "for _ in range(60):\n    {0} = {0} @ {0} * 0.001"
CELLS = [
    "%load_ext gpustreamlab\n%gpulab start --backend sim {option}",
    "x = lab.xp.arange(512 * 512, dtype='float64').reshape(512, 512) * 1e-6",
    "a = x + 1\n" + LONG.format("a"),
    "b = x + 2\n" + LONG.format("b"),
    "c = a + b",
    "def shift(n):\n    global x\n    x += n\n    return x * n",
    "d = shift(3)\nd",
    "e = 1 / 0",
    "import signal\nf = d * 2\nsignal.raise_signal(signal.SIGINT)",
    "import asyncio\nawait asyncio.sleep(0.01)\ng = f + 1",
    "%%gpustream mine\nh = g + a",
    "%%gpuprogram --check\np = h @ h\nq = h + 1\nr = p + q * 2\nfloat(r.sum())",
    "%%time\ns = r + x",
    "lab.synchronize()\nhazards = lab.memory.hazards()",
    "%gpugraph",
    "%gpulab auto --off",
    """
import hashlib, json
graph = get_ipython().run_line_magic("gpugraph", "")
arrays = {name: hashlib.sha256(globals()[name].get().tobytes()).hexdigest() for name in "xabcdfghpqrs"}
first, second = [cell for cell in graph.cells if cell.text.startswith(("a = x", "b = x"))]
overlap_ns = min(first.end_ns, second.end_ns) - max(first.start_ns, second.start_ns)
print(json.dumps({"arrays": arrays, "hazards": hazards.hazard_count, "accesses": hazards.access_count,
    "overlap_ns": overlap_ns, "shorter_ns": min(first.busy_ns, second.busy_ns), "current": str(lab.current),
    "barriers": [cell.barrier for cell in graph.cells if cell.barrier]}))
""",
]


def run_cells(option):
    """Run the cells in a kernel; return what the last one printed, and the executed cells."""
    cells = [nbformat.v4.new_code_cell(cell.replace("{option}", option)) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=300, allow_errors=True, coalesce_streams=True).execute()
    return json.loads(notebook.cells[-1].outputs[0].text), notebook.cells


@pytest.fixture(scope="module")
def runs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return {option: run_cells(option) for option in ("", "--auto")}


def test_results_are_those_of_a_plain_run_without_hazards(runs):
    plain, chosen = runs[""][0], runs["--auto"][0]
    assert chosen["arrays"] == plain["arrays"]
    assert chosen["accesses"] > 100
    assert chosen["hazards"] == 0
    assert chosen["barriers"] == []  # nothing of the kernel's own counts as unknown


def test_independent_cells_overlap(runs):
    found = runs["--auto"][0]
    assert found["overlap_ns"] > 0.3 * found["shorter_ns"]


def test_only_the_cells_that_should_fail_do_and_nothing_stays_selected(runs):
    for found, cells in runs.values():
        errors = {
            number: output.ename
            for number, cell in enumerate(cells)
            for output in cell.outputs
            if output.output_type == "error"
        }
        assert errors == {7: "ZeroDivisionError", 8: "KeyboardInterrupt"}
        assert found["current"] == "None"
        assert not any("Error in callback" in output.get("text", "") for cell in cells for output in cell.outputs)


def test_the_graph_is_drawn(runs):
    shown = next(output for output in runs["--auto"][1][-3].outputs if "data" in output)
    assert "&lt;svg" in shown.data["text/html"]
    assert "critical path" in shown.data["text/plain"]
