"""Notes of a trace: what is kept of them, where they go when it is cut, and what a browser sends."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import TraceError, TraceFileError
from gpustreamlab.model import Note, read_written, written_entries
from tests.helpers.traces import EVIL_NAME, pipeline_trace

FAR_NS = (1 << 53) + 1


@pytest.fixture
def trace():
    late = Note(time_ns=400, end_ns=900, stream="compute", text="late")
    return replace(pipeline_trace(), notes=[late, Note(time_ns=100, text=EVIL_NAME), Note(time_ns=FAR_NS, text="far")])


def told(notes):
    return [(note.time_ns, note.end_ns, note.stream, note.text) for note in notes]


def test_notes_are_in_order_of_time_and_come_back_from_files(trace, tmp_path):
    assert told(trace.notes) == [(100, None, None, EVIL_NAME), (400, 900, "compute", "late"), (FAR_NS, None, None, "far")]
    assert {note.kind.value for note in trace.notes} == {"note"}
    for name in ("run.parquet", "run.json"):
        trace.save(tmp_path / name)
        assert gsl.load_trace(tmp_path / name).notes == trace.notes
    trace.timeline().save(tmp_path / "run.html", with_data=True)
    assert gsl.load_trace(tmp_path / "run.html").notes == trace.notes
    assert pipeline_trace().notes == ()
    assert trace.timeline().notes == trace.notes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"time_ns": 5, "text": "x", "end_ns": 4}, "end_ns is 4, before its time_ns, 5"),
        ({"time_ns": 5, "text": 7}, "Note.text is 7"),
        ({"time_ns": 1.5, "text": "x"}, "Note.time_ns is 1.5"),
    ],
)
def test_a_note_that_is_wrong_is_refused(fields, words):
    with pytest.raises(TraceError, match=words):
        Note(**fields)


def test_a_part_has_the_notes_that_reach_into_it(trace):
    assert [note.time_ns for note in trace.between(101, 401).notes] == [400]
    assert [note.time_ns for note in trace.between(0, 400).notes] == [100]
    assert [note.time_ns for note in trace.between(899, 10_000).notes] == [400]
    assert trace.between(900, 10_000).notes == ()
    assert [note.text for note in trace.where(stream="upload").notes] == [EVIL_NAME, "far"]
    assert trace.where(stream="compute").notes == trace.notes
    assert trace[:2].notes == trace.notes


def test_a_browser_gets_notes_and_gives_them_back(trace):
    entries = written_entries(trace)
    assert entries[1:] == [["400", "900", "compute", "late"], [str(FAR_NS), None, None, "far"]]
    assert read_written(entries) == trace.notes
    hazard = Note(time_ns=1, text="read-after-write: x", kind="hazard", fix="lab.synchronize()")
    assert written_entries(replace(trace, notes=(hazard,))) == []


@pytest.mark.parametrize(
    "entries",
    [
        None,
        7,
        "x",
        {},
        [7],
        [[1]],
        [[None, None, None, "x"]],
        [["1", "0", None, "x"]],
        [["1", None, 5, "x"]],
        [[1, None, None, 2]],
    ],
)
def test_what_is_no_note_is_left_out(entries):
    assert read_written(entries) == ()


def page_with(path, trace, text):
    """Write a page as the viewer saves it, with this text as its notes."""
    trace.timeline().save(path, with_data=True)
    element = f'<script id="gsl-notes" type="application/json">{text}</script><script type="text/x-wide" id="gsl-data">'
    path.write_text(path.read_text().replace('<script type="text/x-wide" id="gsl-data">', element))
    return path


def test_a_page_that_was_saved_with_notes_has_those_and_the_hazards_of_the_trace(trace, tmp_path):
    hazard = Note(time_ns=1, text="read-after-write: x", kind="hazard")
    noted = replace(trace, notes=(*trace.notes, hazard))
    path = page_with(tmp_path / "run.html", noted, '[[5, null, null, "a \\u003cb>"]]')
    assert told(gsl.load_trace(path).notes) == [(1, None, None, "read-after-write: x"), (5, None, None, "a <b>")]
    with pytest.raises(TraceFileError, match="damaged"):
        gsl.load_trace(page_with(tmp_path / "damaged.html", trace, "[[5,"))
