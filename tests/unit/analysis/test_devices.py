"""Engines and SMs are of one device, threads and what they wait for of one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import critical_path, expect_faster, explain, host_waits, overlap, summary_text, utilization
from gpustreamlab.draw import plan_header, why_tables
from gpustreamlab.errors import OptionError, TraceError
from gpustreamlab.model import Device, Lane, Partition
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin
from tests.helpers.devices import two_devices, two_ranks
from tests.helpers.traces import wall_ns

FULL = {"blocks": 1_000}


def same_and_other(rows, move):
    """Return the trace of two devices, and that with both streams on one."""
    trace = two_devices(rows)
    lanes = tuple(replace(lane, device=0, stream=place) for place, lane in enumerate(trace.lanes))
    metadata = replace(trace.metadata, devices=())
    return (replace(trace, lanes=lanes, metadata=metadata), trace)[move]


@pytest.mark.parametrize(
    ("kind", "name", "more", "reason"),
    [
        ("kernel", "k", FULL, "kernels share the SMs"),
        ("copy", "memcpy HtoD (pinned)", {}, "copies to the device share an engine"),
        ("copy", "memcpy DtoH (pinned)", {}, "copies to the host share an engine"),
    ],
)
def test_engines_and_sms_bound_the_streams_of_one_device_only(kind, name, more, reason):
    rows = [(0, kind, name, 0, 100, more), (1, kind, name, 10, 110, more)]
    one, two = (overlap(same_and_other(rows, move)) for move in (0, 1))
    assert (one.ideal_ns, one.shared.reason, one.max_concurrency) == (200_000, reason, 1.0)
    assert (two.ideal_ns, two.max_concurrency) == (100_000, 2.0)
    assert reason in repr(one)
    assert "slowed" not in repr(two)


def test_each_device_is_bounded_by_its_own_sms():
    rows = [(0, "kernel", "k", 0, 100, {"blocks": 4 * 32}), (1, "kernel", "k", 10, 110, {"blocks": 4 * 32 - 1})]
    assert overlap(two_devices(rows)).shared.busy_ns == 100_000
    assert overlap(two_devices(rows[1:])).shared.busy_ns == 0
    assert overlap(two_devices(rows)).shared.are_grids_known


@pytest.mark.parametrize(
    ("kind", "name", "more", "cause"),
    [
        ("kernel", "k", FULL, Cause.GRID_FILLS_DEVICE),
        ("copy", "memcpy HtoD (pinned)", {}, Cause.COPY_ENGINE),
    ],
)
def test_no_work_waits_for_an_engine_or_the_sms_of_another_device(kind, name, more, cause):
    rows = [(0, kind, name, 0, 1_000, {"queued": -20} | more), (1, kind, name, 1_000, 2_000, {"queued": -10} | more)]
    one, two = (same_and_other(rows, move).explain() for move in (0, 1))
    assert cause in {finding.code for finding in one.findings}
    assert cause not in {finding.code for finding in two.findings}
    assert two.bound_ns == 1_000_000


def test_what_stood_in_front_is_looked_for_on_the_device_itself():
    # What ended last was on the other device: on its own the grid in front filled the SMs.
    trace = two_devices(
        [
            (0, "kernel", "k", 0, 1_000, {"queued": -20} | FULL),
            (1, "kernel", "k", 0, 1_001, {"queued": -20} | FULL),
            (2, "kernel", "late", 1_002, 2_000, {"queued": -10} | FULL),
        ]
    )
    lanes = (*trace.lanes[:2], Lane(name="c", device=0, stream=9, sm_count=4))
    found = replace(trace, lanes=lanes).explain()
    assert [(one.code, one.other) for one in found.findings if one.stream == "c"] == [(Cause.GRID_FILLS_DEVICE, "a")]


def test_work_of_another_device_slows_none():
    rng = np.random.default_rng(0)
    alone = [(0, "kernel", "k", at, at + 100, {"blocks": 8}) for at in range(0, 2_000, 200)]
    beside = [(0, "kernel", "k", at, at + 130, {"blocks": 8}) for at in range(2_000, 4_000, 200)]
    other = [(1, "kernel", "o", 2_000 + int(rng.integers(0, 2)), 4_000, {"blocks": 8})]
    one, two = (same_and_other([*alone, *beside, *other], move).explain() for move in (0, 1))
    assert Cause.SLOWED_DOWN in {finding.code for finding in one.findings}
    assert Cause.SLOWED_DOWN not in {finding.code for finding in two.findings}


def test_sm_time_is_of_all_cards():
    rows = [(0, "kernel", "k", 0, 100, FULL), (1, "kernel", "k", 50, 110, FULL)]
    found = utilization(two_devices(rows))
    assert (found.sm_count, found.card_sm_ns, found.device.tolist()) == (8, 4 * 160_000, [0, 1])
    assert found.card_share == pytest.approx(160 / 220)
    assert (found.busy_ns.tolist(), found.names) == ([100_000, 60_000], (None, None))
    assert "on 2 GPUs, 73% of the SM-time of 8 SMs" in repr(found)
    assert ("GPU 1 whole card" in str(found), "shares its SMs" in str(found)) == (True, False)
    assert found.to_pandas()["device"].tolist() == [0, 1]


def test_sms_of_every_card_must_be_known():
    trace = two_devices()
    lanes = (trace.lanes[0], replace(trace.lanes[1], sm_count=0), trace.lanes[2])
    metadata = replace(trace.metadata, devices=())
    with pytest.raises(TraceError, match="How many SMs GPU 1 has is not known"):
        utilization(replace(trace, lanes=lanes, metadata=metadata))


def test_a_partition_is_of_the_card_on_which_it_ran():
    small = Partition(name="small", requested_sms=2, granted_sms=2)
    trace = replace(two_devices(), partitions=(small,), partition=[-1, 0])
    found = utilization(trace)
    assert [*zip(found.device.tolist(), found.names, found.sm_ns.tolist(), strict=True)] == [
        (0, None, 400_000),
        (1, "small", 200_000),
    ]
    assert found.card_sm_ns == 600_000


def test_a_thread_waits_for_its_own_rank_only():
    trace = two_ranks()
    waits = host_waits(trace)
    assert [trace.lanes[trace.lane[row]].name for row in waits.waited_for] == ["a"]
    one = replace(trace, lanes=tuple(replace(lane, process=0) for lane in trace.lanes))
    assert [one.lanes[one.lane[row]].name for row in host_waits(one).waited_for] == ["b"]


@pytest.mark.parametrize("asked", [explain, critical_path])
def test_ranks_are_asked_one_by_one(asked):
    trace = two_ranks()
    with pytest.raises(OptionError, match=rf"2 processes work on 2 GPUs.*trace\.where\(device=0\)\.{asked.__name__}\(\)"):
        asked(trace)
    for device in (0, 1):
        asked(trace.where(device=device))
    # Of one process its devices are asked together, and so are processes that share a device.
    asked(two_devices())
    asked(
        replace(
            trace, lanes=tuple(replace(lane, device=0) for lane in trace.lanes), metadata=two_ranks().where(device=0).metadata
        )
    )


def test_streams_of_two_ranks_are_no_pair():
    with pytest.raises(OptionError, match="answers for one rank"):
        explain(two_ranks(), "a", "b")
    assert explain(two_ranks(), "b").streams == ("b",)  # one stream is of one rank
    assert explain(two_ranks(), 1).streams == ("a",)  # the row tells the rank


def test_pages_explain_each_gpu_of_several_ranks_and_expectations_say_what_to_type():
    told = why_tables(two_ranks(), 0)
    assert told["line"].startswith("Each GPU for itself")
    assert told["bound"] == [f"GPU {number}: one stream, hardly ever idle" for number in (0, 1)]
    assert told["explained"]
    assert "trace.where(device=0).explain()" in expect_faster(1_000, 2)(two_ranks()).text


def test_headlines_say_how_many_devices_there_are():
    cards = tuple(Device(name="demo", ordinal=number, sm_count=4) for number in (0, 1))
    for trace, told in ((two_devices(), "2 GPUs"), (two_devices(devices=cards), "2 GPUs (demo)")):
        assert f"2 streams on {told}, wall" in repr(overlap(trace))
        assert overlap(trace)["a", "b"].device == told
        assert f"on {told} (measured on hardware)" in summary_text(trace)
        assert f"on {told} (measured on hardware)" in repr(trace.timeline())
        assert plan_header(trace).facts.startswith(f"{told} · 2 spans")


def test_a_pair_of_one_device_names_it():
    trace = two_devices([(0, "kernel", "k", 0, 9), (2, "kernel", "k", 0, 9), (1, "kernel", "k", 0, 9)])
    lanes = (*trace.lanes[:2], Lane(name="c", device=0, stream=9, sm_count=4))
    found = overlap(replace(trace, lanes=lanes))
    assert (found["a", "c"].device, found["a", "b"].device) == ("demo", "2 GPUs")


def test_a_layout_is_predicted_for_one_device():
    with pytest.raises(OptionError, match=r"2 GPUs have streams here.*trace\.where\(device=0\)\.what_if"):
        two_devices().what_if(None, sweep=())


def two_loads(is_pinned, cards=2, more=lambda node: None):
    """Return the trace of cards that compute beside copies of their own, each behind what another has computed."""
    loads = []
    with gsl.Node(range(cards), backend="sim") as node:
        for number, lab in enumerate(node):
            shape = (200_000,)
            source = lab.memory.pinned_empty(shape, float) if is_pinned else np.ones(shape)
            loads.append((lab, source, lab.xp.empty(shape), lab.stream(f"work{number}"), lab.stream(f"load{number}")))
        more(node)
        node.clear()
        for _ in range(6):
            for lab, source, target, work, load in loads:
                with lab.on(work):
                    spin(lab, 300_000)
                with lab.on(load):
                    target.set(source)
            for place, (*_, work, _) in enumerate(loads):
                work.wait(loads[(place + 1) % cards][3])
        node.synchronize()
        return node.trace


def pageable(trace):
    (finding,) = (one for one in trace.explain().findings if one.code is Cause.PAGEABLE_COPY)
    return finding


@pytest.mark.parametrize("cards", [2, 8])
def test_what_copies_of_ordinary_memory_cost_several_cards_is_promised(cards):
    before, mended = two_loads(False, cards), two_loads(True, cards)
    gain_ns = wall_ns(before) - wall_ns(mended)
    # Less than all of it: whether the host needs what it waits for is not known.
    assert 0.75 * gain_ns < pageable(before).saves_ns <= gain_ns
    assert not any(one.saves_ns for one in mended.explain().findings)


def collectives(trace):
    return replace(trace, names=tuple("ncclDevKernel_AllReduce" if "spin" in name else name for name in trace.names))


def of_two_kinds(trace):
    first, second = trace.devices
    devices = (first, replace(second, sm_count=second.sm_count // 2))
    return replace(trace, metadata=replace(trace.metadata, devices=devices))


def as_it_was(trace):
    return trace


def in_a_partition(node):
    node[1].partition(small=32, large="rest")
    node[1].stream("work1", partition="large")


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        (lambda node: None, collectives),
        (lambda node: None, of_two_kinds),
        (in_a_partition, as_it_was),
    ],
    ids=["collectives", "two kinds of cards", "a partition"],
)
def test_where_several_cards_are_not_scheduled_anew_at_most_holds(more, changed):
    before, mended = changed(two_loads(False, more=more)), two_loads(True, more=more)
    finding = pageable(before)
    assert wall_ns(before) - wall_ns(mended) <= finding.bound_ns < wall_ns(before)
    assert finding.saves_ns == 0
