"""Kernels in CUDA C++ and workloads on the stream that they are told, with nothing selected; events of a closed session."""

import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import copy_to_device, copy_to_host, matrix_product, spin, spin_card, streaming_add

CODE = """extern "C" __global__ void twice(float* x, int shared_bytes) {
    extern __shared__ float kept[];
    const int last = shared_bytes / sizeof(float) - 1;
    kept[last] = 2;
    x[threadIdx.x] *= kept[last];
}"""


@pytest.fixture
def kernel(lab):
    lab.stream("a"), lab.stream("b")
    return lab.xp.RawKernel(CODE, "twice")


def lanes_of(lab, *names):
    trace, kernels = lab.trace, list(SpanKind).index(SpanKind.KERNEL)
    rows = np.flatnonzero((trace.kind == kernels) & np.isin(trace.name, [trace.names.index(name) for name in names]))
    return [trace.lanes[trace.lane[row]].name for row in rows]


def test_a_raw_kernel_follows_the_selected_stream(lab, kernel):
    x = lab.xp.ones(32, "float32")
    lab.synchronize()
    with lab.capture("kernels"):
        with lab.select("a"):
            kernel((1,), (32,), (x, np.int32(256)), shared_mem=256)
        lab.stream("b").wait(lab.stream("a"))
        with lab.on("b"):
            kernel((1,), (32,), (x, np.int32(256)), shared_mem=256)
        lab.synchronize()
    assert x.get().tolist() == [4.0] * 32
    assert lanes_of(lab, "twice") == ["a", "b"]


def test_workloads_run_where_they_are_told_and_open_no_range(lab):
    lab.stream("a")
    x, y, out = (lab.xp.ones((256, 256), "float32") for _ in range(3))
    host = lab.memory.pinned_empty((256, 256), "float32")
    host[:] = 3
    lab.synchronize()
    with lab.capture("kernels"):
        copy_to_device(lab, host, x, stream="a")
        spin(lab, 1_000, stream="a")
        spin_card(lab, 1_000, stream="a")
        streaming_add(lab, x, y, out, stream="a")
        matrix_product(lab, out, out, y, stream="a")
        copy_to_host(lab, y, host, stream="a")
        lab.synchronize()
    trace = lab.trace
    work = np.flatnonzero(trace.kind != list(SpanKind).index(SpanKind.HOST))
    assert {trace.lanes[trace.lane[row]].name for row in work} == {"a"}
    assert list(SpanKind).index(SpanKind.RANGE) not in trace.kind.tolist()
    assert (host == 256 * 16).all()


def test_events_outlive_their_session_without_harm():
    with Session("cuda") as lab:
        stream = lab.stream("a")
        start, end, never = stream.record(), stream.record(), lab.event()
    assert end.query()
    end.synchronize()
    assert start.elapsed_ns(end) >= 0
    for event in (start, end, never):
        event.close()
