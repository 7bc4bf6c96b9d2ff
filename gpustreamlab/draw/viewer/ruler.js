// A ruler between two clicks: how long, and how often a second that is.

import { isSpan, timesOf } from "./facts.js"
import { makeButton, makeNode, onClick } from "./nodes.js"
import { formatNs } from "./units.js"

const SNAP_PX = 6

export function addRuler(viewer) {
  const { view } = viewer
  const button = makeButton("Ruler", { label: "Ruler: measure between two clicks", key: "M", "aria-pressed": "false", onclick: () => toggle() })
  const says = makeNode("output", { class: "gsl-measured", "aria-live": "polite" })
  viewer.tools.append(button)
  viewer.news.append(says)
  const state = { isOn: false, start: null }

  function set(isOn, start, ruler) {
    Object.assign(state, { isOn, start })
    if (view.ruler !== ruler) view.set("ruler", ruler)
    button.setAttribute("aria-pressed", String(isOn))
    viewer.element.classList.toggle("gsl-measuring", isOn)
    says.textContent = rulerText(ruler, state)
  }
  function leave() {
    const isSomething = state.isOn || Boolean(view.ruler)
    set(false, null, null)
    return isSomething
  }
  const toggle = () => state.isOn ? leave() : set(true, null, null)
  const until = time => ({ start: Math.min(state.start, time), end: Math.max(state.start, time) })
  function point(time) {
    if (state.start === null) set(state.isOn, time, { start: time, end: time })
    else set(false, null, until(time))
  }
  const moved = event => {
    if (state.isOn && state.start !== null && !event.buttons) set(true, state.start, until(timeUnder(viewer, event)))
  }
  viewer.figureElement.addEventListener("pointermove", moved, true)
  onClick(viewer, event => { if (state.isOn && view.isOver(viewer.pointOf(event))) point(timeUnder(viewer, event)) })
  Object.assign(viewer.commands, {
    measure: toggle, leaveRuler: leave, isMeasuring: () => state.isOn,
    measurePinned: () => view.pinned && [timesOf(view, view.pinned)].forEach(([start, end]) => (state.start === null ? (point(start), point(end)) : point(end))),
  })
}

function rulerText(ruler, { isOn, start }) {
  if (isOn && start === null) return "Click where it starts"
  if (!ruler) return ""
  const length = ruler.end - ruler.start
  const text = length > 0 ? `${formatNs(length)} · ${formatRate(length)}` : "0 ns"
  return isOn ? `${text} · click where it ends` : text
}

/** How often a second something is that takes this long. */
function formatRate(ns) {
  const hertz = 1e9 / ns
  const [unit, scale] = [["GHz", 1e9], ["MHz", 1e6], ["kHz", 1e3]].find(([, size]) => hertz >= size * 0.9995) ?? ["Hz", 1]
  return `${Number((hertz / scale).toPrecision(3))} ${unit}`
}

/** The time under the pointer, or that of a span's edge where one is near. */
function timeUnder(viewer, event) {
  const { view } = viewer
  const point = viewer.pointOf(event)
  const time = view.timeAt(Math.max(view.frame.left, Math.min(view.frame.right, point.x)))
  const hit = view.hitAt(point.x, point.y)
  if (!hit || !isSpan(hit)) return time
  const row = view.store.row(hit.row)
  const edges = [row.start[hit.index], row.end[hit.index]]
  const nearest = Math.abs(edges[0] - time) <= Math.abs(edges[1] - time) ? edges[0] : edges[1]
  return Math.abs(view.pxAt(nearest) - point.x) <= SNAP_PX ? nearest : time
}
