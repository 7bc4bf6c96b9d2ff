"""Ask HolisticTraceAnalysis about files, in a python that has it: ``python _hta_answers.py FILE...`` prints answers as JSON.

It imports nothing of gpustreamlab. Times are HTA's: microseconds since the earliest event of the file.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from typing import Any

WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # else it rounds starts up and ends down to microseconds
logging.disable(logging.CRITICAL)


def answers(path: str) -> dict[str, Any]:
    from hta.trace_analysis import TraceAnalysis

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        began = time.perf_counter()
        analyzer = TraceAnalysis(trace_files={0: shutil.copy(path, folder)}, trace_dir=folder, include_last_profiler_step=True)
        told: dict[str, Any] = {"read_s": time.perf_counter() - began}
        frame = analyzer.t.get_trace(0)
        work = frame[frame["stream"].ne(-1)]
        categories = analyzer.t.symbol_table.get_sym_table()
        work = work[work["cat"].map(lambda code: categories[code].lower() in WORK)]
        told["first_us"] = float(work["ts"].min())
        told["rows"] = sorted(zip(work["stream"].tolist(), work["correlation"].tolist(), strict=True))
        counted = frame.query(analyzer.t.symbol_table.get_runtime_launch_events_query())
        told["queued"] = sorted(set(counted["correlation"].tolist()))
        for name, ask in {
            "device_us": _device,
            "idle_us": _idle,
            "delay_us": _delays,
            "queue": _queue,
            "path_us": _path,
        }.items():
            try:
                told[name] = ask(analyzer)
            except Exception as error:  # noqa: BLE001 - that it fails is an answer, too
                told[name] = f"{type(error).__name__}: {error}"[:200]
        told["all_s"] = time.perf_counter() - began
    return told


def _device(analyzer: Any) -> dict[str, float]:
    """Return from the first start to the last end of the device's rows, and for how long of it none ran, in us."""
    (row,) = analyzer.get_temporal_breakdown(visualize=False).to_dict("records")
    return {"all": float(row["kernel_time(us)"]), "idle": float(row["idle_time(us)"])}


def _idle(analyzer: Any) -> dict[str, dict[str, float]]:
    """Return for each stream how long it was idle, by HTA's categories, in us."""
    found: dict[str, dict[str, float]] = {}
    table = analyzer.get_idle_time_breakdown(ranks=[0], visualize=False)[0]
    for row in table.to_dict("records"):
        found.setdefault(str(int(row["stream"])), {})[row["idle_category"]] = float(row["idle_time"])
    return found


def _delays(analyzer: Any) -> dict[str, float]:
    """Return for each correlation the time from the end of its call to the start of its work, in us; 0 where that is less."""
    table = analyzer.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    return {str(int(row["correlation"])): float(row["launch_delay"]) for row in table.to_dict("records")}


def _queue(analyzer: Any) -> dict[str, list[list[float]]]:
    """Return for each stream when its queue's length changed, in us, and to what; of changes at one time the last."""
    found: dict[str, list[list[float]]] = {}
    for stream, series in analyzer.get_queue_length_time_series(ranks=[0])[0].groupby("stream"):
        last = series.groupby("ts", sort=True)["queue_length"].last()
        found[str(int(stream))] = [[float(when), int(length)] for when, length in last.items()]
    return found


def _path(analyzer: Any) -> dict[str, float]:
    """Return the length of the critical path of the whole file, and how much of it is work of the device, in us."""
    graph, is_found = analyzer.critical_path_analysis(rank=0, annotation="", instance_id=0)
    if not is_found:
        raise RuntimeError("no path")
    edges = graph.get_critical_path_breakdown()
    kinds = {str(kind): float(total) for kind, total in edges.groupby("bound_by").duration.sum().items()}
    return {
        "length": float(edges.duration.sum()),
        "device": sum(kinds.get(kind, 0.0) for kind in ("gpu_compute_bound", "gpu_communication_bound")),
        **kinds,
    }


if __name__ == "__main__":
    print(json.dumps({path: answers(path) for path in sys.argv[1:]}))
