"""My loop uploads, computes and downloads. What does one stream cost?

Work of one stream runs in order, so copies and kernels never run at once.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, copy_to_host

lab = gsl.Session(title="One stream")
shape = (2_900, 2_900)
host_in, host_out = (lab.memory.pinned_empty(shape, "float32") for _ in range(2))
batch, result = lab.xp.ones(shape, "float32"), lab.xp.empty(shape, "float32")
lab.stream("all")
with lab.on("all"):
    lab.xp.matmul(batch, batch, out=result)  # the first one loads the kernel
lab.synchronize()
lab.clear()
for _ in range(8):
    with lab.on("all", "batch"):
        copy_to_device(lab, host_in, batch)
        lab.xp.matmul(batch, batch, out=result)
        copy_to_host(lab, result, host_out)
lab.synchronize()
