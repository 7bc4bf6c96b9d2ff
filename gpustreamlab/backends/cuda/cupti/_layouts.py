"""Where the fields of CUPTI's activity records lie, by CUPTI API version.

The tables are written by ``scripts/cupti_layouts.py`` from the headers of CUPTI; do not edit them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

__all__ = ["VERSIONS", "Layouts", "find_layouts"]


_FIRST_OF_13 = 130000
"""From CUDA 13.0 on a version is major, minor and update, two digits each; before, it is a running number."""

# --- generated: begin ---
VERSIONS = (
    18,
    20,
    21,
    22,
    23,
    24,
    26,
    27,
    28,
    130000,
    130001,
    130100,
    130101,
    130200,
    130201,
    130202,
    130300,
    130301,
    130400,
    130401,
    130500,
)
"""The versions whose headers were read: 18 is CUDA 12.0 and 12.1, 28 is 12.9 update 1, 130001 is 13.0 update 1."""

_HISTORY: dict[int, str] = {
    1: "18:Memcpy5 26:Memcpy6 130400:Memcpy7",
    2: "18:Memset4 130400:Memset5",
    3: "18:Kernel9 130000:Kernel10 130100:Kernel11 130300:Kernel12 130400:Kernel13",
    4: "18:API",
    5: "18:API",
    6: "18:Event",
    7: "18:Metric",
    8: "18:Device4 20:Device5 130200:Device6",
    9: "18:Context 22:Context2 23:Context3 130100:Context4",
    10: "18:Kernel9 130000:Kernel10 130100:Kernel11 130300:Kernel12 130400:Kernel13",
    11: "18:Name",
    12: "18:Marker2",
    13: "18:MarkerData 130000:MarkerData2",
    14: "18:SourceLocator",
    15: "18:GlobalAccess3",
    16: "18:Branch2",
    17: "18:Overhead 21:Overhead2 22:Overhead3",
    18: "18:CdpKernel",
    19: "18:Preemption",
    20: "18:Environment",
    21: "18:EventInstance",
    22: "18:MemcpyPtoP4",
    23: "18:MetricInstance",
    24: "18:InstructionExecution",
    25: "18:UnifiedMemoryCounter2 26:UnifiedMemoryCounter3",
    26: "18:Function",
    27: "18:Module",
    28: "18:DeviceAttribute",
    29: "18:SharedAccess",
    30: "18:PCSampling3",
    31: "18:PCSamplingRecordInfo",
    32: "18:InstructionCorrelation",
    33: "18:OpenAccData",
    34: "18:OpenAccLaunch",
    35: "18:OpenAccOther",
    36: "18:CudaEvent 26:CudaEvent2 130500:CudaEvent3",
    37: "18:Stream",
    38: "18:Synchronization 26:Synchronization2",
    39: "18:ExternalCorrelation",
    40: "18:NvLink4 130200:NvLink5",
    41: "18:InstantaneousEvent",
    42: "18:InstantaneousEventInstance",
    43: "18:InstantaneousMetric",
    44: "18:InstantaneousMetricInstance",
    45: "18:Memory",
    46: "18:Pcie",
    47: "18:OpenMp",
    48: "18:API",
    49: "18:Memory3 24:Memory4",
    50: "18:MemoryPool2 130000:MemoryPool3",
    51: "18:GraphTrace 21:GraphTrace2",
    52: "18:Jit 22:Jit2",
    53: "26:DeviceGraphTrace",
    54: "26:MemDecompress",
    55: "27:ConfidentialComputeRotation",
    56: "130100:GraphHostNode",
    57: "130100:ComputeEngineCtxSwitch",
    58: "130100:HostLaunch",
    59: "130200:GreenContext 130201:GreenContext2 130400:GreenContext3",
}
"""The structs of each record kind, as ``first version:name``, without ``CUpti_Activity``."""

_STRUCTS: dict[str, tuple[int, str]] = {
    "API": (40, "cbid:u4@4 start:i8@8 end:i8@16 threadId:u4@28 correlationId:u4@32 returnValue:u4@36"),
    "Branch2": (40, ""),
    "CdpKernel": (144, ""),
    "ComputeEngineCtxSwitch": (24, ""),
    "ConfidentialComputeRotation": (32, ""),
    "Context": (16, "contextId:u4@4 deviceId:u4@8 nullStreamId:u2@14"),
    "Context2": (24, "contextId:u4@4 deviceId:u4@8 nullStreamId:u2@14 isGreenContext:u1@20 parentContextId:u4@16"),
    "Context3": (
        32,
        "contextId:u4@4 deviceId:u4@8 nullStreamId:u2@14 isGreenContext:u1@20 numMultiprocessors:u2@22 parentContextId:u4@16",
    ),
    "Context4": (
        40,
        "contextId:u4@4 deviceId:u4@8 nullStreamId:u2@14 isGreenContext:u1@20 numMultiprocessors:u2@22 parentContextId:u4@16",
    ),
    "CudaEvent": (24, "correlationId:u4@4 contextId:u4@8 streamId:u4@12 eventId:u4@16"),
    "CudaEvent2": (56, "correlationId:u4@4 contextId:u4@8 streamId:u4@12 eventId:u4@16 deviceTimestamp:i8@40"),
    "CudaEvent3": (80, "correlationId:u4@4 contextId:u4@8 streamId:u4@12 eventId:u4@16 deviceTimestamp:i8@40"),
    "Device4": (176, ""),
    "Device5": (184, ""),
    "Device6": (192, ""),
    "DeviceAttribute": (24, ""),
    "DeviceGraphTrace": (56, ""),
    "Environment": (40, ""),
    "Event": (24, ""),
    "EventInstance": (32, ""),
    "ExternalCorrelation": (24, "externalKind:u4@4 externalId:u8@8 correlationId:u4@16"),
    "Function": (32, ""),
    "GlobalAccess3": (56, ""),
    "GraphHostNode": (
        56,
        "start:i8@40 end:i8@48 deviceId:u4@12 contextId:u4@8 streamId:u4@4 correlationId:u4@16 threadId:u4@36 "
        "graphId:u4@20 graphNodeId:u8@24",
    ),
    "GraphTrace": (48, "graphId:u4@28 start:i8@8 end:i8@16 deviceId:u4@24 contextId:u4@32 streamId:u4@36 correlationId:u4@4"),
    "GraphTrace2": (56, "graphId:u4@28 start:i8@8 end:i8@16 deviceId:u4@24 contextId:u4@32 streamId:u4@36 correlationId:u4@4"),
    "GreenContext": (
        152,
        "contextId:u4@4 parentContextId:u4@8 deviceId:u4@12 numTpcs:u4@16 numMultiprocessors:u2@20 "
        "logicalTpcMaskSize:u1@22 logicalTpcMask:32u4@24",
    ),
    "GreenContext2": (
        168,
        "contextId:u4@4 parentContextId:u4@8 deviceId:u4@12 numTpcs:u4@16 numMultiprocessors:u2@20 "
        "logicalTpcMaskSize:u1@22 logicalTpcMask:32u4@24",
    ),
    "GreenContext3": (
        304,
        "contextId:u4@4 parentContextId:u4@8 deviceId:u4@12 numTpcs:u4@16 numMultiprocessors:u2@20 "
        "logicalTpcMaskSize:u1@22 logicalTpcMask:32u4@24",
    ),
    "HostLaunch": (48, "start:i8@32 end:i8@40 deviceId:u4@12 contextId:u4@8 streamId:u4@4 correlationId:u4@16 threadId:u4@24"),
    "InstantaneousEvent": (32, ""),
    "InstantaneousEventInstance": (32, ""),
    "InstantaneousMetric": (32, ""),
    "InstantaneousMetricInstance": (32, ""),
    "InstructionCorrelation": (24, ""),
    "InstructionExecution": (48, ""),
    "Jit": (64, ""),
    "Jit2": (72, ""),
    "Kernel10": (
        216,
        "start:i8@16 end:i8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
        "blockX:i4@64 blockY:i4@68 blockZ:i4@72 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
        "registersPerThread:u2@6 correlationId:u4@92 name:u8@104 queued:i8@120 graphNodeId:u8@144 graphId:u4@156",
    ),
    "Kernel11": (
        224,
        "start:i8@16 end:i8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
        "blockX:i4@64 blockY:i4@68 blockZ:i4@72 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
        "registersPerThread:u2@6 correlationId:u4@92 name:u8@104 queued:i8@120 graphNodeId:u8@144 graphId:u4@156",
    ),
    "Kernel12": (
        232,
        "start:i8@16 end:i8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
        "blockX:i4@64 blockY:i4@68 blockZ:i4@72 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
        "registersPerThread:u2@6 correlationId:u4@92 name:u8@104 queued:i8@120 graphNodeId:u8@144 graphId:u4@156",
    ),
    "Kernel13": (
        248,
        "start:i8@16 end:i8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
        "blockX:i4@64 blockY:i4@68 blockZ:i4@72 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
        "registersPerThread:u2@6 correlationId:u4@92 name:u8@104 queued:i8@120 graphNodeId:u8@144 graphId:u4@156",
    ),
    "Kernel9": (
        208,
        "start:i8@16 end:i8@24 deviceId:u4@40 contextId:u4@44 streamId:u4@48 gridX:i4@52 gridY:i4@56 gridZ:i4@60 "
        "blockX:i4@64 blockY:i4@68 blockZ:i4@72 staticSharedMemory:i4@76 dynamicSharedMemory:i4@80 "
        "registersPerThread:u2@6 correlationId:u4@92 name:u8@104 queued:i8@120 graphNodeId:u8@144 graphId:u4@156",
    ),
    "Marker2": (
        56,
        "flags:u4@4 timestamp:i8@8 id:u4@16 objectKind:u4@20 processId:u4@24 threadId:u4@28 name:u8@40 domain:u8@48",
    ),
    "MarkerData": (32, ""),
    "MarkerData2": (40, ""),
    "MemDecompress": (64, ""),
    "Memcpy5": (
        88,
        "copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 "
        "streamId:u4@40 correlationId:u4@44 graphNodeId:u8@64 graphId:u4@72",
    ),
    "Memcpy6": (
        96,
        "copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 "
        "streamId:u4@40 correlationId:u4@44 graphNodeId:u8@64 graphId:u4@72",
    ),
    "Memcpy7": (
        112,
        "copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 "
        "streamId:u4@40 correlationId:u4@44 graphNodeId:u8@64 graphId:u4@72",
    ),
    "MemcpyPtoP4": (
        96,
        "copyKind:u1@4 srcKind:u1@5 dstKind:u1@6 bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 "
        "streamId:u4@40 correlationId:u4@60 graphNodeId:u8@72 graphId:u4@80 srcDeviceId:u4@44 dstDeviceId:u4@52",
    ),
    "Memory": (80, ""),
    "Memory3": (
        120,
        "memoryOperationType:u4@4 memoryKind:u4@8 correlationId:u4@12 address:u8@16 bytes:i8@24 timestamp:i8@32 "
        "processId:u4@48 deviceId:u4@52 contextId:u4@56 streamId:u4@60 isAsync:u4@72",
    ),
    "Memory4": (
        128,
        "memoryOperationType:u4@4 memoryKind:u4@8 correlationId:u4@12 address:u8@16 bytes:i8@24 timestamp:i8@32 "
        "processId:u4@48 deviceId:u4@52 contextId:u4@56 streamId:u4@60 isAsync:u4@72",
    ),
    "MemoryPool2": (
        72,
        "memoryPoolOperationType:u4@4 memoryPoolType:u4@8 timestamp:i8@56 size:i8@40 utilizedSize:i8@64 address:u8@32",
    ),
    "MemoryPool3": (
        80,
        "memoryPoolOperationType:u4@4 memoryPoolType:u4@8 timestamp:i8@56 size:i8@40 utilizedSize:i8@64 address:u8@32",
    ),
    "Memset4": (
        88,
        "bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 streamId:u4@40 correlationId:u4@44 "
        "graphNodeId:u8@64 graphId:u4@72 value:u4@4",
    ),
    "Memset5": (
        104,
        "bytes:i8@8 start:i8@16 end:i8@24 deviceId:u4@32 contextId:u4@36 streamId:u4@40 correlationId:u4@44 "
        "graphNodeId:u8@64 graphId:u4@72 value:u4@4",
    ),
    "Metric": (24, ""),
    "MetricInstance": (32, ""),
    "Module": (24, ""),
    "Name": (32, ""),
    "NvLink4": (136, ""),
    "NvLink5": (88, ""),
    "OpenAccData": (152, ""),
    "OpenAccLaunch": (152, ""),
    "OpenAccOther": (120, ""),
    "OpenMp": (40, ""),
    "Overhead": (40, "overheadKind:u4@4 start:i8@24 end:i8@32"),
    "Overhead2": (48, "overheadKind:u4@4 start:i8@24 end:i8@32"),
    "Overhead3": (56, "overheadKind:u4@4 start:i8@24 end:i8@32"),
    "PCSampling3": (40, ""),
    "PCSamplingRecordInfo": (32, ""),
    "Pcie": (168, ""),
    "Preemption": (40, ""),
    "SharedAccess": (56, ""),
    "SourceLocator": (24, ""),
    "Stream": (24, "contextId:u4@4 streamId:u4@8 priority:u4@12 flag:u4@16"),
    "Synchronization": (
        40,
        "type:u4@4 start:i8@8 end:i8@16 correlationId:u4@24 contextId:u4@28 streamId:u4@32 cudaEventId:u4@36",
    ),
    "Synchronization2": (
        56,
        "type:u4@4 start:i8@8 end:i8@16 correlationId:u4@24 contextId:u4@28 streamId:u4@32 cudaEventId:u4@36",
    ),
    "UnifiedMemoryCounter2": (64, ""),
    "UnifiedMemoryCounter3": (104, ""),
}
"""Size in bytes, and fields as ``name:format@offset``, of each struct."""
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
    """Find the layouts of a CUPTI version.

    Parameters
    ----------
    version
        The number that ``cuptiGetVersion`` gives.

    Returns
    -------
    Layouts or None
        None where the version is not known. From 13.0 on, every update of a known minor version counts as known.

    Examples
    --------
    >>> find_layouts(24).sizes[10], find_layouts(130000).sizes[10], find_layouts(139900)
    (208, 216, None)
    """
    if version not in VERSIONS and version < _FIRST_OF_13:
        return None
    known = max((other for other in VERSIONS if other <= version and other // 100 == version // 100), default=None)
    return None if known is None else _make_layouts(known)


def _make_layouts(version: int) -> Layouts:
    sizes: dict[int, int] = {}
    fields: dict[int, Mapping[str, tuple[int, str]]] = {}
    missing: dict[int, Mapping[str, str]] = {}
    for kind, history in _read_history().items():
        structs = [struct for since, struct in history if since <= version]
        if not structs:
            continue
        size, text = _STRUCTS[structs[-1]]
        sizes[kind] = size
        if text:
            fields[kind] = _read_fields(text)
            others = [_read_fields(_STRUCTS[struct][1]) for _, struct in history]
            missing[kind] = {
                name: format_ for other in others for name, (_, format_) in other.items() if name not in fields[kind]
            }
    return Layouts(
        version=version, sizes=MappingProxyType(sizes), fields=MappingProxyType(fields), missing=MappingProxyType(missing)
    )


def _read_fields(text: str) -> dict[str, tuple[int, str]]:
    parts = [part.replace("@", ":").split(":") for part in text.split()]
    return {name: (int(offset), format_) for name, format_, offset in parts}


def _read_history() -> dict[int, list[tuple[int, str]]]:
    pairs = {kind: [part.split(":") for part in text.split()] for kind, text in _HISTORY.items()}
    return {kind: [(int(since), struct) for since, struct in parts] for kind, parts in pairs.items()}
