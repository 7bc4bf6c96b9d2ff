"""Time the hot paths of two versions of the package, in turns: python scripts/house_hot_paths.py OLD NEW [--backend cuda].

OLD and NEW are folders that hold a ``gpustreamlab``. Each turn runs both in processes of their own; ratios are taken within a
turn, and the median over the turns is told.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

TURNS = 7

MEASURE = """
import json, statistics, sys, tempfile, time
import gpustreamlab as gsl

CALLS, ROUNDS, SPANS = 2_000, 15, 200_000

def timed(work, clean=lambda: None):
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
        clean()
    return statistics.median(times[2:])

found = {}
with gsl.Session(sys.argv[1], capture="ranges", ring_size=10 * CALLS) as lab:
    lab.stream("a")
    lab.stream("b")
    def on():
        for _ in range(CALLS):
            with lab.on("a", "x"):
                pass
    def ranges():
        with lab.on("a"):
            for _ in range(CALLS):
                with lab.range("x"):
                    pass
    def select():
        for _ in range(CALLS):
            with lab.select("b"):
                pass
    def settle():
        lab.synchronize()
        lab.trace
    found["lab.on, us"] = timed(on, settle) / CALLS * 1e6
    found["lab.range, us"] = timed(ranges, settle) / CALLS * 1e6
    found["lab.select, us"] = timed(select) / CALLS * 1e6
    on()
    lab.synchronize()
    found["lab.trace of 2,000 new ranges, ms"] = timed(lambda: lab.trace, lambda: (on(), lab.synchronize())) * 1e3
streams = [f"s{number}" for number in range(8)]
trace = gsl.Trace.from_columns(
    start_ns=[number * 1_000 for number in range(SPANS)],
    end_ns=[number * 1_000 + 3_000 for number in range(SPANS)],
    stream=[streams[number % 8] for number in range(SPANS)],
    name=["work"] * SPANS,
)
ROUNDS = 5
found["overlap of 200,000 spans, ms"] = timed(lambda: trace.overlap()) * 1e3
with tempfile.TemporaryDirectory() as folder:
    found["page of 200,000 spans, ms"] = timed(lambda: trace.timeline().save(folder + "/page.html")) * 1e3
    found["Parquet of 200,000 spans, ms"] = timed(lambda: trace.save(folder + "/trace.parquet")) * 1e3
print(json.dumps(found))
"""


def main() -> None:
    """Print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--backend", default="sim")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    old, new = given.old.resolve(), given.new.resolve()
    turns = [(_measure(old, given.backend), _measure(new, given.backend)) for _ in range(TURNS)]
    rows = [
        {
            "what": what,
            "before": round(statistics.median(before[what] for before, _ in turns), 3),
            "after": round(statistics.median(after[what] for _, after in turns), 3),
            "after / before": round(statistics.median(after[what] / before[what] for before, after in turns), 3),
        }
        for what in turns[0][0]
    ]
    text = json.dumps({"backend": given.backend, "turns": TURNS, "rows": rows}, indent=1)
    print(text)
    if given.output:
        given.output.write_text(text + "\n", encoding="utf-8")


def _measure(folder: Path, backend: str) -> dict[str, float]:
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, backend],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
