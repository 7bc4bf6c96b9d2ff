// What spans, lanes and calls are called on the screen, and what is known of a span or of several drawn as one: pairs of label
// and text.

import { hueCount } from "./brush.js"
import { makeNode } from "./nodes.js"
import { endOfHit, isBlocked, isStray } from "./rows.js"
import { formatBytes, formatCount, formatNs, formatSpeed } from "./units.js"

const TOP_NAMES = 5
const WORK_KINDS = new Set(["kernel", "copy", "fill"])

/** A time in its unit, with the exact ns behind it. */
export function exactTime(ns) {
  const short = formatNs(ns), exact = `${formatCount(ns)} ns`
  return short === exact ? exact : `${short} (${exact})`
}

/** What is known of what is drawn at one place, besides its heading. */
export const hitFacts = (view, hit) => isSpan(hit) ? spanFacts(view, hit) : mergedFacts(view, hit)

function spanFacts(view, { row: code, index }) {
  const { store, tables } = view
  const row = store.row(code)
  const count = row.countAt(index), lane = laneOf(view, code), onStream = text => lane.host ? "" : text
  const owner = Object.fromEntries(row.hasWork ? ownerFacts(view, row, index) : [])
  const facts = [
    ["stray", owner.stray],
    [lane.host ? "thread" : "stream", laneText(lane)],
    ["partition", onStream(tables.partitions[row.partition[index]]?.text)],
    ["kind", tables.kinds[row.kind[index]]],
    ...callFacts(view, row, index),
    ["start", exactTime(row.start[index])],
    ["duration", exactTime(row.end[index] - row.start[index])],
    ...withinFacts(row, index),
    ["range", owner.range],
    ...launchFacts(view, row, index),
    ["queueing", onStream(exactTime(row.queueing[index]) + (isWork(view, row, index) ? " from launch to start" : ""))],
    ["thread", onStream(tables.threads[row.thread[index]])],
  ]
  if (count > 1) facts.splice(4, 0, ["spans", `${formatCount(count)}, sent as one`], [tables.header.busy_word, exactTime(row.busyAt(index))])
  return facts.filter(([, text]) => text)
}

/** The facts of several spans that are too narrow to draw apart. */
function mergedFacts(view, hit) {
  const { store, tables } = view
  const row = store.row(hit.row)
  const [start, end] = timesOf(view, hit), busy = row.busySum(hit.first, hit.last)
  const top = topNames(row, view.tables.names.length, hit.first, hit.last)
  return [
    [laneOf(view, hit.row).host ? "thread" : "stream", laneText(laneOf(view, hit.row))],
    ["start", exactTime(start)],
    ["window", exactTime(end - start)],
    [tables.header.busy_word, `${exactTime(busy)}, ${formatShare(end > start ? Math.min(1, busy / (end - start)) : NaN)}`],
    ["names", [...top.map(([code, count]) => `${nameOf(view, code)} × ${formatCount(count)}`), ...(top.more ? [`+ ${formatCount(top.more)} more`] : [])].join("\n")],
  ]
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
export const isSpan = hit => hit.index !== undefined

export function timesOf(view, { row: code, index, first = index, last = index }) {
  const row = view.store.row(code)
  return [row.start[first], endOfHit(row, first, last)]
}

export function hitTitle(view, hit) {
  if (isSpan(hit)) return nameOf(view, view.store.row(hit.row).name[hit.index])
  return `${formatCount(hit.count ?? view.store.row(hit.row).countSum(hit.first, hit.last))} spans`
}

export function factList(facts) {
  const list = makeNode("dl", { class: "gsl-facts" })
  for (const [label, text] of facts) list.append(makeNode("div", { "data-fact": label }, makeNode("dt", { text: label }), makeNode("dd", { text, dir: "auto" })))
  return list
}

/** Whether a span is work of the device, by its kind. */
const isWork = ({ tables }, row, index) => WORK_KINDS.has(tables.kinds[row.kind[index]])

/** How a kernel was launched, or how much was copied. */
function launchFacts(view, row, index) {
  const detail = view.tables.details?.[row.work("detail", index)], size = row.work("size", index)
  const facts = []
  if (detail) {
    const [fullName, grid, block, registers, staticBytes, dynamicBytes, graph, fit] = detail
    if (fullName && fullName !== nameOf(view, row.name[index])) facts.push(["in full", fullName])
    // A simulated device knows of no threads.
    const threads = block.some(Boolean) ? ` × ${sizesText(block)} threads` : ""
    if (grid.some(Boolean)) facts.push(...smsFacts(view, row, index, grid, fit), ["grid", `${sizesText(grid)} blocks${threads}`])
    if (registers) facts.push(["registers", `${registers} a thread`])
    if (staticBytes + dynamicBytes) facts.push(["shared", sharedText(staticBytes, dynamicBytes)])
    if (graph) facts.push(["graph", `launched by CUDA graph ${graph}`])
  }
  if (size) facts.push(["bytes", sizeText(view, row, index, size)])
  return facts
}

/** How many SMs a kernel can have had, as the card counts them: those that its blocks fill, at most those of its place. */
function smsFacts({ tables }, row, index, grid, fit) {
  const code = row.partition[index], { device } = tables.lanes[row.lane]
  const sms = code ? tables.partitions[code]?.sms : tables.cards.find(card => tables.cards.length === 1 || card.device === device)?.sms
  const blocks = grid.reduce((product, size) => product * Math.max(1, size), 1), many = `${formatCount(blocks)} block${blocks === 1 ? "" : "s"}, ${formatCount(fit)} fit on one`
  return sms ? [["SMs", `${formatCount(Math.min(sms, Math.ceil(blocks / fit)))} of ${formatCount(sms)} (${many})`]] : []
}

/** "96 × 2": sizes of 1 at the end are left out. */
function sizesText(sizes) {
  const last = sizes.findLastIndex(size => size > 1)
  return sizes.slice(0, Math.max(1, last + 1)).map(formatCount).join("×")
}

function sharedText(staticBytes, dynamicBytes) {
  const parts = staticBytes && dynamicBytes ? ` (${formatBytes(staticBytes)} static, ${formatBytes(dynamicBytes)} dynamic)` : ""
  return `${formatBytes(staticBytes + dynamicBytes)} a block${parts}`
}

/** How many bytes, and how fast where a copy or a fill moved them. */
function sizeText(view, row, index, size) {
  const duration = row.end[index] - row.start[index], text = formatBytes(size)
  return isWork(view, row, index) && duration > 0 ? `${text}, ${formatSpeed(size / duration)}` : text
}

/** In which range work was launched, and whether it left the stream that the range had selected. */
function ownerFacts(view, row, index) {
  const lane = row.work("ownerLane", index), code = row.work("ownerName", index)
  if (lane < 0) return []
  const name = code < 0 ? "a range" : `'${nameOf(view, code)}'`, stream = laneText(view.tables.lanes[lane])
  if (isStray(row, index)) return [["stray", `range ${name} selected stream ${stream}`]]
  return [["range", name]]
}

/** When the first work in a range started, and when the last ended. */
function withinFacts(row, index) {
  const count = row.work("workCount", index)
  if (!count) return []
  const first = signedTime(row.work("workLead", index)), last = signedTime(-row.work("workTail", index))
  const kernels = count === 1 ? "1 kernel or copy" : `${formatCount(count)} kernels and copies`
  return [["work", `first starts ${first}, last ends ${last}, ${kernels}`]]
}

/** "+5.00 µs" after the start, "−10 µs" before the end. */
const signedTime = ns => `${ns < 0 ? "−" : "+"}${formatNs(Math.abs(ns))}`

/** What a call of the host is for, and for how long it blocked the host. */
function callFacts(view, row, index) {
  const { tables } = view
  if (tables.kinds[row.kind[index]] !== "host") return []
  const label = callLabel(view, row.name[index]), waits = label === "synchronise" || isBlocked(row, index)
  const facts = waits ? [["call", `${label || "copy"}: the host waits for the device`]] : label ? [["call", label]] : []
  if (!isBlocked(row, index)) return facts
  const code = row.work("waitedName", index), duration = formatNs(row.end[index] - row.start[index])
  return [...facts, ["blocked", code < 0 ? duration : `${duration}, for ${nameOf(view, code)}`]]
}

const WORK_WORDS = { kernel: "kernels", copy: "copies", fill: "fills" }

/** What the rows of work of a lane hold, as far as it came: draw/_scene.py says so where it knows all spans. */
export function workWord(view, lane) {
  const { store, tables } = view, kinds = new Set()
  for (const code of view.laneRows[lane]) {
    const row = store.ownRow(code)
    const known = row.kindsSeen ??= new Set()
    for (; row.seen.kinds < row.length; row.seen.kinds += 1) known.add(row.kind[row.seen.kinds])
    for (const kind of known) if (WORK_KINDS.has(tables.kinds[kind])) kinds.add(tables.kinds[kind])
  }
  return kinds.size === 1 ? WORK_WORDS[[...kinds][0]] : "work"
}

/** What tells the pinned span, or the first and last of several drawn as one, from all others. */
export function pinAnchor(view, hit) {
  const row = view.store.row(hit.row)
  const indices = isSpan(hit) ? [hit.index] : [hit.first, hit.last]
  return { hit, starts: indices.map(i => row.start[i]), places: indices.map(i => row.place[i]) }
}

/** Where the anchored hit is now: the same object if it did not move, another if it did, null if it is gone. */
export function movedPin(view, anchor) {
  const { hit, starts, places } = anchor
  if (!view.tables.rows[hit.row]) return null
  const found = places.map((place, k) => view.store.indexOf(hit.row, starts[k], place))
  if (found.includes(-1)) return null
  if (isSpan(hit)) return found[0] === hit.index ? hit : { row: hit.row, index: found[0] }
  return found[0] === hit.first && found[1] === hit.last ? hit : null
}

/** The spans of the same lane that enclose one, from the outside; rows of a lane lie in each other from the top down. */
export function enclosingSpans(view, { row: code, index }) {
  const { store, tables } = view, own = tables.rows[code], row = store.row(code)
  // The range in which work was launched is on another lane than the work: a stray.
  if (isWork(view, row, index) && row.hasWork && row.ownerLane[index] !== row.lane) return []
  const start = row.start[index], end = row.end[index]
  const found = []
  tables.rows.forEach((other, otherCode) => {
    if (other.lane !== own.lane || other.top >= own.top) return
    const above = store.row(otherCode), at = above.indexAt(start)
    if (at >= 0 && above.start[at] <= start && above.end[at] >= end) found.push({ row: otherCode, index: at })
  })
  return found.sort((a, b) => tables.rows[a.row].top - tables.rows[b.row].top)
}

export const nameOf = (view, code) => view.tables.names[code] ?? "(no name)"

export const laneOf = (view, rowCode) => view.tables.lanes[view.tables.rows[rowCode].lane]

/** What a lane is called on the screen. */
export const laneText = lane => lane.label || lane.name

/** The class of calls of the host that a name stands for, or "". */
export function callLabel({ tables }, code) {
  return tables.call_styles[(tables.name_styles[code]?.[0] ?? 0) - hueCount(tables) - 1]?.[0] ?? ""
}
