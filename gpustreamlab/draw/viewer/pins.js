// A pinned span is known by its row and index; both change when late spans arrive before it, old ones go, or names are hidden.

import { isSpan } from "./facts.js"
import { isWork } from "./work_facts.js"

/** What tells the pinned span, or the first and last of several drawn as one, from all others. */
export function pinAnchor(view, hit) {
  const row = view.store.row(hit.row)
  const indices = isSpan(hit) ? [hit.index] : [hit.first, hit.last]
  return { hit, starts: indices.map(i => row.start[i]), places: indices.map(i => row.place[i]) }
}

/** Where the anchored hit is now: the same object if it did not move, another if it did, null if it is gone. */
export function movedPin(view, anchor) {
  const { hit, starts, places } = anchor
  if (!view.tables.rows[hit.row]) return null
  const found = places.map((place, k) => view.store.indexOf(hit.row, starts[k], place))
  if (found.includes(-1)) return null
  if (isSpan(hit)) return found[0] === hit.index ? hit : { row: hit.row, index: found[0] }
  return found[0] === hit.first && found[1] === hit.last ? hit : null
}

/** The spans of the same lane that enclose one, from the outside; rows of a lane lie in each other from the top down. */
export function enclosingSpans(view, { row: code, index }) {
  const { store, tables } = view
  if (isWork(view, store.row(code), index) && store.row(code).hasWork && !isInOwner(store.row(code), index)) return []
  const own = tables.rows[code], row = store.row(code)
  const start = row.start[index], end = row.end[index]
  const found = []
  tables.rows.forEach((other, otherCode) => {
    if (other.lane !== own.lane || other.top >= own.top) return
    const above = store.row(otherCode), at = above.indexAt(start)
    if (at >= 0 && above.start[at] <= start && above.end[at] >= end) found.push({ row: otherCode, index: at })
  })
  return found.sort((a, b) => tables.rows[a.row].top - tables.rows[b.row].top)
}

/** Whether work was launched in a range that had selected the lane on which it ran: that range encloses it. */
function isInOwner(row, index) {
  return row.ownerLane[index] === row.lane
}
