"""How large a timeline is, how soon it is all drawn, how long a frame takes: ours beside what a user would pick instead.

``python -m bench.timeline --spans 1000,1000000 --only gpustreamlab,plotly --pictures shots`` takes a part of it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from bench._chromium import Chromium, Measured
from bench._common import report
from bench._kernels import make_kernel_trace
from bench._peers import PEERS, Peer
from gpustreamlab import Trace

SPAN_COUNTS = (1_000, 10_000, 100_000, 1_000_000, 5_000_000)
SOON = 100_000
"""Up to this many spans a page is opened three times, and beyond it twice."""

LIMITS = {1_000_000: {"MB": 6.0, "drawn s": 1.0, "zoom p95 ms": 33.0}, 5_000_000: {"MB": 30.0}}
"""What our timeline must keep to, by the number of spans; what it does not is said in its note."""


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, add_help=False)
    parser.add_argument("--spans", default=",".join(map(str, SPAN_COUNTS)), help="numbers of spans, with commas")
    parser.add_argument("--only", default="", help="beginnings of the names of the timelines, with commas")
    parser.add_argument("--pictures", type=Path, help="folder for a screenshot of each page")
    options, left = parser.parse_known_args(argv)
    counts = [int(count) for count in options.spans.split(",")]
    wanted = tuple(name for name in options.only.split(",") if name)
    peers = [peer for peer in PEERS if not wanted or peer.name.startswith(wanted)]
    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = Chromium(playwright, options.pictures)
        for count in counts:
            trace = make_kernel_trace(count)
            for peer in peers:
                rows.append(measure(peer, trace, chromium, Path(folder)))
                print(rows[-1], flush=True)
    report("Timelines: build, file, first paint, all drawn, frame while panning and zooming (Chromium, headless)", rows, left)


def measure(peer: Peer, trace: Trace, chromium: Chromium, folder: Path) -> dict[str, Any]:
    """Write and open one timeline; what cannot be done is said in the row."""
    row: dict[str, Any] = {"timeline": peer.name, "spans": f"{len(trace):,}"}
    if peer.missing:
        return row | {"note": f"skipped: {', '.join(peer.missing)} not installed (pip install --group bench)"}
    if len(trace) > peer.most_spans:
        return row | {"note": f"not tried: takes minutes beyond {peer.most_spans:,} spans"}
    path = folder / f"page{peer.suffix}"
    build_s = _build_s(peer, trace, path)
    picture = f"{peer.name.split('(')[0].strip().replace(' ', '-').replace(',', '')}-{len(trace)}"
    seen = chromium.measure(path, peer.opener, picture=picture, rounds=3 if len(trace) <= SOON else 2)
    row |= {"build s": round(build_s, 3), "MB": round(path.stat().st_size / 1e6, 2)} | _seen(seen)
    path.unlink()
    missed = _missed(row, len(trace)) if peer.opener == "gpustreamlab" else ""
    return row | {"note": "; ".join(filter(None, (peer.note, seen.problem, missed)))}


def _missed(row: dict[str, Any], count: int) -> str:
    """Say which limits our timeline does not keep."""
    missed = [name for name, most in LIMITS.get(count, {}).items() if row[name] == "-" or row[name] > most]
    return f"beyond the limit: {', '.join(missed)}" if missed else ""


def _build_s(peer: Peer, trace: Trace, path: Path) -> float:
    """Return how long writing takes, in s: the best of three, or of one where it takes long; imports do not count."""
    times: list[float] = []
    while len(times) < 3 and sum(times) < 3:
        gc.collect()
        start = time.perf_counter()
        peer.write(trace, path)
        times.append(time.perf_counter() - start)
    return min(times)


def _seen(seen: Measured) -> dict[str, Any]:
    """Return the figures of a page. To set a view and draw it takes at least one frame of the screen, 17 ms."""
    return {
        "first paint s": _rounded(seen.first_paint_s, 2),
        "drawn s": _rounded(seen.drawn_s, 2),
        "set+draw ms": _rounded(statistics.median(seen.set_ms) if seen.set_ms else None, 1),
        "worst": _rounded(max(seen.set_ms, default=None), 1),
        "keys frame ms": _rounded(statistics.median(seen.keys_ms) if seen.keys_ms else None, 1),
        "worst ": _rounded(max(seen.keys_ms, default=None), 1),
        "zoom p50 ms": _rounded(statistics.median(seen.zoom_ms) if seen.zoom_ms else None, 1),
        "zoom p95 ms": _rounded(statistics.quantiles(seen.zoom_ms, n=20)[-1] if len(seen.zoom_ms) > 1 else None, 1),
        "heap MB": _rounded(seen.heap_mb, 0),
    }


def _rounded(value: float | None, digits: int) -> float | str:
    return "-" if value is None else round(value, digits)


if __name__ == "__main__":
    main()
