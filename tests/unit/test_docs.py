"""What the pages say: their links lead somewhere, their code runs, and what they promise to list is listed.

In the README and in docs, a block marked ``python`` is a notebook cell; the cells of a page run in its order, in one shell, on
the simulated device. A block marked ``text`` right behind one is what the cell prints. ``python needs=NAME,...`` runs where
these packages are; elsewhere, and for ``needs=gpu``, only its syntax is checked.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import itertools
import json
import pydoc
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import gpustreamlab
from gpustreamlab import Session, magics
from gpustreamlab.analysis import Finding
from gpustreamlab.groups import Expectation, Group
from gpustreamlab.trace import SupportsTrace
from gpustreamlab.typing import Cause, Unavailable
from scripts import bench_table, docs_pictures
from tests.helpers.shells import one_shell

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")])
REFERENCE = ROOT / "docs" / "reference"
NOT_LINKED = re.compile(r"[a-z]+:")
"""Links to elsewhere; no test here needs a network."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    line: int
    """Number of its first line."""
    language: str
    needs: tuple[str, ...]
    source: str


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    found = re.finditer(r"^```(\w+)([^\n]*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [
        Block(
            found_at.string.count("\n", 0, found_at.start()) + 2,
            found_at[1],
            tuple(found_at[2].strip().removeprefix("needs=").split(",")) if found_at[2].strip() else (),
            found_at[3],
        )
        for found_at in found
    ]


def cells_of(page: Path) -> list[tuple[Block, str | None]]:
    """Return the python blocks of a page, each with what it is said to print, or None."""
    blocks = blocks_of(page)
    following = [*blocks, None][1:]
    return [
        (block, after.source if after is not None and after.language == "text" else None)
        for block, after in zip(blocks, following, strict=True)
        if block.language == "python"
    ]


RUNNABLE = [page for page in PAGES if cells_of(page)]


@pytest.fixture
def shell(monkeypatch, tmp_path) -> Iterator[InteractiveShell]:
    """Return a shell in an empty folder, on a machine without a GPU."""
    problem = (Unavailable.NO_DRIVER, "No NVIDIA driver was found.")
    monkeypatch.setattr("gpustreamlab.backends.cuda._probe.why_unavailable", lambda: problem)
    monkeypatch.chdir(tmp_path)
    with one_shell() as made:
        yield made
        for value in list(made.user_ns.values()):
            if isinstance(value, Session):
                value.close()
        magics.unload_ipython_extension(made)


def run_cell(shell: InteractiveShell, block: Block) -> str:
    """Run a block as a cell, and return what it prints."""
    with capture_output(display=False) as captured:
        result = shell.run_cell(block.source, store_history=True)
    result.raise_error()
    return re.sub(r"^Out\[\d+\]: .*\n?", "", captured.stdout, flags=re.MULTILINE)


def can_run(block: Block) -> bool:
    return all(name != "gpu" and importlib.util.find_spec(name) is not None for name in block.needs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:IPython")
@pytest.mark.parametrize("page", RUNNABLE, ids=page_id)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(page, shell):
    for block, printed in cells_of(page):
        if not can_run(block):
            compile(shell.transform_cell(block.source), f"{page_id(page)}:{block.line}", "exec")
            continue
        out = run_cell(shell, block)
        if printed is not None:
            assert out.split() == printed.split(), f"{page_id(page)}, line {block.line}, prints:\n{out}"
    for name in docs_pictures.pictures_of(page):
        kept = (docs_pictures.IMAGES / name).read_text(encoding="utf-8")
        assert words_of(Path(name).read_text(encoding="utf-8")) == words_of(kept), "Run: python scripts/docs_pictures.py"


def words_of(svg: str) -> list[str]:
    """Return what a picture says. Its strips of memory are sampled by a thread, so their edges may differ a little."""
    return re.findall(r">([^<>]+)</(?:text|tspan)>", svg)


def test_the_first_pages_have_code_that_is_run():
    assert {"README.md", "docs/tutorials/ten-minutes.md"} <= {page_id(page) for page in RUNNABLE}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_relative_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"""(?:src|href)=["']([^"']+)["']""", text)
    broken = [target for target in targets if not NOT_LINKED.match(target) and not leads_somewhere(page, unquote(target))]
    assert not broken


@pytest.mark.parametrize("notebook", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=page_id)
def test_relative_links_of_a_notebook_lead_somewhere(notebook):
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not NOT_LINKED.match(target)]
    assert [target for target in targets if not leads_somewhere(notebook, unquote(target))] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """Tell whether a relative link names a file, and a heading of it where it has a fragment."""
    path, _, fragment = target.partition("#")
    aim = (page.parent / path) if path else page
    return aim.exists() and (not fragment or fragment in anchors(aim))


def anchors(page: Path) -> set[str]:
    """Return the fragments of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=page_id)
def test_every_page_is_reached_from_the_index(page):
    # The front page of the site is read there alone.
    assert page in pages_behind(ROOT / "docs" / "README.md") or page.name == "index.md"


@cache
def pages_behind(index: Path) -> set[Path]:
    reached: set[Path] = set()
    found = {index}
    while found:
        reached |= found
        found = {linked for one in found for linked in linked_pages(one) if linked.suffix == ".md"} - reached
    return reached


def test_each_cause_has_a_page_that_begins_with_it_and_the_list_has_all():
    # GIVEN the pages that findings name
    pages = {cause: ROOT / finding_of(cause).page for cause in Cause}
    # THEN each is there and is about its cause, there are no others, and the list of causes has all
    assert [cause for cause, page in pages.items() if f"\n`{cause}`: " not in page.read_text(encoding="utf-8")] == []
    assert set(pages.values()) == set((ROOT / "docs" / "how-to" / "why").glob("*.md"))
    listed = re.findall(
        r"^\| \[(\w+)\]\(why/", (ROOT / "docs/how-to/why-no-overlap.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == sorted(Cause)


def finding_of(cause: Cause) -> Finding:
    return Finding(**(dict.fromkeys((field.name for field in fields(Finding)), 0) | {"code": cause}))


def linked_pages(page: Path) -> set[Path]:
    targets = re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets if not NOT_LINKED.match(target)}


PARSERS = {parser.prog: parser for parser in (make() for make in magics.PARSERS.values())}


@pytest.mark.parametrize("magic", PARSERS)
def test_the_reference_has_every_option_of_a_magic(magic):
    # GIVEN the section of the magic
    page = (REFERENCE / "magics.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## `{magic}")[2].partition("\n## ")[0]
    # WHEN it is compared with the parser
    listed = set(re.findall(r"`(-{1,2}[a-z-]+)", section))
    wanted = {name for action in PARSERS[magic]._actions for name in action.option_strings if name != "--help"}
    # THEN it has its options and choices, and no other
    assert listed == wanted
    assert all(f"`{choice}`" in section for action in PARSERS[magic]._actions for choice in action.choices or ())


REFERRED = re.findall(r"^   ~?(gpustreamlab[\w.]*)$", (REFERENCE / "python.md").read_text(encoding="utf-8"), re.MULTILINE)
DOORS = ("analysis", "groups", "bench", "trace", "timeline", "recorded", "node", "tuning", "programs")


def test_the_reference_is_made_of_every_public_name():
    # GIVEN what users are promised, but for what IPython calls
    hooks = {"__version__", "load_ipython_extension", "unload_ipython_extension"}
    wanted = {getattr(gpustreamlab, name) for name in set(gpustreamlab.__all__) - hooks}
    for door in DOORS:
        module = importlib.import_module(f"gpustreamlab.{door}")
        wanted |= {value for name in module.__all__ if isinstance(value := getattr(module, name), type)}
    # THEN the page lists it
    missing = wanted - {pydoc.locate(name) for name in REFERRED} - {Group, SupportsTrace, Expectation}
    assert not missing


@pytest.mark.parametrize("name", [name for name in REFERRED if isinstance(pydoc.locate(name), type)])
def test_every_member_in_the_reference_says_what_it_is(name):
    unsaid = {
        member
        for base in pydoc.locate(name).__mro__
        if base.__module__.startswith("gpustreamlab")
        for member in {member for member, value in vars(base).items() if not inspect.getdoc(value)} - said_below(base)
        if not member.startswith("_")
    }
    assert not unsaid


def said_below(kind: type) -> set[str]:
    """Return the fields that have a docstring below them: Python keeps none, Sphinx reads them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    return {
        one.target.id
        for one, text in itertools.pairwise(body)
        if isinstance(one, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def test_the_figures_of_the_benchmarks_page_are_those_of_the_results():
    assert bench_table.main(["--check"]) == 0, "Run: python scripts/bench_table.py"


def test_the_readme_is_short_and_leaves_tables_of_benchmarks_to_their_page():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert bench_table.BEGIN not in text


HEADLINES = {
    "recording": (
        "capture_cost",
        {"program": "ResNet-50, 5 steps", "tool": "gpustreamlab"},
        {"recorded": "1.23×"},
    ),
    "recording by torch.profiler": (
        "capture_cost",
        {"program": "ResNet-50, 5 steps", "tool": "torch.profiler"},
        {"recorded": "1.58×"},
    ),
    "after recording": (
        "observer_programs",
        {"program": "ResNet-50 training"},
        {"after stop": "1.03×", "after torch.profiler": "1.13×"},
    ),
    "decoding": ("record_cost", {"recorded by": "gpustreamlab record (whole graphs)"}, {"times alone": "0.98×"}),
    "decoding with torch.profiler": ("record_cost", {"recorded by": "torch.profiler"}, {"times alone": "0.85×"}),
    "clock": (
        "clock",
        {"age s": 300.0},
        {"worst gap error ns": "0.77 µs", "one base event: worst gap error ns": "21.3 µs"},
    ),
    "alone": ("isolation", {"50 us kernel": "alone on an idle card"}, {"p50 us": "90 µs"}),
    "partition": ("isolation", {"50 us kernel": "partition of 8 SMs"}, {"p50 us": "83 µs"}),
    "priority": ("isolation", {"50 us kernel": "highest priority"}, {"p50 us": "620 µs"}),
    "page": ("timeline", {"timeline": "gpustreamlab", "spans": "1,000,000"}, {"first paint s": "0.96 s", "MB": "6.0 MB"}),
    "Perfetto": (
        "timeline",
        {"timeline": "Perfetto UI, JSON", "spans": "1,000,000"},
        {"first paint s": "5.3 s", "MB": "120 MB"},
    ),
    "VizTracer": ("timeline", {"timeline": "VizTracer HTML", "spans": "1,000,000"}, {"first paint s": "8.6 s", "MB": "122 MB"}),
    "launches of torch": (
        "capture_cost",
        {"program": "20,000 launches by torch", "tool": "gpustreamlab"},
        {"recorded": "1.40"},
    ),
    "launches by torch.profiler": (
        "capture_cost",
        {"program": "20,000 launches by torch", "tool": "torch.profiler"},
        {"recorded": "1.68"},
    ),
}
"""What the README says in figures: the file, the row, and how each of its columns is written."""


@pytest.mark.parametrize(("name", "where", "columns"), HEADLINES.values(), ids=HEADLINES.keys())
def test_the_headline_figures_are_those_of_the_results(name, where, columns):
    rows = bench_table.read_result(ROOT / "bench" / "results" / f"{name}.json")["rows"]
    row = next(row for row in rows if where.items() <= row.items())
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for column, written in columns.items():
        number = written.rstrip("×µsMB ")
        scale = 1_000 if column.endswith(" ns") else 1
        digits = len(number.partition(".")[2])
        assert f"{row[column] / scale:.{digits}f}" == number, f"{column} is {row[column]}"
        assert written in text


@pytest.fixture
def bench(tmp_path):
    """Return a function that runs the script on a page and results of its own."""
    page, results = tmp_path / "benchmarks.md", tmp_path / "results"
    results.mkdir()
    page.write_text(f"above\n{bench_table.BEGIN}\n{bench_table.END}\nbelow\n")

    def run(*options: str) -> tuple[int, str]:
        status = bench_table.main([*options, "--page", str(page), "--results", str(results)])
        return status, page.read_text(encoding="utf-8")

    run.page, run.results = page, results
    return run


def write_result(bench, name, **facts):
    (bench.results / f"{name}.json").write_text(json.dumps({"rows": [{"what": "a", "us": 1.25}], **facts}), encoding="utf-8")


def test_figures_are_written_between_the_markers_and_stale_ones_are_told(bench, capsys):
    # GIVEN a page without figures, and a result of a GPU
    machine = {"device": "NVIDIA H200", "driver": "CUDA 13.0", "python": "3.12.1", "versions": {"numpy": "2.4", "torch": "2.9"}}
    write_result(bench, "gpu_time", title="GPU time", machine=machine)
    # THEN it is stale until the script has run, and again when a figure changes
    assert bench("--check")[0] == 1
    assert "stale" in capsys.readouterr().err
    status, text = bench()
    assert status == 0
    assert "**GPU time**\n\n| what | us |\n|---|---:|\n| a | 1.25 |\n" in text
    assert "NVIDIA H200, driver for CUDA 13.0, Python 3.12.1, numpy 2.4 · [`gpu_time.json`]" in text
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert bench("--check") == (0, text)
    write_result(bench, "gpu_time", rows=[{"us": 2.0}])
    assert bench("--check")[0] == 1


VALUES = {
    "thousands": (1_000_000, "1,000,000"),
    "large float": (12345.6, "12,346"),
    "small float": (0.012345, "0.0123"),
    "whole float": (2.0, "2"),
    "truth": (True, "True"),
    "nothing": (None, "–"),
    "markup": ("a|b <i>\n", "a\\|b &lt;i> "),
}


@pytest.mark.parametrize(("value", "shown"), VALUES.values(), ids=VALUES.keys())
def test_values_are_shown_short_and_as_text(value, shown):
    assert bench_table.shown(value) == shown
