"""One battery for every backend. Each check takes a function that opens a fresh session and asserts what a user may rely on.

The checks assert order, nesting and state, never how long something took: they hold on any device. Run them all with
pytest::

    @pytest.mark.parametrize("check", CONTRACT_CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(lambda **options: gpustreamlab.Session(MyBackend(), capture="ranges", **options))
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from functools import partial
from inspect import signature
from itertools import pairwise
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np

from gpustreamlab.errors import (
    EventClosedError,
    EventNotRecordedError,
    InvalidNameError,
    OptionError,
    PartitionError,
    PartitionInUseError,
    PartitionNotFoundError,
    PartitionUnavailableError,
    PartitionWarning,
    SelectionError,
    SessionClosedError,
    StreamClosedError,
    StreamExistsError,
    StreamNotFoundError,
    StreamRefusedError,
)
from gpustreamlab.model import Layout, Trace
from gpustreamlab.session import Session
from gpustreamlab.typing import LaneKind
from gpustreamlab.workloads import spin, spin_card

OpenSession: TypeAlias = Callable[..., Session]
ContractCheck: TypeAlias = Callable[[OpenSession], None]

SPIN_NS = 2_000_000  # Long against a launch, so that what is enqueued behind it finds it running


def checks_in(module: dict[str, Any]) -> tuple[ContractCheck, ...]:
    """Return the checks of a module in order: its functions that take ``open_session`` alone."""
    functions = [value for value in module.values() if isinstance(value, FunctionType)]
    return tuple(function for function in functions if [*signature(function).parameters] == ["open_session"])


def work_of_one_stream_runs_in_order(open_session: OpenSession) -> None:
    """Ranges of one stream follow each other, in the order in which they were enqueued."""
    with open_session() as lab:
        lab.stream("a")
        for label in "xyz":
            with lab.on("a", label):
                spin(lab, SPIN_NS // 10)
        trace = finished(lab)
        assert _names(trace) == ["x", "y", "z"]
        assert (trace.start_ns[1:] >= trace.end_ns[:-1]).all()


def streams_overlap(open_session: OpenSession) -> None:
    """Small kernels of different streams run side by side."""
    with open_session() as lab:
        for name in "ab":
            with lab.on(lab.stream(name), name):
                spin(lab, SPIN_NS)
        finished(lab)
        assert lab.trace.overlap().common_ns[0, 1] > SPIN_NS // 2


def waiting_orders_two_streams(open_session: OpenSession) -> None:
    """Work behind a wait, for an event or a stream, starts after the work in front has ended, and the trace has the edge."""
    for waits_for_event in (True, False):
        with open_session() as lab:
            first, second = lab.stream("first"), lab.stream("second")
            with lab.on(first, "produce"):
                spin(lab, SPIN_NS)
            second.wait(first.record() if waits_for_event else first)
            with lab.on(second, "consume"):
                spin(lab, SPIN_NS // 10)
            trace = finished(lab)
            produce, consume = row_of(trace, "produce"), row_of(trace, "consume")
            assert trace.start_ns[consume] >= trace.end_ns[produce] - trace.metadata.range_error_ns
            assert (trace.edges.source.tolist(), trace.edges.target.tolist()) == ([produce], [consume])


def a_wait_means_the_recording_before_it(open_session: OpenSession) -> None:
    """Recording an event again, or giving it back, does not change what an earlier wait waits for."""
    with open_session() as lab:
        slow, quick, waiting = lab.stream("slow"), lab.stream("quick"), lab.stream("waiting")
        with lab.on(slow, "slow"):
            spin(lab, 5 * SPIN_NS)
        event = quick.record()
        waiting.wait(event)
        slow.record(event)
        event.close()
        with lab.on(waiting, "waiting"):
            spin(lab, SPIN_NS // 10)
        trace = finished(lab)
        assert trace.end_ns[row_of(trace, "waiting")] < trace.end_ns[row_of(trace, "slow")]


def events_tell_when_they_happen(open_session: OpenSession) -> None:
    """An event is done when the work in front of it is, and never-recorded events are nothing to wait for."""
    with open_session() as lab:
        stream, never = lab.stream("a"), lab.event()
        assert never.query()
        never.synchronize()
        stream.wait(never)
        with lab.on(stream):
            spin(lab, 10 * SPIN_NS)
        event = stream.record()
        assert not event.query()
        assert not stream.query()
        event.synchronize()
        assert event.query()
        stream.synchronize()
        assert stream.query()


def elapsed_times_add_up(open_session: OpenSession) -> None:
    """Times between events grow along a stream, and the parts add up to the whole."""
    with open_session() as lab:
        stream = lab.stream("a")
        events = [stream.record()]
        for _ in range(3):
            with lab.on(stream):
                spin(lab, SPIN_NS // 2)
            events.append(stream.record())
        parts = [first.elapsed_ns(second) for first, second in pairwise(events)]
        assert all(part >= SPIN_NS // 2 for part in parts)
        assert abs(events[0].elapsed_ns(events[-1]) - sum(parts)) <= 3
        expect(EventNotRecordedError, lambda: events[0].elapsed_ns(lab.event()))


def selection_nests_and_is_restored(open_session: OpenSession) -> None:
    """Each thread has its own selection; it nests, an exception restores it, and leaving in a wrong order is an error."""
    with open_session() as lab:
        outer, inner = lab.stream("outer"), lab.stream("inner")
        seen: list[object] = []
        with lab.on(outer):
            with lab.on(inner):
                assert lab.current is inner
                in_thread(lambda: seen.append(lab.current))
            assert lab.current is outer
            expect(ZeroDivisionError, lambda: _fail_on(lab, inner))
            assert seen == [None]
            assert lab.current is outer
        first, second = lab.on(outer), lab.on(inner)
        first.__enter__()
        second.__enter__()
        expect(SelectionError, lambda: first.__exit__(None, None, None))
        second.__exit__(None, None, None)
        assert _current(lab) is None


def ranges_nest(open_session: OpenSession) -> None:
    """A range inside another has it as its parent, and lies inside it."""
    with open_session() as lab:
        with lab.on(lab.stream("a"), "outer"), lab.range("middle"):
            spin(lab, SPIN_NS // 10)
            with lab.range("inner"):
                spin(lab, SPIN_NS // 10)
        trace = finished(lab)
        outer, middle, inner = (row_of(trace, name) for name in ("outer", "middle", "inner"))
        assert trace.parent[[outer, middle, inner]].tolist() == [-1, outer, middle]
        for child, parent in ((middle, outer), (inner, middle)):
            assert trace.start_ns[child] >= trace.start_ns[parent]
            assert trace.end_ns[child] <= trace.end_ns[parent]
        expect(SelectionError, lambda: lab.range("nowhere"))


def ranges_of_threads_stay_apart(open_session: OpenSession) -> None:
    """Ranges of several threads are all kept, each with its thread and no parent in another."""
    with open_session() as lab:
        streams = [lab.stream(f"s{number}") for number in range(4)]

        def work(number: int) -> None:
            for _ in range(50):
                with lab.on(streams[number], f"range-{number}"):
                    spin(lab, 1_000)

        threads = [threading.Thread(target=work, args=(number,), name=f"worker-{number}") for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        trace = finished(lab)
        assert len(trace) == 200
        assert (trace.parent == -1).all()
        for row in range(len(trace)):
            assert trace.threads[trace.thread[row]][-1] == trace.names[trace.name[row]][-1]


def a_range_may_end_in_another_thread(open_session: OpenSession) -> None:
    """A range that was opened by hand covers the work until any thread ends it."""
    with open_session() as lab:
        stream = lab.stream("a")
        opened = lab.recording.start_range(stream, "handed over")
        with lab.on(stream, "work"):
            spin(lab, SPIN_NS // 10)
        in_thread(opened.end)
        opened.end()
        trace = finished(lab)
        handed, work = row_of(trace, "handed over"), row_of(trace, "work")
        assert trace.start_ns[handed] <= trace.start_ns[work]
        assert trace.end_ns[handed] >= trace.end_ns[work] - 2 * trace.metadata.range_error_ns


def arrays_are_right(open_session: OpenSession) -> None:
    """Work in a pipeline of streams gives what NumPy gives."""
    with open_session() as lab:
        host = lab.memory.pinned_empty((64, 64), "float32")
        host[...] = np.arange(64 * 64, dtype="float32").reshape(64, 64) / 64
        back = lab.memory.pinned_empty((64, 64), "float32")
        upload, compute, download = (lab.stream(name) for name in ("upload", "compute", "download"))
        with lab.on(upload):
            # In the selection: with none, arrays land on the device that happens to be current.
            device = lab.xp.empty((64, 64), dtype="float32")
            device.set(host)
        compute.wait(upload)
        with lab.on(compute):
            result = lab.xp.sqrt(device) + device.T
        download.wait(compute)
        with lab.on(download):
            result.get(out=back, blocking=False)
        lab.synchronize()
        np.testing.assert_allclose(back, np.sqrt(host) + host.T, rtol=1e-6)


def closing_waits_for_work_in_flight(open_session: OpenSession) -> None:
    """Closing keeps the ranges of work that still runs, and may be called twice."""
    lab = open_session()
    with lab.on(lab.stream("a"), "long"):
        spin(lab, 5 * SPIN_NS)
    lab.close()
    lab.close()
    assert _names(lab.trace) == ["long"]
    assert lab.trace.duration_ns[0] >= 5 * SPIN_NS - 2 * lab.trace.metadata.range_error_ns
    assert lab.trace.metadata.pending_spans == 0


def a_snapshot_never_waits(open_session: OpenSession) -> None:
    """A trace taken while work runs leaves the work out and counts it."""
    with open_session() as lab:
        with lab.on(lab.stream("a"), "long"):
            spin(lab, 20 * SPIN_NS)
        trace = lab.trace
        assert (len(trace), trace.metadata.pending_spans) == (0, 1)
        assert len(finished(lab)) == 1


def use_after_close_says_so(open_session: OpenSession) -> None:
    """Every door of a closed session, stream or event gives the error that names it."""
    lab = open_session()
    stream, event = lab.stream("a"), lab.event()
    event.close()
    expect(EventClosedError, lambda: stream.wait(event), lambda: stream.record(event))
    closed = lab.stream("b")
    closed.close()
    uses = (closed.record, closed.query, closed.synchronize, closed.__cuda_stream__, lambda: lab.on(closed))
    expect(StreamClosedError, *uses)
    lab.close()
    expect(SessionClosedError, lambda: lab.stream("a"), lambda: lab.on("a"), lab.event, lab.synchronize, lab.__enter__)
    expect(StreamClosedError, stream.record)


def misuse_is_told(open_session: OpenSession) -> None:
    """Names, priorities and foreign streams that cannot be used are refused with a reason, and nothing is left behind."""
    with open_session() as lab:
        lab.stream("copy", priority=-1)
        wrong_names: tuple[Any, ...] = ("", "a b", "a,b", "x" * 10_000, "<b>", "🚀", None)
        expect(InvalidNameError, *(partial(lab.stream, name) for name in wrong_names))
        wrong_priorities: tuple[Any, ...] = (1, 10**9, -(10**9), True, 0.5)
        expect(OptionError, *(partial(lab.stream, "new", priority=priority) for priority in wrong_priorities))
        expect(StreamExistsError, lambda: lab.stream("copy", priority=0))
        expect(StreamNotFoundError, lambda: lab.on("cpoy"))
        lenders = (*map(_Lender, (0, 1, 2)), object())
        expect(StreamRefusedError, *(partial(lab.stream, "lent", external=lender) for lender in lenders))
        assert list(lab.streams) == ["copy"]
        assert lab.stream("copy") is lab.stream("copy", priority=-1)


def priorities_are_kept(open_session: OpenSession) -> None:
    """Streams have the priority that was asked for."""
    with open_session() as lab:
        lowest, highest = lab._backend.priority_range
        for priority in range(highest, lowest + 1):
            assert lab.stream(f"p{-priority}", priority=priority).priority == priority


def lent_streams_stay_their_owners(open_session: OpenSession) -> None:
    """A stream of one session can be lent to another with the same backend object, and outlives it."""
    with open_session() as owner:
        stream = owner.stream("mine")
        other = Session(owner._backend, capture="ranges")
        lane = other.stream("lent", external=stream)
        assert lane.handle == stream.handle
        assert other.stream("lent", external=stream) is lane
        with other.on(stream, "theirs"):
            spin(other, 1_000)
        other.close()
        assert _names(other.trace) == ["theirs"]
        with owner.on(stream, "ours"):
            spin(owner, 1_000)
        assert _names(finished(owner)) == ["ours"]


def two_sessions_work_at_once(open_session: OpenSession) -> None:
    """Sessions do not see each other's streams or ranges."""
    with open_session() as one, open_session() as two:
        for lab, label in ((one, "one"), (two, "two")):
            with lab.on(lab.stream("same"), label):
                spin(lab, 1_000)
        assert _names(finished(one)) == ["one"]
        assert _names(finished(two)) == ["two"]


def a_full_ring_counts_what_it_drops(open_session: OpenSession) -> None:
    """The newest ranges stay, and the dropped ones are counted where everybody sees them."""
    with open_session(ring_size=10) as lab:
        lab.stream("a")
        for number in range(25):
            with lab.on("a", f"n{number}"):
                spin(lab, 1_000)
        trace = finished(lab)
        assert _names(trace) == [f"n{number}" for number in range(15, 25)]
        assert trace.metadata.dropped_spans == 15
        assert "15 dropped" in repr(lab)


def card_filling_kernels_take_turns(open_session: OpenSession) -> None:
    """Kernels that each take the whole card end one after the other, whatever their streams."""
    with open_session() as lab:
        for number in range(3):
            lab.stream(f"s{number}")
        for number in range(3):
            with lab.on(f"s{number}", f"n{number}"):
                spin_card(lab, SPIN_NS)
        ends_ns = np.sort(finished(lab).end_ns)
        assert (np.diff(ends_ns) >= SPIN_NS * 0.9).all()


CONTRACT_CHECKS: tuple[ContractCheck, ...] = checks_in(globals())  # Every check, to run one by one


class _Lender:
    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self._handle)


def finished(lab: Session) -> Trace:
    """Wait for the device, and return everything that ran."""
    lab.synchronize()
    return lab.trace


def _names(trace: Trace) -> list[str]:
    return [trace.names[code] for code in trace.name]


def row_of(trace: Trace, name: str) -> int:
    """Return the row of the first range of a name."""
    return _names(trace).index(name)


def _current(lab: Session) -> object:
    return lab.current


def _fail_on(lab: Session, stream: Any) -> None:
    with lab.on(stream):
        raise ZeroDivisionError


def in_thread(call: Callable[[], object]) -> None:
    """Call something in another thread, and wait for it."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def expect(error: type[BaseException], *calls: Callable[[], object]) -> None:
    """Assert that each of the calls raises."""
    for call in calls:
        try:
            call()
        except error:
            continue
        raise AssertionError(f"{error.__name__} was not raised by {call}")


def partitions_are_as_granted(open_session: OpenSession) -> None:
    """Kernels in each partition see as many SMs as were granted, and no two partitions share one."""
    with open_session() as lab:
        layout = _two_partitions(lab)
        for name in layout.names:
            stream = lab.stream(name, partition=name)
            assert (stream.partition, stream.sm_count) == (name, layout[name].granted_sms)
        lab.stream("anywhere")
        proof = lab.partitions.verify()
        assert proof.holds, str(proof)
        assert sum(part.granted_sms for part in layout) + layout.remainder_sms == lab.device.sm_count
        assert [len(one.inside) for one in proof.streams[:2]] == [part.granted_sms for part in layout]
        kept = lab.trace.layout
        assert kept is not None
        assert kept.has_verified_sms


def work_stays_in_its_partition(open_session: OpenSession) -> None:
    """While every SM of a partition is held, other work of that partition waits, and work of another one does not."""
    with open_session() as lab:
        layout = _two_partitions(lab)
        _hold(lab, lab.stream("holder", partition="a"), layout["a"].granted_sms, 20 * SPIN_NS)
        for name in layout.names:
            with lab.on(lab.stream(f"work in {name}".replace(" ", "-"), partition=name), name):
                spin(lab, SPIN_NS // 10)
        trace = finished(lab)
        released_ns = trace.end_ns[row_of(trace, "hold")]
        assert trace.end_ns[row_of(trace, "a")] >= released_ns
        assert trace.end_ns[row_of(trace, "b")] < released_ns


def card_filling_kernels_run_side_by_side_in_partitions(open_session: OpenSession) -> None:
    """Kernels that each take the whole card take turns on plain streams, and overlap in partitions; closing keeps them."""
    with open_session() as lab:
        for name in _two_partitions(lab).names:
            with lab.on(lab.stream(name, partition=name), name):
                spin_card(lab, SPIN_NS)
    lab.close()
    assert sorted(_names(lab.trace)) == ["a", "b"]
    assert lab.trace.end_ns.min() - lab.trace.start_ns.max() > SPIN_NS


def a_repartition_drains_what_moves_and_nothing_else(open_session: OpenSession) -> None:
    """A stream that moves has ended its work by then; one that stays goes on, and keeps its handle."""
    with open_session() as lab:
        group_sms = _group_sms(lab)
        # Making a context may wait for the whole device; one that is there does not.
        (after,) = lab.partitions.prepare({"a": group_sms, "b": 3 * group_sms, "c": "rest"})
        lab.partition({"a": 2 * group_sms, "b": 2 * group_sms, "c": "rest"})
        streams = {name: lab.stream(name, partition=name) for name in "abc"}
        handles = {name: stream.handle for name, stream in streams.items()}
        for name, stream in streams.items():
            with lab.on(stream, f"before {name}"):
                spin(lab, 100 * SPIN_NS if name == "c" else SPIN_NS)
        lab.partition(after)
        assert streams["a"].query()
        assert not streams["c"].query()
        assert {name for name, stream in streams.items() if stream.handle != handles[name]} == {"a", "b"}
        for name, stream in streams.items():
            with lab.on(stream, f"after {name}"):
                spin(lab, 1_000)
        trace = finished(lab)
        assert [lane.name for lane in trace.lanes if lane.kind is LaneKind.STREAM] == list("abc")
        for name in "abc":
            first, second = row_of(trace, f"before {name}"), row_of(trace, f"after {name}")
            assert trace.end_ns[first] <= trace.start_ns[second] + trace.metadata.range_error_ns
            assert trace.partitions[trace.partition[second]].granted_sms == lab.stream(name).sm_count
        assert len(trace.layouts) == 2


def going_back_to_the_whole_card_and_again_uses_the_same_contexts(open_session: OpenSession) -> None:
    """Without a layout every stream has the card; the same layout later is the same place."""
    with open_session() as lab:
        _two_partitions(lab)
        stream = lab.stream("a", partition="a")
        handle, sm_count = stream.handle, stream.sm_count
        assert lab.partition(None) is None
        assert (stream.partition, stream.sm_count) == (None, lab.device.sm_count)
        _two_partitions(lab)
        assert (stream.handle, stream.sm_count, stream.partition) == (handle, sm_count, "a")


def a_refused_layout_leaves_the_old_one(open_session: OpenSession) -> None:
    """Bad sizes, names and partitions in use are told, and nothing changes."""
    with open_session() as lab:
        layout = _two_partitions(lab)
        stream = lab.stream("a", partition="a")
        too_many = lab.device.sm_count + 1
        for shares in ({"a": 0, "b": 8}, {"a": -8}, {"a": too_many}, {"a": 10**9}, {"a": 0.7, "b": 0.7}, {}, {"a": "x"}):
            expect(PartitionError, partial(lab.partition, shares))
        expect(PartitionError, partial(lab.partition, {"a": 1, "b": "rest"}, round="exact"))
        expect(PartitionInUseError, partial(lab.partition, {"other": "rest"}))
        with lab.on(stream):
            expect(PartitionInUseError, partial(lab.partition, None))
        expect(PartitionNotFoundError, partial(lab.stream, "new", partition="nowhere"))
        assert lab.layout is layout
        assert (stream.partition, list(lab.streams)) == ("a", ["a"])
    expect(SessionClosedError, partial(lab.partition, {"a": "rest"}))


def a_device_without_green_contexts_warns_once(open_session: OpenSession) -> None:
    """Where SMs cannot be partitioned, there is one warning and plain streams, or an error if strict."""
    with open_session() as lab:
        assert lab.device.sm_resource is None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            layout = lab.partition({"a": 1, "b": "rest"})
        assert [entry.category for entry in told] == [PartitionWarning]
        assert layout is not None
        assert not layout.is_enforced
        stream = lab.stream("a", partition="a")
        assert (stream.partition, stream.sm_count) == ("a", lab.device.sm_count)
        expect(PartitionUnavailableError, partial(lab.partition, {"a": 1}, strict=True))


FALLBACK_CHECKS: tuple[ContractCheck, ...] = (a_device_without_green_contexts_warns_once,)
"""What holds on devices that have no green contexts."""

PARTITION_CHECKS: tuple[ContractCheck, ...] = tuple(
    check for check in checks_in(globals()) if check not in (*CONTRACT_CHECKS, *FALLBACK_CHECKS)
)
"""Every check about partitions, for devices that have green contexts."""


def _group_sms(lab: Session) -> int:
    assert lab.device.sm_resource is not None
    return lab.device.sm_resource.group_sms


def _two_partitions(lab: Session) -> Layout:
    layout = lab.partition({"a": 2 * _group_sms(lab), "b": "rest"})
    assert layout is not None
    return layout


def _hold(lab: Session, stream: object, sm_count: int, duration_ns: int) -> None:
    """Hold as many SMs of a stream's partition, each with one block that leaves room for no other."""
    with lab.on(stream, "hold") as holder:  # type: ignore[arg-type]
        lab._backend.launch_spin(holder._backend_stream, duration_ns, blocks=sm_count, fill_sms=True)
