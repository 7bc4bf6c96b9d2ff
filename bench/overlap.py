"""How long `overlap()` takes, beside the sweep that a user would write in pandas. Both results are compared."""

from __future__ import annotations

import gc

import numpy as np
import pandas as pd

from bench._common import median_seconds, report
from bench._traces import LANE_COUNT, make_trace
from gpustreamlab import Trace
from gpustreamlab.analysis import overlap

SPAN_COUNTS = (1_000_000, 10_000_000)
ROUNDS = 3


def main(argv: list[str] | None = None) -> None:
    rows = []
    for span_count in SPAN_COUNTS:
        trace = make_trace(span_count)
        gc.collect()
        ours_s = median_seconds(lambda trace=trace: overlap(trace), rounds=ROUNDS)
        pandas_s = median_seconds(lambda trace=trace: pandas_sweep(trace), rounds=ROUNDS)
        if not np.array_equal(overlap(trace).common_ns, pandas_sweep(trace).astype(np.int64)):
            raise SystemExit("The two do not agree.")
        rows.append(
            {
                "spans": f"{span_count:,}",
                "overlap() s": round(ours_s, 3),
                "pandas sweep s": round(pandas_s, 3),
                "pandas / ours": round(pandas_s / ours_s, 1),
            }
        )
    report(f"Overlap of spans in {LANE_COUNT} streams (median of {ROUNDS})", rows, argv)


def pandas_sweep(trace: Trace) -> np.ndarray:
    """Compute the same matrix as a user would: all edges in one frame, sorted, a running mask of lanes, grouped."""
    bit = np.left_shift(1, trace.lane.astype(np.int64))
    frame = pd.DataFrame({"time": np.concatenate([trace.start_ns, trace.end_ns]), "change": np.concatenate([bit, -bit])})
    frame = frame.sort_values("time", kind="stable")
    mask = frame["change"].cumsum()
    lasting = frame["time"].diff().shift(-1)
    sums = lasting.groupby(mask).sum()
    lanes = (sums.index.to_numpy()[:, None] >> np.arange(LANE_COUNT)) & 1
    return lanes.T @ (lanes * sums.to_numpy()[:, None])


if __name__ == "__main__":
    main()
