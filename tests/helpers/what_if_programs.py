"""Programs of two or three streams, to predict at layouts at which they can really be run: the simulated device."""

import random
from dataclasses import replace

import numpy as np

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend, plan_matmul, plan_streaming
from gpustreamlab.workloads import spin

SIZES = [16, 24, 32, 48, 64, 80, 96, 112, 132]


class Bench:
    """A session with tasks to call: kernels that are planned as those of arrays, with nothing to compute.

    With `spread` each launch takes its own time, log-normal around what it is without; the same in each bench.
    """

    def __init__(self, spread=0.0):
        self.backend = SimBackend()
        self.lab = Session(self.backend)
        self.spread, self.random = spread, random.Random(3)
        self.host = self.lab.memory.pinned_empty(1 << 21, "f4")
        self.device = self.lab.xp.empty(1 << 21, "f4")
        preset, adding = self.backend.preset, {"operations": 2 << 22, "dtype": np.dtype("c16")}
        add = plan_streaming(preset, "add", size_bytes=3 << 26, **adding)
        gemm, tile = (
            plan_matmul(preset, "matmul", m=side, n=side, k=side, batch=1, dtype=np.dtype(kind))
            for side, kind in ((4096, "f2"), (1024, "f4"))
        )
        self.tasks = {
            "fill": lambda: spin(self.lab, self.vary(20_000), blocks=132 * 32 * 3),
            "few": lambda: spin(self.lab, self.vary(150_000), blocks=40 * 32),
            "add": lambda: self.launch(add),
            "gemm": lambda: self.launch(gemm),
            "tile": lambda: self.launch(tile),
            "copy": lambda: self.device.set(self.host),
            "layer": self.layer,
        }

    def vary(self, *numbers):
        factor = self.random.lognormvariate(0, self.spread)
        varied = [round(number * factor) for number in numbers]
        return varied if len(varied) > 1 else varied[0]

    def launch(self, spec):
        block_ns, block_bytes = self.vary(spec.block_ns, spec.block_bytes)
        self.backend.launch_kernel(self.backend.selected_stream, replace(spec, block_ns=block_ns, block_bytes=block_bytes))

    def layer(self):
        self.tasks["tile"]()
        self.tasks["add"]()

    def sweep(self, name, sizes=SIZES, repeats=3):
        return self.lab.bench.sweep(self.tasks[name], sizes, repeats=repeats)

    def run(self, program, layout):
        """Return the trace of a program with a layout, None for the whole card."""
        lab = self.lab
        lab.synchronize()
        names = sorted({step[0] for step in program})
        if layout is not None:
            lab.partition(layout)
        streams = {
            name: lab.stream(f"{name}", partition=name if layout is not None and name in layout else None) for name in names
        }
        lab.synchronize()
        lab.clear()
        done = {}
        for stream, task, *after in program:
            for other in after:
                streams[stream].wait(done[other])
            with lab.on(stream, task):
                self.tasks[task]()
            done[stream] = streams[stream].record()
        lab.synchronize()
        return lab.trace


def independent(first, second, counts=(6, 6)):
    return [("a", first)] * counts[0] + [("b", second)] * counts[1]


PROGRAMS = {
    "spins beside adds": independent("fill", "add", (6, 12)),
    "products beside adds": independent("gemm", "add", (4, 10)),
    "adds beside adds": independent("add", "add", (8, 8)),
    "products beside layers": independent("gemm", "layer", (3, 12)),
    "a chain across streams": [step for _ in range(4) for step in (("a", "gemm", *("b",) * bool(_)), ("b", "add", "a"))],
    "copies feed products": [
        step for _ in range(5) for step in (("c", "copy"), ("a", "gemm", "c"), ("b", "add"), ("b", "few"))
    ],
    "three tasks": [("a", "gemm"), ("b", "add"), ("c", "few"), ("c", "fill")] * 4,
}
