"""Codes of streams and threads of a report, and the lanes that they become."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.exchange._nsys_places import Lanes, Place, Places, make_lanes
from gpustreamlab.exchange._nsys_rows import Columns, Processes, alike
from gpustreamlab.model import Lane
from gpustreamlab.record import DEPENDENCY_COLUMNS
from gpustreamlab.typing import Int64Array, LaneKind

_WHERE = ("device", "context", "green", "stream")


class Streams:
    """The streams in which work ran.

    Parameters
    ----------
    work
        Columns of work: ``process`` (global) and where.
    processes
        All of the report.
    places
        What it tells of them.
    """

    def __init__(self, work: Columns, processes: Processes, places: Places) -> None:
        self._processes = processes
        codes = processes.codes(work["process"])
        first, sort = alike([codes, *(work[name] for name in _WHERE)])
        pids = processes.pids()
        keys = []
        for code, device, context, green, stream in zip(
            codes[first].tolist(), *(work[name][first].tolist() for name in _WHERE), strict=True
        ):
            place = Place(pids[code], device, context, places.green_of(pids[code], context, green), stream)
            keys.append((code, place))
        ordered = sorted(set(keys))
        self.count = len(ordered)
        """How many there are."""
        self._places, self._ordered = places, ordered
        place_of = {key: number for number, key in enumerate(ordered)}
        self.lane = np.array([place_of[key] for key in keys], np.int64)[sort]
        """The lane of each piece of work."""
        self.has_pairs = any(count > 1 for count in Counter(code for code, _ in ordered).values())
        """Whether there are streams that may have waited for each other."""

    def lanes(self) -> Lanes:
        """Return their lanes."""
        made = make_lanes(self._places, [place for _, place in self._ordered])
        codes = [code for code, _ in self._ordered]
        return made._replace(
            lanes=tuple(replace(lane, process=max(code, 0)) for lane, code in zip(made.lanes, codes, strict=True))
        )

    def dependencies(self, waits: Columns) -> Columns:
        """Return which lane waited for which, of waits with work on both sides; columns of `DEPENDENCY_COLUMNS`."""
        process = self._processes.codes(waits["process"])
        source = self._find(process, [waits[f"source_{name}"] for name in _WHERE])
        target = self._find(process, [waits[name] for name in _WHERE])
        known = (source >= 0) & (target >= 0)
        columns = (source, waits["record"], target, waits["wait"])
        return {name: column[known] for name, column in zip(DEPENDENCY_COLUMNS, columns, strict=True)}

    def _find(self, process: Int64Array, where: list[Int64Array]) -> Int64Array:
        """Return the lanes of streams, or -1. These rows may lack the green context, or tell it as their context."""
        lanes: dict[tuple[int, int, int, int], list[tuple[int, int]]] = {}
        for number, (code, place) in enumerate(self._ordered):
            for context in {place.context, place.green or place.context}:
                lanes.setdefault((code, place.device, context, place.stream), []).append((place.green, number))
        first, sort = alike([process, *where])
        found = np.full(len(first), -1, np.int64)
        for at, (code, device, context, green, stream) in enumerate(
            zip(process[first].tolist(), *(column[first].tolist() for column in where), strict=True)
        ):
            some = lanes.get((code, device, context, stream), [])
            if len(some) > 1:
                some = [one for one in some if one[0] == green]
            if len(some) == 1:
                found[at] = some[0][1]
        return found[sort]


class Threads(NamedTuple):
    """The threads of the host."""

    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    codes: tuple[Int64Array, ...]
    """Of each row of what was given."""


def find_threads(numbers: list[Int64Array], processes: Processes) -> Threads:
    """Return the threads of rows by nsys's numbers for them. Their own names are not read: they may be those of programs."""
    known, place = distinct(np.concatenate(numbers))
    owners, pids = processes.codes(known).tolist(), processes.pids()
    has_processes = len(set(owners)) > 1
    counts: Counter[str] = Counter()
    names = []
    for number, owner in zip(known.tolist(), owners, strict=True):
        name = (f"process {pids[owner]} " if has_processes else "") + f"thread {number & 0xFF_FFFF}"
        counts[name] += 1
        names.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    lanes = tuple(
        Lane(name=f"host: {name}", kind=LaneKind.HOST, process=max(owner, 0)) for name, owner in zip(names, owners, strict=True)
    )
    bounds = np.cumsum([len(some) for some in numbers])[:-1]
    return Threads(tuple(names), lanes, tuple(np.split(place.astype(np.int64), bounds)))
