"""Why work did not overlap: planted causes are named, clean programs are left alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import _pieces
from gpustreamlab.model import Accesses, Marker, Partition, WorkDetail
from gpustreamlab.typing import Cause, Certainty
from gpustreamlab.workloads import spin
from tests.helpers.long_runs import count
from tests.helpers.planted import (
    CLEAN,
    MS,
    PLANTED,
    clean_program,
    pair,
    record,
    wait_for_device,
    wait_for_device_in_a_loop,
    wait_for_stream,
)
from tests.helpers.traces import data_order, make_kernel_trace, make_trace

PROGRAMS = [pytest.param(cause, program, id=program.__name__) for cause, programs in PLANTED.items() for program in programs]


@pytest.mark.parametrize(("cause", "program"), PROGRAMS)
def test_a_planted_cause_is_named_first(cause, program):
    found = record(program).explain("a", "b")
    assert found.findings, found
    assert found.findings[0].code == cause, str(found)


@pytest.mark.parametrize("program", CLEAN, ids=lambda program: program.__name__)
def test_nothing_is_found_in_a_clean_program(program):
    assert not record(program).explain().findings


def test_random_clean_programs_get_no_finding():
    false_alarms = {seed: str(found) for seed in range(count(25, 200)) if len(found := record(clean_program(seed)).explain())}
    assert len(false_alarms) <= 1, "\n".join(false_alarms.values())


def test_two_causes_at_once_are_both_named_in_the_order_of_cost():
    def program(lab):
        first, second = pair(lab)
        for _ in range(3):
            spin(lab, 2 * MS, stream="a")
            first.synchronize()
            spin(lab, MS, stream="b")
            first.wait(second.record())

    found = record(program).explain("a", "b")
    assert [finding.code for finding in found.findings] == [Cause.HOST_SYNC_STREAM, Cause.EVENT_WAIT]
    assert found.findings[0].waited_ns > found.findings[1].waited_ns


def pipeline(lab, *, blocking):
    copy_in, compute, copy_out = (lab.stream(name) for name in ("h2d", "compute", "d2h"))
    batches, results = ([lab.memory.pinned_empty((512, 512), np.float32) for _ in range(4)] for _ in range(2))
    for batch, result in zip(batches, results, strict=True):
        with lab.on(copy_in, "upload"):
            x = lab.xp.empty(batch.shape, batch.dtype)
            x.set(batch)
        compute.wait(copy_in)
        with lab.on(compute, "product"):
            y = x @ x
        copy_out.wait(compute)
        with lab.on(copy_out, "download"):
            y.get(out=result, blocking=blocking)
    lab.synchronize()


def explained_session(program):
    with gsl.Session("sim") as lab:
        lab.capture("kernels", host=True)
        program(lab)
        return lab.explain()


def shared(trace):
    """Return the streams of which the second uses data of the first."""
    return {*data_order(trace)}


def test_the_host_comes_before_waits_that_order_data_and_these_are_never_advised_away():
    found = explained_session(lambda lab: pipeline(lab, blocking=True))
    assert [one.code for one in found.findings] == [Cause.HOST_SYNC_STREAM, Cause.EVENT_WAIT, Cause.EVENT_WAIT]
    mended = explained_session(lambda lab: pipeline(lab, blocking=False))
    waits = [one for one in (*found.findings, *mended.findings) if one.code is Cause.EVENT_WAIT]
    assert len(waits) > 2
    for one in waits:
        assert one.fix.startswith(f"Keep this wait: {one.stream!r} uses arrays of {one.other!r}.")
        assert "leave out" not in one.fix
        assert one.saves_ns == 0
        assert one.bound_ns == 0
        assert f"{one.code}: saves nothing" in one.head


def test_what_is_to_be_gained_is_what_it_is_then_shorter():
    found, mended = (explained_session(lambda lab, b=blocking: pipeline(lab, blocking=b)) for blocking in (True, False))
    assert found.forecast.measured_ns - found.gain_ns == pytest.approx(mended.forecast.measured_ns, rel=0.001)
    assert found.gain_ns == found.findings[0].saves_ns
    assert found.headline.startswith("556 µs; 406 µs with the change below (27% less); ")
    assert abs(found.forecast.error) < 0.001
    assert mended.gain_ns == 0
    assert mended.headline.startswith("406 µs; at best 206 µs with the change below (49% less); ")  # kernels on two streams


def test_of_work_of_which_nobody_knows_what_it_touches_nothing_is_promised():
    with gsl.Session("sim") as lab:
        lab.capture("kernels", host=True)
        pipeline(lab, blocking=True)
        trace = lab.trace
    unknown = replace(trace, accesses=Accesses()).explain()
    assert unknown.gain_ns == 0
    assert unknown.bound_ns > 0
    assert all(one.saves_ns == 0 for one in unknown.findings)
    assert any(one.bound_ns for one in unknown.findings)
    assert "not promised" in unknown.findings[0].head
    assert "Nothing is promised, as not all of what the work reads and writes" in " ".join(unknown.notes)


def test_where_nobody_knows_whether_a_wait_is_needed_it_is_kept():
    trace = record(PLANTED[Cause.EVENT_WAIT][0])
    found = trace.explain("a", "b")
    assert found.findings[0].fix == "Leave out lab.stream('b').wait('a'): no array asks for it."
    found = replace(trace, accesses=Accesses()).explain("a", "b")
    assert found.findings[0].fix.startswith("It is not known what all this work reads and writes, so keep the wait.")
    assert (found.findings[0].saves_ns, found.findings[0].bound_ns) == (0, pytest.approx(2 * MS, rel=0.01))


def test_streams_that_use_parts_of_an_array_that_do_not_meet_share_no_data():
    def halves(lab):
        x = lab.xp.empty(1024, np.float32)
        for name, part in (("a", x[:512]), ("b", x[512:])):
            lab.stream(name)
            with lab.on(name, "half"):
                part.fill(1)
        lab.synchronize()

    with gsl.Session("sim") as lab:
        lab.capture("kernels")
        halves(lab)
        assert (len(lab.trace.accesses), shared(lab.trace)) == (2, set())


def test_a_finding_has_its_records_and_figures():
    trace = record(wait_for_stream)
    (finding,) = trace.explain("a", "b").findings
    assert (finding.stream, finding.other, finding.piece_count, finding.certainty) == ("b", "a", 1, Certainty.PROVED)
    assert trace.names[trace.name[finding.call_row]] == "cudaStreamSynchronize"
    assert trace.lanes[trace.lane[finding.row]].name == "b"
    assert trace.lanes[trace.lane[finding.other_row]].name == "a"
    assert finding.waited_ns == pytest.approx(2 * MS, rel=0.001)
    assert finding.saves_ns == pytest.approx(2 * MS, rel=0.01)
    assert trace.explain().to_pandas().code.tolist() == ["HOST_SYNC_STREAM"]
    assert [one.code for one in trace.explain(finding.row).findings] == [finding.code]


def test_a_finding_has_all_its_pieces_the_longest_first():
    trace = record(wait_for_device_in_a_loop)
    for finding in trace.explain().findings:
        late = finding.pieces
        assert {len(column) for column in late} == {finding.piece_count}
        assert (late.row[0], late.other_row[0], late.call_row[0]) == (finding.row, finding.other_row, finding.call_row)
        assert (np.diff(late.waited_ns) <= 0).all()
        assert late.waited_ns[0] <= finding.waited_ns <= late.waited_ns.sum()
        assert (late.start_ns == trace.start_ns[late.row]).all()
        lanes = {trace.lanes[lane].name for lane in trace.lane[late.row]}
        assert finding.stream in lanes  # one change mends what was late on both


def test_work_that_took_no_time_holds_nothing_up():
    assert not gsl.Trace.from_columns(start_ns=[5], end_ns=[5], stream=["a"]).explain()
    trace = gsl.Trace.from_columns(start_ns=[0, 10**6], end_ns=[0, 10**6 + 9], stream=["a", "b"])
    assert not trace.explain()


def test_names_of_ranges_and_kernels_can_be_asked_for():
    def program(lab):
        lab.stream("one")
        for name in ("load", "step"):
            with lab.on("one", name):
                spin(lab, MS)

    trace = record(program)
    (finding,) = trace.explain("load", "step").findings
    assert (finding.code, finding.bound_ns, finding.stream) == (Cause.SAME_LANE, 0, "one")
    assert finding.saves_ns == pytest.approx(MS, rel=0.01)
    assert "one stream" in trace.explain().__repr__()


def test_the_sessions_own_end_is_never_blamed():
    def program(lab):
        pair(lab)
        spin(lab, 2 * MS, stream="a")

    assert not record(program).explain().findings


@pytest.mark.parametrize("host", [True, False])
def test_without_calls_of_the_host_a_late_launch_is_told_and_what_to_capture(host):
    with gsl.Session("sim", capture="ranges") as lab:
        lab.capture("kernels", host=host)
        wait_for_device(lab)
        lab.synchronize()
        found = lab.explain("a", "b")
    (finding,) = found.findings
    assert finding.code == (Cause.HOST_SYNC_DEVICE if host else Cause.HOST_LATE)
    assert ("host=True" in str(found)) is not host


def test_of_ranges_alone_it_is_said_that_they_contain_waiting():
    with gsl.Session("sim", capture="ranges") as lab:
        for name in "ab":
            lab.stream(name)
            with lab.on(name, "work"):
                spin(lab, MS)
            lab.synchronize()
        found = lab.explain("a", "b")
    assert [finding.code for finding in found.findings] == [Cause.HOST_LATE]
    assert found.is_ranges
    assert "Only ranges are known" in str(found)


def test_of_ranges_without_a_finding_it_is_said_that_causes_are_not_known_and_how_to_learn_them():
    with gsl.Session("sim", capture="ranges") as lab:
        for name in "ab":
            lab.stream(name)
        for _ in range(4):
            for name in "ab":
                with lab.on(name, "work"):
                    spin(lab, MS)
        lab.synchronize()
        found = lab.explain()
    assert not found.findings
    said = " ".join(str(found).split())
    assert "Kernels were not captured, so causes are not known: type lab.capture('kernels', host=True)" in said
    assert "No cause stands out" not in said


def test_work_whose_launch_is_not_known_is_not_blamed_on_the_host():
    spans = [("a", "x", 0, MS), ("b", "y", MS + 2_000, 2 * MS)]
    (finding,) = make_kernel_trace(spans).explain("a", "b").findings
    assert (finding.code, finding.certainty) == (Cause.UNKNOWN, Certainty.UNKNOWN)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        (("copi",), gsl.errors.StreamNotFoundError, "no stream, range or kernel 'copi'"),
        (("a", 7), gsl.errors.StreamNotFoundError, "no stream, range or kernel 7"),
        ((99,), gsl.errors.OptionError, "rows 0 to"),
        (("cudaStreamSynchronize",), gsl.errors.OptionError, "no work of a stream"),
    ],
)
def test_what_the_trace_has_not_is_refused(asked, error, text):
    with pytest.raises(error, match=text):
        record(wait_for_stream).explain(*asked)


def test_of_work_of_two_cells_only_is_told_that_one_stream_had_work():
    trace = record(wait_for_stream)
    between_ns = int(trace.end_ns[trace.name == trace.names.index("spin")].min()) + 1_000
    found = replace(trace, markers=(Marker(time_ns=between_ns, text="In [2]", kind="cell"),)).explain()
    assert [finding.code for finding in found.findings] == [Cause.NOT_OFFERED]
    assert "only one stream had work queued or running" in " ".join(str(found).split())


def test_what_many_pairs_of_streams_cost_is_added_up():
    def program(lab):
        for turn in range(100):
            with lab.on(lab.stream(f"s{turn}"), "step"):
                spin(lab, 1_000_000)
            if turn % 3 == 0:
                lab.synchronize()

    found = record(program).explain()
    assert found.findings[0].code is Cause.HOST_SYNC_DEVICE
    assert found.findings[0].pair_count > 10
    assert found.findings[0].saves_ns > 0.5 * found.gain_ns
    assert "pairs of streams" in str(found)


def test_a_kernel_whose_time_varies_is_not_called_slowed():
    chance = np.random.default_rng(5)
    count = 20_000
    start_ns, end_ns = [], []
    for _ in "ab":
        lasted = chance.integers(1_000, 20_000, count)
        end_ns.append(np.cumsum(lasted + chance.integers(0, 8_000, count)))
        start_ns.append(end_ns[-1] - lasted)
    columns = {"start_ns": np.concatenate(start_ns), "end_ns": np.concatenate(end_ns), "stream": ["a"] * count + ["b"] * count}
    trace = gsl.Trace.from_columns(**columns, kind="kernel", name=["k"] * (2 * count))
    assert Cause.SLOWED_DOWN not in [finding.code for finding in trace.explain().findings]


def test_of_too_many_pieces_the_costliest_are_looked_into(monkeypatch):
    monkeypatch.setattr(_pieces, "MOST_PIECES", 3)
    found = record(wait_for_device_in_a_loop).explain()
    assert 0.3 < found.looked_share < 1
    assert sum(finding.piece_count for finding in found.findings) == 3
    assert "The costliest pieces were looked into" in str(found)


def test_where_nothing_ran_nothing_is_asked_for():
    assert str(gsl.Trace.from_columns(start_ns=[], end_ns=[], stream=[]).explain()) == "Why: nothing has ended"


def held_up(calls, **options):
    """Return a trace in which work on `b` is launched behind work on `a`, after these calls of the host (name, start, end)."""
    spans = [("a", "x", 0, 2 * MS, {"queued_ns": -9_000}), ("b", "y", 2 * MS + 10_000, 4 * MS, {"queued_ns": 2 * MS + 4_000})]
    spans += [("host: main", "cuLaunchKernel", 2 * MS + 4_000, 2 * MS + 6_000, {"kind": "host"})]
    spans += [("host: main", name, start, end, {"kind": "host"}) for name, start, end in calls]
    return make_kernel_trace(spans, edges=[(2, 1, "launch")], **options)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("overhead: lazy function loading", Cause.LAZY_LOAD),
        ("cuModuleLoadData", Cause.LAZY_LOAD),
        ("overhead: CUPTI buffer flush", Cause.PROFILER_OVERHEAD),
        ("overhead: activity buffer request", Cause.PROFILER_OVERHEAD),
        ("overhead: command buffer full", Cause.QUEUE_FULL),
        ("printf", Cause.HOST_LATE),
    ],
)
def test_what_the_driver_and_the_profiler_did_besides_is_a_cause(call, code):
    (finding,) = held_up([(call, 10_000, 2 * MS)]).explain("a", "b").findings
    assert (finding.code, finding.certainty) == (code, Certainty.PROVED)


def test_a_function_of_the_host_in_the_stream_is_named_where_nothing_else_held_it():
    spans = [
        ("a", "x", 0, 2 * MS, {"queued_ns": -9_000}),
        ("b", "first", 5_000, 20_000, {"queued_ns": 1_000}),
        ("b", "second", 3 * MS, 5 * MS, {"queued_ns": 9_000}),
        ("host: main", "cuLaunchKernel", 1_000, 2_000, {"kind": "host"}),
        ("host: main", "cuLaunchKernel", 9_000, 10_000, {"kind": "host"}),
    ]
    edges = [(3, 1, "launch"), (4, 2, "launch")]
    codes = {}
    for name, start in (("cudaLaunchHostFunc", 4_000), ("cudaLaunchHostFunc", 500), ("cudaEventRecord", 4_000)):
        trace = make_kernel_trace([*spans, ("host: main", name, start, start + 1_000, {"kind": "host"})], edges=edges)
        codes[name, start] = [finding.code for finding in trace.explain("a", "b").findings]
    assert list(codes.values()) == [[Cause.HOST_FUNC], [Cause.UNKNOWN], [Cause.UNKNOWN]]


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        ((True, True), (Cause.LEGACY_STREAM, Certainty.PROVED)),
        ((True, None), (Cause.LEGACY_STREAM, Certainty.LIKELY)),
        ((True, False), (Cause.UNKNOWN, Certainty.UNKNOWN)),
    ],
)
def test_only_blocking_streams_and_the_default_stream_wait_for_each_other(flags, found):
    spans = [
        ("default stream", "x", 0, 2 * MS, {"queued_ns": -9_000}),
        ("s", "y", 2 * MS + 2_000, 4 * MS, {"queued_ns": -5_000}),
    ]
    trace = make_kernel_trace(spans)
    lanes = tuple(replace(lane, outside=True, is_blocking=flag) for lane, flag in zip(trace.lanes, flags, strict=True))
    (finding,) = replace(trace, lanes=lanes).explain("default stream", "s").findings
    assert (finding.code, finding.certainty) == found


@pytest.mark.parametrize(
    ("queues", "found"),
    [
        ((4, 4), (Cause.QUEUE_ALIAS, Certainty.PROVED)),
        ((4, 5), (Cause.UNKNOWN, Certainty.UNKNOWN)),
        ((-1, -1), (Cause.UNKNOWN, Certainty.UNKNOWN)),
    ],
)
def test_one_hardware_queue_is_a_cause(queues, found):
    first, second = (WorkDetail(full_name="k", grid=(1, 1, 1), block=(32, 1, 1), channel=queue) for queue in queues)
    spans = [
        ("a", "x", 0, 2 * MS, {"queued_ns": -9_000, "detail": first}),
        ("b", "y", 2 * MS + 2_000, 4 * MS, {"queued_ns": -5_000, "detail": second}),
    ]
    (finding,) = make_kernel_trace(spans).explain("a", "b").findings
    assert (finding.code, finding.certainty) == found


def test_unknown_says_what_was_ruled_out_and_what_was_not_recorded():
    spans = [("a", "x", 0, 2 * MS, {"queued_ns": -9_000}), ("b", "y", 2 * MS + 2_000, 4 * MS, {"queued_ns": -5_000})]
    (finding,) = make_kernel_trace(spans).explain("a", "b").findings
    assert "Not recorded, so that nobody can tell: an event that its stream waited for, a slow launch" in finding.fix


def test_what_ran_on_one_stream_by_mistake_could_be_saved():
    def program(lab):
        pair(lab)
        with lab.on("a", "load"):
            spin(lab, 2 * MS)
        with lab.on("b", "step"):
            spin(lab, 2 * MS, stream="a")

    found = record(program).explain("a", "b")
    assert [finding.code for finding in found.findings] == [Cause.OTHER_STREAM]
    assert found.findings[0].saves_ns == found.gain_ns == pytest.approx(2 * MS, rel=0.02)


def test_a_name_of_a_range_is_found_beside_an_idle_stream_of_that_name():
    def program(lab):
        for name in ("load", "step"):
            lab.stream(name)
        for stream, name in zip("ab", ("load", "step"), strict=True):
            with lab.on(lab.stream(stream), name):
                spin(lab, 2 * MS)
            lab.synchronize()

    assert record(program).explain("load", "step").findings[0].code is Cause.HOST_SYNC_DEVICE


def test_waits_of_the_host_are_not_told_where_nothing_is_to_be_gained():
    def program(lab):
        pair(lab)
        for _ in range(4):
            for name in "ab":
                spin(lab, MS, stream=name)
            lab.synchronize()
        spin(lab, 9 * MS, stream="a")

    assert not record(program).explain().findings


def test_a_first_launch_that_the_profiler_held_up_loaded_nothing():
    spans = [
        ("a", "x", 0, 2 * MS, {"queued_ns": -9_000}),
        ("b", "y", MS, 4 * MS, {"queued_ns": 4_000}),
        ("host: main", "cuLaunchKernel", 4_000, MS - 4_000, {"kind": "host"}),
    ]
    for name, end_ns, code in (
        ("overhead: activity buffer request", MS - 5_000, Cause.PROFILER_OVERHEAD),
        ("overhead: activity buffer request", 6_000, Cause.UNKNOWN),
        ("cudaEventRecord", 6_000, Cause.LAZY_LOAD),
    ):
        trace = make_kernel_trace([*spans, ("host: main", name, 5_000, end_ns, {"kind": "host"})], edges=[(2, 1, "launch")])
        assert [finding.code for finding in trace.explain("a", "b").findings] == [code]


# What an attack found: each was told wrongly once.

US = 1_000
FULL = WorkDetail(full_name="gemm", grid=(8_448, 1, 1), block=(1_024, 1, 1))
SMALL = WorkDetail(full_name="tok", grid=(1, 1, 1), block=(32, 1, 1))


class Program:
    """Collects work with its launches, calls and waits; times in us."""

    def __init__(self):
        self.spans, self.edges = [], []

    def work(self, lane, start, end, queued, **options):
        self.spans.append((lane, "k", start * US, end * US, {"queued_ns": queued * US, "detail": SMALL, "thread": 0} | options))
        self.call("cudaLaunchKernel", queued, queued + 3)
        self.edges.append((len(self.spans) - 1, len(self.spans) - 2, "launch"))
        return len(self.spans) - 2

    def call(self, name, start, end):
        self.spans.append(("host: main", name, start * US, end * US, {"kind": "host"}))

    def explain(self, *asked, **options):
        trace = make_kernel_trace(self.spans, edges=self.edges, threads=("main",), **options)
        self.found = trace.explain(*asked)
        return [(one.code, round((one.saves_ns or one.bound_ns) / 1e6, 1)) for one in self.found.findings]


def test_a_short_wait_of_the_host_does_not_stand_for_what_the_host_did_before():
    program = Program()
    program.work("a", 8, 10_000, 0)
    program.call("cudaStreamSynchronize", 9_900, 10_004)
    program.work("b", 10_020, 18_000, 10_012)
    assert program.explain() == [(Cause.HOST_LATE, 8.0)]


def test_what_the_host_did_goes_before_that_only_one_stream_had_work():
    program = Program()
    for start in (0, 3_090, 6_180):  # 3 ms of Python between two launches, as on an H200: b waits, and then runs beside a
        program.work("a", start + 8, start + 1_008, start)
        program.work("b", start + 3_065, start + 4_065, start + 3_059)
    codes = [code for code, _ in program.explain("a", "b")]
    assert codes[0] is Cause.HOST_LATE
    assert Cause.NOT_OFFERED in codes


def test_where_an_event_would_have_held_it_anyway_the_host_is_not_blamed():
    program = Program()
    awaited = program.work("b", 8, 1_000, 0)
    program.call("cudaStreamSynchronize", 9, 1_003)
    program.edges.append((awaited, program.work("a", 1_020, 3_000, 1_012), "wait"))
    assert program.explain() == [(Cause.EVENT_WAIT, 1.0)]


def test_what_was_late_makes_late_what_follows_it():
    program = Program()
    program.work("a", 8, 25_000, 0)
    program.work("c", 12, 5_000, 5)
    program.call("cudaStreamSynchronize", 12, 5_004)
    for start in range(5_018, 5_018 + 26 * 1_000, 26):
        program.work("b", start, start + 20, start - 8)
    # A stream that waits in place of the host keeps the order of work of which it is not known what it touches.
    assert program.explain() == [(Cause.HOST_SYNC_STREAM, 5.0)]
    assert program.found.findings[0].fix.startswith("Let streams wait in place of the host: lab.stream('b').wait('c').")


def test_short_work_in_between_does_not_hide_what_filled_the_sms():
    program = Program()
    program.work("a", 8, 4_000, 0, detail=FULL)
    program.work("b", 4_002, 8_000, 10, detail=FULL)
    for number in range(700):
        program.work("dec", 11 + 5 * number, 15 + 5 * number, 1 + 5 * number)
    program.explain("b")
    assert [(finding.code, finding.other) for finding in program.found.findings][:1] == [(Cause.GRID_FILLS_DEVICE, "a")]


def test_a_kernel_on_the_whole_card_fills_the_sms_of_a_partition_too():
    layout = {"partitions": (Partition(name="part", requested_sms=8, granted_sms=8),)}
    program = Program()
    program.work("a", 8, 4_000, 0, detail=FULL)
    program.work("b", 4_002, 8_000, 10, partition=0)
    assert program.explain(**layout) == [(Cause.GRID_FILLS_DEVICE, 3.9)]
    assert program.found.findings[0].fix.startswith("Give it priority where it is made: lab.stream('b', priority=-1).")
    program = Program()
    program.work("a", 8, 4_000, 0, detail=FULL, partition=0)
    program.work("b", 4_002, 8_000, 10)
    assert program.explain(**layout) == [(Cause.UNKNOWN, 4.0)]


def test_the_wait_is_shared_out_among_an_event_and_what_came_then():
    program = Program()
    awaited = program.work("b", 8, 1_108, 0)
    program.work("b", 1_109, 1_170, 4, detail=FULL)
    program.edges.append((awaited, program.work("a", 1_171, 3_000, 20), "wait"))
    program.explain()
    told = {one.code: round(one.bound_ns / 1e6, 1) for one in program.found.findings if one.bound_ns}
    assert told == {Cause.EVENT_WAIT: 1.1, Cause.GRID_FILLS_DEVICE: 0.1}


def test_kernels_that_take_many_times_as_long_did_other_work():
    program, at = Program(), 0
    for lasts, streams in ((100, "a"), (1_000, "ab")):
        for _ in range(6):
            for lane in streams:
                program.work(lane, at + 10, at + 10 + lasts, at, detail=FULL)
            at += lasts + 20
    assert Cause.SLOWED_DOWN not in [code for code, _ in program.explain()]


def test_work_of_its_own_stream_that_was_not_asked_for_is_named():
    program = Program()
    for lane, start, end, name in (("a", 8, 1_500, "prep"), ("a", 1_501, 2_000, "gemm"), ("b", 9, 1_000, "other")):
        program.work(lane, start, end, 1)
        program.spans[-2] = (program.spans[-2][0], name, *program.spans[-2][2:])
    program.explain("gemm", "other")
    assert [finding.code for finding in program.found.findings] == [Cause.SAME_LANE]
    assert "prep on 'a' was in front of gemm" in program.found.findings[0].text


def test_launches_in_a_row_are_not_late_and_a_pause_is():
    for pause, codes in ((0, []), (700, [Cause.HOST_LATE])):
        program, queued = Program(), 0
        for lane in "abcd":
            program.work(lane, queued + 10, queued + 4_000, queued)
            queued += 200 + (pause if lane == "c" else 0)
        assert [code for code, _ in program.explain()] == codes


def test_a_row_says_when_it_began_and_a_name_that_nothing_ran_on():
    trace = record(wait_for_stream)
    row = trace.explain("a", "b").findings[0].row
    assert f"row {row}, spin on 'b', began 4.00 µs after its launch" in trace.explain(row).headline
    first = int(trace.explain("a", "b").findings[0].other_row)
    assert trace.explain(first).headline.endswith("nothing held it up while others worked")

    def one_sided(lab):
        pair(lab)
        spin(lab, MS, stream="a")

    assert record(one_sided).explain("a", "b").headline == "nothing ran on 'b'"


def test_a_host_whose_calls_are_not_known_is_blamed_as_likely_and_the_calls_are_asked_for():
    with gsl.Session("sim", capture="ranges") as lab:
        lab.capture("kernels", host=False)
        wait_for_stream(lab)
        lab.synchronize()
        (finding,) = lab.explain("a", "b").findings
    assert (finding.code, finding.certainty) == (Cause.HOST_LATE, Certainty.LIKELY)
    assert "host=True" in finding.fix


def test_ranges_alone_never_read_as_work_at_once():
    trace = make_trace([("a", "x", 0, 3_000), ("b", "y", 0, 2_000)])
    told = "with ranges of two or more streams queued or running; what of it ran at once is not known"
    assert trace.explain()._line() == f"2.00 µs of 3.00 µs {told}"
    assert "at work" not in str(trace.explain())


def test_a_piece_that_one_wait_held_up_before_its_launch_and_behind_it_is_told_once():
    with gsl.Session("sim") as lab:
        first, second = lab.stream("first"), lab.stream("second")
        with lab.on("first"):
            spin(lab, 90_000, blocks=20)
        second.wait(first.record())
        with lab.on("second"):
            spin(lab, 40_000, blocks=4)
        lab.synchronize()
        (finding,) = lab.explain().findings
    assert (finding.code, finding.piece_count, len(finding.pieces.row)) == (Cause.EVENT_WAIT, 1, 1)
    assert finding.head == "EVENT_WAIT: saves 40.0 µs"


@pytest.mark.parametrize("buffers", [2, 3])
def test_a_wait_of_which_some_turns_are_ordered_by_others_is_kept(buffers):
    with gsl.Session("sim") as lab:
        up, work = lab.stream("up"), lab.stream("work")
        source = lab.memory.pinned_empty((256, 256), "f4")
        device, total = [lab.xp.ones((256, 256), "f4") for _ in range(buffers)], lab.xp.zeros((256, 256), "f4")
        lab.synchronize()
        lab.clear()
        for turn in range(8):
            with lab.on(up):
                device[turn % buffers].set(source)
            work.wait(up)
            with lab.on(work):
                total += device[turn % buffers]
            up.wait(work)
        lab.synchronize()
        told = [one.fix for one in lab.explain().findings if one.code is Cause.EVENT_WAIT]
    assert told
    assert not [fix for fix in told if "Leave out" in fix]


def test_a_graph_is_not_promised_for_kernels_of_other_names():
    with gsl.Session("sim") as lab:
        x, w = lab.xp.ones((16, 16), "f4"), lab.xp.ones((16, 16), "f4")
        lab.stream("a")
        names = np.random.default_rng(0).choice(["add", "subtract", "multiply", "maximum", "minimum"], 200)
        with lab.on("a"):
            for name in names:
                getattr(lab.xp, name)(x, w, out=x)
        lab.synchronize()
        assert not [one for one in lab.explain().findings if one.code is Cause.LAUNCH_BOUND and one.saves_ns]
