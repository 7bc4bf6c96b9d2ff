"""Scratch memory of lanes: what is given out, reused, given back, counted and refused."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import threading
import weakref
from contextlib import nullcontext

import IPython.lib.pretty
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustreamlab import Session, load_trace
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.backends.sim._cost import H200
from gpustreamlab.draw._legend import plan_memory
from gpustreamlab.draw._scene import plan_scene
from gpustreamlab.errors import (
    DeviceError,
    DeviceMemoryError,
    NotSimulatedError,
    OptionError,
    SelectionError,
    SessionClosedError,
    SessionError,
    StreamClosedError,
    StreamNotFoundError,
)
from gpustreamlab.memory import _arena
from gpustreamlab.memory._arena import CLASSES_PER_DOUBLING, WINDOW_NS, ScratchArena, size_class
from gpustreamlab.memory.scratch import Scratch
from gpustreamlab.workloads import spin
from tests.helpers.threads import run_all, run_in_thread

MIB = 1 << 20


class CountedBackend(SimBackend):
    """Notes what is allocated and freed, on which stream; refuses where it is told to."""

    def __init__(self, preset="h200"):
        super().__init__(preset)
        self.calls, self.refusals, self.relieved_count = [], [], 0

    def allocate_scratch(self, stream, size_bytes):
        if self.refusals:
            raise self.refusals.pop()
        address = super().allocate_scratch(stream, size_bytes)
        self.calls.append(("allocate", stream.handle, address))
        return address

    def free_scratch(self, stream, address):
        if self.refusals:
            raise self.refusals.pop()
        super().free_scratch(stream, address)
        self.calls.append(("free", stream.handle, address))

    def relieve_memory(self):
        self.relieved_count += 1

    @property
    def held(self):
        made = [call[2] for call in self.calls if call[0] == "allocate"]
        return sorted(set(made) - {call[2] for call in self.calls if call[0] == "free"})


@pytest.fixture
def backend():
    made = CountedBackend()
    yield made
    made.close()


@pytest.fixture
def lab(backend):
    with Session(backend, capture="ranges") as session:
        yield session


@pytest.fixture
def lane(lab):
    return lab.stream("decode")


def pass_time(lab, duration_ns):
    """Let the host's virtual time go on."""
    with lab.on(lab.stream("clock")):
        spin(lab, duration_ns)
    lab.stream("clock").synchronize()


class TestTaking:
    def test_a_block_is_used_again_at_once_by_the_same_lane(self, lab, lane, backend):
        with lab.on(lane):
            with lane.scratch(MIB) as work:
                first = work.ptr
                spin(lab, 1_000_000)
            with lane.scratch(MIB) as work:
                assert work.ptr == first
            assert not lane.query()  # nothing waited
        assert len(backend.calls) == 1

    def test_two_at_once_are_two_blocks(self, lane):
        with lane.scratch(MIB) as one, lane.scratch(MIB) as other:
            assert abs(one.ptr - other.ptr) >= MIB

    def test_lanes_share_nothing(self, lab):
        with lab.stream("a").scratch(4096) as work:
            before = work.ptr
        with lab.stream("b").scratch(4096) as work:
            assert work.ptr != before

    def test_it_can_be_kept_without_with_closed_twice_or_left_to_become_garbage(self, lane):
        work = lane.scratch(4096)
        address = work.ptr
        work.close()
        work.close()
        assert lane.scratch_statistics.used_bytes == 0
        again, other = lane.scratch(4096), lane.scratch(4096)
        assert again.ptr == address != other.ptr
        del again, other
        gc.collect()
        assert lane.scratch_statistics.used_bytes == 0
        assert lane.scratch(4096).ptr >= address

    def test_an_array_keeps_it_from_becoming_garbage(self, lane):
        array = lane.scratch(4096).array(8, "f8")
        view = array[2:4]
        del array
        gc.collect()
        assert lane.scratch_statistics.used_bytes == 4096
        del view
        gc.collect()
        assert lane.scratch_statistics.used_bytes == 0

    def test_an_exception_gives_it_back(self, lane):
        with pytest.raises(ZeroDivisionError), lane.scratch(4096):
            _ = 1 / 0
        assert lane.scratch_statistics.used_bytes == 0

    def test_what_it_says_of_itself_and_that_it_refuses_after_it_was_given_back(self, lane):
        work = lane.scratch(1_000)
        assert (work.nbytes, work.lane, work.is_closed, work.ending) == (1_000, lane, False, "")
        assert repr(work) == f"<Scratch of 'decode', 1,000 bytes, at {work.ptr:#x}>"
        work.close()
        assert (work.is_closed, work.ending) == (True, "given back")
        assert repr(work) == "<Scratch of 'decode', 1,000 bytes, given back>"
        for use in (lambda: work.ptr, lambda: work.array(8, "f8")):
            with pytest.raises(SessionError, match=r"given back to lane 'decode'.*lab.stream\('decode'\).scratch\(1000\)"):
                use()

    def test_what_has_ended_is_not_kept_for_others(self, lab, lane):
        other = lab.stream("other")
        with lane.scratch(4096) as work:
            other.hold(work)
            assert other.use(work, after=lane) is work
        for keep in (lambda: lane.hold(work), lambda: other.use(work, after=lane)):
            with pytest.raises(SessionError, match="given back to lane 'decode'"):
                keep()
        left = lane.scratch(512)
        lane.close()
        for _ in range(2):
            assert (left.ending, left.is_closed) == ("lane closed", True)
            left.close()
        assert repr(left) == "<Scratch of 'decode', 512 bytes, lane closed>"
        with pytest.raises(StreamClosedError, match="lane 'decode' was closed"):
            other.hold(left)

    def test_nothing_is_the_smallest_block(self, lane):
        with lane.scratch(0) as work:
            assert work.nbytes == 0
            assert work.ptr % 512 == 0
            assert work.array(0, "f4").shape == (0,)

    @pytest.mark.parametrize("wrong", [-1, True, False, 1.0, 2**63, "1", None, [1], np.float32(4), np.bool_(True)])
    def test_bad_sizes_are_refused(self, lane, wrong):
        with (
            lane.scratch(1),
            lane.scratch(np.int64(0)),
            pytest.raises(OptionError, match=r"size of scratch.*scratch\(1 << 20\)"),
        ):
            lane.scratch(wrong)
        assert lane.scratch_statistics.allocation_count == 2
        if wrong is not False and not isinstance(wrong, np.generic):
            with pytest.raises(OptionError, match=r"lane.trim_scratch\(keep_bytes=0\)"):
                lane.trim_scratch(wrong)


class TestSizeClasses:
    @given(st.integers(0, 1 << 45))
    def test_waste_is_bounded(self, nbytes):
        size_bytes = size_class(nbytes)
        assert size_bytes >= max(1, nbytes)
        assert size_bytes % 512 == 0
        assert size_bytes - nbytes < max(513, nbytes / CLASSES_PER_DOUBLING + 1)
        assert size_class(size_bytes) == size_bytes

    def test_there_are_few(self):
        assert len({size_class(nbytes) for nbytes in range(4096, 1 << 16, 64)}) == 4 * CLASSES_PER_DOUBLING + 1


class TestArrays:
    def test_they_are_of_lab_xp_and_work_like_others(self, lab, lane):
        with lab.on(lane), lane.scratch(4 * 64 * 64) as work:
            array = work.array((64, 64), "float32")
            array[:] = 2
            assert isinstance(array, lab.xp.ndarray)
            assert float((array @ array).sum()) == 64 * 64 * 64 * 4
            assert array.shape == (64, 64)
            assert work.array([2, 3], np.int16).dtype == np.int16

    def test_arrays_of_one_block_alias_as_on_a_gpu(self, lab, lane):
        with lab.on(lane):
            with lane.scratch(4096) as work:
                early = work.array(8, "i4")
                early[:] = 1
            with lane.scratch(4096) as work:
                work.array(8, "i4")[:] = 7
            assert early.tolist() == [7] * 8  # used after it was given back: the user's bug, and seen

    @pytest.mark.parametrize(
        ("shape", "dtype", "told"),
        [
            *(((1025,), "f4", "4,100 bytes; this scratch of lane 'decode' has 4,096"), ((64, 65), "u1", "has 4,096")),
            *((2**62, "f8", "has 4,096"), ((2**40, 2**40), "u1", "has 4,096"), (4096, "u1", "")),
            *((shape, "u1", "is not a shape") for shape in [-1, (2, -3), 1.5, (True,), "4", None]),
            *((4, dtype, "dtype|elements") for dtype in ["object", "O", "V0", "nonsense"]),
        ],
    )
    def test_what_does_not_fit_or_is_no_array_is_refused(self, lane, shape, dtype, told):
        with lane.scratch(4096) as work, pytest.raises(OptionError, match=told) if told else nullcontext():
            work.array(shape, dtype)
        with lane.scratch(1000) as work, pytest.raises(OptionError):  # what was asked for counts, not the block
            work.array(1024, "u1")

    def test_the_simulated_device_lends_no_pointer(self, lane):
        with lane.scratch(4096) as work:
            assert not hasattr(work, "__cuda_array_interface__")
            with pytest.raises(NotSimulatedError, match=r"work.array\(shape, dtype\)"):
                getattr(work, "__cuda_array_interface__")  # noqa: B009

    def test_its_memory_is_no_memory_of_the_pool(self, lab, lane):
        with lab.capture("kernels"), lab.on(lane), lane.scratch(MIB) as work:
            total = work.array(MIB // 4, "f4") + 1
            del total
        lab.synchronize()
        counters = lab.trace.counters
        pool = counters.value[counters.name == counters.names.index("pool_used_bytes")]
        assert pool.max() == MIB  # the sum; the scratch is not counted twice


class TestSelected:
    def test_the_session_takes_it_from_the_selected_lane(self, lab, lane):
        with lab.on(lane), lab.memory.scratch(4096) as work:
            assert work.lane is lane

    def test_nothing_selected_is_no_lane_and_another_threads_selection_does_not_count(self, lab, lane):
        with pytest.raises(SelectionError, match=r"with lab.on\('name'\)"):
            lab.memory.scratch(4096)
        with lab.on(lane):
            assert isinstance(run_in_thread(lambda: lab.memory.scratch(4096)), SelectionError)
        lab.close()
        with pytest.raises(SessionClosedError, match="scratch"):
            lab.memory.scratch(3)


class TestStatistics:
    def test_they_count(self, lane):
        with lane.scratch(1024), lane.scratch(5000):
            pass
        with lane.scratch(1024):
            found = lane.scratch_statistics
        assert (found.lane, found.used_bytes, found.reserved_bytes, found.peak_bytes) == ("decode", 1024, 6144, 6144)
        assert (found.allocation_count, found.reuse_count, found.growth_count, found.trim_count) == (3, 1, 2, 0)
        assert found.waste_share == pytest.approx(120 / 7168)
        assert found.is_stream_ordered
        assert found.reason == ""
        assert str(found).startswith("scratch of decode: 1,024 B in use of 6,144 B, at most 6,144 B; 3 allocations, 1 reused")

    def test_all_lanes_are_a_table(self, lab, lane):
        lab.stream("prefill")
        with lane.scratch(4096):
            table = lab.memory.statistics
        assert [item.lane for item in table] == ["decode", "prefill"]
        assert (len(table), table["decode"].used_bytes, table.reserved_bytes) == (2, 4096, 4096)
        assert repr(table) == f"<ScratchTable: 2 streams hold 4,096 B of at most {table.limit_bytes:,} B>"
        assert "decode" in str(table)
        assert "<table" in table._repr_html_()
        with pytest.raises(KeyError):
            table["nothing"]

    def test_no_lanes_are_an_empty_table(self, lab):
        text = str(lab.memory.statistics)
        assert text.startswith("Scratch no stream yet; all may hold ")
        assert 'with lab.stream("decode").scratch(1 << 20) as work' in " ".join(text.split())
        with pytest.raises(StreamNotFoundError, match="No stream was opened yet"):
            lab.memory.statistics["decode"]

    def test_one_is_one_and_at_the_prompt_a_short_line(self, lab, lane):
        lane.scratch(1024).close()
        found = lane.scratch_statistics
        assert "1 allocation, 0 reused, 1 growth, 0 trims" in str(found) == IPython.lib.pretty.pretty(found)
        assert repr(found) == "<ScratchStatistics of 'decode': 0 B in use of 1,024 B>"
        assert repr(lab.memory.statistics).startswith("<ScratchTable: 1 stream holds 1,024 B of at most ")
        with pytest.raises(StreamNotFoundError, match=r"no stream 'decoed'.*Did you mean 'decode'\?.*lab.stream\('decoed'\)"):
            lab.memory.statistics["decoed"]

    def test_a_long_name_leaves_room_for_the_numbers(self, lab):
        name = "n" * 95
        lab.stream(name).scratch(1024).close()
        table = lab.memory.statistics
        assert max(map(len, str(table).splitlines())) < 150
        assert name not in table._repr_html_()
        assert table[name].reserved_bytes == 1024

    def test_html_escapes_and_says_why_it_waits(self):
        with Session(SimBackend(dataclasses.replace(H200, has_memory_pools=False))) as lab:
            lab.stream("decode").scratch(1).close()
            found = lab.stream("decode").scratch_statistics
            assert (
                found.reason == lab.partitions.capabilities["stream-ordered-memory"].detail == "this device has no memory pools"
            )
            assert not found.is_stream_ordered
            assert "waits for the stream's work: this device has no memory pools" in str(found)
            assert "cudaMalloc" in str(lab.memory.statistics)
            assert "this device has no memory pools" in lab.memory.statistics._repr_html_()


class TestTrimming:
    def test_free_blocks_go_back_to_the_device_and_so_much_is_kept(self, lane, backend):
        held = lane.scratch(MIB)
        lane.scratch(2 * MIB).close()
        lane.scratch(512).close()
        assert lane.trim_scratch(MIB + 512) == 2 * MIB
        assert lane.scratch_statistics.reserved_bytes == MIB + 512
        assert lane.trim_scratch() == 512
        assert backend.held == [held.ptr]
        assert lane.scratch_statistics.trim_count == 2
        assert lane.trim_scratch() == 0

    def test_a_lane_that_holds_far_more_than_it_needs_gives_it_back_by_itself(self, lab, lane):
        lane.scratch(64 * MIB).close()
        for _ in range(4):
            pass_time(lab, WINDOW_NS)
            lane.scratch(MIB).close()
        assert lane.scratch_statistics.reserved_bytes == MIB
        assert lane.scratch_statistics.trim_count == 1

    def test_a_lane_that_needs_what_it_has_keeps_it(self, lab, lane):
        for _ in range(5):
            lane.scratch(64 * MIB).close()
            pass_time(lab, WINDOW_NS)
        assert lane.scratch_statistics.growth_count == 1

    def test_a_failure_while_it_trims_itself_stays_with_it(self, lab, lane, backend):
        lane.scratch(64 * MIB).close()
        for _ in range(3):
            pass_time(lab, WINDOW_NS)
            backend.refusals = [DeviceError("captured")]
            lane.scratch(MIB).close() if lane.scratch_statistics.growth_count > 1 else None
            backend.refusals = []
            lane.scratch(MIB).close()
        found = lane.scratch_statistics
        assert found.used_bytes == 0
        assert found.reserved_bytes in {MIB, 65 * MIB}
        lane.trim_scratch()
        assert backend.held == []

    def test_what_could_not_be_freed_stays(self, lane, backend):
        lane.scratch(MIB).close()
        backend.refusals = [DeviceError("captured")]
        with pytest.raises(DeviceError, match="captured"):
            lane.trim_scratch()
        assert lane.scratch_statistics.reserved_bytes == MIB
        with lane.scratch(MIB) as work:
            assert work.ptr == backend.held[0]
        assert lane.scratch_statistics.growth_count == 1


class TestLimits:
    def test_the_limit_is_of_all_lanes_together(self, backend):
        with Session(backend, scratch_limit_bytes=3 * MIB) as lab:
            one = lab.stream("a").scratch(2 * MIB)
            with pytest.raises(DeviceMemoryError, match=r"may hold 3,145,728, and hold 2,097,152.*scratch_limit_bytes=4194304"):
                lab.stream("b").scratch(2 * MIB)
            one.close()
            with lab.stream("b").scratch(2 * MIB):  # what nobody used went back
                assert lab.memory.statistics.reserved_bytes == 2 * MIB
            assert lab.stream("b").scratch_statistics.allocation_count == 1

    def test_half_of_the_card_if_nothing_is_said(self, lab, lane, backend):
        assert lab.memory.statistics.limit_bytes == H200.memory_bytes // 2
        with pytest.raises(
            DeviceMemoryError, match="The whole device has 141,000,000,000 bytes, so no limit allows it: take less"
        ):
            lane.scratch(2**62)
        assert backend.calls == []

    def test_a_limit_is_advised_only_where_it_can_help(self, lab, lane, backend):
        half = H200.memory_bytes // 2
        with pytest.raises(DeviceMemoryError, match=r"Session\(scratch_limit_bytes=85899345920\)"):
            lane.scratch(half + 512)
        backend.refusals = []
        lab._scratch_pool.reserve(half, lane._arena)
        with pytest.raises(DeviceMemoryError, match="take less, or give back what the lanes hold") as raised:
            lab._scratch_pool.reserve(half + 512, lane._arena)
        assert "scratch_limit_bytes" not in str(raised.value)
        lab._scratch_pool.release(half)

    @pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "8G"])
    def test_bad_limits(self, wrong):
        with pytest.raises(OptionError, match="scratch_limit_bytes"):
            Session("sim", scratch_limit_bytes=wrong)

    def test_without_memory_the_others_give_back_what_nobody_uses_once(self, lab, lane, backend):
        lab.stream("other").scratch(MIB).close()
        backend.refusals = [DeviceMemoryError("none left")]
        with lane.scratch(4096):
            assert backend.relieved_count == 1
        assert lab.stream("other").scratch_statistics.reserved_bytes == 0
        assert lab.memory.statistics.reserved_bytes == 4096

    def test_then_it_fails_with_the_numbers(self, backend):
        with Session(backend, scratch_limit_bytes=1 << 50) as lab:
            lane = lab.stream("decode")
            with lane.scratch(MIB), pytest.raises(DeviceMemoryError, match="decode") as raised:
                lane.scratch(1 << 40)
            assert f"{H200.memory_bytes - MIB:,} of {H200.memory_bytes:,} bytes of the device are free" in str(raised.value)
            assert "lanes hold 1,048,576 as scratch" in str(raised.value)
            assert raised.value.driver_code == "OUT_OF_MEMORY"
            assert lab.memory.statistics.reserved_bytes == MIB == lab._scratch_pool.reserved_bytes

    def test_another_failure_comes_through(self, lab, lane, backend):
        backend.refusals = [DeviceError("captured")]
        with pytest.raises(DeviceError, match="captured"):
            lane.scratch(4096)
        assert lab._scratch_pool.reserved_bytes == 0
        assert backend.relieved_count == 0


class TestClosing:
    def test_a_closed_lane_holds_nothing(self, lab, lane, backend):
        held = lane.scratch(MIB)
        lane.scratch(4096).close()
        lane.close()
        assert backend.held == []
        for use in (lambda: held.ptr, lambda: held.array(1, "u1")):
            with pytest.raises(StreamClosedError, match="lane 'decode' was closed"):
                use()
        held.close()
        with pytest.raises(StreamClosedError):
            lane.scratch(4096)
        assert lane.scratch_statistics.reserved_bytes == lane.scratch_statistics.used_bytes == 0
        assert lane.scratch_statistics.peak_bytes == MIB + 4096
        assert lab._scratch_pool.reserved_bytes == 0

    def test_it_is_freed_on_its_stream_and_a_new_lane_of_the_name_begins_anew(self, lab, lane, backend):
        with lab.on(lane):
            work = lane.scratch(MIB)
            spin(lab, 1_000_000)
        address, handle = work.ptr, lane.handle
        lane.close()
        assert backend.calls[-1] == ("free", handle, address)
        again = lab.stream("decode")
        assert again.scratch_statistics.allocation_count == 0
        with again.scratch(MIB):
            assert lab.memory.statistics["decode"].used_bytes == MIB

    def test_the_session_closes_silently_with_scratch_held(self, backend):
        with Session(backend) as lab:
            held = [lab.stream(name).scratch(MIB) for name in "abc"]
        assert backend.held == []
        assert all(work.is_closed for work in held)

    def test_a_lent_stream_has_scratch_too(self, backend):
        lender = backend.create_stream(priority=0)
        with Session(backend) as lab:
            lane = lab.stream("lent", external=lender)
            with lane.scratch(4096) as work:
                assert work.array(4, "f4").shape == (4,)
        assert backend.held == []
        lender.close()

    def test_a_failure_to_free_does_not_keep_the_stream(self, backend):
        with Session(backend) as lab:
            lane = lab.stream("decode")
            held = [lane.scratch(MIB) for _ in range(3)]
            backend.refusals = [DeviceError("lost")]
            with pytest.raises(DeviceError, match="lost"):
                lane.close()
            lane.close()
            assert lane._backend_stream.is_closed
            assert lab.memory.statistics.reserved_bytes == 0  # it is tried again in front of the stream's end
            del held

    def test_nothing_is_leaked_by_many_lanes_and_the_arena_goes_with_its_lane(self, lab, backend):
        for _ in range(50):
            lane = lab.stream("short")
            lane.scratch(4096)
            known = weakref.ref(lane._arena)
            lane.close()
        assert backend.held == []
        del lane
        lab.stream("short").close()  # takes its row
        gc.collect()
        assert known() is None


class TestMoving:
    @pytest.fixture(autouse=True)
    def _parts(self, lab):
        lab.partition(p=32, rest="rest")

    @pytest.mark.parametrize("is_held", [False, True])
    def test_blocks_follow_in_order(self, lab, lane, backend, is_held):
        held, old = lane.scratch(MIB), lane._backend_stream
        address = held.ptr
        if not is_held:
            held.close()
        lab.stream("decode", partition="p")
        if is_held:
            with lane.scratch(MIB) as other:
                assert other.ptr != held.ptr == address
        backend.launch_spin(old, 5_000_000, blocks=1, fill_sms=False)  # by the handle that was given out before
        held.close()
        with lane.scratch(MIB) as one, lane.scratch(MIB) as two:
            assert address in {one.ptr, two.ptr}
            assert not lane.query()  # it waits, on the device, for what the old stream holds
        lane.synchronize()
        assert old.query()
        assert lane.scratch_statistics.growth_count == 2
        assert lane.scratch_statistics.used_bytes == 0

    def test_there_and_back_again(self, lab, lane, backend):
        held = lane.scratch(MIB)
        for partition in ("p", "rest", None, "p", None):
            lab.stream("decode", partition=partition)
            with lane.scratch(MIB) as work:
                assert work.ptr != held.ptr
        held.close()
        lane.trim_scratch()
        assert backend.held == []
        assert lab._scratch_pool.reserved_bytes == 0

    def test_a_stream_that_was_left_and_destroyed_is_not_waited_for(self, backend):
        with Session(backend, context_limit=2) as lab:
            lane = lab.stream("decode")
            held = []
            for size in (16, 32, 48, 64, 80):
                lab.partition({"p": size, "rest": "rest"})
                lab.stream("decode", partition="p")
                held.append(lane.scratch(MIB))
                lab.stream("decode", partition=None)
            for work in held:
                work.close()
            with lane.scratch(MIB):
                assert lane.scratch_statistics.growth_count == 5
        assert backend.held == []

    def test_a_lane_that_closes_frees_behind_what_it_left_on_a_stream_before(self, lab, lane, backend):
        held, old = lane.scratch(MIB), lane._backend_stream
        lab.stream("decode", partition="p")
        backend.launch_spin(old, 5_000_000, blocks=1, fill_sms=False)
        lane._arena.close()
        assert backend.held == []
        assert not lane.query()
        lane.synchronize()
        assert old.query()
        lane.close()
        held.close()

    def test_only_streams_with_work_are_waited_for_and_only_for_blocks(self, lab, lane, backend, monkeypatch):
        ordered = []
        monkeypatch.setattr(_arena, "order_behind", lambda *streams: ordered.append(streams[1:]))
        lane.scratch(MIB).close()
        lab.stream("decode", partition="p")
        with lane.scratch(MIB) as work:
            assert work.ptr == backend.held[0]
        bare = lab.stream("bare")
        bare.trim_scratch()
        old = bare._backend_stream
        lab.stream("bare", partition="p")
        backend.launch_spin(old, 5_000_000, blocks=1, fill_sms=False)
        bare._arena.close()
        assert ordered == []

    def test_a_block_that_comes_back_while_the_lane_waits_for_others_is_waited_for_too(self, lab, lane, backend, monkeypatch):
        first, later, old = lane.scratch(MIB), lane.scratch(MIB), lane._backend_stream
        addresses = first.ptr, later.ptr
        lab.stream("decode", partition="p")
        first.close()
        waited = []
        wait = ScratchArena._order_behind_left

        def wait_while_another_thread_works(arena):
            wait(arena)
            backend.launch_spin(old, 5_000_000, blocks=1, fill_sms=False)
            later.close()
            waited.append(arena)

        monkeypatch.setattr(ScratchArena, "_order_behind_left", wait_while_another_thread_works)
        with lane.scratch(MIB) as one, lane.scratch(MIB) as two:
            assert {one.ptr, two.ptr} == set(addresses)
            assert len(waited) == 2


class TestOtherLanes:
    def test_scratch_that_another_lane_holds_behind_its_work_is_given_back_once_that_is_done(self, lab, lane):
        other = lab.stream("other")
        work = lane.scratch(MIB)
        address = work.ptr
        other.wait(lane.record())
        with lab.on(other):
            spin(lab, 5_000_000)
        other.hold(work)
        del work
        with lane.scratch(MIB) as meanwhile:
            assert meanwhile.ptr != address
            other.synchronize()
            with lane.scratch(MIB) as afterwards:
                assert afterwards.ptr == address

    def test_holding_keeps_nothing_that_is_given_back(self, lab, lane):
        other = lab.stream("other")
        with lab.on(other):
            spin(lab, 5_000_000)
        with lane.scratch(MIB) as work:
            address = work.ptr
            other.hold(work)
        with lane.scratch(MIB) as again:
            assert again.ptr == address
        assert not other.query()


class TestWithoutPools:
    def test_growing_and_trimming_waits_for_the_lane_only(self):
        backend = CountedBackend(dataclasses.replace(H200, has_memory_pools=False))
        with Session(backend) as lab:
            lane, other = lab.stream("a"), lab.stream("b")
            for stream in (other, lane):
                with lab.on(stream), stream.scratch(MIB):
                    spin(lab, 1_000_000 if stream is lane else 9_000_000)
            assert not lane.query()
            lane.trim_scratch()
            assert lane.query()
            assert not other.query()
        backend.close()

    def test_re_use_waits_for_nothing(self):
        with Session(SimBackend(dataclasses.replace(H200, has_memory_pools=False))) as lab:
            lane = lab.stream("a")
            with lab.on(lane):
                for _ in range(3):
                    with lane.scratch(MIB):
                        spin(lab, 1_000_000)
                assert not lane.query()


class TestTimeline:
    def test_the_lane_has_a_memory_strip_in_the_ranges_tier_and_in_the_spool(self, tmp_path):
        with Session("sim", spool=tmp_path / "run.arrows", capture="ranges") as lab:
            lane = lab.stream("decode")
            with lab.on(lane, "step"), lane.scratch(MIB):
                spin(lab, 3_000_000)
                lane.synchronize()
            lab.synchronize()
            trace = lab.trace
        for found in (trace, load_trace(tmp_path / "run.arrows")):
            counters = found.counters
            values = {name: counters.value[counters.name == code].tolist() for code, name in enumerate(counters.names)}
            assert values["scratch_used_bytes"][:2] == [MIB, 0.0]
            assert values["scratch_reserved_bytes"][0] == MIB
            assert {found.lanes[lane].name for lane in counters.lane} == {"decode"}
        times = trace.counters.time_ns[trace.counters.name == trace.counters.names.index("scratch_used_bytes")]
        assert 3_000_000 <= np.diff(times)[0] <= 4_000_000
        (strip,) = plan_memory(trace, plan_scene(trace))
        assert [(line.label, line.is_filled) for line in strip.lines] == [("scratch reserved", False), ("scratch in use", True)]
        assert strip.most_bytes == MIB

    def test_short_peaks_are_seen(self, lab, lane):
        for _ in range(10):
            with lab.on(lane, "step"), lane.scratch(MIB):
                spin(lab, 50_000)
        lab.synchronize()
        counters = lab.trace.counters
        used = counters.value[counters.name == counters.names.index("scratch_used_bytes")]
        assert (used.max(), used[-1]) == (MIB, 0)

    def test_clearing_begins_with_what_is_held(self, lab, lane):
        with lane.scratch(MIB):
            pass_time(lab, 1_000_000)
            lab.clear()
            counters = lab.trace.counters
            assert sorted(counters.value.tolist()) == [MIB, MIB]

    def test_a_closed_lane_ends_at_nothing(self, lab, lane):
        lane.scratch(MIB)
        pass_time(lab, 2_000_000)
        lane.close()
        counters = lab.trace.counters
        for code in range(len(counters.names)):
            assert counters.value[counters.name == code][-1] == 0

    def test_nobody_who_asks_for_the_trace_keeps_samples_bounded(self, lab, lane):
        for _ in range(3_000):
            with lane.scratch(MIB):
                pass_time(lab, 1_000_000)
        assert len(lane._arena._samples) < 4_200
        counters = lab.trace.counters
        assert (counters.name == counters.names.index("scratch_used_bytes")).sum() >= 3_000

    def test_the_calls_are_in_the_kernel_tier(self, lab, lane):
        with lab.capture("kernels"), lab.on(lane):
            lane.scratch(MIB).close()
            lane.trim_scratch()
        lab.synchronize()
        trace = lab.trace
        called = [trace.names[code] for code in trace.name]
        assert called.count("cudaMallocAsync") == called.count("cudaFreeAsync") == 1


class TestThreads:
    def test_many_threads_on_one_lane_and_on_many(self, lab):
        lanes, shared = [lab.stream(f"lane{number}") for number in range(4)], set()

        def work(number):
            for turn in range(400):
                lane = lanes[(number + turn) % 4]
                with lane.scratch(1024 * (1 + turn % 3)) as one, lane.scratch(1024) as two:
                    mine = {one.ptr, two.ptr}
                    assert len(mine) == 2
                    assert not mine & shared
                    shared.update(mine)
                    shared.difference_update(mine)
                if not turn % 100:
                    lane.trim_scratch()
                lane.scratch(512)

        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            run_all(work, 16)
        finally:
            sys.setswitchinterval(before)
        table = lab.memory.statistics
        assert [item.used_bytes for item in table] == [0] * 4
        assert sum(item.allocation_count for item in table) == 16 * 400 * 3
        for lane in lanes:
            lane.trim_scratch()
        assert lab._scratch_pool.reserved_bytes == 0

    def test_a_lane_that_is_closed_as_an_array_is_made_is_the_reason_that_is_told(self, lab, monkeypatch):
        lane = lab.stream("short")
        work = lane.scratch(512)
        make = lab._backend.scratch_array

        def close_and_make(*what):
            lane.close()
            return make(*what)

        monkeypatch.setattr(lab._backend, "scratch_array", close_and_make)
        with pytest.raises(StreamClosedError, match="lane 'short' was closed"):
            work.array(64, "f8")

    def test_a_lane_is_closed_while_others_take_from_it(self, backend):
        with Session(backend) as lab:
            for _ in range(20):
                lane, stop = lab.stream("short"), threading.Event()

                def work(number, lane=lane, stop=stop):
                    if not number:
                        lane.close()
                        stop.set()
                    while not stop.is_set():
                        number += 1
                        try:
                            lane.scratch(512 * (1 + number % 64)).close()
                        except StreamClosedError:
                            return

                run_all(work, 5)
            assert backend.held == []

    def test_a_finaliser_that_uses_the_lane_in_the_middle_of_it_does_not_hang(self, lane):
        class Engine:
            def __init__(self):
                self.me = self
                self.work = lane.scratch(1024)

            def __del__(self):
                self.work.close()
                lane.scratch(2048).close()

        before = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(200):
                Engine()
                lane.scratch(4096).close()
        finally:
            gc.set_threshold(*before)
        gc.collect()
        assert lane.scratch_statistics.used_bytes == 0


def test_an_interrupt_gives_no_block_out_twice_and_none_outlives_its_lane():
    command = [sys.executable, "-m", "tests.helpers.scratch_storm", "500"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["ok"], "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_leaves_the_parents_memory_alone(backend):
    with Session(backend) as lab:
        lane = lab.stream("decode")
        work = lane.scratch(4096)
        child = os.fork()
        if not child:
            status = 1
            try:
                work.close()
                status = 0 if work.is_closed and not [call for call in backend.calls if call[0] == "free"] else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not work.is_closed


def test_scratch_is_made_by_lanes_only():
    with pytest.raises(TypeError):
        Scratch()
