"""Scratch memory of lanes: what is given out, reused, given back, counted and refused."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import ScratchStatistics
from gpustreamlab.backends.sim import H200, SimBackend
from gpustreamlab.draw import plan_memory, plan_scene
from gpustreamlab.errors import (
    DeviceError,
    DeviceMemoryError,
    GraphCaptureError,
    NotSimulatedError,
    OptionError,
    SelectionError,
    SessionClosedError,
    SessionError,
    StreamClosedError,
    StreamNotFoundError,
)
from gpustreamlab.memory.scratch import Scratch
from gpustreamlab.workloads import spin
from tests.helpers.threads import run_all, run_in_thread

MIB = 1 << 20


class CountedBackend(SimBackend):
    """Notes what is allocated and freed, on which stream; refuses where it is told to."""

    def __init__(self, preset="h200"):
        super().__init__(preset)
        self.calls, self.refusals = [], []

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


def used_bytes(lane):
    return lane._scratch.statistics.used_bytes


class TestTaking:
    def test_a_block_is_used_again_at_once_by_the_same_lane(self, lab, lane, backend):
        with lab.on(lane):
            with lane.scratch(MIB) as work:
                first = work.ptr
                spin(lab, 1_000_000)
            with lane.scratch(MIB) as work:
                assert work.ptr == first
            assert not lane.query()  # nothing waited
        assert [call[0] for call in backend.calls] == ["allocate", "free"] * 2

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
        assert used_bytes(lane) == 0
        again, other = lane.scratch(4096), lane.scratch(4096)
        assert again.ptr == address != other.ptr
        del again, other
        gc.collect()
        assert used_bytes(lane) == 0
        assert lane.scratch(4096).ptr >= address

    def test_an_array_keeps_it_from_becoming_garbage(self, lane):
        array = lane.scratch(4096).array(8, "f8")
        view = array[2:4]
        del array
        gc.collect()
        assert used_bytes(lane) == 4096
        del view
        gc.collect()
        assert used_bytes(lane) == 0

    def test_an_exception_gives_it_back(self, lane):
        with pytest.raises(ZeroDivisionError), lane.scratch(4096):
            _ = 1 / 0
        assert used_bytes(lane) == 0

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
            assert (left.ending, left.is_closed) == ("stream closed", True)
            left.close()
        assert repr(left) == "<Scratch of 'decode', 512 bytes, stream closed>"
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
    def test_they_count(self, lab, lane):
        with lane.scratch(1000), lane.scratch(5000):
            pass
        with lane.scratch(1000):
            found = lab.memory.statistics["decode"]
        assert found == ScratchStatistics(stream="decode", used_bytes=1000, peak_bytes=6000, allocation_count=3)

    def test_all_lanes_are_a_table(self, lab, lane):
        lab.stream("prefill")
        with lane.scratch(4096):
            table = lab.memory.statistics
        assert [item.stream for item in table] == ["decode", "prefill"]
        assert (len(table), table["decode"].used_bytes, table.used_bytes) == (2, 4096, 4096)
        assert repr(table) == "<ScratchTable: 2 streams, 4,096 B in use>"
        assert "decode" in str(table)
        assert "<table" in table._repr_html_()
        with pytest.raises(StreamNotFoundError, match=r"no stream 'decoed'.*Did you mean 'decode'\?"):
            table["decoed"]

    def test_no_lanes_are_an_empty_table(self, lab):
        text = str(lab.memory.statistics)
        assert text.startswith("Scratch 0 streams, 0 B in use")
        assert 'with lab.stream("decode").scratch(1 << 20) as work' in " ".join(text.split())
        with pytest.raises(StreamNotFoundError, match="No stream was opened yet"):
            lab.memory.statistics["decode"]

    def test_a_long_name_leaves_room_for_the_numbers(self, lab):
        name = "n" * 95
        lab.stream(name).scratch(1024).close()
        table = lab.memory.statistics
        assert max(map(len, str(table).splitlines())) < 150
        assert name not in table._repr_html_()
        assert table[name].peak_bytes == 1024


class TestWithoutMemory:
    def test_it_fails_with_the_numbers(self, lab, lane):
        with (
            lane.scratch(MIB),
            pytest.raises(DeviceMemoryError, match="Lane 'decode' asked for 1,099,511,") as raised,
        ):
            lane.scratch(1 << 40)
        assert f"1,048,576 of its {H200.memory_bytes:,} bytes are in use as scratch" in str(raised.value)
        assert raised.value.driver_code == "OUT_OF_MEMORY"
        assert lab.memory.statistics.used_bytes == 0

    def test_another_failure_comes_through(self, lab, lane, backend):
        backend.refusals = [DeviceError("captured")]
        with pytest.raises(DeviceError, match="captured"):
            lane.scratch(4096)
        assert lab.memory.statistics.used_bytes == 0


class TestGraphs:
    def test_what_ends_while_the_lane_is_captured_is_freed_behind_it(self, lab, lane, backend):
        work = lane.scratch(4096)
        address = work.ptr
        capture = backend.begin_graph(lane._backend_stream)
        work.close()
        assert backend.held == [address]
        with pytest.raises(GraphCaptureError, match="Take scratch before the capture begins"):
            lane.scratch(4096)
        capture.abandon()
        assert used_bytes(lane) == 0
        assert backend.held == []

    def test_a_lane_that_is_closed_in_a_capture_frees_it_too(self, lab, lane, backend):
        held = lane.scratch(4096)
        backend.begin_graph(lane._backend_stream)
        lane.close()
        assert held.is_closed
        assert backend.held == []


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
        assert lab.memory.statistics["decode"] == ScratchStatistics(
            stream="decode", used_bytes=0, peak_bytes=MIB + 4096, allocation_count=2
        )

    def test_it_is_freed_on_its_stream_and_a_new_lane_of_the_name_begins_anew(self, lab, lane, backend):
        with lab.on(lane):
            work = lane.scratch(MIB)
            spin(lab, 1_000_000)
        address, handle = work.ptr, lane.handle
        lane.close()
        assert backend.calls[-1] == ("free", handle, address)
        again = lab.stream("decode")
        assert lab.memory.statistics["decode"].allocation_count == 0
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
            assert len(backend.held) == 1  # the others are freed
            assert all(work.is_closed for work in held)

    def test_nothing_is_leaked_by_many_lanes_and_the_memory_goes_with_its_lane(self, lab, backend):
        for _ in range(50):
            lane = lab.stream("short")
            lane.scratch(4096)
            known = weakref.ref(lane._scratch)
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

    def test_what_was_held_over_a_move_is_freed_behind_the_stream_that_was_left(self, lab, lane, backend):
        held, old = lane.scratch(MIB), lane._backend_stream
        address = held.ptr
        lab.stream("decode", partition="p")
        with lane.scratch(MIB) as other:
            assert other.ptr != held.ptr == address
        backend.launch_spin(old, 5_000_000, blocks=1, fill_sms=False)  # by the handle that was given out before
        held.close()
        assert backend.calls[-1] == ("free", lane.handle, address)
        assert not lane.query()
        lane.synchronize()
        assert old.query()

    def test_there_and_back_again(self, lab, lane, backend):
        held = lane.scratch(MIB)
        for partition in ("p", "rest", None, "p", None):
            lab.stream("decode", partition=partition)
            with lane.scratch(MIB) as work:
                assert work.ptr != held.ptr
        held.close()
        assert backend.held == []

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
            assert backend.held == []

    def test_a_lane_that_closes_frees_behind_what_it_left_on_a_stream_before(self, lab, lane, backend):
        held, old = lane.scratch(MIB), lane._backend_stream
        lab.stream("decode", partition="p")
        backend.launch_spin(old, 5_000_000, blocks=1, fill_sms=False)
        lane._scratch.close()
        assert backend.held == []
        assert not lane.query()
        lane.synchronize()
        assert old.query()
        lane.close()
        held.close()


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


def test_without_memory_pools_giving_back_waits_for_the_lane_only():
    backend = CountedBackend(dataclasses.replace(H200, has_memory_pools=False))
    with Session(backend) as lab:
        lane, other = lab.stream("a"), lab.stream("b")
        work = lane.scratch(MIB)
        for stream in (other, lane):
            with lab.on(stream):
                spin(lab, 1_000_000 if stream is lane else 9_000_000)
        assert not lane.query()
        work.close()
        assert lane.query()
        assert not other.query()
    backend.close()


def test_the_timeline_has_it_where_kernels_are_captured(lab, lane):
    with lab.capture("kernels"), lab.on(lane, "step"), lane.scratch(MIB):
        spin(lab, 3_000_000)
        lane.synchronize()
    lab.synchronize()
    trace = lab.trace
    called = [trace.names[code] for code in trace.name]
    assert called.count("cudaMallocAsync") == called.count("cudaFreeAsync") == 1
    counters = trace.counters
    used = counters.name == counters.names.index("async_used_bytes")
    assert counters.value[used].tolist() == [MIB, 0.0]
    assert {trace.lanes[code].name for code in counters.lane[used]} == {"decode"}
    (strip,) = plan_memory(trace, plan_scene(trace))
    assert [(line.label, line.is_filled) for line in strip.lines] == [("stream-ordered in use", True)]


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
        assert used_bytes(lane) == 0


def test_scratch_is_made_by_lanes_only():
    with pytest.raises(TypeError):
        Scratch()
