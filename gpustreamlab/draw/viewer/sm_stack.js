// SMs in use over time, as steps. A level is the set of partitions that are busy; each set that occurs is kept once, with the
// SMs of each band in it.

import { lowerBound, roomy } from "./arrays.js"
import { StepSeries } from "./steps.js"

export class SmStack extends StepSeries {
  constructor(shape, slots, tables) {
    super(tables.bands.length)
    this.shape = shape
    this.smCount = tables.sm_count
    const sizes = new Map(slots.map((slot, code) => [slot, { slot, ...tables.partitions[code] }]))
    this.sizes = [...sizes.values()].filter(({ band }) => band >= 0)
    this.sets = [[]]
    this.setNumbers = new Map([["", 0]])
    this.heights = new Float64Array(this.bandCount * 64)
    // From a set and what becomes busy or idle to the next set.
    this.moves = new Map()
  }

  heightOf(set, band) {
    return this.heights[set * this.bandCount + band]
  }

  /** Build the steps anew from t on. */
  update(t, unions) {
    const { time, number, length } = mergeToggles(this.sizes.map(({ slot }, place) => togglesFrom(unions.get(slot), t, place)))
    let set = this.cutFrom(t, length)
    for (let index = 0; index < length; index++) {
      set = this.moved(set, number[index])
      if (time[index + 1] !== time[index]) this.push(time[index], set)
    }
    return this
  }

  moved(set, number) {
    const key = set * this.sizes.length + number
    let next = this.moves.get(key)
    if (next === undefined) {
      const busy = this.sets[set]
      next = this.numberOf(busy.includes(number) ? busy.filter(one => one !== number) : [...busy, number].sort((a, b) => a - b))
      this.moves.set(key, next)
    }
    return next
  }

  numberOf(busy) {
    const name = busy.join()
    let number = this.setNumbers.get(name)
    if (number === undefined) {
      number = this.sets.push(busy) - 1
      this.setNumbers.set(name, number)
      this.heights = roomy(this.heights, (number + 1) * this.bandCount, number * this.bandCount)
      this.stackUp(busy, number * this.bandCount)
    }
    return number
  }

  /** From the bottom band up, each gets at most what is left of the card. */
  stackUp(busy, at) {
    let left = this.smCount
    for (const { band, sms } of busy.map(number => this.sizes[number]).sort((one, other) => one.band - other.band)) {
      this.heights[at + band] += Math.min(sms, left)
      left -= Math.min(sms, left)
    }
  }
}

/** Times from t on at which a partition becomes busy or idle, with its number. */
function togglesFrom(union, t, number) {
  if (!union) return { time: new Float64Array(0), number: new Uint16Array(0), length: 0 }
  const first = lowerBound(union.end, t, 0, union.length), time = new Float64Array(2 * (union.length - first))
  let length = 0
  for (let index = first; index < union.length; index++) {
    if (union.start[index] >= t) time[length++] = union.start[index]
    time[length++] = union.end[index]
  }
  return { time: time.subarray(0, length), number: new Uint16Array(length).fill(number), length }
}

/** Merge lists of toggles by pairs, in order of time. */
export function mergeToggles(lists) {
  while (lists.length > 1) {
    const pairs = []
    for (let index = 0; index < lists.length; index += 2) {
      pairs.push(index + 1 < lists.length ? mergeTwo(lists[index], lists[index + 1]) : lists[index])
    }
    lists = pairs
  }
  return lists[0] ?? togglesFrom(null)
}

function mergeTwo(one, other) {
  const length = one.length + other.length, time = new Float64Array(length), number = new Uint16Array(length)
  const { time: times, number: numbers } = one, { time: otherTimes, number: otherNumbers } = other
  let i = 0, j = 0, index = 0
  while (i < one.length && j < other.length) {
    const isOne = times[i] <= otherTimes[j]
    time[index] = isOne ? times[i] : otherTimes[j]
    number[index++] = isOne ? numbers[i++] : otherNumbers[j++]
  }
  time.set(times.subarray(i, one.length), index)
  number.set(numbers.subarray(i, one.length), index)
  time.set(otherTimes.subarray(j, other.length), index + one.length - i)
  number.set(otherNumbers.subarray(j, other.length), index + one.length - i)
  return { time, number, length }
}
