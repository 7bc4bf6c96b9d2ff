"""Interrupt the taking and giving back of scratch by real signals at random instants, and print what is wrong, or ok."""

from __future__ import annotations

import random
import sys

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from tests.helpers.interrupts import Interrupts


def use(lane, wrong):
    with lane.scratch(1024) as one, lane.scratch(2048) as two:
        if one.ptr == two.ptr:
            wrong.append("one block for two")
    lane.scratch(4096)


def storm(lane, wrong, interrupts, delay_s):
    """Use scratch until an interrupt has come. A function: CPython 3.13 may raise one behind a loop, and its ``try`` block."""
    interrupts.send_after(delay_s)
    while interrupts.is_armed:
        use(lane, wrong)


def look(lab, lane, wrong):
    """A lane that is closed holds nothing, whatever came in the middle."""
    before = lane.scratch_statistics.reserved_bytes
    if before > 64 * 4096:
        wrong.append(f"{before:,} bytes reserved for some KiB")
    lane.close()
    reserved_bytes = lab._scratch_pool.reserved_bytes
    if reserved_bytes:
        wrong.append(f"{reserved_bytes} bytes that cannot be freed")


def main(interrupt_count):
    rng = random.Random(7)
    wrong = []
    with Session(SimBackend()) as lab, Interrupts() as interrupts:
        lane = lab.stream("a")
        for turn in range(interrupt_count):
            try:
                storm(lane, wrong, interrupts, rng.uniform(5e-6, 300e-6))
            except KeyboardInterrupt:
                pass
            if not turn % 100:
                look(lab, lane, wrong)
                lane = lab.stream("a")
    print("; ".join(wrong) or "ok")


if __name__ == "__main__":
    main(int(sys.argv[1]))
