"""Records of kernels, copies and calls become chunks."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends import (
    CERTAINTY_SHIFT,
    EVERY_STREAM,
    OWN_PREFIX,
    PEER_COPY,
    STAGED_COPY,
    THE_HOST,
    AccessBatch,
    Activities,
    ActivitySource,
    AnnotationBatch,
    CallBatch,
    WorkBatch,
)
from gpustreamlab.model import ACCESS_CERTAINTIES, DEVICE_WORK, SPAN_KINDS, Lane, WorkDetail
from gpustreamlab.recorder._chunks import (
    ACCESS_COLUMNS,
    FIRST_WORK_NUMBER,
    HOST_WAITS,
    NUMBERS_APART,
    SPAN_COLUMNS,
    Chunk,
    make_samples,
)
from gpustreamlab.recorder._extents import ANNOTATION_CODE, HOST_CODE, SAMPLE_CODE, WORK_FIELDS
from gpustreamlab.recorder._tables import OTHER_NAMES, CodeTable, SessionTables, cut_text, plain_text
from gpustreamlab.typing import BoolArray, Int64Array

if TYPE_CHECKING:
    from gpustreamlab.recorder._kernel_tier import StackBatch

DETAIL_LIMIT = 65_536  # Different details told apart in one session; later ones share one that says so
DETAIL_CHARACTERS = 64 << 20  # Characters of all their names together, beyond which later ones share it too
MAX_FULL_NAME = 8_192  # Longest full name, in characters; a longer one is cut and ends in "…"
OTHER_DETAIL = WorkDetail(full_name="(other details)")  # Stands for all that are beyond a limit


class DetailTable(CodeTable[WorkDetail]):
    """Codes for details, in the order in which they were first seen."""

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


KEPT_GRAPHS = 4_096  # Graphs whose parts' names are known; the newest count


class GraphLabels:
    """Names of the parts of CUDA graphs."""

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


COUNTER_NAMES = 64  # Different counters
KEPT_LAUNCHES = 262_144
"""Calls that late work is looked up in; the newest count. A stream holds about a thousand launches that have not ended."""


class Launches:
    """The newest calls, by correlation. One call may have enqueued much work: a graph."""

    def __init__(self, limit: int = KEPT_LAUNCHES) -> None:
        self._limit = limit
        # Correlation, start, thread's code, number of the range, start on the host's clock; by correlation. There is more room
        # than rows: most calls are newer than all before, and are put behind those.
        self._room = np.empty((5, 0), np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def _rows(self) -> Int64Array:
        return self._room[:, : self._count]

    def add(self, *columns: Int64Array) -> None:
        """Take more calls: correlation, start, thread's code, number of the range, start on the host's clock.

        `trim` forgets the oldest.
        """
        if not len(columns[0]):
            return
        before, self._count = self._count, self._count + len(columns[0])
        kept = int(np.searchsorted(self._room[0, :before], columns[0].min()))
        if self._count > self._room.shape[1]:
            room = np.empty((5, 2 * self._count), np.int64)
            room[:, :before] = self._room[:, :before]
            self._room = room
        for row, column in zip(self._room, columns, strict=True):
            row[before : self._count] = column
        new = self._room[:, kept : self._count]
        if (new[0, 1:] < new[0, :-1]).any():
            new[:] = new[:, np.argsort(new[0], kind="stable")]

    def find(self, correlation: Int64Array) -> Int64Array:
        """Return the row of each call, or -1; for `take`. Of two calls of one number the later one counts."""
        known = self._rows[0]
        if not (len(known) and len(correlation)):
            return np.full(len(correlation), -1, np.int64)
        least, most = int(correlation.min()), int(correlation.max())
        low, high = np.searchsorted(known, (least, most + 1))
        if least > 0 and most - least < 4 * len(correlation):  # as most batches are: no search for each
            rows = np.full(most - least + 1, -1, np.int64)
            rows[known[low:high] - least] = np.arange(low, high)
            found: Int64Array = rows[correlation - least]
            return found
        at = np.maximum(np.searchsorted(known, correlation, side="right") - 1, 0)
        return np.where((known[at] == correlation) & (correlation != 0), at, -1)

    def take(self, row: Int64Array) -> Int64Array:
        """Return start, thread's code, range's number and start on the host's clock; -1 each for row -1; shape (4, n)."""
        if not len(self):
            return np.full((4, len(row)), -1, np.int64)
        is_known = row >= 0
        return self._rows[1:, row] if is_known.all() else np.where(is_known, self._rows[1:, row], -1)

    def trim(self) -> None:
        """Forget the oldest calls where there are twice as many as the limit."""
        if len(self) > 2 * self._limit:
            newest = np.argpartition(self._rows[1], -self._limit)[-self._limit :]
            self._room, self._count = self._rows[:, np.sort(newest)], self._limit

    def clear(self) -> None:
        """Forget all calls: the numbers of those to come may begin anew."""
        self._room, self._count = self._room[:, :0], 0


StreamKey: TypeAlias = tuple[int, int]  # A context and a stream, as an `ActivitySource` numbers them

KEPT_KEYS = 65_536  # Streams that have keys of their own, closed ones too; the newest count
KEPT_PLACES = 256  # Places of one stream over time; the newest count

_ALWAYS = np.iinfo(np.int64).min


class Place(NamedTuple):
    """Where a stream's work belongs from some time on."""

    from_ns: int  # When it was enqueued, on the backend's clock
    lane: int  # Index of the lane
    partition: int  # Code of the partition, or -1


class StreamKeys:
    """The places of every stream by its key. Closed streams stay: records of their work may come late."""

    def __init__(self) -> None:
        self._places: dict[StreamKey, tuple[Place, ...]] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._places)

    def note(self, key: StreamKey, *, lane: int, partition: int, from_ns: int) -> None:
        """Note where a stream's work belongs from now on; what it did before was there too if nothing else is known."""
        with self._lock:
            places = self._places.get(key, ())
            if places and places[-1][1:] == (lane, partition):
                return
            place = Place(from_ns if places else _ALWAYS, lane, partition)
            self._places[key] = (*places, place)[-KEPT_PLACES:]
            while len(self._places) > KEPT_KEYS:
                del self._places[next(iter(self._places))]

    def newest(self, key: StreamKey) -> Place | None:
        """Return where a stream's work belongs now; None where nothing is known of it."""
        places = self._places.get(key)
        return None if places is None else places[-1]

    def find(
        self, context: Int64Array, stream: Int64Array, at_ns: Int64Array, make: Callable[[StreamKey], int]
    ) -> tuple[Int64Array, Int64Array]:
        """Return the lane and the partition of each piece of work."""
        contexts, context_code = distinct(context)
        streams, stream_code = distinct(stream)
        pairs, code = distinct(context_code * max(1, len(streams)) + stream_code)
        keys = [(int(contexts[pair // len(streams)]), int(streams[pair % len(streams)])) for pair in pairs.tolist()]
        places = [self._places_of(key, make) for key in keys]
        # Most streams have been in one place only.
        lane = np.array([known[-1].lane for known in places], np.int64)[code]
        partition = np.array([known[-1].partition for known in places], np.int64)[code]
        for number, known in enumerate(places):
            if len(known) > 1:
                mine = np.flatnonzero(code == number)
                from_ns = np.array([place.from_ns for place in known], np.int64)
                place = np.maximum(0, np.searchsorted(from_ns, at_ns[mine], side="right") - 1)
                lane[mine] = np.array([entry.lane for entry in known], np.int64)[place]
                partition[mine] = np.array([entry.partition for entry in known], np.int64)[place]
        return lane, partition

    def _places_of(self, key: StreamKey, make: Callable[[StreamKey], int]) -> tuple[Place, ...]:
        with self._lock:
            known = self._places.get(key)
            if known is None:
                self.note(key, lane=make(key), partition=-1, from_ns=_ALWAYS)
                known = self._places[key]
            return known


_CALL_BITS = 44
MOST_SYNCS = 1 << 22
"""Waits of the host for single streams that are told of calls which wait for a whole device; the newest calls count."""


def find_waits(
    dependencies: Mapping[str, Int64Array], lane: Int64Array, correlation: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the last work before each event, and the first work after each wait for it, where there are both."""
    known = np.flatnonzero(correlation > 0)
    if not len(known) or not len(dependencies["wait"]):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = _key(lane[known], correlation[known])
    order = np.argsort(keys, kind="stable")
    keys, places = keys[order], known[order]
    before = np.searchsorted(keys, _key(dependencies["source_lane"], dependencies["record"])) - 1
    after = np.searchsorted(keys, _key(dependencies["target_lane"], dependencies["wait"]), side="right")
    is_there = (before >= 0) & (after < len(keys))
    source, target = places[before[is_there]], places[after[is_there]]
    is_meant = (lane[source] == dependencies["source_lane"][is_there]) & (lane[target] == dependencies["target_lane"][is_there])
    pairs = np.unique(np.stack((source[is_meant], target[is_meant])), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return pairs[0], pairs[1]


def find_syncs(
    dependencies: Mapping[str, Int64Array], lane: Int64Array, correlation: Int64Array, lanes: Sequence[Lane]
) -> tuple[Int64Array, Int64Array]:
    """Return the last work of each stream that a call of the host waited for, and the number of that call."""
    known = np.flatnonzero(correlation > 0)
    by_host = dependencies["target_lane"] == HOST_WAITS
    if not len(known) or not by_host.any():
        return np.empty(0, np.int64), np.empty(0, np.int64)
    source_lane, record, wait = (dependencies[name][by_host] for name in ("source_lane", "record", "wait"))
    used = np.unique(lane[known])
    every = np.flatnonzero(source_lane < 0)[-(MOST_SYNCS // len(used)) :]
    one, device = np.flatnonzero(source_lane >= 0), np.array([lanes[own].device for own in used.tolist()], np.int64)
    at, own = np.nonzero(source_lane[every][:, None] == -1 - device)
    rows, asked = np.concatenate((one, every[at])), np.concatenate((source_lane[one], used[own]))
    keys = _key(lane[known], correlation[known])
    order = np.argsort(keys, kind="stable")
    before = np.searchsorted(keys[order], _key(asked, record[rows])) - 1
    source = known[order][before]
    is_meant = (before >= 0) & (lane[source] == asked)
    return source[is_meant], wait[rows[is_meant]]


def _key(lane: Int64Array, correlation: Int64Array) -> Int64Array:
    """Return what sorts by lane, and in it by the order of the calls."""
    return (lane << _CALL_BITS) + np.clip(correlation, 0, (1 << _CALL_BITS) - 1)


Columns: TypeAlias = dict[str, Int64Array]
FindRanges: TypeAlias = Callable[[Int64Array, Int64Array], Int64Array]
"""Returns the number of the range that threads had open at host times, or -1."""

NO_WORK: Sequence[Int64Array] = (np.empty(0, np.int64),) * WORK_FIELDS  # Of no work what `WorkExtents.fold` takes

WORK_CODES = tuple(SPAN_KINDS.index(kind) for kind in DEVICE_WORK)

_Part: TypeAlias = Mapping[str, "Int64Array | int"]
"""Columns of rows to come, by `SPAN_COLUMNS`; one number stands for all."""
_DEFAULTS = {"partition": -1, "detail": -1}


class WorkReader:
    """Reads batches of activity records, in the order in which they come.

    The record of work may come before that of its launch, or long after: it waits for one more batch, then it goes without.
    """

    def __init__(self, tables: SessionTables, first_number: int = FIRST_WORK_NUMBER) -> None:
        self._names, self._lanes, self.threads = tables.names, tables.lanes, tables.threads
        self._device = tables.device
        self._launches = Launches()
        self._next_number = first_number
        self._first_range = first_number - FIRST_WORK_NUMBER
        self._between: dict[int, bool] = {}  # codes of copies between devices, and whether through the host
        self.lanes_of: Callable[[Int64Array], Int64Array] = np.zeros_like  # Returns the lane of each range by its number, or -1
        self.beside: tuple[WorkReader, ...] = ()  # Those of other devices of the process
        self.waiting: Columns = {}  # Work that waits for its call
        self._contexts: dict[int, int] = {}  # the backend's number of each context by that of the records
        self.keys = StreamKeys()  # Which streams the records name
        self.details = DetailTable()
        self.labels = GraphLabels()  # How work was launched
        self.counter_names: CodeTable[str] = CodeTable(COUNTER_NAMES, OTHER_NAMES)  # Of counters of streams
        self.refused_count = 0  # Records that make no sense, and are nowhere
        self.launching: set[int] = set()  # Threads that made calls, as in `CallBatch.thread`

    def note_context(self, told: int, number: int) -> None:
        """Note how records number a context that has a number here."""
        self._contexts[told] = number

    def read(
        self,
        activities: Activities,
        source: ActivitySource,
        find_ranges: FindRanges,
        *,
        with_calls: bool,
        is_complete: bool,
    ) -> tuple[Chunk, Sequence[Int64Array]]:
        """Return a batch as it is appended, and of its work what `WorkExtents.fold` takes."""
        activities = _without_own(activities)
        codes = self._name_codes(activities, with_calls=with_calls)
        blocks = [
            self._read_annotations(activities.annotations, codes, find_ranges),
            *self._read_calls(activities.calls, codes, find_ranges, with_calls=with_calls),
        ]
        work, launched = self._read_work(activities, codes, source, is_complete=is_complete)
        told = Chunk(
            rows=self._make_rows((*blocks, work)),
            dependencies=self._read_dependencies(activities, source),
            samples=self._read_memory(activities, source),
            accesses=self._read_accesses(activities.accesses),
        )
        self._launches.trim()
        return told, launched

    def texts_of(self, codes: Int64Array) -> list[str]:
        """Return the names of ranges by their codes; empty where there is none."""
        texts = self._names.all
        return [texts[code] if code >= 0 else "" for code in codes.tolist()]

    def read_stacks(self, batch: StackBatch, start_ns: Int64Array, end_ns: Int64Array, find_ranges: FindRanges) -> Chunk:
        """Return the rows of samples of stacks, whose times on the backend's clock are given."""
        names = np.array([self._names.code(cut_text(name)) for name, _ in batch.stacks], np.int64)
        details = self.details.codes(WorkDetail(full_name=text) for _, text in batch.stacks)
        thread = self.threads.codes(batch.thread, batch.start_host_ns)
        parent, end_ns = find_ranges(batch.thread, batch.start_host_ns), np.maximum(start_ns, end_ns)
        told = {"name": names[batch.stack], "detail": details[batch.stack]}
        return Chunk(self._make_rows([self._host_rows(SAMPLE_CODE, start_ns, end_ns, thread, parent, **told)]))

    def forget_calls(self) -> None:
        """Forget which calls were made: no work of theirs is to come."""
        self._launches.clear()

    def _name_codes(self, activities: Activities, *, with_calls: bool) -> Int64Array:
        """Return the code of each name that rows will have, and -1 for others: what is in no row has no colour either."""
        calls = (activities.calls,) if with_calls else ()
        codes = np.full(len(activities.names), -1, np.int64)
        is_shown = np.zeros(len(codes), bool)
        for batch in (activities.work, activities.annotations, *calls):
            is_good = _points_into(batch.name, len(codes))
            is_shown[batch.name if is_good.all() else batch.name[is_good]] = True
        for name in np.flatnonzero(is_shown).tolist():
            codes[name] = self._names.code(cut_text(activities.names[name]))
        return codes

    def _read_calls(self, batch: CallBatch, names: Int64Array, find_ranges: FindRanges, *, with_calls: bool) -> list[_Part]:
        is_good = _is_ordered(batch.start_ns, batch.end_ns) & _points_into(batch.name, len(names))
        calls = self._keep(_columns_of(batch), is_good)
        if not len(calls["start_ns"]):
            return []
        parent = find_ranges(calls["thread"], calls["start_host_ns"])
        thread = self.threads.codes(calls["thread"], calls["start_host_ns"])
        self.launching.update(distinct(calls["thread"])[0].tolist())
        self._launches.add(calls["correlation"], calls["start_ns"], thread, parent, calls["start_host_ns"])
        if not with_calls:
            return []
        told = {"name": names[calls["name"]], "size_bytes": calls["size_bytes"], "correlation": calls["correlation"]}
        return [self._host_rows(HOST_CODE, calls["start_ns"], calls["end_ns"], thread, parent, **told)]

    def _read_annotations(self, batch: AnnotationBatch, names: Int64Array, find_ranges: FindRanges) -> _Part:
        is_good = _is_ordered(batch.start_ns, batch.end_ns) & _points_into(batch.name, len(names))
        told = self._keep(_columns_of(batch), is_good)
        thread = self.threads.codes(told["thread"], told["start_host_ns"])
        parent = find_ranges(told["thread"], told["start_host_ns"])
        return self._host_rows(ANNOTATION_CODE, told["start_ns"], told["end_ns"], thread, parent, name=names[told["name"]])

    def _read_work(
        self, activities: Activities, names: Int64Array, source: ActivitySource, *, is_complete: bool
    ) -> tuple[_Part, Sequence[Int64Array]]:
        batch = activities.work
        is_good = (
            _is_ordered(batch.start_ns, batch.end_ns)
            & (batch.start_ns > 0)
            & np.isin(batch.kind, WORK_CODES)
            & _points_into(batch.name, len(names))
            & _points_into(batch.detail + 1, len(activities.details) + 1)
        )
        work = self._keep(_columns_of(batch), is_good)
        for place, name in enumerate(activities.names):
            if name in {PEER_COPY, STAGED_COPY} and names[place] >= 0:
                self._between[int(names[place])] = name == STAGED_COPY
        work["name"] = names[work["name"]]
        work["detail"] = self.details.codes(map(self.labels.put_on, activities.details))[work["detail"]]
        held_count = len(self.waiting.get("name", ()))
        if held_count:
            work = {name: np.concatenate((self.waiting[name], column)) for name, column in work.items()}
        launch = self._launches.find(work["correlation"])
        waits = (launch < 0) & (work["correlation"] != 0)
        waits[:held_count] = False
        if is_complete or not waits.any():
            self.waiting = {}
        else:
            self.waiting = {name: column[waits] for name, column in work.items()}
            work = {name: column[~waits] for name, column in work.items()}
            launch = launch[~waits]
        return self._place_work(work, launch, source)

    def _place_work(self, work: Columns, launch: Int64Array, source: ActivitySource) -> tuple[_Part, Sequence[Int64Array]]:
        is_ours = self._are_ours(work, launch, source)
        if not is_ours.all():
            work, launch = {name: column[is_ours] for name, column in work.items()}, launch[is_ours]
        called_ns, thread, parent, launch_host_ns = self._launches.take(launch)
        is_known = launch >= 0
        queued_ns = np.where(is_known, np.minimum(called_ns, work["start_ns"]), work["start_ns"])
        lane, partition = self._find_lanes(work["context"], work["stream"], queued_ns, source)
        if self._between:
            self._place_between(work, lane, queued_ns, parent)
        told = lane, launch_host_ns, work["start_ns"], work["end_ns"], work["correlation"]
        found = {"queued_ns": queued_ns, "lane": lane, "partition": partition, "parent": parent, "thread": thread}
        return {**work, **found}, told if is_known.all() else tuple(column[is_known] for column in told)

    def _are_ours(self, work: Columns, launch: Int64Array, source: ActivitySource) -> BoolArray:
        """Tell what belongs to this session: what another does in its streams is in its own trace, but for a range of ours."""
        is_foreign = source.are_foreign(work["context"], work["stream"])
        is_between = np.isin(work["name"], [*self._between])
        if not (is_foreign | is_between).any():
            return ~is_foreign
        parent = self._launches.take(launch)[2]
        is_of_range = (parent >= self._first_range) & (parent < self._first_range + NUMBERS_APART)
        ours: BoolArray = is_of_range | ~(is_foreign | (is_between & (parent >= 0)))
        return ours

    def _place_between(self, work: Columns, lane: Int64Array, queued_ns: Int64Array, parent: Int64Array) -> None:
        """Put copies between devices into the streams that launched them, and let those through the host begin in time.

        Of the latter CUPTI records the last part alone: they began behind what their stream did before, and behind their call.
        """
        lanes = self._lanes.all
        rows = np.flatnonzero(np.isin(work["name"], [*self._between]))
        launched_in = self.lanes_of(parent[rows])
        work["start_ns"] = work["start_ns"].copy()
        for row, home in zip(rows.tolist(), launched_in.tolist(), strict=True):
            if home >= 0 and lanes[lane[row]].outside:
                lane[row] = home
        for row in (row for row in rows.tolist() if self._between[int(work["name"][row])]):
            before = (lane == lane[row]) & (work["correlation"] < work["correlation"][row])
            earliest_ns = max(int(queued_ns[row]), int(work["end_ns"][before].max(initial=0)))
            work["start_ns"][row] = min(earliest_ns, int(work["start_ns"][row]))

    def _read_dependencies(self, activities: Activities, source: ActivitySource) -> Int64Array:
        batch = activities.dependencies
        by_host = batch.target_stream == THE_HOST
        every = by_host & (batch.source_stream == EVERY_STREAM)
        source_lane = np.full(len(batch), -1 - self._device)
        target_lane = np.full(len(batch), HOST_WAITS)
        # As late as can be: these streams are where they are now.
        now = np.full(len(batch), np.iinfo(np.int64).max)
        told = (batch.source_context[~every], batch.source_stream[~every], now[~every])
        source_lane[~every] = self._find_lanes(*told, source)[0]
        told = (batch.target_context[~by_host], batch.target_stream[~by_host], now[~by_host])
        target_lane[~by_host] = self._find_lanes(*told, source)[0]
        return np.stack((source_lane, batch.record, target_lane, batch.wait))

    @staticmethod
    def _read_accesses(batch: AccessBatch) -> Int64Array:
        told = np.stack([getattr(batch, name) for name in ACCESS_COLUMNS])
        _, buffer, begin, end, flags = told
        is_good = (buffer >= 0) & (begin >= 0) & (end >= begin) & (flags >= 0)
        is_good &= flags >> CERTAINTY_SHIFT & 3 < len(ACCESS_CERTAINTIES)
        # What is half known of work is wrong: without a row, all of it counts as not known.
        return told if is_good.all() else told[:, ~np.isin(told[0], told[0][~is_good])]

    def _read_memory(self, activities: Activities, source: ActivitySource) -> Int64Array:
        batch = activities.memory
        is_good = _points_into(batch.name, len(activities.names))
        self.refused_count += len(batch) - int(is_good.sum())
        is_good &= ~source.are_foreign(batch.context, batch.stream)
        used, place = distinct(batch.name[is_good])
        codes = np.array([self.counter_names.code(cut_text(activities.names[name])) for name in used.tolist()], np.int64)
        time_ns = batch.time_ns[is_good]
        lane, _ = self._find_lanes(batch.context[is_good], batch.stream[is_good], time_ns, source)
        return make_samples(time_ns, lane, codes[place], batch.value[is_good])

    def _find_lanes(
        self, context: Int64Array, stream: Int64Array, at_ns: Int64Array, source: ActivitySource
    ) -> tuple[Int64Array, Int64Array]:
        def make(key: StreamKey) -> int:
            told, number = key
            lane = next((lane for other in self.beside if (lane := other.find_lane(key)) is not None), None)
            if lane is not None:
                return self._lanes.add_known(lane)
            facts = source.describe_stream(told, number)
            unnoted = told if facts.context is None else facts.context
            return self._lanes.add_outside(self._contexts.get(told, unnoted), number, facts)

        return self.keys.find(context, stream, at_ns, make)

    def find_lane(self, key: StreamKey) -> Lane | None:
        """Return the lane of a stream that the session made, or took; None where it is none of its own."""
        place = self.keys.newest(key)
        lane = None if place is None else self._lanes.all[place.lane]
        return None if lane is None or lane.outside else lane

    def _keep(self, columns: Columns, is_good: BoolArray) -> Columns:
        """Leave out and count what makes no sense."""
        refused = len(is_good) - int(np.count_nonzero(is_good))
        if not refused:
            return columns
        self.refused_count += refused
        return {name: column[is_good] for name, column in columns.items()}

    def _host_rows(
        self, kind: int, start_ns: Int64Array, end_ns: Int64Array, thread: Int64Array, parent: Int64Array, **told: Int64Array
    ) -> _Part:
        """Return what rows have of what threads of the host did."""
        times = {"start_ns": start_ns, "end_ns": end_ns, "queued_ns": start_ns}
        whose = {"lane": self.threads.lanes(thread), "thread": thread, "parent": parent}
        return times | whose | told | {"kind": kind}

    def _make_rows(self, parts: Sequence[_Part]) -> Int64Array:
        """Return the rows of a chunk, with a number for each; every column is written once."""
        ends = np.cumsum([np.size(part["start_ns"]) for part in parts]).tolist()
        rows = np.empty((len(SPAN_COLUMNS), ends[-1]), np.int64)
        for part, low, high in zip(parts, (0, *ends), ends, strict=False):
            for row, name in zip(rows, SPAN_COLUMNS, strict=True):
                row[low:high] = part.get(name, _DEFAULTS.get(name, 0))
        rows[SPAN_COLUMNS.index("number")] = np.arange(self._next_number, self._next_number + ends[-1])
        self._next_number += ends[-1]
        return rows


def _without_own(activities: Activities) -> Activities:
    """Leave out the kernels of this package."""
    own = [code for code, name in enumerate(activities.names) if name.startswith(OWN_PREFIX)]
    if not own:
        return activities
    kept = ~np.isin(activities.work.name, own)
    return replace(activities, work=WorkBatch(**{name: column[kept] for name, column in _columns_of(activities.work).items()}))


def _columns_of(batch: WorkBatch | CallBatch | AnnotationBatch) -> Columns:
    return {entry.name: getattr(batch, entry.name) for entry in fields(batch)}


def _is_ordered(start_ns: Int64Array, end_ns: Int64Array) -> BoolArray:
    """Tell which records end when they have begun, and begin within the session."""
    return (start_ns >= 0) & (end_ns >= start_ns)


def _points_into(index: Int64Array, count: int) -> BoolArray:
    return (index >= 0) & (index < count)
