"""The events of PyTorch's profiler as columns: block by block, so that no event is kept."""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from os import PathLike
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._event_file import LARGEST_TIME_NS, EventFile, all_nanoseconds, whole_number
from gpustreamlab.exchange._formats import LEAST_WALL_CLOCK_NS
from gpustreamlab.record import MAX_FULL_NAME, cut_text
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

MOST_ROWS = 5_000_000
"""Most kernels, copies and fills that are kept of all files together, and likewise calls, ranges, and waits."""
MOST_KNOWN = 1_000_000
"""Most different names, ways of launching, streams and threads."""
MOST_CHARACTERS = 250_000_000
"""Most characters of them."""
MOST_THREAD_NAMES = 65_536
"""Most threads of which a name is kept."""
MOST_CATEGORIES = 1_000
"""Most categories that are counted one by one."""
CORRELATION_BITS = 40
"""Larger correlations are none: CUDA's have 32."""

TIMES = ("start_ns", "end_ns")
WORK, CALL, RANGE, WAIT = ROLES = ("work", "call", "range", "wait")
_KINDS = {
    "kernel": SpanKind.KERNEL,
    "gpu_memcpy": SpanKind.COPY,
    "memcpy": SpanKind.COPY,
    "gpu_memset": SpanKind.FILL,
    "memset": SpanKind.FILL,
}
_OTHERS = {
    "cuda_runtime": CALL,
    "cuda_driver": CALL,
    "runtime": CALL,
    "user_annotation": RANGE,
    "cpu_op": RANGE,
    "operator": RANGE,
    "cuda_sync": WAIT,
}
"""Categories of spans; in 2021 some had other names."""
_SAID_ELSEWHERE = frozenset({"gpu_user_annotation", "trace"})
"""Spans that tell nothing that ranges, first and last time do not."""
_NAMES_AND_FLOWS = ("M", "s", "t", "f")
_STREAM_WAIT = "Stream Wait Event"
_LAST_NUMBER = re.compile(r"(\d{1,18})\s*$")
_HOST_ROWS = 1_000_000
"""Newer files put waits of the host for a stream into rows of this number more than the stream's."""

Columns: TypeAlias = dict[str, NDArray[Any]]
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


class StreamKey(NamedTuple):
    """What tells streams apart."""

    file: int
    device: int
    context: int
    stream: int


class ThreadKey(NamedTuple):
    """What tells threads apart."""

    file: int
    process: str
    thread: str


class Shape(NamedTuple):
    """How work was launched, as the file tells it."""

    file: int
    kind: SpanKind
    name: str
    grid: tuple[int, int, int] | None
    block: tuple[int, int, int] | None
    registers: int
    shared: int
    graph: int
    node: int
    channel: int


class Codes(dict[Any, int]):
    """Numbers things as they come, equal ones alike.

    Parameters
    ----------
    tidy
        Returns what a thing is known as.

    Examples
    --------
    >>> codes = Codes(str)
    >>> [codes[key] for key in (7, 5, "7")], list(codes.known)
    ([0, 1, 0], ['7', '5'])
    """

    def __init__(self, tidy: Callable[[Any], Any]) -> None:
        self._tidy = tidy
        self._character_count = 0
        self.known: dict[Any, int] = {}

    def __missing__(self, key: Any) -> int:
        self._character_count += len(str(key))
        if len(self.known) >= MOST_KNOWN or self._character_count > MOST_CHARACTERS:
            raise TraceFileError(
                f"The file has more than {MOST_KNOWN:,} different names, ways of launching, streams or threads, or they are "
                f"longer than {MOST_CHARACTERS:,} characters together. Profile fewer steps."
            )
        code = self[key] = self.known.setdefault(self._tidy(key), len(self.known))
        return code

    def of(self, keys: Iterable[Any]) -> NDArray[np.int32]:
        """Return the number of each."""
        return np.array([self[key] for key in keys], np.int32)


_SORT = attrgetter("ph", "cat")
_TIMES = attrgetter("ts"), attrgetter("dur")
_NAME = attrgetter("name")
_THREAD = attrgetter("pid", "tid")
_STREAM = attrgetter("args.device", "args.context", "args.stream", "pid", "tid")
_SHAPE = attrgetter("args.grid", "args.block", "args.registers", "args.shared", "args.graph", "args.node", "args.channel")
_AWAITED = attrgetter("args.device", "args.context", "args.awaited_stream", "pid", "tid")


class Collector:
    """Takes the events of files; what it holds is columns, and one of each name, stream, thread, and way of launching.

    Columns of each role: ``start_ns``, ``end_ns``; of work ``stream``, ``shape``, ``size_bytes``, ``correlation``; of calls and
    ranges ``thread`` and ``name``; of calls ``correlation``; of waits ``source``, ``target`` (streams), ``record``, ``wait``.
    """

    def __init__(self) -> None:
        self.names = Codes(cut_text)
        self.streams = Codes(self._stream_key)
        self.threads = Codes(self._thread_key)
        self.shapes = Codes(lambda key: Shape(*key))
        self.thread_names: dict[ThreadKey, str] = {}
        self.priorities: dict[int, int] = {}
        """By stream."""
        self.facts: list[Facts] = []
        """What each file tells of itself."""
        self.cuts: list[str] = []
        """What is missing of each file; empty where nothing is."""
        self.are_absolute: list[bool] = []
        """Whether the times of each file are of the wall clock."""
        self.are_in_us = True
        self.left_out: Counter[str] = Counter()
        self.dropped = dict.fromkeys(ROLES, 0)
        """Rows of each role beyond `MOST_ROWS`."""
        self.event_count = self.refused_count = self.damaged_count = self.wait_count = 0
        self.unsaid_count = 0
        """Waits of streams that do not say what for."""
        self.said_count = 0
        """Events that tell nothing which others do not: names, flows, copies of ranges, waits of the host."""
        self.collectives: dict[int, tuple[int, int]] = {}
        """By the correlation of a kernel its communicator, a number that all ranks have alike, and its place in that, from 1; 0
        where that is not told."""
        self._columns = {role: _rooms(role) for role in ROLES}
        self.row_counts = dict.fromkeys(ROLES, 0)
        """Rows of each role that are kept."""
        self._file = 0

    def read(self, path: str | PathLike[str]) -> None:
        """Take a file."""
        file, self._file = EventFile(path, Event, Facts), len(self.facts)
        for codes in (self.streams, self.threads):  # those of another file are others
            codes.clear()
        firsts = dict(self.row_counts)
        for events in file.blocks():
            self._add(events)
        self.facts.append(file.facts)
        self.cuts.append(file.cut)
        self.event_count += file.event_count + file.damaged_count
        self.damaged_count += file.damaged_count
        spans = [(self._columns[role], slice(firsts[role], self.row_counts[role])) for role in ROLES if role != WAIT]
        self._set_clock([{name: columns[name][new] for name in TIMES} for columns, new in spans])

    def take(self, role: str) -> Columns:
        """Return the columns of a role, and forget them; times in order, of two that begin at once the longer first."""
        columns, count = self._columns.pop(role), self.row_counts[role]
        if role == WAIT:
            return {name: values[:count].copy() for name, values in columns.items()}
        order = np.lexsort((-columns["end_ns"][:count], columns["start_ns"][:count])).astype(np.int32)
        return {name: columns.pop(name)[:count][order] for name in [*columns]}

    def _keep(self, role: str, columns: Columns) -> None:
        """Append rows; there is room for them."""
        first = self.row_counts[role]
        self.row_counts[role] = last = first + len(next(iter(columns.values())))
        for name, values in columns.items():
            self._columns[role][name][first:last] = values

    def _set_clock(self, parts: Sequence[Columns]) -> None:
        """Add the file's base to its times, if that makes them those of the wall clock."""
        first_ns = min((int(part["start_ns"].min()) for part in parts if len(part["start_ns"])), default=0)
        base_ns = whole_number(self.facts[-1].base_ns)
        self.are_absolute.append(base_ns + first_ns >= LEAST_WALL_CLOCK_NS)
        self.are_in_us = self.are_in_us and not any((part["start_ns"] % 1_000).any() for part in parts)
        if self.are_absolute[-1]:
            for part in parts:
                part["start_ns"] += base_ns
                part["end_ns"] += base_ns

    def _add(self, events: list[Event]) -> None:
        sorts: defaultdict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
        for sort, event in zip(map(_SORT, events), events, strict=True):
            sorts[sort].append(event)
        for (phase, given), found in sorts.items():
            category = str(given).lower()
            if phase == "X" and category in _KINDS:
                self._add_work(found, _KINDS[category])
            elif phase == "X" and category in _OTHERS:
                (self._add_waits if _OTHERS[category] == WAIT else self._add_host)(found, _OTHERS[category])
            elif phase in _NAMES_AND_FLOWS or (phase == "X" and category in _SAID_ELSEWHERE):
                self.said_count += len(found)
                if phase == "M":
                    self._add_thread_names(found)
            else:
                name = "without a category" if given is None else str(given)[:40]
                self.left_out[name if name in self.left_out or len(self.left_out) < MOST_CATEGORIES else "others"] += len(found)

    def _timed(self, events: list[Event], role: str) -> tuple[list[Event], Columns]:
        """Return those events of which the times make sense, as many as there is room for, and their times."""
        start_ns, lasts_ns = (all_nanoseconds(list(map(get, events))) for get in _TIMES)
        is_good: BoolArray = (start_ns < LARGEST_TIME_NS) & (lasts_ns >= 0) & (start_ns + lasts_ns < LARGEST_TIME_NS)
        self.refused_count += len(events) - int(is_good.sum())
        left = MOST_ROWS - self.row_counts[role]
        dropped_count = max(int(is_good.sum()) - left, 0)
        if dropped_count:
            self.dropped[role] += dropped_count
            is_good &= np.cumsum(is_good) <= left
        if not is_good.all():
            events = [event for event, is_kept in zip(events, is_good.tolist(), strict=True) if is_kept]
            start_ns, lasts_ns = start_ns[is_good], lasts_ns[is_good]
        return events, {"start_ns": start_ns, "end_ns": start_ns + lasts_ns}

    def _add_host(self, events: list[Event], role: str) -> None:
        events, columns = self._timed(events, role)
        if events:
            columns["thread"] = self.threads.of(map(_THREAD, events))
            columns["name"] = self.names.of(_names(events))
            if role == CALL:
                columns["correlation"] = self._correlations(events)
            self._keep(role, columns)

    def _add_work(self, events: list[Event], kind: SpanKind) -> None:
        events, columns = self._timed(events, WORK)
        if events:
            shapes = zip(_names(events), map(_SHAPE, events), strict=True)
            columns["stream"] = self.streams.of(map(_STREAM, events))
            columns["shape"] = self.shapes.of((self._file, kind, name, *shape) for name, shape in shapes)
            columns["size_bytes"] = np.maximum(_numbers(events, "args.bytes"), 0)
            columns["correlation"] = self._correlations(events)
            for event, correlation in zip(events, columns["correlation"].tolist(), strict=True):
                if event.args.group is not None and correlation and len(self.collectives) < MOST_KNOWN:
                    self.collectives[correlation] = _collective(event)
            priorities = _numbers(events, "args.priority").tolist()
            self.priorities.update(zip(columns["stream"].tolist(), priorities, strict=True))
            self._keep(WORK, columns)

    def _add_waits(self, events: list[Event], role: str) -> None:
        """Take which stream waited for which; what the host waited for its calls tell."""
        waits = [event for event in events if event.name == _STREAM_WAIT]
        told = [event for event in waits if event.args.awaited_record > 0 and event.args.correlation > 0]
        self.wait_count += len(told)
        self.unsaid_count += len(waits) - len(told)
        self.said_count += len(events) - len(waits)
        kept = told[: MOST_ROWS - self.row_counts[role]]
        self.dropped[role] += len(told) - len(kept)
        if kept:
            shift = self._file << CORRELATION_BITS
            columns: Columns = {
                name: self.streams.of(map(get, kept)) for name, get in (("source", _AWAITED), ("target", _STREAM))
            }
            columns["record"] = _numbers(kept, "args.awaited_record") + shift
            columns["wait"] = _numbers(kept, "args.correlation") + shift
            self._keep(role, columns)

    def _add_thread_names(self, events: list[Event]) -> None:
        for event in events:
            if event.name == "thread_name" and event.args.name is not None and len(self.thread_names) < MOST_THREAD_NAMES:
                self.thread_names[self._thread_key(_THREAD(event))] = cut_text(str(event.args.name)).strip()

    def _correlations(self, events: list[Event]) -> Int64Array:
        """Return the correlations, 0 for none; those of several files are apart."""
        found = _numbers(events, "args.correlation")
        return np.where((found > 0) & (found < 1 << CORRELATION_BITS), found + (self._file << CORRELATION_BITS), 0)

    def _thread_key(self, told: tuple[Any, Any]) -> ThreadKey:
        return ThreadKey(self._file, *(cut_text(str(one)) for one in told))

    def _stream_key(self, told: tuple[Any, ...]) -> StreamKey:
        """Return what tells a stream apart; ROCm tells no context."""
        device, context, stream, process, thread = told
        if stream is None:
            stream = _number_of(thread)
            stream -= _HOST_ROWS if stream >= _HOST_ROWS else 0
        return StreamKey(self._file, max(_number_of(process if device is None else device), 0), context, stream)


def _number_of(told: object) -> int:
    """Return the number of a device or stream, also where it is told as "stream 7"; 0 for none."""
    found = _LAST_NUMBER.search(told) if isinstance(told, str) else None
    return whole_number(told) if found is None else int(found[1])


def _rooms(role: str) -> Columns:
    """Return room for the columns of a role: memory that is not written to is not used."""
    wide = {WORK: ("size_bytes", "correlation"), CALL: ("correlation",), RANGE: (), WAIT: ("record", "wait")}[role]
    narrow = {WORK: ("stream", "shape"), WAIT: ("source", "target")}.get(role, ("thread", "name"))
    wide = wide if role == WAIT else (*TIMES, *wide)
    return {name: np.empty(MOST_ROWS, np.int64 if name in wide else np.int32) for name in (*wide, *narrow)}


def _names(events: list[Event]) -> list[str]:
    """Return the names, as long as one may be that is cut afterwards."""
    return [name if name and len(name) <= MAX_FULL_NAME else str(name)[: MAX_FULL_NAME + 1] for name in map(_NAME, events)]


def _collective(event: Event) -> tuple[int, int]:
    """Return a number for the communicator, the same in the files of all ranks, and the place in it from 1, or 0."""
    told = event.args
    sequence = whole_number(int(str(told.sequence)[:18]) if str(told.sequence).isdecimal() else -1, -1)
    return zlib.crc32(f"{told.group} {told.ranks}".encode("utf-8", "replace")) + 1, max(sequence + 1, 0)


def _numbers(events: list[Event], name: str) -> Int64Array:
    return np.fromiter(map(attrgetter(name), events), np.int64, len(events))
