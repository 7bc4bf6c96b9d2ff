"""Pages of traces, each built once a worker: many tests look at the same trace."""

from __future__ import annotations

import pickle
from collections import OrderedDict

from gpustreamlab.draw import timeline_page
from gpustreamlab.draw._html import bokeh_text, pack_text, viewer_packed

MOST_PAGES = 40
"""How many pages are kept; the least used goes first."""

# BokehJS costs most of a page's time, and runs faster once it is warm. So a document that has drawn a page draws the next one,
# too: `document.open` takes all listeners and nodes away, but no scripts; all else that a test left is undone here.
MAKE_REDRAWABLE = """() => {
  const describe = key => Object.getOwnPropertyDescriptor(window, key)
  const known = new Map(Reflect.ownKeys(window).map(key => [key, describe(key)]))
  for (const name of ["gslViewer", "gslViewerB"]) known.delete(name)
  const isAsBefore = key => ["value", "get", "set"].every(part => known.get(key)[part] === describe(key)[part])
  const clear = () => {
    for (const viewer of [window.gslViewer, window.gslViewerB]) viewer?.destroy()
    for (let id = setTimeout(() => 0); id > 0; id--) clearTimeout(id)
    for (let id = requestAnimationFrame(() => 0); id > 0; id--) cancelAnimationFrame(id)
    for (const key of Reflect.ownKeys(window)) {
      if (key === "gslRedraw" || key === "gslClear") continue
      if (!known.has(key)) delete window[key]
      else if (!isAsBefore(key)) Object.defineProperty(window, key, known.get(key))
    }
    document.open()
    document.close()
    history.replaceState(null, "", location.pathname) // The address has what the last page showed.
  }
  Object.freeze(window.gpustreamlab)
  window.gslClear = () => { clear(); return true }
  window.gslRedraw = text => { document.open(); document.write(text); document.close() }
}"""

_pages: OrderedDict[bytes, str] = OrderedDict()


def page_of(trace):
    """Return a trace's page; equal traces share one."""
    key = pickle.dumps(trace)
    page = _pages.pop(key, None) or timeline_page(trace)
    _pages[key] = page
    if len(_pages) > MOST_PAGES:
        _pages.popitem(last=False)
    return page


def wait_until_drawn(page, timeout_ms=30_000):
    """Wait until a page or a frame says that it has drawn: Playwright itself looks for it up to half a second later."""
    page.wait_for_function("document.documentElement.dataset.drawn === 'yes'", polling=10, timeout=timeout_ms)


def draw(page, text, path):
    """Draw a page in one of the browser: in its document, where that has drawn one before, or from a file at the path."""
    is_warm = page.evaluate("'gslRedraw' in window")
    if is_warm:
        for is_wide in (False, True):
            for code in (bokeh_text(is_wide=is_wide), viewer_packed(is_wide=is_wide)):
                text = text.replace(code, pack_text("", is_wide=is_wide))
        page.evaluate("text => gslRedraw(text)", text)
    else:
        path.write_text(text, encoding="utf-8")
        page.goto(path.as_uri())
    wait_until_drawn(page)
    if not is_warm:
        page.evaluate(MAKE_REDRAWABLE)


def clear(page):
    """Take away what a test left in a page, which stays warm if `draw` drew in it."""
    if not page.evaluate("'gslClear' in window && gslClear()"):
        page.goto("about:blank")
