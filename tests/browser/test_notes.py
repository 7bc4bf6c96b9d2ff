"""Links to a view, notes that are written in the picture, and all that is marked with a sign; with mouse and keys."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import unquote

import pytest

import gpustreamlab as gsl
from gpustreamlab import Session, Timeline, compare, workloads
from gpustreamlab.model import Note
from tests.helpers import planted
from tests.helpers.traces import MS, make_trace, nested_trace

pytestmark = pytest.mark.browser

VIEW = "[w.x0, w.x1, w.pinned, w.selection && [w.selection.start, w.selection.end], [...w.hiddenNames]]"
NOTES = "w.notes.map(({ time, end, stream, text }) => [time, end, stream, text])"


@pytest.fixture(scope="module")
def marked():
    """Return a trace with a cause, a hazard, a stray, a wait of the host, dropped spans and two notes."""
    with Session("sim") as lab:
        for name in ("a", "b"):
            lab.stream(name)
        with lab.capture("kernels", host=True):
            with lab.on("a", "make"):
                x = lab.xp.ones((2000, 2000), "float32") * 2
            with lab.on("b", "use"):
                x + 1
            with lab.on("a", "outer"):
                workloads.spin(lab, 300_000, stream="b")
            lab.synchronize()
            for _ in range(2):
                workloads.spin(lab, 100_000, stream="a")
                lab.stream("a").synchronize()
        trace = lab.trace
    trace = replace(trace, metadata=replace(trace.metadata, dropped_spans=12, dropped_records=5))
    zero_ns = int(trace.start_ns.min())
    warm_up = Note(time_ns=zero_ns + 100_000, text="warm <b>up</b>")
    slow = Note(time_ns=zero_ns + 150_000, end_ns=zero_ns + 250_000, stream="a", text="slow")
    return replace(trace, notes=(*trace.notes, warm_up, slow))


def hash_of(reader):
    reader.page.wait_for_timeout(450)
    reader.settle()
    return unquote(reader.page.evaluate("location.hash"))


def at_link(open_page, path, link):
    """Open a page as who follows a link does."""
    return follow(open_page(path), path, link)


def follow(opened, path, link):
    """Open a page anew in a window, at a link."""
    opened.page.goto("about:blank")
    opened.page.goto(path.as_uri() + link)
    opened.page.wait_for_selector("html[data-drawn=yes]", state="attached")
    opened.settle()
    return opened


# ---- views


def test_a_link_opens_the_same_view(open_page, tmp_path):
    path = Timeline(nested_trace()).save(tmp_path / "run.html")
    opened = open_page(path)
    assert hash_of(opened) == ""
    opened.click("softmax")
    opened.press("f")
    opened.js("w.set('selection', { start: 1e6, end: 2e6 })")
    opened.page.locator(".gsl-more").click()
    opened.page.locator(".gsl-all [data-entry^=hiddenNames]").nth(1).click()
    opened.press("Escape", "e", "n")
    opened.page.keyboard.type("50% + “more” & more? #1")
    opened.press("Enter")
    hash_of(opened)
    link = opened.page.evaluate("location.hash")
    assert " " not in link
    wanted = opened.js(f"[{VIEW}, {NOTES}, w.showsWaits]")
    assert wanted[0][4] != []

    other = at_link(open_page, path, link)
    got = other.js(f"[{VIEW}, {NOTES}, w.showsWaits]")
    assert got[0][:2] == pytest.approx(wanted[0][:2], abs=1)  # whole ns
    assert (got[0][2:], got[1:]) == (wanted[0][2:], wanted[1:])
    assert hash_of(other) == unquote(link)
    assert other.errors == opened.errors == []


def test_all_is_as_at_first_again_where_the_address_says_so_and_a_link_can_be_copied(open_page, tmp_path):
    path = Timeline(nested_trace()).save(tmp_path / "run.html")
    opened = open_page(path)
    first = opened.js(VIEW)
    opened.click("softmax")
    opened.press("f")
    link = hash_of(opened)
    opened.press("v")
    copied = (
        "() => { Object.defineProperty(navigator, 'clipboard', { value: { writeText: text => { window.copied = text } } }) }"
    )
    opened.page.evaluate(copied)
    opened.page.get_by_role("button", name="Copy link to this view").click()
    opened.page.wait_for_function("window.copied")
    assert unquote(opened.page.evaluate("window.copied")) == path.as_uri() + link
    opened.press("Escape", "Escape", "f")
    assert hash_of(opened) == ""
    assert opened.js(VIEW) == first
    # WHEN a link is put into the address of the page that is open
    opened.page.evaluate("link => { location.hash = link }", link)
    opened.settle()
    assert opened.pinned()[0] == "softmax"
    assert hash_of(opened) == link


MALFORMED = [
    "#t=[1,2",
    "#%E0%A4%A",
    "#of=tabc&t=[1000,2000]&pin=[0,0,0]",
    "#of=SAME&t=[5,1]&pin=[99,1.5,{}]&sel=7&sign=[3,9]&y=x&notes=[7,[1],[%22x%22,null,null,%22no%20time%22]]&waits=null&hidden=3",
    "#of=SAME&t=x&pin=true&sel=[1]&sign=9&notes={}&search",
    "#section-2",
    "#=&&==",
]


def test_an_address_that_is_malformed_or_of_another_trace_changes_nothing(open_page, tmp_path):
    path = Timeline(nested_trace()).save(tmp_path / "run.html")
    opened = open_page(path)
    first = opened.js(f"[{VIEW}, {NOTES}]")
    opened.click("softmax")
    same = hash_of(opened).removeprefix("#of=").split("&")[0]
    for link in MALFORMED:
        follow(opened, path, link.replace("SAME", same))
        opened.press("y", "w", "s")
        assert opened.errors == [], link
        opened.press("Escape", "0")
        assert opened.js(f"[{VIEW}, {NOTES}]") == first, link


def test_each_of_two_timelines_has_its_own_part_of_the_address(open_page, tmp_path):
    path = compare(nested_trace(), make_trace([("a", "x", 0, 9 * MS), ("b", "y", MS, 2 * MS)])).save(tmp_path / "two.html")
    opened = open_page(path)
    opened.page.evaluate("gslViewer.view.show(0, 0)")
    opened.page.evaluate("gslViewerB.view.show(1, 0)")
    link = hash_of(opened)
    assert "&b.pin=[1," in link
    assert "pin=[0," in link
    other = at_link(open_page, path, link)
    assert other.page.evaluate("[gslViewer.view.pinned, gslViewerB.view.pinned]") == [
        {"row": 0, "index": 0},
        {"row": 1, "index": 0},
    ]


# ---- notes


def test_a_note_is_written_about_what_is_pinned_selected_or_under_the_pointer(read):
    reader = read(nested_trace())
    zero_ns = int(reader.js("w.tables.zero_ns"))
    reader.click("softmax")
    begin, end = reader.js("[s.row(w.pinned.row).start[w.pinned.index], s.row(w.pinned.row).end[w.pinned.index]]")
    reader.press("n")
    reader.page.keyboard.type("w, s and y are letters here")
    reader.press("Enter")
    stream = reader.js("w.tables.lanes[w.tables.rows[w.pinned.row].lane].name")
    reader.press("Escape")
    reader.js("w.set('selection', { start: 1e6, end: 2e6 })")
    reader.press("n")
    reader.page.keyboard.type("window")
    reader.page.get_by_role("button", name="Save", exact=True).click()
    reader.settle()
    reader.press("Escape")
    reader.page.mouse.move(*reader.at(5 * MS, 60))
    reader.press("n")
    reader.page.keyboard.type("moment")
    reader.press("Enter")
    # Esc, and a note without a text, leave nothing.
    reader.press("n")
    reader.page.keyboard.type("never mind")
    reader.press("Escape", "n", "Enter")
    notes = sorted(reader.js(NOTES), key=lambda note: note[3])
    assert notes[0][:3] == [pytest.approx(zero_ns + 5 * MS, abs=2 * reader.js("w.nsPerPx")), None, None]
    assert notes[1:] == [
        [zero_ns + begin, zero_ns + end, stream, "w, s and y are letters here"],
        [zero_ns + MS, zero_ns + 2 * MS, None if reader.js("w.tables.lanes.length") > 1 else stream, "window"],
    ]
    assert [text in reader.text("findings") for text in ("moment", "window", "letters here")] == [True] * 3


def test_a_note_of_python_stands_where_the_axis_says_so(read):
    trace = gsl.Trace.from_columns(start_ns=[7 * MS, 9 * MS], end_ns=[8 * MS, 10 * MS], stream=["a", "b"])
    reader = read(replace(trace, notes=[Note(time_ns=int(trace.start_ns.min()) + 1_250_000, text="here")]))
    assert "1.25 ms" in reader.page.locator(".gsl-found-one", has_text="here").inner_text()
    x = reader.js("w.pxAt(w.found.reasons.pieces.find(piece => piece.kind === 'note').start)")
    assert x == pytest.approx(reader.js("(w.pxAt(1e6) * 3 + w.pxAt(2e6)) / 4"))


def test_a_note_is_edited_and_deleted_and_its_text_is_only_text(read, marked):
    reader = read(marked)
    item = reader.page.locator(".gsl-found-one", has_text="warm <b>up</b>")
    assert item.locator("b").count() == 1  # its sign
    item.get_by_role("button", name="Edit").click()
    reader.settle()
    assert reader.page.evaluate("document.activeElement.value") == "warm <b>up</b>"
    reader.page.keyboard.type("cold")
    reader.press("Enter")
    assert sorted(note[3] for note in reader.js(NOTES)) == ["cold", "slow"]
    reader.page.get_by_role("button", name="Delete the note cold").click()
    reader.settle()
    assert [note[3] for note in reader.js(NOTES)] == ["slow"]


def test_a_saved_page_holds_its_notes_for_browsers_and_for_python(open_page, tmp_path, marked):
    path = Timeline(marked).save(tmp_path / "run.html", with_data=True)
    opened = open_page(path)
    opened.press("n")
    opened.page.keyboard.type("</script><script>alert(1)</script>")
    opened.press("Enter")
    for number in (1, 2):  # a page that was saved can be saved again
        opened.press("v")
        with opened.page.expect_download() as download:
            opened.page.get_by_role("button", name="Save page with notes").click()
        assert download.value.suggested_filename == path.name
        path = tmp_path / str(number) / path.name
        download.value.save_as(path)
        opened = open_page(path)
        trace = gsl.load_trace(path)
        written = [[note.time_ns, note.end_ns, note.stream, note.text] for note in trace.notes if note.kind == "note"]
        assert written == opened.js(NOTES)
        assert [note[3] for note in written].count("</script><script>alert(1)</script>") == 1
        assert len(written) == 3
        assert replace(trace, notes=()).metadata == marked.metadata
        assert opened.errors == []


# ---- signs


def test_all_that_is_found_has_a_sign_at_its_place_and_a_sentence_with_a_fix(read, marked):
    reader = read(marked, width=1366)
    kinds = reader.js("(w.found.reasons.findings).map(({ kind = 'cause', sign }) => [kind, sign])")
    causes = [kind for kind in kinds if kind[0] == "cause"]
    assert kinds[:3] == [["hazard", "!"], ["stray", "S"], ["cause", "1"]]  # what is wrong comes before what is slow
    assert [sign for _, sign in causes] == [str(number) for number in range(1, len(causes) + 1)]
    assert [kind for kind in kinds if kind[0] != "cause"] == [
        ["hazard", "!"],
        ["stray", "S"],
        ["wait", "W"],
        ["dropped", "D"],
        ["note", "N"],
        ["note", "N"],
    ]
    first = reader.js("w.found.reasons.pieces.filter(piece => piece.kind && !piece.place).reverse()")
    pieces = {piece["kind"]: piece for piece in first}
    zero_ns = int(marked.start_ns.min())
    names = [marked.names[code] for code in marked.name]
    use, stray = names.index("use"), int(marked.strays().row[0])
    waits = marked.host_waits()
    assert pieces["hazard"]["start"] == marked.start_ns[use] - zero_ns
    assert pieces["stray"]["start"] == marked.start_ns[stray] - zero_ns
    assert pieces["wait"]["start"] == waits.start_ns[1] - zero_ns
    assert pieces["dropped"]["start"] == 0
    reader.page.locator(".gsl-findings summary").first.click()
    for kind in ("hazard", "stray", "wait", "dropped"):
        assert pieces[kind]["text"] in reader.text("findings")
        assert pieces[kind]["fix"] in reader.text("findings")
    assert "lab.stream('b').wait(lab.stream('a'))" in reader.text("findings")
    assert "12 spans dropped, 5 of them kernels" in pieces["dropped"]["text"]
    assert reader.page.locator(".gsl-lost").inner_text() == "⚠ 1 hazard, strays, 12 dropped"


@pytest.mark.parametrize("kind", ["hazard", "stray"])
def test_the_sign_of_a_fault_stands_before_its_own_bar(read, marked, kind):
    reader = read(marked, width=1700)
    sign = reader.js(
        """(({ late, start, end }) => {
          const { top, bottom } = w.tables.rows[late.row]
          w.setRange(start - (end - start), end + (end - start))
          const found = gpustreamlab.signAt(w, w.pxAt(start) - 9, w.yAt((top + bottom) / 2))
          return found && [found.piece.kind, found.x < w.pxAt(start), found.y > w.yAt(top) && found.y < w.yAt(bottom)]
        })(w.found.reasons.pieces.find(piece => piece.kind === argument))""",
        kind,
    )
    assert sign == [kind, True, True]
    assert reader.errors == []


def test_y_goes_to_the_next_sign_of_any_kind(read, marked):
    reader = read(marked)
    count = reader.js("w.found.reasons.findings.length")
    seen = []
    for _ in range(count + 1):
        reader.press("y")
        seen.append(reader.js("w.reason.number"))
        assert reader.page.locator(".gsl-reason[aria-pressed=true]").count() == 1
        begin, end, start = reader.js("[w.x0, w.x1, w.found.reasons.findings[w.reason.number - 1].pieces[0].start]")
        assert begin <= start <= end
    assert seen == [*range(1, count + 1), 1]
    assert reader.errors == []


@pytest.mark.parametrize(("width", "scheme"), [(1366, "light"), (700, "dark")])
def test_a_sign_without_a_lane_is_seen_and_tells_its_text_under_the_pointer(read, marked, width, scheme):
    reader = read(marked, width=width, color_scheme=scheme)
    note = reader.js("w.found.reasons.findings.find(one => one.head.startsWith('warm')).pieces[0].start")
    left, top = reader.js("(({ left, top }) => [left, top])(v.figureElement.getBoundingClientRect())")
    x, y = left + reader.js("w.pxAt(argument)", note) - 9.5, top + reader.js("w.frame.top") + 10.5
    ink = "#" + "".join(f"{part:02x}" for part in reader.pixels([x - left - 6, y - top, 0, 0], "overlays")[0, 0, :3])
    assert ink == reader.js("v.theme.accent")
    reader.page.mouse.move(x, y)
    reader.settle()
    assert reader.tip().split("\n")[0] == "warm <b>up</b>"
    reader.page.mouse.click(x, y)
    reader.settle()
    assert reader.page.locator(".gsl-reason[aria-pressed=true]").inner_text() == "N\nwarm <b>up</b>"


def test_a_wait_of_which_a_cause_tells_has_no_second_sign(read):
    reader = read(planted.record(planted.wait_for_device_in_a_loop))
    assert reader.js("w.why.marks") == []
