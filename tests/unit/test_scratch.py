"""Scratch memory of lanes: what is given out, reused, given back, counted and refused."""

from __future__ import annotations

import gc
import sys
from contextlib import nullcontext

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import ScratchStatistics
from gpustreamlab.backends.sim import H200, SimBackend
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
            with pytest.raises(ZeroDivisionError), lane.scratch(MIB) as work:
                first = work.ptr
                spin(lab, 1_000_000)
                _ = 1 / 0
            with lane.scratch(MIB) as work, lane.scratch(MIB) as second, lab.stream("other").scratch(MIB) as other:
                assert work.ptr == first
                assert abs(second.ptr - first) >= MIB
                assert other.ptr not in {first, second.ptr}
            assert not lane.query()  # nothing waited
        assert [call[0] for call in backend.calls] == ["allocate", "free", *["allocate"] * 3, *["free"] * 3]

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

    def test_what_it_says_of_itself_and_that_it_refuses_after_it_was_given_back(self, lane):
        work = lane.scratch(1_000)
        assert (work.nbytes, work.stream, work.is_closed, work.ending) == (1_000, lane, False, "")
        assert repr(work) == f"<Scratch of 'decode', 1,000 bytes, at {work.ptr:#x}>"
        work.close()
        assert (work.is_closed, work.ending) == (True, "given back")
        assert repr(work) == "<Scratch of 'decode', 1,000 bytes, given back>"
        for use in (lambda: work.ptr, lambda: work.array(8, "f8")):
            with pytest.raises(SessionError, match=r"given back to stream 'decode'.*lab.stream\('decode'\).scratch\(1000\)"):
                use()

    def test_what_has_ended_is_not_kept_for_others(self, lab, lane):
        other = lab.stream("other")
        with lane.scratch(4096) as work:
            other.hold(work)
            assert other.use(work, after=lane) is work
        with lane.scratch(4096) as again:
            assert used_bytes(lane) == 4096  # holding keeps nothing that is given back
        assert again.is_closed
        for keep in (lambda: lane.hold(work), lambda: other.use(work, after=lane)):
            with pytest.raises(SessionError, match="given back to stream 'decode'"):
                keep()
        left = lane.scratch(512)
        lane.close()
        for _ in range(2):
            assert (left.ending, left.is_closed) == ("stream closed", True)
            left.close()
        assert repr(left) == "<Scratch of 'decode', 512 bytes, stream closed>"
        with pytest.raises(StreamClosedError, match="stream 'decode' was closed"):
            other.hold(left)

    @pytest.mark.parametrize("wrong", [-1, True, False, 1.0, 2**63, "1", None, [1], np.float32(4), np.bool_(True)])
    def test_bad_sizes_are_refused(self, lane, wrong):
        with (
            lane.scratch(np.int64(0)) as smallest,
            pytest.raises(OptionError, match=r"size of scratch.*scratch\(1 << 20\)"),
        ):
            lane.scratch(wrong)
        assert (smallest.nbytes, used_bytes(lane)) == (0, 0)


class TestArrays:
    def test_they_are_of_lab_xp_and_work_like_others(self, lab, lane):
        with lab.on(lane), lane.scratch(4 * 64 * 64) as work:
            array = work.array((64, 64), "float32")
            array[:] = 2
            assert isinstance(array, lab.xp.ndarray)
            assert float((array @ array).sum()) == 64 * 64 * 64 * 4
            assert array.shape == (64, 64)
            assert work.array([2, 3], np.int16).dtype == np.int16

    @pytest.mark.parametrize(
        ("shape", "dtype", "told"),
        [
            *(((1025,), "f4", "4,100 bytes; this scratch of stream 'decode' has 4,096"), ((64, 65), "u1", "has 4,096")),
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


class TestSelected:
    def test_the_session_takes_it_from_the_selected_lane(self, lab, lane):
        with lab.on(lane), lab.memory.scratch(4096) as work:
            assert work.stream is lane

    def test_nothing_selected_is_no_lane_and_another_threads_selection_does_not_count(self, lab, lane):
        with pytest.raises(SelectionError, match=r"with lab.on\('name'\)"):
            lab.memory.scratch(4096)
        with lab.on(lane):
            assert isinstance(run_in_thread(lambda: lab.memory.scratch(4096)), SelectionError)
        lab.close()
        with pytest.raises(SessionClosedError, match="scratch"):
            lab.memory.scratch(3)


class TestStatistics:
    def test_all_lanes_are_a_table(self, lab, lane):
        lab.stream("prefill")
        with lane.scratch(1000), lane.scratch(5000):
            pass
        with lane.scratch(4096):
            table = lab.memory.statistics
        assert table["decode"] == ScratchStatistics(stream="decode", used_bytes=4096, peak_bytes=6000, allocation_count=3)
        assert [item.stream for item in table] == ["decode", "prefill"]
        assert (len(table), table["decode"].used_bytes, table.used_bytes) == (2, 4096, 4096)
        assert repr(table) == "<ScratchTable: 2 streams, 4,096 B in use>"
        assert "decode" in str(table)
        assert "<table" in table._repr_html_()
        with pytest.raises(StreamNotFoundError, match=r"no stream 'decoed'.*Did you mean 'decode'\?"):
            table["decoed"]


class TestWithoutMemory:
    def test_it_fails_with_the_numbers(self, lab, lane):
        with (
            lane.scratch(MIB),
            pytest.raises(DeviceMemoryError, match="Stream 'decode' asked for 1,099,511,") as raised,
        ):
            lane.scratch(1 << 40)
        assert f"1,048,576 of its {H200.memory_bytes:,} bytes are in use as scratch" in str(raised.value)
        assert raised.value.driver_code == "OUT_OF_MEMORY"
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


class TestClosing:
    def test_a_closed_lane_holds_nothing(self, lab, lane, backend):
        held = lane.scratch(MIB)
        lane.scratch(4096).close()
        lane.close()
        assert backend.held == []
        for use in (lambda: held.ptr, lambda: held.array(1, "u1")):
            with pytest.raises(StreamClosedError, match="stream 'decode' was closed"):
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

    def test_a_failure_to_free_does_not_keep_the_stream(self, backend):
        with Session(backend) as lab:
            assert lab.stream("other").scratch(MIB).ptr  # held as the session closes
            lane = lab.stream("decode", external=backend.create_stream())
            held = [lane.scratch(MIB) for _ in range(3)]
            backend.refusals = [DeviceError("lost")]
            with pytest.raises(DeviceError, match="lost"):
                lane.close()
            lane.close()
            assert lane._backend_stream.is_closed
            assert all(work.is_closed for work in held)
        assert len(backend.held) == 1  # all others are freed


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
        with pytest.raises(StreamClosedError, match="stream 'short' was closed"):
            work.array(64, "f8")
