"""What stands above the picture: the same facts for the page, the live view and the static picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from gpustreamlab.analysis import (
    Basis,
    basis_of,
    busy_word,
    captured_by,
    count_text,
    counts_text,
    display_name,
    empty_hint,
    format_ns,
    lanes_text,
    missing_facts,
    partition_warnings,
    pending_text,
    plain_finding,
    stream_extent,
    trace_facts,
    used_stream_count,
)
from gpustreamlab.draw._groups import plan_bands
from gpustreamlab.draw._scene import stray_facts
from gpustreamlab.model import NO_COMMON_TIME, Trace, TraceMetadata
from gpustreamlab.typing import CaptureTier, NoteKind, SpanKind

BARS_CONTAIN_WAITING = "bars contain waiting"  # What the first line of a picture of ranges says

_SMS_BY_RANGES = "SMs in use: at most; a partition counts as a whole while a range is open in it, also one that only copies"
_SMS_BY_KERNELS = "SMs in use: at most; a partition counts as a whole while one of its kernels runs"

ABOUT = "How this was recorded, and what is missing"  # What the sheet behind the header's button tells
LISTED_PARTITIONS = 3  # How many partitions the sentence names; of more it says how many they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The facts above a picture, as plain text."""

    title: str  # The trace's title, or a plain word
    badge: str  # Whether the times are predicted, simulated or real, or whether that is not known
    tier: str  # What was captured, by what, and how exactly
    busy_word: str  # What a stream is while one of its counted spans lasts, see `busy_word`
    counts_ranges: bool  # Whether ranges count as busy: nobody knows when in them work ran
    sentence: str  # What ran where, and how much of it at once, in one sentence
    lost: str  # What is wrong in it, and what is missing of the spans, in a few words; empty where nothing is to be said
    facts: str  # Device, spans, streams, length
    finding: str  # How much ran at once; empty where nothing ran or it is not known yet
    source: str  # How the times were taken, and their error
    has_common_time: bool  # Whether times of all streams can be compared: those of several simulated engines cannot
    missing: tuple[str, ...]  # What the trace leaves out, and what its partitions are not
    empty: str  # What stands in the picture where there are no spans


def plan_header(
    trace: Trace,
    *,
    finding: str = "",
    span_count: int | None = None,
    width_ns: float | None = None,
    pending_count: int | None = None,
    basis: Basis | None = None,
) -> Header:
    """Collect what stands above a picture of a trace."""
    meta = trace.metadata
    if width_ns is None:
        first_ns, last_ns = stream_extent(trace)
        width_ns = float(last_ns - first_ns)
    basis = basis_of(trace) if basis is None else basis
    counts_ranges = SpanKind.RANGE in basis.counted
    sms_fact = _SMS_BY_RANGES if counts_ranges else _SMS_BY_KERNELS
    span_count = len(trace) if span_count is None else span_count
    pending = meta.pending_spans if pending_count is None else pending_count
    hazard_count = len({note.text for note in trace.notes if note.kind is NoteKind.HAZARD})
    strayed, is_enforced = stray_facts(trace), trace.layout is None or trace.layout.is_enforced
    counts = counts_text(trace, span_count)
    length = f" · {format_ns(width_ns)}" if span_count else ""
    return Header(
        title=display_name(meta.title) if meta.title else "Timeline",
        badge=badge_of(meta),
        tier=tier_text(meta, basis.tier),
        busy_word=busy_word(basis.counted),
        counts_ranges=counts_ranges,
        sentence=_sentence(trace, finding, format_ns(width_ns) if span_count else ""),
        lost=", ".join(
            [
                *([count_text(hazard_count, "hazard")] if hazard_count else []),
                *(["strays"] if strayed else []),
                *([] if is_enforced else ["partitions not enforced"]),
                *([f"{meta.dropped_spans:,} dropped"] if meta.dropped_spans else []),
                *([f"{pending:,} not ended"] if pending else []),
            ]
        ),
        facts=f"{display_name(meta.device_name)} · {counts}{length}",
        finding=finding,
        source=" · ".join(
            [
                *trace_facts(trace, basis),
                *([f"clock: {display_name(meta.clock, 200)}"] if meta.clock else []),
                *([sms_fact] if plan_bands(trace) else []),
            ]
        ),
        has_common_time=NO_COMMON_TIME not in meta.missing,
        missing=(*_hazard_facts(hazard_count), *missing_facts(meta), *strayed, *partition_warnings(trace)),
        empty=pending_text(pending, meta) if pending else empty_hint(meta),
    )


def _sentence(trace: Trace, finding: str, length: str) -> str:
    """Say what ran where, how long, and how much of it at once."""
    own = plan_bands(trace) if len(trace.devices) == 1 else ()  # else it would leave out the other cards
    bands = [band.label.replace(" · ", " (", 1) + ")" for band in own if band.name is not None]
    streams = used_stream_count(trace)
    lanes = count_text(streams, "stream") if streams else lanes_text(trace)
    where = " and ".join(bands) if 0 < len(bands) <= LISTED_PARTITIONS else lanes
    where += f" in {len(bands):,} partitions" if len(bands) > LISTED_PARTITIONS else ""
    card = display_name(trace.metadata.device_name, 40)
    if not bands and len(trace.devices) == 1 and (sms := trace.metadata.device.sm_count):
        card += f" ({sms:,} SMs)"
    on = f" on {card}" if streams or trace.metadata.device.sm_count else ""  # a file of the host alone tells of no device
    place = f"{where}{on}{length and f', {length}'}"
    found = plain_finding(finding)
    return f"{place}: {found}" if found else place


def badge_of(meta: TraceMetadata) -> str:
    """Say in a word or two where the times come from."""
    known = (("PREDICTED", meta.is_predicted), ("SIMULATED", meta.simulated), ("FROM COLUMNS", meta.is_from_columns))
    return next((badge for badge, is_so in known if is_so), "MEASURED")


def _hazard_facts(count: int) -> list[str]:
    return [f"{count_text(count, 'hazard')}: accesses of an array that nothing orders. See Why?"] if count else []


def tier_text(meta: TraceMetadata, tier: CaptureTier) -> str:
    """Say what was captured, by what, and how exactly, in a few words.

    Examples
    --------
    >>> from gpustreamlab.model import Device
    >>> device = Device(name="demo", sm_count=4)
    >>> tier_text(TraceMetadata(backend="cuda", device=device), CaptureTier.RANGES)
    'ranges only: bars contain waiting'
    >>> kernels = {"tier": "kernels", "capture_source": "CUPTI 13.0", "kernel_error_ns": 200}
    >>> tier_text(TraceMetadata(backend="cuda", device=device, **kernels), CaptureTier.KERNELS)
    'kernels + ranges by CUPTI 13.0, ±200 ns'
    """
    if meta.is_predicted:
        return "predicted: nothing ran at these times"
    if meta.is_from_columns:
        return "as given: how they were measured is not known"
    if tier is CaptureTier.RANGES:
        return f"ranges only: {BARS_CONTAIN_WAITING}"
    return f"kernels + ranges{captured_by(meta)}"


def warnings_html(notes: Sequence[str]) -> str:
    """Write a paragraph for each, with a sign of warning."""
    return "".join(f'<p class="gsl-missing">&#9888; {escape(note)}</p>' for note in notes)


def header_html(header: Header, notes: tuple[str, ...], which: str = "") -> str:
    """Write the header as HTML: one line, and a sheet behind a button with all else; every text is escaped."""
    kind = {"SIMULATED": "sim", "MEASURED": "real"}.get(header.badge, "tier")
    facts = "".join(
        f"<p>{escape(fact)}</p>" for fact in filter(None, (header.facts, header.tier, header.finding, header.source))
    )
    warnings = (*header.missing, *notes)
    sheet, about = f"gsl-about{which}", f'title="{ABOUT}" aria-label="{ABOUT}"'
    lost = escape(header.lost or count_text(len(warnings), "note"))
    mark = (
        f'<button type="button" class="gsl-lost" popovertarget="{sheet}" title="{ABOUT}">&#9888; {lost}</button>'
        if warnings
        else ""
    )
    return (
        f'<header class="gsl-head"><h1>{escape(header.title)}</h1><p class="gsl-finding">{escape(header.sentence)}</p>'
        f'<span class="gsl-badge gsl-{kind}">{header.badge}</span>{mark}'
        f'<button type="button" class="gsl-about-button" popovertarget="{sheet}" {about}>i</button>'
        f'<section id="{sheet}" class="gsl-about" popover role="dialog" aria-label="{ABOUT}">'
        f"{warnings_html(warnings)}{facts}</section></header>"
    )
