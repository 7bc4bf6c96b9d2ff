"""The file of a spool: it only ever holds whole batches, and perhaps the beginning of one more."""

from __future__ import annotations

import os
import time
from os import PathLike
from pathlib import Path

from gpustreamlab.errors import OptionError, TraceFileError

DEFAULT_LIMIT_BYTES = 16 << 30
"""How large a spool may become: about a billion spans."""
LEAST_LIMIT_BYTES = 1 << 16


class SpoolFile:
    """A new file to append to. Each write goes to the system at once: a killed process loses nothing of it.

    Parameters
    ----------
    path
        Where; it must not hold anything yet. True chooses a name in the current folder.
    limit_bytes
        How large it may become.

    Raises
    ------
    OptionError
        If it is no path, or no size.
    TraceFileError
        If it cannot be written, or holds something.
    """

    def __init__(
        self,
        path: str | PathLike[str] | bool,  # noqa: FBT001 - `spool=True` is what the user types
        *,
        limit_bytes: int = DEFAULT_LIMIT_BYTES,
    ) -> None:
        self._descriptor = -1
        self.limit_bytes = _check_limit(limit_bytes)
        self.path = _chosen_path(path)
        self._is_new = not os.path.lexists(self.path)
        self.size_bytes = 0
        """Bytes that count; what stands behind them is the rest of a write that failed."""
        self._descriptor = _open_new(self.path)

    def __del__(self) -> None:
        self.close()

    @property
    def is_gone(self) -> bool:
        """True if the file was removed: what is written then goes nowhere."""
        return os.fstat(self._descriptor).st_nlink == 0

    def append(self, data: bytes) -> None:
        """Append bytes; where that fails, or is interrupted, none of them count."""
        if os.fstat(self._descriptor).st_size != self.size_bytes:
            os.ftruncate(self._descriptor, self.size_bytes)
        os.lseek(self._descriptor, self.size_bytes, os.SEEK_SET)
        left = memoryview(data)
        while left:
            left = left[os.write(self._descriptor, left) :]
        self.size_bytes += len(data)

    def cut(self) -> None:
        """Give back what a failed write has left behind."""
        os.ftruncate(self._descriptor, self.size_bytes)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def discard(self) -> None:
        """Close the file, and remove it if it was not there before: nothing came of what it was for."""
        self.close()
        if self._is_new:
            self.path.unlink(missing_ok=True)


def open_spool_file(path: str | PathLike[str] | bool | None, limit_bytes: int) -> SpoolFile | None:  # noqa: FBT001
    """Return the file of ``Session(spool=path)``, or None where none is asked for."""
    _check_limit(limit_bytes)
    return None if path is None or path is False else SpoolFile(path, limit_bytes=limit_bytes)


def _check_limit(value: object) -> int:
    if type(value) is not int or value < LEAST_LIMIT_BYTES:
        raise OptionError(
            f"spool_limit_bytes is {value!r}; it must be a number of bytes, at least {LEAST_LIMIT_BYTES:,}. "
            "Use for example gpustreamlab.Session(spool='run.gsl', spool_limit_bytes=4 << 30)."
        )
    return value


def _chosen_path(path: object) -> Path:
    if path is True:
        return _free_path(Path(time.strftime("gpustreamlab-%Y%m%d-%H%M%S.gsl")).absolute())
    if not isinstance(path, (str, PathLike)) or not str(path):
        raise OptionError(
            f"spool is {path!r}; it must be a file name, or True to have one chosen. Use gpustreamlab.Session(spool='run.gsl')."
        )
    try:
        return Path(path).expanduser().absolute()
    except (RuntimeError, TypeError, ValueError) as error:
        raise _not_opened(path, error) from error


def _open_new(path: Path) -> int:
    try:
        if path.is_dir():
            raise _not_opened(path, "it is a folder", f"Name a file in it: spool={str(path / 'run.gsl')!r}.")
        if path.exists() and not path.is_file():
            raise _not_opened(path, "it is no file")
        if path.exists() and path.stat().st_size:
            raise _not_opened(path, "it holds something already", f"Use spool={str(_free_path(path))!r}.")
        return os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    except TraceFileError:
        raise
    except (OSError, ValueError) as error:
        raise _not_opened(path, getattr(error, "strerror", None) or error) from error


def _free_path(path: Path) -> Path:
    """Return the path, or the first one after it that is not taken."""
    number = 2
    free = path
    while free.exists():
        free = path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1
    return free


def _not_opened(
    path: object, reason: object, fix: str = "Give a path in a writable folder, or leave spool out."
) -> TraceFileError:
    return TraceFileError(f"The run cannot be spooled to {str(path)!r}: {reason}. {fix}")
