"""A device, its lanes, what it can do, and what a trace says about itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpustreamlab._util.words import wrap_lines
from gpustreamlab.errors import OptionError, TraceError, nearest_hint
from gpustreamlab.model._fields import Checked, Count, Told, Whole, html_table, show_text
from gpustreamlab.model._partition import SMResource
from gpustreamlab.typing import CaptureTier, Feature, Int64Array, LaneKind, MarkerKind, NoteKind

BENCH = "bench/"  # How names of lanes begin that the user's session has for streams on which work is measured
_TOOLS = re.compile(rf"(^|:){BENCH}")  # engines and cards stand before a name, with a colon


def is_tools_name(name: str) -> bool:
    """Tell whether a lane of this name is one in which work is measured."""
    return _TOOLS.search(name) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SMLimits(Checked):
    """Most that one SM holds at once; 0 where unknown, which limits nothing.

    The defaults are the most that any SM of compute capability 9.0 to 12.x holds: they are no card's that a file names.
    Source: CUDA C++ Programming Guide, "Compute Capabilities".
    """

    blocks: Count = 32
    """Blocks."""
    threads: Count = 2_048
    """Threads."""
    registers: Count = 65_536
    """Registers of 32 bits."""
    shared_bytes: Count = 228 << 10
    """Shared memory in bytes."""


_MOST_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24, (12, 0): 24, (12, 1): 24}


def most_blocks(major: int, minor: int) -> int:
    """Return how many blocks an SM of a card of CUDA holds at most; source as of `SMLimits`."""
    return _MOST_BLOCKS.get((major, minor), 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device(Told):
    """A GPU, real or simulated."""

    name: str
    """The name that the driver gives, or the preset's for a simulated device."""
    ordinal: Count = 0
    """The CUDA device number; in a trace of several hosts a number of its own."""
    host: str = ""
    """Name of the machine that it is in, where a trace is of several processes; else empty."""
    uuid: str = ""
    """What tells it from all other cards; empty where unknown."""
    sm_count: Count
    """Number of streaming multiprocessors (SMs) of the card; 0 where unknown."""
    compute_capability: tuple[Count, Count] = (0, 0)
    """Major and minor number; (0, 0) where there is none."""
    memory_bytes: Count = 0
    """Device memory in bytes; 0 where unknown."""
    memory_bytes_per_s: Count | None = None
    """What all SMs together may draw from its memory, in bytes a second; None where unknown."""
    h2d_bytes_per_s: Count | None = None
    """How fast it copies from page-locked memory of the host, in bytes a second; None where unknown, see `copy_rates`."""
    copy_engines: Count | None = None
    """Number of its copy engines: with one, copies both ways share it; None where unknown, see `share_engine`."""
    d2h_bytes_per_s: Count | None = None
    """How fast it copies into page-locked memory of the host, in bytes a second; None where unknown, see `copy_rates`."""
    driver_version: str = ""
    """The CUDA version that the driver supports, for example ``"13.0"``; the one modelled for a simulated device."""
    simulated: bool = False
    """True if no hardware stands behind it."""
    sm_limits: SMLimits = SMLimits()
    """Most that an SM holds at once, read from the device."""
    sm_resource: SMResource | None = None
    """Granularity in which its SMs are shared out; None where they cannot be."""

    @property
    def grantable_sms(self) -> tuple[int, ...]:
        """Every number of SMs that a partition can have, and the whole card, in ascending order.

        Examples
        --------
        >>> resource = SMResource(min_sms=8, alignment_sms=8, group_sms=8, group_count=3)
        >>> Device(name="small", sm_count=24, sm_resource=resource).grantable_sms
        (8, 16, 24)
        """
        resource = self.sm_resource
        if resource is None:
            return (self.sm_count,) if self.sm_count else ()
        groups = {count * resource.group_sms for count in range(1, resource.group_count + 1)}
        rest = resource.remainder_sms
        joined = {rest, *(size + rest for size in groups)} if resource.remainder_joins else {rest}
        return tuple(sorted({self.sm_count, *groups, *(size for size in joined if rest)} - {0}))

    @property
    def share_engine(self) -> bool:
        """Whether copies to the device and from it share one engine; where that is unknown they are taken to have two."""
        return self.copy_engines == 1

    @property
    def label(self) -> str:
        """The name, marked where the device is simulated."""
        return f"{self.name} (simulated)" if self.simulated else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockRates:
    """Clock rates of a card at the moment, and the reasons that limit them. Source: NVML."""

    sm_mhz: int
    """Clock of the SMs, in MHz."""
    memory_mhz: int
    """Clock of the memory, in MHz."""
    limits: tuple[str, ...] = ()
    """Reasons that limit the clocks, but for an idle card: power, heat, or a limit that was set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """Whether one feature is there, what it needs, and what happens without it."""

    feature: Feature
    """The feature."""
    available: bool
    """Whether it can be used."""
    detail: str
    """Sizes where it is there; what is missing where it is not."""
    needs: str
    """The versions it needs."""
    fallback: str
    """Behaviour without it."""
    lacks_package: bool = False
    """True where only the Python bindings are too old or missing."""

    def __str__(self) -> str:
        if self.available:
            return f"{self.feature}: {self.detail}"
        return f"{self.feature}: not available, {self.detail}; it needs {self.needs}. Without it: {self.fallback}"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Every `Feature` of a device, in their order."""

    items: tuple[Capability, ...]
    """One for each feature."""

    def __iter__(self) -> Iterator[Capability]:
        return iter(self.items)

    def __getitem__(self, feature: str) -> Capability:
        found = next((item for item in self.items if item.feature == feature), None)
        if found is None:
            raise OptionError(
                f"There is no feature {feature!r:.40}. {nearest_hint(str(feature)[:40], [item.feature for item in self.items])}"
            )
        return found

    def has(self, feature: str) -> bool:
        """Tell whether a feature can be used."""
        return self[feature].available

    _repr_pretty_ = show_text

    def __str__(self) -> str:
        return wrap_lines(map(str, self.items))

    def _repr_html_(self) -> str:
        rows = [
            (item.feature, "yes" if item.available else "no", item.detail, item.needs, item.fallback) for item in self.items
        ]
        return html_table(("feature", "here", "detail", "needs", "without it"), rows, "lllll")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane(Checked):
    """A stream as the timeline shows it.

    Stream ids are unique only within a context, so a lane is known by device, context and stream together.
    """

    name: str
    """Name that the user gave the stream."""
    device: Count = 0
    """CUDA device ordinal."""
    context: Whole = 0
    """Number of the context within the session; 0 is the primary context."""
    stream: int = 0
    """The stream's handle, or its number on the simulated device."""
    partition: str | None = None
    """Name of the partition that the stream belongs to, or None for the whole card."""
    sm_count: Count = 0
    """Number of SMs that its kernels may run on: those granted to the partition, or all of the card; 0 where unknown."""
    priority: Whole = 0
    """CUDA priority: lower numbers run first, 0 is the lowest priority."""
    kind: LaneKind = LaneKind.STREAM
    """A stream, or a thread of the host."""
    outside: bool = False
    """True for a stream that the session neither made nor took: others work in it."""
    is_blocking: bool | None = None
    """Whether it and the legacy default stream wait for each other; None if unknown. No stream that a session makes is."""
    process: Count = 0
    """Number of the process that works in it, or has this thread, where a trace is of several, as of the ranks of a job.
    Threads launch work, and wait for it, in their own process only."""

    @property
    def key(self) -> tuple[int, int, int]:
        """Key of a lane: device, context, stream."""
        return (self.device, self.context, self.stream)

    @property
    def is_tools(self) -> bool:
        """Whether work is measured in it. Traces and timelines leave it out."""
        return is_tools_name(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker(Checked):
    """A moment of the host that is marked across all lanes.

    Examples
    --------
    >>> Marker(time_ns=1_500, text="warm-up done", kind="mark").kind
    <MarkerKind.MARK: 'mark'>
    """

    time_ns: Whole
    """When, on the trace's clock, in ns since its epoch."""
    text: str
    """Text of the marker."""
    kind: MarkerKind
    """Kind of the marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Checked):
    """A note on a moment or a stretch of time, of one stream or of all.

    Examples
    --------
    >>> Note(time_ns=1_500, text="why so late?", stream="decode").kind
    <NoteKind.NOTE: 'note'>
    """

    time_ns: Whole
    """When, or from when on, on the trace's clock, in ns since its epoch."""
    text: str
    """Text of the note."""
    end_ns: Whole | None = None
    """Until when, likewise; None for a moment."""
    stream: str | None = None
    """Name of the lane that it is about; None for all."""
    kind: NoteKind = NoteKind.NOTE
    """Origin of the note: a reader, or a finding."""
    fix: str = ""
    """Code to type, or what to do; empty for nothing."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if self.end_ns is not None and self.end_ns < self.time_ns:
            raise TraceError(f"Note.end_ns is {self.end_ns}, before its time_ns, {self.time_ns}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump(Checked):
    """A step of a clock, for example of a virtual machine that was suspended.

    On which side of the step a span between its two times was is not known: it may be misplaced by the whole step.
    """

    start_ns: Whole
    """The last time by the trace's own clock that is certainly before the step, in ns."""
    end_ns: Whole
    """The first one that is certainly behind it; before `start_ns` where no time that the clock showed is in doubt."""
    by_ns: Whole
    """Size of the step, in ns; negative where the clock fell behind the reference, as while a machine is suspended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset(Checked):
    """Offset to add to the times of a trace so that they are on a reference clock, and the bound on its error.

    Between two points both are interpolated; beyond the last ones they go on as they went.

    Examples
    --------
    >>> offset = ClockOffset(reference="client", at_ns=(0, 1_000), ahead_ns=(50, 52), error_ns=(3, 5))
    >>> offset.shift(np.array([0, 500, 2_000])).tolist(), offset.error_at(np.array([500, 2_000])).tolist()
    ([50, 551, 2054], [4, 7])
    """

    reference: str
    """Name of the clock: two traces whose offsets name the same one can be merged."""
    at_ns: tuple[Whole, ...]
    """When, by the trace's own clock, in ns, ascending."""
    ahead_ns: tuple[Whole, ...]
    """Offset to add then, in ns."""
    error_ns: tuple[Count, ...]
    """Bound on the error of that, in ns."""
    jumps: tuple[ClockJump, ...] = ()
    """Steps of the clock, in order of time."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.at_ns or not len(self.at_ns) == len(self.ahead_ns) == len(self.error_ns):
            raise TraceError("A ClockOffset has as many at_ns as ahead_ns and error_ns, and at least one.")
        if (np.diff(np.array(self.at_ns)) <= 0).any():
            raise TraceError("ClockOffset.at_ns ascends.")

    @property
    def points(self) -> tuple[Int64Array, Int64Array]:
        """`at_ns` and `ahead_ns` as arrays of shape (n_points,), as `merge` takes them."""
        return np.array(self.at_ns, np.int64), np.array(self.ahead_ns, np.int64)

    def shift(self, times_ns: Int64Array) -> Int64Array:
        """Return times of the trace, in ns, by the reference clock."""
        return times_ns + interpolate(*self.points, times_ns)

    def error_at(self, times_ns: Int64Array) -> Int64Array:
        """Return the bound on the error of `shift`, in ns, for times by the trace's own clock."""
        return interpolate(self.points[0], np.array(self.error_ns, np.int64), times_ns)

    def error_between(self, start_ns: int, end_ns: int) -> int:
        """Return the largest bound between two times, in ns, but for those at which a jump leaves open what they were."""
        at_ns = np.unique([*np.clip(self.at_ns, start_ns, end_ns), start_ns, end_ns])
        is_clear = np.all([(at_ns <= jump.start_ns) | (at_ns >= jump.end_ns) for jump in self.jumps], axis=0)
        return int(self.error_at(at_ns)[is_clear].max(initial=0))


def interpolate(at_ns: Int64Array, values: Int64Array, times_ns: Int64Array) -> Int64Array:
    """Return what a value known at some times is at others: on the line between its two neighbours, also beyond them."""
    if len(at_ns) == 1:
        return np.full(np.shape(times_ns), values[0], np.int64)
    place = np.clip(np.searchsorted(at_ns, times_ns), 1, len(at_ns) - 1)
    slope = (values[place] - values[place - 1]) / (at_ns[place] - at_ns[place - 1])
    told: Int64Array = values[place - 1] + np.rint(slope * (times_ns - at_ns[place - 1])).astype(np.int64)
    return told


COLUMNS_BACKEND = "columns"
"""Name of the backend of traces that were made of plain columns: how those were measured is not known."""

UNNAMED_SOURCE = "a program that the file does not name"
"""What recorded a trace where its file does not tell: nor whether its times were measured."""
KINETO_BACKEND = "kineto"  # Name of the backend of traces that were read from files of PyTorch's profiler
NSYS_BACKEND = "nsys"  # Likewise, of Nsight Systems
CHROME_BACKEND = "chrome"  # Likewise, of JSON in Chrome's trace event format that none of those wrote
PERFETTO_BACKEND = "perfetto"  # Likewise, of Perfetto's traces
PREDICTED = "none: predicted"
"""Beginning of `TraceMetadata.clock` where no clock was read: the times are those of a plan or a prediction."""

NO_COMMON_TIME = "Engines are simulated: the time of each begins at 0, so times of two engines cannot be compared."
"""Stands in `TraceMetadata.missing` of a trace of several processes whose times say nothing about each other."""

SCHEMA_VERSION = 3  # Version of the columns and metadata that this package writes; it reads this one and every older one


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetadata(Told):
    """Where the numbers of a trace come from, and how far they can be trusted."""

    backend: str
    """Name of the backend, ``"cuda"`` or ``"sim"``; ``"columns"`` for a trace that `Trace.from_columns` made; ``"kineto"``,
    ``"nsys"``, ``"chrome"``, ``"rocm"`` or ``"perfetto"`` for another tool's file, see `imported`."""
    device: Device
    """The device that did the work; of several the one that did most."""
    devices: tuple[Device, ...] = ()
    """All devices that have streams in the trace, by their numbers, where there are several; if left out,
    a trace takes them from its lanes."""
    clock: str = ""
    """Clock that the times were read from, in words."""
    clock_error_ns: Count = 0
    """Bound on the error of the distance between any two time stamps, in ns."""
    range_error_ns: Count = 0
    """Bound on what remains of the events' own cost in a range's start, end or duration after correction, in ns."""
    range_correction_ns: Whole = 0
    """Time subtracted from each range for the events' own cost, in ns."""
    host_error_ns: Count = 0
    """Bound on the error of host times (`Trace.queued_ns`) on the device's clock, in ns."""
    tier: CaptureTier = CaptureTier.RANGES
    """Tier that was captured: kernels if they were at any time, see `capture_windows`."""
    capture_windows: tuple[tuple[Whole, Whole], ...] = ()
    """From when to when kernels were captured, in ns on the device's clock, in order of time."""
    capture_source: str = ""
    """Source of the kernels, in words, for example ``"CUPTI 13.0"``."""
    capture_note: str = ""
    """Why kernels are missing although they were asked for; empty where none are."""
    kernel_error_ns: Count = 0
    """Bound on the error of a kernel's start or end on the device's clock, in ns."""
    dropped_spans: Count = 0
    """Spans that are missing because a buffer was full."""
    dropped_records: Count = 0
    """Records of kernels, copies and calls that are missing because a buffer was full; part of `dropped_spans`."""
    pending_spans: Count = 0
    """Spans whose work had not ended when the trace was taken."""
    dropped_markers: Count = 0
    """Markers that are missing because there were too many; the newest are kept."""
    unselected_work: Count = 0
    """Kernels, copies and fills without a span: launched with no stream selected, while kernels were not captured. The
    simulated device counts them; 0 where that is not known, as on a GPU, and in a part of a session."""
    recovery_note: str = ""
    """Parts that may be missing because the run was cut short and the trace was read from its spool; empty otherwise."""
    imported: str = ""
    """Numbers of events of another tool's file that were used, left out and refused, in words; empty for a trace of our own."""
    missing: tuple[str, ...] = ()
    """Sentences on what another tool's file lacks, and answers therefore too, with what to type."""
    refused_records: Count = 0
    """Records of another tool's file that were left out, as their times make no sense."""
    diagnostics: tuple[str, ...] = ()
    """Warnings and errors that another tool wrote into its file."""
    profiler_ns: Count = 0
    """Time that another tool's own records say that it took itself, in ns."""
    doubt: str = ""
    """What says that another tool's file is incomplete, or its times are off, in a sentence; see `Trace.quality`."""
    waits_told: bool = True
    """Whether waits of streams for events are in the trace; False where another tool's file lacks some."""
    part_of_spans: Count = 0
    """Number of spans of the trace of which this is a part; 0 where it is whole. What was dropped, the errors, and
    `capture_windows` are those of the whole trace."""
    epoch_unix_ns: Whole = 0
    """Wall-clock time of the trace's zero, in ns since 1970 (UTC)."""
    host: str = ""
    """Identifier of the machine that recorded it, since its start; empty where that is not known, or of traces of several."""
    clock_offset: ClockOffset | None = None
    """Offset of its clock to a reference of several processes; None where they were not compared."""
    rank: int = -1
    """Number of the process among those of its job, as ``torchrun`` gives it; -1 where there is no such job."""
    title: str = ""
    """A name for the trace, free text."""
    schema_version: Count = SCHEMA_VERSION
    """Version of the columns and metadata."""

    @property
    def simulated(self) -> bool:
        """True if no hardware stands behind the numbers."""
        return self.device.simulated

    @property
    def device_name(self) -> str:
        """The name of the device; of several how many there are, and their name if all have one.

        Examples
        --------
        >>> cards = tuple(Device(name="demo", ordinal=number, sm_count=4) for number in range(2))
        >>> TraceMetadata(backend="sim", device=cards[0], devices=cards).device_name
        '2 GPUs (demo)'
        """
        if len(self.devices) < 2:
            return self.device.name
        names = {device.name for device in self.devices}
        return f"{len(self.devices):,} GPUs{f' ({self.device.name})' if len(names) == 1 else ''}"

    @property
    def device_label(self) -> str:
        """The same, marked where the device is simulated."""
        return f"{self.device_name} (simulated)" if self.simulated else self.device_name

    @property
    def is_from_columns(self) -> bool:
        """True if the spans were given as plain columns: then it is not known how they were measured."""
        return self.backend == COLUMNS_BACKEND

    @property
    def is_predicted(self) -> bool:
        """True if nothing ran: the times are those of a plan, or of a recorded run under other conditions."""
        return self.clock.startswith(PREDICTED)


def devices_of(lanes: Iterable[Lane], metadata: TraceMetadata) -> tuple[Device, ...]:
    """Return the devices of several that have streams among some lanes, as far as the metadata has them; else nothing.

    Examples
    --------
    >>> lanes = [Lane(name="a", device=0, sm_count=4), Lane(name="b", device=1, sm_count=8)]
    >>> told = TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4))
    >>> [(device.name, device.sm_count) for device in devices_of(lanes, told)], devices_of(lanes[1:], told)
    ([('demo', 4), ('GPU 1', 8)], ())
    """
    sm_counts: dict[int, int] = {}
    for lane in lanes:
        if lane.kind is LaneKind.STREAM:
            sms = 0 if lane.partition is not None else lane.sm_count
            sm_counts[lane.device] = max(sms, sm_counts.get(lane.device, 0))
    if len(sm_counts) < 2:
        return ()
    told = {device.ordinal: device for device in (metadata.device, *metadata.devices)}
    return tuple(
        told.get(number) or Device(name=f"GPU {number}", ordinal=number, sm_count=sm_counts[number])
        for number in sorted(sm_counts)
    )
