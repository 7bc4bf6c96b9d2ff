"""An exception that nothing holds back, as of an alarm's handler, in the middle of the simulated device."""

from __future__ import annotations

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import CloseError, SessionError
from gpustreamlab.workloads import spin


class AlarmError(Exception):
    pass


def test_a_device_that_was_cut_off_says_so_and_closes(monkeypatch):
    lab = Session("sim")
    with lab.on(lab.stream("a"), "step"):
        spin(lab, 1_000_000)
    scheduler = lab._backend.driver.scheduler
    whole_step = scheduler.step

    def step():
        whole_step()
        raise AlarmError

    monkeypatch.setattr(scheduler, "step", step)
    with pytest.raises(AlarmError):
        lab.synchronize()
    monkeypatch.undo()
    words = r"cut off in the middle of a step.*Session\('sim'\).*SIGINT"
    with pytest.raises(SessionError, match=words):
        lab.stream("a").synchronize()
    with pytest.raises(CloseError, match=words):
        lab.close()
    assert lab.state != "open"
    lab.close()


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
                with pytest.raises(SessionError, match="middle of a step of it, which has to end first") as raised:
                    lab.stream("b").synchronize()
                met.append(raised.value)
            return advance(stream)

        monkeypatch.setattr(scheduler, "_advance", advance_and_collect)
        lab.synchronize()
        assert len(met) == 2
        assert len(lab.trace) == 2
