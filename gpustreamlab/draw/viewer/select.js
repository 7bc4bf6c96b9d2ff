// A window of time and lanes, drawn with the mouse; its totals stand in the table of totals.

import { listen } from "./nodes.js"

const SELECT_MIN_PX = 3

/** Shift and drag selects; what moves the picture does not get to see it. */
export function addSelect(viewer) {
  const { view, figureElement: figure, commands } = viewer
  let from = null
  const take = event => { event.preventDefault(); event.stopImmediatePropagation() }
  const down = event => {
    const point = viewer.pointOf(event)
    if (!event.shiftKey || commands.isMeasuring() || event.button || !view.isOver(point)) return
    take(event)
    viewer.focus()
    commands.hideTip()
    from = point
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
    view.set("selection", view.selection) // It is whole now.
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
