// A window of time and lanes, drawn with the mouse; its totals stand in the table of totals.

import { listen } from "./nodes.js"

const SELECT_MIN_PX = 3

/** Shift and drag selects, Alt and drag zooms, or as the menu says; what moves the picture does not get to see it. */
export function addSelect(viewer) {
  const { view, figureElement: figure, commands } = viewer
  let from = null, isZoom = false
  const take = event => { event.preventDefault(); event.stopImmediatePropagation() }
  const down = event => {
    const point = viewer.pointOf(event)
    const does = event.shiftKey ? "select" : event.altKey ? "zoom" : event.pointerType === "mouse" ? view.dragDoes : "move"
    if (does === "move" || commands.isMeasuring() || event.button || !view.isOver(point)) return
    take(event)
    viewer.focus()
    commands.hideTip()
    from = point
    isZoom = does === "zoom"
    figure.setPointerCapture(event.pointerId)
  }
  const move = event => {
    if (!from) return
    take(event)
    const point = viewer.pointOf(event)
    if (Math.abs(point.x - from.x) >= SELECT_MIN_PX) view.set("selection", selectionBetween(view, from, point))
  }
  const end = event => {
    if (!from) return
    take(event)
    from = null
    const { selection } = view
    view.set("selection", isZoom ? null : selection) // It is whole now.
    if (isZoom && selection) view.setRange(selection.start, selection.end)
  }
  listen(figure, { pointerdown: down, pointermove: move, pointerup: end, pointercancel: end })
  commands.isSelecting = () => from !== null
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
