// A window of time and lanes, drawn with the mouse; its totals stand in the table of totals.

import { commandsOf, listen, partOf, rootOf } from "./nodes.js"
import { figurePoint } from "./tips.js"

const SELECT_MIN_PX = 3

/** Select with Shift and drag, or as the menu says. */
export function addSelect(viewer) {
  const state = { isDragging: false }
  const off = dragSelect(viewer, state)
  commandsOf(viewer).isSelecting = () => state.isDragging
  return off
}

/** Shift and drag draws the window, Alt and drag the one to zoom to; what moves the picture does not get to see it. */
function dragSelect(viewer, state) {
  const { view } = viewer
  const figure = partOf(viewer, "figure")
  let from = null, isZoom = false
  const place = event => {
    const point = figurePoint(viewer, { x: event.clientX, y: event.clientY })
    if (Math.abs(point.x - from.x) >= SELECT_MIN_PX) view.set("selection", selectionBetween(view, from, point))
  }
  const take = event => { event.preventDefault(); event.stopImmediatePropagation() }
  const end = event => {
    if (!from) return
    take(event)
    from = null
    state.isDragging = false
    const { selection } = view
    view.set("selection", isZoom ? null : selection) // It is whole now.
    if (isZoom && selection) view.setRange(selection.start, selection.end)
  }
  const offs = [
    listen(figure, "pointerdown", event => {
      const point = figurePoint(viewer, { x: event.clientX, y: event.clientY })
      const does = event.shiftKey ? "select" : event.altKey ? "zoom" : event.pointerType === "mouse" ? view.dragDoes : "move"
      if (does === "move" || commandsOf(viewer).isMeasuring?.() || event.button || !isInParts(view, point)) return
      take(event)
      rootOf(viewer).focus({ preventScroll: true })
      commandsOf(viewer).hideTip?.()
      from = point
      isZoom = does === "zoom"
      state.isDragging = true
      figure.setPointerCapture(event.pointerId)
    }, true),
    listen(figure, "pointermove", event => { if (from) { take(event); place(event) } }, true),
    listen(figure, "pointerup", end, true),
    listen(figure, "pointercancel", end, true),
  ]
  return () => offs.forEach(off => off())
}

/** Whether a place in the figure is over the lanes or over the strips below them. */
function isInParts({ frame: { left, right, top, bottom } }, point) {
  return point.x >= left && point.x <= right && point.y >= top && point.y < bottom
}

/** The window and lanes between two corners, of which the first is where the drag began. */
function selectionBetween(view, a, b) {
  const within = x => Math.max(view.frame.left, Math.min(view.frame.right, x))
  const [start, end] = [a.x, b.x].map(x => view.timeAt(within(x))).sort((p, q) => p - q)
  return { start, end, lanes: lanesBetween(view, a, b) }
}

/** The lanes between two corners, without those below the fold; all of them for a drag over a strip, or beside all lanes. */
function lanesBetween(view, a, b) {
  if (a.y >= view.frame.top + view.lanesPx) return new Set(view.tables.lanes.keys())
  const [top, bottom] = [a.y, b.y].map(y => Math.min(y, view.frame.top + view.lanesPx)).sort((p, q) => p - q)
  const lanes = new Set()
  for (const code of view.visibleLanes()) {
    const lane = view.tables.lanes[code]
    if (view.yAt(lane.bottom) > top && view.yAt(lane.top) <= bottom) lanes.add(code)
  }
  return lanes.size ? lanes : new Set(view.tables.lanes.keys())
}

/** The pandas expression that gives the selected spans: those that touch the window, by the trace's own exact integers. */
export function dataFrameFilter(tables, { start, end, lanes }) {
  const from = BigInt(tables.zero_ns) + BigInt(Math.floor(start)), to = BigInt(tables.zero_ns) + BigInt(Math.ceil(end))
  const terms = [`(t.end_ns >= ${from})`, `(t.start_ns <= ${to})`]
  // JSON's strings are Python's, also with quotes, controls and half surrogates in them.
  if (lanes.size < tables.lanes.length) terms.push(`t.lane.isin([${[...lanes].map(code => JSON.stringify(tables.lanes[code].name)).join(", ")}])`)
  return `lab.trace.to_pandas().loc[lambda t: ${terms.join(" & ")}]`
}
