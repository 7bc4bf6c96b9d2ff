"""Files packed by gzip or zstd, and archives of ZIP or tar with one trace in them, opened as they come."""

from __future__ import annotations

import gzip
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from gpustreamlab._util.host import require_room, room_bytes
from gpustreamlab.errors import OptionError, TraceFileError

GZIP, ZSTD, ZIP = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04"
_TAR, _TAR_AT = b"ustar", 257  # What the head of the first member of a tar holds, and where
_PART_BYTES = 1 << 20
_MOST_LISTED = 4
_TRACES = (".json", ".gz", ".zst", ".sqlite", ".db", ".parquet", ".pftrace", ".perfetto-trace", ".nsys-rep", ".qdrep")
_TRACES_TOO = (".pb", ".csv", ".html", ".rpd", ".gsl", ".jsonl")


def is_archive(head: bytes, unpacked_head: bytes) -> bool:
    """Tell by its first bytes, as they are and unpacked by gzip, whether a file is to be opened here."""
    return head.startswith((ZSTD, ZIP)) or unpacked_head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def is_packed(path: Path) -> bool:
    """Tell whether a file is packed by gzip."""
    with suppress(OSError), path.open("rb") as file:  # told by whoever reads it
        return file.read(len(GZIP)) == GZIP
    return False


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """Lend the one trace of an archive; errors about it name what was given."""
    with tempfile.TemporaryDirectory(prefix="gpustreamlab-") as folder:
        try:
            target = _unpack(path, Path(folder))
        except TraceFileError:
            raise
        except (
            *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError, zlib.error),
            *(zipfile.BadZipFile, tarfile.TarError),
        ) as error:
            raise TraceFileError(
                f"{str(path)!r} cannot be unpacked: {error}. It was cut off or is damaged, has a password, or there is no "
                "room in the folder TMPDIR; copy it again, or unpack it by hand."
            ) from error
        try:
            yield target
        except (TraceFileError, OptionError) as error:
            shown = str(path) if is_packed(path) else f"{path}: {target.name}"
            raise type(error)(str(error).replace(str(target), shown)) from error


def _unpack(path: Path, folder: Path) -> Path:
    """Unpack the one trace of an archive into a folder; return where it is."""
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        head = file.read(4)
        file.seek(0)
        if head == ZSTD:
            import pyarrow as pa  # slow to import, and seldom needed

            name = path.name.removesuffix(".zst").removesuffix(".zstd")
            return _copied(stack.enter_context(pa.CompressedInputStream(file, "zstd")), folder / name, path)
        if head.startswith(GZIP):  # tarfile takes one file in some thousands for a tar: the sum that it looks at is of few bits
            unpacked = gzip.GzipFile(fileobj=file)
            is_tar = is_archive(head, unpacked.read(_TAR_AT + len(_TAR)))
            unpacked.seek(0)
            if not is_tar:
                return _copied(unpacked, folder / "unpacked", path)
            file.seek(0)
        members: dict[str, Callable[[], IO[bytes] | None]] = {}
        if head == ZIP:
            packed = stack.enter_context(zipfile.ZipFile(file))
            members = {one.filename: partial(packed.open, one) for one in packed.infolist() if not one.is_dir()}
        else:
            tar = stack.enter_context(tarfile.open(fileobj=file))
            members = {one.name: partial(tar.extractfile, one) for one in tar if one.isfile()}
        name = _one_of([*members], path)
        source = members[name]()
        if source is None:
            raise TraceFileError(f"{str(path)!r}: {name!r} is no file. Unpack it by hand.")
        return _copied(stack.enter_context(source), folder / Path(name).name, path)


def _one_of(names: list[str], path: Path) -> str:
    shown = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in Path(name).parts)]
    found = [name for name in shown if name.lower().endswith(_TRACES + _TRACES_TOO)] or shown
    if len(found) != 1:
        listed = ", ".join(map(repr, found[:_MOST_LISTED])) + (", ..." if len(found) > _MOST_LISTED else "")
        raise TraceFileError(
            f"{str(path)!r} is an archive of {len(found):,} files that may be traces ({listed}); one with a single trace is "
            "opened as it is. Unpack it, and give the file."
        )
    return found[0]


def _copied(source: IO[bytes] | gzip.GzipFile, target: Path, path: Path) -> Path:
    done_bytes, most_bytes = 0, room_bytes()
    with target.open("wb") as file:
        while part := source.read(_PART_BYTES):
            done_bytes += len(part)
            require_room(done_bytes, repr(str(path)), most_bytes)
            file.write(part)
    return target
