"""Decode beside prefill, each on half of the card: does the split pay?

Products of GPT-2's sizes, not GPT-2 itself: a token's are small and launched one by one, a prompt's fill their half.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import matrix_product

lab = gsl.Session(title="Decode beside prefill")
lab.partition(decode=64, prefill="rest")
lab.stream("decode", partition="decode"), lab.stream("prefill", partition="prefill")
sides = {"token": (8, 768), "prompt": (768, 768), "prefill": (4096, 768)}
x = {name: lab.xp.ones(shape, "float32") for name, shape in sides.items()}
out = {name: lab.xp.empty(shape, "float32") for name, shape in sides.items()}
lab.synchronize()
lab.clear()
for step in range(6):
    with lab.on("prefill", "prefill"):
        matrix_product(lab, x["prefill"], x["prompt"], out["prefill"])
    with lab.on("decode", "token", step=step):
        for _ in range(24):
            matrix_product(lab, x["token"], x["prompt"], out["token"])
lab.synchronize()
