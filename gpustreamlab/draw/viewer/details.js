// The panel of the span that was clicked: what the tip says, where it is in the trace, and what encloses it.

import { traceTime } from "./address.js"
import { copyText } from "./copy.js"
import { factList, hitTitle, isSpan, mergedFacts, spanFacts } from "./facts.js"
import { gapAt } from "./gaps.js"
import { nameOf } from "./names.js"
import { announce, commandsOf, listen, makeButton, makeNode, partOf, rootOf } from "./nodes.js"
import { signAt } from "./paint_why.js"
import { enclosingSpans, movedPin, pinAnchor } from "./pins.js"
import { endOfHit } from "./rows.js"
import { figurePoint } from "./tips.js"
import { formatNs } from "./units.js"
import { FILTER_KEYS } from "./view.js"
import { waitFacts, waitNodes } from "./waits.js"
import { showPiece } from "./why.js"

const CLICK_PX = 4

/** Pin what is clicked, and show its details until Esc. */
export function addDetails(viewer) {
  const { view } = viewer
  const figure = partOf(viewer, "figure")
  const panel = makeNode("section", { class: "gsl-panel gsl-details", "aria-label": "Details of the pinned span", hidden: true })
  partOf(viewer, "panels").append(panel)
  const state = { anchor: null, down: null, waits: makeNode("div", { class: "gsl-waits" }), waitKey: "" }
  const commands = commandsOf(viewer)
  commands.unpin = () => view.set("pinned", null)
  const refresh = property => keepPinned(viewer, panel, state, property)
  const offs = [
    listen(figure, "pointerdown", event => { state.down = event.button ? null : event }, true),
    listen(figure, "pointerup", event => {
      if (isClick(state.down, event) && !commands.isMeasuring?.()) pinUnder(viewer, event)
      state.down = null
    }, true),
    view.on("look", refresh),
    view.on("data", refresh),
    view.on("data", () => showWaits(view, state)),
    view.on("look", property => { if (FILTER_KEYS.has(property)) showWaits(view, state) }),
  ]
  return () => {
    offs.forEach(off => off())
    panel.remove()
  }
}

/** Whether a press and its release make a click, not a drag. */
export function isClick(down, up) {
  return Boolean(down) && !up.button && Math.hypot(up.clientX - down.clientX, up.clientY - down.clientY) <= CLICK_PX
}

function pinUnder(viewer, event) {
  const point = figurePoint(viewer, { x: event.clientX, y: event.clientY })
  if (!isInLanes(viewer.view, point)) return
  const { view } = viewer, piece = signAt(view, point.x, point.y)
  if (piece) return showPiece(view, piece)
  const hit = view.hitAt(point.x, point.y)
  view.set("pinned", hit)
  view.set("gap", hit ? null : gapAt(view, point.x, point.y))
}

/** Whether a place in the figure is over the lanes. */
function isInLanes(view, point) {
  const { left, right, top } = view.frame
  return point.x >= left && point.x <= right && point.y >= top && point.y < top + view.lanesPx
}

/** Bring panel and pin together: the pin may be new, may have moved in its row, or may be gone. */
function keepPinned(viewer, panel, state, property) {
  const { view } = viewer
  // Hiding a name unpins, since indices change; what is still shown stays pinned.
  if (state.anchor && !view.pinned && FILTER_KEYS.has(property)) view.pinned = movedPin(view, state.anchor)
  if (view.pinned !== (state.anchor?.hit ?? null)) {
    state.anchor = view.pinned && pinAnchor(view, view.pinned)
    showDetails(viewer, panel, view.pinned, state.waits)
    state.waitKey = ""
    showWaits(view, state)
    return
  }
  if (!state.anchor) return
  const hit = movedPin(view, state.anchor)
  if (hit === state.anchor.hit) return
  // The same span at a new place keeps its panel: its text may be selected.
  if (hit) state.anchor = pinAnchor(view, hit)
  view.set("pinned", hit)
}

/** Bring the waits up to date: what waits for a span comes later than the span. */
function showWaits(view, state) {
  const { edges, launches, version } = view.store
  const key = view.pinned ? `${edges.length + edges.evictedCount} ${launches.length + launches.evictedCount} ${view.pinned.row} ${view.pinned.index} ${view.store.filter ? version : ""}` : ""
  if (key === state.waitKey) return
  state.waitKey = key
  const nodes = view.pinned ? waitNodes(view, view.pinned) : []
  const shown = nodes.map(node => node.textContent).join("\n")
  if (shown !== [...state.waits.children].map(node => node.textContent).join("\n") || !view.pinned) state.waits.replaceChildren(...nodes)
}

function showDetails(viewer, panel, hit, waits) {
  const { view } = viewer
  panel.hidden = !hit
  if (!hit) {
    panel.replaceChildren()
    return
  }
  const title = hitTitle(view, hit)
  const facts = detailFacts(view, hit)
  const copy = makeButton("Copy", { label: "Copy these details as text", onclick: () => copyText(factsText(title, [...facts, ...waitFacts(view, hit)]), copy, panel) })
  const zoom = makeButton("Zoom here", { key: "F", onclick: () => fitHit(view, hit) })
  const close = makeButton("Unpin", { key: "Escape", onclick: () => { commandsOf(viewer).unpin(); rootOf(viewer).focus({ preventScroll: true }) } })
  const head = makeNode("header", {}, makeNode("h3", { text: title, dir: "auto" }), zoom, copy, close)
  waits.replaceChildren()
  panel.replaceChildren(head, factList(facts), waits, ...enclosingNodes(view, hit))
  announce(viewer, [title, ...facts.slice(0, 6).map(pair => pair.join(" "))].join(", "))
}

function detailFacts(view, hit) {
  if (!isSpan(hit)) return mergedFacts(view, hit)
  return [...spanFacts(view, hit).slice(1), ...placeFacts(view, hit)]
}

/** Where a span is in the trace, as a person can look it up there; a span sent for several has no row of its own. */
function placeFacts(view, { row: code, index }) {
  const row = view.store.row(code)
  if (view.store.countSum(code, index, index) > 1) return []
  const start = traceTime(view, row.start[index])
  const facts = [["trace", `row ${Number(row.place[index]).toLocaleString("en-US")}, start_ns ${start}`]]
  const clock = clockTime(view.tables, start)
  return clock ? [...facts, ["clock", clock]] : facts
}

/** The wall clock's time of a moment of the trace, down to the ns, or "" where the trace has none. */
function clockTime(tables, timeNs) {
  const epoch = BigInt(tables.epoch_unix_ns || 0)
  if (epoch <= 0n) return ""
  const at = epoch + BigInt(timeNs)
  const text = new Date(Number(at / 1000000n)).toLocaleTimeString("en-GB")
  return `${text}.${String(at % 1000000000n).padStart(9, "0")}`
}

function enclosingNodes(view, hit) {
  if (!isSpan(hit)) return []
  const spans = enclosingSpans(view, hit)
  if (!spans.length) return []
  const list = makeNode("ol", { class: "gsl-inside" })
  for (const span of spans) {
    const row = view.store.row(span.row)
    const text = `${nameOf(view, row.name[span.index])} · ${formatNs(row.end[span.index] - row.start[span.index])}`
    list.append(makeNode("li", {}, makeButton(text, { label: `Go to ${text}`, class: "gsl-link", dir: "auto", onclick: () => view.show(span.row, span.index) })))
  }
  return [makeNode("h4", { text: "Inside" }), list]
}

function factsText(title, facts) {
  return [`name\t${title}`, ...facts.map(([label, text]) => `${label}\t${text.replaceAll("\n", ", ")}`)].join("\n")
}

/** Zoom so that a hit fills most of the width. */
export function fitHit(view, hit) {
  const row = view.store.row(hit.row)
  const [first, last] = isSpan(hit) ? [hit.index, hit.index] : [hit.first, hit.last]
  const start = row.start[first], end = endOfHit(row, first, last)
  const rim = Math.max((end - start) * 0.1, 2)
  view.setRange(start - rim, end + rim)
}
