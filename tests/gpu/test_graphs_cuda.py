"""CUDA graphs on a real GPU, beyond the contract: pools, libraries, partitions, the kernel tier."""

import gc

import cupy
import numpy as np
import pytest

from gpustreamlab import Session
from gpustreamlab.errors import GraphCaptureError
from gpustreamlab.typing import SpanKind
from gpustreamlab.workloads import spin
from tests.helpers.programs import run_alone

SPIN_NS = 200_000
COUNT = 1 << 16


def load_kernels(lab):
    with lab.on(lab.stream("loading")):
        x = cupy.ones(COUNT, "float32")
        y = cupy.sqrt(x * 2 + 1)
        y += x
        float(y.sum())
        spin(lab, 1_000)
    lab.synchronize()


def capture_on(lab, stream, body):
    with lab.on(stream):
        capture = lab._backend.begin_graph(stream._backend_stream)
        try:
            body(capture)
            return capture.instantiate()
        finally:
            capture.abandon()


def test_nobody_is_given_memory_of_a_graph(lab):
    load_kernels(lab)
    stream = lab.stream("a")
    with lab.on(stream):
        x = cupy.ones(COUNT, "float32")
    made = {}

    def body(capture):
        made["address"] = (x * 2).data.ptr  # a temporary that is gone before the launch
        made["out"] = cupy.sqrt(x * 2)

    graph = capture_on(lab, stream, body)
    with lab.on(stream):
        others = [cupy.full(COUNT, 7, "float32") for _ in range(32)]
        assert made["address"] not in {other.data.ptr for other in others}
        graph.launch(stream._backend_stream)
    lab.synchronize()
    assert all(bool((other == 7).all()) for other in others)
    np.testing.assert_allclose(made["out"].get(), np.sqrt(2), rtol=1e-6)
    before = cupy.cuda.runtime.memGetInfo()[0]
    graph.close()
    lab.synchronize()
    made.clear()
    gc.collect()
    assert cupy.cuda.runtime.memGetInfo()[0] >= before
    assert cupy.cuda.get_allocator() == cupy.get_default_memory_pool().malloc


def test_a_broken_capture_leaves_ranges_and_streams_whole(lab):
    load_kernels(lab)
    stream = lab.stream("a")
    with lab.on(stream, "around"):
        capture = lab._backend.begin_graph(stream._backend_stream)
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError) as caught, lab.range("inside"):
            cupy.cuda.get_current_stream().synchronize()
        mapped = lab._backend.map_error(caught.value, "Waiting")
        assert isinstance(mapped, GraphCaptureError), str(mapped)
        with pytest.raises(GraphCaptureError):
            _ = capture.node_count
        with pytest.raises(GraphCaptureError):
            capture.instantiate()
        spin(lab, 1_000)
    lab.synchronize()
    assert [lab.trace.names[code] for code in lab.trace.name] == ["loading", "around"]


def test_a_library_call_that_cupy_does_not_capture_is_a_capture_error(lab):
    load_kernels(lab)
    stream = lab.stream("a")
    with lab.on(stream):
        a = cupy.ones((64, 64), "float32")
        a @ a
        lab.synchronize()
        capture = lab._backend.begin_graph(stream._backend_stream)
        try:
            a @ a
        except Exception as error:
            assert isinstance(lab._backend.map_error(error, "matmul"), GraphCaptureError), error  # noqa: PT017
        finally:
            capture.abandon()
        assert float((a @ a)[0, 0]) == 64


def test_a_graph_keeps_the_partition_of_its_capture(lab):
    lab.partition({"a": 32, "b": "rest"}, round="down")
    load_kernels(lab)
    stream, plain = lab.stream("in-a", partition="a"), lab.stream("plain")
    with lab.capture("kernels"):
        graph = capture_on(lab, stream, lambda capture: spin(lab, SPIN_NS))
        graph.launch(plain._backend_stream)
        lab.synchronize()
    trace = lab.trace
    kernels = [row for row in range(len(trace)) if list(SpanKind)[trace.kind[row]] is SpanKind.KERNEL]
    assert [trace.details[trace.extra["detail"][row]].graph for row in kernels] == [graph.id]
    graph.close()


def test_copies_and_fills_are_nodes_with_numbers(lab):
    load_kernels(lab)
    stream = lab.stream("a")
    host = lab.memory.pinned_empty((COUNT,), "float32")
    host[...] = 2
    with lab.on(stream):
        x = cupy.zeros(COUNT, "float32")

    def body(capture):
        here = cupy.cuda.get_current_stream()
        x.data.memset_async(0, x.nbytes, here)
        # x.set(host) is refused by CuPy while a stream captures.
        cupy.cuda.runtime.memcpyAsync(x.data.ptr, host.ctypes.data, x.nbytes, cupy.cuda.runtime.memcpyHostToDevice, here.ptr)
        cupy.sqrt(x, out=x)
        cupy.cuda.runtime.memcpyAsync(host.ctypes.data, x.data.ptr, x.nbytes, cupy.cuda.runtime.memcpyDeviceToHost, here.ptr)
        assert capture.node_count == 4

    with lab.capture("kernels"):
        graph = capture_on(lab, stream, body)
        lab._recorder.kernels.name_graph(graph.id, [(0, "in"), (2, "out")])
        graph.launch(stream._backend_stream)
        lab.synchronize()
    trace = lab.trace
    rows = [row for row in range(len(trace)) if trace.extra["detail"][row] >= 0]
    work = [(row, trace.details[trace.extra["detail"][row]]) for row in rows]
    parts = {one.node: trace.names[trace.name[trace.parent[row]]] for row, one in work if one.graph == graph.id}
    assert parts == {0: "in", 1: "in", 2: "out", 3: "out"}
    np.testing.assert_allclose(host, np.sqrt(2), rtol=1e-6)
    graph.close()


def test_accesses_of_a_launch_are_noted_on_the_launching_stream():
    with Session("cuda", capture="ranges", hazards="report") as lab:
        load_kernels(lab)
        a, b = lab.stream("a"), lab.stream("b")
        with lab.on(a):
            x = lab.xp.ones(COUNT, "float32")
            lab.xp.add(x, 1, out=x)
        lab.synchronize()
        graph = capture_on(lab, a, lambda capture: lab.xp.add(x, 1, out=x))
        graph.launch(a._backend_stream)
        with lab.on(b):
            y = x + 1
        assert [row.kind.value for row in lab.memory.hazards().hazards] == ["read-after-write"]
        lab.synchronize()
        graph.close()
        del y


_TORCH = """
import torch, gpustreamlab as gsl
x = torch.ones(1 << 16, device="cuda"); (x * 2 + 1).sqrt(); torch.cuda.synchronize()
with gsl.Session("cuda", capture="ranges") as lab:
    a, b = lab.stream("a"), lab.stream("b")
    with lab.on(a):
        capture = lab._backend.begin_graph(a._backend_stream)
        y = x * 2
        address = (y + 5).data_ptr()
        b.wait(a)
        with lab.on(b):
            z = y + 1
        a.wait(b)
        out = (z + y).sqrt()
        graph = capture.instantiate()
    others = [torch.full((1 << 16,), 7.0, device="cuda") for _ in range(32)]
    assert address not in {other.data_ptr() for other in others}
    x.fill_(3.0)
    lab.synchronize(); torch.cuda.synchronize()
    for _ in range(3):
        graph.launch(a._backend_stream)
    lab.synchronize()
    assert torch.allclose(out, torch.full_like(out, 13.0).sqrt()), out[:4]
    assert all(bool((other == 7).all()) for other in others)
    graph.close()
print("fine")
"""


def test_torch_is_captured_with_a_pool_of_its_own():
    assert run_alone(_TORCH, timeout=300).strip().endswith("fine")
