"""Calls and times added up: by name, by stream or by partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

import numpy as np

from gpustreamlab.analysis._busy import (
    counted_kinds,
    counted_rows,
    edges_of,
    interval_sum_ns,
    require_trace,
    sm_kinds,
    stream_extent,
    used_streams,
)
from gpustreamlab.analysis._report import Answer, ReportTable, listed
from gpustreamlab.analysis._scale import count_text, format_ns, format_share, group_labels, ratios
from gpustreamlab.analysis._utilization import size_of, whole_card
from gpustreamlab.errors import OptionError, nearest_hint
from gpustreamlab.model import SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    import pandas as pd

_HOST = SPAN_KINDS.index(SpanKind.HOST)
TotalsBy = Literal["name", "stream", "partition"]  # What `totals` adds up by

_ABOUT = {
    "name": "All spans of a name are added up: ranges nested in each other and streams overlap, so shares may exceed 100%. "
    "Names that differ by a number are one. Calls of the host come last.",
    "stream": "Total: time in which the stream was busy; what overlaps counts once.",
    "partition": "Total: time in which anything used the partition's SMs; what overlaps counts once, and copies use none.",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Totals(Answer):
    """Calls and times by name, stream or partition; what took longest first, and behind that the calls of the host.

    The timeline's table of totals has the same figures.
    """

    by: TotalsBy
    """What each row stands for."""
    labels: tuple[str | None, ...]
    """The name, stream or partition of each row; None for the whole card."""
    calls: Int64Array
    """How many spans; shape (n_rows,), int64."""
    total_ns: Int64Array
    """Time of them; shape (n_rows,), int64, in ns. Of names a sum, of streams and partitions what overlaps counts once."""
    max_ns: Int64Array
    """The longest of them; shape (n_rows,), int64, in ns."""
    window_ns: int
    """The whole, of which `share` is: from the first start to the last end on any stream, or the part asked for, in ns."""

    _columns: ClassVar = ("calls", "total_ns", "max_ns")
    _title: ClassVar = "Totals of"

    @property
    def mean_ns(self) -> FloatArray:
        """`total_ns` / `calls`; shape (n_rows,), float64, in ns; NaN where nothing counts."""
        return ratios(self.total_ns, self.calls)

    @property
    def share(self) -> FloatArray:
        """`total_ns` / `window_ns`; shape (n_rows,), float64; NaN where there was no time."""
        return ratios(self.total_ns, np.full(len(self), self.window_ns))

    def to_pandas(self) -> pd.DataFrame:
        """Return one row each: what it stands for, ``calls``, ``total_ns``, ``mean_ns``, ``max_ns`` and ``share``.

        The first column is called as `by` says.
        """
        import pandas as pd

        # As objects: pandas would make a missing text of None.
        labels = {self.by: pd.Series(self.labels, dtype=object)}
        return pd.DataFrame(
            labels | {name: getattr(self, name) for name in ("calls", "total_ns", "mean_ns", "max_ns", "share")}
        )

    def _line(self) -> str:
        return f"{count_text(len(self), self.by)} in {format_ns(self.window_ns)}"

    def _tables(self) -> list[ReportTable]:
        mean_ns, share = self.mean_ns, self.share

        def cells(place: int) -> list[str]:
            times_ns = (self.total_ns[place], mean_ns[place], self.max_ns[place])
            label, times = self.labels[place], [format_ns(value) if np.isfinite(value) else "-" for value in times_ns]
            name = "whole card" if label is None else display_name(label, 48)
            return [name, f"{self.calls[place]:,}", *times, format_share(share[place])]

        head = [self.by, "calls", "total", "mean", "max", "share"]
        return [listed(f"Totals by {self.by}", head, range(len(self)), cells, most=40)]

    def _notes(self) -> list[str]:
        return [_ABOUT[self.by]]


def totals(trace: Trace, by: TotalsBy = "name", t0_ns: int | None = None, t1_ns: int | None = None) -> Totals:
    """Add up calls and times by name, stream or partition.

    Parameters
    ----------
    trace
        The spans.
    by
        ``"name"``: all spans, of any kind; names that differ by a number are one, ``h2d *``. ``"stream"``: spans that count as
        busy time. ``"partition"``: those of them that use SMs; one partition with several sizes is several.
    t0_ns, t1_ns
        A stretch of time on the trace's clock in ns, to which spans are clipped, as `Trace.between` does; None for all.

    Returns
    -------
    Totals
        Exact to the ns of the trace's own times, what took longest first; calls of the host, of which most is waiting, last.

    Raises
    ------
    OptionError
        If it is no trace, `by` is another word, or the end is before the beginning.

    Examples
    --------
    >>> trace = Trace.from_columns(start_ns=[0, 50, 90], end_ns=[100, 80, 130], stream=["a", "b", "b"], name=["f", "g", "g"])
    >>> totals(trace, "stream").to_pandas()[["stream", "calls", "total_ns", "max_ns"]].values.tolist()
    [['a', 1, 100, 100], ['b', 2, 70, 40]]
    """
    require_trace(trace, "totals")
    if by not in get_args(TotalsBy):
        hint = nearest_hint(str(by)[:40], get_args(TotalsBy))
        raise OptionError(f"Totals are by 'name', 'stream' or 'partition', not {str(by)[:40]!r}. {hint}".rstrip())
    kinds = counted_kinds(trace)  # of the whole trace: a part of it must not count otherwise
    first_ns, last_ns = stream_extent(trace)
    if t0_ns is not None or t1_ns is not None:
        first_ns, last_ns = first_ns if t0_ns is None else t0_ns, last_ns if t1_ns is None else t1_ns
        trace = trace.between(first_ns, last_ns)
    labels: list[str | None]
    if by == "name":
        used = np.unique(trace.name)
        texts = group_labels([trace.names[code] for code in used.tolist()])
        labels = list(dict.fromkeys(texts))
        places = {label: place for place, label in enumerate(labels)}
        of_name, rows = np.full(len(trace.names), -1), np.ones(len(trace), bool)
        of_name[used] = [places[text] for text in texts]
        group = of_name[trace.name]
    elif by == "stream":
        labels, rows, group = [lane.name for lane in trace.lanes], counted_rows(trace, kinds), trace.lane
    else:
        sizes = [*(size_of(trace, part) for part in trace.partitions), whole_card(trace.metadata.device)]
        known = list(dict.fromkeys(sizes))
        labels, rows = [size.name for size in known], counted_rows(trace, sm_kinds(trace, kinds))
        group = np.array([known.index(size) for size in sizes])[trace.partition]
    duration_ns, own = trace.duration_ns[rows], group[rows].astype(np.intp, copy=False)
    calls = np.bincount(own, minlength=len(labels)).astype(np.int64)
    total_ns, max_ns = np.zeros(len(labels), np.int64), np.zeros(len(labels), np.int64)
    np.maximum.at(max_ns, own, duration_ns)
    if by == "name":
        np.add.at(total_ns, own, duration_ns)
    else:
        total_ns[:] = [interval_sum_ns(edges) for edges in edges_of(trace, rows, group, len(labels))]
    # Of streams also one on which nothing counted ran.
    shown = np.array(used_streams(trace), np.int64) if by == "stream" else np.flatnonzero(calls)
    of_host = np.bincount(own[trace.kind[rows] != _HOST], minlength=len(labels)) == 0
    order = shown[np.lexsort((-total_ns[shown], of_host[shown] & (by == "name")))]
    return Totals(
        by=by,
        labels=tuple(labels[place] for place in order.tolist()),
        calls=calls[order],
        total_ns=total_ns[order],
        max_ns=max_ns[order],
        window_ns=last_ns - first_ns,
        trace=trace,
    )
