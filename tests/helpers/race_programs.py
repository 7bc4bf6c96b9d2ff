"""Programs of torch, Triton, CuPy, cuBLAS and cuda.core on a GPU, each right, or with one order missing."""

import functools
import threading

import cupy
import numpy as np
import torch
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch
from torch.utils.data import DataLoader, TensorDataset

from bench import _triton_kernels

SIZE = 1 << 20
CODE = r"""
extern "C" __global__ void add_to_part(float* x, long long first, long long n) {
    long long i = first + blockIdx.x * blockDim.x + threadIdx.x;
    if (i < first + n) x[i] += 1;
}
extern "C" __global__ void add_one(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}
extern "C" __global__ void add_through(float** rows, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) rows[0][i] += 1;
}
"""
BLOCKS = (SIZE // 256,), (256,)
MAIN = "default stream"
RAW, WAR, WAW, UAF = "read-after-write", "write-after-read", "write-after-write", "use-after-free"
RACES = {}
"""Programs; what is missing in each where it is not right: the kind, and the streams of the two pieces of work."""
UNFOUND = {}
"""Those whose mistake is not seen, and why."""


def race(kind, first, second):
    """Keep a program, with what it lacks."""

    def keep(program):
        RACES[program] = kind, first, second
        return program

    return keep


class Place:
    """Streams of torch and CuPy, and what programs need."""

    def __init__(self):
        self.s, self.t = torch.cuda.Stream(), torch.cuda.Stream()
        self.c, self.d = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
        self.pinned = torch.ones(SIZE).pin_memory()
        self.kernels = cupy.RawModule(code=CODE)
        self.addresses = []  # Memory in the order of a stream, to be freed at the end

    def close(self):
        """Wait for all work, and free what is left."""
        torch.cuda.synchronize()
        for address in self.addresses:
            cupy.cuda.runtime.freeAsync(address, 0)
        torch.cuda.synchronize()

    def launch(self, name, *arguments):
        """Launch one of the kernels on CuPy's current stream."""
        self.kernels.get_function(name)(*BLOCKS, arguments)

    def lead(self, stream):
        """Return a stream of CuPy as torch has it."""
        return torch.cuda.ExternalStream(stream.ptr)

    @property
    def main(self):
        return torch.cuda.current_stream()

    def on(self, stream):
        return torch.cuda.stream(stream)


def random_ones(*shape, dtype=torch.float32):
    return torch.randn(*(shape or (SIZE,)), device="cuda", dtype=dtype)


@race(RAW, MAIN, "s")
def reads_on_a_side_stream(at, is_right):
    x = random_ones() * 2
    if is_right:
        at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x + 1
    x.record_stream(at.s)
    return x, y


@race(RAW, "s", MAIN)
def changes_in_place(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        x.add_(1)
    if is_right:
        at.main.wait_stream(at.s)
    return x, x * 3


@race(UAF, "s", MAIN)
def frees_too_early(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x * 2
    if is_right:
        x.record_stream(at.s)
    del x
    return y, random_ones()


@race(RAW, "s", MAIN)
def uploads_ahead(at, is_right):
    with at.on(at.s):
        x = at.pinned.to("cuda", non_blocking=True)
    if is_right:
        at.main.wait_event(at.s.record_event())
    x.record_stream(at.main)
    return x, x + 1


@race(RAW, MAIN, "s")
def downloads_too_early(at, is_right):
    x = random_ones()
    host = torch.empty(SIZE, pin_memory=True)
    y = x * 2
    with at.on(at.s):
        if is_right:
            at.s.wait_stream(torch.cuda.default_stream())
        host.copy_(y, non_blocking=True)
    y.record_stream(at.s)
    return x, y, host


@race(RAW, "s", "t")
def multiplies_on_tensor_cores(at, is_right):
    x = random_ones(2_048, 2_048, dtype=torch.bfloat16)
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x @ x
    if is_right:
        at.s.synchronize()
    with at.on(at.t):
        z = y + 1
    return x, y, z


@race(RAW, "s", MAIN)
def replays_a_graph(at, is_right):
    x = random_ones()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2
    torch.cuda.synchronize()
    with at.on(at.s):
        graph.replay()
    if is_right:
        at.main.wait_stream(at.s)
    return x, graph, y, y + 1


@race(WAW, "c", "d")
def works_in_cupy(at, is_right):
    x = cupy.zeros(SIZE, cupy.float32)
    cupy.cuda.Device().synchronize()
    with at.c:
        y = x + 1
    if is_right:
        at.d.wait_event(at.c.record())
    with at.d:
        y *= 2
    return x, y


@race(RAW, "c", "s")
def goes_from_cupy_to_torch(at, is_right):
    x = cupy.zeros(SIZE, cupy.float32)
    cupy.cuda.Device().synchronize()
    with at.c:
        y = x + 1
    if is_right:
        at.c.synchronize()
    with at.on(at.s):
        z = torch.as_tensor(y, device="cuda") * 2
    return x, y, z


@race(RAW, MAIN, "s")
def waits_for_an_event_that_came_too_early(at, is_right):
    x = random_ones()
    early = at.main.record_event()
    y = x * 2
    at.s.wait_event(at.main.record_event() if is_right else early)
    with at.on(at.s):
        z = y + 1
    return x, y, z


@race(RAW, "s", "t")
def waits_for_the_wrong_stream(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = x * 2
    at.t.wait_stream(at.s if is_right else at.main)
    with at.on(at.t):
        z = y + 1
    return x, y, z


def writes_on_two_streams(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    at.t.wait_stream(at.main)
    with at.on(at.s):
        x.fill_(1)
    if is_right:
        at.t.wait_stream(at.s)
    with at.on(at.t):
        x.fill_(2)
    return x


UNFOUND[writes_on_two_streams] = "launches of one function that differ in numbers may use other parts of what they are given"


@race(WAW, "s", "t")
def uploads_twice_into_one_buffer(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        x.copy_(at.pinned, non_blocking=True)
    at.t.wait_stream(at.s if is_right else at.main)
    with at.on(at.t):
        x.copy_(at.pinned, non_blocking=True)
    return x


@race(WAR, MAIN, "s")
def uploads_over_a_batch_in_use(at, is_right):
    buffers, found = [random_ones() for _ in range(2)], []
    at.s.wait_stream(at.main)
    for turn in range(4):
        if is_right:
            at.s.wait_stream(at.main)
        with at.on(at.s):
            buffers[turn % 2].copy_(at.pinned, non_blocking=True)
        at.main.wait_stream(at.s)
        found.append(buffers[turn % 2] * 2)
    return buffers, found


@race(RAW, "s", MAIN)
def loads_batches_of_pinned_memory(at, is_right):
    found = []
    for (batch,) in DataLoader(TensorDataset(torch.ones(4, SIZE // 4)), pin_memory=True):
        with at.on(at.s):
            x = batch.to("cuda", non_blocking=True)
        if is_right:
            at.main.wait_stream(at.s)
        found.append(x * 2)
        x.record_stream(at.main)
    return found


@race(RAW, "s", MAIN)
def enqueues_in_another_thread(at, is_right):
    x, found = random_ones(), []
    at.s.wait_stream(at.main)

    def work():
        with at.on(at.s):
            found.append(x * 2)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if is_right:
        at.main.wait_stream(at.s)
    return x, found, found[0] + 1


@race(UAF, MAIN, "s")
def frees_memory_of_a_side_streams_pool(at, is_right):
    with at.on(at.s):
        x = random_ones()
    at.main.wait_stream(at.s)
    y = x * 2
    if is_right:
        x.record_stream(at.main)
    del x
    with at.on(at.s):
        z = random_ones()
    return y, z


@race(RAW, "s", MAIN)
def adds_to_40_tensors_at_once(at, is_right):
    many = [random_ones(333) for _ in range(40)]
    at.s.wait_stream(at.main)
    with at.on(at.s):
        made = torch._foreach_add(many, 1.0)
    if is_right:
        at.main.wait_stream(at.s)
    return many, made, made[3] * 2


@race(RAW, "s", MAIN)
def attends_on_a_side_stream(at, is_right):
    heads = [random_ones(2, 8, 512, 64, dtype=torch.bfloat16) for _ in range(3)]
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = torch.nn.functional.scaled_dot_product_attention(*heads)
    if is_right:
        at.main.wait_stream(at.s)
    return heads, y, y * 2


@race(RAW, "s", MAIN)
def convolves_on_a_side_stream(at, is_right):
    image, weights = random_ones(8, 64, 56, 56), random_ones(64, 64, 3, 3)
    at.s.wait_stream(at.main)
    with at.on(at.s):
        y = torch.nn.functional.conv2d(image, weights)
    if is_right:
        at.main.wait_stream(at.s)
    return image, weights, y, y * 2


def captured(at):
    """Return a tensor, a graph that doubles it, and where the graph puts that."""
    x = random_ones()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = x * 2
    torch.cuda.synchronize()
    return x, graph, y


@race(WAR, "s", MAIN)
def changes_the_input_of_a_graph(at, is_right):
    x, graph, y = captured(at)
    with at.on(at.s):
        graph.replay()
    if is_right:
        at.main.wait_stream(at.s)
    x.fill_(2)
    return x, graph, y


@race(WAR, MAIN, "s")
def replays_over_a_result_in_use(at, is_right):
    x, graph, y = captured(at)
    with at.on(at.s):
        graph.replay()
    at.main.wait_stream(at.s)
    z = y + 1
    if is_right:
        at.s.wait_stream(at.main)
    with at.on(at.s):
        graph.replay()
    return x, graph, y, z


@functools.cache
def compiled():
    """Return a function that torch has compiled."""
    return torch.compile(lambda x: torch.sin(x) * 2 + 1)


@race(RAW, "s", MAIN)
def runs_what_torch_compiled(at, is_right):
    x = random_ones()
    compiled()(x)
    torch.cuda.synchronize()
    with at.on(at.s):
        y = compiled()(x)
    if is_right:
        at.main.wait_stream(at.s)
    return x, y, y * 2


@race(RAW, "s", "t")
def works_in_triton(at, is_right):
    x, y = random_ones(), random_ones()
    made, last = torch.empty_like(x), torch.empty_like(x)
    at.s.wait_stream(at.main)
    at.t.wait_stream(at.main)
    with at.on(at.s):
        _triton_kernels.launch(x, y, made)
    if is_right:
        at.t.wait_stream(at.s)
    with at.on(at.t):
        _triton_kernels.launch(made, y, last)
    return x, y, made, last


@race(RAW, "s", MAIN)
def changes_in_place_in_triton(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        _triton_kernels.launch(x, x, x)
    if is_right:
        at.main.wait_stream(at.s)
    return x, x + 1


@race(UAF, "d", "c")
def frees_memory_of_cupys_pool(at, is_right):
    with at.c:
        x = cupy.full(SIZE + 4_096, 1, cupy.float32)
    at.d.wait_event(at.c.record())
    with at.d:
        y = x * 2
    if is_right:
        at.c.wait_event(at.d.record())
    del x
    with at.c:
        z = cupy.full(SIZE + 4_096, 2, cupy.float32)
    return y, z


@race(RAW, "c", "d")
def replays_a_graph_of_cupy(at, is_right):
    x = cupy.ones(SIZE, cupy.float32)
    y = cupy.empty_like(x)
    cupy.cuda.Device().synchronize()
    with at.c:
        cupy.add(x, 1, out=y)
        at.c.synchronize()
        at.c.begin_capture()
        cupy.add(x, 1, out=y)
        graph = at.c.end_capture()
    cupy.cuda.Device().synchronize()
    graph.launch(at.c)
    if is_right:
        at.d.wait_event(at.c.record())
    with at.d:
        z = y * 2
    return x, y, z, graph


@race(RAW, "c", "d")
def multiplies_by_cublas(at, is_right):
    x, y = (cupy.ones((512, 512), cupy.float32) for _ in range(2))
    cupy.cuda.Device().synchronize()
    with at.c:
        z = x @ y
    if is_right:
        at.d.wait_event(at.c.record())
    with at.d:
        last = z + 1
    return x, y, z, last


@race(UAF, "d", "c")
def frees_in_the_order_of_a_stream(at, is_right):
    size_bytes = 4 * SIZE
    y = cupy.empty(SIZE, cupy.float32)
    x = cupy.cuda.runtime.mallocAsync(size_bytes, at.c.ptr)
    cupy.cuda.runtime.memsetAsync(x, 0, size_bytes, at.c.ptr)
    at.d.wait_event(at.c.record())
    with at.d:
        at.launch("add_one", np.int64(x), y, np.int32(SIZE))
    if is_right:
        at.c.wait_event(at.d.record())
    cupy.cuda.runtime.freeAsync(x, at.c.ptr)
    again = cupy.cuda.runtime.mallocAsync(size_bytes, at.c.ptr)
    at.addresses.append(again)
    assert again == x, "the pool has given out other memory"
    cupy.cuda.runtime.memsetAsync(again, 0, size_bytes, at.c.ptr)
    return y


@functools.cache
def of_cuda_core():
    """Return a kernel as cuda.core has it."""
    device = Device(0)
    device.set_current()
    arch = f"sm_{cupy.cuda.Device(0).compute_capability}"
    return Program(CODE, "c++", ProgramOptions(arch=arch)).compile("cubin").get_kernel("add_one")


def add_in_cuda_core(stream, x, y):
    """Put one more than is in x into y, both given by their addresses."""
    launch(stream, LaunchConfig(grid=SIZE // 256, block=256), of_cuda_core(), x, y, np.int32(SIZE))


@race(RAW, "c", "d")
def works_in_cuda_core(at, is_right):
    x = cupy.ones(SIZE, cupy.float32)
    y, z = cupy.empty_like(x), cupy.empty_like(x)
    cupy.cuda.Device().synchronize()
    first, second = (Stream.from_handle(stream.ptr) for stream in (at.c, at.d))
    add_in_cuda_core(first, x.data.ptr, y.data.ptr)
    if is_right:
        second.wait(first)
    add_in_cuda_core(second, y.data.ptr, z.data.ptr)
    return x, y, z


@race(RAW, "c", "s")
def goes_from_cuda_core_to_torch(at, is_right):
    x = random_ones()
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    add_in_cuda_core(Stream.from_handle(at.c.ptr), x.data_ptr(), y.data_ptr())
    if is_right:
        at.s.wait_stream(at.lead(at.c))
    with at.on(at.s):
        z = y + 1
    return x, y, z


@race(RAW, "s", "c")
def goes_from_triton_to_cupy(at, is_right):
    x, y = random_ones(), random_ones()
    made = torch.empty_like(x)
    seen = cupy.asarray(made)
    torch.cuda.synchronize()
    with at.on(at.s):
        _triton_kernels.launch(x, y, made)
    if is_right:
        at.lead(at.c).wait_stream(at.s)
    with at.c:
        z = seen * 2
    return x, y, made, seen, z


def writes_the_middle_of_what_is_read(at, is_right):
    x = random_ones()
    at.s.wait_stream(at.main)
    with at.on(at.s):
        x[SIZE // 2 :].mul_(2)
    if is_right:
        at.main.wait_stream(at.s)
    return x, x + 1


UNFOUND[writes_the_middle_of_what_is_read] = "how much a kernel uses behind an address is not known"


def writes_through_pointers_in_memory(at, is_right):
    x = cupy.ones(SIZE, cupy.float32)
    rows = cupy.asarray([x.data.ptr], np.uint64)
    cupy.cuda.Device().synchronize()
    with at.c:
        at.launch("add_through", rows, np.int32(SIZE))
    if is_right:
        at.d.wait_event(at.c.record())
    with at.d:
        y = x * 2
    return x, rows, y


UNFOUND[writes_through_pointers_in_memory] = "pointers in memory are not followed"


def halves_by_addresses(at):
    x = random_ones()
    for stream, half in zip((at.s, at.t), x.chunk(2), strict=True):
        stream.wait_stream(at.main)
        with at.on(stream):
            half.mul_(2)
    at.main.wait_stream(at.s)
    at.main.wait_stream(at.t)
    return x, x.sum()


def halves_by_numbers(at):
    x = cupy.zeros(SIZE, cupy.float32)
    cupy.cuda.Device().synchronize()
    for place, stream in enumerate((at.c, at.d)):
        with stream:
            at.launch("add_to_part", x, np.int64(place * SIZE // 2), np.int64(SIZE // 2))
    return (x,)


def two_that_read(at):
    x = random_ones()
    found = [x]
    for stream in (at.s, at.t):
        stream.wait_stream(at.main)
        with at.on(stream):
            found.append(x * 2)
    return found


def a_blocking_stream_beside_the_default_one(at):
    stream, x = cupy.cuda.Stream(), cupy.zeros(SIZE, cupy.float32)
    with stream:
        y = x + 1
    return x, y, y + 2, stream


CLEAN = (halves_by_addresses, halves_by_numbers, two_that_read, a_blocking_stream_beside_the_default_one)
