"""Turn what a source of activities tells into rows of the ring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TypeAlias

import numpy as np

from gpustreamlab.analysis import distinct
from gpustreamlab.backends import OWN_PREFIX, Activities, ActivitySource, AnnotationBatch, CallBatch, WorkBatch
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from gpustreamlab.recorder._buffer import FIRST_WORK_NUMBER, SPAN_COLUMNS
from gpustreamlab.recorder._column_log import ColumnLog
from gpustreamlab.recorder._counters import CounterLog
from gpustreamlab.recorder._dependencies import DEPENDENCY_COLUMNS, KEPT_DEPENDENCIES
from gpustreamlab.recorder._details import DetailTable
from gpustreamlab.recorder._extents import WORK_FIELDS
from gpustreamlab.recorder._host_threads import HostThreads
from gpustreamlab.recorder._lanes import LaneTable
from gpustreamlab.recorder._launches import Launches
from gpustreamlab.recorder._names import NameTable
from gpustreamlab.recorder._stream_keys import StreamKey, StreamKeys
from gpustreamlab.recorder._texts import cut_text
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

Columns: TypeAlias = dict[str, Int64Array]
FindRanges: TypeAlias = Callable[[Int64Array, Int64Array], Int64Array]
"""Returns the number of the range that threads had open at host times, or -1."""

HOST_CODE = SPAN_KINDS.index(SpanKind.HOST)
ANNOTATION_CODE = SPAN_KINDS.index(SpanKind.ANNOTATION)
WORK_CODES = tuple(SPAN_KINDS.index(kind) for kind in DEVICE_WORK)

_DEFAULTS = {"partition": -1, "detail": -1, "size_bytes": 0, "correlation": 0, "thread": -1, "parent": -1}


class WorkReader:
    """Reads batches of activities, in the order in which they are told of.

    Work may be told of before the call that enqueued it, and long after: it waits for one more batch, then it goes without.

    Parameters
    ----------
    names
        Codes of names, shared with ranges.
    lanes
        Where streams of others and threads get lanes.
    threads
        Names and lanes of threads.
    """

    def __init__(self, names: NameTable, lanes: LaneTable, threads: HostThreads) -> None:
        self._names = names
        self._lanes = lanes
        self._threads = threads
        self._launches = Launches()
        self._next_number = FIRST_WORK_NUMBER
        self._waiting: Columns = {}
        self._contexts: dict[int, int] = {}  # the backend's number of each context by that of the records
        self.keys = StreamKeys()
        """Which streams the records name."""
        self.details = DetailTable()
        """How work was launched."""
        self.counters = CounterLog()
        """Memory of streams."""
        self.dependencies = ColumnLog(DEPENDENCY_COLUMNS, KEPT_DEPENDENCIES)
        """Which stream was told to wait for which."""
        self.refused_count = 0
        """Records that make no sense, and are nowhere."""
        self.launched: Int64Array = np.empty((WORK_FIELDS, 0), np.int64)
        """Of the work that `read` returned last: what `WorkExtents.fold` takes."""

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
    ) -> list[Columns]:
        """Return the rows of a batch, as columns for the ring.

        Parameters
        ----------
        source
            Tells of streams that are not known.
        find_ranges
            Finds the range around each call and annotation.
        with_calls
            Whether calls get rows.
        is_complete
            Let no work wait for its call.
        """
        activities = _without_own(activities)
        codes = self._name_codes(activities, with_calls=with_calls)
        blocks = [
            self._read_annotations(activities.annotations, codes, find_ranges),
            *self._read_calls(activities.calls, codes, find_ranges, with_calls=with_calls),
            self._read_work(activities, codes, source, is_complete=is_complete),
        ]
        self._read_dependencies(activities, source)
        self._read_memory(activities, source)
        self._launches.trim()
        return [block for block in blocks if len(block["start_ns"])]

    def clear(self) -> None:
        """Forget samples, waits between streams, and the count of what made no sense."""
        self.counters.clear()
        self.dependencies.clear()
        self.refused_count = 0

    def forget_calls(self) -> None:
        """Forget which calls were made: no work of theirs is to come."""
        self._launches.clear()

    def _name_codes(self, activities: Activities, *, with_calls: bool) -> Int64Array:
        """Return the code of each name that rows will have, and -1 for others: what is in no row has no colour either."""
        calls = (activities.calls,) if with_calls else ()
        shown = np.concatenate([batch.name for batch in (activities.work, activities.annotations, *calls)])
        codes = np.full(len(activities.names), -1, np.int64)
        for name in np.unique(shown[_points_into(shown, len(codes))]).tolist():
            codes[name] = self._names.code(cut_text(activities.names[name]))
        return codes

    def _read_calls(self, batch: CallBatch, names: Int64Array, find_ranges: FindRanges, *, with_calls: bool) -> list[Columns]:
        is_good = _is_ordered(batch.start_ns, batch.end_ns) & _points_into(batch.name, len(names))
        calls = self._keep(_columns_of(batch), is_good)
        if not len(calls["start_ns"]):
            return []
        parent = find_ranges(calls["thread"], calls["start_host_ns"])
        thread = self._threads.codes(calls["thread"], calls["start_host_ns"])
        self._launches.add(calls["correlation"], calls["start_ns"], thread, parent, calls["start_host_ns"])
        if not with_calls:
            return []
        row = {
            "start_ns": calls["start_ns"],
            "end_ns": calls["end_ns"],
            "queued_ns": calls["start_ns"],
            "lane": self._threads.lanes(calls["thread"], calls["start_host_ns"]),
            "name": names[calls["name"]],
            "kind": np.full(len(parent), HOST_CODE, np.int64),
            "parent": parent,
            "thread": thread,
            "size_bytes": calls["size_bytes"],
            "correlation": calls["correlation"],
        }
        return [self._finish(row)]

    def _read_annotations(self, batch: AnnotationBatch, names: Int64Array, find_ranges: FindRanges) -> Columns:
        is_good = _is_ordered(batch.start_ns, batch.end_ns) & _points_into(batch.name, len(names))
        told = self._keep(_columns_of(batch), is_good)
        row = {
            "start_ns": told["start_ns"],
            "end_ns": told["end_ns"],
            "queued_ns": told["start_ns"],
            "lane": self._threads.lanes(told["thread"], told["start_host_ns"]),
            "name": names[told["name"]],
            "kind": np.full(len(told["name"]), ANNOTATION_CODE, np.int64),
            "parent": find_ranges(told["thread"], told["start_host_ns"]),
            "thread": self._threads.codes(told["thread"], told["start_host_ns"]),
        }
        return self._finish(row)

    def _read_work(self, activities: Activities, names: Int64Array, source: ActivitySource, *, is_complete: bool) -> Columns:
        batch = activities.work
        is_good = (
            _is_ordered(batch.start_ns, batch.end_ns)
            & (batch.start_ns > 0)
            & np.isin(batch.kind, WORK_CODES)
            & _points_into(batch.name, len(names))
            & _points_into(batch.detail + 1, len(activities.details) + 1)
        )
        work = self._keep(_columns_of(batch), is_good)
        work["name"] = names[work["name"]]
        work["detail"] = self.details.codes(activities.details)[work["detail"]]
        held_count = len(self._waiting.get("name", ()))
        if held_count:
            work = {name: np.concatenate((self._waiting[name], column)) for name, column in work.items()}
        launch = self._launches.find(work["correlation"])
        waits = (launch < 0) & (work["correlation"] != 0)
        waits[:held_count] = False
        if is_complete or not waits.any():
            self._waiting = {}
        else:
            self._waiting = {name: column[waits] for name, column in work.items()}
            work = {name: column[~waits] for name, column in work.items()}
            launch = launch[~waits]
        return self._place_work(work, launch, source)

    def _place_work(self, work: Columns, launch: Int64Array, source: ActivitySource) -> Columns:
        called_ns, thread, parent, launch_host_ns = self._launches.take(launch)
        queued_ns = np.where(launch >= 0, np.minimum(called_ns, work["start_ns"]), work["start_ns"])
        lane, partition = self._find_lanes(work["context"], work["stream"], queued_ns, source)
        told = np.stack((lane, launch_host_ns, work["start_ns"], work["end_ns"], work["correlation"]))
        self.launched = told[:, launch >= 0]
        kept = ("start_ns", "end_ns", "name", "kind", "detail", "size_bytes", "correlation")
        found = {"queued_ns": queued_ns, "lane": lane, "partition": partition, "parent": parent, "thread": thread}
        return self._finish({name: work[name] for name in kept} | found)

    def _read_dependencies(self, activities: Activities, source: ActivitySource) -> None:
        batch = activities.dependencies
        if not len(batch):
            return
        # As late as can be: these streams are where they are now.
        now = np.full(len(batch), np.iinfo(np.int64).max)
        source_lane, _ = self._find_lanes(batch.source_context, batch.source_stream, now, source)
        target_lane, _ = self._find_lanes(batch.target_context, batch.target_stream, now, source)
        columns = (source_lane, batch.record, target_lane, batch.wait)
        self.dependencies.append(dict(zip(DEPENDENCY_COLUMNS, columns, strict=True)))

    def _read_memory(self, activities: Activities, source: ActivitySource) -> None:
        batch = activities.memory
        is_good = _points_into(batch.name, len(activities.names))
        self.refused_count += len(batch) - int(is_good.sum())
        if not is_good.any():
            return
        used, place = distinct(batch.name[is_good])
        codes = np.array([self.counters.code(cut_text(activities.names[name])) for name in used.tolist()], np.int64)
        time_ns = batch.time_ns[is_good]
        lane, _ = self._find_lanes(batch.context[is_good], batch.stream[is_good], time_ns, source)
        self.counters.append(time_ns, lane, codes[place], batch.value[is_good])

    def _find_lanes(
        self, context: Int64Array, stream: Int64Array, at_ns: Int64Array, source: ActivitySource
    ) -> tuple[Int64Array, Int64Array]:
        def make(key: StreamKey) -> int:
            told, number = key
            return self._lanes.add_outside(self._contexts.get(told, told), number, source.describe_stream(told, number))

        return self.keys.find(context, stream, at_ns, make)

    def _keep(self, columns: Columns, is_good: BoolArray) -> Columns:
        """Leave out and count what makes no sense."""
        refused = len(is_good) - int(np.count_nonzero(is_good))
        if not refused:
            return columns
        self.refused_count += refused
        return {name: column[is_good] for name, column in columns.items()}

    def _finish(self, row: Mapping[str, Int64Array]) -> Columns:
        """Return all columns of the ring, with a number for each row."""
        count = len(row["start_ns"])
        number = np.arange(self._next_number, self._next_number + count)
        self._next_number += count
        filled = {name: np.full(count, value, np.int64) for name, value in _DEFAULTS.items() if name not in row}
        columns = dict(row) | filled | {"number": number}
        return {name: columns[name] for name in SPAN_COLUMNS}


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
