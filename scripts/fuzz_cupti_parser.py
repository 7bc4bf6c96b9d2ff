"""Feed broken activity buffers to the parser of CUPTI's records: ``python -m scripts.fuzz_cupti_parser [COUNT] [--seed N]``.

Each batch runs in a process of its own, with a limit on its memory and on its time, so that a crash or an endless loop is a
failure with the seed that causes it, and not the end of the run.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BATCH = 2_500
BATCH_LIMIT_S = 300
MEMORY_LIMIT_BYTES = 4 << 30


def main(argv: list[str] | None = None) -> int:
    """Run the batches and print one summary; return 1 where a batch failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--batch", action="store_true", help="run one batch in this process")
    args = parser.parse_args(argv)
    if args.batch:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
        print(json.dumps(run_batch(args.count, args.seed)))
        return 0
    results, failed = [], []
    for number, begin in enumerate(range(0, args.count, BATCH)):
        seed = args.seed + number
        result = _start_batch(min(BATCH, args.count - begin), seed)
        if isinstance(result, str):
            failed.append(seed)
            print(f"batch with seed {seed} failed: {result}", file=sys.stderr)
        else:
            results.append(result)
    print(json.dumps(_summary(results, failed), indent=1))
    return 1 if failed else 0


def run_batch(count: int, seed: int) -> dict[str, Any]:
    """Parse and check broken buffers; return counts, the slowest and the most memory beside the buffer's own size."""
    from tests.helpers.cupti_mutate import check_parse, mutated_buffer

    rng = np.random.default_rng(seed)
    result = {
        "buffers": count,
        "bytes": 0,
        "records": 0,
        "cut": 0,
        "slowest_ms": 0.0,
        "slowest_bytes": 0,
        "peak_bytes": 0,
        "peak_ratio": 0.0,
    }
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    for _ in range(count):
        data, layouts = mutated_buffer(rng)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        began = time.perf_counter()
        records = check_parse(data, layouts)
        took_ms = (time.perf_counter() - began) * 1e3
        peak = tracemalloc.get_traced_memory()[1] - before
        result["bytes"] += data.size
        result["records"] += records.record_count
        result["cut"] += records.skipped_bytes > 0
        if took_ms > result["slowest_ms"]:
            result |= {"slowest_ms": round(took_ms, 2), "slowest_bytes": data.size}
        result["peak_bytes"] = max(result["peak_bytes"], peak)
        if data.size > 1 << 16:
            result["peak_ratio"] = max(result["peak_ratio"], round(peak / data.size, 2))
    if not was_tracing:
        tracemalloc.stop()
    return result


def _start_batch(count: int, seed: int) -> dict[str, Any] | str:
    command = [sys.executable, "-m", "scripts.fuzz_cupti_parser", str(count), "--seed", str(seed), "--batch"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=BATCH_LIMIT_S, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return f"no end after {BATCH_LIMIT_S} s"
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        return f"exit status {done.returncode}: {lines[-1]}"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _summary(results: list[dict[str, Any]], failed: list[int]) -> dict[str, Any]:
    totals = {name: sum(result[name] for result in results) for name in ("buffers", "bytes", "records", "cut")}
    slowest = max(results, key=lambda result: result["slowest_ms"], default={})
    highest = {name: max((result[name] for result in results), default=0) for name in ("peak_bytes", "peak_ratio")}
    return (
        totals | {name: slowest.get(name, 0) for name in ("slowest_ms", "slowest_bytes")} | highest | {"failed_seeds": failed}
    )


if __name__ == "__main__":
    sys.exit(main())
