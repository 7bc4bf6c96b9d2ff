"""Real files that others recorded, where they are: in the folder of GPUSTREAMLAB_EXCHANGE, or beside the checkout."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import counted_rows, interval_sum_ns, union_edges
from gpustreamlab.model import SPAN_KINDS

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("GPUSTREAMLAB_EXCHANGE", ROOT.parent / "shared" / "exchange")) / "traces" / "kineto"
KINDS = {"kernel": "kernel", "copy": "memcpy", "fill": "memset"}


if FOLDER.is_dir():  # nothing is skipped where it is not

    @pytest.mark.parametrize("truth_path", sorted(FOLDER.glob("*.truth.json")), ids=lambda path: path.name.split(".")[0])
    def test_a_real_file_equals_its_truth(truth_path):
        truth = json.loads(truth_path.read_text())
        trace = gsl.load_trace(truth_path.with_name(truth_path.name.removesuffix(".truth.json")))
        gpu, work = truth["gpu"], counted_rows(trace)
        assert work.sum() == gpu["gpu_spans"]
        assert len(trace.edges.select("launch")) == truth["gpu_spans_with_a_call"]
        used, _, left_out = trace.metadata.imported.partition(" events")
        used, _, total = used.rpartition(" of ")
        numbers = [int(number.replace(",", "")) for number in re.findall(r"([\d,]*\d) ", used + left_out)]
        assert sum(numbers) == int(total.replace(",", ""))  # every event is counted
        assert trace.explain().streams is not None
        assert trace.critical_path().duration_ns >= 0
        if not work.any():
            return
        codes, counts = np.unique(trace.kind[work], return_counts=True)
        assert {KINDS[SPAN_KINDS[code]]: count for code, count in zip(codes.tolist(), counts.tolist(), strict=True)} == gpu[
            "kinds"
        ]
        zero_ns = trace.metadata.epoch_unix_ns
        extent = int(trace.start_ns[work].min()) + zero_ns, int(trace.end_ns[work].max()) + zero_ns
        assert extent == (gpu["first_start_ns"], gpu["last_end_ns"])
        places = {lane.key: place for place, lane in enumerate(trace.lanes) if lane.kind == "stream"}
        for lane in gpu["lanes"]:
            mine = work & (trace.lane == places[lane["device"], lane["context"] or 0, lane["stream"]])
            assert (mine.sum(), trace.duration_ns[mine].sum()) == (lane["spans"], lane["sum_ns"])
            assert interval_sum_ns(union_edges(trace.start_ns[mine], trace.end_ns[mine])) == lane["busy_ns"]
        found = trace.overlap()
        for pair in [pair for device in gpu["devices"] for pair in device["pairs"]]:
            first, second = (
                trace.lanes[places[device, context or 0, stream]].name for device, context, stream in (pair["a"], pair["b"])
            )
            assert found[first, second].common_ns == pair["overlap_ns"]
