"""Which ranges enclose those that were drained, although they have not ended themselves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.recorder._ranges import NOTHING_OPEN, RecordedLane
from gpustreamlab.typing import Int64Array


class Relatives(NamedTuple):
    """Ranges that have not ended, as columns; each is an ancestor of one that was drained."""

    number: Int64Array
    """Shape (n,), int64."""
    parent: Int64Array
    """Number of the enclosing range, or -1; shape (n,), int64."""
    lane: Int64Array
    """Shape (n,), int64."""
    queued_host_ns: Int64Array
    """When each was opened, on the host's clock; shape (n,), int64."""


def find_relatives(
    columns: Mapping[str, Int64Array], lanes: Sequence[RecordedLane], awaited: Collection[int] = ()
) -> Relatives:
    """Find the ranges that enclose drained ones and have not ended.

    Parameters
    ----------
    columns
        What was drained just now, under the same lock.
    lanes
        Where open and waiting ranges are looked for.
    awaited
        Numbers of more ranges to look for.
    """
    parent = columns["parent"][columns["parent"] >= 0]
    missing = set(_absent(distinct(parent)[0], columns["number"]).tolist())
    missing |= set(awaited)
    found: dict[int, tuple[int, int, int]] = {}
    known: dict[int, tuple[int, int, int]] = {}
    # A range goes from the open ones to the waiting ones without a lock: looked for in this order it is seen in one of them.
    for place in (_open, _waiting):
        if missing - found.keys():
            known |= place(lanes)
            _climb(missing, known, found)
    rows = np.array([(number, *entry) for number, entry in found.items()], np.int64).reshape(-1, 4)
    return Relatives(*rows.T.copy())


def _absent(wanted: Int64Array, number: Int64Array) -> Int64Array:
    """Return those of the wanted numbers that are not there. Numbers come in long runs, which a stable sort makes use of."""
    ordered = np.append(np.sort(number, kind="stable"), -1)
    absent: Int64Array = wanted[ordered[np.searchsorted(ordered[:-1], wanted)] != wanted]
    return absent


def _climb(wanted: set[int], known: Mapping[int, tuple[int, int, int]], found: dict[int, tuple[int, int, int]]) -> None:
    """Add those that are wanted, and their own ancestors."""
    for number in wanted:
        while number in known and number not in found:
            found[number] = known[number]
            number = known[number][0]  # noqa: PLW2901 - one step up


def _open(lanes: Sequence[RecordedLane]) -> dict[int, tuple[int, int, int]]:
    """Return the open ranges of all threads: by number their parent, lane, and when they were opened."""
    states = {state for lane in lanes for writer in tuple(lane.writers) if (state := writer.owner()) is not None}
    found = {}
    for state in states:
        entries = tuple(state.open_ranges)
        for below, (_, queued_host_ns, number, closer) in zip((NOTHING_OPEN, *entries), entries, strict=False):
            if closer is not None:
                found[number] = (below[2], closer.lane.index, queued_host_ns)
    return found


def _waiting(lanes: Sequence[RecordedLane]) -> dict[int, tuple[int, int, int]]:
    """Return the closed ranges that wait for the device, likewise."""
    found = {}
    for lane in lanes:
        for _, _, queued_host_ns, number, parent, _ in lane.closed_ranges():
            found[number] = (parent, lane.index, queued_host_ns)
    return found
