"""Reads a trace of any file, and makes one of a spool, however the run ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gpustreamlab.errors import OptionError, TraceError, TraceFileError
from gpustreamlab.exchange import check_format, lend, read_as, read_ranks
from gpustreamlab.model import Trace
from gpustreamlab.record import Chunk, fold, join
from gpustreamlab.sinks._spool_format import BatchReader, ChunkDecoder

__all__ = ["read_any", "read_spool"]

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")  # Begins a URL; a Windows drive has one letter


def read_any(path: str | PathLike[str] | Iterable[str | PathLike[str]], format: str = "auto") -> Trace:  # noqa: A002
    """Read a trace of ours, or what another tool recorded; see `gpustreamlab.load_trace`."""
    check_format(format)
    given = path if isinstance(path, Iterable) and not isinstance(path, (str, bytes)) else [path]
    with ExitStack() as stack:
        paths = [stack.enter_context(lend(_local_path(one))) for one in given]
        if not paths:
            raise OptionError("load_trace() got no file. Give the path of one, or those of all ranks of a job.")
        return read_ranks(paths, format) if len(paths) > 1 else read_as(format, paths[0], {"spool": read_spool})


def _local_path(path: object) -> Path:
    """Return the path that was given, or that a URL stands for."""
    text = fspath(path) if isinstance(path, (str, PathLike)) else None
    if not isinstance(text, str):
        raise OptionError(f"load_trace() got a {type(path).__name__}; it takes a path, as gsl.load_trace('run.parquet').")
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    parts = urlsplit(text)
    if scheme[1].lower() != "file" or parts.netloc not in ("", "localhost"):
        raise OptionError(
            f"{text!r} is on another machine, and gpustreamlab opens no connection. Download it, then give the file's path: "
            "gsl.load_trace('run.json.gz')."
        )
    return Path(unquote(parts.path))


def read_spool(path: str | PathLike[str]) -> Trace:
    """Read what ``Session(spool=...)`` has written so far; see `gpustreamlab.load_trace`."""
    target = Path(path)
    try:
        decoder = ChunkDecoder()
        reader = BatchReader(target, decoder)
        try:
            return _Replay(reader, decoder).trace()
        finally:
            reader.close()
    except (TraceError, OSError, *_GARBAGE) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split()) or type(error).__name__
        raise TraceFileError(
            f"{str(target)!r} cannot be read as a spool: {reason.rstrip('.')}. Nothing of it can be used."
        ) from error


_GARBAGE = (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, MemoryError)
"""What a file raises whose checksums are right and whose contents are not."""


class _Replay:
    """Reads a spool again, in the order in which it was written."""

    def __init__(self, reader: BatchReader, decoder: ChunkDecoder) -> None:
        self._last: Mapping[str, Any] = {}
        self._limit_bytes = 0
        self._unfinished = ""
        chunks: list[Chunk] = []
        for chunk, facts in reader:
            if chunk.is_anew:  # gives the memory of those before back
                chunks.clear()
            chunks.append(chunk)
            self._unfinished = facts.get("unfinished", self._unfinished)
            self._limit_bytes = facts.get("limit_bytes", self._limit_bytes)
            self._last = facts
        if not any(chunk.tables for chunk in chunks):
            raise ValueError("it was cut off before anything was in it")
        told = join(chunks)
        self._told = told if decoder.markers is None else told._replace(markers=decoder.markers)
        self._damage = reader.damage

    def trace(self) -> Trace:
        """Return everything as a trace."""
        return fold([self._told], recovery_note=self._note(self._damage))

    def _note(self, damage: str) -> str:
        """Say what may be missing."""
        notes = []
        if not self._last.get("end"):
            written = datetime.fromtimestamp(self._last["written_unix_ns"] / 1e9, UTC)
            missing = f"what came after {written:%Y-%m-%d %H:%M:%S} UTC is missing"
            notes.append(f"recovered from a spool whose session was not closed: {missing}")
            notes += [f"at that time {self._unfinished}"] if self._unfinished else []
        if damage and self._last.get("end"):
            notes.append("the end of the spool is damaged")
        if self._limit_bytes:
            notes.append(
                f"the spool reached its limit of {self._limit_bytes:,} bytes (spool_limit_bytes), later spans are missing"
            )
        return "; ".join(notes)
