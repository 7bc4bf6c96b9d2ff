"""An overlap in words and tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from gpustreamlab.analysis._busy import busy_word
from gpustreamlab.analysis._report import Report, ReportTable, text_lines
from gpustreamlab.analysis._shared import bound_note, concurrency_text
from gpustreamlab.analysis._summary import empty_hint, pending_text
from gpustreamlab.analysis._units import format_ms, format_ns, format_share
from gpustreamlab.model import display_name
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis._overlap import Overlap

MATRIX_LANES = 16
"""Up to how many lanes the whole matrix is written; beyond it, the pairs with most time in common."""

LISTED_PAIRS = 30
"""How many pairs are listed where the matrix is too large."""

_NAME_WIDTH = 24


def overlap_line(result: Overlap) -> str:
    """Say the main figures in one line."""
    if not result.sum_ns:
        return f"{_lanes(result)}, no time recorded"
    return (
        f"{_lanes(result)}, wall {format_ns(result.wall_ns)}, sum over streams {format_ns(result.sum_ns)}, "
        f"mean concurrency {_concurrency(result)}"
    )


def overlap_report(result: Overlap) -> Report:
    """Say all of it: pairs of streams, how many were busy at once, what the figures mean."""
    if not result.sum_ns:
        hint = empty_hint(result.metadata, nothing="Nothing to compare yet")
        notes = [*([f"{hint}."] if hint else []), *_missing(result), *_simulated(result)]
        return Report(title="Overlap of", line=overlap_line(result), notes=tuple(notes))
    common = (_matrix(result),) if len(result.lanes) <= MATRIX_LANES else (_times(result), _pairs(result))
    tables = (*common, _histogram(result))
    return Report(title="Overlap of", line=overlap_line(result), tables=tables, notes=tuple(overlap_notes(result)))


def overlap_notes(result: Overlap) -> list[str]:
    """Say what the figures mean and what they leave out, one sentence an entry."""
    word = busy_word(result.counted)
    notes = [
        f"Mean concurrency: sum over streams / time with any stream {word}. It is no speed-up: work that slows other work "
        "raises it too; gsl.compare measures speed-ups.",
    ]
    if SpanKind.RANGE in result.counted:
        notes.append(
            "Ranges contain the queueing inside them: their overlap is an upper bound of what ran at the same time, and so is "
            "the mean concurrency. What the ranges contain is not known: they may share SMs and copy engines."
        )
        if 0 < result.range_only_ns < result.sum_ns:
            share = format_share(result.range_only_ns / result.sum_ns)
            notes.append(f"{share} of that time is by ranges only, the rest by kernels, copies and fills.")
    else:
        notes.append(bound_note(result.shared))
        notes.append(
            "Busy means kernels, copies and fills, and wall is from the first to the last of them: ranges do not count."
        )
    return [*notes, *_simulated(result), *_missing(result)]


def _simulated(result: Overlap) -> list[str]:
    meta = result.metadata
    return [f"Simulated: {meta.device.label}. No hardware stands behind these times."] if meta.simulated else []


def _missing(result: Overlap) -> list[str]:
    """Say which spans no figure counts, one sentence an entry."""
    meta = result.metadata
    dropped = f"Not counted: {meta.dropped_spans:,} span{'' if meta.dropped_spans == 1 else 's'} dropped."
    pending = f"{pending_text(meta.pending_spans, meta)}."
    return [note for count, note in ((meta.dropped_spans, dropped), (meta.pending_spans, pending)) if count]


def _lanes(result: Overlap) -> str:
    count = len(result.lanes)
    return f"{count} stream{'' if count == 1 else 's'} on {display_name(result.metadata.device.label)}"


def _concurrency(result: Overlap) -> str:
    reason = result.shared.reason if result.shared.busy_ns > result.busy_ns.max(initial=0) else ""
    return concurrency_text(result.mean_concurrency, result.max_concurrency, reason, result.counted)


def _names(result: Overlap) -> list[str]:
    return [display_name(lane.name, _NAME_WIDTH) for lane in result.lanes]


def _matrix(result: Overlap) -> ReportTable:
    names, shares = _names(result), result.common_share
    rows = [["in common, ms", busy_word(result.counted), *names]]
    for index, name in enumerate(names):
        cells = [
            "" if index == other else f"{format_ms(result.common_ns[index, other])} ({format_share(shares[index, other])})"
            for other in range(len(names))
        ]
        rows.append([name, format_ms(result.busy_ns[index]), *cells])
    shade = np.zeros((len(names), len(names) + 2))
    shade[:, 2:] = np.nan_to_num(shares)
    shade[:, 2:][np.diag_indices(len(names))] = 0
    caption = "Time in common in ms, and as a share of the shorter time of the two"
    lines = [*text_lines(_times(result)), "", *text_lines(_pairs(result))]
    return ReportTable(caption=caption, rows=rows, has_row_heads=True, shade=shade, lines=lines)


def _times(result: Overlap) -> ReportTable:
    order = np.argsort(-result.busy_ns, kind="stable")[:LISTED_PAIRS].tolist()
    names = _names(result)
    rows = [["stream", f"{busy_word(result.counted)}, ms"], *([names[row], format_ms(result.busy_ns[row])] for row in order)]
    more = len(names) - len(order)
    rows += [[f"… {more:,} more streams: see .busy_ns", ""]] if more else []
    return ReportTable(caption="Time of each stream, in ms", rows=rows)


def _pairs(result: Overlap) -> ReportTable:
    names, shares = _names(result), result.common_share
    first, second = np.triu_indices(len(names), k=1)
    order = np.argsort(-result.common_ns[first, second], kind="stable")[:LISTED_PAIRS]
    rows = [["stream", "other", "in common, ms", "share of shorter"]]
    for row, column in zip(first[order].tolist(), second[order].tolist(), strict=True):
        rows.append([names[row], names[column], format_ms(result.common_ns[row, column]), format_share(shares[row, column])])
    more = len(first) - len(order)
    rows += [[f"… {more:,} more pairs: see .to_pandas()", "", "", ""]] if more else []
    return ReportTable(caption="Pairs with most time in common", rows=rows, names=(0, 1))


def _histogram(result: Overlap) -> ReportTable:
    word = busy_word(result.counted)
    rows, bars = [[f"streams {word}", "ms", "of wall"]], []
    for count, time_ns in enumerate(result.concurrency_ns.tolist()):
        if time_ns or count < 2:
            share = time_ns / result.wall_ns if result.wall_ns else math.nan
            rows.append([str(count), format_ms(time_ns), format_share(share)])
            bars.append(share)
    return ReportTable(caption=f"How many streams were {word} at once", rows=rows, bars=bars)
