"""Ways to use streams whose course must not change where somebody watches: the patterns that `bench.observer` measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import cupy
import numpy as np
import torch

KERNEL_NS = 1_000_000
SHORT_NS = 1_000
COPY_BYTES = 32 << 20  # 0.6 ms from or to pinned memory
PIECE_BYTES = 8 << 20
DEVICE_BYTES = 512 << 20  # copies within the card are that fast
PAGEABLE_BYTES = 4 << 20
SMALL_BYTES = 1 << 20
TRITON_SIZE = 1 << 26
SLOTS = 64
SPARE_SLOT = SLOTS - 1
STREAMS = 40
PARTITION_SMS = 64
_plain_streams: list[Any] = []

GRAPH = "CUDA graph"
AFTER_COPY, AFTER_KERNEL, FIRST_USE, STEADY = "after a copy", "after a kernel", "first use", "steady"
PRECONDITIONS = (AFTER_COPY, AFTER_KERNEL, FIRST_USE, STEADY)

SOURCE = r"""
__device__ __forceinline__ unsigned long long global_timer() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

// Each block is busy for duration_ns and changes its number in data; block 0 stores when it began and ended.
extern "C" __global__ void spin(long long duration_ns, unsigned long long* began_ended, float* data) {
    const unsigned long long began = global_timer();
    unsigned long long now = began;
    while (static_cast<long long>(now - began) < duration_ns) now = global_timer();
    if (threadIdx.x != 0) return;
    if (data) data[blockIdx.x] = data[blockIdx.x] * 0.5f + 1.0f;
    if (blockIdx.x == 0) {
        began_ended[0] = began;
        began_ended[1] = global_timer();
    }
}
"""

On = Callable[[int, str], AbstractContextManager[Any]]
"""Selects the stream of a number for CuPy and torch, with a label for what runs there."""
Interval = tuple[int, int]
"""Places in the kit's times: where something began and where it ended."""


class Kit:
    """The kernel that times itself, where it stores its times, and the buffers of the preconditions."""

    def __init__(self) -> None:
        self._spin = cupy.RawModule(code=SOURCE).get_function("spin")
        # A module of its own: the attribute below would change every launch of the shared function.
        self._filling = cupy.RawModule(code=SOURCE).get_function("spin")
        self._shared_bytes = int(cupy.cuda.Device(0).attributes["MaxSharedMemoryPerBlockOptin"])
        self._filling.max_dynamic_shared_size_bytes = self._shared_bytes
        self.sm_count = torch.cuda.get_device_properties(0).multi_processor_count
        self._slots = torch.zeros(2 * SLOTS, dtype=torch.int64).pin_memory()
        self.times = self._slots.numpy()
        self._random = torch.Generator().manual_seed(0)
        self._small = [(self.pinned(SMALL_BYTES), self.on_device(SMALL_BYTES)) for _ in range(STREAMS)]

    def slot(self, number: int) -> int:
        """Return the address at which a kernel stores its two times."""
        return self._slots.data_ptr() + 16 * number

    def spin(self, slot: int, duration_ns: int, data: int = 0, *, blocks: int = 1, is_filling: bool = False) -> None:
        """Launch the kernel on the current stream; with `is_filling` each of its blocks needs a whole SM."""
        arguments = (np.int64(duration_ns), np.uint64(self.slot(slot)), np.uint64(data))
        if is_filling:
            self._filling((blocks,), (1,), arguments, shared_mem=self._shared_bytes)
        else:
            self._spin((blocks,), (1,), arguments)

    def pinned(self, size_bytes: int) -> torch.Tensor:
        """Return page-locked random numbers."""
        return torch.rand(size_bytes // 4, generator=self._random).pin_memory()

    def on_device(self, size_bytes: int) -> torch.Tensor:
        """Return random numbers on the card."""
        return torch.rand(size_bytes // 4, generator=self._random).cuda()

    def prepare(self, precondition: str, repeat: int, stream_count: int, on: On) -> None:
        """Give every stream of a pattern its last work; nothing where it was the pattern itself."""
        for place in range(stream_count if precondition in {AFTER_COPY, AFTER_KERNEL} else 0):
            with on(place, "before"):
                if precondition == AFTER_KERNEL:
                    self.spin(SPARE_SLOT, SHORT_NS)
                    continue
                host, device = self._small[place]
                if repeat % 2:
                    host.copy_(device, non_blocking=True)
                else:
                    device.copy_(host, non_blocking=True)

    def wake(self) -> None:
        """Keep the card busy for 0.25 s: one that was idle fetches its commands slowly for a while."""
        for _ in range(250):
            self.spin(SPARE_SLOT, KERNEL_NS)
        torch.cuda.synchronize()


class Work(NamedTuple):
    """A pattern with its buffers."""

    run: Callable[[On], None]
    """Enqueues it once."""
    outputs: Sequence[torch.Tensor]
    """What it computes; set to zero before the first of several runs."""
    intervals: Sequence[Interval] = ()
    """What the device's timer tells of, for the overlap."""
    second: Interval | None = None
    """From the first work's start to that of another stream's, for the time in between."""


class Pattern(NamedTuple):
    """A way to use streams."""

    name: str
    stream_count: int
    make: Callable[[Kit], Work]
    is_launch_bound: bool = False
    priorities: tuple[int, ...] = ()
    is_partitioned: bool = False
    """Whether its streams have SMs of their own, where lanes are used."""


def kernel_time(slot: int) -> Interval:
    """Return the interval of a kernel."""
    return 2 * slot, 2 * slot + 1


def between(front: int, behind: int) -> Interval:
    """Return the interval between two kernels of a stream."""
    return 2 * front + 1, 2 * behind


def starts(first: int, second: int) -> Interval:
    """Return the interval from the start of one kernel to that of another."""
    return 2 * first, 2 * second


class Handle:
    """Lends a stream to CuPy by its address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the address."""
        return 0, self._address


class PlainStream:
    """A stream that no session has to do with; in a ``with`` block it is current in torch and in CuPy."""

    def __init__(self, torch_stream: Any, cupy_stream: Any) -> None:
        self.cupy = cupy_stream
        self._torch_context = torch.cuda.stream(torch_stream)

    @classmethod
    def of_torch(cls, stream: Any) -> PlainStream:
        """Return a stream of torch."""
        return cls(stream, cupy.cuda.Stream.from_external(Handle(stream.cuda_stream)))

    @classmethod
    def new(cls, priority: int = 0) -> PlainStream:
        """Return one that is made now: torch takes its own out of a pool. It is destroyed with this object."""
        stream = cupy.cuda.Stream(non_blocking=True, priority=priority)
        _plain_streams.append(stream)  # torch's pinned memory was there: it would end the process to destroy it
        return cls(torch.cuda.ExternalStream(stream.ptr), stream)

    def __enter__(self) -> None:
        self._torch_context.__enter__()
        self.cupy.__enter__()

    def __exit__(self, *error: object) -> None:
        self.cupy.__exit__(*error)
        self._torch_context.__exit__(*error)


# Patterns of kernels


def kernels(
    blocks: Sequence[int], duration_ns: int = KERNEL_NS, *, is_filling: bool = False, share: float = 0.0
) -> Callable[[Kit], Work]:
    """Return what makes a kernel on each stream, of so many blocks each; `share` is that of the card's SMs instead."""

    def make(kit: Kit) -> Work:
        counts = [int(kit.sm_count * share) if share else count for count in blocks]
        data = torch.zeros(len(counts), kit.sm_count, device="cuda")
        pointers = [row.data_ptr() for row in data]

        def run(on: On) -> None:
            for place, count in enumerate(counts):
                with on(place, "kernel"):
                    kit.spin(place, duration_ns, pointers[place], blocks=count, is_filling=is_filling)

        return Work(run, [data], [kernel_time(place) for place in range(len(counts))], starts(0, 1))

    return make


def make_partitions(kit: Kit) -> Work:
    """Make a kernel for each of two partitions, with a block for each SM."""
    return kernels((PARTITION_SMS, kit.sm_count - PARTITION_SMS), is_filling=True)(kit)


def make_priorities(kit: Kit) -> Work:
    """Make four kernels that fill the card, and one that should overtake them."""
    data = torch.zeros(2, kit.sm_count, device="cuda")
    low, high = (row.data_ptr() for row in data)

    def run(on: On) -> None:
        with on(0, "low"):
            for slot in range(4):
                kit.spin(slot, 250_000, low, blocks=kit.sm_count, is_filling=True)
        with on(1, "high"):
            kit.spin(4, 250_000, high, blocks=kit.sm_count, is_filling=True)

    return Work(run, [data], [kernel_time(slot) for slot in range(5)], starts(0, 4))


def make_waits(kit: Kit) -> Work:
    """Make two streams that wait for each other in turn, beside a third."""
    data = torch.zeros(3, device="cuda")
    pointers = [row.data_ptr() for row in data]
    events = [torch.cuda.Event() for _ in range(6)]

    def run(on: On) -> None:
        with on(2, "beside"):
            kit.spin(6, 6 * 100_000, pointers[2])
        for step, event in enumerate(events):
            with on(step % 2, "step"):
                if step:
                    torch.cuda.current_stream().wait_event(events[step - 1])
                kit.spin(step, 100_000, pointers[step % 2])
                event.record()

    return Work(run, [data], [kernel_time(slot) for slot in range(7)], starts(6, 0))


def make_graph(kit: Kit) -> Work:
    """Make a CUDA graph, captured now and replayed beside a kernel."""
    data = torch.zeros(3, device="cuda")
    pointers = [row.data_ptr() for row in data]
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    kit.spin(0, SHORT_NS)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream), PlainStream.of_torch(stream).cupy:
        kit.spin(0, KERNEL_NS // 2, pointers[0])
        data[2:].add_(1)
        kit.spin(1, KERNEL_NS // 2, pointers[0])
    torch.cuda.synchronize()

    def run(on: On) -> None:
        with on(0, "graph"):
            graph.replay()
        with on(1, "kernel"):
            kit.spin(2, KERNEL_NS, pointers[1])

    return Work(run, [data], [kernel_time(slot) for slot in range(3)], starts(0, 2))


# Patterns with copies

Copy = Callable[[Kit], tuple[Callable[[], object], list[torch.Tensor]]]
"""Makes what enqueues a copy, and what it writes."""


def upload(kit: Kit) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """Make a copy from pinned memory."""
    host, device = kit.pinned(COPY_BYTES), kit.on_device(COPY_BYTES)
    return lambda: device.copy_(host, non_blocking=True), [device]


def download(kit: Kit) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """Make a copy to pinned memory."""
    host, device = kit.pinned(COPY_BYTES), kit.on_device(COPY_BYTES)
    return lambda: host.copy_(device, non_blocking=True), [host]


def pageable_download(kit: Kit) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """Make a copy to memory that is not page-locked: the host waits for it."""
    device = kit.on_device(PAGEABLE_BYTES)
    host = torch.zeros(device.numel())
    return lambda: host.copy_(device), [host]


def device_copy(_: Kit) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """Make a copy within the card."""
    source = torch.arange(DEVICE_BYTES // 4, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source, non_blocking=True), [target]


def peer_copy(_: Kit) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """Make a copy from the card to itself by the call for copies between cards."""
    source = torch.arange(DEVICE_BYTES // 4, dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)

    def enqueue() -> None:
        stream = torch.cuda.current_stream().cuda_stream
        cupy.cuda.runtime.memcpyPeerAsync(target.data_ptr(), 0, source.data_ptr(), 0, DEVICE_BYTES, stream)

    return enqueue, [target]


def fill(_: Kit) -> tuple[Callable[[], object], list[torch.Tensor]]:
    """Make a fill of device memory."""
    target = torch.empty(DEVICE_BYTES // 4, dtype=torch.int32, device="cuda")

    def enqueue() -> None:
        cupy.cuda.runtime.memsetAsync(target.data_ptr(), 7, DEVICE_BYTES, torch.cuda.current_stream().cuda_stream)

    return enqueue, [target]


def beside_kernel(
    copy: Copy, duration_ns: int = KERNEL_NS, *, has_tail: bool = False, is_kernel_first: bool = False
) -> Callable[[Kit], Work]:
    """Return what makes a copy beside a kernel; with `has_tail`, a kernel behind the copy tells when it ended."""

    def make(kit: Kit) -> Work:
        enqueue, outputs = copy(kit)
        data = torch.zeros(1, device="cuda")

        def copying(on: On) -> None:
            with on(0, "copy"):
                kit.spin(0, SHORT_NS)
                enqueue()
                if has_tail:
                    kit.spin(1, SHORT_NS)

        def computing(on: On) -> None:
            with on(1, "kernel"):
                kit.spin(2, duration_ns, data.data_ptr())

        parts = [computing, copying] if is_kernel_first else [copying, computing]

        def run(on: On) -> None:
            for part in parts:
                part(on)

        intervals = [between(0, 1), kernel_time(2)] if has_tail else []
        return Work(run, [*outputs, data], intervals, starts(2, 0) if is_kernel_first else starts(0, 2))

    return make


def two_copies(first: Copy, second: Copy, *, has_tail: bool = False) -> Callable[[Kit], Work]:
    """Return what makes two copies on two streams."""

    def make(kit: Kit) -> Work:
        made = [first(kit), second(kit)]

        def run(on: On) -> None:
            for place, (enqueue, _) in enumerate(made):
                with on(place, "copy"):
                    kit.spin(2 * place, SHORT_NS)
                    enqueue()
                    if has_tail:
                        kit.spin(2 * place + 1, SHORT_NS)

        intervals = [between(0, 1), between(2, 3)] if has_tail else []
        return Work(run, [output for _, outputs in made for output in outputs], intervals, starts(0, 2))

    return make


def pipelines(*, is_breadth_first: bool) -> Callable[[Kit], Work]:
    """Return what makes an upload, a kernel and a download on each of four streams, step by step or stream by stream."""

    def make(kit: Kit) -> Work:
        inputs, outputs = ([kit.pinned(PIECE_BYTES) for _ in range(4)] for _ in range(2))
        devices = [kit.on_device(PIECE_BYTES) for _ in range(4)]
        steps: dict[str, Callable[[int], object]] = {
            "upload": lambda place: devices[place].copy_(inputs[place], non_blocking=True),
            "kernel": lambda place: kit.spin(place, KERNEL_NS // 2, devices[place].data_ptr(), blocks=32),
            "download": lambda place: outputs[place].copy_(devices[place], non_blocking=True),
        }
        order = [(place, label) for label in steps for place in range(4)] if is_breadth_first else []
        order = order or [(place, label) for place in range(4) for label in steps]

        def run(on: On) -> None:
            for place, label in order:
                with on(place, label):
                    steps[label](place)

        return Work(run, outputs, [kernel_time(place) for place in range(4)], starts(0, 1))

    return make


# Patterns of libraries


def on_two_streams(kit: Kit, calls: Sequence[Callable[[], object]], outputs: Sequence[torch.Tensor]) -> Work:
    """Return calls of a library on two streams, each between two kernels that tell when it began and ended."""

    def run(on: On) -> None:
        for place, call in enumerate(calls):
            with on(place, "call"):
                kit.spin(2 * place, SHORT_NS)
                call()
                kit.spin(2 * place + 1, SHORT_NS)

    return Work(run, outputs, [between(0, 1), between(2, 3)], starts(0, 2))


def make_cupy_elementwise(kit: Kit) -> Work:
    """Make square roots of CuPy."""
    source = torch.arange(TRITON_SIZE, dtype=torch.float32, device="cuda")
    targets = [torch.empty_like(source) for _ in range(2)]
    x, outs = cupy.asarray(source), [cupy.asarray(target) for target in targets]
    return on_two_streams(kit, [lambda: cupy.sqrt(x, out=outs[0]), lambda: cupy.sqrt(x, out=outs[1])], targets)


def make_triton(kit: Kit) -> Work:
    """Make a kernel written in Triton."""
    from bench import _triton_kernels

    x = torch.arange(TRITON_SIZE, dtype=torch.float32, device="cuda")
    y = torch.ones_like(x)
    outs = [torch.empty_like(x) for _ in range(2)]
    calls = [lambda: _triton_kernels.launch(x, y, outs[0]), lambda: _triton_kernels.launch(x, y, outs[1])]
    return on_two_streams(kit, calls, outs)


def make_cuda_core(kit: Kit) -> Work:
    """Make launches of cuda.core, which are told their stream."""
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, Stream, launch

    Device(0).set_current()
    arch = f"sm_{cupy.cuda.Device(0).compute_capability}"
    kernel = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin").get_kernel("spin")
    config = LaunchConfig(grid=32, block=1)
    data = torch.zeros(2, 32, device="cuda")
    pointers = [row.data_ptr() for row in data]

    def run(on: On) -> None:
        for place, pointer in enumerate(pointers):
            with on(place, "launch"):
                stream = Stream.from_handle(torch.cuda.current_stream().cuda_stream)
                launch(stream, config, kernel, np.int64(KERNEL_NS), kit.slot(place), pointer)

    return Work(run, [data], [kernel_time(0), kernel_time(1)], starts(0, 1))


def make_torch_launches(_: Kit) -> Work:
    """Make many small launches of torch."""
    x = torch.zeros(64, device="cuda")

    def run(on: On) -> None:
        with on(0, "launches"):
            for _ in range(2_000):
                x.add_(1)

    return Work(run, [x])


def make_cupy_launches(_: Kit) -> Work:
    """Make many small launches of CuPy."""
    target = torch.zeros(64, device="cuda")
    x = cupy.asarray(target)

    def run(on: On) -> None:
        with on(0, "launches"):
            for _ in range(1_000):
                cupy.add(x, 1, out=x)

    return Work(run, [target])


PATTERNS = (
    Pattern("upload beside a kernel", 2, beside_kernel(upload)),
    Pattern("download beside a kernel", 2, beside_kernel(download)),
    Pattern("upload beside a download", 2, two_copies(upload, download, has_tail=True)),
    Pattern("uploads on 2 streams", 2, two_copies(upload, upload)),
    Pattern("device copy beside a kernel", 2, beside_kernel(device_copy, KERNEL_NS // 2, has_tail=True)),
    Pattern("peer copy to itself beside a kernel", 2, beside_kernel(peer_copy, KERNEL_NS // 2, has_tail=True)),
    Pattern("fill beside a kernel", 2, beside_kernel(fill, KERNEL_NS // 2, has_tail=True)),
    Pattern("pageable download beside a kernel", 2, beside_kernel(pageable_download, is_kernel_first=True)),
    Pattern("4 pipelines, breadth first", 4, pipelines(is_breadth_first=True)),
    Pattern("4 pipelines, depth first", 4, pipelines(is_breadth_first=False)),
    *(Pattern(f"one-block kernels on {count} streams", count, kernels((1,) * count)) for count in (2, 8, 16, 32, 40)),
    Pattern("kernels that fill the card on 2 streams", 2, kernels((0, 0), 500_000, is_filling=True, share=1.0)),
    Pattern("kernels of half the card on 2 streams", 2, kernels((0, 0), is_filling=True, share=0.5)),
    Pattern("kernels of 1 to 132 blocks on 6 streams", 6, kernels((1, 16, 33, 66, 99, 132))),
    Pattern("waits between streams", 3, make_waits),
    Pattern("CUDA graph beside a kernel", 2, make_graph),
    Pattern("2 partitions", 2, make_partitions, is_partitioned=True),
    Pattern("streams of 2 priorities", 2, make_priorities, priorities=(0, -1)),
    Pattern("CuPy elementwise on 2 streams", 2, make_cupy_elementwise),
    Pattern("Triton kernel on 2 streams", 2, make_triton),
    Pattern("cuda.core launches on 2 streams", 2, make_cuda_core),
    Pattern("2,000 small launches of torch", 1, make_torch_launches, is_launch_bound=True),
    Pattern("1,000 small launches of CuPy", 1, make_cupy_launches, is_launch_bound=True),
)
