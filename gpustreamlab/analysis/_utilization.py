"""How much of the card's SMs the partitions kept busy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpustreamlab.analysis._busy import counted_rows, sm_kinds, union_edges
from gpustreamlab.analysis._report import Report, Reported
from gpustreamlab.analysis._require import require_trace
from gpustreamlab.analysis._sm_time import PartitionSize, SMSteps, layout_size, layout_spells, sm_time_steps, stack_sms
from gpustreamlab.errors import TraceError
from gpustreamlab.model import Trace, TraceMetadata
from gpustreamlab.typing import FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Utilization(Reported):
    """Busy time and SMs of each partition, as it was: a name that had two sizes has two rows.

    A partition is busy as a whole while at least one counted span runs in it: its kernels may leave some of its SMs idle.
    Where the counted spans are ranges they also contain the queueing inside them. So `sm_ns` is an upper bound of the SM-time
    that the work used. Where kernels were captured, copies and fills do not count: they use no SMs.
    """

    names: tuple[str | None, ...]
    """Name of each partition; None for the whole card, that is for streams in no partition, which is last."""
    requested_sms: Int64Array
    """SMs that were asked for; shape (n_partitions,), int64."""
    granted_sms: Int64Array
    """SMs that the work could use; shape (n_partitions,), int64; all of the card for the whole card, and where the device
    could not enforce the layout."""
    busy_ns: Int64Array
    """Time in which at least one counted span ran in the partition; shape (n_partitions,), int64, in ns."""
    window_ns: Int64Array
    """How long the partition had this size within `wall_ns`; shape (n_partitions,), int64, in ns.
    Spans that ran in it outside of that, by the error of the clock, widen it."""
    sm_count: int
    """How many SMs the card has."""
    wall_ns: int
    """From the first start to the last end of all that counts as busy time, copies and fills too, in ns."""
    card_sm_ns: int
    """SM-time of all partitions together, in SM x ns. SMs that two of them share at one time, as the whole card does with
    every partition, count once: so it may be less than the sum of `sm_ns`."""
    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as time in which SMs were in use."""
    metadata: TraceMetadata
    """Where the numbers come from."""

    _columns: ClassVar = ("requested_sms", "granted_sms", "busy_ns", "window_ns")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sm_ns(self) -> Int64Array:
        """`busy_ns` x `granted_sms`: SM-time that the spans occupied; shape (n_partitions,), int64, in SM x ns."""
        return self.busy_ns * self.granted_sms

    @property
    def share(self) -> FloatArray:
        """`busy_ns` / `window_ns`; shape (n_partitions,), float64, from 0 to 1; NaN where there was no time."""
        return _ratios(self.busy_ns, self.window_ns)

    @property
    def card_share(self) -> float:
        """`card_sm_ns` as a share of all SMs over `wall_ns`; from 0 to 1, NaN where nothing ran."""
        return self.card_sm_ns / (self.sm_count * self.wall_ns) if self.wall_ns else float("nan")

    def to_pandas(self) -> pd.DataFrame:
        """Return one row a partition, as a `pandas.DataFrame`.

        The columns are ``partition`` (None for the whole card), ``requested_sms``, ``granted_sms``, ``busy_ns``,
        ``window_ns``, ``sm_ns`` and ``share``.
        """
        import pandas as pd

        # As objects: pandas would make a missing text of None.
        names = pd.Series(self.names, dtype=object)
        columns = ("requested_sms", "granted_sms", "busy_ns", "window_ns", "sm_ns", "share")
        return pd.DataFrame({"partition": names} | {column: getattr(self, column) for column in columns})

    def _line(self) -> str:
        from gpustreamlab.analysis._utilization_text import utilization_line

        return utilization_line(self)

    def _report(self) -> Report:
        from gpustreamlab.analysis._utilization_text import utilization_report

        return utilization_report(self)


def utilization(trace: Trace) -> Utilization:
    """Compute how long each partition was busy, and how much SM-time that was.

    Parameters
    ----------
    trace
        The spans. Their order does not matter.

    Returns
    -------
    Utilization
        Exact to the nanosecond of the trace's own times. Partitions that were gone before the first span are left out.

    Raises
    ------
    TraceError
        If the trace is so long that SM-time does not fit into 64 bits, which only wrong times make, or if it is not known how
        many SMs the card has.
    OptionError
        If it is no trace.

    Examples
    --------
    >>> from gpustreamlab.analysis import utilization
    >>> from gpustreamlab.model import Device, Lane, Partition, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 200], queued_ns=[0, 0], lane=[0, 1], name=[0, 0], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("gemm",), threads=("MainThread",), partition=[0, -1],
    ...     lanes=(Lane(name="decode", stream=1, partition="small"), Lane(name="rest", stream=2)),
    ...     partitions=(Partition(name="small", requested_sms=10, granted_sms=16),),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=64)),
    ... )
    >>> result = utilization(trace)
    >>> result.names, result.busy_ns.tolist(), result.sm_ns.tolist(), result.card_sm_ns
    (('small', None), [100, 150], [1600, 9600], 10400)
    """
    require_trace(trace, "utilization")
    first_ns, last_ns = counted_extent(trace)
    sm_count = trace.metadata.device.sm_count
    if not sm_count:
        raise TraceError("How many SMs the card has is not known. Use Trace.from_columns(..., sm_count=132), for example.")
    if (last_ns - first_ns) * sm_count >= 1 << 63:
        raise TraceError(
            f"The trace lasts {(last_ns - first_ns) / 1e9:.3g} s on {sm_count:,} SMs: its SM-time does not fit into 64 bits. "
            "Leave out the spans whose times are wrong."
        )
    steps = sm_time_steps(trace)
    windows = [_window_ns(trace, step, first_ns, last_ns) for step in steps]
    kept = [place for place, step in enumerate(steps) if windows[place] or _is_current(trace, step.size)]
    sizes = [steps[place].size for place in kept]
    return Utilization(
        names=tuple(size.name for size in sizes),
        requested_sms=np.array([size.requested_sms for size in sizes]),
        granted_sms=np.array([size.granted_sms for size in sizes]),
        busy_ns=np.array([steps[place].busy_ns for place in kept]),
        window_ns=np.array([windows[place] for place in kept]),
        sm_count=sm_count,
        wall_ns=last_ns - first_ns,
        card_sm_ns=sum(int((times[1:] - times[:-1]) @ sms[:-1]) for times, sms in stack_sms(steps, sm_count)),
        counted=sm_kinds(trace),
        metadata=trace.metadata,
    )


def counted_extent(trace: Trace) -> tuple[int, int]:
    """Return the first start and the last end of all that counts as busy, in ns; zeros where there are none."""
    rows = counted_rows(trace)
    if not rows.any():
        return 0, 0
    return int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())


def _window_ns(trace: Trace, step: SMSteps, first_ns: int, last_ns: int) -> int:
    if step.size.name is None or not trace.layouts:
        return last_ns - first_ns
    spells = [
        (begin_ns, end_ns)
        for begin_ns, end_ns, layout in layout_spells(trace, first_ns, last_ns)
        if layout and any(layout_size(trace, part, layout) == step.size for part in layout)
    ]
    begins_ns, ends_ns = np.array(spells, np.int64).reshape(-1, 2).T
    edges_ns = union_edges(np.concatenate((begins_ns, step.edges_ns[0::2])), np.concatenate((ends_ns, step.edges_ns[1::2])))
    return int((edges_ns[1::2] - edges_ns[0::2]).sum())


def _is_current(trace: Trace, size: PartitionSize) -> bool:
    if size.name is None:
        return True
    return trace.layout is not None and any(layout_size(trace, part, trace.layout) == size for part in trace.layout)


def _ratios(parts: Int64Array, wholes: Int64Array) -> FloatArray:
    ratios: FloatArray = np.full(len(parts), np.nan)
    np.divide(parts, wholes, out=ratios, where=wholes > 0)
    return ratios
