"""Rows of dialects that tell one thing after the other: work of streams, calls and ranges of threads; and their frame."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._frame import (
    COPY,
    FILL,
    HOST,
    KERNEL,
    Codes,
    Columns,
    Frame,
    add_launches,
    card_note,
    launch_note,
    not_read,
    own_name,
    unknown_device,
)
from gpustreamlab.model import Device, Lane, Trace, WorkDetail
from gpustreamlab.recorder import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import LaneKind

NULL_STREAM = "default stream"  # How the lane of one begins that blocking streams wait for
LARGEST = 1 << 61  # Later times, and larger numbers, are none
_WAY = re.compile(
    r"(?:^|cpy|copy)[ _(]?(H(?:OST)?|D(?:EVICE)?)[_-]?(?:TO|2)[_-]?(H(?:OST)?|D(?:EVICE)?)(?![a-z])", re.IGNORECASE
)
_COPIES = re.compile(r"(?i)\[cuda .*memcpy|memcpy|copy(?:host|device)|ze\w+memorycopy|clenqueue(?:read|write|copy)")
_FILLS = re.compile(r"(?i)(?:\[cuda )?memset|fillbuffer|ze\w+memoryfill|clenqueuefill")
_WORK = ("start_ns", "end_ns", "stream", "kind", "name", "detail", "size_bytes", "correlation")
_ON_HOST = ("start_ns", "end_ns", "thread", "kind", "name", "correlation")


class Stream(NamedTuple):
    """What tells streams apart: lanes come in this order."""

    device: int
    number: int
    name: str
    queue: int = -1  # The hardware queue of what is no stream yet, see `Rows.change_streams`


class Shape(NamedTuple):
    """How work was launched."""

    name: str
    grid: tuple[int, int, int] = (0, 0, 0)
    block: tuple[int, int, int] = (0, 0, 0)
    registers: int = 0
    shared_bytes: int = 0
    queue: int = -1  # Which hardware queue it came through

    def detail(self) -> WorkDetail:
        """Return it as a trace has it."""
        return WorkDetail(
            full_name=cut_text(self.name, MAX_FULL_NAME),
            grid=self.grid,
            block=self.block,
            registers=self.registers,
            static_shared_bytes=self.shared_bytes,
            channel=self.queue,
        )


class Rows:
    """What a file tells, row by row; what makes no sense of it is counted."""

    def __init__(self) -> None:
        self.names, self.threads = Codes(cut_text), Codes(cut_text)
        self.streams, self._shapes = Codes(Stream._make), Codes(Shape.detail)
        self.left_out = Counter[str]()
        self.refused_count = 0
        self.cut = ""  # What tells that not all of it is there
        self._work, self._on_host = array("q"), array("q")
        self._stream_of: list[int] | None = None  # Of each stream that was told what it is of those that are known now

    def add_work(
        self, start_ns: Any, end_ns: Any, stream: Stream, shape: Shape, kind: int = KERNEL, size_bytes: Any = 0, launch: Any = 0
    ) -> None:
        """Take work of a stream; by its launch it and its call are known."""
        if self._is_sound(start_ns, end_ns):
            rest = (self.names[called(kind, shape.name)], self._shapes[shape], whole(size_bytes), whole(launch))
            self._work.extend((start_ns, end_ns, self.streams[stream], kind, *rest))

    def add_on_host(self, start_ns: Any, end_ns: Any, thread: str, name: str, kind: int = HOST, launch: Any = 0) -> None:
        """Take a call or a range of a thread."""
        if self._is_sound(start_ns, end_ns):
            self._on_host.extend((start_ns, end_ns, self.threads[thread], kind, self.names[name], whole(launch)))

    def change_streams(self, change: Callable[[Stream], Stream]) -> None:
        """Call streams otherwise, as all of them are known; those that are then the same are one lane."""
        told, self.streams = [*self.streams.known], Codes(Stream._make)
        self._stream_of = [self.streams[change(one)] for one in told]

    def _is_sound(self, start_ns: Any, end_ns: Any) -> bool:
        is_sound = type(start_ns) is int is type(end_ns) and (start_ns or end_ns) and -LARGEST < start_ns <= end_ns < LARGEST
        self.refused_count += not is_sound
        return bool(is_sound)

    def trace(
        self,
        path: object,
        source: str,
        again: str,
        *,
        backend: str,
        cards: Mapping[int, Device] | None = None,
        missing: Sequence[str] = (),
        has_waits: bool = True,  # Without them no stream can have waited for another
    ) -> Trace:
        """Return the trace; raise `TraceFileError`, with what to record again, where there is nothing in it."""
        work, on_host = _columns(self._work, _WORK), _columns(self._on_host, _ON_HOST)
        counts = len(work["start_ns"]), len(on_host["start_ns"])
        refused = f"; {self.refused_count:,} refused, as their times make no sense" if self.refused_count else ""
        if not any(counts):
            raise TraceFileError(
                f"{str(path)!r} is of {source} and holds no kernels, copies, calls or ranges"
                f"{not_read(self.left_out)}{refused}. {again}"
            )
        is_call = on_host["kind"] == HOST
        calls, ranges = ({name: values[rows] for name, values in on_host.items()} for rows in (is_call, ~is_call))
        del ranges["correlation"]
        lanes = self._lanes(work, cards or {})
        for part in (calls, ranges):
            part["lane"] = part["thread"] + len(self.streams.known)
        call = add_launches(work, calls)
        used = f"{counts[0]:,} kernels, copies and fills, {len(calls['lane']):,} calls, {len(ranges['lane']):,} ranges"
        devices = {lane.device: (cards or {}).get(lane.device) or unknown_device(lane.device) for lane in lanes}
        unknown = ", ".join(f"GPU {one}" for one in sorted({one.device for one in self.streams}) if not devices[one].sm_count)
        facts = [*missing, *launch_note(call), *([card_note(unknown)] if unknown else [])]
        waits_told = len(self.streams.known) < 2 or not has_waits
        facts += [] if waits_told else ["Whether streams waited for events is not told."]
        return Frame(
            backend=backend,
            source=source,
            path=str(path),
            lanes=lanes,
            threads=[*self.threads.known],
            names=[*self.names.known],
            parts=[ranges, calls, work],
            details=[*self._shapes.known.keys()],
            devices=devices,
            imported=used + f" of {sum(counts) + self.refused_count:,} rows{not_read(self.left_out)}{refused}",
            missing=facts,
            facts={"waits_told": waits_told, "refused_records": self.refused_count, "recovery_note": self.cut},
        ).trace()

    def _lanes(self, work: Columns, cards: Mapping[int, Device]) -> list[Lane]:
        """Return a lane for each stream, in their order, and for each thread; tell work its lane."""
        streams = [*self.streams.known]
        order = sorted(range(len(streams)), key=streams.__getitem__)
        place = np.zeros(len(order), np.int64)
        place[order] = np.arange(len(order))
        told = work.pop("stream")
        work["lane"] = place[told if self._stream_of is None else np.array(self._stream_of, np.int64)[told]]
        has_many = len({one.device for one in streams}) > 1
        lanes, taken = list[Lane](), Counter[str]()
        for number in order:
            one = streams[number]
            card = cards.get(one.device)
            is_null = one.name.startswith(NULL_STREAM)
            where = f"{one.name} of GPU {one.device}" if is_null else f"GPU {one.device} {one.name}"
            name, sms = own_name(cut_text(where if has_many else one.name), taken), card.sm_count if card else 0
            facts: dict[str, Any] = {"outside": True, "is_blocking": True} if is_null else {}
            lanes.append(Lane(name=name, device=one.device, stream=one.number, sm_count=sms, **facts))
        return [*lanes, *(Lane(name=own_name(f"host: {name}", taken), kind=LaneKind.HOST) for name in self.threads.known)]


def _columns(rows: array[int], names: Sequence[str]) -> Columns:
    """Return rows as columns, in the order of their starts, of two that begin at once the longer first."""
    table = np.frombuffer(rows, np.int64).reshape(-1, len(names)).T
    order = np.lexsort((-table[1], table[0]))
    return {name: values[order] for name, values in zip(names, table, strict=True)}


def whole(value: object) -> int:
    """Return a whole number that is not negative, also of a text; 0 for anything else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < LARGEST else 0


def sizes(three: Sequence[object]) -> tuple[int, int, int]:
    """Return three sizes, or zeros where one of them is none."""
    x, y, z = (whole(size) for size in three)
    return (x, y, z) if min(x, y, z) > 0 and max(x, y, z) < 1 << 32 else (0, 0, 0)


def called(kind: int, told: str) -> str:
    """Return the name that such work has in a trace of our own, as far as the way of a copy is told by its name."""
    if kind == KERNEL:
        return short_name(told)
    found = None if told.startswith("memcpy ") else _WAY.search(told)
    return "memset" if kind == FILL else f"memcpy {found[1][0].upper()}to{found[2][0].upper()}" if found else told


def kind_of(name: str) -> int:
    """Return what work is, by its name."""
    return COPY if _COPIES.match(name) else FILL if _FILLS.match(name) else KERNEL
