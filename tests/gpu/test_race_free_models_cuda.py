"""Models as they are used, on several streams and in order: no hazard is told of."""

import pytest

from gpustreamlab import Session

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from bench._resnet import resnet50  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of other people's modules
STEPS = 6


def hazards_of(run):
    """Return what is told of a run that has been warmed up."""
    run(2)
    torch.cuda.synchronize()
    with Session("cuda", capture="kernels", hazards="report") as lab:
        run(STEPS)
        found = lab.memory.hazards()
        torch.cuda.synchronize()
    assert found.access_count > 1_000, found
    assert found.let_go_count < found.access_count / 100, found
    return found


def test_gpt_2_decodes_beside_a_prefill_of_the_same_weights():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().half().eval()
    prompt, long = (torch.randint(0, 50_000, (1, length), device="cuda") for length in (32, 512))
    decode, prefill = torch.cuda.Stream(), torch.cuda.Stream()

    @torch.no_grad()
    def run(steps):
        for stream in (decode, prefill):
            stream.wait_stream(torch.cuda.current_stream())
        token, cache = prompt, None
        for _ in range(steps):
            with torch.cuda.stream(decode):
                made = model(token, past_key_values=cache, use_cache=True)
                token, cache = made.logits[:, -1:].argmax(-1), made.past_key_values
            with torch.cuda.stream(prefill):
                model(long, use_cache=False)
        for stream in (decode, prefill):
            torch.cuda.current_stream().wait_stream(stream)

    found = hazards_of(run)
    assert not len(found), found


def test_resnet_50_trains_on_batches_that_a_side_stream_uploads():
    model = resnet50(10).cuda().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    upload = torch.cuda.Stream()

    def run(steps):
        data = TensorDataset(torch.randn(8 * steps, 3, 64, 64), torch.randint(0, 10, (8 * steps,)))
        for batch in DataLoader(data, batch_size=8, pin_memory=True):
            with torch.cuda.stream(upload):
                images, labels = (one.to("cuda", non_blocking=True) for one in batch)
            torch.cuda.current_stream().wait_stream(upload)
            for one in (images, labels):
                one.record_stream(torch.cuda.current_stream())
            optimiser.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(images), labels).backward()
            optimiser.step()

    found = hazards_of(run)
    assert not len(found), found
