// Heights over time as steps: each is a time and the number of a level; a level is a height for each of some bands.

import { gallop, lowerBound, roomy, upperBound } from "./arrays.js"

const SUM_STEPS = 64

export class StepSeries {
  constructor(bandCount) {
    this.bandCount = bandCount
    this.time = new Float64Array(64)
    this.level = new Uint32Array(64)
    this.length = 0
    // Integrals before every 64th step, by band.
    this.sums = new Float64Array(bandCount)
    this.summed = 0
  }

  /** Height of a band at a level. */
  heightOf(level, band) {
    throw new Error(`no heights of level ${level} in band ${band}`)
  }

  /** Forget the steps from t on, make room for new ones, and return the level before t. */
  cutFrom(t, room) {
    this.length = lowerBound(this.time, t, 0, this.length)
    // A block's sum holds the length of its last step, up to the next one.
    this.summed = Math.min(this.summed, Math.floor(Math.max(0, this.length - 1) / SUM_STEPS) * SUM_STEPS)
    this.time = roomy(this.time, this.length + room, this.length)
    this.level = roomy(this.level, this.length + room, this.length)
    return this.length ? this.level[this.length - 1] : 0
  }

  push(time, level) {
    this.time[this.length] = time
    this.level[this.length++] = level
  }

  /** Last step at t or before, or -1. */
  indexAt(t) {
    return upperBound(this.time, t, 0, this.length) - 1
  }

  /** Add the integral of each band over each of the equal columns of [x0, x1]. */
  addIntegrals(x0, x1, bands) {
    this.sumUp()
    const n = bands[0].length, width = x1 - x0
    let at = this.indexAt(x0)
    for (let column = 0; column < n; column++) {
      const from = columnEdge(column, width, n), to = columnEdge(column + 1, width, n), last = this.lastBefore(x0, to, at)
      if (last <= at) this.addStep(at, to - from, column, bands)
      else {
        this.addStep(at, this.time[at + 1] - x0 - from, column, bands)
        this.addWhole(at + 1, last, column, bands)
        this.addStep(last, to - (this.time[last] - x0), column, bands)
        at = last
      }
    }
  }

  /** Last step before a time after x0, from an earlier step on. The sum of the two may be rounded past a step, their difference is not. */
  lastBefore(x0, after, from) {
    let last = gallop(this.time, x0 + after, Math.max(0, from), this.length) - 1
    while (last > from && this.time[last] - x0 >= after) last--
    while (last + 1 < this.length && this.time[last + 1] - x0 < after) last++
    return last
  }

  addStep(index, width, column, bands) {
    if (index < 0) return
    const level = this.level[index]
    for (let band = 0; band < bands.length; band++) bands[band][column] += this.heightOf(level, band) * width
  }

  /** Add whole steps: by blocks where there are any between. */
  addWhole(from, to, column, bands) {
    const first = Math.ceil(from / SUM_STEPS), last = Math.min(Math.floor(to / SUM_STEPS), this.summed / SUM_STEPS)
    if (last <= first) {
      for (let index = from; index < to; index++) this.addStep(index, this.time[index + 1] - this.time[index], column, bands)
      return
    }
    this.addWhole(from, first * SUM_STEPS, column, bands)
    const { bandCount, sums } = this
    for (let band = 0; band < bandCount; band++) bands[band][column] += sums[last * bandCount + band] - sums[first * bandCount + band]
    this.addWhole(last * SUM_STEPS, to, column, bands)
  }

  sumUp() {
    const { bandCount } = this, blocks = Math.floor(Math.max(0, this.length - 1) / SUM_STEPS)
    let block = this.summed / SUM_STEPS
    if (block >= blocks) return
    this.sums = roomy(this.sums, (blocks + 1) * bandCount, (block + 1) * bandCount)
    for (; block < blocks; block++) this.sumBlock(block)
    this.summed = blocks * SUM_STEPS
  }

  sumBlock(block) {
    const { bandCount, sums, time, level } = this, at = block * bandCount, next = at + bandCount
    sums.copyWithin(next, at, next)
    for (let index = block * SUM_STEPS; index < (block + 1) * SUM_STEPS; index++) {
      const width = time[index + 1] - time[index]
      for (let band = 0; band < bandCount; band++) sums[next + band] += this.heightOf(level[index], band) * width
    }
  }
}

// How many lanes are busy over time. It takes the place of the lanes' unions where these are many.
export class LaneSteps extends StepSeries {
  constructor() {
    super(1)
  }

  heightOf(level) {
    return level
  }

  /** Build the steps anew from t on. */
  update(t, unions) {
    const starts = timesFrom(unions, "start", t), ends = timesFrom(unions, "end", t)
    let count = this.cutFrom(t, starts.length + ends.length)
    for (let i = 0, j = 0; j < ends.length; ) {
      const time = i < starts.length && starts[i] < ends[j] ? starts[i] : ends[j], before = count
      for (; starts[i] === time; i++) count++
      for (; ends[j] === time; j++) count--
      if (count !== before) this.push(time, count)
    }
    return this
  }
}

/** Starts or ends of all unions from t on, in order. */
function timesFrom(unions, side, t) {
  const parts = unions.map(union => union[side].subarray(lowerBound(union[side], t, 0, union.length), union.length))
  const times = new Float64Array(parts.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const part of parts) {
    times.set(part, at)
    at += part.length
  }
  return times.sort()
}

/**
 * Left border of a column of n in a window, from where the window begins.
 *
 * Columns of less than a ns are exact that way however far from 0 they are: times there have no digits left for such parts.
 */
export function columnEdge(column, width, n) {
  return column < n ? (width * column) / n : width
}
