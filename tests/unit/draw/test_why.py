"""What a page is told about why work did not overlap: the words of `trace.explain()`, its pieces and the gaps; bounded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpustreamlab import workloads
from gpustreamlab.analysis import IDLE_TEXTS, explain, idle
from gpustreamlab.draw import _why, plan_picture, why_tables
from gpustreamlab.draw._html import page_data
from gpustreamlab.model import Marker
from gpustreamlab.typing import IdleKind
from tests.helpers import planted
from tests.helpers.traces import empty_trace, make_trace


@pytest.fixture(scope="module")
def trace():
    """Return work that the host held up seven times, by two findings."""
    return planted.record(planted.wait_for_device_in_a_loop)


def key_of(trace, row):
    zero_ns = int(trace.start_ns.min())
    return [int(trace.lane[row]), int(trace.start_ns[row]) - zero_ns, int(trace.end_ns[row]) - zero_ns]


def test_a_page_says_what_explain_prints(trace):
    why = page_data(plan_picture(trace))[0]["tables"]["why"]
    said = [f"Why: {why['line']}"]
    for number, finding in enumerate(why["findings"], 1):
        said += [f"{number}. {finding['head']}", finding["pieces"][0]["text"], finding["pieces"][0]["fix"]]

    printed = " ".join(str(trace.explain()).split())
    assert printed == " ".join([*said, *why["bound"], *why["notes"]])
    assert (len(why["findings"]), len(why["bound"])) == (2, 0)
    assert why["explained"]


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
    assert (len(why["findings"]), why["more"]) == (1, 1)


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
