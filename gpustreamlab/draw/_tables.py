"""What the viewer in the browser knows beside the spans: lanes, rows, names, partitions, marks, as a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gpustreamlab.analysis import RowTable, counted_kinds, display_name, sm_kinds
from gpustreamlab.draw._colours import palette_entries, style_entries
from gpustreamlab.draw._groups import device_hosts
from gpustreamlab.draw._header import Header
from gpustreamlab.draw._legend import memory_entries
from gpustreamlab.draw._scene import Scene, detail_entries, plan_scene
from gpustreamlab.model import SPAN_KINDS, Trace, written_entries
from gpustreamlab.typing import NoteKind, SpanKind

FORMAT = 3
"""Version of the object; a viewer refuses one that it does not know."""

NAME_CHARACTERS = 200
"""How many characters of a name, a stream or a thread the viewer gets."""

_SIGNS = {kind.value for kind in NoteKind}
"""Marks that are signs in the viewer, see `why_tables` and ``written``."""

Tables = dict[str, Any]
"""A JSON object; what it holds is said in ``docs/explanations/decisions/0010``."""


def plan_tables(
    trace: Trace,
    rows: RowTable,
    *,
    zero_ns: int,
    width_ns: float,
    header: Header,
    counted: Sequence[SpanKind] | None = None,
) -> Tables:
    """Plan all that the viewer shows beside the spans.

    Parameters
    ----------
    trace
        The tables; it may have no spans, as those of a live view come later.
    rows
        The rows, by the codes that spans refer to. They may be more at the next call, and their places others.
    zero_ns
        The trace's time at which the axis has its 0.
    width_ns
        How far the spans reach from there.
    header
        The facts above the picture.
    counted
        Kinds of spans that count as busy time; None for those of the trace.
    """
    scene = plan_scene(trace, rows, zero_ns=zero_ns, width_ns=width_ns, strip_word=header.busy_word)
    return scene_tables(trace, scene, header, counted_kinds(trace) if counted is None else counted)


def scene_tables(trace: Trace, scene: Scene, header: Header, counted: Sequence[SpanKind]) -> Tables:
    """Write a scene as the viewer's JSON object."""
    meta, on_sms = trace.metadata, sm_kinds(trace, counted)
    return {
        "format": FORMAT,
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
        "details": detail_entries(trace.details),
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
            "hue": hue,
            "has_own_hue": is_own,
            "device": lane.device,
            "machine": hosts.get(lane.device, ""),
            "parts": [[part.label, _px(part.top), _px(part.bottom)] for part in box.parts],
        }
        for lane, box, hue, is_own in zip(trace.lanes, scene.lanes, scene.lane_hues, scene.has_own_hue.tolist(), strict=True)
    ]


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
    return [
        {"lane": code, "top": above, "bottom": below, "overlaps": overlap} | ({"pale": True} if stands_back else {})
        for code, above, below, overlap, stands_back in zip(lane, top, bottom, overlaps, pale, strict=True)
    ]


def _shown(name: str) -> str:
    return display_name(name, NAME_CHARACTERS)


def _px(place: float) -> float:
    return round(place, 2)
