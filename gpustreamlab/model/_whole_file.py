"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from gpustreamlab.errors import TraceFileError


def write_file_whole(path: str | PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file beside its target and move it there, so that nobody ever finds half a file.

    Raises
    ------
    TraceFileError
        If the folder is missing, nothing can be written there, or something other than a file stands there.

    Notes
    -----
    A link is followed, and a file that is replaced keeps its mode. Each call writes in a folder of its own, where nobody else
    can put a link and a new file gets the mode that it would get beside its target.
    """
    target = _writable_target(path)
    try:
        with tempfile.TemporaryDirectory(prefix=".gpustreamlab-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            partial = Path(folder, target.name)
            write(partial)
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, partial)
            partial.replace(target)
    except OSError as error:
        raise _not_written(path, error.strerror or error) from error


def _writable_target(path: str | PathLike[str]) -> Path:
    """Return the file that a path stands for; raise `TraceFileError` where there cannot be one."""
    try:
        target = Path(path).expanduser().resolve()
        if not target.parent.is_dir():
            raise _not_written(path, f"there is no folder {str(target.parent)!r}")
        if target.exists() and not target.is_file():
            raise _not_written(path, "a folder or a device stands there")
    except TraceFileError:
        raise
    except OSError as error:
        raise _not_written(path, error.strerror or error) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise _not_written(path, error) from error
    return target


def _not_written(path: object, reason: object) -> TraceFileError:
    return TraceFileError(f"{str(path)!r} cannot be written: {reason}. Give a path in a writable folder.")
