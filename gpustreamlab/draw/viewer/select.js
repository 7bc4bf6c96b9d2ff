// A window of time and lanes, and what happened in it: totals by lane and by name, and which lanes overlapped.

import { copyText } from "./copy.js"
import { formatShare } from "./facts.js"
import { groupNames, nameLook } from "./legend.js"
import { laneText } from "./names.js"
import { announce, commandsOf, listen, makeButton, makeNode, makeSwatch, partOf, rootOf, throttled, toolsOf } from "./nodes.js"
import { figurePoint } from "./tips.js"
import { totals } from "./totals.js"
import { formatCount, formatNs } from "./units.js"
import { FILTER_KEYS } from "./view.js"

const SELECT_MIN_PX = 3
const TABLE_ROWS = 200 // More are counted, not shown: nobody reads them, and the browser would wait for them.
const TOTALS_EVERY_MS = 1000
// Heads of the columns, with what is meant: a share without its whole says nothing.
const OF_WINDOW = ["of window", "Share of the window's length"]
const streamHeads = word => [["Stream"], ["Time", `Time in which the stream was ${word}: what overlaps counts once`], OF_WINDOW, ["Spans", "Spans that count: kernels, copies and fills, and ranges where no kernels were captured"]]
const SUM_ABOUT = "All spans of the name added up: names of nested ranges overlap, and so do streams, so shares may add up to more than 100%"
const NAME_HEADS = [["Name"], ["Time", SUM_ABOUT], ["of window", SUM_ABOUT], ["Spans"]]
const pairHeads = word => [["Streams"], ["Both", `Time in which both were ${word}`], ["of the shorter", "Share of the time of the stream that has less of it"]]

/** Select with Shift and drag, or as the menu says; totals stand in a panel. */
export function addSelect(viewer) {
  const { view } = viewer
  const panel = makeNode("section", { class: "gsl-panel gsl-selection", "aria-label": "Totals of the selection", hidden: true })
  partOf(viewer, "panels").append(panel)
  const button = makeButton("Totals", { label: "Totals and overlap of what is in view; Shift and drag selects a part", key: "T", onclick: () => sumView() })
  toolsOf(viewer).append(button)
  const state = { shown: null, isDragging: false }

  function sumView() {
    // Not the margins, in which nothing can be: shares of the window would be less than they are.
    const extent = view.streamExtent(), start = Math.max(view.x0, extent.start), end = Math.min(view.x1, extent.end)
    if (end > start) view.set("selection", { start, end, lanes: new Set(view.tables.lanes.keys()) })
  }
  function refresh(property) {
    if (state.isDragging) return
    if (view.selection === state.shown && !(FILTER_KEYS.has(property) && view.selection)) return
    state.shown = view.selection
    showTotals(viewer, panel)
  }
  const again = throttled(() => { if (view.selection && !state.isDragging && !view.isPaused) showTotals(viewer, panel) }, TOTALS_EVERY_MS)
  const commands = commandsOf(viewer)
  commands.sumView = sumView
  commands.unselect = () => { view.set("selection", null); refresh() }
  const offs = [
    dragSelect(viewer, state, refresh),
    view.on("look", refresh),
    // What is behind "now" does not change any more, so its totals need no refresh.
    view.on("data", () => { if (view.selection && view.selection.end >= totalsReach(panel)) again() }),
  ]
  return () => {
    offs.forEach(off => off())
    again.stop()
    panel.remove()
    button.remove()
  }
}

/** Shift and drag draws the window, Alt and drag the one to zoom to; what moves the picture does not get to see it. */
function dragSelect(viewer, state, done) {
  const { view } = viewer
  const figure = partOf(viewer, "figure")
  let from = null, isZoom = false
  const place = event => {
    const point = figurePoint(viewer, { x: event.clientX, y: event.clientY })
    if (Math.abs(point.x - from.x) >= SELECT_MIN_PX) view.set("selection", selectionBetween(view, from, point))
  }
  const take = event => { event.preventDefault(); event.stopImmediatePropagation() }
  const end = event => {
    if (!from) return
    take(event)
    from = null
    state.isDragging = false
    const { selection } = view
    if (!isZoom) return done()
    view.set("selection", null)
    if (selection) view.setRange(selection.start, selection.end)
  }
  const offs = [
    listen(figure, "pointerdown", event => {
      const point = figurePoint(viewer, { x: event.clientX, y: event.clientY })
      const does = event.shiftKey ? "select" : event.altKey ? "zoom" : event.pointerType === "mouse" ? view.dragDoes : "move"
      if (does === "move" || commandsOf(viewer).isMeasuring?.() || event.button || !isInParts(view, point)) return
      take(event)
      rootOf(viewer).focus({ preventScroll: true })
      commandsOf(viewer).hideTip?.()
      from = point
      isZoom = does === "zoom"
      state.isDragging = true
      figure.setPointerCapture(event.pointerId)
    }, true),
    listen(figure, "pointermove", event => { if (from) { take(event); place(event) } }, true),
    listen(figure, "pointerup", end, true),
    listen(figure, "pointercancel", end, true),
  ]
  return () => offs.forEach(off => off())
}

/** Whether a place in the figure is over the lanes or over the strips below them. */
function isInParts({ frame: { left, right, top, bottom } }, point) {
  return point.x >= left && point.x <= right && point.y >= top && point.y < bottom
}

/** The window and lanes between two corners, of which the first is where the drag began. */
function selectionBetween(view, a, b) {
  const within = x => Math.max(view.frame.left, Math.min(view.frame.right, x))
  const [start, end] = [a.x, b.x].map(x => view.timeAt(within(x))).sort((p, q) => p - q)
  return { start, end, lanes: lanesBetween(view, a, b) }
}

/** The lanes between two corners, without those below the fold; all of them for a drag over a strip, or beside all lanes. */
function lanesBetween(view, a, b) {
  if (a.y >= view.frame.top + view.lanesPx) return new Set(view.tables.lanes.keys())
  const [top, bottom] = [a.y, b.y].map(y => Math.min(y, view.frame.top + view.lanesPx)).sort((p, q) => p - q)
  const lanes = new Set()
  for (const code of view.visibleLanes()) {
    const lane = view.tables.lanes[code]
    if (view.yAt(lane.bottom) > top && view.yAt(lane.top) <= bottom) lanes.add(code)
  }
  return lanes.size ? lanes : new Set(view.tables.lanes.keys())
}

/** Up to when the totals in the panel are known. */
function totalsReach(panel) {
  return Number(panel.dataset.reachNs ?? -Infinity)
}

function showTotals(viewer, panel) {
  const { view } = viewer, { selection } = view
  panel.hidden = !selection
  if (!selection) {
    panel.replaceChildren()
    return
  }
  panel.dataset.reachNs = view.store.lastNs
  const scrolled = [...panel.querySelectorAll(".gsl-table")].map(table => table.scrollTop)
  const found = totals(view.store, view.tables, selection)
  const tables = makeNode("div", { class: "gsl-tables" }, ...totalTables(view, selection, found))
  const note = view.store.filter ? [makeNode("p", { class: "gsl-note", text: "What the legend hides counts too." })] : []
  panel.replaceChildren(selectionHead(viewer, panel), tables, ...note)
  panel.querySelectorAll(".gsl-table").forEach((table, k) => { table.scrollTop = scrolled[k] ?? 0 })
}

function selectionHead(viewer, panel) {
  const { view } = viewer, { start, end, lanes } = view.selection
  const facts = `${formatNs(start)} to ${formatNs(end)}, ${lanesText(view, lanes)}`
  const zoom = makeButton("Zoom here", { key: "F", onclick: () => view.setRange(start, end) })
  const copy = makeButton("Copy as DataFrame filter", {
    label: "Copy a pandas expression for these spans", onclick: () => copyText(dataFrameFilter(view.tables, view.selection), copy, panel),
  })
  const clear = makeButton("Clear", { key: "Escape", onclick: () => { commandsOf(viewer).unselect(); rootOf(viewer).focus({ preventScroll: true }) } })
  announce(viewer, `Selected ${formatNs(end - start)}, ${facts}`)
  return makeNode("header", {}, makeNode("h3", { text: `Selected ${formatNs(end - start)}` }), makeNode("p", { text: facts }), zoom, copy, clear)
}

/** "2 streams and 1 host thread": of the lanes that are selected, those on which anything ran, and the threads. */
function lanesText(view, lanes) {
  const counted = (count, word) => `${formatCount(count)} ${word}${count === 1 ? "" : "s"}`
  const streams = view.usedStreams().filter(lane => lanes.has(lane)).length
  const threads = [...lanes].filter(lane => view.tables.lanes[lane]?.host).length
  const parts = [...(streams || !threads ? [counted(streams, "stream")] : []), ...(threads ? [counted(threads, "host thread")] : [])]
  return parts.join(" and ")
}

function totalTables(view, selection, found) {
  const { tables } = view, window = selection.end - selection.start, word = tables.header.busy_word
  const lane = code => laneText(tables.lanes[code])
  const lanes = found.lanes.filter(({ lane: code }) => selection.lanes.has(code)).map(({ lane: code, busy, count }) =>
    [[lane(code)], formatNs(busy), formatShare(busy / window), formatCount(count)])
  const names = groupNames(view, found.names.filter(({ count }) => count)).map(({ text, codes, busy, count }) =>
    [[text, nameLook(view, codes)], formatNs(busy), formatShare(busy / window), formatCount(count)])
  const pairs = found.pairs.filter(({ both_ns: both }) => both).sort((p, q) => q.both_ns - p.both_ns).map(({ a, b, both_ns: both, share }) =>
    [[`${lane(a)} + ${lane(b)}`], formatNs(both), formatShare(share)])
  return [
    totalTable("Streams", streamHeads(word), lanes, `Time in which the stream was ${word}, and its share of the window`),
    totalTable("Names", NAME_HEADS, names, "Time of the name's spans within the window, added up, and how that compares with the window"),
    totalTable("Overlap", pairHeads(word), pairs, pairsAbout(selection, tables)),
  ]
}

/** What the pairs are of: those who select one stream ask what ran beside it. */
function pairsAbout({ lanes }, tables) {
  const beside = lanes.size < tables.lanes.length ? ", each selected stream with every stream" : ""
  return `Time in which both were ${tables.header.busy_word}${beside}, and its share of the shorter of both times`
}

function totalTable(caption, heads, rows, about) {
  const table = makeNode("table", { title: about }, makeNode("caption", { text: caption }))
  table.append(makeNode("thead", {}, makeNode("tr", {}, ...heads.map(([text, title]) => makeNode("th", { scope: "col", text, title })))))
  const body = makeNode("tbody")
  for (const [[text, style], ...cells] of rows.slice(0, TABLE_ROWS)) {
    const head = makeNode("th", { scope: "row", title: text, dir: "auto" }, style?.fill ? makeSwatch(style) : null, text)
    body.append(makeNode("tr", {}, head, ...cells.map(cell => makeNode("td", { text: cell }))))
  }
  if (!rows.length) body.append(makeNode("tr", {}, makeNode("td", { colspan: heads.length, text: "none" })))
  const left = rows.length - TABLE_ROWS
  if (left > 0) body.append(makeNode("tr", {}, makeNode("td", { colspan: heads.length, text: `+ ${formatCount(left)} more` })))
  table.append(body)
  return makeNode("div", { class: "gsl-table", tabindex: "0", role: "group", "aria-label": caption }, table)
}

/** The pandas expression that gives the selected spans: those that touch the window, by the trace's own exact integers. */
export function dataFrameFilter(tables, { start, end, lanes }) {
  const from = BigInt(tables.zero_ns) + BigInt(Math.floor(start)), to = BigInt(tables.zero_ns) + BigInt(Math.ceil(end))
  const terms = [`(t.end_ns >= ${from})`, `(t.start_ns <= ${to})`]
  // JSON's strings are Python's, also with quotes, controls and half surrogates in them.
  if (lanes.size < tables.lanes.length) terms.push(`t.lane.isin([${[...lanes].map(code => JSON.stringify(tables.lanes[code].name)).join(", ")}])`)
  return `lab.trace.to_pandas().loc[lambda t: ${terms.join(" & ")}]`
}
