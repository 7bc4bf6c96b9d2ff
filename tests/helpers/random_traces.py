"""Traces of all that a trace may hold, by chance, to write and read back."""

from __future__ import annotations

import numpy as np

from gpustreamlab import Trace
from gpustreamlab.model import (
    SPAN_KINDS,
    Counters,
    Device,
    Edges,
    Lane,
    Layout,
    LayoutChange,
    Marker,
    Partition,
    TraceMetadata,
    WorkDetail,
)
from gpustreamlab.typing import CaptureTier, LaneKind
from tests.unit.model.equality import assert_same_trace

EPOCH_NS = 1_712_195_495_519_689_047
NAMES = ("gemm", "", "kernel<float, (int)3>", "😀 relu\n\t\x01\x7f", "x" * 4_000, "名前", "a\x00b", "</script>")
LANES = (
    Lane(name="a", stream=7, partition="left", sm_count=64),
    Lane(name="a (2)", stream=8),
    Lane(name="host: 😀\n", kind=LaneKind.HOST),
    Lane(name="b", stream=9, device=1),
    Lane(name="empty", stream=10, device=1, partition="left"),
)
PARTITIONS = (Partition(name="left", requested_sms=60, granted_sms=64), Partition(name="r\x02", requested_sms=8, granted_sms=8))
DETAILS = (
    WorkDetail(full_name="void gemm<float>(float*)", grid=(128, 2, 1), block=(256, 1, 1), registers=32, graph=3, label="x"),
    WorkDetail(full_name=""),
    WorkDetail(full_name="copy 😀", static_shared_bytes=7),
)
EXTRA = {
    "detail": np.int32,
    "correlation": np.int64,
    "size_bytes": np.int64,
    "grid_blocks": np.int64,
    "work_start_ns": np.int64,
    "row": np.uint64,
    "share": np.float64,
    "small": np.int8,
    "half": np.float32,
}


def random_trace(seed: int, count: int = 60, *, epoch_ns: int = EPOCH_NS, scale_ns: int = 40, least: int = 0) -> Trace:
    """Return spans without any order: nested, overlapping, at once, of no time, before the trace's zero."""
    rng = np.random.default_rng(seed)
    start_ns = rng.integers(-scale_ns, scale_ns, count)
    lasts_ns = rng.integers(0, scale_ns // 2 + 1, count) * rng.integers(0, 2, count)
    detail = rng.integers(-1, len(DETAILS), count)
    extra = {name: rng.integers(least, 100, count).astype(dtype) for name, dtype in EXTRA.items()}
    extra |= {"detail": detail.astype(np.int32), "grid_blocks": np.array([256, 0, 7, -5])[detail]}
    extra["share"] = rng.random(count)
    parent = rng.integers(-1, count, count)
    edge_count = count // 2
    samples = count // 3
    value = rng.random(samples) * 1e12
    value[:1] = np.nan
    layout = Layout(partitions=PARTITIONS[:1], remainder_sms=68)
    return Trace(
        start_ns=start_ns,
        end_ns=start_ns + lasts_ns,
        queued_ns=start_ns - rng.integers(least, 20, count),
        lane=rng.integers(0, len(LANES) - 1, count),
        name=rng.integers(0, len(NAMES) - 1, count),
        kind=rng.integers(0, len(SPAN_KINDS), count),
        parent=np.where(parent == np.arange(count), -1, parent),
        thread=rng.integers(-1, 2, count),
        partition=rng.integers(-1, len(PARTITIONS), count),
        names=NAMES,
        lanes=LANES,
        threads=("Main", "😀"),
        partitions=PARTITIONS,
        layouts=(LayoutChange(time_ns=3, layout=layout),),
        markers=(Marker(time_ns=-5, text="mark 😀\n", kind="mark"), Marker(time_ns=7, text="", kind="cell")),
        extra=extra,
        details=DETAILS,
        edges=Edges(
            source=rng.integers(0, count, edge_count),
            target=rng.integers(0, count, edge_count),
            kind=rng.integers(0, 2, edge_count),
        ),
        counters=Counters(
            time_ns=rng.integers(-scale_ns, scale_ns, samples),
            lane=rng.integers(0, len(LANES), samples),
            name=rng.integers(0, 2, samples),
            value=value,
            names=("pool_bytes", "load", "unused_ns"),
        ),
        metadata=TraceMetadata(
            backend="cuda",
            device=Device(name="NVIDIA H200", sm_count=132),
            tier=CaptureTier.KERNELS,
            capture_windows=((-scale_ns, scale_ns),),
            epoch_unix_ns=epoch_ns,
            title="a title",
            missing=("this",),
        ),
    )


def assert_all_same(got, wanted):
    assert_same_trace(got, wanted)
    assert got.details == wanted.details
