"""The part of the battery that is about what really ran: kernels, copies and calls, as the backend's source tells of them.

Each check opens a session for its backend, and collects with a source of its own: no other may be collecting in the process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from gpustreamlab.backends import Backend, BackendStream, CallClass
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.session import Session
from gpustreamlab.testing._contract import SPIN_NS, ContractCheck, OpenSession, checks_in, in_thread
from gpustreamlab.typing import SpanKind

_COPY_ITEMS = 1 << 20


def a_kernel_is_told_with_its_stream(open_session: OpenSession) -> None:
    """A kernel's record has the key of its stream, a name and its grid; small ones of two streams run side by side."""
    with open_session() as lab, _collecting(lab) as told:
        grids = {_stream(lab): 3, _stream(lab): 5}
        for stream, blocks in grids.items():
            _spin(lab, stream, 5 * SPIN_NS, blocks=blocks)
        told.finish()
        for stream, blocks in grids.items():
            (kernel,) = told.on(stream)
            assert kernel.name
            assert kernel.detail.full_name
            assert (kernel.detail.grid_blocks, kernel.size_bytes) == (blocks, 0)
        (one,), (other,) = map(told.on, grids)
        assert min(one.end_ns, other.end_ns) - max(one.start_ns, other.start_ns) > SPIN_NS


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
            _spin(lab, stream)
        told.finish()
        assert [len(told.on(stream)) for stream in streams] == [1, 1]
        one, other = (told.source.key_of(stream) for stream in streams)
        assert one != other
        assert (one[0] != other[0]) == has_partitions
        assert told.source.describe_stream(*one).sm_count == streams[0].sm_count


def a_kernel_lies_between_the_events_around_it(open_session: OpenSession) -> None:
    """Kernels and events are on one clock, within the stated errors."""
    with open_session() as lab, _collecting(lab) as told:
        backend, stream = lab._backend, _stream(lab)
        start, end = backend.acquire_event(), backend.acquire_event()
        stream.record(start)
        _spin(lab, stream, SPIN_NS)
        stream.record(end)
        told.finish()
        times = backend.resolve([start], [end], np.array([backend.host_time_ns()], np.int64))
        backend.release_events([start, end])
        (kernel,) = told.on(stream)
        assert kernel.start_ns >= times.start_ns[0] - told.slack_ns
        assert kernel.end_ns <= times.end_ns[0] + told.slack_ns
        assert kernel.end_ns - kernel.start_ns >= SPIN_NS - told.slack_ns


def a_launch_is_told_with_its_thread(open_session: OpenSession) -> None:
    """A kernel's launch has the number that the kernel has, the thread that called, and a time before the kernel's."""
    with open_session() as lab, _collecting(lab) as told:
        launched: list[tuple[BackendStream, int]] = []

        def launch() -> None:
            launched.append((_stream(lab), threading.get_ident() & 0xFFFF_FFFF))
            _spin(lab, launched[-1][0])

        launch()
        in_thread(launch)
        told.finish()
        error_ns = told.slack_ns + lab._backend.clock_info().host_error_ns
        for stream, ident in launched:
            (kernel,) = told.on(stream)
            calls = told.launches_of(kernel)
            assert {call.thread for call in calls} == {ident}
            assert all(call.end_ns >= call.start_ns for call in calls)
            assert min(call.start_ns for call in calls) <= kernel.start_ns + error_ns


def kernels_of_one_stream_follow_each_other(open_session: OpenSession) -> None:
    """A kernel starts when the one before it has ended; launches have growing numbers, and host times of the program's own."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        before_ns = lab._backend.host_time_ns()
        for _ in range(20):
            _spin(lab, stream, SPIN_NS // 50)
        after_ns = lab._backend.host_time_ns()
        told.finish()
        kernels = told.on(stream)
        assert len(kernels) == 20
        for first, second in pairwise(kernels):
            assert second.start_ns >= first.end_ns - told.source.error_ns
            assert second.correlation > first.correlation
        host_ns = [call.start_host_ns for kernel in kernels for call in told.launches_of(kernel)]
        error_ns = lab._backend.clock_info().host_error_ns
        assert before_ns - error_ns <= min(host_ns) <= max(host_ns) <= after_ns + error_ns


def copies_and_fills_carry_bytes(open_session: OpenSession) -> None:
    """Copies say how much they moved and what between, fills how much they filled; each has its launch."""
    with open_session() as lab, _collecting(lab) as told:
        lane, host = lab.stream("copies"), lab.memory.pinned_empty(_COPY_ITEMS, "float32")
        with lab.on(lane):
            device = lab.xp.zeros(_COPY_ITEMS, dtype="float32")
            device.set(host)
            device.get(out=host, blocking=False)
        told.finish()
        fills = told.on(lane._backend_stream, SpanKind.FILL)
        copies = told.on(lane._backend_stream, SpanKind.COPY)
        assert [work.size_bytes for work in (*fills, *copies)] == [host.nbytes] * 3
        assert copies[0].detail.full_name != copies[1].detail.full_name
        assert all(told.launches_of(work) for work in (*fills, *copies))


def a_synchronisation_says_how_long_it_blocked(open_session: OpenSession) -> None:
    """The call that waited is told of, with its thread and as long as it took."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        _spin(lab, stream, 10 * SPIN_NS)
        stream.synchronize()
        told.finish()
        waits = [call for call in told.rows["calls"] if call.call_class == CallClass.SYNCHRONIZE]
        longest = max(waits, key=lambda call: call.end_ns - call.start_ns)
        assert longest.end_ns - longest.start_ns > 5 * SPIN_NS
        assert longest.thread == threading.get_ident() & 0xFFFF_FFFF
        (kernel,) = told.on(stream)
        assert longest.end_ns >= kernel.end_ns - told.slack_ns - lab._backend.clock_info().host_error_ns


def waiting_for_an_event_is_a_dependency(open_session: OpenSession) -> None:
    """A wait names both streams and both calls, which lie between the launches before and after them."""
    with open_session() as lab, _collecting(lab) as told:
        first, second, event = _stream(lab), _stream(lab), lab._backend.acquire_event()
        _spin(lab, first, SPIN_NS)
        first.record(event)
        second.wait(event)
        _spin(lab, second)
        told.finish()
        lab._backend.release_events([event])
        (found,) = (
            row
            for row in told.rows["dependencies"]
            if (row.source_context, row.source_stream) == told.source.key_of(first)
            and (row.target_context, row.target_stream) == told.source.key_of(second)
        )
        (produce,), (consume,) = told.on(first), told.on(second)
        assert produce.correlation < found.record < found.wait < consume.correlation
        assert consume.start_ns >= produce.end_ns - told.source.error_ns


def work_outside_the_session_is_told_of(open_session: OpenSession) -> None:
    """Work of a stream that is none of the session has its own key, and the stream can be described."""
    with open_session() as lab, _collecting(lab) as told:
        lane, other = lab.stream("lane"), _stream(lab)
        with lab.on(lane):
            _spin(lab, other)
        told.finish()
        assert [len(told.on(stream)) for stream in (lane._backend_stream, other)] == [0, 1]
        facts = told.source.describe_stream(*told.source.key_of(other))
        assert facts.name
        assert (facts.sm_count, facts.device) == (lab.device.sm_count, lab.device.ordinal)


def a_source_can_stop_and_start_again(open_session: OpenSession) -> None:
    """Only what is launched while it collects is told of, any number of times, and numbers go on growing."""
    with open_session() as lab, _collecting(lab) as told:
        streams = [_stream(lab) for _ in range(6)]
        for number, stream in enumerate(streams):
            if number % 2:
                told.source.stop()
                told.source.stop()
            elif number:
                told.source.start()
            _spin(lab, stream)
            lab._backend.synchronize()
        told.finish()
        assert [len(told.on(stream)) for stream in streams] == [1, 0, 1, 0, 1, 0]
        numbers = [told.on(stream)[0].correlation for stream in streams[::2]]
        assert numbers == sorted(set(numbers))


def each_record_is_returned_once(open_session: OpenSession) -> None:
    """Draining while work goes on neither waits, nor loses a record, nor returns it twice."""
    with open_session() as lab, _collecting(lab) as told:
        stream = _stream(lab)
        for number in range(200):
            _spin(lab, stream, 5_000)
            if number % 20 == 0:
                told.drain()
        before = len(told.on(stream))
        _spin(lab, stream, 20 * SPIN_NS)
        told.drain()
        assert (stream.query(), before <= len(told.on(stream)) <= 200) == (False, True)
        told.finish()
        told.finish()
        numbers = [kernel.correlation for kernel in told.on(stream)]
        assert len(numbers) == len(set(numbers)) == 201
        assert (told.source.dropped_count, told.source.lost_reason) == (0, "")


def memory_of_a_stream_is_told(open_session: OpenSession) -> None:
    """What arrays hold of a stream's pool is told of; freed memory stays reserved."""
    with open_session() as lab, _collecting(lab) as told:
        lane = lab.stream("memory")
        with lab.on(lane):
            array = lab.xp.empty(_COPY_ITEMS, dtype="float32")
        told.finish()
        held = told.last_memory(lane._backend_stream)
        assert held["pool_reserved_bytes"] >= held["pool_used_bytes"] >= 4 * _COPY_ITEMS
        del array
        told.finish()
        after = told.last_memory(lane._backend_stream)
        assert after["pool_used_bytes"] <= held["pool_used_bytes"] - 4 * _COPY_ITEMS
        assert after["pool_reserved_bytes"] == held["pool_reserved_bytes"]


def closing_a_source_is_silent(open_session: OpenSession) -> None:
    """Closing twice, in the middle of work, says nothing and leaves the device working."""
    with open_session() as lab:
        source = lab._backend.activity_source()
        source.start()
        stream = _stream(lab)
        _spin(lab, stream, SPIN_NS)
        source.close()
        source.close()
        source.stop()
        stream.synchronize()
        assert stream.query()
        assert source.description


CAPTURE_CHECKS: tuple[ContractCheck, ...] = checks_in(globals())
"""Every check of a backend whose kernels can be captured, to run one by one."""


class _Told:
    """Everything that a source told of: a row for each record, which has its columns, and its name and detail in full."""

    def __init__(self, backend: Backend) -> None:
        self.source = backend.activity_source()
        self.rows: dict[str, list[Any]] = {"work": [], "calls": [], "dependencies": [], "memory": []}
        self._backend = backend

    @property
    def slack_ns(self) -> int:
        """How far a kernel may seem to stick out of the events around it."""
        info = self._backend.clock_info()
        return self.source.error_ns + info.clock_error_ns + info.range_error_ns + info.range_correction_ns

    def finish(self) -> None:
        """Wait for the device, and take all that there is."""
        self._backend.synchronize()
        self.drain(is_last=True)

    def drain(self, *, is_last: bool = False) -> None:
        """Take what is complete."""
        told = self.source.drain(is_last=is_last)
        for kind, rows in self.rows.items():
            batch = getattr(told, kind)
            columns = [column.name for column in fields(batch)]
            for values in zip(*(getattr(batch, column).tolist() for column in columns), strict=True):
                row = SimpleNamespace(**dict(zip(columns, values, strict=True)))
                if "name" in columns:
                    row.name = told.names[row.name]
                if kind == "work":
                    row.detail = told.details[row.detail] if row.detail >= 0 else None
                rows.append(row)

    def on(self, stream: BackendStream, kind: SpanKind = SpanKind.KERNEL) -> list[Any]:
        """Return a stream's work, in the order of its start."""
        key, code = self.source.key_of(stream), SPAN_KINDS.index(kind)
        rows = [row for row in self.rows["work"] if (row.context, row.stream) == key and row.kind == code]
        return sorted(rows, key=lambda row: row.start_ns)

    def launches_of(self, work: Any) -> list[Any]:
        """Return the calls that enqueued work."""
        calls = self.rows["calls"]
        return [call for call in calls if call.call_class == CallClass.LAUNCH and call.correlation == work.correlation]

    def last_memory(self, stream: BackendStream) -> dict[str, float]:
        """Return the latest value of each of a stream's counters."""
        key = self.source.key_of(stream)
        return {row.name: row.value for row in self.rows["memory"] if (row.context, row.stream) == key}


@contextmanager
def _collecting(lab: Session) -> Iterator[_Told]:
    """Collect for the length of a block, after a first launch of the kernel: that loads code."""
    stream = _stream(lab)
    _spin(lab, stream, 1_000)
    lab._backend.synchronize()
    stream.close()
    told = _Told(lab._backend)
    told.source.start()
    try:
        yield told
    finally:
        told.source.close()


def _spin(lab: Session, stream: BackendStream, duration_ns: int = SPIN_NS // 10, *, blocks: int = 1) -> None:
    lab._backend.launch_spin(stream, duration_ns, blocks=blocks, fill_sms=False)


def _stream(lab: Session) -> BackendStream:
    """Make a stream that is none of the session."""
    return lab._backend.create_stream(priority=0)
