"""Collects ranges of all lanes and threads of a session into one bounded buffer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import count
from typing import Any

from gpustreamlab.backends import ActivitySource, Backend, BackendStream, ContextSpec
from gpustreamlab.errors import DeviceError, GPUStreamLabError, StickyDeviceError
from gpustreamlab.model import Lane, Layout, Partition, Trace
from gpustreamlab.record._buffer import FIRST_WORK_NUMBER, NUMBERS_APART, RECORDERS, RowRing
from gpustreamlab.record._counters import NO_SAMPLES
from gpustreamlab.record._extents import Checkpoints
from gpustreamlab.record._in_flight import DEFAULT_PENDING_LIMIT, RangesInFlight, is_done
from gpustreamlab.record._journal import NO_DEPENDENCIES, NO_UNENDED, START, Cursor, Delta, RangeEdges, tables_version
from gpustreamlab.record._kernel_tier import KernelTier, observing
from gpustreamlab.record._names import MAX_LABEL_LENGTH, cut_text
from gpustreamlab.record._ranges import LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.record._tables import SessionTables
from gpustreamlab.record._trace_maker import build_trace
from gpustreamlab.record._unfinished import LossReport, Unfinished, find_unfinished
from gpustreamlab.record._work import WorkReader
from gpustreamlab.typing import MarkerKind

_log = logging.getLogger(__name__)


DEFAULT_RING_SIZE = 1_000_000
"""Spans kept by default."""
TAKE_EVERY = 16_384
"""Closed ranges of a thread and lane that wait to be told of their work, from which on that is asked for in passing."""
KEPT_RANGES = 4_096
"""Names of one thread and lane whose ranges are kept for the next use."""


_recorders = count()
"""Takes the place of the next recorder of this process."""


class Recorder:
    """The range tier, always: an NVTX range for each named range, and a pair of events where kernels do not time it.

    The kernel tier, where it is started.

    Parameters
    ----------
    backend
        Whose events, clock and NVTX domain are used.
    ring_size
        How many finished spans are kept; the oldest make room and are counted as dropped.
    pending_limit
        How many closed ranges of one lane and thread may wait for the device; later ones are counted as dropped.
    """

    def __init__(
        self, backend: Backend, *, ring_size: int = DEFAULT_RING_SIZE, pending_limit: int = DEFAULT_PENDING_LIMIT
    ) -> None:
        self._backend = backend
        self._buffer = RowRing(ring_size)
        self.in_flight = RangesInFlight(backend, self._buffer, pending_limit)
        """Ranges that are not in the buffer yet."""
        self.lock = self.in_flight.lock
        """Held where rows, ranges on their way, and edges change; never while anybody waits for the device."""
        self._checkpoints = Checkpoints()
        self._edges = RangeEdges(ring_size)
        self._failed_count = 0
        self._is_ended = False
        self._idle_host_ns = -1
        """When the device was last asked to wait for all work, and did."""
        self.aside: Callable[[], object] = bool
        """Called some times a second where something follows what is recorded: a live timeline, a spool."""
        self.loss_report = LossReport(self._find_lost)
        """Names the ranges where the device's context is lost."""
        # What a range needs on its hot path, looked up once.
        self.local = threading.local()
        first_number = next(_recorders) % RECORDERS * NUMBERS_APART
        self.numbers = count(first_number)
        self.next_tick_ns = 0
        self.is_timed_by_work = False
        self.captures: Collection[Any] = getattr(backend, "captures", ())  # a backend of others may be older than this
        self.host_time_ns = backend.host_time_ns
        self.push_range = backend.push_range
        self.pop_range = backend.pop_range
        self.pop_pair = self.in_flight.idle_pairs.pop
        self._tables = SessionTables(backend, self.numbers.__next__, self.look_at_clock())
        reader = WorkReader(self._tables, first_number + FIRST_WORK_NUMBER)
        self.kernels = KernelTier(backend, reader, self.in_flight, self._drop_untold)
        """Kernels, copies and calls, where they are captured."""

    @property
    def dropped_count(self) -> int:
        """Spans that are missing: overwritten, beyond the pending limit, failed to record, or lost by the source of kernels."""
        return self._buffer.dropped_count + self.lost_count

    @property
    def lost_count(self) -> int:
        """Spans that never came into the buffer; part of `dropped_count`."""
        return self.in_flight.overflowed_count + self._failed_count + self.kernels.dropped_count

    @property
    def pending_count(self) -> int:
        """Closed ranges whose device work had not ended when they were last collected."""
        return self.in_flight.waiting_count

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected that no span tells of; 0 where the backend does not count it."""
        return self._tables.unselected_work

    @property
    def span_count(self) -> int:
        """Finished spans in the buffer."""
        return len(self._buffer)

    def add_lane(
        self,
        lane: Lane,
        stream: BackendStream,
        part: Partition | None = None,
        *,
        spec: ContextSpec | None = None,
        is_lent: bool = False,
    ) -> RecordedLane:
        """Start recording a stream; one made anew, or moved, under a name goes on in that name's lane."""
        with self.lock:
            index, code = self._tables.lanes.add(lane), self._tables.partition_code(part)
            recorded = RecordedLane(
                index=index, lane=lane, stream=stream, spec=spec, part=part, partition=code, is_lent=is_lent
            )
            self.in_flight.add_lane(recorded)
        return recorded

    def is_in_use(self, recorded: RecordedLane) -> bool:
        """Tell whether any thread has the stream selected, or a range open on it, in whatever place."""
        return any(place.is_selected for place in self.places_of(recorded))

    def places_of(self, recorded: RecordedLane) -> tuple[RecordedLane, ...]:
        """Return the places where the stream works or worked, and where something can still be open."""
        return tuple(dict.fromkeys((recorded, *self.in_flight.places_of(recorded.index))))

    def show_lane(self, recorded: RecordedLane) -> None:
        """Let the trace show a stream as it is in this place, and its kernels be known."""
        self._tables.lanes.show(recorded.index, recorded.lane)
        self.kernels.note_stream(recorded)

    def note_layout(self, layout: Layout | None) -> None:
        """Note that the SMs are shared out like this from now on."""
        self._tables.note_layout(layout, self.host_time_ns())

    def note_verified(self, layout: Layout) -> None:
        """Keep the SM ids that were measured for the partitions of the current layout."""
        self._tables.note_verified(layout)

    def mark(self, text: str) -> None:
        """Mark this moment across all lanes; the oldest markers make room."""
        self._tables.markers.note(cut_text(text), MarkerKind.MARK, self.look_at_clock())

    def begin_cell(self, text: str) -> None:
        """Note that a notebook cell begins; it is marked as soon as a range is opened in it."""
        self._tables.markers.begin_cell(text, self.look_at_clock())

    def end_cell(self, text: str) -> None:
        """Note that the cell has ended. If it made the session, it is marked where that was."""
        self._tables.markers.end_cell(text)

    def checkpoint(self) -> int:
        """Return a number that is lower than those of all ranges to come."""
        with self.lock:
            row = self._buffer.appended_count  # before the number: a later range may end at once
            number = next(self.numbers)
            self._checkpoints.note(number, self.look_at_clock(), row)
        return number

    def start_range(self, lane: RecordedLane, name: str) -> OpenRange:
        """Open a range that any thread may end."""
        return OpenRange(self, lane, name)

    def thread_state(self) -> ThreadState:
        """Return what this thread has open and selected."""
        try:
            state: ThreadState = self.local.state
        except AttributeError:
            state = self.local.state = ThreadState(self._tables.threads)
            self.kernels.note_thread(state)
            with self.lock:
                self.in_flight.states.add(state)
        return state

    def writer(self, lane: RecordedLane, state: ThreadState) -> LaneWriter:
        """Return this thread's way to a lane."""
        try:
            return state.writers[lane]
        except KeyError:
            return self._add_writer(lane, state)

    def make_range(self, writer: LaneWriter, name: str) -> Range:
        """Return a range of a new name; it is kept for the next use as long as there is room."""
        made = Range(writer, name, *self.prepare(name))
        if len(writer.ranges) < KEPT_RANGES and len(name) <= MAX_LABEL_LENGTH:
            writer.ranges[name] = made
        return made

    def prepare(self, name: str) -> tuple[int, Any]:
        """Return the code and the NVTX attributes of a name."""
        text = cut_text(name)
        return self._tables.names.code(text), self._backend.annotation(text)

    def new_end(self) -> tuple[None, Any]:
        """Return an end for a range that was opened without events, and that the recording of kernels did not outlast."""
        return None, self._backend.acquire_event()

    def look_for_loss(self, record: Callable[[Any], object]) -> None:
        """Record an event for nothing: it fails where the device is lost, of which a range without events says nothing."""
        event = self._backend.acquire_event()
        try:
            record(event)
        finally:
            self._backend.release_events([event])

    def new_pair(self) -> tuple[Any, Any]:
        """Return the two events of a range."""
        return self._backend.acquire_event(), self._backend.acquire_event()

    def forget_events(self, events: tuple[Any, Any]) -> None:
        """Give the events of a range back that is not recorded."""
        self._backend.release_events([event for event in events if event is not None])

    def name_graph(self, graph: int, labels: Sequence[tuple[int, str]]) -> None:
        """Name the parts of a CUDA graph: in the trace, each launch of it has a row for each of them.

        Parameters
        ----------
        graph
            `gpustreamlab.backends.BackendGraph.id`.
        labels
            The number of each part's first node and its name, in ascending order; a part ends where the next one begins.
            They replace those that were given before, for kernels that are told of from now on.
        """
        self.kernels.name_graph(graph, labels)

    def tick(self, now_ns: int) -> None:
        """Keep the clock precise; called by the first range after `next_tick_ns`."""
        self.next_tick_ns = self._backend.tick(now_ns)

    def count_failed(self, count: int) -> None:
        """Count ranges that could not be recorded, or were left open."""
        with self.lock:
            if not self._is_ended:
                self._failed_count += count

    def explain(self, error: Exception, name: str, lane: RecordedLane) -> Exception:
        """Return the error to raise for a range that could not be recorded."""
        if isinstance(error, GPUStreamLabError):
            mapped: Exception = error
        else:
            mapped = self._backend.map_error(error, f"Recording range {name[:60]!r} on stream {lane.name!r}")
        if isinstance(mapped, StickyDeviceError):
            self.loss_report.tell(mapped)
        return mapped

    def collect_in_passing(self, writer: LaneWriter) -> None:
        """Collect when many ranges have closed, and drop the newest where the device falls behind; called by a range."""
        if self.is_timed_by_work and len(writer.finished) >= TAKE_EVERY:
            self.kernels.take(is_complete=False)  # not while the lock is held
        self.in_flight.collect_in_passing(writer)

    def open_number(self, lane: RecordedLane) -> int:
        """Return the number of the innermost range that this thread has open on a lane, or -1. Takes no lock."""
        state: ThreadState | None = getattr(self.local, "state", None)
        return -1 if state is None else state.open_number(lane)

    def add_edge(self, source_number: int, lane: RecordedLane, number: int | None = None) -> None:
        """Note that an open range, or else a lane's next one, waits for an earlier range.

        Parameters
        ----------
        source_number
            Number of the earlier range; -1 for none, of which nothing is noted.
        lane
            What waits.
        number
            Number of the open range, or -1; that which this thread has open on the lane if left out.
        """
        if source_number < 0 or (self.captures and lane.stream.is_capturing):  # there it orders the nodes of a graph
            return
        number = self.open_number(lane) if number is None else number
        with self.lock:
            if number >= 0:
                self._edges.add(source_number, number)
            else:
                self._edges.begin(source_number, lane)

    def close_edges(self, lane: RecordedLane, number: int) -> None:
        """Let the edges that wait for a lane's next range end at it."""
        with self.lock:
            self._edges.end(lane, number)

    def collect(self, only: RecordedLane | None = None) -> None:
        """Move ranges whose device work has ended into the buffer, of all lanes or of one. Never waits for the device."""
        self.in_flight.collect(only)

    def synchronize(self) -> None:
        """Block the host until the device is idle; then every closed range, and all work that was captured, can be read."""
        stop_count = self.kernels.stop_count
        asked_ns = self.host_time_ns()
        self._backend.synchronize()
        self._idle_host_ns = asked_ns
        if self._backend.device.simulated:  # on a GPU reading takes milliseconds, and is done on the side
            self.kernels.take(is_complete=False)
        self.collect()
        self.kernels.finish(stop_count)
        self.collect()

    def changes(
        self,
        since: Cursor = START,
        *,
        until: Cursor | None = None,
        awaited: Collection[int] | None = None,
        collects: bool = True,
        title: str = "",
    ) -> Delta:
        """Collect, then return what is new since a cursor. Never waits for the device.

        Children end before their parents, so who follows the ranges live also learns of those that enclose new ones.

        Parameters
        ----------
        since
            Where the last delta ended; leave it out to begin.
        until
            Return rows, edges, names and details up to here once more, and nothing else; collect nothing.
        awaited
            Numbers of ranges that are asked for too: one that is not among the answers will never come. None asks for no
            ranges that have not ended.
        collects
            False for what was collected before, of a device that has failed.
        title
            A name for the trace.
        """
        collects = collects and until is None
        if collects:
            self.aside()
            self.kernels.take(is_complete=False)  # not while the lock is held
        with self.lock:
            if collects:
                self.collect()
            # What has ended or waits for the device stays where it is while the lock is held.
            drained = self._buffer.read(since.row, None if until is None else until.row)
            unended = NO_UNENDED if awaited is None else self.in_flight.find_unended(drained.columns, awaited)
            edge = self._edges.count if until is None else until.edge
            edges = self._edges.read(since.edge, edge)
        # What rows point into is known before them, and only grows: so it is read after them, and the tables last.
        names = self._tables.names.starting_at(since.name)
        details, dependencies, counters, cursor = self.kernels.changes(since)
        if until is not None:
            names, details = names[: until.name - since.name], details[: until.detail - since.detail]
            dependencies, counters = NO_DEPENDENCIES, NO_SAMPLES
        version = tables_version(self._tables.version, self.kernels.edit_count, self.dropped_count, drained.clear_count, title)
        is_changed = version != since.version
        return Delta(
            tables=self._tables.make(version, self.kernels, title=title, dropped_count=self.dropped_count, is_anew=is_changed),
            columns=drained.columns,
            cursor=until
            or cursor._replace(
                row=drained.cursor,
                clear_count=drained.clear_count,
                name=since.name + len(names),
                edge=edge,
                version=version,
            ),
            missed=drained.missed,
            is_cleared=drained.clear_count != since.clear_count,
            is_changed=is_changed,
            names=names,
            details=details,
            edges=edges,
            dependencies=dependencies,
            counters=counters,
            unended=unended,
            is_capturing=self.kernels.is_on,
        )

    def unfinished(self) -> Unfinished:
        """Return the ranges that are open, or closed while their work has not ended."""
        is_event_done, idle_host_ns = self._backend.is_event_done, self._idle_host_ns
        return find_unfinished(self.in_flight, self._tables.names, is_event_done, idle_host_ns=idle_host_ns)

    def _find_lost(self) -> Unfinished:
        """Return what `unfinished` does, when the device is lost: by what was told of until then."""
        self.kernels.take(is_last=True)
        with suppress(DeviceError):
            self.collect()
        return self.unfinished()

    def to_clock_ns(self, host_ns: int) -> int:
        """Put a host time on the backend's clock."""
        return self._backend.host_to_clock_ns(host_ns)

    def now_ns(self) -> int:
        """Return the present time on the backend's clock."""
        return self.to_clock_ns(self.host_time_ns())

    def unended(self) -> list[tuple[int, int, int, int]]:
        """Return what has not ended: of each lane the range that was opened first, in bounded time.

        Returns
        -------
        list of tuple of int
            The lane, the code of the range's name, when it was opened on the backend's clock, and how many ranges of the lane
            have not ended; by lane.
        """
        found = sorted(self.in_flight.first_of_lanes().items())
        return [(lane, one.name, self._backend.host_to_clock_ns(one.opened_ns), count) for lane, (one, count) in found]

    def observing(self) -> AbstractContextManager[None]:
        """Let this thread's questions cost the simulated device no virtual time; on a GPU this does nothing."""
        return observing(self._backend)

    def find_busy(self) -> list[str]:
        """Return the names of the streams that have work left. Asks each, and never waits."""
        with self.observing():
            return list(dict.fromkeys(lane.name for lane in self.in_flight.lanes if not is_done(lane)))

    def running(self) -> list[tuple[str, int]]:
        """Return the streams of closed ranges that had not ended when last collected, and when these were opened, in ns.

        Times are on the backend's clock, as a trace's are.
        """
        with self.lock:
            return [(one.lane.lane.name, self.to_clock_ns(one.opened_ns)) for one in self.in_flight.closed()]

    def clear(self) -> None:
        """Forget the ranges and the work that have ended, samples, and the counts of dropped ones."""
        self.collect()
        self.kernels.take()
        self.kernels.clear()
        with self.lock:
            self._forget()
            self._tables.forget()
            self.in_flight.overflowed_count = self._failed_count = 0

    def let_go(self) -> None:
        """Give back the memory of what was recorded, at the end: the last trace has its own."""
        self.kernels.clear()
        with self.lock:
            self._forget()

    def _forget(self) -> None:
        self._buffer.clear()
        self._edges.clear()

    def trace(self, *, title: str = "", since: int = -1) -> Trace:
        """Collect, then return what is in the buffer as an immutable trace.

        A device that fails by now keeps no one from what was recorded before: ranges that cannot be read any more count as
        pending.

        Parameters
        ----------
        title
            A name for the trace.
        since
            Leave out ranges that were opened before this `checkpoint`, and what was launched before it.
        """
        try:
            self.collect()
        except DeviceError as error:
            _log.warning("Ranges that had not been collected are missing from the trace: %s", error)
        self.kernels.take()
        delta = self.changes(Cursor(row=self._checkpoints.row(since)), collects=False, title=title)
        if since >= 0:
            is_later = self._checkpoints.find_later(delta.columns, since, self.to_clock_ns)
            delta = delta._replace(columns={name: values[is_later] for name, values in delta.columns.items()})
        unselected_work = self.unselected_work if since < 0 else 0
        return build_trace(delta.with_facts(pending_spans=self.pending_count, unselected_work=unselected_work))

    def end(self) -> None:
        """Count what is open as dropped: all streams are closed, so nothing of it will come. Idempotent."""
        with self.lock:
            if not self._is_ended:
                self._failed_count += len(self.in_flight.open())
                self._is_ended = True

    def close(self) -> None:
        """Give the events that no range holds back to the backend's pool."""
        for events in self.in_flight.take_idle_pairs():
            self._backend.release_events(events)

    def start_capture(
        self,
        source: ActivitySource,
        *,
        keeps_calls: bool = True,
        tell_loss: Callable[[str], object] = bool,
        samples_stacks: bool = False,
    ) -> None:
        """Capture kernels from now on, in addition to ranges.

        Parameters
        ----------
        source
            What tells of them; it stays its owner's.
        keeps_calls
            Whether calls of the host get rows.
        tell_loss
            Called once, from whatever thread finds it out, with the reason why nothing comes any more.
        samples_stacks
            Whether threads that launch are looked at, where they stand in Python.

        Raises
        ------
        CaptureUnavailableError
            If the source refuses; nothing has changed then.
        """
        self.kernels.start(source, keeps_calls=keeps_calls, tell_loss=tell_loss, samples_stacks=samples_stacks)
        self.is_timed_by_work = self.kernels.times_ranges

    def stop_capture(self) -> None:
        """Capture no more kernels. Those that still run come into the trace when they have ended. Idempotent."""
        self.is_timed_by_work = False
        self.kernels.stop()

    def end_capture(self) -> None:
        """Stop, take what is left, and forget the source: it can then be closed."""
        if self.loss_report.is_lost:
            self._drop_untold(-1)  # else they would count as without work
        self.is_timed_by_work = False
        self.kernels.end()
        self.collect()

    def collect_work(self) -> None:
        """Take what is told of kernels by now, into the buffer. Never waits for the device."""
        self.kernels.take(is_complete=False)

    def _drop_untold(self, until_host_ns: int) -> None:
        self.is_timed_by_work = False
        self.in_flight.drop_untold(until_host_ns)

    def look_at_clock(self) -> int:
        """Return the host's time; it costs the simulated device none."""
        with self.observing():
            return self.host_time_ns()

    def _add_writer(self, lane: RecordedLane, state: ThreadState) -> LaneWriter:
        writer = LaneWriter(self, lane, state, collect_at=self.in_flight.first_collection_at)
        with self.lock:
            lane.writers.append(writer)
        count = len(state.writers)
        if count & (count - 1) == 0:  # not each time: to look at all of thousands takes long
            for known in [known for known in state.writers if known.is_spent]:
                del state.writers[known]
        state.writers[lane] = writer
        return writer
