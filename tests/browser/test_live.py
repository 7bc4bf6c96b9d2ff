"""The live timeline in JupyterLab, with a simulated session in its kernel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from traitlets.config import Config

from tests.helpers.jupyter import PANEL
from tests.helpers.live_notebook import LiveNotebook

pytestmark = pytest.mark.browser

START = """
%load_ext gpustreamlab
import time
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Session("sim", capture="ranges", title="<img src=x onerror=alert(1)>")
lab.partition(prefill=96, decode="rest")
for name in ("prefill", "decode"):
    lab.stream(name, partition=name)

def work(steps, pause_s=0.0):
    for step in range(steps):
        with lab.on("prefill", "step"):
            for part in range(4):
                with lab.range(f"gemm {part}"):
                    spin(lab, 200_000)
        lab.stream("decode").wait(lab.stream("prefill").record())
        with lab.on("decode", "token"):
            spin(lab, 300_000)
        lab.synchronize()
        time.sleep(pause_s)
"""
SHOW = "lab.timeline()"
SPANS_A_STEP = 6
LESSON = Path(__file__).resolve().parents[2] / "notebooks" / "02-partitions.ipynb"
SCROLLED = ".jp-WindowedPanel-outer"
"""What of a notebook scrolls."""
SET_MORE = f"""sources => {{
  const book = {PANEL}.content.model.sharedModel
  if (book.cells.length > 2) book.deleteCellRange(2, book.cells.length)
  if (sources.length) book.insertCells(2, sources.map(source => ({{ cell_type: "code", source }})))
}}"""
COUNTS = f"() => {PANEL}.content.widgets.map(cell => cell.model.executionCount)"


class Lab(LiveNotebook):
    """A notebook whose first cell shows a live timeline."""

    def open(self, url):
        super().open(url)
        self.wait_for_views(1)

    def show(self):
        """Run the second cell, which shows the session."""
        self.page.evaluate(f"() => {{ {PANEL}.content.activeCellIndex = 1 }}")
        self.command("notebook:run-cell")
        self.wait_for_views(1)

    def run_more(self, *sources):
        """Put cells below the second one, in place of those that are there, and run them."""
        self.page.evaluate(SET_MORE, sources)
        self.run_cells(2, 2 + len(sources))


@pytest.fixture(scope="module")
def opened(server, lab_windows):
    """Return the notebook that tests share where they leave page and kernel alive: both take seconds to start."""
    with lab_windows.lending() as lend:
        lab = Lab(lend())
        lab.open(server.write_notebook("shared", [START, SHOW]))
        yield lab


@pytest.fixture
def unshown(opened):
    """Return the shared notebook with a new session that no view shows yet."""
    opened.close_view_beside()
    opened.kernel("lab.close()")
    opened.command("notebook:clear-all-cell-outputs")
    opened.wait_for_views(0)
    opened.run_more()
    opened.errors.clear()
    opened.run_above(1)
    yield opened
    assert opened.errors == []


@pytest.fixture
def lab(unshown):
    """Return the shared notebook with a new session and its live view."""
    unshown.show()
    return unshown


@pytest.fixture
def open_lab(server, lab_windows, request):
    """Return a function that opens a notebook of cells in a window of its own."""
    with lab_windows.lending() as lend:

        def open_it(*cells, is_shown=True):
            lab = Lab(lend())
            url = server.write_notebook(request.node.name[:40].replace("[", "-").replace("]", ""), list(cells))
            (lab.open if is_shown else super(Lab, lab).open)(url)
            return lab

        yield open_it


def test_the_wheel_scrolls_the_notebook_past_a_timeline(open_lab):
    lab = open_lab(START, "work(20)", SHOW, "lab.timeline(live=False)", *["'more'"] * 12)
    lab.page.wait_for_selector(".jp-OutputArea iframe")
    reader = lab.reader()
    window, (left, _, right, _) = reader.window(), reader.frame()
    lab.page.evaluate(f"() => {{ window.gslBook = document.querySelector('{SCROLLED}'); gslBook.scrollTop = 0 }}")
    reach = lab.page.evaluate("gslBook.scrollHeight - gslBook.clientHeight")
    # WHEN the wheel turns while the live view and then the picture (a frame) come under the pointer
    lab.page.mouse.move((left + right) / 2, 500)
    for _ in range(reach // 150 + 2):
        lab.page.mouse.wheel(0, 150)
        lab.page.wait_for_timeout(30)

    assert reach > 700
    lab.wait(f"() => gslBook.scrollTop >= {reach - 2}")
    assert reader.window() == window
    assert lab.errors == []


def test_everything_recorded_is_shown_in_the_end(lab):
    lab.kernel("work(200)")
    lab.wait_until(f"live.feed.store.spanCount === {200 * SPANS_A_STEP}")

    assert lab.recorded() == 200 * SPANS_A_STEP
    assert lab.ask("live.feed.tables.lanes.map(lane => lane.name)") == ["prefill", "decode"]
    assert lab.page.locator(".gsl-head h3").inner_text().startswith("<img src=x onerror=alert(1)>")
    assert lab.page.locator("img[src='x']").count() == 0
    lab.keep("live-all")


TUNED = """
def f(): spin(lab, 20_000, blocks=132 * 32 * 6)
def g(): spin(lab, 20_000, blocks=64)
%gputune f g
"""


def test_a_tuning_beside_an_open_view_leaves_nothing_in_it(lab):
    lab.kernel("work(3)")
    lab.kernel(TUNED)
    lab.kernel("work(2)")
    lab.wait_until(f"live.feed.store.spanCount === {5 * SPANS_A_STEP}")
    assert lab.recorded() == 5 * SPANS_A_STEP
    assert lab.kernel("print(any(lane.is_tools for lane in lab._recorder.trace().lanes))") == "True"
    names = lab.ask("live.feed.tables.lanes.map(lane => lane.name)")
    assert names == json.loads(lab.kernel("import json; print(json.dumps([lane.name for lane in lab.trace.lanes]))"))
    legend = lab.page.locator(".gsl-legend").inner_text()
    assert "bench/" not in legend
    lab.keep("live-tuned")
    # AND the same where the view comes later
    lab.page.evaluate(f"() => {{ {PANEL}.content.activeCellIndex = 1 }}")
    lab.command("notebook:create-output-view")
    lab.wait_for_views(2)
    assert lab.spans(view=1) == 5 * SPANS_A_STEP


GIVE_UP = """() => {
  const timeout = window.gslLimit = AbortSignal.timeout
  AbortSignal.timeout = ms => ms === 2000 ? { addEventListener: (_, giveUp) => giveUp() } : timeout.call(AbortSignal, ms)
}"""
WAIT_AGAIN = "() => { AbortSignal.timeout = gslLimit }"  # other tests get the same window


def test_a_view_whose_script_loads_slowly_hears_of_its_kernel_all_the_same(open_lab):
    lab = open_lab("1 + 1", is_shown=False)
    lab.page.evaluate(GIVE_UP)  # at once, as anywidget does after 2 s
    lab.run_scratch(f"{START}\nwork(3)\nlab.timeline()")
    lab.wait_for_views(1)
    lab.page.evaluate(WAIT_AGAIN)
    lab.kernel("work(5)")
    lab.wait_until(f"live.feed.store.spanCount === {8 * SPANS_A_STEP}")
    assert lab.errors
    assert all("[anywidget] Failed to initialize model" in error for error in lab.errors)


def test_spans_from_before_the_view_are_there(unshown):
    unshown.kernel("work(20)")
    unshown.show()

    assert unshown.spans() == 20 * SPANS_A_STEP


LATE = """
with lab.on("decode", "long"):
    spin(lab, 50_000_000)
for part in range(3):
    with lab.on("prefill", "short"):
        spin(lab, 1_000_000)
lab.streams["prefill"].synchronize()
"""


@pytest.fixture
def late_start(lab):
    """Show work that has ended, while other work that started before it goes on; say what has to move along."""
    lab.kernel(LATE)
    lab.wait_until("live.feed.store.spanCount === 3")
    lab.ask("live.viewer.view.set('isFollowing', false)")
    lab.ask("live.viewer.view.setRange(0, 1e6)")
    lab.ask("live.viewer.view.set('selection', { start: 1e5, end: 2e5 })")
    lab.ask("live.viewer.view.show(0, 1)")
    lab.ask("live.viewer.view.setRange(100_000, 600_000)")
    return lab


WINDOW = "[view.x0, view.x1, view.selection.start, view.store.row(0).start[view.pinned.index]]"


def test_an_earlier_start_that_comes_late_moves_zero_and_what_is_looked_at_along(late_start):
    lab = late_start
    zero_ns = int(lab.ask("live.feed.tables.zero_ns"))
    before = lab.ask(WINDOW.replace("view.", "live.viewer.view."))
    lab.kernel("lab.synchronize()")
    lab.wait_until("live.feed.store.spanCount === 4")
    moved_ns = zero_ns - int(lab.ask("live.feed.tables.zero_ns"))
    after = lab.ask(WINDOW.replace("view.", "live.viewer.view."))

    assert moved_ns > 0
    assert after == pytest.approx([at + moved_ns for at in before])
    assert lab.ask("live.feed.store.firstNs") == 0
    zero_ns -= moved_ns
    assert lab.ask("live.feed.kept.t") == pytest.approx([zero_ns + at for at in after[:2]], abs=1)
    lab.keep("live-earlier-start")


def test_who_follows_sees_an_earlier_start_too(lab):
    lab.kernel(LATE)
    lab.wait_until("live.feed.store.spanCount === 3")
    lab.ask("live.viewer.view.set('isFollowing', true)")
    lab.kernel("lab.synchronize()")
    lab.wait_until("live.feed.store.spanCount === 4")

    assert lab.ask("live.viewer.view.isFollowing")
    assert lab.ask("live.viewer.view.x0 <= 0 && live.viewer.view.x1 >= live.feed.store.lastNs")


INK_OF_ROWS = """(image, [top, bottom]) => {
  const ctx = new OffscreenCanvas(image.naturalWidth, image.naturalHeight).getContext("2d", { willReadFrequently: true })
  ctx.drawImage(image, 0, 0)
  const { data } = ctx.getImageData(0, top, image.naturalWidth, bottom - top)
  let count = 0
  for (let at = 0; at < data.length; at += 4) if (Math.max(data[at], data[at + 1], data[at + 2]) < 150) count += 1
  return count
}"""


def test_a_notebook_saved_behind_another_tab_with_its_session_open_keeps_the_newest_picture(open_lab, server, request):
    lab = open_lab(START, SHOW, *["'more'"] * 30)
    lab.kernel("work(5)")
    lab.wait_until(f"live.feed.store.spanCount === {5 * SPANS_A_STEP}")
    bottom_px = round(lab.ask("live.viewer.view.frame.bottom"))
    # GIVEN work that came while the view was out of sight
    lab.page.evaluate(f"() => {{ const book = document.querySelector('{SCROLLED}'); book.scrollTop = book.scrollHeight }}")
    lab.command("launcher:create")
    lab.kernel("with lab.on('decode', 'late work'): spin(lab, 1_000_000)\nlab.synchronize()")
    lab.wait_for_told(5 * SPANS_A_STEP + 1)
    # WHEN the notebook is saved, its kernel ended, and it is opened again with another
    lab.page.evaluate(f"async () => {{ await {PANEL}.context.save() }}")
    lab.page.evaluate(f"async () => {{ await {PANEL}.sessionContext.shutdown() }}")
    lab.errors.clear()
    name = f"{request.node.name[:40]}.ipynb"
    lab.load(server.address(name))
    # THEN the picture is there, with all that was recorded
    picture = lab.page.locator(".jp-OutputArea img.gsl-kept")
    picture.wait_for()
    lab.keep("live-saved-open")
    output = picture.get_attribute("alt")
    assert "model not found" not in lab.page.locator(".jp-Notebook").inner_text()
    assert f"{5 * SPANS_A_STEP + 1} spans in 2 streams" in output
    assert picture.evaluate("async e => { await e.decode(); return e.naturalWidth }") > 800
    # AND the time axis has its labels, below three lines of heading and the lanes
    assert picture.evaluate(INK_OF_ROWS, [69 + bottom_px + 8, 69 + bottom_px + 26]) > 100
    assert "img src=x" in output
    assert lab.page.locator("img[src='x']").count() == 0
    sign = "e => getComputedStyle(e, '::before').display"
    assert lab.page.locator(".jupyter-widgets-disconnected").evaluate(sign) == "none"  # no broken link above it
    assert lab.errors == []
    assert len((server.folder / name).read_bytes()) < 400_000
    # AND what shows no widgets has it too, and not the one from before the work
    (shown,) = json.loads((server.folder / name).read_text())["cells"][1]["outputs"]
    assert set(shown["data"]) == {"application/vnd.jupyter.widget-view+json", "image/png", "text/plain"}
    assert f"{5 * SPANS_A_STEP + 1} spans in 2 streams" in "".join(shown["data"]["text/plain"])
    order = ["text/html", "image/svg+xml", "image/png", "text/plain"]  # that of GitHub
    from nbconvert import HTMLExporter  # seconds of each worker that collects this

    exporter = HTMLExporter(config=Config({"NbConvertBase": {"display_data_priority": order}}))
    html, _ = exporter.from_filename(server.folder / name)
    assert f"data:image/png;base64,{''.join(shown['data']['image/png']).strip()[:60]}" in html

    # AND once it is run again the old picture is not kept any more
    lab.command("notebook:run-all-cells")
    lab.wait_for_views(1)
    lab.kernel("lab.close()")
    lab.page.wait_for_selector(".jp-OutputArea iframe[title=Timeline]")
    lab.command("docmanager:save")
    assert "kept_by" not in (server.folder / name).read_text()


def test_what_has_not_ended_is_named_until_now_and_the_state_says_whether_the_picture_follows(lab):
    lab.kernel("work(3)")
    lab.wait_until(f"live.feed.store.spanCount === {3 * SPANS_A_STEP}")
    lab.kernel("long = lab.on('prefill', 'long step'); long.__enter__(); spin(lab, 3_000_000)")
    lab.wait_until("live.viewer.view.openWork.length === 1")
    texts = """(() => {
      const shown = [], {painter} = live.viewer, ctx = document.createElement('canvas').getContext('2d'), write = ctx.fillText
      ctx.fillText = (text, ...place) => { shown.push(text); write.call(ctx, text, ...place) }
      painter.paintMain(ctx, 1)
      return shown
    })()"""
    shown = lab.ask(texts)
    lab.keep("live-open")
    assert "long step, not ended" in shown
    assert "now" in shown
    assert lab.spans() == 3 * SPANS_A_STEP
    state = lab.page.locator(".gsl-live-state")
    assert state.inner_text() == "live, follows now"
    lab.ask("live.viewer.view.set('isFollowing', false)")
    assert state.inner_text() == "live, does not follow now"
    lab.kernel("long.__exit__(None, None, None); lab.synchronize()")
    lab.wait_until("live.viewer.view.openWork.length === 0")
    assert "long step, not ended" not in lab.ask(texts)
    # The legend has the new name, soon.
    lab.wait(
        "() => { const more = document.querySelector('.gsl-more'); more.click(); "
        "const has = document.querySelector('.gsl-all').innerText.includes('long step'); "
        "document.querySelector('.gsl-all').hidePopover(); return has }"
    )
    lab.keep("live-legend")
    assert "decode · 36 SMs" in lab.page.locator(".gsl-legend").inner_text()


def test_what_a_cell_leaves_behind_on_the_simulated_device_says_that_its_time_passes_in_calls(lab):
    lab.kernel("work(3)")
    mark = lab.page.locator(".gsl-lost")
    mark.wait_for(state="hidden")
    lab.kernel("with lab.on('prefill', 'left behind'): spin(lab, 3_000_000)")
    mark.wait_for(state="visible")
    lab.keep("live-left-behind")
    assert mark.inner_text() == "1 not ended: simulated time passes in calls"
    assert mark.get_attribute("title") == f"{mark.inner_text()} alone. lab.synchronize() waits for the end."
    lab.kernel("lab.synchronize()")
    mark.wait_for(state="hidden")


RIGHT_EDGES = """() => {
  const rightOf = part => part.getBoundingClientRect().right, live = document.querySelector(".gsl-live")
  const buttons = [...live.querySelectorAll(".gsl-bar button")].filter(e => e.checkVisibility({ visibilityProperty: true }))
  return [rightOf(live), buttons.map(rightOf)]
}"""


def test_the_state_has_its_sign_in_forced_colours_and_all_tools_are_within_a_narrow_view(lab):
    dot = "e => [getComputedStyle(e, '::before').backgroundColor, getComputedStyle(e).color]"
    lab.page.emulate_media(forced_colors="active")
    sign, ink = lab.page.locator(".gsl-live-state").evaluate(dot)
    lab.page.emulate_media(forced_colors="none")
    assert sign == ink
    lab.page.set_viewport_size({"width": 390, "height": 1000})
    lab.wait("() => document.querySelector('.gsl-live').clientWidth < 300")
    right, buttons = lab.page.evaluate(RIGHT_EDGES)  # at one moment: JupyterLab may still be laying itself out
    lab.page.set_viewport_size({"width": 1200, "height": 1000})
    assert max(buttons) <= right
    assert len(buttons) > 6


def test_a_cell_that_recorded_ranges_is_marked(lab):
    lab.run_more("work(2)", "1 + 1", "work(1)")
    lab.wait_until(f"live.feed.store.spanCount === {3 * SPANS_A_STEP}")
    lab.wait_until("live.feed.tables.marks.filter(mark => mark.kind === 'cell').length === 2")

    texts = [f"In [{count}]" for count in lab.page.evaluate(COUNTS)]
    assert lab.ask("live.feed.tables.marks.filter(mark => mark.kind === 'cell').map(mark => mark.text)") == texts[2:5:2]


def test_the_button_asks_why_work_did_not_overlap(lab):
    lab.kernel("work(3)")
    lab.wait_until(f"live.feed.store.spanCount === {3 * SPANS_A_STEP}")
    lab.page.locator(".gsl-findings-button").click()
    lab.wait_until("live.viewer.view.why")
    panel = lab.page.locator(".gsl-findings")

    panel.locator("summary", has_text="How this was found").click()
    assert panel.locator("details p").first.inner_text() == lab.kernel("print(lab.explain().headline)")
    # Its spans are found among those of the view, and a session that forgets them takes it back
    panel.locator(".gsl-go").first.click()
    lab.wait_until("live.viewer.view.reason && live.viewer.view.pinned")
    lab.keep("live-why")
    lab.kernel("lab.clear()")
    lab.wait_until("!live.viewer.view.why")
    assert not panel.is_visible()


RACE = """
x = lab.xp.zeros(4096, "float32")
lab.synchronize()
with lab.on("prefill", "fill"):
    x.fill(1)
with lab.on("decode", "read"):
    y = x + 1
lab.synchronize()
"""


def test_a_race_has_its_sign_without_being_asked_for_until_the_spans_are_forgotten(lab):
    lab.kernel("work(1)")
    lab.kernel(RACE)
    # First its moment alone may be known, while its work has not ended
    lab.wait_until("live.viewer.view.why?.marks[0].pieces.every(({ late }) => late[2] > late[1])")
    panel = lab.page.locator(".gsl-findings")
    assert lab.page.locator(".gsl-findings-button").inner_text() == "Findings 1"
    lab.ask("live.viewer.commands.nextReason()")
    lab.wait_until("live.viewer.view.reason && live.viewer.view.pinned")
    # Its button asks for all else, too
    lab.page.locator(".gsl-findings-button").click()
    lab.wait_until("live.viewer.view.why.explained")
    assert panel.locator('[data-kind="hazard"]').count() == 1
    lab.kernel("lab.clear()")
    lab.wait_until("!live.viewer.view.why")


def test_an_update_that_was_lost_is_asked_for_again(lab):
    lab.kernel("work(5)")
    lab.wait_until(f"live.feed.store.spanCount === {5 * SPANS_A_STEP}")
    lab.ask("live.feed.number -= 3")
    lab.kernel("work(5)")
    lab.wait_until(f"live.feed.store.spanCount === {10 * SPANS_A_STEP}")


def test_the_look_survives_when_the_output_is_drawn_anew(lab):
    lab.kernel("work(30)")
    lab.wait_until(f"live.feed.store.spanCount === {30 * SPANS_A_STEP}")
    lab.ask("live.viewer.view.setRange(1e6, 2e6)")
    before = lab.ask("[live.viewer.view.x0, live.viewer.view.x1]")
    lab.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1 }")
    lab.command("notebook:create-output-view")
    lab.wait_for_views(2)

    assert lab.ask("[live.viewer.view.x0, live.viewer.view.x1]", view=1) == before


NOTES = "live.viewer.view.notes.map(({ time, end, stream, text }) => [time, end, stream, text])"
TELL = "print(*(f'{note.time_ns} {note.end_ns} {note.stream} {note.text}' for note in lab.trace.notes), sep='\\n')"


def test_what_is_chosen_and_written_survives_a_reload_and_a_close_and_comes_back_as_notes(lab):
    lab.kernel("work(10)")
    lab.wait_until(f"live.feed.store.spanCount === {10 * SPANS_A_STEP}")
    address = lab.page.url
    lab.ask("live.viewer.view.set('isFollowing', false)")
    lab.ask("live.viewer.view.show(0, 1)")
    lab.ask("live.viewer.view.setRange(1e6, 2e6)")
    lab.page.locator(".gsl-viewer").focus()
    lab.page.keyboard.press("n")
    lab.page.keyboard.type("dd: why <i>so</i> late?")
    lab.page.keyboard.press("Enter")
    note = lab.ask(NOTES)[0]
    assert note[3] == "dd: why <i>so</i> late?"
    # THEN the kernel has it, and the notebook's address is untouched
    lab.wait_for_print(TELL, " ".join(map(str, note)))
    assert lab.kernel("print(lab.timeline().notes == lab.trace.notes)") == "True"
    assert lab.page.url == address
    before = lab.ask("[live.viewer.view.x0, live.viewer.view.x1, live.viewer.view.pinned]")

    lab.reload()
    lab.wait_for_views(1)
    assert lab.ask(NOTES) == [note]
    assert lab.ask("[live.viewer.view.x0, live.viewer.view.x1, live.viewer.view.pinned]") == before
    # AND the picture of the closed session has it
    lab.kernel("lab.close()")
    lab.page.evaluate(f"() => {{ {PANEL}.content.activeCellIndex = 1 }}")
    lab.command("notebook:run-cell")
    frame = lab.page.frame_locator(".jp-OutputArea iframe[title=Timeline]")
    assert "dd: why <i>so</i> late?" in frame.locator(".gsl-findings").inner_text()
    assert lab.kernel(TELL) == " ".join(map(str, note))
    assert lab.page.url == address


def test_views_beside_each_other_have_the_same_notes(lab):
    lab.kernel("work(2)")
    lab.page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 1 }")
    lab.command("notebook:create-output-view")
    lab.wait_for_views(2)
    lab.ask("live.viewer.view.kept.get('notes').write([['5', null, null, 'both']])")
    assert lab.ask(NOTES, view=1) == [[5, None, None, "both"]]


def test_a_tab_that_slept_shows_what_came_meanwhile(lab, tmp_path):
    end = tmp_path / "end"
    lab.start_in_kernel(f"work(20, 0.01); open({str(end)!r}, 'w').close()")
    lab.wait_for_more(0)
    with lab.asleep():
        while not end.exists():
            lab.page.wait_for_timeout(20)
    lab.wait_until(f"live.feed.store.spanCount === {20 * SPANS_A_STEP}")

    assert lab.page.locator(".gsl-live-state").text_content() == "live, follows now"


def test_a_session_closed_after_a_reload_is_shown_to_its_end(lab):
    lab.kernel("work(20)")
    lab.reload()
    lab.wait_for_views(1)
    lab.kernel("work(5)\nlab.close()")
    lab.wait("() => document.querySelector('.gsl-live-state').dataset.state === 'closed'")

    assert lab.spans() == 25 * SPANS_A_STEP
    assert lab.page.locator(".gsl-live-banner").inner_text() == "The session is closed. This is all that was recorded."
