"""A notebook in JupyterLab that shows a live timeline, and what a user does with it."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.jupyter import KERNEL, PANEL, NotebookPage
from tests.helpers.reader import Reader

VIEW = "document.querySelectorAll('.gsl-live')[{view}].gslView"
LEAST_INK = 500
"""Pixels of a span's colour from which on a picture counts as painted."""
INK = """view => {
  const canvases = root => [...root.querySelectorAll("*")].flatMap(
    e => e.tagName === "CANVAS" ? [e] : e.shadowRoot ? canvases(e.shadowRoot) : [])
  const figure = document.querySelectorAll(".gsl-live")[view].querySelector(".gsl-figure")
  let count = 0
  for (const canvas of canvases(figure)) {
    if (canvas.width < 100 || !canvas.height) continue
    // A copy is read: Chromium warns where a canvas itself is, several times.
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true })
    copy.drawImage(canvas, 0, 0)
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height)
    for (let at = 0; at < data.length; at += 4) {
      const [red, green, blue, alpha] = data.subarray(at, at + 4)
      if (alpha === 255 && Math.max(red, green, blue) - Math.min(red, green, blue) > 60) count++
    }
  }
  return count
}"""
# Notes each number of spans that the first view holds while a cell runs.
WATCH = f"""() => {{
  clearInterval(window.gslWatch)
  window.gslSeen = []
  window.gslWatch = setInterval(() => {{
    const live = document.querySelector('.gsl-live')?.gslView
    const isLive = live?.isStarted && live.feed.state.state === 'live' && {KERNEL}.status === 'busy'
    const count = isLive ? live.feed.store.spanCount : 0
    if (count && count !== window.gslSeen.at(-1)) window.gslSeen.push(count)
  }}, 50)
}}"""
RUN_ABOVE = f"""async index => {{
  {PANEL}.content.activeCellIndex = index
  await jupyterapp.commands.execute('notebook:run-all-above')
}}"""
ADD_LAST = f"""async () => {{
  const book = {PANEL}.content
  book.activeCellIndex = book.widgets.length - 1
  await jupyterapp.commands.execute('notebook:insert-cell-below')
}}"""
RUN_LAST = f"""async ([source, isAwaited]) => {{
  const book = {PANEL}.content
  book.activeCellIndex = book.widgets.length - 1
  book.activeCell.model.sharedModel.setSource(source)
  const done = jupyterapp.commands.execute('notebook:run-cell')
  if (isAwaited) await done
}}"""
DELETE_LAST = f"""async () => {{
  const book = {PANEL}.content
  book.activeCellIndex = book.widgets.length - 1
  await jupyterapp.commands.execute('notebook:delete-cell')
}}"""
OPEN_BESIDE = f"""async index => {{
  {PANEL}.content.activeCellIndex = index
  await jupyterapp.commands.execute('notebook:create-output-view')
}}"""
CLOSE_BESIDE = f"""() => {{
  for (const tab of [...jupyterapp.shell.widgets('main')]) if (tab !== {PANEL}) tab.close()
  jupyterapp.shell.activateById({PANEL}.id)
}}"""


# How much the picture's text stands out, as WCAG counts it.
CONTRAST = """live => {
  const { ink, paper } = live.viewer.theme
  const linear = part => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
  const [a, b] = [ink, paper].map(colour => [1, 3, 5].map(place => linear(parseInt(colour.slice(place, place + 2), 16) / 255)))
    .map(([red, green, blue]) => 0.2126 * red + 0.7152 * green + 0.0722 * blue)
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
}"""


class LiveNotebook(NotebookPage):
    """A notebook that shows a live timeline; its views are numbered from 0."""

    def __init__(self, page):
        super().__init__(page)
        self._has_scratch = False

    def wait_for_views(self, count):
        started = "[...document.querySelectorAll('.gsl-live')].filter(e => e.gslView?.isStarted)"
        self.wait(f"count => {started}.length === count", count)

    def ask(self, expression, view=0):
        """Evaluate an expression of a view `live`."""
        return self.page.evaluate(f"() => {{ const live = {VIEW.format(view=view)}; return {expression} }}")

    def wait_until(self, expression, view=0, **limit):
        self.wait(f"() => {{ const live = {VIEW.format(view=view)}; return {expression} }}", **limit)

    def spans(self, view=0):
        return self.ask("live.feed.store.spanCount", view)

    def wait_for_told(self, count):
        """Wait until the first view holds so many spans, and says so: it counts them anew twice a second."""
        told = f"live.feed.tables.header.facts.includes(' {count:,} span')"
        self.wait_until(f"live.feed.store.spanCount === {count} && {told}")

    def wait_for_more(self, count):
        """Wait until the first view holds more spans than so many; return how many."""
        self.wait_until(f"live.feed.store.spanCount > {count}")
        return self.spans()

    def recorded(self):
        return int(self.kernel("print(len(lab.trace))"))

    def is_busy(self):
        return self.page.evaluate(f"() => {KERNEL}.status") == "busy"

    def wait_until_idle(self):
        self.wait(f"() => {KERNEL}.status === 'idle'")

    def watch(self):
        """Note from now on how many spans the view holds while a cell runs."""
        self.page.evaluate(WATCH)

    def wait_for_seen(self, count, **limit):
        """Wait until the view was seen to hold so many numbers of spans, one after the other, while a cell runs."""
        self.wait(f"() => gslSeen.length >= {count}", **limit)

    def seen_while_busy(self):
        return self.page.evaluate("() => { clearInterval(window.gslWatch); return window.gslSeen }")

    def run_above(self, index):
        """Run all cells above one, and wait for them."""
        self.page.evaluate(RUN_ABOVE, index)

    def run_cells(self, first, end):
        """Run the cells from one to before another, and wait for them."""
        for index in range(first, end):
            self.page.evaluate(f"index => {{ {PANEL}.content.activeCellIndex = index }}", index)
            self.command("notebook:run-cell")

    def run_scratch(self, source, *, is_awaited=True):
        """Write a source into the cell below all others, and run it."""
        if not self._has_scratch:
            self.page.evaluate(ADD_LAST)
            self._has_scratch = True
        self.page.evaluate(RUN_LAST, [source, is_awaited])

    def delete_scratch(self):
        self.page.evaluate(DELETE_LAST)
        self._has_scratch = False

    def show_view(self, selector=".gsl-live"):
        """Scroll to the view."""
        self.page.locator(selector).first.evaluate("e => e.scrollIntoView({block: 'start'})")

    def reader(self):
        """Return the eyes and hands of who reads the first view."""
        self.show_view()
        self.page.evaluate(f"() => {{ window.gslViewer = {VIEW.format(view=0)}.viewer }}")
        self._wait_until_still()
        return Reader(self.page)

    def _wait_until_still(self):
        """Wait until JupyterLab has laid out what came into view: it moves the picture meanwhile."""
        self.page.evaluate("() => { window.gslPlaces = [] }")
        place = "gslPlaces.push(gslViewer.figureElement.getBoundingClientRect().top + gslViewer.view.frame.left)"
        self.wait(f"() => {place} > 10 && new Set(gslPlaces.slice(-10)).size === 1")

    def reload(self):
        """Save the notebook and load the page anew."""
        self.command("docmanager:save")
        self.page.reload()
        self.wait_for_kernel()

    @contextmanager
    def asleep(self):
        """Let no script of the page run meanwhile, as in a tab that the browser has put to sleep."""
        session = self.page.context.new_cdp_session(self.page)
        paused = []
        session.on("Debugger.paused", lambda _: paused.append(True))
        session.send("Debugger.enable")
        session.send("Debugger.pause")
        while not paused:
            self.page.wait_for_timeout(20)
        yield
        session.send("Debugger.resume")
        session.detach()

    def restart(self):
        """Restart the kernel by its menu, and agree that all variables are lost."""
        self.page.evaluate("() => { jupyterapp.commands.execute('kernelmenu:restart') }")
        self.page.locator(".jp-Dialog .jp-mod-accept").click()

    def open_view_beside(self, cell):
        """Show the output of a cell a second time, beside the notebook."""
        self.page.evaluate(OPEN_BESIDE, cell)

    def close_view_beside(self):
        self.page.evaluate(CLOSE_BESIDE)

    def ink(self, view=0):
        """Tell how many pixels of the figure are of a span's colour."""
        return self.page.evaluate(INK, view)

    def wait_for_ink(self, view=0, least=LEAST_INK):
        self.wait(f"view => ({INK})(view) > {least}", view)

    def contrast(self):
        """Return how much the text of the first view stands out: 7 is a lot, 21 the most."""
        return self.ask(f"({CONTRAST})(live)")

    def resize(self, width_px):
        """Change the width of the window, and wait until the figure has followed."""
        self.page.set_viewport_size({"width": width_px, "height": 1000})
        self.show_view()
        self.wait_until(
            f"live.viewer.element.clientWidth < {width_px} && live.viewer.element.clientWidth > {width_px - 200} && "
            "Math.abs(live.viewer.plotView.bbox.width - live.viewer.figureElement.clientWidth) < 2"
        )
        self.wait_for_ink()

    def keep(self, name, page=None):
        """Keep a screenshot where the environment says, to be looked at."""
        folder = os.environ.get("GPUSTREAMLAB_SCREENSHOTS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{name}.png").write_bytes((page or self.page).screenshot())
