// When each lane and each partition was busy: unions of counted spans, brought up to date from what was appended since. And how
// many lanes and SMs that are: exact means over columns of pixels.

import { gallop, Intervals, lowerBound, uniteAll, upperBound } from "./arrays.js"
import { Row } from "./rows.js"
import { columnEdge, LaneSteps } from "./steps.js"

const busyUnions = new WeakMap()
const MANY_LANES = 48 // From how many on their number is kept as steps: one search a frame instead of one for each lane.

/** The unions of a store; they last as long as it does. */
export function unionsOf(store, tables) {
  let unions = busyUnions.get(store)
  if (!unions) busyUnions.set(store, (unions = new BusyUnions(store)))
  unions.use(tables)
  return unions
}

class BusyUnions {
  constructor(store) {
    this.store = store
    this.evictions = -1
    this.slots = []
  }

  /** Count the kinds, and stack the partitions, of these tables from now on. */
  use(tables) {
    const counted = countedKey(tables)
    // The codes that mean one partition of one size share a slot.
    const slots = tables.partitions.map(({ band, sms, text }) => `${band} ${sms} ${text}`)
    const isKnown = this.counted === counted && this.evictions === this.store.evictions
    // Spans may come before the entry of their partition does.
    const isMissed = this.slotUnions?.has(undefined) && slots.length > this.slots.length
    if (!isKnown || isMissed || this.slots.some((slot, code) => slot !== slots[code])) this.reset(counted)
    Object.assign(this, { slots, tables, ...countingOf(tables) })
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

  /** The union of what uses the SMs of a partition, of all codes that mean it, in some rows. */
  partition(code, rows) {
    const codes = [...this.slots.keys()].filter(other => other === code || this.slots[other] === this.slots[code])
    const lists = rows.filter(row => !this.tables.lanes?.[row.lane]?.host).flatMap(row => codes.map(own => this.countedIntervals(row, 0, own)))
    return uniteAll(lists.filter(list => list.length))
  }

  /** The number of busy lanes as steps, where lanes are many; else null. */
  laneSteps() {
    this.updateLanes()
    if (this.laneUnions.size < MANY_LANES) return null
    if (!this.steps) this.steps = new LaneSteps().update(-Infinity, this.lanes())
    else if (this.lanesFrom < Infinity) this.steps.update(this.lanesFrom, this.lanes())
    this.lanesFrom = Infinity
    return this.steps
  }

  reset(counted) {
    this.counted = counted
    this.evictions = this.store.evictions
    this.laneUnions = new Map()
    this.slotUnions = new Map()
    this.stack = this.steps = null
    // From when on lanes have changed since the steps were built.
    this.lanesFrom = Infinity
    // Rows in which a span does not count.
    this.mixedRows = new Set()
    this.lanesVersion = this.slotsVersion = -1
    for (const { seen } of this.store.rows) seen.lane = seen.partition = 0
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
    for (const row of counted) this.lanesFrom = Math.min(this.lanesFrom, row.start[row.seen.lane])
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

  /** Union of the counted spans of a row from an index on; of one partition only, if it is given. */
  countedIntervals(row, from, only = -1) {
    const isCounted = only >= 0 ? this.isOnSms : this.isCounted, { uncaptured } = this, { start, end, kind, partition, length } = row
    const list = new Intervals(length - from)
    for (let index = from; index < length; index++) {
      if (end[index] === start[index] || !isCounted[kind[index]] || (only >= 0 && partition[index] !== only)) continue
      if (!uncaptured || uncaptured(kind[index], start[index])) list.cover(start[index], end[index])
    }
    return list
  }
}

/** What decides which spans count. A window that still grows does not change it: no span came that started after its end. */
function countedKey({ kind_counted: counted, kind_on_sms: onSms = counted, capture }) {
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

/** Mean number of busy lanes in each of n equal columns of [x0, x1]. */
export function busyShares(store, tables, x0, x1, n) {
  const lanes = new Float64Array(n), unions = unionsOf(store, tables), steps = unions.laneSteps()
  if (steps) steps.addIntegrals(x0, x1, [lanes])
  else for (const union of unions.lanes()) addCoverage(union, x0, x1, lanes)
  return { lanes: scaled(lanes, n / (x1 - x0)) }
}

const scaled = (values, factor) => values.map(value => value * factor)

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
