"""Advice that holds: what is said to be gained, beside what mending the program really gains."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import _advice, _explain, _explanation, is_work
from gpustreamlab.model import SPAN_KINDS, Accesses
from gpustreamlab.typing import Cause, Change, SpanKind
from gpustreamlab.workloads import spin
from tests.helpers import advice_kin  # noqa: F401 - its programs are among `PAIRS`
from tests.helpers.advice_programs import PAIRS
from tests.helpers.traces import wall_ns
from tests.helpers.unfilled import leave_arrays_unfilled

MS = 1_000_000


@pytest.fixture(autouse=True)
def arrays_are_not_filled(monkeypatch):
    leave_arrays_unfilled(monkeypatch)


def record(program, which):
    """Run a program and return the trace of its work."""
    with gsl.Session("sim") as lab:
        work = program(lab, which)
        lab.synchronize()
        lab.clear()
        kept = work()
        lab.synchronize()
        trace = lab.trace
    del kept
    return trace


BAD = [name for name, (_, codes) in PAIRS.items() if codes]
CLEAN = [name for name, (_, codes) in PAIRS.items() if not codes]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BAD)
def test_the_cause_comes_first_mending_it_gains_what_was_said_and_then_it_is_promised_no_more(name):
    program, codes = PAIRS[name]
    bad, good = record(program, "bad"), record(program, "good")
    true_ns = wall_ns(bad) - wall_ns(good)
    assert true_ns > 0.1 * wall_ns(bad)
    found = bad.explain()
    first = found.findings[0]
    assert first.code in codes, str(found)
    assert first.saves_ns == pytest.approx(true_ns, rel=0.15, abs=0.02 * wall_ns(bad)), str(found)
    assert (first.step, first.bound_ns) == (0, 0)
    assert abs(found.forecast.error) < 0.02
    assert found.forecast.measured_ns == wall_ns(bad)
    assert found.forecast.floor_ns <= wall_ns(bad) - found.gain_ns
    again = good.explain()
    left = [one for one in again.findings if one.code is first.code and one.saves_ns > 0.1 * again.forecast.measured_ns]
    assert not left or first.code is Cause.LAUNCH_BOUND, str(again)  # a graph is a step further


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CLEAN)
def test_a_program_as_good_as_it_gets_is_promised_nothing(name):
    found = record(PAIRS[name][0], "good").explain()
    assert found.gain_ns == 0
    # More streams for its kernels may gain, where these leave SMs free: that is told as a bound, and nothing else is.
    told = [one for one in found.findings if one.saves_ns or one.bound_ns]
    assert all(one.code is Cause.SAME_LANE and one.fix.startswith("Give a stream each to kernels") for one in told), str(found)
    assert ("at best" if told else "makes it shorter") in found.headline


def test_where_no_data_are_known_uneven_streams_are_told_at_best():
    bad = record(PAIRS["jobs_dealt_unevenly_over_three_streams"][0], "bad")
    found = replace(bad, accesses=Accesses()).explain()
    (first,) = found.findings
    assert (first.code, first.saves_ns, found.gain_ns) == (Cause.NOT_OFFERED, 0, 0)
    assert first.bound_ns == bad.explain().findings[0].saves_ns > 0.3 * wall_ns(bad)
    assert "; at best " in found.headline
    assert "That holds if no piece needs another of its stream" in first.fix


def test_where_no_data_are_known_at_most_is_of_all_findings_together():
    program, _ = PAIRS["synchronize_in_the_loop"]
    bad = record(program, "bad")
    found = replace(bad, accesses=Accesses()).explain()
    most_ns = float(re.search(r"; at most ([0-9]+) µs", found.headline)[1]) * 1e3
    assert max(one.bound_ns for one in found.findings) < wall_ns(bad) - wall_ns(record(program, "good")) < most_ns
    assert most_ns <= found.forecast.measured_ns - found.forecast.floor_ns
    assert found.gain_ns == 0


def test_a_predicted_run_is_explained_by_what_it_tells_and_says_whom_to_ask():
    predicted = record(PAIRS["synchronize_in_the_loop"][0], "bad").what_if(without="HOST_SYNC_STREAM").trace
    found = predicted.explain()
    assert not any(one.code is Cause.UNKNOWN or one.saves_ns for one in found.findings)
    assert any(note.startswith("Predicted, not recorded") for note in found.notes)
    assert not any("lab.capture" in note for note in found.notes)


def test_streams_that_do_other_work_each_are_not_dealt_anew():
    """Of a long stream and a short one with other kernels nobody knows that the one may do work of the other."""

    def program(lab, which):
        lab.stream("a"), lab.stream("b")
        values = lab.xp.ones((256, 256), "f4")

        def work():
            for _ in range(9):
                spin(lab, 100_000, blocks=8, stream="a")
            with lab.on("b", "mm"):
                return values @ values

        return work

    found = record(program, "bad").explain()
    assert not found.findings


def test_one_change_after_the_other_is_told_in_the_order_of_gain():
    def program(lab, which):
        for name in "ab":
            lab.stream(name)
        source = np.ones((4, 1 << 22), "f4")
        pinned = lab.memory.pinned_empty((4, 1 << 22), "f4")
        arrays = [lab.xp.empty(1 << 22, "f4") for _ in range(4)]

        def work():
            for i in range(4):
                with lab.on("a", "up"):
                    arrays[i].set((pinned if which == "good" else source)[i])
                if which == "bad":
                    lab.synchronize()
                spin(lab, 300_000, stream="b")
                if which == "bad":
                    lab.synchronize()

        return work

    bad, good = (record(program, which) for which in ("bad", "good"))
    found = bad.explain()
    told = [one for one in found.findings if one.saves_ns]
    assert [one.code for one in told] == [Cause.PAGEABLE_COPY, Cause.HOST_SYNC_DEVICE]
    assert told[1].head.startswith("HOST_SYNC_DEVICE: after that saves ")
    assert "with the two changes below" in found.headline
    assert found.gain_ns == pytest.approx(wall_ns(bad) - wall_ns(good), rel=0.05)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chains_that_share_nothing_on_one_stream", "Give a stream each to kernels that share no data in turn on 8 streams"),
        (
            "copies_both_ways_on_one_stream",
            "or writes over what it reads: lab.stream('downloads').wait('comp')",
        ),
        ("small_pageable_uploads_behind_kernels", "Copy small arrays from pinned memory, too"),
        ("streams_that_meet_after_each_round", "lab.stream('z').wait('w'), lab.stream('w').wait('x')"),
        ("streams_that_meet_after_each_round", ", and so for 4 pairs of streams more: no array asks for it."),
        ("an_upload_ahead_that_the_kernel_waits_for_too", "let 'comp' wait for the one that it needs"),
        ("pageable_upload", "Before the host reads or writes over pinned, let it wait for that copy."),
        ("loss_is_read_in_each_step", "only behind the loop, if no launch depends on one: each waits."),
        ("get_blocks", "Where the host itself reads a result, or writes over what is copied, keep the wait."),
    ],
)
def test_what_is_to_be_typed_names_the_streams_and_says_what_it_leaves_out(name, said):
    found = record(PAIRS[name][0], "bad").explain()
    assert said in found.findings[0].fix
    assert "host: " not in "".join(one.fix for one in found.findings)


def test_the_wait_that_is_mended_is_told_and_the_others_stay():
    first, *others = record(PAIRS["one_buffer"][0], "bad").explain().findings
    assert first.text == "'up' waited until 'comp' had read the array that it writes over."
    assert [(one.stream, one.other, one.saves_ns) for one in others] == [("down", "comp", 0)]
    assert others[0].fix.startswith("Keep this wait")


@pytest.mark.parametrize(("side", "is_told"), [("same", True), ("other", False)])
def test_a_graph_is_promised_where_turns_of_a_loop_use_the_same_memory(side, is_told):
    with gsl.Session("sim") as lab:
        stream, values = lab.stream("a"), [lab.xp.ones((32, 32), "f4") for _ in range(60)]
        lab.synchronize()
        lab.clear()
        for i in range(60):
            with lab.on(stream, "step"):
                values[0 if side == "same" else i] *= 2
        lab.synchronize()
        found = lab.trace.explain()
    assert (found.gain_ns > 0.3 * found.forecast.measured_ns) is is_told, str(found)


def test_a_long_run_is_looked_at_in_pieces_that_stand_for_the_whole(monkeypatch):
    program, _ = PAIRS["the_device_is_awaited_in_each_step"]
    trace = record(program, "bad")
    whole = trace.explain()
    monkeypatch.setattr(_advice, "MOST_WORKS", 24)
    part = replace(trace).explain()  # another one: what was read of a trace is kept
    assert part.forecast.works_share == pytest.approx(2 / 3)
    assert "67% of the work was scheduled anew, and stands for the whole" in " ".join(part.notes)
    assert part.findings[0].code is whole.findings[0].code
    assert 0.5 * whole.gain_ns < part.gain_ns < 1.2 * whole.gain_ns


def test_where_the_run_as_it_was_comes_out_differently_gains_are_bounds(monkeypatch):
    trace = record(PAIRS["synchronize_in_the_loop"][0], "bad")
    for module in (_advice, _explanation):
        monkeypatch.setattr(module, "MOST_ERROR", -1.0)
    found = trace.explain()
    assert found.gain_ns == 0
    assert found.findings[0].saves_ns == 0
    assert found.findings[0].bound_ns > 0
    assert "; at best " in found.headline
    assert "too far off to promise anything" in " ".join(found.notes)


def test_waits_around_work_of_which_nothing_is_known_stay():
    for name, gain_ns in (("one_event_behind_all_uploads", 0), ("one_buffer", 0), ("a_wait_that_nobody_needs", 219_030)):
        trace = record(PAIRS[name][0], "bad")
        kernels = np.flatnonzero(trace.kind == SPAN_KINDS.index(SpanKind.KERNEL))
        known = ~np.isin(trace.accesses.span, kernels)
        columns = {column: values[known] for column, values in trace.accesses.columns.items()}
        opaque = replace(trace, accesses=Accesses(**columns))
        found = opaque.explain()
        assert found.gain_ns == gain_ns, name
    # What it gave beside is still to be waited for: each kernel may use what the next upload writes.
    first = "Leave out lab.stream('up').wait('down'): no array asks for it. Instead: lab.stream('up').wait('comp')"
    assert found.findings[0].fix.startswith(first)


def test_a_wait_of_the_host_may_be_one_of_all_streams():
    found = record(PAIRS["synchronize_in_the_loop"][0], "bad").what_if(change=Change.DEVICE_WAITS)
    assert found.makespan_ns == pytest.approx(wall_ns(record(PAIRS["a_wait_that_nobody_needs"][0], "bad")), rel=0.01)


# The same as changes of what-if


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("synchronize_in_the_loop", Change.NO_HOST_WAITS),
        ("a_wait_that_nobody_needs", Change.FINE_WAITS),
        ("one_buffer", Change.SECOND_BUFFER),
        ("all_of_one_then_all_of_the_other", Change.IN_TURN),
        ("streams_made_in_a_loop", Change.LOADED_BEFORE),
        ("pageable_upload", Change.PINNED),
    ],
)
def test_a_change_comes_to_what_the_changed_program_takes(name, change):
    program, _ = PAIRS[name]
    found = record(program, "bad").what_if(change=change)
    assert found.makespan_ns == pytest.approx(wall_ns(record(program, "good")), rel=0.03)
    assert abs(found.own_error) < 0.01
    assert found.trace.metadata.is_predicted
    assert wall_ns(found.trace) == found.makespan_ns
    assert change.value in repr(found)


def test_without_a_finding_it_takes_what_explain_says():
    trace = record(PAIRS["one_buffer"][0], "bad")
    found = trace.explain()
    for without in (found.findings[0], Cause.EVENT_WAIT, "EVENT_WAIT"):
        assert trace.what_if(without=without).makespan_ns == found.forecast.measured_ns - found.gain_ns


def test_all_in_one_stream_takes_all_of_it_and_more_streams_less():
    trace = record(PAIRS["clean_pipeline"][0], "good")
    one = trace.what_if(change="one stream")
    assert one.makespan_ns >= sum(trace.duration_ns[is_work(trace)])
    assert len(np.unique(one.trace.lane[is_work(one.trace)])) == 1
    assert "stream 1, predicted" in str(one)
    assert "Kernels take alone what lets the run as it was last as it did." in str(one)
    more = trace.what_if(change="more streams")
    assert more.makespan_ns < trace.what_if(change="one stream").makespan_ns
    assert (more.trace.start_ns >= more.trace.queued_ns).all()


def test_a_priority_lets_short_work_go_first_but_pushes_no_block_out():
    with gsl.Session("sim") as lab:
        for name in "ab":
            lab.stream(name)
        spin(lab, MS, blocks=132 * 32 * 4, stream="a")
        spin(lab, 10_000, blocks=4, stream="b")
        lab.synchronize()
        trace = lab.trace
    late = trace.what_if(priority={"b": -1}).trace
    lanes = {lane.name: number for number, lane in enumerate(trace.lanes)}

    def begins(one):
        return int(one.start_ns[(one.lane == lanes["b"]) & is_work(one)][0] - one.start_ns[is_work(one)].min())

    assert begins(trace) > 3 * MS
    assert MS * 0.9 < begins(late) < 1.1 * MS


def test_latency_of_short_work_behind_a_full_card_is_told_with_what_a_priority_gains():
    with gsl.Session("sim") as lab:
        for name in ("prefill", "decode"):
            lab.stream(name)
        for _ in range(6):
            spin(lab, MS // 10, blocks=132 * 32 * 50, stream="prefill")
            for _ in range(4):
                spin(lab, 10_000, blocks=4, stream="decode")
        lab.synchronize()
        found = lab.trace.explain()
    finding = next(one for one in found.findings if one.code is Cause.GRID_FILLS_DEVICE and one.stream == "decode")
    assert finding.saves_ns == finding.bound_ns == 0
    assert "With priority, lab.stream('decode', priority=-1), work of 'decode' would begin" in finding.fix
    assert "Blocks that run are not pushed out." in finding.fix


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({}, "nothing to change"),
        ({"change": "pined"}, "is no change"),
        ({"change": "pinned"}, "Nothing in this run changes with 'pinned'"),
        ({"without": "NO_CAUSE"}, "is no finding and no cause"),
        ({"without": "PAGEABLE_COPY"}, "Nothing is known that would take PAGEABLE_COPY out"),
        ({"priority": {"nobody": -1}}, "no stream 'nobody'"),
        ({"layout": None, "change": "one stream"}, "give either it or"),
    ],
)
def test_what_changes_nothing_is_refused(asked, text):
    trace = record(PAIRS["clean_chain"][0], "good")
    with pytest.raises(gsl.errors.OptionError, match=text):
        trace.what_if(**asked)


# In a session that was not cleared: arrays were made on the default stream, which the session has no name for


@pytest.fixture
def record_all():
    """Return a function that records a program with what prepares it."""

    def record_it(name):
        with gsl.Session("sim") as lab:
            kept = PAIRS[name][0](lab, "bad")()
            lab.synchronize()
            trace = lab.trace
        del kept
        return trace

    return record_it


@pytest.mark.filterwarnings("ignore")
def test_no_stream_is_told_to_wait_for_one_that_the_session_does_not_have(record_all):
    found = record_all("synchronize_in_the_loop").explain().findings[0]
    assert "lab.stream('comp').wait('up'), lab.stream('down').wait('comp')." in found.fix
    assert ".wait('default stream')" not in found.fix
    assert "'default stream' shares arrays with 'comp'. Launch its work with lab.on(...)" in found.fix


@pytest.mark.filterwarnings("ignore")
def test_a_few_arrays_made_on_another_stream_do_not_hide_that_all_work_is_on_one(record_all):
    first = record_all("all_on_one_stream").explain().findings[0]
    assert first.code is Cause.SAME_LANE
    assert first.text.startswith("All work is on 'comp'")


@pytest.mark.filterwarnings("ignore")
def test_copies_that_held_up_the_host_are_each_a_piece_with_its_call_the_longest_first(record_all):
    trace = record_all("pageable_upload")
    first = trace.explain().findings[0]
    assert (first.code, first.piece_count) == (Cause.PAGEABLE_COPY, 8)
    calls = first.pieces.call_row
    assert {trace.names[trace.name[call]] for call in calls} == {"cudaMemcpyAsync"}
    assert (np.diff(trace.duration_ns[calls]) <= 0).all()
    assert (first.row, first.call_row) == (first.pieces.row[0], calls[0])
    assert {trace.names[trace.name[row]] for row in first.pieces.row} == {"memcpy HtoD"}


def test_nothing_is_promised_by_more_overlap_of_kernels_that_slow_each_other_down(monkeypatch):
    # GIVEN a run whose mending gains, in which kernels are said to have cost each other more than that
    trace = record(PAIRS["synchronize_in_the_loop"][0], "bad")
    told = trace.explain()
    assert told.findings[0].saves_ns == told.gain_ns > 0
    slowed = replace(told.findings[0], code=Cause.SLOWED_DOWN, saves_ns=0, bound_ns=2 * told.gain_ns)
    grouped = _explain._grouped
    monkeypatch.setattr(_explain, "_grouped", lambda *given: [*grouped(*given), slowed])
    # THEN the gain is a bound, and the notes say why
    bound = trace.explain()
    assert bound.gain_ns == 0
    assert bound.findings[0].bound_ns > 0
    assert any("Kernels slowed each other down" in note for note in bound.notes)
