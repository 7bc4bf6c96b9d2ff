"""Traces of several devices, and of several processes."""

from __future__ import annotations

import pytest

from gpustreamlab.errors import OptionError
from gpustreamlab.model import Device
from tests.helpers.devices import two_devices, two_ranks


def test_a_trace_tells_its_devices():
    trace = two_devices()
    assert [(device.ordinal, device.name, device.sm_count) for device in trace.devices] == [(0, "demo", 4), (1, "GPU 1", 4)]
    assert "on 2 GPUs>" in repr(trace)
    named = two_devices(devices=(Device(name="demo", ordinal=1, sm_count=4),))
    assert "on 2 GPUs (demo)>" in repr(named)
    assert named.metadata.device_label == "2 GPUs (demo)"


def test_a_trace_of_one_device_names_it():
    trace = two_devices()[:0].where(stream="a")
    assert (trace.metadata.devices, trace.metadata.device.ordinal, len(trace.devices)) == ((), 0, 1)
    assert trace.metadata.device_label == "demo"


def test_where_chooses_devices_with_the_threads_of_their_processes():
    trace = two_ranks()
    part = trace.where(device=1)
    assert [lane.name for lane in part.lanes] == ["b", "host: two"]
    assert (part.metadata.device.ordinal, part.metadata.devices, part.devices[0].sm_count) == (1, (), 4)
    assert len(trace.where(device=[0, 1])) == len(trace)
    assert len(trace.where(device=0)) + len(part) == len(trace)
    one_process = two_devices().where(device=1)
    assert [lane.name for lane in one_process.lanes] == ["b", "host: main"]


def test_where_refuses_a_device_that_is_not_there():
    with pytest.raises(OptionError, match="no device 7"):
        two_devices().where(device=7)
