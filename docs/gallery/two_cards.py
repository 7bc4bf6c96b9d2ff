"""Prefill on one card, decode on the other: who waits for whom?

A stream of the second card waits for an event of the first; both are on one clock.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import spin

with gsl.Node(title="Two cards") as node:
    prefill, decode = node.stream("prefill", device=0), node.stream("decode", device=1)
    spin(node[0], 1, stream=prefill), spin(node[1], 1, stream=decode)  # the first ones are compiled
    node.synchronize()
    node.clear()
    for _ in range(6):
        with node.on(prefill, "prefill"):
            spin(node[0], 600_000, stream=prefill)
        decode.wait(prefill)
        with node.on(decode, "decode"):
            spin(node[1], 500_000, stream=decode)
    node.synchronize()
    trace = node.trace
