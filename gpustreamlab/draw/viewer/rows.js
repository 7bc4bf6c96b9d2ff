// The spans of one row, in arrays by column, sorted by (start, end, place).

import { BlockSums, grown, lowerBound, roomFor, roomy, SUM_SPANS, sumBetween, upperBound } from "./arrays.js"
import { SIGNED_COLUMNS, SpanBatch, WORK_COLUMNS, WORK_DEFAULTS } from "./columns.js"

const ROW_COLUMNS = ["start", "end", "name", "kind", "thread", "partition", "queueing", "place"]
const SUMMED_COLUMNS = ["count", "busy"]
const MATCH_SPANS = 64

export class Row {
  constructor(code) {
    this.code = code
    this.length = 0 // The arrays may be longer.
    this.start = new Float64Array(0)
    this.end = new Float64Array(0)
    this.lane = -1
    this.isPale = false // Ranges that stand back beside kernels.
    // Whether a span ends before one that started earlier: said by the tables, or seen.
    this.overlaps = false
    // How far a span reaches beyond the next start at most, where none ends before one that started earlier.
    this.slack = 0
    // Goes up where spans come in between or go: then more changed than what was appended.
    this.edits = 0
    // By reader: how many spans it has taken in. Less again where spans come in between or go.
    this.seen = { filter: 0, kinds: 0 }
    for (const name of ROW_COLUMNS) this[name] ??= new Uint8Array(0)
    // Whether anything is known of device work: else its columns are not stored.
    this.hasWork = false
    // How many spans each stands for; null, as is `busy`, as long as no span stands for several.
    this.count = null
    this.busy = null // Busy time where it is less than the length.
    this.busySums = new BlockSums(SUM_SPANS, (from, to) => this.addBusy(from, to))
    this.countSums = new BlockSums(SUM_SPANS, (i, j) => sumBetween(this.count, i, j))
    this.reaches = new Float64Array(0)
    this.reached = 0
    this.matches = null // What was searched for last; its sums are of no other.
    this.matchSums = new BlockSums(MATCH_SPANS, (i, j) => this.addMatches(i, j))
  }

  /** Busy time of the spans i to j, both included. */
  busySum(i, j) { return this.busySums.between(i, j + 1, this.length) }

  busyAt(index) { return this.busy ? this.busy[index] : this.end[index] - this.start[index] }

  /** How much of a ns of a span is busy: less than 1 where it stands for several. */
  densityAt(index) { return this.busy ? this.busy[index] / (this.end[index] - this.start[index] || 1) : 1 }

  addBusy(from, to) {
    if (this.busy) return sumBetween(this.busy, from, to)
    let sum = 0
    for (let index = from; index < to; index++) sum += this.end[index] - this.start[index]
    return sum
  }

  countAt(index) { return this.count ? this.count[index] : 1 }

  /** Last span that starts at t or before, or -1. */
  indexAt(t) { return upperBound(this.start, t, 0, this.length) - 1 }

  /** First span that starts at t or later, of those before `limit`. */
  firstFrom(t, limit = this.length) { return lowerBound(this.start, t, 0, limit) }

  /** First span that starts at t exactly and of which `isIt` holds, given its index; or -1. */
  findStart(t, isIt) {
    for (let index = this.firstFrom(t); index < this.length && this.start[index] === t; index++) if (isIt(index)) return index
    return -1
  }

  /** First span that ends at t or later: none before it does. */
  firstEndingFrom(t) { return lowerBound(this.overlaps ? this.reach() : this.end, t, 0, this.length) }

  lastEnd() { return (this.overlaps ? this.reach() : this.end)[this.length - 1] }

  /** How many spans those from i to j stand for. */
  countSum(i, j) { return this.count ? this.countSums.between(i, j + 1, this.length) : j - i + 1 }

  append(batch, from, to) {
    if (batch.count || this.count) [this, batch].forEach(storeSums)
    if (batch.hasWork && !this.hasWork) this.storeWork()
    const at = this.placeOf(batch, from)
    if (at < this.length) this.mergeIn(batch, from, to, at)
    else this.copyIn(batch, from, to)
    this.watchShape(at)
  }

  /** Drop the spans before `index`. What is left of the arrays is not copied. */
  dropBefore(index) {
    for (const name of this.stored()) this[name] = this[name].subarray(index)
    this.changeFrom(0, this.length - index)
  }

  /** Keep only the spans of these indices, which are in order. */
  keep(indices) {
    Object.assign(this, takeColumns(this, 0, indices))
    this.changeFrom(0, indices.length)
  }

  /** Where a span of a batch belongs: behind all that come before it. */
  placeOf(batch, from) {
    let at = this.length
    if (!at || compareSpans(this, at - 1, batch, from) <= 0) return at
    at = this.firstFrom(batch.start[from])
    while (at < this.length && compareSpans(this, at, batch, from) <= 0) at++
    return at
  }

  /** The spans before `index` stay; now there are `length`. */
  changeFrom(index, length) {
    this.length = length
    this.edits++
    for (const sums of [this.busySums, this.countSums, this.matchSums]) sums.forget(index)
    this.reached = Math.min(this.reached, index)
    for (const reader of Object.keys(this.seen)) this.seen[reader] = Math.min(this.seen[reader], index)
  }

  /** What is known of a span's device work; a default where nothing is. */
  work(name, index) { return this.hasWork ? this[name][index] : WORK_DEFAULTS[name] }

  stored() {
    return [...ROW_COLUMNS, ...(this.hasWork ? WORK_COLUMNS : []), ...(this.count ? SUMMED_COLUMNS : [])]
  }

  copyIn(batch, from, to) {
    const length = this.length + to - from
    for (const name of this.stored()) {
      const fresh = batch[name] ?? defaultsOf(name, to)
      // The first spans stay where they are: the only batch of a page is never copied.
      this[name] = this.length ? joined(this[name], this.length, fresh, from, to) : fresh.subarray(from, to)
    }
    this.length = length
  }

  /** Late spans: what follows them is taken out and merged with them. */
  mergeIn(batch, from, to, at) {
    const columns = this.stored().map(name => [name, this[name].slice(at, this.length)])
    const tail = new SpanBatch([], Object.fromEntries(columns))
    this.changeFrom(at, at)
    let next = 0
    while (from < to && next < tail.length) {
      const isLate = compareSpans(batch, from, tail, next) < 0
      const [spans, begin, end] = isLate ? [batch, from, to] : [tail, next, tail.length]
      const [others, other] = isLate ? [tail, next] : [batch, from]
      let index = begin + 1
      while (index < end && (compareSpans(spans, index, others, other) || (isLate ? 1 : -1)) < 0) index++
      this.copyIn(spans, begin, index)
      if (isLate) from = index
      else next = index
    }
    if (from < to) this.copyIn(batch, from, to)
    if (next < tail.length) this.copyIn(tail, next, tail.length)
  }

  storeWork() {
    for (const name of WORK_COLUMNS) this[name] = defaultsOf(name, this.length)
    this.hasWork = true
  }

  watchShape(from) {
    const { start, end, length } = this
    for (let index = Math.max(1, from); index < length; index++) {
      const over = end[index - 1] - start[index]
      if (over <= 0) continue
      if (over > this.slack) this.slack = over
      if (end[index] < end[index - 1]) this.overlaps = true
    }
  }

  reach() {
    if (this.reached === this.length) return this.reaches
    this.reaches = roomy(this.reaches, this.length, this.reached)
    let latest = this.reached ? this.reaches[this.reached - 1] : -Infinity
    for (let index = this.reached; index < this.length; index++) this.reaches[index] = latest = Math.max(latest, this.end[index])
    this.reached = this.length
    return this.reaches
  }

  // Searches: an array by name code, not 0 where the name matches; what else is asked is its function `also(row, index)`.

  isMatch(index, matches) {
    return Boolean(matches[this.name[index]]) && (!matches.also || matches.also(this, index))
  }

  /** How many of the spans i to j match. */
  matchCount(i, j, matches) {
    this.matches = matches
    return this.matchSums.between(i, j + 1, this.length)
  }

  /** The next matching span from `index` on, in direction 1 or -1; where there is none, the length or -1. */
  nextMatch(index, matches, way = 1) {
    this.matches = matches
    this.matchSums.sumUp(this.length)
    const { blocks, sums } = this.matchSums
    let at = index
    while (at >= 0 && at < this.length) {
      const block = Math.floor(at / MATCH_SPANS)
      if (block < blocks && sums[block + 1] === sums[block]) at = way > 0 ? (block + 1) * MATCH_SPANS : block * MATCH_SPANS - 1
      else if (this.isMatch(at, matches)) return at
      else at += way
    }
    return at
  }

  addMatches(from, to) {
    const { name, matches } = this
    let sum = 0
    for (let index = from; index < to; index++) {
      if (matches[name[index]] && (!matches.also || matches.also(this, index))) sum += this.countAt(index)
    }
    return sum
  }
}

/** Latest end of the spans first to last of a row: the last one's, unless they overlap. */
export function endOfHit(row, first, last) {
  let latest = row.end[last]
  if (row.overlaps) for (let index = first; index < last; index++) if (row.end[index] > latest) latest = row.end[index]
  return latest
}

/** Order of two spans: by start, then by end, then by place. */
function compareSpans(spans, index, others, other) {
  return spans.start[index] - others.start[other] || spans.end[index] - others.end[other] || spans.place[index] - others.place[other]
}

/** A row's columns at these indices, counted from `from`, as a batch has them. */
export function takeColumns(row, from, indices) {
  return Object.fromEntries(row.stored().map(name => {
    const column = row[name].subarray(from, row.length), kind = column.constructor
    // In a loop over arrays of one type, between native conversions: over many types it is several times slower.
    const wide = kind === Float64Array ? column : new Float64Array(column), taken = new Float64Array(indices.length)
    for (let index = 0; index < indices.length; index++) taken[index] = wide[indices[index]]
    return [name, kind === Float64Array ? taken : new kind(taken)]
  }))
}

/** Store counts and busy times of a row or a batch in which no span stood for several so far. */
function storeSums(spans) {
  const { start, end, length } = spans
  spans.count ??= new Uint8Array(length).fill(1)
  spans.busy ??= Float64Array.from({ length }, (_, index) => end[index] - start[index])
}

/** A column of device work of spans of which nothing is known. */
const defaultsOf = (name, length) => new (SIGNED_COLUMNS.has(name) ? Int8Array : Uint8Array)(length).fill(WORK_DEFAULTS[name])

/** Write values behind the first `length` of an array, or of a larger one where they do not fit. */
export function joined(values, length, fresh, from, to) {
  const size = length + to - from
  const kind = values.BYTES_PER_ELEMENT < fresh.BYTES_PER_ELEMENT ? fresh.constructor : values.constructor
  const isLonger = values.length < size
  const target = isLonger || kind !== values.constructor ? grown(values, isLonger ? roomFor(size) : values.length, length, kind) : values
  target.set(fresh.subarray(from, to), length)
  return target
}

/** Whether a kernel, copy or fill ran on another lane than the one which its range had selected. */
export function isStray(row, index) {
  if (!row.hasWork) return false
  const owner = row.ownerLane[index]
  return owner >= 0 && owner !== row.lane
}

/** Whether a call blocked the host until the device was done; draw/_scene.NO_WAIT stands for all that did not. */
export const isBlocked = (row, index) => row.work("waitedName", index) > WORK_DEFAULTS.waitedName
