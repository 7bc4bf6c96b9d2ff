"""A million kernels: which turn was slow, and what held it up?

Ten thousand launches of a graph of a hundred kernels, ten in a turn. The page is a cut, to be light here: the longest of a
thousand ranges, with five on each side of it. `whole.timeline()` shows all.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, spin

lab = gsl.Session(title="The longest of a thousand turns", ring_size=1_200_000)
host, device = lab.memory.pinned_empty(1 << 26, "float32"), lab.xp.empty(1 << 26, "float32")
turns, upload = lab.stream("turns"), lab.stream("upload")
with turns.graph() as graph, lab.on(turns):
    [spin(lab, 1_000) for _ in range(100)]
graph.launch(), lab.synchronize(), lab.clear()  # warms up
for turn in range(1_000):
    with lab.on(turns, "turn", step=turn):
        [graph.launch() for _ in range(10)]
        if turn == 700:
            upload.wait(turns)
            with lab.on(upload, "batch"):
                copy_to_device(lab, host, device)
            turns.wait(upload)
            graph.launch()
lab.synchronize()
ranges = (whole := lab.trace).where(kind="range", stream="turns")
slow = int(ranges.duration_ns.argmax())
near = slice(max(0, slow - 5), slow + 6)
trace = whole.between(ranges.start_ns[near][0], ranges.end_ns[near][-1])
