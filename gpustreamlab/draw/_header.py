"""What stands above the picture: the same facts for the page and for the static picture."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from gpustreamlab.analysis import (
    Overlap,
    display_name,
    format_ns,
    format_share,
    missing_facts,
    partition_warnings,
    source_facts,
)
from gpustreamlab.draw._colours import DARK_TEXT, NameStyle, PartitionStyle
from gpustreamlab.draw._groups import idle_partitions
from gpustreamlab.draw._scene import Scene, drawn_kinds, used_names
from gpustreamlab.model import SPAN_KINDS, Trace
from gpustreamlab.typing import SpanKind

LEGEND_PARTITIONS = 12
"""How many partitions the legend shows: the first."""

LEGEND_NAMES = 14
"""How many names the legend shows: those that take most time."""


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
    """How much ran at once; empty where nothing ran."""
    source: str
    """How the times were taken, and their error."""
    missing: tuple[str, ...]
    """What the trace or the picture leaves out."""
    legend: tuple[tuple[str, NameStyle], ...]
    """Names and how they look."""
    more_names: int
    """How many names the legend leaves out."""
    partitions: tuple[tuple[str, PartitionStyle], ...]
    """Partitions and how they look; empty where there are none."""
    more_partitions: int
    """How many partitions are left out."""


def plan_header(trace: Trace, scene: Scene, result: Overlap) -> Header:
    """Collect what stands above a picture of the trace."""
    meta = trace.metadata
    codes, more = used_names(trace, scene, LEGEND_NAMES)
    partitions = [*((band.label, band.style) for band in scene.bands), *idle_partitions(trace, scene.bands)]
    counts = f"{_count(len(trace), 'span')} in {_count(len(trace.lanes), 'stream')}"
    length = f" · {format_ns(scene.width_ns)}" if len(trace) else ""
    return Header(
        title=display_name(meta.title) if meta.title else "Timeline",
        badge="SIMULATED" if meta.simulated else "REAL HARDWARE",
        facts=f"{display_name(meta.device.name)} · {counts}{length}",
        finding=_finding(result),
        source=" · ".join(
            [
                *source_facts(meta),
                *([f"clock: {display_name(meta.clock, 200)}"] if meta.clock else []),
                *(["SMs in use: at most, a busy partition counts as a whole"] if scene.bands else []),
            ]
        ),
        missing=(*missing_facts(meta), *partition_warnings(trace), *scene.notes),
        legend=(*((display_name(trace.names[code], 28), scene.styles[code]) for code in codes), *_kind_entries(trace, scene)),
        more_names=more,
        partitions=tuple((text, style) for text, style in partitions[:LEGEND_PARTITIONS]),
        more_partitions=max(0, len(partitions) - LEGEND_PARTITIONS),
    )


def header_html(header: Header) -> str:
    """Write the header as HTML; every text is escaped."""
    badge_kind = "sim" if header.badge == "SIMULATED" else "real"
    swatches = "".join(
        f'<span class="gsl-name"><svg class="gsl-swatch" viewBox="0 0 16 12">{swatch_svg(style)}</svg>{escape(name)}</span>'
        for name, style in header.legend
    )
    more = f'<span class="gsl-name">and {header.more_names:,} more names</span>' if header.more_names else ""
    missing = "".join(f'<p class="gsl-missing">&#9888; {escape(fact)}</p>' for fact in header.missing)
    finding = f'<p class="gsl-finding">{escape(header.finding)}</p>' if header.finding else ""
    return (
        f'<header><h1>{escape(header.title)} <span class="gsl-badge gsl-{badge_kind}">{header.badge}</span></h1>'
        f"<p>{escape(header.facts)}</p>{finding}"
        f'<p class="gsl-source">{escape(header.source)}</p>{missing}'
        f'<p class="gsl-legend">{swatches}{more}</p>{_partitions_html(header)}</header>'
    )


def partition_swatch_svg(style: PartitionStyle) -> str:
    """Draw a partition's colour, hatch and letters as SVG shapes, 24 by 14."""
    lines = _SWATCH_PATHS.get(style.hatch)
    hatch = f'<path d="{lines}" transform="scale(1.5 1.17)" stroke="#101418" stroke-opacity=".3" fill="none"/>' if lines else ""
    letters = (
        f'<text x="12" y="11" font-size="11" font-weight="700" text-anchor="middle" fill="{DARK_TEXT}">{style.letter}</text>'
    )
    return f'<rect width="24" height="14" rx="2" fill="{style.fill}"/>{hatch}{letters if style.letter else ""}'


def partition_lead(header: Header) -> str:
    """Say what the partitions' legend is about."""
    return "SMs by partition:" if header.partitions else ""


def _partitions_html(header: Header) -> str:
    if not header.partitions:
        return ""
    entries = "".join(
        f'<span class="gsl-name"><svg class="gsl-sms" viewBox="0 0 24 14">{partition_swatch_svg(style)}</svg>'
        f"{escape(text)}</span>"
        for text, style in header.partitions
    )
    more = f'<span class="gsl-name">and {header.more_partitions:,} more</span>' if header.more_partitions else ""
    return f'<p class="gsl-legend"><span class="gsl-name">{partition_lead(header)}</span>{entries}{more}</p>'


def swatch_svg(style: NameStyle) -> str:
    """Draw a name's colour and hatch as SVG shapes, 16 by 12."""
    lines = _SWATCH_PATHS.get(style.hatch)
    hatch = f'<path d="{lines}" stroke="#101418" stroke-opacity=".45" fill="none"/>' if lines else ""
    return f'<rect width="16" height="12" rx="2" fill="{style.fill}"/>{hatch}'


def _kind_entries(trace: Trace, scene: Scene) -> list[tuple[str, NameStyle]]:
    return [
        (f"kind: {SPAN_KINDS[kind].value}", NameStyle(fill="#d5d9dd", hatch=scene.kind_hatch[kind], text=DARK_TEXT))
        for kind in drawn_kinds(trace, scene)
    ]


_SWATCH_PATHS = {
    "/": "M-2 12L10 0M6 12L18 0",
    "\\": "M-2 0L10 12M6 0L18 12",
    "-": "M0 4H16M0 9H16",
    "|": "M4 0V12M10 0V12",
    "x": "M0 0L12 12M12 0L0 12",
    "+": "M4 0V12M11 0V12M0 6H16",
    ".": "M3 3V5M8 3V5M13 3V5M3 8V10M8 8V10M13 8V10",
}


def _finding(result: Overlap) -> str:
    if not result.sum_ns:
        return ""
    if len(result.lanes) < 2:
        return f"Busy {format_share(result.active_ns / result.wall_ns)} of the time; one stream, so nothing can overlap"
    share = format_share(int(result.concurrency_ns[2:].sum()) / result.wall_ns)
    best = f"at best {result.ideal_speedup:.2f}×"
    if SpanKind.RANGE in result.counted:
        gain = f"up to {result.speedup:.2f}× ({best}); ranges contain queueing"
    else:
        gain = f"{result.speedup:.2f}× ({best})"
    return f"2 or more streams busy {share} of the time · speed-up of overlap {gain}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
