"""Decode of GPT-2 beside prefill, each on half of the card: what bounds decode?"""

import gpustreamlab as gsl
from bench.real_programs import gpt2

lab = gsl.Session("cuda", title="GPT-2: decode beside prefill")
run = gpt2(lab)
run(lab, 1.0)
lab.synchronize()
lab.clear()
run(lab, 0.05)
lab.synchronize()
