"""What stands above the picture: the same facts for the page, the live view and the static picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from gpustreamlab.analysis import (
    display_name,
    format_ns,
    missing_facts,
    partition_warnings,
    source_facts,
)
from gpustreamlab.draw._groups import plan_bands
from gpustreamlab.model import Trace

_SMS_FACT = "SMs in use: at most; a busy partition counts as a whole, and a copy as if it needed SMs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The facts above a picture, as plain text."""

    title: str
    """The trace's title, or a plain word."""
    badge: str
    """Whether the times are simulated or real."""
    facts: str
    """Device, spans, streams, length."""
    finding: str
    """How much ran at once; empty where nothing ran or it is not known yet."""
    source: str
    """How the times were taken, and their error."""
    missing: tuple[str, ...]
    """What the trace leaves out, and what its partitions are not."""


def plan_header(trace: Trace, *, finding: str = "", span_count: int | None = None, width_ns: float | None = None) -> Header:
    """Collect what stands above a picture of a trace.

    Parameters
    ----------
    trace
        The spans, or the tables alone.
    finding
        How much ran at once, see `finding_text`.
    span_count, width_ns
        How many spans there are and how far they reach; None to take both from the trace's own spans.
    """
    meta = trace.metadata
    if width_ns is None:
        width_ns = float(trace.end_ns.max() - trace.start_ns.min()) if len(trace) else 0.0
    span_count = len(trace) if span_count is None else span_count
    counts = f"{_count(span_count, 'span')} in {_count(len(trace.lanes), 'stream')}"
    length = f" · {format_ns(width_ns)}" if span_count else ""
    return Header(
        title=display_name(meta.title) if meta.title else "Timeline",
        badge="SIMULATED" if meta.simulated else "REAL HARDWARE",
        facts=f"{display_name(meta.device.name)} · {counts}{length}",
        finding=finding,
        source=" · ".join(
            [
                *source_facts(meta),
                *([f"clock: {display_name(meta.clock, 200)}"] if meta.clock else []),
                *([_SMS_FACT] if plan_bands(trace) else []),
            ]
        ),
        missing=(*missing_facts(meta), *partition_warnings(trace)),
    )


def header_html(header: Header, notes: tuple[str, ...] = ()) -> str:
    """Write the header, and what the picture leaves out, as HTML; every text is escaped."""
    badge_kind = "sim" if header.badge == "SIMULATED" else "real"
    missing = "".join(f'<p class="gsl-missing">&#9888; {escape(fact)}</p>' for fact in (*header.missing, *notes))
    finding = f'<p class="gsl-finding">{escape(header.finding)}</p>' if header.finding else ""
    return (
        f'<header><h1>{escape(header.title)} <span class="gsl-badge gsl-{badge_kind}">{header.badge}</span></h1>'
        f"<p>{escape(header.facts)}</p>{finding}"
        f'<p class="gsl-source">{escape(header.source)}</p>{missing}</header>'
    )


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
