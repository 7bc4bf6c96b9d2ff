"""Read what PyTorch's profiler writes: Kineto's JSON, of 2021 and later.

Times are decimals of microseconds; they are read as text, as a float of 64 bits cannot hold those since 1970 to the nanosecond.
What the host launched is found by its correlation, never by flows: files hold ends of flows that have no beginning.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import NamedTuple, TypeAlias

import numpy as np

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._kineto_json import (
    NO_ARGS,
    Event,
    File,
    Three,
    nanoseconds,
    read_json,
    three_sizes,
    whole_number,
)
from gpustreamlab.model import KINETO_BACKEND, SPAN_KINDS, Device, Lane, SMLimits, Trace, TraceMetadata, WorkDetail
from gpustreamlab.record import (
    DEPENDENCY_COLUMNS,
    FIRST_WORK_NUMBER,
    MAX_FULL_NAME,
    SPAN_COLUMNS,
    Delta,
    RowFinder,
    Tables,
    build_trace,
    cut_text,
)
from gpustreamlab.typing import CaptureTier, Int64Array, LaneKind, SpanKind

MOST_LISTED = 4
"""How many categories that are not read are named."""
MOST_LANES = 4_096
"""Most streams and threads of a file."""
LEAST_WALL_CLOCK_NS = 10**18
"""Earlier times, of 2001, are not counted from 1970."""

_WORK = {
    "kernel": SpanKind.KERNEL,
    "gpu_memcpy": SpanKind.COPY,
    "memcpy": SpanKind.COPY,
    "gpu_memset": SpanKind.FILL,
    "memset": SpanKind.FILL,
}
_ROLES = {
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "runtime": "call",
    "user_annotation": "range",
    "cpu_op": "range",
    "operator": "range",
    "cuda_sync": "sync",
}
"""Categories of spans; in 2021 some had other names."""
_SAID_ELSEWHERE = frozenset({"gpu_user_annotation", "trace"})
"""Spans that tell nothing that ranges, first and last time do not."""
_NAMES_AND_FLOWS = ("M", "s", "t", "f")
_DEVICE_NUMBERS = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
_SM_NUMBERS = {
    "threads": "maxThreadsPerMultiprocessor",
    "registers": "regsPerMultiprocessor",
    "shared_bytes": "sharedMemPerMultiprocessor",
}
_STREAM_WAIT = "Stream Wait Event"
_THREAD = re.compile(r"^thread (\d+) \((.+)\)$")
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_THREADS_GRID = "hipExtModuleLaunchKernel"
"""Tells its grid in threads, not in blocks. Source: the HIP API."""
_PROFILE_AGAIN = "Profile with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"


_StreamKey: TypeAlias = tuple[int, int, int]
"""Device, context, stream."""
_Columns: TypeAlias = dict[str, Int64Array]


def read_kineto(path: str | PathLike[str]) -> Trace:
    """Read a file of PyTorch's profiler; see `gpustreamlab.load_trace`."""
    return _Reader(read_json(path), str(path)).read()


class _Block(NamedTuple):
    """Events whose times make sense, in order of their starts; of two that begin at once the longer one is first."""

    events: list[Event]
    start_ns: Int64Array
    end_ns: Int64Array


class _Reader:
    """Turns the events of one file into a trace."""

    def __init__(self, file: File, path: str) -> None:
        self._file, self._path = file, path
        self._names: dict[str, int] = {}
        self._details: dict[WorkDetail, int] = {}
        self._streams: dict[_StreamKey, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._left_out: Counter[str] = Counter()
        self._refused = self._wait_count = 0

    def read(self) -> Trace:
        """Return the trace."""
        events = self._sort()
        work, ranges, calls = (self._timed(events[role]) for role in ("work", "range", "call"))
        if not (work.events or ranges.events or calls.events):
            raise TraceFileError(
                f"{self._path!r} holds no kernels, calls or operators as PyTorch's profiler writes them, in "
                f"{len(self._file.events):,} events: another tool wrote it, or nothing ran. {_PROFILE_AGAIN}."
            )
        keys = [_stream_key(event) for event in work.events]
        self._streams = {key: place for place, key in enumerate(sorted(set(keys)))}
        of_ranges, of_calls = self._host_columns(ranges, SpanKind.ANNOTATION), self._host_columns(calls, SpanKind.HOST)
        of_work = self._work_columns(work, keys, calls, of_calls)
        threads = self._thread_names()
        priorities = {key: whole_number((event.args or NO_ARGS).priority) for key, event in zip(keys, work.events, strict=True)}
        lanes = self._lanes(threads, priorities)
        parts = (of_ranges, of_calls, of_work)
        columns = {name: np.concatenate([part[name] for part in parts]) for name in SPAN_COLUMNS if name != "number"}
        columns["number"] = FIRST_WORK_NUMBER + np.arange(len(columns["start_ns"]))
        waits = self._dependencies(events["sync"])
        metadata = replace(
            self._metadata(columns, keys),
            imported=self._used(len(work.events), len(calls.events), len(ranges.events)),
            missing=self._missing(of_work, calls),
            waits_told=not self._lacks_waits(calls),
        )
        tables = Tables(lanes, threads, (), (), (), metadata)
        return build_trace(Delta(tables, columns, names=(*self._names,), details=(*self._details,), dependencies=waits))

    def _sort(self) -> dict[str, list[Event]]:
        """Return the events by what they are read as; count those that are not read."""
        sorts: dict[str, list[Event]] = {"work": [], "call": [], "range": [], "sync": []}
        for event in self._file.events:
            category = str(event.cat).lower()
            if event.ph != "X":
                if event.ph not in _NAMES_AND_FLOWS and event.cat is not None:
                    self._left_out[str(event.cat)[:40]] += 1
            elif category in _WORK:
                sorts["work"].append(event)
            elif category in _ROLES:
                sorts[_ROLES[category]].append(event)
            elif category not in _SAID_ELSEWHERE:
                self._left_out[str(event.cat)[:40]] += 1
        return sorts

    def _timed(self, events: list[Event]) -> _Block:
        """Return those of which the times make sense; the others are counted as refused."""
        kept, times = [], []
        for event in events:
            begins_ns, lasts_ns = nanoseconds(event.ts), nanoseconds(event.dur)
            if begins_ns is None or lasts_ns is None or lasts_ns < 0:
                self._refused += 1
            else:
                kept.append(event)
                times.append((begins_ns, begins_ns + lasts_ns))
        start_ns, end_ns = np.array(times, np.int64).reshape(-1, 2).T
        order = np.lexsort((-end_ns, start_ns))
        return _Block([kept[row] for row in order.tolist()], start_ns[order], end_ns[order])

    def _host_columns(self, block: _Block, kind: SpanKind) -> _Columns:
        """Return the columns of calls, or of ranges."""
        keys = [(str(event.pid), str(event.tid)) for event in block.events]
        thread = np.array([self._threads.setdefault(key, len(self._threads)) for key in keys], np.int64)
        return _blank(len(keys)) | {
            "start_ns": block.start_ns,
            "end_ns": block.end_ns,
            "queued_ns": block.start_ns,
            "lane": thread + len(self._streams),
            "thread": thread,
            "name": np.array([self._name(str(event.name)) for event in block.events], np.int64),
            "kind": np.full(len(keys), SPAN_KINDS.index(kind), np.int64),
            "correlation": _correlations(block.events) if kind is SpanKind.HOST else np.zeros(len(keys), np.int64),
        }

    def _work_columns(self, block: _Block, keys: Sequence[_StreamKey], calls: _Block, of_calls: _Columns) -> _Columns:
        """Return the columns of the work of devices, with what each one's call tells."""
        correlation = _correlations(block.events)
        call = np.where(correlation > 0, RowFinder(of_calls["correlation"]).rows_of(correlation), -1)
        counts_threads = np.array([*(event.name == _THREADS_GRID for event in calls.events), False], bool)[call]
        kinds = [_WORK[str(event.cat).lower()] for event in block.events]
        shapes: dict[object, tuple[int, int]] = {}
        codes = [
            self._shape(shapes, event, kind, (0, 0, 0) if is_unknown else three_sizes((event.args or NO_ARGS).grid))
            for event, kind, is_unknown in zip(block.events, kinds, counts_threads.tolist(), strict=True)
        ]
        name, detail = np.array(codes, np.int64).reshape(-1, 2).T
        return _blank(len(keys)) | {
            "start_ns": block.start_ns,
            "end_ns": block.end_ns,
            "queued_ns": np.where(call >= 0, np.append(of_calls["start_ns"], 0)[call], block.start_ns),
            "lane": np.array([self._streams[key] for key in keys], np.int64),
            "thread": np.append(of_calls["thread"], -1)[call],
            "name": name,
            "detail": detail,
            "kind": np.array([SPAN_KINDS.index(kind) for kind in kinds], np.int64),
            "size_bytes": np.array([max(whole_number((event.args or NO_ARGS).bytes), 0) for event in block.events], np.int64),
            "correlation": correlation,
        }

    def _shape(self, shapes: dict[object, tuple[int, int]], event: Event, kind: SpanKind, grid: Three) -> tuple[int, int]:
        """Return the codes of the name and of the detail of a piece of work."""
        args = event.args or NO_ARGS
        registers, shared_bytes, graph = (max(whole_number(given), 0) for given in (args.registers, args.shared, args.graph))
        block, channel = three_sizes(args.block), max(whole_number(args.channel, -1), -1)
        key = (kind, str(event.name), grid, block, registers, shared_bytes, graph, channel)
        if key not in shapes:
            full = cut_text(str(event.name), MAX_FULL_NAME)
            detail = WorkDetail(
                full_name=full,
                grid=grid,
                block=block,
                registers=registers,
                static_shared_bytes=shared_bytes,
                graph=graph,
                channel=channel,
            )
            shapes[key] = self._name(_work_name(full, kind)), self._details.setdefault(detail, len(self._details))
        return shapes[key]

    def _name(self, text: str) -> int:
        known = self._names.get(text)
        return self._names.setdefault(cut_text(text), len(self._names)) if known is None else known

    def _dependencies(self, rows: Sequence[Event]) -> _Columns:
        """Return which stream waited for which, where both are known; what the host waited for its calls tell."""
        waits = []
        for event in rows:
            args = event.args or NO_ARGS
            device, context, stream = _stream_key(event)
            source = self._streams.get((device, context, whole_number(args.awaited_stream, -1)))
            target = self._streams.get((device, context, stream))
            record, wait = whole_number(args.awaited_record), whole_number(args.correlation)
            if event.name == _STREAM_WAIT and record > 0 and wait > 0:
                self._wait_count += 1
                if source is not None and target is not None:
                    waits.append((source, record, target, wait))
        columns = np.array(waits, np.int64).reshape(-1, len(DEPENDENCY_COLUMNS)).T
        return dict(zip(DEPENDENCY_COLUMNS, columns, strict=True))

    def _lanes(self, threads: Sequence[str], priorities: Mapping[_StreamKey, int]) -> tuple[Lane, ...]:
        """Return a lane for each stream, named by what tells it from others, and for each thread."""
        if len(self._streams) + len(threads) > MOST_LANES:
            raise TraceFileError(
                f"{self._path!r} has {len(self._streams):,} streams and {len(threads):,} threads; {MOST_LANES:,} together are "
                "read. Profile fewer steps."
            )
        devices = {device: self._device(device) for device, _, _ in self._streams}
        has_contexts = len({(device, context) for device, context, _ in self._streams}) > len(devices)
        lanes = []
        for device, context, stream in self._streams:
            where = (f"GPU {device} " if len(devices) > 1 else "") + (f"context {context} " if has_contexts else "")
            lanes.append(
                Lane(
                    name=f"{where}stream {stream}",
                    device=device,
                    context=context,
                    stream=stream,
                    sm_count=devices[device].sm_count,
                    priority=priorities[device, context, stream],
                )
            )
        return (*lanes, *(Lane(name=f"host: {name}", kind=LaneKind.HOST) for name in threads))

    def _thread_names(self) -> tuple[str, ...]:
        """Return a name of its own for each thread."""
        told = {
            (str(event.pid), str(event.tid)): _THREAD.sub(r"\2 (\1)", cut_text(str(event.args.name)).strip())
            for event in self._file.events
            if event.ph == "M" and event.name == "thread_name" and event.args is not None
        }
        names = [told.get(key) or f"thread {key[1]}" for key in self._threads]
        counts = Counter(names)
        keys = [*self._threads]
        return tuple(
            name if counts[name] == 1 else f"{name} ({process}, {thread})"
            for name, (process, thread) in zip(names, keys, strict=True)
        )

    def _device(self, ordinal: int) -> Device:
        """Return what the file tells of a device."""
        for told in self._file.devices if isinstance(self._file.devices, list) else []:
            if isinstance(told, dict) and told.get("id") == ordinal:
                major, minor, sms, size = (max(whole_number(told.get(name)), 0) for name in _DEVICE_NUMBERS)
                name = cut_text(str(told.get("name")))
                limits = {field: number for field, key in _SM_NUMBERS.items() if (number := whole_number(told.get(key))) > 0}
                return Device(
                    name=name,
                    ordinal=ordinal,
                    sm_count=sms,
                    compute_capability=(major, minor),
                    memory_bytes=size,
                    sm_limits=SMLimits(**limits),
                )
        return Device(name=f"GPU {ordinal}", ordinal=ordinal, sm_count=0)

    def _metadata(self, columns: _Columns, keys: Sequence[_StreamKey]) -> TraceMetadata:
        """Return what the file tells of itself; where times are of the wall clock, the first becomes the trace's zero."""
        first_ns, last_ns = int(columns["start_ns"].min()), int(columns["end_ns"].max())
        base_ns = whole_number(self._file.base_ns)
        epoch_ns = base_ns + first_ns if base_ns + first_ns >= LEAST_WALL_CLOCK_NS else 0
        is_in_us = not (columns["start_ns"] % 1_000).any()
        shift_ns = first_ns if epoch_ns else 0
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] = columns[name] - shift_ns
        ranks = self._file.distributed if isinstance(self._file.distributed, dict) else {}
        rank, rank_count = whole_number(ranks.get("rank"), -1), whole_number(ranks.get("world_size"))
        step_ns = 1_000 if is_in_us else 0
        return TraceMetadata(
            backend=KINETO_BACKEND,
            device=self._device(Counter(device for device, _, _ in keys).most_common(1)[0][0] if keys else 0),
            clock=f"that of the file, in steps of {'1 us' if is_in_us else '1 ns'}",
            clock_error_ns=step_ns,
            host_error_ns=step_ns,
            kernel_error_ns=step_ns,
            tier=CaptureTier.KERNELS,
            capture_windows=((first_ns - shift_ns, last_ns - shift_ns),),
            capture_source="PyTorch's profiler",
            epoch_unix_ns=epoch_ns,
            title=f"rank {rank}" + (f" of {rank_count}" if rank_count > 0 else "") if rank >= 0 else "",
        )

    def _used(self, work_count: int, call_count: int, range_count: int) -> str:
        """Say how many events were read, used, left out and refused."""
        used = f"{work_count:,} kernels, copies and fills, {call_count:,} calls, {range_count:,} ranges"
        left_out = [f"{count:,} {name}" for name, count in self._left_out.most_common(MOST_LISTED)]
        left_out += ["others"] if len(self._left_out) > MOST_LISTED else []
        not_read = f"; not read: {', '.join(left_out)}" if left_out else ""
        refused = f"; {self._refused:,} refused, as their times make no sense" if self._refused else ""
        return f"{used} of {len(self._file.events):,} events{not_read}{refused}"

    def _lacks_waits(self, calls: _Block) -> bool:
        """Tell whether streams may have waited for each other without a row that says so: by default there are no such rows."""
        return len(self._streams) > 1 and (self._wait_count < _wait_calls(calls) or not self._wait_count)

    def _missing(self, of_work: _Columns, calls: _Block) -> tuple[str, ...]:
        """Say what the file does not tell."""
        facts = []
        unlaunched, work_count = int((of_work["thread"] < 0).sum()), len(of_work["thread"])
        if unlaunched:
            facts.append(
                f"{unlaunched:,} of {work_count:,} kernels, copies and fills have no call in the file to tell their launch."
            )
        devices = sorted({device for device, _, _ in self._streams})
        unknown = [f"GPU {device}" for device in devices if not self._device(device).sm_count]
        if unknown:
            facts.append(f"The file has no properties of {', '.join(unknown)}: when kernels fill its SMs is not known.")
        if self._lacks_waits(calls):
            call_count = _wait_calls(calls)
            told = f"{self._wait_count:,} of {call_count:,} waits of streams for events are told"
            facts.append(
                f"{told if call_count else 'Whether streams waited for events is not told'}; the profiler tells it with "
                "enable_cuda_sync_events=True."
            )
        return tuple(facts)


def _wait_calls(calls: _Block) -> int:
    return sum("StreamWaitEvent" in str(event.name) for event in calls.events)


def _blank(count: int) -> _Columns:
    """Return columns for what rows have not."""
    empty = {"parent": -1, "partition": -1, "detail": -1, "size_bytes": 0, "correlation": 0}
    return {name: np.full(count, value, np.int64) for name, value in empty.items()}


def _correlations(events: Sequence[Event]) -> Int64Array:
    return np.array([max(whole_number((event.args or NO_ARGS).correlation), 0) for event in events], np.int64)


def _stream_key(event: Event) -> _StreamKey:
    """Return device, context and stream; ROCm tells no context."""
    args = event.args or NO_ARGS
    device = whole_number(event.pid if args.device is None else args.device)
    return max(device, 0), whole_number(args.context), whole_number(event.tid if args.stream is None else args.stream)


def _work_name(full: str, kind: SpanKind) -> str:
    """Return the name that the same work has in a trace of our own.

    Examples
    --------
    >>> _work_name("Memcpy HtoD (Pageable -> Device)", SpanKind.COPY), _work_name("Memset (Device)", SpanKind.FILL)
    ('memcpy HtoD (pageable)', 'memset')
    >>> _work_name("Memcpy DtoD (Device -> Device)", SpanKind.COPY), _work_name("CopyHostToDevice", SpanKind.COPY)
    ('memcpy DtoD', 'CopyHostToDevice')
    """
    if kind is SpanKind.KERNEL:
        return short_name(full)
    if kind is SpanKind.FILL:
        return "memset"
    found = _COPY.match(full)
    if found is None:
        return full
    ends = [word.lower() for word in found.groups()[1:] if word != "Device"]
    return f"memcpy {found[1]}" + (f" ({' to '.join(dict.fromkeys(ends))})" if ends else "")
