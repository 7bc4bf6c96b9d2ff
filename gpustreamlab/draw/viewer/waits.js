// What a span waited for, and what waited for it: arrows know places, which are looked up as spans here.

import { isSpan, laneOf, laneText, nameOf } from "./facts.js"
import { makeButton, makeNode } from "./nodes.js"
import { formatCount, formatNs } from "./units.js"

const SHOWN_LINKS = 20
// Columns of an arrow: of the span that it ends at, or begins at, and of the other one.
const LATE = { row: "row1", time: "x1", place: "place1", otherRow: "row0", otherTime: "x0", otherPlace: "place0" }
const EARLY = { row: "row0", time: "x0", place: "place0", otherRow: "row1", otherTime: "x1", otherPlace: "place1" }

/**
 * What arrows tie a span to, as {title, ties}: ties are {row, index, text}, `index` -1 where the other span is hidden, or gone.
 *
 * What held a span longest comes first: of what it waited for, that which ended last; of what waits, that which went on first.
 */
function tiesOf(view, hit) {
  if (!isSpan(hit)) return []
  const { store } = view, row = store.row(hit.row), start = row.start[hit.index], end = row.end[hit.index]
  const ties = (title, arrows, ends, own, find, gapText) => {
    const found = new Map()
    for (let i = 0; i < arrows.length; i += 1) {
      if (arrows[ends.row][i] !== hit.row || arrows[ends.time][i] !== own) continue
      if (!isAtPlace(row, hit.index, arrows[ends.place][i])) continue
      const other = arrows[ends.otherRow][i]
      const index = find(store.row(other), arrows[ends.otherTime][i], arrows[ends.otherPlace][i])
      found.set(`${other} ${index}`, { row: other, index, gapNs: arrows.x1[i] - arrows.x0[i], need: arrows === store.edges ? needText(view, arrows, i) : "" })
    }
    const sorted = [...found.values()].sort((a, b) => a.gapNs - b.gapNs)
    return { title, ties: sorted.map(tie => ({ ...tie, text: [tieText(view, tie, gapText(tie.gapNs)), tie.need].filter(Boolean).join(" · ") })) }
  }
  const length = gapNs => formatNs(Math.abs(gapNs))
  const side = (gapNs, usual, odd) => gapNs ? `${length(gapNs)} ${gapNs > 0 ? usual : odd}` : "as"
  return [
    ties("Launched by", store.launches, LATE, start, spanStartingAt, gapNs => `called ${length(gapNs)} before this started`),
    ties("Launched", store.launches, EARLY, start, spanStartingAt, gapNs => `started ${length(gapNs)} after this was called`),
    ties("Waited for", store.edges, LATE, start, spanEndingAt, gapNs => `ended ${side(gapNs, "before", "after")} this started`),
    ties("Waited by", store.edges, EARLY, end, spanStartingAt, gapNs => `started ${side(gapNs, "after", "before")} this ended`),
  ]
}

/** Whether data need a wait, and which; nothing where nobody has looked. */
const needText = ({ why }, { place0, place1 }, i) => why?.needs ? why.needs[`${place0[i]} ${place1[i]}`] ?? "whether data need it is not known" : ""

/** Whether an arrow that begins or ends when a span does is its own: it says the place of its span where that is known. */
const isAtPlace = (row, index, place) => place < 0 || row.place[index] === place || row.countAt(index) > 1

function tieText(view, { row: code, index }, gapText) {
  const name = index < 0 ? "a span that is not shown" : nameOf(view, view.store.row(code).name[index])
  return `${name} on ${laneText(laneOf(view, code))} · ${gapText}`
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
export const spanStartingAt = (row, time, place = -1) => row.findStart(time, index => isAtPlace(row, index, place))

/** The waits of a hit as pairs of label and texts, to be copied with its facts. */
export function waitFacts(view, hit) {
  return tiesOf(view, hit).flatMap(({ title, ties }) => ties.map(({ text }) => [title.toLowerCase(), text]))
}

/** The waits of a hit as lists of links, each of which pins the other span. */
export function waitNodes(view, hit) {
  const link = ({ row, index, text }) =>
    index < 0 ? makeNode("span", { class: "gsl-gone", text, dir: "auto" }) : spanLink(view, view.store.row(row), index, text)
  return tiesOf(view, hit).flatMap(({ title, ties }) => linkList(title, ties.map(link)))
}

/** Links below a title; nothing where there are none. */
export function linkList(title, links) {
  if (!links.length) return []
  const items = links.slice(0, SHOWN_LINKS).map(link => makeNode("li", {}, link)), left = links.length - items.length
  if (left > 0) items.push(makeNode("li", { text: `+ ${formatCount(left)} more` }))
  return [makeNode("h4", { text: title }), makeNode("ol", { class: "gsl-inside" }, ...items)]
}

/** A link to a span of a row, which pins it. */
export function spanLink(view, row, at, text) {
  const start = row.start[at], place = row.place[at] // Its index moves when late spans come before it.
  const go = () => {
    const index = view.store.indexOf(row.code, start, place)
    if (index >= 0) view.show(row.code, index)
  }
  return makeButton(text, { label: `Go to ${text}`, class: "gsl-link", dir: "auto", onclick: go })
}
