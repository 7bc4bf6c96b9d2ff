// Heights over time as steps: each is a time and the number of a level; a level is a height for each of some bands.

import { BlockSums, byPairs, gallop, lowerBound, mergeTimed, roomy, upperBound } from "./arrays.js"

const SUM_STEPS = 64

// Of a series, `heightOf(level, band)` is the height of a band, and `next(level, number)` the level after something changed.
class StepSeries {
  constructor(bandCount) {
    this.time = new Float64Array(64)
    this.level = new Uint32Array(64)
    this.length = 0
    this.sums = Array.from({ length: bandCount }, (_, band) => new BlockSums(SUM_STEPS, (from, to) => this.integral(from, to, band)))
  }

  /** Put other steps from t on: `lists` are the times at which something changes, with numbers of which `next` makes levels. */
  rebuild(t, lists) {
    const { time, number } = byPairs(lists, mergeTimed) ?? { time: [] }
    this.length = lowerBound(this.time, t, 0, this.length)
    // A block's sum holds the length of its last step, up to the next one.
    for (const sums of this.sums) sums.forget(this.length - 1)
    this.time = roomy(this.time, this.length + time.length, this.length)
    this.level = roomy(this.level, this.length + time.length, this.length)
    let known = this.length ? this.level[this.length - 1] : 0
    for (let index = 0, level = known; index < time.length; index++) {
      level = this.next(level, number[index])
      if (time[index + 1] === time[index] || level === known) continue
      this.time[this.length] = time[index]
      this.level[this.length++] = known = level
    }
    return this
  }

  /** Add the integral of each band over each of the equal columns of [x0, x1]. */
  addIntegrals(x0, x1, bands) {
    const n = bands[0].length, width = x1 - x0
    let at = upperBound(this.time, x0, 0, this.length) - 1
    for (let column = 0; column < n; column++) {
      const from = columnEdge(column, width, n), to = columnEdge(column + 1, width, n), last = this.lastBefore(x0, to, at)
      if (last <= at) this.addStep(at, to - from, column, bands)
      else {
        this.addStep(at, this.time[at + 1] - x0 - from, column, bands)
        this.sums.forEach((sums, band) => { bands[band][column] += sums.between(at + 1, last, this.length - 1) })
        this.addStep(last, to - (this.time[last] - x0), column, bands)
        at = last
      }
    }
  }

  /** Last step before a time after x0, from an earlier one on. Their sum may be rounded past a step, their difference not. */
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

  integral(from, to, band) {
    let sum = 0
    for (let index = from; index < to; index++) {
      sum += this.heightOf(this.level[index], band) * (this.time[index + 1] - this.time[index])
    }
    return sum
  }
}

// How many lanes are busy over time. It takes the place of the lanes' unions where these are many.
export class LaneSteps extends StepSeries {
  constructor() { super(1) }

  heightOf(level) { return level }

  next(level, step) { return level + step }

  update(t, unions) { return this.rebuild(t, unions.map(union => togglesFrom(union, t, 1, -1))) }
}

/** Times from t on at which a union begins to be busy or idle, with a number for either. */
function togglesFrom(union, t, begins, ends) {
  const length = union?.length ?? 0, first = union ? lowerBound(union.end, t, 0, length) : 0
  const time = new Float64Array(2 * (length - first)), number = new Int32Array(time.length)
  for (let index = first, at = 0; index < length; index++) {
    time[at] = union.start[index]
    number[at++] = begins
    time[at] = union.end[index]
    number[at++] = ends
  }
  const skipped = time[0] < t ? 1 : 0 // It was busy before.
  return { time: time.subarray(skipped), number: number.subarray(skipped) }
}

/**
 * Left border of a column of n in a window, from where the window begins.
 *
 * Columns of less than a ns are exact that way however far from 0 they are: times there have no digits left for such parts.
 */
export const columnEdge = (column, width, n) => column < n ? (width * column) / n : width
