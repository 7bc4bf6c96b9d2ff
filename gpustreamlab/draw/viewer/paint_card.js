// The card, above all lanes: its SMs by what its work can have had, and its copies; below them when kernels were captured.

import { BAR_INK, clipTo, colourBy, laneHue, OPEN_STRIP, setPen, TINTS } from "./brush.js"
import { cardLayers, stackLayers } from "./card.js"
import { exactTime } from "./facts.js"
import { nearPx } from "./paint_edges.js"
import { LABEL_GAP_PX } from "./paint_lanes.js"
import { Pixels } from "./pixels.js"
import { formatCount } from "./units.js"

const RUN_GAP = 2 // Columns.
const SMS_LABEL_HIGH_PX = 12 // An area of that height has its number of SMs in it; a lower one above it.
const LEAST_LABEL_PX = 14 // No number is narrower, with the space around it.
const MOST_LABELLED = 24 // Of more areas none is.
const LEAST_LABELLED_PX = 8

export function paintCard(ctx, painter) {
  const {view, theme, texts, ratio} = painter, {frame, tables} = view, width = Math.max(1, Math.round((frame.right - frame.left) * ratio))
  painter.card ??= new Pixels()
  painter.card.resize(width, Math.max(1, Math.round(view.parts.headPx * ratio)))
  ctx.fillStyle = theme.shade
  const told = tables.card_rows.map(row => {
    ctx.fillRect(frame.left, frame.top + row.top, frame.right - frame.left, row.bottom - row.top)
    return [row, paintStack(painter.card, painter, row, {x0: view.x0, x1: view.x1, columns: width})]
  })
  if (told.length) ctx.drawImage(painter.card.paint(), frame.left, frame.top, frame.right - frame.left, painter.card.height / ratio)
  for (const [row, areas] of told) {
    const box = {left: frame.left, right: frame.right, top: frame.top + row.top, bottom: frame.top + row.bottom}
    if (row.kind === "sms" && areas.length < MOST_LABELLED) labelSms(ctx, painter, areas, box, row.most)
    if (box.bottom - box.top < LEAST_LABELLED_PX) continue
    setPen(ctx, theme.soft, 11, "right")
    const short = row.label.split(" · ").at(-1).replace(/ \(%\)$|, to .*/, "") // Without the scale of a counter: its tip has that.
    ctx.fillText(firstFit(ctx, texts, [row.label, short], box.left - LABEL_GAP_PX - 2), box.left - LABEL_GAP_PX, (box.top + box.bottom) / 2)
  }
  const strip = view.parts.capture
  if (strip) paintCapture(ctx, painter, {left: frame.left, top: frame.top + strip.top, bottom: frame.top + strip.bottom})
}

/** Put what a row of the card tells of a window into pixels, in the colours of its bars, pale where ranges count; return its areas. */
export function paintStack(pixels, painter, row, {x0, x1, columns}) {
  const {view, ratio, hatches} = painter, {store, tables} = view, alpha = row.kind === "sms" && tables.header.counts_ranges ? OPEN_STRIP : 1
  const layers = cardLayers(store, tables, row, x0, x1, columns, (lane, band) => fillOf(painter, lane, band)), count = layers[0]?.mean.length ?? 0
  const areas = stackLayers(layers, row.kind === "sms" ? ownSms(view, count, x0, x1) : [], row.most)
  for (const [{lane, band: place}, low, high] of areas) {
    const band = row.kind === "sms" ? bandOf(view, lane, place) : null, mask = band && painter.hasHatch(band.hatch) ? hatches.mask(band.hatch, ratio) : null
    pixels.stack({low, high, scale: Math.round((row.bottom - row.top) * ratio) / row.most, bottom: Math.round(row.bottom * ratio)}, fillOf(painter, lane, place), alpha, mask)
  }
  return areas
}

// How many SMs each partition keeps for itself in each column, idle or not; the whole card, which is the last band, keeps none.
function ownSms(view, count, x0, x1) {
  const {bands, own_sms: layouts} = view.tables
  if (bands.length < 2) return []
  const ns = (x1 - x0) / count, none = bands.slice(1).map(() => 0)
  return Array.from({length: count}, (_, column) => layouts.findLast(([time]) => time <= x0 + (column + 0.5) * ns)?.[1].slice(0, -1) ?? none)
}

// The partition whose colour work has, where colour tells partitions and the card has any.
const bandOf = (view, lane, place) => colourBy(view) === "partition" && !view.tables.lanes[lane].has_own_hue ? view.tables.bands[place] : null

const fillOf = ({view, looks}, lane, place) => bandOf(view, lane, place)?.fill ?? looks.fills[laneHue(view.tables, colourBy(view), lane) * TINTS]

/** What the card tells at a place of the figure: a title and pairs of label and text; null where there is none. */
export function cardAt(view, px, py) {
  const {tables, store, nsPerPx, frame, parts: {capture}} = view, isIn = ({top, bottom}) => py >= frame.top + top && py <= frame.top + bottom
  if (px > frame.right) return null
  if (capture && isIn(capture)) return ["Kernels captured", [["about", "elsewhere there are ranges only"]]]
  const row = tables.card_rows.find(isIn)
  if (!row) return null
  const isSms = row.kind === "sms", title = isSms ? `${row.label}, as many as work can have had` : row.label
  const about = isSms ? "by grid and blocks, at most those of its partition" : row.lines ? `up to ${formatCount(row.most)}` : "by stream"
  if (px < frame.left) return [title, [["about", about]]]
  const at = view.timeAt(px), layers = cardLayers(store, tables, row, at, at + nsPerPx, 1).filter(({mean}) => mean[0] > 1e-3)
  const said = layers.map(({lane, mean}) => [tables.lanes[lane].label, isSms ? `${Number(mean[0].toPrecision(3))} SMs` : row.lines ? String(Number(mean[0].toPrecision(4))) : "copies"])
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

// Write of each area its number of SMs where that begins to be another one than written before, if it stays for long enough: in it,
// or above it where it is too low and nothing lies above. What lies in several areas is written once, in all.
function labelSms(ctx, painter, areas, {left, right, bottom, top}, most) {
  const {texts, theme, view} = painter, scale = (bottom - top) / most, told = new Map()
  for (const [layer, low, high] of areas) {
    const sms = high.map((border, column) => border - low[column]), {lane, band: place} = layer, band = bandOf(view, lane, place), px = (right - left) / sms.length
    const own = areas.filter(([other]) => other === layer), all = column => own.reduce((sum, [, from, to]) => sum + to[column] - from[column], 0)
    let written = told.get(layer) ?? 0
    setPen(ctx, BAR_INK, 11, "left", "bold")
    for (let from = 0, to; from < sms.length; from = to) {
      to = runEnd(sms, low, from)
      if ((to - from) * px < LEAST_LABEL_PX || sms[from] < 0.5) continue // Most of many columns.
      const number = all(from), isHigh = sms[from] * scale >= SMS_LABEL_HIGH_PX, text = `${band?.letter ?? ""} ${formatCount(Math.round(number))}`.trim(), width = texts.width(ctx, text)
      if ((to - from) * px < width + 8 || Math.abs(number - written) < 0.5) continue
      const until = from + Math.ceil((width + 8) / px), isTop = () => areas.every(([, , other]) => other.subarray(from, until).every((border, at) => border < high[from + at] + 0.01))
      if (!isHigh && (high[from] * scale > bottom - top - 12 || !isTop())) continue
      told.set(layer, written = number)
      const x = left + from * px + 3
      const middle = bottom - (isHigh ? (low[from] + high[from]) / 2 : high[from]) * scale - (isHigh ? 0 : 7)
      ctx.fillStyle = fillOf(painter, lane, place)
      if (isHigh) ctx.fillRect(x, middle - 6, width + 4, 12) // No hatch behind it.
      ctx.fillStyle = isHigh ? BAR_INK : theme.ink
      ctx.fillText(text, x + 2, middle + 0.5)
    }
  }
}

// Where an area ends that has the same height and place from a column on; a gap between two spans does not end it.
function runEnd(sms, low, from) {
  const isSame = column => Math.abs(sms[column] - sms[from]) < 0.01 && Math.abs(low[column] - low[from]) < 0.01
  let to = from + 1
  for (let column = to; column < sms.length && column <= to + RUN_GAP; column++) if (isSame(column)) to = column + 1
  return to
}

export function firstFit(ctx, texts, words, room) {
  return words.find(text => texts.width(ctx, text) <= room) ?? texts.fit(ctx, words.at(-1) ?? "", room)
}
