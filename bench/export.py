"""How long it takes to write a timeline as one offline page, and how large that is, beside an empty Bokeh page (the floor)."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from bokeh.core.validation import silence
from bokeh.core.validation.warnings import MISSING_RENDERERS
from bokeh.embed import file_html
from bokeh.plotting import figure
from bokeh.resources import INLINE

from bench._common import median_seconds, report
from bench._traces import make_trace
from gpustreamlab.timeline import Timeline

RANGE_COUNTS = (1_000, 10_000, 100_000)
ROUNDS = 5


def main(argv: list[str] | None = None) -> None:
    cases: list[tuple[str, Callable[[Path], object]]] = [("empty Bokeh page, as Bokeh writes it", write_empty_bokeh)]
    cases += [(f"{count:,} ranges", Timeline(make_trace(count)).save) for count in RANGE_COUNTS]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        for name, write in cases:
            seconds = median_seconds(lambda write=write: write(path), rounds=ROUNDS)
            rows.append({"page": name, "s": round(seconds, 3), "MB": round(path.stat().st_size / 1e6, 2)})
    report(f"Export as one offline HTML file (median of {ROUNDS})", rows, argv)


def write_empty_bokeh(path: Path) -> None:
    """Write what Bokeh itself writes for a figure with nothing in it."""
    silence(MISSING_RENDERERS)
    path.write_text(file_html(figure(), INLINE, "empty"), encoding="utf-8")


if __name__ == "__main__":
    main()
