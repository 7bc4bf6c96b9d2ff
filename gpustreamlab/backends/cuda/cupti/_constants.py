"""Numbers that CUPTI's records hold, and words for them.

Members are named as in CUPTI's headers, without the prefix; ``scripts/cupti_layouts.py`` checks each against the headers of
every version that has it.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag


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
    GREEN_CONTEXT = 59


WORK_KINDS = (RecordKind.CONCURRENT_KERNEL, RecordKind.MEMCPY, RecordKind.MEMCPY2, RecordKind.MEMSET)
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

    STREAM_WAIT_EVENT = 2


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
