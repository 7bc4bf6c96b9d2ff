"""Numbers that CUPTI's records hold, and words for them.

Members are named as in CUPTI's headers, without the prefix; ``scripts/cupti_layouts.py`` checks each against the headers of
every version that has it.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = [
    "MEMORY_WORDS",
    "WORK_KINDS",
    "CallbackDomain",
    "CopyKind",
    "ExternalKind",
    "MarkerFlag",
    "MemoryKind",
    "MemoryOperation",
    "MemoryPoolOperation",
    "MemoryPoolType",
    "ObjectKind",
    "OverheadKind",
    "RecordKind",
    "StreamFlag",
    "SynchronizationKind",
    "copy_name",
]


class RecordKind(IntEnum):
    """What a record is about: the first field of each (CUpti_ActivityKind)."""

    MEMCPY = 1
    MEMSET = 2
    KERNEL = 3
    DRIVER = 4
    RUNTIME = 5
    DEVICE = 8
    CONTEXT = 9
    CONCURRENT_KERNEL = 10
    NAME = 11
    MARKER = 12
    MARKER_DATA = 13
    OVERHEAD = 17
    MEMCPY2 = 22
    CUDA_EVENT = 36
    STREAM = 37
    SYNCHRONIZATION = 38
    EXTERNAL_CORRELATION = 39
    INTERNAL_LAUNCH_API = 48
    MEMORY2 = 49
    MEMORY_POOL = 50
    GRAPH_TRACE = 51
    GRAPH_HOST_NODE = 56
    HOST_LAUNCH = 58
    GREEN_CONTEXT = 59


WORK_KINDS = (
    RecordKind.CONCURRENT_KERNEL,
    RecordKind.KERNEL,
    RecordKind.MEMCPY,
    RecordKind.MEMCPY2,
    RecordKind.MEMSET,
)
"""Records of work on the device: kernels, copies and fills. Each says of which graph it is."""


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

    UNKNOWN = 0
    EVENT_SYNCHRONIZE = 1
    STREAM_WAIT_EVENT = 2
    STREAM_SYNCHRONIZE = 3
    CONTEXT_SYNCHRONIZE = 4


class MemoryOperation(IntEnum):
    """What happened to memory (CUpti_ActivityMemoryOperationType)."""

    INVALID = 0
    ALLOCATION = 1
    RELEASE = 2


class MemoryPoolOperation(IntEnum):
    """What happened to a memory pool (CUpti_ActivityMemoryPoolOperationType)."""

    INVALID = 0
    CREATED = 1
    DESTROYED = 2
    TRIMMED = 3


class MemoryPoolType(IntEnum):
    """Whose memory pool it is (CUpti_ActivityMemoryPoolType)."""

    INVALID = 0
    LOCAL = 1
    IMPORTED = 2


class MarkerFlag(IntFlag):
    """What an NVTX marker record stands for (CUpti_ActivityFlag)."""

    INSTANTANEOUS = 1
    START = 2
    END = 4
    SYNC_ACQUIRE = 8
    SYNC_ACQUIRE_SUCCESS = 16
    SYNC_ACQUIRE_FAILED = 32
    SYNC_RELEASE = 64


class ObjectKind(IntEnum):
    """What a marker or a name belongs to (CUpti_ActivityObjectKind)."""

    UNKNOWN = 0
    PROCESS = 1
    THREAD = 2
    DEVICE = 3
    CONTEXT = 4
    STREAM = 5


class StreamFlag(IntEnum):
    """How a stream was created (CUpti_ActivityStreamFlag)."""

    UNKNOWN = 0
    DEFAULT = 1
    NON_BLOCKING = 2
    NULL = 3


class OverheadKind(IntEnum):
    """What CUPTI or the driver spent time on (CUpti_ActivityOverheadKind)."""

    UNKNOWN = 0
    DRIVER_COMPILER = 1
    CUPTI_BUFFER_FLUSH = 1 << 16
    CUPTI_INSTRUMENTATION = 2 << 16
    CUPTI_RESOURCE = 3 << 16
    RUNTIME_TRIGGERED_MODULE_LOADING = 4 << 16
    LAZY_FUNCTION_LOADING = 5 << 16
    COMMAND_BUFFER_FULL = 6 << 16
    ACTIVITY_BUFFER_REQUEST = 7 << 16
    UVM_ACTIVITY_INIT = 8 << 16


class ExternalKind(IntEnum):
    """Whose identifier an external correlation carries (CUpti_ExternalCorrelationKind)."""

    INVALID = 0
    UNKNOWN = 1
    OPENACC = 2
    CUSTOM0 = 3
    CUSTOM1 = 4
    CUSTOM2 = 5


class CallbackDomain(IntEnum):
    """Which calls a callback belongs to (CUpti_CallbackDomain)."""

    INVALID = 0
    DRIVER_API = 1
    RUNTIME_API = 2
    RESOURCE = 3
    SYNCHRONIZE = 4
    NVTX = 5
    STATE = 6


MEMORY_WORDS = {
    MemoryKind.UNKNOWN: "unknown",
    MemoryKind.PAGEABLE: "pageable",
    MemoryKind.PINNED: "pinned",
    MemoryKind.DEVICE: "device",
    MemoryKind.ARRAY: "array",
    MemoryKind.MANAGED: "managed",
    MemoryKind.DEVICE_STATIC: "device static",
    MemoryKind.MANAGED_STATIC: "managed static",
}

_COPY_LETTERS: dict[int, str] = {kind: kind.name.replace("TO", "to") for kind in CopyKind if kind is not CopyKind.UNKNOWN}


def copy_name(copy_kind: int, src_kind: int, dst_kind: int) -> str:
    """Name a copy as profilers do, with the kind of the host's memory or of managed memory.

    Parameters
    ----------
    copy_kind
        A `CopyKind`.
    src_kind, dst_kind
        The `MemoryKind` of both ends. Any number is taken: what is not known is left out.

    Examples
    --------
    >>> copy_name(1, 2, 3), copy_name(8, 3, 3), copy_name(2, 3, 1), copy_name(77, 0, 99)
    ('memcpy HtoD (pinned)', 'memcpy DtoD', 'memcpy DtoH (pageable)', 'memcpy')
    >>> copy_name(9, 1, 2), copy_name(8, 5, 3)
    ('memcpy HtoH (pageable to pinned)', 'memcpy DtoD (managed to device)')
    """
    name = f"memcpy {_COPY_LETTERS[copy_kind]}" if copy_kind in _COPY_LETTERS else "memcpy"
    sides = [_memory_word(src_kind), _memory_word(dst_kind)]
    if sides == ["device", "device"] or not any(sides):
        return name
    if copy_kind in _FROM_HOST or copy_kind in _TO_HOST:
        side = sides[0] if copy_kind in _FROM_HOST else sides[1]
        return f"{name} ({side})" if side else name
    if sides[0] == sides[1]:
        return f"{name} ({sides[0]})"
    return f"{name} ({sides[0] or 'unknown'} to {sides[1] or 'unknown'})"


_FROM_HOST = {CopyKind.HTOD, CopyKind.HTOA}
_TO_HOST = {CopyKind.DTOH, CopyKind.ATOH}


def _memory_word(kind: int) -> str:
    return MEMORY_WORDS[MemoryKind(kind)] if 0 < kind < len(MEMORY_WORDS) else ""
