"""Where the fields of CUPTI's activity records lie, by CUPTI API version.

The tables are written by ``scripts/cupti_layouts.py`` from the headers of CUPTI; do not edit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache


class RecordKind(IntEnum):
    """What a record is about: the first field of each (CUpti_ActivityKind)."""

    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONTEXT = 9
    CONCURRENT_KERNEL = 10
    MARKER = 12
    OVERHEAD = 17
    MEMCPY2 = 22
    CUDA_EVENT = 36
    STREAM = 37
    SYNCHRONIZATION = 38
    MEMORY2 = 49
    GRAPH_TRACE = 51
    GREEN_CONTEXT = 59


WORK_KINDS = (
    RecordKind.CONCURRENT_KERNEL,
    RecordKind.MEMCPY,
    RecordKind.MEMCPY2,
    RecordKind.MEMSET,
    RecordKind.GRAPH_TRACE,
)
"""Records of work on the device: kernels, copies, fills, and graphs told as a whole. Each says of which graph it is."""


class CopyKind(IntEnum):
    """From where to where a copy goes (CUpti_ActivityMemcpyKind)."""

    UNKNOWN = 0
    HTOD = 1
    DTOH = 2
    HTOA = 3
    ATOH = 4
    ATOA = 5
    ATOD = 6
    DTOA = 7
    DTOD = 8
    HTOH = 9
    PTOP = 10


CALLED = 254
"""No kind of CUPTI's: a call of the driver that our callback followed, see callbacks.c."""
ACCESSED = 253
"""Likewise: memory that a call's work touches, see `_accesses.py`."""
STAGED = 255
"""No code of CUPTI's: from device to device through the host, see `join_staged`."""


class MemoryKind(IntEnum):
    """What sort of memory an address belongs to (CUpti_ActivityMemoryKind)."""

    UNKNOWN = 0
    PAGEABLE = 1
    PINNED = 2
    DEVICE = 3
    ARRAY = 4
    MANAGED = 5
    DEVICE_STATIC = 6
    MANAGED_STATIC = 7


class SynchronizationKind(IntEnum):
    """What the host or a stream waited for (CUpti_ActivitySynchronizationType)."""

    EVENT_SYNCHRONIZE = 1
    STREAM_WAIT_EVENT = 2
    STREAM_SYNCHRONIZE = 3
    CONTEXT_SYNCHRONIZE = 4


class MemoryOperation(IntEnum):
    """What happened to memory (CUpti_ActivityMemoryOperationType)."""

    ALLOCATION = 1
    RELEASE = 2


class OverheadKind(IntEnum):
    """What CUPTI or the driver did besides what was asked of it (CUpti_ActivityOverheadKind)."""

    DRIVER_COMPILER = 1
    CUPTI_BUFFER_FLUSH = 1 << 16
    CUPTI_INSTRUMENTATION = 2 << 16
    CUPTI_RESOURCE = 3 << 16
    RUNTIME_TRIGGERED_MODULE_LOADING = 4 << 16
    LAZY_FUNCTION_LOADING = 5 << 16
    COMMAND_BUFFER_FULL = 6 << 16
    ACTIVITY_BUFFER_REQUEST = 7 << 16
    UVM_ACTIVITY_INIT = 8 << 16


class StreamFlag(IntEnum):
    """How a stream stands to the legacy default stream (CUpti_ActivityStreamFlag)."""

    DEFAULT = 1
    NON_BLOCKING = 2
    NULL = 3


class MarkerFlag(IntFlag):
    """What an NVTX marker record stands for (CUpti_ActivityFlag)."""

    INSTANTANEOUS = 1
    START = 2
    END = 4


class CallbackDomain(IntEnum):
    """Which calls a callback belongs to (CUpti_CallbackDomain)."""

    DRIVER_API = 1
    RUNTIME_API = 2


def copy_name(copy_kind: int, src_kind: int, dst_kind: int) -> str:
    """Name a copy as profilers do, with the kind of the host's memory or of managed memory.

    Examples
    --------
    >>> copy_name(1, 2, 3), copy_name(8, 3, 3), copy_name(2, 3, 1), copy_name(77, 0, 99)
    ('memcpy HtoD (pinned)', 'memcpy DtoD', 'memcpy DtoH (pageable)', 'memcpy')
    >>> copy_name(9, 1, 2), copy_name(8, 5, 3)
    ('memcpy HtoH (pageable to pinned)', 'memcpy DtoD (managed to device)')
    """
    name = f"memcpy {_COPY_LETTERS[copy_kind]}" if copy_kind in _COPY_LETTERS else "memcpy"
    source, target = _MEMORY_WORDS.get(src_kind, ""), _MEMORY_WORDS.get(dst_kind, "")
    if copy_kind in _FROM_HOST:
        target = source
    elif copy_kind in _TO_HOST:
        source = target
    if source == target:
        return name if source in {"", "device"} else f"{name} ({source})"
    return f"{name} ({source or 'unknown'} to {target or 'unknown'})"


_FROM_HOST = {CopyKind.HTOD, CopyKind.HTOA}
_TO_HOST = {CopyKind.DTOH, CopyKind.ATOH}
_COPY_LETTERS: dict[int, str] = {kind: kind.name.replace("TO", "to") for kind in CopyKind if kind is not CopyKind.UNKNOWN}
_MEMORY_WORDS: dict[int, str] = {
    kind: kind.name.lower().replace("_", " ") for kind in MemoryKind if kind is not MemoryKind.UNKNOWN
}


__all__ = ["VERSIONS", "Layouts", "find_layouts"]


_FIRST_OF_13 = 130000
"""From CUDA 13.0 on a version is major, minor and update, two digits each; before, it is a running number."""

# --- generated: begin ---
VERSIONS = (
    *(18, 20, 21, 22, 23, 24, 26, 27, 28),
    *(130000, 130001, 130100, 130101, 130200, 130201, 130202, 130300, 130301, 130400, 130401, 130500),
)
"""The versions whose headers were read: 18 is CUDA 12.0 and 12.1, 28 is 12.9 update 1, 130001 is 13.0 update 1."""

_SIZES: dict[int, str] = {
    1: "18:88 26:96 130400:112",
    2: "18:88 130400:104",
    3: "18:208 130000:216 130100:224 130300:232 130400:248",
    4: "18:40",
    5: "18:40",
    8: "18:176 20:184 130200:192",
    9: "18:16 22:24 23:32 130100:40",
    10: "18:208 130000:216 130100:224 130300:232 130400:248",
    11: "18:32",
    12: "18:56",
    13: "18:32 130000:40",
    17: "18:40 21:48 22:56",
    22: "18:96",
    36: "18:24 26:56 130500:80",
    37: "18:24",
    38: "18:40 26:56",
    39: "18:24",
    48: "18:40",
    49: "18:120 24:128",
    50: "18:72 130000:80",
    51: "18:48 21:56",
    53: "26:56",
    56: "130100:56",
    58: "130100:48",
    59: "130200:152 130201:168 130400:304",
}
"""Size in bytes of the records of each kind, as ``first version:size``."""

_FIELDS: dict[int, dict[int, str]] = {
    1: {
        18: (
            "copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 "
            "streamId:u4@40 correlationId:u4@44 graphId:u4@72 graphNodeId:u8@64 "
        ),
    },
    2: {
        18: (
            "bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 streamId:u4@40 correlationId:u4@44 "
            "graphId:u4@72 graphNodeId:u8@64 value:u4@4 "
        ),
    },
    4: {
        18: ("cbid:u4@4 start:i8@8 end:i8@16 threadId:u4@28 correlationId:u4@32 "),
    },
    5: {
        18: ("cbid:u4@4 start:i8@8 end:i8@16 threadId:u4@28 correlationId:u4@32 "),
    },
    9: {
        18: ("contextId:u4@4 nullStreamId:u2@14 "),
        22: ("contextId:u4@4 nullStreamId:u2@14 isGreenContext:u1@20 "),
        23: ("contextId:u4@4 nullStreamId:u2@14 isGreenContext:u1@20 numMultiprocessors:u2@22 "),
    },
    10: {
        18: (
            "start:i8@16 end:i8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
            "blockX:i4@64 blockY:i4@68 blockZ:i4@72 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
            "registersPerThread:u2@6 launchType:u1@136 correlationId:u4@92 name:u8@104 graphId:u4@156 graphNodeId:u8@144 "
            "channelID:u4@168 "
        ),
    },
    12: {
        18: ("flags:u4@4 timestamp:i8@8 id:u4@16 threadId:u4@28 name:u8@40 domain:u8@48 "),
    },
    17: {
        18: ("overheadKind:u4@4 objectKind:u4@8 threadId:u4@16 start:i8@24 end:i8@32 "),
        21: ("overheadKind:u4@4 objectKind:u4@8 threadId:u4@16 start:i8@24 end:i8@32 correlationId:u4@40 "),
    },
    22: {
        18: (
            "copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 "
            "streamId:u4@40 correlationId:u4@60 graphId:u4@80 graphNodeId:u8@72 srcDeviceId:u4@44 dstDeviceId:u4@52 "
        ),
    },
    36: {
        18: ("correlationId:u4@4 contextId:u4@8 streamId:u4@12 eventId:u4@16 "),
    },
    37: {
        18: ("contextId:u4@4 streamId:u4@8 priority:u4@12 flag:u4@16 "),
    },
    38: {
        18: ("type:u4@4 correlationId:u4@24 contextId:u4@28 streamId:u4@32 cudaEventId:u4@36 "),
    },
    49: {
        18: (
            "memoryOperationType:u4@4 correlationId:u4@12 address:u8@16 bytes:i8@24 timestamp:i8@32 deviceId:u4@52 "
            "contextId:u4@56 streamId:u4@60 isAsync:u4@72 "
        ),
    },
    51: {
        18: ("correlationId:u4@4 start:i8@8 end:i8@16 deviceId:u4@24 graphId:u4@28 contextId:u4@32 streamId:u4@36 "),
    },
    59: {
        130200: ("contextId:u4@4 numMultiprocessors:u2@20 "),
    },
}
"""The fields that are read, as ``name:format@offset``, by kind and first version."""
# --- generated: end ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """The records of one CUPTI version."""

    version: int
    """The CUPTI API version whose headers say so, as ``cuptiGetVersion`` gives it."""
    sizes: Mapping[int, int]
    """Size in bytes of each record kind."""
    fields: Mapping[int, Mapping[str, tuple[int, str]]]
    """Offset in bytes and numpy format of each field that is read, by record kind."""
    missing: Mapping[int, Mapping[str, str]]
    """Numpy format of the fields that other versions have and this one lacks, by record kind."""


@cache
def find_layouts(version: int) -> Layouts | None:
    """Find the layouts of a CUPTI version."""
    if version not in VERSIONS and version < _FIRST_OF_13:
        return None
    known = max((other for other in VERSIONS if other <= version and other // 100 == version // 100), default=None)
    return None if known is None else _make_layouts(known)


def _make_layouts(version: int) -> Layouts:
    sizes: dict[int, int] = {}
    fields: dict[int, Mapping[str, tuple[int, str]]] = {}
    missing: dict[int, Mapping[str, str]] = {}
    for kind, text in _SIZES.items():
        history = [part.split(":") for part in text.split()]
        known = [int(size) for since, size in history if int(since) <= version]
        if known:
            sizes[kind] = known[-1]
    for kind in sizes.keys() & _FIELDS.keys():
        tables = {since: _read_fields(text) for since, text in _FIELDS[kind].items()}
        own = fields[kind] = tables[max(since for since in tables if since <= version)]
        every = {name: format_ for table in tables.values() for name, (_, format_) in table.items()}
        missing[kind] = {name: format_ for name, format_ in every.items() if name not in own}
    return Layouts(version=version, sizes=sizes, fields=fields, missing=missing)


def _read_fields(text: str) -> dict[str, tuple[int, str]]:
    parts = [part.replace("@", ":").split(":") for part in text.split()]
    return {name: (int(offset), format_) for name, format_, offset in parts}
