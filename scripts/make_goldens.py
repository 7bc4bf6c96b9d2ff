"""Write the golden files of tests/golden: traces and spools, and beside each what it holds and answers, as JSON.

    python -m scripts.make_goldens              # only the answers, of the files that are there
    python -m scripts.make_goldens --files      # the files, too

The files stand for what users have on disk: write them anew only where a file of today has to be added. The answers change only
with a change of behaviour that is meant; ``git diff`` then shows each one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import gpustreamlab as gsl
from gpustreamlab.errors import SpoolWarning
from gpustreamlab.workloads import copy_to_device, spin
from tests.helpers.golden import GOLDEN, describe, describe_comparison, golden_files, rows_of, write_answers
from tests.helpers.golden_program import run_program

MOST_BYTES = 60_000
"""How large a golden file may be."""
KILLED = """
import os
import gpustreamlab as gsl
from gpustreamlab.workloads import spin

lab = gsl.Session("sim", spool={path!r}, title="killed")
lab.partition(left=32, right="rest")
lab.stream("copy", partition="left"), lab.stream("compute", partition="right")
for number in range({step_count}):
    with lab.on("copy", f"step {{number}}"):
        spin(lab, 1_000)
    lab.stream("compute").wait(lab.stream("copy").record())
    with lab.on("compute", "gemm"):
        spin(lab, 2_000)
    lab.recording.spool.refresh()
with lab.on("compute", "never ends"):
    spin(lab, 5_000)
    lab.recording.spool.refresh()
    os._exit(1)
"""
"""What is killed in the middle of a range."""


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 1 where a file is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="write the traces and spools anew, too")
    GOLDEN.mkdir(exist_ok=True)
    if parser.parse_args(argv).files:
        write_traces()
        write_spools()
    for name in golden_files():
        trace = gsl.load_trace(GOLDEN / name)
        write_answers(name, describe(trace, cuts_of(trace)))
    write_answers("before-after", describe_comparison(gsl.compare(GOLDEN / "before.parquet", GOLDEN / "after.parquet")))
    for tier in ("ranges", "kernels"):
        trace, told = run_program(tier)
        (GOLDEN / f"program-{tier}.txt").write_text(f"{rows_of(trace)}\ntold: {told}\n", encoding="utf-8")
    return report()


def report() -> int:
    """Print how large the files are."""
    sizes = {path.name: path.stat().st_size for path in sorted(GOLDEN.iterdir())}
    for name, size in sizes.items():
        print(f"{size:8,} {name}{'  TOO LARGE' if size > MOST_BYTES else ''}")
    print(f"{sum(sizes.values()):8,} together")
    return int(max(sizes.values()) > MOST_BYTES)


def cuts_of(trace: gsl.Trace) -> list[tuple[str, dict[str, object]]]:
    """Return which parts of a trace are kept: a stretch in the middle of it, a kind, a name in a lane."""
    first_ns, last_ns = int(trace.start_ns.min()), int(trace.end_ns.max())
    lanes = [trace.lanes[code].name for code in trace.lane]
    return [
        ("between", {"t0_ns": first_ns + (last_ns - first_ns) // 3, "t1_ns": first_ns + (last_ns - first_ns) // 2}),
        ("where", {"kind": "range"}),
        ("where", {"stream": [lanes[0]], "name": trace.names[trace.name[0]]}),
    ]


def write_traces() -> None:
    """Write a trace of each kind as Parquet."""
    before = steps("before", waits=True)
    middle_ns = int(before.start_ns[len(before) // 2])
    saved = {
        "session": whole_session(),
        "cut": before.between(middle_ns - 10_000, middle_ns + 15_000),  # spans are cut at both ends
        "ranges": run_program("ranges")[0],
        "columns": of_columns(),
        "before": before,
        "after": steps("after", waits=False),
    }
    for name, trace in saved.items():
        trace.save(GOLDEN / f"{name}.parquet")


def whole_session() -> gsl.Trace:
    """Return a trace that has all that a session of the simulated device can record."""
    with gsl.Session("sim", title="everything – naïve ×2") as lab:
        lab.capture("kernels")  # with the calls of the host
        lab.partition(left=32, right="rest")
        lab.partitions.verify()
        copy, compute = lab.stream("copy", partition="left"), lab.stream("compute", priority=-1, partition="right")
        lab.stream("card")
        host, x = lab.memory.pinned_empty(4_096), lab.xp.zeros(4_096)
        for number in range(2):
            lab.recording.mark(f"step {number}")
            with lab.on("copy", f"upload {number}"), lab.memory.scratch(1 << 18):
                copy_to_device(lab, host, x)
            compute.wait(copy.record())
            with lab.on("compute", "step"), lab.range("gemm"):
                a = x.reshape(64, 64)
                y = a @ a
                spin(lab, 1_500, stream="card")  # this one leaves its lane
                with lab.range("inner"):
                    y += 1
        with lab.on("card", "read"):
            y.sum().get()
        lab.synchronize()
        with lab.capture("ranges"), lab.on("copy", "a range only"):
            spin(lab, 1_000)
        lab.partition(left=64, right="rest")
        with lab.on("compute", "after the move"), lab.range("below"):
            spin(lab, 2_000, blocks=100)
        lab.stream("compute").synchronize()
    return lab.trace


def of_columns() -> gsl.Trace:
    """Return a trace that was made of plain columns."""
    return gsl.Trace.from_columns(
        start_ns=[-500, 0, 100, 400, 450, 700, 90],
        end_ns=[-100, 300, 250, 900, 800, 700, 420],
        queued_ns=[-600, -20, 50, 60, 70, 80, 90],
        stream=["copy", "compute", "compute", "copy", "compute", "compute", "main"],
        name=["warm up", "step", "gemm", "upload", "attention", "empty", "cudaStreamSynchronize"],
        kind=["copy", "range", "kernel", "copy", "kernel", "fill", "host"],
        thread=["loader", "main", "main", "loader", "main", None, "main"],
        partition=[None, "big", "big", None, "small", "big", None],
        partition_sms={"big": 96, "small": 32},
        parent=[-1, -1, 1, -1, -1, -1, -1],
        device="a card",
        sm_count=132,
        title="of columns",
    )


def steps(title: str, *, waits: bool) -> gsl.Trace:
    """Return a trace of the same work, whose lanes run one after the other where one waits for the other."""
    with gsl.Session("sim", title=title, capture="kernels") as lab:
        copy, compute = lab.stream("copy"), lab.stream("compute")
        for _ in range(4):
            with lab.on("copy", "upload"):
                spin(lab, 20_000, blocks=4)
            if waits:
                compute.wait(copy.record())
            with lab.on("compute", "gemm"):
                spin(lab, 30_000, blocks=16)
            if waits:
                copy.wait(compute.record())
        lab.synchronize()
    return lab.trace


def write_spools() -> None:
    """Write spools: of a session that was closed, and of others that went wrong."""
    for path in GOLDEN.glob("*.gsl"):
        path.unlink()
    finished_spool(GOLDEN / "finished.gsl")
    pieces_spool(GOLDEN / "pieces.gsl")
    full_spool(GOLDEN / "full.gsl")
    program = textwrap.dedent(KILLED).format(path=str(GOLDEN / "killed.gsl"), step_count=6)
    subprocess.run([sys.executable, "-c", program], check=False)
    data = (GOLDEN / "killed.gsl").read_bytes()
    (GOLDEN / "torn.gsl").write_bytes(data[: len(data) * 2 // 3])  # the end of what was written last is missing
    for name in golden_files():
        print(name, gsl.load_trace(GOLDEN / name))


def finished_spool(path: Path) -> None:
    """Write all at once, at the end."""
    with gsl.Session("sim", spool=path, title="finished") as lab:
        lab.capture("kernels")
        copy = lab.stream("copy")
        x = lab.xp.ones(1_024)
        for number in range(4):
            with lab.on("copy", f"step {number}"), lab.range("inside"):
                x = x * 2
        copy.synchronize()


def pieces_spool(path: Path) -> None:
    """Write a piece at a time: names, lanes, layouts and marks come one by one, spans are missed, and it is cleared once."""
    with gsl.Session("sim", spool=path, title="pieces", ring_size=32) as lab:
        lab.stream("warm")
        with lab.on("warm", "warm-up"):
            spin(lab, 1_000)
        lab.synchronize()
        lab.recording.spool.refresh()
        lab.clear()
        lab.partition(left=32, right="rest")
        for number in range(4):
            lane = lab.stream(f"lane-{number}", partition="left" if number % 2 else "right")
            lab.recording.mark(f"piece {number}")
            with lab.on(lane, f"piece {number}"), lab.memory.scratch(1 << 16):
                spin(lab, 1_000)
            lab.stream("warm").wait(lane.record())
            with lab.on("warm", "joined"):
                spin(lab, 500)
            lab.synchronize()
            lab.recording.spool.refresh()
        for _ in range(60):  # more than the ring holds
            with lab.on("warm", "burst"):
                pass
        lab.synchronize()
        lab.partition(left=64, right="rest")
        with lab.on("warm", "last"):
            spin(lab, 700)


def full_spool(path: Path) -> None:
    """Reach the limit of a spool: names that are too long for what is left of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpoolWarning)
        with gsl.Session("sim", spool=path, title="full", spool_limit_bytes=1 << 16, capture="ranges") as lab:
            lab.stream("a")
            with lab.on("a", "fits"):
                spin(lab, 1_000)
            lab.synchronize()
            lab.recording.spool.refresh()
            for number in range(80):
                with lab.on("a", f"{number:1000}"):
                    pass
            lab.synchronize()
            lab.recording.spool.refresh()


if __name__ == "__main__":
    sys.exit(main())
