"""The graph of a notebook's cells, in a real shell."""

from __future__ import annotations

import re

import pytest
from IPython.utils.capture import capture_output

from gpustreamlab import Session
from gpustreamlab.notebook.cell_graph import read_cell
from tests.helpers.shells import one_shell

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")


@pytest.fixture
def shell():
    with one_shell() as made:
        made.run_cell("%load_ext gpustreamlab")
        yield made
        for value in list(made.user_ns.values()):
            if isinstance(value, Session):
                value.close()
        made.run_line_magic("unload_ext", "gpustreamlab")


@pytest.fixture
def lab(shell):
    run(shell, "%gpulab start --backend sim")
    return shell.user_ns["lab"]


def run(shell, cell, cell_id=None):
    """Run a cell as a notebook does; return IPython's result, and what was printed and shown."""
    with capture_output() as captured:
        result = shell.run_cell(cell, store_history=True, cell_id=cell_id)
    shown = "".join(output.data["text/plain"] + "\n" for output in captured.outputs)
    return result, re.sub(r"\x1b\[[0-9;]*m", "", captured.stdout + captured.stderr) + shown


def good(shell, cell, cell_id=None):
    result, shown = run(shell, cell, cell_id)
    assert result.success, shown
    assert "Error in callback" not in shown
    assert shell.user_ns["lab"].current is None
    return result.result


BIG = "lab.xp.ones((256, 256))"
LONG = "for _ in range(30):\n    {0} = {0} @ {0} * 0.001"


def cells(shell):
    shell.user_ns["lab"].synchronize()
    return good(shell, "%gpugraph").cells


@pytest.mark.parametrize(
    ("cell", "reads", "writes"),
    [
        ("y = x @ x; z = f(y, w); u[0] = 1", {"f", "u", "w", "x"}, {"u", "y", "z"}),
        ("get_ipython().run_line_magic('time', 'y = x')", {"x"}, {"y"}),
        ("get_ipython().run_cell_magic('gpustream', 'a', 'y.w += x')", {"x", "y"}, {"y"}),
        ("get_ipython().run_line_magic('gputimeline', '')", set(), set()),
        ("def f(n):\n    return x * n", {"x"}, {"f"}),
    ],
)
def test_a_cell_is_read_by_its_names_also_within_magics(cell, reads, writes):
    assert read_cell(cell) == (reads, writes)


def test_a_cell_run_again_makes_what_read_it_out_of_date(shell, lab):
    good(shell, "x = lab.xp.ones(8)", "one")
    good(shell, "y = x + 1", "two")
    good(shell, "z = y + 1", "three")
    good(shell, "w = lab.xp.ones(3)", "four")
    numbers = [cell.number for cell in cells(shell)]
    assert not any(cell.outdated for cell in cells(shell))
    good(shell, "x = lab.xp.zeros(8)", "one")
    found = {cell.number: cell.outdated for cell in cells(shell)}
    again = max(found)
    assert found == {
        numbers[1]: f"In [{numbers[0]}] was run again since, as In [{again}]",
        numbers[2]: f"it has read y of In [{numbers[1]}], which is out of date",
        numbers[3]: "",
        again: "",
    }
    assert f"In [{numbers[1]}] is out of date" in str(good(shell, "%gpugraph"))
    good(shell, "y = x + 1", "two")
    found = {cell.text: bool(cell.outdated) for cell in cells(shell)}
    assert found["y = x + 1"] is False
    assert found["z = y + 1"] is True


def test_the_graph_has_cells_with_streams_of_their_own_and_a_critical_path(shell):
    run(shell, "%gpulab start --backend sim")
    good(shell, f"%%gpustream a\nx = {BIG}\n" + LONG.format("x"))
    good(shell, f"%%gpustream b\ny = {BIG}")
    good(shell, "%%gpustream b --after a\nz = x + y")
    found = good(shell, "lab.synchronize()\nget_ipython().run_line_magic('gpugraph', '')")
    first, second, third = [cell for cell in found.cells if cell.streams]
    assert [first.streams, second.streams, third.streams] == [("a",), ("b",), ("b",)]
    assert third.reads == {first.number: {"x"}, second.number: {"y"}}
    assert [cell.is_critical for cell in (first, second, third)] == [True, False, True]
    assert found.critical_ns == first.busy_ns + third.busy_ns
    drawn = found.trace
    assert [drawn.lanes[lane].name for lane in drawn.lane] == ["a", "b", "b"]
    numbers = [int(drawn.names[code].split("]")[0].removeprefix("In [")) for code in drawn.name]
    told = {(numbers[one], numbers[other]) for one, other in zip(drawn.edges.source, drawn.edges.target, strict=True)}
    assert told == {(first.number, third.number)}  # the second is on the stream of the third
    assert "&lt;svg" in found._repr_html_()


def test_cells_whose_work_has_not_ended_are_running_on_their_streams(shell, lab):
    for cell in [
        f"%%gpustream a\na = {BIG}",
        f"%%gpustream b\nb = {BIG}",
        "lab.synchronize()",
        f"%%gpustream a\n{LONG.format('a')}",
        f"%%gpustream b\n{LONG.format('b')}",
    ]:
        good(shell, cell)
    found = good(shell, "%gpugraph")
    first, second = found.cells[-2:]
    assert [cell.is_running for cell in found.cells] == [False, False, False, True, True]
    assert (first.streams, second.streams) == (("a",), ("b",))
    assert f"running: In [{first.number}], In [{second.number}]" in str(found).replace("\n  ", " ")
    assert len(found.trace) == 2  # of work that has not ended nobody knows the times
    assert found.trace.metadata.pending_spans == 2
    assert "2 spans have not ended yet" in found._repr_html_()
    assert lab.trace.metadata.pending_spans  # nothing waited for the device
    assert not any(cell.is_running for cell in cells(shell))


def test_the_picture_names_cells_and_what_is_out_of_date(shell, lab):
    for key, cell in [
        ("one", f"x = {BIG}\nn = 3"),
        ("two", "left = x @ x"),
        ("three", "right = x + 1"),
        ("four", "both = left + right"),
    ]:
        good(shell, f"%%gpustream {key}\n{cell}", key)
    lab.synchronize()
    found = good(shell, "%gpugraph")
    one, two, three, four = (f"In [{cell.number}]" for cell in found.cells if cell.streams)
    assert any(name.startswith(f"{four}, critical: ") for name in found.trace.names)
    assert f"critical path {one} &gt; {two} &gt; {four}" in found._repr_html_()
    assert all(", out of date" not in name for name in found.trace.names)
    assert all(len(row) <= 80 for row in str(found).splitlines())
    reads = {cell: row for row in str(found).splitlines() for cell in (one, two, three, four) if row.startswith(f"{cell} ")}
    assert f"{two}; {three}" in reads[four]  # no variable stands beside the number of another one's cell
    assert f"{one}: x" in reads[two]
    good(shell, f"%%gpustream one\nx = {BIG}", "one")
    lab.synchronize()
    found = good(shell, "%gpugraph")
    assert sum(", out of date" in name for name in found.trace.names) == 3
    assert ", out of date" in found._repr_html_()


def test_a_new_session_begins_a_new_graph(shell, lab):
    good(shell, f"a = {BIG}")
    good(shell, "%gpulab start --backend sim")
    assert "no cell has run" in str(good(shell, "%gpugraph"))
    good(shell, f"b = {BIG}")
    assert [cell.text for cell in cells(shell)] == [f"b = {BIG}"]


def test_a_cell_that_runs_a_cell_is_one_cell(shell, lab):
    good(shell, "x = lab.xp.ones(8)")
    good(shell, "y = x + 1\nget_ipython().run_cell('z = y + 1', store_history=True)\nw = y + 2")
    good(shell, "v = w * 2")
    assert [cell.text for cell in cells(shell)][-1] == "v = w * 2"


def test_a_cell_that_fails_says_so(shell, lab):
    run(shell, "x = lab.xp.ones(8)\n1 / 0")
    assert [cell.is_failed for cell in cells(shell)] == [True]


def test_a_graph_of_nothing_says_so(shell, lab):
    assert "no cell has run" in str(good(shell, "%gpugraph"))
