"""A progress bar for what takes longer than a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

PATIENCE_S = 1.0
"""Nothing is shown for what has ended by then."""


@contextmanager
def steps(count: int, text: str) -> Iterator[Callable[[str], None]]:
    """Show in a ``with`` block how much is done; yield what is called behind each step, with what it was.

    It is drawn between steps alone, by no thread of its own, which would disturb what is measured.
    """
    console = Console(stderr=True)
    progress = Progress(
        console=console, auto_refresh=False, transient=True, disable=not (console.is_terminal or console.is_jupyter)
    )
    bar = progress.add_task(text, total=count)
    began_s = time.monotonic()

    def step(done: str) -> None:
        progress.update(bar, advance=1, description=f"{text}: {done}")
        if time.monotonic() - began_s > PATIENCE_S:
            if not progress.live.is_started:
                progress.start()
            progress.refresh()

    try:
        yield step
    finally:
        if progress.live.is_started:
            progress.stop()
