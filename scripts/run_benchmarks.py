"""Run every benchmark of bench/ in a process of its own and keep each one's figures as JSON."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent / "bench"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 where a benchmark failed. The others still run."""
    options = make_parser().parse_args(argv)
    options.results.mkdir(parents=True, exist_ok=True)
    scripts = find_benchmarks(BENCH, options.names)
    failed = [script.stem for script in scripts if not run(script, options.results)]
    if failed or not scripts:
        print(f"Failed: {', '.join(failed)}" if failed else "There is no such benchmark.", file=sys.stderr)
        return 1
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Run the benchmarks.")
    parser.add_argument("names", nargs="*", help="which ones, by file name without .py (default: all)")
    parser.add_argument("--results", type=Path, required=True, help="the folder for NAME.json")
    return parser


def find_benchmarks(folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """List the benchmark scripts of a folder, sorted; helpers start with an underscore."""
    scripts = sorted(path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return [script for script in scripts if not names or script.stem in names]


def run(script: Path, results: Path) -> bool:
    """Run one benchmark and tell whether it ended well."""
    print(f"== {script.stem}", flush=True)
    command = [sys.executable, str(script), "--json", str(results / f"{script.stem}.json")]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
