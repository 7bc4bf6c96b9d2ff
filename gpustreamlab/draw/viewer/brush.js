// What all parts of the picture paint with. Bars are painted in device pixels, so that their edges are sharp;
// lines and texts in CSS pixels.

import { isBlocked } from "./rows.js"
import { blend, FONT } from "./theme.js"

export const BAND_PX = 26 // Width of a partition's band, left of its lanes.
export const TINT = 0.3 // How much of its colour the line above its lanes has.
const HATCH_PX = 8
export const HATCH_LINES = {
  "/": [[-2, 10, 10, -2], [-2, 2, 2, -2], [6, 10, 10, 6]],
  "\\": [[-2, -2, 10, 10], [6, -2, 10, 2], [-2, 6, 2, 10]],
  "-": [[0, 4, 8, 4]],
  "|": [[4, 0, 4, 8]],
  "x": [[0, 0, 8, 8], [8, 0, 0, 8]],
  "+": [[0, 4, 8, 4], [4, 0, 4, 8]],
  ".": [[3, 4, 5, 4]],
}
export const SPARE_FILL = "#8d99a6" // Of a name that is not in the tables.
export const BAR_INK = "#101418", BAR_PAPER = "#ffffff" // Signs on light and on dark bars, in both themes.

// Hatches as canvas patterns. Their lines move with the bars, not with the window.
export class Hatches {
  constructor() { this.made = new Map() }

  get(ctx, sign, colour, alpha, ratio) {
    const key = `${sign} ${colour} ${alpha} ${ratio}`
    if (!this.made.has(key)) this.made.set(key, makeHatch(ctx, sign, colour, alpha, ratio))
    return this.made.get(key)
  }

  // Anchor all of them at a point of the canvas, in device px.
  anchor(x, y) {
    const matrix = new DOMMatrix([1, 0, 0, 1, Math.round(x), Math.round(y)])
    for (const pattern of this.made.values()) pattern.setTransform(matrix)
  }
}

function makeHatch(ctx, sign, colour, alpha, ratio) {
  const tile = document.createElement("canvas"), size = Math.max(4, Math.round(HATCH_PX * ratio))
  tile.width = tile.height = size
  const pen = tile.getContext("2d")
  pen.scale(size / HATCH_PX, size / HATCH_PX)
  pen.globalAlpha = alpha
  pen.strokeStyle = colour
  pen.lineWidth = sign === "." ? 2 : 1
  pen.beginPath()
  for (const [x0, y0, x1, y1] of HATCH_LINES[sign] || []) { pen.moveTo(x0, y0); pen.lineTo(x1, y1) }
  pen.stroke()
  return ctx.createPattern(tile, "repeat")
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

  // The text, or its begin with "…", or "" where not even that fits.
  fit(ctx, text, roomPx) {
    const width = this.width(ctx, text)
    if (width <= roomPx) return text
    let keep = Math.min(text.length - 1, Math.floor(text.length * roomPx / width))
    while (keep > 1 && this.width(ctx, text.slice(0, keep) + "…") > roomPx) keep--
    return keep < 2 ? "" : text.slice(0, keep).trimEnd() + "…"
  }
}

export const setFont = (ctx, px, weight = "normal") => { ctx.font = `${weight} ${px}px ${FONT}` }

// What the bars of each name and kind look like, as small numbers.
export class Looks {
  constructor(tables, theme) {
    this.fills = []
    this.hatches = []
    this.places = new Map()
    this.paper = theme.paper
    this.paleInk = theme.ink
    this.nameFill = tables.name_styles.map(style => this.fillCode(style[0]))
    this.nameHatch = tables.name_styles.map(style => this.hatchCode(style[1]))
    this.nameText = tables.name_styles.map(style => style[2])
    this.nameCount = tables.names.length
    this.addBlocked(tables.call_styles ?? [])
    this.kindFill = tables.kind_styles.map(style => style[0] ? this.fillCode(style[0]) : -1)
    this.kindHatch = tables.kind_styles.map(style => style[1] ? this.hatchCode(style[1]) : -1)
    this.spareFill = this.fillCode(SPARE_FILL)
    this.shades = this.fills.map(fill => shadesOf(fill, theme.paper))
  }

  // Calls that blocked the host look as those do that are made to wait, whatever their name.
  addBlocked(calls) {
    const [, fill, hatch, text] = calls.find(([label]) => label === "synchronise") ?? []
    if (!fill) return
    this.blockedCode = this.nameCount
    this.nameFill[this.blockedCode] = this.fillCode(fill)
    this.nameHatch[this.blockedCode] = this.hatchCode(hatch)
    this.nameText[this.blockedCode] = text
  }

  // The name after which a span looks.
  name(row, index) { return this.blockedCode !== undefined && isBlocked(row, index) ? this.blockedCode : row.name[index] }
  // The ink on a bar, and the colour below it.
  ink(row, name, kind) { return row.isPale ? this.paleInk : this.text(name, kind) }
  ground({ isPale }, name, kind) { const code = this.fill(name, kind); return isPale ? this.shades[code][PALE_SHADE] : this.fills[code] }
  fillCode(fill) { return codeOf(this.fills, this.places, fill) }
  hatchCode(sign) { return sign in HATCH_LINES ? codeOf(this.hatches, this.places, sign) : -1 }
  fill(name, kind) { const code = this.kindFill[kind]; return code >= 0 ? code : this.nameFill[name] ?? this.spareFill }
  hatch(name, kind) { const code = this.kindHatch[kind]; return code >= 0 ? code : this.nameHatch[name] ?? -1 }
  text(name, kind) { return this.kindFill[kind] >= 0 ? BAR_INK : this.nameText[name] ?? BAR_INK }
}

function codeOf(list, places, value) {
  if (!places.has(value)) { places.set(value, list.length); list.push(value) }
  return places.get(value)
}

export const SHADES = 16, DIM_SHADE = 3
export const PALE_SHADE = 5 // Of ranges beside kernels.

// A colour from (almost) paper to full, as opaque colours: they are painted faster than transparent ones.
const shadesOf = (fill, paper) => Array.from({length: SHADES + 1}, (_, i) => blend(fill, paper, i / SHADES))

// Paint within the lanes (or from `left` on), as far as they are in view.
export function clipLanes(ctx, view, left, paint) {
  ctx.save()
  ctx.beginPath()
  ctx.rect(left, view.lanesTop(), view.frame.right - left, view.lanesBottom() - view.lanesTop())
  ctx.clip()
  paint()
  ctx.restore()
}
