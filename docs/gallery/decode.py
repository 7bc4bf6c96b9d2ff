"""Decode of GPT-2 beside prefill, each on SMs of its own: does the split pay?

The matrix products of GPT-2 (124M) in its 12 layers, without what lies between them. A token's are small and launched one by
one, a prompt's fill their part of the card.
"""

import gpustreamlab as gsl
from gpustreamlab.workloads import matrix_product

SHAPES, ROWS = ((768, 2304), (768, 768), (768, 3072), (3072, 768)), {"prefill": 256, "decode": 8}
lab = gsl.Session(title="GPT-2: decode beside prefill")
lab.partition(decode=32, prefill="rest")
lab.stream("decode", partition="decode"), lab.stream("prefill", partition="prefill")
weights = {shape: lab.xp.ones(shape, "float32") for shape in SHAPES}
given = {(n, k): lab.xp.ones((n, k), "float32") for n in ROWS.values() for k, _ in SHAPES}
out = {(n, k): lab.xp.empty((n, k), "float32") for n in ROWS.values() for _, k in SHAPES}


def run(name, label, layers=12, **step):
    n = ROWS[name]
    with lab.on(name, label, **step):
        for shape in SHAPES * layers:
            matrix_product(lab, given[n, shape[0]], weights[shape], out[n, shape[1]])


run("prefill", "first"), run("decode", "first")
lab.synchronize()
lab.clear()
run("prefill", "prompt")
for token in range(24):
    run("decode", "token", step=token)
lab.synchronize()
