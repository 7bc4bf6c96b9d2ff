"""Small kernels, and the host cannot keep up: what does a CUDA graph change?

First each launch by itself, then the same program replayed with one call each.
"""

import gpustreamlab as gsl

lab = gsl.Session(title="A graph is replayed")
names = [f"x{number}" for number in range(4)]
values = {name: lab.xp.full((64, 64), 1.0, dtype="float32") for name in names}
text = "\n".join(f"{name} = xp.sqrt({name} + 1)" for _ in range(6) for name in names)
plan = lab.program(text, {"lab": lab, "xp": lab.xp, **values}).plan(streams=4)
plan.run()
lab.clear()
plan.run()
with plan.capture() as replay:
    for _ in range(3):
        replay.launch()
    lab.synchronize()
