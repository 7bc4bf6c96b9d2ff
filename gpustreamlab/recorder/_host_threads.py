"""The threads of the host: their names, and their lanes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.recorder._lanes import HOST_LANES, LaneTable
from gpustreamlab.recorder._texts import cut_text
from gpustreamlab.recorder._thread_names import ThreadNames
from gpustreamlab.typing import Int64Array

KNOWN_THREADS = 4_096
"""Threads whose names are remembered when they have ended; the newest count."""
_ALWAYS_NS = -(2**62)


class HostThreads:
    """Names threads, and gives them lanes. A thread that has ended keeps the name that it had last.

    The system gives the number of a thread that has ended to another one, so a number has a name from a time on.

    Parameters
    ----------
    lanes
        Where lanes are added.
    names
        Codes of the names.
    """

    def __init__(self, lanes: LaneTable, names: ThreadNames) -> None:
        self._lanes = lanes
        self._names = names
        self._known: dict[int, list[tuple[int, str]]] = {}
        """By number: since when, by the host's clock, it has had which name; an empty one from when its thread had ended."""
        self._known_count = 0
        self._lane_of: dict[tuple[int, str], int] = {}
        self._lock = threading.RLock()

    def note(self, ident: int, name: str, since_host_ns: int) -> None:
        """Take that a thread of this number and name has begun to use the session."""
        with self._lock:
            spells = self._known.get(ident)
            if spells is None:
                self._known[ident] = [(_ALWAYS_NS, name)]  # in one step: an interrupt leaves no empty list
            elif spells[-1][1] == name:
                return
            else:
                spells.append((since_host_ns, name))
            self._known_count += 1
            self._forget_oldest()

    def look(self, now_host_ns: int) -> None:
        """Learn the names of the threads that live, and which have ended."""
        alive = {one.ident & 0xFFFF_FFFF: cut_text(one.name) for one in threading.enumerate() if one.ident is not None}
        with self._lock:
            for ident in [ident for ident, spells in self._known.items() if spells[-1][1] and ident not in alive]:
                self.note(ident, "", now_host_ns)
            for ident, name in alive.items():
                self.note(ident, name, now_host_ns)

    def codes(self, thread: Int64Array, at_host_ns: Int64Array) -> Int64Array:
        """Return the code of each thread, as it was called at these times."""
        return self._of_each(thread, at_host_ns, self._names.code)

    def lanes(self, thread: Int64Array, at_host_ns: Int64Array) -> Int64Array:
        """Return the index of each thread's lane, made on first use."""
        return self._of_each(thread, at_host_ns, self._lane)

    def _of_each(self, thread: Int64Array, at_host_ns: Int64Array, find: Callable[[int, str], int]) -> Int64Array:
        found = np.empty(len(thread), np.int64)
        idents, place = distinct(thread)
        for number, ident in enumerate(idents.tolist()):
            rows = np.flatnonzero(place == number)
            since_ns, names = self._spells(ident)
            spell = np.searchsorted(since_ns, at_host_ns[rows], side="right") - 1
            codes = {one: find(ident, names[one]) for one in np.unique(spell).tolist()}
            found[rows] = [codes[one] for one in spell.tolist()] if len(codes) > 1 else next(iter(codes.values()))
        return found

    def _spells(self, ident: int) -> tuple[Int64Array, list[str]]:
        """Return since when a number has had which name."""
        with self._lock:
            spells = self._known.get(ident) or [(_ALWAYS_NS, "")]
            return np.array([since_ns for since_ns, _ in spells], np.int64), [name or f"thread {ident}" for _, name in spells]

    def _forget_oldest(self) -> None:
        while self._known_count > KNOWN_THREADS:
            oldest = next(iter(self._known))
            self._known_count -= len(self._known.pop(oldest))

    def _lane(self, ident: int, name: str) -> int:
        key = ident, name
        known = self._lane_of.get(key)
        if known is None:
            known = self._lanes.add_host(*key)
            if len(self._lane_of) < HOST_LANES:  # what comes later shares one anyway
                self._lane_of[key] = known
        return known
