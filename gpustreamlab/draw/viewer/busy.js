// Which spans count as busy, when those of a lane were, and how much of each column of pixels.

import { gallop, lowerBound, upperBound } from "./arrays.js"

/** When counted spans of these rows end before a time, or around it, and when the next one starts; infinite where there is none. */
export function busyAround(store, tables, codes, time) {
  const { isCounted, uncaptured } = countingOf(tables)
  let end = -Infinity, next = Infinity
  for (const code of codes) {
    const row = store.ownRow(code), ends = row.overlaps ? row.reach() : row.end, at = row.indexAt(time)
    const counts = index => row.end[index] > row.start[index] && isCounted[row.kind[index]] && (!uncaptured || uncaptured(row.kind[index], row.start[index]))
    for (let index = at; index >= 0 && ends[index] > end; index--) if (counts(index)) end = Math.max(end, row.end[index])
    for (let index = at + 1; index < row.length && row.start[index] < next; index++) if (counts(index)) next = row.start[index]
  }
  return { end, next }
}

/** What decides which spans count. A window that still grows does not change it: no span came that started after its end. */
export function countedKey({ kind_counted: counted, kind_on_sms: onSms = counted, capture }) {
  const windows = (capture?.windows ?? []).map(([start, end], place, all) => (place < all.length - 1 ? `${start}-${end}` : start))
  return `${counted.map(Number).join("")} ${onSms.map(Number).join("")} ${windows.join()}`
}

/** Which kinds count as busy, and as busy on SMs, by code; and what `uncapturedRanges` gives. */
export const countingOf = tables => ({
  isCounted: Uint8Array.from(tables.kind_counted, Boolean),
  isOnSms: Uint8Array.from(tables.kind_on_sms ?? tables.kind_counted, Boolean),
  uncaptured: uncapturedRanges(tables),
})

/**
 * A function that tells whether a span of a kind counts that started at a time, or null where all do.
 *
 * A range that started while kernels were captured leaves it to its kernels: it also contains the wait for them.
 */
function uncapturedRanges({ kinds, kind_counted: counted, capture }) {
  const windows = capture?.windows ?? [], range = windows.length ? kinds.indexOf("range") : -1
  if (range < 0 || !counted[range]) return null
  const starts = Float64Array.from(windows, ([start]) => start), ends = Float64Array.from(windows, ([, end]) => end)
  return (kind, time) => {
    if (kind !== range) return true
    const place = upperBound(starts, time, 0, starts.length) - 1
    return place < 0 || time >= ends[place]
  }
}

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

/**
 * Left border of a column of n in a window, from where the window begins.
 *
 * Columns of less than a ns are exact that way however far from 0 they are: times there have no digits left for such parts.
 */
const columnEdge = (column, width, n) => column < n ? (width * column) / n : width
