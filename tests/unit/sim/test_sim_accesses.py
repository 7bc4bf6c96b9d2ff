"""What the simulated device says that each work reads and writes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab import workloads
from gpustreamlab.backends.sim import _memory
from gpustreamlab.model import ACCESS_CERTAINTIES

COUNT = 1_000
WHOLE = (0, 4 * COUNT)


@pytest.fixture(params=["report", "off"])
def lab(request):
    with gsl.Session("sim", hazards=request.param) as session:
        session.capture("kernels")
        session.stream("a")
        yield session


def touched(lab):
    """Return of each work in its order what it touched: the buffer's number, from where to where, how, and how sure."""
    lab.synchronize()
    trace, found = lab.trace, []
    told = trace.accesses
    for row in np.flatnonzero(np.isin(trace.kind, (1, 2, 3))).tolist():
        own = np.flatnonzero(told.span == row)
        rows = [
            (
                int(told.buffer[at]),
                (int(told.begin[at]), int(told.end[at])),
                ("host " if told.is_host[at] else "") + ("write" if told.is_write[at] else "read"),
                ACCESS_CERTAINTIES[told.certainty[at]].value,
            )
            for at in own.tolist()
        ]
        found.append((trace.names[trace.name[row]], rows))
    return found


def test_a_kernel_reads_its_inputs_and_writes_its_output(lab):
    with lab.on("a"):
        x, y = lab.xp.ones(COUNT, "f4"), lab.xp.zeros(COUNT, "f4")
        z = x + y
    work = touched(lab)
    (first,), (second,) = work[0][1], work[1][1]
    assert (first[1:], second[1:]) == ((WHOLE, "write", "known"),) * 2
    assert [row[0] for row in work[2][1][:2]] == [first[0], second[0]]
    assert [row[1:] for row in work[2][1]] == [(WHOLE, "read", "known")] * 2 + [(WHOLE, "write", "known")]
    assert len({row[0] for row in work[2][1]}) == 3
    assert z.size == COUNT


def test_a_part_of_an_array_has_its_bytes_and_one_with_gaps_is_unsure(lab):
    with lab.on("a"):
        x = lab.xp.empty((10, COUNT // 10), "f4")
        x[2:4].fill(1)
        x[:, ::2].fill(1)
        x[lab.xp.asarray([1, 2])]
    part, gaps, _, gather = touched(lab)
    assert part[1] == [(part[1][0][0], (800, 1_600), "write", "known")]
    assert gaps[1] == [(part[1][0][0], (0, 3_996), "write", "unknown")]
    assert [row[1:] for row in gather[1] if row[0] == part[1][0][0]] == [(WHOLE, "read", "unknown")]


def test_copies_have_both_sides_and_memory_of_the_host_its_own_number(lab):
    pinned, pageable = lab.memory.pinned_empty(COUNT, np.float32), np.ones(COUNT, np.float32)
    with lab.on("a"):
        x = lab.xp.empty(COUNT, "f4")
        for source in (pinned, pageable, pageable[:500], pinned):
            x[: len(source)].set(source)
        x.get(out=pinned, blocking=False)
        x.get()
    work = [rows for _, rows in touched(lab)]
    assert [row[2] for row in work[0]] == ["host read", "write"]
    assert [row[2] for row in work[4]] == ["read", "host write"]
    (one, other, again, back), got = (rows[0] for rows in work[:4]), work[5][1]
    assert one == back == (*work[4][1][:2], "host read", "known")
    assert other[:2] == (again[0], WHOLE)
    assert again[1] == (0, 2_000)
    assert len({one[0], other[0], got[0], work[0][1][0]}) == 4


def test_memory_that_was_freed_and_allocated_anew_has_a_new_number(lab):
    with lab.on("a"):
        for _ in range(3):
            lab.xp.ones(COUNT, "f4").get()
            gc.collect()
        for value in range(2):
            with lab.memory.scratch(4 * COUNT) as block:
                block.array(COUNT, "f4").fill(value)
    assert len({row[0] for _, rows in touched(lab) for row in rows}) == 8


def test_an_array_in_memory_of_others_is_unsure_and_numbers_of_the_host_are_bounded(lab, monkeypatch):
    monkeypatch.setattr(_memory, "_KEPT_HOST", 4)
    kept = [np.ones(COUNT, np.float32) for _ in range(8)]
    with lab.on("a"):
        x = lab.xp.empty(COUNT, "f4")
        x.set(np.frombuffer(bytes(4 * COUNT), np.float32))
        for source in kept:
            x.set(source)
    sources = [rows[0] for _, rows in touched(lab)]
    assert [row[3] for row in sources] == ["unknown"] + ["known"] * 8
    assert len({row[0] for row in sources}) == 9
    assert len(lab._backend.driver.memory._host) <= 4


def test_a_copy_of_an_array_with_gaps_knows_its_kernel_too(lab):
    with lab.on("a"):
        x = lab.xp.ones((10, COUNT // 10), "f4")
        x[:, :50].get()
    _, gather, copy = touched(lab)
    assert [row[2] for row in gather[1]] == ["read"]
    assert [row[2] for row in copy[1]] == ["read", "host write"]


def test_work_of_which_nothing_is_known_has_no_row(lab):
    workloads.modelled(lab, "own", blocks=1, threads_per_block=32, operations_per_block=1_000, stream="a")
    assert touched(lab) == [("own", [])]


def test_a_spin_is_known_to_touch_nothing(lab):
    workloads.spin(lab, 1_000, stream="a")
    assert touched(lab) == [("spin", [(0, (0, 0), "read", "known")])]


def test_each_node_of_a_graph_has_its_own_at_each_launch(lab):
    x = lab.xp.ones(COUNT, "f4")
    lab.synchronize()
    lab.clear()

    stream = lab.stream("a")
    with lab.on("a"):
        capture = lab._backend.begin_graph(stream._backend_stream)
        x.fill(1)
        x[:500].fill(2)
        graph = capture.instantiate()
        for _ in range(2):
            graph.launch(stream._backend_stream)
    rows = [rows for _, rows in touched(lab)]
    assert [one[0][1] for one in rows] == [WHOLE, (0, 2_000)] * 2


def test_the_numbers_of_two_cards_differ_and_a_copy_between_them_has_both():
    with gsl.Node(backend="sim", capture="kernels") as node:
        first, second = node.stream("first"), node.stream("second", device=1)
        with node.on("first"):
            x = node[0].xp.ones(COUNT, "f4")
        second.wait(first.record())
        with node.on("second"):
            y = node[1].xp.asarray(x)
        node.synchronize()
        told = node.trace.accesses
        assert len({*told.buffer.tolist()}) == 2
        assert told.is_write.tolist() == [True, False, True]
        assert told.buffer[0] == told.buffer[1] != told.buffer[2]
        assert y.size == COUNT


def test_a_synchronization_of_a_card_waits_for_its_own_streams_alone():
    with gsl.Node(backend="sim") as node:
        for number, one in enumerate(node):
            one.capture("kernels", host=True)
            workloads.spin(one, 1_000, stream=one.stream(f"s{number}"))
        for one in node:
            one.synchronize()
        trace = node.trace
        syncs = trace.edges.select("sync")
        calls = trace.names.index("cudaDeviceSynchronize")
        awaited = [
            trace.lanes[trace.lane[row]].device for row in syncs.source[np.argsort(trace.start_ns[syncs.target])].tolist()
        ]
        assert set(trace.name[syncs.target].tolist()) == {calls}
        assert awaited == [0, 1]
