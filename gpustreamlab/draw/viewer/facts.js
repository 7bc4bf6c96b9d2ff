// What is known about a span, or about spans drawn as one, as pairs of label and text.

import { laneOf, laneText, nameOf } from "./names.js"
import { makeNode } from "./nodes.js"
import { endOfHit } from "./rows.js"
import { formatCount, formatNs } from "./units.js"
import { callFacts, isWork, launchFacts, ownerFacts, withinFacts } from "./work_facts.js"

const TOP_NAMES = 5

/** A time in its unit, with the exact ns behind it. */
export function exactTime(ns) {
  const short = formatNs(ns), exact = `${formatCount(ns)} ns`
  return short === exact ? exact : `${short} (${exact})`
}

/** The facts of one span. */
export function spanFacts(view, { row: code, index }) {
  const { store, tables } = view
  const row = store.row(code)
  const count = store.countSum(code, index, index), kind = tables.kinds[row.kind[index]], thread = tables.threads[row.thread[index]]
  const facts = [
    ["name", nameOf(view, row.name[index])],
    ...(row.hasWork ? ownerFacts(view, row, index).filter(([label]) => label === "stray") : []),
    [laneOf(view, code).host ? "thread" : "stream", laneText(laneOf(view, code))],
    ["partition", laneOf(view, code).host ? "" : tables.partitions[row.partition[index]]?.text ?? ""],
    ["kind", kind],
    ...callFacts(view, row, index),
    ["start", exactTime(row.start[index])],
    ["duration", exactTime(row.end[index] - row.start[index])],
    ...withinFacts(row, index),
    ...(row.hasWork ? ownerFacts(view, row, index).filter(([label]) => label === "range") : []),
    ...launchFacts(view, row, index),
    ["queueing", laneOf(view, code).host ? "" : exactTime(row.queueing[index]) + (isWork(view, row, index) ? " from launch to start" : "")],
    ["thread", laneOf(view, code).host ? "" : thread ?? ""],
  ]
  if (count > 1) facts.splice(4, 0, ["spans", `${formatCount(count)}, sent as one`], [tables.header.busy_word, exactTime(row.busyAt(index))])
  return facts.filter(([, text]) => text)
}

/** The facts of several spans that are too narrow to draw apart. */
export function mergedFacts(view, hit) {
  const { store, tables } = view
  const row = store.row(hit.row)
  const [start, end] = timesOf(view, hit), busy = row.busySum(hit.first, hit.last)
  const top = topNames(row, view.tables.names.length, hit.first, hit.last)
  return [
    [laneOf(view, hit.row).host ? "thread" : "stream", laneText(laneOf(view, hit.row))],
    ["start", exactTime(start)],
    ["window", exactTime(end - start)],
    [tables.header.busy_word, `${exactTime(busy)}, ${formatShare(end > start ? Math.min(1, busy / (end - start)) : NaN)}`],
    ["names", top.map(([code, count]) => `${nameOf(view, code)} × ${formatCount(count)}`).join("\n") + moreNames(top)],
  ]
}

function moreNames(top) {
  return top.more ? `\n+ ${formatCount(top.more)} more` : ""
}

/** The names that take most time among spans first..last of a row, as [code, count], and in `more` how many names are left out. */
function topNames(row, nameCount, first, last) {
  const counts = new Float64Array(nameCount), times = new Float64Array(nameCount), codes = []
  const { name } = row
  for (let i = first; i <= last; i += 1) {
    const code = name[i]
    if (!counts[code]) codes.push(code)
    counts[code] += row.countAt(i)
    times[code] += row.busyAt(i)
  }
  codes.sort((a, b) => times[b] - times[a] || a - b)
  const top = codes.slice(0, TOP_NAMES).map(code => [code, counts[code]])
  top.more = Math.max(0, codes.length - TOP_NAMES)
  return top
}

/** A share of 0 to 1 as a percentage that rounds no part to nothing and none to the whole; as analysis.format_share. */
export function formatShare(share) {
  if (Number.isNaN(share)) return "-"
  if (share > 0 && share < 0.005) return "<1%"
  if (share >= 0.995 && share < 1) return ">99%"
  return `${Math.round(100 * share)}%`
}

/** Whether a hit stands for one span; else for several that are drawn as one. */
export function isSpan(hit) {
  return hit.index !== undefined
}

/** When a hit starts and ends. */
export function timesOf(view, { row: code, index, first = index, last = index }) {
  const row = view.store.row(code)
  return [row.start[first], endOfHit(row, first, last)]
}

/** The heading of a hit. */
export function hitTitle(view, hit) {
  if (isSpan(hit)) return nameOf(view, view.store.row(hit.row).name[hit.index])
  return `${formatCount(hit.count ?? view.store.countSum(hit.row, hit.first, hit.last))} spans`
}

/** A list of facts as terms and texts. */
export function factList(facts) {
  const list = makeNode("dl", { class: "gsl-facts" })
  for (const [label, text] of facts) list.append(makeNode("div", { "data-fact": label }, makeNode("dt", { text: label }), makeNode("dd", { text, dir: "auto" })))
  return list
}
