"""Programs recorded by ``gpustreamlab record``, in C and in Python, do what they do without it, and all of it is recorded."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.backends.cuda._libcuda import read_gpus
from gpustreamlab.backends.cuda.cupti._buffers import COMPILERS
from gpustreamlab.errors import OptionError
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import EdgeKind, SessionState, SpanKind
from tests.helpers.programs import PATHS

IN_C = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *), cuModuleLoadData(void **, const char *);
int cuModuleGetFunction(void **, void *, const char *), cuStreamCreate(void **, unsigned), cuEventCreate(void **, unsigned);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemHostAlloc(void **, size_t, unsigned), cuCtxSynchronize(void);
int cuEventRecord(void *, void *);
int cuMemcpyHtoDAsync_v2(uint64_t, void *, size_t, void *), cuStreamWaitEvent(void *, void *, unsigned);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int cuDevicePrimaryCtxReset_v2(int);
static const char *code = ".version 6.4\n.target sm_52\n.address_size 64\n.visible .entry twice(.param .u64 p) {\n"
    ".reg .u64 %a; .reg .f32 %f;\nld.param.u64 %a, [p];\nld.global.f32 %f, [%a];\n"
    "add.f32 %f, %f, %f;\nst.global.f32 [%a], %f;\nret;\n}\n";
static void check(int code) { if (code) { fprintf(stderr, "CUDA said %d\n", code); exit(9); } }
int main(int count, char **words)
{
    void *context, *module, *function, *copies, *work, *event, *host;
    uint64_t memory;
    void *arguments[] = {&memory};
    check(cuInit(0)), check(cuDevicePrimaryCtxRetain(&context, 0)), check(cuCtxSetCurrent(context));
    check(cuModuleLoadData(&module, code)), check(cuModuleGetFunction(&function, module, "twice"));
    check(cuStreamCreate(&copies, 1)), check(cuStreamCreate(&work, 1)), check(cuEventCreate(&event, 2));
    check(cuMemAlloc_v2(&memory, 1 << 20)), check(cuMemHostAlloc(&host, 1 << 20, 0));
    for (int step = 0; step < 100; step++) {
        check(cuMemcpyHtoDAsync_v2(memory, host, 1 << 20, copies));
        check(cuEventRecord(event, copies)), check(cuStreamWaitEvent(work, event, 0));
        for (int i = 0; i < 3; i++)
            check(cuLaunchKernel(function, 4, 1, 1, 128, 1, 1, 0, work, arguments, NULL));
    }
    check(cuCtxSynchronize());
    if (count > 1 && !strcmp(words[1], "reset"))
        check(cuDevicePrimaryCtxReset_v2(0));
    if (count > 1 && !strcmp(words[1], "wait"))
        getchar();
    if (count > 1 && !strcmp(words[1], "late"))
        sleep(1), _exit(7);
    return 7;
}
"""
REPLAY = """
import torch

x = torch.ones(1000, device="cuda")
with torch.no_grad():
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x
        for _ in range(20):
            y = y + 1
    for _ in range(50):
        graph.replay()
    print(float(y[3]))
"""

LARGE = """
import torch

side = torch.cuda.Stream()
host = torch.ones(1 << 22).pin_memory()
for step in range(8):
    with torch.cuda.stream(side):
        batch = host.to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(side)
    batch.record_stream(torch.cuda.current_stream())
    y = batch * 2
torch.cuda.synchronize()
"""

INSIDE = """
import torch

with torch.profiler.profile() as profiler:
    y = torch.ones(9, device="cuda") + 1
print(len(profiler.events()) > 0, float(y[1]))
"""


def record(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpustreamlab", "record", "--force", "-o", "run.parquet", *words]
    return subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": PATHS}, capture_output=True, text=True, check=False, timeout=300
    )


def names(trace: gsl.Trace, kind: SpanKind) -> list[str]:
    return [trace.names[code] for code in trace.name[trace.kind == SPAN_KINDS.index(kind)].tolist()]


@pytest.fixture
def program(tmp_path):
    """Compile the program in C."""
    (tmp_path / "program.c").write_text(IN_C)
    compiler = next(filter(None, map(shutil.which, COMPILERS)))
    subprocess.run([compiler, "-o", "program", "program.c", "-l:libcuda.so.1"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("end", ["", "reset", "late"])
def test_a_program_in_c_is_recorded_however_it_ends(tmp_path, program, end):
    done = record(tmp_path, "--", "./program", *filter(None, [end]))
    assert done.returncode == 7, done.stderr
    trace = gsl.load_trace(tmp_path / "run.parquet")
    assert names(trace, SpanKind.KERNEL) == ["twice"] * 300, done.stderr
    assert names(trace, SpanKind.COPY) == ["memcpy HtoD (pinned)"] * 100
    assert trace.metadata.dropped_spans == 0
    assert bool(trace.metadata.recovery_note) == (end == "late")
    assert trace.metadata.device.name == read_gpus()[0].name
    kinds = np.bincount(trace.edges.kind, minlength=3)
    assert kinds[[*EdgeKind].index(EdgeKind.LAUNCH)] == 400
    assert kinds[[*EdgeKind].index(EdgeKind.WAIT)] >= 100
    work = np.isin(trace.kind, [SPAN_KINDS.index(SpanKind.KERNEL), SPAN_KINDS.index(SpanKind.COPY)])
    assert (trace.start_ns[work] + trace.metadata.host_error_ns + 2_000 >= trace.queued_ns[work]).all()


def test_what_work_touches_is_read_from_its_arguments(tmp_path, program):
    done = record(tmp_path, "--", "./program")
    trace = gsl.load_trace(tmp_path / "run.parquet")
    told = trace.accesses
    touching = [trace.names[trace.name[row]] for row in told.span[told.is_write].tolist()]
    assert (touching.count("twice"), touching.count("memcpy HtoD (pinned)")) == (300, 100), done.stderr
    assert len({*told.buffer[told.is_write].tolist()}) == 1, "the memory that both write"
    assert not any("no array asks" in one.fix for one in trace.explain().findings), "the wait for the copy is needed"


def test_two_arrays_of_torch_do_not_hide_each_other(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "large.py").write_text(LARGE)
    done = record(tmp_path, "--", sys.executable, "large.py")
    assert done.returncode == 0, done.stderr
    trace = gsl.load_trace(tmp_path / "run.parquet")
    copies = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.COPY))
    assert np.isin(copies, trace.accesses.span).sum() >= 8, "copies are known exactly"


def test_a_program_in_c_is_followed_while_it_goes_on(tmp_path, program):
    command = [sys.executable, "-m", "gpustreamlab", "record", "--force", "--", "./program", "wait"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": PATHS}, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stderr.readline().partition("recording process ")[2].partition(".")[0])
        followed, pause = None, threading.Event()
        while followed is None or names(followed.trace, SpanKind.KERNEL) != ["twice"] * 300:
            assert process.poll() is None
            with suppress(OptionError):  # nothing is in its file yet
                followed = followed or gsl.live(pid)
            pause.wait(0.1)
        assert len(names(followed.trace, SpanKind.COPY)) == 100
        process.communicate("\n")
        while followed.state is SessionState.OPEN:
            pause.wait(0.1)
    assert len(names(followed.trace, SpanKind.KERNEL)) == 300


@pytest.mark.parametrize(("graphs", "count"), [("nodes", 1_000), ("whole", 50)])
def test_replays_of_torch_are_recorded_by_kernels_or_as_a_whole(tmp_path, graphs, count):
    (tmp_path / "replay.py").write_text(REPLAY)
    done = record(tmp_path, "--graphs", graphs, "--", sys.executable, "replay.py")
    assert (done.returncode, done.stdout) == (0, "21.0\n"), done.stderr
    trace = gsl.load_trace(tmp_path / "run.parquet")
    # x was filled by a kernel of that name, too; torch fills what it keeps for random numbers by others
    looked_for = "(whole)" if graphs == "whole" else "vectorized_elementwise_kernel<4>"
    replayed = [name for name in names(trace, SpanKind.KERNEL) if name.endswith(looked_for)]
    assert len(replayed) == count + (graphs == "nodes"), done.stderr


def test_torch_profiler_inside_works_on_the_host(tmp_path):
    (tmp_path / "inside.py").write_text(INSIDE)
    done = record(tmp_path, "--", sys.executable, "inside.py")
    assert (done.returncode, done.stdout) == (0, "True 2.0\n"), done.stderr
