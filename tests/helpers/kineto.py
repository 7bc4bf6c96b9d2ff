"""Files as PyTorch's profiler writes them, made here."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

HTA_ANSWERS = Path(__file__).parents[1] / "golden" / "hta" / "two_streams.json"
"""What HolisticTraceAnalysis says of `two_streams`; ``python -m bench.hta_comparison --renew`` writes it."""

BASE_NS = 1_700_000_000_000_000_000
DEVICE = {"id": 0, "name": "demo", "totalGlobalMem": 1 << 34, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
MAIN, WORKER = 100, 101


def call(ts, dur, name="cudaLaunchKernel", *, correlation, tid=MAIN, cat="cuda_runtime"):
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 100,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"correlation": correlation},
    }


def work(ts, dur, name="gemm", *, stream, correlation, cat="kernel", device=0, **args):
    args = {"device": device, "context": 1, "stream": stream, "correlation": correlation, **args}
    if cat == "kernel":
        args = {"grid": [64, 2, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 1024} | args
    return {"ph": "X", "cat": cat, "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur, "args": args}


def launched(ts, dur, at, *, stream, correlation, name="gemm", tid=MAIN, cat="kernel", by="cudaLaunchKernel", took=5, **args):
    """Return a call and what it launched."""
    made = work(ts, dur, name, stream=stream, correlation=correlation, cat=cat, **args)
    return [call(at, took, by, correlation=correlation, tid=tid), made]


def span(ts, dur, name, cat="cpu_op", tid=MAIN):
    return {"ph": "X", "cat": cat, "name": name, "pid": 100, "tid": tid, "ts": ts, "dur": dur, "args": {"External id": 1}}


def stream_wait(ts, *, stream, awaited, record, correlation):
    args = {
        "cuda_sync_kind": "Stream Wait Event",
        "wait_on_stream": awaited,
        "wait_on_cuda_event_record_corr_id": record,
        "wait_on_cuda_event_id": 3,
        "stream": stream,
        "correlation": correlation,
        "device": 0,
        "context": 1,
    }
    return {
        "ph": "X",
        "cat": "cuda_sync",
        "name": "Stream Wait Event",
        "pid": 0,
        "tid": stream,
        "ts": ts,
        "dur": 1,
        "args": args,
    }


def kineto(events, **top):
    """Return the object that a file holds."""
    return {"schemaVersion": 1, "deviceProperties": [DEVICE], "baseTimeNanoseconds": BASE_NS, "traceEvents": events, **top}


def write(path, content):
    """Write an object as JSON, packed where the suffix says so; decimals keep their digits."""
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
    return path


def two_streams():
    """Return a run with each kind of idle time on two streams, a wait for an event, a full step and all sorts of rows."""
    return kineto(
        [
            span(0.5, 990.25, "ProfilerStep#1", "user_annotation"),
            span(1, 400, "aten::mm"),
            *launched(20.125, 50.5, 10, stream=7, correlation=11),
            *launched(75, 25, 16.001, stream=7, correlation=12, name="relu"),  # 4.375 us behind: the launch's own
            *launched(30, 100, 25, stream=20, correlation=13, tid=WORKER),
            *launched(
                160.5,
                30,
                26,
                stream=20,
                correlation=14,
                name="Memcpy HtoD (Pinned -> Device)",
                cat="gpu_memcpy",
                by="cudaMemcpyAsync",
                bytes=4096,
                tid=WORKER,
            ),  # 30.5 us behind, and queued: other
            *launched(
                160.25, 80, 150, stream=7, correlation=16, name="producer"
            ),  # launched when the stream was idle: the host
            call(156, 1, "cudaEventRecord", correlation=17),
            call(157, 1, "cudaStreamWaitEvent", correlation=18),
            stream_wait(157.5, stream=20, awaited=7, record=17, correlation=18),
            *launched(245.5, 10, 160, stream=20, correlation=19, name="consumer"),  # 55 us behind, as the producer ended
            *launched(
                310.75, 9.001, 165, stream=7, correlation=20, name="Memset (Device)", cat="gpu_memset", by="cudaMemsetAsync"
            ),
            *launched(340, 200, 318, stream=7, correlation=29, name="late"),
            *launched(345.5, 10, 326, stream=20, correlation=32, name="last"),
            call(330, 250, "cudaDeviceSynchronize", correlation=40),
            {
                "ph": "X",
                "cat": "cuda_sync",
                "name": "Context Sync",
                "pid": 0,
                "tid": -1,
                "ts": 330.5,
                "dur": 249,
                "args": {"cuda_sync_kind": "Context Sync", "stream": -1, "correlation": 40, "device": 0, "context": 1},
            },
            {"ph": "s", "id": 11, "pid": 100, "tid": MAIN, "ts": 10, "cat": "ac2g", "name": "ac2g"},
            {"ph": "f", "id": 11, "pid": 0, "tid": 7, "ts": 20.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
            {"ph": "f", "id": 40, "pid": 100, "tid": MAIN, "ts": 330, "cat": "ac2g", "name": "ac2g", "bp": "e"},
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": WORKER, "ts": 0, "args": {"name": "thread 101 (loader)"}},
        ]
    )


def write_two_streams(folder):
    """Write `two_streams`; return where."""
    return write(folder / "two_streams.json.gz", two_streams())
