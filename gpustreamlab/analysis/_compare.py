"""Two traces beside each other: what each stream and each name took in both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

import numpy as np

from gpustreamlab.analysis._busy import (
    KIND_WORDS,
    RANGE_CODE,
    basis_of,
    busy_edges,
    busy_word,
    counted_kinds,
    counted_rows,
    interval_sum_ns,
    is_work,
    join_words,
    require_trace,
)
from gpustreamlab.analysis._card_counters import clock_note
from gpustreamlab.analysis._host_waits import lasted_ns
from gpustreamlab.analysis._overlap import Overlap, concurrency
from gpustreamlab.analysis._report import Report, Reported, ReportTable, device_text, missing_facts, more_row
from gpustreamlab.analysis._scale import count_text, format_ns, format_share, group_labels, ratios, three_digits
from gpustreamlab.model import SPAN_KINDS, Trace, TraceMetadata, display_name
from gpustreamlab.typing import BoolArray, CaptureTier, FloatArray, Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd


NAME_CHARACTERS = 40  # How many characters of a name the sentence shows

_COPY_CODE = SPAN_KINDS.index(SpanKind.COPY)


class _Work(NamedTuple):
    """How much work a trace holds."""

    counts: Counter[str]  # Spans of each name; names that differ by a number only are one
    kinds: tuple[SpanKind, ...]  # Of which kinds they are
    copied_bytes: int | None = None  # None where that is not known


def _work_difference(a: _Work, b: _Work) -> str:
    """Say in one sentence what makes the work of two traces another; empty where it is the same."""
    of_a, of_b = a.counts.total(), b.counts.total()
    words = [KIND_WORDS[kind][of_a != 1] for kind in SPAN_KINDS if kind in {*a.kinds, *b.kinds}]
    told = f"Not the same work: {of_a:,} {join_words(words, 'or' if of_a == 1 else 'and')}" if words else ""
    if of_a != of_b:
        return f"{told} against {of_b:,}"
    if a.counts != b.counts:
        name = max(a.counts | b.counts, key=lambda name: abs(a.counts[name] - b.counts[name]))
        in_a, in_b = (count_text(side.counts[name], "time") for side in (a, b))
        return f"{told} in both, but not the same ones; {display_name(name, NAME_CHARACTERS)} {in_a} in a, {in_b} in b"
    if a.copied_bytes is not None and b.copied_bytes is not None and a.copied_bytes != b.copied_bytes:
        return f"Not the same work: {a.copied_bytes:,} B copied against {b.copied_bytes:,} B"
    return ""


def _counted(codes: np.ndarray, labels: Sequence[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    count = np.bincount(codes, minlength=len(labels))
    for code in np.flatnonzero(count).tolist():
        counts[labels[code]] += int(count[code])
    return counts


@dataclass(frozen=True, slots=True, eq=False)
class ComparedFigures:
    """What the things of a table took in one trace, as columns; shape (n_items,) each.

    The busy time of a stream is that in which at least one of its counted spans ran, that of a name what these add up to.
    """

    span_count: Int64Array  # How many counted spans each has; 0 for what the trace does not have
    busy_ns: Int64Array
    median_ns: FloatArray  # Median duration of the counted spans; NaN where there are none
    is_there: BoolArray  # Whether the trace has it at all
    is_captured: BoolArray  # Whether it would, had it been there: False for kernels where only ranges were captured


def _take(side: ComparedFigures, rows: Int64Array) -> ComparedFigures:
    return ComparedFigures(*(getattr(side, column.name)[rows] for column in fields(side)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ComparedItems:
    """Streams, or names, of two traces."""

    items: tuple[str, ...]  # What the rows are called. Both traces' are matched by this.
    a: ComparedFigures  # What they took in the first trace
    b: ComparedFigures  # What they took in the second trace
    groups: tuple[str, ...] = ()
    """Of names: ``"range"`` or ``"work"`` (kernels, copies and fills) for each. Ranges are matched with ranges only."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def is_comparable(self) -> BoolArray:
        """Whether both traces could have it; shape (n_items,), bool."""
        both: BoolArray = self.a.is_captured & self.b.is_captured
        return both

    @property
    def difference_ns(self) -> Int64Array:
        """Busy time in b less that in a; shape (n_items,), int64, in ns."""
        return self.b.busy_ns - self.a.busy_ns

    @property
    def ratio(self) -> FloatArray:
        """Busy time in b / busy time in a; shape (n_items,), float64; NaN where a has none."""
        return ratios(self.b.busy_ns, self.a.busy_ns)

    @property
    def median_ratio(self) -> FloatArray:
        """Median duration in b / median duration in a; shape (n_items,), float64; NaN where one has none, or a's is 0."""
        return ratios(self.b.median_ns, self.a.median_ns)

    def take(self, rows: Int64Array) -> ComparedItems:
        """Return some of the rows, in an order of their own."""
        return ComparedItems(
            items=tuple(self.items[row] for row in rows.tolist()),
            a=_take(self.a, rows),
            b=_take(self.b, rows),
            groups=tuple(self.groups[row] for row in rows.tolist()) if self.groups else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class TraceComparison(Reported):
    """The figures of two traces beside each other. Differences are b - a, ratios b / a."""

    lanes: ComparedItems
    """By stream: a's streams in their order, then those that only b has."""
    names: ComparedItems
    """By name: first what changed most, last what only one of both could have. Kernels, copies and fills; where ranges count in
    one of both also ranges, all of either trace."""
    a: Overlap
    """How much ran at once in the first trace."""
    b: Overlap
    """How much ran at once in the second trace."""
    counted: tuple[tuple[SpanKind, ...], tuple[SpanKind, ...]]
    """Kinds of spans that count as busy time, in the first and in the second trace; of a trace without kernels, ranges."""
    metadata: tuple[TraceMetadata, TraceMetadata]
    """Where the numbers of both come from."""
    work_note: str = ""
    """What makes the work of both another, in one sentence; empty where it is the same by number and names of kernels, copies
    and fills and by bytes copied, or, where ranges count in one of both, by number and names of the ranges; also where one has
    no ranges to compare."""
    clock_note: str = ""
    """That the SMs of one were clocked lower, in one sentence; empty where they were not, or where one did not count it."""

    _columns: ClassVar = ()

    @property
    def busy_word(self) -> str:
        """What a stream is while it counts, in both traces: "queued or running" where one of them has ranges only."""
        return max(map(busy_word, self.counted), key=len)

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the two traces unlike, or incomplete, one sentence an entry; empty where nothing does."""
        meta_a, meta_b = self.metadata
        of_a, of_b = (", ".join(KIND_WORDS[kind][1] for kind in kinds) for kinds in self.counted)
        notes = [f"{self.work_note}."] if self.work_note else []
        if of_a != of_b:
            notes.append(
                f"Unlike: times are those of {of_a} in a and of {of_b} in b. Ranges contain queueing. "
                "Capture both alike: lab.capture('kernels') around the whole of each run, or neither."
            )
        if (meta_a.simulated, meta_a.device_name) != (meta_b.simulated, meta_b.device_name):
            notes.append(f"Not the same device: a is {device_text(meta_a)}, b is {device_text(meta_b)}.")
        notes += [self.clock_note] if self.clock_note else []
        for which, meta in (("a", meta_a), ("b", meta_b)):
            notes += [f"In {which}: {fact.rstrip('.')}." for fact in missing_facts(meta)]
        return tuple(notes)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for the totals, each stream and each name, as a `pandas.DataFrame`.

        The columns are ``level`` (``"total"``, ``"lane"`` or ``"name"``), ``group`` (of names: ``"range"`` or ``"work"``,
        else None), ``item``, ``in_a``, ``in_b``, ``captured_a``, ``captured_b`` (whether it could be there), then for both
        ``span_count_*``, ``busy_ns_*`` and ``median_ns_*``, and ``difference_ns``, ``ratio`` and ``median_ratio``. The totals
        are one row each of ``wall_ns``, ``sum_ns``, ``active_ns`` and ``together_ns``, as busy times.
        """
        import pandas as pd

        levels = (("total", self._totals()), ("lane", self.lanes), ("name", self.names))
        frames = [pd.DataFrame({"level": level} | _columns(compared)) for level, compared in levels]
        return pd.concat([frame for frame in frames if len(frame)], ignore_index=True)

    def _line(self) -> str:
        return comparison_line(self)

    def _report(self) -> Report:
        title, notes = "Comparison of two traces, b beside a:", self.notes[bool(self.work_note) :]  # the line begins with that
        return Report(title=title, line=self._line(), tables=comparison_tables(self), notes=notes)

    def _totals(self) -> ComparedItems:
        names = ("wall_ns", "sum_ns", "active_ns", "together_ns")

        def figures(times: Overlap, of_lanes: ComparedFigures) -> ComparedFigures:
            count, known = np.full(len(names), of_lanes.span_count.sum()), np.ones(len(names), bool)
            times_ns = np.array([getattr(times, name) for name in names], np.int64)
            return ComparedFigures(count, times_ns, np.full(len(names), np.nan), known, known)

        return ComparedItems(items=names, a=figures(self.a, self.lanes.a), b=figures(self.b, self.lanes.b))


def compare_traces(a: Trace, b: Trace) -> TraceComparison:
    """Compare two traces by stream and by name."""
    require_trace(a, "compare_traces")
    require_trace(b, "compare_traces")
    kinds = (counted_kinds(a), counted_kinds(b))
    with_ranges = any(SpanKind.RANGE in counted for counted in kinds)
    sides = _Side(a, kinds[0], with_ranges=with_ranges), _Side(b, kinds[1], with_ranges=with_ranges)
    streams = [lane for trace in (a, b) for lane in trace.lanes if lane.kind is LaneKind.STREAM]
    lanes = tuple(dict.fromkeys(lane.name for lane in streams))
    # A lane that no session made is known by its kernels only.
    needs_work = np.array([all(lane.outside for lane in streams if lane.name == name) for name in lanes], bool)
    _group_names(sides)
    names = tuple(dict.fromkeys(name for side in sides for name in side.used_names))
    by_lane = [side.lane_figures(lanes, needs_work) for side in sides]
    by_name = [side.name_figures(names) for side in sides]
    items, groups = zip(*names, strict=True) if names else ((), ())
    listed = ComparedItems(items=items, a=by_name[0], b=by_name[1], groups=groups)
    larger_ns = np.maximum(listed.a.busy_ns, listed.b.busy_ns)
    return TraceComparison(
        lanes=ComparedItems(items=lanes, a=by_lane[0], b=by_lane[1]),
        names=listed.take(np.lexsort((-larger_ns, -np.abs(listed.difference_ns), ~listed.is_comparable))),
        a=sides[0].concurrency,
        b=sides[1].concurrency,
        counted=(sides[0].kinds, sides[1].kinds),
        metadata=(a.metadata, b.metadata),
        work_note=_work_note(*sides, with_ranges=with_ranges),
        clock_note=clock_note(a, b),
    )


_Item = TypeVar("_Item", bound=Hashable)
_Name = tuple[str, str]
RANGE, WORK = "range", "work"


def _medians_ns(durations_ns: Int64Array, places: Int64Array, count: Int64Array) -> FloatArray:
    """Return the median duration of the spans of each place, of which there are so many; NaN where there are none."""
    order = np.argsort(durations_ns)
    # numpy sorts 16-bit keys by radix, in linear time.
    keys = places[order].astype(np.uint16) if len(count) <= 1 << 16 else places[order]
    ordered = durations_ns[order[np.argsort(keys, kind="stable")]]
    medians: FloatArray = np.full(len(count), np.nan)
    has = np.flatnonzero(count)
    first = (np.cumsum(count) - count)[has]
    low, high = ordered[first + (count[has] - 1) // 2], ordered[first + count[has] // 2]
    medians[has] = low + (high - low) / 2
    return medians


class _Side:
    """What is compared of one of the two traces."""

    def __init__(self, trace: Trace, kinds: tuple[SpanKind, ...], *, with_ranges: bool) -> None:
        edges = busy_edges(trace, kinds)
        self.concurrency = concurrency(trace, kinds)
        self._busy_ns = np.array(list(map(interval_sum_ns, edges)), np.int64)
        counted, is_range = counted_rows(trace, kinds), trace.kind == RANGE_CODE
        self._trace, self._counted = trace, np.flatnonzero(counted)
        self._listed = np.flatnonzero(counted | (is_range & with_ranges))
        self._has_work = basis_of(trace, kinds).tier is CaptureTier.KERNELS or bool(is_work(trace).any())
        self.kinds = kinds if self._has_work else (SpanKind.RANGE,)
        # Ranges behind all others: one name of both is two.
        self._name = trace.name[self._listed].astype(np.int64) + len(trace.names) * is_range[self._listed]
        self._names: list[_Name] = [(name, group) for group in (WORK, RANGE) for name in trace.names]

    @property
    def used_names(self) -> list[_Name]:
        """The names that any listed span has."""
        return [self._names[code] for code in np.unique(self._name).tolist()]

    def rename(self, labels: Mapping[_Name, _Name]) -> None:
        """Call names as their group is called: what has one name adds up."""
        self._names = [labels.get(name, name) for name in self._names]

    def work(self) -> _Work:
        """Count kernels, copies and fills, by the names of their groups."""
        trace, labels = self._trace, [name for name, _ in self._names[: len(self._trace.names)]]
        rows = np.flatnonzero(is_work(trace))
        is_copy = trace.kind[rows] == _COPY_CODE
        copies = [label.partition(" (")[0] for label in labels]  # from pinned memory or not, the work is the same
        counts = _counted(trace.name[rows[~is_copy]], labels) + _counted(trace.name[rows[is_copy]], copies)
        kinds = tuple(SPAN_KINDS[code] for code in np.unique(trace.kind[rows]).tolist())
        sizes = trace.extra.get("size_bytes", np.zeros(len(trace), np.int64))[rows[is_copy]]
        return _Work(counts, kinds, int(sizes.sum()) if (sizes > 0).all() else None)  # 0 stands for a size that was not told

    def ranges(self) -> _Work:
        """Count ranges, by the names of their groups: where nothing else is known, they stand for the work in them."""
        labels = [name for name, _ in self._names[len(self._trace.names) :]]
        return _Work(_counted(self._trace.name[self._trace.kind == RANGE_CODE], labels), (SpanKind.RANGE,))

    def lane_figures(self, items: Sequence[str], needs_work: BoolArray) -> ComparedFigures:
        """Return what the lanes of these names took; those that need work are seen where kernels were captured."""
        own = [lane.name for lane in self._trace.lanes]
        codes = self._trace.lane[self._counted]
        return self._figures(items, own, codes, self._busy_ns, self._counted, ~needs_work | self._has_work, set(own))

    def name_figures(self, items: Sequence[_Name]) -> ComparedFigures:
        """Return what the spans of these names took."""
        total_ns = np.zeros(len(self._names), np.int64)
        np.add.at(total_ns, self._name, lasted_ns(self._trace, self._listed))
        is_captured = np.array([group == RANGE or self._has_work for _, group in items], bool)
        return self._figures(items, self._names, self._name, total_ns, self._listed, is_captured, set(self.used_names))

    def _figures(
        self,
        items: Sequence[_Item],
        own: Sequence[_Item],
        codes: np.ndarray,
        busy_ns: Int64Array,
        spans: Int64Array,
        is_captured: BoolArray,
        used: set[_Item],
    ) -> ComparedFigures:
        place = {item: row for row, item in enumerate(items)}
        # A trace may hold one name twice: both add up.
        row_of = np.array([place.get(item, len(items)) for item in own], np.int64)
        is_there = np.array([item in used for item in items], bool)
        busy = np.zeros(len(items) + 1, np.int64)
        np.add.at(busy, row_of, busy_ns)
        rows = row_of[codes] if len(own) else np.empty(0, np.int64)
        count = np.bincount(rows, minlength=len(items) + 1)
        medians_ns = _medians_ns(lasted_ns(self._trace, spans), rows, count)
        return ComparedFigures(count[:-1], busy[:-1], medians_ns[:-1], is_there, is_captured | is_there)


def _work_note(a: _Side, b: _Side, *, with_ranges: bool) -> str:
    """Say what makes the work of both another, by what is known of both; where one has no ranges, nothing is."""
    ranges_a, ranges_b = a.ranges(), b.ranges()
    if not with_ranges or not (ranges_a.counts or ranges_b.counts):
        return _work_difference(a.work(), b.work())
    is_known = a.kinds == b.kinds or (ranges_a.counts and ranges_b.counts)
    return _work_difference(ranges_a, ranges_b) if is_known else ""


def _group_names(sides: Sequence[_Side]) -> None:
    """Make one of the names of both traces that differ by a number, of ranges and of work for themselves."""
    for group in (WORK, RANGE):
        names = list(dict.fromkeys(name for side in sides for name, own in side.used_names if own == group))
        labels = {(name, group): (label, group) for name, label in zip(names, group_labels(names), strict=True)}
        for side in sides:
            side.rename(labels)


def _columns(compared: ComparedItems) -> dict[str, object]:
    def both(name: str, column: str) -> dict[str, object]:
        return {f"{name}_{side}": getattr(figures, column) for side, figures in (("a", compared.a), ("b", compared.b))}

    return {
        "group": np.array(compared.groups or [None] * len(compared), dtype=object),
        "item": list(compared.items),
        **both("in", "is_there"),
        **both("captured", "is_captured"),
        **both("span_count", "span_count"),
        **both("busy_ns", "busy_ns"),
        "difference_ns": compared.difference_ns,
        "ratio": compared.ratio,
        **both("median_ns", "median_ns"),
        "median_ratio": compared.median_ratio,
    }


LISTED_ITEMS = 20  # How many names, and how many streams, are listed


def comparison_tables(result: TraceComparison, *, limit: int = LISTED_ITEMS) -> tuple[ReportTable, ...]:
    """Write a comparison as tables: totals, names, streams; of the last two at most `limit` rows."""
    lanes = result.lanes  # of those without a span in either there is nothing to tell
    worked = lanes.take(np.flatnonzero(lanes.a.span_count + lanes.b.span_count))
    listed = (*_name_tables(result.names), ("Streams", "stream", worked))
    return (_totals_table(result), *(_table(title, what, items, limit) for title, what, items in listed if len(items)))


def comparison_line(result: TraceComparison) -> str:
    """Say the main finding in a line; first, where that is so, that the work of both is not the same."""
    note = result.work_note
    return f"{note[0].lower()}{note[1:]}; {wall_line(result)}" if note else wall_line(result)


def wall_line(result: TraceComparison) -> str:
    """Say how long both took, in half a line."""
    wall_a, wall_b = result.a.wall_ns, result.b.wall_ns
    if not wall_a or not wall_b:
        return f"wall time {format_ns(wall_a)} in a, {format_ns(wall_b)} in b"
    change = length_text(wall_b / wall_a) if result.work_note else change_text(wall_b / wall_a)
    return f"wall time {format_ns(wall_a)} → {format_ns(wall_b)} ({change})"


def change_text(ratio: float) -> str:
    """Say how much longer or faster b is than a: of measured walls of the same work, so that "faster" is meant.

    Examples
    --------
    >>> change_text(1.337), change_text(0.5), change_text(1.001)
    ('1.34× as long', '2.00× faster', 'equally long')
    """
    faster = ratio_text(1 / ratio).removeprefix("×")
    return length_text(ratio) if ratio > 1 or faster == "1.00" else f"{faster}× faster"


def length_text(ratio: float) -> str:
    """Say how long b is beside a: of other work nothing is faster."""
    text = ratio_text(ratio).removeprefix("×")
    return "equally long" if "1.00" in (text, ratio_text(1 / ratio).removeprefix("×")) else f"{text}× as long"


def ratio_text(ratio: float) -> str:
    """Write a ratio with the digits that matter."""
    if math.isnan(ratio):
        return "-"
    if 0 < ratio < 0.01:
        return f"×{ratio:.1g}"
    return f"×{three_digits(ratio)}"


def change_of_ns(difference_ns: float) -> str:
    """Write a difference of times with its sign."""
    sign = "+" if difference_ns > 0 else "−" if difference_ns < 0 else ""
    return f"{sign}{format_ns(abs(difference_ns))}"


def _totals_table(result: TraceComparison) -> ReportTable:
    a, b, word = result.a, result.b, result.busy_word
    times = (
        ("wall time", a.wall_ns, b.wall_ns),
        ("sum over streams", a.sum_ns, b.sum_ns),
        (f"any stream {word}", a.active_ns, b.active_ns),
        (f"2 or more {word}", a.together_ns, b.together_ns),
    )
    rows = [["", "a", "b", "b − a", "b / a"]]
    rows += [
        [what, format_ns(in_a), format_ns(in_b), change_of_ns(in_b - in_a), ratio_text(in_b / in_a if in_a else math.nan)]
        for what, in_a, in_b in times
    ]
    has_ranges = any(SpanKind.RANGE in kinds for kinds in result.counted)
    mean = f"mean concurrency{', up to' if has_ranges else ''}"
    rows.append([mean, _number(a.mean_concurrency), _number(b.mean_concurrency), "", ""])
    rows.append([f"2 or more {word} / any", format_share(a.together_share), format_share(b.together_share), "", ""])
    return ReportTable(caption="Totals", rows=rows, has_row_heads=True)


def _name_tables(names: ComparedItems) -> list[tuple[str, str, ComparedItems]]:
    """Return the tables of names: one, or one of ranges and one of work where there are both."""
    if len(set(names.groups)) < 2:
        return [("Names, those that changed most first", "name", names)]
    return [
        (title, what, names.take(np.flatnonzero([own == group for own in names.groups])))
        for title, what, group in (
            ("Ranges, those that changed most first", "range", RANGE),
            ("Kernels, copies and fills, those that changed most first", "kernel, copy or fill", WORK),
        )
    ]


def _table(title: str, what: str, items: ComparedItems, limit: int) -> ReportTable:
    rows = [[what, "spans", "time a", "time b", "b − a", "b / a", "median"]]
    rows += [_row(items.take(np.array([row]))) for row in range(min(len(items), limit))]
    return ReportTable(caption=title, rows=rows + more_row(len(items) - limit, 7), has_row_heads=True)


def _row(item: ComparedItems) -> list[str]:
    """Write the one row of a table that has no other."""
    (count_a,), (count_b,) = item.a.span_count.tolist(), item.b.span_count.tolist()
    (is_in_a,), (is_in_b,), is_comparable = item.a.is_there, item.b.is_there, bool(item.is_comparable[0])
    ratio = ratio_text(item.ratio.item())
    if not (is_in_a and is_in_b):
        ratio = f"only in {'a' if is_in_a else 'b'}" if is_comparable else f"not captured in {'b' if is_in_a else 'a'}"
    return [
        display_name(item.items[0]),
        f"{count_a:,}" if count_a == count_b else f"{count_a:,}→{count_b:,}",
        format_ns(item.a.busy_ns.item()) if is_in_a else "-",
        format_ns(item.b.busy_ns.item()) if is_in_b else "-",
        change_of_ns(item.difference_ns.item()) if is_comparable else "-",
        ratio,
        _medians(item.a.median_ns.item(), item.b.median_ns.item()),
    ]


def _medians(in_a: float, in_b: float) -> str:
    first, second = ("-" if math.isnan(median_ns) else format_ns(median_ns) for median_ns in (in_a, in_b))
    if first == second:
        return first
    value, _, unit = first.partition(" ")
    # A unit that both share is written once.
    return f"{value}→{second}" if second.endswith(f" {unit}") else f"{first}→{second}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
