// What moves the picture by hand: the wheel, the mouse, fingers, and a scroll bar where lanes are higher than their place.

import { listen, makeNode } from "./nodes.js"

const DRAG_PX = 4 // What moves less is a click.
const WHEEL_PX = 400 // So much of the wheel zooms by e.

export function addScrolling(viewer) {
  addBar(viewer)
  useWheel(viewer)
  useDrag(viewer)
}

// The browser's own bar, beside the lanes: it has keys, and a look that people know.
function addBar(viewer) {
  const {view, figureElement} = viewer, inner = makeNode("div")
  const bar = makeNode("div", {class: "gsl-scroll", tabindex: "-1", "aria-hidden": "true"}, inner) // Keys scroll, too: PgUp, PgDn.
  figureElement.append(bar)
  const place = () => {
    bar.hidden = !view.canScroll
    const top = view.lanesTop()
    Object.assign(bar.style, {left: `${view.frame.right + 3}px`, top: `${top}px`, height: `${view.lanesBottom() - top}px`})
    inner.style.height = `${view.tables.height_px - view.parts.headPx}px`
    if (Math.abs(bar.scrollTop - view.scrollPx) >= 1) bar.scrollTop = view.scrollPx
  }
  view.on("look", property => property === "scrollPx" && place())
  view.on("data", place)
  viewer.onPainted(place)
  bar.addEventListener("scroll", () => view.scrollTo(bar.scrollTop))
}

// The plain wheel scrolls the lanes where the page itself cannot scroll, and over their names, or with Shift; at their ends, and all
// else, it is the page's: nobody is caught. It zooms with Ctrl (or Cmd; touchpads report a pinch as Ctrl), and over the axis;
// sideways it moves time.
function useWheel(viewer) {
  const {view, figureElement} = viewer
  const wheel = event => {
    const {x, y} = viewer.pointOf(event)
    const stepPx = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? view.lanesPx : 1
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey
    const isBeside = x < view.frame.left || x > view.frame.right, hasKey = event.ctrlKey || event.metaKey
    if (hasKey) event.preventDefault() // Beside the picture it would zoom the whole page.
    if (isSideways && !isBeside) {
      event.preventDefault()
      view.panBy(event.deltaX * stepPx / (view.frame.right - view.frame.left))
    } else if (!isBeside && !event.shiftKey && (hasKey || y < view.frame.top)) {
      event.preventDefault()
      view.zoomBy(Math.exp(event.deltaY * stepPx / WHEEL_PX), view.timeAt(x))
    } else if (!hasKey && (isBeside || event.shiftKey || !pageScrolls()) && view.canScroll && y < view.lanesBottom()) {
      const before = view.scrollPx
      view.scrollTo(before + (event.deltaY || event.deltaX) * stepPx)
      if (view.scrollPx !== before) event.preventDefault()
    }
  }
  figureElement.addEventListener("wheel", wheel, {capture: true, passive: false})
}

// Whether the page has more than the window shows. A frame belongs to a notebook, which scrolls.
function pageScrolls() {
  const {scrollHeight, clientHeight} = document.documentElement
  return window.parent !== window || scrollHeight > clientHeight + 1 || Boolean(document.querySelector(".jp-Notebook, .jp-RenderedHTMLCommon"))
}

// The mouse, or a finger that goes sideways, moves time, and lanes that are higher than their place. A finger that goes up or down
// scrolls the page, as the browser does it; two fingers zoom and move.
function useDrag(viewer) {
  const {view, figureElement} = viewer, held = new Map()
  const canvas = viewer.plotView.canvas_view.events_el
  canvas.style.touchAction = "pan-y"
  const middle = () => {
    const places = [...held.values()], [first, last] = [places[0], places.at(-1)]
    return {x: (first.x + last.x) / 2, y: (first.y + last.y) / 2, spread: Math.hypot(first.x - last.x, first.y - last.y)}
  }
  const down = event => {
    const place = viewer.pointOf(event)
    if (event.button || held.size > 1 || !view.isOver(place)) return
    held.set(event.pointerId, {...place, from: place, isMoving: event.pointerType === "touch"})
  }
  const move = event => {
    const one = held.get(event.pointerId)
    if (!one) return
    const place = viewer.pointOf(event)
    one.isMoving ||= Math.hypot(place.x - one.from.x, place.y - one.from.y) >= DRAG_PX
    if (!one.isMoving) return
    const before = middle(), time = view.timeAt(before.x), {left, right} = view.frame
    Object.assign(one, place)
    const after = middle(), width = (view.x1 - view.x0) * (before.spread && after.spread ? before.spread / after.spread : 1)
    const begin = time - (after.x - left) / (right - left) * width
    view.setRange(begin, begin + width)
    if (event.pointerType !== "touch" || held.size > 1) view.scrollTo(view.scrollPx + before.y - after.y)
  }
  const up = event => held.delete(event.pointerId)
  listen(figureElement, {pointerdown: down, pointermove: move, pointerup: up, pointercancel: up}, false)
  // Else the browser takes two fingers that go down for its own.
  const touched = event => { if (event.touches.length > 1 && event.cancelable) event.preventDefault() }
  figureElement.addEventListener("touchmove", touched, {passive: false})
}
