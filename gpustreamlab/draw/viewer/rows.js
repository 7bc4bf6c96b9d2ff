// The spans of one row, in arrays by column, sorted by (start, end, place).

import { grown, lowerBound, roomFor, roomy, sumBetween, upperBound } from "./arrays.js"
import { SIGNED_COLUMNS, SpanBatch, WORK_COLUMNS, WORK_DEFAULTS } from "./columns.js"
import { Intervals, SUM_SPANS } from "./intervals.js"

const ROW_COLUMNS = ["start", "end", "name", "kind", "thread", "partition", "queueing", "place"]
const SUMMED_COLUMNS = ["count", "busy"]
const MATCH_SPANS = 64

export class Row extends Intervals {
  constructor(code) {
    super(0)
    this.code = code
    this.lane = -1
    this.isPale = false // Ranges that stand back beside kernels.
    // Whether a span ends before one that started earlier: said by the tables, or seen.
    this.overlaps = false
    // How far a span reaches beyond the next start at most, where none ends before one that started earlier.
    this.slack = 0
    // Goes up where spans come in between or go: then more changed than what was appended.
    this.edits = 0
    // By reader: how many spans it has taken in. Less again where spans come in between or go.
    this.seen = { lane: 0, partition: 0, filter: 0, kinds: 0 }
    for (const name of ROW_COLUMNS) this[name] ??= new Uint8Array(0)
    // Whether anything is known of device work: else its columns are not stored.
    this.hasWork = false
    // Null as long as no span stands for several.
    this.countOrNull = null
    this.countSums = new Float64Array(1)
    this.countSummed = 0
    this.durations = null
    this.reaches = new Float64Array(0)
    this.reached = 0
    this.forgetMatches()
  }

  get isPlain() {
    return !this.countOrNull
  }

  /** How many spans each stands for. */
  get count() {
    return this.countOrNull ?? onesOf(this.length)
  }

  /** Busy time of each. */
  get busy() {
    this.durations ??= this.busyOrNull ?? spanDurations(this, this.length)
    return this.durations
  }

  /** Last span that starts at t or before, or -1. */
  indexAt(t) {
    return upperBound(this.start, t, 0, this.length) - 1
  }

  /** First span that starts at t or later, of those before `limit`. */
  firstFrom(t, limit = this.length) {
    return lowerBound(this.start, t, 0, limit)
  }

  /** First span that ends at t or later: none before it does. */
  firstEndingFrom(t) {
    return lowerBound(this.overlaps ? this.reach() : this.end, t, 0, this.length)
  }

  lastEnd() {
    return (this.overlaps ? this.reach() : this.end)[this.length - 1]
  }

  /** How many spans those from i to j stand for. */
  countSum(i, j) {
    if (!this.countOrNull) return j - i + 1
    return j - i < SUM_SPANS ? sumBetween(this.countOrNull, i, j + 1) : this.countBefore(j + 1) - this.countBefore(i)
  }

  append(batch, from, to) {
    this.durations = null
    if (!batch.isPlain && this.isPlain) this.storeSums()
    if (batch.hasWork && !this.hasWork) this.storeWork()
    const at = this.placeOf(batch, from)
    if (at < this.length) this.mergeIn(batch, from, to, at)
    else this.copyIn(batch, from, to)
    this.watchShape(at)
  }

  /** Drop the spans before `index`. What is left of the arrays is not copied. */
  dropBefore(index) {
    for (const name of this.stored()) this[storedName(name)] = this[storedName(name)].subarray(index)
    this.changeFrom(0, this.length - index)
  }

  /** Drop the spans from `index` on. */
  dropFrom(index) {
    this.changeFrom(index, index)
  }

  /** Keep only the spans of these indices, which are in order. */
  keep(indices) {
    Object.assign(this, renamed(takeColumns(this, 0, indices)))
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

  changeFrom(index, length) {
    this.length = length
    this.edits++
    this.durations = null
    this.forgetSums(index)
    this.countSummed = Math.min(this.countSummed, Math.floor(index / SUM_SPANS) * SUM_SPANS)
    this.matchSummed = Math.min(this.matchSummed, Math.floor(index / MATCH_SPANS) * MATCH_SPANS)
    this.reached = Math.min(this.reached, index)
    for (const reader of Object.keys(this.seen)) this.seen[reader] = Math.min(this.seen[reader], index)
  }

  /** What is known of a span's device work; a default where nothing is. */
  work(name, index) {
    return this.hasWork ? this[name][index] : WORK_DEFAULTS[name]
  }

  stored() {
    if (this.isPlain && !this.hasWork) return ROW_COLUMNS
    return [...ROW_COLUMNS, ...(this.hasWork ? WORK_COLUMNS : []), ...(this.isPlain ? [] : SUMMED_COLUMNS)]
  }

  copyIn(batch, from, to) {
    const length = this.length + to - from
    for (const name of this.stored()) {
      const own = this[storedName(name)], fresh = batch[name] ?? defaultsOf(name, to)
      // The first spans stay where they are: the only batch of a page is never copied.
      this[storedName(name)] = this.length ? joined(own, this.length, fresh, from, to) : fresh.subarray(from, to)
    }
    this.length = length
  }

  /** Late spans: what follows them is taken out and merged with them. */
  mergeIn(batch, from, to, at) {
    const columns = this.stored().map(name => [name, this[storedName(name)].slice(at, this.length)])
    const tail = new SpanBatch([], Object.fromEntries(columns))
    this.changeFrom(at, at)
    let next = 0
    while (from < to && next < tail.n) {
      const isLate = compareSpans(batch, from, tail, next) < 0
      const [spans, begin, end] = isLate ? [batch, from, to] : [tail, next, tail.n]
      const [others, other] = isLate ? [tail, next] : [batch, from]
      let index = begin + 1
      while (index < end && (compareSpans(spans, index, others, other) || (isLate ? 1 : -1)) < 0) index++
      this.copyIn(spans, begin, index)
      if (isLate) from = index
      else next = index
    }
    if (from < to) this.copyIn(batch, from, to)
    if (next < tail.n) this.copyIn(tail, next, tail.n)
  }

  storeSums() {
    this.countOrNull = new Uint8Array(this.length).fill(1)
    this.busyOrNull = this.length ? spanDurations(this, this.length) : new Float64Array(0)
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

  /** Latest end up to each span. */
  reach() {
    if (this.reached === this.length) return this.reaches
    this.reaches = roomy(this.reaches, this.length, this.reached)
    let latest = this.reached ? this.reaches[this.reached - 1] : -Infinity
    for (let index = this.reached; index < this.length; index++) this.reaches[index] = latest = Math.max(latest, this.end[index])
    this.reached = this.length
    return this.reaches
  }

  countBefore(index) {
    const blocks = Math.floor(this.length / SUM_SPANS)
    if (this.countSummed < blocks * SUM_SPANS) {
      let block = this.countSummed / SUM_SPANS
      this.countSums = roomy(this.countSums, blocks + 1, block + 1)
      for (; block < blocks; block++) {
        this.countSums[block + 1] = this.countSums[block] + sumBetween(this.countOrNull, block * SUM_SPANS, (block + 1) * SUM_SPANS)
      }
      this.countSummed = blocks * SUM_SPANS
    }
    const block = Math.floor(index / SUM_SPANS)
    return this.countSums[block] + sumBetween(this.countOrNull, block * SUM_SPANS, index)
  }

  // Searches: an array by name code, not 0 where the name matches; what else is asked is its function `also(row, index)`.

  isMatch(index, matches) {
    return Boolean(matches[this.name[index]]) && (!matches.also || matches.also(this, index))
  }

  /** How many of the spans i to j match. */
  matchCount(i, j, matches) {
    return j - i < MATCH_SPANS ? this.addMatches(i, j + 1, matches) : this.matchesBefore(j + 1, matches) - this.matchesBefore(i, matches)
  }

  /** First matching span from `index` on, or the length. */
  nextMatch(index, matches) {
    this.sumMatches(matches)
    for (let at = index; at < this.length; ) {
      const block = Math.floor(at / MATCH_SPANS)
      if (this.isEmptyBlock(block)) at = (block + 1) * MATCH_SPANS
      else if (this.isMatch(at, matches)) return at
      else at++
    }
    return this.length
  }

  /** Last matching span up to `index`, or -1. */
  previousMatch(index, matches) {
    this.sumMatches(matches)
    for (let at = index; at >= 0; ) {
      const block = Math.floor(at / MATCH_SPANS)
      if (this.isEmptyBlock(block)) at = block * MATCH_SPANS - 1
      else if (this.isMatch(at, matches)) return at
      else at--
    }
    return -1
  }

  forgetMatches() {
    this.matchSums = new Float64Array(1)
    this.matchSummed = 0
  }

  isEmptyBlock(block) {
    return (block + 1) * MATCH_SPANS <= this.matchSummed && this.matchSums[block + 1] === this.matchSums[block]
  }

  addMatches(from, to, matches) {
    const { name, countOrNull } = this
    let sum = 0
    for (let index = from; index < to; index++) {
      if (matches[name[index]] && (!matches.also || matches.also(this, index))) sum += countOrNull ? countOrNull[index] : 1
    }
    return sum
  }

  matchesBefore(index, matches) {
    this.sumMatches(matches)
    const block = Math.floor(index / MATCH_SPANS)
    return this.matchSums[block] + this.addMatches(block * MATCH_SPANS, index, matches)
  }

  sumMatches(matches) {
    const blocks = Math.floor(this.length / MATCH_SPANS)
    let block = this.matchSummed / MATCH_SPANS
    if (block >= blocks) return
    this.matchSums = roomy(this.matchSums, blocks + 1, block + 1)
    for (; block < blocks; block++) {
      this.matchSums[block + 1] = this.matchSums[block] + this.addMatches(block * MATCH_SPANS, (block + 1) * MATCH_SPANS, matches)
    }
    this.matchSummed = blocks * MATCH_SPANS
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
    const column = row[storedName(name)].subarray(from, row.length), kind = column.constructor
    // In a loop over arrays of one type, between native conversions: over many types it is several times slower.
    const wide = kind === Float64Array ? column : new Float64Array(column), taken = new Float64Array(indices.length)
    for (let index = 0; index < indices.length; index++) taken[index] = wide[indices[index]]
    return [name, kind === Float64Array ? taken : new kind(taken)]
  }))
}

/** Counts and busy times have a name of their own where they are stored: reading them works without. */
function storedName(name) {
  return name === "count" ? "countOrNull" : name === "busy" ? "busyOrNull" : name
}

/** A column of device work of spans of which nothing is known. */
function defaultsOf(name, length) {
  return new (SIGNED_COLUMNS.has(name) ? Int8Array : Uint8Array)(length).fill(WORK_DEFAULTS[name])
}

function renamed(columns) {
  return Object.fromEntries(Object.entries(columns).map(([name, column]) => [storedName(name), column]))
}

/** Write values behind the first `length` of an array, or of a larger one where they do not fit. */
export function joined(values, length, fresh, from, to) {
  const size = length + to - from
  const kind = values.BYTES_PER_ELEMENT < fresh.BYTES_PER_ELEMENT ? fresh.constructor : values.constructor
  const isLonger = values.length < size
  const target = isLonger || kind !== values.constructor ? grown(values, isLonger ? roomFor(size) : values.length, length, kind) : values
  target.set(fresh.subarray(from, to), length)
  return target
}

function spanDurations({ start, end }, length) {
  const durations = new Float64Array(length)
  for (let index = 0; index < length; index++) durations[index] = end[index] - start[index]
  return durations
}

let sharedOnes = new Uint8Array(0)

function onesOf(length) {
  if (sharedOnes.length < length) sharedOnes = new Uint8Array(roomFor(length)).fill(1)
  return sharedOnes
}

/** Whether a kernel, copy or fill ran on another lane than the one which its range had selected. */
export function isStray(row, index) {
  if (!row.hasWork) return false
  const owner = row.ownerLane[index]
  return owner >= 0 && owner !== row.lane
}

/** Whether a call blocked the host until the device was done; draw/_scene.NO_WAIT stands for all that did not. */
export function isBlocked(row, index) {
  return row.work("waitedName", index) > WORK_DEFAULTS.waitedName
}
