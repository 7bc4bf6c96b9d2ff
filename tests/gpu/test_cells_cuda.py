"""Cells on streams that are chosen for them, on a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("IPython")

from IPython.utils.capture import capture_output

from tests.helpers.random_cells import SETUP, random_cells
from tests.helpers.shells import one_shell

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")


@pytest.fixture
def shell():
    with one_shell() as made:
        made.run_cell("%load_ext gpustreamlab")
        yield made
        made.user_ns["lab"].close()
        made.run_line_magic("unload_ext", "gpustreamlab")


def run(shell, cell):
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True)
    assert "Error in callback" not in captured.stdout + captured.stderr
    return result


@pytest.mark.parametrize("seed", range(20))
def test_random_cells_give_the_results_of_a_plain_run(shell, seed):
    found = {}
    for option in ("", "--auto"):
        assert run(shell, f"%gpulab start --backend cuda --capture ranges {option}").success
        assert run(shell, SETUP).success
        lab = shell.user_ns["lab"]
        for cell in random_cells(seed):
            if not option:
                lab.synchronize()
            run(shell, cell)
        lab.synchronize()
        found[option] = [shell.user_ns[name].get().tobytes() for name in "abcd"]
    assert found[""] == found["--auto"]


def test_cells_that_share_nothing_overlap_and_one_that_reads_both_waits(shell):
    run(shell, "%gpulab start --backend cuda --auto")
    run(shell, "from gpustreamlab.workloads import spin\nx, y = lab.xp.ones(64), lab.xp.ones(64)\nspin(lab, 1_000)")
    run(shell, "spin(lab, 50_000_000)\nx += 1")
    run(shell, "spin(lab, 50_000_000)\ny += 1")
    run(shell, "z = x + y")
    run(shell, "lab.synchronize()")
    cells = {cell.text: cell for cell in shell.run_line_magic("gpugraph", "").cells}
    first, second, last = (
        cells[text] for text in ("spin(lab, 50_000_000)\nx += 1", "spin(lab, 50_000_000)\ny += 1", "z = x + y")
    )
    assert first.streams != second.streams
    assert min(first.end_ns, second.end_ns) - max(first.start_ns, second.start_ns) > 10_000_000
    assert last.start_ns >= max(first.end_ns, second.end_ns)
