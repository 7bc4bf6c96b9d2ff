// What is under the pointer, beside it: a span, or else the marks whose line is near.

import { exactTime, factList, hitFacts, hitTitle, isSpan, laneText } from "./facts.js"
import { nameAt, nameFacts } from "./lanes.js"
import { memoryAt } from "./memory.js"
import { makeNode } from "./nodes.js"
import { marksAt } from "./paint_marks.js"
import { cardAt } from "./paint_card.js"
import { signAt } from "./paint_why.js"
import { formatCount } from "./units.js"
import { waitFacts } from "./waits.js"
import { reasonsOf } from "./why.js"

const TIP_GAP_PX = 12
const TIP_MARKS = 5, TIP_WAITS = 2
const MARK_WORDS = { layout: "SMs shared out anew", cell: "cell", mark: "mark" }

/** Show the facts of what is under the pointer, without covering it. */
export function addTips(viewer) {
  const { view, figureElement: figure } = viewer
  const tip = makeNode("div", { class: "gsl-tip", role: "tooltip", popover: "manual" })
  viewer.element.append(tip)
  const state = { key: "", pointer: null, frame: 0 }
  const hide = () => {
    state.key = ""
    tip.hidePopover()
    if (view.hovered) view.set("hovered", null)
  }
  const refresh = () => {
    state.frame = 0
    const told = state.pointer && tip.isConnected && toldAt(view, viewer.pointOf(state.pointer)), { key, hit = null } = told || {}
    if (!told || (hit && viewer.drawer.isOpen && key === keyOf(view, view.pinned))) return hide() // The drawer tells it.
    if (key !== state.key) {
      state.key = key
      tip.replaceChildren(...told.nodes())
      if (hit || view.hovered) view.set("hovered", hit)
    }
    tip.togglePopover(true)
    placeTip(tip, tipRoom(viewer, hit, state.pointer.clientY), state.pointer)
  }
  const later = () => { state.frame ||= requestAnimationFrame(refresh) }
  const leave = () => { state.pointer = null; later() }
  // While a button is down the pointer drags: the picture moves, and there is nothing to read.
  figure.addEventListener("pointermove", event => {
    state.pointer = event.buttons || event.pointerType === "touch" ? null : event
    later()
  }, true)
  figure.addEventListener("pointerdown", leave, true)
  figure.addEventListener("pointerleave", leave)
  // What is under a pointer that stays changes when the picture moves.
  for (const event of ["range", "data"]) view.on(event, () => state.pointer && later())
  view.on("look", property => { if (property === "scrollPx" && state.pointer) later() })
  // Until the pointer moves again.
  viewer.commands.hideTip = () => { state.pointer = null; hide() }
  viewer.atEnd(viewer.commands.hideTip)
}

/** What is told of a place of the figure, as {key, nodes, hit}: `key` tells it from all else, `nodes` makes it; else null. */
function toldAt(view, { x, y }) {
  const sign = signAt(view, x, y), hit = sign ? null : view.hitAt(x, y), marks = sign || hit ? [] : marksAt(view, x, y)
  if (sign) return plain(signTitle(view, sign.piece), [], [sign.piece.text, sign.piece.fix, moreText(sign.more)])
  if (hit) return { hit, key: keyOf(view, hit), nodes: () => hitNodes(view, hit) }
  if (marks.length) return { key: JSON.stringify(marks.map(({ time, text }) => [time, text])), nodes: () => markNodes(marks) }
  const memory = memoryAt(view, x, y)
  if (memory) return plain(`Memory of ${laneText(view.tables.lanes[memory.lane])}`, memory.facts)
  const name = nameAt(view, x, y), [title, facts, hint] = (name ? nameFacts(view, name) : cardAt(view, x, y)) ?? []
  return title === undefined ? null : plain(title, facts, [hint])
}

const keyOf = (view, hit) => JSON.stringify([hit, view.store.length])

const plain = (...told) => ({ key: JSON.stringify(told), nodes: () => tipNodes(...told) })

/** A title, pairs of label and text, and lines below them. */
function tipNodes(title, facts, lines = []) {
  const below = lines.filter(Boolean).map(text => makeNode("p", { text, dir: "auto" }))
  return [makeNode("strong", { text: title, dir: "auto" }), ...(facts.length ? [factList(facts)] : []), ...below]
}

function signTitle(view, { number, sign }) {
  const { head } = reasonsOf(view).findings[number - 1]
  return sign === String(number) ? `${sign}. ${head}` : head
}

const hitNodes = (view, hit) => tipNodes(hitTitle(view, hit), [...hitFacts(view, hit), ...waitFacts(view, hit).filter(([label]) => label === "waited for").slice(0, TIP_WAITS)], isSpan(hit) ? [] : ["Too narrow to draw apart: zoom in"])

/** The text and time of each mark; there are several where their lines are as near as that. */
function markNodes(marks) {
  const more = moreText(marks.length - TIP_MARKS)
  return [
    ...marks.slice(0, TIP_MARKS).flatMap(({ text, time, kind }) => (
      tipNodes(text, [["time", exactTime(time)], ["what", MARK_WORDS[kind] ?? kind]]))),
    ...(more ? [makeNode("p", { text: more })] : []),
  ]
}

const moreText = count => count > 0 ? `${formatCount(count)} more here: zoom in` : ""

/** What the tip must not cover, from top to bottom: the row that is hovered, and the pointer. */
function tipRoom({ view, figureElement }, hit, y) {
  if (!hit) return [y, y]
  const lift = figureElement.getBoundingClientRect().top + view.frame.top - view.scrollPx, row = view.tables.rows[hit.row]
  return [Math.min(row.top + lift, y), Math.max(row.bottom + lift, y)]
}

/** Put the tip below what it tells of, or above it, or beside the pointer; always within the window. */
function placeTip(tip, [top, bottom], { clientX, clientY }) {
  const wide = tip.offsetWidth, high = tip.offsetHeight
  const limit = document.documentElement
  let x = Math.min(clientX + TIP_GAP_PX, limit.clientWidth - wide - 4)
  let y = bottom + TIP_GAP_PX
  if (y + high > limit.clientHeight - 4) y = top - TIP_GAP_PX - high
  if (y < 4) {
    y = Math.max(4, Math.min(clientY - high / 2, limit.clientHeight - high - 4))
    x = clientX + TIP_GAP_PX
    if (x + wide > limit.clientWidth - 4) x = clientX - TIP_GAP_PX - wide
  }
  tip.style.left = `${Math.max(4, x)}px`
  tip.style.top = `${y}px`
}
