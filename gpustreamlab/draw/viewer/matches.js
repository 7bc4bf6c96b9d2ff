// Spans that a search finds. What is searched for is an array by name code that `store.setMatches` takes.

/** How many of the spans that are shown match: all, or those up to a span, {row, index}, in the order of `nextMatch`. */
export function countMatches(store, upTo = null) {
  if (!store.matches) return 0
  const anchor = anchorOf(store, upTo, -1)
  return shownRows(store).reduce((sum, row) => {
    const last = lastUpTo(row, anchor)
    return last < 0 ? sum : sum + row.matchCount(0, last, store.matches)
  }, 0)
}

/**
 * The next matching span by start, then by row and index, in direction 1 or -1; null where there is none.
 *
 * `from` is {row, index} of a span, {time} in ns, or null for the first (or last) of all.
 */
export function nextMatch(store, from, direction = 1) {
  if (!store.matches) return null
  const anchor = anchorOf(store, from, direction)
  let found = null
  for (const row of shownRows(store)) {
    const last = lastUpTo(row, anchor), before = row.code === anchor.row ? last - 1 : last
    const index = row.nextMatch(direction > 0 ? last + 1 : before, store.matches, direction)
    if (index < 0 || index >= row.length) continue
    const time = row.start[index]
    if (!found || (direction > 0 ? time < found.time : time >= found.time)) found = { row: row.code, index, time }
  }
  return found && { row: found.row, index: found.index }
}

function shownRows(store) {
  const rows = store.rows.filter(({ length }) => length) // Of those without spans no copy is made.
  return rows.map(({ code }) => store.row(code)).filter(({ length }) => length)
}

function anchorOf(store, from, direction) {
  if (from?.row !== undefined) return { time: store.row(from.row).start[from.index], row: from.row, index: from.index }
  const isForward = direction > 0
  return { time: from ? from.time : isForward ? -Infinity : Infinity, row: isForward ? -1 : Infinity, index: -1 }
}

/** The last span of a row that does not come after an anchor, or -1. */
function lastUpTo(row, { time, row: code, index }) {
  if (row.code === code) return index
  return row.code < code ? row.indexAt(time) : row.firstFrom(time) - 1
}
