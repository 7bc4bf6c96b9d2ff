"""Find: hits at every zoom, and names in the legend."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.traces import make_trace, partition_trace, pipeline_trace


def _search(reader, text):
    reader.search(text)
    reader.page.locator(".gsl-search input").press("Enter") if text else None
    reader.settle()
    return reader.text("found"), reader.text("problem")


def test_the_name_of_a_stream_finds_its_spans_where_no_span_has_it(read):
    reader = read(make_trace([("worker_05", "gemm", 0, 10), ("copy", "h2d", 20, 30), ("h2d", "gemm", 40, 50)]))
    assert _search(reader, "worker_05")[0] == "1 of 1"
    assert reader.pinned() == ["gemm", 0]
    # THEN a span's name goes first
    assert _search(reader, "h2d")[0] == "1 of 1"
    assert reader.pinned() == ["h2d", 20]


def test_a_hit_among_many_is_marked_in_its_bin(read):
    spans = [("a", "needle" if k == 70_000 else "hay", 100 * k, 100 * k + 90) for k in range(100_000)]
    reader = read(make_trace(spans))
    assert _marked(reader) == 0
    _search(reader, "needle")
    reader.js("(w.fit(), w.set('pinned', null))")
    reader.settle()
    marked = _marked(reader)
    assert 4 <= marked <= 8
    at = reader.js("[w.pxAt(7e6), w.frame.left]")
    place = reader.js("w.painted.items.first.findIndex((first, i) => first <= 70000 && 70000 <= w.painted.items.last[i])")
    assert place >= 0
    assert reader.js("w.painted.items.last[argument] > w.painted.items.first[argument]", place)
    assert at[0] > at[1]
    reader.js("w.setRange(6_999_000, 7_001_500)")
    reader.settle()
    assert _marked(reader) > 20
    _search(reader, "")
    assert _marked(reader) == 0


def _marked(reader):
    """Return how many columns of px of the first lane have the colour of hits."""
    box = reader.js(
        "[w.frame.left, w.lanesTop(), w.frame.right - w.frame.left, w.painted.segments[0].bottom - w.lanesTop() + 1]"
    )
    accent = [int(reader.js("v.theme.accent")[place : place + 2], 16) for place in (1, 3, 5)]
    return int((np.abs(reader.pixels(box)[..., :3] - accent).sum(axis=2) < 6).any(axis=0).sum())


def test_the_box_is_longer_while_it_is_written_in_and_nothing_moves(read):
    reader = read(pipeline_trace(), width=1200)
    around = """[...document.querySelectorAll('.gsl-bar button, .gsl-figure')].filter(part => part.offsetParent)
      .map(part => part.getBoundingClientRect()).map(({x, y, width, height}) => [x, y, width, height])"""
    before, wide = reader.js(around), reader.box("search")[2]
    reader.press("/")
    assert reader.box("search")[2] == pytest.approx(wide + 100, abs=1)
    assert reader.js(around) == before


def test_a_search_moves_nothing(read):
    for width in (1200, 390):
        reader = read(pipeline_trace(), width=width, height=1_800)
        reader.page.locator(".gsl-search input").focus()
        boxes = """[...document.querySelectorAll('.gsl-bar button:not(.gsl-step), .gsl-search, .gsl-search input, .gsl-figure')]
          .filter(part => part.offsetParent).map(part => part.getBoundingClientRect())
          .map(({x, y, width, height}) => [x, y, width, height])"""
        before = reader.js(boxes)
        for text in ("filter", "foo:bar", "nothing at all", "kind:range >0ns", ""):
            _search(reader, text)
            assert reader.js(boxes) == before, text


def test_a_search_is_kept_by_a_view(read):
    reader = read(partition_trace())
    _search(reader, "gemm")
    assert reader.js("w.kept.get('search').read()") == "gemm"
    other = read(partition_trace())
    assert other.js("w.kept.get('search').read()") is None
    other.js("w.kept.get('search').write('gemm')")
    other.settle()
    assert other.text("found").endswith(" found")
    other.js("w.kept.get('search').write(null)")
    assert other.js("w.matches") is None


def test_the_names_are_in_the_sheet_of_the_legend_thousands_of_them_too(read):
    spans = [("a", f"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN_{k}x" * 3, 10 * k, 10 * k + 5) for k in range(3_000)]
    reader = read(make_trace(spans))
    assert reader.page.locator(".gsl-more").inner_text() == "3,000 names"
    reader.page.locator(".gsl-more").click()
    reader.settle()
    assert reader.page.locator(".gsl-all .gsl-chip[data-entry^=hiddenNames]").count() == 3_000
    reader.page.locator(".gsl-all .gsl-chip[data-entry^=hiddenNames]").nth(7).click()
    reader.settle()
    assert reader.drawn_count() == 2_999
