"""The same loop on three streams: how much is hidden?

While one batch is computed, the next one is uploaded and the last one downloaded. Arrows are waits on the device.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin

lab = gsl.Session(title="Three streams")
host_in, host_out = (lab.memory.pinned_empty(1 << 23, "float32") for _ in range(2))
devices = [lab.xp.empty(1 << 23, "float32") for _ in range(8)]
up, compute, down = (lab.stream(name) for name in ("upload", "compute", "download"))
spin(lab, 1, stream=compute)  # the first one is compiled
lab.synchronize()
lab.clear()
for device in devices:
    copy_to_device(lab, host_in, device, stream=up)
    compute.wait(up)
    spin(lab, 700_000, stream=compute)
    down.wait(compute)
    copy_to_host(lab, device, host_out, stream=down)
lab.synchronize()
