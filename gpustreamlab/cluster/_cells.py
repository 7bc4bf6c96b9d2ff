"""Cells on an engine, as a notebook runs them. ipyparallel has an IPython shell there; others make one for their first cell."""

from __future__ import annotations

import ast
import asyncio
import atexit
import threading
from collections.abc import Coroutine
from concurrent.futures import wait
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from IPython import get_ipython
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from gpustreamlab.notebook._cell_text import magic_call
from gpustreamlab.notebook.cells import compile_cell
from gpustreamlab.notebook.parsers import PARSERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpustreamlab.cluster._calls import Printed
    from gpustreamlab.session import Session

_ASKING = frozenset({"debug", "edit", "gui", "pdb", "pylab", "recall", "rerun"})
"""Magics that need somebody at a keyboard or a screen."""
LOOK_EVERY_S = 0.1
"""How often a cell that awaits looks for Ctrl-C."""


def run_cell(
    session: Session, source: str, stream: str, label: str, options: dict[str, Any], lines_above: int, printed: Printed
) -> dict[str, Any] | None:
    """Run a cell with a stream selected, as one range, and return its last expression by MIME type, None where it shows none.

    Parameters
    ----------
    session
        The session; ``lab`` in the cell.
    source
        The cell.
    stream
        Name of the stream; made on first use.
    label
        Name of the range, and of the cell in tracebacks.
    options
        Of the stream, as for `Session.stream`; and ``sync``, whether to wait for its work.
    lines_above
        How many lines the cell has above what is run here.
    printed
        Takes what is shown.
    """
    shell = engine_shell()
    shell.user_ns["lab"] = session
    _require_possible(shell, source)
    code = compile_cell(shell, source, lines_above=lines_above, file=f"<{label}>")
    options = dict(options)
    waits = options.pop("sync", False)
    chosen = session.stream(stream, **options)
    around = session.on(chosen, label)
    with _shown_in(shell, printed):
        names = shell.user_ns
        value = _awaited(code.run_async(names, around)) if code.is_async else code.run(names, around)
        if waits:
            chosen.synchronize()
        shell.events.trigger("post_execute")  # on which plots are drawn
        for payload in shell.payload_manager.read_payload():  # what `name?` shows, where there is a kernel
            if payload.get("source") == "page":
                printed.show(payload["data"])
        shell.payload_manager.clear_payload()
        if value is None or DisplayHook.semicolon_at_end_of_expression(source):
            return None
        with session.select(chosen):
            data, _ = shell.display_formatter.format(value)
        return data or None  # it may have shown itself


class EngineShell(InteractiveShell):  # type: ignore[misc]
    """The shell of an engine that has none of its own."""

    def enable_gui(self, gui: str | None = None) -> None:
        """Be asked for no window, as ``%matplotlib inline`` does; or refuse."""
        if gui is not None:
            raise UsageError(f"An engine has no screen for windows of {gui}. Use %matplotlib inline.")


def engine_shell() -> Any:
    """Return the IPython shell of this process; one is made where it has none."""
    shell = get_ipython()
    if shell is None:
        config = Config()
        config.HistoryManager.enabled = False  # it would be a file in the home of all engines
        config.InteractiveShell.colors = "nocolor"
        shell = EngineShell.instance(config=config)
        atexit.unregister(shell.atexit_operations)  # it has nothing to save, and would collect garbage as the process ends
    return shell


def _require_possible(shell: Any, source: str) -> None:
    """Refuse magics that cannot do on an engine what they do in a notebook."""
    try:
        tree = ast.parse(shell.transform_cell(source))
    except (SyntaxError, ValueError):  # told by who compiles it
        return
    for node in ast.walk(tree):
        method, name, _ = magic_call(node)
        magic = f"{'%%' if method == 'run_cell_magic' else '%'}{name}"
        if method and name in _ASKING:
            raise UsageError(
                f"{magic} needs somebody at the keyboard, and at an engine there is nobody. Run it in the notebook."
            )
        if method and name in PARSERS:
            raise UsageError(f"{magic} works in the notebook and not on engines. There, use lab.stream(...), lab.on(...).")
        if isinstance(node, ast.Expr) and _called(node.value) in {"exit", "quit"}:
            raise UsageError(
                "exit would end the engine for good. Leave it out; lab.close() in the notebook closes the sessions."
            )


def _called(node: ast.expr) -> str:
    """Return the name that an expression is, or calls; empty for any other."""
    named = node.func if isinstance(node, ast.Call) else node
    return named.id if isinstance(named, ast.Name) else ""


@contextmanager
def _shown_in(shell: Any, printed: Printed) -> Iterator[None]:
    """Keep what is shown by ``display``."""

    class Publisher(DisplayPublisher):  # type: ignore[misc]
        def publish(self, data: dict[str, Any], *_: Any, **__: Any) -> None:
            printed.show(dict(data))

        def clear_output(self, *_: Any, **__: Any) -> None:
            """Keep all of it: each output is seen."""

    before, shell.display_pub = shell.display_pub, Publisher(parent=shell)
    try:
        yield
    finally:
        shell.display_pub = before


def _awaited(cell: Coroutine[Any, Any, object]) -> object:
    """Run a coroutine on the loop of all cells, and wait for it."""

    async def kept() -> tuple[object, Exception | None]:
        try:
            return await cell, None
        except Exception as error:  # noqa: BLE001 - as it is: asyncio makes a TimeoutError anew, which then tells no place
            return None, error

    future = asyncio.run_coroutine_threadsafe(kept(), _loop()[0])
    try:
        while not wait([future], LOOK_EVERY_S).done:
            pass  # Ctrl-C comes between two waits, where this is not the main thread
        value, error = future.result()
    finally:
        future.cancel()
    if error is not None:
        raise error
    return value


@cache
def _loop() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """Start an event loop in a thread. One for all cells: a task that one has begun is awaited by another."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="gpustreamlab cells", daemon=True)
    thread.start()
    return loop, thread


def end_loop() -> None:
    """End the event loop of cells, where one has begun."""
    if _loop.cache_info().currsize:
        loop, thread = _loop()
        _loop.cache_clear()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
