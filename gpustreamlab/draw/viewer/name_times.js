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
  update(store, { rows, names }) {
    const scratch = { busy: new Float64Array(names.length), count: new Float64Array(names.length), kinds: new Uint8Array(256) }
    for (let code = 0; code < rows.length; code += 1) {
      const row = store.ownRow(code)
      let known = this.rows[code]
      if (known && (known.edits !== row.edits || known.length > row.length)) {
        this.add(known.names, -1)
        this.strayCount -= known.strays
        known = null
      }
      if (!known) known = this.rows[code] = { edits: row.edits, length: 0, strays: 0, names: new Map() }
      if (known.length < row.length) this.addRow(row, known, scratch)
    }
    scratch.kinds.forEach((isThere, kind) => { if (isThere) this.kinds.add(kind) })
  }

  addRow(row, known, { busy, count, kinds }) {
    const { name, kind, start, end, busyOrNull, length } = row, fresh = new Map()
    for (let i = known.length; i < length; i += 1) {
      const code = name[i]
      if (!count[code]) fresh.set(code, null)
      busy[code] += busyOrNull ? busyOrNull[i] : end[i] - start[i]
      count[code] += 1
      kinds[kind[i]] = 1
    }
    for (const code of fresh.keys()) {
      fresh.set(code, { busy: busy[code], count: count[code] })
      busy[code] = count[code] = 0
    }
    if (row.hasWork) this.countStrays(row, known)
    known.length = length
    addTimes(known.names, fresh, 1)
    this.add(fresh, 1)
  }

  countStrays(row, known) {
    for (let i = known.length; i < row.length; i += 1) {
      if (isStray(row, i)) { known.strays += 1; this.strayCount += 1 }
      if (isBlocked(row, i)) this.hasBlocked = true
    }
  }

  add(times, sign) { addTimes(this.names, times, sign) }

  /** Codes of the names that there are, those that take most time first; those of `known` keep their places before new ones. */
  order(known = []) {
    const { names } = this, kept = known.filter(code => names.has(code)), isKept = new Set(kept)
    const fresh = [...names.keys()].filter(code => !isKept.has(code))
    return [...kept, ...fresh.sort((a, b) => names.get(b).busy - names.get(a).busy || a - b)]
  }
}

function addTimes(sums, times, sign) {
  for (const [code, { busy, count }] of times) {
    const sum = sums.get(code) ?? { busy: 0, count: 0 }
    const left = { busy: sum.busy + sign * busy, count: sum.count + sign * count }
    if (left.count) sums.set(code, left)
    else sums.delete(code)
  }
}
