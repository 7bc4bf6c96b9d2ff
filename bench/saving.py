"""How long saving a timeline takes, with "Why?" in it: ours beside what a user would save instead, in one run."""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

from bench._common import report
from bench._kernels import make_kernel_trace
from bench._peers import PEERS, Peer
from gpustreamlab.model import Trace

SPAN_COUNTS = (100_000, 1_000_000)
ROUNDS = 5
MOST_S = {1_000_000: 1.0}
"""What our page must keep to on a quiet machine, by the number of spans."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--only", default="gpustreamlab,VizTracer,Perfetto UI JSON,plain Bokeh", help="names, with commas")
    options, left = parser.parse_known_args(argv)
    wanted = tuple(options.only.split(","))
    peers = [peer for peer in PEERS if peer.name.replace(", ", " ").startswith(wanted)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in SPAN_COUNTS:
            trace = make_kernel_trace(count)
            rows += [measure(peer, trace, Path(folder)) for peer in peers]
    report("Saving a timeline as a page or a file", rows, left)


def measure(peer: Peer, trace: Trace, folder: Path) -> dict[str, Any]:
    """Save it some times: the least wall-clock and CPU time; imports, and what is cached once, do not count."""
    row: dict[str, Any] = {"timeline": peer.name, "spans": f"{len(trace):,}"}
    if peer.missing:
        return row | {"note": f"skipped: {', '.join(peer.missing)} not installed (pip install --group bench)"}
    path = folder / f"page{peer.suffix}"
    peer.write(trace[:1_000], path)
    wall_s, cpu_s = [], []
    for _ in range(ROUNDS):
        gc.collect()
        begun, used = time.perf_counter(), time.process_time()
        peer.write(trace, path)
        wall_s.append(time.perf_counter() - begun)
        cpu_s.append(time.process_time() - used)
    is_slow = peer.opener == "gpustreamlab" and min(wall_s) > MOST_S.get(len(trace), float("inf"))
    row |= {"wall s": round(min(wall_s), 3), "CPU s": round(min(cpu_s), 3), "MB": round(path.stat().st_size / 1e6, 2)}
    return row | {"note": f"beyond the limit of {MOST_S[len(trace)]:g} s" if is_slow else ""}


if __name__ == "__main__":
    main()
