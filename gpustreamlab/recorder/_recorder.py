"""Collects ranges of all lanes and threads of a session into one bounded log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import count
from types import TracebackType
from typing import Any

import numpy as np

from gpustreamlab._util.defences import delayed_interrupts
from gpustreamlab._util.shell import running_kernel_shell
from gpustreamlab.backends import ActivitySource, Backend, BackendStream, ContextSpec
from gpustreamlab.errors import DeviceError, GPUStreamLabError, StickyDeviceError
from gpustreamlab.model import Lane, Layout, Marker, Partition, Trace
from gpustreamlab.recorder._chunks import FIRST_WORK_NUMBER, NUMBERS_APART, RECORDERS, START, Chunk, ChunkLog
from gpustreamlab.recorder._extents import Checkpoints
from gpustreamlab.recorder._in_flight import RangesInFlight, Unended, is_done, to_clock
from gpustreamlab.recorder._kernel_tier import KernelTier, observing
from gpustreamlab.recorder._ranges import NO_EVENTS, FinishedRange, LaneWriter, Range, RecordedLane, ThreadState
from gpustreamlab.recorder._tables import MAX_LABEL_LENGTH, CodeTable, SessionTables, Tables, cut_text
from gpustreamlab.recorder._trace_maker import fold
from gpustreamlab.recorder._work import WorkReader
from gpustreamlab.typing import FloatArray, Int64Array, LaneKind, MarkerKind

_log = logging.getLogger(__name__)


DEFAULT_RING_SIZE = 1_000_000  # Spans kept by default
TAKE_EVERY = 16_384
"""Closed ranges of a thread and lane that wait for records of their work, from which on these are drained in passing."""
KEPT_EDGES = 256  # Edges kept that wait for the next range of a lane; the newest count
KEPT_RANGES = 4_096  # Names of one thread and lane whose ranges are kept for the next use


LISTED_RANGES = 8  # How many ranges a message lists
SHOWN_CHARACTERS = 60  # Of a range's name in a message

_recorders = count()  # Takes the place of the next recorder of this process


class Recorder:
    """The range tier, always: an NVTX range for each named range, and a pair of events where kernels do not time it.

    The kernel tier, where it is started.
    """

    def __init__(self, backend: Backend, *, ring_size: int = DEFAULT_RING_SIZE) -> None:
        self._backend = backend
        self._checkpoints = Checkpoints()
        self._version: tuple[object, ...] = ()
        self.title = ""  # A name for traces
        self._failed_count = 0
        self._is_ended = False
        self._idle_host_ns = -1  # When the device was last asked to wait for all work, and did
        self.aside: Callable[[], object] = bool
        """Called some times a second where something follows what is recorded: a live timeline, a spool."""
        self.counter_readers: list[Callable[[], object]] = []  # Each takes what the device has counted
        self.sample_ends: dict[tuple[int, str], int] = {}
        """Until when the newest sample of a lane's quantity holds that is still counted, by the host's clock in ns."""
        self.end_counter_block: Callable[[], object] | None = None  # Set while a block counts finely
        self.loss_report = LossReport(self._find_lost)  # Names the ranges where the device's context is lost
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
        self._tables = SessionTables(backend, self.numbers.__next__, self.look_at_clock())
        reader = WorkReader(self._tables, first_number + FIRST_WORK_NUMBER)
        self._counter_names = reader.counter_names
        codes: dict[str, CodeTable[Any]] = {
            "names": self._tables.names,
            "details": reader.details,
            "counter_names": reader.counter_names,
        }
        self.log = ChunkLog(ring_size, codes, self._describe)  # What has ended
        self.in_flight = RangesInFlight(backend, self.log)  # Ranges that are not in the log yet
        self.lock = self.in_flight.lock
        """Held where the log and ranges on their way change; never while anybody waits for the device."""
        self.pop_pair = self.in_flight.idle_pairs.pop
        self.kernels = KernelTier(backend, reader, self.in_flight, self._drop_untold)
        """Kernels, copies and calls, where they are captured."""

    @property
    def dropped_count(self) -> int:
        """Spans that are missing: overwritten, beyond the pending limit, failed to record, or lost by the source of kernels."""
        return self.log.dropped_count + self.lost_count

    @property
    def lost_count(self) -> int:
        """Spans that never came into the log; part of `dropped_count`."""
        return self.in_flight.overflowed_count + self._failed_count + self.kernels.dropped_count

    @property
    def pending_count(self) -> int:
        """Closed ranges whose device work had not ended when they were last collected."""
        return self.in_flight.waiting_count

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected, without a span; 0 where the backend does not count it."""
        return self._tables.unselected_work

    @property
    def span_count(self) -> int:
        """Finished spans in the log."""
        return len(self.log)

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

    def add_counter_lane(self, told_by: str) -> int:
        """Return the index of a lane for counters of the device, of which this is who counts."""
        ordinal = self._backend.device.ordinal
        return self._tables.lanes.add(Lane(name=f"counters of GPU {ordinal}: {told_by}", device=ordinal, kind=LaneKind.HOST))

    def add_samples(self, lane: int, columns: Sequence[tuple[str, Int64Array, FloatArray]]) -> None:
        """Take samples of a lane's quantities: name, times of the host, values; shape (n,) each, one at least."""
        codes = np.repeat([self._counter_names.code(name) for name, _, _ in columns], [len(value) for _, _, value in columns])
        host_ns, value = (np.concatenate([column[place] for column in columns]) for place in (1, 2))
        with self.observing():
            time_ns = to_clock(self._backend, host_ns)
        with self.lock, delayed_interrupts():
            self.log.add(Chunk(samples=np.stack((time_ns, np.full_like(time_ns, lane), codes, value.view(np.int64)))))

    def _ends_of_samples(self, samples: Int64Array) -> Int64Array:
        """Return samples with NaN behind the newest of each quantity that is still counted; shape (4, n)."""
        ends = {(lane, self._counter_names.code(name)): end_ns for (lane, name), end_ns in (*self.sample_ends.items(),)}
        rows = [
            (end_ns, lane, code) for (lane, code), end_ns in ends.items() if ((samples[1] == lane) & (samples[2] == code)).any()
        ]
        if not rows:
            return samples
        host_ns, lane, code = np.array(rows, np.int64).T
        with self.observing():
            time_ns = to_clock(self._backend, host_ns)
        return np.hstack((samples, np.stack((time_ns, lane, code, np.full(len(rows), np.nan).view(np.int64)))))

    def _read_counters(self) -> None:
        for read in tuple(self.counter_readers):
            read()

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

    def rest(self) -> None:
        """Let simulated work end, whose time stands still while nobody works; that of a GPU goes on by itself."""
        getattr(self._backend, "rest", bool)()

    def checkpoint(self) -> int:
        """Return a number that is lower than those of all ranges to come."""
        with self.lock:
            place = self.log.place  # before the number: a later range may end at once
            number = next(self.numbers)
            self._checkpoints.note(number, self.look_at_clock(), place)
        return number

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
        """Note that an open range, this thread's if None is given, or else (-1) a lane's next one, waits for an earlier one."""
        if source_number < 0 or (self.captures and lane.stream.is_capturing):  # there it orders the nodes of a graph
            return
        number = self.open_number(lane) if number is None else number
        with self.lock:
            if number >= 0:
                self.log.add_edge(source_number, number)
            else:
                lane.incoming.append(source_number)
                del lane.incoming[:-KEPT_EDGES]

    def close_edges(self, lane: RecordedLane, number: int) -> None:
        """Let the edges that wait for a lane's next range end at it."""
        with self.lock:
            incoming, lane.incoming = lane.incoming, []
            for source in incoming:
                self.log.add_edge(source, number)

    def collect(self, only: RecordedLane | None = None) -> None:
        """Move ranges whose device work has ended into the log, of all lanes or of one. Never waits for the device."""
        self.in_flight.collect(only)

    def synchronize(self) -> None:
        """Block the host until the device is idle; then every closed range, and all work that was captured, can be read."""
        stop_count = self.kernels.stop_count
        asked_ns = self.host_time_ns()
        self._backend.synchronize()
        self._idle_host_ns = asked_ns
        with self.observing():  # else virtual time would tell how far the thread that captures had come
            if self._backend.device.simulated:  # on a GPU reading takes milliseconds, and is done on the side
                self.kernels.take(is_complete=False)
            self.collect()
            self.kernels.finish(stop_count)
            self.collect()

    def changes(self, since: int = START, *, collects: bool = True, **options: Any) -> Chunk:
        """Collect, unless the device has failed, then return what is new since a place; see `ChunkLog.read`. Never waits."""
        if collects:
            self.aside()
            self._read_counters()
            self.kernels.take(is_complete=False)  # not while the lock is held
        with self.lock:
            if collects:
                self.collect()
            self.log.seal()
            told = self.log.read(since, **options)
        return told._replace(lost=self.lost_count, pending=self.pending_count, is_capturing=self.kernels.is_on)

    def follow(self, since: int) -> tuple[Chunk, Unended]:
        """Return what is new since a place, and the ranges around it that have not ended: children end before their parents."""
        self.aside()
        self._read_counters()
        self.kernels.take(is_complete=False)
        with self.lock:
            self.collect()
            # What has ended or waits for the device stays where it is while the lock is held.
            told = self.changes(since, collects=False)
            return told, self.in_flight.find_unended(told.columns)

    def _describe(self, is_wanted: bool) -> tuple[Tables | None, Sequence[Marker]]:  # noqa: FBT001 - see `ChunkLog`
        """Return the tables if they have changed, and new markers. What rows point into was known before them."""
        version = (self._tables.version, self.kernels.edit_count)
        tables = None
        if is_wanted or version != self._version:
            tables = self._tables.make(self.kernels, self.title)
            self._version = version
        return tables, self._tables.new_markers()

    @property
    def tables(self) -> Tables:
        """The tables as they are now, without markers."""
        return self._tables.make(self.kernels, self.title)

    def unfinished(self) -> str:
        """Name the ranges that are open, or closed while their work has not ended."""
        is_event_done, idle_host_ns = self._backend.is_event_done, self._idle_host_ns
        return describe_unfinished(self.in_flight, self._tables.names, is_event_done, idle_host_ns=idle_host_ns)

    def _find_lost(self) -> str:
        """Return what `unfinished` does, when the device is lost: by the records until then."""
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
        """Return lane, name, opening and count of what has not ended: of each lane the range opened first, in bounded time."""
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
            self.log.clear()
            self._tables.forget()
            self.in_flight.overflowed_count = self._failed_count = 0

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Wait at the end of a ``with`` block, and forget what this thread did in it, with the work that it enqueued."""
        thread, since_ns = self.thread_state().thread, self.to_clock_ns(self.look_at_clock())
        try:
            yield
        finally:
            with suppress(DeviceError):  # a device that is lost has said so
                self.synchronize()
            with self.lock:
                self.log.take_out(lambda told: (told["thread"] == thread) & (told["queued_ns"] >= since_ns))

    def let_go(self) -> None:
        """Give back the memory of what was recorded, at the end: the last trace has its own."""
        self.kernels.clear()
        with self.lock:
            self.log.clear()

    def trace(self, *, since: int = -1) -> Trace:
        """Collect, then return what is kept as an immutable trace.

        A device that fails by now keeps no one from what was recorded before: ranges that cannot be read any more count as
        pending.
        """
        try:
            self.collect()
        except DeviceError as error:
            _log.warning("Ranges that had not been collected are missing from the trace: %s", error)
        self._read_counters()
        self.kernels.take()
        told = self.changes(collects=False, rows_from=self._checkpoints.place(since) if since >= 0 else START)
        if since >= 0:
            told = told._replace(rows=told.rows[:, self._checkpoints.find_later(told.columns, since, self.to_clock_ns)])
        # The errors of the clock, and when kernels were captured, are known better by now.
        told = told._replace(samples=self._ends_of_samples(told.samples), tables=self.tables, is_capturing=False)
        return fold([told], unselected_work=self.unselected_work if since < 0 else 0)

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
        """Capture kernels from now on, in addition to ranges."""
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


class LossReport:
    """Names what ran where when the device's context was lost, and remembers it: later errors are of the same cause.

    As a context manager it names the ranges in a `StickyDeviceError` that passes through it to the user.
    """

    def __init__(self, find: Callable[[], str]) -> None:
        self._find = find
        self._text = ""
        self.is_told = False  # Whether an error with the name of the range went to the user
        self.is_closing = False  # Whether the session is being closed: errors then go to `sift`, and not to the user

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, StickyDeviceError):
            self.tell(error)

    @property
    def is_lost(self) -> bool:
        """Whether the device is known to be lost."""
        return bool(self._text)

    def tell(self, error: StickyDeviceError) -> None:
        """Name the ranges in an error; the first time, those of now."""
        if not self._text:
            found = self._find()
            where = f"{found[0].upper()}{found[1:]}" if found else "No range was open, and all had ended"
            what = "the Jupyter kernel" if running_kernel_shell() is not None else "this process"
            self._text = f"{where}. Only a restart of {what} brings the device back."
        self.is_told = self.is_told or not self.is_closing
        error.where = self._text

    def sift(self, failures: Sequence[tuple[str, Exception]]) -> list[tuple[str, Exception]]:
        """Return the failures of a close that are new: of those of a lost context the first, if none was reported yet."""
        if not self.is_told and not any(isinstance(error, StickyDeviceError) for _, error in failures):
            return list(failures)
        kept: list[tuple[str, Exception]] = []
        for what, error in failures:
            if not isinstance(error, DeviceError):
                kept.append((what, error))
            elif isinstance(error, StickyDeviceError) and not self.is_told:
                self.tell(error)
                self.is_told = True
                kept.append((what, error))
            else:
                _log.debug("Closing %s failed after the device's context was lost: %s", what, error)
        return kept


def describe_unfinished(
    in_flight: RangesInFlight, names: CodeTable[str], is_event_done: Callable[[Any], bool], *, idle_host_ns: int = -1
) -> str:
    """Say which ranges' work has not ended, in the order in which they were opened; empty where all has."""
    opened = {(one.number, one.name, one.lane.name) for one in in_flight.open()}
    firsts, untold, count = [], [], 0
    for lane in in_flight.lanes:
        for queue, _ in lane.queues():
            rows = _not_ended(queue, is_event_done, idle_host_ns)
            named = [(row[3], row[1], lane.name) for row in rows]
            firsts += named[:1]
            count += len(named)
            untold += named if rows and rows[0][0] is NO_EVENTS else []
    texts, parts = names.all, []
    if untold:
        parts.append(f"not known to have ended: {_listed(untold, texts)}")
    elif firsts:
        firsts.sort()
        more = f", then {_listed(firsts[1:], texts)}" if firsts[1:] else ""
        closed = f" ({count:,} were closed and had not ended)" if count > len(firsts) else ""
        parts.append(f"the first range that had not ended was {_listed(firsts[:1], texts)}{more}{closed}")
    if opened:
        parts.append(f"open: {_listed(opened, texts)}")
    return "; ".join(parts)


def _not_ended(
    queue: Sequence[FinishedRange], is_event_done: Callable[[Any], bool], idle_host_ns: int
) -> Sequence[FinishedRange]:
    """Return a stream's closed ranges from the first one on that has not ended: a stream ends them in order."""
    for place, row in enumerate(queue):
        if row[5] <= idle_host_ns:
            continue
        try:
            if row[0] is NO_EVENTS or not is_event_done(row[0][1]):
                return queue[place:]
        except Exception:  # noqa: BLE001 - a lost context answers every question with an error
            return queue[place:]
    return ()


def _listed(ranges: Collection[tuple[int, int, str]], texts: Sequence[str]) -> str:
    """Name ranges, each a number, the code of a name and a stream."""
    shown = []
    for _, code, stream in sorted(ranges)[:LISTED_RANGES]:
        name = texts[code] if len(texts[code]) <= SHOWN_CHARACTERS else f"{texts[code][:SHOWN_CHARACTERS]}…"
        shown.append(f"{name!r} on stream {stream!r}")
    more = f" and {len(ranges) - LISTED_RANGES:,} more" if len(ranges) > LISTED_RANGES else ""
    return f"{', '.join(shown)}{more}"
