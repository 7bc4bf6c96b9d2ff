"""Moments that a trace can begin at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gpustreamlab.recorder._ancestry import RANGE_CODE
from gpustreamlab.typing import BoolArray, Int64Array

KEPT_CHECKPOINTS = 1_000
"""Checkpoints whose time is remembered; the newest count."""


class Checkpoints:
    """Remembers when the numbers were taken that stand for moments."""

    def __init__(self) -> None:
        self._host_ns: dict[int, int] = {}

    def note(self, number: int, host_ns: int) -> None:
        """Note a number that is lower than those of all ranges to come."""
        self._host_ns[number] = host_ns
        while len(self._host_ns) > KEPT_CHECKPOINTS:
            del self._host_ns[next(iter(self._host_ns))]

    def find_later(self, columns: Mapping[str, Int64Array], since: int, to_clock_ns: Callable[[int], int]) -> BoolArray:
        """Tell which spans were opened or launched after a checkpoint."""
        is_range = columns["kind"] == RANGE_CODE
        is_later = is_range & (columns["number"] > since)
        host_ns = self._host_ns.get(since)
        if host_ns is not None:
            since_ns = to_clock_ns(host_ns)
        else:  # long ago: what was launched before the first range is not told from what came before the checkpoint
            since_ns = int(columns["queued_ns"][is_later].min(initial=np.iinfo(np.int64).max))
        found: BoolArray = is_later | (~is_range & (columns["queued_ns"] >= since_ns))
        return found
