// What a window holds: totals of lanes and names, and the overlap of lanes.

import { lowerBound, roomy, upperBound } from "./arrays.js"
import { addCoverage, countingOf, unionsOf } from "./unions.js"

const PAIRED_LANES = 16 // Lanes whose overlap is computed, at most: the busiest.
const OTHER_LANES = 48 // Lanes outside a selection that are paired with those in it, at most: the busiest.

/**
 * Totals of the spans in the window {start, end, lanes}; `lanes` is a set of lane codes, null for all.
 *
 * Times are clipped to the window; each entry has its `count`, its `busy` time and its longest span, `max`. A lane is busy in the
 * union of its counted spans, a partition in that of those which use its SMs; a name's time is the sum of its spans of any kind.
 * Pairs are of a lane in the set with any lane that was busy in the window: who selects one lane asks what ran beside it. What a
 * filter hides is part of all that. As analysis.totals.
 */
export function totals(store, tables, { start, end, lanes = null }) {
  const sums = new WindowSums(tables, start, end), unions = unionsOf(store, tables)
  const rows = store.rows.filter(row => row.length && row.lane >= 0 && (!lanes || lanes.has(row.lane)))
  rows.forEach(row => sums.addRow(row))
  const busyOf = union => clipUnion(union, start, end).busy
  return {
    lanes: sums.lanes.list("lane", sums.touched).map(entry => ({ ...entry, busy: busyOf(unions.lane(entry.lane)) })),
    names: sums.names.list("name").sort((one, other) => other.busy - one.busy || one.name - other.name),
    // What takes a sweep of its own is computed where it is asked for.
    get partitions() { return sums.parts.list("code").map(entry => ({ ...entry, busy: busyOf(unions.partition(entry.code, rows)) })) },
    get pairs() {
      const clip = lane => ({ lane, ...clipUnion(unions.lane(lane), start, end) })
      const others = new Set(tables.rows.map(row => row.lane).filter(lane => lanes && lane >= 0 && !lanes.has(lane)))
      const pairs = pairsOf([...sums.touched].sort((one, other) => one - other).map(clip), [...others].map(clip), start, end)
      // Those of two simulated engines have no time in common.
      return tables.header.has_common_time ? pairs : pairs.filter(({a, b}) => tables.lanes[a].device === tables.lanes[b].device)
    },
  }
}

class WindowSums {
  constructor(tables, start, end) {
    Object.assign(this, { tables, start, end, ...countingOf(tables) })
    this.touched = new Set() // Streams on which anything ran: threads of the host do no work of the device.
    this.names = new Sums(tables.names.length)
    this.lanes = new Sums(tables.rows.length)
    this.parts = new Sums(1)
    // Partitions of one name and size are one: the code of the first.
    const texts = (tables.partitions ?? []).map(({ text }) => text)
    this.partOf = texts.map(text => texts.indexOf(text))
  }

  addRow(row) {
    const { start: starts, end: ends, length } = row, { start, end } = this, isHost = Boolean(this.tables.lanes?.[row.lane]?.host)
    for (let index = row.firstEndingFrom(start); index < length && starts[index] <= end; index++) {
      const from = Math.max(start, starts[index]), to = Math.min(end, ends[index])
      // A span that only touches the window's border is not in it, unless it has no length.
      if (to < from || (to === from && ends[index] !== starts[index])) continue
      const count = row.countAt(index), busy = to > from ? (to - from) * row.densityAt(index) : 0
      this.names.add(row.name[index], count, busy)
      if (isHost) continue
      this.touched.add(row.lane)
      const kind = row.kind[index]
      if (this.uncaptured && !this.uncaptured(kind, starts[index])) continue
      if (this.isOnSms[kind]) this.parts.add(this.partOf[row.partition[index]] ?? row.partition[index], count, busy)
      if (!this.isCounted[kind]) continue
      this.lanes.add(row.lane, count, busy)
    }
  }
}

const SUMMED = ["count", "busy", "max"]

/** Count, time and longest span by code; a code may come that the tables do not have yet. */
class Sums {
  constructor(size) {
    for (const name of SUMMED) this[name] = new Float64Array(size)
  }

  add(code, count, busy) {
    if (code >= this.count.length) for (const name of SUMMED) this[name] = roomy(this[name], code + 1, this[name].length)
    this.count[code] += count
    this.busy[code] += busy
    if (busy / count > this.max[code]) this.max[code] = busy / count
  }

  /** Those that have any, and those of `codes`, each code as `key`. */
  list(key, codes = new Set()) {
    const all = [...this.count.keys()].filter(code => this.count[code] || codes.has(code))
    return all.map(code => ({ [key]: code, count: this.count[code], busy: this.busy[code], max: this.max[code] }))
  }
}

/** The intervals of a union that reach into a window, and how much of it they cover. */
function clipUnion(union, start, end) {
  if (!union) return { union, first: 0, last: -1, busy: 0 }
  const first = upperBound(union.end, start, 0, union.length)
  const last = lowerBound(union.start, end, first, union.length) - 1
  return { union, first, last, busy: addCoverage(union, start, end, new Float64Array(1))[0] }
}

/** Overlap of the lanes, with each other and with others, the longest first; `share` is the part of the shorter busy time. */
function pairsOf(clips, others, start, end) {
  const own = busiestOf(clips, PAIRED_LANES), beside = busiestOf(others, OTHER_LANES)
  const pairs = own.flatMap((one, place) => [...own.slice(place + 1), ...beside].map(other => {
    const both = commonTime(one, other, start, end)
    return { a: one.lane, b: other.lane, both_ns: both, share: both / Math.min(one.busy, other.busy) }
  }))
  return pairs.sort((one, other) => other.both_ns - one.both_ns || one.a - other.a || one.b - other.b)
}

/** How long two unions cover the same time of the window. */
function commonTime({ union: one, first: i, last: lastOne }, { union: other, first: j, last: lastOther }, start, end) {
  let both = 0
  while (i <= lastOne && j <= lastOther) {
    both += Math.max(0, Math.min(end, one.end[i], other.end[j]) - Math.max(start, one.start[i], other.start[j]))
    if (one.end[i] < other.end[j]) i++
    else j++
  }
  return both
}

/** The lanes that were busy longest, in the order of their codes. */
function busiestOf(clips, count) {
  const busiest = clips.filter(({ busy }) => busy > 0).sort((one, other) => other.busy - one.busy).slice(0, count)
  return busiest.sort((one, other) => one.lane - other.lane)
}
