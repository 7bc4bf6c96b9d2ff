// The panel of the span that was clicked: what the tip says, where it is in the trace, and what encloses it.

import { traceTime } from "./address.js"
import { enclosingSpans, factList, hitFacts, hitTitle, isSpan, movedPin, nameOf, pinAnchor, timesOf } from "./facts.js"
import { gapAt } from "./gaps.js"
import { copyText, makeButton, makeNode, onClick } from "./nodes.js"
import { signAt } from "./paint_why.js"
import { formatCount, formatNs } from "./units.js"
import { FILTER_KEYS } from "./view.js"
import { linkList, spanLink, waitFacts, waitNodes } from "./waits.js"
import { showPiece } from "./why.js"

const FIRST_FACTS = new Set(["stray", "stream", "thread", "partition", "kind", "call", "blocked", "SMs", "range", "names"])

/** Pin what is clicked, and show its details until Esc. */
export function addDetails(viewer) {
  const { view } = viewer
  const panel = viewer.drawer.add("details", "Details of the pinned span")
  const state = { anchor: null, waits: makeNode("div", { class: "gsl-waits gsl-ties" }) }
  const refresh = property => keepPinned(viewer, panel, state, property)
  onClick(viewer, event => pinUnder(viewer, event))
  view.on("look", refresh)
  view.on("data", refresh)
  view.on("data", () => showWaits(view, state))
  view.on("look", property => { if (FILTER_KEYS.has(property)) showWaits(view, state) })
}

function pinUnder(viewer, event) {
  const point = viewer.pointOf(event)
  if (!viewer.view.isOver(point, viewer.view.lanesPx)) return
  const { view } = viewer, sign = signAt(view, point.x, point.y)
  if (sign) return showPiece(view, sign.piece)
  const hit = view.hitAt(point.x, point.y)
  view.set("pinned", hit)
  view.set("gap", hit ? null : gapAt(view, point.x, point.y))
}

/** Bring panel and pin together: the pin may be new, may have moved in its row, or may be gone. */
function keepPinned(viewer, panel, state, property) {
  const { view } = viewer
  // Hiding a name unpins, since indices change; what is still shown stays pinned.
  if (state.anchor && !view.pinned && FILTER_KEYS.has(property)) view.pinned = movedPin(view, state.anchor)
  if (view.pinned !== (state.anchor?.hit ?? null)) {
    state.anchor = view.pinned && pinAnchor(view, view.pinned)
    showDetails(viewer, panel, view.pinned, state.waits)
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
function showWaits(view, { waits }) {
  const nodes = view.pinned ? waitNodes(view, view.pinned) : [], textOf = list => [...list].map(node => node.textContent).join("\n")
  if (textOf(nodes) !== textOf(waits.children)) waits.replaceChildren(...nodes) // A link that is being clicked stays.
}

function showDetails(viewer, panel, hit, waits) {
  const { view, drawer } = viewer
  if (!hit) return drawer.fill(panel, [])
  const title = hitTitle(view, hit), [start, end] = timesOf(view, hit)
  const facts = [...hitFacts(view, hit), ...placeFacts(view, hit)], isFirst = ([label]) => FIRST_FACTS.has(label)
  const copy = makeButton("Copy", { label: "Copy these details as text", onclick: () => copyText(factsText(title, [...facts, ...waitFacts(view, hit)]), copy, panel) })
  const zoom = makeButton("Zoom here", { key: "F", onclick: () => view.fitAround(...timesOf(view, hit)) })
  const close = makeButton("Unpin", { key: "Escape", onclick: () => { view.set("pinned", null); viewer.focus() } })
  const head = makeNode("header", {}, makeNode("h3", { text: `${title} · ${formatNs(end - start)}`, dir: "auto" }), zoom, copy, close)
  waits.replaceChildren(...waitNodes(view, hit))
  drawer.fill(panel, [head, factList(facts.filter(isFirst)), waits, makeNode("div", { class: "gsl-ties" }, ...enclosingNodes(view, hit)), factList(facts.filter(fact => !isFirst(fact)))], true)
  viewer.announce([title, ...facts.slice(0, 6).map(pair => pair.join(" "))].join(", "))
}

/** Where a span is in the trace, as a person can look it up there; several that are drawn or sent as one have no row of their own. */
function placeFacts(view, { row: code, index }) {
  const row = view.store.row(code)
  if (index === undefined || row.countAt(index) > 1) return []
  return [["trace", `${view.isLive ? "number" : "row"} ${formatCount(Number(row.place[index]))}, start_ns ${traceTime(view, row.start[index])}`]]
}

function enclosingNodes(view, hit) {
  if (!isSpan(hit)) return []
  return linkList("Inside", enclosingSpans(view, hit).map(({ row: code, index }) => {
    const row = view.store.row(code)
    return spanLink(view, row, index, `${nameOf(view, row.name[index])} · ${formatNs(row.end[index] - row.start[index])}`)
  }))
}

function factsText(title, facts) {
  return [`name\t${title}`, ...facts.map(([label, text]) => `${label}\t${text.replaceAll("\n", ", ")}`)].join("\n")
}
