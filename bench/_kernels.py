"""Spans as a GPU's kernels are: lengths over three orders of magnitude, a few names that most of them have."""

from __future__ import annotations

import numpy as np

from gpustreamlab import Trace
from gpustreamlab.model import Device, Lane, TraceMetadata

LANE_COUNT = 16
NAMES = (
    "ampere_sgemm_128x64_tn", "elementwise_kernel", "reduce_kernel", "softmax_warp_forward", "layer_norm", "Memcpy HtoD",
    "Memcpy DtoH", "Memset", "nccl_AllReduce_RING", "flash_fwd_kernel", "adam_step", "conv2d_implicit_gemm",
)  # fmt: skip
NAME_COUNT = 60


def make_kernel_trace(span_count: int) -> Trace:
    """Return spans in 16 lanes, lane by lane; those of one lane follow each other.

    Durations and gaps are lognormal (medians of 8 and 3 µs), names follow Zipf's law. Nothing is known of their queueing: the
    other timelines could not show it.
    """
    rng = np.random.default_rng(1)
    counts = np.full(LANE_COUNT, span_count // LANE_COUNT)
    counts[: span_count % LANE_COUNT] += 1
    lane = np.repeat(np.arange(LANE_COUNT), counts)
    duration_ns = np.maximum(rng.lognormal(np.log(8e3), 1.2, span_count), 500).astype(np.int64)
    gap_ns = np.maximum(rng.lognormal(np.log(3e3), 1.5, span_count), 100).astype(np.int64)
    end_ns = np.cumsum(duration_ns + gap_ns)
    firsts = np.concatenate(([0], np.cumsum(counts)[:-1]))
    before_ns = np.concatenate(([0], end_ns))[firsts]
    end_ns -= np.repeat(before_ns, counts)
    zeros = np.zeros(span_count, np.int8)
    return Trace(
        start_ns=end_ns - duration_ns,
        end_ns=end_ns,
        queued_ns=end_ns - duration_ns,
        lane=lane,
        name=np.minimum(rng.zipf(1.5, span_count) - 1, NAME_COUNT - 1),
        kind=zeros,
        parent=zeros - 1,
        thread=zeros,
        names=tuple(f"{NAMES[number % len(NAMES)]}_{number}" for number in range(NAME_COUNT)),
        threads=("MainThread",),
        lanes=tuple(Lane(name=f"stream {code}", stream=code) for code in range(LANE_COUNT)),
        metadata=TraceMetadata(backend="sim", device=Device(name="bench", sm_count=1, simulated=True)),
    )
