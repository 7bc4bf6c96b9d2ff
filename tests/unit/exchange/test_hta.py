"""Our answers beside what HolisticTraceAnalysis 0.5.0 said of the same file, by ``python -m bench.hta_comparison --renew``."""

from __future__ import annotations

import json

import pytest

import gpustreamlab as gsl
from bench.hta_comparison import delays_us, device_us, difference, idle_us, queue_difference
from tests.helpers.kineto import HTA_ANSWERS, write_two_streams


@pytest.fixture
def trace(tmp_path):
    return gsl.load_trace(write_two_streams(tmp_path))


@pytest.fixture
def told():
    return json.loads(HTA_ANSWERS.read_text())


def test_idle_time_of_each_kind_is_the_same(trace, told):
    assert told["idle_us"]["7"] == {"host_wait": 60.25, "kernel_wait": 24.62, "other": 70.5}
    assert told["idle_us"]["20"] == {"host_wait": 90.0, "other": 85.5}  # 55 us of it we tell to be an event's
    assert trace.idle().total_ns("stream 20", "event") == 55_000
    assert difference(idle_us(trace), told["idle_us"]) < 0.005  # it rounds to 0.01


def test_the_device_is_idle_for_as_long(trace, told):
    # It counts the row of cuda_sync, of 1 us while nothing ran, as work.
    assert device_us(trace)["idle"] == pytest.approx(told["device_us"]["idle"] + 1, abs=0.001)
    assert device_us(trace)["all"] == told["device_us"]["all"] == 520.125 - 0.25


def test_launch_delays_are_the_same(trace, told):
    assert len(told["delay_us"]) == 9
    assert difference({"": delays_us(trace)}, {"": told["delay_us"]}) < 0.001


def test_queues_are_as_long_at_any_time(trace, told):
    assert len(told["queue"]["7"]) == 10
    assert queue_difference(trace, told) == 0
