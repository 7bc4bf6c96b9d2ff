// What is under the pointer, beside it: a span, or else the marks whose line is near.

import { exactTime, factList, hitTitle, isSpan, mergedFacts, spanFacts } from "./facts.js"
import { memoryAt } from "./memory.js"
import { laneText } from "./names.js"
import { closeAbove, commandsOf, listen, makeNode, openAbove, partOf, rootOf } from "./nodes.js"
import { marksAt } from "./paint_marks.js"
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
    const sign = state.pointer && signUnder(viewer, state.pointer)
    const hit = !sign && state.pointer && hitUnder(viewer, state.pointer)
    const marks = sign || hit || !state.pointer ? [] : marksUnder(viewer, state.pointer)
    const memory = sign || hit || !state.pointer ? null : memoryUnder(viewer, state.pointer)
    if (sign) fillSignTip(view, tip, sign, state)
    else if (hit) fillTip(view, tip, hit, state)
    else if (marks.length) fillMarkTip(view, tip, marks, state)
    else if (memory) fillMemoryTip(view, tip, memory, state)
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

/** Where a place of the window is in the figure, in its px. */
export function figurePoint(viewer, { x, y }) {
  const box = partOf(viewer, "figure").getBoundingClientRect()
  return { x: x - box.left, y: y - box.top }
}

/** What is drawn at a place of the window, or null. */
function hitUnder(viewer, place) {
  const point = figurePoint(viewer, place)
  return viewer.view.hitAt(point.x, point.y)
}

/** The piece of a finding whose sign is at a place of the window, or null. */
function signUnder(viewer, place) {
  const point = figurePoint(viewer, place)
  return signAt(viewer.view, point.x, point.y)
}

/** The marks whose line is near a place of the window. */
function marksUnder(viewer, place) {
  const point = figurePoint(viewer, place)
  return marksAt(viewer.view, point.x, point.y)
}

/** What the memory strip under a place of the window tells. */
function memoryUnder(viewer, place) {
  const point = figurePoint(viewer, place)
  return memoryAt(viewer.view, point.x, point.y)
}

function fillMemoryTip(view, tip, { lane, at, facts }, state) {
  if (view.hovered) view.set("hovered", null)
  const key = `memory ${lane} ${at}`
  if (key === state.key) return
  state.key = key
  tip.replaceChildren(makeNode("strong", { text: `Memory of ${laneText(view.tables.lanes[lane])}`, dir: "auto" }), factList(facts))
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
