"""Is a wait missing?

The filter reads what the upload writes, and nothing orders the two. Both ranges have a sign; the drawer has the line to add.
"""

import numpy as np
import gpustreamlab as gsl

lab = gsl.Session(title="A missing wait", hazards="report")
picture = np.ones((2048, 2048), "float32")
device, weights = lab.xp.empty(picture.shape, "float32"), lab.xp.ones(picture.shape, "float32")
lab.stream("copy"), lab.stream("compute")
lab.synchronize()
lab.clear()
with lab.on("copy", "upload"):
    device.set(picture)
with lab.on("compute", "filter"):
    filtered = device * weights
lab.synchronize()
print(lab.memory.hazards())
