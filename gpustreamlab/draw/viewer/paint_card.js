// The card, above all lanes: its SMs by what its work can have had, and its copies; below them when kernels were captured.

import { BAR_INK, clipTo, colourBy, hatchShape, laneHue, OPEN_STRIP, setPen, TINTS } from "./brush.js"
import { cardLayers, stackLayers } from "./card.js"
import { exactTime } from "./facts.js"
import { nearPx } from "./paint_edges.js"
import { LABEL_GAP_PX } from "./paint_lanes.js"
import { formatCount } from "./units.js"

const RUN_GAP_PX = 2
const STEP_SLACK = 1e-3
const SMS_LABEL_PX = 38, SMS_LABEL_HIGH_PX = 13 // An area of that size is labelled with its SMs.
const LEAST_LABELLED_PX = 8

export function paintCard(ctx, painter) {
  const {view, theme, texts} = painter, {frame, tables} = view, columns = Math.max(1, Math.round(frame.right - frame.left))
  for (const row of tables.card_rows) {
    const box = {left: frame.left, right: frame.right, top: frame.top + row.top, bottom: frame.top + row.bottom}
    ctx.fillStyle = theme.shade
    ctx.fillRect(box.left, box.top, box.right - box.left, box.bottom - box.top)
    const layers = cardLayers(view.store, tables, row, view.x0, view.x1, columns, (lane, band) => fillOf(painter, lane, band)), count = layers[0]?.mean.length ?? 0
    const own = row.kind === "sms" ? ownSms(view, count) : []
    clipTo(ctx, box.left, box.top, box.right, box.bottom, () => {
      for (const [layer, low, high] of stackLayers(layers, own, row.most)) paintArea(ctx, painter, row, layer, low, high, box)
    })
    if (box.bottom - box.top < LEAST_LABELLED_PX) continue
    setPen(ctx, theme.soft, 11, "right")
    ctx.fillText(firstFit(ctx, texts, [row.label, row.label.split(" · ").at(-1)], box.left - LABEL_GAP_PX - 2), box.left - LABEL_GAP_PX, (box.top + box.bottom) / 2)
  }
  const strip = view.parts.capture
  if (strip) paintCapture(ctx, painter, {left: frame.left, top: frame.top + strip.top, bottom: frame.top + strip.bottom})
}

// How many SMs each partition keeps for itself in each column, idle or not; the whole card, which is the last band, keeps none.
function ownSms(view, count) {
  const {bands, own_sms: layouts} = view.tables
  if (bands.length < 2) return []
  const ns = (view.x1 - view.x0) / count, none = bands.slice(1).map(() => 0)
  return Array.from({length: count}, (_, column) => layouts.findLast(([time]) => time <= view.x0 + (column + 0.5) * ns)?.[1].slice(0, -1) ?? none)
}

// The partition whose colour work has, where colour tells partitions and the card has any.
const bandOf = (view, lane, place) => colourBy(view) === "partition" && !view.tables.lanes[lane].has_own_hue ? view.tables.bands[place] : null

const fillOf = ({view, looks}, lane, place) => bandOf(view, lane, place)?.fill ?? looks.fills[laneHue(view.tables, colourBy(view), lane) * TINTS]

// What one layer takes, in the colour of its bars; where ranges count it is pale.
function paintArea(ctx, painter, {kind, most}, {lane, band: place}, low, high, box) {
  const {tables} = painter.view, band = bandOf(painter.view, lane, place)
  const shape = stepShape(low, high, box, most), isOpen = kind === "sms" && tables.header.counts_ranges
  ctx.fillStyle = fillOf(painter, lane, place)
  ctx.globalAlpha = isOpen ? OPEN_STRIP : 1
  ctx.fill(shape)
  ctx.globalAlpha = 1
  if (!band || kind !== "sms") return
  hatchShape(ctx, painter, band.hatch, shape)
  labelSms(ctx, painter, band, {low, sms: high.map((sms, column) => sms - low[column])}, box, most)
}

/** What the card tells at a place of the figure: a title and pairs of label and text; null where there is none. */
export function cardAt(view, px, py) {
  const {tables, store, nsPerPx, frame, parts: {capture}} = view, isIn = ({top, bottom}) => py >= frame.top + top && py <= frame.top + bottom
  if (px > frame.right) return null
  if (capture && isIn(capture)) return ["Kernels captured", [["about", "elsewhere there are ranges only"]]]
  const row = tables.card_rows.find(isIn)
  if (!row) return null
  const isSms = row.kind === "sms", title = isSms ? `${row.label}, as many as work can have had` : row.label
  const about = isSms ? "by grid and blocks, at most those of its partition" : "by stream"
  if (px < frame.left) return [title, [["about", about]]]
  const at = view.timeAt(px), layers = cardLayers(store, tables, row, at, at + nsPerPx, 1).filter(({mean}) => mean[0] > 1e-3)
  const said = layers.map(({lane, mean}) => [tables.lanes[lane].label, isSms ? `${Number(mean[0].toPrecision(3))} SMs` : "copies"])
  return [title, [["at", exactTime(at)], ...said, ["about", about]]]
}

// When kernels were captured: elsewhere there are ranges only.
function paintCapture(ctx, {view, theme, texts}, {left, top, bottom}) {
  ctx.fillStyle = theme.grid
  ctx.fillRect(left, bottom, view.frame.right - left, 1)
  clipTo(ctx, left, top, view.frame.right, bottom, () => {
    ctx.fillStyle = theme.accent
    const last = view.extent().end // A window that is open has no end yet.
    for (const [start, end] of view.tables.capture.windows) {
      const from = nearPx(view, view.pxAt(start)), to = nearPx(view, view.pxAt(Math.min(end, last)))
      ctx.fillRect(from, top + 3, Math.max(1, to - from), bottom - top - 5)
    }
  })
  setPen(ctx, theme.soft, 11, "right")
  const x = left - LABEL_GAP_PX
  ctx.fillText(firstFit(ctx, texts, ["kernels captured", "captured"], x - 2), x, (top + bottom) / 2)
}

// Write a number of SMs where it begins to be another one than written before, if it stays for long enough.
function labelSms(ctx, {texts}, band, {low, sms}, {left, right, bottom, top}, most) {
  const scale = (bottom - top) / most, columns = sms.length, px = (right - left) / columns
  let written = 0
  setPen(ctx, BAR_INK, 11, "left", "bold")
  for (let from = 0, to; from < columns; from = to) {
    to = runEnd(sms, low, from)
    const room = (to - from) * px
    if (room < SMS_LABEL_PX || sms[from] * scale < SMS_LABEL_HIGH_PX || Math.abs(sms[from] - written) < 0.5) continue
    written = sms[from]
    const text = `${band.letter} ${formatCount(Math.round(written))}`.trim(), width = texts.width(ctx, text), middle = bottom - (low[from] + written / 2) * scale
    if (width + 8 > room) continue
    ctx.fillStyle = band.fill
    ctx.fillRect(left + from * px + 3, middle - 7, width + 4, 14)
    ctx.fillStyle = BAR_INK
    ctx.fillText(text, left + from * px + 5, middle + 0.5)
  }
}

// Where an area ends that has the same height and place from a column on; a gap between two spans does not end it.
function runEnd(sms, low, from) {
  const isSame = column => Math.abs(sms[column] - sms[from]) < 0.01 && Math.abs(low[column] - low[from]) < 0.01
  let to = from + 1
  for (let column = to; column < sms.length && column <= to + RUN_GAP_PX; column++) if (isSame(column)) to = column + 1
  return to
}

// The area between two step lines, given by the mean of each of the equal columns of a box.
export function stepShape(low, high, {left, right, top, bottom}, most) {
  const shape = new Path2D(), scale = (bottom - top) / most, px = (right - left) / high.length
  const above = stepLine(high, left, px), below = stepLine(low, left, px)
  for (let i = 0; i < above.length; i += 2) shape.lineTo(above[i], bottom - above[i + 1] * scale)
  for (let i = below.length - 2; i >= 0; i -= 2) shape.lineTo(below[i], bottom - below[i + 1] * scale)
  shape.closePath()
  return shape
}

// Corners of a step line: x, value, x, value …
function stepLine(values, left, px) {
  const corners = [left, values[0]]
  let level = values[0]
  for (let column = 1; column < values.length; column++) {
    if (values[column] === level) continue
    const share = stepWithin(values, column), next = share === null ? values[column] : values[column + 1]
    const x = left + (column + (share ?? 0)) * px
    corners.push(x, level, x, next)
    level = next
  }
  corners.push(left + values.length * px, level)
  return corners
}

// Where in a column the one step is of which its mean tells, as a share of the column; null where there may be more.
function stepWithin(values, column) {
  const before = values[column - 1], mean = values[column], after = values[column + 1]
  if (column + 2 >= values.length || !((before < mean && mean < after) || (before > mean && mean > after))) return null
  const slack = STEP_SLACK * Math.abs(before - after)
  if (Math.abs(values[column + 2] - after) > slack || (column > 1 && Math.abs(values[column - 2] - before) > slack)) return null
  return (mean - after) / (before - after)
}

export function firstFit(ctx, texts, words, room) {
  return words.find(text => texts.width(ctx, text) <= room) ?? texts.fit(ctx, words.at(-1) ?? "", room)
}
