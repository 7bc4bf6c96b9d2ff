// Lanes that are higher than their place: a slim bar at the right, and the wheel: whether it scrolls the page, scrolls the lanes or zooms.

const SCROLL_PX = 10
const LEAST_THUMB_PX = 24

export function addScrolling(viewer) {
  const {view, figureElement} = viewer
  const bar = document.createElement("div"), thumb = document.createElement("div")
  bar.className = "gsl-scroll"
  thumb.className = "gsl-thumb"
  Object.assign(bar.style, {position: "absolute", width: `${SCROLL_PX}px`, borderRadius: "5px", zIndex: "2", touchAction: "none"})
  Object.assign(thumb.style, {position: "absolute", left: "1px", right: "1px", borderRadius: "4px"})
  for (const [name, value] of [["role", "scrollbar"], ["aria-label", "Lanes"], ["aria-orientation", "vertical"]]) bar.setAttribute(name, value)
  bar.append(thumb)
  figureElement.append(bar)
  const place = () => placeBar(viewer, bar, thumb)
  const offs = [view.on("look", property => property === "scrollPx" && place()), view.on("data", place), viewer.onPainted(place)]
  place()
  const offDrag = dragThumb(view, bar, thumb)
  const offWheel = scrollByWheel(viewer)
  return () => { offs.forEach(off => off()); offDrag(); offWheel(); bar.remove() }
}

function placeBar(viewer, bar, thumb) {
  const {view} = viewer, trackPx = view.lanesBottom() - view.lanesTop()
  bar.hidden = !view.canScroll
  if (bar.hidden) return
  const wholePx = view.tables.height_px - view.parts.headPx, thumbPx = Math.max(LEAST_THUMB_PX, trackPx * trackPx / wholePx)
  const reach = view.tables.height_px - view.lanesPx
  const style = {left: `${view.frame.right + 4}px`, top: `${view.lanesTop()}px`, height: `${trackPx}px`, background: viewer.theme.shade}
  Object.assign(bar.style, style)
  Object.assign(thumb.style, {height: `${thumbPx}px`, top: `${(trackPx - thumbPx) * view.scrollPx / reach}px`, background: viewer.theme.soft})
  bar.setAttribute("aria-valuenow", Math.round(100 * view.scrollPx / reach))
}

// Drag the thumb, or press beside it to go there.
function dragThumb(view, bar, thumb) {
  let grip = null
  const move = event => {
    if (grip === null) return
    const box = bar.getBoundingClientRect(), reach = view.tables.height_px - view.lanesPx
    view.scrollTo((event.clientY - box.top - grip) / Math.max(1, box.height - thumb.offsetHeight) * reach)
  }
  const down = event => {
    const box = thumb.getBoundingClientRect()
    grip = event.target === thumb ? event.clientY - box.top : box.height / 2
    bar.setPointerCapture(event.pointerId)
    event.preventDefault()
    move(event)
  }
  const up = () => { grip = null }
  const listeners = [["pointerdown", down], ["pointermove", move], ["pointerup", up], ["pointercancel", up]]
  for (const [type, listener] of listeners) bar.addEventListener(type, listener)
  return () => { for (const [type, listener] of listeners) bar.removeEventListener(type, listener) }
}

// The plain wheel scrolls the page past the timeline: who scrolls a notebook does not mean each picture that comes under the pointer.
// It zooms with Ctrl (or Cmd; touchpads report a pinch as Ctrl) and after a click into the picture, until the pointer leaves or
// the focus is lost. Over the names, or with Shift, it scrolls the lanes, at their ends the page; sideways it moves time.
function scrollByWheel({view, element, figureElement}) {
  let isEntered = false // Clicked into, and not left since.
  const leave = () => { isEntered = false }
  const enter = event => { isEntered = event.button === 0 }
  const lose = event => { if (!element.contains(event.relatedTarget)) leave() }
  const wheel = event => {
    const box = figureElement.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top
    const stepPx = event.deltaMode === 1 ? 24 : event.deltaMode === 2 ? view.lanesPx : 1
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey
    const isBeside = x < view.frame.left || x > view.frame.right
    const zooms = event.ctrlKey || event.metaKey || isEntered
    if (!isBeside && !isSideways && !event.shiftKey && zooms) return // Bokeh's tool zooms.
    event.stopImmediatePropagation()
    if (event.ctrlKey || event.metaKey) event.preventDefault() // Beside the picture it would zoom the whole page.
    else if (isSideways && !isBeside) {
      event.preventDefault()
      view.panBy(event.deltaX * stepPx / (view.frame.right - view.frame.left))
    } else if ((isBeside || event.shiftKey) && view.canScroll && y < view.lanesBottom()) {
      const before = view.scrollPx
      view.scrollTo(before + (event.deltaY || event.deltaX) * stepPx)
      if (view.scrollPx !== before) event.preventDefault()
    }
  }
  const listeners = [
    [figureElement, "wheel", wheel, {capture: true, passive: false}], [figureElement, "pointerdown", enter, {capture: true}],
    [element, "pointerleave", leave, {}], [element, "focusout", lose, {}],
  ]
  for (const [target, ...listener] of listeners) target.addEventListener(...listener)
  return () => { for (const [target, ...listener] of listeners) target.removeEventListener(...listener) }
}
