"""Events of PyTorch's profiler as columns, block by block: work, calls, ranges and waits."""

from __future__ import annotations

import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from os import PathLike
from typing import Annotated, Any, NamedTuple, TypeAlias, Union

import msgspec
import numpy as np

from gpustreamlab.exchange._frame import LEAST_WALL_CLOCK_NS, Codes, Columns
from gpustreamlab.exchange._json_events import LARGEST_TIME_NS, EventFile, all_nanoseconds, whole_number
from gpustreamlab.recorder import cut_text
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

CORRELATION_BITS = 40  # Larger correlations are none: CUDA's have 32

WORK, CALL, RANGE, WAIT, COUNT, SAID = "work", "call", "range", "wait", "count", "said"
# What spans of each category are; in 2021 some had other names. What the last two tell, ranges, first and last time do.
CATEGORIES: Mapping[str, tuple[str, SpanKind]] = {
    **dict.fromkeys(("kernel",), (WORK, SpanKind.KERNEL)),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), (WORK, SpanKind.COPY)),
    **dict.fromkeys(("gpu_memset", "memset"), (WORK, SpanKind.FILL)),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver"), (CALL, SpanKind.HOST)),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"), (CALL, SpanKind.HOST)),  # of others
    **dict.fromkeys(("user_annotation", "cpu_op", "operator"), (RANGE, SpanKind.ANNOTATION)),
    "cuda_sync": (WAIT, SpanKind.HOST),
    **dict.fromkeys(("gpu_user_annotation", "trace"), (SAID, SpanKind.ANNOTATION)),
}
_STREAM_WAIT = "Stream Wait Event"
_LAST_NUMBER = re.compile(r"(\d{1,18})\s*$")
_HOST_ROWS = 1_000_000  # Newer files put waits of the host for a stream into rows of this number more than the stream's


_Whole: TypeAlias = Annotated[int, msgspec.Meta(gt=-LARGEST_TIME_NS, lt=LARGEST_TIME_NS)]
_Id: TypeAlias = int | str | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """What an event tells beside its times."""

    name: object = None
    device: _Whole | None = None
    context: _Whole | str = 0  # a handle as a text where Intel wrote it
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
    value: object = msgspec.field(name="", default=None)  # of a sample of a counter


_NO_ARGS = Args()


class Span(msgspec.Struct, gc=False, tag="X", tag_field="ph"):
    """A row with a begin and an end."""

    cat: str | None = None
    name: str | None = None
    pid: _Id = None
    tid: _Id = None
    ts: msgspec.Raw = msgspec.Raw(b"")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: Args = _NO_ARGS


class Event(Span, gc=False, tag=False):
    """A row of any kind."""

    ph: str | None = None


_FLOWS = tuple(msgspec.defstruct(f"Flow_{tag}", (), tag=tag, tag_field="ph", gc=False) for tag in "stf")
_OTHERS = tuple(msgspec.defstruct(f"Row_{tag}", (), bases=(Span,), tag=tag, tag_field="ph", gc=False) for tag in "MiC")
ROWS: Any = Union[Span, *_OTHERS, *_FLOWS]
"""Kinds of rows, of which flows tell what correlations do. To decode these takes less time than each as an `Event`."""


class Facts(msgspec.Struct):
    """What a file tells of itself."""

    schema: object = msgspec.field(name="schemaVersion", default=None)
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


_TIMES = attrgetter("ts"), attrgetter("dur")
_NAME = attrgetter("name")
_THREAD = attrgetter("pid", "tid")
_STREAM = attrgetter("args.device", "args.context", "args.stream", "pid", "tid")
_SHAPE = attrgetter(
    "cat", "name", "args.grid", "args.block", "args.registers", "args.shared", "args.graph", "args.node", "args.channel"
)
_CARD = re.compile(r"GPU \d{1,4} Counters")  # The process whose rows are the samples of a card
_PEAK = re.compile(r" \(%\)$|\.(avg|sum|max)?\.?pct_of_peak_sustained_elapsed$")
_COUNTED = {  # By the names of torch's and of CUPTI's metrics, without what tells that they are shares of a peak
    "SM Active": "sm_active",
    "sm__cycles_active": "sm_active",
    "sm__warps_active": "sm_occupancy",
    "sm__pipe_tensor_cycles_active": "tensor_active",
    **dict.fromkeys(("DRAM BW", "HBM BW", "gpu__dram_throughput", "dram__throughput"), "dram_active"),
}
_AWAITED = attrgetter("args.device", "args.context", "args.awaited_stream", "pid", "tid")
_COLUMNS = {
    WORK: ("start_ns", "end_ns", "stream", "shape", "size_bytes", "correlation"),
    CALL: ("start_ns", "end_ns", "thread", "name", "correlation"),
    RANGE: ("start_ns", "end_ns", "thread", "name"),
    WAIT: ("source", "target", "record", "wait"),
    COUNT: ("start_ns", "end_ns", "counter", "value"),
}
_WIDE = {"start_ns", "end_ns", "size_bytes", "correlation", "record", "wait"}


class Events:
    """Takes the events of files; what it holds is columns, and one of each name, stream, thread, and way of launching."""

    def __init__(self) -> None:
        self.names = Codes(lambda name: cut_text(str(name)))
        self.streams = Codes(self._stream_key)
        self.threads = Codes(self._thread_key)
        self.shapes = Codes(lambda told: Shape(self._file, _read_as(told[0])[1], str(told[1]), *told[2:]))
        self.counters = Codes(lambda told: (self._file, *told))  # Card and name of each
        self.thread_names: dict[ThreadKey, str] = {}
        self.row_names: dict[StreamKey, str] = {}  # What rows of streams are called
        self.priorities: dict[int, int] = {}  # By stream
        self.facts: list[Facts] = []  # What each file tells of itself
        self.cuts: list[str] = []  # What is missing of each file; empty where nothing is
        self.are_absolute: list[bool] = []  # Whether the times of each file are of the wall clock
        self.are_in_us = True
        self.left_out: Counter[str] = Counter()
        self.event_count = self.refused_count = self.damaged_count = self.wait_count = 0
        self.sample_count = 0  # Of counters
        self.unsaid_count = 0  # Waits of streams that do not say what for
        self.profiler_ns = 0  # What the profiler says that it took itself
        self.said_count = 0  # Events that tell nothing which others do not: names, flows, copies of ranges, waits of the host
        # By the correlation of a kernel its communicator, a number that all ranks have alike, and its place in that, from 1; 0
        # where that is not told.
        self.collectives: dict[int, tuple[int, int]] = {}
        self._parts: dict[str, list[Columns]] = {role: [] for role in _COLUMNS}
        self._file = 0

    def read(self, path: str | PathLike[str]) -> None:
        """Take a file."""
        file, self._file = EventFile(path, Event, Facts, ROWS), len(self.facts)
        for codes in (self.streams, self.threads, self.shapes, self.counters):  # those of another file are others
            codes.clear()
        before = {role: len(parts) for role, parts in self._parts.items()}
        for events in file.blocks():
            self._add(events)
        self.facts.append(file.facts)
        self.cuts.append(file.cut)
        self.event_count += file.event_count + file.damaged_count
        self.damaged_count += file.damaged_count
        self._set_clock([part for role in (WORK, CALL, RANGE, COUNT) for part in self._parts[role][before[role] :]])

    def take(self, role: str) -> Columns:
        """Return the columns of a role, and forget them; times in order, of two that begin at once the longer first."""
        parts, found = self._parts.pop(role), {}
        for name in _COLUMNS[role]:
            found[name] = np.concatenate(
                [np.empty(0, np.int64 if name in _WIDE else np.int32), *(part.pop(name) for part in parts)]
            )
        if role == WAIT:
            return found
        order = np.lexsort((-found["end_ns"], found["start_ns"])).astype(np.int32)
        return {name: found.pop(name)[order] for name in [*found]}

    def _set_clock(self, parts: Sequence[Columns]) -> None:
        """Add the file's base to its times, if that makes them those of the wall clock."""
        base_ns = whole_number(self.facts[-1].base_ns)
        middle_ns = max((int(np.median(part["start_ns"])) for part in parts), default=0)
        self.are_absolute.append(base_ns + middle_ns >= LEAST_WALL_CLOCK_NS)
        if self.are_absolute[-1]:
            for part in parts:  # what lies half a century before the others has no time
                is_timed = part["start_ns"] >= LEAST_WALL_CLOCK_NS - base_ns
                self.refused_count += len(is_timed) - int(is_timed.sum())
                part |= {name: values[is_timed] for name, values in part.items()}
        self.are_in_us = self.are_in_us and not any((part["start_ns"] % 1_000).any() for part in parts)
        if self.are_absolute[-1]:
            for part in parts:
                part["start_ns"] += base_ns
                part["end_ns"] += base_ns

    def _add(self, events: Sequence[Span]) -> None:
        spans: list[Span] = [event for event in events if type(event) is Span]
        if len(spans) < len(events):
            others = [event for event in events if type(event) is not Span and type(event) not in _FLOWS]
            self.said_count += len(events) - len(spans) - len(others)
            spans += self._add_others(others)
        roles: defaultdict[str, list[Span]] = defaultdict(list)
        for span in spans:
            roles[_read_as(span.cat)[0]].append(span)
        for role, found in roles.items():
            if role == SAID:
                self.said_count += len(found)
            elif role == WAIT:
                self._add_waits(found)
            elif role:
                self._add_spans(found, role)
            else:
                self._leave_out(found)

    def _add_others(self, events: Sequence[Span]) -> list[Span]:
        """Take names, count what says nothing new, and return the spans among them."""
        spans, samples = [], []
        for event in events:
            phase = event.ph if isinstance(event, Event) else event.__struct_config__.tag
            if phase == "X":
                spans.append(event)
            elif phase in {"M", "s", "t", "f"}:
                self.said_count += 1
                self._add_thread_name(event)
            elif phase == "C" and _is_sample(event):
                samples.append(event)
            else:
                self._leave_out([event])
        if samples:
            self.sample_count += len(samples)
            self._add_spans(samples, COUNT)
        return spans

    def _leave_out(self, events: Sequence[Span]) -> None:
        """Count what is not read, but for how long the profiler took."""
        self.left_out.update("without a category" if event.cat is None else event.cat[:40] for event in events)
        lasts_ns = all_nanoseconds([event.dur for event in events if event.cat == "overhead"])
        self.profiler_ns += int(lasts_ns[(lasts_ns >= 0) & (lasts_ns < LARGEST_TIME_NS)].sum())

    def _add_spans(self, events: Sequence[Span], role: str) -> None:
        """Take those events of which the times make sense."""
        start_ns, lasts_ns = all_nanoseconds([raw for get in _TIMES for raw in map(get, events)]).reshape(2, -1)
        is_good: BoolArray = (start_ns < LARGEST_TIME_NS) & (lasts_ns >= 0) & (start_ns + lasts_ns < LARGEST_TIME_NS)
        if role == WORK:
            is_good &= (start_ns != 0) | (lasts_ns != 0)  # CUPTI could not tell when it ran
        if not is_good.all():
            self.refused_count += len(events) - int(is_good.sum())
            events = [event for event, is_kept in zip(events, is_good.tolist(), strict=True) if is_kept]
            start_ns, lasts_ns = start_ns[is_good], lasts_ns[is_good]
        if events:
            columns: Columns = {"start_ns": start_ns, "end_ns": start_ns + lasts_ns}
            if role == WORK:
                columns |= self._work(events)
            elif role == COUNT:
                told = [(_number_of(str(one.pid).removesuffix(" Counters")), _counter_name(str(one.name))) for one in events]
                columns |= {"counter": self.counters.of(told), "value": np.array([one.args.value for one in events], float)}
            else:
                columns |= {"thread": self.threads.of(map(_THREAD, events)), "name": self.names.of(map(_NAME, events))}
            if role == CALL:
                columns["correlation"] = self._correlations(events)
            self._parts[role].append(columns)

    def _work(self, events: Sequence[Span]) -> Columns:
        columns: Columns = {
            "stream": self.streams.of(map(_STREAM, events)),
            "shape": self.shapes.of(map(_SHAPE, events)),
            "size_bytes": np.maximum(_numbers(events, "args.bytes"), 0),
            "correlation": self._correlations(events),
        }
        for event, correlation in zip(events, columns["correlation"].tolist(), strict=True):
            if event.args.group is not None and correlation:
                self.collectives[correlation] = _collective(event)
        self.priorities.update(zip(columns["stream"].tolist(), _numbers(events, "args.priority").tolist(), strict=True))
        return columns

    def _add_waits(self, events: Sequence[Span]) -> None:
        """Take which stream waited for which; what the host waited for its calls tell."""
        waits = [event for event in events if event.name == _STREAM_WAIT]
        told = [event for event in waits if event.args.awaited_record > 0 and event.args.correlation > 0]
        self.wait_count += len(told)
        self.unsaid_count += len(waits) - len(told)
        self.said_count += len(events) - len(waits)
        shift = self._file << CORRELATION_BITS
        columns: Columns = {name: self.streams.of(map(get, told)) for name, get in (("source", _AWAITED), ("target", _STREAM))}
        columns["record"] = _numbers(told, "args.awaited_record") + shift
        columns["wait"] = _numbers(told, "args.correlation") + shift
        self._parts[WAIT].append(columns)

    def _add_thread_name(self, event: Span) -> None:
        if event.name == "thread_name" and event.args.name is not None:
            name = cut_text(str(event.args.name)).strip()
            self.thread_names[self._thread_key(_THREAD(event))] = name
            self.row_names[self._stream_key((None, 0, None, event.pid, event.tid))] = name

    def _correlations(self, events: Sequence[Span]) -> Int64Array:
        """Return the correlations, 0 for none; those of several files are apart."""
        found = _numbers(events, "args.correlation")
        return np.where((found > 0) & (found < 1 << CORRELATION_BITS), found + (self._file << CORRELATION_BITS), 0)

    def _thread_key(self, told: tuple[Any, Any]) -> ThreadKey:
        return ThreadKey(self._file, *(cut_text(str(one)) for one in told))

    def _stream_key(self, told: tuple[Any, ...]) -> StreamKey:
        """Return what tells a stream apart; ROCm tells no context, Intel none that counts."""
        device, context, stream, _, thread = told
        if stream is None:
            stream = _number_of(thread)
            stream -= _HOST_ROWS if stream >= _HOST_ROWS else 0
        number = int(context) if isinstance(context, str) and context.isdecimal() else context
        return StreamKey(self._file, max(_number_of(device), 0), whole_number(number), stream)


def _is_sample(event: Span) -> bool:
    """Tell whether a row is a sample of a card's counter: of those that PyTorch writes since 2026."""
    return _CARD.fullmatch(str(event.pid)) is not None and isinstance(event.args.value, int | float)


@lru_cache(1_024)
def _counter_name(text: str) -> str:
    """Return what a counter is called here, with its unit where it is a share of a peak."""
    base, shares = _PEAK.subn("", text)
    return _COUNTED.get(base, re.sub(r"\W+", "_", base.lower())) + "_percent" if shares else cut_text(text)


@lru_cache(1_024)
def _read_as(category: str | None) -> tuple[str, SpanKind]:
    """Return what spans of a category are; no role for one that is not read."""
    return CATEGORIES.get(str(category).lower(), ("", SpanKind.HOST))


def without_context(key: StreamKey) -> tuple[int, int, int]:
    return key.file, key.device, key.stream


def _number_of(told: object) -> int:
    """Return the number of a device or stream, also where it is told as "stream 7"; 0 for none."""
    found = _LAST_NUMBER.search(told) if isinstance(told, str) else None
    return whole_number(told) if found is None else int(found[1])


def _numbers(events: Sequence[Span], name: str) -> Int64Array:
    return np.fromiter(map(attrgetter(name), events), np.int64, len(events))


def _collective(event: Span) -> tuple[int, int]:
    """Return a number for the communicator, the same in the files of all ranks, and the place in it from 1, or 0."""
    told = event.args
    sequence = whole_number(int(str(told.sequence)[:18]) if str(told.sequence).isdecimal() else -1, -1)
    return zlib.crc32(f"{told.group} {told.ranks}".encode("utf-8", "replace")) + 1, max(sequence + 1, 0)
