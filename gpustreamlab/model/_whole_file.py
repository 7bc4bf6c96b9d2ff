"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from gpustreamlab.errors import TraceFileError


def write_file_whole(path: str | PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a file beside its target and move it there, so that a failure leaves no half a file.

    Raises
    ------
    TraceFileError
        If the folder is missing or nothing can be written there.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        write(partial)
        partial.replace(target)
    except OSError as error:
        raise TraceFileError(
            f"{str(target)!r} cannot be written: {error.strerror or error}. Give a path in a writable folder."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
