"""The drawer: findings, their signs in the picture, and a click on a bar or a gap; with mouse and keys."""

from __future__ import annotations

import numpy as np
import pytest

import gpustreamlab as gsl
from gpustreamlab.analysis import CAUSE_TITLES, IDLE_TEXTS, format_ns
from gpustreamlab.draw import _why
from gpustreamlab.workloads import spin
from tests.helpers import planted
from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import MS, empty_trace, make_trace, pipeline_trace

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def loop():
    """Return a trace with two findings, of four pieces and of three."""
    return planted.record(waits_twice(4, MS))


def waits_twice(count, duration_ns):
    """Return a program in whose loop one stream waits for the other, and then the host for both."""

    def program(lab):
        first, second = lab.stream("a"), lab.stream("b")
        for _ in range(count):
            spin(lab, duration_ns, stream=first)
            second.wait(first)
            spin(lab, duration_ns, stream=second)
            lab.synchronize()

    return program


def center(reader, lane, time_ns):
    """Return where a time is on a lane, in px of the window."""
    px = reader.js(
        "(({ top, bottom }) => (top + bottom) / 2 - w.scrollPx)(w.tables.lanes.find(one => one.name === argument))", lane
    )
    return reader.at(time_ns, px)


def click_lane(reader, lane, time_ns):
    reader.page.mouse.click(*center(reader, lane, time_ns))
    reader.settle()


def start_of(trace, row):
    return int(trace.start_ns[row] - trace.start_ns.min())


def sign_of(reader, trace, finding, place=0):
    """Return where the sign of a piece is: left of its start."""
    row = finding.pieces.row[place]
    x, y = center(reader, trace.lanes[trace.lane[row]].name, start_of(trace, row))
    return x - 9, y


def shown_rows(reader):
    """Return the rows of the trace that are pinned, in front and the proving call, of the piece that is shown."""
    return reader.js(
        """(piece => piece && [piece.late, piece.other, piece.call].map(hit => hit && s.row(hit.row).place[hit.index]))(
        w.reason && w.found.reasons.findings[w.reason.number - 1].pieces[w.reason.place])"""
    )


def test_the_drawer_says_what_was_found_in_plain_words_with_gain_code_and_line(read, loop):
    reader = read(loop)
    first, second = loop.explain().findings
    said = " ".join(reader.text("findings").split())
    assert "A stream waited for another" in said
    assert f"saves {format_ns(first.saves_ns)}" in said
    assert "4 times EVENT_WAIT" in said
    assert first.text in said
    assert first.fix in said
    assert second.text not in said, "what gains nothing is folded"
    assert loop.explain().headline not in said, "and so is where it comes from"
    for summary in reader.page.locator(".gsl-findings summary").all():
        summary.click()
    said = " ".join(reader.text("findings").split())
    assert second.text in said
    assert loop.explain().headline in said
    for note in loop.explain().notes:
        assert note in said
    assert reader.errors == []


def test_one_missing_wait_is_one_entry_with_its_line_to_copy_and_all_its_places_lit(read):
    reader = read(planted.record(missing_wait))
    entries = reader.page.locator(".gsl-found-one")
    assert entries.first.locator(".gsl-reason").inner_text().replace("\n", "") == "!A missing wait: b does not wait for a"
    assert "results may be wrong · 4 times" in entries.first.inner_text()
    assert reader.page.locator(".gsl-found-one .gsl-reason", has_text="b does not wait for a").count() == 1
    window, lit = reader.window(), outlined(reader)
    entries.first.locator(".gsl-reason").click()
    reader.settle()
    assert (reader.window(), lit, outlined(reader)) == (window, 0, 4)
    reader.page.evaluate("navigator.clipboard.writeText = text => { window.copied = text; return Promise.resolve() }")
    entries.first.get_by_role("button", name="Copy").click()
    assert reader.page.evaluate("copied") == "lab.stream('b').wait(lab.stream('a'))"
    # A second click, and Esc, put the lights out.
    entries.first.locator(".gsl-reason").click()
    reader.settle()
    assert outlined(reader) == 0
    entries.first.locator(".gsl-reason").click()
    reader.press("Escape")
    assert outlined(reader) == 0


def missing_wait(lab, count=4):
    first, second = lab.stream("a"), lab.stream("b")
    x = lab.xp.ones(1_000)
    lab.synchronize()
    for number in range(count):
        with lab.on(first, f"fill {number}"):
            x *= 2
        with lab.on(second, f"use {number}"):
            x.sum()
            spin(lab, MS, stream=second)
        lab.synchronize()


def outlined(reader):
    """Return how many boxes are outlined above the bars."""
    return reader.js(
        """(() => { let boxes = 0; const { strokeRect } = CanvasRenderingContext2D.prototype
        CanvasRenderingContext2D.prototype.strokeRect = function () { boxes++ }
        v.painter.paintOverlay(document.createElement("canvas").getContext("2d"), 1)
        CanvasRenderingContext2D.prototype.strokeRect = strokeRect; return Math.round(boxes / 2) })()"""
    )


PLACES = """[...w.laneOrder].map(code => Math.round(w.yAt(w.tables.lanes[code].top))).concat(
    [v.figureElement.clientHeight, w.lanesPx, Math.round(v.figureElement.getBoundingClientRect().top),
     ...[0, 0.25, 0.5].map(share => Math.round(w.pxAt(share * w.tables.extent_ns)))])"""


@pytest.mark.parametrize(("width", "is_open"), [(1366, True), (1200, True), (700, False), (390, False)])
def test_nothing_moves_when_the_drawer_opens_with_what_was_clicked(read, loop, width, is_open):
    reader = read(loop, width=width, height=768)
    drawer = reader.page.locator(".gsl-drawer")
    assert drawer.is_visible() is is_open
    before = reader.js(PLACES)
    reader.click("spin")
    assert drawer.is_visible()
    assert "spin" in reader.text("details")
    assert reader.js(PLACES) == before
    reader.press("Escape")
    assert drawer.is_visible() is is_open, "what a click opened goes with it"
    assert reader.js(PLACES) == before


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_drawer_that_nobody_asked_for_shuts_where_it_would_stand_before_lanes(read, loop, is_asked):
    reader = read(loop, width=900, height=768)
    if is_asked:
        reader.click("spin")
    assert reader.page.locator(".gsl-drawer").is_visible()
    reader.page.set_viewport_size({"width": 800, "height": 768})
    reader.settle()
    assert reader.page.locator(".gsl-drawer").is_visible() is is_asked


def test_the_drawer_that_was_shut_opens_again_with_time_in_its_place(read, loop):
    reader = read(loop, width=1366, height=768)
    reader.press("Escape")
    assert not reader.page.locator(".gsl-drawer").is_visible()
    assert reader.js("[w.x0, w.x1]") == reader.js("(({ start, end }) => [start, end])(w.fullRange())"), (
        "the picture has all room"
    )
    before = reader.js(PLACES)
    reader.click("spin")
    assert reader.page.locator(".gsl-drawer").is_visible()
    assert reader.js(PLACES) == before
    # What is clicked where the drawer then is stays in sight.
    reader.press("Escape")
    last = reader.js("s.row(w.tables.rows.findIndex((_, row) => s.row(row).length)).length") - 1
    reader.click("spin", 2 * last + 1)
    assert reader.pinned()[1] < reader.window()[1]
    assert reader.frame()[2] < reader.box("drawer")[0]


def test_all_of_the_drawer_scrolls_as_one(read):
    reader = read(planted.record(missing_wait), height=420)
    reader.press("t")
    scrolling = reader.page.evaluate(
        """[...document.querySelectorAll(".gsl-viewer *")].filter(node => node.scrollHeight > node.clientHeight + 1
        && ["auto", "scroll"].includes(getComputedStyle(node).overflowY)).map(node => node.className)"""
    )
    assert scrolling == ["gsl-drawer"]


def test_each_click_on_show_goes_to_the_next_place_with_the_work_in_front(read, loop):
    reader = read(loop)
    first, second = loop.explain().findings
    shows, heads = reader.page.locator(".gsl-go"), reader.page.locator(".gsl-reason")
    for place in (0, 1):
        assert shows.nth(0).inner_text() == f"Show {place + 1} of 4"
        shows.nth(0).click()
        reader.settle()
        late = first.pieces
        assert shown_rows(reader) == [late.row[place], late.other_row[place], late.call_row[place]]
        assert reader.js("s.row(w.pinned.row).place[w.pinned.index]") == late.row[place]
        begin, end = reader.js("[w.x0, w.x1]")
        assert begin < start_of(loop, late.other_row[place]) < start_of(loop, late.row[place]) < end
        assert heads.nth(0).get_attribute("aria-pressed") == "true"
    # The figures are those of the place that is shown.
    alone = loop.explain(int(first.pieces.row[1])).findings[0]
    assert alone.text in reader.text("findings")
    reader.page.locator(".gsl-findings summary").first.click()
    shows.nth(1).click()
    reader.settle()
    assert [heads.nth(k).get_attribute("aria-pressed") for k in (0, 1)] == ["false", "true"]
    assert shown_rows(reader)[0] == second.row


def test_a_sign_is_clicked_and_tells_its_finding_under_the_pointer(read, loop):
    reader = read(loop)
    first = loop.explain().findings[0]
    reader.page.mouse.move(*sign_of(reader, loop, first))
    reader.settle()
    assert reader.tip().split("\n")[0] == f"1. {CAUSE_TITLES[first.code]}"
    assert first.text in reader.tip()
    reader.page.mouse.click(*sign_of(reader, loop, first, 3))
    reader.settle()
    assert shown_rows(reader)[0] == first.pieces.row[3]
    assert reader.tip() is None or "1." in reader.tip()


SIGNS = """(() => { const signs = [], { fillText } = CanvasRenderingContext2D.prototype
  CanvasRenderingContext2D.prototype.fillText = function (text) { if (/^[1-9]$/.test(text)) signs.push(text) }
  v.painter.paintOverlay(document.createElement("canvas").getContext("2d"), 1)
  CanvasRenderingContext2D.prototype.fillText = fillText; return signs.sort().join("") })()"""


def test_where_signs_are_many_each_finding_has_one_and_the_chosen_one_all(read):
    reader = read(pipeline_trace(8))
    counts = {str(finding["number"]): len(finding["pieces"]) for finding in reader.js("w.found.reasons.findings")}
    assert sum(counts.values()) > 8
    assert reader.js(SIGNS) == "".join(counts)
    most = max(counts, key=counts.get)
    reader.js("(w.set('reason', { number: Number(argument), place: 0 }), 0)", most)
    assert reader.js(SIGNS) == "".join(number * (counts[number] if number == most else 1) for number in counts)
    # WHEN only a few are in view, THEN all of them are there
    reader.js("(w.set('reason', null), w.setRange(0, 3_500_000), 0)")
    reader.settle()
    seen = reader.js("w.found.reasons.pieces.filter(piece => piece.start < w.x1).map(piece => piece.sign).sort()")
    assert len(counts) < len(seen) <= 8
    assert reader.js(SIGNS) == "".join(seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_signs_are_seen(read, loop, scheme):
    reader = read(loop, color_scheme=scheme)
    x, y = sign_of(reader, loop, loop.explain().findings[0])
    left, top = reader.js("(({ left, top }) => [left, top])(v.figureElement.getBoundingClientRect())")
    seen = reader.pixels([x - left - 6, y - top, 0, 0], "overlays")[0, 0, :3]
    paper = [int(reader.js("v.theme.paper")[place : place + 2], 16) for place in (1, 3, 5)]
    low, high = sorted(map(luminance, (seen, paper)))
    assert (high + 0.05) / (low + 0.05) >= 3


def luminance(colour):
    channels = np.array(colour) / 255
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]


def test_keys_go_through_the_findings_and_esc_leaves(read, loop):
    reader = read(loop)
    found = loop.explain().findings
    for wanted in (found[0].row, found[1].row, found[0].row):
        reader.press("y")
        assert shown_rows(reader)[0] == wanted
    assert found[0].text in reader.page.locator(".gsl-status").inner_text()
    reader.press("Escape")
    assert reader.js("[w.reason, w.pinned]") == [None, None]
    # Tab reaches each finding, and Enter shows it; what is folded was unfolded when it was shown.
    reader.page.locator(".gsl-go").nth(1).focus()
    reader.press("Enter")
    assert shown_rows(reader)[0] == found[1].row
    # Who goes on to another span is done with the reason.
    reader.press("ArrowLeft")
    assert reader.js("w.reason") is None
    assert reader.js("w.pinned") is not None


def test_the_reason_that_is_chosen_is_scrolled_into_view_and_has_the_focus_of_the_list(read):
    spans = [(f"s{k % 2}", "x", k * MS, (k + 1) * MS) for k in range(8)]
    reader = read(make_trace(spans, title="notes"), height=600)
    reader.js(
        """w.set('notes', Array.from({length: 9}, (_, k) => ({time: w.tables.zero_ns + k * 1e6, end: null, stream: null,
        text: `note ${k}`})))"""
    )
    reader.settle()
    reader.page.locator(".gsl-reason").first.focus()
    count = reader.page.locator(".gsl-reason").count()
    reader.js("w.set('reason', {number: argument, place: 0})", count)
    reader.settle()
    assert reader.js("Number(document.activeElement.closest('.gsl-found-one').dataset.number)") == count
    own, lists = reader.js(
        """[document.activeElement, v.drawer.element].map(node => node.getBoundingClientRect())
        .map(({top, bottom}) => [top, bottom])"""
    )
    assert own[0] >= lists[0] - 1
    assert own[1] <= lists[1] + 1


def test_a_click_on_a_gap_tells_how_long_what_came_next_what_for_and_why(read):
    loop = planted.record(planted.wait_for_device_in_a_loop)
    reader = read(loop)
    finding = loop.explain().findings[0]
    last = int(finding.pieces.start_ns.argmax())  # before the first work of a stream no gap has a kind
    row, since_ns = finding.pieces.row[last], finding.pieces.idle_since_ns[last] - loop.start_ns.min()
    idle_ns = start_of(loop, row) - since_ns
    click_lane(reader, "b", since_ns + idle_ns / 2)
    said = reader.text("gap")
    assert f"({idle_ns:,} ns)" in said
    assert IDLE_TEXTS[0] in said
    for text in (CAUSE_TITLES[finding.code], finding.text, finding.fix):
        assert text in said
    assert reader.js("w.pinned") is None
    # Its finding, and what came next, are links.
    reader.page.locator(".gsl-gap .gsl-reason").click()
    reader.settle()
    assert shown_rows(reader)[0] == row
    assert reader.text("gap") is None
    click_lane(reader, "b", since_ns + idle_ns / 2)
    reader.page.locator(".gsl-gap .gsl-link").click()
    reader.settle()
    assert reader.js("s.row(w.pinned.row).place[w.pinned.index]") == row
    click_lane(reader, "b", since_ns + idle_ns / 2)
    assert reader.js("w.pinned") is None
    reader.press("f")
    assert reader.js("[w.x0, w.x1]") == pytest.approx([since_ns - 0.1 * idle_ns, since_ns + 1.1 * idle_ns])
    reader.press("Escape")
    assert reader.text("gap") is None
    assert reader.errors == []


def test_a_gap_without_a_finding_says_so_and_how_to_ask(read):
    trace = make_trace([("a", "x", 0, MS), ("b", "y", 0, 9 * MS), ("a", "x", 3 * MS, 4 * MS)])
    assert not trace.explain()
    reader = read(trace)
    click_lane(reader, "a", 2 * MS)
    assert "No cause is listed" in reader.text("gap")
    assert "trace.explain(2)" in reader.text("gap")
    click_lane(reader, "a", 7 * MS)
    assert reader.text("gap") is None  # nothing came behind it


def test_a_gap_in_which_the_sms_were_shared_out_anew_says_that(read):
    with gsl.Session("sim", capture="ranges") as lab:
        for sms in (96, 64):
            lab.partition(prefill=sms, decode="rest")
            for name in ("prefill", "decode"):
                lab.stream(name, partition=name)
                with lab.on(name, "work"):
                    spin(lab, MS)
            lab.synchronize()
        trace = lab.trace
    reader = read(trace)
    first, second = np.flatnonzero(trace.lane == trace.lane[0])
    between_ns = (int(trace.end_ns[first]) + int(trace.start_ns[second])) // 2 - int(trace.start_ns.min())
    click_lane(reader, trace.lanes[int(trace.lane[0])].name, between_ns)
    assert "layout: the SMs were shared out anew" in reader.text("gap")
    assert "The SMs were shared out anew in this gap" in reader.text("gap")
    assert "No cause is listed" not in reader.text("gap")


def test_a_gap_in_which_no_other_stream_worked_says_that(read):
    reader = read(make_trace([(lane, "x", start * MS, (start + 1) * MS) for lane in "ab" for start in (0, 3)]))
    click_lane(reader, "a", 2 * MS)
    assert "No other stream worked meanwhile" in reader.text("gap")


def test_a_gap_beyond_the_pieces_that_are_kept_says_that(read, monkeypatch):
    monkeypatch.setattr(_why, "LISTED_PIECES", 1)
    trace = planted.record(planted.wait_for_stream_in_ranges)
    reader = read(trace)
    click_lane(reader, "b", start_of(trace, trace.explain().findings[0].pieces.row[2]) - 200_000)
    assert "only the longest pieces are kept" in reader.text("gap")


def test_hidden_work_keeps_its_sign_and_its_words(read, loop):
    reader = read(loop)
    reader.js("w.set('hiddenNames', new Set([w.tables.names.indexOf('spin')]))")
    reader.settle()
    reader.page.locator(".gsl-go").first.click()
    reader.settle()
    assert shown_rows(reader)[:2] == [None, None]
    assert reader.js("[w.x0, w.x1]")[0] < start_of(loop, loop.explain().findings[0].row)
    assert reader.errors == []


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        pytest.param(empty_trace(), "nothing has ended", id="empty"),
        pytest.param(
            make_trace([("a", "x", 0, MS)]),
            "one stream of ranges, which contain waiting",
            id="one stream",
        ),
    ],
)
def test_of_less_than_two_streams_one_line_is_said(read, trace, line):
    reader = read(trace)
    assert reader.text("findings").lower().split() == ["findings", *line.lower().split()]


def written(reader):
    """Return the texts that are painted above the bars."""
    return reader.js(
        """(() => {
          const said = [], ctx = document.createElement("canvas").getContext("2d")
          ctx.fillText = text => said.push(text)
          v.painter.paintOverlay(ctx, 1)
          return said
        })()"""
    )


def test_every_piece_has_its_number_where_there_is_room_and_the_longest_in_any_case(read, loop):
    # What gains nothing is folded, and has its signs while it is chosen.
    reader = read(loop)
    assert sorted(written(reader)) == ["1"] * 4
    reader.js("w.set('reason', {number: 2, place: 0})")
    assert sorted(written(reader)) == ["1"] * 4 + ["2"] * 3


def test_signs_on_a_phone_leave_the_middle_of_the_bars_in_sight(read):
    discs = """(() => { const discs = [], { arc } = CanvasRenderingContext2D.prototype
      CanvasRenderingContext2D.prototype.arc = function (...place) { discs.push(place); return arc.apply(this, place) }
      v.plotView.repaint(); v.plotView.request_paint(v.layers.overlay); v.plotView.repaint()
      CanvasRenderingContext2D.prototype.arc = arc
      const rows = w.tables.rows.filter((row, code) => row.top >= 0 && s.row(code).length)
      return discs.map(([x, y, radius]) => rows.some(row => {
        const middle = (w.yAt(row.top) + w.yAt(row.bottom)) / 2
        return Math.abs(y - middle) < 2 && radius > 4 })) })()"""
    assert any(read(kernel_trace(), width=1366).js(discs))
    narrow = read(kernel_trace(), width=390).js(discs)
    assert narrow
    assert not any(narrow)


def test_signs_that_have_no_room_are_counted_on_one_that_has(read):
    reader = read(planted.record(waits_twice(200, MS // 50)))
    count = reader.js("w.why.findings.filter(one => !one.folds).reduce((sum, { pieces }) => sum + pieces.length, 0)")
    said = written(reader)
    signs, more = [text for text in said if text.isdigit()], [text for text in said if text.startswith("+")]
    assert 1 <= len(signs) < count
    assert set(signs) == {"1"}
    assert len(signs) + sum(int(text) for text in more) == count
    # AND the tip of such a sign says so
    x, y, here = reader.js(
        """(() => {
          for (let y = w.lanesTop(); y < w.lanesBottom(); y += 4) for (let x = w.frame.left - 9; x < w.frame.right; x += 4) {
            const sign = gpustreamlab.signAt(w, x, y)
            if (sign?.more) return [x, y, sign.more]
          }
        })()"""
    )
    left, top = reader.box("figure")[:2]
    reader.page.mouse.move(left + x, top + y)
    reader.settle()
    assert reader.tip().endswith(f"{here} more here: zoom in")


def test_a_gap_says_how_long_it_is_where_there_is_room(read):
    reader = read(planted.record(planted.tiny_kernels))
    reader.press("y")
    assert [text for text in written(reader) if text.startswith("idle")]
    reader.js("w.fit()")
    assert reader.js("w.reason")
    assert not [text for text in written(reader) if text.startswith("idle")]


def test_the_button_shuts_and_opens_the_drawer(read, loop):
    reader = read(loop)
    button = reader.page.locator(".gsl-findings-button")
    assert button.inner_text() == "Findings 1"
    for is_shown in (False, True):
        button.click()
        reader.settle()
        assert reader.page.locator(".gsl-drawer").is_visible() == is_shown
        assert button.get_attribute("aria-expanded") == str(is_shown).lower()


def test_tab_goes_from_the_picture_through_the_drawer_and_its_button_gives_the_focus_back(read, loop):
    reader = read(loop)
    reader.page.locator(".gsl-viewer").focus()
    focused = []
    for _ in range(30):
        reader.press("Tab")
        focused.append(reader.page.evaluate("document.activeElement.className.split(' ')[0]"))
    within = ["gsl-drawer", "gsl-shut", "gsl-reason", "gsl-go"]
    assert [name for name in focused if name in within][:4] == within
    reader.page.locator(".gsl-shut").focus()
    reader.press("Enter")
    assert not reader.page.locator(".gsl-drawer").is_visible()
    assert reader.js("document.activeElement === v.element")
