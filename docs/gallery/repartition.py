"""What happens when SMs move while work is in flight?

Prefill begins with 96 SMs and goes on with 40; the dashed line is the moment. The same kernels then take longer on one side
and shorter on the other.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import spin_card

lab = gsl.Session(title="Partitions move")
lab.partition(prefill=96, decode="rest")
lab.stream("prefill", partition="prefill"), lab.stream("decode", partition="decode")
spin_card(lab, 1, stream="prefill"), spin_card(lab, 1, stream="decode")  # the first ones are compiled
lab.synchronize()
lab.clear()
for prefill_sms in (96, 40):
    lab.partition(prefill=prefill_sms, decode="rest")
    for name, label in (("prefill", "prompt"), ("decode", "token")) * 4:
        with lab.on(name, label):
            spin_card(lab, 1_000_000)
lab.synchronize()
