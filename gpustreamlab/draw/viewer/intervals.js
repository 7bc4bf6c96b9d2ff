// Intervals in order of time, with sums of their lengths.

import { BlockSums, byPairs, lowerBound, roomy, sumBetween } from "./arrays.js"

export const SUM_SPANS = 8 // A sum before every 8th: a byte an interval instead of eight.

export class Intervals {
  constructor(size = 16) {
    // The arrays may be longer than `length`.
    this.start = new Float64Array(size)
    this.end = new Float64Array(size)
    this.length = 0
    // Busy time where it is less than the length: an interval that stands for several spans.
    this.busy = null
    this.busySums = new BlockSums(SUM_SPANS, (from, to) => this.addBusy(from, to))
  }

  /** Add intervals that are themselves disjoint and in order. */
  add(fresh) {
    if (!fresh.length) return
    const at = lowerBound(this.end, fresh.start[0], 0, this.length)
    const tail = { start: this.start.slice(at, this.length), end: this.end.slice(at, this.length), length: this.length - at }
    this.busySums.forget(at)
    this.length = at
    extendByBoth(this, tail, fresh)
  }

  /** Busy time of the intervals i to j, both included. */
  busySum(i, j) {
    return this.busySums.between(i, j + 1, this.length)
  }

  busyAt(index) {
    return this.busy ? this.busy[index] : this.end[index] - this.start[index]
  }

  /** How much of a ns of an interval is busy: less than 1 where it stands for several spans. */
  densityAt(index) {
    return this.busy ? this.busy[index] / (this.end[index] - this.start[index] || 1) : 1
  }

  addBusy(from, to) {
    if (this.busy) return sumBetween(this.busy, from, to)
    let sum = 0
    for (let index = from; index < to; index++) sum += this.end[index] - this.start[index]
    return sum
  }
}

/** Union of lists of disjoint intervals. */
export const uniteAll = lists => byPairs(lists, unite) ?? new Intervals()

function unite(one, other) {
  const union = new Intervals(one.length + other.length)
  extendByBoth(union, one, other)
  return union
}

/** Append two lists of disjoint intervals to a union that ends before both begin, or where they begin. */
function extendByBoth(union, one, other) {
  for (const side of ["start", "end"]) union[side] = roomy(union[side], union.length + one.length + other.length, union.length)
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
