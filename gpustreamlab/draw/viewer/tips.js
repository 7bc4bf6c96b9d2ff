// What is under the pointer, beside it: a span, or else the marks whose line is near.

import { exactTime, factList, hitTitle, isSpan, mergedFacts, spanFacts } from "./facts.js"
import { memoryAt } from "./memory.js"
import { laneText } from "./names.js"
import { nameAt, nameFacts } from "./lanes.js"
import { closeAbove, commandsOf, figurePoint, listen, makeNode, openAbove, partOf, rootOf } from "./nodes.js"
import { marksAt } from "./paint_marks.js"
import { stripAt } from "./paint_strips.js"
import { signAt } from "./paint_why.js"
import { formatCount } from "./units.js"
import { reasonsOf } from "./why.js"

const TIP_GAP_PX = 12
const TIP_MARKS = 5
const MARK_WORDS = { layout: "SMs shared out anew", cell: "cell", mark: "mark" }

/** Show the facts of the span under the pointer, without covering it. */
export function addTips(viewer) {
  const { view } = viewer
  const figure = partOf(viewer, "figure")
  const tip = makeNode("div", { class: "gsl-tip", role: "tooltip", hidden: true })
  if ("popover" in tip) tip.popover = "manual"
  rootOf(viewer).append(tip)
  const state = { key: "", pointer: null, frame: 0 }
  const hide = () => {
    state.key = ""
    closeAbove(tip)
    if (view.hovered) view.set("hovered", null)
  }
  const refresh = () => {
    state.frame = 0
    if (!state.pointer) return hide()
    const { x, y } = figurePoint(viewer, state.pointer)
    const sign = signAt(view, x, y), hit = sign ? null : view.hitAt(x, y), marks = sign || hit ? [] : marksAt(view, x, y)
    const memory = memoryAt(view, x, y), name = nameAt(view, x, y), strip = stripAt(view, x, y)
    if (sign) fillSignTip(view, tip, sign, state)
    else if (hit) fillTip(view, tip, hit, state)
    else if (marks.length) fillMarkTip(view, tip, marks, state)
    else if (memory) fillPlainTip(view, tip, [`Memory of ${laneText(view.tables.lanes[memory.lane])}`, memory.facts], state)
    else if (name) fillPlainTip(view, tip, nameFacts(view, name), state)
    else if (strip) fillPlainTip(view, tip, strip, state)
    else return hide()
    openAbove(tip)
    placeTip(tip, tipRoom(viewer, hit, state.pointer), state.pointer)
  }
  const later = () => { state.frame ||= requestAnimationFrame(refresh) }
  const offs = [
    // While a button is down the pointer drags: the picture moves, and there is nothing to read.
    listen(figure, "pointermove", event => {
      state.pointer = event.buttons || event.pointerType === "touch" ? null : { x: event.clientX, y: event.clientY }
      later()
    }, true),
    listen(figure, "pointerdown", () => { state.pointer = null; later() }, true),
    listen(figure, "pointerleave", () => { state.pointer = null; later() }),
    // What is under a pointer that stays changes when the picture moves.
    view.on("range", () => state.pointer && later()),
    view.on("data", () => state.pointer && later()),
  ]
  // Until the pointer moves again.
  commandsOf(viewer).hideTip = () => { state.pointer = null; hide() }
  return () => {
    offs.forEach(off => off())
    cancelAnimationFrame(state.frame)
    tip.remove()
  }
}

export { figurePoint }

/** A title, pairs of label and text, and what a click does. */
function fillPlainTip(view, tip, [title, facts, hint = ""], state) {
  if (view.hovered) view.set("hovered", null)
  const key = JSON.stringify([title, facts, hint])
  if (key === state.key) return
  state.key = key
  tip.replaceChildren(makeNode("strong", { text: title, dir: "auto" }), factList(facts), ...(hint ? [makeNode("p", { text: hint })] : []))
}

function fillSignTip(view, tip, { number, place, sign, text, fix }, state) {
  if (view.hovered) view.set("hovered", null)
  const { head } = reasonsOf(view).findings[number - 1], key = `sign ${number} ${place} ${head}`
  if (key === state.key) return
  state.key = key
  tip.replaceChildren(makeNode("strong", { text: `${sign === String(number) ? `${sign}. ` : ""}${head}`, dir: "auto" }), ...[text, fix].filter(Boolean).map(line => makeNode("p", { text: line, dir: "auto" })))
}

function hitKey(hit) {
  return isSpan(hit) ? `${hit.row}:${hit.index}` : `${hit.row}:${hit.first}-${hit.last}`
}

function fillTip(view, tip, hit, state) {
  const key = `${hitKey(hit)} ${view.store.length}`
  if (key === state.key) return
  state.key = key
  const facts = isSpan(hit) ? spanFacts(view, hit).slice(1) : mergedFacts(view, hit)
  const title = makeNode("strong", { text: hitTitle(view, hit), dir: "auto" })
  const hint = isSpan(hit) ? null : makeNode("p", { text: "Too narrow to draw apart: zoom in" })
  tip.replaceChildren(title, factList(facts), ...(hint ? [hint] : []))
  view.set("hovered", hit)
}

/** The text and time of each mark; there are several where their lines are as near as that. */
function fillMarkTip(view, tip, marks, state) {
  if (view.hovered) view.set("hovered", null)
  const key = `marks ${marks.map(({ time, text }) => `${time} ${text}`).join("\n")}`
  if (key === state.key) return
  state.key = key
  const entries = marks.slice(0, TIP_MARKS).flatMap(({ text, time, kind }) => [
    makeNode("strong", { text, dir: "auto" }), factList([["time", exactTime(time)], ["what", MARK_WORDS[kind] ?? kind]]),
  ])
  const more = marks.length - TIP_MARKS
  tip.replaceChildren(...entries, ...(more > 0 ? [makeNode("p", { text: `${formatCount(more)} more here: zoom in` })] : []))
}

/** What the tip must not cover, from top to bottom: the row that is hovered, and the pointer. */
function tipRoom({ view, figureElement }, hit, { y }) {
  if (!hit) return [y, y]
  const lift = figureElement.getBoundingClientRect().top + view.frame.top - view.scrollPx, row = view.tables.rows[hit.row]
  return [Math.min(row.top + lift, y), Math.max(row.bottom + lift, y)]
}

/** Put the tip below what it tells of, or above it, or beside the pointer; always within the window. */
function placeTip(tip, [top, bottom], pointer) {
  const wide = tip.offsetWidth, high = tip.offsetHeight
  const limit = document.documentElement
  let x = Math.min(pointer.x + TIP_GAP_PX, limit.clientWidth - wide - 4)
  let y = bottom + TIP_GAP_PX
  if (y + high > limit.clientHeight - 4) y = top - TIP_GAP_PX - high
  if (y < 4) {
    y = Math.max(4, Math.min(pointer.y - high / 2, limit.clientHeight - high - 4))
    x = pointer.x + TIP_GAP_PX
    if (x + wide > limit.clientWidth - 4) x = pointer.x - TIP_GAP_PX - wide
  }
  tip.style.left = `${Math.max(4, x)}px`
  tip.style.top = `${y}px`
}
