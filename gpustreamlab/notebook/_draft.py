"""What the partitioner is asked for, and of what."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from gpustreamlab.analysis import REST, PartitionOptions, Share, options_of, plan_partitions
from gpustreamlab.errors import GPUStreamLabError, PartitionError
from gpustreamlab.model import Capabilities, Device, Layout, Verification, WorkqueueOptions, check_name
from gpustreamlab.typing import Rounding, SessionState

MAX_NAME_TYPED, MAX_REQUEST_TYPED = 200, 40
"""Characters that are kept of what was typed into the two fields of a partition."""

_ARGUMENTS = frozenset({"round", "strict", "workqueue", "renamed"})
"""Names that ``lab.partition`` takes for something else: partitions called so are given in a mapping."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftRow:
    """One partition as it stands in the fields."""

    key: int
    """What the page calls it: unlike its name and its place, this never changes."""
    name: str
    """Its name as typed."""
    request: str
    """What is asked for, as typed: SMs, a share, or ``rest``."""
    origin: str | None = None
    """The partition in use that it was made from, so that its streams follow when it is renamed."""
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

    text: str
    """What is wrong, and what to do."""
    key: int | None = None
    """The partition at fault; None where there is none in particular."""
    is_name: bool = False
    """Whether its name is at fault, not what it asks for."""
    nearest: Mapping[str, int] = field(default_factory=dict)
    """SMs by name of the nearest plan that works; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a draft gives."""

    layout: Layout | None = None
    """The layout; None for the whole card, and where there is a problem."""
    problem: Problem | None = None
    """Why there is no layout."""


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
            name=part.name,
            request=REST if part.takes_rest else str(part.requested_sms),
            origin=part.name,
            options=options_of(part),
        )
        for place, part in enumerate(layout or ())
    )


def plan_draft(
    rows: Sequence[DraftRow], device: Device, rounding: Rounding, workqueue: WorkqueueOptions | None, edited: int | None
) -> Plan:
    """Return the plan of a draft, or what is wrong with it.

    Parameters
    ----------
    rows
        The draft; no rows ask for the whole card.
    device
        Whose SMs are shared out.
    rounding
        What to grant where a count cannot be met.
    workqueue
        As in the layout in use.
    edited
        The key of the row that was edited last: it is at fault where no row is alone.
    """
    if not rows:
        return Plan()
    problem = _name_problem(rows)
    if problem is not None:
        return Plan(problem=problem)
    shares = {row.name: row.share for row in rows}
    try:
        return Plan(layout=plan_partitions(shares, device, round=rounding, workqueue=workqueue))
    except GPUStreamLabError as error:
        nearest = error.nearest if isinstance(error, PartitionError) else None
        return Plan(problem=Problem(text=str(error), key=_at_fault(rows, device, rounding, edited), nearest=nearest or {}))


def python_line(
    rows: Sequence[DraftRow], rounding: Rounding, workqueue: WorkqueueOptions | None, renamed: Mapping[str, str]
) -> str:
    """Return the Python line that asks for the same as a draft.

    Examples
    --------
    >>> python_line((DraftRow(key=0, name="copy-in", request="25%"),), Rounding.UP, None, {})
    "lab.partition({'copy-in': '25%'}, round='up')"
    """
    more = {"renamed": repr(dict(renamed))} if renamed else {}
    if not rows:
        return "lab.partition(None)"
    if workqueue is not None:
        more = {"workqueue": f"gsl.{workqueue!r}", **more}
    tail = "".join(f", {name}={value}" for name, value in {"round": repr(str(rounding)), **more}.items())
    shares = {row.name: f"{'gsl.' if isinstance(row.share, PartitionOptions) else ''}{row.share!r}" for row in rows}
    if all(name.isidentifier() and not keyword.iskeyword(name) and name not in _ARGUMENTS for name in shares):
        return f"lab.partition({', '.join(f'{name}={share}' for name, share in shares.items())}{tail})"
    return f"lab.partition({{{', '.join(f'{name!r}: {share}' for name, share in shares.items())}}}{tail})"


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


def _at_fault(rows: Sequence[DraftRow], device: Device, rounding: Rounding, edited: int | None) -> int | None:
    """Return the first row that has no plan even alone, else the one edited last."""
    for row in rows:
        try:
            plan_partitions({row.name: row.share}, device, round=rounding)
        except GPUStreamLabError:
            return row.key
    return edited if any(row.key == edited for row in rows) else None


class TargetTools(Protocol):
    """What `Session.partitions` is for the widget."""

    @property
    def capabilities(self) -> Capabilities:
        """What the device and its driver can do."""
        ...

    def plan_moves(self, layout: Layout | None, /, *, renamed: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of the streams that a layout would drain and move; raise what `partition` would refuse it with."""
        ...

    def verify(self) -> Verification:
        """Look on which SMs work runs."""
        ...

    def watch(self, callback: Callable[[Layout | None], None], /) -> Callable[[], None]:
        """Call back after each change of the layout, and when it can no longer change; return what stops that."""
        ...


class PartitionTarget(Protocol):
    """A session, as far as its SMs are concerned."""

    @property
    def device(self) -> Device:
        """The device whose SMs are shared out."""
        ...

    @property
    def layout(self) -> Layout | None:
        """The layout in use; None for the whole card."""
        ...

    @property
    def state(self) -> SessionState:
        """Where it is in its life: the layout of one that is not open no longer changes."""
        ...

    @property
    def partitions(self) -> TargetTools:
        """What else is asked about partitions."""
        ...

    def partition(self, plan: Layout | None, /, *, round: Rounding, renamed: Mapping[str, str]) -> Layout | None:  # noqa: A002
        """Make a layout the one in use, None for the whole card; `renamed` gives the new name of each renamed partition."""
        ...


class PartitionedStream(Protocol):
    """A stream, as far as the widget shows it."""

    @property
    def partition(self) -> str | None:
        """The name of its partition; None for the whole card."""
        ...


@runtime_checkable
class HasStreams(Protocol):
    """A target that also tells which streams it has."""

    @property
    def streams(self) -> Mapping[str, PartitionedStream]:
        """Its open streams by name."""
        ...


def streams_by_partition(target: PartitionTarget) -> dict[str, tuple[str, ...]]:
    """Return the names of the streams in each partition, "" for the whole card; none where the target does not tell."""
    found: dict[str, tuple[str, ...]] = {}
    streams = dict(target.streams) if isinstance(target, HasStreams) else {}
    for name, stream in streams.items():
        where = stream.partition or ""
        found[where] = (*found.get(where, ()), name)
    return found
