// The renderers inside the Bokeh figure: one for the picture, one above it for what follows the pointer.

import { formatTicks } from "./units.js"

// Annotations whose painting is a function on the model. BokehJS is asked for its classes once.
const layerClasses = new WeakMap()

function layerClass(Bokeh) {
  if (layerClasses.has(Bokeh)) return layerClasses.get(Bokeh)
  const {Annotation, AnnotationView} = Bokeh.require("models/annotations/annotation")
  class TimelineLayerView extends AnnotationView {
    get needs_clip() { return false } // Names stand left of the frame.
    _paint(ctx) {
      const context = ctx || this.layer.ctx
      if (this.model.painting) this.model.painting(context, this.plot_view, context.layer ? context.layer.pixel_ratio : 1)
    }
  }
  class TimelineLayer extends Annotation {}
  TimelineLayer.__name__ = "GslTimelineLayer"
  TimelineLayer.prototype.default_view = TimelineLayerView
  layerClasses.set(Bokeh, TimelineLayer)
  return TimelineLayer
}

export function addLayers(Bokeh, plot, view, painter) {
  const Layer = layerClass(Bokeh)
  const paint = part => (ctx, plotView, ratio) => {
    const {left, top, right, bottom} = plotView.frame.bbox
    // The ticks were written for the frame that there was.
    if (left !== view.frame.left || right !== view.frame.right) plotView.request_paint()
    view.frame = {left, top, right, bottom}
    if (view.frame.right - view.frame.left < 2) return
    ctx.save()
    painter[part](ctx, ratio)
    ctx.restore()
  }
  const main = new Layer({level: "annotation"}), overlay = new Layer({level: "overlay"})
  main.painting = paint("paintMain")
  overlay.painting = paint("paintOverlay")
  plot.add_layout(main)
  plot.add_layout(overlay)
  return {main, overlay}
}

const LETTER_PX = 7.5, TICK_GAP_PX = 8

// Ticks in the unit that suits the window, written without evaluating code from text: some pages forbid that. In a narrow picture
// every second one has a text, or fewer, always the same ones.
export function tickFormatter(Bokeh, view) {
  const {TickFormatter} = Bokeh.require("models/formatters/tick_formatter")
  class TimelineTickFormatter extends TickFormatter {
    doFormat(ticks) {
      const texts = formatTicks(ticks, view.x0, view.x1 - view.x0), every = ticks[1] - ticks[0]
      const step = Math.ceil((Math.max(...texts.map(text => text.length)) * LETTER_PX + TICK_GAP_PX) * view.nsPerPx / every) || 1
      return texts.map((text, place) => (Math.round(ticks[place] / every) % step ? "" : text))
    }
  }
  TimelineTickFormatter.__name__ = "GslTickFormatter"
  return new TimelineTickFormatter()
}

// BokehJS 3.9 never takes back what a plot listens to on the browser's viewport, which lasts as long as the page, and so
// would the plot, the viewer and all its spans. To be called before the plot's view is made.
export function leaveViewport(plot) {
  const {visualViewport} = window
  if (!visualViewport) return
  const heard = []
  plot.default_view = class TimelinePlotView extends plot.default_view {
    connect_signals() {
      const add = visualViewport.addEventListener
      visualViewport.addEventListener = (...options) => { heard.push(options); add.apply(visualViewport, options) }
      try { super.connect_signals() } finally { visualViewport.addEventListener = add }
    }
    remove() {
      for (const options of heard.splice(0)) visualViewport.removeEventListener(...options)
      super.remove()
    }
  }
}

// BokehJS waits for 1/60 s after a paint before it asks for a frame, and so misses every second one.
export function paintEachFrame(plotView) {
  let due = null
  const paint = done => {
    due = null
    try { if (!plotView.is_destroyed) plotView.repaint() } finally { done() }
  }
  plotView.throttled_paint = () => due ||= new Promise(done => requestAnimationFrame(() => paint(done)))
}
