"""What the benchmarks share: facts of the machine, medians, a table, a JSON file."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("gpustreamlab", "numpy", "cupy-cuda12x", "cupy-cuda13x", "cuda-core", "nvtx", "torch", "bokeh", "pandas", "pyarrow")


def machine() -> dict[str, Any]:
    """Return what a figure has to be read with: device, driver, versions."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "system": platform.system(), "versions": versions, **_device()}


def median_seconds(work: Any, *, rounds: int) -> float:
    """Return the median time of a call over several rounds, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def take_ages(argv: list[str] | None) -> tuple[list[float], list[str]]:
    """Take ``--ages 0,60,300`` (seconds; these if left out) from the arguments; return the ages and the rest."""
    argv = sys.argv[1:] if argv is None else argv
    if "--ages" not in argv:
        return [0.0, 60.0, 300.0], argv
    place = argv.index("--ages")
    return [float(age) for age in argv[place + 1].split(",")], argv[:place] + argv[place + 2 :]


def report(title: str, rows: list[dict[str, Any]], argv: list[str] | None = None) -> None:
    """Print rows as a table, and store them with the machine's facts where ``--json PATH`` was given."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, help="store the figures here")
    path = parser.parse_args(sys.argv[1:] if argv is None else argv).json
    print(f"\n{title}")
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = [columns] + [[_shown(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"title": title, "machine": machine(), "rows": rows}, indent=1) + "\n", encoding="utf-8")


def _device() -> dict[str, str]:
    from gpustreamlab.backends.cuda._probe import why_unavailable

    if why_unavailable() is not None:
        return {"device": "no GPU"}
    import cupy

    name = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    version = cupy.cuda.runtime.driverGetVersion()
    return {"device": name, "driver": f"CUDA {version // 1000}.{version % 1000 // 10}"}


def _shown(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
