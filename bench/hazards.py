"""What watching accesses costs a call of the simulated device's array module, and a kernel without arrays.

Batches are interleaved and the fastest of each kind counts, in time of the thread: the machine may be shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from bench._common import report
from gpustreamlab import Session
from gpustreamlab.typing import HazardMode

CALLS = 200
BATCHES = 60
SIZE = 64  # the smallest arrays: nothing but the call costs


def main(argv: list[str] | None = None) -> None:
    """Print one row for each kind of work."""
    best: dict[tuple[str, HazardMode], float] = {}
    with ExitStack() as sessions:
        labs = {mode: sessions.enter_context(Session("sim", hazards=mode, capture="ranges")) for mode in HazardMode}
        works = {mode: _works(lab) for mode, lab in labs.items()}
        for _ in range(BATCHES):
            for name in works[HazardMode.OFF]:
                for mode, lab in labs.items():
                    took_us = _time_us(lab, works[mode][name])
                    best[name, mode] = min(best.get((name, mode), took_us), took_us)
    rows = []
    for name in works[HazardMode.OFF]:
        off, watched, waiting = (best[name, mode] for mode in HazardMode)
        row = {"work": name, "off (us)": round(off, 2), "report (us)": round(watched, 2), "wait (us)": round(waiting, 2)}
        rows.append(row | {"report / off": round(watched / off, 2), "wait / off": round(waiting / off, 2)})
    report("Watching accesses on the simulated device", rows, argv)


def _works(lab: Session) -> dict[str, Callable[[], Any]]:
    xp, stream = lab.xp, lab.stream("a")
    with lab.on(stream):
        x, y, z = (xp.ones(SIZE) for _ in range(3))
    view = x[3:20]

    def step() -> None:
        a = xp.sin(x)
        a += y
        b = a.reshape(8, 8) @ a.reshape(8, 8)
        z[:8] = b.sum(axis=0)
        xp.concatenate([z, a]).max()

    return {
        "a kernel without arrays": lambda: lab._backend.launch_spin(stream._backend_stream, 1_000, blocks=8, fill_sms=False),
        "add(x, y, out=z)": lambda: xp.add(x, y, out=z),
        "x * y": lambda: x * y,
        "view + 1": lambda: view + 1,
        "a step of 6 calls": step,
    }


def _time_us(lab: Session, work: Callable[[], Any]) -> float:
    with lab.on("a"):
        began_ns = time.thread_time_ns()
        for _ in range(CALLS):
            work()
        took_ns = time.thread_time_ns() - began_ns
    lab.synchronize()
    return took_ns / CALLS / 1_000


if __name__ == "__main__":
    main()
