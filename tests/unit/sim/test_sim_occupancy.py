"""What the records say of a kernel's blocks against what the scheduler does with them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.analysis import blocks_that_fit
from gpustreamlab.backends.sim import H200, LAPTOP, DevicePreset, KernelSpec, SimBackend, plan_matmul, plan_spin, plan_streaming
from gpustreamlab.typing import SpanKind

SMALL = DevicePreset(name="small", sm_count=6, slots_per_sm=4)
PRESETS = {"h200": H200, "laptop": LAPTOP, "small": SMALL}
SMS = 5


def product(preset, side):
    return plan_matmul(preset, "product", m=side, n=side, k=64, batch=1, dtype=np.dtype("f2"))


KERNELS = {
    "large tiles": lambda preset: product(preset, 8192),
    "small tiles": lambda preset: product(preset, 128),
    "streaming": lambda preset: plan_streaming(preset, "add", size_bytes=1 << 20, operations=1, dtype=np.dtype("f4")),
    "spin": lambda preset: plan_spin(preset.slots_per_sm, 5_000, 1, fill_sms=False),
    "spin_card": lambda preset: plan_spin(preset.slots_per_sm, 5_000, 1, fill_sms=True),
    **{
        f"of {slots} slots": lambda preset, slots=slots: KernelSpec(name="own", blocks=1, block_slots=slots, block_ns=1_000)
        for slots in (1, 2, 4, 8, 16, 32)
    },
}


def waves_of(preset, spec):
    backend = SimBackend(preset)
    stream = backend.create_stream(priority=0, sm_ids=range(SMS))
    backend.launch_kernel(stream, spec)
    before_ns = backend.glance_ns()
    backend.synchronize()
    return round((backend.glance_ns() - before_ns - preset.host.synchronize_ns) / spec.block_ns)


FITTING = [
    (preset, name)
    for preset in PRESETS
    for name, plan in KERNELS.items()
    if plan(PRESETS[preset]).block_slots <= PRESETS[preset].slots_per_sm
]


@pytest.mark.parametrize(("preset", "name"), FITTING)
def test_as_many_blocks_run_at_once_as_the_records_say_fit(preset, name):
    # GIVEN the record of a kernel
    preset = PRESETS[preset]
    spec = KERNELS[name](preset)
    with Session(SimBackend(preset)) as lab:
        stream = lab.stream("a")
        lab.recording.backend.launch_kernel(stream._backend_stream, spec)
        lab.synchronize()
        trace = lab.trace
    row = trace.kind.tolist().index(list(SpanKind).index(SpanKind.KERNEL))
    detail = trace.details[trace.extra["detail"][row]]
    fit = int(blocks_that_fit(trace)[row])

    # THEN it is whole, and as many blocks as it says run at once: one more takes a second wave
    assert 1 <= detail.block_threads <= 1_024
    assert 1 <= detail.registers <= 255
    assert detail.dynamic_shared_bytes <= 227 << 10
    assert fit == preset.slots_per_sm // spec.block_slots
    plain = replace(spec, block_ns=100_000, block_bytes=0, extra_waves=0)
    assert waves_of(preset, replace(plain, blocks=SMS * fit)) == 1
    assert waves_of(preset, replace(plain, blocks=SMS * fit + 1)) == 2
