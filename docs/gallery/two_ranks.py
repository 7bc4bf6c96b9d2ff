"""Which of two GPUs is late, and what does the other one wait for?

Two ranks of one training job of PyTorch, as torch.profiler wrote them on two H200. Kernels of NCCL end together: a rank that
comes early waits in them.
"""

import gpustreamlab as gsl

trace = gsl.load_trace(["tests/golden/nccl/rank0.json.gz", "tests/golden/nccl/rank1.json.gz"])
print(trace.stragglers())
