"""Real reports that others recorded, where they are: in the folder of GPUSTREAMLAB_EXCHANGE, or beside the checkout."""

from __future__ import annotations

import json
import os
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from gpustreamlab import load_trace
from gpustreamlab.analysis import counted_rows, interval_sum_ns, union_edges
from gpustreamlab.model import SPAN_KINDS
from gpustreamlab.typing import SpanKind

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("GPUSTREAMLAB_EXCHANGE", ROOT.parent / "shared" / "exchange")) / "traces" / "nsys"
KINDS = {"kernel": "kernel", "copy": "memcpy", "fill": "memset"}
COPIES = {"1": "HtoD", "2": "DtoH", "8": "DtoD"}


def rows(trace, kind):
    return trace.kind == SPAN_KINDS.index(SpanKind(kind))


def busy_ns(trace, mine):
    return interval_sum_ns(union_edges(trace.start_ns[mine], trace.end_ns[mine]))


if FOLDER.is_dir():  # nothing is skipped where it is not

    @pytest.fixture(scope="module", params=sorted(FOLDER.glob("*.truth.json")), ids=lambda path: path.name.split(".")[0])
    def pair(request):
        told = request.param
        return load_trace(told.with_name(told.name.removesuffix(".truth.json") + ".gz")), json.loads(told.read_text())

    def test_work_of_a_real_report_equals_its_truth(pair):
        trace, truth = pair
        gpu, work = truth["gpu"], counted_rows(trace)
        counts = Counter(KINDS[SPAN_KINDS[code]] for code in trace.kind[work].tolist())
        assert (sum(counts.values()), counts) == (gpu["gpu_spans"], gpu["kinds"])
        assert (trace.start_ns[work].min(), trace.end_ns[work].max()) == (gpu["first_start_ns"], gpu["last_end_ns"])
        places = {lane.key: place for place, lane in enumerate(trace.lanes) if lane.kind == "stream"}
        assert len(places) == len(gpu["lanes"]) == truth["lanes_with_process"]
        for lane in gpu["lanes"]:
            mine = work & (trace.lane == places[lane["device"], lane["context"], lane["stream"]])
            assert (mine.sum(), (mine & rows(trace, "kernel")).sum()) == (lane["spans"], lane["kernels"])
            assert (trace.start_ns[mine].min(), trace.end_ns[mine].max()) == (lane["first_start_ns"], lane["last_end_ns"])
            assert trace.duration_ns[mine].sum() == lane["sum_ns"]
            assert busy_ns(trace, mine) == lane["busy_ns"]

    def test_devices_and_overlap_equal_the_truth(pair):
        trace, truth = pair
        work, found = counted_rows(trace), trace.overlap()
        names = {lane.key: lane.name for lane in trace.lanes if lane.kind == "stream"}
        device_of = np.array([lane.device for lane in trace.lanes])
        for device in truth["gpu"]["devices"]:
            assert busy_ns(trace, work & (device_of[trace.lane] == device["device"])) == device["busy_ns"]
            for two in device["pairs"]:
                assert found[names[tuple(two["a"])], names[tuple(two["b"])]].common_ns == two["overlap_ns"]
        told = {gpu["cuDevice"]: gpu for gpu in truth["gpus"]}
        gpu = told.get(trace.metadata.device.ordinal)
        if gpu is None:
            assert any("no properties" in fact for fact in trace.metadata.missing)
        else:
            got = trace.metadata.device
            assert (got.name, got.sm_count) == (gpu["name"], gpu["smCount"])
            assert got.compute_capability == (gpu["computeMajor"], gpu["computeMinor"])

    def test_names_and_bytes_equal_the_truth(pair):
        trace, truth = pair
        kernels, copies = rows(trace, "kernel"), rows(trace, "copy")
        details = trace.extra["detail"]
        full = [trace.details[code].full_name for code in details[kernels].tolist()]
        counts, total_ns = Counter(full), Counter()
        for name, ns in zip(full, trace.duration_ns[kernels].tolist(), strict=True):
            total_ns[name] += ns
        assert len(counts) == truth["gpu"]["distinct_kernel_names"]
        assert sum(total_ns.values()) == truth["gpu"]["total_kernel_ns"]
        for top in truth["gpu"]["top_kernels"]:
            assert (counts[top["name"]], total_ns[top["name"]]) == (top["count"], top["total_ns"])
        letters = np.array([trace.names[code].split()[1] for code in trace.name[copies].tolist()])
        sizes = trace.extra["size_bytes"][copies]
        wanted = {COPIES[kind.split()[1]]: size for kind, size in truth["memcpy_bytes_by_copykind"].items()}
        assert {kind: int(sizes[letters == kind].sum()) for kind in set(letters.tolist())} == wanted

    def test_calls_launches_and_ranges_equal_the_truth(pair):
        trace, truth = pair
        edges = trace.edges.select("launch")
        assert (rows(trace, "host").sum(), len(edges)) == (truth["calls"], truth["gpu_spans_with_a_call"])
        delays = (trace.start_ns[edges.target] - trace.start_ns[edges.source]).tolist()
        told = truth["launch_start_to_gpu_start_ns"]
        assert (min(delays), statistics.median_low(delays), max(delays)) == (told["min"], told["median"], told["max"])
        cut = truth["gpu_spans_without_a_call"]
        assert any(f"{cut:,} of" in fact for fact in trace.metadata.missing) == bool(cut)
        ranges, open_count = rows(trace, "annotation"), truth["nvtx_ranges"]["open_ended"]
        texts = [trace.names[code] for code in trace.name[ranges].tolist()]
        assert (len(texts), len(set(texts)), trace.metadata.pending_spans) == (
            truth["nvtx_ranges"]["count"],
            truth["nvtx_ranges"]["distinct"],
            open_count,
        )
        total_ns = Counter()
        for text, ns in zip(texts, trace.duration_ns[ranges].tolist(), strict=True):
            total_ns[text] += ns
        assert all(total_ns[top["name"]] == top["total_ns"] for top in truth["nvtx_ranges"]["top"])

    def test_waits_are_told_apart_by_their_calls(pair):
        trace, truth = pair
        names = [trace.names[code] for code in trace.name[rows(trace, "host")].tolist()]
        for row in truth["synchronization_by_api"]:
            assert row["api"] is None or names.count(row["api"]) >= row["count"]
        # None of these reports has records of events, and each process works on one stream alone.
        assert "CUPTI_ACTIVITY_KIND_CUDA_EVENT" not in truth["tables_with_rows"]
        assert len(trace.edges.select("wait")) == 0
        assert trace.metadata.waits_told
        for device in trace.devices:  # in reports of two GPUs each has a process of its own
            own = trace.where(device=device.ordinal)
            assert own.explain().streams is not None
            assert own.critical_path().duration_ns >= 0
