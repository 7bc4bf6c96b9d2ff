"""What must be known before any figure of a file of others: that it was cut, what is lost, and what the profiler took."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import gpustreamlab as gsl
from gpustreamlab.errors import OptionError, TraceError
from tests.helpers.kineto import BASE_NS, call, kineto, launched
from tests.helpers.nsys_files import NsysFile

US = 1_000


def saved(tmp_path, events, **facts):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(kineto(events, **facts)))
    return path


def heading(trace):
    """Return what stands above the first figure of an answer, and the marks above a picture."""
    return str(trace.explain()).split("Why:")[0], " ".join(str(trace.timeline()).split())


def nsys_lines(tmp_path):
    made = NsysFile()
    made.session()
    made.gpu()
    made.context()
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
