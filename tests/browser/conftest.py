"""One Chromium for all tests. A missing browser fails the tests; it never skips them."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import sync_playwright

QUIET = [
    "--no-sandbox",
    "--headless",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium():
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=QUIET, ignore_default_args=["--hide-scrollbars"])
        yield browser
        browser.close()


class Opened:
    """A page, and everything that it said, asked for or popped up while it was open."""

    def __init__(self, page):
        self.page = page
        self.errors, self.requests, self.dialogs = [], [], []
        page.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    def load(self, path):
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", state="attached")
        self.page.wait_for_function(
            "(() => { const s = gslModel('lanes'); return s && s.inner_width > 0 })()".replace("gslModel", GET_MODEL)
        )
        self.settle()
        return self

    def settle(self):
        """Let the pending animation frames run."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        )

    def model(self, name, expression):
        """Evaluate a JavaScript expression of the model `m` that has this name."""
        return self.page.evaluate(f"() => {{ const m = {GET_MODEL}({name!r}); return {expression} }}")

    def window_ns(self):
        return self.model("lanes", "m.x_range.end - m.x_range.start")

    def frame_box(self):
        """Return the inside of the lanes figure in px of the page: left, top, width, height."""
        return self.page.evaluate(
            """() => { const view = Bokeh.index.get_by_id ? [...Bokeh.index.roots][0] : Object.values(Bokeh.index)[0]
            const find = v => v.model.name === 'lanes' ? v : (v.child_views || []).map(find).find(Boolean)
            const plot = find(view), b = plot.frame.bbox, r = plot.el.getBoundingClientRect()
            return [r.left + b.left, r.top + b.top, b.width, b.height] }"""
        )


GET_MODEL = "(name => Bokeh.documents.flatMap(d => [...d._all_models.values()]).find(m => m.name === name))"


@pytest.fixture
def open_page(chromium):
    """Return a function that opens a saved page in a browser window of its own."""
    contexts = []

    def open_it(path, *, width=1200, height=800, scheme="light", javascript=True):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, java_script_enabled=javascript
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        if not javascript:
            opened.page.goto(path.as_uri())
            return opened
        return opened.load(path)

    yield open_it
    for context in contexts:
        context.close()
