"""The picture of a trace: its plan, what stands above it, and its Bokeh figure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from gpustreamlab._util.background import thread_pool
from gpustreamlab.analysis import (
    Basis,
    Overlap,
    basis_of,
    busy_word,
    captured_by,
    concurrency,
    count_text,
    counted_rows,
    counts_text,
    display_name,
    empty_hint,
    finding_text,
    format_ns,
    lanes_text,
    maker_of,
    missing_facts,
    partition_warnings,
    pending_text,
    sm_kinds,
    span_rows,
    sweep,
    told_ns,
    trace_facts,
    used_stream_count,
)
from gpustreamlab.draw._columns import SpanColumns, columns_of
from gpustreamlab.draw._groups import plan_bands
from gpustreamlab.draw._scene import Scene, plan_scene, stray_facts
from gpustreamlab.draw._why import missing_order_count
from gpustreamlab.model import NO_COMMON_TIME, UNNAMED_SOURCE, Trace, TraceMetadata
from gpustreamlab.typing import CaptureTier, Int64Array, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Picture:
    """A trace, laid out and counted."""

    trace: Trace  # The spans
    columns: SpanColumns  # The spans as they are drawn: by row, then by start
    scene: Scene  # Where everything is
    header: Header  # What stands above it
    counted: tuple[SpanKind, ...]  # Kinds of spans that count as busy time
    steps: tuple[Int64Array, Int64Array]
    """When the number of busy lanes changes, on the trace's clock, and to what, as `count_steps` returns."""


def plan_picture(trace: Trace) -> Picture:
    """Lay out a trace, and find what is to be said about it."""
    with thread_pool(1) as pool:
        # Sorting takes most of the time, and numpy sorts without the interpreter's lock.
        found = pool.submit(basis_of, trace)
        counting = pool.submit(lambda: _count(trace, found.result().counted))
        rows, codes = span_rows(trace)
        basis = found.result()
        scene = plan_scene(trace, rows)
        columns = columns_of(trace, codes, scene.zero_ns)
        steps, result = counting.result()
    finding = finding_text(result)
    return Picture(
        trace=trace,
        columns=columns,
        scene=scene,
        header=plan_header(trace, finding=finding, basis=basis),
        counted=basis.counted,
        steps=steps,
    )


def _count(trace: Trace, counted: tuple[SpanKind, ...]) -> tuple[tuple[Int64Array, Int64Array], Overlap]:
    return sweep(trace, counted).steps.steps, concurrency(trace, counted)


FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"  # The font of all texts
EMPTY_WINDOW_NS = 1e6  # How much time a figure shows in which nothing ran yet
FIRST_HEIGHT_PX = 300  # Height until the viewer has planned the lanes; it sets the height before the figure is drawn


def draw_figure(tables: Mapping[str, Any]) -> Any:
    """Make the figure of a timeline: a time axis with its grid, and ranges.

    Examples
    --------
    >>> plot = draw_figure({"extent_ns": 2e6, "border_px": 120})
    >>> plot.x_range.start, plot.x_range.end, plot.tools
    (-20000.0, 2020000.0, [])
    """
    from bokeh.models import Range1d
    from bokeh.plotting import figure

    width_ns = float(tables["extent_ns"]) or EMPTY_WINDOW_NS
    plot = figure(
        name="timeline",
        x_range=Range1d(-0.01 * width_ns, 1.01 * width_ns, min_interval=10),
        y_range=Range1d(FIRST_HEIGHT_PX, 0),
        height=FIRST_HEIGHT_PX,
        sizing_mode="stretch_width",
        tools="",  # The viewer moves the picture itself, and has keys and a menu, with names.
        toolbar_location=None,
        x_axis_location="above",
        min_border_left=int(tables["border_px"]),
        min_border_right=20,
        min_border_top=2,
        min_border_bottom=2,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
        lod_threshold=None,
    )
    # Bokeh warns of a figure without renderers; the viewer takes this one out.
    plot.scatter([], [], visible=False)
    plot.yaxis.visible = False
    plot.ygrid.visible = False
    axis = plot.xaxis[0]
    axis.ticker = plot.xgrid[0].ticker = _time_ticker()
    axis.major_label_text_font = FONT
    axis.major_label_text_font_size = "12px"
    axis.axis_label = None  # Far from 0 the viewer writes from when on the ticks count.
    axis.minor_tick_line_color = None
    return plot


def _time_ticker() -> Any:
    """Return a ticker for nanoseconds: decimal steps up to 20 s, then minutes and hours."""
    from bokeh.models import AdaptiveTicker, CompositeTicker

    count = {"desired_num_ticks": 6, "num_minor_ticks": 0}
    short = AdaptiveTicker(mantissas=[1, 2, 5], base=10, max_interval=20e9, **count)
    long = AdaptiveTicker(mantissas=[1, 2, 5, 10, 15, 30], base=60, min_interval=60e9, **count)
    return CompositeTicker(tickers=[short, long], **count)


BARS_CONTAIN_WAITING = "bars contain waiting"  # What the first line of a picture of ranges says

_SMS_BY_RANGES = "SMs in use: at most; a partition counts as a whole while a range is open in it, also one that only copies"
_SMS_BY_KERNELS = "SMs in use: at most; a partition counts as a whole while one of its kernels runs"

_DOUBT_HEAD = re.compile(r"[:.]( |$)")  # Where the first words end of what speaks against a trace
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
    sentence: str  # What ran, on what, and how long
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
    basis = basis_of(trace) if basis is None else basis
    if width_ns is None:
        width_ns = float(told_ns(trace, basis.counted))
    counts_ranges = SpanKind.RANGE in basis.counted
    sms_fact = _SMS_BY_RANGES if counts_ranges else _SMS_BY_KERNELS
    span_count = len(trace) if span_count is None else span_count
    pending = meta.pending_spans if pending_count is None else pending_count
    order_count = missing_order_count(trace)
    strayed, is_enforced = stray_facts(trace), trace.layout is None or trace.layout.is_enforced
    counts = counts_text(trace, span_count)
    length = f" · {format_ns(width_ns)}" if span_count else ""
    return Header(
        title=display_name(meta.title) if meta.title else "Timeline",
        badge=badge_of(meta),
        tier=tier_text(meta, basis.tier),
        busy_word=busy_word(basis.counted),
        counts_ranges=counts_ranges,
        sentence=_sentence(trace, format_ns(width_ns) if span_count else ""),
        lost=", ".join(
            [
                *([_DOUBT_HEAD.split(meta.doubt)[0]] if meta.doubt else []),
                *([count_text(order_count, "hazard")] if order_count else []),
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
        missing=(
            *_hazard_facts(order_count),
            *map(maker_of(trace).words, missing_facts(meta)),
            *strayed,
            *partition_warnings(trace),
        ),
        empty=pending_text(pending, meta) if pending else empty_hint(meta),
    )


def _sentence(trace: Trace, length: str) -> str:
    """Say what ran, on what, how long: in the partitions in which spans are, or on how many streams."""
    own = plan_bands(trace) if len(trace.devices) == 1 else ()  # else it would leave out the other cards
    ran = {trace.partitions[code].name for code in np.unique(trace.partition[trace.partition >= 0]).tolist()}
    is_known = len(trace) > 0  # a live view's trace holds no spans
    used = [band for band in own if band.name is not None and (band.name in ran or not is_known)]
    bands = [band.label.replace(" · ", " (", 1) + ")" for band in used]
    if bands and (counted_rows(trace, sm_kinds(trace)) & (trace.partition < 0)).any():
        bands.append("on all SMs")
    streams = used_stream_count(trace)
    where = count_text(streams, "stream") if streams else lanes_text(trace)
    if 0 < len(bands) <= LISTED_PARTITIONS:
        where += f" in {', '.join(bands[:-1])}{' and ' if bands[1:] else ''}{bands[-1]}"
    elif bands:
        where += f" in {len(bands):,} partitions"
    card = display_name(trace.metadata.device_name, 40)
    if len(trace.devices) == 1 and (sms := trace.metadata.device.sm_count):
        card += f" ({sms:,} SMs)"
    on = f" on {card}" if streams or trace.metadata.device.sm_count else ""  # a file of the host alone tells of no device
    return f"{where}{on}{length and f' · {length}'}"


def badge_of(meta: TraceMetadata) -> str:
    """Say in a word or two where the times come from."""
    known = (
        *(("PREDICTED", meta.is_predicted), ("SIMULATED", meta.simulated), ("FROM COLUMNS", meta.is_from_columns)),
        ("FROM A FILE", meta.capture_source == UNNAMED_SOURCE),
    )
    return next((badge for badge, is_so in known if is_so), "MEASURED")


def _hazard_facts(count: int) -> list[str]:
    return [f"{count_text(count, 'hazard')}: accesses of an array that nothing orders"] if count else []


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
