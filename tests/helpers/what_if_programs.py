"""Programs of two or three streams, to predict at layouts at which they can really be run: the simulated device."""

from gpustreamlab import Session
from gpustreamlab.backends.sim import SimBackend
from gpustreamlab.workloads import spin

SIZES = [16, 24, 32, 48, 64, 80, 96, 112, 132]


class Bench:
    """A session whose arrays are outlines, with tasks to call."""

    def __init__(self, noise=None):
        self.lab = Session(SimBackend(timing_only=True, noise=noise))
        xp = self.lab.xp
        self.big = [xp.empty(1 << 22, "c16") for _ in range(3)]
        self.square = [xp.empty((4096, 4096), "f2") for _ in range(3)]
        self.small = [xp.empty((1024, 1024), "f4") for _ in range(3)]
        self.host = self.lab.memory.pinned_empty(1 << 21, "f4")
        self.device = xp.empty(1 << 21, "f4")
        self.tasks = {
            "fill": lambda: spin(self.lab, 20_000, blocks=132 * 32 * 3),
            "few": lambda: spin(self.lab, 150_000, blocks=40 * 32),
            "add": lambda: xp.add(self.big[0], self.big[1], out=self.big[2]),
            "gemm": lambda: xp.matmul(self.square[0], self.square[1], out=self.square[2]),
            "tile": lambda: xp.matmul(self.small[0], self.small[1], out=self.small[2]),
            "copy": lambda: self.device.set(self.host),
            "layer": self.layer,
        }

    def layer(self):
        self.tasks["tile"]()
        self.tasks["add"]()

    def sweep(self, name, sizes=SIZES, repeats=3):
        return self.lab.sweep(self.tasks[name], sizes, repeats=repeats)

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
