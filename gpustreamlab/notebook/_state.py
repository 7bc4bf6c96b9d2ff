"""The state of the partitioner and what each action makes of it: values and pure functions, no widget and no device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from gpustreamlab.analysis import REST, plan_partitions
from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.model import Device, Layout, Verification, WorkqueueOptions
from gpustreamlab.notebook._draft import MAX_NAME_TYPED, MAX_REQUEST_TYPED, DraftRow, Plan, plan_draft, python_line, rows_of
from gpustreamlab.typing import Rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The line between two partitions, or between the last one and the SMs in no partition."""

    left: int
    """Key of the partition before it."""
    right: int | None
    """Key of the partition behind it; None for the SMs in no partition."""
    left_sms: int
    """SMs that the partition before it has now."""
    both_sms: int
    """SMs of both sides together."""
    stops: tuple[int, ...]
    """SMs that the partition before it can have while all other partitions keep theirs, ascending."""

    def nearest(self, left_sms: int) -> int:
        """Return the stop that is nearest to a wish."""
        return min(self.stops, key=lambda stop: (abs(stop - left_sms), stop))


def boundaries_of(
    rows: Sequence[DraftRow], layout: Layout, device: Device, rounding: Rounding, workqueue: WorkqueueOptions | None
) -> tuple[Boundary, ...]:
    """Return the boundaries of a draft that gives a layout, in its order."""
    parts = layout.partitions
    found = []
    for place, (row, part) in enumerate(zip(rows, parts, strict=True)):
        is_last = place + 1 == len(parts)
        both_sms = part.granted_sms + (layout.remainder_sms if is_last else parts[place + 1].granted_sms)
        stops = {part.granted_sms}
        for left_sms in grantable_sms(device):
            moved = moved_rows(rows, place, left_sms, None if is_last else both_sms - left_sms)
            wanted = [other.granted_sms for other in parts]
            wanted[place : place + 2] = [left_sms] if is_last else [left_sms, both_sms - left_sms]
            if left_sms <= both_sms and min(wanted) > 0 and _grants(moved, device, rounding, workqueue) == wanted:
                stops.add(left_sms)
        right = None if is_last else rows[place + 1].key
        found.append(
            Boundary(left=row.key, right=right, left_sms=part.granted_sms, both_sms=both_sms, stops=tuple(sorted(stops)))
        )
    return tuple(found)


def moved_rows(rows: Sequence[DraftRow], place: int, left_sms: int, right_sms: int | None) -> tuple[DraftRow, ...]:
    """Return the rows with SMs moved over one boundary; who asks for the rest goes on doing so where that still holds."""
    moved = list(rows)
    for at, sms in ((place, left_sms), (place + 1, right_sms)):
        if sms is not None and (right_sms is None or moved[at].request.strip().lower() != REST):
            moved[at] = replace(moved[at], request=str(sms))
    return tuple(moved)


def grantable_sms(device: Device) -> tuple[int, ...]:
    """Return all sizes that a partition of a device can have, ascending."""
    resource = device.sm_resource
    if resource is None:
        return ()
    groups = [count * resource.group_sms for count in range(resource.group_count + 1)]
    sizes = {*groups, *(sms + resource.remainder_sms for sms in groups)}
    return tuple(sorted(sms for sms in sizes if sms > 0))


def _grants(
    rows: Sequence[DraftRow], device: Device, rounding: Rounding, workqueue: WorkqueueOptions | None
) -> list[int] | None:
    try:
        layout = plan_partitions({row.name: row.share for row in rows}, device, round=rounding, workqueue=workqueue)
    except GPUStreamLabError:
        return None
    return [part.granted_sms for part in layout]


Number = int | float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionerState:
    """What is in use, what stands in the fields, and what was said last."""

    device: Device
    """Whose SMs are shared out."""
    obstacle: str = ""
    """Why the device cannot partition its SMs; empty where it can."""
    applied: Layout | None = None
    """The layout in use; None for the whole card."""
    rows: tuple[DraftRow, ...] = ()
    """The draft, in the order of the card; no rows ask for the whole card."""
    rounding: Rounding = Rounding.UP
    """What to grant where a count cannot be met."""
    edited: int | None = None
    """The key of the row that was edited last."""
    next_key: int = 0
    """The key of the next new row."""
    notice: str = ""
    """What came of the last action, where the screen does not show it anyway."""
    is_notice_bad: bool = False
    """Whether that was a failure."""
    verification: Verification | None = None
    """What was seen of the layout in use."""
    is_closed: bool = False
    """True once the session is closed: the state can be read, not changed."""

    @property
    def workqueue(self) -> WorkqueueOptions | None:
        """How partitions share work queues: as in the layout in use."""
        return None if self.applied is None else self.applied.workqueue

    @property
    def plan(self) -> Plan:
        """What the draft gives."""
        if self.obstacle:
            return Plan()
        return plan_draft(self.rows, self.device, self.rounding, self.workqueue, self.edited)

    @property
    def is_dirty(self) -> bool:
        """True if the draft is not what is in use."""
        if self.obstacle:
            return False
        plan = self.plan
        return plan.problem is not None or bool(self.renamed) or _facts(plan.layout) != _facts(self.applied)

    @property
    def renamed(self) -> dict[str, str]:
        """New names of partitions in use, by their old names, so that their streams follow."""
        return {row.origin: row.name for row in self.rows if row.origin is not None and row.origin != row.name}

    @property
    def boundaries(self) -> tuple[Boundary, ...]:
        """Where the boundaries between partitions can stand; none where the draft has a problem."""
        layout = self.plan.layout
        return () if layout is None else boundaries_of(self.rows, layout, self.device, self.rounding, self.workqueue)

    @property
    def python_line(self) -> str:
        """The Python line that asks for the same."""
        return python_line(self.rows, self.rounding, self.workqueue, self.renamed)


def start(device: Device, applied: Layout | None, obstacle: str = "") -> PartitionerState:
    """Return the state that shows a layout in use and has nothing to apply."""
    rows = rows_of(applied, 0)
    return PartitionerState(device=device, obstacle=obstacle, applied=applied, rows=rows, next_key=len(rows))


def set_name(state: PartitionerState, key: int, text: str) -> PartitionerState:
    """Rename a partition."""
    return _edit(state, key, name=text.strip()[:MAX_NAME_TYPED])


def set_request(state: PartitionerState, key: int, text: str) -> PartitionerState:
    """Ask for other SMs, a share, or ``rest``."""
    return _edit(state, key, request=text.strip()[:MAX_REQUEST_TYPED])


def set_rounding(state: PartitionerState, text: str) -> PartitionerState:
    """Choose what is granted where a count cannot be met."""
    if text not in list(Rounding):
        return say(state, f"Unknown rounding {text[:20]!r}; choose from {', '.join(Rounding)}.", is_bad=True)
    return replace(state, rounding=Rounding(text), notice="")


def move_boundary(state: PartitionerState, left: int, sms: Number) -> PartitionerState:
    """Give the partition before a boundary so many SMs, or as near as the device can, and its neighbour the others.

    Parameters
    ----------
    state
        The state before.
    left
        The key of the partition before the boundary.
    sms
        SMs wished for it.
    """
    boundary = next((boundary for boundary in state.boundaries if boundary.left == left), None)
    if boundary is None:
        return say(state, "That boundary is gone: the partitions changed meanwhile.", is_bad=True)
    left_sms = boundary.nearest(int(sms))
    if left_sms == boundary.left_sms:
        return replace(state, notice="")
    place = _place_of(state, left)
    right_sms = None if boundary.right is None else boundary.both_sms - left_sms
    return replace(state, rows=moved_rows(state.rows, place, left_sms, right_sms), edited=left, notice="")


def drag_boundary(state: PartitionerState, left: int, by_sms: Number) -> PartitionerState:
    """Move a boundary by so many SMs, or as near as the device can; see `move_boundary`."""
    place = _place_of(state, left)
    layout = state.plan.layout
    if place < 0 or layout is None:
        return say(state, "That boundary is gone: the partitions changed meanwhile.", is_bad=True)
    return move_boundary(state, left, layout.partitions[place].granted_sms + int(by_sms))


def add(state: PartitionerState) -> PartitionerState:
    """Add a partition: half of the card if it is the first, else the SMs in no partition, else half of the largest."""
    plan = state.plan
    if plan.problem is not None:
        return say(state, "Correct the draft first; then there is a plan to add a partition to.", is_bad=True)
    row = DraftRow(key=state.next_key, name=_free_name(state), request="")
    ways = [_append] if plan.layout is None else [_append, _split_largest]
    for way in ways:
        grown = way(state, plan.layout, row)
        if grown is not None:
            return replace(grown, edited=row.key, next_key=state.next_key + 1, notice="")
    return say(state, "There is no room for another partition: each has the fewest SMs that the device grants.", is_bad=True)


def remove(state: PartitionerState, key: int) -> PartitionerState:
    """Take a partition away; its SMs are then in no partition."""
    return replace(state, rows=tuple(row for row in state.rows if row.key != key), notice="")


def clear(state: PartitionerState) -> PartitionerState:
    """Ask for no partitions at all."""
    return replace(state, rows=(), notice="")


def revert(state: PartitionerState) -> PartitionerState:
    """Go back to what is in use."""
    return replace(_as_applied(state), edited=None, notice="")


def use_nearest(state: PartitionerState) -> PartitionerState:
    """Ask for the nearest plan that works instead of the one that does not."""
    problem = state.plan.problem
    if problem is None or not problem.nearest:
        return state
    rows = tuple(replace(row, request=str(problem.nearest.get(row.name, row.request))) for row in state.rows)
    return replace(state, rows=rows, notice="")


def take_layout(state: PartitionerState, layout: Layout | None) -> PartitionerState:
    """Take note of the layout that is in use now.

    A draft that asks for it stays as it was typed; a draft with other changes stays too, and the notice says so; else the
    fields follow.
    """
    is_same = _facts(state.applied) == _facts(layout)
    taken = replace(state, applied=layout, verification=state.verification if is_same else None)
    plan = state.plan
    if state.obstacle or not state.is_dirty:
        return _as_applied(taken)
    if plan.problem is None and _facts(plan.layout) == _facts(layout):
        return replace(taken, rows=tuple(replace(row, origin=row.name) for row in state.rows))
    if is_same:
        return taken
    names = () if layout is None else layout.names
    rows = tuple(replace(row, origin=row.origin if row.origin in names else None) for row in state.rows)
    return say(replace(taken, rows=rows), "The layout was changed elsewhere. Your draft is kept; Revert shows what is in use.")


def take_verification(state: PartitionerState, verification: Verification) -> PartitionerState:
    """Take note of what was seen."""
    headline = str(verification).splitlines()[0]
    text = f"In use, not the draft: {headline}" if state.is_dirty else headline
    return replace(say(state, text, is_bad=not verification.holds), verification=verification)


def take_closed(state: PartitionerState, layout: Layout | None) -> PartitionerState:
    """Take note that the session is closed, with the layout that it had; a draft goes."""
    return replace(_as_applied(replace(state, applied=layout)), is_closed=True, notice="", is_notice_bad=False)


def say(state: PartitionerState, text: str, *, is_bad: bool = False) -> PartitionerState:
    """Say what came of an action."""
    return replace(state, notice=text, is_notice_bad=is_bad)


def act(state: PartitionerState, action: object) -> PartitionerState:
    """Return the state after an action that the page asked for; whatever it sent, this raises nothing.

    Parameters
    ----------
    state
        The state before.
    action
        A mapping: ``do`` names the action, its other items are the arguments.
    """
    name = action.get("do") if isinstance(action, Mapping) else None
    if not isinstance(action, Mapping) or not isinstance(name, str) or name not in _ACTIONS:
        return say(state, "The page asked for something that this widget does not know. Reload the page.", is_bad=True)
    if state.is_closed or state.obstacle:
        return state
    function, kinds = _ACTIONS[name]
    values = {argument: action.get(argument) for argument in kinds}
    if not all(_is(values[argument], kind) for argument, kind in kinds.items()):
        return say(state, f"The page sent {name} without what it needs. Reload the page.", is_bad=True)
    if "key" in kinds and _place_of(state, values["key"]) < 0:
        return say(state, "That partition is gone: the partitions changed meanwhile.", is_bad=True)
    return function(state, **values)


_ACTIONS: dict[str, tuple[Callable[..., PartitionerState], dict[str, type]]] = {
    "set_name": (set_name, {"key": int, "text": str}),
    "set_request": (set_request, {"key": int, "text": str}),
    "set_rounding": (set_rounding, {"text": str}),
    "move_boundary": (move_boundary, {"left": int, "sms": int}),
    "drag_boundary": (drag_boundary, {"left": int, "by_sms": int}),
    "add": (add, {}),
    "remove": (remove, {"key": int}),
    "clear": (clear, {}),
    "revert": (revert, {}),
    "use_nearest": (use_nearest, {}),
}


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _edit(state: PartitionerState, key: int, **changes: str) -> PartitionerState:
    rows = tuple(replace(row, **changes) if row.key == key else row for row in state.rows)  # type: ignore[arg-type] # fields are str
    return replace(state, rows=rows, edited=key, notice="")


def _as_applied(state: PartitionerState) -> PartitionerState:
    """Return the state with the rows that ask for what is in use; who was there before keeps its key."""
    keys: dict[str | None, int] = {row.origin: row.key for row in state.rows if row.origin is not None}
    fresh = rows_of(state.applied, state.next_key)
    rows = tuple(replace(row, key=keys.get(row.origin, row.key)) for row in fresh)
    return replace(state, rows=rows, next_key=state.next_key + len(rows))


def _place_of(state: PartitionerState, key: object) -> int:
    return next((place for place, row in enumerate(state.rows) if row.key == key), -1)


def _facts(layout: Layout | None) -> list[tuple[object, ...]]:
    """Return what makes two layouts the same for the user: names, requests, grants and options, not which SMs."""
    facts = attrgetter("name", "requested_sms", "granted_sms", "coscheduled_sms", "preferred_coscheduled_sms", "backfill")
    return list(map(facts, layout or ()))


def _free_name(state: PartitionerState) -> str:
    taken = {row.name for row in state.rows} | {row.origin for row in state.rows}
    return next(name for number in range(1, len(taken) + 2) if (name := f"part{number}") not in taken)


def _append(state: PartitionerState, layout: Layout | None, row: DraftRow) -> PartitionerState | None:
    """Return the state with a new last partition: half of the card if it is the first, else what is in none."""
    kept = [part.granted_sms for part in layout or ()]
    room_sms = state.device.sm_count if layout is None else layout.remainder_sms
    for sms in _near(state.device, room_sms, room_sms // 2 if layout is None else room_sms):
        grown = replace(state, rows=(*state.rows, replace(row, request=str(sms))))
        if _grant_texts(grown) == [*kept, sms]:
            return grown
    return None


def _split_largest(state: PartitionerState, layout: Layout | None, row: DraftRow) -> PartitionerState | None:
    """Return the state with a new partition behind the largest, which gives it half."""
    kept = [part.granted_sms for part in layout or ()]
    place = kept.index(max(kept))
    for sms in _near(state.device, kept[place] - 1, kept[place] // 2):
        left = moved_rows(state.rows, place, kept[place] - sms, None)
        grown = replace(state, rows=(*left[: place + 1], replace(row, request=str(sms)), *left[place + 1 :]))
        if _grant_texts(grown) == [*kept[:place], kept[place] - sms, sms, *kept[place + 1 :]]:
            return grown
    return None


def _near(device: Device, most_sms: int, wish_sms: int) -> list[int]:
    """Return the sizes that a device grants, the nearest to a wish first."""
    return sorted((sms for sms in grantable_sms(device) if sms <= most_sms), key=lambda sms: (abs(sms - wish_sms), sms))


def _grant_texts(state: PartitionerState) -> list[int]:
    return [part.granted_sms for part in state.plan.layout or ()]
