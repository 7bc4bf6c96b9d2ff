"""What a page is told about why work did not overlap: the words of `trace.explain()`, its pieces and the gaps; bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import Session, workloads
from gpustreamlab.analysis import IDLE_TEXTS, explain, idle
from gpustreamlab.draw import _why, page_data, plan_picture, why_tables
from gpustreamlab.model import Marker, merge
from gpustreamlab.typing import IdleKind
from tests.helpers import planted
from tests.helpers.advice_programs import PAIRS
from tests.helpers.traces import empty_trace, make_trace


@pytest.fixture(scope="module")
def trace():
    """Return work that the host held up seven times, on both streams."""
    return planted.record(planted.wait_for_device_in_a_loop)


def key_of(trace, row):
    zero_ns = int(trace.start_ns.min())
    return [int(trace.lane[row]), int(trace.start_ns[row]) - zero_ns, int(trace.end_ns[row]) - zero_ns, int(row)]


def test_a_page_says_what_explain_prints(trace):
    why = page_data(plan_picture(trace))[0]["tables"]["why"]
    said = [f"Why: {why['line']}"]
    for number, finding in enumerate(why["findings"], 1):
        said += [f"{number}. {finding['head']}", finding["pieces"][0]["text"], finding["pieces"][0]["fix"]]

    printed = " ".join(str(trace.explain()).split())
    assert printed == " ".join([*said, *why["bound"], *why["notes"]])
    assert (len(why["findings"]), len(why["bound"])) == (1, 0)
    assert why["explained"]


def on_gpu(trace, number):
    """Return a trace as if another card had run it."""
    device = replace(trace.metadata.device, ordinal=number)
    lanes = tuple(replace(lane, device=number) for lane in trace.lanes)
    return replace(trace, lanes=lanes, metadata=replace(trace.metadata, device=device))


def test_a_page_of_several_ranks_explains_each_gpu_and_its_pieces_are_spans_of_the_whole(trace, monkeypatch):
    whole = merge([on_gpu(trace, 0), on_gpu(trace, 1)], ahead_ns=[0, 50_000], error_ns=1, processes=[0, 1])
    zero_ns = int(whole.start_ns.min())
    why, alone = why_tables(whole, zero_ns), [whole.where(device=number).explain() for number in (0, 1)]

    heads = [f"GPU {number}: {alone[number].findings[place].head}" for place in (0,) for number in (0, 1)]
    assert [finding["head"] for finding in why["findings"]] == heads
    assert why["bound"] == [f"GPU {number}: {found.headline}" for number, found in enumerate(alone)]
    assert why["explained"]
    known = {(lane, *times): row for row, (lane, *times) in enumerate(key_of(whole, row) for row in range(len(whole)))}
    for finding in why["findings"]:
        for piece in finding["pieces"]:
            rows = [known[tuple(piece[name])] for name in ("late", "other", "call")]
            assert {whole.lanes[whole.lane[row]].device for row in rows} == {int(finding["head"][4])}
            assert whole.names[whole.name[rows[2]]] in piece["text"]
    # What proves a reason has no sign of its own
    assert not [mark for mark in why["marks"] if mark["kind"] == "wait"]
    monkeypatch.setattr(_why, "LISTED_FINDINGS", 1)
    short = why_tables(whole, zero_ns)
    assert (len(short["findings"]), len(short["bound"])) == (1, 1)
    more = "… 1 more: see trace.where(device=0).explain().findings, and so for each GPU."
    assert short["notes"][:2] == [more, "… 1 more GPUs."]


def test_a_page_says_which_streams_are_bound_by_the_host():
    def decode(lab):
        _, second = planted.pair(lab)
        for _ in range(100):
            workloads.spin(lab, 200_000, stream="a")
            for _ in range(150):
                second.query()
            workloads.spin(lab, 2_000, stream="b")

    trace = planted.record(decode)
    why, bound = why_tables(trace, 0), trace.explain().host_bound
    assert why["bound"] == [f"Bound by the host: {one}" for one in bound]
    assert bound
    assert " ".join([*why["bound"], *why["notes"]]) in " ".join(str(trace.explain()).split())


def test_each_piece_says_what_explain_says_of_its_row_and_names_its_spans(trace):
    why, found = why_tables(trace, int(trace.start_ns.min())), explain(trace)
    for entry, finding in zip(why["findings"], found.findings, strict=True):
        assert entry["count"] == len(entry["pieces"]) == len(finding.pieces.row)
        for piece, row, other, call, since_ns in zip(entry["pieces"], *finding.pieces[:4], strict=True):
            alone = next(one for one in explain(trace, int(row)).findings if one.code is finding.code)
            assert (piece["text"], piece["fix"]) == (alone.text, alone.fix)
            assert [piece["late"], piece["other"], piece["call"]] == [key_of(trace, at) for at in (row, other, call)]
            assert piece["since"] == since_ns - trace.start_ns.min()


def test_work_that_was_not_late_says_nothing_of_the_gap_before_it():
    trace = planted.record(planted.wait_for_stream)
    between_ns = int(trace.end_ns[trace.name == trace.names.index("spin")].min()) + 1_000
    why = why_tables(replace(trace, markers=(Marker(time_ns=between_ns, text="In [2]", kind="cell"),)), 0)
    (finding,) = why["findings"]
    assert finding["head"].startswith("NOT_OFFERED")
    (piece,) = finding["pieces"]
    assert piece["since"] == piece["late"][1]


def test_the_longest_pieces_are_kept_and_it_is_said_how_many_there_are(trace, monkeypatch):
    monkeypatch.setattr(_why, "LISTED_PIECES", 2)
    why, found = why_tables(trace, 0), explain(trace)
    for entry, finding in zip(why["findings"], found.findings, strict=True):
        assert [piece["late"][1] for piece in entry["pieces"]] == finding.pieces.start_ns[:2].tolist()
        assert entry["count"] == finding.piece_count > 2
        assert finding.pieces.waited_ns[0] == finding.pieces.waited_ns.max()


def test_of_more_findings_than_are_listed_it_is_said_how_many(trace, monkeypatch):
    monkeypatch.setattr(_why, "LISTED_FINDINGS", 1)
    why = why_tables(trace, 0)
    assert (len(why["findings"]), why["more"]) == (1, 0)
    monkeypatch.setattr(_why, "LISTED_FINDINGS", 0)
    assert why_tables(trace, 0)["more"] == 1


def test_gaps_have_the_kind_that_idle_finds_the_longest_first(trace, monkeypatch):
    gaps = idle(trace)
    wanted = {(int(lane), int(start + lasted), int(kind)) for lane, start, lasted, kind in zip(
        gaps.lane, gaps.start_ns, gaps.duration_ns, gaps.kind, strict=True)}  # fmt: skip
    assert {tuple(gap) for gap in why_tables(trace, 0)["gaps"]} == wanted
    monkeypatch.setattr(_why, "LISTED_GAPS", 1)
    longest = int(np.argmax(gaps.duration_ns))
    assert why_tables(trace, 0)["gaps"] == [[gaps.lane[longest], trace.start_ns[gaps.row[longest]], gaps.kind[longest]]]


@pytest.mark.parametrize(("launched", "kind"), [(110, IdleKind.EVENT), (480, IdleKind.HOST)])
def test_a_gap_that_was_the_hosts_and_then_an_events_is_told_as_the_longer(launched, kind):
    times = [("a", "first", 0, 100), ("b", "source", 0, 500), ("a", "waits", 501, 510, {"queued_ns": launched * 1_000})]
    spans = [(lane, name, start * 1_000, end * 1_000, *rest) for lane, name, start, end, *rest in times]
    trace = make_trace(spans, kind="kernel", edges=[(1, 2)])
    assert len(idle(trace)) == 2
    assert why_tables(trace, 0)["gaps"] == [[0, 501_000, list(IdleKind).index(kind)]]


def test_every_kind_of_gap_has_its_words():
    assert [text.partition(":")[0] for text in IDLE_TEXTS] == [kind.value for kind in IdleKind]


def test_a_long_trace_is_not_explained_and_it_is_said_what_to_type(trace, monkeypatch):
    monkeypatch.setattr(_why, "EXPLAINED_SPANS", len(trace) - 1)
    why = why_tables(trace, 0)
    assert "trace.explain()" in why["line"]
    assert (why["findings"], why["gaps"], why["explained"]) == ([], [], False)


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        pytest.param(empty_trace(), "nothing has ended", id="empty"),
        pytest.param(make_trace([("a", "x", 0, 9), ("a", "x", 20, 29)]), "one stream, so nothing can overlap", id="one stream"),
        pytest.param(make_trace([("a", "x", 5, 5)]), "one stream, so nothing can overlap", id="an instant"),
    ],
)
def test_of_less_than_two_streams_one_line_is_said(trace, line):
    why = why_tables(trace, 0)
    assert (why["line"], why["notes"], why["findings"]) == (line, [], [])


def found(trace):
    return {entry["kind"]: entry for entry in why_tables(trace, 0)["marks"]}


def record_marks(work):
    with Session("sim") as lab:
        for name in ("a", "b"):
            lab.stream(name)
        with lab.capture("kernels", host=True):
            work(lab)
        return lab.trace


def test_a_hazard_is_at_the_range_that_does_not_wait_with_the_missing_order():
    def work(lab):
        with lab.on("a", "make"):
            x = lab.xp.ones(1_000) * 2
        workloads.spin(lab, 50_000, stream="b")
        with lab.on("b", "use"):
            x + 1
        with lab.on("b", "use"):
            x.sum()
        lab.synchronize()

    trace = record_marks(work)
    (note,) = trace.notes
    first = trace.names.index("use") == trace.name
    assert (note.stream, note.kind.value, note.time_ns) == ("b", "hazard", trace.start_ns[first].min())
    entry = found(trace)["hazard"]
    assert entry["head"] == "Hazard: read-after-write on b"
    (piece,) = entry["pieces"]
    assert piece["late"][:3] == [1, note.time_ns, note.end_ns]
    assert trace.start_ns[piece["late"][3]] == note.time_ns
    assert piece["fix"] == "Put lab.stream('b').wait(lab.stream('a')) before 'use' (add)."
    assert "unordered" in piece["text"]


def test_a_hazard_outside_all_ranges_is_where_it_was_enqueued():
    with Session("sim") as lab:
        a, b = lab.stream("a"), lab.stream("b")
        with lab.select(a):
            x = lab.xp.ones(1_000)
        before_ns = lab._recorder.now_ns()
        with lab.select(b):
            x + 1
        (note,) = lab.trace.notes
        assert before_ns <= note.time_ns <= lab._recorder.now_ns()
        assert (note.end_ns, note.stream) == (None, "b")
        lab.clear()
        assert lab.trace.notes == ()


def test_strays_of_a_sort_are_one_mark_the_longest_first_with_what_to_do():
    def work(lab):
        with lab.on("a", "outer"):
            for us in (10, 30, 20):
                workloads.spin(lab, us * 1_000, stream="b")
        lab.synchronize()

    trace = record_marks(work)
    entry, strays = found(trace)["stray"], trace.strays()
    assert entry["count"] == len(entry["pieces"]) == len(strays) == 3
    assert [end - start for _, start, end, _ in (piece["late"] for piece in entry["pieces"])] == [30_000, 20_000, 10_000]
    assert entry["pieces"][0]["fix"] == strays.groups[0].fix == strays.advice[0]


def test_waits_of_the_host_are_marked_where_more_was_launched_behind_them():
    def work(lab):
        for us in (5_000, 20_000, 0.1, 10_000):  # so long that doing without the waits gains next to nothing
            workloads.spin(lab, int(us * 1_000), stream="a")
            lab.stream("a").synchronize()

    trace = record_marks(work)
    entry, waits = found(trace)["wait"], trace.host_waits()
    # Neither the shortest nor the last, behind which nothing came.
    assert [piece["late"][1] for piece in entry["pieces"]] == [waits.start_ns[1], waits.start_ns[0]]
    assert "until spin had ended" in entry["pieces"][0]["text"]
    assert found(record_marks(lambda lab: (workloads.spin(lab, 10_000, stream="a"), lab.synchronize()))) == {}


def test_dropped_spans_are_marked_with_how_to_keep_them(trace):
    dropped = replace(trace, metadata=replace(trace.metadata, dropped_spans=1_200, dropped_records=7))
    (piece,) = found(dropped)["dropped"]["pieces"]
    assert piece["text"].startswith("1,200 spans dropped, 7 of them kernels, copies and calls (")
    assert "ring_size" in piece["fix"]
    assert piece["late"] == [-1, 0, 0, -1]
    assert found(trace) == {}


def test_what_one_change_mends_is_said_of_each_piece_and_its_calls_are_no_waits_besides():
    with Session("sim") as lab:
        program, _ = PAIRS["pageable_upload"]
        kept = program(lab, "bad")()
        lab.synchronize()
        trace = lab.trace
    del kept
    why = why_tables(trace, int(trace.start_ns.min()))
    finding = trace.explain().findings[0]
    pieces = why["findings"][0]["pieces"]
    assert len(pieces) == 8
    assert {(piece["text"], piece["fix"]) for piece in pieces} == {(finding.text, finding.fix)}
    assert not [mark for mark in why["marks"] if mark["kind"] == "wait"]


def test_what_gains_nothing_is_left_as_it_is_in_each_piece():
    def program(lab):
        first, second = lab.stream("a"), lab.stream("b")
        for number in range(1, 5):
            workloads.spin(lab, 1_000_000 * number, stream=first)
            second.wait(first)
            workloads.spin(lab, 1_000_000, stream=second)
            lab.synchronize()

    why = why_tables(trace := planted.record(program), int(trace.start_ns.min()))
    pieces = why["findings"][1]["pieces"]
    assert trace.explain().findings[1].head.endswith("saves nothing (3 times)")
    assert len({piece["text"] for piece in pieces}) == len(pieces) == 3
    assert {piece["fix"] for piece in pieces} == {"Leave it as it is: scheduled anew without it the run is no shorter."}
