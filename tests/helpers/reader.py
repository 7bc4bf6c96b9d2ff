"""Reads a timeline's page as a person does: with a mouse and keys, by what is on the screen."""

from __future__ import annotations

import base64
from contextlib import contextmanager

import numpy as np

from tests.helpers.pages import draw, page_of, wait_until_drawn
from tests.helpers.windows import Heard

LOAD_LIMIT_MS = 120_000
"""For pages of ten thousand lanes, on a machine that has other things to do."""
SETTLED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 5))))"
"""Resolves once what was asked for by now is painted, however slow the machine is."""


PIXELS = """(() => {
  const {[argument[4]]: {canvas}, pixel_ratio: ratio} = v.plotView.canvas_view
  const [x, y, width, height] = argument.slice(0, 4).map(px => Math.round(px * ratio))
  // Of a copy: reading a canvas itself would change how the browser paints it.
  const copy = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height})
  const ctx = copy.getContext("2d", {willReadFrequently: true})
  ctx.drawImage(canvas, 0, 0)
  const {data} = ctx.getImageData(x, y, Math.max(1, width), Math.max(1, height)), parts = []
  for (let at = 0; at < data.length; at += 1 << 15) parts.push(String.fromCharCode(...data.subarray(at, at + (1 << 15))))
  return [Math.max(1, width), Math.max(1, height), btoa(parts.join(""))]
})()"""
WRITTEN = """(async () => {
  const said = [], plain = CanvasRenderingContext2D.prototype.fillText
  CanvasRenderingContext2D.prototype.fillText = function (text, ...place) { said.push(text); plain.call(this, text, ...place) }
  v.plotView.request_paint()
  v.minimap.request()
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame)
  CanvasRenderingContext2D.prototype.fillText = plain
  return said
})()"""
HEADS = """argument.map(paint => {
  let heads = 0
  const plain = Path2D.prototype.closePath
  Path2D.prototype.closePath = function () { heads++; plain.call(this) }
  gpustreamlab[paint](document.createElement("canvas").getContext("2d"), v.painter)
  Path2D.prototype.closePath = plain
  return heads
})"""


SPAN_BOX = f"""(async ([row, index]) => {{
  const {{ top, bottom }} = w.tables.rows[row]
  if (!w.isSeen(w.tables.rows[row])) w.scrollTo(top - w.lanesPx / 2)
  await ({SETTLED})()
  const figure = v.figureElement.getBoundingClientRect(), {{ start, end }} = s.row(row)
  const [left, right] = [start, end].map(times => figure.left + w.pxAt(times[index]))
  const [above, below] = [w.tables.rows[row].top, w.tables.rows[row].bottom].map(px => figure.top + w.yAt(px))
  return [left, above, right, below]
}})(argument)"""


class Reader(Heard):
    """A page with one viewer, and the eyes and hands of who reads it."""

    def draw(self, text, path):
        """Draw a page, warm where the window has drawn one before."""
        draw(self.page, text, path)
        self.settle()
        return self

    def load(self, path):
        """Load a saved page as a browser does."""
        self.page.goto(path.as_uri(), timeout=LOAD_LIMIT_MS)
        wait_until_drawn(self.page, LOAD_LIMIT_MS)
        self.settle()
        return self

    def settle(self):
        self.page.evaluate(SETTLED)

    def js(self, expression, argument=None):
        """Evaluate JavaScript of the viewer `v`, its view `w` and its store `s`."""
        body = f"argument => {{ const v = gslViewer, w = v.view, s = w.store; return {expression} }}"
        return self.page.evaluate(body, argument)

    def value(self, expression):
        """Evaluate JavaScript as it is, let what it changed be painted, and return it."""
        found = self.page.evaluate(expression)
        self.settle()
        return found

    def pixels(self, box, layer="primary"):
        """Return the painted colours of a box of the figure, in px: its left, top, width, height; shape (height, width, 4)."""
        width, height, data = self.js(PIXELS, [*box, layer])
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4).astype(int)

    def written(self):
        """Return what is written while the picture is painted anew."""
        return self.js(WRITTEN)

    def arrows(self, *paints):
        """Return how many arrows are painted: of all, and of those of what is pinned or under the pointer."""
        return self.js(HEADS, paints or ("paintEdges", "paintOwnEdges"))

    def box(self, part):
        """Return a part's left, top, width and height in px of the window."""
        box = self.page.locator(f".gsl-{part}").first.bounding_box()
        return box["x"], box["y"], box["width"], box["height"]

    def find(self, name, occurrence=0):
        """Return [row, index] of the span of this name that starts as the n-th."""
        return self.js(
            """w.tables.rows.flatMap((_, row) => [...s.row(row).name ?? []].slice(0, s.row(row).length)
            .map((name, index) => [row, index, s.row(row).start[index], w.tables.names[name]]))
            .filter(span => span[3] === argument[0]).sort((a, b) => a[2] - b[2])[argument[1]].slice(0, 2)""",
            [name, occurrence],
        )

    def span_box(self, row, index):
        """Return left, top, right, bottom of a span in px of the window, once its lane is in view."""
        return self.js(SPAN_BOX, [row, index])

    def place(self, row, index, share=0.5):
        """Return a point of a painted span, in px of the window."""
        left, top, right, bottom = self.span_box(row, index)
        return left + share * (right - left), (top + bottom) / 2

    def frame(self):
        """Return left, top, right, bottom of the lanes in px of the window."""
        left, top = self.js("(({ left, top }) => [left, top])(v.figureElement.getBoundingClientRect())")
        frame = self.js("[w.frame.left, w.frame.top, w.frame.right, w.frame.top + w.lanesPx]")
        return left + frame[0], top + frame[1], left + frame[2], top + frame[3]

    def at(self, time_ns, lane_px=None):
        """Return where a time is, in px of the window; below the lanes' top by so many px."""
        top = self.frame()[1]
        return self.js("v.figureElement.getBoundingClientRect().left + w.pxAt(argument)", time_ns), top + (lane_px or 5)

    def hover(self, name, occurrence=0, share=0.5):
        self.page.mouse.move(*self.place(*self.find(name, occurrence), share))
        self.settle()

    def click(self, name, occurrence=0):
        self.page.mouse.click(*self.place(*self.find(name, occurrence)))
        self.settle()

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def drag(self, start, *places, shift=False):
        """Drag with the mouse from one place in the window over others."""
        mouse, keyboard = self.page.mouse, self.page.keyboard
        if shift:
            keyboard.down("Shift")
        mouse.move(*start)
        mouse.down()
        for place in places:
            mouse.move(*place, steps=6)
        mouse.up()
        if shift:
            keyboard.up("Shift")
        self.settle()

    def search(self, text):
        self.js("v.commands.searchFor(argument)", text)
        self.settle()

    def tip(self):
        tip = self.page.locator(".gsl-tip")
        return tip.inner_text() if tip.is_visible() else None

    def click_chip(self, text):
        """Click an entry of the legend, in the sheet of all of it where its line has no room."""
        chip = self.page.locator(".gsl-legend .gsl-chip", has=self.page.get_by_text(text, exact=True)).first
        if chip.is_visible():
            chip.click()
        else:
            self.page.locator(".gsl-more").click()
            self.page.locator(".gsl-all .gsl-chip", has=self.page.get_by_text(text, exact=True)).first.click()
            self.page.keyboard.press("Escape")

    def text(self, part):
        place = self.page.locator(f".gsl-{part}").first
        return place.inner_text() if place.is_visible() else None

    def pinned(self):
        """Return name and start of the pinned span."""
        return self.js(
            "w.pinned && [w.tables.names[s.row(w.pinned.row).name[w.pinned.index]], s.row(w.pinned.row).start[w.pinned.index]]"
        )

    def window(self):
        return self.js("[w.x0, w.x1]")

    def drawn_count(self):
        return self.js("w.tables.rows.reduce((sum, _, row) => sum + s.row(row).length, 0)")


@contextmanager
def open_readers(windows, folder):
    """Lend a function that opens a trace's page and returns its reader; console errors fail in the end."""
    opened = []

    with windows.lending() as lend:

        def read(trace, *, width=1200, height=900, **context):
            opened.append(lend(Reader, width=width, height=height, **context))
            return opened[-1].draw(page_of(trace), folder / f"page{len(opened)}.html")

        yield read
    assert [reader.errors for reader in opened] == [[] for _ in opened]
