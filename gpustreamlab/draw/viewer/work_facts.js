// What is known of a kernel, copy or fill, of the range around it, and of a call of the host, as pairs of label and text.

import { callLabel, laneText, nameOf } from "./names.js"
import { isBlocked, isStray } from "./rows.js"
import { formatBytes, formatCount, formatNs, formatSpeed } from "./units.js"

const WORK_KINDS = new Set(["kernel", "copy", "fill"])

/** Whether a span is work of the device, by its kind. */
export function isWork({ tables }, row, index) {
  return isWorkKind(tables, row.kind[index])
}

/** How a kernel was launched, or how much was copied. */
export function launchFacts(view, row, index) {
  const detail = view.tables.details?.[row.work("detail", index)], size = row.work("size", index)
  const facts = []
  if (detail) {
    const [fullName, grid, block, registers, staticBytes, dynamicBytes, graph] = detail
    if (fullName && fullName !== nameOf(view, row.name[index])) facts.push(["in full", fullName])
    // A simulated device knows of no threads.
    const threads = block.some(Boolean) ? ` × ${sizesText(block)} threads` : ""
    if (grid.some(Boolean)) facts.push(["grid", `${sizesText(grid)} blocks${threads}`])
    if (registers) facts.push(["registers", `${registers} a thread`])
    if (staticBytes + dynamicBytes) facts.push(["shared", sharedText(staticBytes, dynamicBytes)])
    if (graph) facts.push(["graph", `launched by CUDA graph ${graph}`])
  }
  if (size) facts.push(["bytes", sizeText(view, row, index, size)])
  return facts
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
export function ownerFacts(view, row, index) {
  const lane = row.work("ownerLane", index), code = row.work("ownerName", index)
  if (lane < 0) return []
  const name = code < 0 ? "a range" : `'${nameOf(view, code)}'`, stream = laneText(view.tables.lanes[lane])
  if (isStray(row, index)) return [["stray", `range ${name} selected stream ${stream}`]]
  return [["range", name]]
}

/** When the first work in a range started, and when the last ended. */
export function withinFacts(row, index) {
  const count = row.work("workCount", index)
  if (!count) return []
  const first = signedTime(row.work("workLead", index)), last = signedTime(-row.work("workTail", index))
  const kernels = count === 1 ? "1 kernel or copy" : `${formatCount(count)} kernels and copies`
  return [["work", `first starts ${first}, last ends ${last}, ${kernels}`]]
}

/** "+5.00 µs" after the start, "−10 µs" before the end. */
function signedTime(ns) {
  return `${ns < 0 ? "−" : "+"}${formatNs(Math.abs(ns))}`
}

/** What a call of the host is for, and for how long it blocked the host. */
export function callFacts(view, row, index) {
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
    for (const kind of known) if (isWorkKind(tables, kind)) kinds.add(tables.kinds[kind])
  }
  return kinds.size === 1 ? WORK_WORDS[[...kinds][0]] : "work"
}

const isWorkKind = ({ kinds }, kind) => WORK_KINDS.has(kinds[kind])
