"""Files of Nsight Systems as one SQLite file: unpacked, or exported by nsys itself, in a folder that is removed afterwards."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO

from gpustreamlab._util.progress import steps
from gpustreamlab.errors import TraceFileError

LARGEST_UNPACKED_BYTES = 16 << 30
"""Largest file that is unpacked."""
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
"""What nsys itself writes; only it can read that."""

_MAGIC = b"SQLite format 3\0"
_GZIP = b"\x1f\x8b"
_CHUNK_BYTES = 16 << 20
_LAST_WORDS = 300
"""Characters of what nsys said that a message repeats."""


def is_sqlite(path: str | PathLike[str]) -> bool:
    """Tell by its first bytes whether a file is an SQLite database, packed by gzip or not.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "run.sqlite"
    >>> _ = path.write_bytes(b"SQLite format 3" + bytes(100))
    >>> is_sqlite(path), is_sqlite("missing.sqlite")
    (True, False)
    """
    try:
        with _open(Path(path)) as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except (OSError, EOFError, zlib.error):
        return False


def is_nsys_report(path: str | PathLike[str]) -> bool:
    """Tell by its suffix whether a file is a report of Nsight Systems that was not exported.

    Examples
    --------
    >>> is_nsys_report("run.nsys-rep"), is_nsys_report("run.sqlite")
    (True, False)
    """
    return Path(path).suffix.lower() in REPORT_SUFFIXES


@contextmanager
def as_sqlite(path: str | PathLike[str]) -> Iterator[Path]:
    """Give the SQLite file that a file is, holds, or is exported as.

    Raises
    ------
    TraceFileError
        If there is none, it is still being written, or nsys is needed and not there.
    """
    given = Path(path)
    if not is_sqlite(given):
        if not given.is_file():
            raise TraceFileError(f"{str(given)!r} cannot be read: there is no such file.")
        if not is_nsys_report(given):
            raise TraceFileError(f"{str(given)!r} is no SQLite file of Nsight Systems. {export_hint('run.nsys-rep')}")
        with tempfile.TemporaryDirectory(prefix="gpustreamlab-") as folder:
            yield _export(given, Path(folder))
        return
    _require_whole(given)
    with given.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    if not is_packed:
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="gpustreamlab-") as folder:
        yield _unpack(given, Path(folder) / "report.sqlite")


def export_hint(name: str) -> str:
    """Return what to type for a report."""
    return f"Export it with: nsys export --type sqlite -o {Path(name).stem}.sqlite {name}"


def _require_whole(path: Path) -> None:
    """Raise an error where rows lie in a file beside it: a program is writing, or ended before it was done."""
    for ending in ("-wal", "-journal"):
        beside = path.with_name(path.name + ending)
        if beside.is_file() and beside.stat().st_size:
            raise TraceFileError(
                f"{str(path)!r} is not whole: {beside.name!r} lies beside it, so it is still being written, or that was cut "
                f"short. Wait until it is done. {export_hint('run.nsys-rep')}"
            )


def _unpack(path: Path, target: Path) -> Path:
    try:
        count = -(-path.stat().st_size // _CHUNK_BYTES)
        with gzip.open(path) as source, target.open("wb") as file, steps(count, "unpacking") as step:
            while part := source.read(_CHUNK_BYTES):
                file.write(part)
                if file.tell() > LARGEST_UNPACKED_BYTES:
                    raise TraceFileError(
                        f"{str(path)!r} is larger than {LARGEST_UNPACKED_BYTES:,} bytes, unpacked. Profile for a shorter time: "
                        "nsys profile --duration=10."
                    )
                step(path.name)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFileError(
            f"{str(path)!r} cannot be unpacked: {error}. It was cut off or is damaged, or the disk is full; copy it again."
        ) from error
    return target


def _export(path: Path, folder: Path) -> Path:
    """Let nsys write the SQLite file of a report."""
    program, target = shutil.which("nsys"), folder / "report.sqlite"
    if program is None:
        raise TraceFileError(
            f"{str(path)!r} is a report that only Nsight Systems can read, and nsys is not installed here. Where it is: "
            f"nsys export --type sqlite -o {path.stem}.sqlite {path.name}"
        )
    command = [program, "export", "--type", "sqlite", "--output", str(target), str(path.absolute())]
    try:
        done = subprocess.run(  # noqa: S603 - the program that the user has installed, with one file's name
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise TraceFileError(f"{str(path)!r} cannot be exported: {program!r} does not run, {error}.") from error
    if done.returncode or not is_sqlite(target):
        said = " ".join(f"{done.stdout} {done.stderr}".split())[-_LAST_WORDS:]
        raise TraceFileError(
            f"{str(path)!r} cannot be exported: nsys ended with {done.returncode} and said {said!r}. It may be of a newer nsys "
            "than this one; export it where it was recorded."
        )
    return target


def _open(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        is_packed = file.read(2) == _GZIP
    return gzip.open(path) if is_packed else path.open("rb")  # type: ignore[return-value] # it is a file of bytes
