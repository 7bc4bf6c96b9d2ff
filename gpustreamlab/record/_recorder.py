"""Collects ranges of all lanes and threads of a session into one bounded buffer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from itertools import count
from typing import Any, cast
from weakref import WeakSet

from gpustreamlab.backends import ActivitySource, Backend, BackendStream, ContextSpec
from gpustreamlab.errors import DeviceError, GPUStreamLabError, StickyDeviceError
from gpustreamlab.model import Lane, Layout, Partition, Trace
from gpustreamlab.record._buffer import SpanBuffer
from gpustreamlab.record._counters import NO_SAMPLES, LaneSample, Sampler
from gpustreamlab.record._extents import Checkpoints, find_enclosing_ranges, find_relatives
from gpustreamlab.record._journal import NO_DEPENDENCIES, NO_RELATIVES, START, Cursor, Delta, RangeEdges, tables_version
from gpustreamlab.record._kernel_tier import KernelTier
from gpustreamlab.record._lanes import LaneTable, Places
from gpustreamlab.record._markers import Markers
from gpustreamlab.record._names import MAX_LABEL_LENGTH, NameTable, ThreadNames, cut_text
from gpustreamlab.record._ranges import FinishedRange, LaneWriter, OpenRange, Range, RecordedLane, ThreadState
from gpustreamlab.record._trace_maker import TableMaker, build_trace
from gpustreamlab.record._unfinished import Blame, Unfinished, find_unfinished
from gpustreamlab.record._waiting import DEFAULT_PENDING_LIMIT, WaitingRanges, check_pending_limit
from gpustreamlab.typing import Int64Array, MarkerKind

_log = logging.getLogger(__name__)


DEFAULT_RING_SIZE = 1_000_000
"""Spans kept by default."""
TAKE_EVERY = 16_384
"""Closed ranges of a thread and lane that wait to be told of their work, from which on that is asked for in passing."""
KEPT_RANGES = 4_096
"""Names of one thread and lane whose ranges are kept for the next use."""
NAME_LIMIT = 65_536
"""Different range names told apart in one session."""
THREAD_LIMIT = 4_096
"""Different threads told apart in one session."""


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
        check_pending_limit(pending_limit)
        self._backend = backend
        self._buffer = SpanBuffer(ring_size)
        # Re-entrant: a finaliser or a signal handler may come here in the middle of a collection of the same thread.
        self._lock = threading.RLock()
        self._names = NameTable(NAME_LIMIT)
        self._threads = ThreadNames(THREAD_LIMIT)
        self._places = Places()
        self._lanes = LaneTable()
        self._states: WeakSet[ThreadState] = WeakSet()
        self._checkpoints = Checkpoints()
        self._edges = RangeEdges(ring_size)
        self._failed_count = 0
        self._is_ended = False
        self._idle_host_ns = -1
        """When the device was last asked to wait for all work, and did."""
        self._samplers: list[Sampler] = []
        self.aside: Callable[[], object] = bool
        """Called some times a second where something follows what is recorded: a live timeline, a spool."""
        self.blame = Blame(self._find_lost)
        """Names the ranges where the device's context is lost."""
        # What a range needs on its hot path, looked up once.
        self.local = threading.local()
        self.numbers = count()
        self.next_tick_ns = 0
        self.is_timed_by_work = False
        self.host_time_ns = backend.host_time_ns
        self.push_range = backend.push_range
        self.pop_range = backend.pop_range
        self._markers = Markers(self.numbers.__next__, self._look_at_clock())
        self._kernels = KernelTier(
            backend,
            self.observing,
            names=self._names,
            threads=self._threads,
            lanes=self._lanes,
            find_ranges=self._find_ranges,
            find_idle=self._find_idle,
            on_loss=self._drop_untold,
            store=self._store,
        )
        self._waiting = WaitingRanges(backend, self._buffer, self._kernels, pending_limit)
        self.pop_pair = self._waiting.idle_pairs.pop
        self._tables = TableMaker(
            backend,
            threads=self._threads,
            lanes=self._lanes,
            places=self._places,
            markers=self._markers,
            kernels=self._kernels,
            now_ns=self._observed_now_ns,
        )

    @property
    def dropped_count(self) -> int:
        """Spans that are missing: overwritten, beyond the pending limit, failed to record, or lost by the source of kernels."""
        return self._buffer.dropped_count + self._waiting.overflowed_count + self._failed_count + self._kernels.dropped_count

    @property
    def pending_count(self) -> int:
        """Closed ranges whose device work had not ended when they were last collected."""
        return self._waiting.count

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
        with self._lock:
            index = self._lanes.add(lane)
            code = self._places.code(part)
            recorded = RecordedLane(index, lane, stream, code, spec=spec, part=part, is_lent=is_lent)
            self._waiting.add_lane(recorded)
        return recorded

    def is_in_use(self, recorded: RecordedLane) -> bool:
        """Tell whether any thread has the stream selected, or a range open on it, in whatever place."""
        return any(place.is_selected for place in self.places_of(recorded))

    def places_of(self, recorded: RecordedLane) -> tuple[RecordedLane, ...]:
        """Return the places where the stream works or worked, and where something can still be open."""
        return tuple(dict.fromkeys((recorded, *self._waiting.places_of(recorded.index))))

    def show_lane(self, recorded: RecordedLane) -> None:
        """Let the trace show a stream as it is in this place, and its kernels be known."""
        self._lanes.show(recorded.index, recorded.lane)
        self._kernels.note_stream(recorded)

    def note_layout(self, layout: Layout | None) -> None:
        """Note that the SMs are shared out like this from now on."""
        self._places.note_layout(layout, self.host_time_ns())

    def note_verified(self, layout: Layout) -> None:
        """Keep the SM ids that were measured for the partitions of the current layout."""
        self._places.note_verified(layout)

    def mark(self, text: str) -> None:
        """Mark this moment across all lanes; the oldest markers make room."""
        self._markers.note(cut_text(text), MarkerKind.MARK, self._look_at_clock())

    def begin_cell(self, text: str) -> None:
        """Note that a notebook cell begins; it is marked as soon as a range is opened in it."""
        self._markers.begin_cell(text, self._look_at_clock())

    def end_cell(self, text: str) -> None:
        """Note that the cell has ended. If it made the session, it is marked where that was."""
        self._markers.end_cell(text)

    def checkpoint(self) -> int:
        """Return a number that is lower than those of all ranges to come."""
        with self._lock:
            row = self._buffer.appended_count  # before the number: a later range may end at once
            number = next(self.numbers)
            self._checkpoints.note(number, self._look_at_clock(), row)
        return number

    def start_range(self, lane: RecordedLane, name: str) -> OpenRange:
        """Open a range that any thread may end."""
        return OpenRange(self, lane, name)

    def thread_state(self) -> ThreadState:
        """Return what this thread has open and selected."""
        try:
            state: ThreadState = self.local.state
        except AttributeError:
            state = self.local.state = ThreadState(self._threads)
            self._kernels.note_thread(state)
            with self._lock:
                self._states.add(state)
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
        return self._names.code(text), self._backend.annotation(text)

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

    def tick(self, now_ns: int) -> None:
        """Keep the clock precise; called by the first range after `next_tick_ns`."""
        self.next_tick_ns = self._backend.tick(now_ns)

    def count_failed(self, count: int) -> None:
        """Count ranges that could not be recorded, or were left open."""
        with self._lock:
            if not self._is_ended:
                self._failed_count += count

    def explain(self, error: Exception, name: str, lane: RecordedLane) -> Exception:
        """Return the error to raise for a range that could not be recorded."""
        if isinstance(error, GPUStreamLabError):
            mapped: Exception = error
        else:
            mapped = self._backend.map_error(error, f"Recording range {name[:60]!r} on stream {lane.name!r}")
        if isinstance(mapped, StickyDeviceError):
            self.blame.tell(mapped)
        return mapped

    def hand_over(self, lane: RecordedLane, row: FinishedRange, thread: int) -> None:
        """Take a closed range that any thread could end; where too many wait for the device, drop it and count it."""
        with self._lock:
            self._waiting.hand_over(lane, row, thread)

    def collect_in_passing(self, writer: LaneWriter) -> None:
        """Collect when many ranges have closed, and drop the newest where the device falls behind; called by a range."""
        if self.is_timed_by_work and len(writer.finished) >= TAKE_EVERY:
            self._kernels.take(is_complete=False)  # not while the lock is held
        with self._lock:
            self._waiting.collect_in_passing(writer)

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
        if source_number < 0:
            return
        number = self.open_number(lane) if number is None else number
        with self._lock:
            if number >= 0:
                self._edges.add(source_number, number)
            else:
                self._edges.begin(source_number, lane)

    def close_edges(self, lane: RecordedLane, number: int) -> None:
        """Let the edges that wait for a lane's next range end at it."""
        with self._lock:
            self._edges.end(lane, number)

    def collect(self, only: RecordedLane | None = None) -> None:
        """Move ranges whose device work has ended into the buffer, of all lanes or of one. Never waits for the device."""
        with self._lock:
            self._waiting.collect(None if only is None else [only])

    def synchronize(self) -> None:
        """Block the host until the device is idle; then every closed range, and all work that was captured, can be read."""
        stop_count = self._kernels.stop_count
        asked_ns = self.host_time_ns()
        self._backend.synchronize()
        self._idle_host_ns = asked_ns
        if self._backend.device.simulated:  # on a GPU reading takes milliseconds, and is done on the side
            self._kernels.take(is_complete=False)
        self.collect()
        self._kernels.finish(stop_count)
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
            relatives.
        collects
            False for what was collected before, of a device that has failed.
        title
            A name for the trace.
        """
        collects = collects and until is None
        if collects:
            self.aside()
            self._kernels.take(is_complete=False)  # not while the lock is held
        with self._lock:
            if collects:
                self.collect()
            # What has ended or waits for the device stays where it is while the lock is held.
            drained = self._buffer.read(since.row, None if until is None else until.row)
            relatives = NO_RELATIVES if awaited is None else find_relatives(drained.columns, self._waiting.lanes, awaited)
            edge = self._edges.count if until is None else until.edge
            edges = self._edges.read(since.edge, edge)
        # What rows point into is known before them, and only grows: so it is read after them, and the tables last.
        names = self._names.texts_from(since.name)
        self._take_samples()
        details, dependencies, counters, cursor = self._kernels.changes(since)
        if until is not None:
            names, details = names[: until.name - since.name], details[: until.detail - since.detail]
            dependencies, counters = NO_DEPENDENCIES, NO_SAMPLES
        version = tables_version(self._tables.version, self.dropped_count, drained.clear_count, title)
        is_changed = version != since.version
        return Delta(
            tables=self._tables.make(version, title=title, dropped_count=self.dropped_count, is_anew=is_changed),
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
            relatives=relatives,
        )

    @property
    def lost_count(self) -> int:
        """Spans that never came into the buffer; part of `dropped_count`."""
        return self.dropped_count - self._buffer.dropped_count

    def unfinished(self) -> Unfinished:
        """Return the ranges that are open, or closed while their work has not ended."""
        lanes = tuple(self._waiting.lanes)
        return find_unfinished(lanes, self._names.texts, self._backend.is_event_done, idle_host_ns=self._idle_host_ns)

    def _find_lost(self) -> Unfinished:
        """Return what `unfinished` does, when the device is lost: by what was told of until then."""
        self._kernels.take(is_last=True)
        with suppress(DeviceError):
            self.collect()
        return self.unfinished()

    def add_sampler(self, sampler: Sampler) -> None:
        """Ask a sampler for quantities of lanes whenever counters are read."""
        self._samplers.append(sampler)

    def add_samples(self, samples: Sequence[LaneSample]) -> None:
        """Take quantities of lanes."""
        if samples:
            self._kernels.add_samples(samples)

    def to_clock_ns(self, host_ns: int) -> int:
        """Put a host time on the backend's clock."""
        return self._backend.host_to_clock_ns(host_ns)

    def now_ns(self) -> int:
        """Return the present time on the backend's clock."""
        return self.to_clock_ns(self.host_time_ns())

    def observing(self) -> AbstractContextManager[None]:
        """Let this thread's questions cost the simulated device no virtual time; on a GPU this does nothing."""
        made = getattr(self._backend, "observing", nullcontext)()
        return cast(AbstractContextManager[None], made)

    def clear(self) -> None:
        """Forget the ranges and the work that have ended, samples, and the counts of dropped ones."""
        self.collect()
        self._kernels.take()
        self._take_samples()
        self._kernels.clear()
        for sampler in self._samplers:
            sampler.tell_all()
        with self._lock:
            self._forget()
            self._places.clear()
            self._markers.clear()
            self._tables.forget()
            self._waiting.overflowed_count = self._failed_count = 0

    def let_go(self) -> None:
        """Give back the memory of what was recorded, at the end: the last trace has its own."""
        self._kernels.clear()
        with self._lock:
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
        self._kernels.take()
        delta = self.changes(Cursor(row=self._checkpoints.row(since)), collects=False, title=title)
        if since >= 0:
            is_later = self._checkpoints.find_later(delta.columns, since, self.to_clock_ns)
            delta = delta._replace(columns={name: values[is_later] for name, values in delta.columns.items()})
        unselected_work = self._tables.unselected_work if since < 0 else 0
        return build_trace(delta.with_facts(pending_spans=self.pending_count, unselected_work=unselected_work))

    def end(self) -> None:
        """Count what is open as dropped: all streams are closed, so nothing of it will come. Idempotent."""
        with self._lock:
            if not self._is_ended:
                self._failed_count += self._count_open()
                self._is_ended = True

    def close(self) -> None:
        """Give the events that no range holds back to the backend's pool."""
        with self._lock:
            pairs = self._waiting.take_idle_pairs()
        for events in pairs:
            self._backend.release_events(events)

    def start_capture(
        self, source: ActivitySource, *, keeps_calls: bool = True, tell_loss: Callable[[str], object] = bool
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

        Raises
        ------
        CaptureUnavailableError
            If the source refuses; nothing has changed then.
        """
        self._kernels.start(source, lambda: tuple(self._waiting.lanes), keeps_calls=keeps_calls, tell_loss=tell_loss)
        self.is_timed_by_work = self._kernels.times_ranges

    def stop_capture(self) -> None:
        """Capture no more kernels. Those that still run come into the trace when they have ended. Idempotent."""
        self.is_timed_by_work = False
        self._kernels.stop()

    def finish_when_quiet(self, quiet_ns: int) -> None:
        """Take the rest of what was captured, if all lanes and the default stream are idle and nothing has come for so long."""
        stop_count = self._kernels.stop_count
        with self.observing():
            is_idle = self._backend.is_default_stream_idle() and all(_is_done(lane) for lane in tuple(self._waiting.lanes))
        if self._kernels.is_quiet(quiet_ns, is_idle=is_idle):
            self._kernels.finish(stop_count)

    def end_capture(self) -> None:
        """Stop, take what is left, and forget the source: it can then be closed."""
        if self.blame.is_lost:
            self._drop_untold(-1)  # else they would count as without work
        self.is_timed_by_work = False
        self._kernels.end()
        self.collect()

    @property
    def is_awaiting_work(self) -> bool:
        """True while work that was captured may still run."""
        return self._kernels.is_awaiting

    @property
    def is_capturing(self) -> bool:
        """True while kernels are captured."""
        return self._kernels.is_on

    @property
    def keeps_calls(self) -> bool:
        """Whether calls of the host get rows, while kernels are captured."""
        return self._kernels.keeps_calls

    @property
    def capture_note(self) -> str:
        """Why kernels are missing although they were asked for; empty where none are."""
        return self._kernels.note

    def note_capture(self, text: str) -> None:
        """Note why kernels are missing although they were asked for."""
        self._kernels.note = text
        self._kernels.edit_count += 1

    def collect_work(self) -> None:
        """Take what is told of kernels by now, into the buffer. Never waits for the device."""
        self._kernels.take(is_complete=False)

    def leave_to_parent(self) -> None:
        """Touch nothing any more that is of the process that this one was forked from."""
        self._lock = threading.RLock()  # a thread that is not in this process may hold the other one
        self._waiting.leave_to_parent()
        self._kernels.abandon()

    def _find_ranges(self, thread: Int64Array, at_host_ns: Int64Array) -> Int64Array:
        with self._lock:
            return find_enclosing_ranges(self._kernels.closed, tuple(self._states), self._waiting.lanes, thread, at_host_ns)

    def _take_samples(self) -> None:
        for sampler in self._samplers:
            self.add_samples(sampler.take_samples())

    def _count_open(self) -> int:
        started = sum(len(lane.started) for lane in self._waiting.lanes)
        return started + sum(len(state.open_ranges) for state in [*self._states])

    def _store(self, blocks: Sequence[Mapping[str, Int64Array]], work: Int64Array, note_told: Callable[[], None]) -> None:
        with self._lock:
            for block in blocks:
                self._buffer.append(block)
            self._waiting.fold(work, tuple(self._states))
            note_told()  # not before: who collects meanwhile would take ranges without this work
            with suppress(DeviceError):  # whoever uses the device is told
                self._waiting.collect()

    def _find_idle(self) -> list[int]:
        """Return the lanes that hold closed ranges without events, and no work in any of their places."""
        with self._lock:
            asked = {lane.index for lane in self._waiting.lanes_timed_by_work()}
            busy = {lane.index for lane in self._waiting.lanes if lane.index in asked and not _is_done(lane)}
        return sorted(asked - busy)

    def _drop_untold(self, until_host_ns: int) -> None:
        self.is_timed_by_work = False
        with self._lock:
            self._waiting.drop_untold(until_host_ns)

    def _observed_now_ns(self) -> int:
        return self.to_clock_ns(self._look_at_clock())

    def _look_at_clock(self) -> int:
        with self.observing():
            return self.host_time_ns()

    def _add_writer(self, lane: RecordedLane, state: ThreadState) -> LaneWriter:
        writer = LaneWriter(self, lane, state, collect_at=self._waiting.first_collection_at)
        with self._lock:
            lane.writers.append(writer)
        count = len(state.writers)
        if count & (count - 1) == 0:  # not each time: to look at all of thousands takes long
            for known in [known for known in state.writers if known.is_spent]:
                del state.writers[known]
        state.writers[lane] = writer
        return writer


def _is_done(lane: RecordedLane) -> bool:
    """Tell whether a stream has no work left in one place. One that is captured into a graph is not asked: that ends it."""
    try:
        # A place that is being closed still has work, until its stream is closed.
        is_over = bool(getattr(lane.stream, "is_closed", lane.is_closed))
        return is_over or (not lane.stream.is_capturing and lane.stream.query())
    except GPUStreamLabError:
        return lane.is_closed  # it may have been closed meanwhile; a device that has failed tells so elsewhere
