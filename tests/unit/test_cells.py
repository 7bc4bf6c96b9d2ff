"""The body of a cell magic: what of it is compiled, run and returned."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from gpustreamlab.notebook.cells import awaits_at_top_level, compile_cell, magic_transformer
from tests.helpers.shells import one_shell

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")


@pytest.fixture
def shell():
    with one_shell() as made:
        yield made


class Around:
    """Notes when the cell began and what it ended with."""

    def __init__(self):
        self.seen = []

    def __enter__(self):
        self.seen.append("in")

    def __exit__(self, kind, error, trace):
        self.seen.append(kind)


def run(shell, body, namespace=None):
    cell = compile_cell(shell, body)
    around = Around()
    names = {} if namespace is None else namespace
    value = asyncio.run(cell.run_async(names, around)) if cell.is_async else cell.run(names, around)
    return value, around.seen, names


VALUES = {
    "expression": ("1 + 1", 2),
    "statements, then an expression": ("x = 20\nx + 1", 21),
    "statement last": ("x = 20", None),
    "empty": ("", None),
    "comment": ("# nothing", None),
    "None": ("None", None),
    "expression in a block": ("if True:\n    5", None),
    "await last": ("import asyncio\nawait asyncio.sleep(0, 7)", 7),
    "await in the middle": ("import asyncio\nx = await asyncio.sleep(0, 7)\nx + 1", 8),
    "await, then a statement": ("import asyncio\nx = await asyncio.sleep(0, 7)", None),
    "await alone": ("await f()", 3),
    "awaiting loop": ("y = [i async for i in g()]\nlen(y)", 2),
}


@pytest.mark.parametrize(("body", "value"), VALUES.values(), ids=VALUES)
def test_the_value_is_that_of_the_last_expression(shell, body, value):
    async def f():
        return 3

    async def g():
        yield 1
        yield 2

    result, seen, _ = run(shell, body, {"f": f, "g": g})
    assert result == value
    assert seen == ["in", None]


@pytest.mark.parametrize("body", ["1 / 0", "x = 1 / 0\n1", "import asyncio\nawait asyncio.sleep(0)\n1 / 0"])
def test_an_error_passes_through_what_is_around(shell, body):
    cell = compile_cell(shell, body)
    around = Around()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(cell.run_async({}, around)) if cell.is_async else cell.run({}, around)
    assert around.seen == ["in", ZeroDivisionError]


def test_a_cancelled_cell_leaves_what_is_around(shell):
    cell = compile_cell(shell, "import asyncio\nawait asyncio.sleep(60)")
    around = Around()

    async def cancel():
        task = asyncio.ensure_future(cell.run_async({}, around))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert around.seen == ["in", asyncio.CancelledError]


def test_names_are_the_cells(shell):
    _, _, names = run(shell, "def f():\n    return y\ny = 4\nf()")
    assert (names["y"], names["f"]()) == (4, 4)


def test_line_numbers_are_those_of_the_whole_cell(shell):
    with pytest.raises(SyntaxError) as told:
        compile_cell(shell, "x = 1\ny = = 2")
    assert told.value.lineno == 3
    cell = compile_cell(shell, "x = 1\n\n1 / 0", lines_above=4)
    with pytest.raises(ZeroDivisionError) as raised:
        cell.run({}, contextlib.nullcontext())
    assert raised.traceback[-1].lineno + 1 == 7


def test_a_body_that_does_not_compile_awaits_nothing(shell):
    assert not awaits_at_top_level(shell, "x = = 1")
    assert not awaits_at_top_level(shell, "x = '\0'")
    assert not awaits_at_top_level(shell, "async def f():\n    await g()")
    assert awaits_at_top_level(shell, "await g()")


TRANSFORMED = {
    "another magic": (["%%time\n", "await f()\n"], None),
    "a longer name": (["%%gpustreams copy\n", "await f()\n"], None),
    "an ordinary body": (["%%gpustream copy\n", "f()\n"], None),
    "no lines": ([], None),
    "a body that awaits": (
        ["%%gpustream copy --sync\n", "await f()\n"],
        "await get_ipython().run_cell_magic('gpustream', 'copy --sync', 'await f()\\n')\n",
    ),
    "no body": (["%%gpustream -h\n"], "get_ipython().run_cell_magic('gpustream', '-h', '\\n')\n"),
}


@pytest.mark.parametrize(("lines", "expected"), TRANSFORMED.values(), ids=TRANSFORMED)
def test_only_what_a_magic_cannot_have_is_rewritten(shell, lines, expected):
    transform = magic_transformer(shell, "gpustream")
    assert transform(list(lines)) == (lines if expected is None else [expected])


def test_nothing_is_awaited_where_the_user_turned_it_off(shell):
    shell.autoawait = False
    lines = ["%%gpustream copy\n", "await f()\n"]
    assert magic_transformer(shell, "gpustream")(list(lines)) == lines
