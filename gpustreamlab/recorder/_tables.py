"""What the codes in a recorder's rows mean, the moments that were marked, and how all of it was measured."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from gpustreamlab._util.defences import process_lock
from gpustreamlab._util.host import host_id, rank
from gpustreamlab.analysis import distinct
from gpustreamlab.backends import Backend, StreamFacts
from gpustreamlab.errors import DeviceError
from gpustreamlab.model import Lane, Layout, LayoutChange, Marker, Partition, TraceMetadata
from gpustreamlab.typing import Int64Array, LaneKind, MarkerKind

if TYPE_CHECKING:
    from gpustreamlab.recorder._kernel_tier import KernelTier

NAME_LIMIT = 65_536  # Different range names told apart in one session
KEPT_LAYOUTS = 1_000  # Changes of the layout that are kept for the trace; the newest count
KEPT_MARKERS = 10_000  # Markers that are kept for the trace; the newest count
TABLES_EVERY_S = 10.0  # After how long the tables count as changed in any case


class Tables(NamedTuple):
    """What stays small, as it is now; parts that have not changed are equal."""

    lanes: Sequence[Lane]  # Every lane, by the code that rows have
    threads: Sequence[str]  # By their code
    partitions: Sequence[Partition]  # By their code
    layouts: Sequence[LayoutChange]  # When the SMs were shared out anew, in order of time
    markers: Sequence[Marker]  # Moments that were marked, in order of time. Recorders tell them by the chunk
    metadata: TraceMetadata  # How all of it was measured; without the spans that are missing or pending


class SessionTables:
    """The tables of one session."""

    def __init__(self, backend: Backend, next_number: Callable[[], int], host_ns: int) -> None:
        self._backend = backend
        self.names: CodeTable[str] = CodeTable(NAME_LIMIT, OTHER_NAMES)  # Of spans
        self.lanes = LaneTable()  # Streams, and threads of the host
        self.threads = Threads(self.lanes)  # Of the host
        self.markers = Markers(next_number, host_ns)  # Moments that were marked
        self._partitions: list[Partition] = []
        self._partition_codes: dict[Partition, int] = {}
        self._layouts: deque[tuple[int, Layout | None]] = deque(maxlen=KEPT_LAYOUTS)
        self._edit_count = 0
        self._unselected_before = getattr(backend, "unselected_work", 0)
        # What was told once stays, though the clock is known better later.
        self._to_clock_ns = lru_cache(maxsize=KEPT_LAYOUTS)(backend.host_to_clock_ns)

    @property
    def version(self) -> tuple[object, ...]:
        """What changes whenever a table does, and now and then by itself: the errors of the clock have none."""
        clock = int(time.monotonic() / TABLES_EVERY_S)
        return len(self.threads), self._edit_count, self.lanes.edit_count, self.markers.dropped_count, clock

    @property
    def device(self) -> int:
        """The number of the session's device."""
        return self._backend.device.ordinal

    @property
    def unselected_work(self) -> int:
        """Work with no stream selected, without a span, since `forget`; 0 where the backend does not count it."""
        return getattr(self._backend, "unselected_work", 0) - self._unselected_before

    def partition_code(self, partition: Partition | None) -> int:
        """Return the code of a partition, or -1 for the whole card."""
        if partition is None:
            return -1
        plain = replace(partition, sm_ids=None)
        known = self._partition_codes.get(plain)
        if known is not None:
            return known
        self._edit_count += 1
        self._partitions.append(partition)
        code = self._partition_codes[plain] = len(self._partitions) - 1
        return code

    def note_layout(self, layout: Layout | None, host_ns: int) -> None:
        """Note a layout and the host time at which it began."""
        self._edit_count += 1
        self._layouts.append((host_ns, layout))

    def note_verified(self, layout: Layout) -> None:
        """Keep the measured SM ids of the newest layout's partitions."""
        self._edit_count += 1
        for partition in layout:
            self._partitions[self.partition_code(partition)] = partition
        if self._layouts:
            self._layouts[-1] = (self._layouts[-1][0], layout)

    def forget(self) -> None:
        """Forget markers, and all layouts but the newest; count work with no stream selected from now on."""
        self._edit_count += 1
        while len(self._layouts) > 1:
            self._layouts.popleft()
        self.markers.clear()
        self._unselected_before = getattr(self._backend, "unselected_work", 0)

    def make(self, kernels: KernelTier, title: str) -> Tables:
        """Return all tables as they are now, but for markers."""
        return Tables(
            lanes=self.lanes.all,
            threads=self.threads.texts,
            partitions=tuple(self._partitions),
            layouts=tuple(LayoutChange(time_ns=self._to_clock_ns(at_ns), layout=layout) for at_ns, layout in [*self._layouts]),
            markers=(),
            metadata=self._metadata(kernels, title),
        )

    def new_markers(self) -> list[Marker]:
        """Return the markers that were not told yet, their times put on the backend's clock."""
        return self.markers.take(self._backend.host_to_clock_ns)

    def _metadata(self, kernels: KernelTier, title: str) -> TraceMetadata:
        clock = self._backend.clock_info()
        return TraceMetadata(
            backend=self._backend.name,
            device=self._backend.device,
            clock=clock.description,
            clock_error_ns=clock.clock_error_ns,
            range_error_ns=clock.range_error_ns,
            range_correction_ns=clock.range_correction_ns,
            host_error_ns=clock.host_error_ns,
            dropped_markers=self.markers.dropped_count,
            epoch_unix_ns=clock.epoch_unix_ns,
            host=host_id(),
            rank=rank(),
            title=title,
            **kernels.facts(),
        )


@dataclass(slots=True)
class _Cell:
    """The cell that runs, while no range was opened in it."""

    host_ns: int
    text: str
    number: int  # Number taken when it was last looked at


class Markers:
    """The marked moments of a session, and the cell that runs."""

    def __init__(self, next_number: Callable[[], int], host_ns: int) -> None:
        self._next_number = next_number
        self._noted: deque[tuple[int, str, MarkerKind]] = deque(maxlen=KEPT_MARKERS)  # those that were not taken yet
        self._count = 0
        # The cell that made the session has no name before it ends.
        self._cell: _Cell | None = _Cell(host_ns, "", next_number())
        self._lock = process_lock()

    @property
    def dropped_count(self) -> int:
        """Markers that made room for newer ones."""
        return max(0, self._count - KEPT_MARKERS)

    def note(self, text: str, kind: MarkerKind, host_ns: int) -> None:
        """Mark a moment of the host's clock."""
        with self._lock:
            self._count += 1
            self._noted.append((host_ns, text, kind))

    def begin_cell(self, text: str, host_ns: int) -> None:
        """Note that a cell begins; it is marked as soon as a range is opened in it."""
        with self._lock:
            self.settle_cell()
            self._cell = _Cell(host_ns, text, self._next_number())

    def end_cell(self, text: str) -> None:
        """Note that the cell of this name has ended: what follows is not its own."""
        with self._lock:
            if self._cell is not None and not self._cell.text:
                self._cell.text = text
            self.settle_cell()
            self._cell = None

    def settle_cell(self) -> None:
        """Mark the cell that runs if a range was opened in it."""
        with self._lock:
            cell = self._cell
            if cell is None or not cell.text:
                return
            number = self._next_number()
            if number > cell.number + 1:
                self._cell = None
                self.note(cell.text, MarkerKind.CELL, cell.host_ns)
            else:
                cell.number = number

    def take(self, to_clock_ns: Callable[[int], int]) -> list[Marker]:
        """Return those that were not taken yet, their times put on the backend's clock."""
        taken: list[Marker] = []
        # A device that fails by now leaves them here.
        with self._lock, suppress(DeviceError):
            self.settle_cell()
            while self._noted:
                host_ns, text, kind = self._noted[0]
                taken.append(Marker(time_ns=to_clock_ns(host_ns), text=text, kind=kind))
                self._noted.popleft()
        return taken

    def clear(self) -> None:
        """Forget all markers; the cell that runs is marked anew if more ranges come."""
        with self._lock:
            self._noted.clear()
            self._count = 0
            if self._cell is not None:
                self._cell.number = self._next_number()


# Numbers for names, lanes and threads

OTHER_NAMES = "(other names)"  # Stands for all names beyond a limit

_Value = TypeVar("_Value")


class CodeTable(Generic[_Value]):
    """Numbers for values, in the order in which they were first seen."""

    def __init__(self, limit: int, other: _Value) -> None:
        self._limit = limit
        self._other = other
        self._codes: dict[_Value, int] = {}
        self._lock = process_lock()

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def all(self) -> tuple[_Value, ...]:
        """Every value, by its number."""
        return (*self._codes,)  # not tuple(...): that may meet a change half-way where there is no global lock

    def starting_at(self, code: int) -> tuple[_Value, ...]:
        """Return the values from this number on."""
        with self._lock:
            return tuple(islice(reversed(self._codes), max(0, len(self._codes) - code)))[::-1]

    def code(self, value: _Value) -> int:
        """Return the value's number."""
        try:
            return self._codes[value]
        except KeyError:
            return self._add(value)

    def _add(self, value: _Value) -> int:
        with self._lock:
            if len(self._codes) >= self._limit - 1:
                value = self._other
            return self._codes.setdefault(value, len(self._codes))


MAX_LABEL_LENGTH = 1_000  # Longest name of a range, in characters; a longer one is cut and ends in "…"


def cut_text(text: str, limit: int = MAX_LABEL_LENGTH) -> str:
    """Return a text that is not too long to keep and that UTF-8 can write."""
    return plain_text(text if len(text) <= limit else f"{text[:limit]}…")


def plain_text(text: str) -> str:
    """Replace what UTF-8 cannot write, so that every name can be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


OUTSIDE_LANES = 256  # Streams that no session made and that have lanes of their own; further ones share a lane
HOST_LANES = 256  # Threads of the host that have lanes of their own; further ones share a lane
OTHER_STREAMS = "other streams"  # Name of the lane that further streams share
OTHER_THREADS = "host: other threads"  # Name of the lane that further threads share


class LaneTable:
    """Every lane, by its index. Lanes are added and shown anew, and never go."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []
        self._names: dict[str, int] = {}
        self._limits = {OTHER_STREAMS: OUTSIDE_LANES, OTHER_THREADS: HOST_LANES}
        self._lock = process_lock()
        self.edit_count = 0  # Goes up with every change

    def __len__(self) -> int:
        return len(self._lanes)

    @property
    def all(self) -> tuple[Lane, ...]:
        """Every lane."""
        return tuple(self._lanes)

    def add(self, lane: Lane) -> int:
        """Return the index of the lane that a session's stream has by its name, made on first use."""
        with self._lock:
            known = self._names.get(lane.name)
            return self._append(lane) if known is None else known

    def show(self, index: int, lane: Lane) -> None:
        """Let the trace show a lane like this from now on."""
        with self._lock:
            self._lanes[index] = lane
            self.edit_count += 1

    def add_outside(self, context: int, stream: int, facts: StreamFacts) -> int:
        """Return the index of a lane for a stream that no session made."""
        # Names of the session's own streams have no space: the two never meet.
        name = facts.name if " " in facts.name else f"stream {facts.name}"
        lane = Lane(
            name=name,
            device=facts.device,
            context=context,
            stream=stream,
            sm_count=max(0, facts.sm_count),
            priority=facts.priority,
            is_blocking=facts.is_blocking,
            outside=True,
        )
        return self._add_bounded(lane, OTHER_STREAMS, lambda: replace(lane, context=0, stream=0, sm_count=0))

    def add_known(self, lane: Lane) -> int:
        """Return the index of a lane for a stream of another session of the process, which is called as it is there."""
        return self._add_bounded(replace(lane, outside=True), OTHER_STREAMS, lambda: replace(lane, context=0, stream=0))

    def add_host(self, thread: int, name: str) -> int:
        """Return the index of a lane for a thread of the host."""
        lane = Lane(name=f"host: {name}", stream=thread, kind=LaneKind.HOST)
        return self._add_bounded(lane, OTHER_THREADS, lambda: replace(lane, stream=0))

    def _add_bounded(self, lane: Lane, shared: str, make_shared: Callable[[], Lane]) -> int:
        with self._lock:
            if self._limits[shared] > 1:
                self._limits[shared] -= 1
                return self._append(replace(lane, name=self._free_name(lane.name)))
            known = self._names.get(shared)
            return self._append(replace(make_shared(), name=shared)) if known is None else known

    def _free_name(self, name: str) -> str:
        taken = {*self._names, OTHER_STREAMS, OTHER_THREADS}
        return name if name not in taken else next(free for n in count(2) if (free := f"{name} ({n})") not in taken)

    def _append(self, lane: Lane) -> int:
        index = len(self._lanes)
        self._lanes.append(lane)
        self._names[lane.name] = index
        self.edit_count += 1
        return index


THREAD_LIMIT = 4_096  # Different threads told apart in one session
KNOWN_THREADS = 4_096  # Threads whose names are remembered when they have ended; the newest count
_ALWAYS_NS = -(2**62)


class Threads:
    """Numbers and lanes for threads. Of two of one name, the second is "worker (2)"; one that has ended keeps its last name.

    The system gives the number of a thread that has ended to another one, so an ident has a name from a time on.
    """

    def __init__(self, lanes: LaneTable, limit: int = THREAD_LIMIT) -> None:
        self._lanes = lanes
        self._limit = limit
        self._texts: CodeTable[str] = CodeTable(limit, OTHER_NAMES)
        self._codes: dict[tuple[int, str], int] = {}
        self._idents: dict[int, int] = {}  # by code
        self._next: defaultdict[str, count[int]] = defaultdict(lambda: count(2))
        self._known: dict[int, list[tuple[int, str]]] = {}
        """By ident: since when, by the host's clock, it has had which name; an empty one from when its thread had ended."""
        self._known_count = 0
        self._lane_of: dict[int, int] = {}  # by code
        self._lock = process_lock()

    @property
    def texts(self) -> tuple[str, ...]:
        """Every thread's text, by its number."""
        return self._texts.all

    def __len__(self) -> int:
        return len(self._texts)

    def code(self, ident: int, name: str) -> int:
        """Return the number of the thread that has this name; its ident may be another thread's, of another name, later."""
        known = self._codes.get((ident, name))
        if known is not None:
            return known
        with self._lock:
            if len(self._codes) >= self._limit:
                return self._texts.code(OTHER_NAMES)
            taken = self._texts.all
            text = name if name not in taken else next(t for n in self._next[name] if (t := f"{name} ({n})") not in taken)
            code = self._codes.setdefault((ident, name), self._texts.code(text))
            self._idents.setdefault(code, ident)
            return code

    def note(self, ident: int, name: str, since_host_ns: int) -> None:
        """Take that a thread of this number and name has begun to use the session."""
        with self._lock:
            spells = self._known.get(ident)
            if spells is None:
                self._known[ident] = [(_ALWAYS_NS, name)]  # in one step: an interrupt leaves no empty list
            elif spells[-1][1] == name:
                return
            else:
                spells.append((since_host_ns, name))
            self._known_count += 1
            self._forget_oldest()

    def look(self, host_time_ns: Callable[[], int]) -> None:
        """Learn the names of the threads that live, and which have ended."""
        alive = {one.ident & 0xFFFF_FFFF: cut_text(one.name) for one in threading.enumerate() if one.ident is not None}
        now_host_ns = host_time_ns()  # Behind the look, so that all that an ended thread has done is before
        with self._lock:
            for ident in [ident for ident, spells in self._known.items() if spells[-1][1] and ident not in alive]:
                self.note(ident, "", now_host_ns + 1)  # A simulated clock may stand at what it did last
            for ident, name in alive.items():
                self.note(ident, name, now_host_ns)

    def codes(self, thread: Int64Array, at_host_ns: Int64Array) -> Int64Array:
        """Return the code of each thread, as it was called at these times."""
        found = np.empty(len(thread), np.int64)
        idents, place = distinct(thread)
        for number, ident in enumerate(idents.tolist()):
            rows = np.flatnonzero(place == number)
            since_ns, names = self._spells(ident)
            spell = np.searchsorted(since_ns, at_host_ns[rows], side="right") - 1
            used, own = distinct(spell)
            found[rows] = np.array([self.code(ident, names[one]) for one in used.tolist()], np.int64)[own]
        return found

    def lanes(self, codes: Int64Array) -> Int64Array:
        """Return the index of the lane of each thread, by its code; made on first use."""
        used, place = distinct(codes)
        return np.array([self._lane(code) for code in used.tolist()], np.int64)[place]

    def _spells(self, ident: int) -> tuple[Int64Array, list[str]]:
        """Return since when a number has had which name."""
        with self._lock:
            spells = self._known.get(ident) or [(_ALWAYS_NS, "")]
            return np.array([since_ns for since_ns, _ in spells], np.int64), [name or f"thread {ident}" for _, name in spells]

    def _forget_oldest(self) -> None:
        while self._known_count > KNOWN_THREADS:
            oldest = next(iter(self._known))
            self._known_count -= len(self._known.pop(oldest))

    def _lane(self, code: int) -> int:
        if code not in self._lane_of:
            self._lane_of[code] = self._lanes.add_host(self._idents.get(code, 0), self.texts[code])
        return self._lane_of[code]
