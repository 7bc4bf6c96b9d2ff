"""How kernels were launched: each way once, with a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

import numpy as np

from gpustreamlab.model import WorkDetail
from gpustreamlab.recorder._texts import plain_text
from gpustreamlab.typing import Int64Array

DETAIL_LIMIT = 65_536
"""Different details told apart in one session; later ones share one that says so."""
DETAIL_CHARACTERS = 64 << 20
"""Characters of all their names together, beyond which later ones share it too."""
MAX_FULL_NAME = 8_192
"""Longest full name, in characters; a longer one is cut and ends in "…"."""
OTHER_DETAIL = WorkDetail(full_name="(other details)")
"""Stands for all that are beyond a limit."""


class DetailTable:
    """Codes for details, in the order in which they were first seen.

    Parameters
    ----------
    limit
        How many are told apart.
    characters
        How long their names may be together.
    """

    def __init__(self, limit: int = DETAIL_LIMIT, characters: int = DETAIL_CHARACTERS) -> None:
        self._limit = limit
        self._characters_left = characters
        self._codes: dict[WorkDetail, int] = {}
        self._lock = threading.RLock()

    @property
    def all(self) -> tuple[WorkDetail, ...]:
        """Every detail, by its code."""
        with self._lock:
            return tuple(self._codes)

    def starting_at(self, code: int) -> tuple[WorkDetail, ...]:
        """Return the details from this code on."""
        with self._lock:
            return tuple(islice(reversed(self._codes), max(0, len(self._codes) - code)))[::-1]

    def codes(self, details: Iterable[WorkDetail]) -> Int64Array:
        """Return the code of each detail, and -1 behind them for what has none."""
        with self._lock:
            return np.array([*map(self._code, details), -1], np.int64)

    def _code(self, detail: WorkDetail) -> int:
        known = self._codes.get(detail)
        if known is not None:
            return known
        name = detail.full_name
        cut = plain_text(name if len(name) <= MAX_FULL_NAME + 1 else f"{name[:MAX_FULL_NAME]}…")
        if cut != name:
            return self._code(replace(detail, full_name=cut))
        length = len(name)
        if len(self._codes) >= self._limit - 1 or length > self._characters_left:
            return self._codes.setdefault(OTHER_DETAIL, len(self._codes))
        self._characters_left -= length
        return self._codes.setdefault(detail, len(self._codes))
