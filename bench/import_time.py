"""Measure ``import gpustreamlab`` beside the imports that a user waits for anyway."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MODULES = ("numpy", "gpustreamlab", "gpustreamlab.session", "cupy")
"""The floor, ours, ours with everything that a session needs, and what a GPU user imports anyway."""
RUN_COUNT = 7
LIMIT_S = 0.2
"""What ``import gpustreamlab`` may take."""

_PROGRAM = """
import time
start_ns = time.perf_counter_ns()
import {module}
print(time.perf_counter_ns() - start_ns)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the table and keep it; return 1 where the limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    options = parser.parse_args(argv)
    runs = {module: measure(module) for module in MODULES if is_importable(module)}
    figures = {module: {"median_s": statistics.median(seconds), "best_s": min(seconds)} for module, seconds in runs.items()}
    print(to_table(figures))
    if options.json is not None:
        options.json.write_text(json.dumps({"run_count": RUN_COUNT, "limit_s": LIMIT_S, "modules": figures}, indent=2) + "\n")
    return 0 if figures["gpustreamlab"]["median_s"] < LIMIT_S else 1


def measure(module: str) -> list[float]:
    """Import a module in fresh interpreters, after one run that warms the disk's cache; seconds of each run."""
    return [import_once(module) for _ in range(RUN_COUNT + 1)][1:]


def import_once(module: str) -> float:
    """Import a module in a fresh interpreter and return the seconds that it took."""
    program = _PROGRAM.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1e9


def is_importable(module: str) -> bool:
    """Tell whether a module is installed, without importing more than its parent."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def to_table(figures: dict[str, dict[str, float]]) -> str:
    """Write the figures as a Markdown table."""
    rows = [f"| `import {module}` | {row['median_s']:.3f} | {row['best_s']:.3f} |" for module, row in figures.items()]
    return "\n".join([f"| {RUN_COUNT} fresh interpreters | median s | best s |", "|---|---|---|", *rows])


if __name__ == "__main__":
    sys.exit(main())
