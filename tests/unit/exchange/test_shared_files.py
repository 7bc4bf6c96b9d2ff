"""Real files that others recorded equal their truths: in the folder of GPUSTREAMLAB_EXCHANGE, or beside the checkout."""

from __future__ import annotations

import gzip
import json
import os
import re
import statistics
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab import Trace
from gpustreamlab.analysis import counted_rows, interval_sum_ns, union_edges
from gpustreamlab.errors import OptionError
from gpustreamlab.exchange import find_format
from gpustreamlab.exchange._chrome_events import Event, Top
from gpustreamlab.exchange._json_events import EventFile
from gpustreamlab.model import DEVICE_WORK, SPAN_KINDS
from gpustreamlab.typing import Cause, SpanKind
from tests.helpers.trace_processor import PROBLEMS, TraceProcessor
from tests.unit.exchange.test_chrome import edges_of, spans_of
from tests.unit.exchange.test_pftrace import assert_all_same
from tests.unit.model.equality import assert_same_trace

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("GPUSTREAMLAB_EXCHANGE", ROOT.parent / "shared" / "exchange")) / "traces"
KINDS = {"kernel": "kernel", "copy": "memcpy", "fill": "memset"}
COPIES = {"1": "HtoD", "2": "DtoH", "8": "DtoD"}
KINETO = ("a100_alexnet_sync", "h100_vit", "a100_event_sync_multi_stream", "mi300x_triton_compile", "v100_dlrm_rank0")
OUR_WORK = tuple(kind.value for kind in DEVICE_WORK)
KINETO_WORK = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")

read_chrome = partial(gsl.load_trace, format="chrome")


def rows(trace, kind):
    return trace.kind == SPAN_KINDS.index(SpanKind(kind))


def busy_ns(trace, mine):
    return interval_sum_ns(union_edges(trace.start_ns[mine], trace.end_ns[mine]))


if FOLDER.is_dir():  # nothing is skipped where it is not

    @pytest.mark.parametrize(
        "truth_path", sorted((FOLDER / "kineto").glob("*.truth.json")), ids=lambda path: path.name.split(".")[0]
    )
    def test_a_real_profile_equals_its_truth(truth_path):
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
            assert busy_ns(trace, mine) == lane["busy_ns"]
        found = trace.overlap()
        for pair in [pair for device in gpu["devices"] for pair in device["pairs"]]:
            first, second = (
                trace.lanes[places[device, context or 0, stream]].name for device, context, stream in (pair["a"], pair["b"])
            )
            assert found[first, second].common_ns == pair["overlap_ns"]

    @pytest.fixture(
        scope="module", params=sorted((FOLDER / "nsys").glob("*.truth.json")), ids=lambda path: path.name.split(".")[0]
    )
    def pair(request):
        told = request.param
        return gsl.load_trace(told.with_name(told.name.removesuffix(".truth.json") + ".gz")), json.loads(told.read_text())

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

    @pytest.fixture(scope="module")
    def merged():
        """Return four ranks of one job, each with a V100."""
        return gsl.load_trace([FOLDER / "kineto" / f"v100_dlrm_rank{rank}.json.gz" for rank in range(4)])

    def test_two_cards_of_a_report_share_nothing():
        trace = gsl.load_trace(FOLDER / "nsys" / "h100_2gpu_3.25.sqlite.gz")
        assert "on 2 GPUs" in repr(trace)
        found = trace.overlap()
        assert ("on 2 GPUs, wall" in repr(found), "share an engine" in repr(found)) == (True, False)
        assert found.ideal_ns == found.busy_ns.max()
        with pytest.raises(OptionError, match="2 processes work on 2 GPUs"):  # each rank has one
            trace.critical_path()
        assert trace.where(device=1).explain().streams == ("GPU 1 stream 15",)

    def test_ranks_have_the_sms_of_all_cards(merged):
        found, alone = merged.utilization(), [merged.where(device=rank).utilization() for rank in range(4)]
        assert (found.sm_count, found.device.tolist()) == (320, [0, 1, 2, 3])
        assert found.card_sm_ns == sum(one.card_sm_ns for one in alone)
        assert "on 4 GPUs (" in repr(merged)

    def test_ranks_wait_for_their_own_work(merged):
        waits = merged.host_waits()
        known = waits.waited_for >= 0
        process = [lane.process for lane in merged.lanes]
        pairs = zip(waits.lane[known].tolist(), merged.lane[waits.waited_for[known]].tolist(), strict=True)
        assert known.sum() > 0
        assert all(process[thread] == process[stream] for thread, stream in pairs)

    def test_a_rank_of_a_job_is_answered_as_its_file_alone(merged):
        with pytest.raises(OptionError, match="4 processes work on 4 GPUs"):
            merged.explain()
        for rank in (0, 3):
            part, alone = merged.where(device=rank), gsl.load_trace(FOLDER / "kineto" / f"v100_dlrm_rank{rank}.json.gz")
            assert len(part) == len(alone)
            assert part.critical_path().duration_ns == alone.critical_path().duration_ns
            # What it waited for the other ranks, its file alone cannot tell.
            here = [one for one in part.explain().findings if one.code is not Cause.OTHER_RANK]
            told = [(one.code, one.saves_ns, one.waited_ns) for one in here]
            assert told == [(one.code, one.saves_ns, one.waited_ns) for one in alone.explain().findings]
            assert part.utilization().card_sm_ns == alone.utilization().card_sm_ns
            assert part.host_waits().waited_ns.sum() == alone.host_waits().waited_ns.sum()

    def test_files_of_two_jobs_are_no_trace():
        names = ("v100_dlrm_rank0", "v100_128rank_rank1")
        with pytest.raises(OptionError, match=r"dlrm_rank0.* is of a job of .* 128"):
            gsl.load_trace([FOLDER / "kineto" / f"{name}.json.gz" for name in names])

    def test_flows_are_those_that_perfettos_engine_finds():
        path = FOLDER / "chrome" / "flow_events_json_v1.json"
        truth = json.loads(path.with_name(f"{path.name}.truth.json").read_text())
        trace = read_chrome(path)
        assert [(name, start, end - start) for _, name, _, start, end in spans_of(trace)] == [
            (one["name"], one["ts"], one["dur"]) for one in truth["slices"]
        ]
        assert sorted(edge[:2] for edge in edges_of(trace)) == sorted((one["source"], one["target"]) for one in truth["flows"])

    def test_viztracers_file_equals_its_truth():
        path = FOLDER / "chrome" / "viztracer_multithread.json.gz"
        truth = json.loads(path.with_name(f"{path.name}.truth.json").read_text())
        trace = read_chrome(path)
        names = truth["metadata_names"]
        for track in truth["tracks"]["tracks"]:
            thread = names[f"thread_name|{track['pid']}|{track['tid']}"]
            mine = trace.lane == [lane.name for lane in trace.lanes].index(f"host: {thread}")
            assert (mine.sum(), trace.duration_ns[mine].sum()) == (track["spans"], track["sum_ns"])
            assert (trace.start_ns[mine].min(), trace.end_ns[mine].max()) == (track["first_start_ns"], track["last_end_ns"])
            assert len(set(trace.name[mine].tolist())) == track["distinct_names"]

    @pytest.mark.parametrize("path", sorted(FOLDER.glob("kineto/*.json.gz")), ids=lambda path: path.name.split(".")[0])
    def test_files_of_pytorch_are_known_by_their_head(path):
        assert find_format(path) == "kineto"

    def test_a_real_file_of_pytorch_has_all_its_slices_read_as_plain_chrome_json_too():
        path = FOLDER / "kineto" / "a100_alexnet_sync.json.gz"
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        assert len(read_chrome(path)) == sum(event["ph"] == "X" for event in events)
        file = EventFile(path, Event, Top)
        assert sum(map(len, file.blocks())) == len(events) == file.event_count

    @pytest.mark.parametrize("name", ["a100_event_sync_multi_stream", "mi300x_graph_sglang", "tiny_base", "cpu_only"])
    def test_a_real_profile_of_pytorch_comes_back_as_it_was(tmp_path, name):
        trace = gsl.load_trace(FOLDER / "kineto" / f"{name}.json.gz")
        trace.save(tmp_path / "run.json.gz")
        assert_same_trace(read_chrome(tmp_path / "run.json.gz"), trace)

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
        assert_all_same(gsl.load_trace(path), trace)
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
        trace = gsl.load_trace(path)
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
