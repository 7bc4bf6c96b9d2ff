"""The public door: `Timeline` and `load_trace`."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import overlap
from gpustreamlab.errors import OptionError, TraceFileError
from gpustreamlab.timeline import Timeline
from tests.helpers.traces import empty_trace, evil_trace, pipeline_trace


@pytest.mark.parametrize(
    ("name", "start"), [("run.html", "<!DOCTYPE html>"), ("RUN.HTML", "<!DOCTYPE html>"), ("run.svg", "<svg ")]
)
def test_save_writes_what_the_suffix_says_and_returns_the_path(tmp_path, name, start):
    path = Timeline(pipeline_trace()).save(str(tmp_path / name))
    assert path == tmp_path / name
    assert path.read_text(encoding="utf-8").startswith(start)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["run.htm", "run", "run.eps", ".html"])
def test_unknown_suffix_is_an_option_error_with_the_choices(tmp_path, name):
    with pytest.raises(OptionError, match="suffix") as caught:
        Timeline(pipeline_trace()).save(tmp_path / name)
    assert "Choose from '.html', '.svg' and '.png'." in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "width_mm", "message"),
    [
        ("run.svg", 0, r"width_mm is 0; it must be a number from 40 to 420\. Use save\('run\.svg', width_mm=180\)"),
        ("run.svg", "85", r"width_mm is '85'; it must be a number"),
        ("run.svg", True, r"width_mm is True; it must be a number"),
        ("run.svg", float("nan"), r"width_mm is nan; it must be a number"),
        ("run.png", 180, r"width_mm is 180, but only a \.svg has one\. Leave it out to write 'run\.png'"),
        ("run.html", 180, r"width_mm is 180, but only a \.svg has one"),
    ],
)
def test_wrong_width_is_an_option_error_and_no_file(tmp_path, name, width_mm, message):
    with pytest.raises(OptionError, match=message):
        Timeline(pipeline_trace()).save(tmp_path / name, width_mm=width_mm)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
def test_path_that_cannot_be_written_is_a_trace_file_error(tmp_path, suffix):
    with pytest.raises(TraceFileError, match="cannot be written"):
        Timeline(pipeline_trace()).save(tmp_path / "missing" / f"run{suffix}")


@pytest.mark.parametrize("suffix", [".html", ".svg", ".png"])
def test_full_disk_is_a_trace_file_error_and_leaves_the_old_file(tmp_path, monkeypatch, suffix):
    target = tmp_path / f"run{suffix}"
    target.write_bytes(b"old")

    def write(self, data, **_):
        # Some of it fits: what a disk does that fills up half-way.
        with self.open("wb") as file:
            file.write(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", write)
    monkeypatch.setattr(Path, "write_bytes", write)
    with pytest.raises(TraceFileError, match="No space left on device"):
        Timeline(pipeline_trace()).save(target)
    assert [path.name for path in tmp_path.iterdir()] == [target.name]
    with target.open("rb") as file:
        assert file.read() == b"old"


def test_bundle_has_text_page_and_picture():
    bundle = Timeline(pipeline_trace())._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/svg+xml"}
    assert bundle["text/plain"].startswith("Image pipeline: timeline of 24 spans in 3 streams")
    assert "\x1b" not in bundle["text/plain"]
    timeline = Timeline(pipeline_trace())
    assert set(timeline._repr_mimebundle_(include={"text/plain"})) == {"text/plain"}
    assert set(timeline._repr_mimebundle_(exclude={"text/html"})) == {"text/plain", "image/svg+xml"}
    assert repr(timeline) == "<Image pipeline: timeline of 24 spans in 3 streams on NVIDIA H200 (SIMULATED)>"
    assert "What ran at once is not known, at most 5.40 ms" in str(timeline)
    for trace in (empty_trace(), evil_trace()):
        assert all(Timeline(trace)._repr_mimebundle_().values())


def test_work_with_no_stream_selected_is_hinted_at_where_there_is_nothing_else():
    # GIVEN work outside of every stream, and a lane on which nothing ran
    with Session("sim", capture="ranges") as lab:
        lab.stream("compute")
        z = lab.xp.ones((64, 64))
        z @ z
        # WHEN
        timeline, trace = lab.timeline(live=False), lab.trace
        told = "2 kernels, copies or fills were launched with no stream selected"
        # THEN every place where a user looks says so, and what to type
        assert trace.metadata.unselected_work == 2
        for text in (repr(timeline), flat(str(timeline)), flat(str(lab.trace.overlap()))):
            assert f"{told}: use lab.on(...), or record all with lab.capture('kernels')" in text
        assert "2 launched with no stream selected" in repr(trace)
        assert told in timeline._repr_mimebundle_()["image/svg+xml"]
        # AND WHEN there is something to see, or that was forgotten
        before = lab.recording.checkpoint()
        with lab.on("compute", "step"):
            z @ z
        lab.synchronize()
        assert told not in str(lab.timeline(live=False)) + str(lab.trace.overlap()) + repr(lab.trace)
        lab.clear()
        assert (lab.trace.metadata.unselected_work, lab.recording.since(before).metadata.unselected_work) == (0, 0)


def test_work_that_was_captured_and_work_of_the_session_itself_are_not_hinted_at():
    with Session("sim") as lab:
        lab.stream("compute")
        with lab.capture("kernels"):
            lab.xp.ones(8).get()
        assert lab.trace.metadata.unselected_work == 0
        assert len(lab.trace)


def test_an_empty_trace_of_which_nothing_is_known_says_what_to_do_and_claims_nothing():
    text = flat(str(Timeline(empty_trace())) + str(overlap(empty_trace())))
    for lead in ("No spans yet", "Nothing to compare yet"):
        assert f"{lead}: select a stream with lab.on(...), or record all work with lab.capture('kernels')" in text
    assert "no stream selected" not in text


def flat(text):
    """Take out where lines were broken."""
    return " ".join(text.split())
