"""A notebook's outputs hold the viewer's code once, and a cell that runs again holds what it held."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpustreamlab import Session, Timeline, compare
from gpustreamlab._util import shell
from gpustreamlab.draw._html import bokeh_text
from tests.helpers.traces import pipeline_trace


class FakeShell:
    """A kernel's shell, in which cells run."""

    kernel = object()

    def __init__(self):
        self.display_pub = self.events = self
        self.runs, self.shown = 0, {}

    def run(self, cell, *, page="page 1"):
        self.runs += 1
        metadata = {} if cell is None else {"cellId": cell}
        self.parent = {"header": {"session": page, "msg_id": f"run {self.runs}"}, "metadata": metadata}

    def get_parent(self):
        return self.parent

    def publish(self, data, _metadata, *, transient, update):
        assert update == (transient["display_id"] in self.shown)
        self.shown[transient["display_id"]] = data

    def register(self, _event, callback):
        self.callback = callback

    def unregister(self, _event, _callback):
        del self.callback


@pytest.fixture
def notebook(monkeypatch):
    fake = FakeShell()
    for module in ("_util.shell", "timeline", "notebook.views", "notebook.live_timeline"):
        monkeypatch.setattr(f"gpustreamlab.{module}.running_kernel_shell", lambda: fake)
    monkeypatch.setattr(shell, "_code_cells", {})
    return fake


def has_code(data):
    return bokeh_text() in data["text/html"]


@pytest.fixture
def shows_code(notebook):
    """Show a timeline in a cell; tell whether the output holds the code."""

    def show(cell, shown=None, **where):
        if cell != "same":
            notebook.run(cell, **where)
        return has_code((shown or Timeline(pipeline_trace()))._repr_mimebundle_())

    return show


def test_first_timeline_holds_the_code_and_later_ones_are_small(shows_code):
    assert shows_code("a")
    assert not shows_code("same")
    assert not shows_code("b")
    assert not shows_code("b", compare(pipeline_trace(), pipeline_trace()))
    assert len(Timeline(pipeline_trace())._repr_mimebundle_()["text/html"]) < 40_000


def test_a_comparison_may_be_the_first(shows_code):
    assert shows_code("a", compare(pipeline_trace(), pipeline_trace()))
    assert not shows_code("b")


def test_cell_that_runs_again_holds_the_code_again(shows_code):
    assert [shows_code(cell) for cell in ("a", "b", "a", "same", "b")] == [True, False, True, False, False]


def test_page_that_is_loaded_again_gets_the_code_anew_where_a_cell_runs(shows_code):
    assert shows_code("a")
    assert shows_code("b", page="page 2")  # the first one may have been deleted
    assert not shows_code("a", page="page 2")


def test_runs_without_cells_are_cells_of_their_own(shows_code):
    assert [shows_code(None) for _ in range(3)] == [True, False, False]


def test_what_is_asked_without_html_holds_no_code(notebook, shows_code):
    notebook.run("a")
    assert "text/html" not in Timeline(pipeline_trace())._repr_mimebundle_(include={"text/plain"})
    assert shows_code("same")


@pytest.mark.parametrize("module", ["google.colab", "dbruntime"])
def test_each_holds_the_code_where_outputs_cannot_reach_each_other(module, shows_code, monkeypatch):
    monkeypatch.setitem(shell.sys.modules, module, SimpleNamespace())
    assert shows_code("a")
    assert shows_code("b")


def test_output_that_is_captured_is_not_the_one_that_others_rely_on(notebook, shows_code, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(notebook, "outputs", [], raising=False)
        assert shows_code("a")
    assert shows_code("b")


def test_live_pictures_keep_what_they_hold_when_they_are_drawn_anew(notebook, shows_code):
    with Session(backend="sim") as lab:
        for cell in (None, None):
            notebook.run(cell)
            lab.timeline()._ipython_display_()
        lab.stream("s").synchronize()
        before = [has_code(data) for data in notebook.shown.values()]
    assert before == [True, False]
    assert [has_code(data) for data in notebook.shown.values()] == before
    assert not shows_code("c")


def test_widget_becomes_a_picture_with_the_code_where_no_other_has_it(notebook, shows_code):
    with Session(backend="sim") as lab:
        for cell in ("a", "b"):
            notebook.run(cell)
            lab.timeline()._ipython_display_()
        assert all("text/html" not in data for data in notebook.shown.values())
        notebook.run("c")
    assert [has_code(data) for data in notebook.shown.values()] == [True, False]
    assert not shows_code("d")


def test_voila_gets_the_widget_though_it_names_no_cell(notebook, monkeypatch):
    monkeypatch.setenv("SERVER_SOFTWARE", "voila/0.5.13")
    notebook.run(None)
    with Session(backend="sim") as lab:
        lab.timeline()._ipython_display_()
        (data,) = notebook.shown.values()
        assert {*data} == {"application/vnd.jupyter.widget-view+json", "image/svg+xml", "text/plain"}
        assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == lab.timeline().page.widget_id


def test_marimo_shows_what_is_live_as_a_widget_and_the_rest_as_one_form(monkeypatch):
    monkeypatch.setitem(shell.sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: True))
    with Session(backend="sim") as lab:
        timeline = lab.timeline()
        assert timeline._display_() is timeline.page
    shown = timeline._display_()
    assert type(shown) is Timeline
    assert has_code({"text/html": shown._repr_html_()})


def test_marimo_that_is_imported_alone_changes_nothing(monkeypatch):
    monkeypatch.setitem(shell.sys.modules, "marimo", SimpleNamespace(running_in_notebook=lambda: False))
    with Session(backend="sim") as lab:
        assert type(lab.timeline()) is Timeline
