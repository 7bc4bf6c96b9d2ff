"""Cells on streams that are chosen for them, and the graph of cells, in a real shell."""

from __future__ import annotations

import re
import signal

import numpy as np
import pytest
from IPython.utils.capture import capture_output

from gpustreamlab import Session
from gpustreamlab.notebook.auto import CellStreams
from tests.helpers.long_runs import count
from tests.helpers.random_cells import SETUP, random_cells
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
def in_turn(monkeypatch):
    """Put each cell on another stream than the one before, so that nothing is in order by chance."""
    monkeypatch.setattr(CellStreams, "_choose", lambda streams, marks: f"auto-{streams._turn % streams.count + 1}")


@pytest.fixture
def lab(shell):
    run(shell, "%gpulab start --backend sim --auto")
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


def graph(shell):
    shell.user_ns["lab"].synchronize()
    return {cell.text.strip().splitlines()[0]: cell for cell in good(shell, "%gpugraph").cells}


def streams(shell):
    return {text: cell.streams for text, cell in graph(shell).items() if cell.streams}


BIG = "lab.xp.ones((256, 256))"
LONG = "for _ in range(30):\n    {0} = {0} @ {0} * 0.001"


def cells(shell):
    shell.user_ns["lab"].synchronize()
    return good(shell, "%gpugraph").cells


def test_cells_that_share_nothing_overlap_and_others_wait_on_the_device(shell, lab):
    for cell in [f"a = {BIG}", f"b = {BIG}", LONG.format("a"), LONG.format("b"), "c = a + b"]:
        good(shell, cell)
    *_, first, second, last = cells(shell)
    assert first.streams != second.streams
    assert second.start_ns < first.end_ns
    assert last.start_ns >= max(first.end_ns, second.end_ns)
    assert len(last.waits) == 1  # it goes on in the stream of one of them
    assert last.reads == {first.number: {"a"}, second.number: {"b"}}
    assert not lab.memory.hazards().hazard_count


def test_cells_that_only_read_one_array_overlap(shell, lab):
    good(shell, f"x = {BIG}")
    for name in "ab":
        good(shell, f"{name} = x + 1\n" + LONG.format(name))
    _, first, second = cells(shell)
    assert first.streams != second.streams
    assert second.start_ns < first.end_ns
    good(shell, "x += 1")
    last = cells(shell)[-1]
    assert last.start_ns >= first.start_ns
    assert last.start_ns > second.start_ns
    assert not lab.memory.hazards().hazard_count


PROGRAMS = {
    "view": ["x = X", "v = x[1:]", "v += 1", "y = x * 2", "del x", "z = v + 1"],
    "in place after reads": ["x = X", "a = x * 3", "b = x * 5", "x += 7", "c = a + b + x"],
    "function": ["x = X", "def f(n):\n    return x * n", "a = f(2)", "x[0] = 9", "b = f(3)", "s = a + b"],
    "closure": [
        "def make():\n    a = X\n    def add(n):\n        a.__iadd__(n)\n        return a * 1\n    return add",
        "f = make()",
        "y = f(1)",
        "z = f(2)",
    ],
    "list": ["l = [X, X + 1]", "l[0] += 1", "y = l[1] * 2", "l.append(y)", "z = sum(l)"],
    "instance": [
        "class Net:\n    def __init__(self):\n        self.w = X\n    def step(self):\n        self.w += 1",
        "n = Net()",
        "n.step()",
        "y = n.w * 2",
        "n.step()",
        "z = n.w + y",
    ],
    "rebinding": ["x = X", "y = x * 2", "x = y + 1", "y = x * 3", "x = y + x"],
    "generator": ["x = X", "g = (x * k for k in range(3))", "x += 1", "y = next(g)", "z = next(g) + y"],
    "outputs": ["x = X\nx * 2", "y = _ + 1", "y += x", "z = _ * 2"],
    "exec": ["x = X", "exec('x += 1')", "y = x * 2", "exec('y += x')", "z = y + x"],
    "time": ["x = X", "%time x += 1", "%%time\ny = x * 2", "%time z = y + x"],
    "own streams": [
        "x = X",
        "lab.stream('copy')",
        "with lab.on('copy'):\n    y = x * 2",
        "z = y + 1",
        "with lab.on('copy'):\n    y += z",
    ],
    "a new stream": ["x = X", "with lab.on(lab.stream('new')):\n    y = x * 2", "z = y + x"],
    "streams in a function": [
        "x = X",
        "lab.stream('s')",
        "def f(a):\n    with lab.on('s'):\n        return a * 2",
        "y = f(x)",
        "x += 1",
        "z = f(x)",
    ],
    "stream magics": ["x = X", "%%gpustream copy\ny = x * 2", "x += 1", "%%gpustream other\nz = y + x", "w = z + y"],
    "program magics": [
        "x = X",
        "%%gpuprogram\ny = x @ x\nz = x + 1",
        "x += 1",
        "%%gpuprogram --on p,q\nw = y + z\nv = x * 2",
        "u = w + v",
    ],
    "async": ["x = X", "import asyncio\nawait asyncio.sleep(0)\ny = x * 2", "x += 1", "await asyncio.sleep(0)\nz = y + x"],
    "cache": [
        "import functools\n@functools.cache\ndef load(n):\n    return X * n",
        "x = load(2)",
        "load(2).__iadd__(1)",
        "y = load(2) * 3",
        "x += 1",
        "z = load(2) + y",
    ],
    "out": ["x = X", "o = X * 0", "lab.xp.add(x, x, out=o)", "y = o + 1", "lab.xp.multiply(x, 3, out=o)", "z = o + y"],
    "host values": ["x = X", "s = float(x.sum())", "y = x * s", "t = y.get()[0, 0]", "x *= t"],
}
"""Cells that depend on each other; X stands for a new array."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_results_are_those_of_a_plain_run_without_hazards(shell, lab, in_turn, program):
    expected: dict[str, object] = {}
    for is_auto in (False, True):
        shell.user_ns["lab"].close()
        run(shell, f"%gpulab start --backend sim {'--auto' if is_auto else ''}")
        made = shell.user_ns["lab"]
        for cell in PROGRAMS[program]:
            good(shell, cell.replace("X", "lab.xp.arange(4096, dtype='float64').reshape(64, 64)"))
            if not is_auto:
                made.synchronize()
        made.synchronize()
        values = {name: value for name, value in shell.user_ns.items() if isinstance(value, type(made.xp.ones(1)))}
        found = {name: value.get() for name, value in values.items() if len(name) == 1}
        if is_auto:
            hazards = made.memory.hazards()
            assert hazards.access_count > 0
            assert not hazards.hazard_count, str(hazards)
            assert found.keys() == expected.keys()
            assert all(np.array_equal(found[name], expected[name]) for name in found)
        expected = found
        shell.user_ns.pop("c", None)


@pytest.mark.parametrize("seed", range(count(10, 25)))
def test_random_cells_give_the_results_of_a_plain_run_without_hazards(shell, in_turn, seed):
    found = {}
    for option in ("", "--auto"):
        run(shell, f"%gpulab start --backend sim --capture ranges {option}")
        good(shell, SETUP)
        lab = shell.user_ns["lab"]
        lab.synchronize()
        for cell in random_cells(seed):
            run(shell, cell)
            if not option:
                lab.synchronize()
        lab.synchronize()
        if option:
            assert not lab.memory.hazards().hazard_count, f"{lab.memory.hazards()}\n" + "\n---\n".join(random_cells(seed))
        found[option] = [shell.user_ns[name].get().tobytes() for name in "abcd"]
    assert found[""] == found["--auto"]


@pytest.mark.parametrize(
    "cell",
    [
        "n, text, nothing, ratio, many = 3, 'a', None, 0.5, [1, 2]\nx = x * n * ratio",
        "def shift(n, by=None):\n    global x\n    x += n\n    return x * n\ny = shift(3)",
        "import math\nfor i in range(3):\n    x += math.sqrt(i)",
        "shell = get_ipython()\nx += 1",
        "class Model:\n    depth = 3\n    def step(self, a):\n        return a * self.depth\nm = Model()\ny = m.step(x)",
        "settings = {'rate': 0.1, 'names': ('a', 'b')}\nx *= settings['rate']",
    ],
)
def test_numbers_texts_functions_and_classes_hide_nothing(shell, lab, cell):
    run(shell, "x = lab.xp.ones(8)")
    for _ in range(2):  # the second finds what the first has made
        run(shell, cell)
    assert [one.barrier for one in shell.run_line_magic("gpugraph", "").cells if one.barrier] == []


def test_what_cannot_be_known_waits_for_all(shell, lab):
    good(shell, f"a = {BIG}\n" + LONG.format("a"))
    good(shell, f"b = {BIG}\n" + LONG.format("b"))
    good(shell, "exec('c = lab.xp.ones(4)')")
    first, second, last = cells(shell)
    assert last.barrier == "uses exec"
    assert last.start_ns >= max(first.end_ns, second.end_ns)
    good(shell, f"d = {BIG}")
    assert cells(shell)[-1].start_ns >= last.end_ns


@pytest.mark.parametrize(
    ("cell", "error"),
    [("1 / 0", ZeroDivisionError), ("import signal\nsignal.raise_signal(signal.SIGINT)", KeyboardInterrupt)],
)
def test_an_error_and_an_interrupt_leave_no_selection_and_are_ordered(shell, lab, cell, error):
    good(shell, f"a = {BIG}")
    result, _ = run(shell, LONG.format("a") + f"\n{cell}")
    assert isinstance(result.error_in_exec, error)
    assert lab.current is None
    good(shell, "b = a + 1")
    failed, last = cells(shell)[1:]
    assert (failed.is_failed, last.is_failed) == (True, False)
    assert last.start_ns >= failed.end_ns
    assert not lab.memory.hazards().hazard_count
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_selection_that_a_cell_leaves_open_disturbs_no_later_one(shell, lab):
    good(shell, "lab.stream('s')")
    run(shell, "lab.on('s').__enter__()\nx = lab.xp.ones(4)")
    assert lab.current.name == "s"  # as the cell has left it
    result, shown = run(shell, "y = x + 1\nlab.current.name")
    assert (result.result, "Error" in shown) == ("auto-1", False)
    assert not lab.memory.hazards().hazard_count


def test_memory_that_another_stream_uses_is_kept(shell, lab):
    good(shell, f"a = {BIG}")
    good(shell, f"b = {BIG}\n" + LONG.format("b"))
    good(shell, "c = a + b")
    good(shell, "del a, b")
    for _ in range(3):
        good(shell, f"d = {BIG}\nd += 1")
    assert not lab.memory.hazards().hazard_count
    lab.synchronize()
    assert not lab.memory.hazards().hazard_count


def test_streams_are_bounded_and_a_wrong_number_is_told(shell, lab):
    for name in "abcdefg":
        good(shell, f"{name} = {BIG}\n" + LONG.format(name))
    assert {name for name in lab.streams if name.startswith("auto-")} == {"auto-1", "auto-2", "auto-3", "auto-4"}
    for line in ["%gpulab auto --streams 33", "%gpulab auto --streams 0"]:
        result, shown = run(shell, line)
        assert "1 to 32" in shown
        assert not result.success


def test_it_is_switched_off_and_on_again(shell, lab):
    good(shell, "x = lab.xp.ones(8)")
    assert "as they are" in run(shell, "%gpulab auto --off")[1]
    good(shell, "y = x + 1")
    assert "one of 2" in run(shell, "%gpulab auto --streams 2")[1]
    good(shell, "z = y + 1")
    assert not lab.memory.hazards().hazard_count
    run(shell, "%gpulab close")
    assert run(shell, "x = 1")[0].success


@pytest.mark.parametrize(
    "line", ["%gpulab start --off", "%gpulab show --auto", "%gpulab show --streams 2", "%gpulab start --streams 2"]
)
def test_misuse_is_one_line(shell, lab, line):
    result, shown = run(shell, line)
    assert not result.success
    assert "UsageError" in shown
    assert "Traceback" not in shown


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
    for cell in [f"a = {BIG}", f"b = {BIG}", "lab.synchronize()", LONG.format("a"), LONG.format("b"), "c = a + b"]:
        good(shell, cell)
    found = good(shell, "%gpugraph")
    first, second, last = found.cells[-3:]
    assert [cell.is_running for cell in found.cells] == [False, False, False, True, True, True]
    assert first.streams != second.streams
    assert last.streams in (first.streams, second.streams)
    assert f"running: In [{first.number}], In [{second.number}], In [{last.number}]" in str(found).replace("\n  ", " ")
    assert len(found.trace) == 2  # of work that has not ended nobody knows the times
    assert found.trace.metadata.pending_spans == 3
    assert last.reads.keys() == {first.number, second.number}
    assert "3 spans have not ended yet" in found._repr_html_()
    assert lab.trace.metadata.pending_spans  # nothing waited for the device
    assert not any(cell.is_running for cell in cells(shell))


def test_the_picture_names_cells_and_what_is_out_of_date(shell, lab):
    good(shell, f"x = {BIG}\nn = 3", "one")
    good(shell, "left = x @ x", "two")
    good(shell, "right = x + 1", "three")
    good(shell, "both = left + right", "four")
    lab.synchronize()
    found = good(shell, "%gpugraph")
    one, two, three, four = (f"In [{cell.number}]" for cell in found.cells if cell.streams)
    assert f"{four}, critical: both = left + right" in found.trace.names
    assert f"critical path {one} &gt; {two} &gt; {four}" in found._repr_html_()
    assert all(", out of date" not in name for name in found.trace.names)
    assert all(len(row) <= 80 for row in str(found).splitlines())
    reads = {cell: row for row in str(found).splitlines() for cell in (one, two, three, four) if row.startswith(f"{cell} ")}
    assert f"{two}; {three}" in reads[four]  # no variable stands beside the number of another one's cell
    assert f"{one}: x" in reads[two]
    good(shell, f"x = {BIG}", "one")
    lab.synchronize()
    found = good(shell, "%gpugraph")
    assert sum(", out of date" in name for name in found.trace.names) == 3
    assert ", out of date" in found._repr_html_()


def test_a_new_session_begins_a_new_graph(shell, lab):
    good(shell, f"a = {BIG}")
    good(shell, "%gpulab start --backend sim --auto")
    assert "no cell has run" in str(good(shell, "%gpugraph"))
    good(shell, f"b = {BIG}")
    assert [cell.text for cell in cells(shell)] == [f"b = {BIG}"]


def test_a_program_that_fails_is_ordered(shell, lab):
    good(shell, f"x = {BIG}\nflag = [1]")
    code = "%%gpuprogram\na = x @ x\nb = x @ x @ x\nb /= flag[0]\nc = 1 / flag[0]"
    good(shell, code)
    run(shell, "flag[0] = 0")
    assert isinstance(run(shell, code)[0].error_in_exec, ZeroDivisionError)
    good(shell, "a += b\nx += 1")
    assert not lab.memory.hazards().hazard_count


def test_a_cell_that_closes_the_session_ends_it(shell, lab):
    good(shell, "x = lab.xp.ones(8)")
    result, shown = run(shell, "y = x + 1\nlab.close()")
    assert result.success
    assert "Error" not in shown
    assert run(shell, "z = 1")[0].success


def test_a_cell_that_runs_a_cell_is_one_cell(shell, lab):
    good(shell, "x = lab.xp.ones(8)")
    good(shell, "y = x + 1\nget_ipython().run_cell('z = y + 1', store_history=True)\nw = y + 2")
    good(shell, "v = w * 2")
    assert [cell.text for cell in cells(shell)][-1] == "v = w * 2"
    assert not lab.memory.hazards().hazard_count


def test_a_graph_of_nothing_says_so(shell, lab):
    assert "no cell has run" in str(good(shell, "%gpugraph"))
