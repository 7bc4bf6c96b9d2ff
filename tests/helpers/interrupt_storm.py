"""Interrupt ranges and selections by real signals at random instants, and print what is left behind as JSON."""

from __future__ import annotations

import json
import random
import signal
import sys

import numpy as np

from gpustreamlab import Session
from gpustreamlab.recorder import _in_flight
from gpustreamlab.streams.selection import Selection
from tests.helpers.instant_backend import InstantBackend

UNREACHABLE = Selection.__exit__.__code__
"""What runs before the first statement of this that can catch an interrupt is beyond Python; see `Selection`."""
UNREACHABLE_LINES = 5
"""How many lines that are, up to its `try`."""


def is_unreachable(place):
    """Tell whether the code and the line of an interrupt are such."""
    code, line = place
    return code is UNREACHABLE and line <= UNREACHABLE_LINES


def program(lab):
    with lab.on("a", "outer"):
        with lab.range("first"):
            with lab.on("b", "inner"), lab.range("second"):
                pass
            lab.stream("a").wait(lab.stream("b"))
        with lab.range("third"):
            pass


def main(interrupt_count):
    rng = random.Random(4)
    armed = []
    told = dict.fromkeys(("interrupts", "selected", "open"), 0)

    def send(number, frame):
        signal.raise_signal(signal.SIGINT)

    def interrupt(number, frame):
        while frame.f_code in (interrupt.__code__, send.__code__):
            frame = frame.f_back  # what sent it, or a second signal while the first was being handled
        if frame.f_code is UNREACHABLE and (frame.f_lineno or 0) <= UNREACHABLE.co_firstlineno + UNREACHABLE_LINES:
            signal.setitimer(signal.ITIMER_REAL, 20e-6)
        elif armed:
            armed.clear()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, send)
    _in_flight.PENDING_LIMIT = 40
    with Session(InstantBackend()) as lab:
        lab.stream("a")
        lab.stream("b")
        for _ in range(interrupt_count):
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(10e-6, 150e-6))
                while True:
                    program(lab)
            except KeyboardInterrupt:
                told["interrupts"] += 1
            told["selected"] += lab.current is not None or lab._backend.selected is not None
            told["open"] += lab._recorder.thread_state().top_number != -1
        told["nvtx"] = lab._backend.count_open_nvtx()
        told["numbers"] = len(np.unique(lab._recorder.changes().columns["number"]))
        told["spans"] = len(lab.trace)
        told["dropped"] = lab.trace.metadata.dropped_spans
        lab.clear()
        program(lab)
        told["spans_afterwards"] = len(lab.trace)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main(int(sys.argv[1]))
