"""The one way from a recorder to its readers: what is new since a cursor.

A trace, a run on disk and a live view each read the journal, and keep no other note of how far they have come.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab.model import Counters, WorkDetail
from gpustreamlab.record._buffer import SPAN_COLUMNS
from gpustreamlab.record._counters import KEPT_SAMPLES, NO_SAMPLES, samples_that_count
from gpustreamlab.record._in_flight import Unended
from gpustreamlab.record._ranges import RecordedLane
from gpustreamlab.record._tables import Tables
from gpustreamlab.record._work import DEPENDENCY_COLUMNS
from gpustreamlab.typing import Int64Array

TABLES_EVERY_S = 10.0
"""After how long the tables count as changed in any case: the errors of the clock change, and have no version."""


class Cursor(NamedTuple):
    """How far a reader has come; ``Cursor()`` is the beginning."""

    row: int = 0
    """Append index of the next row."""
    clear_count: int = 0
    """How often the recorder had been cleared."""
    name: int = 0
    """Names known."""
    detail: int = 0
    """Details known."""
    edge: int = 0
    """Edges so far."""
    dependency: int = 0
    """Dependencies so far."""
    sample: tuple[int, int] = (0, 0)
    """Samples so far that no later one replaces, and how often samples were told of."""
    version: tuple[object, ...] = ()
    """What changes whenever the tables do."""


START = Cursor()
"""Where every reader begins."""

FOREVER_NS = 1 << 62
"""When a window of capture ends that is still open: later than anything that is recorded."""


_NONE = np.empty(0, np.int64)
NO_ROWS: Mapping[str, Int64Array] = dict.fromkeys(SPAN_COLUMNS, _NONE)
"""Empty columns."""
NO_EDGES = _NONE.reshape(0, 2)
NO_DEPENDENCIES: Mapping[str, Int64Array] = dict.fromkeys(DEPENDENCY_COLUMNS, _NONE)
NO_UNENDED = Unended(_NONE, _NONE, _NONE, _NONE)


class Delta(NamedTuple):
    """What came between two cursors, and the tables as they are at its end."""

    tables: Tables
    """What the codes in the rows mean, and how it was measured; where nothing of it changed, as it was told before."""
    columns: Mapping[str, Int64Array] = NO_ROWS
    """New rows, copies, shape (n_rows,) each, in the order of appending; see `SPAN_COLUMNS`."""
    cursor: Cursor = START
    """Pass this on to read what comes next."""
    missed: int = 0
    """Rows that made room for newer ones before they could be read."""
    is_cleared: bool = False
    """Whether the recorder was cleared meanwhile: rows, edges, dependencies and samples that were read before are forgotten."""
    is_changed: bool = True
    """Whether the tables have changed."""
    names: Sequence[str] = ()
    """New names of spans, by their code from the cursor's on."""
    details: Sequence[WorkDetail] = ()
    """How work was launched, likewise."""
    edges: Int64Array = NO_EDGES
    """Numbers of ranges, of which the second waited for the first; shape (n, 2)."""
    dependencies: Mapping[str, Int64Array] = NO_DEPENDENCIES
    """Which stream was told to wait for which, see `DEPENDENCY_COLUMNS`."""
    counters: Counters = NO_SAMPLES
    """New samples of lanes' quantities, in order of time. The newest of each quantity can come again, see `join_samples`."""
    unended: Unended = NO_UNENDED
    """Ranges that have not ended: those that were asked for, and those around the new rows."""
    is_capturing: bool = False
    """Whether kernels are captured now, so that the last window in the metadata has not ended."""

    @property
    def capture_windows(self) -> tuple[tuple[int, int], ...]:
        """When kernels were captured. A window that is open has no end: the metadata have that of when they were told."""
        windows = self.tables.metadata.capture_windows
        return (*windows[:-1], (windows[-1][0], FOREVER_NS)) if windows and self.is_capturing else windows

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return len(self.columns["number"])

    @property
    def first(self) -> int:
        """Append index of the first row."""
        return self.cursor.row - self.row_count

    def with_facts(self, **facts: Any) -> Delta:
        """Return it with other facts in the metadata."""
        return self._replace(tables=self.tables._replace(metadata=replace(self.tables.metadata, **facts)))


def tables_version(*parts: object) -> tuple[object, ...]:
    """Return a version of the tables that also changes now and then by itself."""
    return (*parts, int(time.monotonic() / TABLES_EVERY_S))


def join(deltas: Sequence[Delta]) -> Delta:
    """Return what deltas that followed each other tell together."""
    first = max((place for place, delta in enumerate(deltas) if delta.is_cleared), default=0)
    kept = deltas[first:]
    return deltas[-1]._replace(
        columns=_joined([delta.columns for delta in kept]),
        missed=sum(delta.missed for delta in kept),
        is_cleared=any(delta.is_cleared for delta in deltas),
        is_changed=any(delta.is_changed for delta in deltas),
        names=[name for delta in deltas for name in delta.names],
        details=tuple(detail for delta in deltas for detail in delta.details),
        edges=np.concatenate([delta.edges for delta in kept]),
        dependencies=_joined([delta.dependencies for delta in kept]),
        counters=join_samples([delta.counters for delta in kept]),
    )


def _joined(parts: Sequence[Mapping[str, Int64Array]]) -> dict[str, Int64Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def join_samples(parts: Sequence[Counters]) -> Counters:
    """Return samples that were read one after the other, without those that later ones replace; the newest are kept."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return NO_SAMPLES
    time_ns, lane, name, value = (
        np.concatenate([getattr(part, column) for part in parts]) for column in ("time_ns", "lane", "name", "value")
    )
    order = np.lexsort((time_ns, name, lane))
    kept = order[samples_that_count(time_ns[order], lane[order], name[order], value[order])]
    kept = kept[np.argsort(time_ns[kept], kind="stable")][-KEPT_SAMPLES:]
    return Counters(time_ns=time_ns[kept], lane=lane[kept], name=name[kept], value=value[kept], names=parts[-1].names)


KEPT_EDGES = 256
"""Edges kept that wait for the next range of a lane; the newest count."""


class RangeEdges:
    """Pairs of range numbers, of which the second waited for the first. Who uses them holds the recorder's lock.

    Parameters
    ----------
    limit
        How many are kept; the newest count.
    """

    def __init__(self, limit: int) -> None:
        self._pairs: deque[tuple[int, int]] = deque(maxlen=limit)
        self.count = 0
        """Pairs so far, those that are gone too."""

    def add(self, source_number: int, target_number: int) -> None:
        """Note that an open range waits for an earlier range."""
        self.count += 1
        self._pairs.append((source_number, target_number))

    def begin(self, source_number: int, target: RecordedLane) -> None:
        """Note that the next range of a lane waits for an earlier range."""
        target.incoming.append(source_number)
        del target.incoming[:-KEPT_EDGES]

    def end(self, lane: RecordedLane, number: int) -> None:
        """Let those that wait for a lane's next range end at it."""
        incoming, lane.incoming = lane.incoming, []
        for source in incoming:
            self.add(source, number)

    def read(self, first: int, last: int) -> Int64Array:
        """Return those of these indices that are still there, the last one not included; shape (n, 2)."""
        gone_count = self.count - len(self._pairs)
        found = islice(self._pairs, max(0, first - gone_count), max(0, last - gone_count))
        return np.array(list(found), np.int64).reshape(-1, 2)

    def clear(self) -> None:
        """Forget them; cursors go on."""
        self._pairs.clear()
