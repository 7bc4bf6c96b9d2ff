"""Notebooks that were saved with the package's widgets in them, seen where no kernel runs."""

from __future__ import annotations

import json

import pytest

from gpustreamlab import cli
from tests.helpers.jupyter import PANEL
from tests.helpers.live_notebook import LiveNotebook

pytestmark = pytest.mark.browser

CELLS = (
    """
%load_ext gpustreamlab
import gpustreamlab as gsl
from gpustreamlab.workloads import spin
lab = gsl.Session("sim")
lab.partition(prefill=96, decode=36)
def f(): spin(lab, 20_000, blocks=64)
def g(): spin(lab, 20_000, blocks=64)
lab.timeline()
""",
    "widget = lab.partitions.widget(); widget",
    "from gpustreamlab._util import shell\nshell.PATIENCE_S = -1\n%gputune f g",
)
WIDGET = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"
# Which form of an output is shown: that of GitHub and nbviewer, and that of VS Code without a kernel, which tries the widget
# first and goes on to the next (extensions/ipynb/src/deserializers.ts of microsoft/vscode).
GITHUB = ("text/html", "image/svg+xml", "image/png", "text/plain")
VS_CODE = ("text/html", "image/png", "image/svg+xml", "text/plain")


@pytest.fixture
def open_book(server, lab_windows):
    """Return a function that opens a notebook in JupyterLab, its cells run or not."""
    with lab_windows.lending() as lend:

        def open_it(url, *, is_run=False):
            book = LiveNotebook(lend(height=1400))
            (book.open if is_run else book.load)(url)
            return book

        yield open_it


def test_every_widget_of_a_saved_notebook_is_a_picture_of_its_last_state_also_after_a_restart(open_book, server):
    name = "saved-restarted"
    book = open_book(server.write_notebook(name, list(CELLS)), is_run=True)
    for selector in (".gsl-figure", ".gsl-part"):
        book.page.locator(f".jp-OutputArea {selector}").first.wait_for(timeout=30_000)
    # GIVEN a draft, and work, since the cells ran
    book.page.locator("input.gsl-request").first.fill("48")
    book.wait("() => document.querySelector('.gsl-python code').textContent.includes('prefill=48')")
    book.kernel("lab.stream('late')\nwith lab.on('late', 'late work'): spin(lab, 1_000_000)\nlab.synchronize()")
    count = book.recorded()
    book.wait_for_told(count)
    # WHEN the notebook is saved, and its kernel was restarted before
    book.page.evaluate(f"async () => {{ await {PANEL}.sessionContext.session.kernel.restart() }}")
    book.page.locator(".gsl-part[data-link=gone]").wait_for()
    book.page.evaluate(f"async () => {{ await {PANEL}.context.save() }}")
    book.page.evaluate(f"async () => {{ await {PANEL}.sessionContext.shutdown() }}")
    # THEN each is there without a kernel, with no sign of a broken link
    again = open_book(server.address(f"{name}.ipynb"))
    kept = again.page.locator(".jp-OutputArea .gsl-kept")
    kept.nth(1).wait_for(timeout=120_000)
    texts = [each.get_attribute("alt") or each.inner_text() for each in kept.all()]
    assert f"{count:,} spans" in texts[0]
    assert "lab.timeline() is live" in texts[0]
    assert "A draft: not in use." in texts[1]
    assert "lab.partition(prefill=48" in texts[1]
    assert "model not found" not in again.page.locator(".jp-Notebook").inner_text()
    signs = ".jupyter-widgets-disconnected"
    shown = "all => all.map(e => getComputedStyle(e, '::before').display)"
    assert set(again.page.locator(signs).evaluate_all(shown)) <= {"none"}
    pictures = again.page.locator("img.gsl-kept")
    widths = "all => Promise.all(all.map(e => e.decode().then(() => e.naturalWidth)))"
    assert min(pictures.evaluate_all(widths)) > 600
    again.keep(name)
    assert again.errors == []

    # AND so it is in the file, for those who show no widgets, and for those who take them from the metadata
    saved = json.loads((server.folder / f"{name}.ipynb").read_text())
    outputs = [output for cell in saved["cells"] for output in cell["outputs"] if WIDGET in output.get("data", {})]
    bundles = [output["data"] for output in outputs]
    assert [{*bundle} - {WIDGET, "text/plain"} for bundle in bundles] == [{"image/png"}, {"image/svg+xml"}]
    assert ["".join(bundle["text/plain"]) for bundle in bundles] == texts
    for order, kinds in ((GITHUB, ["png", "svg+xml"]), (VS_CODE, ["png", "svg+xml"])):
        assert [next(kind for kind in order if kind in bundle).split("/")[1] for bundle in bundles] == kinds
    models = saved["metadata"]["widgets"][STATE]["state"]
    assert {*models} == {bundle[WIDGET]["model_id"] for bundle in bundles}
    assert {model["model_module"] for model in models.values()} == {"@jupyter-widgets/controls"}
    page = server.folder / f"{name}.html"
    assert cli.main(["convert", str(server.folder / f"{name}.ipynb"), str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    assert f"data:image/png;base64,{''.join(bundles[0]['image/png']).strip()[:60]}" in html
    assert "data:image/svg+xml;base64," in html
