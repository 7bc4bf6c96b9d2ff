"""What to type to install the package's extras: from an index, or from the clone that this package runs from."""

from __future__ import annotations

from pathlib import Path

__all__ = ["clone_folder", "install_line", "update_line"]


def clone_folder() -> Path | None:
    """Return the clone that the package is imported from; None where it was installed as a wheel.

    An editable install, and a clone on ``PYTHONPATH``, have the package beside its ``pyproject.toml``; a wheel does not.
    """
    folder = Path(__file__).resolve().parent.parent
    return folder if (folder / "pyproject.toml").is_file() else None


def install_line(extra: str) -> str:
    """Return what to type to install an extra of the package.

    Parameters
    ----------
    extra
        Its name, or several with commas between them.

    Examples
    --------
    >>> install_line("cuda13").startswith("pip install ")
    True
    """
    clone = clone_folder()
    if clone is None:
        return f"pip install 'gpustreamlab[{extra}]'"
    return f"pip install -e '{_shown(clone)}[{extra}]'"


def update_line() -> str:
    """Return what to type to get a newer version of the package."""
    clone = clone_folder()
    return "pip install --upgrade gpustreamlab" if clone is None else f"git -C '{clone}' pull"


def _shown(clone: Path) -> str:
    """Return the clone's folder as pip takes it: a dot where this process runs in it."""
    try:
        return "." if Path.cwd() == clone else str(clone)
    except OSError:  # the current folder was removed
        return str(clone)
