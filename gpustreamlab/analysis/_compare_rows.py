"""A comparison of two traces as tables of text, for terminals and for pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis._compare import ComparedItems, TraceComparison
from gpustreamlab.analysis._scale import format_ns, format_share, three_digits
from gpustreamlab.model import display_name
from gpustreamlab.typing import SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table of text. The first column is what a row is about, all others are figures."""

    title: str
    """What it shows."""
    head: tuple[str, ...]
    """Names of its columns."""
    rows: tuple[tuple[str, ...], ...]
    """Its rows, as many cells as `head` has."""
    more: str = ""
    """What it leaves out; empty where it leaves out nothing."""


def comparison_tables(result: TraceComparison, *, limit: int, name_limit: int) -> tuple[TextTable, ...]:
    """Write a comparison as tables: totals, names, lanes.

    Parameters
    ----------
    result
        The comparison.
    limit
        How many names, and how many lanes, are listed.
    name_limit
        How many characters of a name are shown.
    """
    listed = (*_names(result.names), ("Streams", "stream", result.lanes))
    tables = (_items(title, what, items, limit=limit, name_limit=name_limit) for title, what, items in listed if len(items))
    return (_totals(result), *tables)


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
    """Say how long b is beside a: of other work nothing is faster.

    Examples
    --------
    >>> length_text(1.337), length_text(0.5), length_text(0.999)
    ('1.34× as long', '0.50× as long', 'equally long')
    """
    text = ratio_text(ratio).removeprefix("×")
    return "equally long" if "1.00" in (text, ratio_text(1 / ratio).removeprefix("×")) else f"{text}× as long"


def ratio_text(ratio: float) -> str:
    """Write a ratio with the digits that matter.

    Examples
    --------
    >>> ratio_text(0.834), ratio_text(12.34), ratio_text(1234.5), ratio_text(float("nan"))
    ('×0.83', '×12.3', '×1,234', '-')
    """
    if math.isnan(ratio):
        return "-"
    if 0 < ratio < 0.01:
        return f"×{ratio:.1g}"
    return f"×{three_digits(ratio)}"


def change_of_ns(difference_ns: float) -> str:
    """Write a difference of times with its sign.

    Examples
    --------
    >>> change_of_ns(1_500), change_of_ns(-1_500), change_of_ns(0)
    ('+1.50 µs', '−1.50 µs', '0 ns')
    """
    sign = "+" if difference_ns > 0 else "−" if difference_ns < 0 else ""
    return f"{sign}{format_ns(abs(difference_ns))}"


def _totals(result: TraceComparison) -> TextTable:
    a, b, word = result.a, result.b, result.busy_word
    times = (
        ("wall time", a.wall_ns, b.wall_ns),
        ("sum over streams", a.sum_ns, b.sum_ns),
        (f"any stream {word}", a.active_ns, b.active_ns),
        (f"2 or more {word}", a.together_ns, b.together_ns),
    )
    rows = [
        (what, format_ns(in_a), format_ns(in_b), change_of_ns(in_b - in_a), ratio_text(in_b / in_a if in_a else math.nan))
        for what, in_a, in_b in times
    ]
    has_ranges = any(SpanKind.RANGE in kinds for kinds in result.counted)
    mean = f"mean concurrency{', up to' if has_ranges else ''}"
    rows.append((mean, _number(a.mean_concurrency), _number(b.mean_concurrency), "", ""))
    rows.append((f"2 or more {word}, share", format_share(a.together_share), format_share(b.together_share), "", ""))
    return TextTable(title="Totals", head=("", "a", "b", "b − a", "b / a"), rows=tuple(rows))


def _names(names: ComparedItems) -> list[tuple[str, str, ComparedItems]]:
    """Return the tables of names: one, or one of ranges and one of work where there are both."""
    if len(set(names.groups)) < 2:
        return [("Names, those that changed most first", "name", names)]
    return [
        (title, "name", names.take(np.flatnonzero([own == group for own in names.groups])))
        for title, group in (
            ("Ranges, those that changed most first", "range"),
            ("Kernels, copies and fills, those that changed most first", "work"),
        )
    ]


def _items(title: str, what: str, items: ComparedItems, *, limit: int, name_limit: int) -> TextTable:
    more = len(items) - limit
    return TextTable(
        title=title,
        head=(what, "spans", "time a", "time b", "b − a", "b / a", "median"),
        rows=tuple(_item(items.take(np.array([row])), name_limit) for row in range(min(len(items), limit))),
        more=f"and {more:,} more: see to_pandas()" if more > 0 else "",
    )


def _item(item: ComparedItems, name_limit: int) -> tuple[str, ...]:
    """Write the one row of a table that has no other."""
    (count_a,), (count_b,) = item.a.span_count.tolist(), item.b.span_count.tolist()
    (is_in_a,), (is_in_b,), is_comparable = item.a.is_there, item.b.is_there, bool(item.is_comparable[0])
    ratio = ratio_text(item.ratio.item())
    if not (is_in_a and is_in_b):
        ratio = f"only in {'a' if is_in_a else 'b'}" if is_comparable else f"not captured in {'b' if is_in_a else 'a'}"
    return (
        display_name(item.items[0], name_limit),
        f"{count_a:,}" if count_a == count_b else f"{count_a:,}→{count_b:,}",
        format_ns(item.a.busy_ns.item()) if is_in_a else "-",
        format_ns(item.b.busy_ns.item()) if is_in_b else "-",
        change_of_ns(item.difference_ns.item()) if is_comparable else "-",
        ratio,
        _medians(item.a.median_ns.item(), item.b.median_ns.item()),
    )


def _medians(in_a: float, in_b: float) -> str:
    first, second = ("-" if math.isnan(median_ns) else format_ns(median_ns) for median_ns in (in_a, in_b))
    if first == second:
        return first
    value, _, unit = first.partition(" ")
    # A unit that both share is written once.
    return f"{value}→{second}" if second.endswith(f" {unit}") else f"{first}→{second}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"
