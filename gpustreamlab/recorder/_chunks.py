"""What happened, as immutable chunks. A reader's place is one integer, and every reader folds the same chunks."""

# Tried before, and left: a ring of rows beside append-only tables. Every reader then needed eight places (rows, names, details,
# edges, dependencies, samples, clears, a version of the tables), and each recorder, spool, mirror and joined journal its own
# forty lines to move them. Here one thing is closed at once, by whoever reads next; what was closed does not change.
#
# A place that is not known, for whatever reason (the recorder was cleared, it is of another recorder, it is an hour old), has
# one answer: everything that is there, marked `is_anew`.

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab.errors import OptionError
from gpustreamlab.model import Marker, WorkDetail
from gpustreamlab.recorder._tables import KEPT_MARKERS, CodeTable, Tables
from gpustreamlab.typing import BoolArray, Int64Array

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
"""What is kept of each span, int64 each. ``number`` counts ranges as they open, and everything else, from `FIRST_WORK_NUMBER`
on, as it is recorded; ``parent`` is the number of a range, or -1."""
DEPENDENCY_COLUMNS = ("source_lane", "record", "target_lane", "wait")
"""The lane that is waited for, and the call that recorded the event; the lane that waits, and the call that made it wait.

Where the host waits, the target's lane is `HOST_WAITS` and ``wait`` the call that blocked. Where that waits for a whole device,
the source's lane is -1 less the device's number."""
HOST_WAITS = -1
ACCESS_COLUMNS = ("correlation", "buffer", "begin", "end", "flags")
"""What work touched, see `gpustreamlab.backends.AccessBatch`; all rows of one call follow each other."""
SAMPLE_COLUMNS = ("time_ns", "lane", "name", "value")  # Of a lane's quantity; the bits of the float64 ``value`` as int64

FIRST_WORK_NUMBER = 1 << 48  # Numbers of spans that are no ranges begin here: below it they count opened ranges
NUMBERS_APART = (1 << 36) + 7_919
"""How far the first numbers of two recorders of a process are apart: a span of one has no number of a span of another. Not a
power of two: readers keep the last spans by their numbers modulo one."""
RECORDERS = 4_095  # Recorders of a process whose numbers differ; then they begin anew

MAX_RING_SIZE = 1_000_000_000  # Most spans that are kept: 104 GB
KEPT_DEPENDENCIES = 262_144  # Waits of streams for streams that are kept; the newest count
KEPT_ACCESSES = 1_000_000  # Accesses to memory that are kept, 40 MB; the newest count
KEPT_SAMPLES = 1_048_576  # Samples that are kept, 32 MB: 7 counters each 50 us for 7 s; the newest count
SAMPLE_EVERY_NS = 1_000_000
"""Of the samples of one lane and counter within a millisecond the first and the last one count, and the highest where that is
higher: without the first, memory would be unknown while the first work runs."""
CHUNK_ROWS = 32_768  # A chunk is closed with so many rows; it has at most twice as many
CHUNK_PARTS = 256  # A chunk is closed with so many parts
KEPT_CHUNKS = 2_048
"""Beyond so many, the older half is joined into few: a reader that was away for a minute or more then reads all anew."""
START = 0  # Where every reader begins

_ROWS, _PAIRS = np.empty((len(SPAN_COLUMNS), 0), np.int64), np.empty((2, 0), np.int64)
_FOURS = np.empty((4, 0), np.int64)
_ACCESSES = np.empty((len(ACCESS_COLUMNS), 0), np.int64)
_BLOCKS = ("rows", "edges", "dependencies", "samples", "accesses")
_LISTS = ("names", "details", "counter_names", "markers")
_KINDS = (*_BLOCKS, *_LISTS)
_logs = count(1)


class Chunk(NamedTuple):
    """A batch of rows and tables. All that its rows point into is in it, or in those before it."""

    rows: Int64Array = _ROWS  # Shape (len(SPAN_COLUMNS), n), in the order in which they ended or were recorded
    edges: Int64Array = _PAIRS  # Numbers of ranges, of which the second waited for the first; shape (2, n)
    dependencies: Int64Array = _FOURS  # Waits of streams for streams, see `DEPENDENCY_COLUMNS`; shape (4, n)
    samples: Int64Array = _FOURS  # See `SAMPLE_COLUMNS`; shape (4, n)
    accesses: Int64Array = _ACCESSES  # See `ACCESS_COLUMNS`; shape (5, n), of each call all or none
    names: Sequence[str] = ()  # New names of spans, by their code
    details: Sequence[WorkDetail] = ()  # New ways in which work was launched, by their code
    counter_names: Sequence[str] = ()  # New names of counters, by their code
    markers: Sequence[Marker] = ()  # New marked moments
    tables: Tables | None = None
    """Tables that stay small, as they are from now on, without markers; None where they have not changed."""
    missed: int = 0  # Rows that made room for newer ones, which this reader did not get
    missed_accesses: int = 0  # Likewise of `accesses`
    is_anew: bool = False  # Whether a reader forgets all that it has read: this begins at the beginning
    lost: int = 0  # Spans that never came here, by now
    pending: int = 0  # Closed ranges whose work had not ended, by now
    is_capturing: bool = False  # Whether kernels are captured now, so that the last window in the metadata has not ended
    place: int = START  # Where the next chunk begins

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return int(self.rows.shape[1])

    @property
    def columns(self) -> dict[str, Int64Array]:
        """The rows by `SPAN_COLUMNS`, shape (n,) each."""
        return dict(zip(SPAN_COLUMNS, self.rows, strict=True))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        is_missing = self.missed or self.missed_accesses
        return self.tables is None and not is_missing and not any(_count(self, kind) for kind in _KINDS)

    def split(self, row_count: int) -> Iterator[Chunk]:
        """Return it in pieces of so many rows; the first one has all else."""
        yield self._replace(rows=self.rows[:, :row_count])
        for low in range(row_count, self.row_count, row_count):
            now = {name: getattr(self, name) for name in ("lost", "pending", "is_capturing", "place")}
            yield Chunk(self.rows[:, low : low + row_count], **now)


_NOTHING = Chunk()


def _count(chunk: Chunk, kind: str) -> int:
    part: Any = getattr(chunk, kind)
    return int(part.shape[1]) if kind in _BLOCKS else len(part)


_MISSED = {"rows": "missed", "accesses": "missed_accesses"}  # Kinds of which it is told how many made room


def _without(chunk: Chunk, kind: str, count: int) -> Chunk:
    """Return it without the oldest of a kind; of some it is told how many these are."""
    part = getattr(chunk, kind)
    left = part[:, count:] if kind in _BLOCKS else part[count:]
    if count == _count(chunk, kind):  # an empty part of an array would keep all of it
        left = getattr(_NOTHING, kind)
    told = {_MISSED[kind]: getattr(chunk, _MISSED[kind]) + count} if kind in _MISSED else {}
    return chunk._replace(**{kind: left}, **told)


def newer_half(chunk: Chunk) -> Chunk:
    """Return it with the newer half of all but names, and of what else codes stand for."""
    for kind in (*_BLOCKS, "markers"):
        count = _count(chunk, kind) // 2
        if kind == "accesses" and count:
            count = _whole_calls(chunk.accesses, count)
        chunk = _without(chunk, kind, count) if count else chunk
    return chunk


def newest_accesses(chunk: Chunk) -> Chunk:
    """Return it with the newest accesses only, those of each call together, as a log keeps them."""
    excess = _count(chunk, "accesses") - KEPT_ACCESSES
    return _without(chunk, "accesses", _whole_calls(chunk.accesses, excess)) if excess > 0 else chunk


def _whole_calls(accesses: Int64Array, count: int) -> int:
    """Return how many of the oldest accesses go where at least so many have to: what is half known of work is wrong."""
    correlation = accesses[0]
    later = np.flatnonzero(correlation[count:] != correlation[count - 1])
    return count + int(later[0]) if len(later) else len(correlation)


def columns_block(columns: Mapping[str, Int64Array]) -> Int64Array:
    """Return columns as `Chunk.rows` has them."""
    return np.stack([columns[name] for name in SPAN_COLUMNS])


def join(chunks: Sequence[Chunk], *, rows_from: int = START) -> Chunk:
    """Return chunks that follow each other as one, without rows before a place.

    Examples
    --------
    >>> both = join([Chunk(names=["a"], missed=2), Chunk(names=["b"], place=7)])
    >>> both.names, both.missed, both.place
    (('a', 'b'), 2, 7)
    """
    begin = max((at for at, chunk in enumerate(chunks) if chunk.is_anew), default=0)
    kept = chunks[begin:]
    if len(kept) == 1 and rows_from == START:
        return kept[0]
    joined: dict[str, Any] = {}
    for kind in _BLOCKS:
        told = kept if kind != "rows" or not rows_from else [chunk for chunk in kept if chunk.place > rows_from]
        parts = [part for chunk in told if (part := getattr(chunk, kind)).shape[1]]
        if parts:
            joined[kind] = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    joined = {kind: getattr(_NOTHING, kind) for kind in _BLOCKS} | joined
    joined |= {kind: tuple(chain.from_iterable(getattr(chunk, kind) for chunk in kept)) for kind in _LISTS}
    return chunks[-1]._replace(
        **joined,
        tables=next((chunk.tables for chunk in reversed(kept) if chunk.tables is not None), None),
        missed=sum(chunk.missed for chunk in kept),
        missed_accesses=sum(chunk.missed_accesses for chunk in kept),
        is_anew=kept[0].is_anew,
    )


class ChunkLog:
    """The chunks of one journal, of which the newest are kept. Who uses it holds a lock.

    Parameters
    ----------
    ring_size
        How many rows, and edges, are kept, from 1 to `MAX_RING_SIZE`.
    codes
        What the rows' codes mean, by the fields of `Chunk`; each chunk has the new entries only.
    describe
        Returns the tables, or None where they have not changed, and new markers, as a chunk is closed; told whether the tables
        are wanted in any case.

    Examples
    --------
    >>> log = ChunkLog(2)
    >>> log.append(np.zeros((len(SPAN_COLUMNS), 5), np.int64))
    >>> log.seal()
    >>> first = log.read(START)
    >>> log.append(np.ones((len(SPAN_COLUMNS), 1), np.int64))
    >>> log.seal()
    >>> first.row_count, first.missed, log.read(first.place).row_count, log.read(START).missed
    (2, 3, 1, 4)
    """

    def __init__(
        self,
        ring_size: int,
        codes: Mapping[str, CodeTable[Any]] | None = None,
        describe: Callable[[bool], tuple[Tables | None, Sequence[Marker]]] = lambda _: (None, ()),
    ) -> None:
        if type(ring_size) is not int or not 1 <= ring_size <= MAX_RING_SIZE:
            raise OptionError(
                f"ring_size is {ring_size!r}; it must be a number of spans, from 1 to {MAX_RING_SIZE:,}. "
                "Use gpustreamlab.Session(ring_size=1_000_000)."
            )
        self._codes, self._describe = codes or {}, describe
        self._limits = {
            "rows": ring_size,
            "edges": ring_size,
            "dependencies": KEPT_DEPENDENCIES,
            "samples": KEPT_SAMPLES,
            "accesses": KEPT_ACCESSES,
            "markers": KEPT_MARKERS,
        }
        self.number = next(_logs)  # Differs from that of every other log of this process
        self.place = self.number << 40  # Behind the last chunk
        self._begin()

    def _begin(self) -> None:
        self.place = self._base = self.place + 1  # so that no place of a reader is known
        self._chunks: list[Chunk] = []
        self._tail: list[Chunk] = []
        self._pairs: list[tuple[int, int]] = []
        self._tail_rows = 0
        self._told = dict.fromkeys(self._codes, 0)
        self._counts = dict.fromkeys(self._limits, 0)
        self._oldest = dict.fromkeys(self._limits, 0)  # the first chunk that may have some of a kind
        self.tables: Tables | None = None  # As they were told last
        self.appended_count = 0  # Rows so far, those that are gone too

    def __len__(self) -> int:
        return min(self._counts["rows"] + self._tail_rows, self._limits["rows"])

    @property
    def dropped_count(self) -> int:
        """Rows that made room for newer ones."""
        return self.appended_count - len(self)

    def append(self, rows: Int64Array) -> None:
        """Append rows; shape (len(SPAN_COLUMNS), n)."""
        self.add(Chunk(rows))

    def add(self, chunk: Chunk) -> None:
        """Append anything, while interrupts are delayed. What its codes mean is in it, or in `codes` and the tables."""
        if chunk.row_count > CHUNK_ROWS and self._tail:
            self.seal()  # else all of it would be copied behind what is there
        for piece in chunk.split(CHUNK_ROWS) if chunk.row_count > CHUNK_ROWS else (chunk,):
            row_count = piece.row_count
            self._tail.append(piece)
            self._tail_rows += row_count
            self.appended_count += row_count
            if self._tail_rows >= CHUNK_ROWS or len(self._tail) >= CHUNK_PARTS:
                self.seal()

    def add_edge(self, source: int, target: int) -> None:
        """Note that a range waited for an earlier one, both by number."""
        self._pairs.append((source, target))
        if len(self._pairs) >= CHUNK_ROWS:
            self.seal()

    def seal(self) -> None:
        """Close the last chunk, where there is anything in it."""
        with delayed_interrupts():
            tables, markers = self._describe(self.tables is None)
            tables = None if tables == self.tables else tables
            new: dict[str, Any] = {
                name: table.starting_at(self._told[name])
                for name, table in self._codes.items()
                if len(table) > self._told[name]
            }
            edges = np.array(self._pairs, np.int64).reshape(-1, 2).T if self._pairs else _PAIRS
            said = Chunk(edges=edges, tables=tables, markers=markers, **new)
            chunk = join(self._tail if said.is_empty and self._tail else [*self._tail, said])
            if chunk.is_empty:
                return
            self.place += 1
            self._tail, self._pairs, self._tail_rows = [], [], 0
            chunk.rows.flags.writeable = False
            self._chunks.append(chunk._replace(place=self.place, is_anew=False))
            self.tables = self.tables if tables is None and chunk.tables is None else chunk.tables
            for name, values in new.items():
                self._told[name] += len(values)
            self._drop_oldest(chunk)
            if len(self._chunks) > KEPT_CHUNKS:
                self._join_older()

    def read(self, since: int = START, *, until: int | None = None, rows_from: int = START, most: int | None = None) -> Chunk:
        """Return what is new since a place, closed by now; everything, and `Chunk.is_anew`, where the place is not known.

        Parameters
        ----------
        since
            `Chunk.place` of what was read before.
        until
            Return nothing that came behind this place.
        rows_from
            Leave out rows of chunks before this place.
        most
            How many rows are enough; `Chunk.place` tells how far that came.
        """
        first = self._behind(since)
        is_known = since == (self._chunks[first - 1].place if first else self._base)
        found = self._chunks[first if is_known else 0 : None if until is None else self._behind(until)]
        if most is not None:
            enough = np.searchsorted(np.cumsum([chunk.row_count for chunk in found]), most)
            found = found[: int(enough) + 1]
        told = join(found, rows_from=rows_from) if found else Chunk(place=self.place)
        return told if is_known else told._replace(is_anew=True)

    def _behind(self, place: int) -> int:
        """Return the index of the first chunk behind a place."""
        return bisect_right(self._chunks, place, key=lambda chunk: chunk.place)

    def clear(self) -> None:
        """Forget everything: each reader begins anew."""
        with delayed_interrupts():
            self._begin()

    def take_out(self, find: Callable[[Mapping[str, Int64Array]], BoolArray]) -> None:
        """Forget the rows that a function finds by their columns, and what hangs on them: each reader begins anew."""
        with delayed_interrupts():
            self.seal()
            told = self.read()
            is_out = find(told.columns)
            if not is_out.any():
                return
            out = {name: column[is_out] for name, column in told.columns.items()}
            again: dict[str, Any] = dict.fromkeys(self._codes, ())  # told anew, from the beginning
            kept = told._replace(
                rows=told.rows[:, ~is_out],
                edges=told.edges[:, ~np.isin(told.edges, out["number"]).any(axis=0)],
                dependencies=told.dependencies[:, ~np.isin(told.dependencies[3], out["correlation"])],
                accesses=told.accesses[:, ~np.isin(told.accesses[0], out["correlation"])],
                tables=None,
                **again,
            )
            self._begin()
            self.add(kept)
            self.appended_count += kept.missed
            self.seal()

    def _drop_oldest(self, newest: Chunk) -> None:
        """Let the oldest make room for a new chunk."""
        for kind, limit in self._limits.items():
            self._counts[kind] += _count(newest, kind)
            self._oldest[kind] = min(self._oldest[kind], len(self._chunks) - 1)
            while (excess := self._counts[kind] - limit) > 0:
                at = self._oldest[kind]
                there = _count(self._chunks[at], kind)
                gone = min(excess, there)
                if kind == "accesses" and gone:
                    gone = _whole_calls(self._chunks[at].accesses, gone)
                self._chunks[at] = _without(self._chunks[at], kind, gone)
                self._counts[kind] -= gone
                self._oldest[kind] += gone == there

    def _join_older(self) -> None:
        older, self._chunks = self._chunks[: -KEPT_CHUNKS // 2], self._chunks[-KEPT_CHUNKS // 2 :]
        joined, first, row_count = [], 0, 0
        for at, chunk in enumerate(older):
            row_count += chunk.row_count
            if row_count >= CHUNK_ROWS or at == len(older) - 1:
                joined.append(join(older[first : at + 1]))
                first, row_count = at + 1, 0
        self._chunks[:0] = joined
        self._oldest = dict.fromkeys(self._limits, 0)


def make_samples(time_ns: Int64Array, lane: Int64Array, name: Int64Array, value: Any) -> Int64Array:
    """Return samples as `Chunk.samples` has them, in order of time, and only those that count.

    Examples
    --------
    >>> same = np.zeros(5, np.int64)
    >>> make_samples(np.arange(5), same, same, [1.0, 5.0, 5.0, 3.0, 2.0])[0].tolist()
    [0, 1, 4]
    """
    return thinned(np.stack((time_ns, lane, name, np.asarray(value, np.float64).view(np.int64))))


def thinned(samples: Int64Array, names: Sequence[str] | None = None) -> Int64Array:
    """Return the samples that count, the newest of them: of samples that were thinned in pieces the same ones.

    With the names of counters, those that are not in bytes are kept whole: each is a mean over its own time.
    """
    if not samples.shape[1]:
        return samples
    # Stable: of two samples at one time the one recorded later counts.
    ordered = samples[:, np.lexsort((samples[0], samples[2], samples[1]))]
    counts = _that_count(ordered)
    if names is not None:
        counts |= ~np.array([name.endswith("bytes") for name in names], bool)[ordered[2]]
    kept = ordered[:, counts]
    return kept[:, np.argsort(kept[0], kind="stable")][:, -KEPT_SAMPLES:]


def _that_count(ordered: Int64Array) -> BoolArray:
    """Tell which samples count, ordered by lane, counter and time."""
    time_ns, lane, name, bits = ordered
    value = bits.view(np.float64)
    is_end = np.append((np.diff(np.stack((lane, name, time_ns // SAMPLE_EVERY_NS)), axis=1) != 0).any(axis=0), True)
    ends = np.flatnonzero(is_end)
    group = np.append(0, np.cumsum(is_end[:-1]))
    height = np.where(np.isnan(value), -np.inf, value)
    order = np.lexsort((-height, group))  # stable: the first of equally high ones
    tops = order[np.append(True, np.diff(group[order]) != 0)]
    counts: BoolArray = is_end.copy()
    starts = np.append(0, ends[:-1] + 1)
    counts[starts[time_ns[starts] != time_ns[ends]]] = True  # what comes again counts once
    counts[tops[height[tops] > height[ends]]] = True
    return counts
