"""Names that tell the threads of the host apart."""

from __future__ import annotations

import threading
from collections import defaultdict
from itertools import count

from gpustreamlab.recorder._names import NameTable


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
