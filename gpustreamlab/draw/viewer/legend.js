// What the colours mean; a click hides what it stands for.

import { colourBy, hueCount, laneHue } from "./brush.js"
import { callLabel, nameOf } from "./facts.js"
import { makeButton, makeNode, makeSwatch, Sheet, throttled } from "./nodes.js"
import { isBlocked, isStray } from "./rows.js"
import { formatCount, formatNs } from "./units.js"
import { FILTER_KEYS } from "./view.js"

const LEGEND_NAMES = 14
const LEAST_NAMES = 3
const LEGEND_EVERY_MS = 2000
const KIND_WORDS = { host: "call", annotation: "NVTX" }
const WAITING_KINDS = new Set(["range", "annotation", "wait"]) // Outlines; what they hold is drawn on its own, where it is known.

/**
 * Add the legend: names by the time that they take, kinds, partitions.
 *
 * In a live view names keep their places, and new ones come behind, so that none moves away from under the pointer; who stops
 * following gets them sorted anew.
 */
export function addLegend(viewer) {
  const { view } = viewer
  const chips = makeNode("div", { class: "gsl-legend", role: "group", "aria-label": "Legend: click hides, Alt+click shows only this" })
  const sheet = new Sheet(viewer, "all", "All of the legend", { back: () => chips.querySelector(".gsl-more") })
  viewer.bar.append(chips)
  const state = { times: new NameTimes(), height: makeNode("span", { class: "gsl-of" }), drawn: "", left: 0, entries: [], order: [] }
  const recount = () => {
    state.times.update(view.store, view.tables)
    state.order = state.times.order(view.isLive ? state.order : [])
    view.strayCount = state.times.strayCount
    draw()
  }
  const draw = () => drawLegend(viewer, { chips, sheet, state })
  const again = throttled(viewer, recount, LEGEND_EVERY_MS)
  view.on("data", what => what === "tables" ? recount() : again()) // New partitions give the bars other hues at once.
  view.on("state", () => {
    if (!view.isFollowing) state.order = []
    recount()
  })
  view.on("look", property => { if (FILTER_KEYS.has(property) || property === "colour" || property === "hasHatches") draw() })
  let wide = 0
  const observer = new ResizeObserver(([{ contentRect }]) => {
    // Only the width matters, and the height is what is changed here.
    if (contentRect.width === wide) return
    wide = contentRect.width
    fitLegend(chips, state)
  })
  viewer.onPainted(() => {
    const text = heightText(view)
    if (state.height.textContent === text) return
    state.height.textContent = text
    fitLegend(chips, state)
  })
  recount()
  observer.observe(chips)
  viewer.atEnd(() => observer.disconnect())
}

function drawLegend(viewer, { chips, sheet, state }) {
  const { view } = viewer
  const names = nameEntries(view, state), kinds = kindEntries(view, state.times), partitions = partitionEntries(view, state.times), isHue = colourBy(view) === "partition"
  const calls = callEntries(view, state)
  const shownKinds = calls.length ? kinds.filter(({ text }) => text !== KIND_WORDS.host) : kinds
  // The lists of all codes are the same for all entries: they need not be compared. Times change with each batch.
  const hidden = [...FILTER_KEYS].map(group => [...view[group]])
  const told = [names, calls, kinds, partitions, view.strayCount, hidden, colourNode(view).textContent]
  const withoutAll = (key, value) => key === "all" || key === "time" ? undefined : value
  const drawn = JSON.stringify(told, withoutAll)
  // Times alone are written into the chips that there are: one that is being clicked stays.
  if (drawn === state.drawn) {
    retime([chips, sheet.element].flatMap(place => [...place.querySelectorAll(".gsl-chip")]), names)
    fitLegend(chips, state)
    return
  }
  state.drawn = drawn
  // Below its button, so that the picture stays in view.
  const openAll = ({ currentTarget }) => { const { left, bottom } = currentTarget.getBoundingClientRect(); sheet.open({ left, top: bottom + 4 }) }
  const focused = document.activeElement?.dataset?.entry
  const more = makeButton("", { label: "Show all of the legend", "aria-haspopup": "dialog", class: "gsl-more", onclick: openAll })
  const chipsFor = entries => entries.map(entry => chip(view, entry)), hues = isHue ? chipsFor(partitions) : []
  const named = chipsFor(names.slice(0, LEGEND_NAMES)), parts = isHue ? [] : chipsOf(view, "SMs", partitions)
  const others = [...chipsOf(view, "kind", shownKinds), ...chipsOf(view, "calls", calls)]
  state.left = names.length - named.length
  state.entries = [...hues, ...named.slice(0, LEAST_NAMES), state.height, ...parts, ...others, ...named.slice(LEAST_NAMES)]
  chips.replaceChildren(
    colourNode(view), ...hues, ...named, more, ...others, ...parts, // What the hue tells comes first.
    ...(view.strayCount ? [strayChip(viewer, view.strayCount)] : []), state.height,
    ...(view.store.filter ? [makeButton("Show all", { class: "gsl-show-all", onclick: () => FILTER_KEYS.forEach(group => view[group].size && view.set(group, new Set())) })] : []),
  )
  fitLegend(chips, state)
  fillSheet(sheet, names.length, chipsFor([...names, ...shownKinds, ...calls, ...partitions]))
  if (focused) (sheet.isOpen ? sheet.element : chips).querySelector(`[data-entry="${focused}"]`)?.focus({ preventScroll: true })
}

// A caption and its first entry are one: no line begins between them.
function chipsOf(view, of, entries) {
  const [first, ...others] = entries.map(entry => chip(view, entry))
  return first ? [makeNode("span", { class: "gsl-lead" }, makeNode("span", { class: "gsl-of", text: of }), first), ...others] : []
}

/** Keep the legend in one line: the last of its entries are left out; the button for the rest says how many names are. */
function fitLegend(chips, { entries, left: unnamed }) {
  const more = chips.querySelector(".gsl-more"), last = [...entries]
  entries.forEach(entry => { entry.hidden = !entry.textContent })
  // Without height meanwhile: a second line could make the page scroll, and the scroll bar take the room that is measured.
  Object.assign(chips.style, { height: "0", overflow: "clip" })
  for (let left = unnamed; ; left += last.pop().matches(".gsl-of") ? 0 : 1) {
    more.hidden = !left
    more.textContent = `+ ${formatCount(left)} more`
    const tops = [...chips.children].filter(child => !child.hidden).map(child => child.offsetTop + child.offsetHeight / 2)
    if (!last.length || Math.max(...tops) - Math.min(...tops) < 12) break
    last.at(-1).hidden = true
  }
  Object.assign(chips.style, { height: "", overflow: "" })
}

function fillSheet(sheet, nameCount, chips) {
  const scrolled = sheet.element.querySelector(".gsl-list")?.scrollTop ?? 0
  const list = makeNode("div", { class: "gsl-list" }, ...chips)
  sheet.fill(`${formatCount(nameCount)} names`, list)
  list.scrollTop = scrolled
}

/** What the height of bars tells now, where it tells anything: it says more than that there is a bar. */
const heightText = ({ painted }) => painted?.isDense ? "height: share of time" : ""

/** What colour tells now. */
function colourNode(view) {
  const by = colourBy(view), isMixed = by === "partition" && view.tables.lanes.some(lane => lane.has_own_hue) // On a card without partitions.
  return makeNode("span", { class: "gsl-of", text: `hue: ${by}${isMixed ? " or stream" : ""}` })
}

/** What the legend says of each name: `codes` are what a click puts into the set `group` of the view, `all` those of the others too. */
function nameEntries(view, { times, order }) {
  const all = order.filter(code => !callLabel(view, code)), groups = groupNames(view, all.map(code => ({ name: code, ...times.names.get(code) })), view.isLive)
  view.nameRows = rowsOfNames(times)
  return groups.map(({ text, codes, busy }) => (
    { group: "hiddenNames", codes: codes.sort((a, b) => a - b), all, text, time: formatNs(busy), ...nameLook(view, codes) }
  ))
}

/** By name: the codes of the rows it is in. */
function rowsOfNames({ rows }) {
  const found = new Map()
  rows.forEach(({ names }, code) => names.forEach((_, name) => found.has(name) ? found.get(name).push(code) : found.set(name, [code])))
  return found
}

/** How the bars of names look that are one in the legend: grey where they have several hues. */
export function nameLook(view, codes) {
  const { store, tables } = view, [own, tint, hatch] = tables.name_styles[codes[0]] ?? [0, 0], by = colourBy(view)
  const rows = codes.flatMap(code => view.nameRows.get(code) ?? []), hues = new Set(rows.map(code => laneHue(tables, by, tables.rows[code].lane)))
  const isPale = rows.every(code => tables.rows[code].pale), isRange = rows.every(code => tables.kinds[store.ownRow(code).kind[0]] === "range")
  const hue = by === "name" || callLabel(view, codes[0]) ? own : hues.size === 1 ? [...hues][0] : hueCount(tables)
  return { fill: tables.palette[hue][tint], hatch, shape: isPale ? "hollow" : isRange ? "open" : "" }
}

/** Names that differ by a number as one, with what they have together, the longest first; a live view keeps the places that there are. */
export function groupNames(view, names, keepsPlaces = false) {
  const groups = new Map()
  for (const { name: code, busy, count, max = 0 } of names) {
    const own = nameOf(view, code), key = nameGroup(own), found = groups.get(key)
    if (found) Object.assign(found, { text: key, busy: found.busy + busy, count: found.count + count, max: Math.max(found.max, max) }).codes.push(code)
    else groups.set(key, { text: own, codes: [code], busy, count, max })
  }
  return keepsPlaces ? [...groups.values()] : [...groups.values()].sort((a, b) => b.busy - a.busy)
}

/** The name with a star for each number that stands by itself: names that differ by such a number are one; as analysis.name_group. */
function nameGroup(name) {
  // Of names of C++ only what PyTorch writes behind the name of an operator: its how many-th call it is.
  if (name.includes("<") || name.includes("::")) return name.replace(/\b(seq|op_id) = [0-9]+/g, "$1 = *")
  return name.replace(/(?<![^\s_\-#:/.=[(])[0-9]+(?![^\s_\-:/.,\])])/g, "*")
}

/** Kinds are told where there is something to tell apart. */
function kindEntries(view, { kinds }) {
  if (kinds.size < 2) return []
  const all = [...kinds].sort((a, b) => a - b), { palette, kind_hatches: hatches } = view.tables, [fill] = palette[hueCount(view.tables)]
  return all.map(code => {
    const kind = view.tables.kinds[code]
    const shape = WAITING_KINDS.has(kind) ? "hollow" : ""
    return { group: "hiddenKinds", codes: [code], all, text: KIND_WORDS[kind] ?? kind, fill, hatch: hatches[code], shape }
  })
}

/** Calls of the host by what they are for; each class stands for all of its names. */
function callEntries(view, { order, times }) {
  const all = order.filter(code => callLabel(view, code))
  // Any call may block the host: what that looks like is told also where no name stands for it.
  const isTold = ({ codes, text }) => codes.length || (text === "synchronise" && times.hasBlocked)
  const { palette, call_styles: calls } = view.tables, first = hueCount(view.tables) + 1
  return calls.map(([label, hatch, shape], place) => (
    { group: "hiddenNames", codes: all.filter(code => callLabel(view, code) === label).sort((a, b) => a - b), all, text: label, fill: palette[first + place][0], hatch, shape, isCall: true }
  )).filter(isTold)
}

/** What the red corner means; a click shows the strays alone. */
function strayChip(viewer, count) {
  const title = `${formatCount(count)} kernels, copies or fills ran on another stream than their range had selected: click to find them`
  const chip = makeButton("", { label: title, class: "gsl-chip", onclick: () => viewer.commands.searchFor("is:stray") })
  chip.append(makeNode("i", { class: "gsl-stray-sign", "aria-hidden": "true" }), makeNode("span", { class: "gsl-text", text: count === 1 ? "stray" : "strays" }), makeNode("small", { text: formatCount(count) }))
  return chip
}

/** A band of the strip stands for the partitions that had its name, one after the other; the whole card where anything ran on it. */
function partitionEntries({ tables: { bands, partitions } }, { partitions: used }) {
  const all = [...partitions.keys()]
  return bands.map(({ label, fill, hatch, letter }, band) => (
    { group: "hiddenPartitions", codes: all.filter(code => partitions[code].band === band), all, text: label, fill, hatch, letter }
  )).filter(({ codes, letter }) => codes.length && (letter || codes.some(code => used.has(code))))
}

function chip(view, entry) {
  const about = chipAbout(entry), parts = [entry.fill ? makeSwatch(entry) : null, makeNode("span", { class: "gsl-text", text: entry.text, dir: "auto" })]
  if (!entry.codes.length) return makeNode("span", { class: "gsl-chip", title: about }, ...parts)
  const isHidden = entry.codes.every(code => view[entry.group].has(code))
  const facts = { type: "button", class: "gsl-chip", title: about, "aria-label": about, "aria-pressed": String(!isHidden), "data-entry": entryKey(entry) }
  const button = makeNode("button", facts, ...parts)
  if (entry.time) button.append(makeNode("small", { text: entry.time }))
  button.addEventListener("click", event => (event.altKey || event.ctrlKey || event.metaKey ? showOnly : toggleEntry)(view, entry))
  return button
}

const entryKey = ({ group, codes, isCall }) => `${isCall ? "calls" : group}-${codes[0]}`

function chipAbout({ text, time, codes, isCall }) {
  const count = !isCall && time && codes.length > 1 ? `${formatCount(codes.length)} names, ` : ""
  return time ? `${text}, ${count}${time} in all` : text
}

function retime(chips, names) {
  const byEntry = new Map(names.map(entry => [entryKey(entry), entry]))
  for (const chip of chips) {
    const entry = byEntry.get(chip.dataset.entry), small = chip.querySelector("small")
    if (!entry || !small || small.textContent === entry.time) continue
    small.textContent = entry.time
    chip.title = chipAbout(entry)
    chip.setAttribute("aria-label", chip.title)
  }
}

function toggleEntry(view, { group, codes }) {
  const hidden = new Set(view[group]), isHidden = codes.every(code => hidden.has(code))
  for (const code of codes) hidden[isHidden ? "delete" : "add"](code)
  view.set(group, hidden)
}

/** Whether all others are hidden. */
export function isAlone(view, { group, codes, all }) {
  const own = new Set(codes)
  return view[group].size > 0 && all.every(code => view[group].has(code) !== own.has(code))
}

/** Hide all others; where that is so already, show them again. */
export function showOnly(view, entry) {
  const own = new Set(entry.codes)
  view.set(entry.group, new Set(isAlone(view, entry) ? [] : entry.all.filter(code => !own.has(code))))
}

// How much time each name takes, kept up to date from what was appended since: a live session may hold millions of spans.
class NameTimes {
  constructor() {
    this.names = new Map() // By name code: {busy, count}, of all spans, hidden or not.
    this.kinds = new Set()
    this.partitions = new Set() // Codes of those in which anything ran.
    this.strayCount = 0 // Work that left its stream.
    this.hasBlocked = false // Whether a call that is made for something else blocked the host.
    this.rows = []
  }

  /** Take in what is new; a row in which spans came in between, or went, is counted anew. */
  update(store, { rows, lanes }) {
    this.rows.length = rows.length
    for (const code of rows.keys()) {
      const row = store.ownRow(code), known = this.rows[code]
      if (!known || known.edits !== row.edits || known.length > row.length) {
        this.rows[code] = { edits: row.edits, length: 0, strays: 0, hasBlocked: false, names: new Map(), kinds: new Set(), partitions: new Set() }
      }
      countSpans(row, this.rows[code])
    }
    this.names.clear()
    for (const { names } of this.rows) for (const [code, { busy, count }] of names) addTimes(this.names, code, busy, count)
    this.kinds = new Set(this.rows.flatMap(({ kinds }) => [...kinds]))
    this.partitions = new Set(this.rows.flatMap(({ partitions }, code) => lanes[rows[code].lane].host ? [] : [...partitions]))
    this.strayCount = this.rows.reduce((sum, { strays }) => sum + strays, 0)
    this.hasBlocked = this.rows.some(({ hasBlocked }) => hasBlocked)
  }

  /** Codes of the names that there are, those that take most time first; those of `known` keep their places before new ones. */
  order(known = []) {
    const { names } = this, kept = known.filter(code => names.has(code)), isKept = new Set(kept)
    const fresh = [...names.keys()].filter(code => !isKept.has(code))
    return [...kept, ...fresh.sort((a, b) => names.get(b).busy - names.get(a).busy || a - b)]
  }
}

function countSpans(row, known) {
  const { name, kind, partition, length, hasWork } = row
  for (let i = known.length; i < length; i += 1) {
    addTimes(known.names, name[i], row.busyAt(i), 1)
    if (kind[i] !== kind[i - 1]) known.kinds.add(kind[i]) // Mostly they are the same: a set is asked a million times less.
    if (partition[i] !== partition[i - 1]) known.partitions.add(partition[i])
    if (hasWork && isStray(row, i)) known.strays += 1
    if (hasWork && isBlocked(row, i)) known.hasBlocked = true
  }
  known.length = length
}

function addTimes(sums, code, busy, count) {
  const sum = sums.get(code)
  if (!sum) sums.set(code, { busy, count })
  else { sum.busy += busy; sum.count += count }
}
