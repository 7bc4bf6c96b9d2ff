"""What every notebook of the repository keeps to, and how the tests run one."""

from __future__ import annotations

import ast
import contextlib
import io
import re

import nbformat
import pandas as pd
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from scripts import run_notebook

LINE_WIDTH = 160


def run_without_gpu(notebook, folder):
    """Run a notebook where no GPU is seen; return its folder, what was printed, and the executed notebook."""
    printed = io.StringIO()
    arguments = [str(notebook), "--folder", str(folder), "--save", str(folder / "executed.ipynb")]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        status = run_notebook.main(arguments)
    assert status == 0, "A cell failed; its traceback is above."
    executed = nbformat.read(folder / "executed.ipynb", as_version=4)
    _assert_ran_cleanly(executed)
    return folder, printed.getvalue(), executed


def run_lesson(notebook, folder, tables, last_lines, **metadata):
    """Run a notebook without a GPU, with one more cell that keeps DataFrames as files and then runs these lines."""
    lesson = nbformat.read(notebook, as_version=4)
    keep = "\n".join(f"{name}.to_json('{name}.json', orient='split')" for name in tables)
    lesson.cells.append(nbformat.v4.new_code_cell(f"{keep}\n{last_lines}", metadata=metadata))
    copy = folder / "lesson.ipynb"
    nbformat.write(lesson, copy)
    return run_without_gpu(copy, folder)


def read_tables(folder, tables):
    """Return the DataFrames that `run_lesson` kept, by name."""
    return {name: pd.read_json(folder / f"{name}.json", orient="split") for name in tables}


def shown_timelines(notebook):
    """Return what the timelines of an executed notebook are shown as: a page, a picture and text, each of them."""
    outputs = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [data for data in outputs if "image/svg+xml" in data]
    assert all({"text/html", "image/svg+xml", "text/plain"} <= data.keys() for data in shown)
    return shown


def _assert_ran_cleanly(notebook):
    """Assert that every cell of an executed notebook ran, without an error or a warning."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells)
    assert [output for cell in cells for output in cell.outputs if output.output_type == "error"] == []
    warnings = ["".join(output.text for output in cell.outputs if output.get("name") == "stderr") for cell in cells]
    assert [text for text in warnings if text] == []


def assert_clean(path):
    """Assert that a notebook holds nothing of a run, and Python that reads well."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.outputs for cell in code if cell.outputs] == []
    assert [cell.execution_count for cell in code if cell.execution_count] == []
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        lines = cell.source.split("\n")
        assert [line for line in lines if line != line.rstrip() or "\t" in line or len(line) > LINE_WIDTH] == []
        assert not re.search(r"/(home|work|tmp|Users|root)\b|[A-Z]:\\", cell.source)
    for cell in code:
        ast.parse(TransformerManager().transform_cell(cell.source))
