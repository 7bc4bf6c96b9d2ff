// A window of time, drawn with the mouse: how long it is stands in the picture.

import { isSpan } from "./facts.js"
import { listen } from "./nodes.js"
import { formatNs } from "./units.js"

const SELECT_MIN_PX = 3
const SNAP_PX = 6 // From here an edge of a span is meant.

/** Shift and drag selects; what moves the picture does not get to see it. */
export function addSelect(viewer) {
  const { view, figureElement: figure, commands } = viewer
  let from = null
  const take = event => { event.preventDefault(); event.stopImmediatePropagation() }
  const down = event => {
    const point = viewer.pointOf(event)
    if (!event.shiftKey || event.button || !view.isOver(point)) return
    take(event)
    viewer.focus()
    commands.hideTip()
    from = { x: point.x, time: timeUnder(view, point) }
    figure.setPointerCapture(event.pointerId)
  }
  const move = event => {
    if (!from) return
    take(event)
    const point = viewer.pointOf(event), times = [from.time, timeUnder(view, point)].sort((a, b) => a - b)
    if (Math.abs(point.x - from.x) >= SELECT_MIN_PX && times[0] < times[1]) view.set("selection", { start: times[0], end: times[1] })
  }
  const end = event => {
    if (!from) return
    take(event)
    from = null
    const { selection } = view
    if (selection) viewer.announce(`Selected ${formatNs(selection.end - selection.start)}, from ${formatNs(selection.start)} on`)
  }
  listen(figure, { pointerdown: down, pointermove: move, pointerup: end, pointercancel: end })
}

/** The time at a place of the figure, or that of a span's edge where one is near. */
function timeUnder(view, { x, y }) {
  const time = view.timeAt(Math.max(view.frame.left, Math.min(view.frame.right, x))), hit = view.hitAt(x, y)
  if (!hit || !isSpan(hit)) return time
  const row = view.store.row(hit.row), near = at => Math.abs(at - time)
  const edge = near(row.start[hit.index]) <= near(row.end[hit.index]) ? row.start[hit.index] : row.end[hit.index]
  return near(edge) <= SNAP_PX * view.nsPerPx ? edge : time
}
