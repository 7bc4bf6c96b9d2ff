"""Which work left the stream that I selected?

A helper keeps a stream of its own, as libraries do: its kernels are not ordered with yours. They are marked, with what to do.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import spin

lab = gsl.Session(title="A stray")
lab.stream("mine"), lab.stream("helper")
spin(lab, 1, stream="mine"), spin(lab, 1, stream="helper")  # the first ones are compiled
lab.synchronize()
lab.clear()


def helper():
    spin(lab, 300_000, stream="helper")


for _ in range(3):
    with lab.on("mine", "step"):
        spin(lab, 400_000)
        helper()
lab.synchronize()
print(lab.trace.strays())
