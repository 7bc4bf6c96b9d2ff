// Level of detail: what is too narrow to be seen alone is merged into items that keep count and busy time exact.
//
// Time is cut into bins of fixed places, so that panning does not flicker. A span at least as long as a bin is an item of its
// own. Shorter ones of a row that start in the same bin, with no long one between them, merge into one item. The rule is the
// same in Python (analysis/_scale.py); the two are tested against each other.

import { gallop, grown } from "./arrays.js"

export const BIN_PX = 1.5
const ITEM_ARRAYS = {
  row: Int32Array, first: Int32Array, last: Int32Array,
  left: Float64Array, right: Float64Array, count: Float64Array, busy: Float64Array,
}
const ITEM_COLUMNS = Object.keys(ITEM_ARRAYS)

/** Smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24 … ns that is at least 1.5 px. */
export function binWidth(nsPerPx) {
  const wanted = BIN_PX * nsPerPx
  let width = 1
  while (width < wanted) {
    if (width > 1 && width * 1.5 >= wanted) return width * 1.5
    width *= 2
  }
  return width
}

// Items in arrays that grow and are used again: set `length` to 0 before each frame.
export class LodItems {
  constructor(capacity = 4096) {
    this.length = 0
    for (const [name, kind] of Object.entries(ITEM_ARRAYS)) this[name] = new kind(capacity)
  }

  push(row, left, right, first, last, count, busy) {
    if (this.length === this.row.length) for (const name of ITEM_COLUMNS) this[name] = grown(this[name], 2 * this.length, this.length)
    const place = this.length++
    this.row[place] = row
    this.left[place] = left
    this.right[place] = right
    this.first[place] = first
    this.last[place] = last
    this.count[place] = count
    this.busy[place] = busy
  }
}

/** Push the items of a row that touch [x0, x1] onto `out`. */
export function decimate(store, code, x0, x1, bin, out) {
  const row = store.row(code)
  const begin = row.firstEndingFrom(x0)
  if (begin >= row.length) return
  // The item that the span belongs to may begin with the first one of its bin.
  const first = row.firstFrom(Math.floor(row.start[begin] / bin) * bin, begin)
  if (row.overlaps || 2 * row.slack >= bin) walkItems(row, first, x0, x1, bin, out)
  else gallopItems(row, first, x0, x1, bin, out)
}

/** Rows whose spans do not overlap: only the last one of a bin can be long. The cost is set by the items, not by the spans. */
function gallopItems(row, begin, x0, x1, bin, out) {
  const { start, end, length, slack } = row
  // Neighbours are about as crowded as each other: half the size of the last item is the first step to the next.
  let step = 1
  for (let index = begin; index < length && start[index] <= x1; ) {
    if (end[index] - start[index] >= bin) {
      if (end[index] >= x0) pushItem(row, index, index, end[index], out)
      index++
      continue
    }
    let last = gallop(start, (Math.floor(start[index] / bin) + 1) * bin, index + 1, length, step) - 1
    step = Math.max(1, (last - index) >> 1)
    if (slack) last = lastBeforeLong(row, index, last, bin)
    if (end[last] - start[last] >= bin) last--
    if (end[last] >= x0) pushItem(row, index, last, end[last], out)
    index = last + 1
  }
}

/**
 * The long span within a bin, or the bin's last one.
 *
 * Where spans reach beyond the next start by less than half a bin, a long one that is not the last must start within that much
 * of the bin's beginning: the next one starts late in the bin.
 */
function lastBeforeLong({ start, end, slack }, first, last, bin) {
  const near = gallop(start, Math.floor(start[first] / bin) * bin + slack + 1, first, last + 1) - 1
  return near >= first && end[near] - start[near] >= bin ? near : last
}

/** Rows with spans over each other, span by span. */
function walkItems(row, begin, x0, x1, bin, out) {
  const { start, end, length } = row
  for (let index = begin; index < length && start[index] <= x1; ) {
    const limit = (Math.floor(start[index] / bin) + 1) * bin
    let right = end[index], next = index + 1
    if (right - start[index] < bin) {
      for (; next < length && start[next] < limit && end[next] - start[next] < bin; next++) right = Math.max(right, end[next])
    }
    if (right >= x0) pushItem(row, index, next - 1, right, out)
    index = next
  }
}

function pushItem(row, first, last, right, out) {
  out.push(row.code, row.start[first], right, first, last, row.countSum(first, last), row.busySum(first, last))
}
