"""Measuring, sweeping, co-running and tuning on a card: figures agree with others' and with each other."""

from __future__ import annotations

import cupy
import numpy as np
import pytest
from cupyx.profiler import benchmark

from gpustreamlab.workloads import spin, streaming_add

CAPTURE = "auto"
SIZE = 2048


@pytest.fixture
def product(lab):
    a, out = cupy.ones((SIZE, SIZE), "float16"), cupy.empty((SIZE, SIZE), "float16")
    cupy.cuda.Device().synchronize()
    return lambda: cupy.matmul(a, a, out=out)


@pytest.fixture
def addition(lab):
    x, out = cupy.ones(1 << 23, "complex128"), cupy.empty(1 << 23, "complex128")
    cupy.cuda.Device().synchronize()
    return lambda: streaming_add(lab, x, x, out)


def test_a_measurement_agrees_with_cupys_own(lab, product):
    lab.clear()
    found = lab.bench.measure(product, repeats=50)
    assert found.by == "kernels"
    assert len(lab.trace) == 0, "nothing of it is in the user's trace"
    stream = lab.stream("theirs")
    with lab.select(stream):
        others_ns = np.median(benchmark(product, n_repeat=50, n_warmup=5).gpu_times) * 1e9
    low, high = found.interval_ns
    assert low <= found.median_ns <= high
    assert found.median_ns < 1.05 * others_ns, "events around each call add some us, and no kernel"


def test_the_users_session_records_as_before_after_each_measurement(lab, product):
    """Both sessions are on one device, and CUPTI serves one of them at a time."""
    lab.stream("own")
    for measure in (
        lambda: None,
        lambda: lab.bench.measure(product, repeats=5),
        lambda: lab.bench.sweep(product, [64, 132], repeats=4),
    ):
        measure()
        lab.clear()
        with lab.on("own", "work"):
            product()
        lab.synchronize()
        kinds = lab.trace.to_pandas()["kind"].astype(str).tolist()
        assert (kinds.count("range"), kinds.count("kernel")) == (1, 1), kinds


def test_a_spin_is_measured_to_a_microsecond(lab):
    found = lab.bench.measure(lambda: spin(lab, 200_000), repeats=20)
    assert abs(found.median_ns - 200_000) < 3_000
    assert found.launch_count == 1


def test_a_product_needs_more_sms_than_an_addition(lab, product, addition):
    sizes = [8, 16, 32, 64, 96, 120]
    products, additions = lab.bench.sweep(product, sizes, repeats=6), lab.bench.sweep(addition, sizes, repeats=6)
    assert list(products.sizes) == list(additions.sizes) == sizes
    assert products.median_ns[0] / products.median_ns[-1] > 5
    assert products.knee >= 64  # 128 tiles of an H100's product take two waves from here on
    assert additions.median_ns[0] / additions.median_ns[-1] < products.median_ns[0] / products.median_ns[-1]
    assert all(fit.median_error < 0.5 for fit in products.fits[:1])
    assert lab.layout is None


def test_spins_beside_each_other_cost_each_other_nothing_and_full_cards_everything(lab):
    spins = lab.bench.corun({"a": lambda: spin(lab, 1_000_000), "b": lambda: spin(lab, 1_000_000)})
    assert spins.speedup == pytest.approx(2, rel=0.1)
    full = {name: (lambda: spin(lab, 300_000, blocks=132 * 64)) for name in "ab"}
    cards = lab.bench.corun(full)
    assert cards.speedup == pytest.approx(1, rel=0.15)
    parts = lab.bench.corun(full, {"a": 64, "b": "rest"})
    assert parts["a"].sm_count == 64
    assert parts["a"].interference == pytest.approx(1, rel=0.15)


def test_tuning_is_applied_and_the_user_has_what_was_best(lab, product, addition):
    tuning = lab.bench.tune({"product": product, "addition": addition}, repeats=4, budget_s=25)
    assert tuning.best.is_confirmed
    assert tuning.best.score >= max(one.score for one in tuning.trials if one.is_confirmed) - 1e-9
    layout = tuning.apply()
    assert (layout is None) == (not tuning.best.place.shares)
    for task in tuning.best.corun.tasks:
        assert lab.stream(task.name).sm_count == task.sm_count
