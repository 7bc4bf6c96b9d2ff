"""Programs of torch and CuPy run by ``gpustreamlab run`` do what they do without it, and all of it is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import gpustreamlab as gsl
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind
from tests.helpers.programs import PATHS


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def record(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(folder, "-m", "gpustreamlab", "run", *arguments)


def write(folder: Path, text: str, name: str = "program.py") -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def spans(trace: gsl.Trace, kind: SpanKind) -> list[str]:
    """Return the names of the spans of a kind."""
    return [trace.names[code] for code in trace.name[trace.kind == SPAN_KINDS.index(kind)].tolist()]


def lanes_with(trace: gsl.Trace, kind: SpanKind) -> set[str]:
    """Return the lanes that have spans of a kind."""
    return {trace.lanes[lane].name for lane in trace.lane[trace.kind == SPAN_KINDS.index(kind)].tolist()}


CUPY = """
import sys
import cupy

x = cupy.arange(1 << 20, dtype=cupy.float32)
one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
cupy.cuda.Device().synchronize()
for step in range(20):
    with one:
        y = x * 2 + step
    with two:
        z = cupy.fft.fft(x)
cupy.cuda.Device().synchronize()
print(float(y[3]), z.shape, sys.argv[1:])
sys.exit(4)
"""
TORCH = """
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
side = torch.cuda.Stream()
host = torch.randn(64, 256).pin_memory()
for step in range(8):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        batch = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.synchronize()
print(f"{loss.item():.6f}")
"""


def test_a_program_of_cupy_ends_as_it_does_and_its_streams_are_lanes(tmp_path):
    program = write(tmp_path, CUPY)
    bare, recorded = run_python(tmp_path, program, "--own"), record(tmp_path, "-o", "run.parquet", program, "--own")
    assert (recorded.returncode, recorded.stdout) == (bare.returncode, bare.stdout) == (4, bare.stdout), recorded.stderr
    trace = gsl.load_trace(tmp_path / "run.parquet")
    assert len(spans(trace, SpanKind.KERNEL)) >= 60
    assert len(lanes_with(trace, SpanKind.KERNEL)) >= 2
    assert spans(trace, SpanKind.HOST), "calls of the host"
    told = recorded.stderr
    assert "gpustreamlab: program: " in told
    assert all(f"  {head}: " in told for head in ("Where", "What", "Overlap", "Idle"))
    assert "Timeline: program.html; trace: run.parquet" in told
    assert (tmp_path / "program.html").exists()
    assert not (tmp_path / "program.gsl").exists()


def test_a_training_of_torch_gives_the_same_and_is_recorded(tmp_path):
    pytest.importorskip("torch")
    program = write(tmp_path, TORCH)
    bare, recorded = run_python(tmp_path, program), record(tmp_path, "-o", "run.parquet", program)
    assert (recorded.returncode, recorded.stdout) == (0, bare.stdout), recorded.stderr
    trace = gsl.load_trace(tmp_path / "run.parquet")
    assert len(spans(trace, SpanKind.KERNEL)) > 8 * 10
    assert any("HtoD" in name for name in spans(trace, SpanKind.COPY))
    assert lanes_with(trace, SpanKind.COPY) - lanes_with(trace, SpanKind.KERNEL), "the copies' stream is a lane"


def test_modules_and_optimizers_of_torch_become_ranges(tmp_path):
    pytest.importorskip("torch")
    recorded = record(tmp_path, "-o", "run.parquet", "--ranges", "torch", write(tmp_path, TORCH))
    assert recorded.returncode == 0, recorded.stderr
    found = spans(gsl.load_trace(tmp_path / "run.parquet"), SpanKind.ANNOTATION)
    assert sum("Sequential" in name for name in found) >= 7
    assert sum("0 (Linear)" in name for name in found) >= 7
    assert sum("SGD.step" in name for name in found) >= 7


def test_steps_take_a_window(tmp_path):
    pytest.importorskip("torch")
    whole = record(tmp_path, "-o", "whole.parquet", write(tmp_path, TORCH))
    part = record(tmp_path, "--force", "-o", "part.parquet", "--steps", "3:5", write(tmp_path, TORCH))
    assert whole.returncode == part.returncode == 0, part.stderr
    counts = [len(spans(gsl.load_trace(tmp_path / f"{name}.parquet"), SpanKind.KERNEL)) for name in ("whole", "part")]
    assert 0 < counts[1] < counts[0] / 2


def test_a_program_may_still_choose_its_gpu_and_fork(tmp_path):
    pytest.importorskip("torch")
    text = """
    import os
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    import torch
    if os.fork() == 0:
        print("child", float(torch.ones(4, device="cuda").sum()), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
    print("parent", torch.cuda.device_count(), float(torch.ones(8, device="cuda").sum()))
    """
    recorded = record(tmp_path, "-o", "run.parquet", write(tmp_path, text))
    assert recorded.returncode == 0, recorded.stderr
    assert recorded.stdout == "child 4.0\nparent 1 8.0\n"
    assert spans(gsl.load_trace(tmp_path / "run.parquet"), SpanKind.KERNEL)


def test_a_data_loader_with_workers_runs(tmp_path):
    pytest.importorskip("torch")
    text = """
    import torch
    data = torch.utils.data.TensorDataset(torch.arange(64.0))
    if __name__ == "__main__":
        weight = torch.ones(1, device="cuda")
        total = 0.0
        for (batch,) in torch.utils.data.DataLoader(data, batch_size=8, num_workers=2):
            total += float((batch.cuda() * weight).sum())
        print(total)
    """
    recorded = record(tmp_path, "-q", "-o", "run.parquet", write(tmp_path, text))
    assert (recorded.returncode, recorded.stdout) == (0, "2016.0\n"), recorded.stderr
    assert len(spans(gsl.load_trace(tmp_path / "run.parquet"), SpanKind.COPY)) >= 16


@pytest.mark.parametrize(("how", "status"), [("os.kill(os.getpid(), 9)", -9), ("os._exit(5)", 5)])
def test_what_was_recorded_until_a_program_is_killed_can_be_read(tmp_path, how, status):
    program = write(tmp_path, f"{CUPY.replace('sys.exit(4)', '')}\nimport os, time\ntime.sleep(4)\n{how}\n")
    recorded = record(tmp_path, program)
    assert recorded.returncode == status, recorded.stderr
    assert "If the program is killed: gpustreamlab view program.gsl" in recorded.stderr
    trace = gsl.load_trace(tmp_path / "program.gsl")
    assert spans(trace, SpanKind.KERNEL)
    assert trace.metadata.recovery_note.startswith("recovered from a spool whose session was not closed")


def test_sessions_of_the_program_and_the_rest_become_one_trace(tmp_path):
    text = """
    import cupy
    import gpustreamlab as gsl
    x = cupy.ones(1 << 16)
    other = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with gsl.Session("cuda") as lab:
        with lab.on(lab.stream("mine"), "step"):
            y = x * 2
        with other:
            z = x * 3
        cupy.cuda.Device().synchronize()
    print(float(y[0] + z[0]))
    """
    recorded = record(tmp_path, "-o", "run.parquet", write(tmp_path, text))
    assert (recorded.returncode, recorded.stdout) == (0, "5.0\n"), recorded.stderr
    trace = gsl.load_trace(tmp_path / "run.parquet")
    assert "step" in spans(trace, SpanKind.RANGE)
    assert any("mine" in name for name in lanes_with(trace, SpanKind.KERNEL))
    assert len(lanes_with(trace, SpanKind.KERNEL)) >= 2


def test_a_block_is_recorded_without_a_session():
    import cupy

    x = cupy.ones(1 << 16)
    side = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with gsl.record() as run, side:
        y = x * 2 + 1
    assert float(y[0]) == 3
    assert spans(run.trace, SpanKind.KERNEL)
    assert spans(run.trace, SpanKind.HOST)
    assert "default stream" not in lanes_with(run.trace, SpanKind.KERNEL)
