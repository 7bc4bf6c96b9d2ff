"""JSON in Chrome's trace event format in blocks of whole events, however large, and what is whole of a file that was cut.

A block ends where one event ends and the next begins, ``},{`` with blanks between. Where that is not so, as within arguments,
where something is damaged or of another kind, or where the events end, the block cannot be decoded at once, and the events of
it are looked at one by one.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from functools import cache
from os import PathLike
from pathlib import Path
from types import GenericAlias
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec
import numpy as np

from gpustreamlab._util.shell import steps
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._formats import BYTE_ORDER_MARK, unpacked
from gpustreamlab.typing import Int64Array

LONGEST_BEGIN = 64  # A file of ours begins as such within so many bytes
BLOCK_BYTES = 1 << 18  # How much is decoded at once: what fits in a processor's cache is decoded twice as fast as 16 MB
LARGEST_EVENT_BYTES = 16 << 20  # Larger events count as damaged
LARGEST_FACTS_BYTES = 64 << 20  # Most that is read before the events, and behind them
MOST_EVENTS = 10_000_000  # Most that are read of a file; some 5 GB in memory, while they become a trace
LARGEST_TIME_NS = 1 << 61  # Later times, of 2043, are refused
WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)  # Of what is not as it should be
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_BYTES = 256  # Most that the beginning of the list may take
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BETWEEN_OR_END = re.compile(rb"\}\s*(?:,\s*(?=\{)|(?=\]))")
_GAP = re.compile(r"[\s,]*")
_TIME_CHARACTERS = b"0123456789.,"

# What JSON forbids and some write all the same (Kineto a bandwidth of inf), and what it is read as.
_NO_NUMBER = re.compile(rb"(:\s*)[-+]?(?:inf|nan|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_TRAILING_COMMA = re.compile(rb",(\s*[\]}])")
_ONE_LINE = bytes(max(code, 32) for code in range(256))  # Blanks for signs for which a text would need an escape

_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len, strict=False)  # tells only where values end

_OF_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|traceName)"\s*:|"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset|memcpy|'
    rb"memset|cuda_runtime|cuda_driver|cuda_sync|runtime|cpu_op|operator|user_annotation|gpu_user_annotation|python_function|"
    rb'cpu_instant_event|ac2g|async_cpu_to_gpu)"',
    re.IGNORECASE,
)
_OF_MEMORY = re.compile(rb"\s*\[\s*\[\s*-?\d")  # Times, and then sizes
# Files in which some categories are as in Kineto's: those of ONNX Runtime, Ascend's profiler and Intel's unitrace.
_OF_OTHERS = re.compile(
    rb'^\s*\[\s*\{\s*"cat"\s*:\s*"(?:Session|Node|Kernel|Api)"\s*,\s*"pid"|'
    rb'"name"\s*:\s*"(?:Ascend Hardware"|(?:RANK \d+ )?(?:HOST|DEVICE)<)'
)
# JSON lines of Nsight Systems: an event, a string, or all of them.
_OF_NSYS = re.compile(
    rb'\s*\{\s*"(?:Type"\s*:\s*\d+\s*,\s*"\w+Event"\s*:|type"\s*:\s*"String"|data"\s*:\s*\[\s*"|files"\s*:\s*\[)'
)
# How a file of `write_chrome` begins; behind it is the trace as a Parquet file, in letters of base64.
OURS = re.compile(rb'\s*\{\s*"gpustreamlab"\s*:\s*"')

_Event = TypeVar("_Event", bound=msgspec.Struct)
_Facts = TypeVar("_Facts", bound=msgspec.Struct)


def guess_writer(head: bytes) -> str:
    """Return the format of JSON by its beginning, unpacked; a megabyte is enough."""
    head = head.removeprefix(BYTE_ORDER_MARK)
    if b'"rocprofiler-sdk-tool"' in head[:256]:
        return "rocm"
    if _OF_NSYS.match(head):
        return "nsys"
    if _OF_MEMORY.match(head):
        return "memory"
    if _OF_OTHERS.search(head):
        return "chrome"
    return "kineto" if _OF_KINETO.search(head) and not OURS.match(head) else "chrome"


def own_data(path: Path) -> bytes | None:
    """Return the trace that a file of ours holds, as a Parquet file; None for a file of others."""
    text = bytearray()  # which grows without a copy of all
    with suppress(EOFError, zlib.error), path.open("rb") as file:
        for part in unpacked(file):
            text += part
            begin = OURS.match(text)
            if begin is None and len(text) > LONGEST_BEGIN:
                return None
            if begin is not None and part.find(b'"', max(0, begin.end() - len(text) + len(part))) >= 0:
                break
    if (begin := OURS.match(text)) is None:
        return None
    letters, end, _ = text[begin.end() :].partition(b'"')
    if not end:
        raise ValueError("its data has no end")
    return base64.b64decode(letters, validate=True)


class EventFile(Generic[_Event, _Facts]):
    """The events of a file, packed by gzip or not."""

    def __init__(self, path: str | PathLike[str], event: type[_Event], facts: type[_Facts], rows: Any = None) -> None:
        self.path = str(Path(path))
        self.facts = facts()  # What it tells of itself, known when all blocks were read
        self.event_count = 0  # So far, without the damaged ones
        self.damaged_count = 0  # Events that are no JSON, or no objects, or too large
        self.cut = ""  # What is missing of it, in words; empty where it is whole
        self._kind = event
        self._event = msgspec.json.Decoder(event)
        # Of blocks that hold nothing else, `rows` are decoded, which take less time.
        kinds = [rows, event] if rows else [event]
        self._blocks: list[msgspec.json.Decoder[list[_Event]]] = [msgspec.json.Decoder(GenericAlias(list, (k,))) for k in kinds]
        self._told = msgspec.json.Decoder(facts)
        self._rest = bytearray()
        self._has_ended = False
        self._enough_bytes = 0  # to try again, where an event was incomplete

    def blocks(self) -> Iterator[list[_Event]]:
        """Yield the events, many at once; what is known before them is then in `facts`."""
        try:
            with Path(self.path).open("rb") as file:
                parts = self._parts(file)
                is_bare = self._begin(parts)
                while not self._has_ended and (part := next(parts, b"")):
                    self._rest += part
                    if events := self._whole():
                        yield events
                    if self.event_count > MOST_EVENTS:
                        self.cut = f"only its first {self.event_count:,} events are read"
                        return
                if not self._has_ended and (events := self._one_by_one(is_last=True)):
                    yield events
                if self._has_ended and not is_bare:
                    self._end(parts)
        except TraceFileError:
            raise
        except OSError as error:
            raise TraceFileError(f"{self.path!r} cannot be read: {error}. Check the path.") from error
        if not (self._has_ended or is_bare):  # a bare list may lack its end
            self.cut = self.cut or "it ends within its events"

    def _parts(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield what the file holds, unpacked, in parts of a block's size; where it is damaged, up to there."""
        held: list[bytes] = []
        size_mb = Path(self.path).stat().st_size >> 20
        with steps(max(size_mb, 1), "Reading") as step:
            done_mb = held_bytes = 0
            try:
                for part in unpacked(file, BLOCK_BYTES):
                    held.append(part)
                    held_bytes += len(part)
                    if held_bytes >= BLOCK_BYTES:
                        yield b"".join(held)
                        held, held_bytes = [], 0
                    while done_mb < file.tell() >> 20:
                        done_mb += 1
                        step(f"{done_mb:,} of {size_mb:,} MB")
            except (EOFError, zlib.error) as error:
                self.cut = f"it cannot be unpacked to its end ({error})"
            yield b"".join(held)

    def _begin(self, parts: Iterator[bytes]) -> bool:
        """Go to the first event; return whether the file is a bare list."""
        text = bytearray()  # which grows without a copy of all
        first = seen = 0
        for part in parts:
            text += part if text else part.removeprefix(BYTE_ORDER_MARK).lstrip()
            if text.startswith(b"["):
                self._rest = text[1:]
                return True
            while found := _EVENTS.search(text, seen):
                first, seen = first or found.end(), found.end()
                with suppress(*WRONG):  # else it stood within a text, or deeper
                    self.facts = _decode(self._told, text[:seen] + b"]}")
                    self._rest = text[seen:]
                    return False
            seen = max(len(text) - _EVENTS_BYTES, seen)
            if len(text) > LARGEST_FACTS_BYTES or (text and not text.startswith(b"{")):
                break
        if first:
            self.cut, self._rest = "it cannot be read before its events", text[first:]
            return False
        reason = self.cut or "it holds neither a list of events nor one of traceEvents"
        raise TraceFileError(
            f"{self.path!r} cannot be read as a trace: {reason}. It was cut off, is damaged, or is another "
            "program's; write it again."
        )

    def _end(self, parts: Iterator[bytes]) -> None:
        """Read what stands behind the events."""
        while len(self._rest) < LARGEST_FACTS_BYTES and (part := next(parts, b"")):
            self._rest += part
        try:
            told = _decode(self._told, b'{"traceEvents": []' + self._rest)
        except WRONG:
            self.cut = self.cut or "it cannot be read behind its events"
            return
        for name in self.facts.__struct_fields__:
            if value := getattr(told, name):
                setattr(self.facts, name, value)

    def _whole(self) -> list[_Event]:
        """Return the events that are whole, and keep what follows them."""
        text, place = self._rest, None
        if len(text) < self._enough_bytes:
            return []
        self._enough_bytes = 0
        for first in (max(len(text) - (64 << 10), 0), 0):
            for place in _BETWEEN.finditer(text, first):  # noqa: B007 - the last one
                pass
            if place is not None:
                break
        if place is None and len(text) <= LARGEST_EVENT_BYTES:
            self._enough_bytes = 2 * len(text)  # so each byte is looked at a few times only
            return []
        if place is None:
            return self._one_by_one()
        block = b"".join((b"[", text[: place.start() + 1], b"]"))
        for decoder in self._blocks:
            with suppress(*WRONG):
                events: list[_Event] = _decode(decoder, block)
                self._rest = text[place.end() - 1 :]
                self.event_count += len(events)
                return events
        return self._one_by_one()

    def _one_by_one(self, *, is_last: bool = False) -> list[_Event]:
        """Return the events that are whole, each for itself, up to the end of the list if that is here."""
        text = self._rest.decode("latin-1")  # a character for each byte
        events, at, end, is_mended = [], 0, 0, False
        while (at := _end_of_gap(text, end)) < len(text):
            if text[at] == "]":
                self._has_ended = True
                at += 1
                break
            try:
                _, end = _SCANNER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                if not is_last and _is_incomplete(error, text) and len(text) - at <= LARGEST_EVENT_BYTES:
                    self._enough_bytes = 2 * (len(text) - at)
                    break
                if is_mended:
                    self.damaged_count += 1
                    end = self._next_event(at, is_last=is_last)
                else:
                    self._rest, end, is_mended = bytearray(_mend_values(self._rest[at:])), 0, True
                    text = self._rest.decode("latin-1")
                continue
            event = self._read_event(self._rest[at:end])
            events += [] if event is None else [event]
            self.damaged_count += event is None
        self._rest = self._rest[at:]
        self.event_count += len(events)
        return events

    def _next_event(self, at: int, *, is_last: bool) -> int:
        """Return where to go on behind something that is damaged."""
        found = (_BETWEEN_OR_END if is_last else _BETWEEN).search(self._rest, at)
        if found is None:
            if is_last:  # it is not damaged, but cut off
                self.damaged_count -= 1
                self.cut = self.cut or "it ends within its events"
            return len(self._rest)
        return found.end() - (0 if is_last else 1)

    def _read_event(self, text: bytearray) -> _Event | None:
        """Read one event, of which what is of another kind counts as not told; None where it is none at all."""
        try:
            return self._event.decode(text)
        except WRONG:
            pass
        with suppress(*WRONG):  # blanks for signs that need an escape, and a sign of its own for bytes that are none
            text_only = _mend_values(text).translate(_ONE_LINE).decode("utf-8", "replace").encode()
            mended: _Event = _mended(text_only, self._kind)
            return mended
        return None


def whole_number(value: object, default: int = 0) -> int:
    """Return a whole number of 61 bits, or the default for anything else."""
    if type(value) is int and -LARGEST_TIME_NS < value < LARGEST_TIME_NS:
        return value
    return default


def all_nanoseconds(raws: list[msgspec.Raw]) -> Int64Array:
    """Return decimals of microseconds as whole nanoseconds; `LARGEST_TIME_NS` stands for what is none."""
    text = b",".join(raws)
    if raws and not text.translate(None, _TIME_CHARACTERS):
        signs = np.frombuffer(text + b",", np.uint8)
        ends, dots = np.flatnonzero(signs == ord(",")), np.flatnonzero(signs == ord("."))
        begins = np.concatenate(([0], ends[:-1] + 1))
        part_sizes, dotted = np.zeros(len(ends), np.int64), np.searchsorted(ends, dots)
        part_sizes[dotted] = ends[dotted] - dots
        sizes = ends - begins - part_sizes
        # Of 16 digits and more than 2e15 would be too many for 64 bits.
        fits = (sizes > 0) & (part_sizes <= 4) & ((sizes < 16) | ((sizes == 16) & (signs[begins] <= ord("2"))))
        if len(ends) == len(raws) and fits.all():
            digits = np.fromstring(text.replace(b".", b""), np.int64, sep=",")
            values: Int64Array = digits * 10 ** (3 - np.maximum(part_sizes - 1, 0))
            return np.minimum(values, LARGEST_TIME_NS)
    found = [nanoseconds(raw) for raw in raws]
    return np.array([LARGEST_TIME_NS if value is None else value for value in found], np.int64)


def nanoseconds(raw: msgspec.Raw) -> int | None:
    """Return a decimal of microseconds as whole nanoseconds; None for what is none, or lies beyond all reason."""
    try:
        number = Decimal(bytes(raw).decode().strip('"'))
        value = int((number * 1000).to_integral_value()) if abs(number) < LARGEST_TIME_NS else LARGEST_TIME_NS
    except (ArithmeticError, UnicodeDecodeError):
        return None
    return value if -LARGEST_TIME_NS < value < LARGEST_TIME_NS else None


def _decode(decoder: msgspec.json.Decoder[Any], text: bytes | bytearray) -> Any:
    """Decode a text, also with values that JSON forbids."""
    try:
        return decoder.decode(text)
    except WRONG:
        return decoder.decode(_mend_values(text))


def _mend_values(text: bytes | bytearray) -> bytes:
    """Return JSON with null for what is no number, and without commas behind the last value."""
    return _TRAILING_COMMA.sub(rb"\1", _NO_NUMBER.sub(rb"\1null", text))


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, str, Any, msgspec.json.Decoder[Any]]]:
    # Not strict: tools that a file went through write numbers as texts.
    return [
        (one.encode_name, one.name, one.type, msgspec.json.Decoder(one.type, strict=False))
        for one in msgspec.structs.fields(kind)
    ]


def _mended(text: bytes | msgspec.Raw, kind: type[msgspec.Struct]) -> Any:
    """Return an object with those of its values that are of the right kind."""
    parts, values = _PARTS.decode(text), {}
    for key, name, wanted, decoder in _fields(kind):
        with suppress(*WRONG, KeyError):
            is_inner = isinstance(wanted, type) and issubclass(wanted, msgspec.Struct)
            values[name] = _mended(parts[key], wanted) if is_inner else decoder.decode(parts[key])
    return kind(**values)


def _is_incomplete(error: ValueError | RecursionError, text: str) -> bool:
    """Tell whether a value may go on behind the text: it ends within a string, or in the middle of something else."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - 8


def _end_of_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()
