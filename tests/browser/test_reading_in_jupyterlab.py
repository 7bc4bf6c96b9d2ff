"""Keys, search and panels of a live timeline in JupyterLab: none of them reaches the notebook."""

from __future__ import annotations

import pytest

from tests.helpers.jupyter import PANEL, NotebookPage

pytestmark = pytest.mark.browser

CELL = """
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Session("sim", capture="ranges")
lab.partition(prefill=96, decode="rest")
for name in ("prefill", "decode"):
    for _ in range(20):
        with lab.on(lab.stream(name, partition=name), f"{name} work"):
            spin(lab, 300_000)
lab.synchronize()
lab.timeline()
"""
VIEWER = "document.querySelector('.gsl-live').gslView.viewer"
CELLS = "document.querySelectorAll('.jp-Notebook .jp-Cell').length"


RESET = f"""() => {{
  const book = {PANEL}.content.model.sharedModel
  while (book.cells.length > 2) book.deleteCell(book.cells.length - 1)
  book.cells[1].setSource("1 + 1")
}}"""


@pytest.fixture(scope="module")
def opened(server, lab_windows):
    """Return the notebook that the tests share: page and kernel take seconds to start."""
    with lab_windows.lending() as lend:
        notebook = NotebookPage(lend(height=1300))
        notebook.load(server.write_notebook("reading", [CELL, "1 + 1"]))
        yield notebook


@pytest.fixture
def lab(opened):
    """Return the notebook with its two cells as they were at first, and a new session in a new view."""
    opened.page.mouse.move(5, 5)
    opened.page.evaluate(RESET)
    opened.kernel("if 'lab' in globals(): lab.close()")
    opened.command("notebook:clear-all-cell-outputs")
    opened.wait("() => !document.querySelector('.gsl-live')")
    opened.errors.clear()
    opened.command("notebook:run-all-cells")
    opened.wait("() => document.querySelector('.gsl-live')?.gslView?.isStarted")
    opened.wait(f"() => {VIEWER}.view.store.length === 40")
    yield opened
    assert opened.errors == []


def test_keys_steer_the_timeline_and_leave_the_notebook_alone(lab):
    window = f"[{VIEWER}.view.x0, {VIEWER}.view.x1]"
    _click_span(lab)
    before = lab.page.evaluate(window)
    for key in ("a", "b", "x", "d", "d", "w", "m", "Escape", "ArrowRight", "ArrowDown", "z", "0", "0", "w", "c", "v", "y", "l"):
        lab.page.keyboard.press(key)
    assert lab.page.evaluate(CELLS) == 2
    assert lab.page.evaluate("document.querySelectorAll('.jp-Notebook .jp-MarkdownCell').length") == 0
    assert lab.page.locator(".jp-Dialog").count() == 0
    assert lab.page.evaluate(window) != before
    assert lab.page.locator(".gsl-details").is_visible()


def test_keys_in_a_cell_are_the_notebooks(lab):
    window = f"[{VIEWER}.view.x0, {VIEWER}.view.x1]"
    box = lab.page.locator(".gsl-figure").bounding_box()
    before = lab.page.evaluate(window)
    lab.page.locator(".jp-Cell .cm-content").nth(1).click()
    lab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    lab.page.keyboard.type("wasd")
    assert "wasd" in lab.page.locator(".jp-Cell .cm-content").nth(1).inner_text()
    lab.page.keyboard.press("Escape")
    lab.page.keyboard.press("b")
    lab.wait(f"() => {CELLS} === 3")
    assert lab.page.evaluate(window) == before


def _click_span(lab):
    """Click the span that is painted first, once the view of new spans and the notebook's layout have come to rest."""
    x, y = lab.page.evaluate(
        f"""async () => {{
          const viewer = {VIEWER}, view = viewer.view, row = view.store.row(0), place = view.tables.rows[0]
          const find = () => {{
            const box = viewer.figureElement.getBoundingClientRect(), time = (Math.max(row.start[0], view.x0) + row.end[0]) / 2
            return [box.left + view.pxAt(time), box.top + view.yAt((place.top + place.bottom) / 2)]
          }}
          for (let before = [];;) {{
            const now = find()
            if (String(now) === String(before)) return now
            before = now
            await new Promise(done => setTimeout(done, 100))
          }}
        }}"""
    )
    lab.page.mouse.click(x, y)
    lab.page.locator(".gsl-details").wait_for(state="visible")
