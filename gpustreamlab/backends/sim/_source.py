"""The simulated device as a source of activities: what CUPTI tells of a GPU, told of the model."""

from __future__ import annotations

import threading
from array import array
from dataclasses import fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import numpy as np

from gpustreamlab.backends._activity import (
    EVERY_STREAM,
    NODE_SHIFT,
    THE_HOST,
    AccessBatch,
    Activities,
    CallBatch,
    CallClass,
    DependencyBatch,
    MemoryBatch,
    StreamFacts,
    WorkBatch,
)
from gpustreamlab.backends._protocol import BackendStream
from gpustreamlab.backends.sim._preset import DevicePreset
from gpustreamlab.errors import CaptureUnavailableError
from gpustreamlab.model import SPAN_KINDS, WorkDetail
from gpustreamlab.schedule._commands import COPY_PLACES, CopySpec, DeviceWork, KernelSpec, StreamQueue, plain_shape
from gpustreamlab.typing import BoolArray, Int64Array, SpanKind

if TYPE_CHECKING:
    from gpustreamlab.backends.sim._driver import SimDriver
    from gpustreamlab.backends.sim._memory import Extent

KEPT_RECORDS = 1_000_000  # Records that wait to be drained, at most; newer ones are dropped and counted

B = TypeVar("B", WorkBatch, CallBatch, DependencyBatch, MemoryBatch)
_KIND_CODES = {kind: code for code, kind in enumerate(SPAN_KINDS)}


class SimActivitySource:
    """Tells of every kernel, copy, fill and call of the simulated device; see `gpustreamlab.backends.ActivitySource`.

    It looks on: a program takes the same virtual time with it and without. Several may collect at once. Work is told of if it
    was launched while the source collected, also if it ends after `stop`.
    """

    description = "simulated device"
    times_ranges = False
    """Events of the model hold nothing up, and its ranges are exact: they keep their events."""

    def __init__(self, driver: SimDriver, *, record_limit: int = KEPT_RECORDS) -> None:
        self._driver = driver
        self._record_limit = record_limit
        self._is_closed = False
        self.dropped_count = 0
        """Records that are missing because too many waited to be drained."""
        self._left = record_limit
        self._accesses: list[tuple[int, int, list[Extent]]] = []
        self._empty()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "collecting" if self._is_collecting else "stopped"
        return f"<SimActivitySource, {state}>"

    def start(self) -> None:
        """Begin to collect; may be called again after `stop`, and twice."""
        driver = self._driver
        with driver.lock:
            driver.check_open()
            if self._is_closed:
                raise CaptureUnavailableError(
                    "This source of the simulated device was closed before start(). Begin another capture: lab.capture()."
                )
            if self._is_collecting:
                return
            driver.memory.settle()
            driver.source = Collecting((*_members(driver), self))
            driver.memory.tell_all(driver.source)

    def stop(self) -> None:
        """Stop collecting; what was collected, or launched before and ends later, can still be drained. Idempotent."""
        driver = self._driver
        with driver.lock:
            if self._is_collecting:
                driver.memory.settle()
                rest = tuple(one for one in _members(driver) if one is not self)
                driver.source = Collecting(rest) if rest else None

    def keep_up(self) -> bool:
        """Tell that it may be drained at any time: that costs the simulated program nothing."""
        return True

    def drain(self, *, is_last: bool = False) -> Activities:
        """Return what has ended by the host's present time. The clock does not move; nothing is held back for the last time."""
        driver = self._driver
        with driver.lock:
            driver.catch_up()
            if self._is_collecting:
                driver.memory.settle()
            told = self._work, self._calls, self._dependencies, self._memory, self._accesses
            names, details = tuple(self._names), tuple(self._details)
            self._empty()
        work, calls, dependencies, memory, accesses = told
        return Activities(
            work=_make_batch(WorkBatch, work),
            calls=_make_batch(CallBatch, calls),
            dependencies=_make_batch(DependencyBatch, dependencies),
            memory=_make_batch(MemoryBatch, memory),
            accesses=_make_accesses(accesses),
            names=names,
            details=details,
        )

    @property
    def lost_reason(self) -> str:
        """Return nothing: no other tool takes over a simulated device."""
        return ""

    @property
    def complete_until_host_ns(self) -> int:
        """Return the host's present time: nothing is ever lost."""
        return self._driver.clock.now_ns

    @property
    def error_ns(self) -> int:
        """Return 0: the virtual clock is exact."""
        return 0

    def key_of(self, stream: BackendStream) -> tuple[int, int]:
        """Return the numbers of the context and of the stream."""
        self._driver.claims.setdefault(stream.key[2], WeakSet()).add(self)
        return stream.key[1:]

    def are_foreign(self, _context: Int64Array, stream: Int64Array) -> BoolArray:
        """Tell which streams are of other sessions, also once those are closed, and not of this one; all shapes are (n,)."""
        claims = self._driver.claims.copy()  # other threads make streams meanwhile
        return np.isin(stream, [number for number, claimed in claims.items() if self not in claimed])

    def describe_stream(self, context: int, stream: int) -> StreamFacts:
        """Tell of a stream that is in the records and of no session."""
        driver = self._driver
        queue = driver.null_stream if stream == 0 else driver.streams.get(stream)
        sm_count = driver.context_sms(context) if queue is None else queue.sm_count
        return StreamFacts(
            "default stream" if stream == 0 else f"stream {stream}",
            sm_count,
            device=driver.ordinal,
            is_blocking=None if queue is None else stream == 0,
        )

    def close(self) -> None:
        """Stop, and forget what was not drained. Idempotent."""
        with self._driver.lock:
            self.stop()
            self._is_closed = True
            self._empty()

    # What the driver tells, with its lock held

    def note_call(self, name: str, call_class: CallClass, start_ns: int, end_ns: int, *, number: int, size_bytes: int) -> None:
        """Keep a call of this thread by its number."""
        if self._has_room():
            thread = threading.get_ident() & 0xFFFF_FFFF
            self._calls.extend((start_ns, end_ns, start_ns, thread, self._code(name), call_class, number, size_bytes))

    def note_dependency(self, origin: StreamQueue, record: int, stream: StreamQueue, wait: int) -> None:
        """Keep that a stream waits for what another one recorded, with the numbers of both calls."""
        is_unnamed = origin.number == 0 and origin.card is not stream.card  # each card has a NULL stream of this number
        if not is_unnamed and self._has_room():
            self._dependencies.extend((origin.context, origin.number, record, stream.context, stream.number, wait))

    def note_sync(self, origin: StreamQueue | None, record: int, call: int) -> None:
        """Keep that a call of the host waited for what was enqueued in a stream, or in all, before another call."""
        is_unnamed = origin is not None and origin.number == 0 and origin is not self._driver.null_stream
        if not is_unnamed and self._has_room():
            key = (0, EVERY_STREAM) if origin is None else (origin.context, origin.number)
            self._dependencies.extend((*key, record, 0, THE_HOST, call))

    def note_accesses(self, number: int, touched: list[Extent], node: int) -> None:
        """Keep what work of a call touches; of a node of a graph, which. Where there is no room, the work goes without."""
        # That nothing is touched takes no room: there is one such row a call at most, and calls are bounded.
        left = self._left - (0 if touched and not touched[0][0] else len(touched))
        if left >= 0:
            self._left = left
            self._accesses.append((number, node, touched))

    def note_memory(self, time_ns: int, stream: StreamQueue, name: str, value_bytes: int) -> None:
        """Keep how much memory a stream holds."""
        if self._has_room():
            self._memory.extend((time_ns, stream.context, stream.number, self._code(name), value_bytes))

    def note_work(self, spec: KernelSpec | CopySpec, work: DeviceWork, node: tuple[int, int]) -> None:
        """Keep work that has ended, and that was launched while this collected; with its graph, and its place in that."""
        if self._is_closed or not self._has_room():
            return
        name = self._code(work.name)
        own = (
            (spec.is_pinned, spec.places)
            if isinstance(spec, CopySpec)
            else (work.kind, spec.block_slots, spec.shape, spec.is_generic, spec.is_cooperative)
        )
        key = work.name, work.blocks, node, *own
        detail = self._detail_codes.get(key)
        if detail is None:
            detail = self._detail_codes[key] = len(self._details)
            described = _describe(spec, self._driver.preset)
            self._details.append(replace(described, graph=node[0], node=node[1]))
        size_bytes = 0 if work.kind is SpanKind.KERNEL else work.size_bytes
        where = work.context, work.stream, name, detail, work.correlation, size_bytes
        self._work.extend((_KIND_CODES[work.kind], work.start_ns, work.end_ns, *where))

    def take_call_number(self) -> int:
        """Return the number of the next call."""
        return self._driver.take_call_number()

    @property
    def _is_collecting(self) -> bool:
        return self in _members(self._driver)

    def _empty(self) -> None:
        self._left = self._record_limit
        self._work, self._calls, self._dependencies = array("q"), array("q"), array("q")
        self._memory = array("q")
        self._accesses = []
        self._names: dict[str, int] = {}
        self._detail_codes: dict[object, int] = {}
        self._details: list[WorkDetail] = []

    def _code(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _has_room(self) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        self.dropped_count += 1
        return False


class Collecting:
    """The sources that collect at a time: what is launched then is told to all of them."""

    def __init__(self, members: tuple[SimActivitySource, ...]) -> None:
        self.members = members

    def note_call(
        self, name: str, call_class: CallClass, start_ns: int, end_ns: int, *, number: int = 0, size_bytes: int = 0
    ) -> int:
        """Tell of a call of this thread, and return its number: the one that it has, or the next."""
        number = number or self.members[0].take_call_number()
        for one in self.members:
            one.note_call(name, call_class, start_ns, end_ns, number=number, size_bytes=size_bytes)
        return number

    def note_dependency(self, origin: StreamQueue, record: int, stream: StreamQueue, wait: int) -> None:
        """Tell that a stream waits for what another one recorded."""
        for one in self.members:
            one.note_dependency(origin, record, stream, wait)

    def note_sync(self, origin: StreamQueue | None, record: int, call: int) -> None:
        """Tell that a call of the host waited."""
        for one in self.members:
            one.note_sync(origin, record, call)

    def note_accesses(self, number: int, touched: list[Extent], node: int = -1) -> None:
        """Tell what work touches."""
        for one in self.members:
            one.note_accesses(number, touched, node)

    def note_memory(self, time_ns: int, stream: StreamQueue, name: str, value_bytes: int) -> None:
        """Tell how much memory a stream holds."""
        for one in self.members:
            one.note_memory(time_ns, stream, name, value_bytes)

    def note_work(self, spec: KernelSpec | CopySpec, work: DeviceWork, node: tuple[int, int]) -> None:
        """Tell of work that has ended."""
        for one in self.members:
            one.note_work(spec, work, node)


def _members(driver: SimDriver) -> tuple[SimActivitySource, ...]:
    return () if driver.source is None else driver.source.members


def _describe(spec: KernelSpec | CopySpec, preset: DevicePreset) -> WorkDetail:
    if isinstance(spec, CopySpec):
        return WorkDetail(full_name=spec.places or COPY_PLACES[spec.engine, spec.is_pinned])
    if spec.kind is SpanKind.FILL:
        return WorkDetail(full_name="device memory")
    shape = spec.shape or plain_shape(preset.slots_per_sm // spec.block_slots or 1, preset.sm_limits)
    return WorkDetail(
        full_name=f"simulated::{spec.name}{', generic cost' if spec.is_generic else ''}",
        grid=(spec.blocks, 1, 1),
        block=(shape.threads, 1, 1),
        registers=shape.registers,
        dynamic_shared_bytes=shape.shared_bytes,
        is_cooperative=spec.is_cooperative,
    )


def _make_batch(batch: type[B], flat: array[int]) -> B:
    """Turn rows that follow each other into the columns of a batch, in the order of its fields."""
    names = [column.name for column in fields(batch)]
    columns: dict[str, Any] = dict(zip(names, np.array(flat, np.int64).reshape(-1, len(names)).T.copy(), strict=True))
    if "value" in columns:
        columns["value"] = columns["value"].astype(np.float64)
    return batch(**columns)


def _make_accesses(noted: list[tuple[int, int, list[Extent]]]) -> AccessBatch:
    """Return what calls touch, each with its number and its node, as columns."""
    number, node = np.array([one[:2] for one in noted], np.int64).reshape(-1, 2).T
    count = np.array([len(touched) for *_, touched in noted], np.intp)
    rows = np.array([*chain.from_iterable(touched for *_, touched in noted)], np.int64).reshape(-1, 4).T.copy()
    buffer, begin, end, flags = rows
    flags |= np.repeat(node + 1 << NODE_SHIFT, count)
    return AccessBatch(correlation=np.repeat(number, count), buffer=buffer, begin=begin, end=end, flags=flags)
