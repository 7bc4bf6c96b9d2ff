"""The threads of the host: their names, and their lanes."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.recorder._lanes import HOST_LANES, LaneTable
from gpustreamlab.recorder._ranges import ThreadState
from gpustreamlab.recorder._texts import cut_text
from gpustreamlab.recorder._thread_names import ThreadNames
from gpustreamlab.typing import Int64Array

KNOWN_THREADS = 4_096
"""Threads whose names are remembered when they have ended; the newest count."""


class HostThreads:
    """Names threads, and gives them lanes. A thread that has ended keeps the name that it had last.

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
        self._known: dict[int, str] = {}
        self._lane_of: dict[tuple[int, str], int] = {}

    def look(self, states: Iterable[ThreadState]) -> None:
        """Learn the names of the threads that live."""
        for state in states:
            self._learn(state.ident, state.name)
        for thread in threading.enumerate():
            if thread.ident is not None:
                self._learn(thread.ident & 0xFFFF_FFFF, cut_text(thread.name))

    def codes(self, thread: Int64Array) -> Int64Array:
        """Return the code of each thread."""
        idents, place = distinct(thread)
        return np.array([self._names.code(ident, self._name(ident)) for ident in idents.tolist()], np.int64)[place]

    def lanes(self, thread: Int64Array) -> Int64Array:
        """Return the index of each thread's lane, made on first use."""
        idents, place = distinct(thread)
        return np.array([self._lane(ident) for ident in idents.tolist()], np.int64)[place]

    def _learn(self, ident: int, name: str) -> None:
        if self._known.get(ident) == name:
            return
        self._known.pop(ident, None)  # so that it is the newest
        self._known[ident] = name
        while len(self._known) > KNOWN_THREADS:
            del self._known[next(iter(self._known))]

    def _name(self, ident: int) -> str:
        return self._known.get(ident) or f"thread {ident}"

    def _lane(self, ident: int) -> int:
        key = ident, self._name(ident)
        known = self._lane_of.get(key)
        if known is None:
            known = self._lanes.add_host(*key)
            if len(self._lane_of) < HOST_LANES:  # what comes later shares one anyway
                self._lane_of[key] = known
        return known
