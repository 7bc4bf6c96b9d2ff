"""The part of the battery that is about what really ran: kernels, copies and calls, as the backend's source tells of them.

Each check opens a session for its backend, and collects with a source of its own: no other may be collecting in the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from gpustreamlab.backends import (
    Activities,
    ActivitySource,
    Backend,
    BackendStream,
    CallBatch,
    CallClass,
    DependencyBatch,
    MemoryBatch,
    WorkBatch,
)
from gpustreamlab.model import SPAN_KINDS, WorkDetail
from gpustreamlab.session import Session
from gpustreamlab.testing._contract import SPIN_NS, ContractCheck, OpenSession
from gpustreamlab.typing import BoolArray, SpanKind

B = TypeVar("B", WorkBatch, CallBatch, DependencyBatch, MemoryBatch)
_CODES = {kind: code for code, kind in enumerate(SPAN_KINDS)}
_COPY_ITEMS = 1 << 20


def a_kernel_is_told_with_its_stream(open_session: OpenSession) -> None:
    """A kernel's record has the key of the stream that it was launched on, a name and its grid."""
    with open_session() as lab, _collecting(lab) as told:
        one, other = _stream(lab), _stream(lab)
        for stream, blocks in ((one, 3), (other, 5)):
            lab._backend.launch_spin(stream, SPIN_NS // 10, blocks=blocks, fill_sms=False)
        told.finish()
        for stream, blocks in ((one, 3), (other, 5)):
            (row,) = told.rows_on(stream)
            assert told.work.kind[row] == _CODES[SpanKind.KERNEL]
            assert told.names[told.work.name[row]]
            assert told.details[told.work.detail[row]].grid_blocks == blocks
            assert told.details[told.work.detail[row]].full_name
            assert told.work.size_bytes[row] == 0


def work_of_a_partition_is_told_with_its_context(open_session: OpenSession) -> None:
    """Kernels of partitions have their streams' keys, which differ in the context; without partitions, in the stream."""
    with open_session() as lab, _collecting(lab) as told:
        has_partitions = lab.partitions.capabilities.has("green-contexts")
        if has_partitions:
            lab.partition({"a": lab.device.sm_count // 2, "b": "rest"}, round="down")
        streams = [
            lab.stream(name, partition=name if has_partitions else None)._backend_stream  # its partition of the same name
            for name in "ab"
        ]
        for stream in streams:
            lab._backend.launch_spin(stream, SPIN_NS // 10, blocks=1, fill_sms=False)
        told.finish()
        assert [told.rows_on(stream).size for stream in streams] == [1, 1]
        one, other = (told.source.key_of(stream) for stream in streams)
        assert one != other
        assert (one[0] != other[0]) == has_partitions
        facts = told.source.describe_stream(*one)
        assert facts.sm_count == streams[0].sm_count


def a_kernel_lies_between_the_events_around_it(open_session: OpenSession) -> None:
    """Kernels and events are on one clock, within the stated errors."""
    with open_session() as lab, _collecting(lab) as told:
        backend, stream = lab._backend, _stream(lab)
        start, end = backend.acquire_event(), backend.acquire_event()
        stream.record(start)
        backend.launch_spin(stream, SPIN_NS, blocks=1, fill_sms=False)
        stream.record(end)
        told.finish()
        times = backend.resolve([start], [end], np.array([backend.host_time_ns()], np.int64))
        backend.release_events([start, end])
        (row,) = told.rows_on(stream)
        slack_ns = _slack_ns(backend, told.source)
        assert told.work.start_ns[row] >= times.start_ns[0] - slack_ns
        assert told.work.end_ns[row] <= times.end_ns[0] + slack_ns
        assert told.work.end_ns[row] - told.work.start_ns[row] >= SPIN_NS - slack_ns


def a_launch_is_told_with_its_thread(open_session: OpenSession) -> None:
    """A kernel's launch has the number that the kernel has, the thread that called, and a time before the kernel's."""
    with open_session() as lab, _collecting(lab) as told:
        streams = [_stream(lab) for _ in range(2)]
        idents: list[int] = []

        def launch(stream: BackendStream) -> None:
            idents.append(threading.get_ident() & 0xFFFF_FFFF)
            lab._backend.launch_spin(stream, SPIN_NS // 10, blocks=1, fill_sms=False)

        launch(streams[0])
        thread = threading.Thread(target=launch, args=(streams[1],))
        thread.start()
        thread.join()
        told.finish()
        info = lab._backend.clock_info()
        for stream, ident in zip(streams, idents, strict=True):
            (row,) = told.rows_on(stream)
            calls = told.calls_of(row)
            assert calls.size
            assert (told.calls.thread[calls] == ident).all()
            assert (told.calls.end_ns[calls] >= told.calls.start_ns[calls]).all()
            earliest_ns = told.work.start_ns[row] + _slack_ns(lab._backend, told.source) + info.host_error_ns
            assert told.calls.start_ns[calls].min() <= earliest_ns


def calls_are_numbered_in_order(open_session: OpenSession) -> None:
    """Launches of one thread have growing numbers, and host times in between those that the program read."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        before_ns = lab._backend.host_time_ns()
        for _ in range(10):
            lab._backend.launch_spin(stream, 10_000, blocks=1, fill_sms=False)
        after_ns = lab._backend.host_time_ns()
        told.finish()
        rows = told.rows_on(stream)
        rows = rows[np.argsort(told.work.start_ns[rows])]
        assert len(rows) == 10
        assert (np.diff(told.work.correlation[rows]) > 0).all()
        calls = np.concatenate([told.calls_of(row) for row in rows.tolist()])
        host_ns = told.calls.start_host_ns[calls]
        error_ns = lab._backend.clock_info().host_error_ns
        assert host_ns.min() >= before_ns - error_ns
        assert host_ns.max() <= after_ns + error_ns


def kernels_of_one_stream_do_not_overlap(open_session: OpenSession) -> None:
    """A kernel starts when the one before it in its stream has ended."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        for _ in range(20):
            lab._backend.launch_spin(stream, SPIN_NS // 50, blocks=1, fill_sms=False)
        told.finish()
        rows = told.rows_on(stream)
        order = rows[np.argsort(told.work.start_ns[rows])]
        assert len(rows) == 20
        assert (told.work.start_ns[order][1:] >= told.work.end_ns[order][:-1] - told.source.error_ns).all()
        assert (told.work.end_ns >= told.work.start_ns).all()


def kernels_of_two_streams_overlap(open_session: OpenSession) -> None:
    """Small kernels of two streams are told of as running side by side."""
    with open_session() as lab, _collecting(lab) as told:
        streams = [_stream(lab) for _ in range(2)]
        for stream in streams:
            lab._backend.launch_spin(stream, 5 * SPIN_NS, blocks=1, fill_sms=False)
        told.finish()
        (one,), (other,) = (told.rows_on(stream) for stream in streams)
        common_ns = told.work.end_ns[[one, other]].min() - told.work.start_ns[[one, other]].max()
        assert common_ns > SPIN_NS


def copies_and_fills_carry_bytes(open_session: OpenSession) -> None:
    """Copies say how much they moved and what between, fills how much they filled; each has its launch."""
    with open_session() as lab, _collecting(lab) as told:
        stream, xp = lab.stream("copies"), lab.xp
        host = lab.memory.pinned_empty(_COPY_ITEMS, "float32")
        with lab.on(stream):
            device = xp.zeros(_COPY_ITEMS, dtype="float32")
            device.set(host)
            device.get(out=host, blocking=False)
        told.finish()
        fills = told.rows_on(stream._backend_stream, SpanKind.FILL)
        copies = told.rows_on(stream._backend_stream, SpanKind.COPY)
        assert told.work.size_bytes[fills].tolist() == [host.nbytes]
        assert told.work.size_bytes[copies].tolist() == [host.nbytes] * 2
        places = [told.details[code].full_name for code in told.work.detail[copies]]
        assert places[0] != places[1]
        assert all(told.calls_of(row).size for row in (*fills.tolist(), *copies.tolist()))


def a_synchronisation_says_how_long_it_blocked(open_session: OpenSession) -> None:
    """The call that waited is told of, with its thread and as long as it took."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        lab._backend.launch_spin(stream, 10 * SPIN_NS, blocks=1, fill_sms=False)
        stream.synchronize()
        told.finish()
        waits = np.flatnonzero(told.calls.call_class == CallClass.SYNCHRONIZE)
        took_ns = told.calls.end_ns[waits] - told.calls.start_ns[waits]
        longest = waits[np.argmax(took_ns)]
        assert took_ns.max() > 5 * SPIN_NS
        assert told.calls.thread[longest] == threading.get_ident() & 0xFFFF_FFFF
        (row,) = told.rows_on(stream)
        slack_ns = _slack_ns(lab._backend, told.source) + lab._backend.clock_info().host_error_ns
        assert told.calls.end_ns[longest] >= told.work.end_ns[row] - slack_ns


def waiting_for_an_event_is_a_dependency(open_session: OpenSession) -> None:
    """A wait names both streams and both calls, which lie between the launches before and after them."""
    with open_session() as lab, _collecting(lab) as told:
        backend, first, second = lab._backend, _stream(lab), _stream(lab)
        event = backend.acquire_event()
        backend.launch_spin(first, SPIN_NS, blocks=1, fill_sms=False)
        first.record(event)
        second.wait(event)
        backend.launch_spin(second, SPIN_NS // 10, blocks=1, fill_sms=False)
        told.finish()
        backend.release_events([event])
        source, target = told.source.key_of(first), told.source.key_of(second)
        found = told.dependencies
        known = (found.source_stream == source[1]) & (found.target_stream == target[1])
        (row,) = np.flatnonzero(known)
        assert (found.source_context[row], found.target_context[row]) == (source[0], target[0])
        (produce,), (consume,) = told.rows_on(first), told.rows_on(second)
        numbers = told.work.correlation
        assert numbers[produce] < found.record[row] < found.wait[row] < numbers[consume]
        assert told.work.start_ns[consume] >= told.work.end_ns[produce] - told.source.error_ns


def work_outside_the_session_is_told_of(open_session: OpenSession) -> None:
    """Work of a stream that no lane stands for has its own key, and the stream can be described."""
    with open_session() as lab, _collecting(lab) as told:
        lane, other = lab.stream("lane"), _stream(lab)
        with lab.on(lane):
            lab._backend.launch_spin(other, SPIN_NS // 10, blocks=1, fill_sms=False)
        told.finish()
        assert told.rows_on(lane._backend_stream).size == 0
        assert told.rows_on(other).size == 1
        facts = told.source.describe_stream(*told.source.key_of(other))
        assert facts.name
        assert (facts.sm_count, facts.device) == (lab.device.sm_count, lab.device.ordinal)


def nothing_is_told_after_stop(open_session: OpenSession) -> None:
    """What is launched after `stop` is not told of; what was told of before can still be drained."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        lab._backend.launch_spin(stream, SPIN_NS // 10, blocks=1, fill_sms=False)
        lab._backend.synchronize()
        told.source.stop()
        told.source.stop()
        lab._backend.launch_spin(stream, SPIN_NS // 10, blocks=1, fill_sms=False)
        told.finish()
        assert told.rows_on(stream).size == 1


def a_source_can_start_again(open_session: OpenSession) -> None:
    """Only what is launched while it collects is told of, any number of times, and numbers go on growing."""
    with open_session() as lab, _collecting(lab) as told:
        streams = [_stream(lab) for _ in range(6)]
        for number, stream in enumerate(streams):
            if number % 2:
                told.source.stop()
            elif number:
                told.source.start()
            lab._backend.launch_spin(stream, SPIN_NS // 10, blocks=1, fill_sms=False)
            lab._backend.synchronize()
        told.finish()
        assert [told.rows_on(stream).size for stream in streams] == [1, 0, 1, 0, 1, 0]
        numbers = [int(told.work.correlation[told.rows_on(stream)[0]]) for stream in streams[::2]]
        assert numbers == sorted(set(numbers))


def each_record_is_returned_once(open_session: OpenSession) -> None:
    """Draining while work goes on neither loses a record nor returns it twice."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        for number in range(200):
            lab._backend.launch_spin(stream, 5_000, blocks=1, fill_sms=False)
            if number % 20 == 0:
                told.drain()
        told.finish()
        told.finish()
        rows = told.rows_on(stream)
        assert len(rows) == len(set(told.work.correlation[rows].tolist())) == 200
        assert told.source.dropped_count == 0
        assert told.source.lost_reason == ""


def draining_does_not_wait(open_session: OpenSession) -> None:
    """Work that runs is not told of yet, and asking does not wait for it."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        lab._backend.launch_spin(stream, 20 * SPIN_NS, blocks=1, fill_sms=False)
        told.drain()
        assert not stream.query()
        assert told.rows_on(stream).size == 0
        told.finish()
        assert told.rows_on(stream).size == 1


def memory_of_a_stream_is_told(open_session: OpenSession) -> None:
    """What arrays hold of a stream's pool is told of; freed memory stays reserved."""
    with open_session() as lab, _collecting(lab) as told:
        stream = lab.stream("memory")
        with lab.on(stream):
            array = lab.xp.empty(_COPY_ITEMS, dtype="float32")
        told.finish()
        held = told.last_memory(stream._backend_stream)
        assert held["pool_used_bytes"] >= 4 * _COPY_ITEMS
        assert held["pool_reserved_bytes"] >= held["pool_used_bytes"]
        del array
        told.finish()
        after = told.last_memory(stream._backend_stream)
        assert after["pool_used_bytes"] <= held["pool_used_bytes"] - 4 * _COPY_ITEMS
        assert after["pool_reserved_bytes"] == held["pool_reserved_bytes"]


def closing_a_source_is_silent(open_session: OpenSession) -> None:
    """Closing twice, in the middle of work, says nothing and leaves the device working."""
    with open_session() as lab:
        source = lab._backend.activity_source()
        source.start()
        stream = _stream(lab)
        lab._backend.launch_spin(stream, SPIN_NS, blocks=1, fill_sms=False)
        source.close()
        source.close()
        source.stop()
        stream.synchronize()
        assert stream.query()
        assert source.description


CAPTURE_CHECKS: tuple[ContractCheck, ...] = (
    a_kernel_is_told_with_its_stream,
    work_of_a_partition_is_told_with_its_context,
    a_kernel_lies_between_the_events_around_it,
    a_launch_is_told_with_its_thread,
    calls_are_numbered_in_order,
    kernels_of_one_stream_do_not_overlap,
    kernels_of_two_streams_overlap,
    copies_and_fills_carry_bytes,
    a_synchronisation_says_how_long_it_blocked,
    waiting_for_an_event_is_a_dependency,
    work_outside_the_session_is_told_of,
    nothing_is_told_after_stop,
    a_source_can_start_again,
    each_record_is_returned_once,
    draining_does_not_wait,
    memory_of_a_stream_is_told,
    closing_a_source_is_silent,
)
"""Every check of a backend whose kernels can be captured, to run one by one."""


@dataclass(eq=False)
class _Told:
    """Everything that a source told of, with one table of names and one of details."""

    backend: Backend
    source: ActivitySource

    def __post_init__(self) -> None:
        self.work, self.calls, self.dependencies, self.memory = WorkBatch(), CallBatch(), DependencyBatch(), MemoryBatch()
        self.names: list[str] = []
        self.details: list[WorkDetail] = []

    def finish(self) -> None:
        """Wait for the device, and take all that there is."""
        self.backend.synchronize()
        self._keep(self.source.drain(is_last=True))

    def drain(self) -> None:
        """Take what is complete."""
        self._keep(self.source.drain())

    def rows_on(self, stream: BackendStream, kind: SpanKind = SpanKind.KERNEL) -> Any:
        """Return the rows of a stream's work, in the order of their start."""
        context, number = self.source.key_of(stream)
        here = (self.work.context == context) & (self.work.stream == number) & (self.work.kind == _CODES[kind])
        rows = np.flatnonzero(here)
        return rows[np.argsort(self.work.start_ns[rows], kind="stable")]

    def calls_of(self, row: int) -> Any:
        """Return the calls that enqueued a row's work."""
        is_launch: BoolArray = self.calls.call_class == CallClass.LAUNCH
        return np.flatnonzero(is_launch & (self.calls.correlation == self.work.correlation[row]))

    def last_memory(self, stream: BackendStream) -> dict[str, float]:
        """Return the latest value of each of a stream's counters."""
        context, number = self.source.key_of(stream)
        rows = np.flatnonzero((self.memory.context == context) & (self.memory.stream == number))
        return {self.names[self.memory.name[row]]: float(self.memory.value[row]) for row in rows}

    def _keep(self, new: Activities) -> None:
        name_shift, detail_shift = len(self.names), len(self.details)
        self.work = _join(self.work, new.work, {"name": name_shift, "detail": detail_shift})
        self.calls = _join(self.calls, new.calls, {"name": name_shift})
        self.dependencies = _join(self.dependencies, new.dependencies, {})
        self.memory = _join(self.memory, new.memory, {"name": name_shift})
        self.names += new.names
        self.details += new.details


@contextmanager
def _collecting(lab: Session) -> Iterator[_Told]:
    """Collect for the length of a block, after a first launch of the kernel: that loads code."""
    stream = lab._backend.create_stream(priority=0)
    lab._backend.launch_spin(stream, 1_000, blocks=1, fill_sms=False)
    lab._backend.synchronize()
    stream.close()
    source = lab._backend.activity_source()
    source.start()
    try:
        yield _Told(lab._backend, source)
    finally:
        source.close()


def _join(old: B, new: B, shifts: dict[str, int]) -> B:
    """Put a batch behind another, with its codes shifted."""
    columns = {}
    for column in fields(new):
        values = getattr(new, column.name)
        shifted = np.where(values < 0, values, values + shifts.get(column.name, 0))
        columns[column.name] = np.concatenate([getattr(old, column.name), shifted if column.name in shifts else values])
    return type(new)(**columns)


def _stream(lab: Session) -> BackendStream:
    """Make a stream that is no lane of the session."""
    return lab._backend.create_stream(priority=0)


def _slack_ns(backend: Backend, source: ActivitySource) -> int:
    """Return how far a kernel may seem to stick out of the events around it."""
    info = backend.clock_info()
    return source.error_ns + info.clock_error_ns + info.range_error_ns + info.range_correction_ns
