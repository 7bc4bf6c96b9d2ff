"""What a source tells of memory: by calls, by torch's history, by CuPy's hooks."""

from __future__ import annotations

import sys
import types

import pytest

from gpustreamlab.backends import StepKind
from gpustreamlab.backends.cuda.cupti import _clients, _source
from gpustreamlab.backends.cuda.cupti._blocks import BlockChange
from gpustreamlab.backends.cuda.cupti._pools import TorchBlocks
from tests.helpers.captured import drain_all
from tests.helpers.fake_cupti import FakePoolWatch, make_source

A, B = 0x7F00_0000_0000, 0x7F00_1000_0000
ALLOCATE, UPLOAD, LAUNCH, WAIT = (1, 243), (1, 277), (1, 307), (1, 126)
STREAM = {"stream": 0x6000, "flags": 4}


def test_a_source_tells_accesses_and_where_somebody_looks_for_hazards_steps(card, source):
    source.tells_steps = True
    source.start()
    card.call(ALLOCATE, object=A, size=4_096)
    card.call(ALLOCATE, object=B, size=4_096)
    copied = card.call(UPLOAD, object=A, size=64, words=2, own_words=[1, 64], **STREAM)
    launched = card.call(LAUNCH, object=9, words=2, own_words=[A, B | 1 << 48], **STREAM)
    waited_ns = card.now_ns
    card.call(WAIT, **STREAM)
    (done,) = drain_all(source, card, 1)

    assert done.accesses.correlation.tolist() == [copied, launched, launched]
    assert (done.accesses.flags & 1).tolist() == [1, 0, 1]
    assert done.accesses.end.tolist() == [64, 4_096, 4_096]
    kinds = [step.kind for step in done.steps]
    assert kinds[-5:] == [StepKind.MADE, StepKind.MADE, StepKind.WORK, StepKind.WORK, StepKind.SEEN_STREAM]
    assert done.steps[-2].name == "function 0x9"
    assert len(done.step_host_ns) == len(done.steps)
    assert abs(int(done.step_host_ns[-1]) - waited_ns) < 3_000


def test_what_the_session_itself_waits_for_is_no_order_of_the_program(card, source):
    source.tells_steps = True
    source.start()
    drain_all(source, card, 1)
    with source.own_calls():
        card.call(WAIT, **STREAM)
    card.advance(10_000)
    card.call(WAIT, **STREAM)
    (done,) = drain_all(source, card, 1)
    assert [step.kind for step in done.steps].count(StepKind.SEEN_STREAM) == 1


def test_without_anybody_who_looks_for_hazards_no_steps_are_told(card, source):
    source.start()
    card.call(LAUNCH, object=9, words=1, own_words=[A], **STREAM)
    (done,) = drain_all(source, card, 1)
    assert done.steps == ()


def test_after_calls_were_lost_nothing_is_known_of_memory_and_all_is_in_order(card, source):
    source.tells_steps = True
    source.start()
    card.call(ALLOCATE, object=A, size=4_096)
    drain_all(source, card, 1)
    card.library.lost_call_count = 3
    card.call(LAUNCH, object=9, words=1, own_words=[A], **STREAM)
    (cut,) = drain_all(source, card, 1)
    card.call(LAUNCH, object=9, words=1, own_words=[A], **STREAM)
    (behind,) = drain_all(source, card, 1)
    assert (len(cut.accesses), len(behind.accesses)) == (0, 0)
    assert [step.kind for step in cut.steps] == [StepKind.LOST]
    assert source.dropped_count == 3


def test_steps_that_nobody_takes_are_bounded_and_counted(monkeypatch, card, source):
    monkeypatch.setattr(_source, "HELD_STEPS", 20)
    source.tells_steps = True
    source.start()
    drain_all(source, card, 1)
    dropped_count = source.dropped_count
    for _ in range(3):
        for _ in range(15):
            card.call(WAIT, **STREAM)
        _source.SHARING.hand_out(card.library.loaded)
    (done,) = drain_all(source, card, 1)
    assert [step.kind for step in done.steps[:2]] == [StepKind.LOST, StepKind.SEEN_STREAM]
    assert len(done.steps) <= 20
    assert source.dropped_count - dropped_count >= 30


def test_what_cupys_pool_gives_out_comes_from_its_hooks(monkeypatch, card):
    watch = FakePoolWatch()
    watch.take_given = lambda: [(1, A, 256, 0x6000), (2, A, 0, 0)]
    source = make_source(monkeypatch, card, watch=watch)
    assert [one[1:] for one in source.take_blocks()] == [(A, 256, 0x6000), (A, 0, 0)]


class FakeTorch(types.ModuleType):
    """A torch whose allocator tells what a test says."""

    def __init__(self, *, is_initialized=True, is_recorded=False):
        super().__init__("torch")
        self.traces = [[]]
        self.asked = []
        self.is_recorded = is_recorded
        memory = types.SimpleNamespace(_record_memory_history=lambda **options: self.asked.append(options))
        block = {"address": A, "size": 512, "state": "active_allocated"}
        free = {"address": A + 512, "size": 512, "state": "inactive"}
        segment = {"address": A, "total_size": 1_024, "stream": 0, "blocks": [block, free]}
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: is_initialized, memory=memory, memory_snapshot=lambda: [segment]
        )
        self._C = types.SimpleNamespace(
            _cuda_isHistoryEnabled=lambda: self.is_recorded, _cuda_memorySnapshot=lambda _: {"device_traces": self.traces}
        )

    def tell(self, action, address, size, time_us):
        self.traces[0].append({"action": action, "addr": address, "size": size, "stream": 7, "time_us": time_us})


@pytest.fixture
def torch(monkeypatch):
    torch = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def test_torchs_blocks_are_those_that_are_there_and_what_its_history_tells(torch):
    blocks = TorchBlocks()
    assert blocks.is_unseen
    assert blocks.begin() == [BlockChange(0, A, 512, 0)]
    assert (blocks.begin(), blocks.is_unseen) == (None, False)
    torch.tell("free_requested", A, 512, 8)
    torch.tell("free_completed", A, 512, 9)
    torch.tell("alloc", A, 100, 10)
    torch.tell("segment_alloc", B, 1 << 21, 11)
    assert blocks.take() == [BlockChange(9_000, A, 0, 7), BlockChange(10_000, A, 100, 7)]
    assert all(options["clear_history"] and options["context"] is None for options in torch.asked)
    blocks.end()
    assert torch.asked[-1] == {"enabled": None}


def test_a_history_of_the_programs_own_is_read_and_left_alone(torch):
    torch.is_recorded = True
    blocks = TorchBlocks()
    blocks.begin()
    torch.tell("alloc", A, 100, 10)
    first = blocks.take()
    torch.tell("alloc", B, 100, 12)
    assert (len(first), [change.start for change in blocks.take()]) == (1, [B])
    blocks.end()
    assert torch.asked == []


def test_a_torch_that_can_leave_out_ends_of_blocks_is_asked_to(torch):
    def record(enabled=None, *, skip_actions=None, **options):
        torch.asked.append({"enabled": enabled, "skip_actions": skip_actions, **options})

    torch.cuda.memory._record_memory_history = record
    blocks = TorchBlocks()
    blocks.begin()
    torch.tell("alloc", A, 100, 10)
    torch.tell("alloc", A, 200, 12)  # over the one before, which has ended
    assert blocks.take() == [BlockChange(10_000, A, 100, 7), BlockChange(12_000, A, 200, 7)]
    assert all(
        "free_completed" in options["skip_actions"] and "alloc" not in options["skip_actions"] for options in torch.asked
    )
    blocks.end()
    assert torch.asked[-1]["enabled"] is None


def test_a_torch_that_tells_nothing_is_used_without(monkeypatch, torch):
    monkeypatch.delattr(torch._C, "_cuda_isHistoryEnabled")
    blocks = TorchBlocks()
    assert (blocks.begin(), blocks.take()) == (None, [])
    assert TorchBlocks().begin() is None
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(is_initialized=False))
    assert (TorchBlocks().begin(), TorchBlocks().is_unseen) == (None, False)


def test_torchs_history_is_on_for_hazards_alone_and_off_afterwards(monkeypatch, card, source, torch):
    torch.autograd = types.SimpleNamespace(_profiler_enabled=lambda: False)
    source.start()
    assert torch.asked == []
    source.close()
    source.tells_steps = True
    source.start()
    assert torch.asked
    source.close()
    assert torch.asked[-1] == {"enabled": None}
    assert not _clients.SHARING.torch_blocks.take()
