// The empty places of a lane: for how long it was idle, what came next, and why.

import { exactTime, factList, laneText, nameOf } from "./facts.js"
import { makeButton, makeNode } from "./nodes.js"
import { busyAround } from "./busy.js"
import { linkList, spanLink, spanStartingAt } from "./waits.js"
import { isTold, reasonsOf, showPiece } from "./why.js"
import { signButton } from "./findings.js"

const NOTHING_BESIDE = "No other stream worked meanwhile, so there was nothing to overlap with."
const NOT_LISTED = "No cause is listed: what came next ran beside other work anyway, it cost less than 1%, or a new cell began."
const SHARED_OUT = "The SMs were shared out anew in this gap, which waits until all work has ended."
const NOT_KNOWN = "The cause is not known here."
const CUT = "No cause is told here: of each reason only the longest pieces are kept."

/** The gap between the work of a stream at a place of the figure, as {lane, start, end}, or null; the first is before its first work. */
export function gapAt(view, px, py) {
  const isIn = ({ top, bottom }) => py >= view.yAt(top) && py < view.yAt(bottom)
  const lane = view.visibleLanes().find(code => isIn(view.tables.lanes[code]))
  return lane === undefined ? null : gapOf(view, lane, view.timeAt(px))
}

function gapOf(view, lane, time) {
  const { end, next } = busyAround(view.store, view.tables, view.laneRows[lane], time), start = end === -Infinity ? view.streamExtent().start : end
  return next < Infinity && time > start ? { lane, start, end: next } : null
}

/** Show the details of the gap that was clicked, until Esc. */
export function addGaps(viewer) {
  const { view } = viewer
  const section = viewer.drawer.add("gap", "Details of the gap"), show = () => showGap(viewer, section)
  view.on("look", property => {
    if (property === "pinned" && view.pinned && view.gap) view.set("gap", null)
    else if (property === "gap" || (property === "why" && view.gap)) show()
  })
  // Work that comes later may lie in it.
  view.on("data", () => {
    if (view.gap && gapOf(view, view.gap.lane, view.gap.end - 0.5)?.start !== view.gap.start) view.set("gap", null)
  })
}

function showGap(viewer, section) {
  const { view, drawer } = viewer, { gap } = view
  if (!gap) return drawer.fill(section, [])
  const title = `idle ${exactTime(gap.end - gap.start)}`, why = gapReasons(viewer, gap)
  const word = reasonsOf(view).gapWords.get(`${gap.lane} ${gap.end}`)
  const facts = [["stream", laneText(view.tables.lanes[gap.lane])], ["from", exactTime(gap.start)], ["to", exactTime(gap.end)], ...(word ? [["idle for", word]] : [])]
  const zoom = makeButton("Zoom here", { key: "F", onclick: () => view.fitAround(gap.start, gap.end) })
  const close = makeButton("Close", { key: "Escape", onclick: () => { view.set("gap", null); viewer.focus() } })
  drawer.fill(section, [makeNode("header", {}, makeNode("h3", { text: title }), zoom, close), factList(facts), ...nextNodes(view, gap), makeNode("h4", { text: "Why" }), ...why], true)
  viewer.announce([title, ...facts.map(pair => pair.join(" ")), ...why.map(node => node.textContent)].join(", "))
}

/** The work with which a gap ends, as {code, index} of the row as it is stored; null where it was merged with other spans. */
function workBehind({ store, tables, laneRows }, { lane, end }) {
  for (const code of laneRows[lane]) {
    const row = store.ownRow(code), index = spanStartingAt(row, end)
    if (index >= 0 && tables.kind_counted[row.kind[index]]) return { code, index }
  }
  return null
}

function nextNodes(view, gap) {
  const next = workBehind(view, gap)
  if (!next) return []
  const own = view.store.ownRow(next.code)
  return linkList("Next on it", [spanLink(view, own, next.index, nameOf(view, own.name[next.index]))])
}

function gapReasons(viewer, gap) {
  const { view } = viewer, reasons = reasonsOf(view)
  const pieces = reasons.pieces.filter(piece => piece.lane === gap.lane && piece.start === gap.end && piece.since < gap.end)
  const isAnew = view.tables.marks.some(({ kind, time }) => kind === "layout" && time >= gap.start && time <= gap.end)
  const anew = isAnew ? [makeNode("p", { text: SHARED_OUT })] : []
  const nodesOf = piece => {
    const finding = reasons.findings[piece.number - 1], show = signButton(finding, `Show ${finding.head}`, () => showPiece(view, piece))
    return [show, makeNode("p", { text: piece.text }), makeNode("p", { class: "gsl-fix", text: piece.fix })]
  }
  if (pieces.length) return [...anew, ...pieces.flatMap(nodesOf)]
  const row = workBehind(view, gap), lane = view.tables.lanes[gap.lane].name
  const place = row && !view.isLive ? view.store.ownRow(row.code).place[row.index] : JSON.stringify(lane)
  const ask = viewer.commands.askWhy
  return [
    ...(isAnew ? anew : [makeNode("p", { text: noReason(view, reasons, gap) })]),
    makeNode("p", { class: "gsl-note", text: `${view.isLive ? "lab" : "trace"}.explain(${place}) asks for this one alone.` }),
    ask && !isTold(view) ? makeButton("Why?", { label: "Ask the kernel why work did not overlap", onclick: ask }) : null,
  ].filter(Boolean)
}

function noReason(view, reasons, gap) {
  if (!isAnyBusy(view, gap)) return NOTHING_BESIDE
  if (!view.why?.explained) return isTold(view) ? view.why.line : NOT_KNOWN
  const isCut = reasons.findings.some(({ count, pieces }) => count > pieces.length && pieces.some(piece => piece.lane === gap.lane))
  return isCut || view.why.more ? CUT : NOT_LISTED
}

function isAnyBusy({ store, tables, laneRows }, { start, end }) {
  return laneRows.some(codes => {
    const busy = busyAround(store, tables, codes, start)
    return busy.end > start || busy.next < end
  })
}
