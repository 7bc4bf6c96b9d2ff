"""Closed string choices and type aliases that the whole package shares."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "AccessCertainty",
    "AdapterState",
    "BoolArray",
    "CaptureTier",
    "Cause",
    "Certainty",
    "Change",
    "EdgeKind",
    "Feature",
    "FloatArray",
    "HazardKind",
    "HazardMode",
    "IdleKind",
    "Int8Array",
    "Int32Array",
    "Int64Array",
    "LaneKind",
    "MarkerKind",
    "Need",
    "NoteKind",
    "PathStep",
    "PeerAccess",
    "Rounding",
    "SessionState",
    "SpanKind",
    "SpoolState",
    "SupportsCudaStream",
    "Unavailable",
]

Int64Array: TypeAlias = NDArray[np.int64]
Int32Array: TypeAlias = NDArray[np.int32]
Int8Array: TypeAlias = NDArray[np.int8]
FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]


class SpanKind(StrEnum):
    """Kind of a span of a trace. The order is the code stored in a trace's ``kind`` column."""

    RANGE = "range"
    """A range that the user named: two events on a stream."""
    KERNEL = "kernel"
    """One kernel on the device."""
    COPY = "copy"
    """One memory copy."""
    FILL = "fill"
    """One memset."""
    WAIT = "wait"
    """A stream that waits for an event."""
    HOST = "host"
    """Work on the host."""
    MARKER = "marker"
    """An instant; start and end are equal."""
    ANNOTATION = "annotation"
    """A range that others named (NVTX), on the host: it covers what was launched in it."""
    SAMPLE = "sample"
    """Where a thread's Python stood when it was looked at; it lasts until the next look. No call, and no work."""


class AccessCertainty(StrEnum):
    """How it is known what work did to memory. The order is the code stored in an access table's ``certainty`` column."""

    KNOWN = "known"
    """The call says so: copies, fills, arrays of ``lab.xp``."""
    LEARNED = "learned"
    """The memory is known; whether it was written was learned from other launches of the kernel."""
    UNKNOWN = "unknown"
    """Perhaps: which bytes were used, whether they were written, or which allocation it was is a guess."""


class EdgeKind(StrEnum):
    """Why one span waits for another. The order is the code stored in an edge table's ``kind`` column."""

    WAIT = "wait"
    """The target's stream waited for an event recorded after the source."""
    LAUNCH = "launch"
    """The source, on the host, launched the target."""
    SYNC = "sync"
    """The target, a call of the host, waited until the source had ended: the last work of a stream that it waited for."""


class Need(StrEnum):
    """Whether data need a wait of a stream for another one."""

    NEEDED = "needed"
    """Work behind it uses what work in front of it wrote, or writes what that uses, and nothing else orders the two."""
    NOT_NEEDED = "not needed"
    """Data are in order without it, also if all waits that are not needed are left out together."""
    NOT_KNOWN = "not known"
    """It may order work of which it is not known what it touches."""


class PeerAccess(StrEnum):
    """Whether a device reads and writes the memory of another directly."""

    ON = "on"
    """It does."""
    OFF = "off"
    """It could, if asked to: cudaDeviceEnablePeerAccess."""
    IMPOSSIBLE = "impossible"
    """The hardware, or the machine, lets it not: copies go through the host."""


class LaneKind(StrEnum):
    """Kind of a lane: a stream, or a thread of the host."""

    STREAM = "stream"
    """A stream of a device."""
    HOST = "host"
    """A thread of the host."""


class MarkerKind(StrEnum):
    """Kind of a marker of a trace. Changes of the layout are kept apart, with the layouts."""

    CELL = "cell"
    """A notebook cell began that recorded ranges."""
    MARK = "mark"
    """The user marked the moment, or no spans of an engine that was lost are known from then on."""


class NoteKind(StrEnum):
    """Origin of a note of a trace."""

    NOTE = "note"
    """A reader wrote it."""
    HAZARD = "hazard"
    """The session: data crossed streams without an order."""


class HazardKind(StrEnum):
    """Conflict of two accesses of the same memory."""

    READ_AFTER_WRITE = "read-after-write"
    """Read on one stream without waiting for the write on another: the values may be old ones."""
    WRITE_AFTER_READ = "write-after-read"
    """Written on one stream while another may still read it."""
    WRITE_AFTER_WRITE = "write-after-write"
    """Written on two streams: either may come last."""
    USE_AFTER_FREE = "use-after-free"
    """Freed while a stream may still use it, handed out again by its pool, and written there."""


class HazardMode(StrEnum):
    """What a session does about data that crosses streams without an order."""

    OFF = "off"
    """Nothing is watched."""
    REPORT = "report"
    """It is found, for `Memory.hazards`."""
    WAIT = "wait"
    """The missing wait is put in."""


class CaptureTier(StrEnum):
    """Tier of capture: how much of the device's work a trace holds."""

    RANGES = "ranges"
    """Named ranges only, each timed by a pair of events."""
    KERNELS = "kernels"
    """Ranges and every kernel, copy and fill."""


class Cause(StrEnum):
    """Why two pieces of work did not overlap, or gained nothing by it. Each has a page of its own in the docs."""

    SAME_LANE = "SAME_LANE"
    """Both are on one stream, which runs its work in order."""
    EVENT_WAIT = "EVENT_WAIT"
    """The stream waited for an event that was recorded behind the other work."""
    LEGACY_STREAM = "LEGACY_STREAM"
    """Work on the legacy default stream, which waits for blocking streams and they for it."""
    HOST_SYNC_DEVICE = "HOST_SYNC_DEVICE"
    """The host waited for the whole device before it launched."""
    HOST_SYNC_STREAM = "HOST_SYNC_STREAM"
    """The host waited for a stream, an event or a blocking copy before it launched."""
    HOST_LATE = "HOST_LATE"
    """The host launched it late, busy with something else than CUDA."""
    LAUNCH_BOUND = "LAUNCH_BOUND"
    """Launches take the host longer than the work takes the device."""
    LAZY_LOAD = "LAZY_LOAD"
    """The first launch of a kernel loaded its code."""
    ALLOC_SYNC = "ALLOC_SYNC"
    """An allocation or a free held up the host, and may have waited for the device."""
    HOST_CALL = "HOST_CALL"
    """Another call of CUDA held up the host for far longer than a launch takes."""
    PAGEABLE_COPY = "PAGEABLE_COPY"
    """The host was held up by a copy to or from pageable memory."""
    COPY_ENGINE = "COPY_ENGINE"
    """Two copies in one direction share an engine."""
    GRID_FILLS_DEVICE = "GRID_FILLS_DEVICE"
    """The blocks of the other kernel filled all SMs."""
    SM_RESOURCES = "SM_RESOURCES"
    """Its blocks did not fit on the SMs beside those of the other kernel."""
    COOPERATIVE = "COOPERATIVE"
    """A cooperative launch, all blocks of which have to be on the SMs at once."""
    TIME_SLICED = "TIME_SLICED"
    """Work of another process, or of another context, had the card: such share it by slices of time."""
    PAGE_FAULTS = "PAGE_FAULTS"
    """The kernel used managed memory that was not on the card: its pages were fetched while it ran."""
    OTHER_RANK = "OTHER_RANK"
    """The kernel of a collective waited for the last rank to begin it: it ends on none before."""
    QUEUE_ALIAS = "QUEUE_ALIAS"
    """Streams share a hardware queue, which runs its work in order: there are more of them than queues, or one queue only."""
    PARTITION_SMALL = "PARTITION_SMALL"
    """The blocks of the other kernel filled the SMs of the partition that both share."""
    SAME_SM_PRIORITY = "SAME_SM_PRIORITY"
    """The other stream has a higher priority, so its blocks went first."""
    GRAPH_ORDER = "GRAPH_ORDER"
    """Both belong to one launch of a CUDA graph, which holds their order."""
    QUEUE_FULL = "QUEUE_FULL"
    """The launch itself held up the host: so much was queued that no more went in."""
    HOST_FUNC = "HOST_FUNC"
    """A function of the host was enqueued in its stream, in front of it."""
    PROFILER_OVERHEAD = "PROFILER_OVERHEAD"
    """The profiler itself held up the host."""
    OTHER_STREAM = "OTHER_STREAM"
    """It ran on another stream than the one that was selected."""
    SERIALISED_BY_TOOL = "SERIALISED_BY_TOOL"
    """Each launch waited for its kernel, as with CUDA_LAUNCH_BLOCKING=1."""
    SLOWED_DOWN = "SLOWED_DOWN"
    """They overlapped, and slowed each other down."""
    NOT_OFFERED = "NOT_OFFERED"
    """Only one stream had work queued or running: nothing was there to overlap with."""
    UNKNOWN = "UNKNOWN"
    """Not known from the trace."""


class Change(StrEnum):
    """Something about a run that may be changed, see `gpustreamlab.Trace.what_if`."""

    PINNED = "pinned"
    """Copies are of page-locked memory, and the host goes on."""
    NO_HOST_WAITS = "no host waits"
    """The host waits only where it may need to; in its place streams wait, as far as their data ask for it."""
    DEVICE_WAITS = "device waits"
    """Each wait of the host is one of all streams that it launches on next."""
    FINE_WAITS = "fine waits"
    """Streams wait for what their data ask for, and for nothing else."""
    SECOND_BUFFER = "second buffer"
    """Arrays that are written anew are two, in turn."""
    MORE_STREAMS = "more streams"
    """Work is in as many streams as its data allow, kernels in eight."""
    ONE_STREAM = "one stream"
    """All work is in one stream."""
    IN_TURN = "in turn"
    """Launches between two waits of the host go round the streams."""
    GRAPH = "graph"
    """Launches between two waits of the host are one launch of a CUDA graph."""
    THREADS = "threads"
    """Each stream has a thread of its own that launches on it."""
    LOADED_BEFORE = "loaded before"
    """Kernels are loaded, and streams made, before the run."""


class Certainty(StrEnum):
    """Certainty of a finding."""

    PROVED = "proved"
    """Records in the trace show it, and no other cause fits."""
    LIKELY = "likely"
    """Consistent with all that is known; a record that would prove it is missing."""
    UNKNOWN = "unknown"
    """Not known from the trace; what was ruled out is listed."""
    MEASURED = "measured"
    """The card's counters show it: they stood at the limit meanwhile."""


class IdleKind(StrEnum):
    """Reason why a stream was idle."""

    HOST = "host"
    """The next work was launched when the stream was idle already."""
    EVENT = "event"
    """It waited for an event."""
    LAUNCH = "launch"
    """The next work had been launched, and began within 30 us."""
    OTHER = "other"
    """The next work had been launched, and did not begin: no room on the SMs, a busy copy engine, or unknown."""


class PathStep(StrEnum):
    """Kind of a step of a critical path."""

    WORK = "work"
    """Work that ran on a stream."""
    QUEUE = "queue"
    """Work that had been launched waited: from the end of what stood in front, else for longer than a launch takes."""
    LAUNCH = "launch"
    """From the call of the host to the start of the work."""
    HOST = "host"
    """The host, until it launched."""


class Rounding(StrEnum):
    """Rounding of a partition where the device cannot grant exactly the SMs that were asked for."""

    UP = "up"
    """At least as many SMs as asked for."""
    DOWN = "down"
    """At most as many SMs as asked for."""
    EXACT = "exact"
    """As many as asked for, or an error."""


class Feature(StrEnum):
    """Features of a device and its driver for SMs, work queues and memory."""

    GREEN_CONTEXTS = "green-contexts"
    """Partition the SMs: contexts made of groups of SMs."""
    UNEQUAL_SPLIT = "unequal-split"
    """Split the SMs into groups of unequal size in one call."""
    COSCHEDULING = "co-scheduling"
    """Say how many SMs of a group must be, or should be, scheduled together."""
    BACKFILL = "backfill"
    """Relax that where a count cannot be reached otherwise."""
    WORKQUEUES = "workqueues"
    """Give partitions work queues of their own, with a limit on concurrency."""
    STREAM_ORDERED_MEMORY = "stream-ordered-memory"
    """Allocate and free memory in the order of a stream, without waiting."""


class AdapterState(StrEnum):
    """What a library does about the selected stream."""

    FOLLOWS = "follows"
    """Its work of the thread goes to the stream."""
    THROUGH_TORCH = "follows through torch"
    """It works on torch's current stream."""
    TAKES_STREAM = "takes a stream"
    """It has no current stream; it is given the stream with each call."""
    NOT_LOADED = "not loaded"
    """It is not imported."""
    CANNOT_FOLLOW = "cannot follow"
    """Its work stays where it is."""
    SWITCHED_OFF = "switched off"
    """It did follow, and then its adapter failed."""


class SessionState(StrEnum):
    """Where a session is in its life."""

    OPEN = "open"
    """Streams can be made and used."""
    CLOSING = "closing"
    """`close` is running; new work is refused."""
    CLOSED = "closed"
    """Everything the session made is gone; its trace can still be read."""


class SpoolState(StrEnum):
    """State of a spool."""

    WRITING = "writing"
    """New chunks are appended, some times a second."""
    FAILING = "failing"
    """The last write failed; it is tried again."""
    FULL = "full"
    """Its limit is reached; nothing more is written."""
    REMOVED = "removed"
    """The file was removed; nothing more is written."""
    CLOSED = "closed"
    """The session is closed."""


class Unavailable(StrEnum):
    """Why a backend cannot run on this machine."""

    NO_PACKAGE = "no-package"
    """A Python package is missing."""
    NO_DRIVER = "no-driver"
    """There is no NVIDIA driver."""
    OLD_DRIVER = "old-driver"
    """The driver is older than the installed CUDA packages need."""
    NO_DEVICE = "no-device"
    """The driver sees no GPU."""
    UNKNOWN = "unknown"
    """The driver gave another error."""


@runtime_checkable
class SupportsCudaStream(Protocol):
    """Anything that lends its CUDA stream through the ``__cuda_stream__`` protocol.

    Source: the CUDA Python stream protocol, version 0.
    """

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version, 0, and the address of the ``cudaStream_t``."""
