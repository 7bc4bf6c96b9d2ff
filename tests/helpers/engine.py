"""The viewer's engine alone in a page, and spans to put into it."""

from __future__ import annotations

import base64
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpustreamlab.draw import WORK_DEFAULTS, SpanColumns, pack_columns
from gpustreamlab.draw import _html as viewer

FOLDER = Path(viewer.__file__).parent / "viewer"
ORIGIN = "http://localhost/"
MODULES = ("arrays.js", "busy.js", "card.js", "columns.js", "lod.js", "store.js")
BELOW = ("rows.js",)
"""What these import: the engine knows no picture."""

HELPERS = r"""
const bytesOf = text => Uint8Array.from(atob(text), sign => sign.charCodeAt(0))
const ITEM_COLUMNS = ["first", "last", "left", "right", "count", "busy"]
const ROW_FIELDS = ["start", "end", "name", "kind", "thread", "partition", "queueing", "place"]
const workOf = row => Object.fromEntries(E.WORK_COLUMNS.map(
  name => [name, Array.from({length: row.length}, (_, index) => row.work(name, index))]))
const list = (values, length) => Array.from({length}, (_, index) => values[index])
const each = (row, value) => Array.from({length: row.length}, (_, index) => value(index))
const rowOf = row => ({...Object.fromEntries(ROW_FIELDS.map(name => [name, list(row[name], row.length)])),
  count: each(row, index => row.countAt(index)), busy: each(row, index => row.busyAt(index))})
const edgesOf = edges => Object.fromEntries(["x0", "row0", "x1", "row1"].map(name => [name, list(edges[name], edges.length)]))
const stateOf = store => ({
  rows: store.rows.map((_, code) => rowOf(store.row(code))), edges: edgesOf(store.edges),
  firstNs: store.firstNs, lastNs: store.lastNs, length: store.length,
  spanCount: store.spanCount, evictedCount: store.evictedCount})
const itemsOf = (store, code, x0, x1, bin) => {
  const out = new E.LodItems(2)
  E.decimate(store, code, x0, x1, bin, out)
  return Object.fromEntries(ITEM_COLUMNS.map(name => [name, list(out[name], out.length)]))
}
window.make = async (packed, rows, options = {}) => {
  const store = new E.SpanStore(options)
  if (rows) store.setRows(rows)
  for (const [manifest, text] of packed) store.append(await E.readBatch(manifest, bytesOf(text)))
  return store
}
Object.assign(window, {bytesOf, stateOf, itemsOf, rowOf, workOf})
"""


@contextmanager
def engine_page(chromium):
    """Lend a page into which the engine's modules are imported as they stand in the sources."""
    page = chromium.new_page()
    errors, loaded = [], set()
    page.on("pageerror", lambda error: errors.append(str(error)))

    def serve(route):
        name = route.request.url.removeprefix(ORIGIN)
        if not name:
            return route.fulfill(body="<!DOCTYPE html>", content_type="text/html")
        loaded.add(name)
        # Given the path, Playwright would read the file in a thread that stays.
        return route.fulfill(body=(FOLDER / name).read_bytes(), content_type="text/javascript")

    page.route(f"{ORIGIN}**", serve)
    page.goto(ORIGIN)
    page.evaluate(
        """async names => {
          const modules = await Promise.all(names.map(name => import(`/${name}`)))
          window.E = Object.assign({}, ...modules)
        }""",
        MODULES,
    )
    assert loaded == {*MODULES, *BELOW}
    page.evaluate(f"() => {{ {HELPERS} }}")
    yield page
    page.close()
    assert errors == []


def make_columns(row, start_ns, end_ns, **more):
    row, start_ns, end_ns = (np.asarray(column, np.int64) for column in (row, start_ns, end_ns))
    order = np.lexsort((more.get("place", np.arange(len(row))), end_ns, start_ns, row))
    zeros = np.zeros(len(row), np.int64)
    columns = dict.fromkeys(("name", "kind", "thread", "partition", "queueing_ns"), zeros) | {"place": np.arange(len(row))}
    columns |= {"row": row, "start_ns": start_ns, "end_ns": end_ns} | {
        name: np.asarray(column) for name, column in more.items()
    }
    return SpanColumns(
        **{name: column if name in {"edges", "edge_kind"} else column[order] for name, column in columns.items()}
    )


def pack(columns, level=None):
    manifest, blob = pack_columns(columns, level=level)
    return [manifest, base64.b64encode(blob).decode()]


def take(columns, rows):
    fields = ("row", "start_ns", "end_ns", "name", "kind", "thread", "partition", "queueing_ns", "place", "count", "busy_ns")
    return make_columns(**{name: getattr(columns, name)[rows] for name in (*fields, *WORK_DEFAULTS)})


def random_columns(seed, count=400, *, rows=4, overlaps=False, lateness=0, merged=False):
    """Spans of some rows with gaps and lengths of 0, in order of arrival, which is up to `lateness` places late."""
    rng = np.random.default_rng(seed)
    row = rng.integers(0, rows, count)
    length = rng.choice([0, 0, 1, 3, 8, 40, 700], count)
    gap = rng.choice([0, 1, 5, 30], count)
    start = rng.integers(0, 4_000, count) if overlaps else np.zeros(count, np.int64)
    for code in range(rows if not overlaps else 0):
        own = row == code
        start[own] = np.cumsum(gap[own] + length[own]) - length[own]
    arrival = np.argsort(start + rng.integers(0, lateness + 1, count), kind="stable")
    place = np.empty(count, np.int64)
    place[arrival] = np.arange(count)
    more = {"name": rng.integers(0, 300, count), "kind": rng.integers(0, 7, count), "thread": rng.integers(-1, 3, count)}
    more |= {"partition": rng.integers(0, 3, count), "queueing_ns": rng.integers(-9, 70_000, count)}
    if merged:
        more |= {"count": rng.integers(1, 400, count), "busy_ns": (length * rng.random(count)).astype(np.int64)}
    return make_columns(row, start, start + length, place=place, **more)
