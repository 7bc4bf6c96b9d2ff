"""What a source of activities has been told of and has not given away yet: flat, bounded, cheap to add to."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from gpustreamlab.backends._activity import (
    Activities,
    CallBatch,
    CallClass,
    DependencyBatch,
    MemoryBatch,
    WorkBatch,
)
from gpustreamlab.backends.sim._commands import COPY_PLACES, CopySpec, DeviceWork, KernelSpec, Origin, StreamQueue
from gpustreamlab.model import SM_SHARED_BYTES, SPAN_KINDS, WorkDetail
from gpustreamlab.typing import SpanKind

KEPT_RECORDS = 1_000_000
"""Records that wait to be drained, at most; newer ones are dropped and counted."""

B = TypeVar("B", WorkBatch, CallBatch, DependencyBatch, MemoryBatch)
_KIND_CODES = {kind: code for code, kind in enumerate(SPAN_KINDS)}


class ActivityLog:
    """Collects records. Its owner holds the driver's lock for every call.

    Parameters
    ----------
    take_number
        Returns the next number of a call.
    slots_per_sm
        Of the device: how many blocks fit on an SM is told as shared memory.
    record_limit
        Records that it keeps.
    """

    def __init__(self, take_number: Callable[[], int], *, slots_per_sm: int, record_limit: int = KEPT_RECORDS) -> None:
        self.take_number = take_number
        """Returns the number of the next call."""
        self._slot_bytes = SM_SHARED_BYTES // slots_per_sm
        self._record_limit = record_limit
        self._pending: dict[int, KernelSpec | CopySpec] = {}
        self.dropped_count = 0
        """Records for which there was no room."""
        self._empty()

    @property
    def is_waiting(self) -> bool:
        """Whether work that it was told of has not ended."""
        return bool(self._pending)

    # Calls

    def expect(self, spec: KernelSpec | CopySpec) -> int:
        """Give a call that enqueues work its number; the work is told of when it has ended."""
        number = self.take_number()
        self._pending[number] = spec
        return number

    def note_call(
        self, name: str, call_class: CallClass, start_ns: int, end_ns: int, *, number: int = 0, size_bytes: int = 0
    ) -> int:
        """Keep a call of this thread, and return its number: the one that it has, or the next."""
        number = number or self.take_number()
        if self._has_room():
            code = self._names.setdefault(name, len(self._names))
            thread = threading.get_ident() & 0xFFFF_FFFF
            self._calls.extend((start_ns, end_ns, start_ns, thread, code, call_class, number, size_bytes))
        return number

    def note_dependency(self, origin: Origin, stream: StreamQueue, number: int) -> None:
        """Keep that a stream waits for what another one recorded."""
        if self._has_room():
            self._dependencies.extend((*origin, stream.context, stream.number, number))

    # Device

    def note_work(self, work: DeviceWork) -> None:
        """Keep work that has ended, if its launch was told of."""
        spec = self._pending.pop(work.correlation, None)
        if spec is None or not self._has_room():
            return
        name = self._names.setdefault(work.name, len(self._names))
        key = work.name, work.blocks, *((spec[4],) if isinstance(spec, CopySpec) else (work.kind, spec.block_slots))
        detail = self._detail_codes.get(key)
        if detail is None:
            detail = self._detail_codes[key] = len(self._details)
            self._details.append(_describe(spec, self._slot_bytes))
        size_bytes = 0 if work.kind is SpanKind.KERNEL else work.size_bytes
        where = work.context, work.stream, name, detail, work.correlation, size_bytes
        self._work.extend((_KIND_CODES[work.kind], work.start_ns, work.end_ns, *where))

    def note_memory(self, time_ns: int, stream: StreamQueue, name: str, value_bytes: int) -> None:
        """Keep how much memory a stream holds."""
        if self._has_room():
            code = self._names.setdefault(name, len(self._names))
            self._memory.extend((time_ns, stream.context, stream.number, code, value_bytes))

    # Giving away

    def take(self) -> Callable[[], Activities]:
        """Give away what is there; the returned function, which needs no lock, makes columns of it."""
        parts = (self._work, self._calls, self._dependencies, self._memory, tuple(self._names), tuple(self._details))
        self._empty()
        return lambda: _build(*parts)

    def clear(self) -> None:
        """Forget everything, also the work that has not ended."""
        self._empty()
        self._pending.clear()

    def _empty(self) -> None:
        self._left = self._record_limit
        self._work, self._calls, self._dependencies, self._memory = array("q"), array("q"), array("q"), array("q")
        self._names: dict[str, int] = {}
        self._detail_codes: dict[object, int] = {}
        self._details: list[WorkDetail] = []

    def _has_room(self) -> bool:
        if self._left > 0:
            self._left -= 1
            return True
        self.dropped_count += 1
        return False


def _describe(spec: KernelSpec | CopySpec, slot_bytes: int) -> WorkDetail:
    if isinstance(spec, CopySpec):
        return WorkDetail(full_name=COPY_PLACES[spec.engine, spec.is_pinned])
    if spec.kind is SpanKind.FILL:
        return WorkDetail(full_name="device memory")
    shared_bytes = spec.block_slots * slot_bytes
    return WorkDetail(full_name=f"simulated::{spec.name}", grid=(spec.blocks, 1, 1), dynamic_shared_bytes=shared_bytes)


def _build(
    work: array[int],
    calls: array[int],
    dependencies: array[int],
    memory: array[int],
    names: tuple[str, ...],
    details: tuple[WorkDetail, ...],
) -> Activities:
    return Activities(
        work=_make_batch(WorkBatch, work),
        calls=_make_batch(CallBatch, calls),
        dependencies=_make_batch(DependencyBatch, dependencies),
        memory=_make_batch(MemoryBatch, memory),
        names=names,
        details=details,
    )


def _make_batch(batch: type[B], flat: array[int]) -> B:
    """Turn rows that follow each other into the columns of a batch, in the order of its fields."""
    names = [column.name for column in fields(batch)]
    columns: dict[str, Any] = dict(zip(names, np.array(flat, np.int64).reshape(-1, len(names)).T.copy(), strict=True))
    if "value" in columns:
        columns["value"] = columns["value"].astype(np.float64)
    return batch(**columns)
