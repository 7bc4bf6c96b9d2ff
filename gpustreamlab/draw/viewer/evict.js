// What goes when a store is full: the spans that ended first.

import { lowerBound, upperBound } from "./arrays.js"

/** Take away spans until `wanted` are left. */
export function evictOldest(store, wanted) {
  const rows = store.rows.filter(row => row.length)
  const ends = rows.map(sortedEnds)
  const limit = timeByWhichEnded(rows, ends, store.length - wanted)
  // Of those that end right at the limit, only as many go as must.
  let spare = store.length - wanted - endedBefore(rows, ends, limit)
  rows.forEach((row, place) => {
    const before = row.countSum(0, row.length - 1), length = row.length
    if (row.overlaps) spare -= keepLasting(row, limit, spare)
    else spare -= dropEnded(row, ends[place], limit, spare)
    const gone = before - (row.length ? row.countSum(0, row.length - 1) : 0)
    store.length -= length - row.length
    store.spanCount -= gone
    store.evictedCount += gone
  })
  store.evictions++
  store.forgetFiltered()
  store.edges.dropBefore(limit)
  store.launches.dropBefore(limit)
}

/** Ends of a row in order; they are as they stand where spans do not overlap. */
function sortedEnds(row) {
  return row.overlaps ? row.end.slice(0, row.length).sort() : row.end
}

/** The first ns by which at least `count` spans have ended. */
function timeByWhichEnded(rows, ends, count) {
  let low = Infinity, high = -Infinity
  rows.forEach((row, place) => {
    low = Math.min(low, ends[place][0])
    high = Math.max(high, ends[place][row.length - 1])
  })
  while (low < high) {
    const middle = low + Math.floor((high - low) / 2)
    if (endedBefore(rows, ends, middle + 1) >= count) high = middle
    else low = middle + 1
  }
  return low
}

function endedBefore(rows, ends, t) {
  return rows.reduce((sum, row, place) => sum + lowerBound(ends[place], t, 0, row.length), 0)
}

/** Drop what ended before the limit, and up to `spare` of what ended at it; return how many of these. */
function dropEnded(row, ends, limit, spare) {
  const before = lowerBound(ends, limit, 0, row.length)
  const at = Math.min(spare, upperBound(ends, limit, before, row.length) - before)
  if (before + at) row.dropBefore(before + at)
  return at
}

function keepLasting(row, limit, spare) {
  const kept = new Uint32Array(row.length)
  let count = 0, dropped = 0
  for (let index = 0; index < row.length; index++) {
    const isSpare = row.end[index] === limit && dropped < spare
    if (isSpare) dropped++
    else if (row.end[index] >= limit) kept[count++] = index
  }
  if (count < row.length) row.keep(kept.subarray(0, count))
  return dropped
}
