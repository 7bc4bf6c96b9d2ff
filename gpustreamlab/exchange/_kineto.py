"""Read what PyTorch's profiler writes: Kineto's JSON, of 2021 and later.

Times are decimals of microseconds; they are read as text, as a float of 64 bits cannot hold those since 1970 to the nanosecond.
What the host launched is found by its correlation, never by flows: files hold ends of flows that have no beginning. Events
become columns block by block, so that no event is kept.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from gpustreamlab.analysis import with_waits_for_ranks
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.exchange._frame import (
    ANNOTATION,
    HOST,
    KERNEL,
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
from gpustreamlab.exchange._json_events import whole_number
from gpustreamlab.exchange._kineto_events import CALL, COUNT, RANGE, WAIT, WORK, Events, StreamKey, without_context
from gpustreamlab.exchange._rows import called
from gpustreamlab.model import (
    CHROME_BACKEND,
    KINETO_BACKEND,
    SPAN_KINDS,
    UNNAMED_SOURCE,
    Counters,
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
_DEVICE_NUMBERS = ("computeMajor", "computeMinor", "numSms", "totalGlobalMem")
_SM_NUMBERS = {
    "threads": ("maxThreadsPerMultiprocessor",),
    "registers": ("regsPerMultiprocessor",),
    "shared_bytes": ("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor"),  # CUDA's and ROCm's
}
_STREAM_ROW = re.compile(r"^stream \d+\s*$")  # How PyTorch's profiler names the rows of streams
_THREAD_NAME = re.compile(r"^thread (\d+) \((.+)\)$")
_COPY = re.compile(r"Memcpy (\w+) \((\w+) -> (\w+)\)")
_OTHER_CALL = re.compile(r"(?:hip|acl(?:rt|nn)?|ur|ze)[A-Z]")  # Of other makers than NVIDIA
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
        numbers = Counter(map(without_context, streams))
        # Waits in green contexts tell the context that those are of.
        unique = {without_context(key): lane for key, lane in self._streams.items() if numbers[without_context(key)] == 1}
        lanes = [self._streams.get(key, unique.get(without_context(key), -1)) for key in keys]
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
        lanes = self._lanes(threads)
        counter_lanes, counters = self._counters(len(lanes))
        frame = Frame(
            backend=KINETO_BACKEND if self._is_known else CHROME_BACKEND,
            source="PyTorch's profiler" if self._is_known else UNNAMED_SOURCE,
            path=self._paths[0],
            lanes=[*lanes, *counter_lanes],
            threads=[name for name, _ in threads],
            names=[*told.names.known],
            parts=[ranges, calls, work],
            details=details,
            dependencies=self._dependencies(),
            counters=counters,
            devices={device.ordinal: device for device in self._devices.values()},
            idle_device=self._device(0, 0),
            is_in_us=told.are_in_us,
            imported=imported,
            missing=self._missing(call),
            facts={
                "waits_told": not self._lacks_waits(),
                "title": self._title(),
                "recovery_note": "; ".join(
                    f"{cut}{f' ({path!r})' if self._ranks[0] else ''}: what was whole of it is here, the rest is not known"
                    for cut, path in zip(told.cuts, self._paths, strict=True)
                    if cut
                ),
                "refused_records": told.refused_count + told.damaged_count,
                "profiler_ns": told.profiler_ns,
            },
        )
        trace = with_waits_for_ranks(_with_collectives(frame.trace(), told.collectives))
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

    def _counters(self, first_lane: int) -> tuple[list[Lane], Counters]:
        """Return a lane for the counters of each card, and its samples; each holds until the next one of its name."""
        samples = self._told.take(COUNT)
        keys = [*self._told.counters.known]
        cards = sorted({(file, card) for file, card, _ in keys})
        names = [*dict.fromkeys(name for *_, name in keys)]
        lanes = [
            Lane(
                name=f"{self._ranks[file]}counters of GPU {card}",
                device=self._ordinals.get((file, card), card),
                kind=LaneKind.HOST,
                process=file,
            )
            for file, card in cards
        ]
        table = np.array([(first_lane + cards.index((file, card)), names.index(name)) for file, card, name in keys], np.int32)
        lane, name = table.reshape(-1, 2)[samples["counter"]].T
        value = samples["value"].astype(np.float64)
        return lanes, Counters(time_ns=samples["start_ns"], lane=lane, name=name, value=value, names=tuple(names))

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
        used += f", {told.sample_count:,} samples of counters" if told.sample_count else ""
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
        facts = []
        if self._ranks[0]:
            facts.append("Each file's times are taken as they are: clocks of different hosts differ by an unknown time.")
        facts += launch_note(call)
        unknown = [f"{self._ranks[file]}GPU {number}" for (file, number), one in self._devices.items() if not one.sm_count]
        facts += [card_note(", ".join(unknown[:MOST_LISTED]) + " and others" * (len(unknown) > MOST_LISTED))] if unknown else []
        row_count = told.wait_count + told.unsaid_count
        if self._has_pairs and told.unsaid_count:
            facts.append(f"{told.unsaid_count:,} of {row_count:,} waits do not say what they waited for.")
        if self._lacks_waits() and (row_count < self._wait_calls or not row_count):
            can_tell = self._is_known and not row_count and not any(map(_OTHER_CALL.match, told.names.known))
            advice = "; the profiler tells it with enable_cuda_sync_events=True" if can_tell else ""
            facts.append(wait_note(row_count, self._wait_calls, advice))
        return facts


def _sizes(given: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Return three sizes, or zeros for what has none."""
    return given if given is not None and min(given) > 0 and math.prod(given) < LARGEST_GRID else (0, 0, 0)


def _work_name(full: str, kind: SpanKind) -> str:
    """Return the name that the same work has in a trace of our own."""
    found = _COPY.match(full) if kind is SpanKind.COPY else None
    if found is None:
        return called(SPAN_KINDS.index(kind), full)
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
