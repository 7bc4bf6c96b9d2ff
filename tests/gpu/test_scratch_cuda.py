"""Scratch memory on the hardware: in order without waits, in no two hands at once, and back on the card in the end."""

import itertools
import threading
import time

import cupy
import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import DeviceError, DeviceMemoryError, StreamClosedError
from gpustreamlab.workloads import spin

MIB = 1 << 20
USED_MEMORY_HIGH = 8
"""Source: CUDA runtime API, ``cudaMemPoolAttrUsedMemHigh``."""
SLACK_BYTES = 64 * MIB
"""What the driver may keep for itself while a test runs: modules, contexts, pages of its pools."""


def free_bytes():
    cupy.cuda.runtime.deviceSynchronize()
    cupy.get_default_memory_pool().free_all_blocks()
    return cupy.cuda.runtime.memGetInfo()[0]


def fill_and_sum(lab, lane, count, turns):
    """Write a value into scratch and add it up, again and again, in the same block, without a wait."""
    sums = lab.xp.zeros(turns, "float64")
    lab.synchronize()
    with lab.on(lane):
        for turn in range(turns):
            with lane.scratch(4 * count) as work:
                values = work.array(count, "float32")
                values.fill(turn)
                sums[turn] = values.sum(dtype="float64")
    return sums


def assert_sums(sums, count):
    cupy.cuda.runtime.deviceSynchronize()
    np.testing.assert_allclose(cupy.asnumpy(sums), np.arange(len(sums)) * float(count))


def test_re_use_without_a_wait_gives_the_right_results(lab):
    lane = lab.stream("a")
    sums = fill_and_sum(lab, lane, 1 << 20, 300)
    (pool,) = lab._backend._scratch._pools.values()
    most_bytes = cupy.cuda.runtime.memPoolGetAttribute(pool, USED_MEMORY_HIGH)
    lab.synchronize()
    assert_sums(sums, 1 << 20)
    assert most_bytes == 4 << 20
    assert lab.memory.statistics["a"].allocation_count == 300


def test_taking_and_growing_waits_for_nothing(lab):
    with lab.on(lab.stream("warm")) as warm, warm.scratch(MIB) as work:  # makes the pool, and loads the kernels
        work.array(MIB, "uint8").fill(1)
        spin(lab, 1_000)
    lane = lab.stream("a")
    with lab.on(lane):
        spin(lab, 300_000_000)
        began = time.perf_counter()
        with lane.scratch(8 * MIB) as work:
            work.array(8 * MIB, "uint8").fill(1)
        with lane.scratch(8 * MIB):
            pass
        took_s = time.perf_counter() - began
        assert not lane.query()
    assert took_s < 0.2
    lab.synchronize()


def test_blocks_of_lanes_that_are_in_flight_never_overlap(lab):
    lanes = [lab.stream(f"lane{number}") for number in range(4)]
    for lane in lanes:
        with lab.on(lane):
            spin(lab, 1_000_000_000)  # growing takes the driver some ms each time
    blocks = []
    for lane, nbytes in itertools.product(lanes, (512, 5_000, MIB, 3 * MIB + 1)):
        with lane.scratch(nbytes) as one, lane.scratch(nbytes) as other:
            blocks += [(work.ptr, nbytes) for work in (one, other)]
    assert not lanes[0].query()
    blocks.sort()
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(blocks))
    assert all(address % 512 == 0 for address, _ in blocks)
    lab.synchronize()


def test_lanes_use_their_memory_at_the_same_time(lab):
    lanes = [lab.stream(f"lane{number}") for number in range(4)]
    sums = [fill_and_sum(lab, lane, 1 << 18, 100) for lane in lanes]
    lab.synchronize()
    for found in sums:
        assert_sums(found, 1 << 18)


def test_the_memory_is_back_on_the_card_when_the_lane_is_closed():
    with Session("cuda") as lab:
        lab.stream("warm").scratch(MIB).close()
        before = free_bytes()
        lane = lab.stream("a")
        held = lane.scratch(1024 * MIB)
        with lab.on(lane):
            held.array(1024 * MIB, "uint8").fill(1)
        lane.scratch(256 * MIB).close()
        assert free_bytes() <= before - 1280 * MIB + SLACK_BYTES
        lane.close()
        assert free_bytes() >= before - SLACK_BYTES
        with pytest.raises(StreamClosedError):
            held.ptr  # noqa: B018


def test_closing_with_work_in_flight_frees_nothing_early():
    with Session("cuda") as lab:
        lane, other = lab.stream("a"), lab.stream("b")
        out = lab.xp.zeros(1, "float64")
        lab.synchronize()
        with lab.on(lane):
            spin(lab, 50_000_000)
            values = lane.scratch(64 * MIB).array(16 * MIB, "float32")
            values.fill(1)
            out += values.sum(dtype="float64")
        closing = threading.Thread(target=lane.close)
        closing.start()
        for _ in range(20):  # would be given the same memory
            with lab.on(other), other.scratch(64 * MIB) as work:
                work.array(16 * MIB, "float32").fill(7)
        closing.join()
        lab.synchronize()
        assert float(out[0]) == 16 * MIB


def test_sessions_leave_nothing_behind():
    with Session("cuda") as lab:
        fill_and_sum(lab, lab.stream("a"), 1 << 20, 2)
    before = free_bytes()
    for _ in range(5):
        with Session("cuda") as lab:
            lanes = [lab.stream(name) for name in "abcd"]
            held = [lane.scratch(128 * MIB) for lane in lanes]
            for lane, work in zip(lanes, held, strict=True):
                with lab.on(lane):
                    work.array(MIB, "uint8").fill(3)
    assert free_bytes() >= before - SLACK_BYTES


def test_sixteen_threads_on_one_lane_never_share_a_block(lab):
    lane, taken, twice = lab.stream("a"), set(), []

    def work():
        for _ in range(2_000):
            with lane.scratch(4096) as memory:
                if memory.ptr in taken:
                    twice.append(memory.ptr)
                taken.add(memory.ptr)
                taken.discard(memory.ptr)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not twice
    assert lab.memory.statistics["a"].used_bytes == 0


def test_without_memory_it_says_how_much_there_is(lab):
    total_bytes = cupy.cuda.runtime.memGetInfo()[1]
    lane, other = lab.stream("a"), lab.stream("b")
    other.scratch(int(0.6 * free_bytes())).close()
    with lane.scratch(int(0.6 * total_bytes)):  # what the other lane's pool kept goes back
        pass
    with pytest.raises(DeviceMemoryError, match=rf"Stream 'a' asked for .* of {total_bytes:,} bytes of the device free"):
        lane.scratch(2 * total_bytes)
    assert_sums(fill_and_sum(lab, lane, 1 << 18, 20), 1 << 18)


def test_a_lane_moves_with_scratch_in_flight(lab):
    group = lab.device.sm_resource.group_sms
    lab.partition({"p": 2 * group, "rest": "rest"})
    lane = lab.stream("a")
    sums = lab.xp.zeros(60, "float64")
    held = lane.scratch(4 << 20)
    lab.synchronize()
    for turn in range(60):
        lab.stream("a", partition=("p", None, "rest")[turn % 3])
        with lab.on(lane):
            memory = held if turn == 5 else lane.scratch(4 << 20)
            values = memory.array(1 << 20, "float32")
            values.fill(turn)
            spin(lab, 200_000)
            sums[turn] = values.sum(dtype="float64")
            memory.close()
    lab.synchronize()
    assert_sums(sums, 1 << 20)
    assert lab.memory.statistics["a"].used_bytes == 0


def test_cupys_arena_goes_with_the_lane(lab):
    pool = cupy.get_default_memory_pool()
    before = pool.total_bytes()
    lane = lab.stream("a")
    with lab.on(lane):
        array = lab.xp.zeros(256 * MIB, "uint8")
        del array
    assert pool.total_bytes() >= before + 256 * MIB
    lane.close()
    assert pool.total_bytes() <= before


def test_scratch_is_memory_for_other_libraries(lab):
    lane = lab.stream("a")
    with lab.on(lane), lane.scratch(1 << 20) as work:
        facts = work.__cuda_array_interface__
        assert facts["version"] == 3
        assert facts["stream"] == lane.handle > 2
        assert facts["data"] == (work.ptr, False)
        view = cupy.asarray(work)
        assert (view.nbytes, view.dtype, view.data.ptr) == (1 << 20, np.uint8, work.ptr)
        view.fill(3)
        assert int(work.array(1 << 20, "uint8").sum()) == 3 << 20


def test_a_lent_stream_has_scratch(lab):
    lender = cupy.cuda.Stream(non_blocking=True)
    lane = lab.stream("lent", external=lender)
    sums = fill_and_sum(lab, lane, 1 << 18, 20)
    lane.synchronize()
    assert_sums(sums, 1 << 18)
    lane.close()
    lender.synchronize()


def test_none_is_taken_inside_a_graph_that_is_captured_and_none_freed(lab):
    lane = lab.stream("a")
    out = lab.xp.zeros(1, "float64")
    with lab.on(lane):  # loads the kernels
        out += lab.xp.ones(1024, "float32").sum(dtype="float64")
    lane.synchronize()
    with lane.scratch(4096) as work, lab.on(lane):
        values = work.array(1024, "float32")
        values.fill(1)
        ended = lane.scratch(4096)
        stream = cupy.cuda.get_current_stream()
        stream.begin_capture()
        try:
            with pytest.raises(DeviceError, match="captured into a CUDA graph"):
                lane.scratch(MIB)
            ended.close()
            values.fill(2)
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
        assert float(values.sum(dtype="float64")) == 2048.0
        assert lab.memory.statistics["a"].used_bytes == 4096


def test_without_memory_pools_giving_back_waits(monkeypatch):
    monkeypatch.setattr("gpustreamlab.backends.cuda._backend.has_memory_pools", lambda cupy, ordinal: False)
    with Session("cuda") as lab:
        lane = lab.stream("a")
        assert not lab.partitions.capabilities.has("stream-ordered-memory")
        before = free_bytes()
        assert_sums(fill_and_sum(lab, lane, 64 << 20, 5), 64 << 20)
        with lab.on(lane), lane.scratch(256 * MIB):
            spin(lab, 50_000_000)
            assert not lane.query()
        assert lane.query()
        assert free_bytes() >= before - SLACK_BYTES


def test_the_timeline_has_it_where_kernels_are_captured(lab):
    lane = lab.stream("a")
    with lab.on(lane, "warm-up"), lane.scratch(MIB):
        spin(lab, 1_000)
    lab.synchronize()
    with lab.capture("kernels"), lab.on(lane, "step"), lane.scratch(MIB):
        spin(lab, 5_000_000)
    lab.synchronize()
    counters = lab.trace.counters
    used = counters.name == counters.names.index("async_used_bytes")
    assert counters.value[used].tolist()[-2:] == [MIB, 0.0]
    assert lab.memory.statistics["a"].peak_bytes == MIB
