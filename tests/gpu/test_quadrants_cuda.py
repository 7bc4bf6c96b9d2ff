"""Kernels of Quadrants on streams of a session and in partitions: results, streams, strays, order, confinement."""

import json

import pytest

from tests.helpers.programs import run_alone


@pytest.fixture(scope="module")
def told():
    """Run the program, in a process of its own, since Quadrants keeps the device until that ends."""
    printed = run_alone("import warnings; warnings.simplefilter('ignore'); import tests.helpers.quadrants_lanes", timeout=300)
    return json.loads(next(line for line in printed.splitlines() if line.startswith("TOLD"))[4:])


@pytest.mark.parametrize("layout", ["whole", "parts"])
def test_each_kernel_runs_on_its_stream_with_the_same_result(told, layout):
    assert told[layout]["is_equal"]
    assert told[layout]["counts"] == {"a": 1, "b": 1}
    assert told[layout]["stray_count"] == 0


def test_a_kernel_keeps_to_the_sms_of_its_partition(told):
    assert told["parts"]["ns"] > 2 * told["whole"]["ns"]  # on 32 of 132 SMs


def test_an_event_orders_two_streams(told):
    assert told["ordered"]


def test_a_kernel_that_names_no_stream_is_a_stray(told):
    assert told["strays"] >= 1


def test_quadrants_goes_on_after_the_session(told):
    assert told["goes_on"]
