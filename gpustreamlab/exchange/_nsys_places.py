"""Where work of a report ran: devices, contexts, streams and the lanes that they become."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gpustreamlab.exchange._nsys_report import Report
from gpustreamlab.model import Device, Lane, Partition, SMLimits
from gpustreamlab.record import cut_text

PROCESS_MASK = -(1 << 24)
"""What a thread's global number has in common with its process's."""
NO_STREAM = -1
"""Copies that the driver makes by itself, of managed memory, are on none."""

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
    "shared": ("maxShmemPerSm",),
    "blocks": ("maxBlocksPerSm",),
    "warps": ("maxWarpsPerSm", "maxWarpsPerMultiprocessor"),
    "warp": ("threadsPerWarp", "numThreadsPerWarp"),
}
"""Names of columns, the newest first: until 2021 TARGET_INFO_CUDA_GPU had others."""
_MASK_WORD = re.compile(r"0x[0-9a-fA-F]{1,8}")

_Facts: TypeAlias = Mapping[str, int | str]


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
        told = self._gpus.get(gpu)
        if told is None:
            return Device(name=f"GPU {gpu}", ordinal=gpu, sm_count=0)
        found = {key: next((told[name] for name in names if name in told), 0) for key, names in _GPU_COLUMNS.items()}
        given = {
            "blocks": _whole(found, "blocks"),
            "threads": _whole(found, "warps") * _whole(found, "warp"),
            "registers": _whole(found, "registers"),
            "shared_bytes": _whole(found, "shared"),
        }
        return Device(
            name=cut_text(str(found["name"] or f"GPU {gpu}")),
            ordinal=gpu,
            sm_count=min(max(_whole(found, "sms"), 0), _MOST_SMS),
            compute_capability=(max(_whole(found, "major"), 0), max(_whole(found, "minor"), 0)),
            memory_bytes=max(_whole(found, "memory"), 0),
            sm_limits=SMLimits(**{name: number for name, number in given.items() if 0 < number < 1 << 40}),
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


def make_lanes(places: Places, keys: Sequence[Place]) -> Lanes:
    """Return a lane for each stream, named by what tells it from the others."""
    gpus = [places.gpu_of(key.process, key.device) for key in keys]
    devices = {gpu: places.device(gpu) for gpu in gpus}
    has_processes = len({(gpu, key.process) for gpu, key in zip(gpus, keys, strict=True)}) > len(devices)
    has_contexts = len({key[:3] for key in keys}) > len({key[:2] for key in keys})
    partitions: dict[Partition, int] = {}
    lanes, codes, unsized = [], [], 0
    names: Counter[str] = Counter()
    for key, gpu in zip(keys, gpus, strict=True):
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
            )
        )
        codes.append(-1 if partition is None else partitions.setdefault(partition, len(partitions)))
    return Lanes(tuple(lanes), (*partitions,), tuple(codes), unsized)


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
