"""Names of spans and of the host's threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from itertools import count, islice

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.record._lanes import HOST_LANES, LaneTable
from gpustreamlab.typing import Int64Array


class NameTable:
    """Numbers for texts, in the order in which they were first seen.

    Parameters
    ----------
    limit
        How many different texts are told apart; what comes later shares one number, whose text is `OTHER`.
    """

    OTHER = "(other names)"

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._codes: dict[str, int] = {}
        self._lock = threading.RLock()

    @property
    def texts(self) -> tuple[str, ...]:
        """Every text, by its number."""
        return (*self._codes,)  # not tuple(...): that may meet a change half-way where there is no global lock

    @property
    def count(self) -> int:
        """How many texts there are."""
        return len(self._codes)

    def texts_from(self, code: int) -> tuple[str, ...]:
        """Return the texts from this number on."""
        with self._lock:
            fresh = len(self._codes) - code
            return tuple(islice(reversed(self._codes), max(0, fresh)))[::-1]

    def code(self, text: str) -> int:
        """Return the text's number."""
        try:
            return self._codes[text]
        except KeyError:
            return self._add(text)

    def _add(self, text: str) -> int:
        with self._lock:
            if len(self._codes) >= self._limit - 1:
                text = self.OTHER
            return self._codes.setdefault(text, len(self._codes))


MAX_LABEL_LENGTH = 1_000
"""Longest name of a range, in characters; a longer one is cut and ends in "…"."""


def cut_text(text: str) -> str:
    """Return a text that is not too long to keep and that UTF-8 can write.

    Examples
    --------
    >>> len(cut_text("x" * 5_000))
    1001
    """
    return plain_text(text if len(text) <= MAX_LABEL_LENGTH else f"{text[:MAX_LABEL_LENGTH]}…")


def plain_text(text: str) -> str:
    """Replace what UTF-8 cannot write, so that every name can be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


class ThreadNames:
    """Numbers for threads, in the order in which they were first seen. Of two of one name, the second is "worker (2)".

    Parameters
    ----------
    limit
        How many threads are told apart; what comes later shares one number.

    Examples
    --------
    >>> threads = ThreadNames(limit=9)
    >>> threads.code(70, "worker"), threads.code(71, "worker"), threads.code(70, "worker")
    (0, 1, 0)
    >>> threads.texts
    ('worker', 'worker (2)')
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._table = NameTable(limit)
        self._codes: dict[tuple[int, str], int] = {}
        self._taken: set[str] = set()
        self._next: defaultdict[str, count[int]] = defaultdict(lambda: count(2))
        # Re-entrant: a finaliser or a signal handler may come here in the middle of it.
        self._lock = threading.RLock()

    @property
    def texts(self) -> tuple[str, ...]:
        """Every thread's text, by its number."""
        return self._table.texts

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return self._table.count

    def code(self, ident: int, name: str) -> int:
        """Return the number of the thread that has this name; its ident may be another thread's, of another name, later."""
        known = self._codes.get((ident, name))
        return self._add(ident, name) if known is None else known

    def _add(self, ident: int, name: str) -> int:
        with self._lock:
            if len(self._codes) >= self._limit:
                return self._table.code(NameTable.OTHER)
            text = self._free_text(name)
            self._taken.add(text)
            return self._codes.setdefault((ident, name), self._table.code(text))

    def _free_text(self, name: str) -> str:
        if name not in self._taken:
            return name
        return next(text for number in self._next[name] if (text := f"{name} ({number})") not in self._taken)


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
