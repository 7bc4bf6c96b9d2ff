// How many lanes, and how many SMs, are busy: exact means over columns of pixels.

import { gallop, lowerBound, upperBound } from "./arrays.js"
import { columnEdge } from "./steps.js"
import { unionsOf } from "./unions.js"

/** Mean number of busy lanes in each of n equal columns of [x0, x1]. */
export function busyShares(store, tables, x0, x1, n) {
  const lanes = new Float64Array(n), unions = unionsOf(store, tables), steps = unions.laneSteps()
  if (steps) steps.addIntegrals(x0, x1, [lanes])
  else for (const union of unions.lanes()) addCoverage(union, x0, x1, lanes)
  return { lanes: scaled(lanes, n / (x1 - x0)) }
}

/** Mean SMs of each band in each of n equal columns: stacked in the order of `tables.bands`, never more than the card has. */
export function smShares(store, tables, x0, x1, n) {
  const bands = tables.bands.map(() => new Float64Array(n))
  if (bands.length) unionsOf(store, tables).smStack().addIntegrals(x0, x1, bands)
  return bands.map(sums => scaled(sums, n / (x1 - x0)))
}

function scaled(values, factor) {
  for (let index = 0; index < values.length; index++) values[index] *= factor
  return values
}

/** Add how much of each column of [x0, x1] a union covers, in ns. Few intervals are taken one by one, many by column. */
function addCoverage(union, x0, x1, columns) {
  const first = upperBound(union.end, x0, 0, union.length)
  const last = lowerBound(union.start, x1, first, union.length) - 1
  if (last - first < columns.length) addByInterval(union, first, last, x0, x1, columns)
  else addByColumn(union, first, last, x0, x1, columns)
}

function addByInterval(union, first, last, x0, x1, columns) {
  const { start, end } = union, n = columns.length, width = x1 - x0
  for (let index = first; index <= last; index++) {
    const to = Math.min(end[index] - x0, width), density = union.densityAt(index)
    let from = Math.max(start[index] - x0, 0)
    for (let column = Math.min(n - 1, Math.floor((from / width) * n)); from < to; column++) {
      const border = column < n - 1 ? Math.min(to, columnEdge(column + 1, width, n)) : to
      if (border <= from) continue
      columns[column] += (border - from) * density
      from = border
    }
  }
}

/** Each column is the difference of what is covered up to its two borders. */
function addByColumn(union, first, last, x0, x1, columns) {
  const { start } = union, n = columns.length, width = x1 - x0, window = { x0, base: union.busyBefore(first) }
  let next = gallop(start, x0, first, last + 1), before = coveredUntil(union, next, 0, window)
  let step = 1
  for (let column = 0; column < n; column++) {
    const left = columnEdge(column, width, n), right = columnEdge(column + 1, width, n), from = next
    next = gallop(start, x0 + right, from, last + 1, step)
    step = Math.max(1, (next - from) >> 1)
    const until = next > from ? coveredUntil(union, next, right, window) : coveredWithin(union, next, before, left, right, x0)
    columns[column] += until - before
    before = until
  }
}

/** Busy time of the window's intervals until t after x0; `next` is the first interval that starts then or later. */
function coveredUntil(union, next, t, { x0, base }) {
  const covered = union.busyBefore(next) - base, beyond = next ? union.end[next - 1] - x0 - t : 0
  return beyond > 0 ? covered - beyond * union.densityAt(next - 1) : covered
}

/** The same, from what is known of an earlier time between which and t no interval starts. */
function coveredWithin(union, next, before, from, t, x0) {
  const end = next ? union.end[next - 1] - x0 : from
  return end <= from ? before : before + (Math.min(end, t) - from) * union.densityAt(next - 1)
}

/** How much of [from, to] the intervals first to last cover, all of which touch it. */
export function coverage(union, first, last, from, to) {
  if (last < first) return 0
  const before = from - union.start[first], after = union.end[last] - to
  let sum = union.busySum(first, last)
  if (before > 0) sum -= before * union.densityAt(first)
  if (after > 0) sum -= after * union.densityAt(last)
  return sum
}
