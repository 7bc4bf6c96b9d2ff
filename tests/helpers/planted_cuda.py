"""Planted causes that only a GPU has, beside those of `tests.helpers.planted`."""

from __future__ import annotations

import threading
import time

import cupy
import numpy as np

from gpustreamlab import workloads
from gpustreamlab.typing import Cause
from tests.helpers.planted import MB, MS, pair

SPIN = r"""
extern "C" __global__ void %s(long long ns) {
    extern __shared__ char held[];
    long long begin, now;
    asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %%0, %%globaltimer;" : "=l"(now)); } while (now - begin < ns);
    if (ns < 0) held[0] = 1;
}
"""


STREAM = r"""
extern "C" __global__ void stream_add(double4* values, long long count) {
    long long step = gridDim.x * (long long)blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count / 4; i += step) {
        double4 v = values[i];
        values[i] = make_double4(v.x + 1, v.y + 1, v.z + 1, v.w + 1);
    }
}
"""


def spin_kernel(name, shared_bytes=0):
    """Return a kernel of this name that spins for a time, with so much shared memory a block; launched once, so loaded."""
    kernel = cupy.RawKernel(SPIN % name, name)
    kernel.max_dynamic_shared_size_bytes = max(shared_bytes, 48 << 10)
    kernel((1,), (32,), (np.int64(1_000),), shared_mem=shared_bytes)
    cupy.cuda.runtime.deviceSynchronize()
    return kernel


def asleep(lab):
    pair(lab)
    workloads.spin(lab, 2 * MS, stream="a")
    time.sleep(0.005)
    workloads.spin(lab, 2 * MS, stream="b")


def computing(lab):
    pair(lab)
    for _ in range(3):
        workloads.spin(lab, MS, stream="a")
        began = time.perf_counter()
        while time.perf_counter() - began < 0.003:
            pass
        workloads.spin(lab, MS, stream="b")


def asleep_in_ranges(lab):
    pair(lab)
    for _ in range(3):
        with lab.on("a", "load"):
            workloads.spin(lab, 2 * MS)
        time.sleep(0.003)
        with lab.on("b", "step"):
            workloads.spin(lab, MS)


def free(lab):
    pair(lab)
    held = cupy.cuda.runtime.malloc(64 * MB)
    lab.synchronize()
    workloads.spin(lab, 5 * MS, stream="a")
    cupy.cuda.runtime.free(held)
    workloads.spin(lab, 5 * MS, stream="b")


def allocate_pinned(lab):
    pair(lab)
    workloads.spin(lab, 20 * MS, stream="a")
    held = cupy.cuda.runtime.hostAlloc(256 * MB, 0)
    workloads.spin(lab, 20 * MS, stream="b")
    lab.synchronize()
    cupy.cuda.runtime.freeHost(held)


def free_in_a_loop(lab):
    pair(lab)
    held = [cupy.cuda.runtime.malloc(8 * MB) for _ in range(4)]
    lab.synchronize()
    for one in held:
        workloads.spin(lab, 2 * MS, stream="a")
        cupy.cuda.runtime.free(one)
        workloads.spin(lab, 2 * MS, stream="b")
        lab.synchronize()


def full_queue(lab):
    pair(lab)
    workloads.spin(lab, 200 * MS, stream="a")
    for _ in range(1_200):
        workloads.spin(lab, 1_000, stream="a")
    workloads.spin(lab, 10 * MS, stream="b")


def full_queue_of_another_library(lab):
    pair(lab)
    values = cupy.ones(1_000)
    cupy.add(values, 1, out=values)
    lab.synchronize()
    workloads.spin(lab, 200 * MS, stream="a")
    with lab.on("a"):
        for _ in range(1_200):
            cupy.add(values, 1, out=values)
    workloads.spin(lab, 10 * MS, stream="b")


def full_queue_in_a_thread(lab):
    thread = threading.Thread(target=full_queue, args=(lab,))
    thread.start()
    thread.join()


def first_use(lab, call):
    import torch

    pair(lab)
    with lab.on("b"):
        values = torch.rand(1 << 20, device="cuda")
    lab.synchronize()
    workloads.spin(lab, 200 * MS, stream="a")
    with lab.on("b"):
        call(torch, values)
    workloads.spin(lab, 50 * MS, stream="b")


def first_sort(lab):
    first_use(lab, lambda torch, values: torch.sort(values))


def first_histogram(lab):
    first_use(lab, lambda torch, values: torch.histc(values, 64))


def first_cumulative_product(lab):
    first_use(lab, lambda torch, values: torch.cumprod(values, 0))


def no_shared_memory_left(lab):
    pair(lab)
    large, small = spin_kernel("large", 100 << 10), spin_kernel("small", 160 << 10)
    sms = lab.device.sm_count
    with lab.on("a"):
        large((sms,), (64,), (np.int64(3 * MS),), shared_mem=100 << 10)
    with lab.on("b"):
        small((sms,), (64,), (np.int64(3 * MS),), shared_mem=160 << 10)


def hardly_any_shared_memory_left(lab):
    pair(lab)
    large, small = spin_kernel("larger", 110 << 10), spin_kernel("smaller", 130 << 10)
    sms = lab.device.sm_count
    for _ in range(2):
        with lab.on("a"):
            large((sms,), (32,), (np.int64(2 * MS),), shared_mem=110 << 10)
        with lab.on("b"):
            small((sms,), (32,), (np.int64(2 * MS),), shared_mem=130 << 10)
        lab.synchronize()


def no_threads_left(lab):
    pair(lab)
    large, small = spin_kernel("large_threads"), spin_kernel("small_threads")
    sms = lab.device.sm_count
    with lab.on("a"):
        large((3 * sms,), (512,), (np.int64(3 * MS),))
    with lab.on("b"):
        small((sms,), (1024,), (np.int64(3 * MS),))


def sixteen_streams(lab):
    """With CUDA_DEVICE_MAX_CONNECTIONS=1 they share a queue; without, an H200 runs them side by side."""
    for turn in range(16):
        lab.stream(f"s{turn}")
    for turn in range(16):
        for _ in range(3):
            workloads.spin(lab, MS, stream=f"s{turn}")


def blocking_stream_and_default(lab):
    blocking = cupy.cuda.Stream(non_blocking=False)
    kernel = spin_kernel("on_both")
    lab.synchronize()
    with blocking:
        kernel((1,), (32,), (np.int64(3 * MS),))
    with cupy.cuda.Stream.null:
        kernel((1,), (32,), (np.int64(3 * MS),))
    lab.synchronize()


def default_between_blocking_streams(lab):
    first, last = cupy.cuda.Stream(non_blocking=False), cupy.cuda.Stream(non_blocking=False)
    kernel = spin_kernel("on_three")
    lab.synchronize()
    for stream in (first, cupy.cuda.Stream.null, last):
        with stream:
            kernel((1,), (32,), (np.int64(2 * MS),))
    lab.synchronize()


def default_of_torch_and_a_blocking_stream(lab):
    import torch

    values = torch.ones(1 << 28, device="cuda")
    values.mul_(2)
    blocking = cupy.cuda.Stream(non_blocking=False)
    kernel = spin_kernel("beside_torch")
    lab.synchronize()
    lab.clear()
    with blocking:
        kernel((1,), (32,), (np.int64(3 * MS),))
    values.mul_(2)
    with blocking:
        kernel((1,), (32,), (np.int64(3 * MS),))
    lab.synchronize()


def host_function(lab, sleep_ms=5, ms=4):
    pair(lab)
    workloads.spin(lab, ms * MS, stream="a")
    with lab.on("b"):
        workloads.spin(lab, 200_000)
        cupy.cuda.get_current_stream().launch_host_func(lambda _: time.sleep(sleep_ms / 1_000), None)
        workloads.spin(lab, ms * MS)


def long_host_function(lab):
    host_function(lab, 25, 20)


def host_function_in_a_thread(lab):
    thread = threading.Thread(target=host_function, args=(lab, 10, 8))
    thread.start()
    thread.join()


def graph(lab, launches=1, elements=1 << 26):
    """Two kernels of a graph that need not wait for each other, but were captured one behind the other.

    The graph runs the second in a stream of its own, as the first one's has the small kernel that forks off.
    """
    main, side = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    first, second, few = cupy.ones(elements), cupy.ones(elements), cupy.ones(64)
    cupy.sqrt(first, out=first)
    lab.synchronize()
    with main:
        main.begin_capture()
        cupy.sqrt(first, out=first)
        side.wait_event(main.record())
        with side:
            cupy.sqrt(few, out=few)
        cupy.sqrt(second, out=second)
        main.wait_event(side.record())
        captured = main.end_capture()
    lab.clear()
    for _ in range(launches):
        captured.launch(main)
    lab.synchronize()


def large_graph(lab):
    graph(lab, elements=1 << 28)


def graph_in_a_loop(lab):
    graph(lab, launches=4)


def bandwidth_in_a_thread(lab):
    thread = threading.Thread(target=bandwidth, args=(lab, 128 * MB))
    thread.start()
    thread.join()


def bandwidth_of_long_kernels(lab):
    bandwidth(lab, 256 * MB)


def bandwidth(lab, elements=64 * MB):
    pair(lab)
    add = cupy.RawKernel(STREAM, "stream_add")
    arrays = {name: cupy.ones(elements, np.float64) for name in "ab"}
    lab.synchronize()
    lab.clear()

    def launch(name):
        with lab.on(name):
            add((lab.device.sm_count // 2,), (1024,), (arrays[name], np.int64(arrays[name].size)))

    for name in "ab":
        for _ in range(6):
            launch(name)
        lab.synchronize()
    for _ in range(8):
        for name in "ab":
            launch(name)


PLANTED_CUDA = {
    Cause.HOST_LATE: [asleep, computing, asleep_in_ranges],
    Cause.ALLOC_SYNC: [free, allocate_pinned, free_in_a_loop],
    Cause.QUEUE_FULL: [full_queue, full_queue_of_another_library, full_queue_in_a_thread],
    Cause.LAZY_LOAD: [first_sort, first_histogram, first_cumulative_product],
    Cause.SM_RESOURCES: [no_shared_memory_left, hardly_any_shared_memory_left, no_threads_left],
    Cause.LEGACY_STREAM: [
        blocking_stream_and_default,
        default_between_blocking_streams,
        default_of_torch_and_a_blocking_stream,
    ],
    Cause.SLOWED_DOWN: [bandwidth, bandwidth_of_long_kernels, bandwidth_in_a_thread],
    Cause.HOST_FUNC: [host_function, long_host_function, host_function_in_a_thread],
    Cause.GRAPH_ORDER: [graph, large_graph, graph_in_a_loop],
}
