// What all parts of the picture paint with. Bars are painted in device pixels, so that their edges are sharp;
// lines and texts in CSS pixels.

import { isBlocked } from "./rows.js"
import { blend, FONT } from "./theme.js"

export const BAND_PX = 26 // Width of a partition's band, left of its lanes.
export const TINT = 0.3 // How much of its colour the line above its lanes has.
const HATCH_PX = 8
export const HATCH_LINES = { // Lines of each hatch, within a square of 8 by 8.
  "/": "M-2 10L10 -2M-2 2L2 -2M6 10L10 6", "\\": "M-2 -2L10 10M6 -2L10 2M-2 6L2 10", "-": "M0 4H8", "|": "M4 0V8", "x": "M0 0L8 8M8 0L0 8", "+": "M0 4H8M4 0V8", ".": "M3 3h2v2h-2z",
}
export const BAR_INK = "#101418" // Signs on bars, in both themes: dark text is readable on every fill.

// Hatches as canvas patterns. Their lines move with the bars, not with the window.
export class Hatches {
  constructor() {
    this.made = new Map()
    this.masks = new Map()
  }

  get(ctx, sign, ratio) {
    const key = `${sign} ${ratio}`
    if (!this.made.has(key)) this.made.set(key, ctx.createPattern(makeHatch(sign, ratio), "repeat"))
    this.made.get(key).setTransform(this.matrix)
    return this.made.get(key)
  }

  // Which px of a picture lie on the lines of a hatch.
  mask(sign, ratio) {
    const key = `${sign} ${ratio}`
    if (!this.masks.has(key)) {
      const tile = makeHatch(sign, ratio), size = tile.width, {data} = tile.getContext("2d").getImageData(0, 0, size, size)
      this.masks.set(key, {isDark: (x, y) => data[4 * (y % size * size + x % size) + 3] > 30})
    }
    return this.masks.get(key)
  }

  // Anchor all of them at a point of the canvas, in device px.
  anchor(x, y) { this.matrix = new DOMMatrix([1, 0, 0, 1, Math.round(x), Math.round(y)]) }
}

function makeHatch(sign, ratio) {
  const tile = document.createElement("canvas"), size = Math.max(4, Math.round(HATCH_PX * ratio))
  tile.width = tile.height = size
  const pen = tile.getContext("2d")
  pen.scale(size / HATCH_PX, size / HATCH_PX)
  pen.globalAlpha = 0.35
  pen.stroke(new Path2D(HATCH_LINES[sign]))
  return tile
}

// Fill a shape, in CSS px, with a hatch where there are hatches. A canvas paints a pattern in its own px; these are device px.
export function hatchShape(ctx, {hatches, ratio, hasHatch}, sign, shape) {
  if (!hasHatch(sign)) return
  const pattern = hatches.get(ctx, sign, ratio)
  pattern.setTransform(new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0]))
  ctx.fillStyle = pattern
  ctx.fill(shape)
}

// Texts that are cut to the room that they have; widths are measured once for each text and font.
export class Texts {
  constructor() { this.widths = new Map() }

  width(ctx, text) {
    const key = ctx.font + text
    let width = this.widths.get(key)
    if (width === undefined) {
      if (this.widths.size > 20000) this.widths.clear()
      this.widths.set(key, width = ctx.measureText(text).width)
    }
    return width
  }

  // The text, or its begin with "…" and, where that tells it from others, its end; or "" where not even that fits.
  fit(ctx, text, roomPx, keepsEnd = false) {
    const width = this.width(ctx, text)
    if (width <= roomPx) return text
    const cut = keep => {
      const begin = keepsEnd ? keep >> 1 : keep
      return `${text.slice(0, begin).trimEnd()}…${text.slice(text.length - keep + begin).trimStart()}`
    }
    let keep = Math.min(text.length - 1, Math.floor(text.length * roomPx / width))
    while (keep > 1 && this.width(ctx, cut(keep)) > roomPx) keep--
    return keep < 2 ? "" : cut(keep)
  }
}

/** How texts are written from now on; their middle stands where they are put. */
export function setPen(ctx, ink, px = 12, align = "left", weight = "normal") {
  Object.assign(ctx, {fillStyle: ink, font: `${weight} ${px}px ${FONT}`, textAlign: align, textBaseline: "middle"})
}

export const TINTS = 4 // Of each hue of the palette.
export const SOLID = 0, HOLLOW = 1, OPEN = 2 // Work; waiting around it; a range in which nobody knows when work ran.
const LINE = 0.55 // How much of its colour an outline has, the rest is ink: it stands out from the paper.

// What spans look like. A colour is a code: its place in the palette, hue by hue.
export class Looks {
  constructor(view, theme) {
    const {tables} = view
    Object.assign(this, {tables, by: colourBy(view)})
    this.fills = tables.palette.flat()
    this.shades = this.fills.map(fill => shadesOf(fill, theme.paper))
    this.lines = this.fills.map(fill => blend(fill, theme.ink, LINE))
    this.callHue = hueCount(tables) + 1
    this.blocked = tables.call_styles.findIndex(([label]) => label === "synchronise")
  }

  // The class of a call of the host, or -1. Those that blocked the host look as those do that are made to wait.
  call(row, index) {
    if (isBlocked(row, index)) return this.blocked
    return Math.max(-1, (this.tables.name_styles[row.name[index]]?.[0] ?? 0) - this.callHue)
  }

  // The colour of a span.
  code(row, index) {
    const call = this.call(row, index)
    if (call >= 0) return (this.callHue + call) * TINTS
    const [hue, tint] = this.tables.name_styles[row.name[index]] ?? [this.callHue - 1, 0]
    return (this.by === "name" ? hue : spanHue(this.tables, this.by, row, index)) * TINTS + tint
  }

  // The calm colour of many spans: of no name.
  load(row, index) { return spanHue(this.tables, this.by, row, index) * TINTS }

  shape(row, index) {
    const {kinds, lanes, capture, call_styles: calls} = this.tables, kind = kinds[row.kind[index]]
    // Whether the kernels of a range are known.
    const isCaptured = () => row.isPale && (!capture?.shown || capture.windows.some(([from, to]) => row.start[index] >= from && row.end[index] <= to))
    if (kind === "range" && !lanes[row.lane].host) return isCaptured() ? HOLLOW : OPEN
    return row.isPale || kind === "wait" || calls[this.call(row, index)]?.[2] ? HOLLOW : SOLID
  }

  hatch(row, index) {
    const {call_styles: calls, kind_hatches: kinds, name_styles: names} = this.tables
    return calls[this.call(row, index)]?.[1] ?? (kinds[row.kind[index]] || names[row.name[index]]?.[2])
  }
}

// How many hues there are; behind them comes grey, then the calls.
export const hueCount = ({palette, call_styles: calls}) => palette.length - 1 - calls.length

// What colour tells now: what was chosen, or partitions where there are any.
export function colourBy({colour, planned}) {
  const isSplit = hasPartitions(planned)
  return colour && (colour !== "partition" || isSplit) ? colour : isSplit ? "partition" : "stream"
}

// Whether streams are of partitions: then bars are as high as their SMs are many.
export const hasPartitions = ({groups}) => groups.some(({letter}) => letter)

// The hue of a span's partition, or stream where its card has none; grey where colour tells something else of single spans, and of the host.
function spanHue(tables, by, row, index) {
  const band = by === "partition" ? tables.bands[tables.partitions[row.partition[index]]?.band] : null, { host, has_own_hue: isOwn } = tables.lanes[row.lane]
  return host || isOwn || !band ? laneHue(tables, by, row.lane) : band.hue
}

export function laneHue(tables, by, lane) {
  const grey = hueCount(tables), {host, hue, place} = tables.lanes[lane]
  if (host || by === "name") return grey
  return by === "stream" ? place % grey : hue ?? grey
}

export const SHADES = 16, DIM_SHADE = 3
export const openShade = ({isDark}) => isDark ? 6 : 3 // Of what is queued or running: nobody knows which.
export const OPEN_STRIP = 0.4 // Opacity of a strip that counts such: as pale as the bars that it counts.

// A colour from (almost) paper to full, as opaque colours: they are painted faster than transparent ones.
const shadesOf = (fill, paper) => Array.from({length: SHADES + 1}, (_, i) => blend(fill, paper, i / SHADES))

// Paint within a box of the figure.
export function clipTo(ctx, left, top, right, bottom, paint) {
  ctx.save()
  ctx.beginPath()
  ctx.rect(left, top, right - left, bottom - top)
  ctx.clip()
  paint()
  ctx.restore()
}

// Paint within the lanes (or from `left` on), as far as they are in view.
export const clipLanes = (ctx, view, left, paint) =>
  clipTo(ctx, left, view.lanesTop(), view.frame.right, view.lanesBottom(), paint)
