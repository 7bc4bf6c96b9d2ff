// How many lanes, and how many SMs, are busy: exact means over columns of pixels.

import { gallop, lowerBound } from "./arrays.js"
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
