"""The cells of a notebook as they ran, and as a graph: streams and times, what they read of each other, what is out of date."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from operator import itemgetter
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from gpustreamlab._util.arrays import is_array
from gpustreamlab.analysis._busy import union_edges
from gpustreamlab.analysis._report import Report, Reported, ReportTable, more_row, simulated_notes
from gpustreamlab.analysis._scale import count_text, format_ns
from gpustreamlab.draw import picture_html
from gpustreamlab.model import EDGE_KINDS, SPAN_KINDS, Edges, Marker, Trace
from gpustreamlab.notebook.auto import AutoCell, CellStreams, CellText, read_cell
from gpustreamlab.notebook.cells import awaits_at_top_level
from gpustreamlab.programs._calls import globals_of
from gpustreamlab.programs._source import short_text
from gpustreamlab.typing import CaptureTier, EdgeKind, MarkerKind, SpanKind

__all__ = ["CellGraph", "CellLog", "CellNode", "CellRecord", "make_cell_graph"]

KEPT_CELLS = 10_000  # How many runs of cells are kept; as many as there are marks on a timeline
_OUTPUT = re.compile(r"_(\d+)")


@dataclass(slots=True, kw_only=True)
class CellRecord:
    """One run of a cell."""

    number: int  # Its number, as in ``In [3]``
    key: str  # The same for all runs of one cell: its id where the front end gives one, else its text
    text: str  # Its source
    reads: dict[int, frozenset[str]] = field(default_factory=dict)
    """Variables that it read of earlier cells, by the number of the cell that bound them."""
    writes: frozenset[str] = frozenset()  # Variables that it bound, or into which it stored
    waits: frozenset[int] = frozenset()  # Numbers of the cells for whose ends its streams were made to wait
    barrier: str = ""  # What it does of which nothing can be known; empty where all is
    is_failed: bool = False  # Whether it ended in an exception


class CellLog:
    """Records the cells that a shell runs, and runs them on streams where that was asked for."""

    def __init__(self, shell: Any, find_sessions: Callable[[], Sequence[Any]]) -> None:
        self._shell = shell
        self._find_sessions = find_sessions
        self._since: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """The number of the first cell that each session was open for."""
        self.cells: list[CellRecord] = []  # The runs, in their order
        self.auto: CellStreams | None = None  # What chooses streams for cells; None where they run as they are
        self._depth = 0
        self._running: CellRecord | None = None
        self._auto_cell: AutoCell | None = None
        self._is_awaiting = False
        self._writer: dict[str, int] = {}  # The number of the cell that bound each variable last
        self._number_of: dict[int, int] = {}  # Numbers of cells by their turns

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


LISTED_CELLS = 60  # How many cells the table has
LISTED_NOTES = 10  # How many cells are told of that are out of date, and of that do something unknown
READS_LENGTH = 18  # How long the text may be of what a cell reads
_WORK = [SPAN_KINDS.index(kind) for kind in (SpanKind.KERNEL, SpanKind.COPY, SpanKind.FILL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellNode:
    """A cell as it ran last."""

    number: int  # Its number, as in ``In [3]``
    text: str  # Its source
    streams: tuple[str, ...]  # Streams on which its work ran, or for which it is enqueued
    start_ns: int  # When its work began, on the trace's clock; behind all that has ended where none has; -1 where it has none
    end_ns: int  # When its work ended
    busy_ns: int  # For how long any of its work ran on the device
    reads: Mapping[int, frozenset[str]]  # Variables that it read of earlier cells, by the number of that cell's last run
    waits: frozenset[int]  # Numbers of the cells for whose ends its streams were made to wait
    is_critical: bool  # Whether it is of the longest chain of cells that read each other or wait
    outdated: str  # Why its results are out of date; empty where they are not
    barrier: str  # What it does of which nothing can be known; empty where all is
    is_failed: bool  # Whether it ended in an exception
    is_running: bool  # Whether work of it had not ended yet: its times are those of what had, or of its launch


class CellGraph(Reported):
    """The cells that a notebook ran, each as it ran last, and what they read of each other."""

    _columns: ClassVar = ()

    def __init__(self, cells: Sequence[CellNode], critical_ns: int, trace: Trace, notes: Sequence[str]) -> None:
        self.cells = tuple(cells)  # The cells, in the order of their numbers
        self.critical_ns = critical_ns  # How long the longest chain of cells kept the device busy, in ns
        self.trace = trace
        """The cells whose work has ended as spans of their streams, and what they need of other streams as edges."""
        self._notes = tuple(notes)

    def __len__(self) -> int:
        return len(self.cells)

    def _line(self) -> str:
        if not self.cells:
            return "no cell has run since a session was started"
        streams = {name for cell in self.cells for name in cell.streams}
        outdated = [f"In [{cell.number}]" for cell in self.cells if cell.outdated]
        parts = [f"{count_text(len(self.cells), 'cell')} on {count_text(len(streams), 'stream')}"]
        chain = [f"In [{cell.number}]" for cell in self.cells if cell.is_critical]
        if chain:
            parts.append(f"critical path {' > '.join(chain[-6:])}, {format_ns(self.critical_ns)} of device time")
        running = [f"In [{cell.number}]" for cell in self.cells if cell.is_running]
        parts += [f"running: {', '.join(running[-6:])}"] if running else []
        parts.append(f"out of date: {', '.join(outdated)}" if outdated else "none is out of date")
        return "; ".join(parts)

    def _report(self) -> Report:
        rows = [["cell", "", "stream", "time", "reads", "waits for", "state"]]
        rows += [_row(cell) for cell in self.cells[:LISTED_CELLS]]
        rows += more_row(len(self.cells) - LISTED_CELLS, 7, "more")
        table = ReportTable(caption="Cells, as they ran last", rows=rows, names=(1,))
        return Report(title="Cells:", line=self._line(), tables=(table,), notes=self.notes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is out of date and why, what could not be known, and what the figures mean."""
        outdated = [f"In [{cell.number}] is out of date: {cell.outdated}." for cell in self.cells if cell.outdated]
        unknown = [
            f"In [{cell.number}] {cell.barrier}: what it reads and changes is not known." for cell in self.cells if cell.barrier
        ]
        notes = []
        for told in (outdated, unknown):
            notes += told[:LISTED_NOTES]
            notes += [f"So it is with {len(told) - LISTED_NOTES} more cells."] if len(told) > LISTED_NOTES else []
        notes.append(
            "Time: for how long any work of the cell ran on the device. What a cell reads is told by the names of variables."
        )
        return (*notes, *self._notes)

    def _repr_html_(self) -> str:
        table = super()._repr_html_()
        if not len(self.trace):
            return table
        return f"{picture_html(self.trace)}<details><summary>{escape(self._line())}</summary>{table}</details>"


def _row(cell: CellNode) -> list[str]:
    return [
        f"In [{cell.number}]",
        short_text(cell.text.strip(), 40),
        ", ".join(cell.streams) or "host",
        format_ns(cell.busy_ns) if cell.start_ns >= 0 and (cell.busy_ns or not cell.is_running) else "",
        _reads_text(cell.reads),
        ", ".join(f"In [{number}]" for number in sorted(cell.waits)) if not cell.barrier else "all",
        _state(cell),
    ]


def _reads_text(reads: Mapping[int, frozenset[str]]) -> str:
    """Write which cells are read, with the variables as far as there is room: never those of one cell beside another's."""
    cells = [(f"In [{number}]", f": {_names(reads[number])}") for number in sorted(reads)]
    for named in range(len(cells), -1, -1):
        text = "; ".join(f"{cell}{names if place < named else ''}" for place, (cell, names) in enumerate(cells))
        if len(text) <= READS_LENGTH:
            return text
    return f"{cells[0][0]}; {len(cells) - 1} more"


def _state(cell: CellNode) -> str:
    states = (("out of date", bool(cell.outdated)), ("failed", cell.is_failed), ("running", cell.is_running))
    told = ", ".join(state for state, has in states if has)
    return told or ("critical" if cell.is_critical else "")  # the line above the table has the whole path


def _names(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def make_cell_graph(records: Sequence[CellRecord], trace: Trace, running: Sequence[tuple[str, int]] = ()) -> CellGraph:
    """Return the graph of the cells that ran."""
    newest = {record.key: record for record in records}
    by_number = {record.number: record for record in records}
    shown = sorted(newest.values(), key=lambda record: record.number)
    works = _work_of_cells(trace, running)
    outdated: dict[int, str] = {}
    for record in shown:
        why = _why_outdated(record, by_number, newest, outdated)
        if why:
            outdated[record.number] = why
    reads = {record.number: _last_runs(record.reads, by_number, newest) for record in shown}
    waits = {
        record.number: frozenset(_last_runs(dict.fromkeys(record.waits, frozenset()), by_number, newest)) for record in shown
    }
    busy = {record.number: works[record.number].busy_ns if record.number in works else 0 for record in shown}
    critical, critical_ns = _longest_chain({number: {*reads[number], *waits[number]} for number in reads}, busy)
    cells = []
    for record in shown:
        work = works.get(record.number)
        cells.append(
            CellNode(
                number=record.number,
                text=record.text,
                streams=work.streams if work is not None else (),
                start_ns=-1 if work is None else work.start_ns,
                end_ns=-1 if work is None else work.end_ns,
                busy_ns=busy[record.number],
                reads=reads[record.number],
                waits=waits[record.number],
                is_critical=record.number in critical,
                outdated=outdated.get(record.number, ""),
                barrier=record.barrier,
                is_failed=record.is_failed,
                is_running=work is not None and work.is_running,
            )
        )
    pending = trace.metadata.pending_spans
    notes = [f"{count_text(pending, 'range')} did not end yet; lab.synchronize() waits for all."] if pending else []
    return CellGraph(cells, critical_ns, _cell_trace(cells, trace), [*notes, *simulated_notes(trace.metadata)])


def _cell_trace(cells: Sequence[CellNode], trace: Trace) -> Trace:
    """Return cells as a trace: a span on each stream that they worked on."""
    lanes = {lane.name: lane for lane in trace.lanes}
    done = sorted((cell for cell in cells if cell.streams and not cell.is_running), key=lambda cell: cell.start_ns)
    used = {name: code for code, name in enumerate(dict.fromkeys(name for cell in done for name in cell.streams))}
    rows = [(cell, name) for cell in done for name in cell.streams]
    first = {cell.number: row for row, (cell, _) in reversed(list(enumerate(rows)))}
    edges = [
        (first[other], first[cell.number])
        for cell in done
        for other in sorted({*cell.reads, *cell.waits})
        if other in first and other < cell.number and rows[first[other]][1] not in cell.streams
    ]
    start_ns, end_ns = (np.array([getattr(cell, name) for cell, _ in rows], np.int64) for name in ("start_ns", "end_ns"))
    none = np.full(len(rows), -1)
    source, target = np.array(edges, np.int64).reshape(-1, 2).T
    return type(trace)(
        start_ns=start_ns,
        end_ns=end_ns,
        queued_ns=start_ns,
        lane=np.array([used[name] for _, name in rows], np.int32),
        name=np.array([done.index(cell) for cell, _ in rows], np.int32),
        kind=np.full(len(rows), SPAN_KINDS.index(SpanKind.RANGE), np.int8),
        parent=none,
        thread=none.astype(np.int32),
        names=tuple(_span_name(cell) for cell in done),
        lanes=tuple(lanes[name] for name in used),
        edges=Edges(source=source, target=target, kind=np.full(len(edges), EDGE_KINDS.index(EdgeKind.WAIT), np.int8)),
        metadata=replace(
            trace.metadata,
            title="Cells, as they ran last",
            tier=CaptureTier.RANGES,
            capture_windows=(),
            capture_note="",
            pending_spans=sum(cell.is_running for cell in cells),
        ),
    )


def _span_name(cell: CellNode) -> str:
    marks = [mark for mark, has in ((", out of date", cell.outdated), (", critical", cell.is_critical)) if has]
    return f"In [{cell.number}]{''.join(marks)}: {short_text(cell.text.strip())}"


def _why_outdated(
    record: CellRecord, by_number: Mapping[int, CellRecord], newest: Mapping[str, CellRecord], outdated: Mapping[int, str]
) -> str:
    """Return why the results of a cell are out of date; empty where no cell that it has read has run since."""
    for number in sorted(record.reads):
        writer = by_number.get(number)
        if writer is None or writer.key == record.key:
            continue
        last = newest[writer.key]
        if last.number > record.number:
            return f"In [{number}] was run again since, as In [{last.number}]"
        if last.number in outdated:
            return f"it has read {_names(record.reads[number])} of In [{last.number}], which is out of date"
    return ""


def _last_runs(
    reads: Mapping[int, frozenset[str]], by_number: Mapping[int, CellRecord], newest: Mapping[str, CellRecord]
) -> dict[int, frozenset[str]]:
    """Return what is read by the last run of each cell."""
    found: dict[int, frozenset[str]] = {}
    for number, names in reads.items():
        if number in by_number:
            last = newest[by_number[number].key].number
            found[last] = found.get(last, frozenset()) | names
    return found


def _longest_chain(behind: Mapping[int, set[int]], busy_ns: Mapping[int, int]) -> tuple[set[int], int]:
    """Return the cells of the chain that kept the device busy for longest, and for how long."""
    until: dict[int, int] = {}
    before: dict[int, int] = {}
    for number in sorted(behind):  # a cell that was run again may come behind its reader: that edge is no order any more
        earlier = [other for other in behind[number] if other in until]
        if earlier:
            before[number] = max(earlier, key=until.__getitem__)
        until[number] = busy_ns[number] + (until[before[number]] if earlier else 0)
    if not any(until.values()):
        return set(), 0
    at: int | None = max(until, key=until.__getitem__)
    total_ns = until[at] if at is not None else 0
    chain = set[int]()
    while at is not None:
        chain.add(at)
        at = before.get(at)
    return {number for number in chain if busy_ns[number]}, total_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _CellWork:
    start_ns: int
    end_ns: int
    busy_ns: int
    streams: tuple[str, ...]
    is_running: bool = False


def _work_of_cells(trace: Trace, running: Sequence[tuple[str, int]]) -> dict[int, _CellWork]:
    """Return what cells took on the device: their kernels, copies and fills where these were captured, else their ranges.

    Cells with ranges that have not ended are running; where nothing of them has ended, they stand behind all that has.
    """
    marks = [mark for mark in trace.markers if mark.kind is MarkerKind.CELL]
    is_work = np.isin(trace.kind, _WORK)
    if not is_work.any():
        is_work = trace.kind == SPAN_KINDS.index(SpanKind.RANGE)
    rows = np.flatnonzero(is_work & (trace.end_ns > trace.start_ns))
    times_ns = np.array([mark.time_ns for mark in marks], np.int64)
    place = np.searchsorted(times_ns, trace.queued_ns[rows], side="right") - 1
    order = np.argsort(place, kind="stable")
    firsts = np.searchsorted(place[order], np.arange(len(marks) + 1))
    found = {}
    for at, mark in enumerate(marks):
        own = rows[order[firsts[at] : firsts[at + 1]]]
        if len(own):
            edges = union_edges(trace.start_ns[own], trace.end_ns[own])
            lanes, counts = np.unique(trace.lane[own], return_counts=True)
            names = [trace.lanes[lane].name for lane in lanes[np.argsort(-counts, kind="stable")].tolist()]
            found[_number(mark)] = _CellWork(
                start_ns=int(trace.start_ns[own].min()),
                end_ns=int(trace.end_ns[own].max()),
                busy_ns=int((edges[1::2] - edges[::2]).sum()),
                streams=tuple(names),
            )
    launched = sorted(running, key=itemgetter(1))
    last_ns = max((work.end_ns for work in found.values()), default=launched[0][1] if launched else 0)
    for turn, (name, opened_ns) in enumerate(launched, start=1):
        at = int(np.searchsorted(times_ns, opened_ns, side="right")) - 1
        if at < 0:
            continue
        number = _number(marks[at])
        # One ns apart: they keep the order of their launches, and no time is said to pass.
        work = found.get(number) or _CellWork(start_ns=last_ns + turn, end_ns=last_ns + turn, busy_ns=0, streams=())
        streams = tuple(dict.fromkeys([*work.streams, name]))
        found[number] = replace(work, streams=streams, is_running=True)
    return found


def _number(mark: Marker) -> int:
    return int(mark.text.removeprefix("In [").rstrip("]"))
