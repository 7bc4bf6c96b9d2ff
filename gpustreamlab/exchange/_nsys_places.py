"""What rows of a report are of: processes, devices, contexts, streams, threads, and the lanes that they become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.errors import TraceFileError
from gpustreamlab.exchange._nsys_report import Columns, Report, alike
from gpustreamlab.model import Device, Lane, Partition, SMLimits
from gpustreamlab.record import DEPENDENCY_COLUMNS, RowFinder, cut_text
from gpustreamlab.typing import Int64Array, LaneKind

MOST_LANES = 4_096
"""Most processes of a report, and most of their streams and threads."""
NO_STREAM = -1
"""Copies that the driver makes by itself, of managed memory, are on none."""

_CALL_BITS = 32
_PROCESS_MASK = -(1 << 24)
"""What a thread's global number has in common with its process's."""
_MOST_SMS = 1 << 16
_LARGEST = 1 << 61
_FLAGS = {1: True, 2: False, 3: True}
"""Whether streams and the legacy default stream wait for each other, by what nsys calls flag."""
_GPU_COLUMNS = {
    "name": ("name",),
    "sms": ("smCount", "numMultiprocessors"),
    "major": ("computeMajor", "computeCapabilityMajor"),
    "minor": ("computeMinor", "computeCapabilityMinor"),
    "memory": ("totalMemory", "globalMemorySize"),
    "registers": ("maxRegistersPerSm",),
    "shared_bytes": ("maxShmemPerSm",),
    "blocks": ("maxBlocksPerSm",),
    "warps": ("maxWarpsPerSm", "maxWarpsPerMultiprocessor"),
    "warp": ("threadsPerWarp", "numThreadsPerWarp"),
}
"""Names of columns, the newest first: until 2021 TARGET_INFO_CUDA_GPU had others."""
_MASK_WORD = re.compile(r"0x[0-9a-fA-F]{1,8}")
_WHERE = ("device", "context", "green", "stream")

_Facts: TypeAlias = Mapping[str, int | str]


class Processes:
    """The processes of a report, by the numbers that nsys gives to them.

    Parameters
    ----------
    numbers
        Those of all rows.
    name
        How messages call the file.
    """

    def __init__(self, numbers: Iterable[Int64Array], name: str) -> None:
        self._known = np.unique(np.concatenate([distinct(some & _PROCESS_MASK)[0] for some in numbers]))
        self._name = name
        self.require_few(len(self._known), "processes")

    def require_few(self, count: int, what: str) -> None:
        """Raise an error where there are more of something than lanes can show."""
        if count > MOST_LANES:
            raise TraceFileError(
                f"{self._name!r} has {count:,} {what}; {MOST_LANES:,} are read. Profile for a shorter time: "
                "nsys profile --duration=10."
            )

    def codes(self, numbers: Int64Array) -> Int64Array:
        """Return the code of each process, or of each thread's; -1 for one that is not known."""
        return RowFinder(self._known).rows_of(numbers & _PROCESS_MASK)

    def calls(self, codes: Int64Array, correlation: Int64Array) -> Int64Array:
        """Return numbers of calls that no two processes share; 0 for none. Those of the first stay as they are."""
        is_there = (correlation > 0) & (correlation < 1 << _CALL_BITS) & (codes >= 0)
        found: Int64Array = np.where(is_there, correlation + (codes << _CALL_BITS), 0)
        return found

    def pids(self) -> list[int]:
        """Return the number that the system gave to each."""
        return [number >> 24 & 0xFF_FFFF for number in self._known.tolist()]


class Place(NamedTuple):
    """A stream: what tells it from others."""

    process: int
    """Number of the process."""
    device: int
    """As its process counts."""
    context: int
    green: int
    """The green context; 0 for none."""
    stream: int


class Places:
    """What a report tells of places.

    Parameters
    ----------
    report
        Its tables of facts are read at once.
    """

    def __init__(self, report: Report) -> None:
        wanted = [name for names in _GPU_COLUMNS.values() for name in names]
        gpus = report.facts("TARGET_INFO_GPU", ["id", "cuDevice", *wanted])
        old = report.facts("TARGET_INFO_CUDA_GPU", ["deviceId", *wanted])
        self._gpus = {_whole(told, "deviceId"): told for told in old} | {_whole(told, "id"): told for told in gpus}
        if old and not any("smCount" in told for told in gpus):
            self._gpus |= {_whole(told, "deviceId"): told for told in old}
        self._by_cuda = {_whole(told, "cuDevice"): _whole(told, "id") for told in gpus if "cuDevice" in told}
        self._by_process = {
            (_whole(told, "pid"), _whole(told, "cudaId")): _whole(told, "gpuId")
            for told in report.facts("TARGET_INFO_CUDA_DEVICE", ["gpuId", "cudaId", "pid"])
        }
        contexts = ["processId", "contextId", "nullStreamId", "isGreenContext", "numMultiprocessors", "tpcMask"]
        self._contexts = {_context_key(told): told for told in report.facts("TARGET_INFO_CUDA_CONTEXT_INFO", contexts)}
        for told in report.facts("TARGET_INFO_CUDA_NULL_STREAM", ["processId", "contextId", "streamId"]):
            self._contexts.setdefault(_context_key(told), {"nullStreamId": _whole(told, "streamId")})
        streams = ["streamId", "processId", "contextId", "priority", "flag"]
        self._streams = {
            (*_context_key(told), _whole(told, "streamId")): told for told in report.facts("TARGET_INFO_CUDA_STREAM", streams)
        }

    def gpu_of(self, process: int, device: int) -> int:
        """Return the card that a process calls this device: with CUDA_VISIBLE_DEVICES each counts its own from 0."""
        known = self._by_process.get((process, device))
        return max(self._by_cuda.get(device, device) if known is None else known, 0)

    def device(self, gpu: int) -> Device:
        """Return what the report tells of a card."""
        told = self._gpus.get(gpu, {})
        found = {key: next((told[name] for name in names if name in told), 0) for key, names in _GPU_COLUMNS.items()}
        of = {key: max(_whole(found, key), 0) for key in found}
        limits = {name: of[name] for name in ("blocks", "registers", "shared_bytes")} | {"threads": of["warps"] * of["warp"]}
        return Device(
            name=cut_text(str(found["name"] or f"GPU {gpu}")),
            ordinal=gpu,
            sm_count=min(of["sms"], _MOST_SMS),
            compute_capability=(of["major"], of["minor"]),
            memory_bytes=of["memory"],
            sm_limits=SMLimits(**{name: number for name, number in limits.items() if 0 < number < 1 << 40}),
        )

    def green_of(self, process: int, context: int, told: int) -> int:
        """Return the green context of work; in some versions its context is the green one itself."""
        if told:
            return told
        return context if _whole(self._contexts.get((process, context), {}), "isGreenContext") == 1 else 0

    def partition(self, process: int, green: int, name: str) -> Partition | None:
        """Return the SMs of a green context; None where the report does not tell how many."""
        told = self._contexts.get((process, green), {})
        sms = _whole(told, "numMultiprocessors")
        if not 0 < sms <= _MOST_SMS:
            return None
        return Partition(name=name, requested_sms=sms, granted_sms=sms, groups=_tpcs(str(told.get("tpcMask", ""))))

    def is_null(self, place: Place) -> bool:
        """Tell whether a stream is the legacy default stream of its context."""
        told = self._contexts.get((place.process, place.context), {})
        return not place.green and told.get("nullStreamId") == place.stream

    def priority(self, place: Place) -> int:
        """Return the priority of a stream: a whole number of 32 bits that is stored without a sign."""
        number = _whole(self._stream(place), "priority") & 0xFFFF_FFFF
        return number - (1 << 32) if number >> 31 else number

    def is_blocking(self, place: Place) -> bool | None:
        """Tell whether it and the legacy default stream wait for each other; None where that is unknown."""
        return True if self.is_null(place) else _FLAGS.get(_whole(self._stream(place), "flag"))

    def _stream(self, place: Place) -> _Facts:
        keys = [(place.process, context, place.stream) for context in (place.green, place.context)]
        return next((self._streams[key] for key in keys if key in self._streams), {})


class Lanes(NamedTuple):
    """The lanes of streams, and what they need."""

    lanes: tuple[Lane, ...]
    """By the place of each in what was given."""
    partitions: tuple[Partition, ...]
    partition_of: tuple[int, ...]
    """The code of each lane's partition, or -1."""
    unsized: int
    """Lanes in green contexts of which nobody knows how many SMs they have."""


class Streams:
    """The streams in which work ran.

    Parameters
    ----------
    work
        Columns of work: ``process`` (global) and where.
    processes
        All of the report.
    places
        What it tells of them.
    """

    def __init__(self, work: Columns, processes: Processes, places: Places) -> None:
        self._processes = processes
        codes = processes.codes(work["process"])
        first, sort = alike([codes, *(work[name] for name in _WHERE)])
        processes.require_few(len(first), "streams")
        pids = processes.pids()
        keys = []
        for code, device, context, green, stream in zip(
            codes[first].tolist(), *(work[name][first].tolist() for name in _WHERE), strict=True
        ):
            place = Place(pids[code], device, context, places.green_of(pids[code], context, green), stream)
            keys.append((code, place))
        ordered = sorted(set(keys))
        self.count = len(ordered)
        """How many there are."""
        self._places, self._ordered = places, ordered
        place_of = {key: number for number, key in enumerate(ordered)}
        self.lane = np.array([place_of[key] for key in keys], np.int64)[sort]
        """The lane of each piece of work."""
        self.has_pairs = any(count > 1 for count in Counter(code for code, _ in ordered).values())
        """Whether there are streams that may have waited for each other."""

    def lanes(self) -> Lanes:
        """Return a lane for each, named by what tells it from the others."""
        places, keys = self._places, [place for _, place in self._ordered]
        gpus = [places.gpu_of(key.process, key.device) for key in keys]
        devices = {gpu: places.device(gpu) for gpu in gpus}
        has_processes = len({(gpu, key.process) for gpu, key in zip(gpus, keys, strict=True)}) > len(devices)
        has_contexts = len({key[:3] for key in keys}) > len({key[:2] for key in keys})
        partitions: dict[Partition, int] = {}
        lanes, codes, unsized = [], [], 0
        names: Counter[str] = Counter()
        for (owner, key), gpu in zip(self._ordered, gpus, strict=True):
            process = f"process {key.process} " if has_processes else ""
            partition = places.partition(key.process, key.green, f"{process}green context {key.green}") if key.green else None
            unsized += bool(key.green) and partition is None
            where = process + (f"GPU {gpu} " if len(devices) > 1 else "")
            where += f"context {key.context} " if has_contexts and key.context != key.green else ""
            name = _lane_name(key, where + (f"green context {key.green} " if key.green else ""), is_null=places.is_null(key))
            names[name] += 1
            card_sms = 0 if key.green else devices[gpu].sm_count
            lanes.append(
                Lane(
                    name=name if names[name] == 1 else f"{name} ({names[name]})",
                    device=gpu,
                    context=key.green or key.context,
                    stream=key.stream,
                    partition=None if partition is None else partition.name,
                    sm_count=card_sms if partition is None else partition.granted_sms,
                    priority=places.priority(key),
                    is_blocking=places.is_blocking(key),
                    outside=places.is_null(key),
                    process=max(owner, 0),
                )
            )
            codes.append(-1 if partition is None else partitions.setdefault(partition, len(partitions)))
        return Lanes(tuple(lanes), (*partitions,), tuple(codes), unsized)

    def dependencies(self, waits: Columns) -> Columns:
        """Return which lane waited for which, of waits with work on both sides; columns of `DEPENDENCY_COLUMNS`."""
        process = self._processes.codes(waits["process"])
        source = self._find(process, [waits[f"source_{name}"] for name in _WHERE])
        target = self._find(process, [waits[name] for name in _WHERE])
        known = (source >= 0) & (target >= 0)
        columns = (source, waits["record"], target, waits["wait"])
        return {name: column[known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}

    def _find(self, process: Int64Array, where: list[Int64Array]) -> Int64Array:
        """Return the lanes of streams, or -1. These rows may lack the green context, or tell it as their context."""
        lanes: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        for number, (code, place) in enumerate(self._ordered):
            for context in {place.context, place.green or place.context}:
                lanes.setdefault((code, place.device, context, place.stream), []).append((place.green, number))
        first, sort = alike([process, *where])
        found = np.full(len(first), -1, np.int64)
        for at, (code, device, context, green, stream) in enumerate(
            zip(process[first].tolist(), *(column[first].tolist() for column in where), strict=True)
        ):
            some = lanes.get((code, device, context, stream), [])
            if len(some) > 1:
                some = [one for one in some if one[0] == green]
            if len(some) == 1:
                found[at] = some[0][1]
        return found[sort]


class Threads(NamedTuple):
    """The threads of the host."""

    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    codes: tuple[Int64Array, ...]
    """Of each row of what was given."""


def find_threads(numbers: list[Int64Array], processes: Processes) -> Threads:
    """Return the threads of rows by nsys's numbers for them. Their own names are not read: they may be those of programs."""
    known, place = distinct(np.concatenate(numbers))
    processes.require_few(len(known), "threads")
    owners, pids = processes.codes(known).tolist(), processes.pids()
    has_processes = len(set(owners)) > 1
    counts: Counter[str] = Counter()
    names = []
    for number, owner in zip(known.tolist(), owners, strict=True):
        name = (f"process {pids[owner]} " if has_processes else "") + f"thread {number & 0xFF_FFFF}"
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    lanes = tuple(
        Lane(name=f"host: {name}", kind=LaneKind.HOST, process=max(owner, 0)) for name, owner in zip(names, owners, strict=True)
    )
    bounds = np.cumsum([len(some) for some in numbers])[:-1]
    return Threads(tuple(names), lanes, tuple(np.split(place.astype(np.int64), bounds)))


def _lane_name(key: Place, where: str, *, is_null: bool) -> str:
    if key.stream == NO_STREAM:
        return f"{where}managed memory"
    if is_null:  # reports look for the legacy stream by how its name begins
        return f"default stream {key.stream}" + (f" of {where.strip()}" if where else "")
    return f"{where}stream {key.stream}"


def _context_key(told: _Facts) -> tuple[int, int]:
    return _whole(told, "processId"), _whole(told, "contextId")


def _whole(told: _Facts, name: str) -> int:
    value = told.get(name, 0)
    return value if type(value) is int and -_LARGEST < value < _LARGEST else 0


def _tpcs(mask: str) -> tuple[int, ...]:
    """Return which TPCs a mask has: words of 32 bits, the lowest first. Source: CUPTI, ``CUpti_ActivityGreenContext``.

    Examples
    --------
    >>> _tpcs("0xf,0x1"), _tpcs("none")
    ((0, 1, 2, 3, 32), ())
    """
    words = mask.split(",")[:32]
    if not all(_MASK_WORD.fullmatch(word.strip()) for word in words):
        return ()
    numbers = [int(word, 16) for word in words]
    return tuple(32 * place + bit for place, number in enumerate(numbers) for bit in range(32) if number >> bit & 1)
