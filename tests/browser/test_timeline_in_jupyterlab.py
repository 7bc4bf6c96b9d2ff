"""The timeline as the output of a cell in JupyterLab."""

from __future__ import annotations

import pytest

from tests.helpers.jupyter import NotebookPage

pytestmark = pytest.mark.browser

CELL = """
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Session("sim")
lab.partition(prefill=96, decode="rest")
for name in ("prefill", "decode"):
    with lab.on(lab.stream(name, partition=name), "work"):
        spin(lab, 300_000)
lab.partition(prefill=48, decode="rest")
with lab.on("prefill", "work"):
    spin(lab, 300_000)
lab.synchronize()
lab.timeline(live=False)
"""
ARE_DRAWN = """() => {
  const page = document.querySelector(".jp-OutputArea iframe").contentDocument
  const canvases = root => [...root.querySelectorAll("*")].flatMap(
    e => e.tagName === "CANVAS" ? [e] : e.shadowRoot ? canvases(e.shadowRoot) : [])
  const all = canvases(page)
  const has_size = canvas => canvas.width > 100 && canvas.height > 20
  return page.documentElement.dataset.drawn === "yes" && all.length > 1 && all.every(has_size)
}"""

THEME_IS = (
    """shown => document.querySelector(".jp-OutputArea iframe").contentDocument.documentElement.dataset.theme === shown"""
)


@pytest.fixture
def lab(server, lab_windows):
    with lab_windows.lending() as lend:
        notebook = NotebookPage(lend(height=1100))
        notebook.open(server.write_notebook("timeline", [CELL]))
        yield notebook
    assert notebook.errors == []


def test_the_figure_survives_a_change_of_the_theme(lab):
    lab.page.wait_for_selector(".jp-OutputArea iframe")
    lab.wait(ARE_DRAWN)
    for theme, shown in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        lab.change_theme(theme)
        lab.wait(THEME_IS, shown)
        lab.page.wait_for_timeout(1_000)  # the canvases lose their size some 0.2 s after the theme has come
        lab.wait(ARE_DRAWN)
