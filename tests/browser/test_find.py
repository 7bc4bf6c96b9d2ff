"""Find: hits at every zoom, and the table of totals that sorts and filters the picture."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.helpers.kernel_traces import kernel_trace
from tests.helpers.traces import make_trace, partition_trace, pipeline_trace, random_trace


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


def test_totals_of_thousands_of_names_come_at_once_and_their_names_are_read(read):
    reader = read(
        make_trace(
            [("a", f"nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN_{k}" * 3, 10 * k, 10 * k + 5) for k in range(12_000)]
        )
    )
    took_ms = reader.js("(begin => { v.commands.sumView(); return performance.now() - begin })(performance.now())")
    assert took_ms < 2_500
    reader.settle()
    widths = reader.js(
        """[...document.querySelectorAll('.gsl-table tbody th')].slice(0, 20).map(cell => [cell, cell.querySelector('button')]
        .map(node => node.getBoundingClientRect())).map(([cell, name]) => [name.width, cell.right - name.right])"""
    )
    assert all(wide > 100 and beside >= 0 for wide, beside in widths)


def test_a_hit_among_many_is_marked_in_its_bin_and_in_the_overview(read):
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


def test_ticks_in_the_overview_are_one_a_px_at_most(read):
    reader = read(random_trace(20_000, 6))
    ticks = """(() => { const found = new Set(), ctx = {fillRect: (x, y, width) => width === 2 && found.add(x)}
      const map = {view: w, viewer: v, left: 0, width: 500,
        pxAt: ns => ns / w.extent().end * 500, timeAt: px => px / 500 * w.extent().end}
      gpustreamlab.paintHitTicks(ctx, map, 30); return found.size })()"""
    assert reader.js(ticks) == 0
    _search(reader, ">0ns")
    every = reader.js(ticks)
    assert 300 < every <= 500
    _search(reader, reader.js("w.tables.names[0]"))
    assert 0 < reader.js(ticks) < every
    expected = reader.js(
        """new Set(s.rows.flatMap(row => [...row.start].slice(0, row.length).filter((_, i) => w.matches[row.name[i]])
        .map(ns => Math.floor(ns / w.extent().end * 500)))).size"""
    )
    assert abs(reader.js(ticks) - expected) <= 1


def test_the_box_is_longer_while_it_is_written_in_and_nothing_moves(read):
    reader = read(pipeline_trace(), width=1200)
    around = """[...document.querySelectorAll('.gsl-bar button, .gsl-figure')].filter(part => part.offsetParent)
      .map(part => part.getBoundingClientRect()).map(({x, y, width, height}) => [x, y, width, height])"""
    before, wide = reader.js(around), reader.box("search")[2]
    reader.press("/")
    assert reader.box("search")[2] == pytest.approx(wide + 100, abs=1)
    assert reader.js(around) == before


def test_hits_are_marked_in_the_line_of_the_whole_session_whose_time_it_is(read):
    reader = read(random_trace(20_000, 6))
    _search(reader, ">0ns")
    edges = """(() => { const said = [], ctx = CanvasRenderingContext2D.prototype, plain = ctx.fillRect
      ctx.fillRect = function (x, y, width, height) {
        if (width === 2 && height === 10) said.push(y + height)
        plain.call(this, x, y, width, height)
      }
      v.minimap.paint()
      ctx.fillRect = plain
      return [said.length, Math.max(...said), v.minimap.canvas.clientHeight] })()"""
    reader.js("w.setRange(0, w.extent().end / 3)")
    reader.settle()
    count, lowest, bottom = reader.js(edges)
    assert count > 100
    assert lowest <= bottom


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


def test_search_and_table_are_kept_by_a_view(read):
    reader = read(partition_trace())
    _search(reader, "gemm")
    reader.js("v.commands.sumView()")
    reader.page.get_by_role("group", name="Totals by").get_by_role("button", name="Streams").click()
    reader.page.get_by_role("button", name="Sort by Calls").click()
    kept = reader.js("Object.fromEntries(['search', 'totals'].map(key => [key, w.kept.get(key).read()]))")
    assert kept == {"search": "gemm", "totals": {"by": "stream", "scope": "view", "sort": "calls", "isUp": False}}
    other = read(partition_trace())
    assert other.js("['search', 'totals'].map(key => w.kept.get(key).read())") == [None, None]
    other.js("Object.entries(argument).forEach(([key, value]) => w.kept.get(key).write(value))", kept)
    other.settle()
    assert other.js("Object.fromEntries(['search', 'totals'].map(key => [key, w.kept.get(key).read()]))") == kept
    assert other.page.locator("th[aria-sort=descending]").inner_text().startswith("Calls")
    assert other.text("found").endswith(" found")
    other.js("['search', 'totals'].forEach(key => w.kept.get(key).write(null))")
    assert other.text("selection") is None
    assert other.js("w.matches") is None


# ---- the table


def _open(reader, kind, scope="Whole trace"):
    reader.js("v.commands.sumView()")
    reader.page.get_by_role("group", name="Totals of").get_by_role("button", name=scope).click()
    reader.page.get_by_role("group", name="Totals by").get_by_role("button", name=kind).click()


def _cells(reader):
    return reader.js(
        "[...document.querySelectorAll('.gsl-selection tbody tr')].map(row => [...row.cells].map(cell => cell.textContent))"
    )


WRITTEN = """argument.map(([label, calls, total, mean, max, share]) => [label, gpustreamlab.formatCount(calls),
  ...[total, mean, max].map(gpustreamlab.formatNs), share])"""


@pytest.mark.parametrize("make", [partition_trace, kernel_trace, lambda: kernel_trace(windows=((0, 2_000_000),))])
def test_the_table_says_what_the_data_frame_says(read, make):
    trace = make()
    reader = read(trace)
    for part, by in itertools.product((None, (1_234_567, 3_456_789)), ("name", "stream", "partition")):
        check_table(reader, trace, by, part)
        reader.js("v.commands.closeTotals()")


def check_table(reader, trace, by, part):
    zero_ns = int(reader.js("w.tables.zero_ns"))
    if part:
        reader.js("w.setRange(...argument)", part)
    _open(reader, {"name": "Names", "stream": "Streams", "partition": "Partitions"}[by], "In view" if part else "Whole trace")
    window = [zero_ns + at for at in part] if part else []
    found = trace.totals(by, *window)
    frame = found.to_pandas()
    rows = sorted(_cells(reader))
    labels = (
        reader.js("Object.fromEntries(w.tables.lanes.map(lane => [lane.name, lane.label || lane.name]))")
        if by == "stream"
        else {}
    )
    wanted = reader.js(
        WRITTEN,
        [
            [labels.get(row[0], row[0]) or "whole card", row.calls, row.total_ns, row.mean_ns, row.max_ns, row.share]
            for row in frame.itertuples(index=False)
        ],
    )
    if by != "partition":  # which says how many SMs it had, too
        assert [row[:5] for row in rows] == sorted(row[:5] for row in wanted)
    assert sorted(row[1:5] for row in rows) == sorted(row[1:5] for row in wanted)
    assert len(rows) > 1
    # To the ns, not only as it is written.
    exact = reader.js(
        """(() => { const [start, end] = argument ?? [w.extent().start, w.extent().end], all = w.streamExtent()
        const found = gpustreamlab.totals(s, w.tables, {start, end}), span = argument ? end - start : all.end - all.start
        return {stream: found.lanes, partition: found.partitions, name: found.names, span} })()""",
        list(part) if part else None,
    )
    assert exact["span"] == found.window_ns
    if by == "name":
        assert sum(row["busy"] for row in exact["name"]) == frame.total_ns.sum()
        assert sum(row["count"] for row in exact["name"]) == frame.calls.sum()
    else:
        keys = ("count", "busy", "max")
        assert sorted(tuple(row[key] for key in keys) for row in exact[by]) == sorted(
            zip(frame.calls, frame.total_ns, frame.max_ns, strict=True)
        )
    assert frame.share.tolist() == [total / found.window_ns for total in frame.total_ns]


def test_columns_sort_and_say_so(read):
    reader = read(partition_trace())
    _open(reader, "Names")
    totals = [row[2] for row in _cells(reader)]
    sort = reader.page.get_by_role("button", name="Sort by Total")
    assert reader.page.locator("th[aria-sort]").get_attribute("aria-sort") == "descending"
    sort.click()
    assert reader.page.locator("th[aria-sort]").get_attribute("aria-sort") == "ascending"
    assert [row[2] for row in _cells(reader)] == totals[::-1]
    assert reader.page.evaluate("document.activeElement.ariaLabel") == "Sort by Total"
    reader.page.get_by_role("button", name="Sort by Names").click()
    names = [row[0] for row in _cells(reader)]
    assert names == sorted(names)
    reader.page.keyboard.press("Enter")
    assert [row[0] for row in _cells(reader)] == names[::-1]
    assert reader.page.locator("th[aria-sort]").count() == 1


@pytest.mark.parametrize(("kind", "place"), [("Names", 1), ("Streams", 0), ("Partitions", 1)])
def test_a_row_filters_the_picture_and_again_shows_all(read, kind, place):
    trace = partition_trace()
    reader = read(trace)
    _open(reader, kind)
    row = reader.page.locator(".gsl-selection tbody tr").nth(place)
    count = int(row.locator("td").first.inner_text())
    rows = _cells(reader)
    row.click()
    reader.settle()
    assert reader.drawn_count() == count < len(trace)
    assert row.locator("button").get_attribute("aria-pressed") == "true"
    # The table still has all, so that another row can be chosen.
    assert _cells(reader) == rows
    row.locator("button").press("Enter")
    reader.settle()
    assert reader.drawn_count() == len(trace)
    assert row.locator("button").get_attribute("aria-pressed") == "false"


def test_the_table_follows_the_view_or_stays_with_the_whole(read):
    reader = read(partition_trace())
    _open(reader, "Streams", "In view")
    before = _cells(reader)
    reader.js("w.setRange(2e6, 6e6)")
    reader.page.wait_for_function("document.querySelector('.gsl-selection h3').textContent === 'Totals of 4.00 ms'")
    assert _cells(reader) != before
    reader.page.get_by_role("group", name="Totals of").get_by_role("button", name="Whole trace").click()
    assert _cells(reader) == before
