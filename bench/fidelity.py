"""How true the two tiers are, at several ages of one session: ranges and CUPTI's kernels against the kernels' own timer.

Kernels of 1 us to 1 ms run on two lanes, each in a range of its own, behind a longer one, so that all are enqueued before the
first of them starts. Each stores ``%globaltimer`` at its first and last instruction, and the SM that it ran on. Ages are chosen
by ``--ages 0,300,900`` (seconds). The kernel's own timer is the floor: it is what a user would build by hand.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from bench._common import report, take_ages
from gpustreamlab import Session
from gpustreamlab.typing import Int64Array, SpanKind
from gpustreamlab.workloads import spin_card

NEEDS_GPU = True
DURATIONS_NS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
REPEATS = 40
LEAD_IN = 10  # the first events after a long kernel come 1 to 3 us later than those in a full queue
GATE_NS = 30_000_000
LANES = ("left", "right")

_SOURCE = r"""
extern "C" __global__ void timed(long long duration_ns, unsigned long long* out) {
    unsigned long long began, now;
    unsigned int sm;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(began));
    asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while ((long long)(now - began) < duration_ns);
    if (threadIdx.x == 0) { out[0] = began; out[1] = now; out[2] = sm; }
}
"""


def main(argv: list[str] | None = None) -> None:
    ages_s, argv = take_ages(argv)
    rows = []
    with Session("cuda", capture="ranges") as lab:
        lab.partition({LANES[0]: 32, LANES[1]: "rest"})
        for name in LANES:
            lab.stream(name, partition=name)
        lab.partitions.verify()
        began_s = time.perf_counter()
        _measure(lab)  # the first launch of a kernel loads it
        for age_s in ages_s:
            time.sleep(max(0.0, age_s - (time.perf_counter() - began_s)))
            rows.append({"age s": age_s} | _measure(lab))
            report("Ranges and kernels (CUPTI) against %globaltimer: p50 / p99 of the error, in ns", rows, argv)


def _measure(lab: Session) -> dict[str, Any]:
    import cupy

    kernel = cupy.RawKernel(_SOURCE, "timed")
    count = LEAD_IN + REPEATS * len(DURATIONS_NS)
    durations_ns = np.resize(DURATIONS_NS, count)
    timers = {name: cupy.zeros((count, 3), cupy.uint64) for name in LANES}
    lab.synchronize()
    lab.clear()
    with lab.capture("kernels"):
        for name in LANES:
            with lab.on(name, "awake"):  # a card that has been idle fetches commands slowly for a while
                spin_card(lab, 200_000_000)
        lab.synchronize()
        for name in LANES:
            with lab.on(name, "gate"):
                kernel((1,), (1,), (np.int64(GATE_NS), cupy.zeros(3, cupy.uint64)))
        for row, duration_ns in enumerate(durations_ns.tolist()):
            for name in LANES:
                with lab.on(name, f"{name}-{row}"):
                    kernel((1,), (32,), (np.int64(duration_ns), timers[name][row]))
        lab.synchronize()
    own = {name: values.get().astype(np.int64) for name, values in timers.items()}
    return _compare(lab, own)


def _compare(lab: Session, own: dict[str, Int64Array]) -> dict[str, Any]:
    trace = lab.trace
    origin_ns = lab._backend._clock.origin_timer_ns  # the session clock's zero on the card's own timer
    kernel_code = list(SpanKind).index(SpanKind.KERNEL)
    errors: dict[str, list[Int64Array]] = {}
    right_sms = True
    for lane in LANES:
        ranges, kernels = [], []
        for row in range(LEAD_IN, len(own[lane])):
            code = trace.names.index(f"{lane}-{row}")
            ranges.append(int(np.flatnonzero(trace.name == code)[0]))
            kernels.append(int(np.flatnonzero((trace.parent == ranges[-1]) & (trace.kind == kernel_code))[0]))
        timer_ns, sms = own[lane][LEAD_IN:, :2] - origin_ns, set(own[lane][LEAD_IN:, 2].tolist())
        partition = trace.partitions[int(trace.partition[kernels[0]])]
        right_sms &= partition.sm_ids is not None and sms <= set(partition.sm_ids)
        start, end = trace.start_ns, trace.end_ns
        for name, values in {
            "CUPTI start - timer": start[kernels] - timer_ns[:, 0],
            "CUPTI end - timer": end[kernels] - timer_ns[:, 1],
            "range start - CUPTI": start[ranges] - start[kernels],
            "range end - CUPTI": end[ranges] - end[kernels],
            "range duration - CUPTI": (end - start)[ranges] - (end - start)[kernels],
        }.items():
            errors.setdefault(name, []).append(values)
    shown = {name: _shown(np.concatenate(values)) for name, values in errors.items()}
    meta = trace.metadata
    return shown | {
        "SMs all in the partition": right_sms,
        "stated ns (kernels, ranges)": f"{meta.kernel_error_ns}, {meta.range_error_ns}",
        "dropped": meta.dropped_spans,
    }


def _shown(values: Int64Array) -> str:
    sizes = np.abs(values)
    return f"{np.percentile(sizes, 50):.0f} / {np.percentile(sizes, 99):.0f}"


if __name__ == "__main__":
    main(sys.argv[1:])
