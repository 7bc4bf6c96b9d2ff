"""Watch what streams read and write: who wrote an array last, and which data crossed streams without an order."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np

from gpustreamlab._util.defences import process_lock
from gpustreamlab.analysis import (
    NO_STREAM,
    FoundHazard,
    Hazard,
    Hazards,
    HazardSearch,
    HazardSide,
    LaneClock,
    Moment,
    Piece,
    Side,
    Touch,
)
from gpustreamlab.backends import Backend, Step, WatchedArrays, order_behind
from gpustreamlab.errors import DeviceError, OptionError, nearest_hint
from gpustreamlab.memory._steps import OutsideWork
from gpustreamlab.memory.lifetimes import Keeper, KeptStream
from gpustreamlab.memory.scratch import Scratch
from gpustreamlab.model import SPAN_KINDS, Device, Note, Trace, TraceMetadata
from gpustreamlab.recorder import Recorder
from gpustreamlab.typing import HazardMode, NoteKind, SpanKind

__all__ = ["AccessTap", "AccessWatch", "check_hazard_mode", "hazard_notes", "variables_of", "watch_accesses"]


_NULL_STREAM = 0


class StreamsByHandle(Protocol):
    """The streams of a session."""

    def with_handle(self, handle: int) -> Any | None:
        """Return the open stream that has a handle now, or None."""


class AccessTap(Protocol):
    """Takes note of accesses while a program is recorded."""

    def work(self, work: str, reads: Sequence[Touch], writes: Sequence[Touch]) -> object:
        """Note what work reads and writes."""

    def host_wait(self) -> object:
        """Note that the host has waited for a stream."""


class AccessWatch:
    """Follows every access to arrays of ``lab.xp``, and every order between streams. One for each session.

    The backend tells at the moment of each enqueue, with `lock` held; the search is `gpustreamlab.analysis.HazardSearch`. Those
    of the cards of a node share what is ordered, so each finds what its own streams do to the memory of all cards.
    """

    def __init__(
        self,
        backend: Backend,
        recorder: Recorder,
        mode: HazardMode,
        *,
        table: StreamsByHandle,
        defer: Callable[[Any, object], object],  # keeps an array's memory until a stream is done with it
    ) -> None:
        self.mode = mode
        """What is done about hazards."""
        self.lock: AbstractContextManager[object] = process_lock()
        """Held around each note; the backend's own where it has one."""
        self.wait_count = 0
        """Waits that were put in."""
        self._backend = backend
        self._table = table
        self._defer = defer
        self._recorder = recorder
        self._local = recorder.local
        self._card = backend.device.ordinal
        self._cards = {self._card: self}  # the watches of a node, by device
        self._search = HazardSearch(_name_range, self._name_of, recorder.look_at_clock, self._card)
        self._clocks = self._search.clocks
        self._watched: WatchedArrays | None = None
        self._why_not = ""
        self._puts_in = mode is HazardMode.WAIT
        self._is_waiting = False
        self._is_paused = False
        self.tap: AccessTap | None = None
        """Is told of every access as well; None for nobody."""
        self.pending: list[Callable[[], object]] = []
        """What waits until the backend calls `finish`, without the lock: memory to keep for streams, waits for the trace."""
        self._outside: OutsideWork | None = None  # Work of all libraries, from the calls of the driver
        if mode is not HazardMode.OFF:
            self._begin()

    @property
    def xp(self) -> Any:
        """The array module: one that tells of accesses, where they are watched."""
        return self._backend.xp if self._watched is None else self._watched.xp

    def find(self, array: object) -> Touch | None:
        """Return which memory an array is; None for one that is not watched. To look at an array is no use of it."""
        with self._looking():
            return None if self._watched is None else self._watched.find(array)

    @property
    def track(self) -> Callable[[Any], Any] | None:
        """Makes an array a watched one, in the same memory; None where all arrays of the backend are."""
        return None if self._watched is None else self._watched.track

    @property
    def is_watching(self) -> bool:
        """Whether accesses are told of."""
        return self._watched is not None

    def writers(self, array: object) -> tuple[Any, ...] | None:
        """Return the streams that wrote an array last, as far as the session has them; None if that is not known.

        It is not known for arrays of other libraries, where nothing is watched, and where no stream was selected: CUDA's NULL
        stream is no stream of the session.
        """
        with self.lock:
            touch = None if self._watched is None else self._watched.find(array)
            if touch is None:
                return None
            writes = self._search.last_writers(*touch)
            lanes = dict.fromkeys(use.lane for use in writes if not self._clocks.is_host_before(use.lane, use.tick))
        streams = [self._stream_of(lane) for lane in lanes]
        return None if any(stream is None for stream in streams) else tuple(streams)

    def moment(self, stream: KeptStream) -> Moment | None:
        """Return what an event stands for that is recorded on a stream now; None where nothing is watched."""
        if self._watched is None:
            return None
        with self.lock:
            return self._clocks.record(self._clocks.lane(stream.handle))

    def kept_until(self, objects: Iterable[object], moment: Moment) -> None:
        """Note that arrays could not be freed before a moment, which has been reached."""
        with self.lock:
            for one in objects:
                touch = None if self._watched is None else self._watched.find(one)
                if touch is not None:
                    self._search.kept_until(touch[0], moment)

    def check(self, names: Mapping[str, object], *, of_node: bool = False) -> Hazards:
        """Return what was found so far: in what the streams of this card have part, or `of_node` on all cards.

        `names` are the caller's variables: where arrays may have names.
        """
        self._take_in()
        with self.lock:
            self._name_arrays(names)  # also where nothing was found yet: later their arrays may be gone
            if self._outside is not None:
                self._outside.name(names)
            watches = [*self._cards.values()] if of_node else [self]
            searches = [one._search for one in watches]
            searches += [one._outside.search for one in watches if one._outside is not None]
            return Hazards(
                hazards=(
                    *(self._describe(row) for row in self._rows(of_node=of_node)),
                    *(hazard for hazard, _ in self._found_outside()),
                ),
                access_count=sum(one.access_count for one in searches),
                array_count=sum(one.piece_count for one in searches),
                wait_count=sum(one.wait_count for one in watches),
                unlisted_count=sum(one.unlisted_count for one in searches),
                let_go_count=sum(one.let_go_count for one in searches),
                mode=self.mode,
                unwatched=tuple(self._unwatched()),
                trace=_no_spans(self._backend.name, tuple(one._backend.device for one in watches)),
            )

    def notes(self, trace: Trace, *, of_node: bool = False) -> tuple[Note, ...]:
        """Say in a trace where each hazard is: in the range that does not wait, else where that was enqueued.

        One between two cards is told of on both, as far as the trace has them; the trace is on the clock of this watch's card.
        """
        found = self.found(of_node=of_node)
        return tuple(note for one in found for note in hazard_notes(trace, *one, card=None if of_node else self._card))

    def found(self, *, of_node: bool = False) -> list[tuple[Hazard, int]]:
        """Return what was found, and when each was, by the trace's clock, in ns."""
        with self.lock:
            found = [(self._describe(row), row.host_ns) for row in self._rows(of_node=of_node)]
            found += self._found_outside()
        try:
            return [(hazard, self._recorder.to_clock_ns(host_ns)) for hazard, host_ns in found]
        except DeviceError:  # its clock is gone
            return []

    @property
    def newest_ns(self) -> int:
        """When the newest hazard was found, by the host's clock; -1 where there is none."""
        with self.lock:
            return next((row.host_ns for row in reversed(self._search.found.values())), -1)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let work in a ``with`` block be as if it had not been: whoever opens it waits for the device at both ends."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Let another session watch the device in a ``with`` block: whoever opens it waits for the device at both ends."""
        was_watching = self.is_watching
        self.close()
        try:
            yield
        finally:
            self._watched = self._backend.watch_accesses(self) if was_watching else None

    def clear(self) -> None:
        """Forget what was found so far; what is known of arrays and of the order stays."""
        with self.lock:
            self._search.clear()
            if self._outside is not None:
                self._outside.clear()
            self.wait_count = 0

    def close(self) -> None:
        """Stop watching. What was found stays. Idempotent."""
        if self._watched is not None:
            self._watched = None
            self._backend.leave_accesses(self)

    # What the backend tells, with the lock held

    def stand_beside(self, other: AccessWatch) -> None:
        """Share the order with the watch of another card of the host, and know its streams."""
        self.lock, self._cards = other.lock, other._cards
        self._cards[self._card] = self
        self._search.stand_beside(other._search)

    def has_stream(self, handle: int) -> bool:
        """Tell whether a handle is that of a stream of the session."""
        return self._table.with_handle(handle) is not None

    def allocate(self, handle: int, start: int, end: int, shape: tuple[int, ...], dtype: object) -> Piece:
        """Note that a stream's pool handed out memory."""
        piece = self._search.allocate(handle, start, end, shape, dtype)
        piece.place = self._place()
        if self._outside is not None:
            self._outside.note_watched(start)
        return piece

    def free(self, piece: Piece) -> None:
        """Note that memory went back to its pool."""
        self._search.free(piece)

    def work(self, handle: int, work: str, reads: Sequence[Touch], writes: Sequence[Touch]) -> bool:
        """Note work that is about to be enqueued; put in the waits that it lacks, if the session is to. Tell whether it did."""
        if self._is_paused:
            return False
        before, place, lane = self.wait_count, self._place(), self._clocks.lane(handle)
        if self.tap is not None:
            self.tap.work(work, reads, writes)
        if self._puts_in and not self._is_waiting:
            self._put_in_waits(lane, reads, writes)
            lane = self._clocks.lane(handle)  # with all that the host may have waited for just now
        self._search.work(lane, work, place, reads, writes)
        return self.wait_count != before

    def ended(self, handle: int, work: str, piece: Piece, lender: Scratch) -> None:
        """Note that the work noted last uses scratch that was given back, or freed with its stream."""
        piece.lane.name = piece.lane.name or str(lender.stream.name)
        self._search.ended(self._clocks.lane(handle), work, self._place(), piece, lender.ending, lender.nbytes)

    def finish(self) -> None:
        """Do what is pending: it asks the device, and takes locks under which others ask for this one."""
        pending, self.pending = self.pending, []
        for do in pending:
            do()

    def record(self, handle: int) -> Moment:
        """Note that an event was recorded."""
        return self._clocks.record(self._clocks.lane(handle))

    def wait(self, handle: int, moment: Moment | None) -> None:
        """Note that a stream's later work waits for an event."""
        if moment is not None:
            self._clocks.wait(self._clocks.lane(handle), moment)

    def host_wait(self, moment: Moment | None) -> None:
        """Note that the host has seen an event reached."""
        if moment is not None:
            self._clocks.host_wait(moment)

    def host_wait_stream(self, handle: int) -> None:
        """Note that the host has seen a stream idle."""
        if self.tap is not None:
            self.tap.host_wait()
        self._clocks.host_wait(self._clocks.record(self._clocks.lane(handle)))

    def host_wait_all(self) -> None:
        """Note that the host has seen the device idle."""
        self._clocks.host_wait_all()

    def close_stream(self, handle: int) -> None:
        """Note that a stream was destroyed."""
        self._clocks.close(handle)

    # Inside

    def _begin(self) -> None:
        watch = getattr(self._backend, "watch_accesses", None)
        if watch is None:
            self._why_not = f"Backend {self._backend.name!r} does not report memory accesses, so nothing was watched."
            return
        self._watched = watch(self)
        if self._watched is None:
            self._why_not = "Another session watches this device, so nothing was watched here: ask it, or give each its own."
        elif not self._backend.device.simulated:
            self._outside = OutsideWork(self._name_of, self._card, self._all_outside)
            self._recorder.kernels.take_steps = self._take_steps

    def _take_steps(self, steps: Sequence[Step], places: Sequence[str], host_ns: Sequence[int]) -> None:
        with self.lock:
            if self._outside is not None:
                self._outside.take(steps, places, host_ns, is_counted=not self._is_paused)

    def _take_in(self) -> None:
        """Take what was called by now."""
        if self._outside is not None:
            self._recorder.kernels.take(is_complete=False)

    def _all_outside(self) -> list[OutsideWork]:
        return [one._outside for one in self._cards.values() if one._outside is not None]

    def _found_outside(self) -> list[tuple[Hazard, int]]:
        return [] if self._outside is None else self._outside.found()

    def _put_in_waits(self, lane: LaneClock, reads: Sequence[Touch], writes: Sequence[Touch]) -> None:
        """Let a stream wait for those that its next work conflicts with, and keep the memory that crosses."""
        self._is_waiting = True  # what is done here is no work of the user's
        try:
            for other in self._search.unordered(lane, reads, writes):
                self._put_in_wait(lane, other)
            here = self._stream_of(lane)
            for piece, _ in (*reads, *writes):
                owner = piece.owner() if here is not None and piece.lane is not lane else None
                if owner is not None:
                    self.pending.append(partial(self._defer, here, owner))
        finally:
            self._is_waiting = False

    def _put_in_wait(self, lane: LaneClock, other: LaneClock) -> None:
        self.wait_count += 1
        here, there = self._stream_of(lane), self._stream_of(other)
        behind, ahead = self._backend_stream_of(lane, here), self._backend_stream_of(other, there)
        backend = self._cards[other.card]._backend  # an event is recorded on its own card only
        if behind is None or ahead is None:  # a stream that the session does not know, or not any more
            backend.synchronize()
            return
        order_behind(backend, behind, ahead)
        if here is not None and there is not None:
            number = self._recorder.open_number(here._recorded)  # by then another thread may do what is pending
            self.pending.append(partial(self._recorder.add_edge, there._recorded.last_number, here._recorded, number))

    def _stream_of(self, lane: LaneClock) -> Any | None:
        own = self._cards[lane.card]
        return own._table.with_handle(lane.handle) if own._clocks.lanes.get(lane.handle) is lane else None

    def _backend_stream_of(self, lane: LaneClock, stream: Any | None) -> Any | None:
        watched = self._cards[lane.card]._watched
        if lane.handle == _NULL_STREAM and watched is not None:
            return watched.null_stream
        return None if stream is None else stream._backend_stream

    def _rows(self, *, of_node: bool) -> list[FoundHazard]:
        """Return what was found, in its order: on all cards, or where this one has part in it."""
        if len(self._cards) == 1:
            return [*self._search.found.values()]
        rows = [row for one in self._cards.values() for row in one._search.found.values()]
        own = [row for row in rows if of_node or self._card in {row.first.lane.card, row.second.lane.card}]
        return sorted(own, key=lambda row: row.second.order)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """Hold the lock, and count no memory that is looked at: to look at an array that nobody has used is no use of it."""
        with self.lock:
            counts = [(one._search, one._search.piece_count) for one in self._cards.values()]
            yield
            for search, count in counts:
                search.piece_count = count

    def _place(self) -> object:
        """Return the name of the innermost range of this thread; not the range, which counts as in use where it is kept."""
        try:
            opened = self._local.state.open_ranges
        except AttributeError:
            return None
        return opened[-1][3].name if opened else None

    def _name_arrays(self, names: Mapping[str, object]) -> None:
        """Let memory know what its array is called now; the first name counts. What has no name any more keeps its last one."""
        if self._watched is None:
            return
        with self._looking():
            for name, value in reversed(list(names.items())):
                touch = None if name.startswith("_") else self._watched.find(value)
                if touch is not None:
                    touch[0].name = name

    def _describe(self, row: FoundHazard) -> Hazard:
        piece = row.piece
        shape, dtype = f"({', '.join(map(str, piece.shape))})", str(piece.dtype)
        maker = _name_range(piece.place)
        called = piece.name or f"{dtype} {shape}"
        if row.scratch_bytes is not None:  # several arrays may have been in it
            called = f"{row.scratch_bytes:,} bytes of scratch"
        return Hazard(
            kind=row.kind,
            is_certain=row.is_certain,
            array=called,
            maker=maker,
            scratch_bytes=row.scratch_bytes,
            shape=piece.shape,
            dtype=dtype,
            allocation=piece.number,
            first=self._describe_side(row.first),
            second=self._describe_side(row.second),
            hazard_count=row.count,
        )

    def _describe_side(self, side: Side) -> HazardSide:
        device = side.lane.card if len(self._cards) > 1 else None
        return HazardSide(stream=self._name_lane(side.lane), range=side.place, work=side.work, order=side.order, device=device)

    def _name_lane(self, lane: LaneClock) -> str:
        if lane.handle == _NULL_STREAM:
            return NO_STREAM
        stream = self._stream_of(lane)  # it may have become one of the session's since
        return lane.name or (f"stream {lane.handle:#x}" if stream is None else str(stream.name))

    def _name_of(self, handle: int) -> str:
        stream = self._table.with_handle(handle)
        return "" if stream is None else str(stream.name)

    def _unwatched(self) -> Iterable[str]:
        if self.mode is HazardMode.OFF:
            yield 'To have hazards found, start the session with gpustreamlab.Session(hazards="report").'
        elif self._why_not:
            yield self._why_not
        else:
            others = "arrays of other libraries are not watched"
            if self._outside is not None:
                others = "work of other libraries is followed by the driver's calls"
            yield f"Arrays of lab.xp are watched, and what is found is kept until lab.clear(); {others}."
            if self._outside is not None and not self._recorder.kernels.tells_steps:
                yield "The driver's calls are not followed, so only arrays of lab.xp were watched: see print(lab)."
            if self._outside is not None:
                yield from self._outside.unseen()
            yield (
                "What the host reads and writes is not seen. Call stream.synchronize() before the host fills page-locked "
                "memory that a copy reads, or reads what get(blocking=False) writes."
            )


def watch_accesses(backend: Backend, recorder: Recorder, mode: object, table: StreamsByHandle, keeper: Keeper) -> AccessWatch:
    """Return the watch of a session, and let its keeper ask it who wrote an array."""
    chosen = check_hazard_mode(mode, simulated=backend.device.simulated)
    watch = AccessWatch(backend, recorder, chosen, table=table, defer=keeper.defer)
    keeper.writers = watch.writers
    keeper.add_watch(watch)
    return watch


def variables_of(frame: types.FrameType) -> dict[str, object]:
    """Return the variables that a frame sees.

    Up to CPython 3.12 a function's frame keeps what it gave out here, and so a deleted array, until it ends or is asked again.
    """
    return {**frame.f_globals, **frame.f_locals}


def check_hazard_mode(mode: object, *, simulated: bool) -> HazardMode:
    """Return what a session does about hazards; None is "report" on the simulated device and "off" on a GPU."""
    if mode is None:
        return HazardMode.REPORT if simulated else HazardMode.OFF
    try:
        return HazardMode(str(mode))
    except ValueError:
        known = [known.value for known in HazardMode]
        raise OptionError(
            f"hazards is {mode!r}. {nearest_hint(str(mode), known)} "
            "Use gpustreamlab.Session(hazards='report'), 'wait' or 'off'."
        ) from None


def hazard_notes(trace: Trace, hazard: Hazard, found_ns: int, *, card: int | None = None, prefix: str = "") -> Iterator[Note]:
    """Say in a trace where a hazard is, on one card or all; names of streams begin with `prefix` in the trace."""
    is_between = hazard.first.device != hazard.second.device
    lanes = {lane.name for lane in trace.lanes}
    for side in (hazard.second, hazard.first) if is_between else (hazard.second,):
        lane = None if side.stream == NO_STREAM else prefix + side.stream
        row = _open_range(trace, side.range, lane, found_ns)
        is_here = card is None or not is_between or side.device == card
        if not is_here or (row is None and side is hazard.first):  # when that was enqueued is not known
            continue
        yield Note(
            time_ns=found_ns if row is None else int(trace.start_ns[row]),
            end_ns=None if row is None else int(trace.end_ns[row]),
            stream=lane if lane in lanes else None,
            text=hazard.text,
            fix=f"Put {hazard.fix} {hazard.where}.",
            kind=NoteKind.HAZARD,
        )


def _open_range(trace: Trace, name: str, lane: str | None, time_ns: int) -> int | None:
    """Return the row of a range of a name in a stream: of those open by a time the last, or None."""
    lanes = [own.name for own in trace.lanes]
    if name not in trace.names or lane not in lanes:
        return None
    is_it = (trace.name == trace.names.index(name)) & (trace.queued_ns <= time_ns) & (trace.lane == lanes.index(lane))
    rows = np.flatnonzero(is_it & (trace.kind == SPAN_KINDS.index(SpanKind.RANGE)))
    return int(rows[trace.queued_ns[rows].argmax()]) if len(rows) else None


@lru_cache(maxsize=8)
def _no_spans(backend: str, devices: tuple[Device, ...]) -> Trace:
    """Return a trace of some devices in which nothing ran."""
    metadata = TraceMetadata(backend=backend, device=devices[0], devices=devices if len(devices) > 1 else ())
    return replace(Trace.from_columns(start_ns=[], end_ns=[], stream=[]), metadata=metadata)


def _name_range(place: object) -> str:
    return place if isinstance(place, str) else ""
