"""The same loop on three streams: how much is hidden?

While one batch is computed, the next one is uploaded and the last one downloaded. Arrows are waits on the device.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, copy_to_host

lab = gsl.Session(title="Three streams")
shape = (2_900, 2_900)
host_in, host_out = (lab.memory.pinned_empty(shape, "float32") for _ in range(2))
batches, results = ([make(shape, "float32") for _ in range(8)] for make in (lab.xp.ones, lab.xp.empty))
up, compute, down = (lab.stream(name) for name in ("upload", "compute", "download"))
with lab.on(compute):
    lab.xp.matmul(batches[0], batches[0], out=results[0])  # the first one loads the kernel
lab.synchronize()
lab.clear()
for batch, result in zip(batches, results, strict=True):
    copy_to_device(lab, host_in, batch, stream=up)
    compute.wait(up)
    with lab.on(compute):
        lab.xp.matmul(batch, batch, out=result)
    down.wait(compute)
    copy_to_host(lab, result, host_out, stream=down)
lab.synchronize()
