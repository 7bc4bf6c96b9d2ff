"""An overlap as text and as an HTML table."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from gpustreamlab.analysis._units import display_name, format_ms, format_ns, format_share, three_digits
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis._overlap import Overlap

MATRIX_LANES = 16
"""Up to how many lanes the whole matrix is written; beyond it, the pairs with most time in common."""

LISTED_PAIRS = 30
"""How many pairs are listed where the matrix is too large."""

_NAME_WIDTH = 24

_CELL = "padding:0.25em 0.7em;text-align:right;white-space:nowrap;border:0;border-bottom:1px solid rgba(128,128,128,0.35)"
_HEAD = f"{_CELL};font-weight:600"
_BAR = "display:inline-block;height:0.8em;vertical-align:middle;background:rgba(0,114,178,0.7)"


def overlap_line(result: Overlap) -> str:
    """Say the main figures in one line."""
    if not result.sum_ns:
        return f"{_lanes(result)}, no busy time"
    return (
        f"{_lanes(result)}, wall {format_ns(result.wall_ns)}, sum of busy times {format_ns(result.sum_ns)}, "
        f"speed-up of overlap {three_digits(result.speedup)} (at best {three_digits(result.ideal_speedup)})"
    )


def overlap_notes(result: Overlap) -> list[str]:
    """Say what the figures mean and what they leave out, one sentence an entry."""
    meta = result.metadata
    notes = [
        "Speed-up of overlap: sum of busy times / time with any stream busy. At best: the busiest stream hides all others."
    ]
    if SpanKind.RANGE in result.counted:
        notes.append("Ranges contain the queueing inside them: their overlap is an upper bound of what ran at the same time.")
    else:
        notes.append("Busy means kernels, copies and fills; the ranges around them do not count.")
    if meta.simulated:
        notes.append(f"Simulated: {meta.device.label}. No hardware stands behind these times.")
    missing = [
        f"{count:,} {word}" for count, word in ((meta.dropped_spans, "dropped"), (meta.pending_spans, "pending")) if count
    ]
    if missing:
        notes.append(f"Not counted: {' and '.join(missing)} spans.")
    return notes


def overlap_text(result: Overlap) -> str:
    """Write the overlap as plain text: figures, pairs, histogram, notes."""
    parts = [f"Overlap of {overlap_line(result)}"]
    if result.sum_ns:
        table = _matrix_rows(result) if len(result.lanes) <= MATRIX_LANES else _pair_rows(result)
        parts += ["", *aligned(table), "", *aligned(_histogram_rows(result))]
    return "\n".join([*parts, "", *overlap_notes(result)])


def overlap_html(result: Overlap) -> str:
    """Write the overlap as HTML: the same content, escaped, readable on light and dark pages."""
    parts = [f"<p style='margin:0.4em 0'><b>Overlap</b> of {escape(overlap_line(result))}</p>"]
    if result.sum_ns:
        parts.append(
            _html_matrix(result)
            if len(result.lanes) <= MATRIX_LANES
            else html_table(_pair_rows(result), "Pairs with most time in common")
        )
        parts.append(_html_histogram(result))
    notes = " ".join(escape(note) for note in overlap_notes(result))
    parts.append(f"<p style='margin:0.4em 0;opacity:0.75;font-size:90%'>{notes}</p>")
    return f"<div class='gpustreamlab-overlap' style='overflow-x:auto'>{''.join(parts)}</div>"


def _lanes(result: Overlap) -> str:
    count = len(result.lanes)
    return f"{count} stream{'' if count == 1 else 's'} on {display_name(result.metadata.device.label)}"


def _names(result: Overlap) -> list[str]:
    return [display_name(lane.name, _NAME_WIDTH) for lane in result.lanes]


def _matrix_rows(result: Overlap) -> list[list[str]]:
    names, shares = _names(result), result.common_share
    rows = [["in common, ms", "busy", *names]]
    for index, name in enumerate(names):
        cells = [
            "" if index == other else f"{format_ms(result.common_ns[index, other])} ({format_share(shares[index, other])})"
            for other in range(len(names))
        ]
        rows.append([name, format_ms(result.busy_ns[index]), *cells])
    return rows


def _pair_rows(result: Overlap) -> list[list[str]]:
    names, shares = _names(result), result.common_share
    first, second = np.triu_indices(len(names), k=1)
    order = np.argsort(-result.common_ns[first, second], kind="stable")[:LISTED_PAIRS]
    rows = [["stream", "other", "in common, ms", "share of shorter"]]
    for row, column in zip(first[order].tolist(), second[order].tolist(), strict=True):
        rows.append([names[row], names[column], format_ms(result.common_ns[row, column]), format_share(shares[row, column])])
    rows.append([f"… {len(first) - len(order):,} pairs with less: see .to_pandas()", "", "", ""])
    return rows


def _histogram_rows(result: Overlap) -> list[list[str]]:
    rows = [["streams busy", "ms", "of wall"]]
    for count, time_ns in enumerate(result.concurrency_ns.tolist()):
        if time_ns or count < 2:
            rows.append([str(count), format_ms(time_ns), format_share(time_ns / result.wall_ns)])
    return rows


def aligned(rows: list[list[str]]) -> list[str]:
    """Write rows in columns. A row with one filled cell is a note of its own and widens nothing."""
    full = [row for row in rows if any(row[1:])]
    widths = [max(len(row[column]) for row in full) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            f"{cell:>{width}}" if column else f"{cell:<{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _html_matrix(result: Overlap) -> str:
    rows, shares = _matrix_rows(result), result.common_share
    head = "".join(f"<th style='{_HEAD}'>{escape(cell)}</th>" for cell in rows[0])
    body = []
    for index, row in enumerate(rows[1:]):
        cells = [f"<th style='{_HEAD};text-align:left'>{escape(row[0])}</th>", f"<td style='{_CELL}'>{escape(row[1])}</td>"]
        for other, cell in enumerate(row[2:]):
            share = 0.0 if index == other or math.isnan(shares[index, other]) else float(shares[index, other])
            cells.append(f"<td style='{_CELL};background:rgba(0,114,178,{0.4 * share:.2f})'>{escape(cell)}</td>")
        body.append(f"<tr style='background:none'>{''.join(cells)}</tr>")
    caption = "Time in common in ms, and as a share of the shorter busy time of the two"
    return _table(f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>", caption)


def html_table(rows: list[list[str]], caption: str) -> str:
    """Write rows, the first of them the head, as an HTML table; every cell is escaped."""
    head = "".join(f"<th style='{_HEAD}'>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr style='background:none'>{''.join(f'<td style={_CELL!r}>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in rows[1:]
    )
    return _table(f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>", caption)


def _html_histogram(result: Overlap) -> str:
    body = []
    for count, time, share in _histogram_rows(result)[1:]:
        width_em = 14 * int(result.concurrency_ns[int(count)]) / result.wall_ns
        body.append(
            f"<tr style='background:none'><td style='{_CELL}'>{count}</td><td style='{_CELL}'>{time}</td>"
            f"<td style='{_CELL}'>{escape(share)}</td>"
            f"<td style='{_CELL};text-align:left'><span style='{_BAR};width:{width_em:.2f}em'></span></td></tr>"
        )
    head = "".join(f"<th style='{_HEAD}'>{cell}</th>" for cell in ("streams busy", "ms", "of wall", ""))
    return _table(f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>", "How many streams were busy at once")


def _table(inner: str, caption: str) -> str:
    style = "border-collapse:collapse;margin:0.4em 0;color:inherit;background:none"
    beside = "caption-side:top;text-align:left;white-space:nowrap;padding:0.2em 0;color:inherit;opacity:0.75"
    return f"<table style='{style}'><caption style='{beside}'>{caption}</caption>{inner}</table>"
