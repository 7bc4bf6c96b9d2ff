"""Marked moments: by the user and by cells."""

from __future__ import annotations

from gpustreamlab import Session
from gpustreamlab.typing import MarkerKind

STREAMS = ("copy",)


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
    (marker,), ranges = lab.trace.markers, lab.trace.where(kind="range")

    assert (marker.text, marker.kind) == ("half-way", MarkerKind.MARK)
    assert ranges.end_ns[0] <= marker.time_ns <= ranges.start_ns[1]


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


def test_the_cell_that_made_the_session_is_marked_where_it_was_made():
    with Session("sim") as lab:
        lab.stream("copy")
        record(lab)
        lab._end_cell("In [7]")
        (marker,) = lab.trace.markers
        trace = lab.trace
        made_ns, recorded_ns = int(trace.start_ns[0]), int(trace.where(kind="range").start_ns[0])

    assert marker.text == "In [7]"
    assert 0 <= marker.time_ns <= made_ns < recorded_ns


def test_the_newest_marks_are_kept_and_the_others_counted(lab):
    for number in range(10_003):
        lab.recording.mark(str(number))

    assert texts(lab)[0] == "3"
    assert len(lab.trace.markers) == 10_000
    assert lab.trace.metadata.dropped_markers == 3
