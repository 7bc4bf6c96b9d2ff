"""Browser windows that tests lend each other: a page that has drawn before draws the next one in half the time."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager

from tests.helpers.pages import clear

OUTSIDE = (-10, -10)
"""Where the pointer is when a test gets its window."""
DEFAULT_MEDIA = {"color_scheme": "light", "forced_colors": "none", "reduced_motion": "no-preference"}
"""What a window can change at any time, so that it needs no window of its own."""


class Heard:
    """A page, and everything that it said, asked for or popped up while a test had it."""

    def __init__(self, page):
        self.page = page
        self.errors, self.requests, self.dialogs = [], [], []
        self._listeners = {
            "console": lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None,
            "pageerror": lambda error: self.errors.append(str(error)),
            "request": lambda request: self.requests.append(request.url),
            "dialog": lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def stop(self):
        """Hear no more: another test gets the page."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)


class Windows:
    """The windows of one browser. Those that were asked for with the same options are used again, one test after another."""

    def __init__(self, browser):
        self._browser, self._free = browser, defaultdict(list)
        self._is_doubted = False

    @contextmanager
    def lending(self):
        """Lend a function that opens a window as a `Heard`, and take all of them back in the end.

        What a test changes beyond the window's own properties (prototypes, `navigator`) needs `own=True`: its document is
        left for good.
        """
        lent = []
        self._is_doubted = False

        def lend(kind, *, width, height, own=False, **options):
            media = DEFAULT_MEDIA | {name: options.pop(name) for name in DEFAULT_MEDIA.keys() & options.keys()}
            if options.get("device_scale_factor") == 1:
                del options["device_scale_factor"]
            key = (own, repr(sorted(options.items())))
            page = self._free[key].pop() if self._free[key] else self._browser.new_context(**options).new_page()
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(**media)
            lent.append((key, kind(page)))
            return lent[-1][1]

        yield lend
        for key, heard in lent:
            heard.stop()
            if not heard.page.is_closed():
                heard.page.mouse.move(*OUTSIDE)
                heard.page.goto("about:blank") if key[0] or self._is_doubted else clear(heard.page)
                self._free[key].append(heard.page)

    def doubt(self):
        """Let no test draw in a document of one that failed: nobody knows what it left there."""
        self._is_doubted = True
