"""The partitioner: its draft, its state, and what each action makes of it. Values and pure functions; no widget, no device."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from gpustreamlab.analysis import REST, PartitionOptions, Share, options_of, plan_partitions
from gpustreamlab.errors import GPUStreamLabError, PartitionError
from gpustreamlab.model import Device, Layout, Verification, WorkqueueOptions, check_name
from gpustreamlab.typing import Rounding

MAX_NAME_TYPED, MAX_REQUEST_TYPED = 200, 40  # Characters that are kept of what was typed into the two fields of a partition

_ARGUMENTS = frozenset({"round", "strict", "workqueue", "renamed"})
"""Names that ``lab.partition`` takes for something else: partitions called so are given in a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """One partition as it stands in the fields."""

    key: int  # What the page calls it: unlike its name and its place, this never changes
    look: int  # Which of the looks of partitions it has: it keeps its letter and its colour while others come and go
    name: str  # Its name as typed
    request: str  # What is asked for, as typed: SMs, a share, or ``rest``
    origin: str | None = None  # The partition in use that it was made from, so that its streams follow when it is renamed
    options: PartitionOptions | None = None
    """What only a structured split can do, where the layout in use asked for it; its `sms` is not used."""

    @property
    def share(self) -> Share:
        """What the planner gets."""
        number = read_number(self.request)
        return number if self.options is None else replace(self.options, sms=number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a draft gives no plan, and what would."""

    text: str  # What is wrong, and what to do
    key: int | None = None  # The partition at fault; None where there is none in particular
    is_name: bool = False  # Whether its name is at fault, not what it asks for
    nearest: Mapping[str, int] = field(default_factory=dict)
    """SMs by name of the nearest plan that works; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a draft gives."""

    layout: Layout | None = None  # The layout; None for the whole card, and where there is a problem
    problem: Problem | None = None  # Why there is no layout


def read_number(text: str) -> int | float | str:
    """Return typed text as the number that it stands for; other text as it is, for the planner to judge.

    Examples
    --------
    >>> read_number(" 96 "), read_number("0.25"), read_number("25%")
    (96, 0.25, '25%')
    """
    word = text.strip()
    try:
        return float(word) if "." in word else int(word)
    except ValueError:
        return word


def rows_of(layout: Layout | None, first_key: int) -> tuple[DraftRow, ...]:
    """Return the rows that ask for a layout as it is in use."""
    return tuple(
        DraftRow(
            key=first_key + place,
            look=place,
            name=part.name,
            request=REST if part.takes_rest else str(part.requested_sms),
            origin=part.name,
            options=options_of(part),
        )
        for place, part in enumerate(layout or ())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """The line between two partitions, or between the last one and the SMs in no partition."""

    left: int  # Key of the partition before it
    right: int | None  # Key of the partition behind it; None for the SMs in no partition
    left_sms: int  # SMs that the partition before it has now
    both_sms: int  # SMs of both sides together
    stops: tuple[int, ...]  # SMs that the partition before it can have while all other partitions keep theirs, ascending

    def nearest(self, left_sms: int) -> int:
        """Return the stop that is nearest to a wish."""
        return min(self.stops, key=lambda stop: (abs(stop - left_sms), stop))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionerState:
    """What is in use, what stands in the fields, and what was said last."""

    device: Device  # Whose SMs are shared out
    obstacle: str = ""  # Why the device cannot partition its SMs; empty where it can
    applied: Layout | None = None  # The layout in use; None for the whole card
    rows: tuple[DraftRow, ...] = ()  # The draft, in the order of the card; no rows ask for the whole card
    rounding: Rounding = Rounding.UP  # What to grant where a count cannot be met
    edited: int | None = None  # The key of the row that was edited last
    next_key: int = 0  # The key of the next new row
    kept: Mapping[int, int] = field(default_factory=dict)
    """SMs by key of the last draft that had a plan: what the card shows while the draft is a mistake."""
    notice: str = ""  # What came of the last action, where the screen does not show it anyway
    is_notice_bad: bool = False  # Whether that was a failure
    verification: Verification | None = None  # What was seen of the layout in use
    is_closed: bool = False  # True once the session is closed: the state can be read, not changed

    @property
    def workqueue(self) -> WorkqueueOptions | None:
        """How partitions share work queues: as in the layout in use."""
        return None if self.applied is None else self.applied.workqueue

    @property
    def plan(self) -> Plan:
        """What the draft gives, or what is wrong with it."""
        if self.obstacle or not self.rows:
            return Plan()
        problem = _name_problem(self.rows)
        if problem is not None:
            return Plan(problem=problem)
        try:
            return Plan(layout=_layout(self))
        except GPUStreamLabError as error:
            nearest = error.nearest if isinstance(error, PartitionError) else None
            return Plan(problem=Problem(text=str(error), key=_at_fault(self), nearest=nearest or {}))

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
        if layout is None:
            return ()
        found, parts = [], layout.partitions
        for place, (row, part) in enumerate(zip(self.rows, parts, strict=True)):
            is_last = place + 1 == len(parts)
            both_sms = part.granted_sms + (layout.remainder_sms if is_last else parts[place + 1].granted_sms)
            stops = {part.granted_sms}
            for left_sms in grantable_sms(self.device):
                moved = _moved(self, place, left_sms, None if is_last else both_sms - left_sms)
                wanted = [other.granted_sms for other in parts]
                wanted[place : place + 2] = [left_sms] if is_last else [left_sms, both_sms - left_sms]
                if left_sms <= both_sms and min(wanted) > 0 and _grants(moved) == wanted:
                    stops.add(left_sms)
            right = None if is_last else self.rows[place + 1].key
            found.append(
                Boundary(left=row.key, right=right, left_sms=part.granted_sms, both_sms=both_sms, stops=tuple(sorted(stops)))
            )
        return tuple(found)

    @property
    def python_line(self) -> str:
        """The Python line that asks for the same."""
        if not self.rows:
            return "lab.partition(None)"
        more = {"round": repr(str(self.rounding))}
        if self.workqueue is not None:
            more["workqueue"] = f"gsl.{self.workqueue!r}"
        if self.renamed:
            more["renamed"] = repr(self.renamed)
        tail = "".join(f", {name}={value}" for name, value in more.items())
        shares = {row.name: f"{'gsl.' if isinstance(row.share, PartitionOptions) else ''}{row.share!r}" for row in self.rows}
        if all(name.isidentifier() and not keyword.iskeyword(name) and name not in _ARGUMENTS for name in shares):
            return f"lab.partition({', '.join(f'{name}={share}' for name, share in shares.items())}{tail})"
        return f"lab.partition({{{', '.join(f'{name!r}: {share}' for name, share in shares.items())}}}{tail})"


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


def move_boundary(state: PartitionerState, left: int, sms: float) -> PartitionerState:
    """Give the partition before a boundary so many SMs, or as near as the device can, and its neighbour the others."""
    boundary = next((boundary for boundary in state.boundaries if boundary.left == left), None)
    if boundary is None:
        return say(state, "That boundary is gone: the partitions changed meanwhile.", is_bad=True)
    left_sms = boundary.nearest(int(sms))
    if left_sms == boundary.left_sms:
        return replace(state, notice="")
    place = _place_of(state, left)
    right_sms = None if boundary.right is None else boundary.both_sms - left_sms
    return replace(_moved(state, place, left_sms, right_sms), edited=left, notice="")


def add(state: PartitionerState) -> PartitionerState:
    """Add a partition: half of the card if it is the first, else the SMs in no partition, else half of the largest.

    It gets the first look that is free, and the place that goes with it: so the map of the card, which goes by places, agrees.
    """
    plan = state.plan
    if plan.problem is not None:
        return say(state, "Correct the draft first; then there is a plan to add a partition to.", is_bad=True)
    look = min(set(range(len(state.rows) + 1)) - {row.look for row in state.rows})
    row = DraftRow(key=state.next_key, look=look, name=_free_name(state), request="")
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
        return replace(taken, rows=tuple(replace(row, origin=row.name, look=place) for place, row in enumerate(state.rows)))
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
    """Return the state after an action that the page asked for."""
    values = {**action} if isinstance(action, Mapping) else {}
    name = values.pop("do", None)
    function = next((function for function in _ACTIONS if function.__name__ == name), None)
    if function is None:
        return say(state, "The page asked for something that this widget does not know. Reload the page.", is_bad=True)
    if state.is_closed or state.obstacle:
        return state
    if "key" in values and _place_of(state, values["key"]) < 0:
        return say(state, "That partition is gone: the partitions changed meanwhile.", is_bad=True)
    layout, after = state.plan.layout, function(state, **values)
    if layout is None:
        return after
    return replace(after, kept={row.key: part.granted_sms for row, part in zip(state.rows, layout, strict=True)})


_ACTIONS: Sequence[Callable[..., PartitionerState]] = (
    *(set_name, set_request, set_rounding, move_boundary),
    *(add, remove, clear, revert, use_nearest),
)


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
    """Return the state with a new partition: half of the card if it is the first, else what is in none."""
    room_sms = state.device.sm_count if layout is None else layout.remainder_sms
    for sms in _near(state.device, room_sms, room_sms // 2 if layout is None else room_sms):
        grown = _with(state, row, sms)
        wanted = _grants(state)
        wanted.insert(_place_for(state, row), sms)
        if _grants(grown) == wanted:
            return grown
    return None


def _split_largest(state: PartitionerState, layout: Layout | None, row: DraftRow) -> PartitionerState | None:
    """Return the state with a new partition, which gets half of the largest."""
    kept = _grants(state)
    place = kept.index(max(kept))
    for sms in _near(state.device, kept[place] - 1, kept[place] // 2):
        grown = _with(_moved(state, place, kept[place] - sms, None), row, sms)
        wanted = [*kept[:place], kept[place] - sms, *kept[place + 1 :]]
        wanted.insert(_place_for(state, row), sms)
        if _grants(grown) == wanted:
            return grown
    return None


def _place_for(state: PartitionerState, row: DraftRow) -> int:
    return sum(other.look < row.look for other in state.rows)


def _with(state: PartitionerState, row: DraftRow, sms: int) -> PartitionerState:
    rows = [*state.rows]
    rows.insert(_place_for(state, row), replace(row, request=str(sms)))
    return replace(state, rows=tuple(rows))


def _near(device: Device, most_sms: int, wish_sms: int) -> list[int]:
    """Return the sizes that a device grants, the nearest to a wish first."""
    return sorted((sms for sms in grantable_sms(device) if sms <= most_sms), key=lambda sms: (abs(sms - wish_sms), sms))


def _moved(state: PartitionerState, place: int, left_sms: int, right_sms: int | None) -> PartitionerState:
    """Return the state with SMs moved over one boundary; who asks for the rest goes on doing so where that still holds."""
    rows = list(state.rows)
    for at, sms in ((place, left_sms), (place + 1, right_sms)):
        if sms is not None and (right_sms is None or rows[at].request.strip().lower() != REST):
            rows[at] = replace(rows[at], request=str(sms))
    return replace(state, rows=tuple(rows))


def grantable_sms(device: Device) -> tuple[int, ...]:
    """Return all sizes that a partition of a device can have, ascending."""
    resource = device.sm_resource
    if resource is None:
        return ()
    groups = [count * resource.group_sms for count in range(resource.group_count + 1)]
    sizes = {*groups, *(sms + resource.remainder_sms for sms in groups)}
    return tuple(sorted(sms for sms in sizes if sms > 0))


def _layout(state: PartitionerState) -> Layout:
    shares = {row.name: row.share for row in state.rows}
    return plan_partitions(shares, state.device, round=state.rounding, workqueue=state.workqueue)


def _grants(state: PartitionerState) -> list[int]:
    """Return the SMs that each partition of a draft gets; none where it has no plan."""
    try:
        return [part.granted_sms for part in _layout(state)] if state.rows else []
    except GPUStreamLabError:
        return []


def _name_problem(rows: Sequence[DraftRow]) -> Problem | None:
    seen: set[str] = set()
    for row in rows:
        try:
            check_name(row.name, "partition", "decode")
        except GPUStreamLabError as error:
            return Problem(text=str(error), key=row.key, is_name=True)
        if row.name in seen:
            text = f"Another partition is called {row.name!r} already. Give this one a name of its own."
            return Problem(text=text, key=row.key, is_name=True)
        seen.add(row.name)
    return None


def _at_fault(state: PartitionerState) -> int | None:
    """Return the first row that has no plan even alone, else the one edited last."""
    alone = (row.key for row in state.rows if not _grants(replace(state, rows=(row,), applied=None)))
    return next(alone, state.edited if _place_of(state, state.edited) >= 0 else None)
