// Typed arrays that grow, searches in sorted ones, and sums over their places.

/** Room for `length` values and half as many more, so that appending one by one is linear. */
export const roomFor = length => Math.max(64, Math.ceil(length * 1.5))

/** A larger copy that keeps the first `kept` values. */
export function grown(values, size, kept, kind = values.constructor) {
  const larger = new kind(size)
  if (kept) larger.set(values.subarray(0, kept))
  return larger
}

/** The same array if it is long enough, or a larger copy. */
export const roomy = (values, size, kept) => values.length >= size ? values : grown(values, roomFor(size), kept)

export function sumBetween(values, from, to) {
  let sum = 0
  for (let index = from; index < to; index++) sum += values[index]
  return sum
}

/** First of the sorted values between two places that is at least t. */
export function lowerBound(values, t, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1
    if (values[middle] < t) from = middle + 1
    else to = middle
  }
  return from
}

/** First of the sorted values between two places that is more than t. */
export function upperBound(values, t, from, to) {
  while (from < to) {
    const middle = (from + to) >>> 1
    if (values[middle] <= t) from = middle + 1
    else to = middle
  }
  return from
}

/** The same as lowerBound by steps that double from `step` on: cheap where the answer is near. */
export function gallop(values, t, from, to, step = 1) {
  let ahead = from + step - 1
  while (ahead < to && values[ahead] < t) {
    from = ahead + 1
    ahead += step
    step *= 2
  }
  return lowerBound(values, t, from, Math.min(ahead, to))
}

/** Merge lists by pairs: a value moves only as often as the number of lists has bits. */
export function byPairs(lists, merge) {
  if (lists.length < 2) return lists[0]
  const middle = lists.length >> 1
  return merge(byPairs(lists.slice(0, middle), merge), byPairs(lists.slice(middle), merge))
}

/** Merge two lists of times with their numbers, each in order of time; of equal times the first list's come first. */
export function mergeTimed(one, other) {
  const length = one.time.length + other.time.length
  const time = new Float64Array(length), number = new one.number.constructor(length)
  const { time: times, number: numbers } = one, { time: otherTimes, number: otherNumbers } = other
  for (let at = 0, i = 0, j = 0; at < length; at++) {
    const isOne = j >= otherTimes.length || (i < times.length && times[i] <= otherTimes[j])
    time[at] = isOne ? times[i] : otherTimes[j]
    number[at] = isOne ? numbers[i++] : otherNumbers[j++]
  }
  return { time, number }
}

// Sums over places, kept before every so manieth place, so that a sum over many places costs a few additions.
export class BlockSums {
  /** `add(from, to)` sums up the places from `from` to before `to`. */
  constructor(size, add) {
    this.size = size
    this.add = add
    this.sums = new Float64Array(1)
    this.blocks = 0 // So many are summed up.
  }

  /** What is summed up from a place on is out of date. */
  forget(from = 0) {
    this.blocks = Math.min(this.blocks, Math.floor(Math.max(0, from) / this.size))
  }

  /** The sum from i to before j, of `length` places. */
  between(i, j, length) {
    return j - i <= this.size ? this.add(i, j) : this.before(j, length) - this.before(i, length)
  }

  before(place, length) {
    this.sumUp(length)
    const block = Math.floor(place / this.size)
    return this.sums[block] + this.add(block * this.size, place)
  }

  sumUp(length) {
    const blocks = Math.floor(length / this.size)
    if (this.blocks >= blocks) return
    this.sums = roomy(this.sums, blocks + 1, this.blocks + 1)
    for (let block = this.blocks; block < blocks; block++) {
      this.sums[block + 1] = this.sums[block] + this.add(block * this.size, (block + 1) * this.size)
    }
    this.blocks = blocks
  }
}

export const SUM_SPANS = 8 // A sum before every 8th: a byte an interval instead of eight.
