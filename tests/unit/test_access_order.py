"""What orders work on a CUDA device, as those who watch accesses are told."""

from __future__ import annotations

import threading

from gpustreamlab.backends.cuda._stream import AccessOrder


class Sink:
    """Writes down what it is told."""

    def __init__(self):
        self.lock = threading.RLock()
        self.told = []

    def record(self, handle):
        self.told.append(("record", handle))
        return f"moment of {handle}"

    def wait(self, handle, moment):
        self.told.append(("wait", handle, moment))

    def host_wait(self, moment):
        self.told.append(("host", moment))

    def host_wait_stream(self, handle):
        self.told.append(("host", handle))


def test_an_event_means_what_was_recorded_last_until_it_goes_back_to_its_pool():
    order, event = AccessOrder(), object()
    order.watch(sink := Sink())
    order.record(1, event)
    order.wait(2, event)
    order.record(3, event)
    order.host_wait(event)
    order.forget([event])
    order.wait(2, event)
    assert sink.told == [
        ("record", 1), ("wait", 2, "moment of 1"), ("record", 3), ("host", "moment of 3"), ("wait", 2, None),
    ]  # fmt: skip


def test_what_a_tool_sees_done_while_it_looks_on_is_no_order():
    order, event = AccessOrder(), object()
    order.watch(sink := Sink())
    order.record(1, event)
    with order.looking_on():
        order.host_wait(event)
        order.host_wait_stream(1)
    order.host_wait_stream(1)
    assert sink.told == [("record", 1), ("host", 1)]


def test_a_new_watch_knows_nothing_of_events_from_before():
    order, event = AccessOrder(), object()
    order.watch(Sink())
    order.record(1, event)
    order.watch(sink := Sink())
    order.wait(2, event)
    order.watch(None)
    order.wait(2, event)
    assert sink.told == [("wait", 2, None)]
