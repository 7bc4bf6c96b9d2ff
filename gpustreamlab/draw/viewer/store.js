// The spans that the page holds, by row. Times are float64 ns since `tables.zero_ns`. When it is full, those go that ended first.

import { sumBetween, upperBound } from "./arrays.js"
import { SpanBatch } from "./columns.js"
import { joined, Row, takeColumns } from "./rows.js"

const DEFAULT_CAPACITY = 20_000_000
const EDGE_CAPACITY = 200_000
const WAIT_EDGE = 0, LAUNCH_EDGE = 1 // Codes of EdgeKind.
const EDGE_ARRAYS = { // `told`: 1 for one between ranges beside one that joins the work in them.
  x0: Float64Array, x1: Float64Array, row0: Uint32Array, row1: Uint32Array,
  place0: Float64Array, place1: Float64Array, told: Uint8Array,
}
const EDGE_COLUMNS = Object.keys(EDGE_ARRAYS)
const FREED_SHARE = 1 / 8 // Of the capacity, after an eviction: so evictions are rare.

export class SpanStore {
  constructor({ capacity = DEFAULT_CAPACITY, edgeCapacity = EDGE_CAPACITY } = {}) {
    this.capacity = capacity
    this.edges = new EdgeList(edgeCapacity) // What waited for what.
    this.launches = new EdgeList(edgeCapacity) // Which call launched what.
    this.rowTable = []
    this.filter = null
    this.matches = null
    // Goes up with every change: what was computed from the store can tell whether it is out of date.
    this.version = 0
    // Goes up where spans were taken away.
    this.evictions = 0
    this.clear()
  }

  /** Forget all spans; rows, filter and matches stay. */
  clear() {
    this.rows = []
    this.filtered = new Map()
    this.length = this.spanCount = this.evictedCount = this.firstNs = this.lastNs = 0
    this.version++
    this.evictions++
    this.edges.clear()
    this.launches.clear()
  }

  /** Take the rows of `tables`: as before, or more. */
  setRows(rowTable) {
    this.rowTable = rowTable
    for (const row of [...this.rows, ...this.filtered.values()]) this.describe(row)
    this.version++
  }

  append(batch) {
    this.version++
    for (const [code, from, to] of batch.runs) if (to > from) this.ownRow(code).append(batch, from, to)
    this.length += batch.length
    this.spanCount += batch.count ? sumBetween(batch.count, 0, batch.length) : batch.length
    if (batch.edges) this.appendEdges(batch.edges)
    if (this.length > this.capacity) evictOldest(this, Math.floor(this.capacity * (1 - FREED_SHARE)))
    this.findExtent()
  }

  appendEdges(edges) {
    if (!edges.kind?.some(Boolean)) return this.edges.append(edges)
    this.edges.append(edgesOfKind(edges, WAIT_EDGE))
    this.launches.append(edgesOfKind(edges, LAUNCH_EDGE))
  }

  /** The row as it is shown: without what the filter hides. */
  row(code) { return this.filter ? this.filteredRow(code) : this.ownRow(code) }

  /** The row with all of its spans. */
  ownRow(code) {
    while (this.rows.length <= code) this.rows.push(this.describe(new Row(this.rows.length)))
    return this.rows[code]
  }

  /** Hide names, kinds, partitions and lanes: sets of codes; null shows all. */
  setFilter(filter) {
    const hidden = ["names", "kinds", "partitions", "lanes"].map(key => [key, new Set(filter?.[key])])
    this.filter = hidden.some(([, codes]) => codes.size) ? Object.fromEntries(hidden) : null
    this.forgetFiltered()
    this.version++
  }

  /** Say what is searched for: an array by name code, not 0 where the name matches, or null. Names beyond its end do not match.
   * Where its property `also` is a function of a row and an index, that must be true as well. */
  setMatches(matches) {
    this.matches = matches
    for (const row of [...this.rows, ...this.filtered.values()]) row.matchSums.forget()
    this.version++
  }

  /** How many of the spans i to j match; all where nothing is searched. */
  matchCount(code, i, j) {
    const row = this.row(code)
    return this.matches ? row.matchCount(i, j, this.matches) : row.countSum(i, j)
  }

  /** Where the span is that started then and had this place in the trace, or -1: indices move when spans come and go. */
  indexOf(code, start, place) {
    const row = this.row(code)
    return row.findStart(start, index => row.place[index] === place)
  }

  describe(row) {
    const entry = this.rowTable[row.code]
    row.lane = entry ? entry.lane : -1
    row.isPale = Boolean(entry?.pale)
    if (entry?.overlaps) row.overlaps = true
    return row
  }

  filteredRow(code) {
    const source = this.ownRow(code)
    let shown = this.filtered.get(code)
    if (!shown) this.filtered.set(code, (shown = this.describe(new Row(code))))
    const { filter: from } = source.seen
    if (from === source.length) return shown
    // Spans may have come in between: those shown from there on are taken anew.
    const kept = shown.length ? shown.placeOf(source, from) : 0
    if (kept < shown.length) shown.changeFrom(kept, kept)
    const batch = new SpanBatch([], takeColumns(source, from, shownIndices(source, from, this.filter)))
    if (batch.length) shown.append(batch, 0, batch.length)
    source.seen.filter = source.length
    return shown
  }

  forgetFiltered() {
    this.filtered.clear()
    for (const row of this.rows) row.seen.filter = 0
  }

  findExtent() {
    const rows = this.rows.filter(row => row.length)
    this.firstNs = rows.length ? Math.min(...rows.map(row => row.start[0])) : 0
    this.lastNs = rows.length ? Math.max(...rows.map(row => row.lastEnd())) : 0
  }
}

/** Which of the spans from `from` on the filter does not hide, counted from there. */
function shownIndices({ lane, name, kind, partition, length }, from, { names, kinds, partitions, lanes }) {
  if (lanes.has(lane)) return new Uint32Array(0)
  const indices = new Uint32Array(length - from)
  let count = 0
  for (let index = from; index < length; index++) {
    if (!names.has(name[index]) && !kinds.has(kind[index]) && !partitions.has(partition[index])) indices[count++] = index - from
  }
  return indices.subarray(0, count)
}

// Arrows between spans, as arrays; beyond the capacity the oldest go.
class EdgeList {
  constructor(capacity) {
    this.capacity = capacity
    this.clear()
  }

  clear() {
    this.length = 0
    this.evictedCount = 0
    for (const [name, kind] of Object.entries(EDGE_ARRAYS)) this[name] = new kind(0)
  }

  append(edges) {
    if (!edges.length) return
    for (const name of EDGE_COLUMNS) this[name] = joined(this[name], this.length, edges[name], 0, edges.length)
    this.length += edges.length
    if (this.length > this.capacity) this.dropFirst(this.length - Math.floor(this.capacity * (1 - FREED_SHARE)))
  }

  dropFirst(count) {
    for (const name of EDGE_COLUMNS) this[name].copyWithin(0, count, this.length)
    this.length -= count
    this.evictedCount += count
  }

  /** Drop those at the front that end at t or before. */
  dropBefore(t) {
    let count = 0
    while (count < this.length && this.x1[count] <= t) count++
    if (count) this.dropFirst(count)
  }
}

/** Those arrows that are of one kind. */
function edgesOfKind(edges, kind) {
  const places = []
  for (let i = 0; i < edges.length; i++) if (edges.kind[i] === kind) places.push(i)
  const taken = Object.fromEntries(EDGE_COLUMNS.map(name => [name, edges[name].constructor.from(places, i => edges[name][i])]))
  return { ...taken, length: places.length }
}

/** Take away what ended first, until no more than `wanted` spans are left: all that end at one time go together. */
function evictOldest(store, wanted) {
  const rows = store.rows.filter(row => row.length), limit = timeByWhichEnded(rows, rows.map(sortedEnds), store.length - wanted)
  for (const row of rows) {
    const before = row.countSum(0, row.length - 1), length = row.length
    if (row.overlaps) row.keep(new Uint32Array(length).map((_, index) => index).filter(index => row.end[index] > limit))
    else row.dropBefore(upperBound(row.end, limit, 0, length))
    const gone = before - (row.length ? row.countSum(0, row.length - 1) : 0)
    store.length -= length - row.length
    store.spanCount -= gone
    store.evictedCount += gone
  }
  store.evictions++
  store.forgetFiltered()
  store.edges.dropBefore(limit)
  store.launches.dropBefore(limit)
}

/** Ends of a row in order; they are as they stand where spans do not overlap. */
const sortedEnds = row => row.overlaps ? row.end.slice(0, row.length).sort() : row.end

/** The first ns by which at least `count` spans have ended. */
function timeByWhichEnded(rows, ends, count) {
  let low = Infinity, high = -Infinity
  rows.forEach((row, place) => {
    low = Math.min(low, ends[place][0])
    high = Math.max(high, ends[place][row.length - 1])
  })
  while (low < high) {
    const middle = low + Math.floor((high - low) / 2)
    if (rows.reduce((sum, row, place) => sum + upperBound(ends[place], middle, 0, row.length), 0) >= count) high = middle
    else low = middle + 1
  }
  return low
}

// Spans that a search finds. What is searched for is an array by name code that `setMatches` takes.

/** How many of the spans that are shown match: all, or those up to a span, {row, index}, in the order of `nextMatch`. */
export function countMatches(store, upTo = null) {
  if (!store.matches) return 0
  const anchor = anchorOf(store, upTo, -1)
  return shownRows(store).reduce((sum, row) => {
    const last = lastUpTo(row, anchor)
    return last < 0 ? sum : sum + row.matchCount(0, last, store.matches)
  }, 0)
}

/**
 * The next matching span by start, then by row and index, in direction 1 or -1; null where there is none.
 *
 * `from` is {row, index} of a span, {time} in ns, or null for the first (or last) of all.
 */
export function nextMatch(store, from, direction = 1) {
  if (!store.matches) return null
  const anchor = anchorOf(store, from, direction)
  let found = null
  for (const row of shownRows(store)) {
    const last = lastUpTo(row, anchor), before = row.code === anchor.row ? last - 1 : last
    const index = row.nextMatch(direction > 0 ? last + 1 : before, store.matches, direction)
    if (index < 0 || index >= row.length) continue
    const time = row.start[index]
    if (!found || (direction > 0 ? time < found.time : time >= found.time)) found = { row: row.code, index, time }
  }
  return found && { row: found.row, index: found.index }
}

function shownRows(store) {
  const rows = store.rows.filter(({ length }) => length) // Of those without spans no copy is made.
  return rows.map(({ code }) => store.row(code)).filter(({ length }) => length)
}

function anchorOf(store, from, direction) {
  if (from?.row !== undefined) return { time: store.row(from.row).start[from.index], row: from.row, index: from.index }
  const isForward = direction > 0
  return { time: from ? from.time : isForward ? -Infinity : Infinity, row: isForward ? -1 : Infinity, index: -1 }
}

/** The last span of a row that does not come after an anchor, or -1. */
function lastUpTo(row, { time, row: code, index }) {
  if (row.code === code) return index
  return row.code < code ? row.indexAt(time) : row.firstFrom(time) - 1
}
