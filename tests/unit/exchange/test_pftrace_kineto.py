"""Real files, where they are: truths of Perfetto files, and of Kineto's what Perfetto itself reads of them."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

import gpustreamlab as gsl
from gpustreamlab import Trace
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from tests.helpers.trace_processor import PROBLEMS, TraceProcessor
from tests.unit.exchange.test_pftrace import assert_all_same

read_pftrace = partial(gsl.load_trace, format="perfetto")

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("GPUSTREAMLAB_EXCHANGE", ROOT.parent / "shared" / "exchange")) / "traces"
KINETO = ("a100_alexnet_sync", "h100_vit", "a100_event_sync_multi_stream", "mi300x_triton_compile", "v100_dlrm_rank0")
OUR_WORK = tuple(kind.value for kind in DEVICE_WORK)
KINETO_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
NOT_TOLD = ("thread_time", "thread_instruction_count")
"""Counters of threads, which are not read where they are told in the old way."""

if FOLDER.is_dir():  # nothing is skipped where it is not

    @pytest.fixture(scope="module")
    def engine():
        processor = TraceProcessor()
        yield processor
        processor.close()

    def work_in(engine, categories):
        """Return start, end and category of work, as the engine has it."""
        listed = ", ".join(f"'{category}'" for category in categories)
        rows = engine.query(f"select ts, ts + dur as until, lower(category) as what from slice where category in ({listed})")
        words = {"gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "fill", "memset": "fill"}
        return Counter((start, end, words.get(kind, kind)) for start, end, kind in rows)

    @pytest.mark.parametrize("name", KINETO)
    def test_perfetto_reads_of_ours_what_it_reads_of_the_original_and_what_it_drops_there(engine, tmp_path, name):
        source, path = FOLDER / "kineto" / f"{name}.json.gz", tmp_path / "run.pftrace"
        trace = gsl.load_trace(source)
        trace.save(path)
        assert_all_same(read_pftrace(path), trace)
        engine.load(path.read_bytes())
        assert engine.query(PROBLEMS) == []
        ours = work_in(engine, OUR_WORK)
        engine.load(gzip.decompress(source.read_bytes()))
        theirs = work_in(engine, KINETO_WORK)
        dropped = dict(engine.query("select name, value from stats where name = 'slice_drop_overlapping_complete_event'"))
        assert ours.total() == expected_count(trace)
        # It counts times from where the file does, we since 1970.
        moved = min(start for start, *_ in theirs) - min(start for start, *_ in ours)
        theirs = Counter({(start - moved, end - moved, kind): count for (start, end, kind), count in theirs.items()})
        assert (theirs - ours).total() == 0
        assert (ours - theirs).total() <= dropped.get("slice_drop_overlapping_complete_event", 0)

    def expected_count(trace: Trace) -> int:
        return sum(SPAN_KINDS[kind] in DEVICE_WORK for kind in trace.kind.tolist())

    @pytest.mark.parametrize("path", sorted((FOLDER / "perfetto").glob("*.pftrace")), ids=lambda path: path.stem)
    def test_a_real_file_equals_its_truth(path):
        truth = json.loads(path.with_name(f"{path.name}.truth.json").read_text())
        trace = read_pftrace(path)
        names = [trace.names[code] for code in trace.name.tolist()]
        spans = Counter(zip(trace.start_ns.tolist(), trace.duration_ns.tolist(), names, strict=True))
        assert spans == Counter((one["ts"], one["dur"], one["name"]) for one in truth["slices"])
        source, target = trace.edges.source.tolist(), trace.edges.target.tolist()
        flows = Counter((names[a], names[b], trace.start_ns[a], trace.start_ns[b]) for a, b in zip(source, target, strict=True))
        columns = ("source", "target", "source_ts", "target_ts")
        assert flows == Counter(tuple(one[column] for column in columns) for one in truth["flows"])
        samples = Counter(zip(trace.counters.time_ns.tolist(), trace.counters.value.tolist(), strict=True))
        told = Counter((one["ts"], one["value"]) for one in truth["counters"])
        lost = told - samples
        assert samples <= told
        assert lost.total() == (4 if path.stem == "track_event_counters" else 0)  # of threads, told in the old way
