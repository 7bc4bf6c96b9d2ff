"""What outlives the sessions of a device: whose it is, and when it is destroyed. Against stand-ins for cuda.core's objects."""

import subprocess
import sys

import pytest

from gpustreamlab.backends.cuda import _idle
from gpustreamlab.backends.cuda._idle import IdleEvents, IdleStreams, idle_on


class Event:
    """A `cuda.core.Event`."""

    is_closed = False

    def close(self):
        self.is_closed = True


@pytest.fixture
def _nothing_idle(monkeypatch):
    monkeypatch.setattr(_idle, "_idle", {})
    monkeypatch.setattr(_idle, "_left", [])


@pytest.mark.usefixtures("_nothing_idle")
def test_what_is_of_another_device_or_primary_context_is_not_used():
    first = idle_on(0, 7)
    assert idle_on(0, 7) is first
    assert idle_on(1, 7) is not first
    assert idle_on(0, 8) is not first  # after cudaDeviceReset
    assert _idle._left == [first]  # and is never destroyed
    assert idle_on(0, 7) is not first


@pytest.mark.usefixtures("_nothing_idle")
def test_a_forked_child_neither_uses_nor_destroys_what_its_parent_made():
    first = idle_on(0, 7)
    event = Event()
    first.events.give([event])
    _idle._leave_to_the_parent()
    assert _idle._left == [first]
    assert idle_on(0, 7) is not first
    _idle._close_all()
    assert not event.is_closed


def test_events_of_one_session_are_used_by_the_next_as_far_as_they_are_kept(monkeypatch):
    idle, event = IdleEvents(), Event()
    idle.give([event])
    assert [idle.take(), idle.take()] == [event, None]  # nobody shares one
    monkeypatch.setattr(_idle, "KEPT_EVENTS", 2)
    idle, events = IdleEvents(), [event, *(Event() for _ in range(4))]
    idle.give(events)
    assert len(idle) == 2
    assert [event.is_closed for event in events] == [False, False, True, True, True]


@pytest.mark.usefixtures("_nothing_idle")
def test_at_the_end_of_the_process_all_events_are_destroyed():
    idle, early, late = idle_on(0, 7), Event(), Event()
    idle.events.give([early])
    _idle._close_all()
    assert early.is_closed
    idle.events.give([late])
    assert late.is_closed
    assert len(idle.events) == 0


@pytest.mark.usefixtures("_nothing_idle")
def test_events_that_cannot_be_destroyed_any_more_are_silent_and_keep_nothing_else_from_it(monkeypatch):
    idle, broken, other = idle_on(0, 7), Event(), Event()
    monkeypatch.setattr(broken, "close", lambda: 1 / 0)
    idle.events.give([broken])
    idle.order_events.give([other])
    _idle._close_all()
    assert other.is_closed


# Streams that outlive their session


class Stream:
    """A `cuda.core.Stream`."""

    is_done = True

    def close(self):
        raise AssertionError("a library may still know it")


def is_done(stream):
    return stream.is_done


def test_a_closed_stream_is_lent_again_with_its_context_and_priority():
    idle, context = IdleStreams(is_done), object()
    made = [idle.take(where, priority, Stream) for where, priority in ((None, 0), (None, -1), (context, 0))]
    for stream, (where, priority) in zip(made, ((None, 0), (None, -1), (context, 0)), strict=True):
        idle.give(where, priority, stream)
    assert idle.take(context, 0, Stream) is made[2]
    assert idle.take(None, -1, Stream) is made[1]
    assert idle.take(None, 0, Stream) is made[0]
    assert idle.take(None, 0, Stream) not in made  # nobody shares one
    assert len(idle) == 0


def test_a_stream_that_still_has_work_is_not_lent():
    idle, busy = IdleStreams(is_done), Stream()
    busy.is_done = False
    idle.give(None, 0, busy)
    assert idle.take(None, 0, Stream) is not busy
    busy.is_done = True
    assert idle.take(None, 0, Stream) is busy


def test_streams_stay_at_the_end_of_the_process():
    done = subprocess.run([sys.executable, "-c", KEPT_TO_THE_END], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["dropped"]


KEPT_TO_THE_END = """
from gpustreamlab.backends.cuda._idle import IdleStreams

class Stream:
    is_done = True
    def __init__(self, name):
        self.name = name
    def __del__(self):
        print(self.name)

IdleStreams(bool).take(None, 0, lambda: Stream("kept"))
Stream("dropped")
"""
