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
        self.settle()
        return self

    def settle(self):
        """Let the pending animation frames run."""
        self.page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        )

    def view(self, expression):
        """Evaluate a JavaScript expression of the viewer's view `v` and its store `s`."""
        return self.page.evaluate(f"() => {{ const v = gslViewer.view, s = v.store; return {expression} }}")


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
