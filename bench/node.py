"""Two cards on one clock: how far off, at ages of the node, compared with waits that go each way between them.

Kernels of two streams on two cards wait for each other in turn. A wait takes as long one way as the other, so half the
difference of the shortest waits each way is how far the clocks are off, where both ways are as long: waits of 17 us, on a host
that is slow, tell it to a microsecond. A flag that goes back and forth in host memory tells it to 0.2 us: how far it is off the
line between the node's own comparisons stands beside it, and the bound that the trace states.

Needs two GPUs: ``python -m bench.node --ages 0,15,60,120 --json bench/results/node.json``.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from bench._common import report, take_ages
from gpustreamlab import Node
from gpustreamlab.model import SPAN_KINDS, shifted_moment
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin

TURNS = 50
WARM_UP_S = 1.0
SPIN_NS = 50_000
_KERNEL = SPAN_KINDS.index(SpanKind.KERNEL)


def main(argv: list[str] | None = None) -> None:
    ages_s, argv = take_ages(argv)
    flags = []
    with Node(backend="cuda") as node:
        node.stream("a")
        node.stream("b", device=1)
        _take_turns(node, "warm-up")
        node.synchronize()
        began_s = time.monotonic()
        for age_s in ages_s:
            time.sleep(max(0.0, age_s - WARM_UP_S - (time.monotonic() - began_s)))
            warm_s = time.monotonic() + WARM_UP_S
            while time.monotonic() < warm_s:  # a card that was idle is slow to begin: waits took 50 us
                _take_turns(node, "warm-up")
            _take_turns(node, f"age {age_s:g}")
            first, second = node._backends
            flags.append((second.host_to_clock_ns(second.glance_ns()), second.ahead_of(first)[0]))
        node.synchronize()
        second_ahead = node._clocks.ahead()[1]
        off_ns = [abs(shifted_moment(at_ns, second_ahead) - at_ns - ahead_ns) for at_ns, ahead_ns in flags]
        rows = [_row(node.trace, *told) for told in zip(ages_s, off_ns, strict=True)]
    report("Two cards on one clock: off by half the difference of waits each way, and by a flag", rows, argv)


def _take_turns(node: Node, label: str) -> None:
    """Let each card wait for the other in turn; the clocks are not compared."""
    a, b = node.streams["a"], node.streams["b"]
    for _ in range(TURNS):
        with node.on(a, label):
            spin(node[0], SPIN_NS)
        b.wait(a)
        with node.on(b, label):
            spin(node[1], SPIN_NS)
        a.wait(b)
    a.synchronize()
    b.synchronize()


def _row(trace: Any, age_s: float, off_ns: int) -> dict[str, Any]:
    rows = np.flatnonzero((trace.kind == _KERNEL) & (trace.parent >= 0))
    label = np.array(trace.names)[trace.name[trace.parent[rows]]]
    rows = rows[label == f"age {age_s:g}"]
    first, second = (rows[np.array([trace.lanes[lane].name == name for lane in trace.lane[rows]])] for name in "ab")
    there_ns = trace.start_ns[second] - trace.end_ns[first]
    back_ns = trace.start_ns[first[1:]] - trace.end_ns[second[:-1]]
    return {
        "age, s": age_s,
        "turns": len(first),
        "shortest wait there, us": int(there_ns.min()) / 1e3,
        "shortest wait back, us": int(back_ns.min()) / 1e3,
        "off by waits, us": abs(int(there_ns.min()) - int(back_ns.min())) / 2e3,
        "off by a flag, us": off_ns / 1e3,
        "stated bound, us": trace.metadata.clock_error_ns / 1e3,
    }


if __name__ == "__main__":
    main()
