"""Read what PyTorch's profiler writes: Kineto's JSON, of 2021 and later.

Times are decimals of microseconds; they are read as text, as a float of 64 bits cannot hold those since 1970 to the nanosecond.
What the host launched is found by its correlation, never by flows: files hold ends of flows that have no beginning. Events
become columns block by block, so that no event is kept.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from os import PathLike
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange._frame import (
    ANNOTATION,
    HOST,
    KERNEL,
    LEAST_WALL_CLOCK_NS,
    Codes,
    Columns,
    Frame,
    add_launches,
    by_appearance,
    card_note,
    launch_note,
    not_read,
    unknown_device,
    wait_note,
)
from gpustreamlab.exchange._json_events import LARGEST_TIME_NS, EventFile, all_nanoseconds, whole_number
from gpustreamlab.model import (
    CHROME_BACKEND,
    KINETO_BACKEND,
    SPAN_KINDS,
    UNNAMED_SOURCE,
    Device,
    Lane,
    SMLimits,
    Trace,
    WorkDetail,
    most_blocks,
)
from gpustreamlab.recorder import DEPENDENCY_COLUMNS, MAX_FULL_NAME, cut_text
from gpustreamlab.typing import BoolArray, Int64Array, LaneKind, SpanKind

MOST_LISTED = 4  # How many devices are named
LARGEST_GRID = 1 << 61  # Grids of more blocks are none
CORRELATION_BITS = 40  # Larger correlations are none: CUDA's have 32

WORK, CALL, RANGE, WAIT, SAID = "work", "call", "range", "wait", "said"
# What spans of each category are; in 2021 some had other names. What the last two tell, ranges, first and last time do.
CATEGORIES: Mapping[str, tuple[str, SpanKind]] = {
    **dict.fromkeys(("kernel",), (WORK, SpanKind.KERNEL)),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), (WORK, SpanKind.COPY)),
    **dict.fromkeys(("gpu_memset", "memset"), (WORK, SpanKind.FILL)),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "xpu_runtime", "xpu_driver"), (CALL, SpanKind.HOST)),
    **dict.fromkeys(("user_annotation", "cpu_op", "operator"), (RANGE, SpanKind.ANNOTATION)),
    "cuda_sync": (WAIT, SpanKind.HOST),
    **dict.fromkeys(("gpu_user_annotation", "trace"), (SAID, SpanKind.ANNOTATION)),
}
_NAMES_AND_FLOWS = ("M", "s", "t", "f")
_STREAM_WAIT = "Stream Wait Event"
_LAST_NUMBER = re.compile(r"(\d{1,18})\s*$")
_HOST_ROWS = 1_000_000  # Newer files put waits of the host for a stream into rows of this number more than the stream's
_DEVICE_NUMBERS = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
_SM_NUMBERS = {
    "threads": ("maxThreadsPerMultiprocessor",),
    "registers": ("regsPerMultiprocessor",),
    "shared_bytes": ("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"),  # CUDA's and ROCm's
}
_STREAM_ROW = re.compile(r"^stream \d+\s*$")  # How PyTorch's profiler names the rows of streams
_THREAD_NAME = re.compile(r"^thread (\d+) \((.+)\)$")
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_ROCM_COPY = re.compile(r"^Copy(Host|Device)To(Host|Device)$")
_THREADS_GRID = "hipExtModuleLaunchKernel"  # Tells its grid in threads, not in blocks. Source: the HIP API
_PROFILE_AGAIN = "Profile with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"


def read_kineto(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> Trace:
    """Read a file of PyTorch's profiler, or those of several ranks as one trace."""
    files = [paths] if isinstance(paths, str | PathLike) else [*paths]
    _require_apart([(f"are {real!r}", str(path)) for path, real in ((path, os.path.realpath(path)) for path in files)])
    events = Events()
    for path in files:
        events.read(path)
    return _Maker(events, [str(path) for path in files]).trace()


def _require_apart(told: Sequence[tuple[str, str]]) -> None:
    """Raise `OptionError` where two files say the same of themselves; given is what each says, and its path."""
    first: dict[str, str] = {}
    for what, path in told:
        if what in first:
            raise OptionError(
                f"{first[what]!r} and {path!r} both {what}: a trace of several ranks has each once. Give one file for each "
                "rank; gsl.compare() compares two runs."
            )
        first[what] = path


class _Maker:
    """Turns the events of files into a trace."""

    def __init__(self, events: Events, paths: Sequence[str]) -> None:
        self._told, self._paths = events, paths
        self._work, self._calls, self._ranges = events.take(WORK), events.take(CALL), events.take(RANGE)
        self._require_rows()
        keys = [*events.streams.known]
        streams = sorted(keys[code] for code in np.unique(self._work["stream"]).tolist())
        self._streams: dict[StreamKey, int] = {key: lane for lane, key in enumerate(streams)}  # The lane of each that worked
        numbers = Counter(map(_without_context, streams))
        # Waits in green contexts tell the context that those are of.
        unique = {_without_context(key): lane for key, lane in self._streams.items() if numbers[_without_context(key)] == 1}
        lanes = [self._streams.get(key, unique.get(_without_context(key), -1)) for key in keys]
        self._lane_of_stream = np.array(lanes, np.int32)
        # Whether there are streams that may have waited for each other: those of two ranks do not.
        self._has_pairs = len(streams) > len({key.file for key in streams})
        devices = sorted({(key.file, key.device) for key in streams})
        self._ordinals = {key: key[1] if len(paths) == 1 else place for place, key in enumerate(devices)}
        self._devices = {key: self._device(*key) for key in devices}
        self._ranks = self._rank_names()
        # What others write by hand in the same form says neither which profiler it is of nor how exact it is.
        self._is_known = any(one.schema is not None or one.devices or one.distributed for one in events.facts)
        is_wait = np.array(["StreamWaitEvent" in name for name in events.names.known] or [False], bool)
        self._wait_calls = int(is_wait[self._calls["name"]].sum())

    def trace(self) -> Trace:
        """Return the trace."""
        told, work, calls, ranges = self._told, self._work, self._calls, self._ranges
        imported = self._used()
        number, threads = self._threads()
        for part, kind in ((ranges, ANNOTATION), (calls, HOST)):
            part["thread"] = number[part["thread"]]
            part["lane"] = part["thread"] + len(self._streams)
            part["kind"] = np.full(len(part["thread"]), kind, np.int8)
        call = add_launches(work, calls)
        work["lane"] = self._lane_of_stream[work.pop("stream")]
        hides_grid = np.append(calls["name"] == told.names.known.get(_THREADS_GRID, -1), False)[call]
        details = self._describe(work, hides_grid)
        frame = Frame(
            backend=KINETO_BACKEND if self._is_known else CHROME_BACKEND,
            source="PyTorch's profiler" if self._is_known else UNNAMED_SOURCE,
            path=self._paths[0],
            lanes=self._lanes(threads),
            threads=[name for name, _ in threads],
            names=[*told.names.known],
            parts=[ranges, calls, work],
            details=details,
            dependencies=self._dependencies(),
            devices={device.ordinal: device for device in self._devices.values()},
            idle_device=self._device(0, 0),
            is_in_us=told.are_in_us,
            imported=imported,
            missing=self._missing(call),
            facts={
                "waits_told": not self._lacks_waits(),
                "title": self._title(),
                "refused_records": told.refused_count + told.damaged_count,
                "profiler_ns": told.profiler_ns,
            },
        )
        trace = _with_collectives(frame.trace(), told.collectives)
        if self._is_known:
            return trace
        return replace(trace, metadata=replace(trace.metadata, clock_error_ns=0, host_error_ns=0, kernel_error_ns=0))

    def _require_rows(self) -> None:
        """Raise `TraceFileError` where nothing can be made of the files, or they cannot be laid beside each other."""
        told, path = self._told, repr(self._paths[0])
        if len(self._paths) > 1:
            path = f"{len(self._paths):,} files ({path}, ...)"
        if not any(len(part["start_ns"]) for part in (self._work, self._calls, self._ranges)):
            reasons = [f"{told.damaged_count:,} cannot be read"] if told.damaged_count else []
            said = "".join(f"; {reason}" for reason in [*reasons, *filter(None, told.cuts)])
            raise TraceFileError(
                f"{path} cannot be read as a trace of PyTorch's profiler: it holds no kernels, calls or operators in "
                f"{told.event_count:,} events{said}. It was cut off or is damaged, nothing ran, or another tool wrote it: "
                f"gsl.load_trace(path, 'chrome'). {_PROFILE_AGAIN}."
            )
        if any(told.are_absolute) and not all(told.are_absolute):
            lacking = self._paths[told.are_absolute.index(False)]
            raise TraceFileError(
                f"{lacking!r} has no times of the wall clock, others have: they cannot be laid beside each other. Read it "
                "alone."
            )

    def _rank_names(self) -> list[str]:
        """Return what tells the files apart; nothing for a single one."""
        if len(self._paths) == 1:
            return [""]
        told = [self._distributed(file) for file in range(len(self._paths))]
        ranks, sizes = ([whole_number(one.get(name), -1) for one in told] for name in ("rank", "world_size"))
        _require_apart([(f"are of rank {rank}", path) for rank, path in zip(ranks, self._paths, strict=True) if rank >= 0])
        known = [(size, path) for size, path in zip(sizes, self._paths, strict=True) if size > 0]
        for size, path in known:
            if size != known[0][0]:
                raise OptionError(
                    f"{known[0][1]!r} is of a job of {known[0][0]:,} ranks, {path!r} of one of {size:,}: they are not of one "
                    "job. Load each alone."
                )
        is_told = min(ranks) >= 0
        return [f"rank {rank} " if is_told else f"file {file} " for file, rank in enumerate(ranks)]

    def _distributed(self, file: int) -> dict[str, object]:
        told = self._told.facts[file].distributed
        return told if isinstance(told, dict) else {}

    def _threads(self) -> tuple[NDArray[np.int32], list[tuple[str, int]]]:
        """Return the number of each known thread, as they appear in ranges, then calls; name each, and tell its file."""
        known = [*self._told.threads.known]
        used, number = by_appearance(np.concatenate((self._ranges["thread"], self._calls["thread"])), len(known))
        keys = [known[code] for code in used.tolist()]
        told = [_THREAD_NAME.sub(r"\2 (\1)", self._told.thread_names.get(key, "")) or f"thread {key.thread}" for key in keys]
        names = [self._ranks[key.file] + name for key, name in zip(keys, told, strict=True)]
        counts = Counter(names)
        return number, [
            (name if counts[name] == 1 else f"{name} ({key.process}, {key.thread})", key.file)
            for name, key in zip(names, keys, strict=True)
        ]

    def _lanes(self, threads: Sequence[tuple[str, int]]) -> list[Lane]:
        """Return a lane for each stream, named by what tells it from others, and for each thread."""
        has_contexts = len({key[:3] for key in self._streams}) > len(self._devices)
        codes, lanes, named = self._told.streams.known, [], Counter(self._told.row_names.values())
        for key in self._streams:
            where = self._ranks[key.file] + (f"GPU {key.device} " if len(self._devices) > 1 or self._ranks[0] else "")
            lanes.append(
                Lane(
                    name=self._own_row(key, named) or f"{where}stream {key.stream}{f', context {key.context}' * has_contexts}",
                    device=self._ordinals[key.file, key.device],
                    context=key.context,
                    stream=key.stream,
                    sm_count=self._devices[key.file, key.device].sm_count,
                    priority=self._told.priorities.get(codes[key], 0),
                    process=key.file,
                )
            )
        return [*lanes, *(Lane(name=f"host: {name}", kind=LaneKind.HOST, process=file) for name, file in threads)]

    def _own_row(self, key: StreamKey, named: Counter[str]) -> str:
        """Return what a file by hand calls the row of a stream where that is a name of its own."""
        name = self._told.row_names.get(key, "")
        return "" if self._is_known or self._ranks[0] or _STREAM_ROW.match(name) or named[name] > 1 else name

    def _describe(self, work: Columns, hides_grid: BoolArray) -> tuple[WorkDetail, ...]:
        """Give work its name, kind and detail, by its shape; return all details. Some tell a grid that is none."""
        shapes, names, details = [*self._told.shapes.known], self._told.names, Codes(lambda detail: detail)
        nodes: dict[tuple[int, int], set[int]] = {}
        for shape in shapes:
            nodes.setdefault((shape.file, shape.graph), set()).add(shape.node)
        places = {graph: {node: place for place, node in enumerate(sorted(ids - {-1}))} for graph, ids in nodes.items()}
        codes = work.pop("shape") * 2 + hides_grid
        used, number = by_appearance(codes, 2 * len(shapes))
        found = []
        for code in used.tolist():
            shape = shapes[code // 2]
            node = places[shape.file, shape.graph].get(shape.node, -1) if shape.graph > 0 else -1
            detail = WorkDetail(
                full_name=cut_text(shape.name, MAX_FULL_NAME),
                grid=(0, 0, 0) if code % 2 else _sizes(shape.grid),
                block=_sizes(shape.block),
                registers=max(shape.registers, 0),
                static_shared_bytes=max(shape.shared, 0),
                graph=max(shape.graph, 0),
                node=node,
                channel=max(shape.channel, -1),
            )
            name = names[_work_name(detail.full_name, shape.kind)]
            found.append((name, details[detail], SPAN_KINDS.index(shape.kind)))
        table = np.array(found, np.int32).reshape(-1, 3)[number[codes]]
        work |= {"name": table[:, 0], "detail": table[:, 1], "kind": table[:, 2].astype(np.int8)}
        return (*details.known,)

    def _dependencies(self) -> Columns:
        """Return which stream waited for which, where both are known."""
        waits = self._told.take(WAIT)
        lanes = [self._lane_of_stream[waits[name]].astype(np.int64) for name in ("source", "target")]
        is_known = (lanes[0] >= 0) & (lanes[1] >= 0)
        columns = (lanes[0], waits["record"], lanes[1], waits["wait"])
        return {name: column[is_known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}

    def _device(self, file: int, number: int) -> Device:
        """Return what a file tells of a device."""
        ordinal = self._ordinals.get((file, number), number)
        given = self._told.facts[file].devices
        cards = [told for told in (given if isinstance(given, list) else []) if isinstance(told, dict)]
        told = next((told for told in cards if told.get("id") == number), None)
        if told is None and len({str({**card, "id": 0}) for card in cards}) == 1:
            told = cards[0]  # records of ROCm number cards in another way; where all cards are alike it is one of them
        if told is None:
            return unknown_device(ordinal)
        major, minor, sms, size = (max(whole_number(told.get(name)), 0) for name in _DEVICE_NUMBERS)
        limits = {
            field: next((found for key in keys if (found := whole_number(told.get(key))) > 0), 0)
            for field, keys in _SM_NUMBERS.items()
        }
        is_cuda = "sharedMemPerMultiprocessor" in told
        return Device(
            name=cut_text(str(told.get("name"))),
            ordinal=ordinal,
            sm_count=sms,
            compute_capability=(major, minor),
            memory_bytes=size,
            sm_limits=SMLimits(**limits, blocks=most_blocks(major, minor) if is_cuda else 0),
        )

    def _title(self) -> str:
        """Say which ranks these are, of how many, and what they talk through."""
        told = self._distributed(0)
        rank, size, backend = whole_number(told.get("rank"), -1), whole_number(told.get("world_size")), told.get("backend")
        which = f"{len(self._paths):,} ranks" if self._ranks[0] else f"rank {rank}" if rank >= 0 else ""
        of = [f" of {size:,}"] if size > 0 else []
        of += [f", {cut_text(backend, 40)}"] if isinstance(backend, str) else []
        return "".join([which, *of]) if which else ""

    def _used(self) -> str:
        """Say how many events were read, used, left out and refused."""
        told = self._told
        work_count, call_count, range_count = (len(part["start_ns"]) for part in (self._work, self._calls, self._ranges))
        used = f"{work_count:,} kernels, copies and fills, {call_count:,} calls, {range_count:,} ranges"
        wait_count = told.wait_count + told.unsaid_count
        used += f", {wait_count:,} waits of streams" if wait_count else ""
        used += f", {told.said_count:,} that say the same again or name threads" if told.said_count else ""
        refused = f"; {told.refused_count:,} refused, as their times make no sense" if told.refused_count else ""
        damaged = f"; {told.damaged_count:,} damaged" if told.damaged_count else ""
        return f"{used} of {told.event_count:,} events{not_read(told.left_out)}{refused}{damaged}"

    def _lacks_waits(self) -> bool:
        """Tell whether streams may have waited for each other without a row that says so: by default there are no such rows."""
        told = self._told
        return self._has_pairs and (told.wait_count < self._wait_calls or not told.wait_count or told.unsaid_count > 0)

    def _missing(self, call: Int64Array) -> list[str]:
        """Say what the files do not tell of themselves, of work, its devices, and what it waited for."""
        told = self._told
        facts = [
            f"{cut[0].upper()}{cut[1:]}{f' ({path!r})' if self._ranks[0] else ''}: what was whole of it is here, the rest is "
            "not known."
            for cut, path in zip(told.cuts, self._paths, strict=True)
            if cut
        ]
        if self._ranks[0]:
            facts.append("Each file's times are taken as they are: clocks of different hosts differ by an unknown time.")
        facts += launch_note(call)
        unknown = [f"{self._ranks[file]}GPU {number}" for (file, number), one in self._devices.items() if not one.sm_count]
        facts += [card_note(", ".join(unknown[:MOST_LISTED]) + " and others" * (len(unknown) > MOST_LISTED))] if unknown else []
        row_count = told.wait_count + told.unsaid_count
        if self._has_pairs and told.unsaid_count:
            facts.append(f"{told.unsaid_count:,} of {row_count:,} waits do not say what they waited for.")
        if self._lacks_waits() and (row_count < self._wait_calls or not row_count):
            advice = "" if row_count or not self._is_known else "; the profiler tells it with enable_cuda_sync_events=True"
            facts.append(wait_note(row_count, self._wait_calls, advice))
        return facts


def _sizes(given: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Return three sizes, or zeros for what has none."""
    return given if given is not None and min(given) > 0 and math.prod(given) < LARGEST_GRID else (0, 0, 0)


def _work_name(full: str, kind: SpanKind) -> str:
    """Return the name that the same work has in a trace of our own."""
    if kind is SpanKind.KERNEL:
        return short_name(full)
    if kind is SpanKind.FILL:
        return "memset"
    if found := _ROCM_COPY.match(full):
        return f"memcpy {found[1][0]}to{found[2][0]}"
    found = _COPY.match(full)
    if found is None:
        return full
    ends = [word.lower() for word in found.groups()[1:] if word != "Device"]
    return f"memcpy {found[1]}" + (f" ({' to '.join(dict.fromkeys(ends))})" if ends else "")


def _with_collectives(trace: Trace, told: Mapping[int, tuple[int, int]]) -> Trace:
    """Return a trace with the communicator of each kernel of a collective, and its place in that, by its correlation."""
    if not told:
        return trace
    known = np.array(sorted((correlation, *found) for correlation, found in told.items()), np.int64)
    correlation = trace.extra.get("correlation", np.zeros(len(trace), np.int64))
    place = np.minimum(np.searchsorted(known[:, 0], correlation), len(known) - 1)
    is_own = (known[place, 0] == correlation) & (trace.kind == KERNEL)
    columns = {name: np.where(is_own, known[place, number], 0) for number, name in ((1, "communicator"), (2, "sequence"))}
    return replace(trace, extra={**trace.extra, **columns})


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


_SORT = attrgetter("ph", "cat")
_TIMES = attrgetter("ts"), attrgetter("dur")
_NAME = attrgetter("name")
_THREAD = attrgetter("pid", "tid")
_STREAM = attrgetter("args.device", "args.context", "args.stream", "pid", "tid")
_SHAPE = attrgetter("args.grid", "args.block", "args.registers", "args.shared", "args.graph", "args.node", "args.channel")
_AWAITED = attrgetter("args.device", "args.context", "args.awaited_stream", "pid", "tid")
_COLUMNS = {
    WORK: ("start_ns", "end_ns", "stream", "shape", "size_bytes", "correlation"),
    CALL: ("start_ns", "end_ns", "thread", "name", "correlation"),
    RANGE: ("start_ns", "end_ns", "thread", "name"),
    WAIT: ("source", "target", "record", "wait"),
}
_WIDE = {"start_ns", "end_ns", "size_bytes", "correlation", "record", "wait"}


class Events:
    """Takes the events of files; what it holds is columns, and one of each name, stream, thread, and way of launching."""

    def __init__(self) -> None:
        self.names = Codes(cut_text)
        self.streams = Codes(self._stream_key)
        self.threads = Codes(self._thread_key)
        self.shapes = Codes(lambda key: Shape(*key))
        self.thread_names: dict[ThreadKey, str] = {}
        self.row_names: dict[StreamKey, str] = {}  # What rows of streams are called
        self.priorities: dict[int, int] = {}  # By stream
        self.facts: list[Facts] = []  # What each file tells of itself
        self.cuts: list[str] = []  # What is missing of each file; empty where nothing is
        self.are_absolute: list[bool] = []  # Whether the times of each file are of the wall clock
        self.are_in_us = True
        self.left_out: Counter[str] = Counter()
        self.event_count = self.refused_count = self.damaged_count = self.wait_count = 0
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
        file, self._file = EventFile(path, Event, Facts), len(self.facts)
        for codes in (self.streams, self.threads):  # those of another file are others
            codes.clear()
        before = {role: len(parts) for role, parts in self._parts.items()}
        for events in file.blocks():
            self._add(events)
        self.facts.append(file.facts)
        self.cuts.append(file.cut)
        self.event_count += file.event_count + file.damaged_count
        self.damaged_count += file.damaged_count
        self._set_clock([part for role in (WORK, CALL, RANGE) for part in self._parts[role][before[role] :]])

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

    def _add(self, events: list[Event]) -> None:
        sorts: defaultdict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
        for sort, event in zip(map(_SORT, events), events, strict=True):
            sorts[sort].append(event)
        for (phase, given), found in sorts.items():
            role, kind = CATEGORIES.get(str(given).lower(), ("", SpanKind.HOST)) if phase == "X" else ("", SpanKind.HOST)
            if role == SAID or phase in _NAMES_AND_FLOWS:
                self.said_count += len(found)
                if phase == "M":
                    self._add_thread_names(found)
            elif role == WAIT:
                self._add_waits(found)
            elif role:
                self._add_spans(found, role, kind)
            else:
                self.left_out["without a category" if given is None else str(given)[:40]] += len(found)
                if given == "overhead":
                    lasts_ns = all_nanoseconds([event.dur for event in found])
                    self.profiler_ns += int(lasts_ns[(lasts_ns >= 0) & (lasts_ns < LARGEST_TIME_NS)].sum())

    def _add_spans(self, events: list[Event], role: str, kind: SpanKind) -> None:
        """Take those events of which the times make sense."""
        start_ns, lasts_ns = (all_nanoseconds(list(map(get, events))) for get in _TIMES)
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
                columns |= self._work(events, kind)
            else:
                columns |= {"thread": self.threads.of(map(_THREAD, events)), "name": self.names.of(_names(events))}
            if role == CALL:
                columns["correlation"] = self._correlations(events)
            self._parts[role].append(columns)

    def _work(self, events: list[Event], kind: SpanKind) -> Columns:
        shapes = zip(_names(events), map(_SHAPE, events), strict=True)
        columns: Columns = {
            "stream": self.streams.of(map(_STREAM, events)),
            "shape": self.shapes.of((self._file, kind, name, *shape) for name, shape in shapes),
            "size_bytes": np.maximum(_numbers(events, "args.bytes"), 0),
            "correlation": self._correlations(events),
        }
        for event, correlation in zip(events, columns["correlation"].tolist(), strict=True):
            if event.args.group is not None and correlation:
                self.collectives[correlation] = _collective(event)
        self.priorities.update(zip(columns["stream"].tolist(), _numbers(events, "args.priority").tolist(), strict=True))
        return columns

    def _add_waits(self, events: list[Event]) -> None:
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

    def _add_thread_names(self, events: list[Event]) -> None:
        for event in events:
            if event.name == "thread_name" and event.args.name is not None:
                name = cut_text(str(event.args.name)).strip()
                self.thread_names[self._thread_key(_THREAD(event))] = name
                self.row_names[self._stream_key((None, 0, None, event.pid, event.tid))] = name

    def _correlations(self, events: list[Event]) -> Int64Array:
        """Return the correlations, 0 for none; those of several files are apart."""
        found = _numbers(events, "args.correlation")
        return np.where((found > 0) & (found < 1 << CORRELATION_BITS), found + (self._file << CORRELATION_BITS), 0)

    def _thread_key(self, told: tuple[Any, Any]) -> ThreadKey:
        return ThreadKey(self._file, *(cut_text(str(one)) for one in told))

    def _stream_key(self, told: tuple[Any, ...]) -> StreamKey:
        """Return what tells a stream apart; ROCm tells no context."""
        device, context, stream, _, thread = told
        if stream is None:
            stream = _number_of(thread)
            stream -= _HOST_ROWS if stream >= _HOST_ROWS else 0
        return StreamKey(self._file, max(_number_of(device), 0), context, stream)


def _without_context(key: StreamKey) -> tuple[int, int, int]:
    return key.file, key.device, key.stream


def _number_of(told: object) -> int:
    """Return the number of a device or stream, also where it is told as "stream 7"; 0 for none."""
    found = _LAST_NUMBER.search(told) if isinstance(told, str) else None
    return whole_number(told) if found is None else int(found[1])


def _names(events: list[Event]) -> list[str]:
    return [str(name) for name in map(_NAME, events)]


def _numbers(events: list[Event], name: str) -> Int64Array:
    return np.fromiter(map(attrgetter(name), events), np.int64, len(events))


def _collective(event: Event) -> tuple[int, int]:
    """Return a number for the communicator, the same in the files of all ranks, and the place in it from 1, or 0."""
    told = event.args
    sequence = whole_number(int(str(told.sequence)[:18]) if str(told.sequence).isdecimal() else -1, -1)
    return zlib.crc32(f"{told.group} {told.ranks}".encode("utf-8", "replace")) + 1, max(sequence + 1, 0)
