"""What every notebook of the repository keeps to, and how the tests run one."""

from __future__ import annotations

import ast
import contextlib
import io
import re

import nbformat
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
    return folder, printed.getvalue(), nbformat.read(folder / "executed.ipynb", as_version=4)


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
