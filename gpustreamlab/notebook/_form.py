"""The partitioner's form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpustreamlab.draw import grid_of, partition_style, plan_sm_map, sm_map_svg, sm_map_text
from gpustreamlab.model import Device, Partition
from gpustreamlab.notebook._state import DraftRow, PartitionerState, Plan, Problem
from gpustreamlab.typing import Rounding

_MOST_NAMES = 3  # Streams that the label of Apply names; more are counted

_CLOSED = "The session is closed: this is the layout that it had at the end. Start another with gpustreamlab.Session()."

_ROUNDING_TEXTS = {
    Rounding.UP: "up: at least what is asked",
    Rounding.DOWN: "down: at most what is asked",
    Rounding.EXACT: "exact: or refuse",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the session tells about its streams."""

    streams: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the streams by partition in use, "" for the whole card."""
    moves: tuple[str, ...] = ()  # Names of the streams that the draft would drain and move
    refusal: str = ""  # Why the session would refuse the draft; empty where it would not


def view_of(state: PartitionerState, around: Surroundings) -> dict[str, Any]:
    """Return all that the page draws."""
    plan = state.plan
    can_edit = not (state.obstacle or state.is_closed)
    problem, shown = plan.problem, [state.kept.get(row.key, 0) for row in state.rows]
    if plan.layout is not None:
        shown = [part.granted_sms for part in plan.layout]
    elif problem is not None and problem.nearest:  # the nearest plan that works
        shown = [problem.nearest.get(row.name, 0) for row in state.rows]
    return {
        "device": _device_view(state.device),
        "rows": [_row_view(state, plan, place, around) for place in range(len(state.rows))],
        "whole_card": _whole_card_text(state, around),
        "runs": [{"key": row.key, "sms": sms} for row, sms in zip(state.rows, shown, strict=False)],
        "located": _located(state, shown),
        "is_nearest_shown": problem is not None and bool(problem.nearest),
        "boundaries": _boundary_views(state) if can_edit else [],
        "rounding": str(state.rounding),
        "roundings": [{"value": str(rounding), "text": text} for rounding, text in _ROUNDING_TEXTS.items()],
        "problem": problem and {"text": _problem_text(problem), "key": problem.key, "nearest": _nearest_text(problem)},
        "python_line": "" if state.obstacle else state.python_line,
        "obstacle": _CLOSED if state.is_closed else state.obstacle,
        "can_edit": can_edit,
        "can_verify": can_edit and state.applied is not None,
        "is_dirty": state.is_dirty,
        "apply": _apply_view(state, plan, around, can_edit=can_edit),
        "notice": state.notice,
        "is_notice_bad": state.is_notice_bad,
    }


def _whole_card_text(state: PartitionerState, around: Surroundings) -> str:
    """Name the streams that are in no partition, where that means sharing SMs with the partitions."""
    names = around.streams.get("", ())
    if not names or not state.rows:
        return ""
    verb = "has" if len(names) == 1 else "have"
    return (
        f"{_listed(names)} {verb} the whole card, and so {'shares' if len(names) == 1 else 'share'} SMs with every partition."
    )


def _device_view(device: Device) -> dict[str, Any]:
    grid, resource = grid_of(device), device.sm_resource
    facts = f"{device.sm_count} SMs"
    if resource is not None:
        facts += f" · at least {resource.min_sms} a partition, in steps of {resource.group_sms}"
        if resource.remainder_sms:
            facts += f" · one partition can have the {resource.remainder_sms} left over"
    return {
        "name": device.name,
        "facts": facts,
        "is_simulated": device.simulated,
        "sm_count": device.sm_count,
        "row_count": grid.row_count,
        "column_count": grid.column_count,
    }


def _located(state: PartitionerState, shown: list[int]) -> list[list[int]]:
    """Return the keys of the partitions seen on each SM, by its id, as the map of the card draws it.

    Empty where what is shown is not what is in use, where nobody has seen which SMs those are, and where ids have gaps: then
    only the counts are known.
    """
    in_use = [(part.name, part.granted_sms) for part in state.applied or ()]
    if [(row.origin, sms) for row, sms in zip(state.rows, shown, strict=True)] != in_use:
        return []
    plan = plan_sm_map(state.device, state.applied)
    if plan.loose or len(plan.located) != state.device.sm_count or not any(plan.located):
        return []
    return [[state.rows[place].key for place in places] for places in plan.located]


def _row_view(state: PartitionerState, plan: Plan, place: int, around: Surroundings) -> dict[str, Any]:
    row, style = state.rows[place], partition_style(state.rows[place].look)
    part = plan.layout.partitions[place] if plan.layout is not None else None
    if part is None and state.obstacle and state.applied is not None:
        part = state.applied.partitions[place]
    problem = plan.problem if plan.problem is not None and plan.problem.key == row.key else None
    proof, is_proof_bad = _proof(state, row, part)
    more_sms = 0 if part is None else part.granted_sms - part.requested_sms
    difference = f"{abs(more_sms)} {'more' if more_sms > 0 else 'fewer'} than asked"
    if not more_sms:
        difference = "" if part is None else "as asked"
    return {
        "key": row.key,
        "letter": style.letter,
        "fill": style.fill,
        "name": row.name,
        "request": row.request,
        "requested_sms": None if part is None else part.requested_sms,
        "granted_sms": None if part is None else part.granted_sms,
        "difference": difference,
        "renamed_from": row.origin if row.origin not in {None, row.name} else None,
        "problem": "" if problem is None else _problem_text(problem),
        "is_name_bad": problem is not None and problem.is_name,
        "is_request_bad": problem is not None and not problem.is_name,
        "streams": list(around.streams.get(row.origin or "", ())),
        "proof": proof,
        "is_proof_bad": is_proof_bad,
    }


def _proof(state: PartitionerState, row: DraftRow, part: Partition | None) -> tuple[str, bool]:
    """Say what was seen of a partition, and whether that is not what was granted."""
    applied, origin = state.applied, row.origin
    used = applied[origin] if applied is not None and origin is not None and origin in applied else None
    if used is None or part is None or (used.granted_sms, used.groups) != (part.granted_sms, part.groups):
        return ("in use after Apply", False) if part is not None and not state.obstacle else ("", False)
    if used.sm_ids is None:
        return "not verified", False
    seen_text = f"{len(used.sm_ids)} of {used.granted_sms} SMs seen"
    is_short = len(used.sm_ids) != used.granted_sms
    verification = state.verification
    if verification is None:
        return seen_text, is_short
    outside = sorted({sm for one in verification.streams if one.partition == used.name for sm in one.outside})
    shared = [pair for pair in verification.shared if used.name in pair[:2]]
    notes = [f"{len(outside)} outside"] if outside else []
    notes += [f"{count} shared with {second if first == used.name else first}" for first, second, count in shared]
    return ", ".join([seen_text, *notes, *([] if notes or is_short else ["none outside"])]), bool(notes) or is_short


def _boundary_views(state: PartitionerState) -> list[dict[str, Any]]:
    names: dict[int | None, str] = {row.key: row.name for row in state.rows}
    return [
        asdict(boundary)
        | {
            "stops": list(boundary.stops),
            "label": f"Boundary between {names[boundary.left]} and {names.get(boundary.right, 'the SMs in no partition')}",
            "left_name": names[boundary.left],
            "right_name": names.get(boundary.right, "in no partition"),
        }
        for boundary in state.boundaries
    ]


def _problem_text(problem: Problem) -> str:
    """Return what is wrong, without the plan that a button offers anyway."""
    return problem.text.removesuffix(f" The nearest plan that works: {_nearest_text(problem)}.")


def _nearest_text(problem: Problem) -> str:
    return ", ".join(f"{name}={sms}" for name, sms in problem.nearest.items())


def _apply_view(state: PartitionerState, plan: Plan, around: Surroundings, *, can_edit: bool) -> dict[str, Any]:
    """Return the label of Apply, what it would do in words, and whether it can be pressed."""
    if not can_edit:
        return {"label": "Apply", "detail": "", "is_enabled": False}
    if plan.problem is not None:
        return {"label": "Apply", "detail": "There is nothing to apply until the draft has a plan.", "is_enabled": False}
    if not state.is_dirty:
        detail = "In use as shown." if state.applied is not None else "No partitions: every stream may use the whole card."
        return {"label": "Apply", "detail": detail, "is_enabled": False}
    if around.refusal:
        return {"label": "Apply", "detail": around.refusal, "is_enabled": False, "is_refused": True}
    if not around.moves:
        return {"label": "Apply", "detail": "No stream has to move, so nothing waits.", "is_enabled": True}
    what = f"stream{'' if len(around.moves) == 1 else 's'} {_listed(around.moves)}"
    detail = f"Waits until the work in {', '.join(around.moves)} is done, then moves. Other streams go on."
    return {"label": f"Apply: drains and moves {what}", "detail": detail, "is_enabled": True}


def _listed(names: tuple[str, ...]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"


def forms_of(state: PartitionerState, view: Mapping[str, Any]) -> dict[str, str]:
    """Return the map of the card, as a picture and as text, for those who show no widgets; by mime type."""
    problem = state.plan.problem
    layout = state.applied if state.obstacle or state.is_closed or problem is not None else state.plan.layout
    draft = "A draft: not in use." if state.is_dirty and problem is None else ""
    lines = [view["obstacle"], "" if problem is None else _problem_text(problem), draft, view["python_line"], _AGAIN]
    facts: dict[str, Any] = {"device": state.device, "layout": layout, "title": f"SM partitions of {state.device.name}"}
    lines = [line for line in lines if line]
    svg = sm_map_svg(**facts, lines=lines)
    return {"image/svg+xml": svg, "text/plain": "\n".join([sm_map_text(**facts), *lines])}


_AGAIN = "This is its last state: lab.partitions.widget() shows it live."
