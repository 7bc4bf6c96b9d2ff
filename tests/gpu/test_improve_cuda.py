"""Programs of CuPy and torch are changed by machine on a card: faster beyond the noise, and equal bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import gpustreamlab as gsl

SIDE, COUNT = 2048, 8


@pytest.fixture
def lab():
    with gsl.Session("cuda") as session:
        yield session


def pipeline(lab):
    """Copy images that NumPy made to the card, multiply each, copy it back, with a wait of the host behind each step."""
    images = np.random.default_rng(3).random((COUNT, SIDE, SIDE), "float32")
    back = lab.memory.pinned_empty(images.shape, images.dtype)
    back[...] = 0
    frames = [lab.xp.empty((SIDE, SIDE), "float32") for _ in images]
    kernel = lab.xp.ones((SIDE, SIDE), "float32")
    load, work, store = lab.stream("load"), lab.stream("work"), lab.stream("store")

    def process():
        products = []
        for n in range(COUNT):
            with lab.on("load"):
                frames[n].set(images[n])
            load.synchronize()
            with lab.on("work"):
                products.append(frames[n] @ kernel)
            work.synchronize()
            with lab.on("store"):
                products[n].get(out=back[n], blocking=False)
            store.synchronize()
        return products

    return process


def staging(lab):
    """Fill one page-locked array again and again: each copy has to be done before."""
    buffer = lab.memory.pinned_empty((SIDE, SIDE), "float32")
    frames = [lab.xp.empty((SIDE, SIDE), "float32") for _ in range(4)]
    load = lab.stream("load")

    def process():
        for n in range(4):
            buffer[...] = n
            with lab.on("load"):
                frames[n].set(buffer)
            load.synchronize()
        return frames

    return process


def test_a_pipeline_of_cupy_gains_beyond_the_noise(lab):
    found = lab.improve(pipeline, lab, seconds=120)

    assert found.speedup > 1.2, str(found)
    assert all(one.interval_ns[0] > 0 for one in found.kept)
    assert len(found.before_ns) > 1, "both programs ran in turns"


def test_a_wait_that_the_host_needs_stays(lab):
    found = lab.improve(staging, lab, seconds=60)

    assert "load.synchronize()" in found.source
    assert not [line for line in found.diff.splitlines() if line.startswith("-") and "synchronize" in line]


def test_a_loop_of_torch_that_reads_its_loss_in_each_step_reads_it_behind_the_loop(lab):
    torch = pytest.importorskip("torch")

    def training(lab):
        weights = torch.ones((SIDE, SIDE), device="cuda")
        batches = [torch.full((SIDE, SIDE), float(n + 1), device="cuda") for n in range(COUNT)]
        lab.stream("train")

        def train():
            losses = []
            for batch in batches:
                with lab.on("train"):
                    loss = (batch @ weights).mean()
                    losses.append(loss.item())
            return losses

        return train

    found = lab.improve(training, lab, seconds=60)

    assert not found or "losses.append(loss.item())" in found.source
    assert np.median(found.after_ns) <= 1.02 * np.median(found.before_ns)


def test_a_loop_of_small_launches_is_replayed_as_a_graph(lab):
    def steps(lab):
        x, w = lab.xp.ones((64, 64), "float32"), lab.xp.full((64, 64), 0.5, "float32")
        stream = lab.stream("steps")

        def run():
            for _ in range(400):
                with lab.on(stream, "step"):
                    lab.xp.multiply(x, w, out=x)
                    lab.xp.add(x, 1, out=x)
                    lab.xp.sqrt(x, out=x)
                    lab.xp.subtract(x, w, out=x)
            return x

        return run

    found = lab.improve(steps, lab, seconds=60)

    print(found)
    assert "with stream.graph() as turns:" in found.source, str(found)
    assert found.speedup > 1.5, str(found)


def test_a_graph_of_a_stream_computes_anew_with_each_launch(lab):
    x = lab.xp.ones(4)
    stream = lab.stream("steps")
    with lab.on(stream):
        x += 1
        x *= 2
    lab.synchronize()
    with stream.graph() as graph, lab.on(stream):
        x += 1
        x *= 2
    lab.synchronize()
    assert graph.node_count == 2
    assert x.get().tolist() == [4.0] * 4
    for _ in range(2):
        graph.launch()
    lab.synchronize()
    assert x.get().tolist() == [22.0] * 4
    graph.close()


def on_one_stream(lab):
    """Copy, add and multiply in one stream: turns share nothing but what they read."""
    images = lab.memory.pinned_empty((COUNT, SIDE, SIDE), "float32")
    images[...] = np.random.default_rng(5).random(images.shape, "float32")
    frames = [lab.xp.empty((SIDE, SIDE), "float32") for _ in range(COUNT)]
    out = [lab.xp.empty((SIDE, SIDE), "float32") for _ in range(COUNT)]
    work = lab.stream("work")

    def process():
        for n in range(COUNT):
            with lab.on(work):
                frames[n].set(images[n])
                lab.xp.multiply(frames[n], 2, out=out[n])
                for _ in range(20):
                    lab.xp.sqrt(out[n], out=out[n])
        return out

    return process


def test_work_on_one_stream_goes_on_several_or_it_is_told_why_not(lab):
    found = lab.improve(on_one_stream, lab, seconds=90)

    print(found)
    told = {code for one in (*found.kept, *found.left) for code in one.mends} | {one.finding.code for one in found.advice}
    worth_ns = 0.02 * np.median(found.before_ns)
    assert {one.code for one in found.before.explain().findings if one.saves_ns >= worth_ns} <= told
    assert np.median(found.after_ns) <= 1.02 * np.median(found.before_ns)
    if any("turns of the loop" in one.title for one in found.kept):
        assert found.speedup > 1.05


def test_partitions_get_other_numbers_only_where_these_are_faster(lab):
    def split(lab):
        lab.partition(small=16, rest="rest")
        x, y = (lab.xp.ones((SIDE, SIDE), "float32") for _ in "ab")
        for name in ("small", "rest"):
            lab.stream(name, partition=name)

        def work():
            assert lab.stream("small").sm_count < lab.device.sm_count
            for _ in range(8):
                with lab.on("small"):
                    lab.xp.sqrt(x, out=x)
                    x @ x
                with lab.on("rest"):
                    lab.xp.sqrt(y, out=y)
            return x, y

        return work

    found = lab.improve(split, lab, seconds=90)

    print(found)
    assert all(one.interval_ns[0] > 0 for one in found.kept)
    tried = [one for one in (*found.kept, *found.left) if one.title.startswith("partitions have")]
    assert tried or found.advice, str(found)


class Sums:
    """Keeps what a program of CuPy gives."""

    def __init__(self):
        self.total, self.seen = 0.0, []

    def add(self, value):
        self.total += float(value)
        self.seen.append(self.total)


def test_objects_are_compared_and_stay_as_they_were(lab):
    sums, x = Sums(), lab.xp.ones((SIDE, SIDE), "float32")
    found = lab.improve(
        "y = x @ x\nsums.add(y.sum())\nz = x + y\nsums.add(z.max())", seconds=30, namespace={"lab": lab, "x": x, "sums": sums}
    )

    assert (sums.total, sums.seen) == (0.0, [])
    assert not any("Not compared" in one for one in found.notes), found.notes
