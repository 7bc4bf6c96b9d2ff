"""Which memory each launch, copy and fill touched, from the calls of the driver in their order.

A launch brings the words of its arguments that may be addresses (callbacks.c). Here they are put into allocations, which are
known from their own calls, and each place of a function's arguments is learned to be an output or not. Of one process, as the
calls are; all in here is done by one thread at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gpustreamlab._util.kernel_names import short_name
from gpustreamlab.analysis import first_of_each, turns_of
from gpustreamlab.backends._activity import (
    CERTAINTY_SHIFT,
    IS_HOST,
    IS_WRITE,
    NODE_SHIFT,
    SPIN_NAME,
    AccessBatch,
    Step,
    StepKind,
    StepTouch,
)
from gpustreamlab.backends.cuda.cupti._arguments import CallFlag, CallsRead, Role, Shape
from gpustreamlab.backends.cuda.cupti._blocks import WRITTEN, Block, BlockChange, Table
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
KEPT_FUNCTIONS = 65_536
"""Functions whose outputs are remembered; then all is learned anew."""
_OPAQUE, _NON_BLOCKING, _OF_THREAD = map(int, (CallFlag.OPAQUE, CallFlag.NON_BLOCKING, CallFlag.PER_THREAD))
_LEGACY, _PER_THREAD = 1, 2
"""Handles of default streams."""
_ADDRESS = (1 << 48) - 1
_PLACE_BITS = 48
_HIDING = ("nccl", "nvshmem")
"""How functions begin that find what they write by pointers in device memory."""
_SEGMENT = (1 << 21) - 1
_GRAIN_BITS = 8
_ANY = 0
"""Number of memory that is not known."""


_Row: TypeAlias = tuple[int, int, int, int]
"""Of an access all but the call."""


class _Touch(NamedTuple):
    block: Block
    begin: int
    end: int
    is_write: bool
    is_exact: bool  # Whether it is all of that; else what is at its begin for sure, and nobody knows how much behind that


class _Function:
    __slots__ = ("is_opaque", "is_spin", "name", "outputs")

    def __init__(self, linker_name: str) -> None:
        self.name = short_name(demangle(linker_name))
        self.is_spin = linker_name == SPIN_NAME  # it touches nothing where it is given no memory
        self.is_opaque = self.name.startswith(_HIDING)
        self.outputs: set[int] = set()  # Places among its arguments that were given memory that nobody had written


class _Graph:
    """Work that was captured, in its order."""

    def __init__(self) -> None:
        self.nodes: list[list[_Touch]] = []
        self.rows: list[_Row] = []
        self.is_known = True  # Whether it is known of each node what it accesses
        self.is_whole = True  # Whether it is known which nodes there are

    def add(self, touches: list[_Touch], rows: list[_Row], *, is_node: bool) -> None:
        """Take the next node: numbers of nodes ascend in the order of capture."""
        self.is_whole &= is_node  # a graph within a graph, or a batch of copies
        self.nodes.append(touches)
        node = len(self.nodes) << NODE_SHIFT
        self.rows += [(buffer, begin, end, flags | node) for buffer, begin, end, flags in rows]
        self.is_known &= bool(rows)

    @cached_property
    def table(self) -> Int64Array:
        """What its nodes access, without the call; shape (4, n)."""
        return np.array(self.rows, np.int64).reshape(-1, 4).T

    @cached_property
    def touches(self) -> list[_Touch]:
        """What it does to memory, each once; what is written counts as written alone."""
        found = {(one.block.number, one.begin, one.end): one for node in self.nodes for one in node}
        found |= {(one.block.number, one.begin, one.end): one for node in self.nodes for one in node if one.is_write}
        return [*found.values()]


def _spread(count: Int64Array, place: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return where the rows of groups stand that are taken in some order, and how many each one has: of a group `count`."""
    counts = count[place]
    return turns_of(counts) + np.repeat((np.cumsum(count) - count)[place], counts), counts


def _table_of(told: Sequence[list[_Row]]) -> tuple[Int64Array, Int64Array]:
    """Return how many rows there are of each, and all of them, shape (4, n)."""
    count = np.array([len(rows) for rows in told], np.int64)
    return count, np.array([row for rows in told for row in rows], np.int64).reshape(-1, 4).T


def _rows_of(flat: list[int]) -> Int64Array:
    return np.array(flat, np.int64).reshape(-1, len(ACCESS_FIELDS)).T


_SOME = 1_024


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
        self._ask = (
            ask  # Returns the first address, the size and whether it is the host's of the allocation that an address is in
        )
        self._tell_memory = tell_memory
        self._is_followed = False
        self.has_unseen_pool = False
        """Whether a library gives out memory, in pieces of 2 MiB of which nobody tells what it gave out."""
        self.steps: list[Step] = []
        """What calls say of order and memory; who reads it takes it out."""
        self.begin()

    def begin(self) -> None:
        """Know nothing: calls were not followed for a while."""
        self._memory = Table()
        self._parts = Table()
        self._changes: deque[BlockChange] = deque()
        self._functions: dict[int, _Function] = {}
        self._nowhere: set[int] = set()  # Where no memory was found, since any was made
        self._capturing: dict[int, int] = {}  # By stream the stream whose capture it is in
        self._captured_events: dict[int, int] = {}
        self._captured: dict[int, _Graph] = {}  # By stream that began a capture
        self._graphs: dict[int, _Graph] = {}
        self._executables: dict[int, _Graph] = {}
        self._opaque_count = 0
        self._known_rows: dict[tuple[bool, int], list[_Row]] = {}  # Of launches, by `_alike`

    def follow(self, *, is_on: bool) -> None:
        """Have `steps` told from now on, or no more."""
        if is_on and not self._is_followed:
            self._is_followed = True
            for block in (*self._memory.blocks.values(), *self._parts.blocks.values()):
                self._made(block, Step(StepKind.MADE, stream=block.stream))
        self._is_followed = is_on

    def add_changes(self, changes: Iterable[BlockChange]) -> None:
        """Take what pools of libraries did, in order of time."""
        self._changes.extend(changes)

    def read(self, calls: NDArray[np.void], words: NDArray[np.uint64], shapes: Mapping[int, Shape]) -> dict[str, Int64Array]:
        """Return the accesses of these calls, see `ACCESS_FIELDS`; the order that they make is in `steps`."""
        batch = CallsRead(calls, words, shapes)
        parts: list[Int64Array] = []
        done = 0
        for begin, end in batch.stretches(self._breaks(batch)):
            parts += (self._read_each(batch, done, begin), self._read_alike(batch, begin, end))
            done = end
        parts.append(self._read_each(batch, done, len(calls)))
        return dict(zip(ACCESS_FIELDS, np.concatenate(parts, axis=1), strict=True))

    def _breaks(self, batch: CallsRead) -> BoolArray:
        """Tell at which calls memory changes, or the order of work where that is followed: those are looked at one by one."""
        role = batch.role
        if self._capturing or (role == Role.BEGIN_CAPTURE).any():
            return np.ones(len(role), bool)  # each launch is a node of its own
        is_break: BoolArray = (role >= Role.UNKNOWN_WORK) & ((role < Role.RECORD) | (role >= Role.LOAD))
        if self._is_followed:
            is_break |= role >= Role.UNKNOWN_WORK
            stream = batch.calls["stream"]
            is_break[1:] |= stream[1:] != stream[:-1]
        if self._changes and len(role):
            newest = np.maximum.accumulate(batch.calls["start"])
            at = np.searchsorted(newest, np.array([change.wall_ns for change in self._changes], np.int64))
            is_break[at[at < len(role)]] = True
        return is_break

    def _read_each(self, batch: CallsRead, begin: int, end: int) -> Int64Array:
        """Read calls one by one."""
        rows: list[int] = []
        parts: list[Int64Array] = []
        for role, shape, call, own in batch.calls_at(np.arange(begin, end)):
            if self._changes and self._changes[0].wall_ns <= call[0]:
                self._apply_changes(call[0])
            if role is Role.UNKNOWN_WORK and (graph := self._executables.get(call[8])) is not None:
                self._tell_graph(call, graph)
                number = np.full((1, graph.table.shape[1]), call[3])
                parts += (_rows_of(rows), np.concatenate((number, graph.table)))
                rows = []
            elif role <= Role.UNKNOWN_WORK:
                for row in self._work(role, call, own, is_awaited=role is Role.COPY and not shape.stream):
                    rows += (call[3], *row)
            else:
                self._change(role, call)
        return np.concatenate((*parts, _rows_of(rows)), axis=1)

    def _tell_graph(self, call: tuple[int, ...], graph: _Graph) -> None:
        """Take a launch of a graph that was captured: it does what its nodes do."""
        self._opaque_count += not graph.is_known
        for one in graph.touches:
            one.block.born = WRITTEN
        if self._is_followed and call[7] not in self._capturing:
            self._tell_work(call, "graph", graph.touches, is_known=False)

    def _read_alike(self, batch: CallsRead, begin: int, end: int) -> Int64Array:
        """Read calls between which nothing changes: of those that are alike the first one stands for all."""
        roles = batch.role[begin:end]
        at = begin + np.flatnonzero((roles > Role.NONE) & (roles < Role.UNKNOWN_WORK))
        key = batch.keys(at, batch.words_of(at), size=self._sizes(batch, at))
        if self._is_followed:  # each launch is a step, in all that it says
            first, place = first_of_each(key)
            count, table = self._read_first(batch, at[first])
        elif 2 * len(np.unique(key[:_SOME])) > len(key[:_SOME]):
            place, (count, table) = np.arange(len(at)), self._read_blocks(batch, at)
        else:
            first, place = first_of_each(key)
            count, table = self._read_blocks(batch, at[first])
        index, counts = _spread(count, place)
        return np.stack((np.repeat(batch.calls["correlationId"][at], counts), *(np.take(column, index) for column in table)))

    def _sizes(self, batch: CallsRead, at: Int64Array) -> NDArray[Any]:
        """Return the size of each call; what stands for the numbers among a launch's arguments counts for steps alone."""
        size = batch.calls["size"][at]
        return size if self._is_followed else np.where(batch.role[at] == Role.LAUNCH, np.uint64(0), size)

    def _read_first(self, batch: CallsRead, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Read calls in their order; return how many accesses each makes, and those, shape (4, n)."""
        told = [
            self._work(role, call, own, is_awaited=role is Role.COPY and not shape.stream)
            for role, shape, call, own in batch.calls_at(at)
        ]
        return _table_of(told)

    def _read_blocks(self, batch: CallsRead, at: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Do the same for calls of which some differ only in where in its block each argument lies."""
        words, total = batch.words_of(at)
        counts, is_launch = np.diff(total, prepend=0), batch.role[at] == Role.LAUNCH
        of_launch, turn = np.repeat(is_launch, counts), turns_of(counts)
        address = words & np.uint64(_ADDRESS)
        number, start = self._blocks_of(np.where(of_launch, address, np.uint64(0)))
        is_again = np.zeros(len(words), bool)
        for back in range(1, int(turn.max(initial=0)) + 1):
            later = np.flatnonzero(turn >= back)
            is_again[later] |= address[later] == address[later - back]
        is_kept = (number > 0) & ~is_again  # each address once
        said = (number << 18).view(np.uint64) | words >> np.uint64(_PLACE_BITS) << np.uint64(1) | is_kept
        said = np.where(of_launch, said, words)
        key = batch.keys(at, (said, total), size=self._sizes(batch, at))
        first, place = first_of_each(key)
        count, table = self._read_known(batch, at[first], key[first])
        index, per_call = _spread(count, place)
        table = table[:, index]
        seen = np.concatenate(([0], np.cumsum(is_kept)))
        is_argument = turns_of(per_call) < np.repeat(
            seen[total] - seen[total - counts], per_call
        )  # else it says that there is more
        table[1, is_argument] = (address.view(np.int64) - start)[is_kept]
        return per_call, table

    def _read_known(self, batch: CallsRead, at: Int64Array, key: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Do the same for calls of which some were read before, by their keys."""
        known = [self._known_rows.get((self.has_unseen_pool, one)) for one in key.tolist()]
        new = np.array([one for one, rows in enumerate(known) if rows is None], np.int64)
        for one, (role, shape, call, own) in zip(new.tolist(), batch.calls_at(at[new]), strict=True):
            opaque_count = self._opaque_count
            rows = known[one] = self._work(role, call, own, is_awaited=role is Role.COPY and not shape.stream)
            if role is Role.LAUNCH and opaque_count == self._opaque_count:
                self._known_rows[self.has_unseen_pool, int(key[one])] = rows
        if len(self._known_rows) > KEPT_FUNCTIONS:
            self._known_rows.clear()
        return _table_of([rows or [] for rows in known])

    def _blocks_of(self, address: NDArray[np.uint64]) -> Int64Array:
        """Return the number and the start of the block that each address is in; see `Table.find_all`."""
        for _ in range(2):
            found = self._parts.find_all(address)
            left = np.flatnonzero(found[1] == 0)
            found[:, left] = self._memory.find_all(address[left])
            missing = address[(found[1] == 0) & (address > 0)]
            _, first = np.unique(missing >> np.uint64(_GRAIN_BITS), return_index=True)
            asked = [one for one in missing[first].tolist() if one >> _GRAIN_BITS not in self._nowhere]
            if not [one for one in asked if self._find(one) is not None]:
                break
        return found

    # Work

    def _work(self, role: Role, call: tuple[int, ...], own: list[int], *, is_awaited: bool) -> list[_Row]:
        flags, stream, target, size = call[6:]
        if role is Role.LAUNCH:
            name, touches, certainty = self._launch(target, own, flags)
        elif role is Role.UNKNOWN_WORK:
            self._opaque_count += 1
            name, touches, certainty = "", [], UNKNOWN
        else:
            name, certainty = role.name.lower(), KNOWN
            touches = [*self._exact(target, size, is_write=True)]
            if role is Role.COPY:
                touches += self._exact(own[0], own[1], is_write=False)
        is_cut = bool(flags & _OPAQUE) or name.startswith(_HIDING)
        rows = self._rows(touches, role, certainty, is_cut=is_cut)
        if self._capturing and stream in self._capturing:
            self._captured[self._capturing[stream]].add(touches, rows, is_node=role is not Role.UNKNOWN_WORK)
            return []
        if self._is_followed and touches:
            self._tell_work(call, name, touches, is_known=role is not Role.LAUNCH)
            if is_awaited:
                self.steps.append(self._step(StepKind.SEEN_STREAM, call))
        return rows

    def _rows(self, touches: list[_Touch], role: Role, certainty: int, *, is_cut: bool) -> list[_Row]:
        rows = []
        for block, begin, end, is_write, _ in touches:
            flags = block.flags | certainty
            if certainty == LEARNED and role is Role.LAUNCH and self._is_shared_out(block):
                flags = block.flags | UNKNOWN
            if is_write or certainty == UNKNOWN:
                flags |= IS_WRITE
            rows.append((block.number, begin - block.start, end - block.start, flags))
        if not rows and role is Role.LAUNCH and certainty == KNOWN:
            rows.append((_ANY, 0, 0, KNOWN))  # it is known to touch nothing
        if is_cut and rows:
            rows.append((_ANY, 0, 0, IS_WRITE | UNKNOWN))
        return rows

    def _is_shared_out(self, block: Block) -> bool:
        """Tell whether several arrays may be in memory, of which nobody tells."""
        return self.has_unseen_pool and not (block.end - block.start) & _SEGMENT

    def _launch(self, handle: int, own: list[int], flags: int) -> tuple[str, list[_Touch], int]:
        function, found = self._function(handle), []
        for word in own:
            block = self._find(word & _ADDRESS)
            if block is not None and not block.is_pool:
                found.append((word >> _PLACE_BITS, word & _ADDRESS, block))
        if not found and function.is_spin and not flags & _OPAQUE:
            return function.name, [], KNOWN
        if not found or flags & _OPAQUE or function.is_opaque:
            self._opaque_count += 1  # it may have written anything
        for place, _, block in found:
            if block.born == self._opaque_count and place not in function.outputs:
                function.outputs.add(place)
                self._known_rows.clear()
        outputs = function.outputs
        # One that is given a single piece of memory writes it: what else should it be for.
        writes_all = not outputs and len({block.number for _, _, block in found}) == 1
        written = {block.number for place, _, block in found if writes_all or place in outputs}
        touches: dict[tuple[int, int], _Touch] = {}
        for _, address, block in found:
            is_write = block.number in written
            if is_write or not outputs:
                block.born = WRITTEN
            touches[block.number, address] = _Touch(block, address, block.end, is_write, False)  # noqa: FBT003 - nothing is exact
        return function.name, [*touches.values()], LEARNED if outputs or writes_all else UNKNOWN

    def _function(self, handle: int) -> _Function:
        function = self._functions.get(handle)
        if function is None:
            if len(self._functions) >= KEPT_FUNCTIONS:
                self._functions.clear()
            function = self._functions[handle] = _Function(self._name_of(handle))
        return function

    def _exact(self, address: int, size: int, *, is_write: bool) -> Iterable[_Touch]:
        block = self._find(address) if address and size else None
        if block is None or block.is_pool:
            return
        if is_write:
            block.born = WRITTEN
        yield _Touch(block, address, min(address + size, block.end), is_write, is_exact=True)

    def _find(self, address: int) -> Block | None:
        """Return the memory that an address is in: of a pool's what it gave out, else what the driver did."""
        block = (self._parts.find(address) if self._parts.blocks else None) or self._memory.find(address)
        if block is not None:
            return block
        if address >> _GRAIN_BITS in self._nowhere:
            return None
        told = self._ask(address)
        if told is None:
            if len(self._nowhere) >= KEPT_FUNCTIONS:
                self._nowhere.clear()
            self._nowhere.add(address >> _GRAIN_BITS)
            if not self._memory.is_near(address):  # else it may be of memory that has been freed, beside others
                self._tell_memory(address, 0)
            return None
        start, size, is_host = told
        block = Block(start, start + size, flags=IS_HOST if is_host else 0)
        self._gone(self._memory.put(block), Step(StepKind.GONE))
        self._made(block, Step(StepKind.MADE))
        self._tell_memory(start, size)
        return block

    def _tell_work(self, call: tuple[int, ...], name: str, touches: list[_Touch], *, is_known: bool) -> None:
        told = tuple(
            StepTouch(
                one.block.number,
                one.begin - one.block.start,
                (one.end if one.is_exact else one.begin + 1) - one.block.start,
                one.is_write,
            )
            for one in touches
        )
        numbers, function = (0, 0) if is_known else (call[9], call[8])
        work = {"name": name, "touches": told, "numbers": numbers, "is_known": is_known, "function": function}
        self.steps.append(self._step(StepKind.WORK, call, **work))

    @staticmethod
    def _step(kind: StepKind, call: tuple[int, ...], **more: Any) -> Step:
        stream, flags, thread = call[7], call[6], call[2]
        if stream == _PER_THREAD or (stream == 0 and flags & _OF_THREAD):
            return Step(kind, call[0], thread, -1 - thread, is_blocking=True, **more)
        stream = 0 if stream == _LEGACY else stream
        return Step(kind, call[0], thread, stream, not flags & _NON_BLOCKING, **more)

    # Memory and order

    def _change(self, role: Role, call: tuple[int, ...]) -> None:
        stream, target = call[7], call[8]
        if role in _ALLOCATES:
            self._allocate(role, call)
        elif role is Role.FREE or role is Role.FREE_ASYNC:
            self._free(role, call)
        elif role is Role.LOAD:
            self._functions.clear()
            self._known_rows.clear()
        elif role is Role.INSTANTIATE:
            self._keep_graph(self._executables, target, self._graphs.get(call[9]))
        elif role is Role.CHANGE_GRAPH:
            if self._executables.pop(target, None) is None:  # a graph, or a node of one
                self._graphs.clear()
        elif not self._capture(role, stream, target) and self._is_followed and role in _STEPS:
            self.steps.append(self._step(_STEPS[role], call, event=target))

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
            if origin in self._capturing:
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

    def _allocate(self, role: Role, call: tuple[int, ...]) -> None:
        start, size = call[8], call[9]
        if not (start and size):
            return
        self._nowhere.clear()
        is_host = role is Role.ALLOCATE_HOST
        flags, born = (IS_HOST, WRITTEN) if is_host else (0, self._opaque_count)
        block = Block(start, start + size, flags=flags, born=born, made_ns=call[1], stream=call[7])
        gone = self._memory.put(block)
        gone += self._parts.take(block.start, block.end)
        if self._is_followed:
            step = self._step(StepKind.MADE, call)
            self._gone(gone, step)
            self._made(block, step)

    def _free(self, role: Role, call: tuple[int, ...]) -> None:
        start, size = call[8], call[9]
        block = self._memory.blocks.get(start)
        if block is not None and block.made_ns > call[0]:
            return  # it has been handed out anew before this call returned
        end = start + size if size else start + 1 if block is None else block.end
        gone = self._memory.take(start, end)
        gone += self._parts.take(start, end)
        if self._is_followed:
            step = self._step(StepKind.GONE, call, is_ordered=role is Role.FREE_ASYNC)
            if role is Role.FREE:
                self.steps.append(step._replace(kind=StepKind.SEEN_ALL))  # it waits for the device
            self._gone(gone, step)

    def _apply_changes(self, until_ns: int) -> None:
        """Take what pools did before a call."""
        while self._changes and self._changes[0].wall_ns <= until_ns:
            wall_ns, start, size, stream = self._changes.popleft()
            step = Step(StepKind.MADE, wall_ns, stream=stream)
            if not size:
                block = self._parts.blocks.get(start)
                if block is not None:
                    self._parts.remove(block)
                    self._gone([block], step)
                continue
            self._note_pool(start)
            block = Block(start, start + size, born=self._opaque_count, made_ns=wall_ns, stream=stream)
            self._gone(self._parts.put(block), step)
            self._made(block, step)

    def seed(self, changes: Iterable[BlockChange]) -> None:
        """Take what pools had given out before anybody looked: it may have been written."""
        for _, start, size, stream in changes:
            if size:
                self._note_pool(start)
                self._made(block := Block(start, start + size, stream=stream), Step(StepKind.MADE, stream=stream))
                self._parts.put(block)

    def _note_pool(self, address: int) -> None:
        """Note that a library gives out parts of an allocation: what it has not given out is nobody's."""
        whole = self._memory.find(address)
        if whole is not None:
            whole.is_pool = True

    def _made(self, block: Block, step: Step) -> None:
        self._tell_block(StepKind.MADE, block, step)

    def _gone(self, blocks: Iterable[Block], step: Step) -> None:
        for block in blocks:
            self._tell_block(StepKind.GONE, block, step)

    def _tell_block(self, kind: StepKind, block: Block, step: Step) -> None:
        if self._is_followed:
            self.steps.append(
                Step(
                    kind,
                    step.wall_ns,
                    step.thread,
                    step.stream,
                    step.is_blocking,
                    buffer=block.number,
                    start=block.start,
                    size_bytes=block.end - block.start,
                    is_ordered=step.is_ordered,
                )
            )


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
