"""Run every benchmark of bench/ in a process of its own and keep each one's figures as JSON.

A benchmark that holds the line ``NEEDS_GPU = True`` is left out, visibly, where CUDA cannot be used.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpustreamlab.backends.cuda._probe import why_unavailable

ROOT = Path(__file__).resolve().parent.parent
MARK = "\nNEEDS_GPU = True"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 where a benchmark failed or is unknown. The others still run."""
    options = make_parser().parse_args(argv)
    options.results.mkdir(parents=True, exist_ok=True)
    scripts = find_benchmarks(ROOT / "bench", options.names)
    unknown = sorted(set(options.names) - {script.stem for script in scripts})
    problem = why_unavailable()
    failed = []
    for script in scripts:
        if problem is not None and needs_gpu(script):
            print(f"\n{script.stem} is left out. {problem[1]}", flush=True)
        elif not run(script, options.results):
            failed.append(script.stem)
    if unknown or failed:
        print(f"Failed: {failed}. Unknown: {unknown}.", file=sys.stderr)
    return 1 if unknown or failed else 0


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", help="which ones, by file name without .py (default: all)")
    parser.add_argument("--results", type=Path, required=True, help="the folder for NAME.json")
    return parser


def find_benchmarks(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """List the benchmarks of a folder, sorted; files that start with an underscore are helpers."""
    scripts = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return [script for script in scripts if not names or script.stem in names]


def needs_gpu(script: Path) -> bool:
    """Tell whether a benchmark says that it has no meaning without a GPU."""
    return MARK in script.read_text(encoding="utf-8")


def run(script: Path, results: Path) -> bool:
    """Run one benchmark and tell whether it ended well."""
    command = [sys.executable, "-m", f"bench.{script.stem}", "--json", str((results / f"{script.stem}.json").resolve())]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
