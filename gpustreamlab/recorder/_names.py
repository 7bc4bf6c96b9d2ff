"""Texts kept once, with a bound."""

from __future__ import annotations

import threading
from itertools import islice


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
