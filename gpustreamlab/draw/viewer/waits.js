// What a span waited for, and what waited for it: arrows know places, which are looked up as spans here.

import { isSpan } from "./facts.js"
import { laneOf, laneText, nameOf } from "./names.js"
import { makeButton, makeNode } from "./nodes.js"
import { formatCount, formatNs } from "./units.js"

const SHOWN_WAITS = 20
const WAIT_ENDS = {
  for: { row: "row1", time: "x1", place: "place1", otherRow: "row0", otherTime: "x0", otherPlace: "place0" },
  by: { row: "row0", time: "x0", place: "place0", otherRow: "row1", otherTime: "x1", otherPlace: "place1" },
}

/**
 * The waits of a span: what it waited "for", or what waits for it ("by"), as {row, index, gapNs}.
 *
 * `gapNs` is from the end of the one to the start of the other. `index` is -1 where the span is hidden, or gone.
 */
function waitsOf(view, { row: code, index }, side) {
  const { store: { edges }, store } = view, ends = WAIT_ENDS[side], row = store.row(code)
  const own = side === "for" ? row.start[index] : row.end[index]
  const found = []
  for (let i = 0; i < edges.length; i += 1) {
    if (edges[ends.row][i] !== code || edges[ends.time][i] !== own || !isAtPlace(row, index, edges[ends.place][i])) continue
    const other = edges[ends.otherRow][i], time = edges[ends.otherTime][i], place = edges[ends.otherPlace][i]
    const at = side === "for" ? spanEndingAt(store.row(other), time, place) : spanStartingAt(store.row(other), time, place)
    if (!found.some(wait => wait.row === other && wait.index === at)) found.push({ row: other, index: at, gapNs: edges.x1[i] - edges.x0[i] })
  }
  // What held it longest comes first: of what it waited for, that which ended last; of what waits, that which went on first.
  return found.sort((a, b) => a.gapNs - b.gapNs)
}

/** The call that launched work, or what a call launched, as {row, index, gapNs}; `index` is -1 where it is hidden, or gone. */
function launchesOf({ store }, { row: code, index }) {
  const { launches } = store, row = store.row(code), own = row.start[index], found = []
  for (let i = 0; i < launches.length; i += 1) {
    for (const [side, { row: at, time, place, otherRow, otherTime, otherPlace }] of [["from", WAIT_ENDS.for], ["to", WAIT_ENDS.by]]) {
      if (launches[at][i] !== code || launches[time][i] !== own || !isAtPlace(row, index, launches[place][i])) continue
      const other = launches[otherRow][i]
      found.push({ row: other, index: spanStartingAt(store.row(other), launches[otherTime][i], launches[otherPlace][i]), gapNs: launches.x1[i] - launches.x0[i], side })
    }
  }
  return found
}

/** Whether an arrow that begins or ends when a span does is its own: it says the place of its span where that is known. */
function isAtPlace(row, index, place) {
  return place < 0 || row.place[index] === place || Boolean(row.countOrNull && row.countOrNull[index] > 1)
}

function launchText(view, { row: code, index, gapNs, side }) {
  const row = view.store.row(code), name = index < 0 ? "a span that is not shown" : nameOf(view, row.name[index])
  return `${name} on ${laneText(laneOf(view, code))} · ${side === "from" ? "called" : "started"} ${formatNs(Math.abs(gapNs))} ${side === "from" ? "before this started" : "after this was called"}`
}

function launchNodes(view, hit) {
  const found = launchesOf(view, hit)
  return [["from", "Launched by"], ["to", "Launched"]].flatMap(([side, title]) => {
    const own = found.filter(launch => launch.side === side)
    if (!own.length) return []
    const items = own.slice(0, SHOWN_WAITS).map(launch => makeNode("li", {}, spanLink(view, launch, launchText(view, launch))))
    if (own.length > SHOWN_WAITS) items.push(makeNode("li", { text: `+ ${formatCount(own.length - SHOWN_WAITS)} more` }))
    return [makeNode("h4", { text: title }), makeNode("ol", { class: "gsl-inside" }, ...items)]
  })
}

/** The span that ends at a time and has a place in the trace, or -1. */
export function spanEndingAt(row, time, place = -1) {
  const last = row.indexAt(time)
  for (let index = row.length ? row.firstEndingFrom(time) : 0; index <= last; index += 1) {
    if (row.end[index] === time && isAtPlace(row, index, place)) return index
  }
  return -1
}

/** The span that starts at a time and has a place in the trace, or -1. */
export function spanStartingAt(row, time, place = -1) {
  for (let index = row.length ? row.firstFrom(time) : 0; index < row.length && row.start[index] === time; index += 1) {
    if (isAtPlace(row, index, place)) return index
  }
  return -1
}

/** A wait in words: "filter on compute, 200 µs before this starts". */
function waitText(view, { row: code, index, gapNs }, side) {
  const row = view.store.row(code), name = index < 0 ? "a span that is not shown" : nameOf(view, row.name[index])
  return `${name} on ${laneText(laneOf(view, code))} · ${gapText(gapNs, side)}`
}

function gapText(gapNs, side) {
  if (gapNs === 0) return side === "for" ? "ended as this started" : "started as this ended"
  const place = (gapNs > 0) === (side === "for") ? "before" : "after"
  return side === "for" ? `ended ${formatNs(Math.abs(gapNs))} ${place} this started` : `started ${formatNs(Math.abs(gapNs))} ${place} this ended`
}

/** The waits of a hit as pairs of label and texts, to be copied with its facts. */
export function waitFacts(view, hit) {
  if (!isSpan(hit)) return []
  const launches = launchesOf(view, hit).map(launch => [launch.side === "from" ? "launched by" : "launched", launchText(view, launch)])
  return [...launches, ...["for", "by"].flatMap(side => waitsOf(view, hit, side).map(wait => [`waited ${side}`, waitText(view, wait, side)]))]
}

/** The waits of a hit as lists of links, each of which pins the other span. */
export function waitNodes(view, hit) {
  if (!isSpan(hit)) return []
  return [...launchNodes(view, hit), ...["for", "by"].flatMap(side => {
    const waits = waitsOf(view, hit, side)
    if (!waits.length) return []
    const items = waits.slice(0, SHOWN_WAITS).map(wait => makeNode("li", {}, waitNode(view, wait, side)))
    if (waits.length > SHOWN_WAITS) items.push(makeNode("li", { text: `+ ${formatCount(waits.length - SHOWN_WAITS)} more` }))
    return [makeNode("h4", { text: `Waited ${side}` }), makeNode("ol", { class: "gsl-inside" }, ...items)]
  })]
}

const waitNode = (view, wait, side) => spanLink(view, wait, waitText(view, wait, side))

/** A link to a span, which pins it; plain text where it is not shown. */
function spanLink(view, wait, text) {
  if (wait.index < 0) return makeNode("span", { class: "gsl-gone", text, dir: "auto" })
  // Its index moves when late spans come before it.
  const starts = view.store.row(wait.row).start[wait.index], place = view.store.row(wait.row).place[wait.index]
  const go = () => {
    const index = view.store.indexOf(wait.row, starts, place)
    if (index >= 0) view.show(wait.row, index)
  }
  return makeButton(text, { label: `Go to ${text}`, class: "gsl-link", dir: "auto", onclick: go })
}
