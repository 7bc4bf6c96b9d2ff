"""Stragglers: the process or device that was late where all of them did the same, and those that waited for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from gpustreamlab.analysis._busy import require_trace
from gpustreamlab.analysis._host_waits import named_calls
from gpustreamlab.analysis._makers import AWAITED, OF_RANKS, awaits_ranks
from gpustreamlab.analysis._report import Answer, ReportTable, listed
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.model import NSYS_BACKEND, SPAN_KINDS, Trace, display_name
from gpustreamlab.typing import Int64Array, LaneKind, SpanKind

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T", bound=Trace)

_ALIKE = [SPAN_KINDS.index(kind) for kind in (SpanKind.RANGE, SpanKind.ANNOTATION, SpanKind.KERNEL)]
_PREFIX = re.compile(r"((?:rank|file) \d+)(?= )|([^: ]+)(?=:)")  # Prefix of names of lanes with their rank, file or engine


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lateness:
    """One name that occurs on all groups: who was last, and by how much.

    Each round is one occurrence on each group, the n-th of the name, or the ranks' shares of one collective.
    """

    name: str
    """The name of the range or kernel."""
    is_collective: bool
    """True for kernels that wait for each other: then the one that ran shortest was last to arrive."""
    behind_ns: Int64Array
    """Time that each group had to wait for the last one; shape (n_rounds, n_groups), int64, in ns; -1 where it took no part."""
    at_ns: Int64Array
    """When each round began on the first group, in ns; shape (n_rounds,), int64."""
    busy_ns: int
    """Duration of its spans together, on all groups, in ns."""
    error_ns: int
    """Bound on the error of `behind_ns`, in ns. Rounds that were closer are not counted for any group."""

    @property
    def late_ns(self) -> Int64Array:
        """Time that the others waited for the last one, the median of them; shape (n_rounds,), int64, in ns."""
        others = np.where(self.behind_ns > 0, self.behind_ns, np.nan).astype(float)
        some = np.where(np.isnan(others).all(axis=1, keepdims=True), 0.0, others)
        late_ns: Int64Array = np.rint(np.nanmedian(some, axis=1)).astype(np.int64)
        return late_ns

    @property
    def last(self) -> Int64Array:
        """Last group in each round, or -1 where two were closer than the error; shape (n_rounds,), int64."""
        ordered = np.sort(np.where(self.behind_ns < 0, np.iinfo(np.int64).max, self.behind_ns), axis=1)
        found = np.where(self.behind_ns == 0, self.behind_ns, 1).argmin(axis=1)
        return np.where(ordered[:, 1] > self.error_ns, found, -1)

    @property
    def waited_ns(self) -> Int64Array:
        """Time that each group waited in all rounds together, if it did wait and not go on; shape (n_groups,), int64, in ns."""
        total: Int64Array = np.maximum(self.behind_ns, 0).sum(axis=0)
        return total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Stragglers(Answer):
    """Stragglers where several processes or devices did the same. False where nothing occurs on all of them."""

    groups: tuple[str, ...]
    """The processes, or devices, by their names."""
    names: tuple[Lateness, ...] = field()  # type: ignore[assignment] # not the trace's, which the base would give
    """Names that occur on all of them: collectives first, then what took longest."""
    remarks: tuple[str, ...] = ()
    """Sentences on what could not be compared."""

    _title: ClassVar = "Stragglers:"
    _columns: ClassVar = ()

    def __len__(self) -> int:
        return len(self.names)

    def to_pandas(self) -> pd.DataFrame:
        """Return one row for each name and group, as a `pandas.DataFrame`.

        The columns are ``name``, ``group``, ``rounds``, ``last`` (how often it was last), and ``waited_ns``.
        """
        import pandas as pd

        rows = [
            (one.name, group, len(one.at_ns), int((one.last == place).sum()), int(one.waited_ns[place]))
            for one in self.names
            for place, group in enumerate(self.groups)
        ]
        return pd.DataFrame(rows, columns=["name", "group", "rounds", "last", "waited_ns"])

    def _line(self) -> str:
        if not self.names:
            return f"nothing occurs equally often on all of {len(self.groups):,} processes or devices"
        one = self.names[0]
        who, late = _who(self, one, "{} was last in {:,}"), format_ns(float(np.median(one.late_ns)))
        return f"{who} of {len(one.at_ns):,} {display_name(one.name)}, by {late} in the median"

    def _tables(self) -> list[ReportTable]:
        def cells(one: Lateness) -> list[str]:
            late_ns, ahead_ns = one.late_ns, np.median(one.behind_ns, axis=0)
            first, times = int(ahead_ns.argmax()), (float(np.median(late_ns)), int(late_ns.max()))
            who = [display_name(one.name), f"{len(one.at_ns):,}", _who(self, one, "{}, {:,}")]
            return [*who, *map(format_ns, times), f"{self.groups[first]}, {format_ns(float(ahead_ns[first]))}"]

        caption = "Who was last and how often, how late that was for the others, and who was furthest ahead"
        return [listed(caption, ["name", "rounds", "last", "median", "worst", "first"], self.names, cells, most=12)]

    def _notes(self) -> list[str]:
        undecided = sum(int((one.last < 0).sum()) for one in self.names)
        notes = [f"{count_text(undecided, 'round')} closer than the clocks are known: counted for nobody."] if undecided else []
        return [*notes, *self.remarks, *self.metadata.missing]


def stragglers(trace: Trace) -> Stragglers:
    """Find who was late where several processes, or devices of one, did the same.

    Parameters
    ----------
    trace
        Of several processes or devices, as `gpustreamlab.merge`, `Node`, `Cluster` and files of several ranks give.

    Raises
    ------
    OptionError
        If it is no trace.

    Notes
    -----
    Ranges and kernels of a name that occurs on all groups equally often: the n-th of each is one round, and whose ends last was
    late. Rounds in which the two last are closer than ``metadata.clock_error_ns`` count for none. Where files tell the
    communicator, kernels of collectives (all-reduce, all-gather, reduce-scatter) are matched by their sequence numbers; where
    the file has none, by their order, if all ranks ran the same ones. Such a kernel ends on no rank before the last one has
    arrived, so each rank waited for as long as its kernel ran longer than the shortest: that needs no common clock. Processes
    of one report of Nsight Systems that have no collective in common are not compared: they may be programs of their own.

    Examples
    --------
    >>> trace = Trace.from_columns(
    ...     start_ns=[0, 0, 50, 50], end_ns=[10, 14, 60, 68], stream=["a:work", "b:work"] * 2, name=["step"] * 4
    ... )
    >>> from dataclasses import replace
    >>> trace = replace(trace, lanes=tuple(replace(lane, process=place) for place, lane in enumerate(trace.lanes)))
    >>> found = stragglers(trace)
    >>> found.groups, found.names[0].last.tolist(), found.names[0].late_ns.tolist(), found.names[0].waited_ns.tolist()
    (('a', 'b'), [1, 1], [4, 8], [12, 0])
    """
    require_trace(trace, "stragglers")
    groups, group_of = _groups(trace)
    found: list[Lateness] = []
    remarks: list[str] = []
    is_collective = named_calls(trace, OF_RANKS.search, SpanKind.KERNEL)
    if len(groups) > 1 and _may_be_strangers(trace, np.unique(group_of[is_collective])):
        remarks.append(
            "The processes of this file are not compared: they share no collective, so nothing says they work together."
        )
    elif len(groups) > 1:
        taking_part = (group_of >= 0) & np.isin(trace.kind, _ALIKE)
        found += _rounds_by_name(trace, np.flatnonzero(taking_part & ~is_collective), group_of, len(groups), remarks)
        rounds = _rounds_by_communicator(trace, np.flatnonzero(taking_part & is_collective), group_of, len(groups), remarks)
        found += [_of_collective(trace, name, rows) for name, rows in rounds]
    found.sort(key=lambda one: (one.is_collective, one.busy_ns), reverse=True)
    return Stragglers(groups=groups, names=tuple(found), trace=trace, remarks=tuple(remarks))


def with_waits_for_ranks(trace: _T) -> _T:
    """Return a trace of several ranks with how long each kernel of a collective waited for the last rank, in ns.

    It stays known of a part of the trace that has one rank.
    """
    is_of_ranks = named_calls(trace, OF_RANKS.search, SpanKind.KERNEL)
    if len({(lane.process, lane.device) for lane in trace.lanes}) < 2 or not is_of_ranks.any():
        return trace
    groups, group_of = _groups(trace)
    rows = np.flatnonzero(is_of_ranks & (group_of >= 0))
    awaited_ns = np.zeros(len(trace), np.int64)
    for _, shared in _rounds_by_communicator(trace, rows, group_of, len(groups), []):
        is_there = shared >= 0
        lasted_ns = np.where(is_there, trace.end_ns[shared] - trace.start_ns[shared], np.iinfo(np.int64).max)
        waited_ns = lasted_ns - lasted_ns.min(axis=1, keepdims=True)
        awaited_ns[shared[is_there]] = waited_ns[is_there]
    return replace(trace, extra={**trace.extra, AWAITED: awaited_ns}) if awaited_ns.any() else trace


def _groups(trace: Trace) -> tuple[tuple[str, ...], Int64Array]:
    """Return the names of the processes, or devices where a process has several, and the place of each row's, or -1."""
    streams = [lane for lane in trace.lanes if lane.kind is LaneKind.STREAM]
    by_device = len({(lane.process, lane.device) for lane in streams}) > len({lane.process for lane in streams})
    keys = [
        None if by_device and lane.kind is not LaneKind.STREAM else (lane.process, lane.device if by_device else 0)
        for lane in trace.lanes
    ]
    used = set(np.unique(trace.lane).tolist())
    places = {key: place for place, key in enumerate(sorted({key for lane, key in enumerate(keys) if key and lane in used}))}
    told: dict[tuple[int, int], set[str]] = {key: set() for key in places}
    for lane, key in zip(trace.lanes, keys, strict=True):
        if key in told and lane.kind is LaneKind.STREAM:
            match = _PREFIX.match(lane.name)
            told[key].add(match[0] if match else "")
    names = [
        min(prefixes) if len(prefixes) == 1 and min(prefixes) else f"process {key[0]}{f', GPU {key[1]}' if by_device else ''}"
        for key, prefixes in told.items()
    ]
    apart = names if len(set(names)) == len(names) else [f"process {process}, GPU {device}" for process, device in places]
    return tuple(apart), np.array([places.get(key, -1) if key else -1 for key in keys], np.int64)[trace.lane]


def _may_be_strangers(trace: Trace, with_collectives: Int64Array) -> bool:
    """Tell whether processes may be programs of their own: Nsight Systems takes up all that run on the host meanwhile."""
    has_several = len({lane.process for lane in trace.lanes if lane.kind is LaneKind.STREAM}) > 1
    return trace.metadata.backend == NSYS_BACKEND and has_several and len(with_collectives) < 2


def _who(found: Stragglers, one: Lateness, words: str) -> str:
    """Say which group was last most often, and how often, in words with places for both."""
    last = one.last[one.last >= 0]
    if not len(last):
        return words.format("nobody", 0)
    group = int(np.bincount(last, minlength=len(found.groups)).argmax())
    return words.format(found.groups[group], int((last == group).sum()))


def _rounds_by_name(trace: Trace, rows: Int64Array, group_of: Int64Array, count: int, remarks: list[str]) -> Iterator[Lateness]:
    """Take the n-th of a name on each group as one round; whose ends last is late."""
    uneven = []
    rows = rows[np.lexsort((trace.start_ns[rows], group_of[rows], trace.name[rows]))]
    codes, first = np.unique(trace.name[rows], return_index=True)
    for code, own in zip(codes.tolist(), np.split(rows, first[1:]), strict=False):
        counts = np.bincount(group_of[own], minlength=count)
        if counts.min() == 0:
            continue
        if counts.min() != counts.max():
            uneven.append(trace.names[code])
            continue
        by_group = own.reshape(count, -1)  # in order of their starts
        ends = trace.end_ns[by_group].T
        yield Lateness(
            name=trace.names[code],
            is_collective=False,
            behind_ns=ends.max(axis=1, keepdims=True) - ends,
            at_ns=trace.start_ns[by_group[0]],
            busy_ns=int((trace.end_ns[own] - trace.start_ns[own]).sum()),
            error_ns=trace.metadata.clock_error_ns,
        )
    if uneven:
        remarks.append(
            f"Not compared, as they occur more often on some than on others: {', '.join(map(display_name, uneven[:5]))}"
            f"{f' and {len(uneven) - 5:,} more' if len(uneven) > 5 else ''}."
        )


def _rounds_by_communicator(
    trace: Trace, rows: Int64Array, group_of: Int64Array, count: int, remarks: list[str]
) -> Iterator[tuple[str, Int64Array]]:
    """Match the ranks' kernels of each collective: yield each name and its rows, shape (n_rounds, n_groups), -1 for none."""
    nothing = np.zeros(len(trace), np.int64)
    communicator, sequence = (trace.extra.get(name, nothing) for name in ("communicator", "sequence"))
    is_told = communicator[rows] != 0 if communicator[rows].any() else np.ones(len(rows), bool)  # else all are taken for one
    unmatched = int((~is_told).sum())
    rounds: dict[str, list[list[int]]] = {}
    is_by_order = False
    for number in np.unique(communicator[rows][is_told]).tolist():
        own = rows[communicator[rows] == number]
        own = own[np.lexsort((trace.start_ns[own], group_of[own]))]
        by_group = np.split(own, np.searchsorted(group_of[own], np.arange(1, count)))
        taking_part = [part for part in by_group if len(part)]
        names = {tuple(trace.name[part].tolist()) for part in taking_part}
        if sequence[own].all():
            keys = [{int(sequence[row]): int(row) for row in part.tolist()} for part in by_group]
        elif len(taking_part) > 1 and len(names) == 1:
            keys = [dict(enumerate(part.tolist())) for part in by_group]
            is_by_order = True
        else:
            unmatched += len(own)
            continue
        for key in sorted(set.union(*map(set, keys))):
            shared = [part.get(key, -1) for part in keys]
            told = {trace.names[trace.name[row]] for row in shared if row >= 0}
            if sum(row >= 0 for row in shared) > 1 and len(told) == 1 and awaits_ranks(name := told.pop()):
                rounds.setdefault(name, []).append(shared)
            else:
                unmatched += sum(row >= 0 for row in shared)
    yield from ((name, np.array(found, np.int64)) for name, found in rounds.items())
    if is_by_order:
        remarks.append("Collectives without sequence numbers were matched by their order, as all ranks ran the same ones.")
    if unmatched:
        remarks.append(
            f"{count_text(unmatched, 'kernel')} of collectives not compared: the trace does not tell their communicator and "
            "order, as newer versions of PyTorch do, or they need not wait for each other, as in a broadcast."
        )


def _of_collective(trace: Trace, name: str, rows: Int64Array) -> Lateness:
    """Return who was late in collectives of one name, given the row of each rank, shape (n_rounds, n_groups), -1 for none."""
    duration_ns = np.where(rows >= 0, trace.end_ns[rows] - trace.start_ns[rows], np.iinfo(np.int64).max)
    behind_ns = np.where(rows >= 0, duration_ns - duration_ns.min(axis=1, keepdims=True), -1)
    first = rows[np.arange(len(rows)), (rows >= 0).argmax(axis=1)]
    return Lateness(
        name=name,
        is_collective=True,
        behind_ns=behind_ns,
        at_ns=trace.start_ns[first],
        busy_ns=int(np.where(rows >= 0, duration_ns, 0).sum()),
        error_ns=2 * trace.metadata.kernel_error_ns,
    )
