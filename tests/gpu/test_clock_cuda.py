"""The clock: exact steps, known cost, and one grain for events and kernels."""

import time
from itertools import pairwise

import cupy
import numpy as np
from cuda.core import Device, EventOptions

from bench._spin_until import spin_until_kernel
from gpustreamlab.backends.cuda._clock import EXACT_STEP_NS, KERNEL_TAIL_NS
from gpustreamlab.workloads import spin, spin_card
from tests.helpers.programs import spin_kernel

GATE_NS = 20_000_000
"""A kernel this long runs first, so that everything behind it is enqueued before it starts."""
TIMER_TICK_NS = 32
"""Steps of the card's own timer."""
LEAD_IN = 10
"""Spans not looked at: the first events after a long kernel come 1 to 3 us later than those in a full queue."""


def _timed_spans(lab, count, spacing_ns):
    """Record spans that end `spacing_ns` apart by the card's own timer; return their times and the timer's."""
    # A card that has been idle takes about 0.1 s of work to fetch commands at full speed again.
    with lab.on("clock", "awake"):
        spin_card(lab, 200_000_000)
    origin = cupy.zeros(2, cupy.uint64)
    times = cupy.zeros((LEAD_IN + count, 2), cupy.uint64)
    lab.synchronize()
    already = len(lab.trace)
    with lab.on("clock", "gate"):
        spin_kernel()((1,), (1,), (np.int64(GATE_NS), origin))
    for row in range(LEAD_IN + count):
        with lab.on("clock", f"span-{row}"):
            spin_until_kernel(0)((1,), (1,), (np.int64(GATE_NS + 100_000 + (row + 1) * spacing_ns), origin, times[row]))
    lab.synchronize()
    trace = lab.trace
    first = already + 1 + LEAD_IN  # after the gate, and the span that woke the card is in `already`
    return trace.start_ns[first:], trace.end_ns[first:], times.get()[LEAD_IN:].astype(np.int64)


def test_gaps_of_ten_microseconds_are_right_now_and_after_a_pause(lab):
    lab.stream("clock")
    _timed_spans(lab, 1, 10_000)  # the first launch of a kernel loads it
    for pause_s in (0.0, 1.5):
        time.sleep(pause_s)
        errors_ns = []
        for _ in range(3):
            _, end_ns, times = _timed_spans(lab, 20, 10_000)
            errors_ns.append(np.abs(np.diff(end_ns) - np.diff(times[:, 1])))
            assert np.median(errors_ns[-1]) <= 400
        # The card itself records an event now and then 1 to 5 us late, on some machines six of twenty; a clock that were
        # wrong would be so in every turn. bench/clock.py has the worst of each run.
        assert min(np.percentile(error_ns, 60) for error_ns in errors_ns) <= 1_000


def test_places_after_a_pause_agree_with_the_cards_own_timer(lab):
    lab.stream("clock")
    _timed_spans(lab, 1, 10_000)
    _, first_ns, first_times = _timed_spans(lab, 5, 10_000)
    time.sleep(1.5)
    _, later_ns, later_times = _timed_spans(lab, 5, 10_000)
    error_ns = (later_ns[-1] - first_ns[0]) - (later_times[-1, 1] - first_times[0, 1])
    assert abs(error_ns) <= lab.trace.metadata.clock_error_ns + lab.trace.metadata.range_error_ns


def test_corrected_durations_are_those_of_the_kernels(lab):
    lab.stream("clock")
    _timed_spans(lab, 1, 10_000)  # wakes the card
    bound_ns = max(500, lab.trace.metadata.range_error_ns) + 2 * TIMER_TICK_NS
    for duration_ns in (10_000, 100_000, 1_000_000):
        times = cupy.zeros((50, 2), cupy.uint64)
        lab.synchronize()
        already = len(lab.trace) + 1
        with lab.on("clock", "gate"):
            spin(lab, GATE_NS)
        for row in range(50):
            with lab.on("clock"):
                spin_kernel()((1,), (1,), (np.int64(duration_ns), times[row]))
        lab.synchronize()
        kernel_ns = np.diff(times.get().astype(np.int64), axis=1)[:, 0]
        error_ns = lab.trace.duration_ns[already:] - (kernel_ns + KERNEL_TAIL_NS)
        assert np.median(np.abs(error_ns)) <= bound_ns


def test_a_chain_of_short_steps_is_exact():
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    events = [device.create_event(options=EventOptions(timing_enabled=True)) for _ in range(60)]
    for event in events:
        stream.record(event)
        time.sleep(0.0002)
    stream.sync()
    from gpustreamlab.backends.cuda._clock import find_tick_ns, snap_to_ticks

    tick_ns = find_tick_ns([event - events[0] for event in events])
    steps = snap_to_ticks(np.array([after - before for before, after in pairwise(events)]), tick_ns)
    whole = snap_to_ticks(np.array([events[-1] - events[0]]), tick_ns)
    assert whole[0] < EXACT_STEP_NS
    assert steps.sum() == whole[0]


def test_an_empty_range_is_an_instant(lab):
    with lab.on(lab.stream("a"), "gate"):
        spin(lab, GATE_NS)
    with lab.on("a", "nothing"):
        pass
    lab.synchronize()
    assert lab.trace.duration_ns[1] <= lab.trace.metadata.range_error_ns


def test_queued_times_come_before_starts_and_near_them_on_an_idle_stream(lab):
    lab.stream("a")
    for _ in range(100):
        with lab.on("a"):
            pass
        lab.synchronize()
    waited_ns = lab.trace.start_ns - lab.trace.queued_ns
    assert (waited_ns >= 0).all()
    assert np.median(waited_ns) < 100_000


def test_wall_clock_of_the_epoch(lab):
    with lab.on(lab.stream("a")):
        pass
    lab.synchronize()
    now_ns = lab.trace.metadata.epoch_unix_ns + int(lab.trace.end_ns[0])
    assert abs(time.time_ns() - now_ns) < 1_000_000_000


def test_the_stated_correction_is_what_was_measured(lab):
    info = lab._backend.clock_info()
    assert 500 < info.range_correction_ns < 20_000
    assert info.clock_error_ns < 1_000
    assert info.range_error_ns < 20_000
