"""Pages of traces, each built once a worker: many tests look at the same trace."""

from __future__ import annotations

import pickle
from collections import OrderedDict

from gpustreamlab.draw._html import timeline_page

MOST_PAGES = 40
"""How many pages are kept; the least used goes first."""

_pages: OrderedDict[bytes, str] = OrderedDict()


def page_of(trace):
    """Return a trace's page; equal traces share one."""
    key = pickle.dumps(trace)
    page = _pages.pop(key, None) or timeline_page(trace)
    _pages[key] = page
    if len(_pages) > MOST_PAGES:
        _pages.popitem(last=False)
    return page
