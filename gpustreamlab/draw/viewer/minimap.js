// The whole run in one slim line: when how many streams were busy, and the window in view, which can be dragged.

import { OPEN_STRIP, setPen } from "./brush.js"
import { makeNode } from "./nodes.js"
import { LABEL_GAP_PX } from "./paint_lanes.js"
import { markColour } from "./paint_marks.js"
import { firstFit, stepShape } from "./paint_card.js"
import { busyShares } from "./unions.js"
import { formatNs } from "./units.js"
import { FILTER_KEYS, MIN_WINDOW_NS } from "./view.js"

export const MINIMAP_PX = 22
const TOP_PX = 3, RIM_PX = 3 // Above and below what is drawn.
const BOTTOM_PX = MINIMAP_PX - RIM_PX
const GRIP_PX = 6 // Within this distance of its edge, the window is resized.
const LEAST_BOX_PX = 6 // The window is drawn at least this wide, so that it can be seen and hit.

export class Minimap {
  constructor(viewer, element) {
    this.viewer = viewer
    this.view = viewer.view
    this.element = element
    const up = () => { this.grip = null }
    this.canvas = makeNode("canvas", {
      role: "img", "aria-label": "How many streams were busy, and which part of the session is in view",
      onpointerdown: event => this.down(event), onpointermove: event => this.move(event), onpointerup: up, onpointercancel: up,
      ondblclick: () => this.view.fit(),
    })
    Object.assign(this.canvas.style, {display: "block", width: "100%", touchAction: "pan-y"})
    element.append(this.canvas)
    this.frame = 0
    viewer.atEnd(() => cancelAnimationFrame(this.frame))
    this.shares = this.grip = null
    const data = () => { this.shares = null; this.request() }
    this.view.on("range", () => this.request())
    this.view.on("data", data)
    this.view.on("look", property => {
      if (FILTER_KEYS.has(property)) data()
      else if (property === "matches") { this.ticks = null; this.request() }
    })
  }

  // What the map is painted for. The figure may find its place, or its colours, after the map was asked to paint.
  get situation() { return [this.left, this.width, this.element.clientWidth, this.viewer.theme.key].join() }
  keepUp() { if (this.situation !== this.painted) this.request() }

  request() { this.frame ||= requestAnimationFrame(() => { this.frame = 0; this.paint() }) }

  // The map lies over the figure's frame, so that one time is at one place in both.
  get left() { return this.view.frame.left }
  get width() { return Math.max(1, this.view.frame.right - this.view.frame.left) }
  pxAt(ns) { return this.left + (ns - this.full.start) / (this.full.end - this.full.start) * this.width }
  timeAt(px) { return this.full.start + (px - this.left) / this.width * (this.full.end - this.full.start) }

  // Whether the window has the whole run.
  get isWhole() { return this.view.x0 <= this.full.start && this.view.x1 >= this.full.end }

  paint() {
    const ratio = window.devicePixelRatio || 1
    const wide = Math.round(this.element.clientWidth * ratio), high = Math.round(MINIMAP_PX * ratio)
    const {view, viewer: {painter, theme}} = this
    if (!wide || view.frame.right <= view.frame.left + 1) return
    if (this.canvas.width !== wide || this.canvas.height !== high) {
      Object.assign(this.canvas, {width: wide, height: high})
      this.canvas.style.height = `${MINIMAP_PX}px`
      this.shares = null
    }
    this.full = view.fullRange()
    if (this.painted !== this.situation) this.ticks = null
    this.painted = this.situation
    const ctx = this.canvas.getContext("2d")
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    ctx.clearRect(0, 0, wide, high)
    const columns = Math.max(1, Math.round(this.width))
    if (this.shares?.length !== columns) {
      this.shares = this.busyBetween(this.full.start, this.full.end, columns)
      this.ticks = null
    }
    this.paintArea(ctx)
    this.paintMoments(ctx)
    paintHitTicks(ctx, this, BOTTOM_PX)
    this.paintWindow(ctx)
    setPen(ctx, theme.soft, 11, "right")
    const room = this.left - LABEL_GAP_PX
    ctx.fillText(firstFit(ctx, painter.texts, ["whole run", "all"], room), room, MINIMAP_PX / 2)
  }

  busyBetween(from, to, columns) { return busyShares(this.view.store, this.view.tables, from, to, columns).lanes }

  paintArea(ctx) {
    const {theme} = this.viewer, box = {left: this.left, right: this.left + this.width, top: TOP_PX, bottom: BOTTOM_PX}
    ctx.fillStyle = theme.shade
    ctx.fillRect(box.left, box.top, this.width, box.bottom - box.top)
    ctx.fillStyle = theme.busy
    if (this.view.tables.header.counts_ranges) ctx.globalAlpha = OPEN_STRIP
    ctx.fill(stepShape(new Float64Array(this.shares.length), this.shares, box, this.shares.reduce((most, share) => Math.max(most, share), 1)))
    ctx.globalAlpha = 1
  }

  paintMoments(ctx) {
    let last = -Infinity
    for (const {time, kind} of this.view.tables.marks) {
      const x = Math.round(this.pxAt(time))
      if (x - last < 2) continue
      last = x
      ctx.fillStyle = markColour(kind, this.viewer.theme)
      ctx.fillRect(x, TOP_PX, 1, BOTTOM_PX - TOP_PX)
    }
  }

  // Edges of the window in px, within the map.
  windowPx() {
    const left = this.pxAt(this.view.x0), right = this.pxAt(this.view.x1), more = Math.max(0, LEAST_BOX_PX - right + left) / 2
    return [Math.max(this.left, left - more), Math.min(this.left + this.width, right + more)]
  }

  paintWindow(ctx) {
    const {theme} = this.viewer, [left, right] = this.windowPx(), high = BOTTOM_PX - TOP_PX
    ctx.fillStyle = theme.paper
    ctx.globalAlpha = 0.62
    ctx.fillRect(this.left, TOP_PX, left - this.left, high)
    ctx.fillRect(right, TOP_PX, this.left + this.width - right, high)
    ctx.globalAlpha = 1
    ctx.fillStyle = ctx.strokeStyle = theme.accent
    ctx.lineWidth = 1.5
    if (!this.isWhole) ctx.strokeRect(left + 0.75, TOP_PX + 0.75, Math.max(1, right - left - 1.5), high - 1.5)
    if (right - left > 16) for (const x of [left, right - 4]) ctx.fillRect(x, TOP_PX + high / 2 - 6, 4, 12)
  }

  part(px) {
    const [left, right] = this.windowPx()
    if (px < left - GRIP_PX || px > right + GRIP_PX) return "outside"
    if (right - left < 4 * GRIP_PX) return "inside"
    return px <= left + GRIP_PX ? "left" : px < right - GRIP_PX ? "inside" : "right"
  }

  px(event) { return event.clientX - this.canvas.getBoundingClientRect().left }

  // The exact mean of the px under the pointer.
  tell(px) {
    const {view} = this, from = this.timeAt(px), nsPerPx = (this.full.end - this.full.start) / this.width
    const isIn = px >= this.left && px <= this.left + this.width
    if (!view.tables.header.has_common_time) this.canvas.title = `Streams ${view.tables.header.busy_word} on each engine, at its own time`
    else this.canvas.title = `${isIn ? Number(this.busyBetween(from, from + nsPerPx, 1)[0].toPrecision(3)) : "How many"} streams ${view.tables.header.busy_word} at ${isIn ? formatNs(from) : "once"}`
  }

  down(event) {
    if (!this.full || event.button) return
    const px = this.px(event), part = this.part(px), {x0, x1} = this.view
    if (part === "outside") {
      const middle = this.timeAt(px), half = (x1 - x0) / 2
      this.view.setRange(middle - half, middle + half)
    }
    this.canvas.setPointerCapture(event.pointerId)
    this.grip = {part: part === "outside" ? "inside" : part, from: this.timeAt(px), x0: this.view.x0, x1: this.view.x1}
  }

  move(event) {
    if (!this.full) return
    const px = this.px(event)
    if (!this.grip) {
      if (!this.isWhole) this.canvas.title = "Drag the window, or its edges; double-click shows the whole session"
      else this.tell(px)
      this.canvas.style.cursor = {left: "ew-resize", right: "ew-resize", inside: "grab", outside: "pointer"}[this.part(px)]
      return
    }
    const {part, from, x0, x1} = this.grip, shift = this.timeAt(px) - from, {low, high} = this.view.bounds()
    if (part === "inside") this.view.setRange(x0 + shift, x1 + shift)
    // Beyond the rim only the dragged edge stops: a window that is pushed back as a whole would move the other one.
    else if (part === "left") this.view.setRange(Math.max(low, Math.min(x0 + shift, x1 - MIN_WINDOW_NS)), x1)
    else this.view.setRange(x0, Math.min(high, Math.max(x1 + shift, x0 + MIN_WINDOW_NS)))
  }
}

/** Mark in the overview where hits begin: `pxAt` and `timeAt` of the map say which px is which time. */
export function paintHitTicks(ctx, map, bottom) {
  if (!map.view.matches) return
  map.ticks ??= hitTicks(map)
  // On paper of their own: what is busy behind them is of nearly the same colour.
  for (const [colour, wide] of [[map.viewer.theme.paper, 4], [map.viewer.theme.accent, 2]]) {
    ctx.fillStyle = colour
    for (const px of map.ticks) ctx.fillRect(px - wide / 2, bottom - 10, wide, 10)
  }
}

// Each px of the map at which a span begins that a search found.
function hitTicks(map) {
  const {view: {store, matches}, left, width} = map, ticks = new Set()
  for (const row of store.rows.map(({code}) => store.row(code))) {
    // One search a px at most, however many hits there are.
    for (let index = row.nextMatch(0, matches); index < row.length;) {
      const px = Math.floor(map.pxAt(row.start[index]))
      if (px >= left && px < left + width) ticks.add(px)
      index = row.nextMatch(Math.max(index + 1, row.firstFrom(map.timeAt(px + 1))), matches)
    }
  }
  return ticks
}
