"""Measures in a live page whether what is on it can be read and pressed: by the document, and by what canvases paint.

Four sorts of faults: texts that overlap each other; contrast that is too low against the pixels that are really behind (of
texts 4.5, of large ones and of marks 3, as WCAG 2.2 has it); texts that are clipped; and controls that have no name or no role,
or are smaller than 24 px. A text that ends with an ellipsis is clipped, unless its tip has more of it.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import NamedTuple

from tests.helpers.reader import SETTLED
from tests.helpers.windows import OUTSIDE

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
LISTEN = f"(() => {{ {SCRIPT}\nlisten() }})()"
MEASURE = f"argument => {{ {SCRIPT}\nreturn measure(argument) }}"
MOST_TIPS = 8
"""Texts with an ellipsis whose tips are read, of each picture."""

TIPS = """() => {
  const shown = [...document.querySelectorAll(".gsl-tip, [role=tooltip]")].filter(e => e.checkVisibility())
  return [...shown.map(e => e.textContent), ...[...document.querySelectorAll(":hover")].map(e => e.title)].join(" ")
}"""
"""What is told of the place under the pointer."""


class Finding(NamedTuple):
    """One fault of what is on the screen."""

    fault: str
    """overlap, contrast, contrast of a mark, clipped, no name, no role or small."""
    text: str
    """The text or the control, shortened."""
    more: str
    """The figure, or what it collides with."""


def listen_to(page):
    """Hear what canvases paint, from the next document of a page on."""
    page.add_init_script(LISTEN)


def findings(page, root="body", *, tips=True):
    """Return all faults of what is in the window now, each once, in the order in which they were found.

    Parameters
    ----------
    page
        A page that `listen_to` was called for, before it was loaded.
    root
        Selector of the part that is looked at.
    tips
        Whether the tips of texts with an ellipsis are read, which moves the pointer.
    """
    picture = base64.b64encode(page.screenshot(animations="disabled", caret="initial")).decode()
    seen = page.evaluate(MEASURE, {"picture": picture, "root": root})
    assert seen["counted"], f"{root} shows no text at all"
    found = [Finding(*fault) for fault in seen["found"]]
    shortened = {text: (x, y) for text, x, y in seen["cut"]}
    for text, (x, y) in list(shortened.items())[:MOST_TIPS] if tips else ():
        page.mouse.move(x, y)
        page.evaluate(SETTLED)
        told = page.evaluate(TIPS)
        begin = text.removesuffix("…").rstrip()
        if not any(told[place + len(begin) :].strip() for place in range(len(told)) if told.startswith(begin, place)):
            found.append(Finding("clipped", text, "and its tip does not tell the rest"))
    if shortened and tips:
        page.mouse.move(*OUTSIDE)
    return list(dict.fromkeys(found))
