"""Occurrences of one thing on several processes or devices, matched as rounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpustreamlab.analysis._scale import count_text
from gpustreamlab.model import Trace, display_name
from gpustreamlab.typing import Int64Array

_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier", re.IGNORECASE)
"""Collectives that end on no rank before the last one has begun."""


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
    """How long each group had to wait for the last one; shape (n_rounds, n_groups), int64, in ns; -1 where it took no part."""
    at_ns: Int64Array
    """When each round began on the first group, in ns; shape (n_rounds,), int64."""
    busy_ns: int
    """What its spans last together, on all groups, in ns."""
    error_ns: int
    """Bound on the error of `behind_ns`, in ns. Rounds that were closer are not counted for any group."""

    @property
    def late_ns(self) -> Int64Array:
        """How long the others waited for the last one, in the median of them; shape (n_rounds,), int64, in ns."""
        others = np.where(self.behind_ns > 0, self.behind_ns, np.nan).astype(float)
        some = np.where(np.isnan(others).all(axis=1, keepdims=True), 0.0, others)
        late_ns: Int64Array = np.rint(np.nanmedian(some, axis=1)).astype(np.int64)
        return late_ns

    @property
    def last(self) -> Int64Array:
        """Which group was last in each round, or -1 where two were closer than the error; shape (n_rounds,), int64."""
        ordered = np.sort(np.where(self.behind_ns < 0, np.iinfo(np.int64).max, self.behind_ns), axis=1)
        found = np.where(self.behind_ns == 0, self.behind_ns, 1).argmin(axis=1)
        return np.where(ordered[:, 1] > self.error_ns, found, -1)

    @property
    def waited_ns(self) -> Int64Array:
        """How long each group waited in all rounds together, if it did wait and not go on; shape (n_groups,), int64, in ns."""
        total: Int64Array = np.maximum(self.behind_ns, 0).sum(axis=0)
        return total


def rounds_by_name(trace: Trace, rows: Int64Array, group_of: Int64Array, count: int, remarks: list[str]) -> Iterator[Lateness]:
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


def rounds_by_communicator(
    trace: Trace, rows: Int64Array, group_of: Int64Array, count: int, remarks: list[str]
) -> Iterator[Lateness]:
    """Match the ranks' kernels of each collective; the one that ran shortest arrived last."""
    nothing = np.zeros(len(trace), np.int64)
    communicator, sequence = (trace.extra.get(name, nothing) for name in ("communicator", "sequence"))
    unmatched = int((communicator[rows] == 0).sum())
    rounds: dict[str, list[list[int]]] = {}
    is_by_order = False
    for number in np.unique(communicator[rows][communicator[rows] != 0]).tolist():
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
            if sum(row >= 0 for row in shared) > 1 and len(told) == 1 and _TOGETHER.search(name := told.pop()):
                rounds.setdefault(name, []).append(shared)
            else:
                unmatched += sum(row >= 0 for row in shared)
    for name, found in rounds.items():
        yield _of_collective(trace, name, np.array(found, np.int64))
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
