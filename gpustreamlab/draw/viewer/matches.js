// Spans that a search finds. What is searched for is an array by name code that `store.setMatches` takes.

/** How many of the spans that are shown match. */
export function countMatches(store) {
  if (!store.matches) return 0
  return store.rows.reduce((sum, { code, length }) => {
    const row = length ? store.row(code) : { length: 0 }
    return row.length ? sum + row.matchCount(0, row.length - 1, store.matches) : sum
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
  for (const { code, length } of store.rows) {
    const row = length ? store.row(code) : null
    if (!row?.length) continue
    const index = direction > 0 ? matchAfter(row, anchor, store.matches) : matchBefore(row, anchor, store.matches)
    if (index < 0 || index >= row.length) continue
    const time = row.start[index]
    if (!found || (direction > 0 ? time < found.time : time >= found.time)) found = { row: code, index, time }
  }
  return found && { row: found.row, index: found.index }
}

function anchorOf(store, from, direction) {
  if (from?.row !== undefined) return { time: store.row(from.row).start[from.index], row: from.row, index: from.index }
  const isForward = direction > 0
  return { time: from ? from.time : isForward ? -Infinity : Infinity, row: isForward ? -1 : Infinity, index: -1 }
}

function matchAfter(row, anchor, matches) {
  if (row.code === anchor.row) return row.nextMatch(anchor.index + 1, matches)
  return row.nextMatch(row.code < anchor.row ? row.indexAt(anchor.time) + 1 : row.firstFrom(anchor.time), matches)
}

function matchBefore(row, anchor, matches) {
  if (row.code === anchor.row) return row.previousMatch(anchor.index - 1, matches)
  return row.previousMatch(row.code < anchor.row ? row.indexAt(anchor.time) : row.firstFrom(anchor.time) - 1, matches)
}
