"""Read what PyTorch's profiler writes: Kineto's JSON, of 2021 and later.

Times are decimals of microseconds; they are read as text, as a float of 64 bits cannot hold those since 1970 to the nanosecond.
What the host launched is found by its correlation, never by flows: files hold ends of flows that have no beginning.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange._event_file import whole_number
from gpustreamlab.exchange._formats import not_read
from gpustreamlab.exchange._kineto_columns import (
    CALL,
    RANGE,
    WAIT,
    WORK,
    Collector,
    Columns,
    StreamKey,
    ThreadKey,
)
from gpustreamlab.exchange._kineto_work import by_appearance, describe_work
from gpustreamlab.model import KINETO_BACKEND, SPAN_KINDS, Device, Lane, SMLimits, Trace, TraceMetadata, WorkDetail
from gpustreamlab.record import (
    DEPENDENCY_COLUMNS,
    SPAN_COLUMNS,
    RowFinder,
    Tables,
    TraceData,
    build_trace,
    cut_text,
)
from gpustreamlab.typing import CaptureTier, Int32Array, Int64Array, LaneKind, SpanKind

MOST_LISTED = 4
"""How many devices are named."""
MOST_LANES = 4_096
"""Most streams and threads of all files together."""

_ROLE_NAMES = {WORK: "kernels, copies and fills", CALL: "calls", RANGE: "ranges", WAIT: "waits of streams for events"}
_DEVICE_NUMBERS = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
_SM_NUMBERS = {
    "threads": "maxThreadsPerMultiprocessor",
    "registers": "regsPerMultiprocessor",
    "shared_bytes": "sharedMemPerMultiprocessor",
}
_THREAD = re.compile(r"^thread (\d+) \((.+)\)$")
_THREADS_GRID = "hipExtModuleLaunchKernel"
"""Tells its grid in threads, not in blocks. Source: the HIP API."""
_PROFILE_AGAIN = "Profile with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"


def read_kineto(paths: str | PathLike[str] | Sequence[str | PathLike[str]]) -> Trace:
    """Read a file of PyTorch's profiler, or those of several ranks as one trace.

    Parameters
    ----------
    paths
        The file, or one for each rank. What the ranks did is told apart by lanes, ``rank 0 GPU 0 stream 7``, and each rank's
        devices have numbers of their own. Clocks of different hosts are taken as they are.

    Returns
    -------
    Trace
        What a file does not tell, and what was cut off, ``metadata.missing`` says; what was read, ``metadata.imported``.

    Raises
    ------
    OptionError
        If no path is given, or two files are not of two ranks of one job.
    TraceFileError
        If a file is missing or another tool's, has nothing in it, or its times cannot be laid beside those of the others.

    Examples
    --------
    >>> row = '{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1.25, "dur": 3, "args": {"device": 0, "stream": 7}}'
    >>> paths = [getfixture("tmp_path") / name for name in ("a.json", "b.json")]
    >>> for rank, path in enumerate(paths):
    ...     _ = path.write_text('{"distributedInfo": {"rank": %d}, "traceEvents": [%s]}' % (rank, row))
    >>> [lane.name for lane in read_kineto(paths).lanes]
    ['rank 0 GPU 0 stream 7', 'rank 1 GPU 0 stream 7']
    """
    files = [paths] if isinstance(paths, str | PathLike) else [*paths]
    if not files:
        raise OptionError("read_kineto() was given no path. Pass a file, or a list of one for each rank.")
    _require_apart([(f"are {real!r}", str(path)) for path, real in ((path, os.path.realpath(path)) for path in files)])
    collector = Collector()
    for path in files:
        collector.read(path)
    return _Maker(collector, [str(path) for path in files]).trace()


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
    """Turns the columns of files into a trace."""

    def __init__(self, collector: Collector, paths: Sequence[str]) -> None:
        self._told, self._paths = collector, paths
        self._work = collector.take(WORK)
        self._calls, self._ranges = collector.take(CALL), collector.take(RANGE)
        self._counts = [len(part["start_ns"]) for part in (self._work, self._calls, self._ranges)]
        self._require_rows()
        keys = [*collector.streams.known]
        self._streams: dict[StreamKey, int] = {}
        """The lane of each stream that worked."""
        for key in sorted(keys[code] for code in np.unique(self._work["stream"]).tolist()):
            self._streams[key] = len(self._streams)
        by_number: dict[tuple[int, int, int], list[int]] = {}
        for key, lane in self._streams.items():
            by_number.setdefault((key.file, key.device, key.stream), []).append(lane)
        # Waits in green contexts tell the context that those are of.
        unique = {number: lanes[0] for number, lanes in by_number.items() if len(lanes) == 1}
        self._lane_of_stream = np.array(
            [self._streams.get(key, unique.get((key.file, key.device, key.stream), -1)) for key in keys], np.int32
        )
        self._has_pairs = len(self._streams) > len({key.file for key in self._streams})
        """Whether there are streams that may have waited for each other: those of two ranks do not."""
        devices = sorted({(key.file, key.device) for key in self._streams})
        self._ordinals = {key: key[1] if len(paths) == 1 else place for place, key in enumerate(devices)}
        self._devices = {key: self._device(*key) for key in devices}
        self._ranks = self._rank_names()

    def trace(self) -> Trace:
        """Return the trace."""
        thread_of, threads = self._threads()
        facts = self._missing()  # asks for what the columns below take away
        wait_calls = self._wait_calls()
        used_devices = np.bincount(self._lane_of_stream[self._work["stream"]], minlength=len(self._streams)).tolist()
        columns, details = self._columns(thread_of)
        used_names, number = by_appearance(columns["name"], len(self._told.names.known))
        all_names = [*self._told.names.known]
        used, columns["name"] = [all_names[code] for code in used_names.tolist()], number[columns["name"]]
        shift_ns = int(columns["start_ns"].min()) if all(self._told.are_absolute) else 0
        for name in ("start_ns", "end_ns", "queued_ns"):
            columns[name] -= shift_ns
        metadata = replace(
            self._metadata(shift_ns, (int(columns["start_ns"].min()), int(columns["end_ns"].max())), used_devices),
            imported=self._used(),
            missing=tuple(facts),
            waits_told=not self._lacks_waits(wait_calls),
        )
        names = tuple(name for name, _ in threads)
        tables = Tables(self._lanes(threads), names, (), (), (), metadata)
        made = build_trace(TraceData(tables, columns, names=used, details=details, dependencies=self._dependencies()))
        return _with_collectives(made, self._told.collectives)

    def _require_rows(self) -> None:
        """Raise `TraceFileError` where nothing can be made of the files, or they cannot be laid beside each other."""
        told = self._told
        path = repr(self._paths[0]) if len(self._paths) == 1 else f"{len(self._paths):,} files ({self._paths[0]!r}, ...)"
        if not any(self._counts) and (told.damaged_count or any(told.cuts)):
            reasons = [f"{told.damaged_count:,} of {told.event_count:,} events cannot be read"] if told.damaged_count else []
            reasons += [cut for cut in told.cuts if cut]
            raise TraceFileError(
                f"{path} cannot be read as a trace of PyTorch's profiler: {'; '.join(reasons)}, and nothing that ran is before "
                "that. It was cut off, is damaged, or is another program's; copy or export it again."
            )
        if not any(self._counts):
            raise TraceFileError(
                f"{path} holds no kernels, calls or operators as PyTorch's profiler writes them, in {told.event_count:,} "
                f"events: another tool wrote it, or nothing ran. Read what others write with gsl.load_trace(path, 'chrome'). "
                f"{_PROFILE_AGAIN}."
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
        if known and len(self._paths) > known[0][0]:
            raise OptionError(
                f"{known[0][1]!r} is of a job of {known[0][0]:,} ranks, and {len(self._paths):,} files were given, the last "
                f"{self._paths[-1]!r}: some are not of it. Give one for each rank."
            )
        is_told = min(ranks) >= 0
        return [f"rank {rank} " if is_told else f"file {file} " for file, rank in enumerate(ranks)]

    def _distributed(self, file: int) -> dict[str, object]:
        told = self._told.facts[file].distributed
        return told if isinstance(told, dict) else {}

    def _threads(self) -> tuple[Int32Array, tuple[tuple[str, int], ...]]:
        """Return the number of each known thread, as they appear in ranges, then calls; name each, and tell its file."""
        known = [*self._told.threads.known]
        used, number = by_appearance(np.concatenate((self._ranges["thread"], self._calls["thread"])), len(known))
        keys = [known[code] for code in used.tolist()]
        if len(self._streams) + len(keys) > MOST_LANES:
            raise TraceFileError(
                f"{self._paths[0]!r} has {len(self._streams):,} streams and {len(keys):,} threads; {MOST_LANES:,} together are "
                "read. Profile fewer steps, or read fewer ranks at once."
            )
        names = [self._thread_name(key) for key in keys]
        counts = Counter(names)
        return number, tuple(
            (name if counts[name] == 1 else f"{name} ({key.process}, {key.thread})", key.file)
            for name, key in zip(names, keys, strict=True)
        )

    def _thread_name(self, key: ThreadKey) -> str:
        told = _THREAD.sub(r"\2 (\1)", self._told.thread_names.get(key, ""))
        return self._ranks[key.file] + (told or f"thread {key.thread}")

    def _columns(self, thread_of: Int32Array) -> tuple[Columns, tuple[WorkDetail, ...]]:
        """Return the columns of all spans, and how work was launched; what they are made of is taken away."""
        work, calls, ranges = self._work, self._calls, self._ranges
        call = self._launching_calls()
        hip = self._told.names.known.get(_THREADS_GRID, -1)
        shapes, hides_grid = [*self._told.shapes.known], np.append(calls["name"] == hip, False)[call]
        names, codes, kinds, details = describe_work(shapes, self._told.names, work.pop("shape"), hides_grid)
        counts = [self._counts[2], self._counts[1], self._counts[0]]
        stream_count = len(self._streams)
        queued_ns = np.where(call >= 0, np.append(calls["start_ns"], 0)[call], work["start_ns"])
        hosts = [thread_of[part.pop("thread")] for part in (ranges, calls)]
        threads = [*hosts, np.append(hosts[1], np.int32(-1))[call]]
        lanes = [*(host + stream_count for host in hosts), self._lane_of_stream[work.pop("stream")]]
        nothing = [np.zeros(count, np.int64) for count in counts]
        host_kinds = [
            np.full(count, SPAN_KINDS.index(kind), np.int8)
            for count, kind in zip(counts, (SpanKind.ANNOTATION, SpanKind.HOST), strict=False)
        ]
        parts: dict[str, list[NDArray[Any]]] = {
            "queued_ns": [ranges["start_ns"], calls["start_ns"], queued_ns],
            "start_ns": [part.pop("start_ns") for part in (ranges, calls, work)],
            "end_ns": [part.pop("end_ns") for part in (ranges, calls, work)],
            "lane": lanes,
            "thread": threads,
            "name": [ranges.pop("name"), calls.pop("name"), names],
            "kind": [*host_kinds, kinds],
            "detail": [np.full(sum(counts[:2]), -1, np.int32), codes],
            "size_bytes": [*nothing[:2], work.pop("size_bytes")],
            "correlation": [nothing[0], calls.pop("correlation"), work.pop("correlation")],
        }
        order = np.argsort(np.concatenate(parts["start_ns"]), kind="stable").astype(np.int32)
        columns = {name: np.concatenate(parts.pop(name))[order] for name in [*parts]}
        total = sum(counts)
        columns["number"] = np.arange(total, dtype=np.int32)
        columns |= {name: np.broadcast_to(np.int8(-1), total) for name in SPAN_COLUMNS if name not in columns}
        return columns, details

    def _launching_calls(self) -> Int64Array:
        """Return the call that launched each piece of work, or -1."""
        correlation = self._work["correlation"]
        return np.where(correlation > 0, RowFinder(self._calls["correlation"]).rows_of(correlation), -1)

    def _dependencies(self) -> Columns:
        """Return which stream waited for which, where both are known."""
        waits = self._told.take(WAIT)
        lanes = [self._lane_of_stream[waits[name]].astype(np.int64) for name in ("source", "target")]
        is_known = (lanes[0] >= 0) & (lanes[1] >= 0)
        columns = (lanes[0], waits["record"], lanes[1], waits["wait"])
        return {name: column[is_known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}

    def _lanes(self, threads: Sequence[tuple[str, int]]) -> tuple[Lane, ...]:
        """Return a lane for each stream, named by what tells it from others, and for each thread."""
        has_contexts = len({key[:3] for key in self._streams}) > len(self._devices)
        codes = self._told.streams.known
        lanes = []
        for key in self._streams:
            where = self._ranks[key.file] + (f"GPU {key.device} " if len(self._devices) > 1 or self._ranks[0] else "")
            lanes.append(
                Lane(
                    name=f"{where}stream {key.stream}{f', context {key.context}' if has_contexts else ''}",
                    device=self._ordinals[key.file, key.device],
                    context=key.context,
                    stream=key.stream,
                    sm_count=self._devices[key.file, key.device].sm_count,
                    priority=self._told.priorities.get(codes[key], 0),
                    process=key.file,
                )
            )
        return (*lanes, *(Lane(name=f"host: {name}", kind=LaneKind.HOST, process=file) for name, file in threads))

    def _device(self, file: int, number: int) -> Device:
        """Return what a file tells of a device."""
        ordinal = self._ordinals.get((file, number), number)
        all_told = self._told.facts[file].devices
        for told in all_told if isinstance(all_told, list) else []:
            if isinstance(told, dict) and told.get("id") == number:
                major, minor, sms, size = (max(whole_number(told.get(name)), 0) for name in _DEVICE_NUMBERS)
                limits = {field: found for field, key in _SM_NUMBERS.items() if (found := whole_number(told.get(key))) > 0}
                return Device(
                    name=cut_text(str(told.get("name"))),
                    ordinal=ordinal,
                    sm_count=sms,
                    compute_capability=(major, minor),
                    memory_bytes=size,
                    sm_limits=SMLimits(**limits),
                )
        return Device(name=f"GPU {ordinal}", ordinal=ordinal, sm_count=0)

    def _metadata(self, epoch_ns: int, window: tuple[int, int], work_counts: Sequence[int]) -> TraceMetadata:
        """Return what the files tell of themselves; the device is the one that did most."""
        by_device: Counter[tuple[int, int]] = Counter()
        for key, count in zip(self._streams, work_counts, strict=True):
            by_device[key.file, key.device] += count
        step_ns = 1_000 if self._told.are_in_us else 0
        return TraceMetadata(
            backend=KINETO_BACKEND,
            device=self._devices[by_device.most_common(1)[0][0]] if by_device else self._device(0, 0),
            devices=tuple(self._devices.values()),
            clock=f"that of the file, in steps of {'1 us' if step_ns else '1 ns'}",
            clock_error_ns=step_ns,
            host_error_ns=step_ns,
            kernel_error_ns=step_ns,
            tier=CaptureTier.KERNELS,
            capture_windows=(window,),
            capture_source="PyTorch's profiler",
            epoch_unix_ns=epoch_ns,
            title=self._title(),
        )

    def _title(self) -> str:
        """Say which ranks these are, of how many, and what they talk through."""
        told = self._distributed(0)
        rank, rank_count = whole_number(told.get("rank"), -1), whole_number(told.get("world_size"))
        which = f"rank {rank}" if rank >= 0 else ""
        which = f"{len(self._paths):,} ranks" if self._ranks[0] else which
        backend = told.get("backend")
        return (
            which
            + (f" of {rank_count:,}" if which and rank_count > 0 else "")
            + (f", {cut_text(backend, 40)}" if which and isinstance(backend, str) else "")
        )

    def _used(self) -> str:
        """Say how many events were read, used, left out and refused."""
        told = self._told
        work_count, call_count, range_count = self._counts
        used = f"{work_count:,} kernels, copies and fills, {call_count:,} calls, {range_count:,} ranges"
        wait_count = told.wait_count + told.unsaid_count
        used += f", {wait_count:,} waits of streams" if wait_count else ""
        used += f", {told.said_count:,} that say the same again or name threads" if told.said_count else ""
        refused = f"; {told.refused_count:,} refused, as their times make no sense" if told.refused_count else ""
        damaged = f"; {told.damaged_count:,} damaged" if told.damaged_count else ""
        return f"{used} of {told.event_count:,} events{not_read(told.left_out)}{refused}{damaged}"

    def _wait_calls(self) -> int:
        """Return how many calls let a stream wait for an event."""
        codes = [code for name, code in self._told.names.known.items() if "StreamWaitEvent" in name]
        return int(np.isin(self._calls["name"], codes).sum()) if codes else 0

    def _lacks_waits(self, call_count: int) -> bool:
        """Tell whether streams may have waited for each other without a row that says so: by default there are no such rows."""
        told = self._told
        return self._has_pairs and (told.wait_count < call_count or not told.wait_count or told.unsaid_count > 0)

    def _missing(self) -> list[str]:
        """Say what the files do not tell, and what of them could not be kept."""
        told = self._told
        facts = [
            f"{cut[0].upper()}{cut[1:]}{f' ({path!r})' if self._ranks[0] else ''}: what was whole of it is here, the rest is "
            "not known."
            for cut, path in zip(told.cuts, self._paths, strict=True)
            if cut
        ]
        facts += [
            f"Of {told.row_counts[role] + count:,} {_ROLE_NAMES[role]} the first {told.row_counts[role]:,} are here, more are "
            "not read. Profile fewer steps."
            for role, count in told.dropped.items()
            if count
        ]
        if self._ranks[0]:
            facts.append("Each file's times are taken as they are: clocks of different hosts differ by an unknown time.")
        return facts + self._missing_of_work()

    def _missing_of_work(self) -> list[str]:
        """Say what is not known of work, its devices, and what it waited for."""
        facts = []
        call = self._launching_calls()
        unlaunched, early = (
            int((call < 0).sum()),
            (np.append(self._calls["start_ns"], 0)[call] - self._work["start_ns"])[call >= 0],
        )
        if unlaunched:
            where = "among those that are here" if self._told.dropped[CALL] else "in the file"
            facts.append(
                f"{unlaunched:,} of {len(call):,} kernels, copies and fills have no call {where} to tell their launch."
            )
        if len(early) and early.max() > 0:
            facts.append(
                f"{int((early > 0).sum()):,} kernels, copies and fills begin before their call, by up to {int(early.max()):,} "
                "ns: the clocks of host and device differ."
            )
        unknown = [
            f"{self._ranks[file]}GPU {number}" for (file, number), device in self._devices.items() if not device.sm_count
        ]
        if unknown:
            listed = ", ".join(unknown[:MOST_LISTED]) + (" and others" if len(unknown) > MOST_LISTED else "")
            facts.append(f"The file has no properties of {listed}: when kernels fill its SMs is not known.")
        call_count = self._wait_calls()
        unsaid_count, row_count = self._told.unsaid_count, self._told.wait_count + self._told.unsaid_count
        if self._has_pairs and unsaid_count:
            facts.append(f"{unsaid_count:,} of {row_count:,} waits do not say what they waited for.")
        if self._lacks_waits(call_count) and (row_count < call_count or not row_count):
            waits = f"{row_count:,} of {call_count:,} waits of streams for events are told"
            waits = waits if call_count else "Whether streams waited for events is not told"
            was_on = row_count > 0
            facts.append(f"{waits}{'' if was_on else '; the profiler tells it with enable_cuda_sync_events=True'}.")
        return facts


def _with_collectives(trace: Trace, told: Mapping[int, tuple[int, int]]) -> Trace:
    """Return a trace with the communicator of each kernel of a collective, and its place in that, by its correlation."""
    if not told:
        return trace
    known = np.array(sorted((correlation, *found) for correlation, found in told.items()), np.int64)
    correlation = trace.extra.get("correlation", np.zeros(len(trace), np.int64))
    place = np.minimum(np.searchsorted(known[:, 0], correlation), len(known) - 1)
    is_own = (known[place, 0] == correlation) & (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
    columns = {name: np.where(is_own, known[place, number], 0) for number, name in ((1, "communicator"), (2, "sequence"))}
    return replace(trace, extra={**trace.extra, **columns})
