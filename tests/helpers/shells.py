"""An IPython shell for a test."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@contextmanager
def one_shell() -> Iterator[InteractiveShell]:
    """Make the shell of this process, without a history; it is forgotten at the end."""
    config = Config()
    config.HistoryManager.enabled = False
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(config=config)
    try:
        yield shell
    finally:
        InteractiveShell.clear_instance()
        # Each shell would collect garbage as the process ends: 0.3 s for each of some hundred tests.
        atexit.unregister(shell.atexit_operations)
