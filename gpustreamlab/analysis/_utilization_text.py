"""A utilization in words and a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustreamlab.analysis._report import Report, ReportTable
from gpustreamlab.analysis._units import format_ms, format_ns, format_share
from gpustreamlab.model import display_name
from gpustreamlab.typing import SpanKind

if TYPE_CHECKING:
    from gpustreamlab.analysis._utilization import Utilization

LISTED_PARTITIONS = 40
"""How many partitions are listed."""

WHOLE_CARD = "whole card"
"""How the place of streams in no partition is called."""

_NAME_WIDTH = 24


def utilization_line(result: Utilization) -> str:
    """Say the main figures in one line."""
    count = sum(name is not None for name in result.names)
    where = f"{count} partition{'' if count == 1 else 's'} on {display_name(result.metadata.device.label)}"
    if not result.wall_ns:
        return f"{where}, no time recorded"
    return (
        f"{where}, {format_share(result.card_share)} of the SM-time of {result.sm_count:,} SMs over {format_ns(result.wall_ns)}"
    )


def utilization_notes(result: Utilization) -> list[str]:
    """Say what the figures mean and what they leave out, one sentence an entry."""
    meta = result.metadata
    notes = ["A partition counts as a whole while anything runs in it: kernels may leave some of its SMs idle."]
    if SpanKind.RANGE in result.counted:
        notes.append("Ranges contain the queueing inside them: SM-time is an upper bound of what the work used.")
    elif SpanKind.COPY not in result.counted:
        notes.append("Kernels count; copies and fills use no SMs.")
    if None in result.names and len(result.names) > 1:
        notes.append("The whole card shares its SMs with every partition; the total counts them once.")
    if meta.simulated:
        notes.append(f"Simulated: {meta.device.label}. No hardware stands behind these times.")
    return notes


def utilization_report(result: Utilization) -> Report:
    """Say all of it: one row a partition, the total, what the figures mean."""
    tables = (ReportTable(caption="SMs and time of each partition", rows=_rows(result)),) if result.wall_ns else ()
    notes = tuple(utilization_notes(result))
    return Report(title="Utilization of", line=utilization_line(result), tables=tables, notes=notes)


def _rows(result: Utilization) -> list[list[str]]:
    rows = [["partition", "asked for", "granted SMs", "time, ms", "of, ms", "share", "SM x ms"]]
    shares, sm_ns = result.share, result.sm_ns
    for place, name in enumerate(result.names[:LISTED_PARTITIONS]):
        rows.append(
            [
                WHOLE_CARD if name is None else display_name(name, _NAME_WIDTH),
                "-" if name is None else f"{result.requested_sms[place]:,}",
                f"{result.granted_sms[place]:,}",
                format_ms(result.busy_ns[place]),
                format_ms(result.window_ns[place]),
                format_share(shares[place]),
                format_ms(sm_ns[place]),
            ]
        )
    card = [
        f"{result.sm_count:,}",
        "",
        format_ms(result.wall_ns),
        format_share(result.card_share),
        format_ms(result.card_sm_ns),
    ]
    rows.append(["all SMs of the card", "", *card])
    more = len(result.names) - LISTED_PARTITIONS
    return [*rows, [f"… {more:,} more: see .to_pandas()", *[""] * 6]] if more > 0 else rows
