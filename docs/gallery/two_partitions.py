"""Can a short kernel get in beside kernels that fill the card?

Each stream has SMs of its own, so requests do not queue behind the bulk work.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import spin

lab = gsl.Session(title="Two partitions")
lab.partition(requests=16, bulk="rest")
bulk = lab.stream("bulk", partition="bulk")
requests = lab.stream("requests", partition="requests")
spin(lab, 1, stream=bulk), spin(lab, 1, stream=requests)  # the first ones are compiled
lab.synchronize()
lab.clear()
for _ in range(6):
    with lab.on(bulk, "bulk"):
        spin(lab, 250_000, blocks=16 * lab.device.sm_count)
    for _ in range(4):
        with lab.on(requests, "request"):
            spin(lab, 50_000, blocks=16)
lab.synchronize()
