"""What must be known before any figure of a file of others: that it was cut, what is lost, and what the profiler took."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError, TraceError
from gpustreamlab.typing import Cause
from gpustreamlab.workloads import spin
from tests.helpers.kineto import BASE_NS, call, kineto, launched, work
from tests.helpers.nsys_files import OTHER_PID, PID, NsysFile

US = 1_000


def saved(tmp_path, events, **facts):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(kineto(events, **facts)))
    return path


def heading(trace):
    """Return what stands above the first figure of an answer, and the marks above a picture."""
    return str(trace.explain()).split("Why:")[0], " ".join(str(trace.timeline()).split())


def begun():
    """Return a report of a card in which nothing has happened yet."""
    made = NsysFile()
    made.session()
    made.gpu()
    made.context()
    return made


def nsys_lines(tmp_path):
    made = begun()
    for number in range(1, 20):
        made.launch(1_000 * number, 1_000 * number + 20, 1_000 * number + 500, correlation=number)
    return made.write_lines(tmp_path / "run.jsonl").read_bytes()


def nsys_table(_path):
    head = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Device,Ctx,Strm,Name\n"
    rows = [f"{1_000 * number},500,{number},8,1,1,32,1,1,16,H100 (0),1,7,gemm\n" for number in range(1, 20)]
    return (head + "".join(rows)).encode()


def pytorch(_path):
    events = [event for at in range(1, 20) for event in launched(at * 10, 5, at * 10 - 5, stream=7, correlation=at)]
    return json.dumps(kineto(events)).encode()


@pytest.mark.parametrize(("made", "name"), [(nsys_lines, "cut.jsonl"), (nsys_table, "cut.csv"), (pytorch, "cut.json")])
def test_a_file_that_was_cut_off_says_so_before_any_figure(tmp_path, made, name):
    path, content = tmp_path / name, made(tmp_path)
    path.write_bytes(content)
    assert not gsl.load_trace(path).quality()["cut"]
    path.write_bytes(content[: len(content) * 3 // 4 - 8])
    trace = gsl.load_trace(path)
    assert trace.quality()["cut"] == 1
    assert trace.metadata.doubt.startswith("The trace is cut short: ")
    assert all("cut short" in text for text in heading(trace))


def test_a_run_of_ours_that_was_cut_short_is_doubted():
    trace = gsl.Trace.from_columns(start_ns=[0], end_ns=[9], stream=["a"])
    assert not trace.quality()
    cut = replace(trace, metadata=replace(trace.metadata, recovery_note="its session was not closed"))
    assert cut.quality().doubts[0].text == "The trace is cut short: its session was not closed."


@pytest.mark.parametrize(
    ("by", "cat", "check"), [("cudaMemcpyAsync", "gpu_memcpy", "copies lost"), ("cudaMemsetAsync", "gpu_memset", "fills lost")]
)
def test_calls_without_their_copies_or_fills_are_told(tmp_path, by, cat, check):
    # GIVEN twenty copies, or fills, of which every fourth left no record, and kernels that all have one
    events = []
    for number in range(20):
        at = 100 * number
        one = launched(at + 20, 5, at, stream=7, correlation=2 * number + 1, cat=cat, by=by)
        events += one[: 1 if number % 4 == 0 else 2]
        events += launched(at + 50, 5, at + 45, stream=7, correlation=2 * number + 2)
    # WHEN the file is read
    trace = gsl.load_trace(saved(tmp_path, events))
    found = trace.quality()
    # THEN it is told, with the rows: copies before every answer and above the picture, fills, which may be of 0 bytes, beside
    assert (found[check], found["kernels lost"]) == (5, 0)
    assert {trace.names[trace.name[row]] for row in found.lost_row} == {by}
    before, picture = heading(trace)
    assert ("The profile is incomplete" in before) is (check == "copies lost")
    for text in (str(trace.explain()), picture):
        assert "5 of 20 calls that " in " ".join(text.split())


def test_copies_within_a_capture_are_not_lost(tmp_path):
    events = [call(0, 5, "cudaStreamBeginCapture", correlation=1), call(50, 5, "cudaStreamEndCapture", correlation=2)]
    events += [call(10, 5, "cudaMemcpyAsync", correlation=3), *launched(100, 5, 90, stream=7, correlation=4)]
    assert not gsl.load_trace(saved(tmp_path, events)).quality()["copies lost"]


@pytest.mark.parametrize(("took_us", "is_first"), [(800, True), (20, False)])
def test_a_profiler_that_took_much_is_told_before_any_figure(tmp_path, took_us, is_first):
    # GIVEN a profiler that took 80%, or 2%, of the time
    events = []
    for number in range(20):
        at = 1_000 * number
        events += launched(at + 12, 100, at, stream=7, correlation=number + 1)
        events.append(call(at + 110, took_us, "Activity Buffer Request", correlation=0, cat="overhead"))
    trace = gsl.load_trace(saved(tmp_path, events))
    # THEN figures and gains are told to be those of the profiled run, and a little is a remark
    before, picture = heading(trace)
    assert ("The profiler itself took" in before) is is_first
    assert ("what changes save, are those of the profiled run" in " ".join(before.split())) is is_first
    assert "The profiler itself took" in str(trace.explain())
    assert "The profiler itself took" in picture
    assert trace.quality()["overhead"] == 1


# Wall clocks that are not known


def test_a_wall_clock_of_0_places_no_trace(tmp_path):
    paths = []
    for name, base_ns in (("known", BASE_NS), ("unknown", 0), ("other", 0)):
        (tmp_path / name).mkdir()
        paths.append(saved(tmp_path / name, launched(50, 5, 40, stream=7, correlation=1), baseTimeNanoseconds=base_ns))
    traces = [gsl.load_trace(path) for path in paths]
    assert [trace.metadata.epoch_unix_ns > 0 for trace in traces] == [True, False, False]
    for some in (traces[:2], traces[1:]):
        with pytest.raises(TraceError, match="not known") as caught:
            gsl.merge(some)
        assert "epoch_unix_ns" not in str(caught.value)  # nobody is told to subtract nothing
    formula = [one.metadata.epoch_unix_ns - traces[0].metadata.epoch_unix_ns for one in traces]
    with pytest.raises(OptionError, match=r"53 years.*wall clock of one of the traces is not known"):
        gsl.merge(traces, ahead_ns=formula)
    both = gsl.merge(traces[1:], ahead_ns=[0, 100 * US], processes=[0, 1])
    assert "Files do not tell when these of the traces began: 0, 1." in " ".join(both.metadata.missing)
    known = gsl.merge([traces[0], traces[0]], ahead_ns=[0, 100 * US], processes=[0, 1])
    assert "Files do not tell" not in " ".join(known.metadata.missing)


# One stream that waits for its launches, or leaves most of the card idle


def pytorch_run(path, *, apart_us=20, took_us=3, grid=(1_000, 1, 1), streams=(7,), early=False):
    events = []
    for number in range(40):
        at, stream = 1_000 + (5 if early else apart_us) * number, streams[number % len(streams)]
        start = 2_000 + (took_us + 1) * number if early else at + 10
        events += launched(start, took_us, at, stream=stream, correlation=number + 1, grid=[*grid])
    return saved(path, events)


def nsys_run(path):
    made = begun()
    for number in range(1, 41):
        at = 20 * US * number
        made.call(at, at + 5 * US, correlation=number)
        made.kernel(at + 10 * US, at + 13 * US, stream=7, correlation=number, grid=(1_000, 1, 1))
    return made.write(path / "run.sqlite")


@pytest.mark.parametrize("made", [pytorch_run, nsys_run])
def test_short_kernels_on_one_stream_are_bound_by_their_launches(tmp_path, made):
    # GIVEN 40 kernels of 3 us on one stream, each launched 20 us after the one before
    trace = gsl.load_trace(made(tmp_path))
    # WHEN it is asked why
    found = trace.explain()
    # THEN that is told, with what to do, and with the idle time as the most that it may bring, which nobody promises
    (first,) = found.findings
    assert (first.code, first.saves_ns, first.bound_ns, first.piece_count) == (Cause.LAUNCH_BOUND, 0, 39 * 17 * US, 39)
    assert all(word in first.fix for word in ("graph", "torch.compile", "batch"))
    assert "39 times the card had nothing to do" in first.text
    assert found.headline.startswith("783 µs; at most 663 µs (85%) less, not promised")


@pytest.mark.parametrize(
    "run",
    [
        {"apart_us": 200},  # the host does something else in between
        {"apart_us": 20, "took_us": 30, "early": True},  # the queue is never empty
        {"apart_us": 11, "took_us": 10},  # the card is hardly ever idle
    ],
)
def test_what_is_launched_in_time_or_once_in_a_while_is_not_bound_by_launches(tmp_path, run):
    assert Cause.LAUNCH_BOUND not in [one.code for one in gsl.load_trace(pytorch_run(tmp_path, **run)).explain().findings]


def test_short_kernels_between_waits_of_the_host_wait_for_these(tmp_path):
    events = []
    for number in range(40):
        events += launched(1_010 + 20 * number, 3, 1_000 + 20 * number, stream=7, correlation=2 * number + 1)
        events.append(call(1_006 + 20 * number, 13, "cudaStreamSynchronize", correlation=2 * number + 2))
    assert Cause.LAUNCH_BOUND not in [one.code for one in gsl.load_trace(saved(tmp_path, events)).explain().findings]


def test_two_streams_are_told_what_less_launches_bring_not_what_overlap_does(tmp_path):
    (first,) = gsl.load_trace(pytorch_run(tmp_path, streams=(7, 20))).explain().findings
    assert (first.code, first.bound_ns) == (Cause.LAUNCH_BOUND, 39 * 17 * US)


def test_what_a_session_knows_is_promised():
    with gsl.Session("sim") as lab:
        lab.stream("a")
        for _ in range(200):
            spin(lab, 2 * US, stream="a")
        lab.synchronize()
        (first,) = lab.explain().findings
    assert first.code is Cause.LAUNCH_BOUND
    assert first.saves_ns > 300 * US
    assert "torch.compile" in first.fix


@pytest.mark.parametrize(("blocks", "is_told"), [(4, True), (1_000, False)])
def test_small_kernels_one_after_the_other_leave_most_of_the_card_idle(tmp_path, blocks, is_told):
    # GIVEN 40 kernels of 100 us, launched early, of so many blocks on 132 SMs
    trace = gsl.load_trace(pytorch_run(tmp_path, took_us=100, grid=(blocks, 1, 1), early=True))
    findings = trace.explain().findings
    # THEN the SMs that they leave idle are told, with the most that more work at once may bring
    assert bool(findings) is is_told
    for one in findings:
        assert (one.code, one.saves_ns, one.piece_count) == (Cause.SAME_LANE, 0, 40)
        assert one.bound_ns == 40 * 100 * US - max(100 * US, 40 * 100 * US * blocks // 132)
        assert "3% of 132 SMs" in one.text
        assert all(word in one.fix for word in ("batch", "lab.stream('other')"))


# Copies that blocked, and what then has to wait


def pageable_run(path, *, streams=(13, 14), waits=False):
    made = begun()
    copying, computing = streams
    for turn in range(10):
        at, number = 1_015 * US * turn, 4 * turn + 1
        made.call(at, at + 900 * US, "cudaMemcpyAsync_v3020", correlation=number)
        made.copy(at + 10 * US, at + 890 * US, stream=copying, correlation=number, ends=(0, 2), bytes=8 << 20)
        if waits:
            made.record(at + 900 * US, event=7, tie=turn + 1, correlation=number + 1, stream=copying)
            made.wait(at + 902 * US, event=7, tie=turn + 1, correlation=number + 2, stream=computing)
        made.call(at + 908 * US, at + 912 * US, correlation=number + 3)
        made.kernel(at + 915 * US, at + 1_800 * US, stream=computing, correlation=number + 3, grid=(4_000, 1, 1))
    return made.write(path / "run.sqlite")


@pytest.mark.parametrize(
    ("run", "is_told"), [({}, True), ({"streams": (13, 13)}, False), ({"waits": True}, False)], ids=["two", "one", "waits"]
)
def test_a_copy_that_no_longer_blocks_is_waited_for_where_another_stream_uses_it(tmp_path, run, is_told):
    found = gsl.load_trace(pageable_run(tmp_path, **run)).explain()
    first = next(one for one in found.findings if one.code is Cause.PAGEABLE_COPY)
    assert "pinned" in first.fix
    assert ("must wait for it: lab.stream('stream 14').wait('stream 13')." in first.fix) is is_told


# Records that cannot be true


def doubts(trace):
    return {one.check: one.record_count for one in trace.quality().doubts}


def kernels(count=20, *, each=1, times=1.0, events=()):
    """Return launches and kernels, each of them so many times in the file, with times so many times as long."""
    made = [event for n in range(count) for event in launched(100 * n + 10, 40, 100 * n, stream=7, correlation=n + 1)]
    made = [*made, *events]
    return [one | {"ts": one["ts"] * times, "dur": one["dur"] * times} for one in made for _ in range(each)]


@pytest.mark.parametrize("each", [2, 3])
def test_records_that_are_there_twice_are_told_before_any_figure(tmp_path, each):
    trace = gsl.load_trace(saved(tmp_path, kernels(each=each)))
    assert doubts(trace)["doubled"] == 20 * (each - 1)
    assert all("are there twice" in text for text in heading(trace))
    assert "doubled" not in doubts(gsl.load_trace(saved(tmp_path, kernels())))


def test_nodes_of_a_graph_that_run_in_pairs_are_no_records_that_are_there_twice(tmp_path):
    pairs = [
        one for n in range(10) for one in launched(100 * n + 10, 40, 100 * n, stream=7, correlation=n + 1, by="cudaGraphLaunch")
    ]
    pairs += [one for one in pairs if one["cat"] == "kernel"]
    assert not gsl.load_trace(saved(tmp_path, pairs)).quality()["doubled"]


def test_times_in_milliseconds_where_microseconds_are_meant_are_told(tmp_path):
    # GIVEN a file with times a thousand times too short: of launches and kernels, of long kernels alone, or of copies
    copies = [
        work(100 * n, 90, "Memcpy HtoD (Pinned -> Device)", stream=9, correlation=900 + n, cat="gpu_memcpy", bytes=2 << 20)
        for n in range(3)
    ]
    for events, is_told in ((kernels(times=0.001), True), (kernels(), False), (copies, False)):
        assert ("unit" in doubts(gsl.load_trace(saved(tmp_path, events)))) is is_told
    fast = [one | {"dur": one["dur"] / 1_000} for one in copies]
    trace = gsl.load_trace(saved(tmp_path, fast))
    assert "23 TB/s" in trace.quality().grave
    assert "another unit" in heading(trace)[0]


def test_a_kernel_of_many_days_is_told(tmp_path):
    trace = gsl.load_trace(saved(tmp_path, kernels(events=[work(3_000, 115 * 86_400 * 1e6, stream=7, correlation=99)])))
    assert trace.quality()["no time"] == 1
    assert "115 days" in heading(trace)[0]
    made = begun()
    made.launch(0, 100, 3 * 86_400 * 10**9)
    assert "3 days" in gsl.load_trace(made.write(tmp_path / "run.sqlite")).quality().grave


@pytest.mark.parametrize("is_shared", [True, False], ids=["one card", "two cards"])
@pytest.mark.parametrize("is_job", [True, False], ids=["one job", "strangers"])
def test_processes_that_share_no_collective_are_no_stragglers_of_each_other(tmp_path, is_shared, is_job):
    # GIVEN two processes in one report that run kernels of the same names, with or without a collective of both
    made = begun()
    if not is_shared:
        made.gpu(1)
    for pid in (PID, OTHER_PID):
        card = 0 if is_shared or pid == PID else 1
        for n in range(10):
            where = {"correlation": n + 1, "pid": pid, "device": card}
            made.launch(1_000 * n, 1_000 * n + 20, 1_000 * n + 500 + (pid - PID) * 200, **where)
        if is_job:
            made.launch(20_000, 20_020, 20_500, "ncclDevKernel_AllReduce", correlation=99, pid=pid, device=card)
    found = gsl.load_trace(made.write(tmp_path / "run.sqlite")).stragglers()
    # THEN they are compared only where they work together
    assert (len(found.groups), bool(found)) == (2, is_job)
    assert any("share no collective" in one for one in found.remarks) is not is_job
