"""The JSON of PyTorch's profiler (Kineto) as values: events, and numbers that are exact."""

from __future__ import annotations

import gzip
import re
import zlib
from decimal import Decimal, InvalidOperation
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from gpustreamlab.errors import TraceFileError

LARGEST_FILE_BYTES = 2 << 30
"""Largest file that is read, unpacked. It needs some four times as much memory."""
LARGEST_TIME_NS = 1 << 61
"""Later times, of 2043, are refused."""
_CHUNK_BYTES = 16 << 20
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Three: TypeAlias = tuple[int, int, int]


class _Args(msgspec.Struct, gc=False):
    name: object = None
    device: object = None
    context: object = None
    stream: object = None
    correlation: object = None
    bytes: object = None
    grid: object = None
    block: object = None
    registers: object = msgspec.field(name="registers per thread", default=None)
    shared: object = msgspec.field(name="shared memory", default=None)
    channel: object = None
    priority: object = None
    graph: object = msgspec.field(name="graph id", default=None)
    awaited_stream: object = msgspec.field(name="wait_on_stream", default=None)
    awaited_record: object = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=None)


class Event(msgspec.Struct, gc=False):
    """One row of a file. What may be of any kind is looked at when it is used."""

    ph: object = None
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: _Args | None = None


class File(msgspec.Struct):
    """What is read of a file."""

    events: list[Event] = msgspec.field(name="traceEvents")
    devices: object = msgspec.field(name="deviceProperties", default=None)
    base_ns: object = msgspec.field(name="baseTimeNanoseconds", default=None)
    distributed: object = msgspec.field(name="distributedInfo", default=None)


NO_ARGS = _Args()


def is_json(path: str | PathLike[str]) -> bool:
    """Tell by its first bytes whether a file holds JSON, packed by gzip or not."""
    try:
        with _open(Path(path)) as file:
            return file.read(64).removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] in {b"{", b"["}
    except (OSError, EOFError, zlib.error):
        return False


def read_json(path: str | PathLike[str]) -> File:
    """Read a file, packed by gzip or not.

    Raises
    ------
    TraceFileError
        If it cannot be unpacked, is too large, or is no such JSON.
    """
    name = str(Path(path))
    parts: list[bytes] = []
    try:
        with _open(Path(path)) as file:
            while part := file.read(_CHUNK_BYTES):
                parts.append(part)
                if sum(map(len, parts)) > LARGEST_FILE_BYTES:
                    break
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFileError(f"{name!r} cannot be unpacked: {error}. It was cut off or is damaged; copy it again.") from error
    text = b"".join(parts).removeprefix(_BYTE_ORDER_MARK)
    if len(text) > LARGEST_FILE_BYTES:
        raise TraceFileError(
            f"{name!r} is larger than {LARGEST_FILE_BYTES:,} bytes, unpacked. Profile fewer steps: "
            "torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=3))."
        )
    del parts
    try:
        try:
            content = _decode(text)
        except msgspec.DecodeError:  # some write inf or NaN, which JSON does not have
            content = _decode(_NO_NUMBER.sub(rb"\1null", text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFileError(
            f"{name!r} cannot be read as a trace of PyTorch's profiler: {error}. It was cut off, is damaged, or is another "
            "program's; export it again with prof.export_chrome_trace('run.json.gz')."
        ) from error
    return content if isinstance(content, File) else File(events=content)


def whole_number(value: object, default: int = 0) -> int:
    """Return a whole number of 61 bits, or the default for anything else."""
    if type(value) is int and -LARGEST_TIME_NS < value < LARGEST_TIME_NS:
        return value
    return default


def three_sizes(value: object) -> Three:
    """Return three sizes, or zeros for what has none.

    Examples
    --------
    >>> three_sizes([64, 2, 1]), three_sizes([64, -2, 1]), three_sizes("none")
    ((64, 2, 1), (0, 0, 0), (0, 0, 0))
    """
    if isinstance(value, list) and len(value) == 3 and all(0 < whole_number(one) < 1 << 32 for one in value):
        return value[0], value[1], value[2]
    return 0, 0, 0


def nanoseconds(raw: msgspec.Raw) -> int | None:
    """Return a decimal of microseconds as whole nanoseconds; None for what is none, or lies beyond all reason.

    Examples
    --------
    >>> [nanoseconds(msgspec.Raw(text)) for text in (b"1712195495505583.033", b"-1.5", b"2e3", b"0.0005", b"null", b"1e99")]
    [1712195495505583033, -1500, 2000000, 0, None, None]
    """
    text = bytes(raw)
    whole, _, part = text.partition(b".")
    try:
        if len(part) > 3 or len(whole) > 19:
            raise ValueError
        value = int(whole + part.ljust(3, b"0"))
    except ValueError:  # another way of writing it, or no number
        try:
            number = Decimal(text.decode().strip('"'))
            value = int((number * 1000).to_integral_value()) if abs(number) < LARGEST_TIME_NS else LARGEST_TIME_NS
        except (InvalidOperation, UnicodeDecodeError):
            return None
    return value if -LARGEST_TIME_NS < value < LARGEST_TIME_NS else None


def _decode(text: bytes) -> File | list[Event]:
    return msgspec.json.decode(text, type=File | list[Event])


def _open(path: Path) -> Any:
    with path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
    return gzip.open(path) if is_packed else path.open("rb")
