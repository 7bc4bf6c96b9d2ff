"""Measure ``import gpustreamlab`` beside the imports that a user waits for anyway."""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import sys

from bench._common import report

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


def main(argv: list[str] | None = None) -> int:
    """Measure, print and store the figures; return 1 where the limit is broken."""
    runs = {module: measure(module) for module in MODULES if is_importable(module)}
    rows = [
        {"import": module, "median s": round(statistics.median(run), 4), "best s": round(min(run), 4)}
        for module, run in runs.items()
    ]
    report(f"Import time ({RUN_COUNT} fresh interpreters; gpustreamlab may take {LIMIT_S} s)", rows, argv)
    return 0 if statistics.median(runs["gpustreamlab"]) < LIMIT_S else 1


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


if __name__ == "__main__":
    sys.exit(main())
