// Intervals in order of time, with sums of their lengths.

import { grown, lowerBound, roomFor, roomy, sumBetween } from "./arrays.js"

export const SUM_SPANS = 8

export class Intervals {
  constructor(size = 16) {
    // The arrays may be longer than `length`.
    this.start = new Float64Array(size)
    this.end = new Float64Array(size)
    this.length = 0
    // Busy time where it is less than the length: an interval that stands for several spans.
    this.busyOrNull = null
    // Sums before every 8th interval: a byte an interval instead of eight.
    this.sums = new Float64Array(1)
    this.summed = 0
  }

  /** Add intervals that are themselves disjoint and in order. */
  add(fresh) {
    if (!fresh.length) return
    const at = lowerBound(this.end, fresh.start[0], 0, this.length)
    const tail = new Intervals(0)
    tail.start = this.start.slice(at, this.length)
    tail.end = this.end.slice(at, this.length)
    tail.length = this.length - at
    this.forgetSums(at)
    this.reserve(at + tail.length + fresh.length)
    this.length = at
    extendByBoth(this, tail, fresh)
  }

  reserve(size) {
    if (this.start.length >= size) return
    this.start = grown(this.start, roomFor(size), this.length)
    this.end = grown(this.end, roomFor(size), this.length)
  }

  /** Busy time of the intervals i to j, both included. */
  busySum(i, j) {
    return j - i < SUM_SPANS ? this.addBusy(i, j + 1) : this.busyBefore(j + 1) - this.busyBefore(i)
  }

  /** Busy time of the intervals before one. */
  busyBefore(index) {
    if (this.summed + SUM_SPANS <= this.length) this.sumUp()
    const block = Math.floor(index / SUM_SPANS)
    return this.sums[block] + this.addBusy(block * SUM_SPANS, index)
  }

  /** How much of a ns of an interval is busy: less than 1 where it stands for several spans. */
  densityAt(index) {
    return this.busyOrNull ? this.busyOrNull[index] / (this.end[index] - this.start[index]) : 1
  }

  addBusy(from, to) {
    if (this.busyOrNull) return sumBetween(this.busyOrNull, from, to)
    const { start, end } = this
    let sum = 0
    for (let index = from; index < to; index++) sum += end[index] - start[index]
    return sum
  }

  sumUp() {
    const blocks = Math.floor(this.length / SUM_SPANS)
    let block = this.summed / SUM_SPANS
    this.sums = roomy(this.sums, blocks + 1, block + 1)
    let sum = this.sums[block]
    for (; block < blocks; block++) {
      sum += this.addBusy(block * SUM_SPANS, (block + 1) * SUM_SPANS)
      this.sums[block + 1] = sum
    }
    this.summed = blocks * SUM_SPANS
  }

  /** What is summed up from an index on is out of date. */
  forgetSums(from) {
    this.summed = Math.min(this.summed, Math.floor(from / SUM_SPANS) * SUM_SPANS)
  }
}

/** Union of lists of disjoint intervals, by pairs: an interval moves only as often as the number of lists has bits. */
export function uniteAll(lists) {
  while (lists.length > 1) {
    const pairs = []
    for (let index = 0; index < lists.length; index += 2) {
      pairs.push(index + 1 < lists.length ? unite(lists[index], lists[index + 1]) : lists[index])
    }
    lists = pairs
  }
  return lists[0] ?? new Intervals()
}

function unite(one, other) {
  const union = new Intervals(one.length + other.length)
  extendByBoth(union, one, other)
  return union
}

/** Append two lists of disjoint intervals to a union that ends before both begin, or where they begin. */
function extendByBoth(union, one, other) {
  union.reserve(union.length + one.length + other.length)
  const { start, end } = union
  let last = union.length - 1, reach = last < 0 ? -Infinity : end[last], i = 0, j = 0
  while (i < one.length || j < other.length) {
    const isOne = j >= other.length || (i < one.length && one.start[i] <= other.start[j])
    const from = isOne ? one.start[i] : other.start[j], to = isOne ? one.end[i++] : other.end[j++]
    if (from > reach) {
      start[++last] = from
      end[last] = reach = to
    } else if (to > reach) end[last] = reach = to
  }
  union.length = last + 1
}
