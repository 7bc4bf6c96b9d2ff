"""The columns of a trace: which there are, how they are checked, and the tables beside the spans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from gpustreamlab.errors import OptionError, TraceError, nearest_hint
from gpustreamlab.model._fields import Checked, Count, Whole
from gpustreamlab.typing import AccessCertainty, BoolArray, EdgeKind, FloatArray, Int8Array, Int32Array, Int64Array, SpanKind

SPAN_KINDS = tuple(SpanKind)  # Span kinds by their code in `Trace.kind`
DEVICE_WORK = (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)  # Kinds of spans that are work on the device, whatever the tier

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


def freeze_column(name: str, values: object, dtype: DTypeLike) -> NDArray[Any]:
    """Return a read-only one-dimensional array that shares nothing writable with the caller."""
    given = np.asarray(values)
    if given.ndim != 1:
        raise TraceError(f"Column {name!r} has {given.ndim} dimensions; a column has exactly 1.")
    wanted = np.dtype(dtype)
    owner: object = given.base
    if given.dtype == wanted and given.flags.c_contiguous and isinstance(owner, bytes):  # of `unchangeable`
        return given
    if given.size and not np.can_cast(given.dtype, wanted, casting="safe"):
        _require_exact(name, given, wanted)
    column = np.array(given, dtype=wanted, copy=True)
    column.flags.writeable = False
    return column


def unchangeable(values: NDArray[Any]) -> NDArray[Any]:
    """Return a copy that nobody can make writable again, or what is one: `freeze_column` need not copy it once more.

    Examples
    --------
    >>> values = unchangeable(np.array([1, 2]))
    >>> freeze_column("start_ns", values, np.int64) is values
    True
    """
    owner: object = values.base
    return values if isinstance(owner, bytes) else np.frombuffer(values.tobytes(), values.dtype)


def require_equal_lengths(owner: str, columns: Mapping[str, NDArray[Any]]) -> None:
    """Raise `TraceError` where the columns are not of one length."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise TraceError(f"The columns of {owner} differ in length: {lengths}. Pass one value per row in each.")


def _freeze(table: Counters | Edges | Accesses, dtypes: Mapping[str, DTypeLike]) -> None:
    """Store the columns of a table as read-only arrays of one length."""
    for name, dtype in dtypes.items():
        object.__setattr__(table, name, freeze_column(name, getattr(table, name), dtype))
    require_equal_lengths(type(table).__name__, {name: getattr(table, name) for name in dtypes})


def require_codes(name: str, codes: NDArray[Any], count: int) -> None:
    """Raise `TraceError` where a code does not point into a table of `count` entries."""
    if codes.size and (codes.min() < 0 or codes.max() >= count):
        raise TraceError(f"Column {name!r} points outside its table of {count} entries (0 to {count - 1}).")


def require_text(name: str, texts: tuple[str, ...]) -> None:
    """Raise `TraceError` where interned texts repeat, are no text, or cannot be written as UTF-8."""
    if len(set(texts)) != len(texts):
        raise TraceError(f"The entries of {name!r} repeat; each text is interned once.")
    for text in texts:
        if not isinstance(text, str):
            raise TraceError(f"{name!r} holds {text!r}, which is not a str.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise TraceError(f"{name!r} holds {text!r}, which UTF-8 cannot write. Replace its lone surrogates.") from error


def _require_exact(name: str, given: NDArray[Any], wanted: np.dtype[Any]) -> None:
    if given.dtype.kind not in "iubf":
        raise TraceError(f"Column {name!r} holds {given.dtype}, not numbers. Convert it to {wanted}.")
    if given.dtype.kind == "f" and not np.isfinite(given).all():
        raise TraceError(f"Column {name!r} holds NaN or infinity; it stores {wanted}.")
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.array_equal(given.astype(wanted).astype(given.dtype), given)
    if wanted.kind in "iu":  # a value beyond them would wrap round, and come back the same from a cast
        limits = np.iinfo(wanted)
        exact = exact and limits.min <= given.min().item() and given.max().item() <= limits.max
    if not exact:
        raise TraceError(f"Column {name!r} holds values that {wanted} cannot store exactly. Round or convert them first.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counters:
    """Samples of named quantities, as columns of equal length."""

    time_ns: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """When, in ns since the trace's epoch; shape (n_samples,), int64."""
    lane: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Index into the trace's lanes; shape (n_samples,), int32."""
    name: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Index into `names`; shape (n_samples,), int32."""
    value: FloatArray = field(default_factory=lambda: np.empty(0, np.float64))
    """The sample, in the unit that the name ends in; shape (n_samples,), float64, NaN where not measured."""
    names: tuple[str, ...] = ()
    """Interned names, each with its unit as suffix, for example ``"pool_bytes"``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", tuple(self.names))
        require_text("Counters.names", self.names)
        _freeze(self, {"time_ns": np.int64, "lane": np.int32, "name": np.int32, "value": np.float64})
        require_codes("name", self.name, len(self.names))

    def __len__(self) -> int:
        return len(self.time_ns)

    def __repr__(self) -> str:
        """Tell of each counter how many samples it has, the least and the most: columns of a run are too long to read."""
        lines = [f"<Counters: {len(self):,} samples; of each name how many, the least and the most>"]
        for code, name in enumerate(self.names):
            own = self.value[(self.name == code) & ~np.isnan(self.value)]
            lines.append(f"{name}: {len(own):,}" + (f", {own.min():.3g} to {own.max():.3g}" if len(own) else ""))
        return "\n".join(lines)


CARD_COUNTERS = MappingProxyType(
    {
        "sm_active_percent": "SMs on which any warp was resident, of all SMs and of the whole interval",
        "sm_occupancy_percent": "resident warps, of as many as all SMs can hold",
        "tensor_active_percent": "time in which tensor cores worked",
        "dram_active_percent": "time in which the card's memory was read or written",
        "pcie_rx_bytes_per_s": "what the card took in over PCIe",
        "pcie_tx_bytes_per_s": "what the card gave out over PCIe",
        "nvlink_rx_bytes_per_s": "what the card took in over NVLink",
        "nvlink_tx_bytes_per_s": "what the card gave out over NVLink",
        "dram_bytes_per_s": "what was read from the card's memory and written to it",
        "kernel_time_percent": "time in which any kernel ran, as NVML's utilization.gpu",
        "memory_time_percent": "time in which memory was read or written, as NVML's utilization.memory",
        "power_watts": "what the card drew",
        "sm_clock_mhz": "the SMs' clock: at the end of the interval, or its mean where it is sampled finely",
        "memory_clock_mhz": "the memory's clock at the end of the interval",
        "clocks_held_down": "1 where power, heat or hardware held the clocks down at the end of the interval, else 0",
    }
)
"""What is counted, by the name of the counter, which ends in its unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDetail(Checked):
    """How a kernel was launched, or what a copy went between. Many spans share one.

    Examples
    --------
    >>> WorkDetail(full_name="void gemm<float>(float*)", grid=(128, 2, 1), block=(256, 1, 1)).grid_blocks
    256
    """

    full_name: str
    """The demangled name with all its arguments, or what a copy went between."""
    grid: tuple[Count, Count, Count] = (0, 0, 0)
    """Blocks of the grid in x, y, z; zeros for what has none."""
    block: tuple[Count, Count, Count] = (0, 0, 0)
    """Threads of a block in x, y, z; zeros for what has none."""
    registers: Count = 0
    """Registers of a thread."""
    static_shared_bytes: Count = 0
    """Shared memory of a block that the kernel declares."""
    dynamic_shared_bytes: Count = 0
    """Shared memory of a block that the launch asked for."""
    graph: Count = 0
    """Id of the CUDA graph that launched it; 0 for none."""
    node: Whole = -1
    """Place of the node within its graph, in the order of its capture; -1 where unknown."""
    label: str = ""
    """What this part of the graph is called, as who captured it said; empty where nobody did."""
    channel: Whole = -1
    """The hardware queue that a kernel came through, as CUPTI numbers them; -1 where unknown."""
    is_cooperative: bool = False
    """Whether all its blocks have to be on the SMs at once, as of a cooperative launch."""

    @property
    def grid_blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


EDGE_KINDS = tuple(EdgeKind)


def _no_rows() -> Int64Array:
    return np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Edges:
    """Edges between spans of one trace, as columns of equal length."""

    source: Int64Array = field(default_factory=_no_rows)
    """Row of the span that had to end first; shape (n_edges,), int64."""
    target: Int64Array = field(default_factory=_no_rows)
    """Row of the span that waited; shape (n_edges,), int64."""
    kind: Int8Array = field(default_factory=lambda: np.empty(0, np.int8))
    """Code of the `EdgeKind`, by its order; shape (n_edges,), int8."""

    def __post_init__(self) -> None:
        _freeze(self, {"source": np.int64, "target": np.int64, "kind": np.int8})
        require_codes("kind", self.kind, len(EDGE_KINDS))

    def __len__(self) -> int:
        return len(self.source)

    def select(self, kind: EdgeKind | str) -> Edges:
        """Return the edges of one kind.

        Parameters
        ----------
        kind
            An `EdgeKind`, or its text: ``"wait"``, ``"launch"`` or ``"sync"``.

        Raises
        ------
        OptionError
            If there is no such kind.

        Examples
        --------
        >>> edges = Edges(source=[0, 2], target=[1, 3], kind=[0, 1])
        >>> edges.select("launch").source.tolist()
        [2]
        """
        try:
            code = EDGE_KINDS.index(EdgeKind(kind))
        except ValueError as error:
            raise OptionError(
                f"There is no kind of edge {kind!r}. {nearest_hint(str(kind), EDGE_KINDS)} Use trace.edges.select('wait')."
            ) from error
        found = np.flatnonzero(self.kind == code)
        return Edges(source=self.source[found], target=self.target[found], kind=self.kind[found])

    def require_rows(self, span_count: int) -> None:
        """Raise `TraceError` where an edge points outside a trace of `span_count` spans."""
        for name, rows in (("source", self.source), ("target", self.target)):
            if rows.size and (rows.min() < 0 or rows.max() >= span_count):
                raise TraceError(f"Edges.{name} points outside the {span_count} spans of the trace.")


ACCESS_CERTAINTIES = tuple(AccessCertainty)  # By their code in `Accesses.certainty`
ACCESS_DTYPES: Mapping[str, DTypeLike] = MappingProxyType(
    {
        "span": np.int64,
        "buffer": np.int64,
        "begin": np.int64,
        "end": np.int64,
        "is_write": np.bool_,
        "is_host": np.bool_,
        "certainty": np.int8,
    }
)
"""The columns of `Accesses`, and how each is stored."""


def _no_flags() -> BoolArray:
    return np.empty(0, np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Accesses:
    """Memory that kernels, copies and fills of one trace read and wrote, as columns of equal length, ordered by `span`.

    Work without a row is opaque: what it touches is not known, so waits before it and behind it count as needed. Where there
    are no rows at all, nothing is known of the whole trace.
    """

    span: Int64Array = field(default_factory=_no_rows)
    """Row of the work in the trace; shape (n_accesses,), int64."""
    buffer: Int64Array = field(default_factory=_no_rows)
    """Number of the allocation, never used again in its process: memory that was freed and allocated anew has a new one. 0 for
    further memory that is not known; no bytes of 0 say that the work touches nothing; shape (n_accesses,), int64."""
    begin: Int64Array = field(default_factory=_no_rows)
    """First byte within the allocation; shape (n_accesses,), int64."""
    end: Int64Array = field(default_factory=_no_rows)
    """Byte behind the last one; shape (n_accesses,), int64."""
    is_write: BoolArray = field(default_factory=_no_flags)
    """Whether it was written, else read; shape (n_accesses,), bool."""
    is_host: BoolArray = field(default_factory=_no_flags)
    """Whether it is memory of the host, page-locked or pageable; shape (n_accesses,), bool."""
    certainty: Int8Array = field(default_factory=lambda: np.empty(0, np.int8))
    """Code of the `AccessCertainty`, by its order; shape (n_accesses,), int8."""

    def __post_init__(self) -> None:
        _freeze(self, ACCESS_DTYPES)
        require_codes("certainty", self.certainty, len(ACCESS_CERTAINTIES))
        if (self.end < self.begin).any():
            raise TraceError("An access of Accesses ends before it begins; `end` is the byte behind the last one.")
        if (self.span[1:] < self.span[:-1]).any():
            order = np.argsort(self.span, kind="stable")
            for name, dtype in ACCESS_DTYPES.items():
                object.__setattr__(self, name, freeze_column(name, getattr(self, name)[order], dtype))

    def __len__(self) -> int:
        return len(self.span)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Its columns by name, shape (n_accesses,) each."""
        return {name: getattr(self, name) for name in ACCESS_DTYPES}

    def moved(self, place: Int64Array) -> Accesses:
        """Return the accesses of other rows; `place` has the new row of each row, or -1 for one that leaves with its own."""
        span = place[self.span]
        kept = np.flatnonzero(span >= 0)
        return Accesses(**{name: values[kept] for name, values in (self.columns | {"span": span}).items()})

    def require_rows(self, span_count: int) -> None:
        """Raise `TraceError` where an access points outside a trace of `span_count` spans."""
        if len(self) and (self.span[0] < 0 or self.span[-1] >= span_count):
            raise TraceError(f"Accesses.span points outside the {span_count} spans of the trace.")
