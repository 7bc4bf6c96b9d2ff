"""The immutable record of what ran where and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustreamlab.errors import TraceError
from gpustreamlab.model._columns import (
    COLUMN_DTYPES,
    SPAN_KINDS,
    Accesses,
    Counters,
    Edges,
    WorkDetail,
    freeze_column,
    require_codes,
    require_equal_lengths,
    require_text,
)
from gpustreamlab.model._cut import cut_rows, cut_time, cut_where, fields_of_columns
from gpustreamlab.model._device import Device, Lane, Marker, Note, TraceMetadata, devices_of
from gpustreamlab.model._fields import check_field
from gpustreamlab.model._partition import Layout, LayoutChange, Partition
from gpustreamlab.typing import Int8Array, Int32Array, Int64Array, LaneKind, SpanKind


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True, eq=False)
class Trace:
    """Spans as columns of equal length, with the tables they point into. Nothing in it can be changed.

    Times are int64 nanoseconds on the device's clock, counted from the trace's epoch. A part of a trace is a trace
    as well: `between`, `where`, ``trace[rows]``. What is asked of one are the methods of `gpustreamlab.Trace`.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 500], end_ns=[1000, 900], queued_ns=[-50, 10], lane=[0, 0], name=[0, 1], kind=[0, 0],
    ...     parent=[-1, 0], thread=[0, 0], names=("step", "gemm"), lanes=(Lane(name="compute"),),
    ...     threads=("MainThread",), metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4)),
    ... )
    >>> len(trace), trace.duration_ns.tolist()
    (2, [1000, 400])
    """

    start_ns: Int64Array
    """When the span started on the device; shape (n_spans,), int64."""
    end_ns: Int64Array
    """When the span ended on the device; shape (n_spans,), int64, never before `start_ns`."""
    queued_ns: Int64Array
    """Host time of the enqueue, on the same clock; shape (n_spans,), int64."""
    lane: Int32Array
    """Index into `lanes`; shape (n_spans,), int32."""
    name: Int32Array
    """Index into `names`; shape (n_spans,), int32."""
    kind: Int8Array
    """Code of the `SpanKind`, by its order; shape (n_spans,), int8."""
    parent: Int64Array
    """Row of the enclosing range, or -1; shape (n_spans,), int64."""
    thread: Int32Array
    """Index into `threads` of the host thread, or -1 where unknown; shape (n_spans,), int32."""
    names: tuple[str, ...]
    """Interned names."""
    lanes: tuple[Lane, ...]
    """The lanes, in the order in which they are drawn."""
    metadata: TraceMetadata
    """Where the numbers come from."""
    partition: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Index into `partitions` of the one in which the span ran, or -1 for the whole card; shape (n_spans,), int32; all -1 if
    left out."""
    partitions: tuple[Partition, ...] = ()
    """Every partition in which a span ran, as it was then: one name may occur with several sizes."""
    threads: tuple[str, ...] = ()
    """Names of the host threads."""
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """Optional numeric columns, for example ``grid_blocks`` or ``size_bytes``; shape (n_spans,) each. ``detail`` is an index
    into `details`, or -1."""
    details: tuple[WorkDetail, ...] = ()
    """Launch configurations of kernels, and what copies went between."""
    edges: Edges = field(default_factory=Edges)
    """Edges from a span to one that waited for it."""
    accesses: Accesses = field(default_factory=Accesses)
    """Memory that each work read and wrote, as far as that is known."""
    counters: Counters = field(default_factory=Counters)
    """Quantities of lanes over time."""
    layout: Layout | None = None
    """Layout of the SMs at the end, or None where there was none; the last of `layouts` if left out."""
    layouts: tuple[LayoutChange, ...] = ()
    """When the SMs were shared out anew, in order of time."""
    markers: tuple[Marker, ...] = ()
    """Moments that were marked, in order of time: cells that began, and what the user marked."""
    notes: tuple[Note, ...] = ()
    """Notes that readers wrote on the timeline, and hazards that the session found, in order of time."""

    def __post_init__(self) -> None:
        self._freeze()
        self._validate_tables()
        self._validate_columns()

    def __len__(self) -> int:
        return len(self.start_ns)

    def __repr__(self) -> str:
        meta = self.metadata
        missing = f", {meta.dropped_spans:,} dropped" if meta.dropped_spans else ""
        missing += (
            f", {meta.unselected_work:,} launched with no stream selected" if meta.unselected_work and not len(self) else ""
        )
        missing += f", cut out of {meta.part_of_spans:,}" if meta.part_of_spans else ""
        threads = self._thread_count
        streams = sum(lane.kind is not LaneKind.HOST for lane in self.lanes)
        lanes = f"{streams:,} stream{'s' * (streams != 1)}"
        lanes += f" and {threads:,} host thread{'s' * (threads != 1)}" if threads else ""
        return f"<Trace: {len(self):,} spans in {lanes} on {meta.device_label}{missing}>"

    @property
    def _thread_count(self) -> int:
        """How many lanes are threads of the host: not those that hold nothing but counters of the card."""
        is_counted = np.bincount(self.counters.lane, minlength=len(self.lanes)) > 0
        is_counted &= np.bincount(self.lane, minlength=len(self.lanes)) == 0
        is_host = np.array([lane.kind is LaneKind.HOST for lane in self.lanes], bool)
        return int((is_host & ~is_counted).sum())

    def __getitem__(self, rows: object) -> Self:
        """Return some rows as a trace.

        Parameters
        ----------
        rows
            A slice, a mask (shape (n_spans,), bool), or row numbers, which may be negative; they come in the order given.

        Returns
        -------
        Trace
            Parents, edges and accesses point to the new rows. A span whose parent is left out has the nearest ancestor that is
            there, or -1; edges of which an end is left out are, too. Ranges count as busy time if all kernels,
            copies and fills are left out, as where none were captured.

        Raises
        ------
        OptionError
            If a row does not exist or is named twice, or the mask is of another length.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 5, 9], end_ns=[9, 7, 10], stream=["a", "a", "b"], parent=[-1, 0, -1])
        >>> trace[trace.duration_ns < 5].parent.tolist(), trace[:2].parent.tolist(), len(trace[[2, 0]])
        ([-1, -1], [-1, 0], 2)
        """
        return cut_rows(self, rows)

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled; a pickled or copied trace is built, and checked, anew.
        values = {one.name: getattr(self, one.name) for one in fields(self)} | {"extra": dict(self.extra)}
        return _rebuild, (type(self), values)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that have streams in it, by their numbers; of a trace of one device, that.

        Examples
        --------
        >>> [device.name for device in Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"], device="demo").devices]
        ['demo']
        """
        return self.metadata.devices or (self.metadata.device,)

    @property
    def duration_ns(self) -> Int64Array:
        """Duration of each span on the device; shape (n_spans,), int64, in ns."""
        return self.end_ns - self.start_ns

    def between(self, t0_ns: int, t1_ns: int) -> Self:
        """Return what is in a stretch of time as a trace; times stay those of this trace.

        Parameters
        ----------
        t0_ns, t1_ns
            From when to when, in ns on the trace's clock; the end does not belong to it. The axis of a timeline begins at
            ``trace.start_ns.min()``.

        Returns
        -------
        Trace
            Spans that reach into it, clipped to it, so that busy times and overlap are exactly those of this time. Where one
            was clipped, the extra columns ``uncut_start_ns`` and ``uncut_end_ns`` (int64) hold what all were; `queued_ns` is as
            it was. Of markers, counters and layouts what is in it stays, and what is in force when it begins. Parents and edges
            are those of ``trace[rows]``. The metadata (dropped spans, capture windows) are those of the whole trace.

        Raises
        ------
        OptionError
            If a time is no whole number, or the end is before the beginning.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
        >>> part = trace.between(80, 120)
        >>> part.start_ns.tolist(), part.end_ns.tolist(), part.duration_ns.tolist()
        ([80, 80], [100, 120], [20, 40])
        """
        return cut_time(self, t0_ns, t1_ns)

    def where(
        self,
        *,
        stream: str | Iterable[str] | None = None,
        kind: str | Iterable[str] | None = None,
        name: str | Iterable[str] | None = None,
        device: int | Iterable[int] | None = None,
    ) -> Self:
        """Return the spans of some streams, kinds, names and devices as a trace.

        Parameters
        ----------
        stream
            Names of lanes: streams, or threads of the host. The others leave the trace. None for all.
        kind
            Kinds of spans, as `SpanKind` or its text, ``"kernel"``. None for all.
        name
            Names of spans, exactly as they are. None for all.
        device
            Numbers of devices, as `Lane.device` has them. Streams of others leave the trace, and threads of processes that work
            on none of these, as other ranks do. None for all.

        Returns
        -------
        Trace
            Spans that are of one of each. Parents, edges and what counts as busy time are those of ``trace[rows]``.

        Raises
        ------
        StreamNotFoundError
            If the trace has no such lane.
        OptionError
            If there is no such kind, or no such name or device in the trace.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 5], end_ns=[9, 7], stream=["a", "b"], name=["step", "gemm"])
        >>> len(trace.where(stream="a")), len(trace.where(stream=["a", "b"], name="gemm")), len(trace.where(kind="kernel"))
        (1, 1, 0)
        """
        return cut_where(self, stream, kind, name, device)

    @classmethod
    def from_columns(
        cls,
        *,
        start_ns: ArrayLike,
        end_ns: ArrayLike,
        stream: Iterable[str],
        name: Iterable[str] | None = None,
        kind: str | Iterable[str] = SpanKind.RANGE,
        queued_ns: ArrayLike | None = None,
        thread: Iterable[str | None] | None = None,
        parent: ArrayLike | None = None,
        partition: Iterable[str | None] | None = None,
        partition_sms: Mapping[str, int] | None = None,
        device: str = "unknown device",
        sm_count: int = 0,
        title: str = "",
    ) -> Self:
        """Return a trace of plain columns, of another tool or made by hand: lists, arrays, columns of a data frame.

        Parameters
        ----------
        start_ns, end_ns
            When spans ran; shape (n_spans,), whole numbers in ns, counted from anywhere, so they may be negative.
        stream
            Name of each span's stream. One that holds nothing but calls and annotations is a thread of the host.
        name
            Name of each span; None for ``"span"``.
        kind
            Kind of each span, or of all, as `SpanKind` or its text. A range, which it is if left out, may contain waiting.
        queued_ns
            When the host enqueued each; shape (n_spans,), in ns; None for `start_ns`.
        thread, partition
            Name of the host thread, and of the SM partition, of each span; None where unknown, and for the whole card.
        parent
            Row of the range around each, or -1; shape (n_spans,); None for none.
        partition_sms
            How many SMs each partition has.
        device, sm_count, title
            Name of the device; how many SMs it has, 0 where unknown; a name for the trace.

        Returns
        -------
        Trace
            Its backend is ``"columns"``: it claims neither to be simulated nor to be measured, and no bound of errors is known.

        Raises
        ------
        TraceError
            If columns differ in length, a time is NaN or no whole number, a span ends before its start, a name is no text, or
            SMs of a partition are missing.

        Examples
        --------
        >>> Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"], kind=["copy", "kernel"])
        <Trace: 2 spans in 2 streams on unknown device>
        """
        made = fields_of_columns(
            numbers={"start_ns": start_ns, "end_ns": end_ns, "queued_ns": queued_ns, "parent": parent},
            texts={"stream": stream, "name": name, "thread": thread, "partition": partition},
            kind=kind,
            partition_sms=partition_sms or {},
            device=Device(name=device, sm_count=sm_count),
            title=title,
        )
        return cls(**made)

    def _freeze(self) -> None:
        if not len(self.partition):
            object.__setattr__(self, "partition", np.full(len(self.start_ns), -1, np.int32))
        for name, dtype in COLUMN_DTYPES.items():
            object.__setattr__(self, name, freeze_column(name, getattr(self, name), dtype))
        extra = {name: freeze_column(name, values, _extra_dtype(name, values)) for name, values in self.extra.items()}
        object.__setattr__(self, "extra", MappingProxyType(extra))
        for name, wanted in _TABLES.items():
            object.__setattr__(self, name, check_field(self, name, wanted))
        for name in ("layouts", "markers", "notes"):
            object.__setattr__(self, name, tuple(sorted(getattr(self, name), key=lambda moment: moment.time_ns)))
        if self.layouts and self.layout is None:
            object.__setattr__(self, "layout", self.layouts[-1].layout)
        devices = devices_of(self.lanes, self.metadata)
        if devices != self.metadata.devices:
            object.__setattr__(self, "metadata", replace(self.metadata, devices=devices))

    def _validate_tables(self) -> None:
        require_text("names", self.names)
        require_text("threads", self.threads)
        require_text("extra", tuple(self.extra))
        names = [lane.name for lane in self.lanes]
        if len(set(names)) != len(names):
            raise TraceError(f"Two lanes have the same name; each lane is named once. Got {names}.")
        require_codes("Counters.lane", self.counters.lane, len(self.lanes))
        clash = set(self.extra) & ({*COLUMN_DTYPES, "duration_ns"})
        if clash:
            raise TraceError(f"Extra columns may not be named {sorted(clash)}; every trace has those.")
        # What would be shown as two partitions is refused.
        if self.layouts and _sizes(self.layout) != _sizes(self.layouts[-1].layout):
            raise TraceError(
                f"Trace.layout is {self.layout}; the last of Trace.layouts is {self.layouts[-1].layout}. "
                "Leave layout out: it is taken from there."
            )

    def _validate_columns(self) -> None:
        columns = {name: getattr(self, name) for name in COLUMN_DTYPES} | dict(self.extra)
        require_equal_lengths("Trace", columns)
        require_codes("lane", self.lane, len(self.lanes))
        require_codes("name", self.name, len(self.names))
        require_codes("kind", self.kind, len(SPAN_KINDS))
        require_codes("thread", self.thread + 1, len(self.threads) + 1)
        require_codes("partition", self.partition + 1, len(self.partitions) + 1)
        if "detail" in self.extra:
            if self.extra["detail"].dtype.kind != "i":
                raise TraceError(f"Extra column 'detail' holds {self.extra['detail'].dtype}; it must be an index, as int32.")
            require_codes("detail", self.extra["detail"] + 1, len(self.details) + 1)
        backwards = np.flatnonzero(self.end_ns < self.start_ns)
        if backwards.size:
            row = int(backwards[0])
            raise TraceError(f"Span {row} ends at {self.end_ns[row]} ns, before its start at {self.start_ns[row]} ns.")
        span_count = len(self)
        if span_count and (self.parent.min() < -1 or self.parent.max() >= span_count):
            raise TraceError(f"Column 'parent' points outside the {span_count} spans; use -1 for no parent.")
        if (self.parent == np.arange(span_count)).any():
            raise TraceError("A span is its own parent; use -1 for no parent.")
        self.edges.require_rows(span_count)
        self.accesses.require_rows(span_count)


_TABLES: Mapping[str, Any] = {
    "names": tuple[str, ...],
    "lanes": tuple[Lane, ...],
    "metadata": TraceMetadata,
    "partitions": tuple[Partition, ...],
    "threads": tuple[str, ...],
    "details": tuple[WorkDetail, ...],
    "edges": Edges,
    "accesses": Accesses,
    "counters": Counters,
    "layout": Layout | None,
    "layouts": tuple[LayoutChange, ...],
    "markers": tuple[Marker, ...],
    "notes": tuple[Note, ...],
}
"""Types of the fields that are no columns."""


def _sizes(layout: Layout | None) -> object:
    """Return what makes two layouts the same in every figure: whether their SMs were measured does not."""
    if layout is None:
        return None
    return layout.is_enforced, [(part.name, part.requested_sms, part.granted_sms) for part in layout]


def _rebuild(made: type[Trace], values: dict[str, Any]) -> Trace:
    return made(**values)


def _extra_dtype(name: str, values: object) -> np.dtype[Any]:
    dtype = np.asarray(values).dtype
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise TraceError(f"Extra column {name!r} holds {dtype}; extra columns are integers or floats of at most 8 bytes.")
    return dtype.newbyteorder("=")
