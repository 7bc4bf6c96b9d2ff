"""Each cell on a stream that is chosen for it: cells that share nothing run side by side, others wait on the device.

What a cell shares with earlier ones is found by the memory that its names reach, before it runs and when it has run. An array
counts as read and written, unless the cell's text can only read it. A cell with something that cannot be known waits for all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpustreamlab._util.arrays import find_owner
from gpustreamlab.errors import OptionError, SelectionError
from gpustreamlab.notebook._cell_text import STEERS, CellText
from gpustreamlab.notebook._reach import Reach, is_array_module, is_plain_array

__all__ = ["MOST_STREAMS", "AutoCell", "CellStreams"]

MOST_STREAMS = 32
"""How many streams cells may be spread over."""
MOST_PIECES = 10_000
"""Beyond how many pieces of memory a cell waits for all, so that they can be forgotten."""
KEPT_EVENTS = 64
"""How many cells' ends are kept for each stream; who waits for an earlier one waits for the oldest of these."""
_PREFIX = "auto-"


class Mark(NamedTuple):
    """The end of a cell's work on a stream."""

    stream: str
    """The stream."""
    turn: int
    """Which cell it was, counted from the first."""


@dataclass(slots=True)
class _Uses:
    """Which cells used a piece of memory last."""

    written: frozenset[Mark] = frozenset()
    read: set[Mark] = field(default_factory=set)


class _Order:
    """What a cell has to be behind: reads behind writes, and writes behind both, of the same memory."""

    def __init__(self) -> None:
        self._uses: dict[Hashable, _Uses] = {}
        self._all: dict[str, Mark] = {}
        self._base: frozenset[Mark] = frozenset()
        """The last cell that waited for all."""

    @property
    def is_full(self) -> bool:
        return len(self._uses) > MOST_PIECES

    def before(self, pieces: Mapping[Hashable, bool], *, is_barrier: bool) -> set[Mark]:
        """Return which cells' ends a cell has to wait for; `pieces` tells of each whether it is written."""
        if is_barrier:
            return set(self._all.values())
        found = set(self._base)
        for key, is_written in pieces.items():
            uses = self._uses.get(key)
            if uses is not None:
                found |= uses.written
                found |= uses.read if is_written else set()
        return found

    def note(
        self, pieces: Mapping[Hashable, bool], marks: Collection[Mark], *, waited: Collection[Hashable], is_barrier: bool
    ) -> None:
        """Note what a cell has used, and where its work ends; `waited` has those for whose earlier uses it has waited."""
        self._all |= {mark.stream: mark for mark in marks}
        if is_barrier:
            self._uses.clear()
            self._base = frozenset(self._all.values())
        for key, is_written in pieces.items():
            uses = self._uses.setdefault(key, _Uses())
            if is_written and key in waited:
                uses.written, uses.read = frozenset(marks), set()
            elif is_written:
                uses.written |= frozenset(marks)
            else:
                uses.read.update(marks)


@dataclass(slots=True, kw_only=True)
class AutoCell:
    """A cell that runs on a stream that was chosen for it."""

    text: CellText
    """What its text tells."""
    reach: Reach
    """What its names reach in front of it."""
    pieces: dict[Hashable, bool]
    """The memory that it uses, and whether it may change it."""
    barrier: str
    """Why it waits for all; empty where what it uses is known."""
    marks: set[Mark]
    """What it is behind."""
    turn: int
    """Which cell it is, counted from the first."""
    main: str = ""
    """The stream that was chosen for it; empty for a cell that selects its own."""
    streams: set[str] = field(default_factory=set)
    """Where its work goes."""
    waits: set[Mark] = field(default_factory=set)
    """What its streams were made to wait for."""
    selection: Any = None
    """What selects its stream; None for a cell that selects its own."""


class CellStreams:
    """The streams of one session's cells.

    Parameters
    ----------
    session
        The session.
    values
        The notebook's variables.
    count
        How many streams cells are spread over, from 1 to `MOST_STREAMS`.

    Raises
    ------
    OptionError
        If it is another number.
    """

    def __init__(self, session: Any, values: dict[str, Any], count: int) -> None:
        if not 1 <= count <= MOST_STREAMS:
            raise OptionError(f"--streams is {count}; cells are spread over 1 to {MOST_STREAMS} streams. Use --streams 4.")
        self.session = session
        """The session."""
        self.count = count
        """How many streams cells are spread over."""
        self._values = values
        self._pool = [f"{_PREFIX}{number}" for number in range(1, count + 1)]
        self._order = _Order()
        self._events: dict[str, deque[tuple[int, Any]]] = {}
        self._waited: dict[tuple[str, str], int] = {}
        """Up to which turn of another stream one has waited."""
        self._turn = 0
        self._home: dict[Hashable, str] = {}
        """The stream of the cell that first had a piece of memory."""
        session.synchronize()  # what ran before has no event

    def begin(self, text: CellText, label: str) -> AutoCell:
        """Choose a cell's stream, let it wait for the cells whose memory this one uses, and select it."""
        self._turn += 1
        reach, pieces = self._look(text, text.reads)
        barrier = text.unknown or reach.unknown or ("is behind more arrays than are kept apart" if self._order.is_full else "")
        marks = self._order.before(pieces, is_barrier=bool(barrier))
        cell = AutoCell(text=text, reach=reach, pieces=pieces, barrier=barrier, marks=marks, turn=self._turn)
        if not text.own_stream:  # else its magic calls `order`
            cell.main = self._choose(marks)
            self.order(cell, cell.main)
        steered = self._steered(cell)
        for other in steered:
            self.order(cell, other)
        if text.own_stream:
            return cell
        stream = self.session.stream(cell.main)
        # A range of a cell that chooses its streams itself would be empty, most often.
        cell.selection = self.session.select(stream) if steered else self.session.on(stream, label)
        cell.selection.__enter__()
        return cell

    def order(self, cell: AutoCell, name: str) -> None:
        """Let a stream wait for the cells that a cell has to be behind."""
        cell.streams.add(name)
        stream = self.session.stream(name)
        last: dict[str, Mark] = {}
        for mark in sorted(cell.marks):
            last[mark.stream] = mark
        for other, mark in last.items():
            if other == name or self._waited.get((name, other), 0) >= mark.turn:
                continue
            turn, event = self._event(mark)
            stream.wait(event)
            cell.waits.add(mark)
            self._waited[name, other] = turn

    def end(self, cell: AutoCell, error: BaseException | None) -> None:
        """Put back what was selected, and note what the cell used and where its work ends."""
        if cell.selection is not None:
            self._leave(cell.selection, error)
        if self.session.state != "open" or not cell.streams:
            return
        is_left = error is not None and cell.text.own_stream  # a program that fails does not join its streams
        if cell.barrier or is_left or (cell.text.steers and cell.reach.has_session):
            cell.streams |= self._others()
        waited = {key for key, is_written in cell.pieces.items() if is_written}
        reach, pieces = self._look(cell.text, cell.text.reads | cell.text.writes)
        for key, is_written in pieces.items():
            cell.pieces[key] = cell.pieces.get(key, True) or is_written
        self._hold(cell, {**reach.arrays, **cell.reach.arrays})
        marks = {Mark(name, cell.turn) for name in cell.streams if self._record(name, cell.turn)}
        self._order.note(cell.pieces, marks, waited=waited, is_barrier=bool(cell.barrier))

    def wait_on_host(self) -> None:
        """Wait for everything: in front of and behind a cell whose work has no stream that is known."""
        if self.session.state == "open":
            self.session.synchronize()
        self._order = _Order()

    def close(self) -> None:
        """Give the events back."""
        for events in self._events.values():
            for _, event in events:
                event.close()
        self._events.clear()

    def _look(self, text: CellText, names: Iterable[str]) -> tuple[Reach, dict[Hashable, bool]]:
        """Return what variables reach, and of each piece of memory whether it may be changed."""
        holds = all(name not in self._values or is_array_module(self._values[name]) for name in text.modules)
        reach = Reach(self._values)
        read: dict[Hashable, Any] = {}
        for name in names:
            value = self._values.get(name)
            if holds and name not in text.changes and is_plain_array(value):
                read[find_owner(value).key] = value
            else:
                reach.follow(value)
        reach.share(text.attributes | reach.attributes)
        pieces = {**dict.fromkeys(read, False), **dict.fromkeys(reach.arrays, True)}
        reach.arrays = {**read, **reach.arrays}
        return reach, pieces

    def _choose(self, marks: Iterable[Mark]) -> str:
        """Return the stream whose last cell is the latest that this one waits for, else a free one, else the oldest."""
        last = {name: events[-1][0] for name, events in self._events.items() if events}
        behind = [mark for mark in marks if mark.stream in self._pool and last.get(mark.stream) == mark.turn]
        if behind:
            return max(behind, key=lambda mark: mark.turn).stream
        for name in self._pool:
            if name not in last or self._events[name][-1][1].query():
                return name
        return min(self._pool, key=lambda name: last.get(name, 0))

    def _steered(self, cell: AutoCell) -> set[str]:
        """Return the streams that a cell may choose itself."""
        text, reach = cell.text, cell.reach
        steers = reach.has_session and (text.steers or bool(reach.attributes & STEERS))
        names = set(reach.streams) | (text.streams if reach.has_session else set())
        if steers or (cell.barrier and not names):
            names |= self._others()
        is_new = not names <= self.session.streams.keys()
        if is_new or (steers and "stream" in text.attributes | reach.attributes):
            # A stream that the cell makes cannot be told to wait yet.
            for mark in cell.marks:
                self._event(mark)[1].synchronize()
        text.steers |= steers
        return {name for name in names if name in self.session.streams}

    def _others(self) -> set[str]:
        """Return the session's streams but those that are chosen here."""
        return {name for name in self.session.streams if name not in self._pool}

    def _event(self, mark: Mark) -> tuple[int, Any]:
        """Return an event that is not before a cell's end, and which cell's it is."""
        events = self._events[mark.stream]
        return next((turn, event) for turn, event in events if turn >= mark.turn)

    def _record(self, name: str, turn: int) -> bool:
        stream = self.session.streams.get(name)
        if stream is None or stream.is_closed:
            return False
        events = self._events.setdefault(name, deque())
        if not events or events[-1][0] != turn:
            events.append((turn, stream._record_order()))  # noqa: SLF001 - an event without a time
        if len(events) > KEPT_EVENTS:
            events.popleft()[1].close()
        return True

    def _hold(self, cell: AutoCell, arrays: Mapping[Hashable, Any]) -> None:
        """Keep arrays that another cell's stream allocated until the work of this cell is done."""
        home = min(cell.streams)
        for name in cell.streams:
            foreign = [array for key, array in arrays.items() if array is not None and self._home.get(key, "") != name]
            stream = self.session.streams.get(name)
            if foreign and stream is not None:
                stream.hold(*foreign)
        for key in arrays.keys() - cell.reach.arrays.keys():
            self._home[key] = home if len(cell.streams) == 1 else ""
        if len(self._home) > MOST_PIECES:
            self._home.clear()

    @staticmethod
    def _leave(selection: Any, error: BaseException | None) -> None:
        with suppress(SelectionError):  # something that the cell has entered is still there; that is put back with it
            if error is None:
                selection.__exit__(None, None, None)
            else:
                selection.__exit__(type(error), error, error.__traceback__)
        selection.put_back()
