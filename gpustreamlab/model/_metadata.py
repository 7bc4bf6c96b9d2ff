"""What a trace says about itself."""

from __future__ import annotations

from dataclasses import dataclass

from gpustreamlab.model._device import Device
from gpustreamlab.model._fields import Count, Whole, check_fields
from gpustreamlab.typing import CaptureTier

COLUMNS_BACKEND = "columns"
"""Name of the backend of traces that were made of plain columns: how those were measured is not known."""

SCHEMA_VERSION = 3
"""Version of the columns and metadata that this package writes; it reads this one and every older one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceMetadata:
    """Where the numbers of a trace come from, and how far they can be trusted."""

    backend: str
    """Name of the backend, ``"cuda"`` or ``"sim"``; ``"columns"`` for a trace that `Trace.from_columns` made."""
    device: Device
    """The device that did the work."""
    clock: str = ""
    """Which clock the times were read from, in words."""
    clock_error_ns: Count = 0
    """Bound on the error of the distance between any two time stamps, in ns."""
    range_error_ns: Count = 0
    """Bound on what remains of the events' own cost in a range's start, end or duration after correction, in ns."""
    range_correction_ns: Whole = 0
    """What was subtracted from each range for the events' own cost, in ns."""
    host_error_ns: Count = 0
    """Bound on the error of host times (`Trace.queued_ns`) on the device's clock, in ns."""
    tier: CaptureTier = CaptureTier.RANGES
    """How much of the device's work was captured: kernels if they were at any time, see `capture_windows`."""
    capture_windows: tuple[tuple[Whole, Whole], ...] = ()
    """From when to when kernels were captured, in ns on the device's clock, in order of time."""
    capture_source: str = ""
    """What told of the kernels, in words, for example ``"CUPTI 13.0"``."""
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
    """Kernels, copies and fills that no span tells of: launched with no stream selected, while kernels were not captured. The
    simulated device counts them; 0 where that is not known, as on a GPU, and in a part of a session."""
    recovery_note: str = ""
    """What may be missing because the run was cut short and the trace was read from its spool; empty otherwise."""
    part_of_spans: Count = 0
    """How many spans the trace had of which this is a part, cut out of it; 0 where it is whole. What was dropped, how far times
    can be trusted, and when kernels were captured is told of all of it."""
    epoch_unix_ns: Whole = 0
    """Wall-clock time of the trace's zero, in ns since 1970 (UTC)."""
    title: str = ""
    """A name for the trace, free text."""
    schema_version: Count = SCHEMA_VERSION
    """Version of the columns and metadata."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def simulated(self) -> bool:
        """True if no hardware stands behind the numbers."""
        return self.device.simulated

    @property
    def is_from_columns(self) -> bool:
        """True if the spans were given as plain columns: then nobody here knows how they were measured."""
        return self.backend == COLUMNS_BACKEND
