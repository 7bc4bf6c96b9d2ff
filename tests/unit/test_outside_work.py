"""Hazards among the work of any library, from the calls of the driver in their order."""

from __future__ import annotations

import pytest

from gpustreamlab.backends import Step, StepKind
from gpustreamlab.backends.cuda.cupti._arguments import CallFlag
from gpustreamlab.backends.cuda.cupti._blocks import BlockChange
from gpustreamlab.memory._steps import OutsideWork
from gpustreamlab.typing import AccessCertainty
from tests.helpers.driver_calls import DriverCalls

A, B, C = 0x7F00_0000_0000, 0x7F00_1000_0000, 0x7F00_2000_0000
SIZE, LEFT, RIGHT, LEGACY = 4_096, 0x5000, 0x6000, 0


class Program(DriverCalls):
    """A program of two streams, and what is found in it."""

    def __init__(self):
        super().__init__()
        self.reader.follow(is_on=True)
        self.watch = OutsideWork({LEFT: "left"}.get, 0, lambda: [self.watch])
        for address in (A, B, C):
            self.allocate(address, SIZE)
            self.call("cuMemsetD8Async", stream=LEFT, target=address, size=SIZE)
        for function in (9, 10):  # both write what their second argument points to
            self.launch(function, A, C + 0, stream=LEFT)
            self.free(C)
            self.allocate(C, SIZE)
            self.launch(function, A, C, stream=LEFT)
            self.call("cuMemsetD8Async", stream=LEFT, target=C, size=SIZE)
        self.call("cuCtxSynchronize")

    def read_into(self, function, source, target, stream, **options):
        return self.launch(function, source, target, stream=stream, **options)

    def wait(self, stream, other):
        self.call("cuEventRecord", stream=other, target=77)
        self.call("cuStreamWaitEvent", stream=stream, target=77)

    def found(self):
        """Return the hazards as kind, first and second stream and work."""
        self.read()
        steps = self.steps()
        self.watch.take(steps, [""] * len(steps), [0] * len(steps), is_counted=True)
        return [
            (hazard.kind.value, hazard.first.stream, hazard.first.work, hazard.second.work) for hazard, _ in self.watch.found()
        ]


@pytest.fixture
def program():
    return Program()


def test_a_kernel_that_reads_what_another_stream_writes_is_a_hazard_without_a_wait(program):
    program.read_into(9, A, B, LEFT)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == [("read-after-write", "left", "kernel 9", "kernel 10")]
    ((hazard, _),) = program.watch.found()
    assert hazard.fix == "cupy.cuda.ExternalStream(0x6000).wait_event(lab.stream('left').record())"
    assert (hazard.certainty, hazard.array) == (AccessCertainty.LEARNED, "4,096 bytes")


def test_with_a_wait_there_is_none(program):
    program.read_into(9, A, B, LEFT)
    program.wait(RIGHT, LEFT)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == []


@pytest.mark.parametrize("name", ["cuStreamSynchronize", "cuStreamQuery", "cuCtxSynchronize", "cuMemFree_v2"])
def test_what_the_host_waits_for_is_in_order(program, name):
    program.read_into(9, A, B, LEFT)
    program.call(name, stream=LEFT if "Stream" in name else 0)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == []


def test_an_event_that_the_host_saw_reached_is_an_order(program):
    program.read_into(9, A, B, LEFT)
    program.call("cuEventRecord", stream=LEFT, target=3)
    program.call("cuEventQuery", target=3)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == []


def test_work_of_which_not_all_memory_is_seen_is_named(program):
    assert program.found() == []
    assert [*program.watch.unseen()] == []
    program.call("cuMemcpyHtoDAsync_v2", words=[1, 16], stream=LEFT, target=B, size=16, flags=CallFlag.POINTERS)
    for _ in range(2):
        program.read_into(9, B, C, LEFT)
    program.found()
    (told,) = program.watch.unseen()
    assert "kernel 9 (2x)" in told
    program.watch.clear()
    assert [*program.watch.unseen()] == []


def test_two_that_read_are_no_hazard_and_halves_are_none(program):
    program.read_into(9, A, B, LEFT)
    program.read_into(9, A, B + 2_048, RIGHT)
    assert program.found() == []


def test_a_copy_that_covers_where_a_kernel_begins_conflicts_with_it(program):
    program.copy(B, 1, SIZE, stream=LEFT)
    program.read_into(9, B + 1_024, C, RIGHT)
    assert program.found() == [("read-after-write", "left", "copy", "kernel 9")]


def test_launches_that_differ_in_their_numbers_may_use_other_parts_of_memory(program):
    for stream, numbers in ((LEFT, 0), (RIGHT, 1)):
        program.launch(9, A, B, stream=stream, size=numbers)
        program.launch(10, B, C, stream=stream, size=numbers)
    assert program.found() == []


def test_memory_that_one_stream_still_reads_when_a_pool_gives_it_out_again_is_a_hazard(program):
    at_ns = program.now_ns + 500
    program.reader.add_changes([BlockChange(at_ns, B, 256, LEFT)])
    program.call("cuMemsetD8Async", stream=LEFT, target=B, size=256)
    program.wait(RIGHT, LEFT)
    program.read_into(9, B, C, RIGHT)
    changed_ns = program.now_ns + 1
    program.reader.add_changes([BlockChange(changed_ns, B, 0, 0), BlockChange(changed_ns, B, 256, LEFT)])
    program.call("cuMemsetD8Async", stream=LEFT, target=B, size=256)
    assert program.found() == [("use-after-free", "stream 0x6000", "kernel 9", "fill")]


def test_memory_that_is_freed_in_the_order_of_a_stream_waits_for_that_stream(program):
    program.call("cuMemAllocAsync", stream=LEFT, target=B, size=SIZE)
    program.call("cuMemsetD8Async", stream=LEFT, target=B, size=SIZE)
    program.wait(RIGHT, LEFT)
    program.read_into(9, B, C, RIGHT)
    program.call("cuMemFreeAsync", stream=RIGHT, target=B)
    program.call("cuMemAllocAsync", stream=LEFT, target=B, size=SIZE)
    program.call("cuMemsetD8Async", stream=LEFT, target=B, size=SIZE)
    assert program.found() == []


@pytest.mark.parametrize(("flag", "count"), [(CallFlag.BLOCKING, 0), (CallFlag.NON_BLOCKING, 1)])
def test_the_legacy_default_stream_waits_for_blocking_streams_alone(program, flag, count):
    program.launch(9, A, B, stream=RIGHT, flags=flag)
    program.launch(10, B, C, stream=LEGACY)
    program.launch(10, B, C, stream=RIGHT, flags=flag)
    assert len(program.found()) == (2 if count else 0)


def test_memory_of_watched_arrays_is_left_to_those_who_watch_them(program):
    program.watch.note_watched(B)
    program.read_into(9, A, B, LEFT)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == []


def test_a_pool_that_goes_whole_behind_its_parts_is_let_go_of(program):
    at_ns = program.now_ns + 500
    program.read_into(9, A, B, LEFT)
    program.reader.add_changes([BlockChange(at_ns + 1_000, B, 256, LEFT)])
    program.read_into(9, A, B, RIGHT)
    program.reader.add_changes([BlockChange(at_ns + 2_000, B, 0, LEFT)])
    program.read_into(9, A, A, LEFT)
    program.free(B)
    program.allocate(B, SIZE)
    program.free(B)
    program.allocate(B, 2 * SIZE)
    assert program.found() is not None


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_graph_that_was_captured_conflicts_as_its_work_does(program, is_awaited):
    program.call("cuStreamBeginCapture_v2", stream=LEFT)
    program.read_into(9, A, B, LEFT)
    program.call("cuStreamEndCapture", stream=LEFT, target=500)
    program.call("cuGraphInstantiateWithFlags", target=600, size=500)
    program.read_into(10, B, C, RIGHT)  # nothing was enqueued so far
    program.wait(LEFT, RIGHT)
    program.call("cuGraphLaunch", stream=LEFT, target=600)
    if is_awaited:
        program.wait(RIGHT, LEFT)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == ([] if is_awaited else [("read-after-write", "left", "graph", "kernel 10")])


class Tensor:
    """Looks like one of torch's."""

    is_cuda = True
    untyped_storage = property(lambda self: lambda: self)

    def __init__(self, address):
        self.data_ptr = lambda: address


class Stream:
    """Looks like one of torch's."""

    cuda_stream = RIGHT


Tensor.__module__ = Stream.__module__ = "torch.cuda.streams"


def test_streams_and_memory_are_called_as_in_the_callers_program(program):
    program.reader.add_changes([BlockChange(program.now_ns + 500, B, 256, LEFT)])
    program.read_into(9, A, B, LEFT)
    program.read_into(10, B, C, RIGHT)
    program.found()
    program.watch.name({"side": Stream(), "x": Tensor(B), "_hidden": Tensor(B), "number": 5})
    ((hazard, _),) = program.watch.found()
    assert (hazard.array, hazard.fix) == ("x", "side.wait_stream(lab.stream('left'))")


def test_after_calls_were_lost_nothing_before_is_accused(program):
    program.read_into(9, A, B, LEFT)
    program.found()
    program.watch.take([Step(StepKind.LOST)], [""], [0], is_counted=True)
    program.read_into(10, B, C, RIGHT)
    assert program.found() == []


def test_one_mistake_in_a_loop_is_one_finding_with_a_count(program):
    for turn in range(5):
        program.read_into(9, A, B, LEFT)
        program.read_into(10, B, C, RIGHT)
        program.call("cuCtxSynchronize")
        program.read()
        steps = program.steps()
        program.watch.take(steps, [f"step {turn}"] * len(steps), [0] * len(steps), is_counted=True)
    ((hazard, _),) = program.watch.found()
    assert (hazard.hazard_count, hazard.first.range) == (5, "step 0")
