"""Record the gallery of the documentation anew: run docs/gallery/*.py, and keep what each recorded beside it.

    python scripts/record_gallery.py [NAME ...] [--folder FOLDER] [--archive FILE.tar.gz] [--limit SECONDS]

On a GPU this replaces what was simulated, and a simulated recording counts as failed; without one, a recording of real hardware
is never replaced by a simulated one. Each recipe has a process and a time limit of its own. ``docs/conf.py`` draws the pages
from the recordings. ``cluster`` needs Dask; ``resnet`` a GPU, PyTorch and torchvision; ``two_cards`` two GPUs.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import gpustreamlab as gsl  # noqa: E402
from gpustreamlab.backends.cuda._probe import why_unavailable  # noqa: E402
from gpustreamlab.draw._html import timeline_page  # noqa: E402

GALLERY = ROOT / "docs" / "gallery"
NAMES = (
    "two_ranks", "one_stream", "three_streams", "two_partitions", "repartition", "race", "stray", "graph", "decode", "steps",
    "resnet", "million", "two_cards", "cluster",
)  # fmt: skip
"""In the order in which the gallery shows them."""
MOST_BYTES = 400_000
"""How large a recording may be, and its page without the viewer, which the site has once."""


def main(argv: list[str] | None = None) -> int:
    """Run the chosen recipes, each in a process of its own; return how many could not be recorded."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all, if none is given")
    parser.add_argument("--folder", type=Path, default=GALLERY, help="where the recordings go (default: docs/gallery)")
    parser.add_argument("--archive", type=Path, help="a .tar.gz with all recordings of the folder, to write in the end")
    parser.add_argument("--limit", type=float, default=40, help="seconds that one recipe may take (default: %(default)s)")
    options = parser.parse_args(argv)
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = [name for name in options.names or NAMES if not record_apart(name, options.folder.resolve(), options.limit)]
    if options.archive is not None:
        with tarfile.open(options.archive, "w:gz") as archive:
            for path in sorted(options.folder.glob("*.parquet")):
                archive.add(path, path.name)
    print(f"Not recorded: {', '.join(failed)}" if failed else "All were recorded.")
    return len(failed)


def record_apart(name: str, folder: Path, limit_s: float) -> bool:
    """Record one in a child: a recipe leaves its session open, and a process has one set of GPU libraries."""
    began = time.monotonic()
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])  # for the workers of the cluster
    child = subprocess.Popen(
        [sys.executable, "-c", f"from scripts.record_gallery import record; print(record({name!r}, {str(folder)!r}))"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        told = child.communicate(timeout=limit_s)[0].strip()
        failed = child.returncode != 0
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its workers, too
        failed, told = True, f"{child.communicate()[0]}\n{name}: not recorded within {limit_s:g} s".strip()
    print(told if failed else told.rpartition("\n")[2], f"[{time.monotonic() - began:.1f} s]", flush=True)
    return not failed


def record(name: str, folder: str = "") -> str:
    """Run a recipe and keep its trace; say what was done."""
    os.chdir(ROOT)
    made = runpy.run_path(str(GALLERY / f"{name}.py"), run_name="__main__")
    trace, path = made["trace"] if "trace" in made else made["lab"].trace, Path(folder or GALLERY) / f"{name}.parquet"
    if trace.metadata.simulated and why_unavailable() is None:
        raise SystemExit(f"{name}: not recorded: there is a GPU, and this ran on the simulated device")
    if trace.metadata.simulated and path.exists() and not gsl.load_trace(path).metadata.simulated:
        return f"{name}: left as it is, it was recorded on real hardware"
    trace.save(path)
    sizes = path.stat().st_size, len(timeline_page(trace, with_code=False).encode())
    if max(sizes) > MOST_BYTES:
        path.unlink()
        raise SystemExit(f"{name}: not kept: file and page take {sizes} bytes, more than {MOST_BYTES:,}: {trace}")
    return f"{name}: {trace}, {sizes[0] / 1e3:.0f} kB, page {sizes[1] / 1e3:.0f} kB"


if __name__ == "__main__":
    sys.exit(main())
