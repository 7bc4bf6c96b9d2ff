"""What a user does with a live timeline in JupyterLab, from the quickstart's first cell to the file that is kept."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest

from tests.helpers.live_notebook import LiveNotebook
from tests.helpers.reader import Reader

pytestmark = pytest.mark.browser

QUICKSTART = Path(__file__).resolve().parents[2] / "notebooks" / "01-quickstart.ipynb"
SHOWN = 4
"""Cell of the quickstart above which the session is shown."""
FIRST_HALF = 17
"""Cell of the quickstart up to which the session of three streams holds all that it recorded."""
LONG_CELL = """
from itertools import count
import time
from gpustreamlab.workloads import spin
for _ in count():
    with lab.on("compute", "long cell"):
        spin(lab, 100_000)
    lab.synchronize()
    time.sleep(0.02)
"""
WORK = """
for name in ("prefill", "decode"):
    with lab.on(lab.stream(name, partition=name), f"{name} step"):
        spin(lab, 200_000)
lab.synchronize()
"""


START = """
%load_ext gpustreamlab
import time
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Session("sim", capture="ranges")
lab.stream("stream")

def work(steps, pause_s=0.0):
    for _ in range(steps):
        with lab.on("stream", "step"):
            spin(lab, 100_000)
        lab.synchronize()
        time.sleep(pause_s)
"""
OF_A_DEAD_KERNEL = ("Canceled future for execute_request", "Error: widget model not found")


@pytest.fixture
def notebook(lab_windows):
    """Return a window for a notebook."""
    with lab_windows.lending() as lend:
        yield LiveNotebook(lend())


@pytest.fixture
def lab(notebook, server, request):
    """Return a notebook with a session of its own and its live view."""
    notebook.open(server.write_notebook(request.node.name, [START, "lab.timeline()"]))
    notebook.wait_for_views(1)
    return notebook


def test_quickstart_from_the_first_cell_to_the_kept_file(notebook, server, chromium):
    lab = notebook
    lab.load(server.copy_notebook(QUICKSTART))
    spans_appear_while_cells_run(lab)
    wheel_and_keys_zoom_and_pan(lab)
    a_search_dims_and_steps(lab)
    a_dragged_window_is_measured(lab)
    a_click_pins(lab)
    a_reload_keeps_everything(lab)
    a_view_beside_the_notebook_grows_too(lab)
    an_interrupt_ends_the_cell_only(lab)
    themes_are_followed(lab)
    a_saved_page_has_the_same_spans(lab, server, chromium)
    partitions_of_the_widget_are_drawn(lab)
    a_restart_leaves_a_picture_and_says_so(lab)
    a_new_session_runs_to_its_end(lab)
    the_saved_notebook_holds_the_picture(lab, server)
    assert lab.errors == []


def test_a_kernel_that_dies_in_an_update_leaves_a_picture_and_a_notebook_that_works(lab):
    pid = int(lab.kernel("import os; print(os.getpid())"))
    lab.start_in_kernel("work(100_000, 0.001)")
    lab.wait_for_more(0)
    os.kill(pid, signal.SIGKILL)
    lab.wait("() => document.querySelector('.gsl-live-state').dataset.state === 'gone'")
    assert lab.spans() > 0
    lab.wait_for_ink()
    lab.keep("flow-died")
    lab.reload()
    lab.command("notebook:run-all-cells")
    lab.wait_for_views(1)
    lab.kernel("work(5)")
    lab.wait_until("live.feed.store.spanCount === 5")

    assert [error for error in lab.errors if not error.startswith(OF_A_DEAD_KERNEL)] == []


def spans_appear_while_cells_run(lab):
    lab.run_above(SHOWN)
    lab.wait_for_views(1)
    lab.watch()
    lab.run_cells(SHOWN, FIRST_HALF)
    recorded = lab.recorded()
    lab.wait_until(f"live.feed.store.spanCount === {recorded}")

    of_streams = lab.kernel("print(len(lab.trace.where(kind=['range', 'kernel', 'copy', 'fill'])))")
    assert (int(of_streams), recorded > 192) == (192, True)
    assert lab.seen_while_busy()[-1] > 0
    assert lab.ask("live.feed.tables.lanes.map(lane => lane.name)")[:3] == ["upload", "compute", "download"]


def wheel_and_keys_zoom_and_pan(lab):
    reader = lab.reader()
    widths = [_width(reader)]
    left, top, right, bottom = reader.frame()
    lab.page.mouse.move((left + right) / 2, (top + bottom) / 2)
    for act in (lambda: _wheel(lab, "Control"), lambda: reader.press("w"), lambda: reader.press("w")):
        act()
        lab.wait("width => gslViewer.view.x1 - gslViewer.view.x0 < width", widths[-1])
        widths.append(_width(reader))
        reader.click("batch", 4) if len(widths) == 2 else None  # keys are the timeline's once it was clicked
    lab.keep("flow-zoomed")
    before = reader.window()
    reader.press("d")
    assert reader.window()[0] > before[0]
    reader.press("Escape", "0")

    assert _width(reader) == pytest.approx(widths[0])


def a_search_dims_and_steps(lab):
    reader = lab.reader()
    reader.press("/")
    lab.page.keyboard.type("download")
    lab.wait("() => document.querySelector('.gsl-found').textContent === '8 found'")
    lab.page.keyboard.press("Enter")
    lab.page.keyboard.press("Enter")
    lab.wait("() => document.querySelector('.gsl-found').textContent === '2 of 8'")
    lab.keep("flow-search")
    assert reader.pinned()[0] == "download"
    lab.page.keyboard.press("Escape")
    lab.wait("() => gslViewer.view.matches === null")
    reader.press("Escape", "0")


def a_dragged_window_is_measured(lab):
    reader = lab.reader()
    left, top, right, bottom = reader.frame()
    reader.drag((left + 3, top + 15), (right - 3, bottom - 15), shift=True)
    assert reader.js("w.selection.end - w.selection.start") > 0
    lab.keep("flow-selected")
    reader.press("Escape")
    assert reader.js("w.selection") is None


def a_click_pins(lab):
    reader = lab.reader()
    reader.click("upload", 2)
    lab.page.locator(".gsl-details").wait_for()
    text = reader.text("details")
    lab.keep("flow-pinned")

    assert reader.pinned()[0] == "upload"
    assert text.startswith("upload")
    assert "number " in text
    reader.press("Escape")
    assert reader.text("details") is None


def a_reload_keeps_everything(lab):
    before = lab.spans()
    lab.reload()
    lab.wait_for_views(1)

    assert lab.spans() == before == lab.recorded()
    lab.wait_for_ink(least=1_000)


def a_view_beside_the_notebook_grows_too(lab):
    before = lab.recorded()
    lab.open_view_beside(3)
    lab.wait_for_views(2)
    assert lab.spans(1) == before
    lab.kernel("with lab.on('compute', 'after the second view'): lab.xp.ones(10)\nlab.synchronize()")
    recorded = lab.recorded()
    assert recorded > before
    for view in (0, 1):
        lab.wait_until(f"live.feed.store.spanCount === {recorded}", view)
        lab.keep(f"flow-beside-{view}")
        lab.wait_for_ink(view)
    lab.close_view_beside()
    lab.wait_for_views(1)


def an_interrupt_ends_the_cell_only(lab):
    before = lab.spans()
    lab.run_scratch(LONG_CELL, is_awaited=False)
    counts = [before]
    for _ in range(3):
        counts.append(lab.wait_for_more(counts[-1]))
    assert lab.is_busy()
    lab.show_view()
    lab.keep("flow-long-cell")
    lab.command("kernelmenu:interrupt")
    lab.wait("() => [...document.querySelectorAll('.jp-OutputArea')].some(e => e.textContent.includes('KeyboardInterrupt'))")
    lab.wait_until_idle()
    lab.run_scratch("with lab.on('compute', 'next'): spin(lab, 100_000)\nlab.synchronize()")
    recorded = lab.recorded()
    lab.wait_until(f"live.feed.store.spanCount === {recorded}")

    assert recorded > counts[-1]
    assert lab.ask("live.feed.tables.names").count("next") == 1
    assert lab.page.locator(".gsl-live-state").text_content() == "live, does not follow now"  # it was zoomed before
    lab.page.get_by_role("button", name="Stick to now").click()
    assert lab.page.locator(".gsl-live-state").text_content() == "live, follows now"


def themes_are_followed(lab):
    contrast = {}
    for theme in ("JupyterLab Dark", "JupyterLab Dark High Contrast", "JupyterLab Light"):
        lab.change_theme(theme)
        lab.wait_until(f"live.viewer.theme.isDark === {'true' if 'Dark' in theme else 'false'}")
        lab.wait_for_ink()
        contrast[theme] = lab.contrast()
        for width_px in (700, 1200):
            lab.resize(width_px)
            lab.keep(f"flow-{theme.lower().replace(' ', '-')}-{width_px}")

    assert min(contrast.values()) > 7


def a_saved_page_has_the_same_spans(lab, server, chromium):
    lab.run_scratch("lab.timeline().save('run.html')")
    shown, recorded = lab.spans(), lab.recorded()
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, offline=True)
    page = Reader(context.new_page()).load(server.folder / "run.html")
    lab.keep("flow-saved", page.page)

    assert page.js("s.spanCount") == shown == recorded
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    context.close()


def partitions_of_the_widget_are_drawn(lab):
    lab.run_scratch("lab.partition(prefill=96, decode='rest')\nlab.partitions.widget()")
    lab.page.locator(".gsl-part .gsl-request").first.fill("64")
    lab.wait("() => document.querySelector('.gsl-part .gsl-handle')?.ariaValueNow === '64'")
    lab.page.locator(".gsl-part .gsl-apply").click()
    lab.wait("() => document.querySelector('.gsl-part .gsl-detail').textContent.includes('In use as shown.')")
    lab.kernel(WORK)
    lab.wait_until("live.feed.tables.marks.filter(mark => mark.kind === 'layout').length === 2")
    lab.wait_until(f"live.feed.store.spanCount === {lab.recorded()}")
    # With the picture, not some time after.
    assert lab.page.locator(".gsl-legend").text_content().startswith("colour: partition")
    lab.show_view()
    lab.keep("flow-partitions")
    lab.resize(700)
    lab.keep("flow-partitions-700")
    lab.resize(1200)

    labels = lab.ask("live.feed.tables.groups.map(group => group.label)")
    assert any("prefill" in label for label in labels)
    assert any("decode" in label for label in labels)


def a_restart_leaves_a_picture_and_says_so(lab):
    lab.restart()
    lab.wait("() => document.querySelector('.gsl-live-state').dataset.state === 'gone'")
    lab.show_view()
    lab.keep("flow-restarted")

    assert lab.page.locator(".gsl-live-banner").inner_text().startswith("The kernel is gone.")
    assert not lab.page.locator(".gsl-follow").is_visible()
    assert lab.ink() > 500
    lab.page.locator(".gsl-findings-button").click()
    lab.wait("() => document.querySelector('.gsl-findings > p').textContent.startsWith('The kernel is gone')")


def a_new_session_runs_to_its_end(lab):
    lab.delete_scratch()
    lab.watch()
    lab.command("notebook:run-all-cells")

    assert max(lab.seen_while_busy()) > 0
    assert lab.kernel("print(lab.state != 'open')") == "True"


def the_saved_notebook_holds_the_picture(lab, server):
    lab.wait("() => document.querySelectorAll('.jp-OutputArea iframe[title=Timeline]').length >= 3")
    lab.wait("() => !document.querySelector('.gsl-live')")
    lab.show_view(".jp-OutputArea iframe[title=Timeline]")
    lab.keep("flow-closed")
    lab.command("docmanager:save")
    path = server.folder / "01-quickstart.ipynb"
    outputs = [output for cell in json.loads(path.read_text())["cells"] for output in cell.get("outputs", [])]
    from nbconvert import HTMLExporter  # seconds of each worker that collects this

    page, _ = HTMLExporter().from_filename(path)

    assert not [output for output in outputs if "application/vnd.jupyter.widget-view+json" in output.get("data", {})]
    assert page.count("gsl-picture") >= 3
    # The first picture is of the pipeline, which overlaps.
    first = next(output["data"] for output in outputs if "image/svg+xml" in output.get("data", {}))
    assert re.search(r"timeline of \d+ spans in 3 streams and 1 host thread", "".join(first["text/plain"]))


def _wheel(lab, key):
    """Turn the wheel towards a closer look, with a key held."""
    lab.page.keyboard.down(key)
    lab.page.mouse.wheel(0, -240)
    lab.page.keyboard.up(key)


def _width(reader):
    start, end = reader.window()
    return end - start
