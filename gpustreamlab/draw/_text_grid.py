"""What a text timeline shows: which lanes and names, and how busy each column of each lane is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis import busy_edges, counted_rows, group_labels, interval_sum_ns, stream_extent
from gpustreamlab.draw._groups import host_group, plan_groups
from gpustreamlab.draw._scene import memory_lanes
from gpustreamlab.model import Trace
from gpustreamlab.typing import BoolArray, FloatArray, Int64Array, SpanKind

MAX_TEXT_LANES = 40
"""How many lanes a text timeline has at most: those with most busy time."""

HOST_TITLE = "host · time in calls of CUDA, not busy time"
"""What stands above the threads of the host."""

MAX_HOST_LANES = 4
"""How many threads of the host it has at most: those that called longest."""

MAX_LETTERS = 10
"""How many names have a letter: those that take most time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetteredName:
    """A name that has a letter in the picture."""

    name: str
    """The name, as the user gave it."""
    span_count: int
    """How many counted spans have it."""
    total_ns: int
    """How long these took together, in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextGroup:
    """The lanes of one partition, as far as they are shown."""

    label: str
    """The partition and its SMs; empty where there are no partitions."""
    lanes: tuple[int, ...]
    """Rows of the grid that are its lanes, in order."""
    hidden_lanes: int
    """How many of its lanes are not shown."""
    is_host: bool = False
    """True for the threads of the host."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextRows:
    """The lanes that are shown. A row is one of them."""

    lanes: tuple[int, ...]
    """Place in `Trace.lanes` of each row."""
    groups: tuple[TextGroup, ...]
    """The rows by partition; one without a label where there are no partitions."""
    busy_ns: Int64Array
    """Busy time of each row, or of a thread its time in calls from the first to the last span of all streams; shape (n_rows,),
    int64, in ns."""
    edges: tuple[Int64Array, ...]
    """What `busy_edges` says of all lanes of the trace, also of those that are not shown."""
    drawn: tuple[Int64Array, ...]
    """The same of each row, but for threads of the host: when they were in a call."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextGrid:
    """The rows in columns of equal time."""

    zero_ns: int
    """Start of the first column: the first start of any span."""
    width_ns: float
    """Time of all columns together, in ns, at least 1."""
    shares: FloatArray
    """Busy share of each column; shape (n_rows, n_columns), float64, from 0 to 1."""
    touched: BoolArray
    """Whether any span, of any kind and length, is in the column; shape (n_rows, n_columns), bool."""
    letters: Int64Array
    """The name that takes more than half of each column's busy time, as a place in `names`; shape (n_rows, n_columns), int64,
    -1 for none or one without a letter."""
    names: tuple[LetteredName, ...]
    """Names with a letter, those that take most time first."""
    more_names: int
    """How many more names the counted spans have."""
    busy_lanes: FloatArray
    """Mean number of busy lanes in each column, of all lanes; shape (n_columns,), float64."""


def choose_rows(trace: Trace) -> TextRows:
    """Choose the lanes of a text timeline: at most `MAX_TEXT_LANES`, in the order in which they are drawn elsewhere too."""
    edges, host, planned = busy_edges(trace), host_group(trace), plan_groups(trace)
    threads = () if host is None else host.lanes
    # A stream with memory alone has nothing to show here.
    left_out = {*threads, *np.flatnonzero(memory_lanes(trace)).tolist()}
    streams = tuple(lane for lane in range(len(trace.lanes)) if lane not in left_out)
    members = [
        (" · ".join(filter(None, (group.label, group.detail))), tuple(lane for lane in group.lanes if lane in streams))
        for group in planned
    ] or [("", streams)]
    drawn = list(edges)
    if host is not None:
        members.append((HOST_TITLE, threads))
        calls = busy_edges(trace, (SpanKind.HOST,))
        drawn = [calls[lane] if lane in threads else own for lane, own in enumerate(edges)]
    extent_ns = stream_extent(trace)
    busy_ns = np.array([interval_sum_ns(lane.clip(*extent_ns)) for lane in drawn], np.int64)
    kept = {*_busiest(streams, busy_ns, MAX_TEXT_LANES), *_busiest(threads, busy_ns, MAX_HOST_LANES)}
    groups: list[TextGroup] = []
    shown: list[int] = []
    for label, lanes in members:
        own = [lane for lane in lanes if lane in kept]
        places = tuple(range(len(shown), len(shown) + len(own)))
        shown += own
        groups.append(TextGroup(label=label, lanes=places, hidden_lanes=len(lanes) - len(own), is_host=label == HOST_TITLE))
    return TextRows(
        lanes=tuple(shown),
        groups=tuple(groups),
        busy_ns=busy_ns[shown],
        edges=tuple(edges),
        drawn=tuple(drawn[lane] for lane in shown),
    )


def _busiest(lanes: Sequence[int], busy_ns: Int64Array, limit: int) -> list[int]:
    order = np.array(lanes, np.int64)
    return order[np.argsort(-busy_ns[order], kind="stable")][:limit].tolist()  # type: ignore[no-any-return]


def plan_text_grid(trace: Trace, shown: TextRows, column_count: int) -> TextGrid:
    """Compute the columns of a text timeline.

    Parameters
    ----------
    trace
        The spans; at least one.
    shown
        The lanes, from `choose_rows`.
    column_count
        How many columns the time is cut into.

    Notes
    -----
    Shares are exact but for the rounding of float64: they are sums of clipped busy intervals, not samples. Where ranges are
    nested, a name's time in a column is its own: what ranges within it take counts for those.
    """
    zero_ns = int(trace.start_ns.min())
    width_ns = float(max(1, int(trace.end_ns.max()) - zero_ns))
    columns = _Columns(trace, zero_ns=zero_ns, per_ns=column_count / width_ns, count=column_count)
    rows = np.full(len(trace.lanes), -1)
    rows[list(shown.lanes)] = np.arange(len(shown.lanes))
    names, letter_of, name_count = _most_time(trace)
    shares = np.clip(columns.time_of_edges(shown.drawn), 0.0, 1.0)
    return TextGrid(
        zero_ns=zero_ns,
        width_ns=width_ns,
        shares=shares,
        touched=columns.touched(rows, len(shown.lanes)),
        letters=columns.letters(rows, letter_of, len(names), shares),
        names=names,
        more_names=name_count - len(names),
        busy_lanes=columns.time_of_edges([np.concatenate(shown.edges)])[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Rows of a trace, in columns of time."""

    place: Int64Array
    start: FloatArray
    end: FloatArray


class _Columns:
    """The columns of one trace: column k is the time from k to k + 1."""

    def __init__(self, trace: Trace, *, zero_ns: int, per_ns: float, count: int) -> None:
        self._trace, self._zero_ns, self._per_ns, self._count = trace, zero_ns, per_ns, count

    def time_of_edges(self, edges: Sequence[Int64Array]) -> FloatArray:
        """Return how much of each column the intervals of each entry take; shape (n_entries, n_columns)."""
        places = np.repeat(np.arange(len(edges)), [len(entry) // 2 for entry in edges])
        flat = np.concatenate([np.empty(0, np.int64), *edges])
        spans = _Spans(place=places, start=self._at(flat[0::2]), end=self._at(flat[1::2]))
        return self._sums(spans, len(edges))

    def touched(self, rows: Int64Array, row_count: int) -> BoolArray:
        """Return which columns of the shown lanes hold a span of any kind or length."""
        spans = self._spans(rows, np.ones(len(self._trace), bool))
        first, last = self._ends(spans)
        width = self._count + 1
        size = row_count * width
        opens = np.bincount(spans.place * width + first, minlength=size)
        closes = np.bincount(spans.place * width + last + 1, minlength=size)
        is_touched: BoolArray = (np.cumsum(opens - closes).reshape(row_count, width) > 0)[:, :-1]
        return is_touched

    def letters(self, rows: Int64Array, letter_of: Int64Array, letter_count: int, shares: FloatArray) -> Int64Array:
        """Return the name that has more than half of each column's busy time; those without a letter count together."""
        trace, row_count, kinds_count = self._trace, len(shares), letter_count + 1
        counted = counted_rows(trace)
        inner = counted & (trace.parent >= 0)
        inner[inner] = counted[trace.parent[inner]]
        own = self._spans(rows, counted)
        keys = own.place * kinds_count + letter_of[trace.name[counted & (rows[trace.lane] >= 0)]]
        time = self._sums(_Spans(place=keys, start=own.start, end=own.end), row_count * kinds_count)
        within = self._spans(rows, inner)
        outer = trace.parent[inner & (rows[trace.lane] >= 0)]
        keys = within.place * kinds_count + letter_of[trace.name[outer]]
        time -= self._sums(_Spans(place=keys, start=within.start, end=within.end), row_count * kinds_count)
        by_letter = time.reshape(row_count, kinds_count, self._count)
        best = by_letter.argmax(axis=1)
        is_named = (by_letter.max(axis=1) > shares / 2) & (best < letter_count)
        found: Int64Array = np.where(is_named, best, -1)
        return found

    def _spans(self, rows: Int64Array, kept: BoolArray) -> _Spans:
        trace = self._trace
        shown = np.flatnonzero(kept & (rows[trace.lane] >= 0))
        return _Spans(place=rows[trace.lane[shown]], start=self._at(trace.start_ns[shown]), end=self._at(trace.end_ns[shown]))

    def _at(self, times_ns: Int64Array) -> FloatArray:
        return np.asarray((times_ns - self._zero_ns) * self._per_ns, np.float64)

    def _ends(self, spans: _Spans) -> tuple[Int64Array, Int64Array]:
        """Return the first and the last column of each span; one that ends on a border does not reach into the next."""
        first = np.clip(np.floor(spans.start).astype(np.int64), 0, self._count - 1)
        last = np.clip(np.ceil(spans.end).astype(np.int64) - 1, first, self._count - 1)
        return first, last

    def _sums(self, spans: _Spans, place_count: int) -> FloatArray:
        """Return how much of each column the spans of each place take, added up; shape (place_count, n_columns)."""
        first, last = self._ends(spans)
        base, size = spans.place * self._count, place_count * self._count
        if not size:
            return np.zeros((place_count, self._count))
        head = np.minimum(spans.end, first + 1) - spans.start
        wide = last > first
        sums = np.bincount(base + first, weights=head, minlength=size)
        sums = sums + np.bincount((base + last)[wide], weights=(spans.end - last)[wide], minlength=size)
        # The whole columns between both ends: one begins after the first, and they end before the last.
        width = self._count + 1
        steps = np.bincount((spans.place * width + first + 1)[wide], minlength=place_count * width)
        steps -= np.bincount((spans.place * width + last)[wide], minlength=place_count * width)
        whole = np.cumsum(steps.reshape(place_count, width), axis=1)[:, :-1]
        return np.asarray(sums.reshape(place_count, self._count) + whole, np.float64)


def _most_time(trace: Trace) -> tuple[tuple[LetteredName, ...], Int64Array, int]:
    """Return the names with letters, the letter of each code (the number of letters for none), and how many names there are.

    Names that differ by a number are one.
    """
    counted = counted_rows(trace)
    used = np.unique(trace.name[counted])
    labels = group_labels([trace.names[code] for code in used.tolist()])
    groups = {label: place for place, label in enumerate(dict.fromkeys(labels))}
    group_of = np.zeros(len(trace.names), np.int64)
    group_of[used] = [groups[label] for label in labels]
    group = group_of[trace.name[counted]]
    count = np.bincount(group, minlength=len(groups))
    total_ns = np.zeros(len(groups), np.int64)
    np.add.at(total_ns, group, trace.duration_ns[counted])
    kept, called = np.argsort(-total_ns, kind="stable")[:MAX_LETTERS], list(groups)
    names = [LetteredName(name=called[one], span_count=int(count[one]), total_ns=int(total_ns[one])) for one in kept.tolist()]
    places = np.full(len(groups) + 1, len(names))
    places[kept] = np.arange(len(names))
    letter_of = np.full(len(trace.names), len(names))
    letter_of[used] = places[group_of[used]]
    return tuple(names), letter_of, len(groups)
