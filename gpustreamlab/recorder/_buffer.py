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


class _Ring(NamedTuple):
    """Where the spans are. Whoever changes it makes another one, and puts it in place in one step."""

    rows: Int64Array
    """Shape (n_columns, n_held)."""
    first: int
    """Append index of the span that came first after the last clear: it was in the first place."""
    end: int
    """Spans that were ever appended."""
    clear_count: int


class SpanBuffer:
    """The last `ring_size` spans.

    Memory grows with use up to ``ring_size * 104`` bytes. When the ring is full, the oldest spans make room.

    Threads must take turns. What comes in the middle of a call of the same thread (a signal handler, a finaliser) may do
    anything: who was interrupted begins again.

    Parameters
    ----------
    ring_size
        How many spans are kept, from 1 to `MAX_RING_SIZE`.
    """

    def __init__(self, ring_size: int) -> None:
        if type(ring_size) is not int or not 1 <= ring_size <= MAX_RING_SIZE:
            raise OptionError(
                f"ring_size is {ring_size!r}; it must be a number of spans, from 1 to {MAX_RING_SIZE:,}. "
                "Use gpustreamlab.Session(ring_size=1_000_000)."
            )
        self.ring_size = ring_size
        self._ring = _Ring(_NO_ROWS, first=0, end=0, clear_count=0)

    def __len__(self) -> int:
        return self._held(self._ring)

    @property
    def clear_count(self) -> int:
        """How often everything was forgotten."""
        return self._ring.clear_count

    @property
    def dropped_count(self) -> int:
        """Spans that were overwritten because the ring was full, since it was last cleared."""
        ring = self._ring
        return ring.end - ring.first - self._held(ring)

    def clear(self) -> None:
        """Forget every span, and give their memory back; append indices go on."""
        while True:
            ring = self._ring
            cleared = _Ring(_NO_ROWS, first=ring.end, end=ring.end, clear_count=ring.clear_count + 1)
            if self._ring is ring:
                self._ring = cleared
                return

    def append(self, columns: Mapping[str, Int64Array]) -> None:
        """Append spans, given as equally long columns."""
        block = np.stack([columns[name] for name in SPAN_COLUMNS])
        added = block.shape[1]
        kept = block[:, max(0, added - self.ring_size) :]
        while True:
            ring = self._ring
            end = ring.end + added
            rows = self._grown(ring, min(end - ring.first, self.ring_size))
            places = np.s_[:, self._places(ring, end - kept.shape[1], end)]
            grown = ring._replace(rows=rows, end=end)
            if self._ring is ring:  # and nobody comes in between before it is in place: no call stands here
                rows[places] = kept
                self._ring = grown
                return

    def drain(self, cursor: int) -> Drained:
        """Return what was appended since the cursor; start with 0."""
        return self.read(cursor)

    def read(self, first: int, last: int | None = None) -> Drained:
        """Return what is still there of the spans with these append indices, the last one not included; without it, all."""
        while True:
            ring = self._ring
            end = ring.end if last is None else last
            kept = max(first, ring.end - self._held(ring))
            rows = ring.rows[:, self._places(ring, kept, max(kept, end))]
            if self._ring is ring:
                return Drained(dict(zip(SPAN_COLUMNS, rows, strict=True)), end, kept - first, ring.clear_count)

    def _held(self, ring: _Ring) -> int:
        return min(ring.end - ring.first, self.ring_size)

    def _places(self, ring: _Ring, first: int, last: int) -> Int64Array:
        """Return where the rows of append indices are, the last one not included."""
        places: Int64Array = np.arange(first - ring.first, last - ring.first) % self.ring_size
        return places

    def _grown(self, ring: _Ring, wanted: int) -> Int64Array:
        """Return the rows, in a larger array where so many are wanted."""
        held = ring.rows.shape[1]
        if wanted <= held:
            return ring.rows
        # Until the ring is full it has not wrapped, so rows are in order and growing is a copy.
        rows = np.empty((len(SPAN_COLUMNS), min(max(wanted, 2 * held, _FIRST_ROWS), self.ring_size)), np.int64)
        rows[:, :held] = ring.rows
        return rows
