"""The timeline, or two, as one HTML page that needs nothing else; and the viewer's scripts and styles, for live views too."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from os import PathLike
from typing import IO, Any

import numpy as np

from gpustreamlab._util.background import thread_pool
from gpustreamlab.analysis import (
    RowTable,
    TraceComparison,
    comparison_tables,
    counted_kinds,
    display_name,
    grid_advice,
    html_of_table,
    sm_kinds,
    summary_text,
    wall_line,
)
from gpustreamlab.draw._card import CardRow
from gpustreamlab.draw._colours import NameLooks, palette_entries, style_entries
from gpustreamlab.draw._columns import pack_columns, to_wide
from gpustreamlab.draw._groups import device_hosts
from gpustreamlab.draw._legend import memory_entries
from gpustreamlab.draw._picture import Header, Picture, draw_figure, header_html, plan_picture, warnings_html
from gpustreamlab.draw._scene import IDLE_PX, Scene, detail_entries, plan_scene
from gpustreamlab.draw._svg import picture_uri, timeline_svg
from gpustreamlab.draw._why import why_tables
from gpustreamlab.model import SPAN_KINDS, Trace, trace_element, write_file_whole, written_entries
from gpustreamlab.typing import FloatArray, NoteKind, SpanKind

_FORMS = ("text/plain", "text/x-wide")  # The types of elements that hold base64, and letters of 7 bits
_ELEMENT_LETTERS = 1 << 20
LEVEL = 6  # How hard spans are compressed: more takes far longer for a percent or two


def write_html(trace: Trace, target: str | PathLike[str] | IO[str], *, with_data: bool = False) -> None:
    """Write a trace's timeline as one page that opens offline."""
    page = timeline_page(trace, with_data=with_data)
    if isinstance(target, (str, PathLike)):
        write_file_whole(target, lambda partial: partial.write_text(page, encoding="utf-8", newline="\n"))
    else:
        target.write(page)


def timeline_page(
    trace: Trace,
    *,
    picture: Picture | None = None,
    why: dict[str, Any] | None = None,
    with_static: bool = True,
    with_data: bool = False,
    with_code: bool = True,
) -> str:
    """Return the page as text; `picture` and `why` are what `plan_picture` and `why_tables` say, where that is known already.

    Without the static picture it is for a frame; without the viewer's code, for a frame beside one that holds it.

    Notes
    -----
    BokehJS, the viewer and the data are compressed; the browser's own `DecompressionStream` (in all since 2023) unpacks them.
    What is compressed is written in letters that can end no script; in a frame, which is an attribute's text, as base64.
    """
    with thread_pool(1) as pool:  # all take long, and numpy works without the interpreter's lock
        asked = None if why is not None else pool.submit(why_tables, trace, int(trace.start_ns.min()) if len(trace) else 0)
        picture = plan_picture(trace) if picture is None else picture
        told = why if asked is None else asked.result()
        static = pool.submit(timeline_svg, trace, picture=picture, why=told) if with_static else None
        data, spans = page_letters(*page_data(picture, why=told), is_wide=with_static)
    advice = grid_advice(trace)
    return fill_template(
        "page.html",
        title=f"{escape(picture.header.title)} ({picture.header.badge.lower()})",
        **code_parts(with_code=with_code, is_wide=with_static),
        header=header_html(picture.header, picture.scene.notes),
        advice=f'<p class="gsl-source">{escape(advice)}</p>' if advice else "",
        # Not as an image: that would be a third larger, and where this is shown no scripts run anyway.
        static="" if static is None else f"<noscript>{static.result()}</noscript>",
        data=data,
        spans=spans,
        trace=f"{trace_element(trace)}\n" if with_data else "",
    )


def code_parts(*, with_code: bool, is_wide: bool = False) -> dict[str, str]:
    """Return what is the same in every page: its style, BokehJS, the viewer, and the script that boots it."""
    whole = _whole_code(is_wide=is_wide)
    return whole if with_code else whole | {"style": "", "bokeh": "", "viewer": "", "boot": viewer_text("frame.js")}


@cache
def _whole_code(*, is_wide: bool) -> dict[str, str]:
    parts = {
        "style": viewer_text("page.css") + viewer_style(),
        "bokeh": bokeh_text(is_wide=is_wide),
        "viewer": viewer_packed(is_wide=is_wide),
        "boot": viewer_text("page.js"),
    }
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    return {**parts, "form": _FORMS[is_wide], "key": f"gslCode{digest[:12]}"}  # frames of another version do not take it


def page_data(
    picture: Picture, tables: dict[str, Any] | None = None, *, why: dict[str, Any] | None = None
) -> tuple[dict[str, Any], bytes]:
    """Return what a viewer draws a picture from: a JSON object with the figure, the tables and the manifest; and the spans."""
    from bokeh.embed import json_item

    if tables is None:
        tables = scene_tables(picture.trace, picture.scene, picture.header, picture.counted)
        tables["why"] = why_tables(picture.trace, picture.scene.zero_ns) if why is None else why
    manifest, spans = pack_columns(picture.columns, level=LEVEL)
    return {"item": json_item(draw_figure(tables)), "tables": tables, "manifest": manifest}, spans


def page_letters(data: dict[str, Any], spans: bytes, *, is_wide: bool = False) -> tuple[str, str]:
    """Return both parts of `page_data` as they stand in a page."""
    letters = _letters(spans, is_wide=is_wide)
    # The browser copies an element's text at each piece of it that comes, so that one of 25 MB would be copied for long.
    pieces = [letters[first : first + _ELEMENT_LETTERS] for first in range(0, len(letters), _ELEMENT_LETTERS)]
    elements = "".join(f'<script type="{_FORMS[is_wide]}">{piece}</script>' for piece in pieces)
    return pack_text(json.dumps(data, separators=(",", ":")), is_wide=is_wide), elements


def _letters(data: bytes, *, is_wide: bool) -> str:
    return to_wide(data) if is_wide else base64.b64encode(data).decode()


def pack_text(text: str, level: int = 6, *, is_wide: bool = False) -> str:
    """Return a text compressed, as letters; the same text always gives the same."""
    return _letters(gzip.compress(text.encode(), level, mtime=0), is_wide=is_wide)


@cache
def bokeh_text(*, is_wide: bool = False) -> str:
    """Return BokehJS, compressed, as letters."""
    return _letters(packed_bokeh(), is_wide=is_wide)


@cache
def viewer_packed(*, is_wide: bool = False) -> str:
    """Return the viewer's scripts, compressed, as letters."""
    return pack_text(viewer_script(), 9, is_wide=is_wide)


def inline_html(
    trace: Trace,
    *,
    words: str | None = None,
    picture: Picture | None = None,
    why: dict[str, Any] | None = None,
    svg: str | None = None,
    with_code: bool = True,
) -> str:
    """Return the timeline as HTML for a notebook's output.

    The frame has no height until its script has drawn; then it takes its place and hides the picture. Where scripts or frames
    are not shown (GitHub, an untrusted notebook), or the viewer's code is nowhere in the notebook, the picture stays.
    """
    picture = plan_picture(trace) if picture is None else picture
    why = why_tables(trace, picture.scene.zero_ns) if why is None else why
    svg = timeline_svg(trace, picture=picture, why=why) if svg is None else svg
    words = summary_text(trace) if words is None else words
    page = timeline_page(trace, picture=picture, why=why, with_static=False, with_code=with_code)
    return (
        '<div class="gpustreamlab-timeline">'
        f'<img class="gsl-picture" style="max-width:100%;height:auto" alt="{escape(words)}" src="{picture_uri(svg)}">'
        f'<iframe title="Timeline" style="width:100%;height:0;border:0;display:block" srcdoc="{escape(page)}"></iframe>'
        "</div>"
    )


@cache
def viewer_text(name: str) -> str:
    """Return one of the viewer's files as text."""
    return files("gpustreamlab.draw").joinpath("viewer", name).read_text(encoding="utf-8")


def viewer_script() -> str:
    """Return all modules as one classic script, which sets ``gpustreamlab`` to what ``viewer/index.js`` exports.

    ``scripts/bundle_viewer.py`` makes it.
    """
    return viewer_text("bundle.js")


@cache
def viewer_style() -> str:
    """Return the style sheet of the viewer; all its rules begin with ``.gsl-``."""
    return viewer_text("viewer.css")


@cache
def packed_bokeh() -> bytes:
    """Return BokehJS, compressed by gzip; the same version always gives the same bytes."""
    from bokeh.resources import Resources

    # Only the core: no widgets, tables, mathematics or WebGL are used.
    text = "\n".join(Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw)
    return gzip.compress(text.encode(), 9, mtime=0)


def fill_template(name: str, **parts: str) -> str:
    """Return a file with each ``%%NAME%%`` replaced by its part; parts go in as they are, and are never looked through."""
    pieces = viewer_text(name).split("%%")
    # Every odd piece is a name: a part that holds %% itself is not split again.
    pieces[1::2] = [parts[piece.lower()] for piece in pieces[1::2]]
    return "".join(pieces)


LISTED_ITEMS = 200  # How many names, and how many lanes, the page lists


def comparison_page(a: Trace, b: Trace, result: TraceComparison, *, with_code: bool = True) -> str:
    """Return the page as text, with the viewer's code or as a frame of a notebook of which another frame holds it."""
    sides = (plan_picture(a), plan_picture(b))
    data_a, data_b = _sides_data(sides)
    notes, is_other_work = result.notes, bool(result.work_note)
    return fill_template(
        "compare.html",
        title="Comparison of two timelines",
        **code_parts(with_code=with_code),
        finding=escape(wall_line(result)),
        warning=warnings_html(notes[:is_other_work]),
        notes=warnings_html(notes[is_other_work:]),
        headera=header_html(sides[0].header, sides[0].scene.notes),
        headerb=header_html(sides[1].header, sides[1].scene.notes, "-b"),
        tables=f'<div class="gsl-tables">{comparison_tables_html(result)}</div>',
        dataa=data_a[0],
        spansa=data_a[1],
        datab=data_b[0],
        spansb=data_b[1],
    )


def comparison_tables_html(result: TraceComparison) -> str:
    """Write the figures of a comparison as HTML tables; every text is escaped."""
    return "".join(map(html_of_table, comparison_tables(result, limit=LISTED_ITEMS)))


def _sides_data(sides: tuple[Picture, Picture]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return data and spans of both timelines as letters: with one length of the axis, one room for names, one look a name."""
    tables = [scene_tables(side.trace, side.scene, side.header, side.counted) for side in sides]
    extent_ns = max(table["extent_ns"] for table in tables)
    border_px = max(table["border_px"] for table in tables)
    looks = NameLooks()
    looks.add([name for side in sides for name in side.trace.names])
    packed = []
    for side, table in zip(sides, tables, strict=True):
        styles = style_entries(looks.add(side.trace.names))
        common = {"extent_ns": extent_ns, "border_px": border_px, "shares_border": True, "name_styles": styles}
        packed.append(page_letters(*page_data(side, table | common)))
    return packed[0], packed[1]


NAME_CHARACTERS = 200  # How many characters of a name, a stream or a thread the viewer gets
_SIGNS = {kind.value for kind in NoteKind}  # Marks that are signs in the viewer, see `why_tables` and ``written``

Tables = dict[str, Any]  # A JSON object; what it holds is said in ``docs/explanations/decisions/0010``


def plan_tables(
    trace: Trace,
    rows: RowTable,
    *,
    zero_ns: int,
    width_ns: float,
    header: Header,
    counted: Sequence[SpanKind] | None = None,
) -> Tables:
    """Plan all that the viewer shows beside the spans."""
    scene = plan_scene(trace, rows, zero_ns=zero_ns, width_ns=width_ns)
    return scene_tables(trace, scene, header, counted_kinds(trace) if counted is None else counted)


def scene_tables(trace: Trace, scene: Scene, header: Header, counted: Sequence[SpanKind]) -> Tables:
    """Write a scene as the viewer's JSON object."""
    meta, on_sms = trace.metadata, sm_kinds(trace, counted)
    return {
        # Wall-clock times have more digits than a number of JavaScript.
        "zero_ns": str(scene.zero_ns),
        "epoch_unix_ns": str(meta.epoch_unix_ns),
        "extent_ns": scene.width_ns,
        "sm_count": scene.sm_count,
        "cards": [{"device": card.ordinal, "sms": card.sm_count} for card in trace.devices],
        "simulated": meta.simulated,
        "header": asdict(header) | {"missing": list(header.missing)},
        "names": [_shown(name) for name in trace.names],
        **palette_entries(),
        "name_styles": style_entries(scene.styles),
        "details": detail_entries(trace.details, meta.device.sm_limits),
        "capture": {"windows": [list(window) for window in scene.windows], "shown": scene.is_partly_captured},
        "memory": memory_entries(trace, scene),
        "threads": [_shown(thread) for thread in trace.threads],
        "kinds": [kind.value for kind in SPAN_KINDS],
        "kind_hatches": list(scene.kind_hatch),
        "kind_counted": [kind in counted for kind in SPAN_KINDS],
        "kind_on_sms": [kind in on_sms for kind in SPAN_KINDS],
        "lanes": _lane_entries(trace, scene),
        "groups": _group_entries(scene),
        "rows": _row_entries(scene),
        "partitions": [{"text": part.text, "sms": part.granted_sms, "band": part.band} for part in scene.partitions],
        "bands": [{"label": band.label, "fill": band.style.fill} | asdict(band.style) for band in scene.bands],
        "own_sms": [[time_ns, list(sms)] for time_ns, sms in scene.own_sms],
        "marks": [{"time": one.time_ns, "text": one.text, "kind": one.kind} for one in scene.marks if one.kind not in _SIGNS],
        "written": written_entries(trace),
        "mark_rows": list(scene.mark_rows),
        "card_rows": [_card_entry(row) for row in scene.card_rows],
        "head_px": scene.head_px,
        "idle_px": IDLE_PX,
        "height_px": _px(scene.height_px),
        "border_px": scene.border_px,
        "notes": list(scene.notes),
    }


def _lane_entries(trace: Trace, scene: Scene) -> list[dict[str, Any]]:
    hosts = device_hosts(trace)
    return [
        {
            # As it is: an expression that selects the lane in a DataFrame is made of it.
            "name": lane.name,
            "label": box.label,
            "detail": box.detail,
            "group": box.group,
            "top": _px(box.top),
            "bottom": _px(box.bottom),
            "host": box.is_host,
            **({"counted": True} if box.is_counted else {}),
            "hue": hue,
            "has_own_hue": is_own,
            "device": lane.device,
            "machine": hosts.get(lane.device, ""),
            "parts": [[part.label, _px(part.top), _px(part.bottom)] for part in box.parts],
        }
        for lane, box, hue, is_own in zip(trace.lanes, scene.lanes, scene.lane_hues, scene.has_own_hue.tolist(), strict=True)
    ]


def _card_entry(row: CardRow) -> dict[str, Any]:
    lines = [{"lane": line.lane, "time": line.time_ns.tolist(), "value": line.value.tolist()} for line in row.lines]
    plain = {name: getattr(row, name) for name in ("device", "kind", "label", "most", "top", "bottom")}
    return plain | ({"lines": lines} if lines else {})


def _group_entries(scene: Scene) -> list[dict[str, Any]]:
    return [
        {
            "label": box.group.label,
            "detail": box.group.detail,
            "fill": box.group.style.fill,
            **asdict(box.group.style),
            "top": _px(box.top),
            "head_bottom": _px(box.head_bottom),
            "bottom": _px(box.bottom),
        }
        for box in scene.groups
    ]


def _row_entries(scene: Scene) -> list[dict[str, Any]]:
    lane, overlaps, pale = scene.rows.lane.tolist(), scene.rows.overlaps.tolist(), scene.row_pale.tolist()
    top, bottom = scene.row_top.round(2).tolist(), scene.row_bottom.round(2).tolist()
    inner = (scene.rows.layer == 0) & (scene.row_top > _first_tops(scene)[scene.rows.lane])
    return [
        {"lane": code, "top": above, "bottom": below, "overlaps": overlap}
        | ({"pale": True} if stands_back else {})
        | ({"inner": True} if is_inner else {})
        for code, above, below, overlap, stands_back, is_inner in zip(
            lane, top, bottom, overlaps, pale, inner.tolist(), strict=True
        )
    ]


def _first_tops(scene: Scene) -> FloatArray:
    """Return where the first row of each lane begins: ranges in others lie within those in it; shape (n_lanes,)."""
    tops = np.full(len(scene.lanes), np.inf)
    np.minimum.at(tops, scene.rows.lane, scene.row_top)
    return tops


def _shown(name: str) -> str:
    return display_name(name, NAME_CHARACTERS)


def _px(place: float) -> float:
    return round(place, 2)
