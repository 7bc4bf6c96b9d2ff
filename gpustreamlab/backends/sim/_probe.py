"""Where kernels of a stream really run, as the scheduler places them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpustreamlab.backends._activity import PROBE_NAME
from gpustreamlab.backends.sim._commands import KernelRun, KernelSpec, StreamQueue
from gpustreamlab.backends.sim._driver import SimDriver
from gpustreamlab.typing import Int64Array

_BLOCK_NS = 10_000


def probe_sms(driver: SimDriver, streams: Sequence[StreamQueue]) -> list[Int64Array]:
    """Run a kernel on each stream that would fill the whole device, and return the SM ids that its blocks started on.

    All run at once. A stream that others kept from as many SMs as it should have gets a second kernel, alone.
    """
    with driver.lock:
        seen = _run(driver, streams)
        for stream in streams:
            if len(seen[stream.number]) < stream.sm_count:
                seen[stream.number] |= _run(driver, [stream])[stream.number]
    return [np.array(sorted(seen[stream.number]), np.int64) for stream in streams]


def _run(driver: SimDriver, streams: Iterable[StreamQueue]) -> dict[int, set[int]]:
    """Run the kernels and return the SM ids by stream."""
    preset, scheduler = driver.preset, driver.scheduler
    spec = KernelSpec(name=PROBE_NAME, blocks=preset.sm_count, block_slots=preset.slots_per_sm, block_ns=_BLOCK_NS)
    seen: dict[int, set[int]] = {stream.number: set() for stream in streams}

    def note(run: KernelRun, parts: list[tuple[int, int]]) -> None:
        if run.spec is spec:
            for number, blocks in parts:
                # SMs of a group are alike to the scheduler: fewer blocks than SMs are on the first of them.
                seen[run.stream.number].update(sorted(scheduler.pool.groups[number])[:blocks])

    scheduler.placement_observer = note
    try:
        for stream in streams:
            driver.launch(stream, spec)
        for stream in streams:
            driver.synchronize_stream(stream)
    finally:
        scheduler.placement_observer = None
    return seen
