"""Which queue an event waits in: what stands between a copy and a kernel on stream b, while stream a copies 64 MiB.

Stream b works, is waited for, and then gets one command and a kernel of 1 ms. If the command goes into the queue of the copy
engine on which a's copy runs, the kernel begins when that copy has ended, 1.2 ms later; else it begins at once. Everything here
is CUDA's own, through CuPy: gpustreamlab is only asked for the facts of the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench._common import report

NEEDS_GPU = True
COPY_BYTES = 64 << 20
KERNEL_NS = 1_000_000
ROUNDS = 5
FULL_NS = 3_000_000

SPIN = r"""
extern "C" __global__ void spin(long long duration_ns, unsigned long long* began) {
    extern __shared__ char whole_sm[];
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    if (began && blockIdx.x == 0 && threadIdx.x == 0) *began = start;
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while ((long long)(now - start) < duration_ns);
}
extern "C" __global__ void nothing() {}
"""


def main(argv: list[str] | None = None) -> None:
    card = Card()
    commands, priors = card.commands(), card.works()
    rows = []
    for name, command in commands.items():
        row: dict[str, Any] = {"between copy and kernel on b": name}
        for beside in ("upload", "download"):
            for prior, work in priors.items():
                row[f"after {prior}, beside {beside}: kernel begins after us"] = card.begin_us(work, priors[beside], command)
        row["beside a full card: a copy of 64 KiB behind it ends after ms"] = card.behind_full_card_ms(command)
        row["host us"] = card.host_us(command)
        rows.append(row)
    title = f"When a kernel begins on b beside a copy of {COPY_BYTES >> 20} MiB on a (medians of {ROUNDS})"
    report(title, rows, argv)


class Card:
    """Two streams, memory to copy, and kernels that say when they began."""

    def __init__(self) -> None:
        import cupy
        import cupyx

        self.cupy, self.runtime = cupy, cupy.cuda.runtime
        self.host, self.device = cupyx.empty_pinned(COPY_BYTES, np.uint8), cupy.empty(COPY_BYTES, np.uint8)
        self.began = cupyx.empty_pinned(2, np.uint64)
        module = cupy.RawModule(code=SPIN)
        self.spin, self.nothing = module.get_function("spin"), module.get_function("nothing")
        self.spin.max_dynamic_shared_size_bytes = 227 * 1024
        self.a, self.b, self.c = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
        self.done = cupy.cuda.Event(disable_timing=True)
        self.done.record(self.c)
        self.cell = self.runtime.malloc(4)

    def kernel(self, stream: Any, duration_ns: int, slot: int = -1, *, fills: bool = False) -> None:
        """Launch a kernel that runs so long, on one SM or on all, and may store when it began."""
        began = 0 if slot < 0 else self.began[slot:].ctypes.data
        grid, block, shared_bytes = ((132,), (1024,), 227 * 1024) if fills else ((1,), (1,), 0)
        with stream:
            self.spin(grid, block, (np.int64(duration_ns), np.uint64(began)), shared_mem=shared_bytes)

    def copy(self, stream: Any, kind: str, size_bytes: int = COPY_BYTES) -> None:
        """Enqueue an upload or a download."""
        places = (self.device.data.ptr, self.host.ctypes.data)
        if kind == "download":
            places = places[::-1]
        self.runtime.memcpyAsync(*places, size_bytes, 1 if kind == "upload" else 2, stream.ptr)

    def works(self) -> dict[str, Callable[[Any], object]]:
        """Return what a stream may have done last."""
        return {
            "upload": lambda stream: self.copy(stream, "upload"),
            "download": lambda stream: self.copy(stream, "download"),
            "download of 4 bytes": lambda stream: self.copy(stream, "download", 4),
            "kernel": lambda stream: self.kernel(stream, 20_000),
        }

    def commands(self) -> dict[str, Callable[[Any], object]]:
        """Return what may stand between the copy and the kernel."""
        timed, untimed, linked = self.cupy.cuda.Event(), *(self.cupy.cuda.Event(disable_timing=True) for _ in range(2))

        def fill(stream: Any) -> None:
            self.runtime.memsetAsync(self.cell, 0, 4, stream.ptr)

        def empty(stream: Any) -> None:
            with stream:
                self.nothing((1,), (1,), ())

        def on_helper(stream: Any) -> None:
            linked.record(stream)
            self.c.wait_event(linked)
            timed.record(self.c)

        return {
            "nothing": lambda stream: None,
            "event with time": timed.record,
            "event without time": untimed.record,
            "wait for an event that has happened": lambda stream: stream.wait_event(self.done),
            "empty kernel, event with time": lambda stream: (empty(stream), timed.record(stream)),
            "fill of 4 bytes, event with time": lambda stream: (fill(stream), timed.record(stream)),
            "event with time on a helper stream": on_helper,
        }

    def begin_us(
        self, prior: Callable[[Any], object], beside: Callable[[Any], object], command: Callable[[Any], object]
    ) -> float:
        """Return when the kernel on b began, by the device's timer, after the copy on a."""
        found = []
        for _ in range(ROUNDS + 1):
            prior(self.b)
            self.runtime.deviceSynchronize()
            self.kernel(self.a, 1_000, 0)
            beside(self.a)
            command(self.b)
            self.kernel(self.b, KERNEL_NS, 1)
            self.runtime.deviceSynchronize()
            found.append((int(self.began[1]) - int(self.began[0])) / 1e3)
        return round(statistics.median(found[1:]), 1)

    def behind_full_card_ms(self, command: Callable[[Any], object]) -> float:
        """Return when a copy on b has ended while a has all SMs for 3 ms: a command that needs an SM holds it up."""
        found = []
        for _ in range(ROUNDS):
            self.kernel(self.a, FULL_NS, fills=True)
            began_s = time.perf_counter()
            command(self.b)
            self.copy(self.b, "download", 1 << 16)
            self.b.synchronize()
            found.append((time.perf_counter() - began_s) * 1e3)
            self.runtime.deviceSynchronize()
        return round(statistics.median(found), 2)

    def host_us(self, command: Callable[[Any], object]) -> float:
        """Return what the command costs the host."""
        found = []
        for _ in range(ROUNDS):
            self.runtime.deviceSynchronize()
            began_s = time.perf_counter()
            for _ in range(200):
                command(self.b)
            found.append((time.perf_counter() - began_s) / 200 * 1e6)
        return round(statistics.median(found), 2)


if __name__ == "__main__":
    main()
