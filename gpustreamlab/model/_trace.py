"""The immutable record of what ran where and when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpustreamlab.errors import TraceError
from gpustreamlab.model._columns import (
    Counters,
    Edges,
    WorkDetail,
    freeze_column,
    require_codes,
    require_equal_lengths,
    require_text,
)
from gpustreamlab.model._device import Device, Lane, Marker, Note, TraceMetadata, devices_of
from gpustreamlab.model._fields import check_field
from gpustreamlab.model._partition import Layout, LayoutChange, Partition
from gpustreamlab.typing import Int8Array, Int32Array, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from gpustreamlab.analysis import (
        CriticalPath,
        Explanation,
        HostWaits,
        Idle,
        Overlap,
        PeerCopies,
        Share,
        Stragglers,
        Strays,
        Totals,
        TotalsBy,
        Utilization,
    )
    from gpustreamlab.timeline import Comparison, SupportsTrace, Timeline
    from gpustreamlab.tuning import Prediction, Sweep

SPAN_KINDS = tuple(SpanKind)
"""Span kinds by their code in `Trace.kind`."""
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)
"""Kinds of spans that are work on the device, whatever the tier."""

COLUMN_DTYPES: Mapping[str, type[np.signedinteger[Any]]] = MappingProxyType(
    {
        "start_ns": np.int64,
        "end_ns": np.int64,
        "queued_ns": np.int64,
        "lane": np.int32,
        "name": np.int32,
        "kind": np.int8,
        "parent": np.int64,
        "thread": np.int32,
        "partition": np.int32,
    }
)
"""The columns that every trace has, and how each is stored."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Spans as columns of equal length, with the tables they point into. Nothing in it can be changed.

    Times are int64 nanoseconds on the device's clock, counted from the trace's epoch. A part of a trace is a trace
    as well: `between`, `where`, ``trace[rows]``.

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
    """How kernels were launched, and what copies went between."""
    edges: Edges = field(default_factory=Edges)
    """Which span waited for which."""
    counters: Counters = field(default_factory=Counters)
    """Quantities of lanes over time."""
    layout: Layout | None = None
    """How the SMs were shared out at the end, or None where they were not; the last of `layouts` if left out."""
    layouts: tuple[LayoutChange, ...] = ()
    """When the SMs were shared out anew, in order of time."""
    markers: tuple[Marker, ...] = ()
    """Moments that were marked, in order of time: cells that began, and what the user marked."""
    notes: tuple[Note, ...] = ()
    """What readers wrote on the timeline, and hazards that the session found, in order of time."""

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
        return f"<Trace: {len(self):,} spans in {len(self.lanes)} lanes on {meta.device_label}{missing}>"

    def __getitem__(self, rows: object) -> Trace:
        """Return some rows as a trace.

        Parameters
        ----------
        rows
            A slice, a mask (shape (n_spans,), bool), or row numbers, which may be negative; they come in the order given.

        Returns
        -------
        Trace
            Parents and edges point to the new rows. A span whose parent is left out has the nearest ancestor that is there, or
            -1; edges of which an end is left out are, too. Ranges count as busy time if all kernels, copies and fills are left
            out, as where none were captured.

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
        from gpustreamlab.model._cut import cut_rows

        return cut_rows(self, rows)

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy cannot be pickled; a pickled or copied trace is built, and checked, anew.
        fields = {name: getattr(self, name) for name in self.__slots__} | {"extra": dict(self.extra)}
        return _rebuild, (fields,)

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
        """How long each span took on the device; shape (n_spans,), int64, in ns."""
        return self.end_ns - self.start_ns

    def between(self, t0_ns: int, t1_ns: int) -> Trace:
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
            are those of ``trace[rows]``. What the metadata tells (dropped spans, capture windows) is of the whole trace.

        Raises
        ------
        OptionError
            If a time is no whole number, or the end is before the beginning.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
        >>> part = trace.between(80, 120)
        >>> part.start_ns.tolist(), part.end_ns.tolist(), part.overlap()["copy", "compute"].common_ns
        ([80, 80], [100, 120], 20)
        """
        from gpustreamlab.model._cut import cut_time

        return cut_time(self, t0_ns, t1_ns)

    def where(
        self,
        *,
        stream: str | Iterable[str] | None = None,
        kind: str | Iterable[str] | None = None,
        name: str | Iterable[str] | None = None,
        device: int | Iterable[int] | None = None,
    ) -> Trace:
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
        from gpustreamlab.model._cut import cut_where

        return cut_where(self, stream, kind, name, device)

    def with_note(self, text: str, time_ns: int, end_ns: int | None = None, *, stream: str | None = None) -> Trace:
        """Return the trace with a note more, which its timeline shows.

        Parameters
        ----------
        text
            What is said.
        time_ns, end_ns
            When, or from when until when, in ns on the trace's clock, as `start_ns`. The axis of a timeline begins with the
            first span: what stands at 1.25 ms there is at ``trace.start_ns.min() + 1_250_000``.
        stream
            Name of the lane that it is about; None for all.

        Raises
        ------
        TraceError
            If the text is none, a time is no whole number, or the end is before the beginning.
        StreamNotFoundError
            If the trace has no such lane.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[4_000, 4_050], end_ns=[4_009, 4_060], stream=["a", "a"])
        >>> zero_ns = int(trace.start_ns.min())
        >>> trace.with_note("from 9 to 50 ns of the axis", zero_ns + 9, zero_ns + 50, stream="a").notes[0].time_ns
        4009
        """
        if stream is not None:
            self.where(stream=stream)  # raises where there is none
        return replace(self, notes=(*self.notes, Note(time_ns=time_ns, end_ns=end_ns, stream=stream, text=text)))

    def overlap(self) -> Overlap:
        """Return how much the streams' work overlapped; see `gpustreamlab.analysis.overlap`.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
        >>> trace.overlap()["copy", "compute"]
        <OverlapPair: copy and compute on unknown device: at most 50 ns in common, 50% of copy, 25% of compute>
        """
        from gpustreamlab.analysis import overlap

        return overlap(self)

    def utilization(self) -> Utilization:
        """Return how long each partition was busy and how much SM-time that is; see `gpustreamlab.analysis.utilization`.

        Examples
        --------
        >>> Trace.from_columns(start_ns=[0, 50], end_ns=[30, 100], stream=["a", "b"], sm_count=4).utilization().card_share
        0.8
        """
        from gpustreamlab.analysis import utilization

        return utilization(self)

    def strays(self) -> Strays:
        """Return the work that ran in another lane than its range says; see `gpustreamlab.analysis.strays`.

        Examples
        --------
        >>> trace = Trace.from_columns(
        ...     start_ns=[0, 5], end_ns=[9, 7], stream=["a", "b"], kind=["range", "kernel"], parent=[-1, 0]
        ... )
        >>> trace.strays().row.tolist()
        [1]
        """
        from gpustreamlab.analysis import strays

        return strays(self)

    def stragglers(self) -> Stragglers:
        """Return which process or device was late where all did the same; see `gpustreamlab.analysis.stragglers`.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 0], end_ns=[9, 14], stream=["a", "b"], name=["step", "step"])
        >>> lanes = tuple(replace(lane, process=place) for place, lane in enumerate(trace.lanes))
        >>> replace(trace, lanes=lanes).stragglers().names[0].late_ns.tolist()
        [5]
        """
        from gpustreamlab.analysis import stragglers

        return stragglers(self)

    def host_waits(self) -> HostWaits:
        """Return which calls of the host waited for the device, and how long; see `gpustreamlab.analysis.host_waits`.

        Examples
        --------
        >>> names, kinds = ["gemm", "cudaStreamSynchronize"], ["kernel", "host"]
        >>> trace = Trace.from_columns(start_ns=[0, 5], end_ns=[9, 10], stream=["a", "main"], name=names, kind=kinds)
        >>> trace.host_waits().waited_ns.tolist()
        [0, 5]
        """
        from gpustreamlab.analysis import host_waits

        return host_waits(self)

    def explain(self, first: str | int | None = None, second: str | None = None) -> Explanation:
        """Say why work did not overlap, what that cost at most, and what to change; see `gpustreamlab.analysis.explain`.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 5], end_ns=[9, 10], stream=["copy", "compute"])
        >>> trace.explain("copy", "compute").gain_ns
        1
        """
        from gpustreamlab.analysis import explain

        return explain(self, first, second)

    def critical_path(self) -> CriticalPath:
        """Return the chain of steps that set how long the run took; see `gpustreamlab.analysis.critical_path`.

        Examples
        --------
        >>> Trace.from_columns(start_ns=[0, 5], end_ns=[9, 10], stream=["a", "b"]).critical_path().duration_ns
        10
        """
        from gpustreamlab.analysis import critical_path

        return critical_path(self)

    def idle(self) -> Idle:
        """Return why streams were idle between their work; see `gpustreamlab.analysis.idle`.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[9, 60], stream=["a", "a"], queued_ns=[-5, 45])
        >>> trace.idle().total_ns("a", "host")
        41
        """
        from gpustreamlab.analysis import idle

        return idle(self)

    def peer_copies(self) -> PeerCopies:
        """Return copies between devices: how much, how fast, by which way; see `gpustreamlab.analysis.peer_copies`."""
        from gpustreamlab.analysis import peer_copies

        return peer_copies(self)

    def totals(self, by: TotalsBy = "name", t0_ns: int | None = None, t1_ns: int | None = None) -> Totals:
        """Return calls and times added up by name, stream or partition; see `gpustreamlab.analysis.totals`.

        Examples
        --------
        >>> trace = Trace.from_columns(start_ns=[0, 50], end_ns=[100, 250], stream=["copy", "compute"])
        >>> trace.totals("stream").to_pandas()[["stream", "calls", "total_ns"]].values.tolist()
        [['compute', 1, 200], ['copy', 1, 100]]
        """
        from gpustreamlab.analysis import totals

        return totals(self, by, t0_ns, t1_ns)

    def timeline(self) -> Timeline:
        """Return a picture of the trace, which shows itself and can be saved.

        Examples
        --------
        >>> Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"], device="demo").timeline()
        <Timeline of 1 span in 1 stream on demo (from columns)>
        """
        from gpustreamlab.timeline import Timeline

        return Timeline(self)

    def compare(self, other: Trace | SupportsTrace | str | PathLike[str]) -> Comparison:
        """Compare this trace with another one: differences are ``other - self``; see `gpustreamlab.compare`.

        Examples
        --------
        >>> before, after = (Trace.from_columns(start_ns=[0], end_ns=[end], stream=["a"]) for end in (400, 300))
        >>> before.compare(after)
        <Comparison: wall time 400 ns → 300 ns (1.33× faster)>
        """
        from gpustreamlab.timeline import compare

        return compare(self, other)

    def what_if(
        self, layout: Layout | Mapping[str, Share] | None, *, sweep: Sweep | Mapping[str, Sweep] | Iterable[Sweep]
    ) -> Prediction:
        """Predict what this run would take with its SMs shared out in another way, from what its parts take alone.

        The recorded kernels are scheduled anew by the rules of the simulated device: each stream in its order, never before
        the host had launched them or what they waited for has ended, with the memory's bandwidth shared. Copies take as long as
        they did.

        Parameters
        ----------
        layout
            Partitions with what each gets, as `gpustreamlab.plan_partitions` takes it, a layout, or None for the whole card.
            Streams go to the partition of their own one's name, else of their own name, else to the whole card.
        sweep
            What ranges or kernels take alone by SMs, by their names: ``{"gemm": lab.bench.sweep(f)}``. A sweep needs two sizes;
            with four or more its error is known. A kernel's time comes from the innermost range around it that has one.

        Returns
        -------
        Prediction
            The run as a trace that says it is predicted, its makespan in ns, and the stated error. Nothing in it is measured.

        Raises
        ------
        MeasureError
            If kernels with more than 2% of the busy time have no sweep, a sweep has one size, or the trace has no kernels.
        OptionError
            If no stream would run in a partition, or a sweep is of nothing in the trace.
        PartitionError
            If the SMs cannot be shared out like this.

        Examples
        --------
        >>> from gpustreamlab import Session
        >>> from gpustreamlab.workloads import spin
        >>> with Session("sim") as lab:
        ...     layout = lab.partition(a=32, b=64)
        ...     work = lambda: spin(lab, 100_000, blocks=132 * 32)
        ...     for name in layout.names:
        ...         with lab.on(lab.stream(name, partition=name), "work"):
        ...             work()
        ...     swept = {"work": lab.bench.sweep(work, [16, 32, 64, 132])}
        ...     print(repr(lab.trace.what_if({"a": 64, "b": "rest"}, sweep=swept)))
        <Prediction: 300 µs predicted (±3.0%) with a 64, b 68 SMs; 500 µs recorded>
        """
        from gpustreamlab.tuning import what_if

        return what_if(self, layout, sweep)

    def to_arrow(self) -> pa.Table:
        """Return the spans as a `pyarrow.Table`, one row a span.

        ``lane``, ``name``, ``kind`` and ``thread`` are dictionary-encoded text. The metadata and the side tables are in the
        schema's metadata, so the table written by any Arrow tool loads back as the same trace.
        """
        from gpustreamlab.model._schema import trace_to_table

        return trace_to_table(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Lend the spans to any Arrow reader. Source: the Arrow PyCapsule interface."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pd.DataFrame:
        """Return the spans as a `pandas.DataFrame`, one row a span, with a ``duration_ns`` column."""
        frame = self.to_arrow().to_pandas()
        frame.insert(2, "duration_ns", self.duration_ns)
        return frame

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trace as one file, in the format that its suffix says.

        Parameters
        ----------
        path
            Where. ``.parquet``, or no suffix, keeps everything exactly, as does ``.arrow`` or ``.feather`` (Arrow IPC).
            ``.pftrace`` is for Perfetto, ``.json`` (Chrome's) for other viewers, both with ``.gz`` too; ``.csv`` is a table.

        Raises
        ------
        OptionError
            If the suffix is another one.
        MissingExtraError
            If a package that the format needs is not installed: Perfetto's own for ``.pftrace``.
        TraceFileError
            If the file cannot be written; a file that was there before is then left as it was.

        Examples
        --------
        >>> path = getfixture("tmp_path") / "run.parquet"
        >>> Trace.from_columns(start_ns=[0, 5], end_ns=[9, 10], stream=["copy", "compute"]).save(path)
        >>> Trace.load(path)
        <Trace: 2 spans in 2 lanes on unknown device>
        """
        from gpustreamlab.exchange import save_trace

        save_trace(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> Trace:
        """Read a Parquet file that `save` wrote; `gpustreamlab.load_trace` reads all formats.

        Raises
        ------
        TraceFileError
            If the file is missing, damaged, no trace, or from a newer version of gpustreamlab.
        """
        from gpustreamlab.model._file import read_trace

        return read_trace(path)

    @staticmethod
    def from_arrow(table: pa.Table) -> Trace:
        """Return the trace that a table of `to_arrow` stands for.

        Raises
        ------
        TraceError
            If the table is no trace, is from a newer version, or does not hold together.
        """
        from gpustreamlab.model._schema import table_to_trace

        return table_to_trace(table)

    @staticmethod
    def from_columns(
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
    ) -> Trace:
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
        <Trace: 2 spans in 2 lanes on unknown device>
        """
        from gpustreamlab.model._cut import trace_from_columns

        return trace_from_columns(
            numbers={"start_ns": start_ns, "end_ns": end_ns, "queued_ns": queued_ns, "parent": parent},
            texts={"stream": stream, "name": name, "thread": thread, "partition": partition},
            kind=kind,
            partition_sms=partition_sms or {},
            device=Device(name=device, sm_count=sm_count),
            title=title,
        )

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


_TABLES: Mapping[str, Any] = {
    "names": tuple[str, ...],
    "lanes": tuple[Lane, ...],
    "metadata": TraceMetadata,
    "partitions": tuple[Partition, ...],
    "threads": tuple[str, ...],
    "details": tuple[WorkDetail, ...],
    "edges": Edges,
    "counters": Counters,
    "layout": Layout | None,
    "layouts": tuple[LayoutChange, ...],
    "markers": tuple[Marker, ...],
    "notes": tuple[Note, ...],
}
"""What every field holds that is no column."""


def _sizes(layout: Layout | None) -> object:
    """Return what makes two layouts the same in every figure: whether their SMs were measured does not."""
    if layout is None:
        return None
    return layout.is_enforced, [(part.name, part.requested_sms, part.granted_sms) for part in layout]


def _rebuild(fields: dict[str, Any]) -> Trace:
    return Trace(**fields)


def _extra_dtype(name: str, values: object) -> np.dtype[Any]:
    dtype = np.asarray(values).dtype
    if dtype.kind not in "iuf" or dtype.itemsize > 8:
        raise TraceError(f"Extra column {name!r} holds {dtype}; extra columns are integers or floats of at most 8 bytes.")
    return dtype.newbyteorder("=")
