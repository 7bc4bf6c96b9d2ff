"""The cells of a notebook as they ran: which variables they read and bound, and what they waited for."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from gpustreamlab._util.arrays import is_array
from gpustreamlab.notebook.auto import AutoCell, CellStreams, CellText, read_cell
from gpustreamlab.notebook.cells import awaits_at_top_level
from gpustreamlab.programs._calls import globals_of

__all__ = ["CellLog", "CellRecord"]

KEPT_CELLS = 10_000
"""How many runs of cells are kept; as many as there are marks on a timeline."""
_OUTPUT = re.compile(r"_(\d+)")


@dataclass(slots=True, kw_only=True)
class CellRecord:
    """One run of a cell."""

    number: int
    """Its number, as in ``In [3]``."""
    key: str
    """The same for all runs of one cell: its id where the front end gives one, else its text."""
    text: str
    """Its source."""
    reads: dict[int, frozenset[str]] = field(default_factory=dict)
    """Variables that it read of earlier cells, by the number of the cell that bound them."""
    writes: frozenset[str] = frozenset()
    """Variables that it bound, or into which it stored."""
    waits: frozenset[int] = frozenset()
    """Numbers of the cells for whose ends its streams were made to wait."""
    barrier: str = ""
    """What it does of which nothing can be known; empty where all is."""
    is_failed: bool = False
    """Whether it ended in an exception."""


class CellLog:
    """Records the cells that a shell runs, and runs them on streams where that was asked for."""

    def __init__(self, shell: Any, find_sessions: Callable[[], Sequence[Any]]) -> None:
        self._shell = shell
        self._find_sessions = find_sessions
        self._since: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """The number of the first cell that each session was open for."""
        self.cells: list[CellRecord] = []
        """The runs, in their order."""
        self.auto: CellStreams | None = None
        """What chooses streams for cells; None where they run as they are."""
        self._depth = 0
        self._running: CellRecord | None = None
        self._auto_cell: AutoCell | None = None
        self._is_awaiting = False
        self._writer: dict[str, int] = {}
        """The number of the cell that bound each variable last."""
        self._number_of: dict[int, int] = {}
        """Numbers of cells by their turns."""

    def register(self) -> None:
        """Be called by the shell from now on."""
        self._shell.events.register("pre_run_cell", self._begin)
        self._shell.events.register("post_run_cell", self._end)

    def cells_since(self, session: Any) -> list[CellRecord]:
        """Return the runs of cells since a session was made: those before it are of others."""
        since = self._since.get(session)
        return [] if since is None else [record for record in self.cells if record.number >= since]

    def start_auto(self, session: Any, count: int) -> None:
        """Choose a stream for each cell from the next one on."""
        started = CellStreams(session, self._shell.user_ns, count)
        self.stop_auto()
        self.auto = started

    def stop_auto(self) -> None:
        """Let cells run as they are again."""
        if self.auto is not None:
            self.auto.wait_on_host()  # later cells have no stream selected, and wait for none
            self.auto.close()
        self.auto = self._auto_cell = None
        self._number_of.clear()

    def order(self, session: Any, name: str) -> None:
        """Let a stream that a cell's magic chose wait for what the cell has to be behind."""
        if self.auto is not None and self._auto_cell is not None and self.auto.session is session:
            self.auto.order(self._auto_cell, name)

    def _begin(self, info: Any) -> None:
        self._depth += 1
        if self._depth > 1 or not info.store_history:
            return  # one that another cell runs is of that cell; what tools run on the side is none
        number = len(self._shell.history_manager.input_hist_parsed)
        sessions = self._find_sessions()
        for session in sessions:
            self._since.setdefault(session, number)
        if not sessions:
            return
        try:
            source = self._shell.transform_cell(info.raw_cell)
            text = read_cell(source)
        except (SyntaxError, ValueError):
            return  # it does not run
        if text.is_idle:
            return
        record = CellRecord(number=number, key=getattr(info, "cell_id", None) or info.raw_cell.strip(), text=info.raw_cell)
        record.reads = self._read(text)
        record.writes = frozenset(text.writes)
        record.barrier = text.unknown
        self._running = record
        if self.auto is not None:
            self._place(record, text, is_awaiting=awaits_at_top_level(self._shell, info.raw_cell))

    def _place(self, record: CellRecord, text: CellText, *, is_awaiting: bool) -> None:
        """Put a cell on the stream that is chosen for it."""
        auto = self.auto
        assert auto is not None  # noqa: S101 - for the type checker
        if auto.session.state != "open":
            self.stop_auto()
            return
        if is_awaiting:  # other tasks run between its steps: a selection would be theirs, too
            self._is_awaiting = True
            auto.wait_on_host()
            return
        try:
            cell = self._auto_cell = auto.begin(text, f"In [{record.number}]")
        except Exception:
            auto.wait_on_host()  # it runs with no stream selected
            raise
        self._number_of[cell.turn] = record.number
        self._number_of.pop(cell.turn - KEPT_CELLS, None)
        record.barrier = cell.found.unknown

    def _end(self, result: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if self._depth:
            return
        record, self._running = self._running, None
        cell, self._auto_cell = self._auto_cell, None
        error = getattr(result, "error_in_exec", None) or getattr(result, "error_before_exec", None)
        try:
            if self.auto is not None and cell is not None:
                self.auto.end(cell, error)
            elif self.auto is not None and self._is_awaiting:
                self.auto.wait_on_host()
        finally:
            self._is_awaiting = False
            if record is not None:
                if cell is not None:
                    known = self._number_of
                    record.waits = frozenset(known[mark.turn] for mark in cell.waits if mark.turn in known)
                record.is_failed = error is not None
                self.cells.append(record)
                del self.cells[:-KEPT_CELLS]
                self._writer |= dict.fromkeys(record.writes, record.number)

    def _read(self, text: CellText) -> dict[int, frozenset[str]]:
        """Return which variables a cell reads, by the cells that bound them."""
        values: Mapping[str, object] = self._shell.user_ns
        names = set(text.reads)
        for name in text.reads:
            value = values.get(name)
            if isinstance(value, types.FunctionType):
                names |= globals_of(value, values)
        found: dict[int, set[str]] = {}
        for name in names & values.keys():
            output = _OUTPUT.fullmatch(name)
            writer = int(output[1]) if output else self._writer.get(name)
            if writer is not None and not _is_tool(values[name]):
                found.setdefault(writer, set()).add(name)
        return {number: frozenset(found[number]) for number in sorted(found)}


def _is_tool(value: object) -> bool:
    """Tell whether a value is a module, or one of this package's objects: what a cell works with, not on."""
    return isinstance(value, types.ModuleType) or (type(value).__module__.startswith("gpustreamlab.") and not is_array(value))
