"""The JSON of PyTorch's profiler (Kineto) in blocks of whole events, however large, and what is whole of a file that was cut.

A block ends where one event ends and the next begins, ``},{`` with blanks between. Where that is not so, as within arguments,
where something is damaged or of another kind, or where the events end, the block cannot be decoded at once, and the events of
it are looked at one by one.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias

import msgspec
import numpy as np

from gpustreamlab._util.progress import steps
from gpustreamlab.errors import TraceFileError
from gpustreamlab.typing import Int64Array

BLOCK_BYTES = 1 << 18
"""How much is decoded at once: what fits in a processor's cache is decoded twice as fast as 16 MB."""
LARGEST_EVENT_BYTES = 4 << 20
"""Largest event that is read; larger ones count as damaged."""
LARGEST_FACTS_BYTES = 16 << 20
"""Most that is read before the events, and behind them."""
MOST_TRIED = 16
"""How often the list of events is looked for."""
LARGEST_TIME_NS = 1 << 61
"""Later times, of 2043, are refused."""
_PACKED_BYTES = 16 << 10
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NO_NUMBER = re.compile(rb"(:\s*)-?(?:inf|nan|Infinity|NaN)(?=\s*[,}\]])")
_WHOLE_ELSE = re.compile(rb'"?(-?\d{1,19})(?:\.0*)?"?')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_BETWEEN_OR_END = re.compile(rb"\}\s*(?:,\s*(?=\{)|(?=\]))")
_GAP = re.compile(r"[\s,]*")
_TIME_CHARACTERS = b"0123456789.,"
_OTHER_END = (
    "It was cut off, is damaged, or is another program's; export it again with prof.export_chrome_trace('run.json.gz')."
)

Three: TypeAlias = tuple[int, int, int]
_Whole: TypeAlias = Annotated[int, msgspec.Meta(gt=-LARGEST_TIME_NS, lt=LARGEST_TIME_NS)]
_Id: TypeAlias = int | str | None


class Args(msgspec.Struct, gc=False):
    """What an event tells beside its times."""

    name: object = None
    device: _Whole | None = None
    context: _Whole = 0
    stream: _Whole | None = None
    correlation: _Whole = 0
    bytes: _Whole = 0
    grid: tuple[_Whole, _Whole, _Whole] | None = None
    block: tuple[_Whole, _Whole, _Whole] | None = None
    registers: _Whole = msgspec.field(name="registers per thread", default=0)
    shared: _Whole = msgspec.field(name="shared memory", default=0)
    channel: _Whole = -1
    priority: _Whole = 0
    graph: _Whole = msgspec.field(name="graph id", default=0)
    node: _Whole = msgspec.field(name="graph node id", default=-1)
    awaited_stream: _Whole = msgspec.field(name="wait_on_stream", default=-1)
    awaited_record: _Whole = msgspec.field(name="wait_on_cuda_event_record_corr_id", default=0)
    group: object = msgspec.field(name="Process Group Name", default=None)
    ranks: object = msgspec.field(name="Process Group Ranks", default=None)
    sequence: object = msgspec.field(name="Seq", default=None)


_NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One row of a file."""

    ph: str | None = None
    cat: str | None = None
    name: str | None = None
    pid: _Id = None
    tid: _Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: Args = msgspec.field(default_factory=lambda: _NO_ARGS)


class Facts(msgspec.Struct):
    """What a file tells of itself."""

    devices: object = msgspec.field(name="deviceProperties", default=None)
    base_ns: object = msgspec.field(name="baseTimeNanoseconds", default=None)
    distributed: object = msgspec.field(name="distributedInfo", default=None)


_FACTS, _EVENT, _BLOCK = msgspec.json.Decoder(Facts), msgspec.json.Decoder(Event), msgspec.json.Decoder(list[Event])
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_FIELDS = {
    kind: [(field.encode_name, field.name, msgspec.json.Decoder(field.type)) for field in msgspec.structs.fields(kind)]
    for kind in (Event, Args)
}
_SCANNER = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=len)  # only where values end is asked
_BAD_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class EventFile:
    """The events of a file, packed by gzip or not.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "cut.json"
    >>> _ = path.write_text('{"traceEvents": [{"name": "a"}, {"name": "b"}, {"name"')
    >>> file = EventFile(path)
    >>> [event.name for events in file.blocks() for event in events], file.event_count, file.cut
    (['a', 'b'], 2, 'It ends within its events')
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = str(Path(path))
        self.facts = Facts()
        """What it tells of itself, known when all blocks were read."""
        self.event_count = 0
        """Events so far, without the damaged ones."""
        self.damaged_count = 0
        """Events that are no JSON, or no objects, or too large."""
        self.cut = ""
        """What is missing of it, in words; empty where it is whole."""
        self._rest = b""
        self._has_ended = False
        self._enough_bytes = 0  # to try again, where an event was incomplete

    def blocks(self) -> Iterator[list[Event]]:
        """Yield the events, many at once.

        Raises
        ------
        TraceFileError
            If it cannot be opened, or has no events at all.
        """
        try:
            with Path(self.path).open("rb") as file:
                parts = self._parts(file)
                is_bare = self._begin(parts)
                while not self._has_ended and (part := next(parts, b"")):
                    self._rest += part
                    yield self._whole()
                if not self._has_ended:
                    yield self._one_by_one(is_last=True)
                if self._has_ended and not is_bare:
                    self._end(parts)
        except TraceFileError:
            raise
        except OSError as error:
            raise TraceFileError(f"{self.path!r} cannot be read: {error}. Check the path.") from error
        if not self._has_ended:
            self.cut = self.cut or "It ends within its events"

    def _parts(self, file: BinaryIO) -> Iterator[bytes]:
        """Yield what the file holds, unpacked, in parts of a block's size; where it is damaged, up to there."""
        held: list[bytes] = []
        size_mb = Path(self.path).stat().st_size >> 20
        with steps(max(size_mb, 1), "Reading") as step:
            done_mb = held_bytes = 0
            try:
                for part in _unpacked(file):
                    held.append(part)
                    held_bytes += len(part)
                    if held_bytes >= BLOCK_BYTES:
                        yield b"".join(held)
                        held, held_bytes = [], 0
                    while done_mb < file.tell() >> 20:
                        done_mb += 1
                        step(f"{done_mb:,} of {size_mb:,} MB")
            except (EOFError, zlib.error) as error:
                self.cut = f"It cannot be unpacked to its end ({error})"
            yield b"".join(held)

    def _begin(self, parts: Iterator[bytes]) -> bool:
        """Read as far as the first event; return whether the file is nothing but a list of events."""
        text = b""
        tried: list[re.Match[bytes]] = []
        while len(text) < LARGEST_FACTS_BYTES and (part := next(parts, b"")):
            text = (text + part).removeprefix(_BYTE_ORDER_MARK).lstrip()
            if text.startswith(b"["):
                self._rest = text[1:]
                return True
            for found in _EVENTS.finditer(text, tried[-1].end() if tried else 0):
                if len(tried) == MOST_TRIED:
                    break
                try:  # else it stood within a text, or deeper
                    self.facts = _FACTS.decode(_NO_NUMBER.sub(rb"\1null", text[: found.end()] + b"]}"))
                except _BAD_JSON:
                    tried.append(found)
                    continue
                self._rest = text[found.end() :]
                return False
        if tried:
            self.cut, self._rest = "It cannot be read before its events", text[tried[0].end() :]
            return False
        reason = f"{self.cut[0].lower()}{self.cut[1:]}" if self.cut else "it has no list of traceEvents"
        raise TraceFileError(f"{self.path!r} cannot be read as a trace of PyTorch's profiler: {reason}. {_OTHER_END}")

    def _end(self, parts: Iterator[bytes]) -> None:
        """Read what stands behind the events."""
        while len(self._rest) < LARGEST_FACTS_BYTES and (part := next(parts, b"")):
            self._rest += part
        try:
            told = _FACTS.decode(_NO_NUMBER.sub(rb"\1null", b'{"traceEvents": []' + self._rest))
        except _BAD_JSON:
            self.cut = self.cut or "It cannot be read behind its events"
            return
        for name in Facts.__struct_fields__:
            if (value := getattr(told, name)) is not None:
                setattr(self.facts, name, value)

    def _whole(self) -> list[Event]:
        """Take the whole events of what was read; the rest stays."""
        text, place = self._rest, None
        if len(text) < self._enough_bytes:
            return []
        self._enough_bytes = 0
        for first in (max(len(text) - (64 << 10), 0), 0):
            for place in _BETWEEN.finditer(text, first):  # noqa: B007 - the last one
                pass
            if place is not None:
                break
        if place is None:
            return self._one_by_one() if len(text) > LARGEST_EVENT_BYTES else []
        block = b"[%b]" % text[: place.start() + 1]
        for is_mended in (False, True):  # some write inf or NaN, which JSON does not have
            try:
                events = _BLOCK.decode(_NO_NUMBER.sub(rb"\1null", block) if is_mended else block)
            except _BAD_JSON:
                continue
            self._rest = text[place.end() - 1 :]
            self.event_count += len(events)
            return events
        return self._one_by_one()

    def _one_by_one(self, *, is_last: bool = False) -> list[Event]:
        """Take events one at a time, as far as the list of them goes; what may be incomplete stays."""
        self._rest = _NO_NUMBER.sub(rb"\1null", self._rest)
        text = self._rest.decode("latin-1")  # a character for each byte
        events, at, end = [], 0, 0
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
                self.damaged_count += 1
                end = self._next_event(at, is_last=is_last)
                continue
            event = _read_event(self._rest[at:end])
            events += [] if event is None else [event]
            self.damaged_count += event is None
        self._rest = self._rest[at:]
        self.event_count += len(events)
        return events

    def _next_event(self, at: int, *, is_last: bool) -> int:
        """Return where the next event may begin behind a damaged one."""
        found = (_BETWEEN_OR_END if is_last else _BETWEEN).search(self._rest, at)
        if found is None:
            self.damaged_count -= is_last  # it is not damaged, but cut off
            return len(self._rest)
        return found.end() - (0 if is_last else 1)


def whole_number(value: object, default: int = 0) -> int:
    """Return a whole number of 61 bits, or the default for anything else."""
    if type(value) is int and -LARGEST_TIME_NS < value < LARGEST_TIME_NS:
        return value
    return default


def all_nanoseconds(raws: list[msgspec.Raw]) -> Int64Array:
    """Return decimals of microseconds as whole nanoseconds; `LARGEST_TIME_NS` stands for what is none.

    Examples
    --------
    >>> all_nanoseconds([msgspec.Raw(text) for text in (b"1712195495505583.033", b"7", b"0.25")]).tolist()
    [1712195495505583033, 7000, 250]
    """
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
    """Return a decimal of microseconds as whole nanoseconds; None for what is none, or lies beyond all reason.

    Examples
    --------
    >>> [nanoseconds(msgspec.Raw(text)) for text in (b"1712195495505583.033", b"-1.5", b"2e3", b"0.0005", b"1e9999999")]
    [1712195495505583033, -1500, 2000000, 0, None]
    """
    try:
        number = Decimal(bytes(raw).decode().strip('"'))
        value = int((number * 1000).to_integral_value()) if abs(number) < LARGEST_TIME_NS else LARGEST_TIME_NS
    except (ArithmeticError, UnicodeDecodeError):
        return None
    return value if -LARGEST_TIME_NS < value < LARGEST_TIME_NS else None


def _read_event(text: bytes) -> Event | None:
    """Return an event without what of it is of no use, or None for what is none."""
    try:
        return _EVENT.decode(text)
    except _BAD_JSON:
        try:
            mended: Event = _mended(text.decode("utf-8", "replace").encode(), Event)
            return mended
        except _BAD_JSON:
            return None


def _mended(text: bytes | msgspec.Raw, kind: type[Any]) -> Any:
    """Return an object with those of its values that are of the right kind."""
    parts, values = _PARTS.decode(text), {}
    for key, name, decoder in _FIELDS[kind]:
        if key in parts:
            if name == "args":
                values[name] = _mended(parts[key], Args)
                continue
            for given in (parts[key], _plain(parts[key])):
                try:
                    values[name] = decoder.decode(given)
                    break
                except _BAD_JSON:
                    continue
    return kind(**values)


def _plain(raw: msgspec.Raw) -> bytes | msgspec.Raw:
    """Return a whole number that stands as a float or a text, as tools write it that a file went through, as such."""
    found = _WHOLE_ELSE.fullmatch(raw)
    return raw if found is None else found[1]


def _is_incomplete(error: ValueError | RecursionError, text: str) -> bool:
    """Tell whether a value may go on behind the text: it ends within a string, or in the middle of something else."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.msg.startswith("Unterminated string") or error.pos >= len(text) - 8


def _end_of_gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _unpacked(file: BinaryIO) -> Iterator[bytes]:
    """Yield what a file holds, unpacked where it is packed by gzip, and as far as it can be."""
    if file.read(2) != b"\x1f\x8b":
        file.seek(0)
        while part := file.read(BLOCK_BYTES):
            yield part
        return
    file.seek(0)
    packed, unpacker = file.read(_PACKED_BYTES), zlib.decompressobj(31)
    while packed:
        before = unpacker.copy()
        try:
            part = unpacker.decompress(packed, BLOCK_BYTES)
        except zlib.error:  # somewhere in it, and raised there again
            yield from (before.decompress(packed[place : place + 1]) for place in range(len(packed)))
            raise
        yield part
        packed = unpacker.unconsumed_tail
        if unpacker.eof:  # another packed file may follow, or zeros
            packed = (unpacker.unused_data or file.read(_PACKED_BYTES)).lstrip(b"\0")
            unpacker = zlib.decompressobj(31)
            if not packed:
                return
        packed = packed or file.read(_PACKED_BYTES)
    raise EOFError("it ends early")
