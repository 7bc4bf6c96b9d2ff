"""What the surrounding IPython can show and holds already, and a progress bar for what takes longer than a second."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from rich.console import Console
from rich.progress import Progress

_log = logging.getLogger(__name__)


def running_kernel_shell() -> Any | None:
    """Return the IPython shell of the notebook that runs this, or None: in a script or a terminal.

    IPython is not imported: where it runs, it is there.
    """
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


@cache
def tell_fallback(reason: str) -> None:
    """Say once a process why the simulated device stands in for a GPU, if it does: quietly where a notebook would turn pink."""
    if reason and running_kernel_shell() is not None:
        print("No usable GPU: the simulated device is used. Why: gpustreamlab doctor")  # noqa: T201 - below a cell
    elif reason:
        _log.warning("This session runs on the simulated device. %s", reason)


Cell = tuple[str, str, str]
"""A run of a cell: the page that asked for it, the cell, and which run it is; each by an id."""

_code_cells: dict[str, tuple[str, str]] = {}  # By page: the cell that holds the viewer's code, and its last run


def is_in_marimo() -> bool:
    """Tell whether this runs in a notebook of marimo, which shows widgets, but has no IPython."""
    module = sys.modules.get("marimo")
    return module is not None and bool(module.running_in_notebook())


def running_cell() -> Cell | None:
    """Return which cell runs; None where its outputs are no part of a page that shows those of other cells too.

    Notes
    -----
    Colab and Databricks show each output in a frame of another origin; ``%%capture`` and such keep outputs to themselves.
    """
    shell = running_kernel_shell()
    if shell is None or hasattr(shell.display_pub, "outputs") or "google.colab" in sys.modules or "dbruntime" in sys.modules:
        return None
    try:
        parent = shell.get_parent()
        header = parent["header"]
        return header["session"], parent.get("metadata", {}).get("cellId", header["msg_id"]), header["msg_id"]
    except (AttributeError, LookupError, TypeError):
        return None


def holds_code(cell: Cell | None) -> bool:
    """Tell whether the next output of a cell has to hold the viewer's code: the first of each run of a page's first such cell.

    A page that is loaded again is another one: so code comes back into a notebook from which it was deleted.
    """
    if cell is None:
        return True
    page, name, run = cell
    holder, last_run = _code_cells.setdefault(page, (name, ""))
    if name != holder or run == last_run:
        return False
    _code_cells[page] = (name, run)
    return True


PATIENCE_S = 1.0  # Nothing is shown for what has ended by then


@contextmanager
def steps(count: int, text: str) -> Iterator[Callable[[str], None]]:
    """Show in a ``with`` block how much is done; yield what is called behind each step, with what it was.

    It is drawn between steps alone, by no thread of its own, which would disturb what is measured. In a notebook it is a line
    of text: the bar that `rich` draws there is a widget, of which a saved notebook says "model not found".
    """
    shell, console = running_kernel_shell(), Console(stderr=True, force_jupyter=False)
    progress = Progress(console=console, auto_refresh=False, transient=True, disable=not console.is_terminal)
    bar = progress.add_task(text, total=count)
    shown, began_s = "", time.monotonic()

    def tell(line: str) -> None:
        nonlocal shown
        is_update, shown = bool(shown), shown or uuid.uuid4().hex
        shell.display_pub.publish({"text/plain": line}, transient={"display_id": shown}, update=is_update)  # type: ignore[union-attr]

    def step(done: str) -> None:
        progress.update(bar, advance=1, description=f"{text}: {done}")
        if time.monotonic() - began_s <= PATIENCE_S:
            return
        if shell is not None:
            number = progress.tasks[bar].completed
            tell(f"{text}: {done} ({number:,.0f} of {max(number, count):,.0f})")  # the best may be measured more often
            return
        if not progress.live.is_started:
            progress.start()
        progress.refresh()

    try:
        yield step
    finally:
        if shown:
            tell("")
        if progress.live.is_started:
            progress.stop()
