// How much time each name takes, kept up to date from what was appended since: a live session may hold millions of spans.

import { isBlocked, isStray } from "./rows.js"

export class NameTimes {
  constructor() {
    this.names = new Map() // By name code: {busy, count}, of all spans, hidden or not.
    this.kinds = new Set()
    this.strayCount = 0 // Work that left its stream.
    this.hasBlocked = false // Whether a call that is made for something else blocked the host.
    this.rows = []
  }

  /** Take in what is new; a row in which spans came in between, or went, is counted anew. */
  update(store, { rows }) {
    this.rows.length = rows.length
    for (const code of rows.keys()) {
      const row = store.ownRow(code), known = this.rows[code]
      if (!known || known.edits !== row.edits || known.length > row.length) {
        this.rows[code] = { edits: row.edits, length: 0, strays: 0, hasBlocked: false, names: new Map(), kinds: new Set() }
      }
      countSpans(row, this.rows[code])
    }
    this.names.clear()
    for (const { names } of this.rows) for (const [code, { busy, count }] of names) addTimes(this.names, code, busy, count)
    this.kinds = new Set(this.rows.flatMap(({ kinds }) => [...kinds]))
    this.strayCount = this.rows.reduce((sum, { strays }) => sum + strays, 0)
    this.hasBlocked = this.rows.some(({ hasBlocked }) => hasBlocked)
  }

  /** Codes of the names that there are, those that take most time first; those of `known` keep their places before new ones. */
  order(known = []) {
    const { names } = this, kept = known.filter(code => names.has(code)), isKept = new Set(kept)
    const fresh = [...names.keys()].filter(code => !isKept.has(code))
    return [...kept, ...fresh.sort((a, b) => names.get(b).busy - names.get(a).busy || a - b)]
  }
}

function countSpans(row, known) {
  const { name, kind, length, hasWork } = row
  for (let i = known.length; i < length; i += 1) {
    addTimes(known.names, name[i], row.busyAt(i), 1)
    known.kinds.add(kind[i])
    if (hasWork && isStray(row, i)) known.strays += 1
    if (hasWork && isBlocked(row, i)) known.hasBlocked = true
  }
  known.length = length
}

function addTimes(sums, code, busy, count) {
  const sum = sums.get(code)
  if (!sum) sums.set(code, { busy, count })
  else { sum.busy += busy; sum.count += count }
}
