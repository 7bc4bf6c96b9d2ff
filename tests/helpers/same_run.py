"""One program of torch, recorded by torch.profiler and by us: what must be the same in both.

CUPTI serves one of both at a time, so the ranges of our session, which events time, stand beside the kernels of the profiler in
one run; kernels of ours are of a second run of the same program.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpustreamlab import Trace
from gpustreamlab.analysis import counted_rows
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind

FILES = ("profile.json.gz", "ranges.parquet", "kernels.parquet")
TURNS = 5
GATE_NS = 20_000_000
OWN_KERNEL = "gpustreamlab_clock"
OWN_FILL_BYTES = 4
"""The profiler sees what our session does for its clock, and in front of its events."""
_RANGE = SPAN_KINDS.index(SpanKind.RANGE)


def record(folder: Path) -> None:
    """Record the program, on a GPU; write `FILES`."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from gpustreamlab import Session
    from gpustreamlab.workloads import spin

    a, out = torch.randn(2048, 2048, device="cuda", dtype=torch.float16), None
    host = torch.empty(1 << 22, pin_memory=True)
    device, scaled = torch.empty(1 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
    few = torch.ones(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            few.mul_(1.5)

    def turns(lab: Session) -> None:
        nonlocal out
        for name in ("copy", "left", "right", "graphs"):
            with lab.on(name, "gate"):  # nothing behind it waits for the host
                spin(lab, GATE_NS)
        for _ in range(TURNS):
            with lab.on("copy", "upload"):
                device.copy_(host, non_blocking=True)
            lab.stream("right").wait("copy")
            with lab.on("left", "product"):
                out = torch.mm(a, a, out=out)
            with lab.on("right", "scale"):
                torch.mul(device, 2, out=scaled)
            with lab.on("graphs", "replay"):
                graph.replay()
        lab.synchronize()

    def prepare(lab: Session) -> None:
        nonlocal out
        out = torch.empty_like(a)
        lab.partition(left=64, right="rest")
        lab.stream("left", partition="left"), lab.stream("right", partition="right")
        lab.stream("copy"), lab.stream("graphs")
        turns(lab)
        lab.clear()

    waits = torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    with Session("cuda", capture="ranges") as lab:
        prepare(lab)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], experimental_config=waits) as profiler:
            turns(lab)
        profiler.export_chrome_trace(str(folder / FILES[0]))
        lab.trace.save(folder / FILES[1])
    with Session("cuda") as lab:
        prepare(lab)
        turns(lab)
        lab.trace.save(folder / FILES[2])


def work_by_lane(trace: Trace) -> list[list[tuple[str, int, int]]]:
    """Return name, blocks and bytes of the work of each stream, in its order; streams in order of what they did."""
    rows = np.flatnonzero(counted_rows(trace))
    rows = rows[np.argsort(trace.start_ns[rows], kind="stable")]
    blocks, sizes = trace.extra["grid_blocks"], trace.extra["size_bytes"]
    found: dict[int, list[tuple[str, int, int]]] = {}
    is_own = np.array([name == OWN_KERNEL for name in trace.names])[trace.name]
    is_own |= (trace.kind == SPAN_KINDS.index(SpanKind.FILL)) & (sizes == OWN_FILL_BYTES)
    for row in rows[~is_own[rows]].tolist():
        found.setdefault(int(trace.lane[row]), []).append((trace.names[trace.name[row]], int(blocks[row]), int(sizes[row])))
    return sorted(found.values())


def beside(profile: Trace, ranges: Trace, label: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compare the one piece of work of each range of a name with that range, in the same run.

    Returns
    -------
    ndarray of int64, shape (TURNS,)
        By how much the work began later than the range, by the wall clocks of both, in ns.
    ndarray of int64, shape (TURNS,)
        By how much the work was shorter than the range, in ns.
    """
    mine = np.flatnonzero((ranges.kind == _RANGE) & (ranges.name == ranges.names.index(label)))
    mine = mine[np.argsort(ranges.start_ns[mine])]
    work = work_of(profile, {"product": "left", "scale": "right", "upload": "copy"}[label])
    late_ns = profile.start_ns[work] + profile.metadata.epoch_unix_ns - ranges.start_ns[mine] - ranges.metadata.epoch_unix_ns
    return late_ns, ranges.duration_ns[mine] - profile.duration_ns[work]


def check(profile: Trace, ranges: Trace, kernels: Trace) -> None:
    """Assert what must be the same."""
    assert work_by_lane(profile) == work_by_lane(kernels)
    assert len({lane.context for lane in profile.lanes if lane.kind == "stream"}) == 3, "two partitions and the whole card"
    replayed = profile.extra["correlation"][profile.extra["grid_blocks"] == 1]
    assert sorted(np.unique(replayed, return_counts=True)[1].tolist())[-TURNS:] == [3] * TURNS, (
        "kernels of one launch of the graph"
    )
    bound_ns = ranges.metadata.clock_error_ns + ranges.metadata.range_error_ns + profile.metadata.clock_error_ns
    offsets = []
    for label in ("upload", "product", "scale"):
        late_ns, longer_ns = beside(profile, ranges, label)
        assert len(late_ns) == TURNS
        offsets += late_ns.tolist()
        assert (longer_ns > 0).all(), "the work is inside its range"
    # Wall clocks are slewed: 260 us lay between both, some seconds after the session's start.
    assert abs(np.median(offsets)) < 2_000_000, "both count from 1970"
    assert np.abs(np.array(offsets) - np.median(offsets)).max() <= bound_ns, "distances agree within the stated error"


def work_of(profile: Trace, stream: str) -> NDArray[np.int64]:
    """Return the rows of the work of a stream of the program, which is the only one to do what it does."""
    is_copy = profile.kind == SPAN_KINDS.index(SpanKind.COPY)
    blocks = profile.extra["grid_blocks"]
    is_large = (profile.kind == SPAN_KINDS.index(SpanKind.KERNEL)) & (blocks > 1)
    is_product = np.array(["gemm" in name or "nvjet" in name or "cutlass" in name for name in profile.names])[profile.name]
    chosen = {"copy": is_copy, "left": is_large & is_product, "right": is_large & ~is_product}[stream]
    rows = np.flatnonzero(chosen)
    return rows[np.argsort(profile.start_ns[rows])]
