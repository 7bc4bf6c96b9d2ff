"""A live timeline in a notebook that runs without a page: the picture in the file is the last one."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.notebook

LOAD = """
%load_ext gpustreamlab
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
"""
START = """
lab = gsl.Session("sim", capture="ranges")
lab.stream("copy")
lab.timeline()
"""
WORK = """
for _ in range(5):
    with lab.on("copy", "upload"):
        spin(lab, 100_000)
lab.synchronize()
"""


STORIES = {
    "closed": [START, WORK, WORK, "lab.close()"],
    "asked for": [START.replace("lab.timeline()", "lab.timeline(live=False)"), WORK],
    "cleared at first": [START, "lab.clear()" + WORK],
    "cleared in the end": [START, WORK, "lab.clear()", WORK + WORK],
    "open": [START, WORK, WORK, "1 + 1"],
}
"""Cells of one notebook, as a kernel takes seconds to start; the session of the last is open when the kernel ends."""


@pytest.fixture(scope="module")
def shown():
    """Return what the first cell of each story shows in the executed notebook."""
    sources = [LOAD, *(source for sources in STORIES.values() for source in sources)]
    book = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in book.cells if "lab.timeline(" in cell.source]
    return {story: output.data for story, (output,) in zip(STORIES, outputs, strict=True)}


@pytest.mark.parametrize("story", ["open", "closed"])
def test_the_picture_is_the_last_one_whether_the_session_was_closed_or_not(shown, story):
    data = shown[story]

    assert set(data) == {"text/plain", "text/html", "image/svg+xml"}
    assert "10 spans in 1 stream" in data["text/plain"]
    assert "10 spans" in data["image/svg+xml"]


def test_a_picture_that_shows_no_later_work_is_asked_for(shown):
    assert "0 spans" in shown["asked for"]["text/plain"]


def test_an_empty_picture_waits_for_what_is_recorded_after_a_clear(shown):
    assert "5 spans in 1 stream" in shown["cleared at first"]["text/plain"]


def test_a_picture_of_what_was_cleared_stays_as_it_is(shown):
    assert "5 spans in 1 stream" in shown["cleared in the end"]["text/plain"]
