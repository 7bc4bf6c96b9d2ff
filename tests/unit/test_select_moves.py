"""A stream that another thread moves or closes while this one selects it."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import PartitionInUseError, StreamClosedError
from gpustreamlab.streams import selection as selections
from tests.helpers.lending_backend import LendingBackend
from tests.helpers.line_interrupts import LineInterrupts
from tests.helpers.threads import run_in_thread


class CrashingBackend(LendingBackend):
    """Like CUDA: a stream that was destroyed must not be selected; a launch there ends the process."""

    def select(self, stream):
        assert not stream.is_closed
        return super().select(stream)


def count_lines(module, work):
    """Return how many lines of a module some work passes."""
    with LineInterrupts([module], sys.maxsize) as counter:
        work()
    return sys.maxsize - counter.left


def enter_and_leave():
    with Session("sim") as lab:
        lab.stream("a")
        made = []
        count = count_lines(selections, lambda: made.append(lab.select("a")) or made[0].__enter__())
        made[0].__exit__(None, None, None)
    return count


LINES = range(1, enter_and_leave() + 1)


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
            assert lab._backend.selected_stream is lane._backend_stream
            assert lane.partition == ("right" if moves else "left")
        assert lab.current is None


@pytest.mark.parametrize("line", LINES)
def test_a_stream_that_is_closed_at_any_line_is_not_selected_or_lives_on(line, caplog):
    with Session(CrashingBackend()) as lab:
        lane = lab.stream("a")
        backend_stream = lane._backend_stream
        try:
            with LineInterrupts([selections], line, lambda: run_in_thread(lane.close)), lab.select("a"):
                sys.settrace(None)
                assert lane.is_closed
                assert lab._backend.selected_stream is backend_stream
                assert not backend_stream.is_closed
                assert "while a thread has it selected" in caplog.text
        except StreamClosedError:
            assert lab._backend.selected_stream is lab._backend.null_stream
        assert lab.current is None


def test_a_lane_whose_partition_was_renamed_is_not_destroyed_under_the_thread_that_has_it():
    with Session(CrashingBackend()) as lab:
        lab.partition(left=32, right="rest")
        lane = lab.stream("a", partition="left")
        backend_stream = lane._backend_stream
        entered, closed, met = threading.Event(), threading.Event(), []

        def work():
            with lab.on("a", "outer"), lane.scratch(1 << 20):
                entered.set()
                assert closed.wait(60)
                met.extend([backend_stream.is_closed, not lane._scratch._held])
                met.append(raised_by(lambda: lab.range("refused").__enter__()))

        thread = threading.Thread(target=lambda: met.append(raised_by(work)))
        thread.start()
        assert entered.wait(60)
        lab.partition(left2=32, right="rest", renamed={"left": "left2"})
        assert lane._backend_stream is backend_stream
        lane.close()
        closed.set()
        thread.join(60)
        assert met[:2] == [False, False]
        assert [type(error) for error in met[2:]] == [StreamClosedError, type(None)]
        assert lab.trace.metadata.dropped_spans == 1


def raised_by(work):
    """Return what some work raises."""
    try:
        work()
    except Exception as error:
        return error
    return None


def test_somebody_who_selects_a_stream_that_moves_waits_for_the_move(monkeypatch):
    with Session("sim") as lab:
        lab.partition(left=32, right="rest")
        lane = lab.stream("mover", partition="left")
        announced, goes_on = threading.Event(), threading.Event()
        query = type(lane._backend_stream).query

        def slow_query(stream):
            announced.set()
            assert goes_on.wait(60)
            return query(stream)

        monkeypatch.setattr(type(lane._backend_stream), "query", slow_query)
        mover = threading.Thread(target=lambda: lab.stream("mover", partition="right"))
        mover.start()
        assert announced.wait(60)
        found = []
        selecting = threading.Thread(target=lambda: found.append(select_and_tell(lab, lane)))
        selecting.start()
        selecting.join(0.05)
        assert selecting.is_alive()
        goes_on.set()
        mover.join(60)
        selecting.join(60)
        assert found == ["right"]


def select_and_tell(lab, lane):
    with lab.select(lane):
        assert lab._backend.selected_stream is lane._backend_stream
        return lane.partition
