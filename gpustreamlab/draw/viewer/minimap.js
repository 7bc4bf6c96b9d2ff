// The whole run in one slim line: the card's SMs, and the window in view, which can be dragged.

import { setPen } from "./brush.js"
import { makeNode } from "./nodes.js"
import { LABEL_GAP_PX } from "./paint_lanes.js"
import { firstFit, paintStack } from "./paint_card.js"
import { Pixels } from "./pixels.js"
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
      role: "img", "aria-label": "The SMs of the whole run, and which part of it is in view", title: "Drag the window, or its edges; double-click shows the whole run",
      onpointerdown: event => this.down(event), onpointermove: event => this.move(event), onpointerup: up, onpointercancel: up,
      ondblclick: () => this.view.fit(),
    })
    Object.assign(this.canvas.style, {display: "block", width: "100%", touchAction: "pan-y"})
    element.append(this.canvas)
    this.frame = 0
    viewer.atEnd(() => cancelAnimationFrame(this.frame))
    this.pixels = new Pixels()
    this.isDrawn = false // Whether they show what there is.
    this.grip = null
    const data = () => { this.isDrawn = false; this.request() }
    this.view.on("range", () => this.request())
    this.view.on("data", data)
    this.view.on("look", property => { if (FILTER_KEYS.has(property) || property === "colour" || property === "hasHatches") data() })
  }

  // What the map is painted for. The figure may find its place, or its colours, after the map was asked to paint.
  get situation() { return [this.left, this.width, this.element.clientWidth, this.viewer.theme.key].join() }
  keepUp() { if (this.situation !== this.painted || !this.isDrawn) this.request() }

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
    }
    this.full = view.fullRange()
    if (this.painted !== this.situation) this.isDrawn = false
    this.painted = this.situation
    const ctx = this.canvas.getContext("2d")
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    ctx.clearRect(0, 0, wide, high)
    this.paintArea(ctx, ratio)
    this.paintWindow(ctx)
    setPen(ctx, theme.soft, 11, "right")
    const room = this.left - LABEL_GAP_PX
    ctx.fillText(firstFit(ctx, painter.texts, ["whole run", "all"], room), room, MINIMAP_PX / 2)
  }

  paintArea(ctx, ratio) {
    const {viewer: {painter, theme}, view: {tables}, full, pixels} = this, most = tables.cards.reduce((sum, {sms}) => sum + sms, 0) || tables.lanes.length
    if (!this.isDrawn && painter.looks) {
      this.isDrawn = true
      pixels.resize(Math.max(1, Math.round(this.width * ratio)), Math.round((BOTTOM_PX - TOP_PX) * ratio))
      paintStack(pixels, painter, {kind: "sms", device: -1, most, top: 0, bottom: BOTTOM_PX - TOP_PX}, {x0: full.start, x1: full.end, columns: pixels.width})
      pixels.paint()
    }
    ctx.fillStyle = theme.shade
    ctx.fillRect(this.left, TOP_PX, this.width, BOTTOM_PX - TOP_PX)
    if (this.isDrawn) ctx.drawImage(pixels.canvas, this.left, TOP_PX, this.width, BOTTOM_PX - TOP_PX)
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
