"""`scripts/run_notebook.py` with real kernels, and what every notebook of the repository keeps to."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from scripts import run_notebook
from tests.helpers.notebooks import assert_clean

pytestmark = pytest.mark.notebook


def write_notebook(path, *sources):
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": ["show"]}) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def test_a_notebook_runs_in_its_folder_and_its_tagged_text_is_printed(tmp_path, capsys):
    # GIVEN a notebook that writes into its working folder, in which there is a page of an earlier run
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "partitions.html").write_text("of another notebook")
    source = "open('timeline.html', 'w').write('x'); print('table'); 6 * 7"
    notebook = write_notebook(tmp_path / "a.ipynb", source)
    before = notebook.read_bytes()

    # WHEN it is run
    status = run_notebook.main([str(notebook), "--folder", str(tmp_path / "out"), "--save", str(tmp_path / "done.ipynb")])

    # THEN its text is printed, its file is named, and it is unchanged
    out = capsys.readouterr().out
    assert status == 0
    assert "table\n42\n" in out
    assert str(tmp_path / "out" / "timeline.html") in out
    assert "partitions.html" not in out
    assert notebook.read_bytes() == before
    assert nbformat.read(tmp_path / "done.ipynb", as_version=4).cells[0].execution_count == 1


def test_a_brief_run_keeps_what_it_does_not_print(tmp_path, capsys):
    notebook = write_notebook(tmp_path / "a.ipynb", "open('page.html', 'w').write('x'); print('table\\nthe sum')")
    book = nbformat.read(notebook, as_version=4)
    book.cells[0].metadata[run_notebook.LEARNED] = 1
    nbformat.write(book, notebook)
    out = tmp_path / "out"

    assert run_notebook.main([str(notebook), "--folder", str(out), "--brief"]) == 0

    printed = capsys.readouterr().out
    assert "the sum" in printed
    assert "table" not in printed
    assert str(out / "page.html") in printed
    assert "table\nthe sum" in (out / "a.txt").read_text()
    assert nbformat.read(out / "a.ipynb", as_version=4).cells[0].execution_count == 1


def test_a_line_that_the_kernel_sends_in_pieces_is_one_line(tmp_path, capsys):
    # GIVEN a kernel whose output is flushed behind each write, as it is now and then by itself
    flushing = "import sys\nwrite = sys.stdout.write\nsys.stdout.write = lambda text: (write(text), sys.stdout.flush())\n"
    notebook = write_notebook(tmp_path / "a.ipynb", flushing + "print('one', 'line')\nprint('and', 'another')")
    book = nbformat.read(notebook, as_version=4)
    book.cells[0].metadata[run_notebook.LEARNED] = 2
    nbformat.write(book, notebook)

    assert run_notebook.main([str(notebook), "--folder", str(tmp_path / "out"), "--brief"]) == 0

    assert len(nbformat.read(tmp_path / "out" / "a.ipynb", as_version=4).cells[0].outputs) > 2
    assert "    one line\n    and another\n" in capsys.readouterr().out
    assert (tmp_path / "out" / "a.txt").read_text() == "one line\nand another\n"


def test_a_failing_cell_fails_with_its_traceback(tmp_path, capsys):
    notebook = write_notebook(
        tmp_path / "a.ipynb", "print('before')", "one_line = 1\nraise ValueError('why it failed')", "print('x')"
    )

    status = run_notebook.main([str(notebook), "--folder", str(tmp_path)])

    captured = capsys.readouterr()
    assert status == 1
    assert "ValueError: why it failed" in captured.err
    assert "raise ValueError" in captured.err
    assert "before" in captured.out


def test_a_cell_that_takes_too_long_fails(tmp_path, capsys):
    notebook = write_notebook(tmp_path / "a.ipynb", "import time; time.sleep(60)")

    assert run_notebook.main([str(notebook), "--folder", str(tmp_path), "--timeout-s", "1"]) == 1
    assert "failed" in capsys.readouterr().err


NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_in_the_repository_holds_nothing_of_a_run(path):
    assert_clean(path)
