"""Copies of torch's tensors do not block where nothing looks at them, and stay as they are where something does."""

from __future__ import annotations

import sys
import types

import pytest

from tests.helpers.fake_torch import DataLoader, Device, make_torch, photographs
from tests.helpers.improve_random import function_of

LONG = 300


def inference(lab):
    torch = make_torch(lab)
    weights = torch.from_numpy(photographs(1)[0]).to("cuda")
    batches = [torch.from_numpy(one) for one in photographs(6)]

    def infer():
        outputs = []
        with torch.no_grad():
            for batch in batches:
                x = batch.to("cuda")
                outputs.append((x @ weights).cpu())
        return outputs

    return infer


def test_an_inference_loop_copies_both_ways_without_blocking(lab):
    found = lab.improve(inference, lab, seconds=LONG)

    assert 'x = batch.to("cuda", non_blocking=True)' in found.source
    assert "batches = [one.pin_memory() for one in batches]" in found.source
    assert 'outputs.append((x @ weights).to("cpu", non_blocking=True))' in found.source
    assert "        torch.cuda.synchronize()\n" in found.source
    assert found.speedup > 1.5
    for one in found.kept:
        assert one.predicted_ns == pytest.approx(one.measured_ns, rel=0.15)


def test_a_loader_gives_page_locked_batches_and_its_copies_do_not_block(lab):
    def training(lab):
        torch = make_torch(lab)
        device = Device("cuda")
        weights = torch.from_numpy(photographs(1)[0]).to(device)
        loader = DataLoader(torch.from_numpy(photographs(8)), batch_size=2)

        def train():
            total = 0.0
            for step, images in enumerate(loader):
                images = images.to(device)  # noqa: PLW2901 - as programs of torch do
                loss = (images @ weights).sum()
                total += loss.item() * step
            return total

        return train

    found = lab.improve(training, lab, seconds=LONG)

    assert "batch_size=2, pin_memory=True)" in found.source
    assert "images = images.to(device, non_blocking=True)" in found.source
    assert any("loss.item() * step stands behind the loop" in one.title for one in found.left), "on one stream it gains nothing"
    assert found.speedup > 1.2


def test_one_tensor_of_all_batches_is_page_locked_before_the_loop_of_text(lab):
    torch = make_torch(lab)
    names = {"torch": torch, "images": torch.from_numpy(photographs(4, 64)), "kept": []}
    text = "for n in range(len(images)):\n    kept.append(images[n].cuda() @ images[n].cuda())\n    torch.cuda.synchronize()"

    found = lab.improve(text, seconds=LONG, namespace=names)

    assert "images = images.pin_memory()\nfor n in range(len(images)):" in found.source
    assert "images[n].cuda(non_blocking=True) @ images[n].cuda(non_blocking=True)" in found.source


@pytest.mark.parametrize(
    ("lines", "stays"),
    [
        (["y = (batch.to('cuda') @ weights).cpu()", "best = max(best, float(y.numpy().max()))"], ".cpu()"),
        (["outputs.append((batch.to('cuda') @ weights).cpu())", "best += outputs[-1].numpy().max()"], ".cpu()"),
        (["outputs.append((batch.to('cuda') @ weights).cpu())", "best += largest(outputs)"], ".cpu()"),
        (["same = outputs", "outputs.append((batch.to('cuda') @ weights).cpu())", "best += same[-1].numpy().max()"], ".cpu()"),
        (["results[n] = (batch.to('cuda') @ weights).cpu().numpy()"], ".cpu()"),
        (["batch.fill_(n)", "outputs.append(batch.to('cuda') @ weights)"], "batch.to('cuda')"),
        (["staging.fill_(n)", "outputs.append(staging.to('cuda') @ weights)"], "staging.to('cuda')"),
        (["outputs.append(batch.to('cuda') @ weights)", "batch.fill_(0)"], "batch.to('cuda')"),
        (["outputs.append(batch.to('cuda') @ weights)", "best += batch.numpy().sum()"], "batch.to('cuda')"),
    ],
)
def test_what_the_host_reads_or_writes_in_the_loop_stays(lab, lines, stays):
    torch = make_torch(lab)
    names = {
        "weights": torch.from_numpy(photographs(1, 64)[0]).to("cuda"),
        "batches": [torch.from_numpy(one).pin_memory() for one in photographs(4, 64)],
        "staging": torch.from_numpy(photographs(1, 64)[0]).pin_memory(),
        "results": photographs(4, 64),
        "largest": lambda outputs: outputs[-1].numpy().max(),
        "torch": torch,
    }
    body = "\n".join(f"    {line}" for line in lines)
    text = f"outputs, best = [], 0.0\nfor n, batch in enumerate(batches):\n{body}"

    found = lab.improve(text, seconds=LONG, namespace=names)

    assert stays in found.source


@pytest.fixture
def cupy(lab, monkeypatch):
    """Stand in for CuPy, with the arrays of the session's simulated device."""
    cupy, cupyx = types.ModuleType("cupy"), types.ModuleType("cupyx")
    cupy.cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(synchronize=lab.synchronize))
    cupy.asarray, cupy.asnumpy, cupyx.empty_pinned = lab.xp.asarray, lab.xp.asnumpy, lab.memory.pinned_empty
    monkeypatch.setitem(sys.modules, "cupyx", cupyx)
    return cupy


@pytest.mark.parametrize("items", ["[*photographs(6)]", "photographs(6)"])
def test_what_a_program_of_cupy_takes_in_is_page_locked_before_it_is_measured(lab, cupy, items):
    loop = ["for image in images:", "    product = cupy.asarray(image) @ weights", "    products.append(product.get())"]
    if items == "photographs(6)":
        loop = ["for n in range(6):", "    product = cupy.asarray(images) @ weights", "    products.append(product.get())"]
    inner = ["products = []", *loop, "return products"]
    lines = [f"images = {items}", "def work():", *(f"    {line}" for line in inner), "return work"]
    text = "\n".join(["def program():", *(f"    {line}" for line in lines)])
    names = {"cupy": cupy, "photographs": photographs, "weights": lab.xp.asarray(photographs(1)[0])}

    found = lab.improve(function_of(text + "\n", names), seconds=LONG)

    told = f"images {'are' if items[0] == '[' else 'is'} page-locked"
    assert told in [one.title for one in found.kept], str(found)
    assert len(found.kept) == 2, str(found)  # what it gives is page-locked, too
    assert found.source.index("import cupyx") < found.source.index("empty_pinned") < found.source.index("def work")
    assert found.speedup > 1.1


@pytest.mark.parametrize("fetched", ["product.get()", "cupy.asnumpy(product)"])
def test_a_program_of_cupy_that_knows_of_no_session_fetches_without_blocking(lab, cupy, fetched):
    images, weights = photographs(6), lab.xp.asarray(photographs(1)[0])
    text = f"""products = []
for image in images:
    product = cupy.asarray(image) @ weights
    products.append({fetched})
"""
    found = lab.improve(text, seconds=LONG, namespace={"cupy": cupy, "images": images, "weights": weights})

    assert "import cupyx\nfor image in images:" in found.source
    assert "products.append(cupyx.empty_pinned(product.shape, product.dtype))" in found.source
    assert "product.get(out=products[-1], blocking=False)" in found.source
    assert "hold" not in found.source
    assert "\ncupy.cuda.get_current_stream().synchronize()\n" in found.source
    assert found.speedup > 1.1
