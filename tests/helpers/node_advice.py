"""Programs on several cards, each with a better version: as functions that prepare, and return what is measured."""

from __future__ import annotations

import numpy as np

from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin

TURNS = 6


def ones(lab, stream, count):
    """Return square matrices on a card; large enough that launches are none of the time."""
    side = 1_024 if lab.device.simulated else 4_096
    with lab.on(stream):
        return [lab.xp.ones((side, side), np.float32) for _ in range(count)]


def waits_of_the_host(node, *, is_better):
    """Wait for each kernel before the next card gets its own."""
    streams = [node.stream(f"of{lab.device.ordinal}", device=lab.device.ordinal) for lab in node]

    def work():
        for _ in range(TURNS):
            for lab, stream in zip(node, streams, strict=True):
                with lab.on(stream):
                    spin(lab, 300_000)
                if not is_better:
                    stream.synchronize()

    return work


def late_events(node, *, is_better):
    """Hand a product to the next card, with an event that is recorded behind more than that."""
    maker, taker = node.stream("maker"), node.stream("taker", device=1)
    one, beside, *made = ones(node[0], maker, 2 + TURNS)
    kept = []

    def work():
        for out in made:
            with node.on(maker):
                node[0].xp.matmul(one, one, out=out)
            done = maker.record() if is_better else None
            with node.on(maker):
                node[0].xp.matmul(one, one, out=beside)
            taker.wait(done or maker.record())
            with node.on(taker):
                kept.append(node[1].xp.array(out))
                kept.append(node[1].xp.matmul(kept[-1], kept[-1]))

    return work


def over_the_host(node, *, is_better):
    """Read each product, and give it to the next card: of page-locked memory the host only waits for the read."""
    maker, taker = node.stream("maker"), node.stream("taker", device=1)
    one, *made = ones(node[0], maker, 1 + TURNS)
    target, out = ones(node[1], taker, 2)
    hosts = [node[0].memory.pinned_empty(one.shape, np.float32) if is_better else None for _ in made]

    def work():
        for product, host in zip(made, hosts, strict=True):
            with node.on(maker):
                node[0].xp.matmul(one, one, out=product)
                values = product.get(out=host, blocking=host is None)
            if is_better:
                maker.synchronize()
            with node.on(taker):
                target.set(values)
                node[1].xp.matmul(target, target, out=out)

    return work


CASES = [
    (waits_of_the_host, Cause.HOST_SYNC_STREAM),
    (late_events, Cause.EVENT_WAIT),
    (over_the_host, Cause.PAGEABLE_COPY),
]


def recorded(node, program, *, is_better, warm_ups=0):
    """Return the trace of a program."""
    work = program(node, is_better=is_better)
    for _ in range(warm_ups):
        work()
    node.synchronize()
    node.clear()
    work()
    node.synchronize()
    return node.trace
