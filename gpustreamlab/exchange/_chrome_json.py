"""JSON in Chrome's trace event format, block by block: whatever its layout, in bounded memory, as far as it is whole.

Where one event ends is told by decoding: a stretch that begins with an event and decodes as a list ends with one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from gpustreamlab.errors import TraceFileError

BLOCK_BYTES = 8 << 20
"""How much of a file is decoded at a time."""
LARGEST_EVENT_BYTES = 64 << 20
"""Largest event, and largest end of a file behind its events, that is read."""
LARGEST_HEAD_BYTES = 256 << 20
"""Most that may stand before the events."""
_MOST_TRIES = 8
"""How many places are tried where one event may end and the next begin."""
_TAIL_BYTES = 1 << 16
_PACKED_TIMES = 10
"""How much larger a file is, unpacked; about."""
_PACKED = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"

_BETWEEN = re.compile(rb"\}\s*,\s*\{")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_AT_BYTE = re.compile(r"\(byte (\d+)\)")

_OURS = re.compile(rb'\s*\{\s*"gpustreamlab"\s*:')
_OF_KINETO = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|traceName)"\s*:|"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset|memcpy|'
    rb"memset|cuda_runtime|cuda_driver|cuda_sync|runtime|cpu_op|operator|user_annotation|gpu_user_annotation|python_function|"
    rb'cpu_instant_event|ac2g|async_cpu_to_gpu)"',
    re.IGNORECASE,
)

# What JSON forbids and some write all the same, and what it is read as.
_NO_NUMBER = re.compile(rb"(:\s*)[-+]?(?:inf|nan|infinity)(?=\s*[,}\]])", re.IGNORECASE)
_TRAILING_COMMA = re.compile(rb",(\s*[\]}])")
_HALF_A_SIGN = re.compile(
    rb"(?<!\\)((?:\\\\)*)(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\)((?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_LONGEST_SIGN = 12
"""Bytes of the longest sign of a text: two escapes."""
_ONE_LINE = bytes(max(code, 32) for code in range(256))

Writer: TypeAlias = Literal["kineto", "gpustreamlab", "chrome"]


class Event(msgspec.Struct, gc=False):
    """One event. What may be of any kind is looked at when it is used."""

    ph: object = None
    cat: object = None
    name: object = None
    pid: object = None
    tid: object = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    id: object = None
    id2: object = None
    scope: object = None
    s: object = None
    bp: object = None
    track: object = None
    bits: object = None
    args: msgspec.Raw = msgspec.Raw(b"")


class Top(msgspec.Struct):
    """What is read of a file beside its events."""

    base_ns: object = msgspec.field(name="baseTimeNanoseconds", default=None)
    viztracer: object = msgspec.field(name="viztracer_metadata", default=None)
    ours: msgspec.Raw = msgspec.field(name="gpustreamlab", default=msgspec.Raw(b""))


_EVENTS = msgspec.json.Decoder(list[Event])
_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(Event)
_TOP = msgspec.json.Decoder(Top)
WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for what is not as it should be."""


def guess_writer(head: bytes) -> Writer:
    """Tell who wrote JSON by its beginning, unpacked; a megabyte is enough.

    Examples
    --------
    >>> guess_writer(b'{"traceEvents": [{"ph": "X", "cat": "gpu_memcpy"}]}'), guess_writer(b'[{"ph": "B", "cat": "ipc"}')
    ('kineto', 'chrome')
    """
    head = head.removeprefix(_BYTE_ORDER_MARK)
    if _OURS.match(head):
        return "gpustreamlab"
    return "kineto" if _OF_KINETO.search(head) else "chrome"


def read_head(path: str | PathLike[str], size_bytes: int = 1 << 20) -> bytes:
    """Return the beginning of a file, unpacked; empty where nothing can be read or unpacked."""
    head = b""
    try:
        with closing(_Source(Path(path))) as source:
            while len(head) < size_bytes and (part := source.read()):
                head += part
    except OSError:
        return b""
    return head[:size_bytes]


class EventFile:
    """The events of one file.

    Parameters
    ----------
    path
        The file, packed by gzip or not.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self.top = Top()
        """What else is in it; what stands behind the events is there when all blocks were read."""
        self.damage = ""
        """What ended the reading before the end, in words."""
        self.refused = 0
        """Events that are none."""
        self.event_count = 0
        """Events so far, refused ones too."""

    @property
    def block_count(self) -> int:
        """How many blocks there are, about."""
        try:
            size, is_packed = self._path.stat().st_size, self._path.name.endswith(".gz")
        except OSError:
            return 1
        return 1 + size * (_PACKED_TIMES if is_packed else 1) // BLOCK_BYTES

    def blocks(self) -> Iterator[list[Event]]:
        """Yield the events, some thousands at a time.

        Raises
        ------
        TraceFileError
            If the file cannot be read, or holds no list of events.
        """
        try:
            with closing(_Source(self._path)) as source:
                yield from self._blocks(source)
        except OSError as error:
            if isinstance(error, TraceFileError):
                raise
            raise TraceFileError(f"{str(self._path)!r} cannot be read: {error.strerror or error}. Check its path.") from error

    def _blocks(self, source: _Source) -> Iterator[list[Event]]:
        text, is_list = self._open_list(source)
        while True:
            part = source.read()
            text = (text + part).lstrip(_BLANK + b",")
            if not part and source.damage:
                self.damage = source.damage
            events, text, is_end = self._take(text, is_last=not part, is_list=is_list)
            self.event_count += len(events)
            if events:
                yield events
            if is_end:
                break
        if not (is_list or self.damage):
            self._read_rest(text, source)

    def _open_list(self, source: _Source) -> tuple[bytes, bool]:
        """Return what follows the bracket that opens the list, and whether the file is nothing but the list."""
        text, seen, tries = b"", 0, 0
        while len(text) < LARGEST_HEAD_BYTES and tries < _MOST_TRIES:
            part = source.read()
            text = (text + part).removeprefix(_BYTE_ORDER_MARK).lstrip(_BLANK)
            if text[:1] == b"[":
                return text[1:], True
            if text[:1] not in {b"", b"{"}:
                break
            for found in _EVENTS_KEY.finditer(text, seen):
                tries, seen = tries + 1, found.end()
                try:
                    self.top = _TOP.decode(text[: found.start()].rstrip(_BLANK + b",") + b"}")
                except WRONG:
                    continue  # it stands in a text, or deeper
                return text[found.end() :], False
            seen = max(seen, len(text) - 256)
            if not part:
                break
        raise TraceFileError(
            f"{str(self._path)!r} is no trace in Chrome's trace event format: it holds neither a list of events nor an object "
            f"with 'traceEvents'. {source.damage or 'Give the path of the file that the profiler wrote'}."
        )

    def _take(self, text: bytes, *, is_last: bool, is_list: bool) -> tuple[list[Event], bytes, bool]:
        """Return the events that are whole, what is left, and whether the list has ended."""
        if text[:1] == b"]":
            return [], text[1:], True
        ends = _ends(text)
        if not is_last and ends and (events := self._decode(text[: ends[0][0]])) is not None:
            return events, text[ends[0][1] :], False
        text, at, is_closed = _diagnose(text, is_last=is_last)
        if is_closed:
            return self._decode(text[: at - 1]) or [], text[at:], True
        if at < 0:  # the list goes on
            return self._take_open(text, is_last=is_last, is_list=is_list)
        events = self._whole_before(text, at)
        self.damage = f"it is no JSON behind its first {self.event_count + len(events):,} events"
        return events, b"", True

    def _take_open(self, text: bytes, *, is_last: bool, is_list: bool) -> tuple[list[Event], bytes, bool]:
        if is_last:
            whole = self._decode(text.rstrip(_BLANK + b","))
            if whole is not None:
                self.damage = self.damage or ("" if is_list else "its end is missing")
                return whole, b"", True
            self.damage = self.damage or "it was cut off"
            return self._whole_before(text, len(text)), b"", True
        for end, begin in _ends(text):
            if (events := self._decode(text[:end])) is not None:
                return events, text[begin:], False
        if len(text) > LARGEST_EVENT_BYTES:
            self.damage = f"one of its events is larger than {LARGEST_EVENT_BYTES:,} bytes"
            return [], b"", True
        return [], text, False

    def _whole_before(self, text: bytes, at: int) -> list[Event]:
        for end, _ in _ends(text[:at]):
            if (events := self._decode(text[:end])) is not None:
                return events
        return []

    def _decode(self, text: bytes) -> list[Event] | None:
        """Return a stretch as events; None where it is none."""
        listed = b"[" + text + b"]"
        try:
            try:
                return _EVENTS.decode(listed)
            except msgspec.ValidationError:  # some are no objects
                return [event for raw in _RAWS.decode(listed) if (event := self._one(raw)) is not None]
        except WRONG:
            return None

    def _one(self, raw: msgspec.Raw) -> Event | None:
        try:
            return _EVENT.decode(raw)
        except WRONG:
            self.refused += 1
            self.event_count += 1
            return None

    def _read_rest(self, text: bytes, source: _Source) -> None:
        """Read what stands behind the events."""
        while len(text) < LARGEST_EVENT_BYTES and (part := source.read()):
            text += part
        try:
            behind = _TOP.decode(b'{"":0' + text)
        except WRONG:
            self.damage = source.damage or "what stands behind its events is damaged"
            return
        given = {name: value for name in ("base_ns", "viztracer") if (value := getattr(behind, name)) is not None}
        self.top = msgspec.structs.replace(self.top, **given)


def _ends(text: bytes) -> list[tuple[int, int]]:
    """Return the last places where an event may end and the next one begin, the last one first."""
    for first in (max(0, len(text) - _TAIL_BYTES), 0):
        found = [(match.start() + 1, match.end() - 1) for match in _BETWEEN.finditer(text, first)]
        if found:
            break
    return found[: -_MOST_TRIES - 1 : -1]


def _diagnose(text: bytes, *, is_last: bool) -> tuple[bytes, int, bool]:
    """Find where a list ends, or is damaged.

    Returns
    -------
    tuple
        The text, mended where that was needed; the place behind the bracket that closes the list, or of the damage, or -1 where
        the list goes on; and whether it is closed there.
    """
    for mend in (bytes, partial(_mend, is_last=is_last)):
        mended = mend(text)
        try:
            _RAWS.decode(b"[" + mended[: len(mended) - _half_letter(mended)])
            return mended, len(mended.rstrip(_BLANK)), True
        except (UnicodeDecodeError, RecursionError):
            at = 0
        except msgspec.DecodeError as error:
            closed, place = _TRAILING.search(str(error)), _AT_BYTE.search(str(error))
            if closed:
                return mended, _closed_before(mended, int(closed[1])), True
            if place is None or int(place[1]) >= len(mended):  # it ends within a number, or elsewhere
                return mended, -1, False
            at = int(place[1]) - 1
    return mended, max(at, 0), False


def _closed_before(text: bytes, at: int) -> int:
    """Return the place behind the bracket that closes a list, of which the first sign behind it stands near a place."""
    for stop in (at - 2, at - 1, at):
        end = text.rfind(b"]", 0, stop) + 1
        try:
            _RAWS.decode(b"[" + text[:end])
        except WRONG:
            continue
        return end
    return 1


def _mend(text: bytes, *, is_last: bool) -> bytes:
    """Replace what JSON forbids and some write all the same; what may be half a sign at the end of a block stays."""
    text = text.translate(_ONE_LINE)
    end = len(text)
    if not is_last:
        end = max(0, end - _LONGEST_SIGN)
        while end and (text[end] & 0xC0 == 0x80 or b"\\" in text[max(0, end - _LONGEST_SIGN) : end]):
            end -= 1
    mended = text[:end].decode("utf-8", "replace").encode()
    if b"\\ud" in mended or b"\\uD" in mended:
        mended = _HALF_A_SIGN.sub(lambda found: found[0] if found[2] else (found[3] or b"") + b"\\ufffd", mended)
    return _TRAILING_COMMA.sub(rb"\1", _NO_NUMBER.sub(rb"\1null", mended) + text[end:])


def _half_letter(text: bytes) -> int:
    """Return how many bytes at the end begin a letter of which more follows."""
    for count, byte in enumerate(text[:-4:-1], 1):
        if byte >= 0xC0:
            return count if count < 2 + (byte >= 0xE0) + (byte >= 0xF0) else 0
        if byte < 0x80:
            break
    return 0


class _Source:
    """The bytes of a file, unpacked."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._unpack: Any = None
        self._is_packed = self._file.peek(2)[:2] == _PACKED
        self._left = b""
        self.damage = ""

    def read(self) -> bytes:
        """Return the next bytes, about `BLOCK_BYTES`; none at the end, or where it cannot be unpacked further."""
        if not self._is_packed:
            return self._file.read(BLOCK_BYTES)
        parts: list[bytes] = []
        size = 0
        while size < BLOCK_BYTES and (part := self._unpacked()):
            parts.append(part)
            size += len(part)
        return b"".join(parts)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _unpacked(self) -> bytes:
        """Return some bytes; none at the end."""
        while not self.damage:
            packed = self._left or self._file.read(1 << 16)
            if not packed:
                self.damage = "it was cut off while it was packed" if self._unpack is not None else ""
                return b""
            try:
                self._unpack = self._unpack or zlib.decompressobj(wbits=31)
                part: bytes = self._unpack.decompress(packed, BLOCK_BYTES)
            except zlib.error as error:
                self.damage = f"it cannot be unpacked: {error}"
                return b""
            self._left = self._unpack.unconsumed_tail
            if self._unpack.eof:  # another packed piece may follow
                self._left = self._unpack.unused_data.lstrip(b"\0")
                self._unpack = None
            if part:
                return part
        return b""
