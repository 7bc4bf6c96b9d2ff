// When each lane was busy: unions of counted spans, brought up to date from what was appended since; and how much of each column of
// pixels that is.

import { gallop, Intervals, lowerBound, uniteAll, upperBound } from "./arrays.js"
import { Row } from "./rows.js"

const busyUnions = new WeakMap()

/** The unions of a store; they last as long as it does. */
export function unionsOf(store, tables) {
  let unions = busyUnions.get(store)
  if (!unions) busyUnions.set(store, (unions = new BusyUnions(store)))
  unions.use(tables)
  return unions
}

class BusyUnions {
  constructor(store) { Object.assign(this, { store, evictions: -1 }) }

  /** Count the kinds of these tables from now on. */
  use(tables) {
    const counted = countedKey(tables)
    if (this.counted !== counted || this.evictions !== this.store.evictions) this.reset(counted)
    Object.assign(this, countingOf(tables))
  }

  /** Unions of the lanes on which something counted ran. */
  lanes() {
    this.updateLanes()
    return [...this.laneUnions.values()]
  }

  /** The union of one lane, or null. */
  lane(code) {
    this.updateLanes()
    return this.laneUnions.get(code) ?? null
  }

  reset(counted) {
    this.counted = counted
    this.evictions = this.store.evictions
    this.laneUnions = new Map()
    // Rows in which a span does not count.
    this.mixedRows = new Set()
    this.lanesVersion = -1
    for (const { seen } of this.store.rows) seen.lane = 0
  }

  updateLanes() {
    if (this.lanesVersion === this.store.version) return
    this.lanesVersion = this.store.version
    const fresh = new Map()
    for (const row of this.store.rows) if (row.lane >= 0 && row.seen.lane < row.length) pushTo(fresh, row.lane, row)
    for (const [lane, rows] of fresh) this.updateLane(lane, rows)
  }

  updateLane(lane, rows) {
    const known = this.laneUnions.get(lane), counted = rows.filter(row => this.hasCounted(row))
    if (counted.length === 1 && (!known || known === counted[0]) && this.isUnion(counted[0])) this.laneUnions.set(lane, counted[0])
    else if (counted.length) {
      const isRow = known instanceof Row, union = known && !isRow ? known : new Intervals()
      const parts = counted.filter(row => row !== known).map(row => this.countedIntervals(row, row.seen.lane))
      if (isRow) parts.push(this.countedIntervals(known, 0))
      union.add(uniteAll(parts))
      this.laneUnions.set(lane, union)
    }
    for (const row of rows) row.seen.lane = row.length
  }

  /** Whether any of the spans that were not seen yet counts. */
  hasCounted(row) {
    const { uncaptured } = this
    let count = 0
    for (let index = row.seen.lane; index < row.length; index++) {
      count += this.isCounted[row.kind[index]] && (!uncaptured || uncaptured(row.kind[index], row.start[index])) ? 1 : 0
    }
    if (count < row.length - row.seen.lane) this.mixedRows.add(row.code)
    return count > 0
  }

  /** A row whose spans all count, and do not overlap, is its lane's union: nothing more is stored. */
  isUnion(row) { return !row.overlaps && !row.slack && !this.mixedRows.has(row.code) }

  /** Union of the counted spans of a row from an index on. */
  countedIntervals(row, from) {
    const { isCounted, uncaptured } = this, { start, end, kind, length } = row
    const list = new Intervals(length - from)
    for (let index = from; index < length; index++) {
      if (end[index] === start[index] || !isCounted[kind[index]]) continue
      if (!uncaptured || uncaptured(kind[index], start[index])) list.cover(start[index], end[index])
    }
    return list
  }
}

/** What decides which spans count. A window that still grows does not change it: no span came that started after its end. */
export function countedKey({ kind_counted: counted, kind_on_sms: onSms = counted, capture }) {
  const windows = (capture?.windows ?? []).map(([start, end], place, all) => (place < all.length - 1 ? `${start}-${end}` : start))
  return `${counted.map(Number).join("")} ${onSms.map(Number).join("")} ${windows.join()}`
}

/** Which kinds count as busy, and as busy on SMs, by code; and what `uncapturedRanges` gives. */
export const countingOf = tables => ({
  isCounted: Uint8Array.from(tables.kind_counted, Boolean),
  isOnSms: Uint8Array.from(tables.kind_on_sms ?? tables.kind_counted, Boolean),
  uncaptured: uncapturedRanges(tables),
})

/**
 * A function that tells whether a span of a kind counts that started at a time, or null where all do.
 *
 * A range that started while kernels were captured leaves it to its kernels: it also contains the wait for them.
 */
function uncapturedRanges({ kinds, kind_counted: counted, capture }) {
  const windows = capture?.windows ?? [], range = windows.length ? kinds.indexOf("range") : -1
  if (range < 0 || !counted[range]) return null
  const starts = Float64Array.from(windows, ([start]) => start), ends = Float64Array.from(windows, ([, end]) => end)
  return (kind, time) => {
    if (kind !== range) return true
    const place = upperBound(starts, time, 0, starts.length) - 1
    return place < 0 || time >= ends[place]
  }
}

const pushTo = (map, key, value) => map.get(key)?.push(value) ?? map.set(key, [value])

/** Add how much of each column of [x0, x1] a union covers, in ns. */
export function addCoverage(union, x0, x1, columns) {
  const { start, end, length } = union, n = columns.length, width = x1 - x0
  // Times from x0 on, so that columns narrower than a ns are exact.
  const clipped = (index, left, right) =>
    index < 0 ? 0 : Math.max(0, Math.min(end[index] - x0, right) - Math.max(start[index] - x0, left)) * union.densityAt(index)
  let next = lowerBound(start, x0, 0, length), step = 1
  for (let column = 0; column < n; column++) {
    const left = columnEdge(column, width, n), right = columnEdge(column + 1, width, n), from = next
    next = gallop(start, x0 + right, from, length, step)
    step = Math.max(1, (next - from) >> 1)
    columns[column] += clipped(from - 1, left, right) // What began before the column.
    if (next > from) columns[column] += union.busySum(from, next - 2) + clipped(next - 1, left, right)
  }
  return columns
}

/**
 * Left border of a column of n in a window, from where the window begins.
 *
 * Columns of less than a ns are exact that way however far from 0 they are: times there have no digits left for such parts.
 */
const columnEdge = (column, width, n) => column < n ? (width * column) / n : width
