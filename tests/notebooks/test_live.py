"""A live timeline in a notebook that runs without a page: the picture in the file is the last one."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.notebook

START = """
%load_ext gpustreamlab
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
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


def run(*cells):
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(book, timeout=120, kernel_name="python3").execute()
    return book


def shown(book):
    (output,) = book.cells[0].outputs
    return output.data


@pytest.mark.parametrize("end", ["1 + 1", "lab.close()"])
def test_the_picture_is_the_last_one_whether_the_session_was_closed_or_not(end):
    data = shown(run(START, WORK, WORK, end))

    assert set(data) == {"text/plain", "text/html", "image/svg+xml"}
    assert "10 spans in 1 stream" in data["text/plain"]
    assert "10 spans" in data["image/svg+xml"]


def test_a_picture_that_shows_no_later_work_is_asked_for():
    data = shown(run(START.replace("lab.timeline()", "lab.timeline(live=False)"), WORK))

    assert "0 spans" in data["text/plain"]


def test_an_empty_picture_waits_for_what_is_recorded_after_a_clear():
    data = shown(run(START, "lab.clear()" + WORK))

    assert "5 spans in 1 stream" in data["text/plain"]


def test_a_picture_of_what_was_cleared_stays_as_it_is():
    data = shown(run(START, WORK, "lab.clear()", WORK + WORK))

    assert "5 spans in 1 stream" in data["text/plain"]
