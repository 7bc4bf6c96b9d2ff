// What is under the pointer, beside it.

const TIP_GAP_PX = 12

/** Show the facts of the span under the pointer, without covering it. */
function addTips(viewer) {
  const { view } = viewer
  const figure = partOf(viewer, "figure")
  const tip = makeNode("div", { class: "gsl-tip", role: "tooltip", hidden: true })
  if ("popover" in tip) tip.popover = "manual"
  rootOf(viewer).append(tip)
  const state = { key: "", pointer: null, frame: 0 }
  const hide = () => {
    state.key = ""
    closeAbove(tip)
    if (view.hovered) view.set("hovered", null)
  }
  const refresh = () => {
    state.frame = 0
    const hit = state.pointer && hitUnder(viewer, state.pointer)
    if (!hit) return hide()
    fillTip(view, tip, hit, state)
    openAbove(tip)
    placeTip(viewer, tip, hit, state.pointer)
  }
  const later = () => { state.frame ||= requestAnimationFrame(refresh) }
  const offs = [
    // While a button is down the pointer drags: the picture moves, and there is nothing to read.
    listen(figure, "pointermove", event => {
      state.pointer = event.buttons || event.pointerType === "touch" ? null : { x: event.clientX, y: event.clientY }
      later()
    }, true),
    listen(figure, "pointerdown", () => { state.pointer = null; later() }, true),
    listen(figure, "pointerleave", () => { state.pointer = null; later() }),
    // What is under a pointer that stays changes when the picture moves.
    view.on("range", () => state.pointer && later()),
    view.on("data", () => state.pointer && later()),
  ]
  // Until the pointer moves again.
  commandsOf(viewer).hideTip = () => { state.pointer = null; hide() }
  return () => {
    offs.forEach(off => off())
    cancelAnimationFrame(state.frame)
    tip.remove()
  }
}

/** Where a place of the window is in the figure, in its px. */
function figurePoint(viewer, { x, y }) {
  const box = partOf(viewer, "figure").getBoundingClientRect()
  return { x: x - box.left, y: y - box.top }
}

/** What is drawn at a place of the window, or null. */
function hitUnder(viewer, place) {
  const point = figurePoint(viewer, place)
  return viewer.view.hitAt(point.x, point.y)
}

function hitKey(hit) {
  return isSpan(hit) ? `${hit.row}:${hit.index}` : `${hit.row}:${hit.first}-${hit.last}`
}

function fillTip(view, tip, hit, state) {
  const key = `${hitKey(hit)} ${view.store.length}`
  if (key === state.key) return
  state.key = key
  const facts = isSpan(hit) ? spanFacts(view, hit).slice(1) : mergedFacts(view, hit)
  const title = makeNode("strong", { text: hitTitle(view, hit), dir: "auto" })
  const hint = isSpan(hit) ? null : makeNode("p", { text: "Too narrow to draw apart: zoom in" })
  tip.replaceChildren(title, factList(facts), ...(hint ? [hint] : []))
  view.set("hovered", hit)
}

/** Put the tip below the row that is hovered, or above it, or beside the pointer; always within the window. */
function placeTip(viewer, tip, hit, pointer) {
  const { view } = viewer
  const box = partOf(viewer, "figure").getBoundingClientRect()
  const place = view.tables.rows[hit.row]
  const lift = box.top + view.frame.top - view.scrollPx
  const top = Math.min(place.top + lift, pointer.y), bottom = Math.max(place.bottom + lift, pointer.y)
  const wide = tip.offsetWidth, high = tip.offsetHeight
  const limit = document.documentElement
  let x = Math.min(pointer.x + TIP_GAP_PX, limit.clientWidth - wide - 4)
  let y = bottom + TIP_GAP_PX
  if (y + high > limit.clientHeight - 4) y = top - TIP_GAP_PX - high
  if (y < 4) {
    y = Math.max(4, Math.min(pointer.y - high / 2, limit.clientHeight - high - 4))
    x = pointer.x + TIP_GAP_PX
    if (x + wide > limit.clientWidth - 4) x = pointer.x - TIP_GAP_PX - wide
  }
  tip.style.left = `${Math.max(4, x)}px`
  tip.style.top = `${y}px`
}
