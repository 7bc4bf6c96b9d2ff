"""How work was launched: each way once, with the names that parts of graphs were given."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gpustreamlab.model import WorkDetail
from gpustreamlab.record._names import CodeTable, cut_text, plain_text
from gpustreamlab.typing import Int64Array

DETAIL_LIMIT = 65_536
"""Different details told apart in one session; later ones share one that says so."""
DETAIL_CHARACTERS = 64 << 20
"""Characters of all their names together, beyond which later ones share it too."""
MAX_FULL_NAME = 8_192
"""Longest full name, in characters; a longer one is cut and ends in "…"."""
OTHER_DETAIL = WorkDetail(full_name="(other details)")
"""Stands for all that are beyond a limit."""


class DetailTable(CodeTable[WorkDetail]):
    """Codes for details, in the order in which they were first seen.

    Parameters
    ----------
    limit
        How many are told apart.
    characters
        How long their names may be together.
    """

    def __init__(self, limit: int = DETAIL_LIMIT, characters: int = DETAIL_CHARACTERS) -> None:
        super().__init__(limit, OTHER_DETAIL)
        self._characters_left = characters

    def codes(self, details: Iterable[WorkDetail]) -> Int64Array:
        """Return the code of each detail, and -1 behind them for what has none."""
        return np.array([*map(self.code, details), -1], np.int64)

    def _add(self, value: WorkDetail) -> int:
        name = value.full_name
        cut = plain_text(name if len(name) <= MAX_FULL_NAME + 1 else f"{name[:MAX_FULL_NAME]}…")
        if cut != name:
            return self.code(replace(value, full_name=cut))
        with self._lock:
            if len(name) > self._characters_left:
                return super()._add(OTHER_DETAIL)
            self._characters_left -= len(name)
            return super()._add(value)


KEPT_GRAPHS = 4_096
"""Graphs whose parts' names are known; the newest count."""


class GraphLabels:
    """What the parts of CUDA graphs are called."""

    def __init__(self) -> None:
        self._labels: dict[int, tuple[list[int], list[str]]] = {}

    def name(self, graph: int, labels: Sequence[tuple[int, str]]) -> None:
        """Name the parts of a graph by their first nodes, ascending."""
        self._labels.pop(graph, None)
        self._labels[graph] = [first for first, _ in labels], [cut_text(text) for _, text in labels]
        while len(self._labels) > KEPT_GRAPHS:
            del self._labels[next(iter(self._labels))]

    def put_on(self, detail: WorkDetail) -> WorkDetail:
        """Return the detail with its part's name, where that is known."""
        firsts, texts = self._labels.get(detail.graph, ((), ()))
        place = bisect_right(firsts, detail.node) - 1
        return replace(detail, label=texts[place]) if place >= 0 else detail
