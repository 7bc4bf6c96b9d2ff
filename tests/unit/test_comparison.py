"""`compare`: what it takes, what it shows, what it writes."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from gpustreamlab import Comparison, Timeline, compare
from gpustreamlab.errors import OptionError, TraceFileError
from tests.helpers.traces import EVIL_NAME, empty_trace, evil_trace, make_trace, pipeline_trace, random_trace


def test_takes_traces_files_and_whatever_has_a_trace(tmp_path):
    pipeline_trace().save(tmp_path / "before.parquet")
    result = compare(tmp_path / "before.parquet", Timeline(pipeline_trace(4)))
    assert isinstance(result, Comparison)
    assert (len(result.a), len(result.b)) == (24, 16)
    assert compare(str(tmp_path / "before.parquet"), pipeline_trace()).result.names.difference_ns.tolist() == [0, 0, 0, 0]


def test_says_what_it_takes():
    with pytest.raises(OptionError, match=r"compare\(b=\.\.\.\) got a int; it takes a Trace"):
        compare(pipeline_trace(), 7)
    with pytest.raises(TraceFileError):
        compare("nowhere.parquet", pipeline_trace())


def test_repr_is_one_line_with_the_finding():
    quick, slow = (make_trace([("a", "x", 0, end_ns)]) for end_ns in (300, 400))
    assert repr(compare(slow, quick)) == "<Comparison: wall time 400 ns → 300 ns (1.33× faster)>"


def test_less_work_is_not_faster_and_that_is_said_first(tmp_path):
    result = compare(pipeline_trace(), pipeline_trace(4))
    warning, walls = "Not the same work: 24 ranges against 16", "wall time 7.50 ms → 5.50 ms (0.73× as long)"
    assert repr(result) == f"<Comparison: n{warning[1:]}; {walls}>"
    text = " ".join(str(result).split())
    assert text.startswith(f"Comparison of two traces, b beside a: n{warning[1:]}; {walls}")
    page = result.save(tmp_path / "x.html").read_text(encoding="utf-8")
    assert page.index(warning) < page.index(walls)
    assert (text.count(warning[1:]), page.count(warning), "faster" in text) == (1, 1, False)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "traces",
    [
        pytest.param((pipeline_trace(), pipeline_trace(4)), id="pipeline"),
        pytest.param((random_trace(50_000), random_trace(40_000, seed=2)), id="50k"),
        pytest.param((empty_trace(), evil_trace()), id="hostile"),
    ],
)
def test_text_fits_the_terminal(monkeypatch, traces, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = str(compare(*traces).result).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert not any(sign < " " or sign == "\u202e" for line in lines for sign in line)


def test_text_names_both_and_lists_what_differs():
    text = " ".join(str(compare(pipeline_trace(), pipeline_trace(4))).split())
    assert "a: Image pipeline: timeline of 24 spans in 3 streams on NVIDIA H200 (SIMULATED)" in text
    assert "copy in 6→4 5.40 ms 3.60 ms −1.80 ms ×0.67 900 µs" in text
    assert "2 or more queued or running / any 72% 63%" in text


def test_rich_draws_names_as_they_are():
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(compare(evil_trace("[red]x[/red]"), evil_trace("[red]x[/red]")))
    assert "[red]x[/red]" in console.file.getvalue()


def test_saved_page_is_escaped_and_asks_for_nothing(tmp_path):
    result = compare(evil_trace(), evil_trace())
    first = result.save(tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<img src=x" not in first
    assert first.count("<script") == 7
    assert "https://" not in first.replace("http://www.w3.org", "")


def test_other_formats_are_refused_with_what_works(tmp_path):
    with pytest.raises(OptionError, match=r"'\.svg' is not supported.*\.html.*to_pandas"):
        compare(pipeline_trace(), pipeline_trace()).save(tmp_path / "x.svg")


def test_file_that_cannot_be_written_is_an_error_of_ours(tmp_path):
    with pytest.raises(TraceFileError):
        compare(pipeline_trace(), pipeline_trace()).save(tmp_path / "nowhere" / "x.html")


def test_a_notebook_gets_escaped_html_without_mathematics_and_text():
    forms = compare(evil_trace(), evil_trace())._repr_mimebundle_()
    assert set(forms) == {"text/plain", "text/html"}
    assert forms["text/html"].startswith('<div class="gpustreamlab-comparison mathjax_ignore">')
    assert (EVIL_NAME in forms["text/html"], "<script" in forms["text/html"]) == (False, False)
    assert set(compare(pipeline_trace(), pipeline_trace())._repr_mimebundle_(include=["text/plain"])) == {"text/plain"}
