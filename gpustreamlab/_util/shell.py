"""What the surrounding IPython can show."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any


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
