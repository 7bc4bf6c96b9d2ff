// One timeline on a page: its DOM, the Bokeh figure in it, and what connects the two with the view.

import { addAddress } from "./address.js"
import { checkFormat } from "./columns.js"
import { addColours } from "./colours.js"
import { addDetails } from "./details.js"
import { addFollow } from "./follow.js"
import { addGaps } from "./gaps.js"
import { addKeys } from "./keys.js"
import { addLayers, leaveViewport, paintEachFrame, tickFormatter } from "./layer.js"
import { addLanes } from "./lanes.js"
import { addLegend } from "./legend.js"
import { addMenu } from "./menu.js"
import { Minimap, MINIMAP_PX } from "./minimap.js"
import { listen } from "./nodes.js"
import { addNotes } from "./notes.js"
import { Painter } from "./paint.js"
import { addRuler } from "./ruler.js"
import { addScrolling } from "./scroll.js"
import { addSearch } from "./search.js"
import { addSelect } from "./select.js"
import { SpanStore } from "./store.js"
import { readTheme, themePlot, watchTheme } from "./theme.js"
import { addTotals } from "./totals_table.js"
import { addTips } from "./tips.js"
import { View } from "./view.js"
import { addWhy } from "./why_panel.js"

const RIM_PX = 2 // Above the frame.
const AXIS_PX = 48 // Ticks and title below it.
const PHONE_PX = 560
const LEAST_FIGURE_PX = 240, LEAST_PHONE_PX = 340 // A window that has less room for the figure scrolls.
const CELL_SHARE = 0.72 // How much of the window a timeline takes in a notebook, or beside others, at most.
export const TABLES_FORMAT = 3 // FORMAT of draw/_tables.py
const ABOVE = new Set(["hovered", "pinned", "selection", "ruler", "gap", "reason", "why", "notes"]) // Painted on the upper layer.
const NARROW_BORDER = 0.3 // Names take at most this share of the width.
const CONTROLS = [addMenu, addColours, addLanes, addTips, addDetails, addGaps, addSearch, addKeys, addSelect, addTotals, addRuler, addWhy, addNotes, addLegend, addFollow, addAddress] // In their order.

export class Viewer {
  constructor({element, Bokeh, item, tables, store, live = false, askWhy = null, fills = false, address = null, notes = null, savePage = null}) {
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
    this.fills = fills // It has the browser's window for itself.
    this.element.dataset.fills = fills
    this.address = address // What stands before each key of this viewer in the page's address; null to leave that alone.
    this.notes = notes // Those to begin with, where they are others than the trace's.
    this.savePage = savePage
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
    this.view.fit()
    for (const add of CONTROLS) this.removers.push(add(this)) // The last goes to where a link points.
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
    plot.x_range.setv({start: view.x0, end: view.x1})
    this.useTheme()
  }

  // Room for the names and the lanes there are now. Setting what is set already does nothing.
  sizePlot() {
    const {plot, view} = this, width = this.figureElement.clientWidth || 1200
    view.setRoom(Math.round(this.figureRoom() - AXIS_PX - RIM_PX), this.fills)
    const {innerPx} = view.parts
    const changes = {
      height: innerPx + AXIS_PX + RIM_PX,
      min_border_top: RIM_PX,
      min_border_bottom: AXIS_PX,
      min_border_left: Math.round(Math.min(view.tables.border_px, Math.max(90, width * NARROW_BORDER))),
    }
    for (const [name, value] of Object.entries(changes)) if (plot[name] !== value) plot[name] = value
    // Before the figure has a frame, ticks are chosen by one of about its width.
    if (!this.plotView) view.frame = {left: changes.min_border_left, top: RIM_PX, right: width, bottom: RIM_PX + innerPx}
    if (plot.y_range.start !== innerPx) plot.y_range.setv({start: innerPx, end: 0})
    this.figureElement.style.minHeight = `${changes.height}px` // The page does not jump while the figure is made.
  }

  // How high the figure may be, so that its axis, the controls and the panels below it are in view together. A page fills the
  // window; in a notebook's cell, and beside others, the panels come below.
  figureRoom() {
    const {element, figureElement} = this, own = element.getBoundingClientRect(), besides = element.offsetHeight - figureElement.offsetHeight
    const leastPx = element.clientWidth < PHONE_PX ? LEAST_PHONE_PX : LEAST_FIGURE_PX
    if (!this.fills) return Math.max(leastPx, CELL_SHARE * hostHeight() - besides + element.querySelector(".gsl-panels").offsetHeight)
    const above = own.top + window.scrollY, below = document.body.getBoundingClientRect().bottom - own.bottom
    return Math.max(leastPx, document.documentElement.clientHeight - above - below - besides)
  }

  connect() {
    const {view, plotView} = this
    paintEachFrame(plotView)
    plotView.repainted.connect(() => this.paintListeners.forEach(listener => listener()))
    this.sizePlot() // Lanes may have come while the figure was made.
    this.minimap = new Minimap(this, this.element.querySelector(".gsl-minimap"))
    this.removers.push(
      view.on("range", () => this.rangeChanged()), view.on("look", property => this.lookChanged(property)), view.on("data", detail => this.dataChanged(detail)),
      watchTheme(() => this.useTheme()), this.onPainted(() => this.minimap.keepUp()), addScrolling(this), this.watchSize(), () => this.minimap.remove(),
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
    for (const element of [...this.element.children, ...(this.fills ? [document.documentElement] : [])]) observer.observe(element)
    const offWindow = listen(window, "resize", () => this.sizePlot())
    return () => { offWindow(); clearTimeout(due); observer.disconnect() }
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
  for (const name of ["bar", "figure", "minimap", "panels"]) {
    const part = document.createElement("div")
    part.className = `gsl-${name}`
    root.append(part)
  }
  Object.assign(root.querySelector(".gsl-figure").style, {position: "relative", minWidth: "0"})
  root.querySelector(".gsl-minimap").style.minHeight = `${MINIMAP_PX}px`
  return root
}

// Height of the window in which the page is seen, also from within a frame.
function hostHeight() {
  try { return window.parent.innerHeight } catch { return window.screen.availHeight }
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
