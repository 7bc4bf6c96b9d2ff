// The picture: its parts, in the order in which they are painted.

import { colourBy, HATCH_LINES, Hatches, Looks, setPen, Texts } from "./brush.js"
import { LodItems } from "./lod.js"
import { paintMemory, paintMemoryLabels } from "./memory.js"
import { paintBars } from "./paint_bars.js"
import { paintEdges, paintOwnEdges, paintOwnLaunches } from "./paint_edges.js"
import { paintGroups, paintLaneLabels, paintShades } from "./paint_lanes.js"
import { paintMarks, paintOpen } from "./paint_marks.js"
import { paintMoreLanes, paintOutlines, paintRuler, paintSelection } from "./paint_overlay.js"
import { paintStrips } from "./paint_strips.js"
import { paintSigns, paintWhy } from "./paint_why.js"
import { formatBase, tickBase } from "./units.js"

export class Painter {
  constructor(view, theme) {
    this.view = view
    this.hatches = new Hatches()
    this.texts = new Texts()
    this.items = new LodItems()
    this.setTheme(theme)
  }

  setTheme(theme) {
    this.theme = theme
    this.looks = null
  }

  // Whether a hatch is drawn: it is the second sign of those who ask for one, or need it.
  hasHatch = sign => (this.view.hasHatches || this.theme.needsHatches) && sign in HATCH_LINES

  // Names may have come since.
  currentLooks() {
    const {tables} = this.view
    const key = JSON.stringify([colourBy(this.view), tables.names.length])
    if (this.looks?.tables !== tables || this.looksKey !== key) this.looks = new Looks(this.view, this.theme)
    this.looksKey = key
    return this.looks
  }

  // The picture below the marks that follow the pointer. `ratio` is device px per CSS px.
  paintMain(ctx, ratio) {
    const {view} = this
    this.ratio = ratio
    this.currentLooks()
    this.hatches.anchor(view.pxAt(0) * ratio % 65536, (view.frame.top - view.scrollPx) * ratio)
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    this.items.length = 0
    view.painted = {items: this.items, segments: []}
    view.eachPane(() => paintShades(ctx, this))
    paintEdges(ctx, this) // Below the bars, so that their names can be read.
    view.eachPane(() => {
      paintBars(ctx, this)
      paintMemory(ctx, this)
      paintLaneLabels(ctx, this)
    })
    paintStrips(ctx, this)
    paintMarks(ctx, this)
    view.eachPane(() => paintGroups(ctx, this)) // Above lines.
    paintOpen(ctx, this)
    paintMemoryLabels(ctx, this)
    paintAxisTitle(ctx, this)
    if (view.store.length ? !this.items.length : !view.openWork.length) paintEmpty(ctx, this)
  }

  paintOverlay(ctx, ratio) {
    this.ratio = ratio
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    paintOwnEdges(ctx, this)
    paintOwnLaunches(ctx, this)
    paintSelection(ctx, this)
    paintWhy(ctx, this)
    paintOutlines(ctx, this)
    paintSigns(ctx, this)
    paintRuler(ctx, this)
    paintMoreLanes(ctx, this)
  }
}

// The title of the time axis. Far from 0 the ticks count from a base, and the title says from which.
function paintAxisTitle(ctx, {view, theme, texts}) {
  const {frame} = view, base = tickBase(view.x0, view.x1 - view.x0)
  setPen(ctx, base ? theme.ink : theme.soft, 12, "center")
  const text = base ? `from ${formatBase(base)} after the first start` : "time since the first start"
  ctx.fillText(texts.fit(ctx, text, frame.right), (frame.left + frame.right) / 2, frame.bottom + 38)
}

function paintEmpty(ctx, {view, theme, texts}) {
  const {store, frame: {left, right}} = view, x = (left + right) / 2, y = (view.lanesTop() + view.lanesBottom()) / 2
  const text = !store.length ? view.tables.header.empty : store.filter ? "No shown name ran here" : "Nothing ran here: fit the window to see all"
  setPen(ctx, theme.paper, 14, "center")
  const width = Math.min(right - left, texts.width(ctx, text))
  ctx.fillRect(x - width / 2, y - 10, width, 20)
  ctx.fillStyle = theme.soft
  ctx.fillText(text, x, y, width)
}
