"""Error of the gaps between 20 spans that end 10 us apart, at several ages of one session.

Kernels end at times of the card's own %globaltimer; beside the session's clock stands what a user would do, elapsed times
against one base event. ``--ages 0,60,300`` (seconds) chooses the ages; the default takes five minutes.
"""

from __future__ import annotations

import time

import numpy as np

from bench._common import report, take_ages
from gpustreamlab import Session
from gpustreamlab.workloads import spin_card

NEEDS_GPU = True
SPANS = 20
SPACING_NS = 10_000
GATE_NS = 20_000_000
LEAD_IN = 10  # the first events after a long kernel come 1 to 3 us later than those in a full queue


def main(argv: list[str] | None = None) -> None:
    ages_s, argv = take_ages(argv)
    rows = []
    with Session("cuda", capture="ranges") as lab:
        lab.stream("a")
        for _ in range(3):
            _spans(lab, [])
        base = lab.stream("a").record()
        origin = None
        began = time.perf_counter()
        for age_s in ages_s:
            time.sleep(max(0.0, age_s - (time.perf_counter() - began)))
            events: list[object] = []
            end_ns, timer_ns = _spans(lab, events)
            base_ns = np.array([base.elapsed_ns(event) for event in events])
            origin = origin or (end_ns[0], timer_ns[0])
            drift_ns = (end_ns[-1] - origin[0]) - (timer_ns[-1] - origin[1])
            gap_ns, base_gap_ns = (np.abs(np.diff(times) - np.diff(timer_ns)) for times in (end_ns, base_ns))
            rows.append(
                {
                    "age s": age_s,
                    "worst gap error ns": int(gap_ns.max()),
                    "median gap error ns": int(np.median(gap_ns)),
                    "one base event: worst gap error ns": int(base_gap_ns.max()),
                    "place against the card's timer ns": int(drift_ns),
                    "stated clock error ns": lab._backend.clock_info().clock_error_ns,
                }
            )
    report(f"{SPANS} spans {SPACING_NS // 1000} us apart", rows, argv)


def _spans(lab: Session, events: list[object]) -> tuple[np.ndarray, np.ndarray]:
    """Return when the spans ended by the session's clock and by the card's own timer, in ns."""
    import cupy

    from bench._spin_until import spin_until_kernel
    from gpustreamlab.backends.cuda._kernels import spin_kernel

    # A card that has been idle takes about 0.1 s of work to fetch commands at full speed again.
    with lab.on("a", "awake"):
        spin_card(lab, 200_000_000)
    origin, times = cupy.zeros(2, cupy.uint64), cupy.zeros((LEAD_IN + SPANS, 2), cupy.uint64)
    lab.synchronize()
    already = len(lab.trace)
    with lab.on("a", "gate"):
        spin_kernel(0)((1,), (1,), (np.int64(GATE_NS), origin))
    for row in range(LEAD_IN + SPANS):
        with lab.on("a", "span"):
            spin_until_kernel(0)((1,), (1,), (np.int64(GATE_NS + 100_000 + (row + 1) * SPACING_NS), origin, times[row]))
        if row >= LEAD_IN:
            events.append(lab.stream("a").record())
    lab.synchronize()
    return lab.trace.end_ns[already + 1 + LEAD_IN :], times.get()[LEAD_IN:, 1].astype(np.int64)


if __name__ == "__main__":
    main()
