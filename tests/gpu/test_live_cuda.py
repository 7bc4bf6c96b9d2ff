"""A live view on a real device: it sees all that ran, waits for nothing, and leaves the selection and the clock alone."""

import threading
import time

import cupy
import numpy as np
import pytest

from gpustreamlab._util.background import Updater
from gpustreamlab.sinks.live import LiveFeed
from gpustreamlab.workloads import spin


@pytest.fixture
def feed(lab):
    return LiveFeed(lab._recorder)


def record(lab, count, duration_ns=5_000):
    for _ in range(count):
        for name in ("a", "b"):
            with lab.on(name, "step"), lab.range("inner"):
                spin(lab, duration_ns)


def sent_count(update):
    return 0 if update is None else update.facts["manifest"]["n"]


def test_a_refresh_returns_while_the_device_works(lab, feed):
    stream = lab.stream("a")
    with lab.on(stream, "warm up"):
        spin(lab, 1_000)
    lab.synchronize()
    with lab.on(stream, "long"):
        spin(lab, 400_000_000)
    update = feed.refresh()

    assert not stream.query()
    assert sent_count(update) == 1
    assert update.facts["pending"] == 1


def test_a_thread_that_refreshes_sends_every_span_once(lab, feed):
    lab.stream("a"), lab.stream("b")
    updates = []

    def step():
        update = feed.refresh()
        if update is not None:
            updates.append(update)
        return True

    updater = Updater(step, refresh_hz=20, name="test")
    updater.start()
    for _ in range(20):
        record(lab, 50)
        time.sleep(0.02)
    lab.synchronize()
    updater.stop()
    updates.append(feed.refresh())
    trace = lab.trace

    assert len(updates) > 3
    assert sum(map(sent_count, updates)) == len(trace) == 20 * 50 * 4
    assert trace.metadata.dropped_spans == 0
    assert feed.snapshot().facts["manifest"]["n"] == len(trace)


def test_refreshing_leaves_the_selection_and_the_order_of_work(lab, feed):
    stream = lab.stream("a")
    stopping = threading.Event()

    def refresh():
        while not stopping.is_set():
            feed.refresh()

    thread = threading.Thread(target=refresh)
    thread.start()
    try:
        with lab.on(stream, "adding"):
            sums = cupy.zeros(1 << 20, np.int32)
            for _ in range(300):
                with lab.range("add"):
                    sums += 1
                assert cupy.cuda.get_current_stream().ptr == stream.handle
    finally:
        stopping.set()
        thread.join()
    stream.synchronize()

    assert int(sums.min()) == int(sums.max()) == 300


def test_marks_stand_between_the_spans_round_them(lab):
    lab.stream("a")
    with lab.on("a", "before"):
        spin(lab, 100_000)
    lab.synchronize()
    lab.recording.mark("now")
    with lab.on("a", "after"):
        spin(lab, 100_000)
    lab.synchronize()
    trace = lab.trace
    slack_ns = trace.metadata.host_error_ns + trace.metadata.clock_error_ns + trace.metadata.range_error_ns

    assert [marker.text for marker in trace.markers] == ["now"]
    assert trace.end_ns[0] - slack_ns <= trace.markers[0].time_ns <= trace.start_ns[1] + slack_ns
