"""Ranks of a data-parallel step, one process a card, that record themselves: one trace says who was late, and who waited."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import Cause, LaneKind, SpanKind
from tests.helpers.programs import PATHS

torch = pytest.importorskip("torch")

CARDS = torch.cuda.device_count()
LATE = CARDS - 1  # its batch is late in each step
STEPS = 24
PROGRAM = f"""
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
torch.manual_seed(0)
layers = [torch.nn.Linear(2048, 2048) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(512, 2048, device="cuda")
for _ in range({STEPS}):
    if rank == {LATE}:
        torch.cuda._sleep(4_000_000)  # about 2 ms
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module", params=["run", "record"])
def ranks(request, tmp_path_factory):
    """Return the trace of all ranks, as each recorded itself, and as the driver's recorder did."""
    if CARDS < 2:
        pytest.skip("This needs two cards.")
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "train.py").write_text(PROGRAM)
    of_torch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(CARDS)]
    ours = ["-m", "gpustreamlab", request.param, "-o", "run.parquet"]
    command = [*of_torch, *ours, "train.py"] if request.param == "run" else [sys.executable, *ours, "--", *of_torch, "train.py"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": PATHS}, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    paths = sorted(folder.glob("run*.parquet"))
    assert len(paths) == CARDS, done.stderr
    return gsl.load_trace(paths)


def test_each_card_is_a_process_on_one_clock(ranks):
    streams = [lane for code, lane in enumerate(ranks.lanes) if code in ranks.where(kind="kernel").lane]
    assert {lane.device for lane in streams} == set(range(CARDS))
    assert len({lane.process for lane in streams}) == CARDS
    ends_ns = _of_collectives(ranks, ranks.end_ns)
    # Kernels of one collective end together: what is between them is how far the clocks are off, and the way of the last bytes.
    assert len(ends_ns) >= STEPS
    assert np.median(np.ptp(ends_ns, axis=1)) < 50_000 + ranks.metadata.clock_error_ns


def test_the_late_rank_is_named_by_as_much_as_its_kernel_took(ranks):
    asleep_ns = ranks.where(device=LATE).where(name=[name for name in ranks.names if "spin_kernel" in name]).duration_ns
    assert len(asleep_ns) == STEPS
    found = ranks.stragglers()
    late = found.names[0]
    assert late.is_collective
    shown = {f"process {_process(ranks)}", f"p{_process(ranks)}"}
    (group,) = (place for place, name in enumerate(found.groups) if name in shown)
    # The first steps load code; of each step behind them the first collective waits for as long as the late rank slept.
    steady = late.at_ns > np.median(late.at_ns)
    of_steps = steady & (late.late_ns > 1_000_000)
    assert STEPS // 2 - 2 <= of_steps.sum() <= STEPS // 2 + 2
    assert set(late.last[of_steps].tolist()) == {group}
    assert np.median(late.late_ns[of_steps]) == pytest.approx(np.median(asleep_ns), abs=300_000)


def test_who_waited_is_told_why_and_at_most_what_it_would_save(ranks):
    found = ranks.where(device=0).explain().findings
    of_rank = [one for one in found if one.code is Cause.OTHER_RANK]
    assert of_rank, [one.code for one in found]
    waited_ns = sum(one.waited_ns.max() for one in ranks.stragglers().names if one.is_collective)
    assert 0.7 * 2e6 * STEPS < of_rank[0].bound_ns <= waited_ns
    assert of_rank[0].saves_ns == 0, "it is not promised"


def _of_collectives(trace, column):
    """Return a column of the kernels of all-reduces, shape (n_collectives, n_cards), each card's in order."""
    names = [code for code, name in enumerate(trace.names) if "AllReduce" in name]
    is_one = (trace.kind == SPAN_KINDS.index(SpanKind.KERNEL)) & np.isin(trace.name, names)
    device = np.array([lane.device for lane in trace.lanes])[trace.lane]
    own = [column[is_one & (device == number)] for number in range(CARDS)]
    assert len({len(one) for one in own}) == 1, [len(one) for one in own]
    return np.stack(own, axis=1)


def _process(trace):
    return next(lane.process for lane in trace.lanes if lane.device == LATE and lane.kind is LaneKind.STREAM)
