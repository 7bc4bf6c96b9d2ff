"""Planted causes that only a GPU has, beside those of `tests.helpers.planted`."""

from __future__ import annotations

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


def first_sort(lab):
    import torch

    pair(lab)
    with lab.on("b"):
        values = torch.rand(1 << 20, device="cuda")
    lab.synchronize()
    workloads.spin(lab, 200 * MS, stream="a")
    with lab.on("b"):
        torch.sort(values)
    workloads.spin(lab, 50 * MS, stream="b")


def no_shared_memory_left(lab):
    pair(lab)
    large, small = spin_kernel("large", 100 << 10), spin_kernel("small", 160 << 10)
    sms = lab.device.sm_count
    with lab.on("a"):
        large((sms,), (64,), (np.int64(3 * MS),), shared_mem=100 << 10)
    with lab.on("b"):
        small((sms,), (64,), (np.int64(3 * MS),), shared_mem=160 << 10)


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


def bandwidth(lab):
    pair(lab)
    add = cupy.RawKernel(STREAM, "stream_add")
    arrays = {name: cupy.ones(64 * MB, np.float64) for name in "ab"}
    lab.synchronize()

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
    Cause.QUEUE_FULL: [full_queue],
    Cause.LAZY_LOAD: [first_sort],
    Cause.SM_RESOURCES: [no_shared_memory_left, no_threads_left],
    Cause.LEGACY_STREAM: [blocking_stream_and_default],
    Cause.SLOWED_DOWN: [bandwidth],
}
