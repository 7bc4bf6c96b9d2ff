// The table of totals: by name, stream or partition, of the whole trace, of what is in view or of a selection. Its columns sort it,
// its rows filter the picture.

import { formatShare, laneText } from "./facts.js"
import { groupNames, isAlone, nameLook, showOnly } from "./legend.js"
import { makeButton, makeNode, makeSwatch, throttled } from "./nodes.js"
import { totals } from "./totals.js"
import { formatCount, formatNs } from "./units.js"
import { FILTER_KEYS } from "./view.js"

const TABLE_ROWS = 200 // More are counted, not shown: nobody reads them, and the browser would wait for them.
const TOTALS_EVERY_MS = 500
const KINDS = [["name", "Names"], ["stream", "Streams"], ["partition", "Partitions"], ["pair", "Overlap"]]
const SCOPES = [["all", "Whole trace"], ["view", "In view"], ["selection", "Selection"]]
const SHARE = { key: "share", text: "of window", format: formatShare }
const COLUMNS = [
  { key: "calls", text: "Calls", format: formatCount }, { key: "total", text: "Total", format: formatNs }, { key: "mean", text: "Mean", format: formatNs },
  { key: "max", text: "Max", format: formatNs }, SHARE,
]
const PAIR_COLUMNS = [{ key: "total", text: "Both", format: formatNs }, { ...SHARE, text: "of the shorter" }]
const AT_FIRST = { isOpen: false, by: "name", scope: "view", sort: "total", isUp: false }

export function addTotals(viewer) {
  const { view } = viewer
  const panel = viewer.drawer.add("selection", "Totals")
  const state = { ...AT_FIRST, selection: null }, commands = viewer.commands
  const draw = isAsked => showTotals(viewer, panel, state, change, isAsked)
  const change = changes => {
    const wasOpen = state.isOpen
    Object.assign(state, changes)
    draw(!wasOpen)
  }
  const open = () => change({ isOpen: true, scope: !viewer.drawer.isOpen && viewer.drawer.isWhole ? "all" : state.scope === "selection" && !view.selection ? "view" : state.scope })
  const button = makeButton("Totals", { label: "Totals by name, stream or partition; Shift and drag selects a part", key: "T", onclick: () => commands.sumView() })
  viewer.tools.append(button)
  const later = throttled(viewer, () => { if (state.isOpen) draw() }, TOTALS_EVERY_MS)
  const looked = property => {
    if (view.selection !== state.selection && !commands.isSelecting()) {
      state.selection = view.selection
      change(view.selection ? { isOpen: true, scope: "selection" } : state.scope === "selection" ? { ...AT_FIRST, by: state.by } : {})
    } else if (state.isOpen && FILTER_KEYS.has(property)) draw()
  }
  commands.closeTotals = () => {
    if (!state.isOpen && !view.selection) return false
    change({ isOpen: false })
    if (view.selection) view.set("selection", null)
    return true
  }
  commands.sumView = () => commands.closeTotals() || open()
  view.keep("totals", () => (state.isOpen ? { by: state.by, scope: state.scope, sort: state.sort, isUp: state.isUp } : null), kept => change({ ...AT_FIRST, ...kept, isOpen: Boolean(kept) }))
  // What is behind "now" does not change any more, so its totals need no refresh.
  const isDone = () => state.scope !== "all" && windowOf(view, state)?.end < state.reachNs
  view.on("look", looked)
  view.on("range", () => state.scope === "view" && later())
  view.on("data", () => view.isPaused || isDone() || later())
}

/** The window {start, end, lanes} of which the totals are, in whole ns, and its `of`, the time of which shares are; null where there is none. */
function windowOf(view, { scope }) {
  // Not the margins, in which nothing can be, nor what threads of the host called before and after: shares would be less than they are.
  const all = view.streamExtent(), lanes = new Set(view.tables.lanes.keys()), isAll = scope === "all" || (view.x0 <= all.start && view.x1 >= all.end)
  const inView = { start: Math.max(view.x0, all.start), end: Math.min(view.x1, all.end), lanes }
  const found = scope === "selection" ? view.selection : isAll ? { ...view.extent(), lanes } : inView
  const start = Math.floor(found?.start), end = Math.ceil(found?.end), own = { start, end, lanes: found?.lanes, isAll: found?.lanes === lanes && isAll }
  return end > start ? { ...own, of: own.isAll ? all : own } : null
}

function showTotals(viewer, panel, state, change, isAsked) {
  const { view, drawer } = viewer, own = state.isOpen ? windowOf(view, state) : null
  if (!own) return drawer.fill(panel, state.isOpen ? [makeNode("p", { text: "Nothing ran here." })] : [], isAsked)
  state.reachNs = view.store.lastNs
  const scrolled = drawer.element.scrollTop, focused = panel.contains(document.activeElement) && document.activeElement.dataset.entry
  const table = totalTable(view, state, rowsOf(view, state.by, totals(view.store, view.tables, own), own), change)
  const note = view.store.filter ? [makeNode("p", { class: "gsl-note", text: "What is hidden counts too." })] : []
  drawer.fill(panel, [head(viewer, panel, state, own, change), table, ...note], isAsked)
  if (!isAsked) drawer.element.scrollTop = scrolled
  if (focused) [...panel.querySelectorAll("[data-entry]")].find(({ dataset }) => dataset.entry === focused)?.focus({ preventScroll: true })
}

function head(viewer, panel, state, own, change) {
  const { view } = viewer, { start, end } = own.of, { lanes } = own, length = formatNs(end - start), isSelected = state.scope === "selection"
  const title = isSelected ? `Selected ${length}` : `Totals of ${length}`, facts = `${formatNs(start)} to ${formatNs(end)}, ${lanesText(view, lanes)}`
  const choice = (label, options, key) => makeNode("span", { class: "gsl-choice", role: "group", "aria-label": label }, ...options.map(([value, text]) =>
    makeButton(text, { "aria-pressed": String(state[key] === value), "data-entry": `${key} ${value}`, onclick: () => change({ [key]: value }) })))
  const kinds = KINDS.filter(([value]) => value !== "partition" || view.tables.bands.length)
  if (panel.dataset.told !== title) viewer.announce(`${title}, ${facts}`)
  panel.dataset.told = title
  return makeNode("header", {}, makeNode("h3", { text: title }), choice("Totals by", kinds, "by"), choice("Totals of", SCOPES.filter(([value]) => value !== "selection" || view.selection), "scope"),
    makeNode("p", { text: facts }),
    isSelected ? makeButton("Zoom here", { key: "F", onclick: () => view.setRange(start, end) }) : null,
    makeButton(isSelected ? "Clear" : "Close", { key: "Escape", onclick: () => { viewer.commands.closeTotals(); viewer.focus() } }))
}

/** "2 streams and 1 host thread": of the lanes that are selected, those on which anything ran, and the threads. */
function lanesText(view, lanes) {
  const streams = view.usedStreams().filter(lane => lanes.has(lane)).length, threads = [...lanes].filter(lane => view.tables.lanes[lane]?.host).length
  const counted = [[streams, "stream"], [threads, "host thread"]].filter(([count], place) => count || (!place && !threads))
  return counted.map(([count, word]) => `${formatCount(count)} ${word}${count === 1 ? "" : "s"}`).join(" and ")
}

/** The rows, with what a click on each shows alone. */
function rowsOf(view, by, found, { of: { start, end }, lanes }) {
  const { tables } = view, lane = code => laneText(tables.lanes[code])
  const row = (text, { count, busy, max }, entry, style) => ({ text, style, entry, calls: count, total: busy, mean: count ? busy / count : NaN, max, share: busy / (end - start) })
  const all = [...({ stream: tables.lanes, name: tables.names, partition: tables.partitions }[by] ?? []).keys()] // Once: names may be many.
  const entry = (group, codes) => ({ group, codes, all })
  if (by === "pair") return found.pairs.filter(({ both_ns: both }) => both).map(({ a, b, both_ns: total, share }) => ({ text: `${lane(a)} + ${lane(b)}`, total, share }))
  if (by === "stream") return found.lanes.filter(({ lane: code }) => lanes.has(code)).map(own => row(lane(own.lane), own, entry("hiddenStreams", [own.lane])))
  if (by === "name") return groupNames(view, found.names).map(own => row(own.text, own, entry("hiddenNames", own.codes), nameLook(view, own.codes)))
  const same = code => [...tables.partitions.keys()].filter(other => tables.partitions[other].text === tables.partitions[code]?.text)
  return found.partitions.map(own => {
    const { text = "", band = -1 } = tables.partitions[own.code] ?? {}
    return row(text, own, entry("hiddenPartitions", same(own.code)), tables.bands[band])
  })
}

function totalTable(view, { by, sort, isUp }, rows, change) {
  const columns = by === "pair" ? PAIR_COLUMNS : COLUMNS, caption = KINDS.find(([value]) => value === by)[1], word = view.tables.header.busy_word
  const key = sort === "text" || columns.some(column => column.key === sort) ? sort : "total", sign = isUp ? 1 : -1
  rows.sort((a, b) => sign * (key === "text" ? a.text.localeCompare(b.text) : (a[key] || 0) - (b[key] || 0)))
  const about = {
    name: "All spans of the name added up: names of nested ranges overlap, and so do streams, so shares may add up to more than 100%",
    stream: `Time in which the stream was ${word}: what overlaps counts once. Calls: spans that count, which are kernels, copies and fills, and ranges where no kernels were captured`,
    partition: "Time in which anything used the partition's SMs: what overlaps counts once, and copies use none",
    pair: `Time in which both were ${word}, and its share of the time of the stream that has less of it`,
  }[by]
  const headOf = ({ key: own, text }) => makeNode("th", { scope: "col", role: "columnheader", title: about, "aria-sort": own === key ? (isUp ? "ascending" : "descending") : null }, makeButton(text, {
    label: `Sort by ${text}`, "data-entry": `sort ${own}`, onclick: () => change({ sort: own, isUp: own === key ? !isUp : own === "text" }),
  }))
  const body = makeNode("tbody", { role: "rowgroup" }, ...rows.slice(0, TABLE_ROWS).map(row => {
    const isOn = Boolean(row.entry) && isAlone(view, row.entry), swatch = row.style?.fill ? makeSwatch(row.style) : null
    const name = row.entry ? makeNode("button", { type: "button", "aria-pressed": String(isOn), "data-entry": `row ${row.text}`, text: row.text }) : row.text
    const click = row.entry && { class: "gsl-row", onclick: () => showOnly(view, row.entry) }
    return makeNode("tr", { role: "row", ...click }, makeNode("th", { scope: "row", role: "rowheader", title: row.text, dir: "auto" }, swatch, name), ...columns.map(column => makeNode("td", { role: "cell", text: Number.isNaN(row[column.key]) ? "-" : column.format(row[column.key]) })))
  }))
  const left = rows.length - TABLE_ROWS, rest = !rows.length ? "none" : left > 0 ? `+ ${formatCount(left)} more` : ""
  if (rest) body.append(makeNode("tr", {}, makeNode("td", { colspan: columns.length + 1, text: rest })))
  const heads = makeNode("thead", { role: "rowgroup" }, makeNode("tr", { role: "row" }, ...[{ key: "text", text: caption }, ...columns].map(headOf)))
  return makeNode("div", { class: "gsl-table" }, makeNode("table", { role: "table", title: about }, makeNode("caption", { class: "gsl-out", text: caption }), heads, body))
}
