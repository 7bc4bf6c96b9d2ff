"""Does watching change what is watched? Patterns of work with nothing on, in a session, in ranges, captured, and afterwards.

Each pattern runs in one process in every state: before gpustreamlab is imported (twice: the second pass is the reference, the
first over the second is the noise), in an open session, on a selected lane, in ranges, with kernels captured, after that, and
after the session has closed. It does so after four preconditions, since what a stream did last decides how the card fetches its
next command. The wall is the host's, from the first call to the return of ``torch.cuda.synchronize()``; the overlap is that of
the device's own timer, stored by the kernels. What the pattern computes is compared bit for bit.

``serialised`` stands for a wall over 1.25 times the reference's where the device's timer agrees: less than 0.8 of the overlap,
or, where a copy has no kernel behind it, a second stream that began at least 0.2 ms later. Without either the wall decides.
A range costs the host a few microseconds: on many streams with short work that is a visible part of the wall, without anything
being serialised (``added_us``). torch.profiler is measured beside it, in a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np
import torch

from bench._common import machine, report

NEEDS_GPU = True
REPEATS = 7
FIRST_USE_REPEATS = 3
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
TORCH_STREAMS = 32  # its pool: more of them are the same streams again
PARTITION_SMS = 64
PARTITIONS = ("p", "q")
_plain_streams: list[Any] = []
PROFILER_LIMIT_S = 120

GRAPH = "CUDA graph"
AFTER_COPY, AFTER_KERNEL, FIRST_USE, STEADY = "after a copy", "after a kernel", "first use", "steady"
PRECONDITIONS = (AFTER_COPY, AFTER_KERNEL, FIRST_USE, STEADY)

NONE_FIRST, NONE, SESSION, SELECTED, RANGES = "none, first pass", "none", "session", "selected", "ranges"
KERNELS, KERNELS_AND_CALLS, AFTER_STOP, AFTER_CLOSE = "kernels", "kernels and calls", "after stop", "after close"
PROFILER, AFTER_PROFILER = "torch.profiler CUDA", "after torch.profiler"
QUIET_STATES = (SESSION, SELECTED, RANGES, AFTER_STOP, AFTER_CLOSE)
RECORDING_STATES = (KERNELS, KERNELS_AND_CALLS)
STATES = (SESSION, SELECTED, RANGES, *RECORDING_STATES, AFTER_STOP, AFTER_CLOSE)

QUIET_GOAL = 1.03
LAUNCH_BOUND_GOAL = 1.25
RECORDING_GOAL = 1.02
SERIALISED_RATIO = 1.25
SERIALISED_OVERLAP = 0.8
LATE_US = 200.0

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

Row = dict[str, Any]
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


# Streams


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


class PlainLanes:
    """Streams of torch, and new ones for what is more than its pool has."""

    def __init__(self) -> None:
        self._streams = [PlainStream.of_torch(torch.cuda.Stream()) for _ in range(TORCH_STREAMS)]
        self._streams += [PlainStream.new() for _ in range(STREAMS - TORCH_STREAMS)]
        self._of_priority: dict[tuple[int, ...], list[PlainStream]] = {}

    @contextmanager
    def arranged(self, pattern: Pattern) -> Iterator[None]:
        """Do nothing: plain streams have the whole card."""
        yield

    def standing(self, pattern: Pattern) -> On:
        """Return what selects the streams that every pattern uses."""
        streams = self._streams
        if pattern.priorities:
            if pattern.priorities not in self._of_priority:
                made = [PlainStream.of_torch(torch.cuda.Stream(priority=priority)) for priority in pattern.priorities]
                self._of_priority[pattern.priorities] = made
            streams = self._of_priority[pattern.priorities]
        return lambda place, label: streams[place]

    @contextmanager
    def fresh(self, pattern: Pattern) -> Iterator[On]:
        """Return what selects streams that are made now, and destroy them at the end."""
        priorities = pattern.priorities or (0,) * pattern.stream_count
        streams = [PlainStream.new(priority) for priority in priorities]
        yield lambda place, label: streams[place]


class SessionLanes:
    """Streams of a session, selected with or without a range around the work."""

    def __init__(self, lab: Any, *, is_ranged: bool) -> None:
        self._lab = lab
        self._is_ranged = is_ranged
        self._numbers = itertools.count()

    @contextmanager
    def arranged(self, pattern: Pattern) -> Iterator[None]:
        """Share out the SMs for a pattern that needs it, and take that back."""
        if not pattern.is_partitioned:
            yield
            return
        self._lab.partition({PARTITIONS[0]: PARTITION_SMS, PARTITIONS[1]: "rest"})
        try:
            yield
        finally:
            for stream in [stream for stream in self._lab.streams.values() if stream.partition is not None]:
                stream.close()
            self._lab.partition(None)

    def standing(self, pattern: Pattern) -> On:
        """Return what selects the streams that every pattern uses."""
        if pattern.is_partitioned:
            return self._on(pattern, "partitioned")
        return self._on(pattern, "priority" if pattern.priorities else "s")

    @contextmanager
    def fresh(self, pattern: Pattern) -> Iterator[On]:
        """Return what selects streams that are made now, and close them at the end."""
        prefix = f"new{next(self._numbers)}."
        try:
            yield self._on(pattern, prefix)
        finally:
            for stream in [stream for name, stream in self._lab.streams.items() if name.startswith(prefix)]:
                stream.close()

    def _on(self, pattern: Pattern, prefix: str) -> On:
        lab, names = self._lab, [f"{prefix}{place}" for place in range(pattern.stream_count)]
        for place, name in enumerate(names):
            options: dict[str, Any] = {}
            if pattern.priorities:
                options["priority"] = pattern.priorities[place]
            if pattern.is_partitioned:
                options["partition"] = PARTITIONS[place]
            lab.stream(name, **options)
        if self._is_ranged:
            return lambda place, label: lab.on(names[place], label)
        return lambda place, label: lab.select(names[place])


Lanes = PlainLanes | SessionLanes


# Measuring


class Bench:
    """All patterns with their buffers, measured in one state after the other."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self.kit = Kit()
        self.plain = PlainLanes()
        self.rows: list[Row] = []
        self._made = [(pattern, self._make(pattern)) for pattern in patterns]

    def _make(self, pattern: Pattern) -> Work | str:
        """Return a pattern that has run twice, or what went wrong."""
        try:
            work = pattern.make(self.kit)
            for _ in range(2):
                work.run(self.plain.standing(pattern))
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - becomes a row; the other patterns go on
            return told(error)
        return work

    def measure(self, state: str, lanes: Lanes, preconditions: Sequence[str] = PRECONDITIONS) -> None:
        """Add a row for each pattern and precondition."""
        began_s = time.perf_counter()
        gc.collect()
        self.kit.wake()
        gc.disable()
        try:
            for pattern, work in self._made:
                self.rows += [self._row(state, lanes, pattern, work, precondition) for precondition in preconditions]
        finally:
            gc.enable()
        print(f"{state}: {time.perf_counter() - began_s:.1f} s", flush=True)

    def fail(self, state: str, error: Exception) -> None:
        """Add a row for a state that could not be had."""
        self.rows.append({"state": state, "pattern": "all", "precondition": "all", "error": told(error)})

    def _row(self, state: str, lanes: Lanes, pattern: Pattern, work: Work | str, precondition: str) -> Row:
        row: Row = {"state": state, "pattern": pattern.name, "precondition": precondition}
        row |= {"streams": pattern.stream_count, "launch_bound": pattern.is_launch_bound}
        if isinstance(work, str):
            return row | {"error": work}
        try:
            with lanes.arranged(pattern):
                return row | self._figures(lanes, pattern, work, precondition)
        except Exception as error:  # noqa: BLE001 - becomes a row; the other patterns go on
            return row | {"error": told(error)}

    def _figures(self, lanes: Lanes, pattern: Pattern, work: Work, precondition: str) -> Row:
        for output in work.outputs:
            output.zero_()
        torch.cuda.synchronize()
        runs = []
        if precondition == FIRST_USE:
            for _ in range(FIRST_USE_REPEATS):
                with lanes.fresh(pattern) as on:
                    runs.append(self._run(work, on))
                    del on  # it holds plain streams, which end with the last who knows them
        else:
            on = lanes.standing(pattern)
            if precondition == STEADY:
                self._run(work, on)
            for repeat in range(REPEATS):
                self.kit.prepare(precondition, repeat, pattern.stream_count, on)
                runs.append(self._run(work, on))
        walls_us, overlaps, seconds_us = zip(*runs, strict=True)
        return {
            "wall_us": round(statistics.median(walls_us), 1),
            "best_us": round(min(walls_us), 1),
            "overlap": _median(overlaps, 3),
            "second_start_us": _median(seconds_us, 1),
            "digest": digest(work.outputs),
        }

    def _run(self, work: Work, on: On) -> tuple[float, float | None, float | None]:
        """Run a pattern once; return its wall, and by the device's timer its overlap and when the second stream began."""
        times = self.kit.times
        torch.cuda.synchronize()
        times[:] = 0
        began_s = time.perf_counter()
        work.run(on)
        torch.cuda.synchronize()
        wall_us = (time.perf_counter() - began_s) * 1e6
        known = [*work.intervals, *([] if work.second is None else [work.second])]
        if any(times[list(interval)].min() == 0 for interval in known):
            raise RuntimeError("A kernel has stored no times, so it did not run.")
        second_us = None if work.second is None else float(times[work.second[1]] - times[work.second[0]]) / 1e3
        return wall_us, overlap_of(times, work.intervals), second_us


def overlap_of(times: np.ndarray[Any, Any], intervals: Sequence[Interval]) -> float | None:
    """Return the sum of the intervals over the time from the first start to the last end."""
    if not intervals:
        return None
    begins, ends = (times[[interval[side] for interval in intervals]] for side in (0, 1))
    return float((ends - begins).sum() / max(ends.max() - begins.min(), 1))


def digest(outputs: Sequence[torch.Tensor]) -> str:
    """Return a digest of some 4,000 numbers of each output."""
    summing = hashlib.sha256()
    for output in outputs:
        flat = output.reshape(-1)
        step = max(flat.numel() // 4_096, 1) | 1  # odd, so that it meets every place of a block
        summing.update(flat[::step].contiguous().cpu().numpy().tobytes())
    return summing.hexdigest()[:16]


def told(error: Exception) -> str:
    """Return an error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _median(values: Sequence[float | None], digits: int) -> float | None:
    known = [value for value in values if value is not None]
    return round(statistics.median(known), digits) if known else None


def measure_observed(bench: Bench, *, is_events_only: bool) -> str:
    """Measure every state, in the order of a session's life; return the library's version."""
    bench.measure(NONE_FIRST, bench.plain)
    bench.measure(NONE, bench.plain)
    if "gpustreamlab" in sys.modules:
        raise RuntimeError("gpustreamlab was imported before the states without it were measured.")
    import gpustreamlab

    lab = gpustreamlab.Session("cuda", capture="ranges")
    try:
        with lab.capture("ranges") if is_events_only else contextlib.nullcontext():
            for name in (f"s{place}" for place in range(STREAMS)):
                lab.stream(name)
            bench.measure(SESSION, bench.plain)
            _begin_anew(lab)
            bench.measure(SELECTED, SessionLanes(lab, is_ranged=False))
            _begin_anew(lab)
            bench.measure(RANGES, SessionLanes(lab, is_ranged=True))
            _begin_anew(lab)
        if not is_events_only:
            for state in RECORDING_STATES:
                _measure_recording(bench, lab, state)
            bench.measure(AFTER_STOP, bench.plain)
    finally:
        lab.close()
    bench.measure(AFTER_CLOSE, bench.plain)
    return str(gpustreamlab.__version__)


def _measure_recording(bench: Bench, lab: Any, state: str) -> None:
    try:
        with lab.capture("kernels", host=state == KERNELS_AND_CALLS) as capture:
            bench.measure(state, SessionLanes(lab, is_ranged=True))
            note = capture.note
        if note:
            bench.fail(state, RuntimeError(f"kernels were not captured: {note}"))
    except Exception as error:  # noqa: BLE001 - becomes a row; the states behind it go on
        bench.fail(state, error)
    _begin_anew(lab)


def _begin_anew(lab: Any) -> None:
    lab.synchronize()
    lab.clear()


def measure_profiler(bench: Bench) -> None:
    """Measure the same without us, under torch.profiler, and after it."""
    bench.measure(NONE, bench.plain, [STEADY])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        bench.measure(PROFILER, bench.plain, [STEADY])
    bench.measure(AFTER_PROFILER, bench.plain, [STEADY])


def child_rows(kind: str, only: str) -> list[Row]:
    """Return what a process of its own measures: with torch.profiler, or what has CUDA graphs.

    Where a graph was launched in a recording, CUPTI stays in the process; what it then costs would be that of all patterns.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "bench.observer", kind, "--only", only, "--json", str(path)]
        try:
            subprocess.run(command, cwd=Path(__file__).resolve().parent.parent, check=True, timeout=PROFILER_LIMIT_S)
            return list(json.loads(path.read_text(encoding="utf-8")))
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            return [{"state": PROFILER, "pattern": "all", "precondition": STEADY, "error": told(error)}]


# Judging


def judge(rows: list[Row]) -> None:
    """Add to each row what it is compared with, and what came out."""
    found = {(row["state"], row["pattern"], row["precondition"]): row for row in rows if "error" not in row}
    partitioned = {pattern.name for pattern in PATTERNS if pattern.is_partitioned}
    for row in found.values():
        with_lanes = row["pattern"] in partitioned and row["state"] in {RANGES, *RECORDING_STATES}
        row["compared_with"] = SELECTED if with_lanes else NONE
        reference = found.get((row["compared_with"], row["pattern"], row["precondition"]))
        if reference is None:
            row["error"] = f"nothing to compare with: {row['compared_with']!r} failed"
            continue
        # The faster of the two passes with nothing on: what is beside it must not look better than it is.
        first = found.get((NONE_FIRST, row["pattern"], row["precondition"]), reference)
        wall_us = min(reference["wall_us"], first["wall_us"]) if row["compared_with"] == NONE else reference["wall_us"]
        row["ratio"] = round(row["wall_us"] / wall_us, 3)
        row["added_us"] = round(row["wall_us"] - wall_us, 1)
        row["equal"] = row["digest"] == reference["digest"]
        row["evidence"], fell = _evidence(row, reference)
        row["serialised"] = row["ratio"] > SERIALISED_RATIO and fell and not row["launch_bound"]
        row["goal"] = goal_of(row)
        row["over_goal"] = row["goal"] is not None and row["ratio"] > row["goal"]


def _evidence(row: Row, reference: Row) -> tuple[str, bool]:
    """Return what tells of work that ran one after the other, and whether it does."""
    if row["overlap"] is not None:
        return "overlap", row["overlap"] < SERIALISED_OVERLAP * reference["overlap"]
    if row["second_start_us"] is not None:
        late = row["second_start_us"] > reference["second_start_us"] + LATE_US
        return "second start", late
    return "wall", True


def goal_of(row: Row) -> float | None:
    """Return what a ratio may be; None where nothing is promised."""
    if row["precondition"] != STEADY:
        return None
    if row["state"] in QUIET_STATES:
        return QUIET_GOAL
    if row["state"] in RECORDING_STATES:
        return LAUNCH_BOUND_GOAL if row["launch_bound"] else RECORDING_GOAL
    return None


def pattern_lines(rows: list[Row], beside: list[Row], states: Sequence[str]) -> list[Row]:
    """Return a line for each pattern: the steady ratio of each state, and the worst of all."""
    lines = []
    for pattern in dict.fromkeys(row["pattern"] for row in rows if row["pattern"] != "all"):
        own = [row for row in rows if row["pattern"] == pattern]
        good = [row for row in own if "ratio" in row]
        steady = {row["state"]: row for row in good if row["precondition"] == STEADY}
        line: Row = {"pattern": pattern, "none, us": steady.get(NONE, {}).get("wall_us", "error")}
        line["noise"] = steady.get(NONE_FIRST, {}).get("ratio", "error")
        line |= {state: steady.get(state, {}).get("ratio", "error") for state in states}
        line |= {
            row["state"]: row.get("ratio", "error") for row in beside if row["pattern"] == pattern and row["state"] != NONE
        }
        watched = [row for row in good if row["state"] in states]
        worst = max(watched, key=lambda row: row["ratio"], default=None)
        line["worst"] = "" if worst is None else f"{worst['ratio']:.2f} {worst['state']}, {worst['precondition']}"
        line["serialised"] = sum(row["serialised"] for row in watched)
        line["equal"] = all(row["equal"] for row in good)
        line["errors"] = sum("error" in row for row in own)
        lines.append(line)
    return lines


def state_lines(rows: list[Row]) -> list[Row]:
    """Return a line for each state: how many rows were serialised, broke a goal, or failed, and the worst ratios."""
    lines = []
    for state in dict.fromkeys(row["state"] for row in rows):
        own = [row for row in rows if row["state"] == state]
        good = [row for row in own if "ratio" in row]
        steady = [row for row in good if row["precondition"] == STEADY]
        line: Row = {"state": state, "rows": len(own), "serialised": sum(row["serialised"] for row in good)}
        line["not equal"] = sum(not row["equal"] for row in good)
        line["steady over goal"] = sum(row["over_goal"] for row in good)
        line["errors"] = sum("error" in row for row in own)
        line["steady, median"] = _median([row["ratio"] for row in steady], 3)
        for title, some in (("steady, worst", steady), ("worst", good)):
            worst = max(some, key=lambda row: row["ratio"], default=None)
            line[title] = "" if worst is None else f"{worst['ratio']:.2f} {worst['pattern']}, {worst['precondition']}"
        lines.append(line)
    return lines


def print_cases(rows: list[Row]) -> None:
    """Print every row that was serialised, is not equal, or broke a goal, with the noise of the same row; and what failed."""
    noises = {(row["pattern"], row["precondition"]): row.get("ratio") for row in rows if row["state"] == NONE_FIRST}
    for title, name, value in (
        ("Serialised", "serialised", True),
        ("Not equal", "equal", False),
        ("Over goal", "over_goal", True),
    ):
        cases = [row for row in rows if row.get(name) is value]
        print(f"\n{title}: {len(cases)}")
        for row in cases:
            shown = {key: row[key] for key in ("ratio", "goal", "added_us", "overlap", "second_start_us", "compared_with")}
            shown["noise"] = noises.get((row["pattern"], row["precondition"]))
            print(f"  {row['pattern']} | {row['state']} | {row['precondition']}: {shown}")
    errors = Counter((row["pattern"], row["error"]) for row in rows if "error" in row)
    print(f"\nErrors: {errors.total()}")
    for (pattern, error), count in errors.items():
        print(f"  {pattern}, {count} rows: {error}")


# Commands


def make_parser() -> argparse.ArgumentParser:
    """Build the parser of the command line."""
    parser = argparse.ArgumentParser(description="Does watching change what is watched?")
    parser.add_argument("--json", type=Path, help="store the figures here")
    parser.add_argument("--events", action="store_true", help="ranges timed by events alone: no state that captures kernels")
    parser.add_argument("--only", default="", help="only patterns with this text in their names")
    parser.add_argument("--profiler", action="store_true", help="measure torch.profiler alone, and store its rows")
    parser.add_argument("--graphs", action="store_true", help="measure patterns with CUDA graphs alone, and store their rows")
    return parser


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and store the figures."""
    began_s = time.perf_counter()
    options = make_parser().parse_args(sys.argv[1:] if argv is None else argv)
    chosen = [pattern for pattern in PATTERNS if options.only in pattern.name]
    has_graphs = any(GRAPH in pattern.name for pattern in chosen)
    if not options.profiler:
        chosen = [pattern for pattern in chosen if (GRAPH in pattern.name) is options.graphs]
    bench = Bench(chosen)
    if options.profiler:
        measure_profiler(bench)
        options.json.write_text(json.dumps(bench.rows), encoding="utf-8")
        return
    version = measure_observed(bench, is_events_only=options.events)
    if options.graphs:
        options.json.write_text(json.dumps(bench.rows), encoding="utf-8")
        return
    rows = bench.rows + (child_rows("--graphs", options.only) if has_graphs and not options.events else [])
    beside = child_rows("--profiler", options.only)
    judge(rows)
    judge(beside)
    states = [state for state in STATES if not options.events or state not in {*RECORDING_STATES, AFTER_STOP}]
    lines, totals = pattern_lines(rows, beside, states), state_lines(rows + [row for row in beside if row["state"] != NONE])
    title = f"{len(lines)} patterns, steady, beside the same with nothing on (goals: {QUIET_GOAL}; recording {RECORDING_GOAL}, "
    title += f"launch-bound {LAUNCH_BOUND_GOAL})"
    report(title, lines, [])
    report("States, over all patterns and preconditions", totals, [])
    print_cases(rows + [row for row in beside if row["state"] != NONE])
    print(f"Took {time.perf_counter() - began_s:.0f} s.")
    if options.json is not None:
        facts = machine()
        facts["versions"] |= {"gpustreamlab, as imported": version, "cuda of torch": torch.version.cuda}
        stored = {"title": title, "machine": facts, "rows": lines, "states": totals, "events_only": options.events}
        stored |= {"measurements": rows, "beside": beside}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    # torch's pinned memory has been on streams that are gone by now; where it is freed, torch would record events on them.
    os._exit(0)
