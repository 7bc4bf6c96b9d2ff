"""The h200 preset against the H200 that was measured, and the document that says how far it is off."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from bench.simulator import MEASURED, calibration_table, card_filling_kernels, memory_bound_kernels, model_row, tiny_kernels
from gpustreamlab.backends import ContextSpec
from gpustreamlab.backends.sim import H200, LAPTOP, SimBackend, plan_matmul

DOCUMENT = Path(__file__).parents[3] / "docs" / "explanations" / "simulated-device.md"


@pytest.mark.parametrize("sm_count", MEASURED)
def test_every_row_is_as_near_as_the_document_says(sm_count):
    measured_ms, measured_gb_per_s = MEASURED[sm_count]
    ms, gb_per_s = model_row(sm_count)
    assert ms == pytest.approx(measured_ms, rel=0.11)
    if measured_gb_per_s is not None:
        assert gb_per_s == pytest.approx(measured_gb_per_s, rel=0.1)


def test_the_document_shows_the_table_as_it_is():
    assert calibration_table() in DOCUMENT.read_text(encoding="utf-8"), (
        "Run `python -m bench.simulator` and put its table into docs/explanations/simulated-device.md."
    )


SHAPES = {  # m, n, k, batch, dtype
    "square": (4096, 4096, 4096, 1, "f2"),
    "one tile an SM": (1408, 3072, 512, 1, "f2"),
    "small tiles": (512, 512, 2048, 1, "f2"),
    "thin": (4096, 4096, 16, 1, "f2"),
    "ragged": (3001, 2111, 777, 1, "f4"),
    "batch": (256, 256, 64, 37, "f4"),
    "double": (2048, 1024, 512, 1, "f8"),
    "complex": (640, 640, 640, 3, "c16"),
    "many waves": (16_384, 16_384, 256, 1, "f2"),
}
GRANTABLE = (*range(8, 121, 8), *range(12, 133, 8))
"""Every number of SMs that green contexts of the H200 have: up to 15 groups of 8, with and without the remainder of 12."""


def product_ns(preset, spec, groups):
    """Run a kernel alone on a green context of these groups, or on the whole card."""
    backend = SimBackend(preset)
    maker = backend if groups is None else backend.create_context(ContextSpec(groups=groups))
    stream = maker.create_stream(priority=0)
    start, end = backend.acquire_event(), backend.acquire_event()
    backend.launch_kernel(stream, spec)
    stream.record(start)  # the next launch starts right behind
    backend.launch_kernel(stream, spec)
    stream.record(end)
    stream.synchronize()
    return stream.sm_count, backend.elapsed_ns(start, end)


def groups_of(sm_count):
    return tuple(range(sm_count // 8)) if sm_count % 8 == 0 else (*range((sm_count - 12) // 8), 15)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_takes_its_waves_and_never_longer_on_more_sms(shape):
    # GIVEN a product, and every size of a partition that the card grants
    m, n, k, batch, dtype = SHAPES[shape]
    spec = plan_matmul(H200, "matmul", m=m, n=n, k=k, batch=batch, dtype=np.dtype(dtype))
    # WHEN it runs alone on each
    taken = dict(product_ns(H200, spec, groups_of(sm_count)) for sm_count in GRANTABLE)
    assert sorted(taken) == sorted(GRANTABLE)
    taken[132] = product_ns(H200, spec, None)[1]
    # THEN its time is that of its waves, of 16-bit types of one more, and falls or stays as SMs are added
    blocks_per_sm = H200.slots_per_sm // spec.block_slots
    for sm_count, time_ns in taken.items():
        waves = -(-spec.blocks // (sm_count * blocks_per_sm))
        alone_ns = (waves + (dtype == "f2")) * spec.block_ns
        assert time_ns >= alone_ns - waves  # of whole ns each
        if spec.size_bytes / alone_ns < 1_000:  # far below what the memory gives
            assert time_ns == pytest.approx(alone_ns, rel=1e-3)
    # (with the memory as the limit, a last wave of few blocks may come on top of what the full ones draw)
    least_ns = spec.block_bytes * spec.blocks / H200.memory_bytes_per_s * 1e9
    for fewer, more in itertools.pairwise(sorted(taken)):
        is_bound_by_memory = least_ns > 0.8 * taken[more]
        assert taken[more] <= taken[fewer] + is_bound_by_memory * 0.06 * taken[fewer]


def test_the_laptop_takes_whole_waves():
    spec = plan_matmul(LAPTOP, "matmul", m=4096, n=4096, k=512, batch=1, dtype=np.dtype("f2"))
    _, time_ns = product_ns(LAPTOP, spec, None)
    assert time_ns == -(-spec.blocks // LAPTOP.sm_count) * spec.block_ns


@pytest.mark.parametrize("work", [tiny_kernels, card_filling_kernels, memory_bound_kernels])
def test_the_benchmarks_run(work):
    assert work(200) == 200
