// One timeline on a page: its DOM, the Bokeh figure in it, and what connects the two with the view.

import { checkFormat } from "./columns.js"
import { addColours } from "./colours.js"
import { addDetails } from "./details.js"
import { addFollow } from "./follow.js"
import { addGaps } from "./gaps.js"
import { addKeys } from "./keys.js"
import { addLayers, leaveViewport, paintEachFrame, tickFormatter } from "./layer.js"
import { addLegend } from "./legend.js"
import { addMenu } from "./menu.js"
import { Minimap, MINIMAP_PX } from "./minimap.js"
import { Painter } from "./paint.js"
import { addRuler } from "./ruler.js"
import { addScrolling } from "./scroll.js"
import { addSearch } from "./search.js"
import { addSelect } from "./select.js"
import { SpanStore } from "./store.js"
import { readTheme, themePlot, watchTheme } from "./theme.js"
import { addTips } from "./tips.js"
import { View } from "./view.js"
import { addWhy } from "./why_panel.js"

const AXIS_PX = 48 // Ticks and title below the frame.
const TOOLBAR_PX = 32
export const TABLES_FORMAT = 3 // FORMAT of draw/_tables.py
const ABOVE = new Set(["hovered", "pinned", "selection", "ruler", "gap", "reason", "why"]) // Painted on the upper layer.
const NARROW_BORDER = 0.3 // Names take at most this share of the width.
const CONTROLS = [addMenu, addColours, addTips, addDetails, addGaps, addSearch, addKeys, addSelect, addRuler, addWhy, addLegend, addFollow] // In their order.

export class Viewer {
  constructor({element, Bokeh, item, tables, store, live = false, askWhy = null}) {
    checkFormat("This timeline has", tables.format, TABLES_FORMAT)
    this.Bokeh = Bokeh
    this.item = item
    this.element = makeFrame()
    element.append(this.element)
    this.figureElement = this.element.querySelector(".gsl-figure")
    this.view = new View(tables, store)
    this.view.isLive = live
    this.view.isFollowing = live
    this.theme = readTheme(this.element)
    this.painter = new Painter(this.view, this.theme)
    this.paintListeners = new Set()
    this.askWhy = askWhy
    this.removers = []
    this.isDestroyed = false
  }

  // Show everything. BokehJS insists on an element that is in the page, and notebooks make elements before they show them.
  async start() {
    while (!this.figureElement.isConnected && !this.isDestroyed) await new Promise(done => setTimeout(done, 50))
    if (this.isDestroyed) return this
    this.document = this.Bokeh.require("document/document").Document.from_json(structuredClone(this.item.doc))
    this.plot = this.document.roots()[0]
    this.preparePlot()
    this.views = await this.Bokeh.embed.add_document_standalone(this.document, this.figureElement, [this.figureElement])
    if (this.isDestroyed) { this.dropPlot(); return this }
    this.plotView = this.views.roots.find(view => view.model === this.plot)
    this.connect()
    for (const add of CONTROLS) this.removers.push(add(this))
    this.view.fit()
    this.minimap.request()
    return this
  }

  preparePlot() {
    const {plot, view} = this
    plot.renderers = [] // What is there only stops a warning in Python.
    plot.below[0].formatter = tickFormatter(this.Bokeh, view)
    leaveViewport(plot)
    this.layers = addLayers(this.Bokeh, plot, view, this.painter)
    this.sizePlot()
    this.boundRange()
    plot.x_range.setv({start: view.x0, end: view.x1})
    this.useTheme()
  }

  // Room for the names and the lanes there are now. Setting what is set already does nothing.
  sizePlot() {
    const {plot, view} = this, {innerPx} = view.parts, width = this.figureElement.clientWidth || 1200
    const changes = {
      height: innerPx + AXIS_PX + TOOLBAR_PX,
      min_border_bottom: AXIS_PX,
      min_border_left: Math.round(Math.min(view.tables.border_px, Math.max(90, width * NARROW_BORDER))),
    }
    for (const [name, value] of Object.entries(changes)) if (plot[name] !== value) plot[name] = value
    if (plot.y_range.start !== innerPx) plot.y_range.setv({start: innerPx, end: 0})
    this.figureElement.style.minHeight = `${changes.height}px` // The page does not jump while the figure is made.
  }

  boundRange() {
    const {low, high} = this.view.bounds()
    this.plot.x_range.setv({bounds: [low, high]})
  }

  connect() {
    const {view, plot, plotView} = this
    paintEachFrame(plotView)
    const fromPlot = () => view.setRange(plot.x_range.start, plot.x_range.end)
    plot.x_range.change.connect(fromPlot)
    plotView.repainted.connect(() => this.paintListeners.forEach(listener => listener()))
    plot.on_event("reset", () => view.fit())
    this.sizePlot() // Lanes may have come while the figure was made.
    this.boundRange()
    this.minimap = new Minimap(this, this.element.querySelector(".gsl-minimap"))
    this.removers.push(
      view.on("range", () => this.rangeChanged()), view.on("look", property => this.lookChanged(property)), view.on("data", detail => this.dataChanged(detail)),
      watchTheme(() => this.useTheme()), this.onPainted(() => this.minimap.keepUp()), addScrolling(this), dragLanes(this), this.watchSize(), () => this.minimap.remove(),
    )
  }

  rangeChanged() {
    const {view, plot} = this
    if (plot.x_range.start !== view.x0 || plot.x_range.end !== view.x1) plot.x_range.setv({start: view.x0, end: view.x1})
  }

  lookChanged(property) {
    if (ABOVE.has(property)) this.plotView.request_paint(this.layers.overlay)
    else this.plotView.request_paint()
  }

  dataChanged(detail) {
    if (detail === "tables") this.sizePlot()
    this.boundRange()
    this.plotView.request_paint()
  }

  // Call back after each paint of the figure; returns a function that stops.
  onPainted(listener) {
    this.paintListeners.add(listener)
    return () => this.paintListeners.delete(listener)
  }

  useTheme() {
    const theme = readTheme(this.element)
    this.element.classList.toggle("gsl-hatched", theme.needsHatches || this.view.hasHatches)
    if (this.themedKey === theme.key) return
    this.themedKey = theme.key
    this.theme = theme
    this.painter.setTheme(theme)
    this.element.style.setProperty("--bokeh-icon-color", theme.soft)
    themePlot(this.plot, theme)
    if (!this.plotView) return
    this.plotView.request_paint()
    if (matchMedia("print").matches) this.plotView.repaint() // The browser prints before it gives a frame.
    this.minimap.request()
  }

  watchSize() {
    let due = 0
    const observer = new ResizeObserver(() => {
      this.sizePlot()
      this.minimap.request()
      clearTimeout(due)
      due = setTimeout(() => reviveCanvases(this.figureElement), 400)
    })
    observer.observe(this.figureElement)
    return () => { clearTimeout(due); observer.disconnect() }
  }

  dropPlot() {
    if (!this.document) return
    this.document.clear()
    for (const view of this.views.roots) view.remove() // Bokeh's notifications have a view that no root owns.
    const {documents} = this.Bokeh, place = documents.indexOf(this.document)
    if (place >= 0) documents.splice(place, 1)
  }

  destroy() {
    if (this.isDestroyed) return
    this.isDestroyed = true
    for (const remove of this.removers.splice(0).reverse()) remove()
    if (this.plotView) this.dropPlot()
    this.paintListeners.clear()
    this.element.remove()
    this.view.store = new SpanStore() // Whoever keeps a viewer that is gone keeps no spans.
  }
}

function makeFrame() {
  const root = document.createElement("div")
  root.className = "gsl-viewer"
  for (const name of ["bar", "minimap", "figure", "panels"]) {
    const part = document.createElement("div")
    part.className = `gsl-${name}`
    root.append(part)
  }
  Object.assign(root.querySelector(".gsl-figure").style, {position: "relative", minWidth: "0"})
  root.querySelector(".gsl-minimap").style.minHeight = `${MINIMAP_PX}px`
  return root
}

// Dragging moves time, by Bokeh's own tool; lanes that are higher than their place move with it.
function dragLanes({plot, view}) {
  let from = null
  const isPan = () => plot.toolbar.gestures.pan.active?.type === "PanTool"
  const offs = [
    onPlot(plot, "panstart", event => { from = isPan() && event.sy < view.lanesBottom() ? {scrollPx: view.scrollPx, sy: event.sy} : null }),
    onPlot(plot, "pan", event => { if (from && view.canScroll) view.scrollTo(from.scrollPx - (event.sy - from.sy)) }),
    onPlot(plot, "panend", () => { from = null }),
  ]
  return () => offs.forEach(off => off())
}

// BokehJS has no way to take a listener back: it is told to do nothing.
function onPlot(plot, name, listener) {
  let isOn = true
  plot.on_event(name, event => { if (isOn) listener(event) })
  return () => { isOn = false }
}

// A notebook that changes its theme changes the width twice within a moment. BokehJS 3.9 may then keep canvases of no size
// under a layout that has one, until the width changes again: so it does, by a pixel.
function reviveCanvases(element) {
  if (!element.clientWidth || allCanvases(element).every(canvas => canvas.width && canvas.height)) return
  element.style.width = "calc(100% - 1px)"
  setTimeout(() => { element.style.width = "" }, 200)
}

const allCanvases = root => [...root.querySelectorAll("*")].flatMap(
  element => element.tagName === "CANVAS" ? [element] : element.shadowRoot ? allCanvases(element.shadowRoot) : [])
