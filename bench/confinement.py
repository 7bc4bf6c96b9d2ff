"""Whether the kernels of any library stay on the SMs of the selected lane's partition, proved by a blockade.

A kernel whose blocks each take a whole SM keeps every SM of partition A busy for 30 ms on lane A1. Right behind it a library's
call is enqueued on lane A2 of the same partition, while the rest of the card is idle. Kernels that are confined to A cannot
start before the blockade ends; one that could run elsewhere starts at once. Two controls of the same call: on lane B of the
rest of the card it starts at once, and on A2 beside a blockade of one SM too (so nothing but the SMs held it back).
Starts and ends are CUPTI's.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench._common import report
from bench._libraries import LIBRARIES, Call, Library
from gpustreamlab import Session, Trace
from gpustreamlab.analysis import strays
from gpustreamlab.typing import Int64Array, SpanKind

NEEDS_GPU = True
BLOCKADE_NS = 30_000_000
TOLERANCE_NS = 100_000
"""Blocks of the blockade end within some microseconds of each other; the first SM that is free may be used."""
MOST_SMS = 64
"""Of partition A; at most half of the card."""
WARM_UPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a call's kernels did beside a blockade. Times are relative to the blockade's end, in ns."""

    names: tuple[str, ...]
    """Kernels, in the order of their starts."""
    lanes: tuple[str, ...]
    """Where each ran."""
    start_ns: int
    """The earliest start."""
    queued_ns: int
    """When the host had enqueued the last of them."""
    stray_count: int
    """How many ran in another lane than the selected one."""

    @property
    def is_early(self) -> bool:
        """Whether one started while the blockade stood."""
        return self.start_ns < -TOLERANCE_NS


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A call beside a full blockade of its partition, and the two controls."""

    blocked: Seen
    """On lane A2, with every SM of A taken."""
    beside: Seen
    """On lane A2, with one SM of A taken."""
    elsewhere: Seen
    """On lane B, with every SM of A taken."""

    @property
    def is_conclusive(self) -> bool:
        """Whether the controls started at once, and the call was enqueued in time: only then `is_confined` means something."""
        return self.beside.is_early and self.elsewhere.is_early and self.blocked.queued_ns < -TOLERANCE_NS

    @property
    def is_confined(self) -> bool:
        """Whether no kernel started on another SM."""
        return not self.blocked.is_early


def main(argv: list[str] | None = None) -> None:
    with open_lab() as lab:
        rows = [try_row(lab, library) for library in present(LIBRARIES)]
        granted = lab.stream("A2").sm_count
    blockade = f"a {BLOCKADE_NS // 10**6} ms blockade of their partition ({granted} SMs)"
    report(f"Kernels behind {blockade}; first start in us after the blockade's end", rows, argv)
    if any(row["confined"] != row["expected"] for row in rows):
        sys.exit("Not every library did what was expected of it.")


def open_lab() -> Session:
    """Open a session with two lanes in partition A and one in the rest, and capture its kernels."""
    lab = Session("cuda", title="confinement", capture="ranges")
    lab.partition(A=min(MOST_SMS, lab.device.sm_count // 2), B="rest")
    for name in ("A1", "A2", "B"):
        lab.stream(name, partition=name[0])
    lab.capture("kernels")
    return lab


def present(libraries: Iterable[Library]) -> list[Library]:
    """Return those that are installed; tell of the others."""
    there = []
    for library in libraries:
        if library.is_there:
            there.append(library)
        else:
            print(f"{library.library}, {library.call}: {library.module} is not installed; left out.")
    return there


def prove(lab: Session, call: Call) -> Proof:
    """Run a call behind the blockade and in both controls, after warm-ups on the lanes that it runs on."""
    lab.synchronize()  # what prepared the data ran on streams of its own
    for lane_name in ("A2", "B") * WARM_UPS:
        with lab.on(lane_name, "warm-up") as lane:
            call(lane)
        lab.synchronize()
    granted = lab.stream("A1").sm_count
    return Proof(
        blocked=_watch(lab, call, "A2", blocks=granted),
        beside=_watch(lab, call, "A2", blocks=1),
        elsewhere=_watch(lab, call, "B", blocks=granted),
    )


def try_row(lab: Session, library: Library) -> dict[str, Any]:
    """Return a line of the table; one library that fails does not stop the others."""
    try:
        return row_of(library, prove(lab, library.make(lab)))
    except Exception as error:  # noqa: BLE001 - whatever a library raises is told, and fails the run
        traceback.print_exc()
        return {"library": library.library, "call": library.call, "confined": f"failed: {error!r:.60}", "expected": "yes"}


def row_of(library: Library, proof: Proof) -> dict[str, Any]:
    """Return a line of the table."""
    seen = proof.blocked
    names = [name if len(name) <= 40 else f"{name[:39]}…" for name in dict.fromkeys(seen.names)]
    return {
        "library": library.library,
        "call": library.call,
        "kernels": ", ".join(names),
        "ran on": ", ".join(dict.fromkeys(seen.lanes)),
        "confined": ("yes" if proof.is_confined else "no") if proof.is_conclusive else "not told: a control was late",
        "expected": "yes" if library.follows else "no",
        "first start": round(seen.start_ns / 1e3, 1),
        "beside one SM taken": round(proof.beside.start_ns / 1e3, 1),
        "on stream B": round(proof.elsewhere.start_ns / 1e3, 1),
        "strays": seen.stray_count,
    }


def _watch(lab: Session, call: Call, lane_name: str, *, blocks: int) -> Seen:
    lab.clear()
    with lab.on("A1", "blockade") as lane:
        lab._backend.launch_spin(lane._backend_stream, BLOCKADE_NS, blocks=blocks, fill_sms=True)
    with lab.on(lane_name, "call") as lane:
        kept = call(lane)
    lab.synchronize()
    del kept
    return _read(lab.trace)


def _read(trace: Trace) -> Seen:
    """Find the blockade, and every other kernel that started after it did, in whatever lane and thread."""
    lanes = np.array([trace.lanes[code].name for code in trace.lane])
    names = np.array([trace.names[code] for code in trace.name])
    is_kernel = trace.kind == list(SpanKind).index(SpanKind.KERNEL)
    (blockade,) = np.flatnonzero(is_kernel & (names == "spin") & (lanes == "A1"))
    end_ns = int(trace.end_ns[blockade])
    is_other = is_kernel & (names != "spin") & (trace.start_ns >= trace.start_ns[blockade])
    rows: Int64Array = np.flatnonzero(is_other)
    if not len(rows):
        raise RuntimeError("The call launched no kernel that CUPTI told of.")
    rows = rows[np.argsort(trace.start_ns[rows])]
    return Seen(
        names=tuple(names[rows].tolist()),
        lanes=tuple(lanes[rows].tolist()),
        start_ns=int(trace.start_ns[rows[0]]) - end_ns,
        queued_ns=int(trace.queued_ns[rows].max()) - end_ns,
        stray_count=len(strays(trace)),
    )


if __name__ == "__main__":
    main()
