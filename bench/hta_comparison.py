"""Idle time, launch delays, queue lengths and critical path beside HolisticTraceAnalysis, on the same files, in one run.

HTA needs an older pandas, so it runs in an environment of its own: that of ``--hta PYTHON``, else one that is made and thrown
away. Files: those of ``--files``, else all of ``../shared/exchange/traces/kineto`` and the tests' own. ``--renew`` writes what
HTA says of the tests' own file, for tests/unit/exchange/test_hta.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

import gpustreamlab as gsl
from bench._common import report
from gpustreamlab.analysis import counted_rows, interval_sum_ns, union_edges
from gpustreamlab.analysis._pieces import launch_calls
from gpustreamlab.typing import EdgeKind, IdleKind
from tests.helpers.kineto import HTA_ANSWERS, write_two_streams

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "exchange" / "traces" / "kineto"
PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3", "numpy<2.3")
"""With pandas 3 its critical path fails."""
HTA_IDLE = {"host_wait": "host", "kernel_wait": "launch", "other": "other"}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hta", type=Path, help="a python that has HolisticTraceAnalysis")
    parser.add_argument("--files", type=Path, nargs="*", help="files of PyTorch's profiler")
    parser.add_argument("--renew", action="store_true", help="write HTA's answers for the tests")
    options, rest = parser.parse_known_args(sys.argv[1:] if argv is None else argv)
    with tempfile.TemporaryDirectory() as folder:
        own = write_two_streams(Path(folder))
        python = options.hta or make_environment(Path(folder) / "hta")
        if options.renew:
            answers = ask_hta(python, [own])[str(own)]
            HTA_ANSWERS.write_text(
                json.dumps(
                    {name: answers[name] for name in ("device_us", "idle_us", "delay_us", "queue", "queued", "first_us")},
                    indent=1,
                )
                + "\n"
            )
            return
        files = options.files or [*sorted(SHARED.glob("*.json.gz")), own]
        told = ask_hta(python, files)
        report(
            "Beside HolisticTraceAnalysis 0.5.0, on the work that it keeps: largest differences (us), and seconds",
            [compare(path, told[str(path)]) for path in files],
            rest,
        )


def make_environment(folder: Path) -> Path:
    """Make an environment with HTA; return its python."""
    venv.create(folder, with_pip=True)
    subprocess.run([folder / "bin" / "pip", "install", "--quiet", *PACKAGES], check=True)
    return folder / "bin" / "python"


def ask_hta(python: Path, files: list[Path]) -> dict[str, Any]:
    """Return what HTA says of each file, or why it says nothing."""
    script = Path(__file__).with_name("_hta_answers.py")
    told = {}
    for path in files:
        done = subprocess.run([python, "-W", "ignore", script, path], capture_output=True, text=True, check=False)
        last_line = (done.stderr.strip().splitlines() or [""])[-1]
        told |= json.loads(done.stdout) if done.returncode == 0 else {str(path): {"error": last_line[:120]}}
    return told


def compare(path: Path, told: dict[str, Any]) -> dict[str, Any]:
    """Return one row: how far our answers are from HTA's."""
    began = time.perf_counter()
    trace = gsl.load_trace(path)
    read_s = time.perf_counter() - began
    trace.idle(), trace.critical_path()
    row: dict[str, Any] = {"file": path.name.removesuffix(".json.gz"), "work": int(counted_rows(trace).sum())}
    if "error" in told:
        return row | {"idle": f"HTA: {told['error']}", "read s": read_s}
    kept = keep_rows(trace, told["rows"])
    row |= {
        "kept by HTA": int(counted_rows(kept).sum()),
        "without a call": int((launch_calls(kept)[counted_rows(kept)] < 0).sum()),
        "device idle": difference({"": device_us(kept)}, {"": told["device_us"]}),
        "idle": difference(idle_us(kept), told["idle_us"]),
        "launch delay": difference({"": delays_us(kept)}, {"": told["delay_us"]}),
        "queue length": queue_difference(kept, told),
        "path ms": trace.critical_path().duration_ns / 1e6,
        "HTA's path ms": told["path_us"]["length"] / 1e3 if isinstance(told["path_us"], dict) else "fails",
    }
    return row | {"read s": read_s, "HTA read s": told["read_s"]}


def keep_rows(trace: gsl.Trace, rows: list[list[int]]) -> gsl.Trace:
    """Return the trace with the work that HTA keeps: it leaves out what was launched outside of the profiler's steps."""
    streams = np.array([lane.stream for lane in trace.lanes])[trace.lane]
    keys = set(map(tuple, rows))
    told = zip(streams.tolist(), trace.extra["correlation"].tolist(), strict=True)
    return trace[~counted_rows(trace) | np.array([key in keys for key in told], bool)]


def device_us(trace: gsl.Trace) -> dict[str, float]:
    """Return from the first start to the last end of all work, and for how long of it none ran."""
    rows = counted_rows(trace)
    lasted_ns = int(trace.end_ns[rows].max() - trace.start_ns[rows].min())
    busy_ns = interval_sum_ns(union_edges(trace.start_ns[rows], trace.end_ns[rows]))
    return {"all": lasted_ns / 1e3, "idle": (lasted_ns - busy_ns) / 1e3}


def idle_us(trace: gsl.Trace) -> dict[str, dict[str, float]]:
    """Return idle time as HTA names it: to it an event's wait is the host's, a launch's, or other."""
    found, told = trace.idle(), {}
    for place in np.unique(trace.lane[counted_rows(trace)]).tolist():
        lane = trace.lanes[place]
        mine = found.lane == place
        is_event = mine & (found.kind == list(IdleKind).index(IdleKind.EVENT))
        is_host = mine & (found.kind == list(IdleKind).index(IdleKind.HOST))
        is_rest = is_event & np.isin(found.row, found.row[is_host])
        is_event &= ~is_rest
        sums = {name: found.total_ns(lane.name, kind) for name, kind in HTA_IDLE.items()}
        is_short = found.duration_ns < 30_000
        sums["host_wait"] += int(found.duration_ns[is_rest].sum())
        sums["kernel_wait"] += int(found.duration_ns[is_event & is_short].sum())
        sums["other"] += int(found.duration_ns[is_event & ~is_short].sum())
        told[str(lane.stream)] = {name: total / 1e3 for name, total in sums.items()}
    return told


def delays_us(trace: gsl.Trace) -> dict[str, float]:
    """Return, as HTA does, the time from the end of each call to the start of its work."""
    launches = trace.edges.select(EdgeKind.LAUNCH)
    delay_ns = np.maximum(trace.start_ns[launches.target] - trace.end_ns[launches.source], 0)
    correlation = trace.extra["correlation"][launches.target]
    return {str(key): delay / 1e3 for key, delay in zip(correlation.tolist(), delay_ns.tolist(), strict=True)}


def difference(ours: dict[str, dict[str, float]], theirs: object) -> float | str:
    """Return by how much two answers differ at most, in what HTA answers."""
    if not isinstance(theirs, dict):
        return str(theirs)[:60]
    pairs = [(ours[key].get(name), value) for key, of in theirs.items() for name, value in of.items()]
    if any(mine is None for mine, _ in pairs):
        return f"{sum(mine is None for mine, _ in pairs):,} not ours"
    return round(max((abs(mine - value) for mine, value in pairs if mine is not None), default=0.0), 3)


def queue_difference(trace: gsl.Trace, told: dict[str, Any]) -> float | str:
    """Return by how much the lengths of queues differ at most, at any time at which one changes.

    HTA counts what some calls launched: not what hipGraphLaunch did, for example.
    """
    theirs = told["queue"]
    if not isinstance(theirs, dict):
        return str(theirs)[:60]
    zero_ns = int(trace.start_ns[counted_rows(trace)].min()) - round(told["first_us"] * 1e3)
    trace = trace[~counted_rows(trace) | np.isin(trace.extra["correlation"], told["queued"])]
    found, largest = trace.idle(), 0
    for lane in trace.lanes:
        series = theirs.get(str(lane.stream))
        if series is None or lane.kind != "stream":
            continue
        ours = found.queue_length(lane.name)
        times_ns = np.array([round(when_us * 1e3) for when_us, _ in series]) + zero_ns
        place = np.searchsorted(ours.time_ns, times_ns, side="right") - 1
        mine = np.where(place >= 0, ours.length[place], 0)
        largest = max(largest, int(np.abs(mine - np.array([length for _, length in series])).max(initial=0)))
    return largest


if __name__ == "__main__":
    main()
