"""My loop uploads, computes and downloads. What does one stream cost?

Work of one stream runs in order, so copies and kernels never run at once.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin

lab = gsl.Session(title="One stream")
host_in, host_out = (lab.memory.pinned_empty(1 << 23, "float32") for _ in range(2))
device = lab.xp.empty(1 << 23, "float32")
lab.stream("all")
spin(lab, 1, stream="all")  # the first one is compiled
lab.synchronize()
lab.clear()
for _ in range(8):
    with lab.on("all", "batch"):
        copy_to_device(lab, host_in, device)
        spin(lab, 700_000)
        copy_to_host(lab, device, host_out)
lab.synchronize()
