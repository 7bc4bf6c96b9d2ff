// What the colours mean; a click hides what it stands for.

import { colourBy, hueCount, laneHue } from "./brush.js"
import { callLabel, laneText, nameOf } from "./facts.js"
import { makeButton, makeNode, makeSwatch, Sheet, throttled } from "./nodes.js"
import { isBlocked, isStray } from "./rows.js"
import { formatCount, formatNs } from "./units.js"
import { FILTER_KEYS } from "./view.js"

const LEGEND_HUES = 14
const LEAST_HUES = 6
const LEGEND_EVERY_MS = 2000
const KIND_WORDS = { host: "call", annotation: "NVTX" }
const WAITING_KINDS = new Set(["range", "annotation", "wait"]) // Outlines; what they hold is drawn on its own, where it is known.

/** Add the legend: what the colours are, kinds, calls; all names by the time that they take behind its button. */
export function addLegend(viewer) {
  const { view } = viewer
  const chips = makeNode("div", { class: "gsl-legend", role: "group", "aria-label": "Legend: click hides, Alt+click shows only this" })
  const sheet = new Sheet(viewer, "all", "All of the legend", { back: () => chips.querySelector(".gsl-more") })
  viewer.bar.append(chips)
  const state = { times: new NameTimes(), drawn: "", left: 0, entries: [], hues: [], nameCount: 0 }
  const recount = () => {
    state.times.update(view.store, view.tables)
    view.strayCount = state.times.strayCount
    draw()
  }
  const draw = () => drawLegend(viewer, { chips, sheet, state })
  const again = throttled(viewer, recount, LEGEND_EVERY_MS)
  view.on("data", what => what === "tables" ? recount() : again()) // New partitions give the bars other hues at once.
  view.on("look", property => {
    if (!FILTER_KEYS.has(property) && property !== "colour" && property !== "hasHatches") return
    draw()
    if (sheet.isOpen) fillSheet(view, sheet, state) // Else it is filled when it opens: no name moves away from under the pointer.
  })
  let wide = 0
  const observer = new ResizeObserver(([{ contentRect }]) => {
    // Only the width matters, and the height is what is changed here.
    if (contentRect.width === wide) return
    wide = contentRect.width
    fitLegend(chips, state)
  })
  recount()
  observer.observe(chips)
  viewer.atEnd(() => observer.disconnect())
}

/** What there is to tell, by what it is. */
function allEntries(view, { times }) {
  const kinds = kindEntries(view, times), calls = callEntries(view, times)
  return {
    name: nameEntries(view, times), partition: partitionEntries(view, times), stream: streamEntries(view), calls,
    kinds: calls.length ? kinds.filter(({ text }) => text !== KIND_WORDS.host) : kinds,
  }
}

function drawLegend(viewer, { chips, sheet, state }) {
  const { view } = viewer, by = colourBy(view), found = allEntries(view, state), { name: names, kinds, calls } = found, all = found[by]
  const told = [all.slice(0, LEGEND_HUES), all.length, names.length, kinds, calls, view.strayCount, [...FILTER_KEYS].map(group => [...view[group]]), colourNode(view).textContent]
  // The lists of all codes are the same for all entries: they need not be compared.
  const drawn = JSON.stringify(told, (key, value) => key === "all" ? undefined : value)
  if (drawn === state.drawn) return fitLegend(chips, state)
  state.drawn = drawn
  // Below its button, so that the picture stays in view.
  const openAll = ({ currentTarget }) => {
    const { left, bottom } = currentTarget.getBoundingClientRect()
    fillSheet(view, sheet, state)
    sheet.open({ left, top: bottom + 4 })
  }
  const focused = document.activeElement?.dataset?.entry
  const more = makeButton("", { label: "Show all of the legend", "aria-haspopup": "dialog", class: "gsl-more", onclick: openAll })
  const hues = all.slice(0, LEGEND_HUES).map(entry => chip(view, entry)), others = [...chipsOf(view, "kind", kinds), ...chipsOf(view, "calls", calls)]
  Object.assign(state, { left: all.length - hues.length, nameCount: by === "name" ? 0 : names.length, hues, entries: [...hues.slice(1, LEAST_HUES), ...others, ...hues.slice(LEAST_HUES)] })
  chips.replaceChildren(
    ...(all.length ? [colourNode(view)] : []), ...hues, more, ...others,
    ...(view.strayCount ? [strayChip(viewer, view.strayCount)] : []),
    ...(view.store.filter ? [makeButton("Show all", { class: "gsl-show-all", onclick: () => FILTER_KEYS.forEach(group => view[group].size && view.set(group, new Set())) })] : []),
  )
  fitLegend(chips, state)
  if (focused && !sheet.isOpen) chips.querySelector(`[data-entry="${focused}"]`)?.focus({ preventScroll: true })
}

// A caption and its first entry are one: no line begins between them.
function chipsOf(view, of, entries) {
  const [first, ...others] = entries.map(entry => chip(view, entry))
  return first ? [makeNode("span", { class: "gsl-lead" }, makeNode("span", { class: "gsl-of", text: of }), first), ...others] : []
}

/** Keep the legend in one line: the last of its entries are left out; the button for the rest says how many those of the hue are. */
function fitLegend(chips, { entries, hues, left, nameCount }) {
  const more = chips.querySelector(".gsl-more"), last = [...entries]
  entries.forEach(entry => { entry.hidden = false })
  // Without height meanwhile: a second line could make the page scroll, and the scroll bar take the room that is measured.
  Object.assign(chips.style, { height: "0", overflow: "clip" })
  for (;;) {
    const missing = left + hues.filter(({ hidden }) => hidden).length
    const words = [missing ? `+ ${formatCount(missing)} more` : "", nameCount ? `${formatCount(nameCount)} name${nameCount === 1 ? "" : "s"}` : ""].filter(Boolean)
    more.hidden = !words.length
    more.textContent = words.join(" · ")
    const tops = [...chips.children].filter(child => !child.hidden).map(child => child.offsetTop + child.offsetHeight / 2)
    if (!last.length || Math.max(...tops) - Math.min(...tops) < 12) break
    last.pop().hidden = true
  }
  Object.assign(chips.style, { height: "", overflow: "" })
}

function fillSheet(view, sheet, state) {
  const scrolled = sheet.element.querySelector(".gsl-list")?.scrollTop ?? 0, focused = document.activeElement?.dataset?.entry
  const { name, kinds, calls, partition, stream } = allEntries(view, state)
  const list = makeNode("div", { class: "gsl-list" }, ...[name, kinds, calls, partition, stream].flat().map(entry => chip(view, entry)))
  sheet.fill(`${formatCount(name.length)} names`, list)
  list.scrollTop = scrolled
  if (focused && sheet.isOpen) list.querySelector(`[data-entry="${focused}"]`)?.focus({ preventScroll: true })
}

/** What colour tells now. */
function colourNode(view) {
  const by = colourBy(view), isMixed = by === "partition" && view.tables.lanes.some(lane => lane.has_own_hue) // On a card without partitions.
  return makeNode("span", { class: "gsl-of", text: `colour: ${by}${isMixed ? " or stream" : ""}` })
}

/** What the legend says of each name: `codes` are what a click puts into the set `group` of the view, `all` those of the others too. */
function nameEntries(view, times) {
  const all = times.order().filter(code => !callLabel(view, code)), groups = groupNames(view, all.map(code => ({ name: code, busy: times.names.get(code) })))
  view.nameRows = rowsOfNames(times)
  return groups.map(({ text, codes, busy }) => (
    { group: "hiddenNames", codes: codes.sort((a, b) => a - b), all, text, time: formatNs(busy), ...nameLook(view, codes) }
  ))
}

/** Streams that worked, as they stand in the picture. */
function streamEntries(view) {
  const { lanes, palette } = view.tables, all = view.usedStreams()
  return all.map(code => ({ group: "hiddenStreams", codes: [code], all, text: laneText(lanes[code]), fill: palette[laneHue(view.tables, "stream", code)][0] }))
}

/** By name: the codes of the rows it is in. */
function rowsOfNames({ rows }) {
  const found = new Map()
  rows.forEach(({ names }, code) => names.forEach((_, name) => found.has(name) ? found.get(name).push(code) : found.set(name, [code])))
  return found
}

/** How the bars of names look that are one in the legend: grey where they have several hues. */
function nameLook(view, codes) {
  const { store, tables } = view, [own, tint, hatch] = tables.name_styles[codes[0]] ?? [0, 0], by = colourBy(view)
  const rows = codes.flatMap(code => view.nameRows.get(code) ?? []), hues = new Set(rows.map(code => laneHue(tables, by, tables.rows[code].lane)))
  const isPale = rows.every(code => tables.rows[code].pale), isRange = rows.every(code => tables.kinds[store.ownRow(code).kind[0]] === "range")
  const hue = by === "name" || callLabel(view, codes[0]) ? own : hues.size === 1 ? [...hues][0] : hueCount(tables)
  return { fill: tables.palette[hue][tint], hatch, shape: isPale ? "hollow" : isRange ? "open" : "" }
}

/** Names that differ by a number as one, with what they have together, the longest first. */
function groupNames(view, names) {
  const groups = new Map()
  for (const { name: code, busy } of names) {
    const own = nameOf(view, code), key = nameGroup(own), found = groups.get(key)
    if (found) Object.assign(found, { text: key, busy: found.busy + busy }).codes.push(code)
    else groups.set(key, { text: own, codes: [code], busy })
  }
  return [...groups.values()].sort((a, b) => b.busy - a.busy)
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
function callEntries(view, times) {
  const all = times.order().filter(code => callLabel(view, code))
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

function toggleEntry(view, { group, codes }) {
  const hidden = new Set(view[group]), isHidden = codes.every(code => hidden.has(code))
  for (const code of codes) hidden[isHidden ? "delete" : "add"](code)
  view.set(group, hidden)
}

/** Whether all others are hidden. */
function isAlone(view, { group, codes, all }) {
  const own = new Set(codes)
  return view[group].size > 0 && all.every(code => view[group].has(code) !== own.has(code))
}

/** Hide all others; where that is so already, show them again. */
function showOnly(view, entry) {
  const own = new Set(entry.codes)
  view.set(entry.group, new Set(isAlone(view, entry) ? [] : entry.all.filter(code => !own.has(code))))
}

// How much time each name takes, kept up to date from what was appended since: a live session may hold millions of spans.
class NameTimes {
  constructor() {
    this.names = new Map() // By name code: how long its spans took, hidden or not.
    this.kinds = new Set()
    this.partitions = new Set() // Codes of those in which anything ran.
    this.strayCount = 0 // Work that left its stream.
    this.hasBlocked = false // Whether a call that is made for something else blocked the host.
    this.rows = []
  }

  /** Take in what is new; a row in which spans came in between, or went, is counted anew. */
  update(store, { rows, lanes, names: { length } }) {
    const sums = new Float64Array(length)
    this.rows.length = rows.length
    for (const code of rows.keys()) {
      const row = store.ownRow(code), known = this.rows[code]
      if (!known || known.edits !== row.edits || known.length > row.length) {
        this.rows[code] = { edits: row.edits, length: 0, strays: 0, hasBlocked: false, names: new Map(), kinds: new Set(), partitions: new Set() }
      }
      countSpans(row, this.rows[code], sums)
    }
    this.names.clear()
    for (const { names } of this.rows) for (const [code, busy] of names) addTime(this.names, code, busy)
    this.kinds = new Set(this.rows.flatMap(({ kinds }) => [...kinds]))
    this.partitions = new Set(this.rows.flatMap(({ partitions }, code) => lanes[rows[code].lane].host ? [] : [...partitions]))
    this.strayCount = this.rows.reduce((sum, { strays }) => sum + strays, 0)
    this.hasBlocked = this.rows.some(({ hasBlocked }) => hasBlocked)
  }

  /** Codes of the names that there are, those that take most time first. */
  order() { return [...this.names.keys()].sort((a, b) => this.names.get(b) - this.names.get(a) || a - b) }
}

/** `sums` has a 0 for each name: an array adds up in a tenth of the time of a map. */
function countSpans(row, known, sums) {
  const { name, kind, partition, length, hasWork } = row, found = new Set()
  for (let i = known.length; i < length; i += 1) {
    const code = name[i]
    if (!sums[code]) found.add(code)
    sums[code] += row.busyAt(i)
    if (kind[i] !== kind[i - 1]) known.kinds.add(kind[i]) // Mostly they are the same: a set is asked a million times less.
    if (partition[i] !== partition[i - 1]) known.partitions.add(partition[i])
    if (hasWork && isStray(row, i)) known.strays += 1
    if (hasWork && isBlocked(row, i)) known.hasBlocked = true
  }
  for (const code of found) {
    addTime(known.names, code, sums[code])
    sums[code] = 0
  }
  known.length = length
}

const addTime = (sums, code, busy) => sums.set(code, (sums.get(code) ?? 0) + busy)
