"""A stream that another thread moves or closes while this one selects it."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import pytest

from gpustreamlab import Session, selections
from gpustreamlab.errors import PartitionInUseError, StreamClosedError
from tests.helpers.lending_backend import LendingBackend
from tests.helpers.line_interrupts import LineInterrupts
from tests.helpers.threads import run_in_thread


class CrashingBackend(LendingBackend):
    """Like CUDA: a stream that was destroyed must not be selected; a launch there ends the process."""

    def select(self, stream):
        assert not stream.is_closed
        return super().select(stream)


def lines_of_entering():
    """Return how many lines of the module a selection passes as it is entered."""
    with Session("sim") as lab:
        lab.stream("a")
        selection = lab.select("a")
        counter = LineInterrupts([selections], sys.maxsize)
        with counter:
            selection.__enter__()
        selection.__exit__(None, None, None)
    return sys.maxsize - counter.left


LINES = range(1, lines_of_entering() + 1)


@pytest.mark.parametrize("line", LINES)
def test_a_stream_that_is_moved_at_any_line_is_selected_where_it_works(line):
    with Session("sim") as lab:
        lab.partition(left=32, right="rest")
        lane = lab.stream("a", partition="left")
        moves = []

        def move():
            with suppress(PartitionInUseError):
                moves.append(lab.stream("a", partition="right"))

        with LineInterrupts([selections], line, lambda: run_in_thread(move)) as here, lab.select("a"):
            sys.settrace(None)
            assert here.place is not None
            assert lab.backend.selected_stream is lane.backend_stream
            assert lane.partition == ("right" if moves else "left")
        assert lab.current is None


@pytest.mark.parametrize("line", LINES)
def test_a_stream_that_is_closed_at_any_line_is_not_selected_or_lives_on(line, caplog):
    with Session(CrashingBackend()) as lab:
        lane = lab.stream("a")
        backend_stream = lane.backend_stream
        try:
            with LineInterrupts([selections], line, lambda: run_in_thread(lane.close)), lab.select("a"):
                sys.settrace(None)
                assert lane.is_closed
                assert lab.backend.selected_stream is backend_stream
                assert not backend_stream.is_closed
                assert "while a thread has it selected" in caplog.text
        except StreamClosedError:
            assert lab.backend.selected_stream is lab.backend.null_stream
        assert lab.current is None
        assert backend_stream.is_closed


def test_somebody_who_selects_a_stream_that_moves_waits_for_the_move(monkeypatch):
    with Session("sim") as lab:
        lab.partition(left=32, right="rest")
        lane = lab.stream("mover", partition="left")
        announced, goes_on = threading.Event(), threading.Event()
        query = type(lane.backend_stream).query

        def slow_query(stream):
            announced.set()
            assert goes_on.wait(10)
            return query(stream)

        monkeypatch.setattr(type(lane.backend_stream), "query", slow_query)
        mover = threading.Thread(target=lambda: lab.stream("mover", partition="right"))
        mover.start()
        assert announced.wait(10)
        found = []
        selecting = threading.Thread(target=lambda: found.append(select_and_tell(lab, lane)))
        selecting.start()
        selecting.join(0.05)
        assert selecting.is_alive()
        goes_on.set()
        mover.join(10)
        selecting.join(10)
        assert found == ["right"]


def select_and_tell(lab, lane):
    with lab.select(lane):
        assert lab.backend.selected_stream is lane.backend_stream
        return lane.partition
