"""Other sessions, other profilers, and silence: who has CUPTI, and how it is noticed."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import sys
import time
import types
from enum import Enum

import numpy as np
import pytest

from gpustreamlab.backends.cuda.cupti import _library as _cupti
from gpustreamlab.backends.cuda.cupti._clients import LOST_AFTER_NS, LOST_UNSEEN_NS, Sharing
from gpustreamlab.backends.cuda.cupti._layouts import RecordKind
from gpustreamlab.backends.cuda.cupti._source import NEEDED_KINDS
from gpustreamlab.errors import CaptureUnavailableError, DeviceError
from tests.helpers.captured import drain_all, keep_for, kernels_of
from tests.helpers.fake_cupti import (
    CLOCK,
    SYNCHRONIZE,
    FakeCuptiLibrary,
    add_source,
    install_torch,
    make_source,
)

SET_CLOCK = "cuptiActivityRegisterTimestampCallback"


def install_torch_profiler(monkeypatch, card, prepared):
    """Install a profiler that takes the card's CUPTI over when it is prepared."""

    def _prepare_profiler(config, activities):
        prepared.append((config, *card.library.kinds, *card.library.pending, *card.library.late))
        card.library.be_taken_over()

    profiler = types.ModuleType("torch.autograd.profiler")
    profiler._prepare_profiler = _prepare_profiler
    monkeypatch.setitem(sys.modules, "torch.autograd.profiler", profiler)
    return profiler


class ProfilerActivity(Enum):
    CPU = 0
    CUDA = 2


def names_of(told):
    return [name for name, *_ in kernels_of(told)]


def test_two_sessions_capture_at_once_and_each_is_told_of_what_was_enqueued_in_its_time(monkeypatch, card, source):
    other = add_source(monkeypatch, card)
    source.start()
    card.advance(20_000)
    card.kernel("before the second")
    card.advance(20_000)
    other.start()
    card.advance(20_000)  # calls that come so shortly after a clock's own are taken for those
    card.kernel("of both")
    theirs = drain_all(other, card, 2)
    mine = drain_all(source, card, 2)
    card.advance(20_000)
    card.kernel("of both, later")
    card.advance(20_000)
    source.stop()
    card.advance(20_000)
    card.kernel("after the first")
    card.advance(20_000)
    mine += [source.drain(is_last=True)]
    theirs += drain_all(other, card)
    other.stop()
    theirs += [other.drain(is_last=True)]

    assert names_of(mine) == ["before the second", "of both", "of both, later"]
    assert names_of(theirs) == ["of both", "of both, later", "after the first"]
    assert source.dropped_count == other.dropped_count == 0
    calls = [len(one.calls) for one in (*mine, *theirs)]
    assert sum(calls) == 6  # the launches, and none of anybody's clock


def test_sessions_of_two_devices_are_told_of_their_own(monkeypatch, card, source):
    other = add_source(monkeypatch, card, ordinal=1)
    source.start()
    other.start()
    card.kernel("first", deviceId=0)
    card.kernel("second", deviceId=1)

    assert names_of(drain_all(source, card)) == ["first"]
    assert names_of(drain_all(other, card)) == ["second"]


def test_streams_of_other_sessions_are_foreign_also_once_those_are_closed(monkeypatch, card, source):
    other = add_source(monkeypatch, card)
    for one, handle in ((source, 0x6000), (other, 0x7000), (other, 0x6000)):
        one.key_of(types.SimpleNamespace(handle=handle, sm_count=132))
    places = np.array([1, 1, 1]), np.array([13, 14, 7])
    other.close()

    assert source.are_foreign(*places).tolist() == [False, True, False]
    assert other.are_foreign(*places).tolist() == [False, False, False]


def test_streams_can_be_made_amid_a_question_whose_they_are():
    # GIVEN streams made by a finaliser, or by a thread that it lets run: in Python 3.11 garbage is collected as tuples are made
    sharing, owner, numbers = Sharing(), FakeCuptiLibrary(), itertools.count()
    for _ in range(2_000):
        sharing.claim(1, next(numbers), owner)
    gc.callbacks.append(lambda *_: sharing.claim(1, next(numbers), owner))
    try:
        assert len(sharing.of_others(None)) >= 2_000
    finally:
        gc.callbacks.pop()


def test_what_a_session_left_unread_is_not_told_to_a_later_one(monkeypatch, card, source):
    other = add_source(monkeypatch, card)
    source.start()
    card.kernel("never fetched")
    source.close()
    other.start()
    card.kernel("second's")

    assert names_of(drain_all(other, card)) == ["second's"]
    assert len(source.drain(is_last=True).work) == 0


ACTIVE = {
    "torch": r"torch\.profiler is running; leave its `with` block",
    "subscriber": "another profiler has subscribed",
    "NSYS_PROFILING_SESSION_ID": r"NSYS_PROFILING_SESSION_ID is set\); run without it",
    "CUDA_INJECTION64_PATH": r"CUDA_INJECTION64_PATH is set\); run without it",
    "cupti-python": "cupti-python is imported",
}


@pytest.mark.parametrize(("client", "words"), ACTIVE.items())
def test_another_client_is_named_and_not_disturbed(monkeypatch, card, source, client, words):
    if client == "torch":
        install_torch(monkeypatch, is_profiling=True)
    elif client == "subscriber":
        card.library.subscriber = "nsys"
    elif client == "cupti-python":
        monkeypatch.setitem(sys.modules, "cupti", types.ModuleType("cupti"))
    else:
        monkeypatch.setenv(client, "1")

    with pytest.raises(CaptureUnavailableError, match=words):
        source.start()

    assert {"cuptiActivityEnable", "cuptiActivityRegisterCallbacks"}.isdisjoint(card.library.history)
    if client == "subscriber":  # torch keeps the place after its first use, and does not mind
        install_torch(monkeypatch, is_profiling=False)
        source.start()
        source.stop()
        assert card.library.subscriber == "nsys"


def test_the_subscribers_place_is_given_back_also_with_a_torch_without_the_question(monkeypatch, card, source):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))

    source.start()
    source.stop()
    source.drain(is_last=True)

    assert (card.library.subscriber, source.lost_reason) == (None, "")
    assert {"cuptiSubscribe", "cuptiUnsubscribe"} <= set(card.library.history)


def test_torch_profiler_in_the_middle_takes_over_and_is_left_alone(monkeypatch, card, source):
    torch = install_torch(monkeypatch, is_profiling=False)
    source.start()
    card.kernel("before")
    before = drain_all(source, card)
    torch.is_profiling = True
    card.library.be_taken_over()

    drain_all(source, card, 10)
    card.kernel("theirs")
    after = drain_all(source, card)
    card.library.history.clear()
    source.stop()

    assert [name for name, *_ in kernels_of(before)] == ["before"]
    assert kernels_of(after) == []
    assert source.lost_reason == "torch.profiler took CUPTI over at 12:34:56; kernels are not captured any more"
    assert set(NEEDED_KINDS) <= card.library.kinds
    assert RecordKind.MARKER not in card.library.kinds
    assert (card.library.left_out, card.library.subscriber) == (set(), None)
    assert "cuptiActivityFlushAll" not in card.library.history


@pytest.mark.parametrize("is_stopped", [False, True])
def test_cupti_is_handed_over_empty_before_torch_profiler_takes_it(monkeypatch, card, source, is_stopped):
    install_torch(monkeypatch, is_profiling=False)
    prepared = []
    source.start()
    profiler = install_torch_profiler(monkeypatch, card, prepared)  # torch is imported after the start
    source.keep_up()
    card.kernel("before", is_late=True)
    if is_stopped:
        source.stop()

    profiler._prepare_profiler("config", {ProfilerActivity.CUDA})
    reason = source.lost_reason
    card.library.kinds |= set(NEEDED_KINDS)  # it enables them, and does not say yet that it is running: a warm-up step
    card.kernel("theirs")
    told = drain_all(source, card)
    source.stop()
    source.close()

    assert prepared == [("config",)]  # nothing of ours was on then, or in a buffer
    assert [name for name, *_ in kernels_of(told)] == ["before"]
    assert reason == ("" if is_stopped else "torch.profiler took CUPTI over at 12:34:56; kernels are not captured any more")
    assert set(NEEDED_KINDS) <= card.library.kinds


def test_capture_starts_again_after_it_was_handed_over(monkeypatch, card, source):
    install_torch(monkeypatch, is_profiling=False)
    profiler = install_torch_profiler(monkeypatch, card, [])
    source.start()
    profiler._prepare_profiler("config", {ProfilerActivity.CUDA})
    source.stop()
    source.drain(is_last=True)

    source.start()
    card.kernel("again")
    told = drain_all(source, card)
    profiler._prepare_profiler("config", {ProfilerActivity.CUDA})

    assert [name for name, *_ in kernels_of(told)] == ["again"]
    assert source.lost_reason.startswith("torch.profiler took CUPTI over")


def test_a_profiler_of_the_host_alone_leaves_cupti_here_and_starts_in_any_case(monkeypatch, card, source):
    install_torch(monkeypatch, is_profiling=False)
    prepared = []
    profiler = install_torch_profiler(monkeypatch, card, prepared)
    source.start()
    profiler._prepare_profiler("host", {ProfilerActivity.CPU})
    assert source.lost_reason == ""
    monkeypatch.setattr(source, "hand_over", lambda _: 1 / 0)
    profiler._prepare_profiler("both", {ProfilerActivity.CUDA})
    assert [config for config, *_ in prepared] == ["host", "both"]


def test_another_client_is_noticed_after_a_while_and_capture_can_start_again(monkeypatch, card, source):
    source.start()
    drain_all(source, card)
    complete_ns = card.now_ns
    card.library.be_taken_over()
    monkeypatch.setitem(sys.modules, "cupti", types.ModuleType("cupti"))
    drain_all(source, card, 2 * LOST_AFTER_NS // 200_000_000)
    lost, until_ns = source.lost_reason, source.complete_until_host_ns

    source.stop()
    with pytest.raises(CaptureUnavailableError, match="cupti-python"):
        source.start()
    monkeypatch.delitem(sys.modules, "cupti")
    source.start()
    card.kernel()

    assert lost.startswith("another profiler took CUPTI over")
    assert complete_ns - 1_000_000_000 < until_ns <= complete_ns
    assert source.lost_reason == ""
    assert source.complete_until_host_ns > card.now_ns - 1_000
    assert len(kernels_of(drain_all(source, card))) == 1


def test_a_torch_profiler_is_noticed_within_seconds(monkeypatch, card, source):
    """It comes past the hand-over where it had the subscriber's place before."""
    torch = install_torch(monkeypatch, is_profiling=False)
    card.library.subscriber = "torch"
    source.start()
    drain_all(source, card)
    card.library.be_taken_over()
    torch.is_profiling = True
    source.keep_up()
    torch.is_profiling = False
    keep_for(source, card, 2e9)

    assert source.lost_reason.startswith("torch.profiler took CUPTI over")
    source.stop()
    assert card.library.kinds == set()  # it is over, so nobody else would turn them off


def test_what_was_left_on_for_another_client_goes_off_once_that_is_gone(monkeypatch, card, source):
    torch = install_torch(monkeypatch, is_profiling=False)
    source.start()
    drain_all(source, card)
    torch.is_profiling = True
    card.library.be_taken_over()
    drain_all(source, card, 10)
    source.stop()
    source.drain()
    assert set(NEEDED_KINDS) <= card.library.kinds

    torch.is_profiling = False
    source.close()

    assert card.library.kinds == set()


def test_an_anchor_that_has_just_been_sent_holds_nothing_back(monkeypatch, card, source):
    """A flush gives no buffer with a record that is not complete."""
    source.start()
    drain_all(source, card, 10)
    launch, flush, launched_ns = source._clock._launch, FakeCuptiLibrary.activity_flush_all, [0]

    def slow_launch(tag):
        launched_ns[0] = card.now_ns
        return launch(tag)

    def flush_complete(library, flag):
        if card.now_ns - launched_ns[0] > 1_000_000:
            flush(library, flag)

    monkeypatch.setattr(source._clock, "_launch", slow_launch)
    monkeypatch.setattr(FakeCuptiLibrary, "activity_flush_all", flush_complete)
    card.kernel()
    parts = []
    for _ in range(4):  # an anchor is due at each
        card.advance(1_200_000_000)
        parts.append(source.drain())

    assert len(kernels_of(parts)) == 1


@pytest.mark.parametrize("seconds", [4, 30])
def test_a_kernel_that_runs_for_long_is_no_loss_and_is_told_of(card, source, seconds):
    """No buffer comes while a record in it is not complete."""
    source.start()
    drain_all(source, card)
    card.library.is_held_up = True
    began_ns = card.now_ns
    keep_for(source, card, seconds * 1e9)
    card.library.is_held_up = False
    end_ns = card.now_ns
    card.kernel("long", start=card.cupti_ns(began_ns), end=card.cupti_ns(end_ns))
    parts = drain_all(source, card)

    assert source.lost_reason == ""
    ((name, _, duration_ns),) = kernels_of(parts)
    assert name == "long"
    assert abs(duration_ns - (end_ns - began_ns)) <= 2 * source.error_ns
    assert source.dropped_count == 0


def test_a_kernel_of_minutes_costs_its_own_record_but_not_the_capture(card, source):
    source.start()
    drain_all(source, card)
    card.library.is_held_up = True
    card.kernel("of minutes", end=0)
    card.kernel("beside it")
    parts = keep_for(source, card, 3 * LOST_UNSEEN_NS)
    card.library.is_held_up = False
    parts += drain_all(source, card)

    assert source.lost_reason == ""
    assert [name for name, *_ in kernels_of(parts)] == ["beside it"]
    assert source.dropped_count == 1


def test_a_client_without_any_sign_is_noticed_after_a_long_while(card, source):
    source.start()
    drain_all(source, card)
    card.library.be_taken_over()
    keep_for(source, card, LOST_UNSEEN_NS - 5e9)
    early = source.lost_reason
    keep_for(source, card, 10e9)

    assert early == ""
    assert source.lost_reason.startswith("another profiler took CUPTI over")
    source.stop()
    assert card.library.kinds == set()


@pytest.mark.parametrize("is_stuck", [False, True])
def test_kernels_that_somebody_switched_off_are_noticed_but_anchors_that_do_not_run_are_no_loss(card, source, is_stuck):
    """Calls come all the same; a card that is full for long runs anchors late."""
    source.start()
    drain_all(source, card)
    card.is_stuck = is_stuck
    if not is_stuck:
        card.library.kinds -= set(NEEDED_KINDS)
    for _ in range(70):
        card.call(SYNCHRONIZE)
        keep_for(source, card, 1e9)

    assert bool(source.lost_reason) is not is_stuck


def test_a_device_that_fails_does_not_fail_a_drain(monkeypatch, card, source):
    source.start()
    card.kernel()

    def fail(tag):
        raise DeviceError("sticky")

    monkeypatch.setattr(source._clock, "_launch", fail)

    assert len(kernels_of(drain_all(source, card))) == 1
    source.stop()


def test_a_forked_child_does_nothing(monkeypatch, card, source):
    source.start()
    card.kernel()
    own = os.getpid()
    card.library.history.clear()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    source._lock.acquire()  # as another thread of the parent might have held it

    child = source.drain(is_last=True)
    source.stop()
    source.close()

    assert len(child.work) == 0
    assert card.library.history == []


def test_a_clock_that_another_profiler_left_behind_is_set_right(monkeypatch, card):
    setting = card.library.history
    source = make_source(monkeypatch, card)
    source.start()
    source.stop()
    assert SET_CLOCK not in setting

    foreign = CLOCK(lambda: 91_573_348_616)  # as torch.profiler's, which counts the processor's cycles
    for _ in range(2):
        card.library.clock_address = ctypes.cast(foreign, ctypes.c_void_p).value
        setting.clear()
        source.start()
        source.stop()
        assert setting.count(SET_CLOCK) == 1
        assert abs(CLOCK(card.library.clock_address)() - time.time_ns()) < 1_000_000_000

        setting.clear()
        source.start()  # setting it takes the times off records that are not read yet
        source.stop()
        assert SET_CLOCK not in setting


def test_a_clock_that_cannot_be_set_stops_nothing(monkeypatch, card):
    monkeypatch.setattr(_cupti, "_wall_clock_address", lambda: None)
    card.library.lacking.add("cuptiGetTimestamp")
    source = make_source(monkeypatch, card)
    source.start()
    card.kernel()
    source.stop()
    assert len(source.drain(is_last=True).work) == 1
