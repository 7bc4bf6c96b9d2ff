// The picture: its parts, in the order in which they are painted.

import { clipLanes, colourBy, HATCH_LINES, Hatches, Looks, setPen, Texts } from "./brush.js"
import { LodItems } from "./lod.js"
import { paintMemory, paintMemoryLabels } from "./memory.js"
import { paintBars } from "./paint_bars.js"
import { firstFit, paintCard } from "./paint_card.js"
import { paintEdges, paintOwnEdges, paintOwnLaunches } from "./paint_edges.js"
import { paintCaret, paintGroups, paintLaneLabels, paintShades } from "./paint_lanes.js"
import { paintMarks, paintOpen } from "./paint_marks.js"
import { paintMoreLanes, paintOutlines, paintSelection } from "./paint_overlay.js"
import { paintLit } from "./went.js"
import { paintSigns, paintWhy } from "./paint_why.js"
import { formatBase, formatCount, tickBase } from "./units.js"

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
    paintShades(ctx, this)
    paintEdges(ctx, this) // Below the bars, so that their names can be read.
    paintBars(ctx, this)
    paintMemory(ctx, this)
    paintLaneLabels(ctx, this)
    paintCard(ctx, this)
    paintMarks(ctx, this)
    paintGroups(ctx, this) // Above lines.
    paintOpen(ctx, this)
    paintMemoryLabels(ctx, this)
    paintIdle(ctx, this)
    paintAxisBase(ctx, this)
    if (view.store.length ? !this.items.length : !view.openWork.length) paintEmpty(ctx, this)
  }

  paintOverlay(ctx, ratio) {
    this.ratio = ratio
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    paintLit(ctx, this)
    paintOwnEdges(ctx, this)
    paintOwnLaunches(ctx, this)
    paintSelection(ctx, this)
    paintWhy(ctx, this)
    paintOutlines(ctx, this)
    paintSigns(ctx, this)
    paintMoreLanes(ctx, this)
  }
}

// Far from 0 the ticks count from a base, which stands before them; else how many waits have no arrow.
function paintAxisBase(ctx, painter) {
  const {view, theme, texts} = painter, {frame} = view, base = tickBase(view.x0, view.x1 - view.x0), hidden = painter.hiddenEdges
  const waits = `${formatCount(hidden)} waits hidden`, words = base ? [`from ${formatBase(base)} on`, `${formatBase(base)} +`] : hidden ? [`${waits}: point at a span`, waits] : []
  setPen(ctx, base ? theme.ink : theme.soft, 11, "right")
  ctx.fillText(firstFit(ctx, texts, words, frame.left - 26), frame.left - 22, frame.top - 13)
}

// One line for all lanes without work; a click opens them.
function paintIdle(ctx, {view, theme}) {
  const {idle} = view.tables
  if (!idle) return
  clipLanes(ctx, view, 0, () => {
    const middle = view.yAt((idle.top + idle.bottom) / 2)
    setPen(ctx, theme.soft, 11)
    paintCaret(ctx, view.frame.left + 7, middle, true)
    ctx.fillText(idle.text, view.frame.left + 16, middle)
  })
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
