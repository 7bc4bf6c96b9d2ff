"""The timeline as text: for terminals, and wherever no picture can be shown."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpustreamlab.analysis import (
    Basis,
    basis_of,
    busy_edges,
    busy_word,
    concurrency,
    count_text,
    counted_rows,
    display_name,
    doubt_facts,
    empty_hint,
    finding_text,
    format_ns,
    format_share,
    grid_advice,
    group_labels,
    headline,
    interval_sum_ns,
    maker_of,
    missing_facts,
    partition_warnings,
    stream_extent,
    time_ticks,
    told_ns,
    totals,
    trace_facts,
)
from gpustreamlab.draw._groups import host_group, plan_groups
from gpustreamlab.draw._picture import BARS_CONTAIN_WAITING
from gpustreamlab.draw._scene import memory_lanes, plan_marks, stray_facts
from gpustreamlab.model import NO_COMMON_TIME, Trace
from gpustreamlab.typing import BoolArray, CaptureTier, FloatArray, Int64Array, SpanKind

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text


MIN_TEXT_WIDTH = 40  # Fewest columns that a text timeline takes; a narrower terminal breaks its lines
MAX_TEXT_WIDTH = 400  # Most columns that it takes
LISTED_MARKS = 6  # How many marks are listed under the picture: the first
SHADES = " ░▒▓█"  # Signs of a column's busy share: none, up to a third, up to two thirds, not all, all of it
LEVELS = " ▁▂▃▄▅▆▇█"  # Signs of how many lanes are busy, from none to the most
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # Signs of names: the first is of the name that takes most time
NOT_BUSY = "·"  # Sign of a column that holds spans, but none that count as busy time
_STYLES = ("cyan", "yellow", "green", "magenta", "blue", "red")  # Colours of letters, as the terminal's own theme has them

_SHARE_WIDTH = 5


class TextTimeline:
    """A trace as a picture of signs: a line for each lane, by partition, over a time axis.

    `rich.print` draws it as wide as the terminal; ``str()`` of it is the same without colours.

    Parameters
    ----------
    trace
        The spans.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _lines(self._trace, options.max_width)

    def __str__(self) -> str:
        return text_timeline(self._trace)


def text_timeline(trace: Trace, width: int | None = None) -> str:
    """Draw a trace as plain text.

    Examples
    --------
    >>> from gpustreamlab.model import Device, Lane, Trace, TraceMetadata
    >>> trace = Trace(
    ...     start_ns=[0, 50], end_ns=[100, 250], queued_ns=[0, 0], lane=[0, 1], name=[0, 1], kind=[0, 0],
    ...     parent=[-1, -1], thread=[0, 0], names=("copy", "gemm"), threads=("MainThread",),
    ...     lanes=(Lane(name="copies", stream=1), Lane(name="compute", stream=2)),
    ...     metadata=TraceMetadata(backend="sim", device=Device(name="demo", sm_count=4, simulated=True)),
    ... )
    >>> print(text_timeline(trace, 60))
    Timeline of 2 spans in 2 streams on demo (SIMULATED): 250
    ns; bars contain waiting
    copies        │B██████████████▒                       │  40%
    compute       │       A███████████████████████████████│  80%
    queued/running│▄▄▄▄▄▄▄▅███████▇▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄│  ≤ 2
                   ╵0 ns          ╵100 ns         ╵200 ns
    A gemm 200 ns ×1   B copy 100 ns ×1
    ░▒▓█ queued or running share of a column of 6.41 ns
    What ran at once is not known, at most 50 ns; mean
    concurrency up to 1.20. Ranges contain waiting
    Tier: ranges (event pairs; ranges contain queueing) · times
    are modelled, not measured
    """
    columns = shutil.get_terminal_size((80, 24)).columns if width is None else width
    return "\n".join(line.plain.rstrip() for line in _lines(trace, columns))


def _lines(trace: Trace, width: int) -> list[Text]:
    width = min(max(width, MIN_TEXT_WIDTH), MAX_TEXT_WIDTH)
    doubts, basis = doubt_facts(trace.metadata), basis_of(trace)
    lines = [line for doubt in doubts for line in _wrapped(f"⚠ {doubt}", width, "yellow")]
    if len(trace):
        picture = _Picture(trace, basis, width)
        waiting = f"; {BARS_CONTAIN_WAITING}" if basis.tier is CaptureTier.RANGES else ""
        lines += _wrapped(f"{headline(trace)}: {format_ns(told_ns(trace))}{waiting}", width, "bold")
        lines += picture.lines()
        finding = finding_text(picture.result)
        finding = finding or ("" if picture.result.sum_ns else "No stream was ever busy.")
        lines += _wrapped(finding, width) if finding else []
    else:
        lines += _wrapped(headline(trace), width, "bold")
        hint = empty_hint(trace.metadata)
        lines += _wrapped(hint, width) if hint else []
    lines += _wrapped(" · ".join(trace_facts(trace, basis)), width, "dim")
    missing = map(maker_of(trace).words, missing_facts(trace.metadata)[len(doubts) :])
    for fact in [*missing, *stray_facts(trace), *partition_warnings(trace)]:
        lines += _wrapped(f"⚠ {fact}", width, "yellow")
    advice = grid_advice(trace)
    return lines + (_wrapped(advice, width, "dim") if advice else [])


class _Picture:
    """The lanes of one trace at one width."""

    def __init__(self, trace: Trace, basis: Basis, width: int) -> None:
        self._rows = choose_rows(trace)
        self.result = concurrency(trace)
        self._labels = [display_name(trace.lanes[lane].name, 60) for lane in self._rows.lanes]
        self._busy_word = busy_word(basis.counted)
        self._busy_label = "busy streams" if self._busy_word == "busy" else self._busy_word
        if len(self._busy_label) > width // 4:
            self._busy_label = self._busy_label.replace(" or ", "/")
        longest = max((_cells(label) for label in self._labels), default=0)
        self._trace, self._width = trace, width
        self._label_width = min(max(longest + 2, len(self._busy_label)), width // 4)
        self._column_count = width - self._label_width - _SHARE_WIDTH - 2
        self._grid = plan_text_grid(trace, self._rows, self._column_count)
        self._marks, self._notes = plan_marks(trace, self._grid.zero_ns, self._grid.width_ns)

    def lines(self) -> list[Text]:
        """Return the picture from its marks to its legend."""
        below = [self._busy_line(), self._axis_line(), *self._legend_lines(), *self._mark_list()]
        return [*self._mark_lines(), *self._lane_lines(), *below]

    def _row(self, label: str, middle: Text | str, right: str = "", frame: str = "│") -> Text:
        from rich.text import Text

        line = Text(_fitted(label, self._label_width), no_wrap=True, overflow="crop", end="\n")
        line.append(frame, "dim")
        line.append(middle)
        line.append(frame, "dim")
        line.append(f"{right:>{_SHARE_WIDTH}}")
        return line

    def _mark_lines(self) -> list[Text]:
        if not self._marks:
            return []
        signs = [" "] * self._column_count
        for mark in self._marks:
            signs[self._column_of(mark.time_ns)] = "▼"
        return [self._row("marks", "".join(signs), frame=" ")]

    def _column_of(self, time_ns: float) -> int:
        column = int(time_ns / self._grid.width_ns * self._column_count)
        return min(max(column, 0), self._column_count - 1)

    def _lane_lines(self) -> list[Text]:
        lines = []
        for group in self._rows.groups:
            if group.label and (group.lanes or group.hidden_lanes):
                lines += _wrapped(group.label, self._width, "bold")
            for row in group.lanes:
                label = f"  {self._labels[row]}" if group.label else self._labels[row]
                share = int(self._rows.busy_ns[row]) / self.result.wall_ns if self.result.wall_ns else float("nan")
                lines.append(self._row(label, self._bar(row), format_share(share)))
            if group.hidden_lanes:
                word, verb = ("thread", "in calls") if group.is_host else ("stream", self._busy_word)
                more = count_text(group.hidden_lanes, f"more {word}")
                lines += _wrapped(f"  … {more} not shown: none was {verb} for longer", self._width, "yellow")
        return lines

    def _bar(self, row: int) -> Text:
        from rich.text import Text

        grid = self._grid
        shares = grid.shares[row]
        # Something is never shown as nothing, nor a part as the whole.
        shades = np.where(shares <= 0, 0, 1 + (shares > 1 / 3) + (shares > 2 / 3) + (shares >= 0.995))
        idle = np.where(grid.touched[row], NOT_BUSY, " ")
        signs = np.where(shades > 0, np.array(list(SHADES))[shades], idle).tolist()
        bar = Text()
        before = -1
        places = grid.letters[row].tolist()
        for column, place in enumerate(places):
            follows = column + 1 < len(places) and places[column + 1] == place
            # A name that has one column only keeps its shade: a letter there would hide how busy it was.
            is_letter = place >= 0 and place != before and follows
            bar.append(LETTERS[place] if is_letter else signs[column], _style(place, is_letter=is_letter))
            before = place
        return bar

    def _busy_line(self) -> Text:
        peak = max(1, self.result.peak_lanes)
        steps = np.ceil(np.clip(self._grid.busy_lanes / peak, 0, 1) * (len(LEVELS) - 1) - 1e-9).astype(int)
        most = "" if NO_COMMON_TIME in self._trace.metadata.missing else _at_most(self.result.peak_lanes)
        return self._row(self._busy_label, "".join(LEVELS[step] for step in steps.tolist()), most)

    def _axis_line(self) -> Text:
        from rich.text import Text

        signs = ""
        width_ns = self._grid.width_ns
        ticks = [(0.0, "0 ns")] if width_ns < 2 else time_ticks(0, width_ns, max(2, self._column_count // 10))
        for time_ns, label in ticks:
            column = self._column_of(time_ns)
            text = f"╵{label}"
            if column >= len(signs) + bool(signs) and column + len(text) <= self._column_count + _SHARE_WIDTH + 1:
                signs = signs.ljust(column) + text
        return Text(" " * (self._label_width + 1) + signs, "dim", no_wrap=True, overflow="crop")

    def _legend_lines(self) -> list[Text]:
        from rich.text import Text

        entries = []
        for place, (name, total_ns, span_count) in enumerate(self._grid.names):
            entry = Text()
            entry.append(f"{LETTERS[place]}", _style(place, is_letter=True))
            entry.append(f" {_fitted(display_name(name, 28), self._width - 24, pad=False)} ")
            entry.append(f"{format_ns(total_ns)} ×{span_count:,}", "dim")
            entries.append(entry)
        if self._grid.more_names:
            entries.append(Text(f"and {self._grid.more_names:,} more names"))
        if self.result.sum_ns:
            per_column = format_ns(self._grid.width_ns / self._column_count)
            share = f"share of a column of {per_column}"
            worded = f"░▒▓█ {self._busy_word} {share}"
            entries.append(Text(worded if _cells(worded) <= self._width else f"░▒▓█ {share}", "dim"))
        if (self._grid.touched & (self._grid.shares <= 0)).any():
            entries.append(Text(f"{NOT_BUSY} waits, host, marks, no length", "dim"))
        return _packed(entries, self._width)

    def _mark_list(self) -> list[Text]:
        from rich.text import Text

        entries = [Text(_fitted(f"▼ {format_ns(mark.time_ns)} {mark.text}", self._width, pad=False)) for mark in self._marks]
        more = len(entries) - LISTED_MARKS
        shown = [*entries[:LISTED_MARKS], *([Text(f"and {more:,} more marks")] if more > 0 else [])]
        notes = [line for note in self._notes for line in _wrapped(f"⚠ {note}", self._width, "yellow")]
        return _packed(shown, self._width) + notes


def _style(place: int, *, is_letter: bool) -> str:
    if place < 0:
        return ""
    return f"bold {_STYLES[place % len(_STYLES)]} reverse" if is_letter else _STYLES[place % len(_STYLES)]


def _at_most(count: int) -> str:
    """Write a bound in `_SHARE_WIDTH` signs."""
    if count < 1_000:
        return f"≤ {count}"
    return f"≤{count}" if count < 10_000 else f"≤{math.ceil(count / 1_000)}k"


def _cells(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _fitted(text: str, width: int, *, pad: bool = True) -> str:
    """Return a text cut, with a sign, to a number of terminal columns, and filled up to it."""
    from rich.cells import set_cell_size

    if _cells(text) > width:
        return f"{set_cell_size(text, width - 1)}…"
    return f"{text}{' ' * (width - _cells(text))}" if pad else text


def _wrapped(text: str, width: int, style: str = "") -> list[Text]:
    from rich.console import Console
    from rich.text import Text

    return list(Text(text, style).wrap(Console(width=width), width))


def _packed(entries: Sequence[Text], width: int) -> list[Text]:
    """Write entries one after the other, as many on a line as fit."""
    from rich.text import Text

    lines: list[Text] = []
    for entry in entries:
        if lines and lines[-1].cell_len + 3 + entry.cell_len <= width:
            lines[-1].append("   ")
            lines[-1].append(entry)
        else:
            lines.append(Text.assemble(entry, no_wrap=True, overflow="crop"))
    return lines


MAX_TEXT_LANES = 40  # How many lanes a text timeline has at most: those with most busy time
HOST_TITLE = "host · time in calls, not busy time"  # What stands above the threads of the host
MAX_HOST_LANES = 4  # How many threads of the host it has at most: those that called longest
MAX_LETTERS = 10  # How many names have a letter: those that take most time


class TextGroup(NamedTuple):
    """The lanes of one partition, as far as they are shown."""

    label: str  # The partition and its SMs; empty where there are no partitions
    lanes: tuple[int, ...]  # Rows of the grid that are its lanes, in order
    hidden_lanes: int  # How many of its lanes are not shown
    is_host: bool = False  # True for the threads of the host


class TextRows(NamedTuple):
    """The lanes that are shown. A row is one of them."""

    lanes: tuple[int, ...]  # Place in `Trace.lanes` of each row
    groups: tuple[TextGroup, ...]  # The rows by partition; one without a label where there are no partitions
    busy_ns: Int64Array
    """Busy time of each row, or of a thread its time in calls from the first to the last span of all streams; shape (n_rows,),
    int64, in ns."""
    edges: tuple[Int64Array, ...]  # What `busy_edges` says of all lanes of the trace, also of those that are not shown
    drawn: tuple[Int64Array, ...]  # The same of each row, but for threads of the host: when they were in a call


class TextGrid(NamedTuple):
    """The rows in columns of equal time."""

    zero_ns: int  # Start of the first column: the first start of any span
    width_ns: float  # Time of all columns together, in ns, at least 1
    shares: FloatArray  # Busy share of each column; shape (n_rows, n_columns), float64, from 0 to 1
    touched: BoolArray  # Whether any span, of any kind and length, is in the column; shape (n_rows, n_columns), bool
    letters: Int64Array
    """The name that takes more than half of each column's busy time, as a place in `names`; shape (n_rows, n_columns), int64,
    -1 for none or one without a letter."""
    names: list[tuple[str, int, int]]
    """Names with a letter, those that take most time first: as the user gave it, its time in ns, how many spans have it."""
    more_names: int  # How many more names the counted spans have
    busy_lanes: FloatArray  # Mean number of busy lanes in each column, of all lanes; shape (n_columns,), float64


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


class _Columns:
    """The columns of one trace: column k is the time from k to k + 1. Starts and ends of spans are in columns here."""

    def __init__(self, trace: Trace, *, zero_ns: int, per_ns: float, count: int) -> None:
        self._trace, self._zero_ns, self._per_ns, self._count = trace, zero_ns, per_ns, count

    def time_of_edges(self, edges: Sequence[Int64Array]) -> FloatArray:
        """Return how much of each column the intervals of each entry take; shape (n_entries, n_columns)."""
        places = np.repeat(np.arange(len(edges)), [len(entry) // 2 for entry in edges])
        flat = np.concatenate([np.empty(0, np.int64), *edges])
        return self._sums(places, self._at(flat[0::2]), self._at(flat[1::2]), len(edges))

    def touched(self, rows: Int64Array, row_count: int) -> BoolArray:
        """Return which columns of the shown lanes hold a span of any kind or length."""
        place, start, end = self._spans(rows, np.ones(len(self._trace), bool))
        first, last = self._ends(start, end)
        width = self._count + 1
        size = row_count * width
        opens = np.bincount(place * width + first, minlength=size)
        closes = np.bincount(place * width + last + 1, minlength=size)
        is_touched: BoolArray = (np.cumsum(opens - closes).reshape(row_count, width) > 0)[:, :-1]
        return is_touched

    def letters(self, rows: Int64Array, letter_of: Int64Array, letter_count: int, shares: FloatArray) -> Int64Array:
        """Return the name that has more than half of each column's busy time; those without a letter count together."""
        trace, row_count, kinds_count = self._trace, len(shares), letter_count + 1
        counted = counted_rows(trace)
        inner = counted & (trace.parent >= 0)
        inner[inner] = counted[trace.parent[inner]]
        is_shown = rows[trace.lane] >= 0
        own, start, end = self._spans(rows, counted)
        keys = own * kinds_count + letter_of[trace.name[counted & is_shown]]
        time = self._sums(keys, start, end, row_count * kinds_count)
        within, start, end = self._spans(rows, inner)
        keys = within * kinds_count + letter_of[trace.name[trace.parent[inner & is_shown]]]
        time -= self._sums(keys, start, end, row_count * kinds_count)
        by_letter = time.reshape(row_count, kinds_count, self._count)
        best = by_letter.argmax(axis=1)
        is_named = (by_letter.max(axis=1) > shares / 2) & (best < letter_count)
        found: Int64Array = np.where(is_named, best, -1)
        return found

    def _spans(self, rows: Int64Array, kept: BoolArray) -> tuple[Int64Array, FloatArray, FloatArray]:
        """Return the row, the start and the end of spans in lanes that are shown."""
        trace = self._trace
        shown = np.flatnonzero(kept & (rows[trace.lane] >= 0))
        return (
            rows[trace.lane[shown]].astype(np.intp, copy=False),
            self._at(trace.start_ns[shown]),
            self._at(trace.end_ns[shown]),
        )

    def _at(self, times_ns: Int64Array) -> FloatArray:
        return np.asarray((times_ns - self._zero_ns) * self._per_ns, np.float64)

    def _ends(self, start: FloatArray, end: FloatArray) -> tuple[Int64Array, Int64Array]:
        """Return the first and the last column of each span; one that ends on a border does not reach into the next."""
        first = np.clip(np.floor(start).astype(np.intp), 0, self._count - 1)
        last = np.clip(np.ceil(end).astype(np.intp) - 1, first, self._count - 1)
        return first, last

    def _sums(self, place: Int64Array, start: FloatArray, end: FloatArray, place_count: int) -> FloatArray:
        """Return how much of each column the spans of each place take, added up; shape (place_count, n_columns)."""
        first, last = self._ends(start, end)
        base, size = place * self._count, place_count * self._count
        if not size:
            return np.zeros((place_count, self._count))
        head = np.minimum(end, first + 1) - start
        wide = last > first
        sums = np.bincount(base + first, weights=head, minlength=size)
        sums = sums + np.bincount((base + last)[wide], weights=(end - last)[wide], minlength=size)
        # The whole columns between both ends: one begins after the first, and they end before the last.
        width = self._count + 1
        steps = np.bincount((place * width + first + 1)[wide], minlength=place_count * width)
        steps -= np.bincount((place * width + last)[wide], minlength=place_count * width)
        whole = np.cumsum(steps.reshape(place_count, width), axis=1)[:, :-1]
        return np.asarray(sums.reshape(place_count, self._count) + whole, np.float64)


def _most_time(trace: Trace) -> tuple[list[tuple[str, int, int]], Int64Array, int]:
    """Return the names with letters, the letter of each code (the number of letters for none), and how many names there are."""
    counted = counted_rows(trace)
    found = totals(trace[counted], "name")
    letters = {label: place for place, label in enumerate(found.labels[:MAX_LETTERS])}
    used, letter_of = np.unique(trace.name[counted]), np.full(len(trace.names), len(letters))
    letter_of[used] = [
        letters.get(label, len(letters)) for label in group_labels([trace.names[code] for code in used.tolist()])
    ]
    names = [(str(label), int(found.total_ns[place]), int(found.calls[place])) for label, place in letters.items()]
    return names, letter_of, len(found)
