// One timeline on a page: its DOM, the Bokeh figure in it, and what connects the two with the view.

import { addAddress } from "./address.js"
import { BAND_PX } from "./brush.js"
import { addDetails } from "./details.js"
import { addDrawer } from "./drawer.js"
import { addFindings } from "./findings.js"
import { addFollow } from "./follow.js"
import { addGaps } from "./gaps.js"
import { addKeys } from "./keys.js"
import { addLanes } from "./lanes.js"
import { addLayers, leaveViewport, paintEachFrame, tickFormatter } from "./layer.js"
import { addLegend } from "./legend.js"
import { addColours, addMenu } from "./menu.js"
import { Minimap, MINIMAP_PX } from "./minimap.js"
import { makeNode } from "./nodes.js"
import { addNotes } from "./notes.js"
import { Painter } from "./paint.js"
import { addScrolling } from "./scroll.js"
import { addSearch } from "./search.js"
import { addSelect } from "./select.js"
import { SpanStore } from "./store.js"
import { FONT, readTheme, themePlot, watchTheme } from "./theme.js"
import { addTips } from "./tips.js"
import { View } from "./view.js"
import { addWent } from "./went.js"

const RIM_PX = 2 // Below the frame.
const NEWS_PX = 18 // Below a live one, for what is to be said of it.
const GUTTER_PX = 30 // Beside the longest name: its triangle, and free space.
const AXIS_PX = 24 // The time axis above it.
const PHONE_PX = 560
const LEAST_FIGURE_PX = 240, LEAST_PHONE_PX = 340 // A window that has less room for the figure scrolls.
const CELL_SHARE = 0.72 // How much of the window a timeline takes in a notebook, or beside others, at most.
const ABOVE = new Set(["lit", "hovered", "pinned", "selection", "gap", "reason", "why", "notes"]) // Painted on the upper layer.
const NARROW_BORDER = 0.3 // Names take at most this share of the width.
const CONTROLS = [addWent, addMenu, addColours, addLanes, addTips, addNotes, addFindings, addDetails, addGaps, addSearch, addKeys, addSelect, addLegend, addFollow, addAddress] // In their order.

export class Viewer {
  constructor({element, Bokeh, item, tables, store, live = false, askWhy = null, fills = false, opens = false, address = null, notes = null, savePage = null}) {
    // `address` stands before each key of this viewer in the page's address; null leaves that alone. `notes` are those to begin
    // with, where they are others than the trace's. A viewer that fills has the browser's window for itself; one that
    // opens has the drawer open from the start.
    Object.assign(this, {Bokeh, item, askWhy, fills, opens, address, notes, savePage})
    this.makeFrame(element)
    this.commands = {} // What the controls can ask of each other, by name: so none needs to know which others there are.
    this.view = new View(tables, store)
    this.view.isLive = live
    this.view.isFollowing = live
    this.theme = readTheme(this.element)
    this.painter = new Painter(this.view, this.theme)
    this.paintListeners = new Set()
    this.element.dataset.fills = fills
    this.ending = new AbortController()
  }

  makeFrame(parent) {
    const make = (name, facts, ...children) => makeNode("div", {class: `gsl-${name}`, ...facts}, ...children)
    const part = (name, ...children) => make(name, {}, ...children)
    this.tools = part("tools")
    this.bar = part("bar", this.tools)
    this.news = part("news") // Below the frame, where nothing else is: so the picture does not move.
    this.figureElement = part("figure", this.news)
    this.body = part("body", this.figureElement, part("minimap"))
    this.status = makeNode("div", {class: "gsl-status gsl-out", role: "status", "aria-live": "polite"})
    const about = {tabindex: "0", role: "region", "aria-label": "Timeline. Press question mark for its keys."}
    this.element = make("viewer", about, this.bar, this.body, this.status)
    this.element.querySelector(".gsl-minimap").style.minHeight = `${MINIMAP_PX}px`
    parent.append(this.element)
  }

  get signal() { return this.ending.signal }
  get isDestroyed() { return this.signal.aborted }
  atEnd(action) { this.signal.addEventListener("abort", action) }

  focus() { this.element.focus({preventScroll: true}) }
  announce(text) { this.status.textContent = text } // To the screen reader: what changed where nothing that has the focus did.

  // Where a pointer is in the figure, in its px.
  pointOf({clientX, clientY}) {
    const {left, top} = this.figureElement.getBoundingClientRect()
    return {x: clientX - left, y: clientY - top}
  }

  // Show everything. BokehJS insists on an element that is in the page, and notebooks make elements before they show them.
  async start() {
    while (!this.figureElement.isConnected && !this.isDestroyed) await new Promise(done => setTimeout(done, 50))
    if (this.isDestroyed) return this
    addDrawer(this)
    this.document = this.Bokeh.require("document/document").Document.from_json(structuredClone(this.item.doc))
    this.plot = this.document.roots()[0]
    this.preparePlot()
    this.views = await this.Bokeh.embed.add_document_standalone(this.document, this.figureElement, [this.figureElement])
    if (this.isDestroyed) { this.dropPlot(); return this }
    this.plotView = this.views.roots.find(view => view.model === this.plot)
    this.connect()
    this.view.fit()
    for (const add of CONTROLS) add(this) // The last goes to where a link points.
    this.minimap.request()
    return this
  }

  preparePlot() {
    const {plot, view} = this
    plot.renderers = [] // What is there only stops a warning in Python.
    plot.above[0].formatter = tickFormatter(this.Bokeh, view)
    leaveViewport(plot)
    this.layers = addLayers(this.Bokeh, plot, view, this.painter)
    this.sizePlot()
    plot.x_range.setv({start: view.x0, end: view.x1})
    this.useTheme()
  }

  // Room for the names and the lanes there are now. Setting what is set already does nothing.
  sizePlot() {
    const {plot, view} = this, width = this.figureElement.clientWidth || 1200
    const below = view.isLive ? NEWS_PX : RIM_PX
    view.setRoom(Math.round(this.figureRoom() - AXIS_PX - below))
    const {innerPx} = view.parts, height = innerPx + AXIS_PX + below, namesPx = Math.max(90, this.drawer.leastPx * NARROW_BORDER)
    const left = Math.round(Math.min(this.gutterPx(), namesPx))
    plot.setv({height, min_border_top: AXIS_PX, min_border_bottom: below, min_border_left: left})
    // Before the figure has a frame, ticks are chosen by one of about its width.
    if (!this.plotView) view.frame = {left, top: AXIS_PX, right: width, bottom: AXIS_PX + innerPx}
    plot.y_range.setv({start: innerPx, end: 0})
    this.figureElement.style.minHeight = `${height}px` // The page does not jump while the figure is made.
  }

  // How wide the names need to be that are shown; two timelines that are compared have what both need.
  gutterPx() {
    const {tables, laneOrder} = this.view, ctx = this.measuring ??= document.createElement("canvas").getContext("2d")
    if (tables.shares_border) return tables.border_px
    ctx.font = `12px ${FONT}`
    const texts = [...laneOrder.map(code => [tables.lanes[code].label, tables.lanes[code].detail].filter(Boolean).join(" · ")), ...tables.card_rows.map(({label}) => label), "kernels captured"]
    return Math.max(...(tables.capture?.shown ? texts : texts.slice(0, -1)).map(text => this.painter.texts.width(ctx, text)), 40) + GUTTER_PX + (tables.groups.length ? BAND_PX : 0)
  }

  // How high the figure may be, so that its axis and the controls are in view together. A page fills the window.
  figureRoom() {
    const {element, figureElement} = this, own = element.getBoundingClientRect(), besides = element.offsetHeight - figureElement.offsetHeight
    const leastPx = element.clientWidth < PHONE_PX ? LEAST_PHONE_PX : LEAST_FIGURE_PX
    if (!this.fills) return Math.max(leastPx, CELL_SHARE * hostHeight() - besides)
    const above = own.top + window.scrollY, below = document.body.getBoundingClientRect().bottom - own.bottom
    return Math.max(leastPx, document.documentElement.clientHeight - above - below - besides)
  }

  connect() {
    const {view, plot, plotView} = this
    paintEachFrame(plotView)
    plotView.repainted.connect(() => this.paintListeners.forEach(listener => listener()))
    this.sizePlot() // Lanes may have come while the figure was made.
    this.minimap = new Minimap(this, this.element.querySelector(".gsl-minimap"))
    view.on("range", () => plot.x_range.setv({start: view.x0, end: view.x1}))
    view.on("look", property => ABOVE.has(property) ? plotView.request_paint(this.layers.overlay) : plotView.request_paint())
    view.on("data", detail => {
      if (detail === "tables") this.sizePlot()
      plotView.request_paint()
    })
    this.onPainted(() => this.minimap.keepUp())
    watchTheme(() => this.useTheme(), this.signal)
    addScrolling(this)
    this.watchSize()
  }

  // Call back after each paint of the figure.
  onPainted(listener) { this.paintListeners.add(listener) }

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
    for (const element of [this.bar, ...this.body.children, ...(this.fills ? [document.documentElement] : [])]) observer.observe(element)
    window.addEventListener("resize", () => this.sizePlot(), {signal: this.signal})
    this.atEnd(() => { clearTimeout(due); observer.disconnect() })
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
    this.ending.abort()
    if (this.plotView) this.dropPlot()
    this.view.listeners.clear()
    this.paintListeners.clear()
    this.element.remove()
    this.view.store = new SpanStore() // Whoever keeps a viewer that is gone keeps no spans.
  }
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
