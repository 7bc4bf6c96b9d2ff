"""Streams and events as an API of their own: a plain script needs nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from gpustreamlab import Session
from gpustreamlab.workloads import spin

PLAIN = """
    import gpustreamlab as gsl
    from gpustreamlab.workloads import spin

    lab = gsl.Session("sim")
    produce, consume = lab.stream("produce"), lab.stream("consume", priority=-1)
    with lab.event() as start, lab.event() as end:
        start.record(produce)
        spin(lab, 50_000, stream=produce)
        produce.record(end)
        consume.wait(end)
        spin(lab, 10_000, stream=consume)
        consume.synchronize()
        print(start.elapsed_ns(end) >= 50_000, end.query(), lab.current)
    forgotten = consume.record()
    {end}
    """


@pytest.mark.parametrize("end", ["", "del lab, produce, consume, forgotten"], ids=["open", "deleted"])
def test_a_plain_script_ends_silently(end):
    # GIVEN a script without selections or ranges, that forgets to close its session
    code = textwrap.dedent(PLAIN.format(end=end))

    # WHEN it runs with warnings as errors
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=240)

    # THEN it prints what it should; only a session that was dropped while Python ran is told
    assert (done.returncode, done.stdout) == (0, "True True None\n")
    assert ("was never closed" in done.stderr) == end.startswith("del")
    assert "Error" not in done.stderr.replace("ResourceWarning", "")


def test_an_event_may_be_recorded_again_and_then_means_that():
    with Session("sim") as lab:
        quick, slow = lab.stream("quick"), lab.stream("slow")
        with quick.record() as event:
            quick.synchronize()
            assert event.query()
            spin(lab, 1_000_000, stream=slow)
            event.record(slow)
            assert not event.query()
            event.synchronize()
            assert event.query()


def test_an_event_outlives_the_stream_it_was_recorded_on():
    with Session("sim") as lab:
        first, second = lab.stream("first"), lab.stream("second")
        start = first.record()
        spin(lab, 100_000, stream=first)
        end = first.record()
        first.close()
        second.wait(end)
        assert end.query()
        assert start.elapsed_ns(end) >= 100_000
