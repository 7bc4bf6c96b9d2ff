"""Which parameters of a driver's call are noted: its stream, its event, its memory. callbacks.c reads them so."""

from __future__ import annotations

import ctypes
import re
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple


class Kind(IntEnum):
    """How a call's parameters are read; the codes are those of callbacks.c."""

    PLAIN = 0
    """As they stand."""
    MADE = 1
    """The object is where the address of new memory is put."""
    PLACED = 2
    """The object is an address that is memory from now on."""
    PITCHED = 3
    """As `MADE`, in rows of a pitch that the driver chooses."""
    ASKED = 4
    """A question whose answer counts where it is yes; else the call is not noted."""
    LAUNCH = 5
    """The object is a function, the other two are its arguments."""
    LAUNCH_EX = 6
    """The same, with the stream in a structure."""
    COPY = 7
    COPY_2D = 8
    COPY_3D = 9
    FILL_2D = 10
    UNLOAD = 11
    """Functions may go, and others come in their place."""
    DESTROY = 12
    """A stream goes."""
    NAMED = 13
    """The object is where the handle of something new is put."""


class CallFlag(IntFlag):
    """What else is noted of a call; the codes are those of callbacks.c."""

    FAILED = 1
    OPAQUE = 2
    """Not all of a launch's arguments could be read."""
    NON_BLOCKING = 4
    """Its stream does not wait for the legacy default stream."""
    BLOCKING = 8
    """Its stream waits for the legacy default stream."""
    PER_THREAD = 16
    """The default stream is that of the thread."""
    POINTERS = 32
    """What is copied from the host has addresses of memory in it."""


class Role(IntEnum):
    """What a call does to memory, or to the order of work."""

    NONE = 0
    LAUNCH = 1
    COPY = 2
    FILL = 3
    UNKNOWN_WORK = 4
    """Work on the device whose memory is not told."""
    ALLOCATE = 5
    """Memory of the device."""
    ALLOCATE_HOST = 6
    """Memory of the host, or of both: the host may write it without a call."""
    FREE = 7
    RECORD = 8
    WAIT = 9
    WAIT_STREAM = 10
    """The host has seen a stream idle."""
    WAIT_EVENT = 11
    """The host has seen an event reached."""
    WAIT_ALL = 12
    """The host has seen a context idle."""
    CLOSE_STREAM = 13
    BEGIN_CAPTURE = 14
    END_CAPTURE = 15
    LOAD = 16
    """Code comes or goes."""
    FREE_ASYNC = 17
    """Memory goes back in the order of a stream."""
    ALLOCATE_ASYNC = 18
    """Memory of the device, in the order of a stream."""
    INSTANTIATE = 19
    """A graph is made into one that can be launched."""
    CHANGE_GRAPH = 20
    """A graph is not any more what was captured."""


class Shape(NamedTuple):
    """Where in a call's parameters what is noted stands, in words of 8 bytes, from 1; 0 for nowhere."""

    role: Role
    kind: Kind = Kind.PLAIN
    stream: int = 0
    object: int = 0
    size: int = 0
    other: int = 0
    scale: int = 0
    """Bytes of an element that the size counts; 0 for 1."""


def _copies() -> dict[str, Shape]:
    found = {}
    for name in ("cuMemcpy", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemcpyDtoD_v2"):
        found[name] = Shape(Role.COPY, Kind.COPY, 0, 1, 3, 2)
        found[re.sub("(_v2)?$", r"Async\1", name, count=1)] = Shape(Role.COPY, Kind.COPY, 4, 1, 3, 2)
    found["cuMemcpyPeer"] = Shape(Role.COPY, Kind.COPY, 0, 1, 5, 3)
    found["cuMemcpyPeerAsync"] = Shape(Role.COPY, Kind.COPY, 6, 1, 5, 3)
    for name, kind in {"2D": Kind.COPY_2D, "2DUnaligned": Kind.COPY_2D, "3D": Kind.COPY_3D}.items():
        found[f"cuMemcpy{name}_v2"] = Shape(Role.COPY, kind, 0, 1)
        found[f"cuMemcpy{name}Async_v2"] = Shape(Role.COPY, kind, 2, 1)
    for bits, scale in {8: 1, 16: 2, 32: 4}.items():
        found[f"cuMemsetD{bits}_v2"] = Shape(Role.FILL, Kind.PLAIN, 0, 1, 3, 0, scale)
        found[f"cuMemsetD{bits}Async"] = Shape(Role.FILL, Kind.PLAIN, 4, 1, 3, 0, scale)
        found[f"cuMemsetD2D{bits}_v2"] = Shape(Role.FILL, Kind.FILL_2D, 0, 1, 4, 2, scale)
        found[f"cuMemsetD2D{bits}Async"] = Shape(Role.FILL, Kind.FILL_2D, 6, 1, 4, 2, scale)
    return found


SHAPES: dict[str, Shape] = {
    "cuLaunchKernel": Shape(Role.LAUNCH, Kind.LAUNCH, 6, 1, 7, 8),
    "cuLaunchKernelEx": Shape(Role.LAUNCH, Kind.LAUNCH_EX, 1, 2, 3, 4),
    "cuLaunchCooperativeKernel": Shape(Role.LAUNCH, Kind.LAUNCH, 6, 1, 7),
    "cuGraphLaunch": Shape(Role.UNKNOWN_WORK, Kind.PLAIN, 2, 1),
    **_copies(),
    "cuMemAlloc_v2": Shape(Role.ALLOCATE, Kind.MADE, 0, 1, 2),
    "cuMemAllocPitch_v2": Shape(Role.ALLOCATE, Kind.PITCHED, 0, 1, 4, 2),
    "cuMemAllocManaged": Shape(Role.ALLOCATE_HOST, Kind.MADE, 0, 1, 2),
    "cuMemAllocHost_v2": Shape(Role.ALLOCATE_HOST, Kind.MADE, 0, 1, 2),
    "cuMemHostAlloc": Shape(Role.ALLOCATE_HOST, Kind.MADE, 0, 1, 2),
    "cuMemHostRegister_v2": Shape(Role.ALLOCATE_HOST, Kind.PLACED, 0, 1, 2),
    "cuMemAllocAsync": Shape(Role.ALLOCATE_ASYNC, Kind.MADE, 3, 1, 2),
    "cuMemAllocFromPoolAsync": Shape(Role.ALLOCATE_ASYNC, Kind.MADE, 4, 1, 2),
    "cuMemMap": Shape(Role.ALLOCATE, Kind.PLACED, 0, 1, 2),
    "cuMemFree_v2": Shape(Role.FREE, Kind.PLAIN, 0, 1),
    "cuMemFreeHost": Shape(Role.FREE, Kind.PLAIN, 0, 1),
    "cuMemHostUnregister": Shape(Role.FREE, Kind.PLAIN, 0, 1),
    "cuMemUnmap": Shape(Role.FREE, Kind.PLAIN, 0, 1, 2),
    "cuIpcCloseMemHandle": Shape(Role.FREE, Kind.PLAIN, 0, 1),
    "cuMemFreeAsync": Shape(Role.FREE_ASYNC, Kind.PLAIN, 2, 1),
    "cuEventRecord": Shape(Role.RECORD, Kind.PLAIN, 2, 1),
    "cuEventRecordWithFlags": Shape(Role.RECORD, Kind.PLAIN, 2, 1),
    "cuStreamWaitEvent": Shape(Role.WAIT, Kind.PLAIN, 1, 2),
    "cuStreamSynchronize": Shape(Role.WAIT_STREAM, Kind.PLAIN, 1),
    "cuStreamQuery": Shape(Role.WAIT_STREAM, Kind.ASKED, 1),
    "cuEventSynchronize": Shape(Role.WAIT_EVENT, Kind.PLAIN, 0, 1),
    "cuEventQuery": Shape(Role.WAIT_EVENT, Kind.ASKED, 0, 1),
    "cuCtxSynchronize": Shape(Role.WAIT_ALL),
    "cuCtxSynchronize_v2": Shape(Role.WAIT_ALL),
    "cuStreamDestroy_v2": Shape(Role.CLOSE_STREAM, Kind.DESTROY, 1),
    "cuStreamBeginCapture_v2": Shape(Role.BEGIN_CAPTURE, Kind.PLAIN, 1),
    "cuStreamBeginCaptureToGraph": Shape(Role.BEGIN_CAPTURE, Kind.PLAIN, 1),
    "cuStreamEndCapture": Shape(Role.END_CAPTURE, Kind.NAMED, 1, 2),
    **dict.fromkeys(
        ("cuGraphInstantiate_v2", "cuGraphInstantiateWithFlags", "cuGraphInstantiateWithParams"),
        Shape(Role.INSTANTIATE, Kind.NAMED, 0, 1, 2),
    ),
    **dict.fromkeys(
        ("cuModuleUnload", "cuLibraryUnload", "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset_v2", "cuGreenCtxDestroy"),
        Shape(Role.LOAD, Kind.UNLOAD),
    ),
}
"""The calls of the driver that say something of memory or order, by name. Source: ``generated_cuda_meta.h`` of CUDA 13.0.

Batches of copies, launches on several devices at once and those of CUDA 1 are followed and not read: see `shape_of`.
"""

_FROM_HOST = re.compile(r"cuMemcpy(HtoD)?(Async)?(_|$)")
_PER_THREAD = re.compile(r"_pt[sd][sz]$")
_CHANGES_GRAPH = re.compile(
    r"cuGraph(Exec\w*(SetParams|Update|Destroy)|Exec\w*SetParams|Destroy|Add\w+|\w*NodeSetParams)(_v\d)?"
)
_WORK = re.compile(r"cu(Launch\w*|GraphLaunch|Memcpy\w*|Memset\w*)")


def shape_of(name: str) -> Shape | None:
    """Return what is noted of a driver's call, by its name as CUPTI has it; None for one that says nothing here.

    Examples
    --------
    >>> shape_of("cuMemsetD32Async_ptsz").role.name, shape_of("cuMemcpyBatchAsync").role.name, shape_of("cuCtxGetCurrent")
    ('FILL', 'UNKNOWN_WORK', None)
    """
    bare = _PER_THREAD.sub("", name)
    if bare in SHAPES:
        return SHAPES[bare]
    if _CHANGES_GRAPH.fullmatch(bare):
        return Shape(Role.CHANGE_GRAPH, Kind.PLAIN, 0, 1)
    return Shape(Role.UNKNOWN_WORK) if _WORK.fullmatch(bare) and bare != "cuLaunchHostFunc" else None


class CShape(ctypes.Structure):
    """``struct shape`` of callbacks.c."""

    _fields_ = tuple(
        (name, ctypes.c_uint8) for name in ("kind", "stream", "object", "size", "other", "scale", "per_thread", "from_host")
    )


def c_shape(name: str) -> CShape:
    """Return how callbacks.c reads a call's parameters."""
    shape = shape_of(name)
    if shape is None:
        return CShape()
    return CShape(*shape[1:], int(_PER_THREAD.search(name) is not None), int(_FROM_HOST.match(name) is not None))


QUESTIONS = (
    "cuFuncGetParamInfo",
    "cuKernelGetParamInfo",
    "cuKernelGetFunction",
    "cuFuncGetName",
    "cuKernelGetName",
    "cuStreamGetFlags",
    "cuStreamIsCapturing",
)
"""What callbacks.c asks the driver, in the order of its ``struct driver``."""


def driver_table(library: Any) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of `QUESTIONS` in libcuda; 0 for those that this driver has not."""
    found = (getattr(library, name, None) for name in QUESTIONS)
    return (ctypes.c_void_p * len(QUESTIONS))(
        *(ctypes.cast(one, ctypes.c_void_p) if one is not None else None for one in found)
    )
