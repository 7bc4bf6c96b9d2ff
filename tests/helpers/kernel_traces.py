"""A story in the kernel tier: kernels, copies, calls of the host, ranges of others, strays, windows of capture."""

from __future__ import annotations

import numpy as np

from gpustreamlab import Trace
from gpustreamlab.model import (
    SPAN_KINDS,
    Counters,
    Lane,
    Layout,
    LayoutChange,
    Partition,
    TraceMetadata,
    WorkDetail,
)
from gpustreamlab.typing import EdgeKind, LaneKind, SpanKind
from tests.helpers.traces import MS, kernel_facts, make_kernel_trace, make_trace

US = 1_000
HOST_KINDS = ("host", "annotation")

PREFILL = Partition(name="prefill", requested_sms=96, granted_sms=96)
DECODE = Partition(name="decode", requested_sms=36, granted_sms=36)

GEMM = WorkDetail(
    full_name="void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_128x128>(cutlass::Params)",
    grid=(96, 2, 1),
    block=(128, 1, 1),
    registers=230,
    static_shared_bytes=1_024,
    dynamic_shared_bytes=98_304,
)
SOFTMAX = WorkDetail(
    full_name="void softmax_warp_forward<float>(float*, float const*, int)", grid=(512, 1, 1), block=(128, 4, 1)
)
JOIN = WorkDetail(full_name="void cudf::detail::hash_join<1>(cudf::table_device_view)", grid=(264, 1, 1), block=(256, 1, 1))
FLASH = WorkDetail(
    full_name="void flash_fwd_kernel<128, true>(Flash_fwd_params)", grid=(36, 4, 1), block=(128, 1, 1), registers=254
)
# Sized for all 132 SMs, in a partition with 36.
ELEMENTWISE = WorkDetail(
    full_name="void at::native::vectorized_elementwise_kernel<4>(int, float*)", grid=(132, 4, 1), block=(128, 1, 1)
)
UPLOAD = WorkDetail(full_name="copy of pinned host memory to the device")
GRAPH_NODE = WorkDetail(full_name="graph_node(float*)", grid=(48, 1, 1), block=(256, 1, 1), graph=7)


def serial_trace(tier):
    """Four streams whose ranges begin together, and whose kernels fill the card and so run one after the other."""
    spans = [(f"s{k}", f"step {k}", 10 * US * k, 1_000 * US * (k + 1), {"kind": "range"}) for k in range(4)]
    if tier == "ranges":
        return make_trace([span[:4] for span in spans])
    kernels = [(f"s{k}", "spin", 1_000 * US * k + 40 * US, 1_000 * US * (k + 1), {"parent": k}) for k in range(4)]
    return make_kernel_trace([*spans, *kernels])


class _Script:
    """Writes down what a program did: calls of the host, and the work that they enqueued."""

    def __init__(self, *, has_host):
        self.rows, self.edges, self.has_host = [], [], has_host
        self.correlation = 0

    def add(self, lane, name, start_ns, end_ns, kind, **options):
        self.rows.append((lane, name, start_ns, end_ns, {"kind": kind} | options))
        return len(self.rows) - 1

    def call(self, name, start_ns, end_ns, *, thread=0, **options):
        """Add a call of the host; returns its row, or -1 where calls are left out."""
        self.correlation += 1
        if not self.has_host:
            return -1
        lane = ("host: MainThread", "host: loader")[thread]
        return self.add(lane, name, start_ns, end_ns, "host", thread=thread, correlation=self.correlation, **options)

    def launch(self, lane, name, call_ns, start_ns, end_ns, *, kind="kernel", call="cudaLaunchKernel", thread=0, **options):
        """Add a call and the work that it enqueued; returns the row of the work."""
        source = self.call(call, call_ns, call_ns + 5 * US, thread=thread, parent=options.get("parent", -1))
        correlation = {"correlation": self.correlation}
        row = self.add(lane, name, start_ns, end_ns, kind, queued_ns=call_ns, thread=thread, **correlation, **options)
        if source >= 0:
            self.edges.append((source, row, EdgeKind.LAUNCH))
        return row

    def sorted(self):
        """Return rows and edges in the order of the starts."""
        order = sorted(range(len(self.rows)), key=lambda row: self.rows[row][2])
        place = {row: number for number, row in enumerate(order)} | {-1: -1}
        rows = []
        for row in order:
            *head, options = self.rows[row]
            rows.append((*head, options | {"parent": place[options.get("parent", -1)]}))
        return rows, [(place[source], place[target], kind) for source, target, kind in self.edges]


def kernel_trace(step_count=4, *, has_host=True, has_strays=True, windows=None, **meta):
    """A program in the kernel tier: steps of 2 ms on two partitions, with everything that such a trace may hold.

    Each step uploads a batch on "copies" (thread "loader"), then runs a matrix product, a join that cuDF launched inside its
    own NVTX range, and a softmax on "prefill"; "decode" runs attention and, where `has_strays`, an element-wise kernel that
    torch put on its own stream ("torch stream 13", the whole card) and one that left the lane but not the partition. The host
    waits for each step. The last step launches a CUDA graph. "prefill" and "copies" have counters of their memory.

    Parameters
    ----------
    step_count
        How many steps of 2 ms.
    has_host
        Whether calls of the host have lanes.
    has_strays
        Whether kernels leave the selected stream.
    windows
        From when to when kernels were captured, in ns; None for the whole time. Work that starts outside is left out.
    meta
        Facts of the metadata.
    """
    script = _Script(has_host=has_host)
    for step in range(step_count):
        _add_step(script, step * 2 * MS, step, has_strays=has_strays, is_last=step == step_count - 1)
    _keep_windows(script, windows)
    rows, edges = script.sorted()
    layout = Layout(partitions=(PREFILL, DECODE))
    facts = {"title": "Kernels", "clock_error_ns": 500, "range_error_ns": 400, "range_correction_ns": 2_600} | meta
    return make_kernel_trace(
        rows,
        lanes=kernel_lanes(has_host=has_host, has_strays=has_strays),
        threads=("MainThread", "loader"),
        edges=edges,
        partitions=(PREFILL, DECODE),
        layout=layout,
        layouts=(LayoutChange(time_ns=-MS, layout=layout),),
        windows=((0, step_count * 2 * MS),) if windows is None else windows,
        counters=_memory(step_count),
        **facts,
    )


def kernel_lanes(*, has_host=True, has_strays=True):
    """The lanes of `kernel_trace`."""
    lanes = [
        Lane(name="prefill", context=2, stream=7, partition="prefill", sm_count=96),
        Lane(name="decode", context=3, stream=8, partition="decode", sm_count=36, priority=-1),
        Lane(name="copies", context=1, stream=9, sm_count=132),
    ]
    if has_strays:
        lanes.append(Lane(name="torch stream 13", context=1, stream=13, sm_count=132, outside=True))
        lanes.append(Lane(name="stream 21", context=3, stream=21, partition="decode", sm_count=36, outside=True))
    if has_host:
        lanes += [
            Lane(name="host: MainThread", stream=0x1001, kind=LaneKind.HOST),
            Lane(name="host: loader", stream=0x1002, kind=LaneKind.HOST),
        ]
    return tuple(lanes)


def _add_step(script, at, number, *, has_strays, is_last):
    """Add one step of 2 ms: the host is ahead of the device, then waits for it."""
    upload = script.add("copies", "upload", at + 20 * US, at + 310 * US, "range", thread=1, queued_ns=at + 12 * US)
    copy = script.launch(
        "copies", "copy HtoD", at + 14 * US, at + 22 * US, at + 300 * US, kind="copy", call="cudaMemcpyAsync", thread=1,
        parent=upload, detail=UPLOAD, size_bytes=16 << 20,
    )  # fmt: skip
    step = script.add("prefill", f"step {number}", at + 305 * US, at + 1_810 * US, "range", queued_ns=at + 20 * US, partition=0)
    script.edges.append((upload, step, EdgeKind.WAIT))
    inside = {"parent": step, "partition": 0}
    gemm = script.launch("prefill", "gemm_bf16", at + 30 * US, at + 310 * US, at + 1_100 * US, detail=GEMM, **inside)
    script.edges.append((copy, gemm, EdgeKind.WAIT))
    others = step
    if script.has_host:
        lane = "host: MainThread"
        others = script.add(lane, "cudf: join", at + 40 * US, at + 70 * US, "annotation", parent=step)
        others = script.add(lane, "cudf: probe", at + 45 * US, at + 65 * US, "annotation", parent=others)
    script.launch(
        "prefill", "hash_join", at + 50 * US, at + 1_101 * US, at + 1_500 * US, detail=JOIN, parent=others, partition=0
    )
    if is_last:
        script.launch(
            "prefill", "graph_node", at + 80 * US, at + 1_501 * US, at + 1_600 * US, call="cudaGraphLaunch", detail=GRAPH_NODE,
            **inside,
        )  # fmt: skip
    script.launch("prefill", "softmax", at + 90 * US, at + 1_610 * US, at + 1_800 * US, detail=SOFTMAX, **inside)
    _add_decode(script, at, has_strays=has_strays)
    script.call("cudaMallocAsync", at + 180 * US, at + 184 * US, size_bytes=1 << 20)
    script.call("cudaStreamSynchronize", at + 200 * US, at + 1_802 * US)


def _add_decode(script, at, *, has_strays):
    """Add the attention of a step, and the kernels that went elsewhere."""
    decode = script.add("decode", "attention", at + 120 * US, at + 910 * US, "range", queued_ns=at + 100 * US, partition=1)
    inside = {"parent": decode}
    script.launch(
        "decode", "fill", at + 102 * US, at + 122 * US, at + 130 * US, kind="fill", call="cudaMemsetAsync", size_bytes=4_096,
        partition=1, **inside,
    )  # fmt: skip
    script.launch("decode", "flash_fwd", at + 110 * US, at + 131 * US, at + 700 * US, detail=FLASH, partition=1, **inside)
    work = inside | {"detail": ELEMENTWISE}
    if has_strays:
        script.launch("torch stream 13", "elementwise", at + 120 * US, at + 140 * US, at + 240 * US, **work)
        script.launch("stream 21", "elementwise", at + 130 * US, at + 705 * US, at + 735 * US, partition=1, **work)
    script.launch("decode", "elementwise", at + 140 * US, at + 740 * US, at + 900 * US, partition=1, **work)


def _keep_windows(script, windows):
    """Leave out all but ranges where kernels were not captured."""
    if windows is None:
        return
    kept = [row for row, entry in enumerate(script.rows) if _is_kept(*entry[2:], windows)]
    place = {row: number for number, row in enumerate(kept)}
    script.edges = [(place[a], place[b], kind) for a, b, kind in script.edges if a in place and b in place]
    rows = [script.rows[row] for row in kept]
    script.rows = [(*head, options | {"parent": place.get(options.get("parent", -1), -1)}) for *head, options in rows]


def _is_kept(start_ns, end_ns, options, windows):
    if options["kind"] == "range":
        return True
    until_ns = end_ns if options["kind"] in HOST_KINDS else start_ns
    return any(first <= start_ns and until_ns < last for first, last in windows)


def _memory(step_count):
    """Bytes that the lane "prefill" has in use and reserved, and "copies" by stream-ordered allocation."""
    times = np.arange(step_count * 4) * (MS // 2)
    used = np.where(np.arange(step_count * 4) % 4 < 3, 96 << 20, 32 << 20).astype(np.float64)
    reserved = np.maximum.accumulate(used + (16 << 20))
    count = len(times)
    return Counters(
        time_ns=np.concatenate((times, times, times[::2])),
        lane=np.concatenate((np.zeros(2 * count), np.full(len(times[::2]), 2))).astype(np.int32),
        name=np.concatenate((np.zeros(count), np.ones(count), np.full(len(times[::2]), 2))).astype(np.int32),
        value=np.concatenate((used, reserved, used[::2] / 2)),
        names=("pool_used_bytes", "pool_reserved_bytes", "async_used_bytes"),
    )


def random_kernel_trace(span_count, lane_count=16, *, per_range=9, has_host=True, seed=0, **meta):
    """Many kernels below ranges, with a launch call for each, as columns in order of time: for speed, and for properties."""
    rng = np.random.default_rng(seed)
    kernels = max(1, span_count * per_range // (per_range * (1 + has_host) + 1))
    ranges = -(-kernels // per_range)
    lane_of_range = rng.integers(0, lane_count, ranges)
    owner = np.repeat(np.arange(ranges), per_range)[:kernels]
    lane = lane_of_range[owner]
    duration_ns, gap_ns = rng.integers(1_000, 8_000, kernels), rng.integers(100, 2_000, kernels)
    start_ns = np.empty(kernels, np.int64)
    for code in range(lane_count):
        mine = lane == code
        start_ns[mine] = np.cumsum(gap_ns[mine] + duration_ns[mine]) - duration_ns[mine]
    end_ns = start_ns + duration_ns
    first = np.full(ranges, np.iinfo(np.int64).max)
    last = np.zeros(ranges, np.int64)
    np.minimum.at(first, owner, start_ns)
    np.maximum.at(last, owner, end_ns)
    queued_ns = np.arange(kernels) * 2_500
    calls = kernels if has_host else 0
    parts = {
        "start_ns": (first - 50, start_ns, queued_ns[:calls]),
        "end_ns": (last + 50, end_ns, queued_ns[:calls] + 2_000),
        "queued_ns": (first - 2_000, np.minimum(queued_ns, start_ns), queued_ns[:calls]),
        "lane": (lane_of_range, lane, np.full(calls, lane_count)),
        "name": (np.zeros(ranges, np.int64), rng.integers(1, 12, kernels), np.full(calls, 12)),
        "kind": (np.zeros(ranges, np.int64), np.ones(kernels, np.int64), np.full(calls, SPAN_KINDS.index(SpanKind.HOST))),
        "parent": (np.full(ranges, -1), owner, np.full(calls, -1)),
        "correlation": (np.zeros(ranges, np.int64), np.arange(1, kernels + 1), np.arange(1, calls + 1)),
    }
    columns = {name: np.concatenate(part).astype(np.int64) for name, part in parts.items()}
    order = np.argsort(columns["start_ns"], kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    parent = columns.pop("parent")
    columns["parent"] = np.where(parent >= 0, place[parent], -1)
    columns = {name: values[order] for name, values in columns.items()}
    correlation = columns.pop("correlation")
    lanes = [Lane(name=f"stream {number}", stream=number + 1) for number in range(lane_count)]
    lanes += [Lane(name="host: MainThread", stream=0x1001, kind=LaneKind.HOST)] * has_host
    return Trace(
        **columns,
        thread=np.zeros(len(order), np.int64),
        extra={"correlation": correlation},
        names=("step", *(f"kernel {number}" for number in range(1, 12)), "cudaLaunchKernel"),
        lanes=tuple(lanes),
        threads=("MainThread",),
        metadata=TraceMetadata(**kernel_facts(((0, int(columns["end_ns"].max()) + 1),)) | meta),
    )
