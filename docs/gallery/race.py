"""Is a wait missing?

The filter reads what the upload writes, and nothing orders the two. Both ranges have a sign; the drawer has the line to add.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device

lab = gsl.Session(title="A missing wait", hazards="report")
picture = lab.memory.pinned_empty(1 << 24, "float32")
device, weights = (lab.xp.ones(picture.shape, "float32") for _ in range(2))
lab.stream("copy"), lab.stream("compute")
with lab.on("compute"):
    device * weights  # the first product is compiled
lab.synchronize()
lab.clear()
with lab.on("copy", "upload"):
    copy_to_device(lab, picture, device)
with lab.on("compute", "filter"):
    filtered = device * weights
lab.synchronize()
print(lab.memory.hazards())
