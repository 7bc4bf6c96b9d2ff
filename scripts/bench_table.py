"""Write bench/results into docs/benchmarks.md, between its markers; ``--check`` only says if they are there."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
ORDER = ("timeline", "live", "live_cost", "range_cost", "gpu_time", "clock", "overlap", "import_time", "simulator")
"""What stands first; other benchmarks follow by name."""
TOLD_ELSEWHERE = ("event_queue", "observer", "observer_programs", "scale")
"""Long tables; docs/explanations/how-timing-works.md and scale.md have what matters in them."""
SHOWN_PACKAGES = ("cupy-cuda12x", "cupy-cuda13x", "cuda-core", "numpy", "bokeh")
"""Versions that are shown; the files hold more."""
NO_FIGURES = "No figures yet: `make bench` measures them, `python scripts/bench_table.py` puts them here."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 where a file cannot be used or, with ``--check``, where the figures are stale."""
    options = make_parser().parse_args(argv)
    try:
        text = options.page.read_text(encoding="utf-8")
        wanted = with_tables(text, tables(read_results(options.results)))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.check:
        if text != wanted:
            print(f"The figures in {options.page} are stale. Run: python scripts/bench_table.py", file=sys.stderr)
        return int(text != wanted)
    options.page.write_text(wanted, encoding="utf-8")
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Write the benchmarks' figures into docs/benchmarks.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the figures are stale")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "benchmarks.md", help="the file with the markers")
    parser.add_argument("--results", type=Path, default=ROOT / "bench" / "results", help="the folder of the JSON files")
    return parser


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Read every benchmark's file of a folder, by name, in the order in which they are shown; none where it is missing.

    Raises
    ------
    ValueError
        If a file is no report of a benchmark.
    """
    found = {path.stem: path for path in folder.glob("*.json") if path.stem not in TOLD_ELSEWHERE}
    names = [name for name in ORDER if name in found] + sorted(found.keys() - set(ORDER))
    return {name: read_result(found[name]) for name in names}


def read_result(path: Path) -> dict[str, Any]:
    """Read one benchmark's file; raise ValueError where it holds no rows."""
    try:
        result: object = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}. Measure it again: make bench") from error
    rows = result.get("rows") if isinstance(result, dict) else None
    if not isinstance(result, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path} holds no list of rows, as bench/_common.py writes it. Measure it again: make bench")
    return result


def tables(results: Mapping[str, dict[str, Any]]) -> str:
    """Return all results as Markdown."""
    return "\n\n".join(table(name, result) for name, result in results.items()) or NO_FIGURES


def table(name: str, result: Mapping[str, Any]) -> str:
    """Return one benchmark as a Markdown table, with what it was measured on below.

    Examples
    --------
    >>> print(table("demo", {"title": "Demo", "machine": {"device": "no GPU"}, "rows": [{"what": "a", "us": 1.25}]}))
    **Demo**
    <BLANKLINE>
    | what | us |
    |---|---:|
    | a | 1.25 |
    <BLANKLINE>
    No GPU used · [`demo.json`](../bench/results/demo.json)
    """
    rows = result["rows"]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    marks = ["---:" if is_numeric(rows, column) else "---" for column in columns]
    lines = [f"| {' | '.join(escaped(column.strip()) for column in columns)} |", f"|{'|'.join(marks)}|"]
    lines += [f"| {' | '.join(shown(row.get(column)) for column in columns)} |" for row in rows]
    grid = "\n".join(lines) if columns else "No rows."
    title = escaped(str(result.get("title") or name.replace("_", " ").capitalize()))
    return f"**{title}**\n\n{grid}\n\n{machine_line(result)} · [`{name}.json`](../bench/results/{name}.json)"


def machine_line(result: Mapping[str, Any]) -> str:
    """Say in a line what was measured on: device, driver, versions, cores, as far as the file knows."""
    facts = result.get("machine")
    facts = facts if isinstance(facts, dict) else result
    device = facts.get("device", "no GPU")
    parts = ["No GPU used" if device == "no GPU" else str(device)]
    parts += [f"driver for {facts['driver']}"] if "driver" in facts else []
    parts += [f"{facts['cores']} cores"] if "cores" in facts else []
    parts += [f"Python {facts['python']}"] if "python" in facts else []
    versions = facts.get("versions", {})
    parts += [f"{package} {versions[package]}" for package in SHOWN_PACKAGES if package in versions]
    return escaped(", ".join(parts))


def is_numeric(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Tell whether every value of a column that is there is a number."""
    return all(isinstance(row[column], int | float) for row in rows if row.get(column) is not None)


def shown(value: object) -> str:
    r"""Return a value as it stands in a table: three digits, thousands apart.

    Examples
    --------
    >>> [shown(value) for value in (1_000_000, 0.012345, 12345.6, 2.0, None, "a|b")]
    ['1,000,000', '0.0123', '12,346', '2', '–', 'a\\|b']
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escaped(str(value))


def escaped(text: str) -> str:
    """Return text that Markdown shows as it is within a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def with_tables(text: str, block: str) -> str:
    """Return the text with what stands between the markers replaced.

    Raises
    ------
    ValueError
        If the text has not one pair of markers.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in after or END in before:
        raise ValueError(f"The page has no pair of markers {BEGIN} and {END}, in this order and once. Put them back.")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


if __name__ == "__main__":
    sys.exit(main())
