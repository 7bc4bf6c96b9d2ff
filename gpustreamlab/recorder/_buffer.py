"""A bounded ring of finished spans, read by append index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpustreamlab.errors import OptionError
from gpustreamlab.typing import Int64Array

SPAN_COLUMNS = (
    "start_ns",
    "end_ns",
    "queued_ns",
    "lane",
    "name",
    "kind",
    "parent",
    "thread",
    "partition",
    "number",
    "detail",
    "size_bytes",
    "correlation",
)
"""What the ring holds for each span, int64 each. ``number`` counts ranges as they open, and everything else, from
`FIRST_WORK_NUMBER` on, as it is told of; ``parent`` is the number of a range, or -1."""

FIRST_WORK_NUMBER = 1 << 40
"""Numbers of spans that are no ranges begin here: so they tell no one that ranges were opened."""

MAX_RING_SIZE = 1_000_000_000
"""Most spans that a ring may hold: 104 GB."""

_FIRST_ROWS = 4_096
_NO_ROWS = np.empty((len(SPAN_COLUMNS), 0), np.int64)


class Drained(NamedTuple):
    """What was appended since a cursor."""

    columns: Mapping[str, Int64Array]
    """Copies, shape (n_new,) each, in the order of appending; see `SPAN_COLUMNS`."""
    cursor: int
    """Pass this to the next drain."""
    missed: int
    """Spans that were overwritten, or forgotten, before they could be read."""
    clear_count: int = 0
    """How often the buffer was cleared before this."""


class SpanBuffer:
    """The last `ring_size` spans.

    Memory grows with use up to ``ring_size * 104`` bytes. When the ring is full, the oldest spans make room.

    Parameters
    ----------
    ring_size
        How many spans are kept, from 1 to `MAX_RING_SIZE`.
    """

    def __init__(self, ring_size: int) -> None:
        if type(ring_size) is not int or not 1 <= ring_size <= MAX_RING_SIZE:
            raise OptionError(
                f"ring_size is {ring_size!r}; it is the number of spans kept, from 1 to {MAX_RING_SIZE:,}. "
                "Use gpustreamlab.Session(ring_size=1_000_000)."
            )
        self.ring_size = ring_size
        self.appended_count = 0
        self.clear_count = 0
        """How often everything was forgotten."""
        self._cleared_count = 0
        self._rows = _NO_ROWS

    def __len__(self) -> int:
        return min(self.appended_count - self._cleared_count, self.ring_size)

    @property
    def dropped_count(self) -> int:
        """Spans that were overwritten because the ring was full, since it was last cleared."""
        return self.appended_count - self._cleared_count - len(self)

    def clear(self) -> None:
        """Forget every span, and give their memory back; append indices go on."""
        self.clear_count += 1
        self._cleared_count = self.appended_count
        self._rows = _NO_ROWS

    def append(self, columns: Mapping[str, Int64Array]) -> None:
        """Append spans, given as equally long columns."""
        block = np.stack([columns[name] for name in SPAN_COLUMNS])
        appended_count = self.appended_count + block.shape[1]
        kept = block[:, max(0, block.shape[1] - self.ring_size) :]
        self._grow(min(appended_count - self._cleared_count, self.ring_size))
        self._rows[:, self._places(appended_count - kept.shape[1], appended_count)] = kept
        self.appended_count = appended_count

    def drain(self, cursor: int) -> Drained:
        """Return what was appended since the cursor; start with 0."""
        return self.read(cursor, self.appended_count)

    def read(self, first: int, last: int) -> Drained:
        """Return what is still there of the spans with these append indices, the last one not included."""
        oldest = self.appended_count - len(self)
        kept = max(first, oldest)
        columns = dict(zip(SPAN_COLUMNS, self._rows[:, self._places(kept, max(kept, last))], strict=True))
        return Drained(columns, last, kept - first, self.clear_count)

    def _places(self, first: int, last: int) -> Int64Array:
        """Return where the rows of append indices are, the last one not included."""
        places: Int64Array = np.arange(first - self._cleared_count, last - self._cleared_count) % self.ring_size
        return places

    def _grow(self, wanted: int) -> None:
        held = self._rows.shape[1]
        if wanted <= held:
            return
        # Until the ring is full it has not wrapped, so rows are in order and growing is a copy.
        grown = np.empty((len(SPAN_COLUMNS), min(max(wanted, 2 * held, _FIRST_ROWS), self.ring_size)), np.int64)
        grown[:, :held] = self._rows
        self._rows = grown
