"""Record the gallery of the documentation anew: run docs/gallery/*.py, and keep what each recorded beside it.

    python scripts/record_gallery.py [NAME ...]

On a GPU this replaces what was simulated; without one, a recording of real hardware is never replaced by a simulated one.
`docs/conf.py` draws the pages from the recordings.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gpustreamlab as gsl  # noqa: E402

GALLERY = ROOT / "docs" / "gallery"
NAMES = (
    "two_ranks", "one_stream", "three_streams", "two_partitions", "repartition", "race", "stray", "graph", "decode", "steps",
    "resnet", "two_cards", "cluster",
)  # fmt: skip
"""In the order in which the gallery shows them."""


def main(argv: list[str] | None = None) -> int:
    """Run the chosen recipes, each in a process of its own; return how many could not be recorded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all, if none is given")
    chosen = parser.parse_args(argv).names or NAMES
    return sum(not record_apart(name) for name in chosen)


def record_apart(name: str) -> bool:
    """Record one in a child: a recipe leaves its session open, and a process has one set of GPU libraries."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    status = 1
    try:
        print(record(name), flush=True)
        status = 0
    except (ImportError, gsl.GPUStreamLabError) as error:
        print(f"{name}: not recorded: {error}", flush=True)
    finally:
        os._exit(status)


def record(name: str) -> str:
    """Run a recipe and keep its trace; say what was done."""
    os.chdir(ROOT)
    made = runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")
    trace, path = made["trace"] if "trace" in made else made["lab"].trace, GALLERY / f"{name}.parquet"
    if trace.metadata.simulated and path.exists() and not gsl.load_trace(path).metadata.simulated:
        return f"{name}: left as it is, it was recorded on real hardware"
    trace.save(path)
    return f"{name}: {trace}, {path.stat().st_size / 1e3:.0f} kB"


if __name__ == "__main__":
    sys.exit(main())
