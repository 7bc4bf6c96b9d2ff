"""Marked moments: by the user and by cells."""

from __future__ import annotations

import itertools

import pytest

from gpustreamlab import Session
from gpustreamlab.errors import DeviceError
from gpustreamlab.record._tables import KEPT_MARKERS, Markers
from gpustreamlab.typing import MarkerKind


@pytest.fixture
def lab():
    with Session("sim") as session:
        session.stream("copy")
        yield session


def record(lab, name="work"):
    with lab.on("copy", name):
        pass
    lab.synchronize()


def texts(lab, kind=None):
    return [marker.text for marker in lab.trace.markers if kind is None or marker.kind == kind]


def test_a_mark_is_in_the_trace_at_its_time(lab):
    record(lab)
    lab.recording.mark("half-way")
    record(lab)
    (marker,) = lab.trace.markers

    assert (marker.text, marker.kind) == ("half-way", MarkerKind.MARK)
    assert lab.trace.end_ns[0] <= marker.time_ns <= lab.trace.start_ns[1]


def test_marks_cost_the_simulated_host_nothing(lab):
    before = lab._backend.driver.clock.now_ns
    lab.recording.mark("now")
    lab._begin_cell("In [1]")
    lab._end_cell("In [1]")

    assert lab._backend.driver.clock.now_ns == before


def test_a_cell_is_marked_only_if_it_recorded_ranges(lab):
    for number, is_busy in enumerate([True, False, True]):
        lab._begin_cell(f"In [{number}]")
        if is_busy:
            record(lab)
        lab._end_cell(f"In [{number}]")

    assert texts(lab, MarkerKind.CELL) == ["In [0]", "In [2]"]


def test_a_cell_that_runs_is_marked_as_soon_as_it_records(lab):
    lab._begin_cell("In [1]")
    assert texts(lab) == []
    record(lab)
    assert texts(lab) == ["In [1]"]
    lab._end_cell("In [1]")

    assert texts(lab) == ["In [1]"]


def test_the_cell_that_made_the_session_is_marked_where_it_was_made():
    with Session("sim") as lab:
        lab.stream("copy")
        record(lab)
        lab._end_cell("In [7]")
        (marker,) = lab.trace.markers
        start_ns = int(lab.trace.start_ns[0])

    assert marker.text == "In [7]"
    assert 0 <= marker.time_ns < start_ns


def test_the_newest_marks_are_kept_and_the_others_counted(lab):
    for number in range(KEPT_MARKERS + 3):
        lab.recording.mark(str(number))

    assert texts(lab)[0] == "3"
    assert len(lab.trace.markers) == KEPT_MARKERS
    assert lab.trace.metadata.dropped_markers == 3


def test_clear_forgets_marks_and_their_count(lab):
    lab.recording.mark("warm-up")
    lab._begin_cell("In [1]")
    record(lab)
    lab.clear()

    assert lab.trace.markers == ()
    assert lab.trace.metadata.dropped_markers == 0


def test_long_and_broken_text_is_kept_as_far_as_it_can_be_stored(lab):
    lab.recording.mark("x" * 10_000 + "\ud800")
    lab.recording.mark("\ud800")

    assert [len(text) for text in texts(lab)] == [1_001, 1]


def test_markers_are_told_once_and_survive_a_device_that_fails():
    markers = Markers(itertools.count().__next__, 0)
    markers.note("late", MarkerKind.MARK, 20)
    markers.note("early", MarkerKind.MARK, 10)

    def until_it_fails(host_ns):
        if host_ns == 30:
            raise DeviceError("lost")
        return host_ns

    assert [marker.text for marker in markers.take(until_it_fails)] == ["late", "early"]
    markers.note("lost", MarkerKind.MARK, 30)
    assert markers.take(until_it_fails) == []
    assert [marker.text for marker in markers.take(int)] == ["lost"]
