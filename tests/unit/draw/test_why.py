"""What a page is told about why work did not overlap: the words of `trace.explain()`, its pieces and the gaps; bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import Session, workloads
from gpustreamlab.analysis import (
    CAUSE_TITLES,
    IDLE_TEXTS,
    NEEDS,
    code_lines,
    explain,
    format_ns,
    format_share,
    idle,
    wait_needs,
)
from gpustreamlab.draw import _why, page_data, plan_picture, why_tables
from gpustreamlab.model import Marker, Note, merge
from gpustreamlab.typing import Cause, IdleKind, Need, NoteKind
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


def test_a_page_says_of_each_cause_what_explain_says_and_what_it_saves_in_plain_words(trace):
    why, found = page_data(plan_picture(trace))[0]["tables"]["why"], trace.explain()
    (finding,), (entry,) = found.findings, why["findings"]
    assert why["line"] == found.headline
    assert entry["head"] == "The host waited for the whole card"
    assert (entry["code"], entry["count"], entry["folds"]) == ("HOST_SYNC_DEVICE", 7, False)
    share = finding.saves_ns / found.forecast.measured_ns
    assert entry["gain"] == f"saves {format_ns(finding.saves_ns)} ({format_share(share)})"
    assert (entry["pieces"][0]["text"], entry["pieces"][0]["fix"]) == (finding.text, finding.fix)
    assert why["notes"] == list(found.notes)
    assert why["explained"]


def test_every_cause_has_a_title():
    assert set(CAUSE_TITLES) == set(Cause)
    assert len(set(CAUSE_TITLES.values())) == len(Cause)


def on_gpu(trace, number):
    """Return a trace as if another card had run it."""
    device = replace(trace.metadata.device, ordinal=number)
    lanes = tuple(replace(lane, device=number) for lane in trace.lanes)
    return replace(trace, lanes=lanes, metadata=replace(trace.metadata, device=device))


def test_a_page_of_several_ranks_explains_each_gpu_and_its_pieces_are_spans_of_the_whole(trace, monkeypatch):
    whole = merge([on_gpu(trace, 0), on_gpu(trace, 1)], ahead_ns=[0, 50_000], error_ns=1, processes=[0, 1])
    zero_ns = int(whole.start_ns.min())
    why, alone = why_tables(whole, zero_ns), [whole.where(device=number).explain() for number in (0, 1)]

    heads = [f"GPU {number}: {CAUSE_TITLES[alone[number].findings[0].code]}" for number in (0, 1)]
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
    assert finding["code"].startswith("NOT_OFFERED")
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
        pytest.param(
            make_trace([("a", "x", 0, 9), ("a", "x", 20, 29)]),
            "one stream of ranges, which contain waiting",
            id="one stream",
        ),
        pytest.param(
            make_trace([("a", "x", 5, 5)]),
            "one stream of ranges, which contain waiting",
            id="an instant",
        ),
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
    assert (entry["head"], entry["code"]) == ("A missing wait: b does not wait for a", "read-after-write")
    (piece,) = entry["pieces"]
    assert piece["late"][:3] == [1, note.time_ns, note.end_ns]
    assert trace.start_ns[piece["late"][3]] == note.time_ns
    assert entry["lines"] == ["lab.stream('b').wait(lab.stream('a'))"]
    assert piece["fix"] == "Put it before 'use' (add)."
    assert piece["text"].startswith("'use' (add) may run before 'make' (multiply) has ended: both use ")


def test_hazards_that_one_line_mends_are_one_entry_with_a_place_for_each():
    def work(lab):
        first = lab.xp.ones(1_000)
        lab.synchronize()
        for number in range(3):
            with lab.on("a", f"fill {number}"):
                first *= 2
            with lab.on("b", f"use {number}"):
                first += 1
        lab.synchronize()

    trace = record_marks(work)
    entries = found_entries(trace)
    places = {entry["lines"][0]: [piece["fix"] for piece in entry["pieces"]] for entry in entries}
    assert places == {
        "lab.stream('b').wait(lab.stream('a'))": [f"Put it before 'use {number}' (add)." for number in range(3)],
        "lab.stream('a').wait(lab.stream('b'))": [f"Put it before 'fill {number}' (multiply)." for number in (1, 2)],
    }
    assert [entry["count"] for entry in entries] == [3, 2]
    # Of several arrays at one place it is one.
    again = tuple(replace(note, text=f"write-after-write: more of {note.text}") for note in trace.notes)
    (entry, _), more = (found_entries(replace(trace, notes=notes)) for notes in ((*trace.notes, *again), trace.notes))
    assert (entry["code"], entry["pieces"]) == ("read-after-write, write-after-write", more[0]["pieces"])


def found_entries(trace):
    return [entry for entry in why_tables(trace, 0)["marks"] if entry["kind"] == "hazard"]


@pytest.mark.parametrize(
    ("text", "fix", "head", "lines"),
    [
        ("use-after-free: x #1, 1 time: odd", "Put lab.stream('a').hold(x) after 'make' (add), before the array goes.",
         "Memory goes while it is still in use", ["lab.stream('a').hold(x)"]),
        ("read-after-write: odd", "Ask an expert.", "A missing wait: nothing orders what shares memory", []),
        ("write-after-write: odd", "Put lab.synchronize() after all (add), or select a stream for that too.",
         "A missing wait: nothing orders what shares memory", ["lab.synchronize()"]),
    ],
)  # fmt: skip
def test_hazards_of_other_sorts_have_titles_and_what_cannot_be_read_is_told_as_it_is(text, fix, head, lines):
    note = Note(time_ns=0, end_ns=None, stream=None, text=text, fix=fix, kind=NoteKind.HAZARD)
    entry = found(replace(empty_trace(), notes=(note,)))["hazard"]
    assert (entry["head"], entry["lines"]) == (head, lines)
    assert text in (entry["pieces"][0]["text"], text)
    assert entry["pieces"][0]["fix"] == (fix if not lines else fix.replace(lines[0], "it"))


def test_what_is_to_be_left_out_is_no_line_to_copy():
    assert code_lines("Leave out lab.stream('b').wait('a'): no array asks for it. Then done = lab.stream('a').record().") == [
        "done = lab.stream('a').record()"
    ]
    assert code_lines("Only then, x.get(out=pinned, blocking=False), and lab.synchronize() (once).") == [
        "x.get(out=pinned, blocking=False)"
    ]


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


def test_a_page_says_of_waits_whether_data_need_them_and_nothing_where_no_access_is_known():
    trace = planted.needed_and_needless_waits()
    why, needs = why_tables(trace, 0), wait_needs(trace)
    told = {tuple(map(int, key.split())): text for key, text in why["needs"].items()}
    for edge, (source, target) in enumerate(zip(trace.edges.source.tolist(), trace.edges.target.tolist(), strict=True)):
        need = NEEDS[needs.need[edge]] if needs.need[edge] >= 0 else Need.NOT_KNOWN
        text = told.get((source, target), "")
        assert text.startswith("data need this wait") == (need is Need.NEEDED), (source, target)
        assert (text == "no data need this wait") == (need is Need.NOT_NEEDED), (source, target)
    assert any("(buffer " in text for text in told.values())
    assert {Need.NEEDED, Need.NOT_NEEDED} <= {NEEDS[code] for code in needs.need if code >= 0}
    assert why_tables(make_trace([("a", "x", 0, 10), ("b", "y", 10, 20)], edges=[(0, 1)]), 0)["needs"] is None
