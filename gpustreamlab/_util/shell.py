"""What the surrounding IPython can show, and a progress bar for what takes longer than a second."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress


def running_kernel_shell() -> Any | None:
    """Return the IPython shell of the notebook that runs this, or None: in a script or a terminal.

    IPython is not imported: where it runs, it is there.
    """
    module = sys.modules.get("IPython")
    shell = None if module is None else module.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def shows_widgets(shell: Any) -> bool:
    """Tell whether the running cell came from a page that can show widgets.

    JupyterLab, Notebook 7 and VS Code say which cell they run. Runs without a page (nbclient, ``nbconvert --execute``) and
    text consoles do not.
    """
    try:
        parent = shell.get_parent()
    except (AttributeError, LookupError):
        return False
    metadata = parent.get("metadata") if isinstance(parent, Mapping) else None
    return isinstance(metadata, Mapping) and "cellId" in metadata


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
            tell(f"{text}: {done} ({progress.tasks[bar].completed:,.0f} of {count:,})")
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
