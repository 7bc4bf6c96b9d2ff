"""The part of the battery that is about partitions of the SMs."""

from __future__ import annotations

import warnings
from functools import partial

from gpustreamlab.errors import (
    PartitionError,
    PartitionInUseError,
    PartitionNotFoundError,
    PartitionUnavailableError,
    PartitionWarning,
    SessionClosedError,
)
from gpustreamlab.model import Layout
from gpustreamlab.session import Session
from gpustreamlab.testing._contract import SPIN_NS, ContractCheck, OpenSession, checks_in, expect, finished, row_of
from gpustreamlab.workloads import spin, spin_card


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
        assert [len(lane.inside) for lane in proof.lanes[:2]] == [part.granted_sms for part in layout]
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
    """Kernels that each take the whole card take turns on plain streams, and overlap in partitions."""
    with open_session() as lab:
        for name in _two_partitions(lab).names:
            with lab.on(lab.stream(name, partition=name), name):
                spin_card(lab, SPIN_NS)
        trace = finished(lab)
        overlap_ns = trace.end_ns.min() - trace.start_ns.max()
        assert overlap_ns > SPIN_NS


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
        assert [lane.name for lane in trace.lanes] == list("abc")
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


def closing_with_partitions_and_work_in_flight(open_session: OpenSession) -> None:
    """Closing waits for what runs in partitions, keeps its ranges, and is silent the second time."""
    with open_session() as lab:
        for name in _two_partitions(lab).names:
            with lab.on(lab.stream(name, partition=name), name):
                spin(lab, SPIN_NS)
    lab.close()
    assert sorted(lab.trace.names[code] for code in lab.trace.name) == ["a", "b"]


FALLBACK_CHECKS: tuple[ContractCheck, ...] = (a_device_without_green_contexts_warns_once,)
"""What holds on devices that have no green contexts."""

PARTITION_CHECKS: tuple[ContractCheck, ...] = tuple(check for check in checks_in(globals()) if check not in FALLBACK_CHECKS)
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
