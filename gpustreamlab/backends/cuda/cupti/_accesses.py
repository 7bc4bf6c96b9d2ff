"""Which memory each launch, copy and fill touched, from the calls of the driver in their order.

A launch brings the words of its arguments that may be addresses. callbacks.c puts them into allocations, which are known from
their own calls, and learns of each place of a function's arguments whether it is an output. What it cannot know it leaves to
this module: names of functions, memory that was there before, graphs, and the order of work. Of one process, as the calls are;
all in here is done by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.backends._activity import (
    CERTAINTY_SHIFT,
    IS_HOST,
    NODE_SHIFT,
    SPIN_NAME,
    AccessBatch,
    Step,
    StepKind,
    StepTouch,
    take_buffer_number,
)
from gpustreamlab.backends.cuda.cupti._arguments import CallFlag, Role, Shape
from gpustreamlab.backends.cuda.cupti._blocks import CHANGE, KEPT_FUNCTIONS, BlockChange, Blocks, Cause, Stop, What
from gpustreamlab.backends.cuda.cupti._layouts import ACCESSED
from gpustreamlab.backends.cuda.cupti._records import FIELD, Records
from gpustreamlab.backends.cuda.cupti._work import demangle
from gpustreamlab.model import ACCESS_CERTAINTIES
from gpustreamlab.typing import AccessCertainty, BoolArray, Int64Array

KNOWN, LEARNED, UNKNOWN = (
    ACCESS_CERTAINTIES.index(one) << CERTAINTY_SHIFT
    for one in (AccessCertainty.KNOWN, AccessCertainty.LEARNED, AccessCertainty.UNKNOWN)
)
ACCESS_FIELDS = (FIELD, "buffer", "begin", "end", "flags")
"""The columns of an access, as those of a record; all are int64."""
KEPT_GRAPHS = 1_024
"""Graphs whose nodes are remembered; the newest count."""
_NON_BLOCKING, _OF_THREAD, _FAILED = map(int, (CallFlag.NON_BLOCKING, CallFlag.PER_THREAD, CallFlag.FAILED))
_LEGACY, _PER_THREAD = 1, 2
"""Handles of default streams."""
_HIDING = ("nccl", "nvshmem")
"""How functions begin that find what they write by pointers in device memory."""
_WRITES, _SURELY_WRITES = 1, 16
"""Bits of an access: that it may write; that this is known or learned, while steps are told or a graph is captured, which is
taken off here."""
_CERTAINTY = 3 << CERTAINTY_SHIFT
_FUNCTIONS = 1 << 16
_PASSED = 255
"""Stands for the role of a call that C steps over."""
_LONG = 32
"""Calls in a row that only work in one stream: of those behind them that are alike one is told as a step."""

_Row: TypeAlias = tuple[int, ...]
"""Of an access all but the call."""
_Call: TypeAlias = tuple[int, ...]
"""The fields of a call, in the order of `CALL`."""
_Event: TypeAlias = tuple[int, int, int, tuple[int, ...]]
"""The fields of an event, in the order of `EVENT`."""
# Names of enumerations are looked up each time, and steps are many.
_ROLES = tuple(Role)
_LAUNCH, _MADE, _GONE = Role.LAUNCH, StepKind.MADE, StepKind.GONE
_KINDS = {int(What.MADE): _MADE, int(What.GONE): _GONE}
_BY_CALL, _WAITED, _ASKED = int(Cause.CALL), int(What.WAITED), BlockChange(0, 0, 0, 0)


class _Graph:
    """Work that was captured, in its order."""

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.is_known = True  # Whether it is known of each node what it accesses
        self.is_whole = True  # Whether it is known which nodes there are
        self._node_count = 0

    def add(self, rows: Iterable[_Row], *, is_node: bool) -> None:
        """Take the next node: numbers of nodes ascend in the order of capture."""
        self.is_whole &= is_node  # a graph within a graph, or a batch of copies
        self._node_count += 1
        new = [(buffer, begin, end, flags | self._node_count << NODE_SHIFT) for buffer, begin, end, flags in rows]
        self.rows += new
        self.is_known &= bool(new)

    @cached_property
    def table(self) -> Int64Array:
        """What its nodes access, without the call; shape (4, n)."""
        table = np.array(self.rows, np.int64).reshape(-1, 4).T
        table[3] &= ~_SURELY_WRITES
        return table

    @cached_property
    def touches(self) -> tuple[StepTouch, ...]:
        """What it does to memory, each once; what is written counts as written alone."""
        found = {row[:3]: touch for row in self.rows for touch in _touches([row])}
        found |= {row[:3]: touch for row in self.rows for touch in _touches([row]) if touch.is_write}
        return (*found.values(),)

    @cached_property
    def hides(self) -> bool:
        """Whether some node uses more memory than is known."""
        return _hides(self.rows)


def _hides(rows: Iterable[_Row]) -> bool:
    """Tell whether accesses are not all that there are: further memory has the number 0."""
    return any(not row[0] and row[3] & _WRITES for row in rows)


def _touches(rows: Iterable[_Row]) -> tuple[StepTouch, ...]:
    """Return accesses as steps have them: of an argument one byte."""
    return tuple(
        StepTouch(buffer, begin, end if flags & _CERTAINTY == KNOWN else begin + 1, bool(flags & _SURELY_WRITES))
        for buffer, begin, end, flags in rows
        if buffer
    )


class _Batch:
    """Calls that are read together, and how far they were told of."""

    def __init__(self, calls: NDArray[np.void], words: NDArray[np.uint64], shapes: Mapping[int, Shape]) -> None:
        self.calls, self._shapes = calls, shapes
        roles, self.roles, self.roles_in_capture = np.zeros((3, _FUNCTIONS), np.uint8)
        """The role of each function as C is told, which steps over what orders streams; in a capture only over waits."""
        numbers, given = [*shapes], np.array([shape.role for shape in shapes.values()], np.uint8)
        roles[numbers] = given
        self.roles[numbers] = np.where((given >= Role.RECORD) & (given <= Role.CLOSE_STREAM), _PASSED, given)
        self.roles_in_capture[numbers] = np.where((given >= Role.WAIT_STREAM) & (given <= Role.WAIT_ALL), _PASSED, given)
        self._roles = roles[calls["cbid"]]
        self.made_count = int(np.bincount(self._roles, minlength=len(Role))[[*_ALLOCATES]].sum())
        self.row_room = len(words) + len(calls)  # of a call each word, and one that says that there is more; of a fill one
        self.told = self.told_rows = 0
        self.parts: list[Int64Array] = []
        self.kept_rows = 0  # of those that C has written, how many are in the parts

    def role(self, at: int) -> Role:
        """Return the role of a call."""
        return Role(int(self._roles[at]))

    def until(
        self, end: int, rows: Int64Array, eventful: Iterable[int]
    ) -> Iterator[tuple[int, Role, Shape, _Call, list[_Row]]]:
        """Return the calls that were not told of and that say something, with their accesses, which are the rows.

        In a long stretch of work in one stream those that repeat an earlier one are left out, but for calls at which something
        became of memory.
        """
        some = slice(self.told, end)
        at = np.flatnonzero((self._roles[some] > 0) & (self.calls["flags"][some] & _FAILED == 0)) + self.told
        calls, roles = self.calls[at], self._roles[at]
        first = np.flatnonzero(np.diff(rows[0], prepend=-1))
        lengths = np.diff(first, append=rows.shape[1])
        order = np.argsort(calls["correlationId"], kind="stable")
        owners = order[np.searchsorted(calls["correlationId"], rows[0][first], sorter=order)]
        marks = _mix(calls[name].astype(np.uint64) for name in ("cbid", "flags", "stream", "object", "size"))
        if len(first):
            places = np.arange(rows.shape[1]) - np.repeat(first, lengths)
            marks[owners] += np.add.reduceat(_mix((*rows[1:].astype(np.uint64), places.astype(np.uint64))), first)
        is_kept = ~_repeats(marks, is_work=roles < Role.UNKNOWN_WORK, stream=calls["stream"]) | np.isin(at, [*eventful])
        counts = np.zeros(len(at), np.int64)
        counts[owners] = lengths
        accesses = zip(*rows[1:, np.repeat(is_kept[owners], lengths)].tolist(), strict=True)
        kept = (column[is_kept].tolist() for column in (at, roles, calls, counts))
        for place, role, call, count in zip(*kept, strict=True):
            yield place, _ROLES[role], self._shapes[call[4]], call, [*islice(accesses, count)]


def _mix(columns: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return one number for what stands beside each other in columns."""
    mixed = np.zeros(1, np.uint64)
    for column in columns:
        mixed = (mixed ^ column) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _repeats(marks: NDArray[np.uint64], *, is_work: BoolArray, stream: NDArray[np.uint64]) -> BoolArray:
    """Tell which calls do what an earlier one did in the same long stretch of work; all shapes are (n,)."""
    begins = ~is_work
    begins[1:] |= stream[1:] != stream[:-1]
    stretch = np.cumsum(begins)
    index = np.arange(len(marks))
    behind = index - np.maximum.accumulate(np.where(begins, index, 0))
    is_new = np.zeros(len(marks), bool)
    is_new[np.unique(marks ^ _mix((stretch.astype(np.uint64),)), return_index=True)[1]] = True
    repeats: BoolArray = is_work & ~is_new & (behind > _LONG)
    return repeats


class AccessReader:
    """Turns calls into accesses."""

    def __init__(
        self,
        *,
        name_of: Callable[[int], str],
        ask: Callable[[int], tuple[int, int, bool] | None],
        tell_memory: Callable[[int, int], object],
    ) -> None:
        self._name_of = name_of  # Returns the linker's name
        # Returns the first address, the size and whether it is the host's of the allocation that an address is in
        self._ask = ask
        self._tell_memory = tell_memory
        self._is_followed = False
        self.has_unseen_pool = False
        """Whether a library gives out memory, in pieces of 2 MiB of which nobody tells what it gave out."""
        self.steps: list[Step] = []
        """What calls say of order and memory; who reads it takes it out."""
        self.begin()

    def begin(self) -> None:
        """Know nothing: calls were not followed for a while."""
        self._blocks = Blocks()
        self._state = self._blocks.state
        self._state.known, self._state.learned, self._state.unknown = KNOWN, LEARNED, UNKNOWN
        self._changes: list[BlockChange] = []
        self._names: dict[int, str] = {}  # Of functions, by their handles
        self._capturing: dict[int, int] = {}  # By stream the stream whose capture it is in
        self._captured_events: dict[int, int] = {}
        self._captured: dict[int, _Graph] = {}  # By stream that began a capture
        self._graphs: dict[int, _Graph] = {}
        self._executables: dict[int, _Graph] = {}

    def follow(self, *, is_on: bool) -> None:
        """Have `steps` told from now on, or no more."""
        if is_on and not self._is_followed:
            for name in ("memory", "parts"):
                for block in self._blocks.table(name).tolist():
                    self._tell_block(_MADE, block, Step(_MADE, stream=block[5]))
        self._is_followed = is_on

    def add_changes(self, changes: Iterable[BlockChange]) -> None:
        """Take what pools of libraries did, in order of time."""
        self._changes.extend(changes)

    def seed(self, changes: Iterable[BlockChange]) -> None:
        """Take what pools had given out before anybody looked: it may have been written."""
        self._state.is_followed = False
        for _, start, size, stream in changes:
            if size:
                memory = self._blocks.table("memory")
                memory["is_pool"][(memory["start"] <= start) & (start < memory["end"])] = 1
                made = self._blocks.put("parts", start, size, stream=stream)
                if self._is_followed:
                    self._tell_block(_MADE, tuple(made.tolist()), Step(_MADE, stream=stream))

    def find(self, address: int) -> int:
        """Return the number of the memory that an address is in; 0 where none is known."""
        return self._blocks.find(address)

    def read(self, calls: NDArray[np.void], words: NDArray[np.uint64], shapes: Mapping[int, Shape]) -> dict[str, Int64Array]:
        """Return the accesses of these calls, see `ACCESS_FIELDS`; the order that they make is in `steps`."""
        state, blocks, batch = self._state, self._blocks, _Batch(calls, words, shapes)
        changes = np.array(self._changes, CHANGE)
        numbers = np.fromiter(islice(iter(take_buffer_number, 0), batch.made_count + len(changes)), np.int64)
        rows = np.empty((len(ACCESS_FIELDS), batch.row_room), np.int64)
        for field, array in {"calls": calls, "words": words, "changes": changes, "numbers": numbers, "rows": rows}.items():
            blocks.give(field, array)
        state.change_count, state.row_room = len(changes), batch.row_room
        state.call = state.word = state.change = state.row_count = 0
        state.has_unseen_pool, state.is_followed = self.has_unseen_pool, self._is_followed
        while state.call < len(calls):
            at, first_row, is_capturing = state.call, state.row_count, bool(self._capturing)
            state.marks_writes = self._is_followed or is_capturing
            blocks.give("roles", batch.roles_in_capture if is_capturing or self._captured_events else batch.roles)
            stop = blocks.read(limit=at + 1 if is_capturing else len(calls))
            if stop is Stop.ASK_MEMORY:
                self._look_up(state.asked)
            elif stop is Stop.ASK_FUNCTION:
                self._note_function(int(calls["object"][state.call]))
            elif stop is Stop.DONE and is_capturing:
                self._capture_work(batch, at, rows[1:, first_row : state.row_count])
            elif stop is not Stop.DONE:
                self._tell_steps(batch, rows)
                if stop is Stop.GROW:
                    blocks.grow()
                else:
                    self._change(batch, rows)
        self._tell_steps(batch, rows)
        del self._changes[: state.change]
        batch.parts.append(rows[:, batch.kept_rows : state.row_count])
        found = batch.parts[0] if len(batch.parts) == 1 else np.concatenate(batch.parts, axis=1)
        if self._is_followed:
            found[4] &= ~_SURELY_WRITES
        return dict(zip(ACCESS_FIELDS, found, strict=True))

    # What C asks for

    def _look_up(self, address: int) -> None:
        """Ask the driver which memory an address is in."""
        told = self._ask(address)
        if told is not None:
            start, size, is_host = told
            self._blocks.put("memory", start, size, flags=IS_HOST if is_host else 0)
            self._tell_memory(start, size)
            return
        self._blocks.note_nowhere(address)
        if not self._blocks.is_near(address):  # else it may be of memory that has been freed, beside others
            self._tell_memory(address, 0)

    def _note_function(self, handle: int) -> None:
        if len(self._names) >= KEPT_FUNCTIONS:
            self._forget_functions()
        linker_name = self._name_of(handle)
        name = self._names[handle] = short_name(demangle(linker_name))
        # A spin touches nothing where it is given no memory.
        self._blocks.note_function(handle, spins=linker_name == SPIN_NAME, hides=name.startswith(_HIDING))

    def _forget_functions(self) -> None:
        self._names.clear()
        self._blocks.forget_functions()

    # Graphs

    def _change(self, batch: _Batch, rows: Int64Array) -> None:
        """Take a call at which C has stopped."""
        at = self._state.call
        call, role = batch.calls[at].tolist(), batch.role(at)
        stream, target = call[7], call[8]
        if role is Role.UNKNOWN_WORK:
            if (graph := self._executables.get(target)) is not None:
                self._tell_graph(call, graph)
                number = np.full((1, len(graph.rows)), call[3])
                batch.parts += [rows[:, batch.kept_rows : self._state.row_count], np.concatenate((number, graph.table))]
                batch.kept_rows = self._state.row_count
            else:
                self._state.opaque_count += 1
                if stream in self._capturing:
                    self._captured[self._capturing[stream]].add([], is_node=False)
        elif role is Role.LOAD:
            self._forget_functions()
        elif role is Role.INSTANTIATE:
            self._keep_graph(self._executables, target, self._graphs.get(call[9]))
        elif role is Role.CHANGE_GRAPH:
            if self._executables.pop(target, None) is None:  # a graph, or a node of one
                self._graphs.clear()
        elif not self._capture(role, stream, target) and self._is_followed and role in _STEPS:
            self.steps.append(self._step(_STEPS[role], call, event=target))
        self._state.word += call[5]
        self._state.call += 1
        batch.told = at + 1

    def _tell_graph(self, call: _Call, graph: _Graph) -> None:
        """Take a launch of a graph that was captured: it does what its nodes do."""
        self._state.opaque_count += not graph.is_known
        self._blocks.note_written({row[0] for row in graph.rows})
        if self._is_followed and call[7] not in self._capturing:
            self._tell_work(call, "graph", graph.touches, is_known=False, hides=graph.hides)

    def _capture_work(self, batch: _Batch, at: int, rows: Int64Array) -> None:
        """Let work be a node, where it was captured: it is no work then."""
        stream = int(batch.calls["stream"][at])
        if stream in self._capturing and Role.NONE < batch.role(at) < Role.UNKNOWN_WORK:
            if not batch.calls["flags"][at] & _FAILED:
                self._captured[self._capturing[stream]].add(zip(*rows.tolist(), strict=True), is_node=True)
            self._state.row_count -= rows.shape[1]

    def _capture(self, role: Role, stream: int, event: int) -> bool:
        """Follow which streams are being captured into a graph; tell whether a call was part of that."""
        if role is Role.BEGIN_CAPTURE:
            self._capturing[stream] = stream
            self._captured[stream] = _Graph()
        elif role is Role.END_CAPTURE:
            self._capturing = {one: origin for one, origin in self._capturing.items() if origin != stream}
            self._keep_graph(self._graphs, event, self._captured.pop(stream, None))
        elif role is Role.RECORD:
            self._captured_events.pop(event, None)
            if stream in self._capturing:
                self._captured_events[event] = self._capturing[stream]
                return True
        elif role is Role.WAIT and event in self._captured_events:
            origin = self._captured_events[event]
            if origin in self._captured:
                self._capturing[stream] = origin
            return True
        elif role is Role.CLOSE_STREAM:
            self._capturing.pop(stream, None)
        return False

    @staticmethod
    def _keep_graph(graphs: dict[int, _Graph], handle: int, graph: _Graph | None) -> None:
        graphs.pop(handle, None)
        if graph is not None and graph.is_whole and handle:
            graphs[handle] = graph
        while len(graphs) > KEPT_GRAPHS:
            del graphs[next(iter(graphs))]

    # Steps

    def _tell_steps(self, batch: _Batch, rows: Int64Array) -> None:
        """Tell of the calls that were read since the last time."""
        end = self._state.call
        if self._is_followed:
            events: dict[int, list[_Event]] = {}
            for event in self._blocks.take_events().tolist():
                events.setdefault(event[0], []).append(event)
            new_rows = rows[:, batch.told_rows : self._state.row_count]
            for at, role, shape, call, found in batch.until(end, new_rows, events):
                if at in events:
                    self._tell_events(events.pop(at), role, call)
                if role in _STEPS:
                    self.steps.append(self._step(_STEPS[role], call, event=call[8]))
                touches = _touches(found)
                if not touches:
                    continue
                is_launch = role is _LAUNCH
                name = self._names.get(call[8], "") if is_launch else role.name.lower()
                self._tell_work(call, name, touches, is_known=not is_launch, hides=_hides(found))
                if role is Role.COPY and not shape.stream:  # it is waited for
                    self.steps.append(self._step(StepKind.SEEN_STREAM, call))
            if end < len(batch.calls):  # what was done before a call that is to come
                self._tell_events(events.pop(end, ()), batch.role(end), batch.calls[end].tolist())
        batch.told, batch.told_rows = end, self._state.row_count

    def _tell_events(self, events: Iterable[_Event], role: Role, call: _Call) -> None:
        """Tell what became of memory, at a call or before it."""
        for _, what, cause, block in events:
            if cause == _BY_CALL:
                step = self._step(_GONE, call, is_ordered=role is Role.FREE_ASYNC)
            else:
                change = self._changes[cause] if cause >= 0 else _ASKED
                step = Step(_MADE, change.wall_ns, stream=change.stream)
            if what == _WAITED:
                self.steps.append(step._replace(kind=StepKind.SEEN_ALL))
            else:
                self._tell_block(_KINDS[what], block, step)

    def _tell_work(self, call: _Call, name: str, touches: tuple[StepTouch, ...], *, is_known: bool, hides: bool) -> None:
        numbers, function = (0, 0) if is_known else (call[9], call[8])
        work = {"name": name, "touches": touches, "numbers": numbers, "is_known": is_known, "function": function}
        self.steps.append(self._step(StepKind.WORK, call, hides=hides, **work))

    @staticmethod
    def _step(kind: StepKind, call: _Call, **more: Any) -> Step:
        stream, flags, thread = call[7], call[6], call[2]
        if stream == _PER_THREAD or (stream == 0 and flags & _OF_THREAD):
            return Step(kind, call[0], thread, -1 - thread, is_blocking=True, **more)
        stream = 0 if stream == _LEGACY else stream
        return Step(kind, call[0], thread, stream, not flags & _NON_BLOCKING, **more)

    def _tell_block(self, kind: StepKind, block: tuple[int, ...], step: Step) -> None:
        start, end, number, *_ = block
        size, where = end - start, (step.wall_ns, step.thread, step.stream, step.is_blocking)
        self.steps.append(Step(kind, *where, buffer=number, start=start, size_bytes=size, is_ordered=step.is_ordered))


def access_batch(records: Records) -> AccessBatch:
    """Return the accesses among records, as other rooms have them."""
    columns = records.columns.get(ACCESSED, dict.fromkeys(ACCESS_FIELDS, np.empty(0, np.int64)))
    return AccessBatch(correlation=columns[FIELD], **{name: columns[name] for name in ACCESS_FIELDS[1:]})


_ALLOCATES = frozenset({Role.ALLOCATE, Role.ALLOCATE_HOST, Role.ALLOCATE_ASYNC})
_STEPS = {
    Role.RECORD: StepKind.RECORD,
    Role.WAIT: StepKind.WAIT,
    Role.WAIT_STREAM: StepKind.SEEN_STREAM,
    Role.WAIT_EVENT: StepKind.SEEN_EVENT,
    Role.WAIT_ALL: StepKind.SEEN_ALL,
    Role.CLOSE_STREAM: StepKind.CLOSED,
}
