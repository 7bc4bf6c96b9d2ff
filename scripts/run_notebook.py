"""Run a notebook without a browser and print what its cells tagged ``show`` print.

A failing cell ends the run with the cell's own traceback and status 1. The HTML pages that the notebook writes into its working
folder have their places printed. With ``--brief``, only what was learned is printed: of each cell whose metadata have
``learned_lines``, so many of its last lines. All that the cells show, and the executed notebook, are files of the folder then.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

TAG = "show"
LEARNED = "learned_lines"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 where a cell fails or the notebook cannot be run."""
    options = make_parser().parse_args(argv)
    if not options.notebook.is_file():
        print(f"There is no notebook {options.notebook}. The notebooks are in notebooks/.", file=sys.stderr)
        return 1
    options.folder.mkdir(parents=True, exist_ok=True)
    notebook = nbformat.read(options.notebook, as_version=4)
    before = page_times(options.folder)
    try:
        run(notebook, folder=options.folder, timeout_s=options.timeout_s)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        failure = str(error) if sys.stderr.isatty() else without_colours(str(error))
        print(f"{options.notebook} failed:\n{failure}", file=sys.stderr)
        return 1
    finally:
        text = "\n\n".join(shown_texts(notebook))
        print(brief_text(notebook) if options.brief else text)
        if options.brief:
            (options.folder / f"{options.notebook.stem}.txt").write_text(text + "\n", encoding="utf-8")
        save = options.folder / options.notebook.name if options.brief and options.save is None else options.save
        if save is not None:
            nbformat.write(notebook, save)
    written = [page for page, time_ns in page_times(options.folder).items() if time_ns != before.get(page)]
    print(
        "".join(f"  page: {page}\n" for page in written) if options.brief else "\n" + closing_lines(options.notebook, written)
    )
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Run a notebook without a browser.")
    parser.add_argument("notebook", type=Path, help="the notebook; the file itself is not changed")
    parser.add_argument("--folder", type=Path, default=Path(), help="where it runs and writes its files (default: here)")
    parser.add_argument(
        "--timeout-s", type=int, default=600, help="how long one cell may take, in seconds (default: %(default)s)"
    )
    parser.add_argument(
        "--brief", action="store_true", help="print what was learned; keep the rest and the executed notebook in the folder"
    )
    parser.add_argument("--save", type=Path, help="keep the executed notebook as this file")
    return parser


def run(notebook: NotebookNode, *, folder: Path, timeout_s: int) -> None:
    """Execute the notebook in place, in a kernel of its own whose working folder is `folder`."""
    client = NotebookClient(notebook, timeout=timeout_s, resources={"metadata": {"path": str(folder)}})
    # Below errors, ipykernel 7 only says that it talks over TCP, on this machine, to the process that started it.
    client.extra_arguments = ["--log-level=ERROR"]
    client.execute()


def shown_texts(notebook: NotebookNode) -> list[str]:
    """Return the text of each tagged cell that printed or displayed something."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and TAG in cell.metadata.get("tags", ())]
    return [text for cell in cells if (text := cell_text(cell))]


def brief_text(notebook: NotebookNode) -> str:
    """Return the notebook's title, and the last lines of each cell that says how many of them tell what was learned."""
    title, heading, lines = "", "", []
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and (found := re.match(r"#+ (.+)", cell.source)):
            title, heading = title or found[1], found[1] if found[1].endswith("?") else f"{found[1]}:"
        elif count := cell.metadata.get(LEARNED, 0):
            learned = cell_text(cell).splitlines()[-count:]
            told = [f"    {line}" for line in learned]
            lines += [f"  {heading} {learned[0]}"] if len(learned) == 1 else [f"  {heading}", *told] if learned else []
    return "\n".join([title, *lines])


def cell_text(cell: NotebookNode) -> str:
    """Return what a cell printed and displayed, as plain text; what it printed comes in pieces, which may end within a line."""
    texts = []
    for is_stream, outputs in groupby(cell.get("outputs", ()), key=lambda output: output.output_type == "stream"):
        if is_stream:
            texts.append("".join(output.text for output in outputs if output.name == "stdout").rstrip())
        else:
            texts += [output.get("data", {}).get("text/plain", "").rstrip() for output in outputs]
    return "\n".join(filter(None, texts))


def without_colours(text: str) -> str:
    """Take the terminal's colour codes out of a traceback."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def page_times(folder: Path) -> dict[Path, int]:
    """Return when each HTML page of a folder was last written, in ns."""
    return {page: page.stat().st_mtime_ns for page in sorted(folder.glob("*.html"))}


def closing_lines(notebook: Path, pages: Sequence[Path]) -> str:
    """Say which pages were written and how to go on."""
    written = [f"A timeline is in {page} ({page.stat().st_size / 1e6:.1f} MB): open it in any browser." for page in pages]
    return "\n".join([*written, f"Open the notebook itself ({notebook.name}) with: make lab"])


if __name__ == "__main__":
    sys.exit(main())
