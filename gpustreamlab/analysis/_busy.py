"""When each lane was busy: the union of its spans."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from gpustreamlab.errors import OptionError
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS, Trace
from gpustreamlab.typing import BoolArray, CaptureTier, Int64Array, LaneKind, SpanKind

RANGE_CODE = SPAN_KINDS.index(SpanKind.RANGE)
KIND_WORDS = {kind: (kind.value, "copies" if kind is SpanKind.COPY else f"{kind.value}s") for kind in SPAN_KINDS}
"""What one span of each kind is called, and what several are."""

LEAST_RANGE_SHARE = 0.01
"""From which share of all busy time on ranges count beside kernels: less than that would only blur what is known exactly."""

THREADED_ROWS = 500_000
"""From how many rows on a second thread pays."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def counted_kinds(trace: Trace) -> tuple[SpanKind, ...]:
    """Say which kinds of spans count as busy time in this trace.

    Waits, work of the host, ranges of others and markers never do. Kernels, copies and fills always do. A range counts where
    kernels were not captured: one that starts in a capture window leaves it to its kernels, as it also contains their queueing.
    Where less than `LEAST_RANGE_SHARE` of all busy time is by ranges only, none counts: the figures are then of kernels alone.

    Returns
    -------
    tuple of SpanKind
        In the order of `SpanKind`. Ranges are among them if at least one counts, or could in a trace without spans.
    """
    if trace.metadata.tier is not CaptureTier.KERNELS:
        return (SpanKind.RANGE, *DEVICE_WORK)
    if not trace.metadata.capture_windows:
        # Of an older version, or made by hand: where nothing but ranges is there, they are all there is to count.
        return DEVICE_WORK if not len(trace) or is_work(trace).any() else (SpanKind.RANGE, *DEVICE_WORK)
    return (SpanKind.RANGE, *DEVICE_WORK) if _has_many_ranges(trace) else DEVICE_WORK


class Basis(NamedTuple):
    """What the figures of a trace are of."""

    counted: tuple[SpanKind, ...]
    """Kinds of spans that count as busy time, see `counted_kinds`."""
    tier: CaptureTier
    """Ranges where nothing but ranges counts, also where kernels were captured at other times; else as the metadata say."""


def basis_of(trace: Trace, counted: tuple[SpanKind, ...] | None = None) -> Basis:
    """Say what the figures of a trace are of.

    Parameters
    ----------
    trace
        The spans.
    counted
        What `counted_kinds` says of them, where it is known already.
    """
    counted = counted_kinds(trace) if counted is None else counted
    is_ranges_only = SpanKind.RANGE in counted and not is_work(trace).any()
    return Basis(counted, CaptureTier.RANGES if is_ranges_only else trace.metadata.tier)


def busy_word(counted: Collection[SpanKind]) -> str:
    """Say what a stream is while one of its counted spans lasts: ranges contain waiting, so of them "busy" would be too much.

    Parameters
    ----------
    counted
        Which kinds of spans count, see `counted_kinds`.

    Examples
    --------
    >>> busy_word((SpanKind.RANGE, SpanKind.KERNEL)), busy_word((SpanKind.KERNEL,))
    ('queued or running', 'busy')
    """
    return "queued or running" if SpanKind.RANGE in counted else "busy"


def sm_kinds(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> tuple[SpanKind, ...]:
    """Say which kinds of spans count as time in which SMs were in use.

    Copies and fills use none: copy engines do them. What is in a range nobody knows, so it counts.

    Parameters
    ----------
    trace
        The spans.
    kinds
        Kinds that count as busy time; None means `counted_kinds`.

    Returns
    -------
    tuple of SpanKind
        Some of these, in their order.
    """
    kinds = counted_kinds(trace) if kinds is None else kinds
    return tuple(kind for kind in kinds if kind in {SpanKind.RANGE, SpanKind.KERNEL})


def counted_rows(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> BoolArray:
    """Tell which rows of the trace count as busy time.

    Parameters
    ----------
    trace
        The spans.
    kinds
        Kinds that count; None means `counted_kinds`. Where kernels are among them, ranges that start in a capture window do
        not count beside their own kernels.

    Returns
    -------
    ndarray of bool, shape (n_spans,)
        A new array.
    """
    kinds = counted_kinds(trace) if kinds is None else kinds
    counted = _of_kinds(trace, kinds)
    if SpanKind.RANGE in kinds and SpanKind.KERNEL in kinds and trace.metadata.capture_windows:
        counted &= (trace.kind != RANGE_CODE) | _uncaptured_ranges(trace)
    return counted


def range_only_ns(trace: Trace, kinds: Sequence[SpanKind], sum_ns: int) -> int:
    """Return how much of the busy time only ranges tell of: no kernel, copy or fill ran in that lane meanwhile; in ns.

    Parameters
    ----------
    trace
        The spans.
    kinds
        What `counted_kinds` says of them.
    sum_ns
        What the busy times of all lanes add up to, by these kinds.
    """
    if SpanKind.RANGE not in kinds:
        return 0
    return sum_ns - busy_sum_ns(trace, is_work(trace))


def join_words(words: Sequence[str], last: str) -> str:
    """Write words as a list: "kernels, copies and fills"."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def counted_extent(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> tuple[int, int]:
    """Return the first start and the last end of all that counts as busy, in ns; zeros where there are none."""
    rows = counted_rows(trace, kinds)
    if not rows.any():
        return 0, 0
    if rows.all():
        return int(trace.start_ns.min()), int(trace.end_ns.max())
    return int(trace.start_ns[rows].min()), int(trace.end_ns[rows].max())


def interval_sum_ns(edges_ns: Int64Array) -> int:
    """Add up intervals that are given as start, end, start, end."""
    return int((edges_ns[1::2] - edges_ns[0::2]).sum())


def uncut_ns(trace: Trace) -> tuple[Int64Array, Int64Array]:
    """Return the starts and ends of the spans as they were before the trace was cut; shape (n_spans,), int64, in ns."""
    return trace.extra.get("uncut_start_ns", trace.start_ns), trace.extra.get("uncut_end_ns", trace.end_ns)


def stream_count(trace: Trace) -> int:
    """Return how many lanes of a trace are streams: the others are threads of the host."""
    return sum(lane.kind is LaneKind.STREAM for lane in trace.lanes)


def is_in_windows(time_ns: Int64Array, windows: Sequence[tuple[int, int]]) -> BoolArray:
    """Tell which times lie in one of the windows, whose ends do not belong to them; same shape as `time_ns`."""
    bounds_ns = np.array(windows, np.int64).reshape(-1, 2)
    begun = np.searchsorted(np.sort(bounds_ns[:, 0]), time_ns, side="right")
    ended = np.searchsorted(np.sort(bounds_ns[:, 1]), time_ns, side="right")
    inside: BoolArray = begun > ended
    return inside


def is_work(trace: Trace) -> BoolArray:
    """Tell which spans are kernels, copies and fills of a stream; shape (n_spans,), bool."""
    return _of_kinds(trace, DEVICE_WORK)


def _of_kinds(trace: Trace, kinds: Sequence[SpanKind]) -> BoolArray:
    """Tell which spans are of these kinds; work and ranges only on streams: no thread of the host does the device's work."""
    found = np.zeros(len(trace), bool)
    for kind in kinds:
        found |= trace.kind == SPAN_KINDS.index(kind)
    is_host = np.array([lane.kind is LaneKind.HOST for lane in trace.lanes], bool)
    if is_host.any():
        on_streams = np.array([kind in {SpanKind.RANGE, *DEVICE_WORK} for kind in SPAN_KINDS])
        found &= ~(on_streams[trace.kind] & is_host[trace.lane])
    return found


def busy_sum_ns(trace: Trace, rows: BoolArray) -> int:
    """Add up for how long each lane was busy with some of the rows, in ns."""
    return sum(map(interval_sum_ns, edges_of(trace, rows))) if rows.any() else 0


def _uncaptured_ranges(trace: Trace) -> BoolArray:
    """Tell which rows are ranges that start where kernels were not captured; shape (n_spans,), bool."""
    uncaptured = _of_kinds(trace, (SpanKind.RANGE,))
    rows = np.flatnonzero(uncaptured)
    uncaptured[rows] = ~is_in_windows(uncut_ns(trace)[0][rows], trace.metadata.capture_windows)
    return uncaptured


def _has_many_ranges(trace: Trace) -> bool:
    """Tell whether ranges outside the capture windows are so much of the busy time that they count."""
    ranges = _uncaptured_ranges(trace)
    if not ranges.any():
        return False
    works = is_work(trace)
    if not works.any():
        return True
    sum_ns = busy_sum_ns(trace, works | ranges)
    return sum_ns - busy_sum_ns(trace, works) >= LEAST_RANGE_SHARE * sum_ns


def busy_edges(trace: Trace, kinds: Sequence[SpanKind] | None = None) -> list[Int64Array]:
    """Return when each lane became busy and idle.

    Nested, repeated and touching spans count once; spans of no length do not count.

    Parameters
    ----------
    trace
        The spans.
    kinds
        Kinds that count as busy, see `counted_rows`; None means `counted_kinds`.

    Returns
    -------
    list of ndarray of int64, shape (2 * n_intervals,)
        One array a lane, threads of the host among them, strictly increasing, in ns: start, end, start, end and so on.
    """
    return edges_of(trace, counted_rows(trace, kinds))


def edges_of(trace: Trace, counted: BoolArray) -> list[Int64Array]:
    """Return when each lane became busy and idle with these rows; see `busy_edges`."""
    rows, offsets = rows_by_lane(trace, counted)

    def edges_of(lane: int) -> Int64Array:
        part = slice(int(offsets[lane]), int(offsets[lane + 1]))
        if rows is None:
            return union_edges(trace.start_ns[part], trace.end_ns[part])
        return union_edges(trace.start_ns[rows[part]], trace.end_ns[rows[part]])

    return map_threaded(edges_of, range(len(trace.lanes)), row_count=len(trace))


def union_edges(start_ns: Int64Array, end_ns: Int64Array) -> Int64Array:
    """Return the union of intervals as start, end, start, end …, strictly increasing.

    Parameters
    ----------
    start_ns, end_ns : ndarray of int64, shape (n,)
        The intervals, in any order, overlapping or not.
    """
    if not len(start_ns):
        return np.empty(0, np.int64)
    if (start_ns[1:] < start_ns[:-1]).any():
        order = np.argsort(start_ns, kind="stable")
        start_ns, end_ns = start_ns[order], end_ns[order]
    reach_ns = np.maximum.accumulate(end_ns)
    opens = start_ns[1:] > reach_ns[:-1]
    if not opens.all():
        start_ns = start_ns[np.concatenate(([True], opens))]
        reach_ns = reach_ns[np.concatenate((opens, [True]))]
    lasting = start_ns < reach_ns
    if not lasting.all():
        start_ns, reach_ns = start_ns[lasting], reach_ns[lasting]
    edges = np.empty(2 * len(start_ns), np.int64)
    edges[0::2] = start_ns
    edges[1::2] = reach_ns
    return edges


def map_threaded(work: Callable[[_Item], _Result], items: Sequence[_Item], *, row_count: int) -> list[_Result]:
    """Apply `work` to every item, in threads where the data is large enough: numpy releases the GIL."""
    thread_count = min(os.cpu_count() or 1, 8, len(items))
    if row_count < THREADED_ROWS or thread_count < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(thread_count) as pool:
        return list(pool.map(work, items))


def rows_by_lane(trace: Trace, counted: BoolArray) -> tuple[Int64Array | None, Int64Array]:
    """Return the counted rows grouped by lane (None: all rows, as they are) and where each lane's group begins."""
    kept = None if counted.all() else np.flatnonzero(counted)
    lane = trace.lane if kept is None else trace.lane[kept]
    offsets = np.concatenate(([0], np.cumsum(np.bincount(lane, minlength=len(trace.lanes)))))
    if (lane[1:] >= lane[:-1]).all():
        return kept, offsets
    # numpy sorts 16-bit keys by radix, in linear time.
    order = np.argsort(lane.astype(np.uint16) if len(trace.lanes) <= 1 << 16 else lane, kind="stable")
    return (order if kept is None else kept[order]), offsets


def require_trace(value: object, function: str) -> None:
    """Raise `OptionError`, with what to type instead, where a value is no trace.

    Examples
    --------
    >>> require_trace(7, "overlap")
    Traceback (most recent call last):
    gpustreamlab.errors.OptionError: overlap() got a int; it takes a Trace. Pass lab.trace, or gsl.load_trace('run.parquet').
    """
    if isinstance(value, Trace):
        return
    kind, advice = type(value).__name__, "Pass lab.trace, or gsl.load_trace('run.parquet')."
    if hasattr(type(value), "trace"):  # asked of its class: to look at the trace itself may take long
        advice = f"Pass the trace of the {kind}: {function}(lab.trace)."
    raise OptionError(f"{function}() got a {kind}; it takes a Trace. {advice}")
