"""Which of my training steps was slow, and what held it up?

Each step is a range with `step=`. Before the fourth one a checkpoint is copied to the host, and its last kernel, which changes
what is copied, waits for that.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import copy_to_device, copy_to_host, spin

lab = gsl.Session(title="Six training steps")
batch, weights = (lab.memory.pinned_empty(length, "float32") for length in (1 << 22, 1 << 25))
images, parameters = (lab.xp.empty(length, "float32") for length in (1 << 22, 1 << 25))
train, save = lab.stream("train"), lab.stream("save")
spin(lab, 1, stream=train)  # the first one is compiled
lab.synchronize()
lab.clear()
for step in range(6):
    if step == 3:
        save.wait(train)
        with lab.on("save", "checkpoint"):
            copy_to_host(lab, parameters, weights)
    with lab.on("train", "step", step=step):
        copy_to_device(lab, batch, images)
        spin(lab, 900_000)
        train.wait(save)
        spin(lab, 300_000)
lab.synchronize()
print(lab.trace.steps())
