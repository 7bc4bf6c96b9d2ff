"""``gpustreamlab view`` and ``gpustreamlab convert``."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

import gpustreamlab as gsl
from gpustreamlab import cli
from gpustreamlab.errors import OptionError
from tests.helpers.kineto import two_streams, write
from tests.helpers.traces import empty_trace, make_trace, pipeline_trace
from tests.unit.model.equality import assert_same_trace


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, on a machine without a screen."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return tmp_path


@pytest.fixture
def opened(monkeypatch):
    """What a browser is asked to show."""
    pages = []
    monkeypatch.setattr(cli.webbrowser, "get", lambda: None)
    monkeypatch.setattr(cli.webbrowser, "open", pages.append)
    return pages


@pytest.fixture
def saved(here):
    pipeline_trace().save(here / "run.parquet")
    return "run.parquet"


def told_in_one_line(capsys, *arguments):
    assert cli.main(arguments) == 1
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("gpustreamlab: ")
    return line


def test_view_prints_the_answers_and_writes_a_page_that_is_not_opened_without_a_screen(capsys, here, saved, opened):
    # WHEN a trace is viewed on a machine without a screen
    assert cli.main(["view", saved]) == 0
    # THEN the summary, the overlap, the causes and the page are told, and the page is a picture
    out = capsys.readouterr().out
    places = [out.index(words) for words in ("Image pipeline", "Tier: ranges", "Overlap of", "Why: ", "Timeline: run.html")]
    assert places == sorted(places)
    assert "gsl-timeline" in (here / "run.html").read_text()
    assert not opened


def test_view_opens_the_page_where_there_is_a_screen(monkeypatch, here, saved, opened):
    monkeypatch.setenv("DISPLAY", ":0")
    cli.main(["view", saved, "-o", "out.html"])
    cli.main(["view", saved, "--no-open"])
    assert opened == [(here / "out.html").as_uri()]


def test_view_opens_nothing_where_no_browser_is(monkeypatch, here, saved, opened):
    def get():
        raise cli.webbrowser.Error("could not locate runnable browser")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(cli.webbrowser, "get", get)
    assert cli.main(["view", saved]) == 0
    assert not opened


def test_view_opens_no_port(monkeypatch, here, saved):
    monkeypatch.setattr(socket, "socket", None)
    assert cli.main(["view", saved]) == 0


def test_view_replaces_only_a_page_that_can_be_drawn_again(capsys, here, saved):
    assert [cli.main(["view", saved]) for _ in range(2)] == [0, 0]
    capsys.readouterr()
    pipeline_trace().timeline().save("run.html", with_data=True)
    assert "'run.html' is there already" in told_in_one_line(capsys, "view", saved)
    assert cli.main(["view", "run.html", "--no-open"]) == 0, "it is the page"
    assert cli.main(["view", "run.html", "-o", "other.html"]) == 0
    assert_same_trace(gsl.load_trace("run.html"), pipeline_trace())


def test_a_page_is_named_as_the_file_without_what_tells_its_format(here):
    for name in ("host.17000.pt.trace.json.gz", "/else/host.sqlite", "host", "host.nsys-rep"):
        assert str(cli._page_beside(name)) == "host.html"


@pytest.mark.parametrize("make", [empty_trace, lambda: make_trace([("host: main", "call", 0, 9, {"kind": "host"})])])
def test_view_of_a_trace_without_device_work(here, make):
    make().save("run.parquet")
    assert cli.main(["view", "run.parquet"]) == 0


def test_view_of_several_ranks_explains_one_after_the_other(capsys, here):
    for number in (0, 1):
        write(here / f"rank{number}.json", two_streams() | {"distributedInfo": {"rank": number, "world_size": 2}})
    assert cli.main(["view", "rank0.json", "rank1.json", "--no-open"]) == 0
    told = capsys.readouterr().out
    assert [told.count(f"GPU {number}. Why:") for number in (0, 1)] == [1, 1]


def test_convert_writes_no_file_that_is_called_as_standard_output(capsys, here, saved):
    assert cli.main(["convert", str(saved), "-"]) == 1
    assert "Name one, such as run.parquet" in " ".join(capsys.readouterr().err.split())
    assert not [path for path in here.iterdir() if path.name == "-"]


def test_convert_replaces_a_file_only_if_told_to(capsys, here, saved):
    """Whoever forgets OUT names an input there."""
    pipeline_trace().save("other.parquet")
    before = (here / "other.parquet").read_bytes()
    assert "--force" in told_in_one_line(capsys, "convert", saved, "other.parquet")
    assert (here / "other.parquet").read_bytes() == before
    assert cli.main(["convert", saved, "other.parquet", "--force"]) == 0


def test_convert_writes_by_suffix_and_says_what_it_read(capsys, here, saved):
    assert cli.main(["convert", saved, "again.parquet"]) == 0
    assert (
        capsys.readouterr().out.splitlines()[0]
        == f"again.parquet: {len(pipeline_trace()):,} spans in {len(pipeline_trace().lanes)} streams"
    )
    assert cli.main(["convert", saved, "page.html", "--format", "parquet"]) == 0
    for name in ("again.parquet", "page.html"):
        assert_same_trace(gsl.load_trace(name), pipeline_trace())


def test_convert_says_what_a_file_lacks(capsys, here, monkeypatch):
    trace = make_trace([("a", "x", 0, 5)], imported="1 kernel of 9 events", missing=("It has no SM count.",))
    monkeypatch.setattr(cli, "load_trace", lambda paths, name: trace)
    assert cli.main(["convert", "run.json", "out.parquet"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["1 kernel of 9 events", "It has no SM count."]


def test_several_files_are_ranks(monkeypatch, here):
    asked = []
    monkeypatch.setattr(cli, "load_trace", lambda paths, name: asked.append((paths, name)) or pipeline_trace())
    cli.main(["convert", "rank0.json", "rank1.json", "out.parquet", "--format", "kineto"])
    assert asked == [(["rank0.json", "rank1.json"], "kineto")]


WRONG = {
    "missing": (["view", "gone.json"], "There is no trace file at 'gone.json'"),
    "format": (["view", "run.parquet", "--format", "paquet"], "Did you mean 'parquet'?"),
    "page": (["view", "run.parquet", "-o", "page.pdf"], "'page.pdf' has to end in .html"),
    "suffix": (["convert", "gone.json", "out.xlsx"], "cannot be saved as 'out.xlsx': choose from '.parquet'"),
    "onto itself": (["convert", "run.parquet", "./run.parquet"], "would replace what is read"),
    "folder": (["convert", "run.parquet", "none/out.parquet"], "cannot be written: there is no folder"),
    "URL": (["view", "https://example.org/run.json"], "opens no connection. Download it"),
    "simulated runs together": (["convert", "run.parquet", "run.parquet", "out.parquet"], "The traces are of simulated runs"),
}


def test_view_leaves_the_page_that_it_reads(capsys, here, saved):
    assert cli.main(["convert", saved, "page.html"]) == 0
    capsys.readouterr()
    assert "would replace what is read" in told_in_one_line(capsys, "view", "page.html", "-o", "./page.html")
    assert_same_trace(gsl.load_trace("page.html"), pipeline_trace())


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=WRONG.keys())
def test_an_error_of_ours_is_one_line_and_status_1(capsys, here, saved, arguments, words):
    assert words in told_in_one_line(capsys, *arguments)
    assert [path.name for path in here.iterdir()] == [saved]


def test_an_error_that_is_not_ours_keeps_its_traceback(monkeypatch, here, saved):
    def fail(paths, name):
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "load_trace", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["view", saved])
    assert issubclass(OptionError, ValueError)


def test_ctrl_c_ends_it_without_words_and_leaves_no_file(capsys, monkeypatch, here, saved):
    def interrupt(trace):
        raise KeyboardInterrupt

    monkeypatch.setitem(cli._REPORTS, "why", interrupt)
    assert cli.main(["view", saved]) == 130
    assert capsys.readouterr() == ("", "")
    assert [path.name for path in here.iterdir()] == [saved]


@pytest.mark.parametrize("command", ["view", "convert"])
def test_help_tells_files_and_formats(capsys, command):
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "-h"])
    assert caught.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "auto (by its first bytes), parquet, spool, record, html, kineto, chrome, nsys, perfetto" in out
    assert ("No port is opened" if command == "view" else ".pftrace, .pftrace.gz, .json") in out


def test_a_reader_that_has_seen_enough_ends_view_silently(here, saved):
    # GIVEN a pipe that nobody reads any more, as behind `view | head -2`
    read, write = os.pipe()
    os.close(read)
    program = "import sys; from gpustreamlab.cli import main; sys.exit(main(['view', 'run.parquet']))"
    environment = os.environ | {"PYTHONPATH": str(cli.Path(gsl.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False, env=environment)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
    assert (here / "run.html").exists()


def test_convert_of_a_notebook_shows_what_widgets_showed_last_without_a_script(here):
    mime, ours = "application/vnd.jupyter.widget-view+json", {"text/plain": ["a timeline"], "image/png": "UE5H"}
    bundles = [{mime: {"model_id": "ours"}, **ours}, {mime: {"model_id": "theirs"}, "text/plain": ["IntSlider()"]}]
    outputs = [{"output_type": "display_data", "metadata": {}, "data": data} for data in bundles]
    cell = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": 1, "source": "1", "outputs": outputs}
    state = {
        name: {"model_name": "HTMLModel", "model_module": "@jupyter-widgets/controls", "state": {}}
        for name in ("ours", "theirs")
    }
    metadata = {
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": state, "version_major": 2, "version_minor": 0}}
    }
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": [cell]}
    (here / "book.ipynb").write_text(json.dumps(book))
    assert cli.main(["convert", "book.ipynb", "book.html"]) == 0
    page = (here / "book.html").read_text(encoding="utf-8")
    assert "data:image/png;base64,UE5H" in page
    assert page.count('{"model_id": "theirs"}') == 1
    assert '{"model_id": "ours"}' not in page


@pytest.mark.parametrize("text", ["", "{}", "[]", "x", '{"nbformat": 4, "cells": 7}', None])
def test_convert_of_what_is_no_notebook_says_so(capsys, here, text):
    if text is not None:
        (here / "book.ipynb").write_text(text)
    assert cli.main(["convert", "book.ipynb", "book.html"]) == 1
    assert "'book.ipynb' cannot be read as a notebook" in capsys.readouterr().err
    assert not (here / "book.html").exists()
