"""Ctrl-C before any line of the simulated device: nothing is lost, and it goes on. What no Ctrl-C can do is told."""

import sys

import pytest

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.errors import CloseError, SessionError
from gpustreamlab.workloads import spin
from tests.helpers.line_interrupts import LineInterrupts, interrupt, send_interrupt

LIMIT = 1_000


class Device:
    """A simulated device with a busy lane, and an event to record."""

    def __init__(self):
        self.backend = SimBackend("h200")
        self.lane = self.backend.create_stream()
        self.event = self.backend.acquire_event()
        self.backend.launch_spin(self.lane, 1_000_000, blocks=132, fill_sms=True)

    def orders(self):
        self.lane.record(self.event)
        self.backend.launch_spin(self.backend.null_stream, 1_000, blocks=1, fill_sms=False)

    def partitions(self):
        made = self.backend.create_stream(sm_ids=range(16))
        made.close()

    def ends(self):
        self.backend.synchronize()


def sound(device):
    """Go on, and check that nothing is left over: no work, no stream, no slot."""
    backend, driver = device.backend, device.backend.driver
    scheduler = driver.scheduler
    device.event.mark is None or backend.synchronize_event(device.event)
    backend.synchronize()
    assert not any(stream.queue for stream in scheduler.streams)
    for work in (device.orders, device.partitions, device.ends):
        work()
    assert scheduler.busy_count == 0
    assert scheduler.pool.free == [len(group) * scheduler.pool.slots_per_sm for group in scheduler.pool.groups]
    assert {stream.number for stream in scheduler.streams} == {0, *driver.streams}
    assert len(scheduler.streams) == 1 + len(driver.streams)
    backend.close()


@pytest.mark.no_cover  # coverage's own lock does not survive an interrupt
@pytest.mark.parametrize("part", ["orders", "partitions", "ends"])
def test_a_ctrl_c_before_any_line_leaves_a_device_that_goes_on(part):
    interrupted_count = 0
    for at in range(1, LIMIT):
        device = Device()
        driver = device.backend.driver
        watched = [sys.modules[type(one).__module__] for one in (driver, driver.scheduler)]
        try:
            with LineInterrupts(watched, at, send_interrupt) as lines:
                getattr(device, part)()
        except KeyboardInterrupt:
            interrupted_count += 1
        sound(device)
        if lines.place is None:
            break
    assert lines.place is None
    assert interrupted_count > 20


def cut_off(backend):
    """Let a handler raise in the middle of a step, as one of an alarm may."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(backend.driver.scheduler.pool), "take", lambda *_: interrupt())
        backend.synchronize()


def test_a_step_that_was_cut_off_by_another_signal_is_told_and_the_session_closes():
    lab = Session("sim")
    with lab.on(lab.stream("a")):
        lab.xp.ones(10)
    cut_off(lab._backend)

    with pytest.raises(SessionError, match=r"in the middle of a step.*Session\('sim'\)"):
        lab.synchronize()
    with pytest.raises(CloseError, match="in the middle of a step"):
        lab.close()

    assert lab.state != "open"
    assert lab._backend.driver.is_closed
    lab.close()


def test_a_device_that_was_cut_off_closes_in_silence():
    backend = Device().backend
    cut_off(backend)
    backend.close()
    assert backend.driver.is_closed


def test_a_finaliser_in_the_middle_of_a_step_cannot_wait_and_harms_nothing(monkeypatch):
    with Session("sim", capture="ranges") as lab:
        for name in "ab":
            with lab.on(lab.stream(name), "step"):
                spin(lab, 1_000_000)
        scheduler, met = lab._backend.driver.scheduler, []
        advance = scheduler._advance

        def advance_and_collect(stream):
            if not met:  # stands for a garbage collection that runs somebody's __del__
                met.append(None)
                with pytest.raises(SessionError, match="in the middle of a step: by a finaliser") as raised:
                    lab.stream("b").synchronize()
                met.append(raised.value)
            return advance(stream)

        monkeypatch.setattr(scheduler, "_advance", advance_and_collect)
        lab.synchronize()
        assert len(met) == 2
        assert len(lab.trace) == 2
