// Strips below the lanes: SMs of partitions, each at its place, and when kernels were captured. Each px column shows its exact mean.

import { BAR_INK, clipTo, hatchShape, OPEN_STRIP, setPen, TINTS } from "./brush.js"
import { exactTime } from "./facts.js"
import { nearPx } from "./paint_edges.js"
import { LABEL_GAP_PX } from "./paint_lanes.js"
import { LaneSteps } from "./steps.js"
import { smShares, unionsOf } from "./unions.js"
import { formatCount } from "./units.js"

const RUN_GAP_PX = 2
const PEAK_SLACK = 0.02
const PEAK_STEPS = 100_000, LIVE_PEAK_STEPS = 4_000, MAX_PEAK_STEPS = 2_000_000 // So many are looked through for the peak.
const STEP_SLACK = 1e-3
const SMS_LABEL_PX = 38, SMS_LABEL_HIGH_PX = 13 // An area of that size is labelled with its SMs.

export function paintStrips(ctx, painter) {
  const {view} = painter, columns = Math.max(1, Math.round(view.frame.right - view.frame.left))
  for (const strip of view.parts.strips) {
    const box = {left: view.frame.left, top: view.frame.top + strip.top, bottom: view.frame.top + strip.bottom, columns}
    if (strip.kind === "sms") paintSms(ctx, painter, box)
    else paintCapture(ctx, painter, box)
  }
}

function paintSms(ctx, painter, box) {
  const {view} = painter, {bands, own_sms: layouts, sm_count: most} = view.tables
  const busy = smShares(view.store, view.tables, view.x0, view.x1, box.columns), ofCard = busy.at(-1)
  const layoutAt = ns => layouts.findLast(([time]) => time <= ns)?.[1], own = Array.from(ofCard, (_, column) => layoutAt(view.x0 + (column + 0.5) * view.nsPerPx))
  let low = new Float64Array(box.columns)
  // A partition keeps its place while it is idle; work on the whole card has those that no partition uses, from the bottom.
  clipStrip(ctx, view, box, () => bands.forEach((band, place) => {
    const bottom = low, high = bottom.map((sms, column) => sms + busy[place][column])
    low = bottom.map((sms, column) => Math.max(high[column], sms + (own[column]?.[place] ?? 0)))
    const shared = high.map((sms, column) => sms + Math.min(low[column] - sms, ofCard[column]))
    paintArea(ctx, painter, band, bottom, high, box)
    paintArea(ctx, painter, bands.at(-1), high, shared, box)
    ofCard.forEach((sms, column) => { ofCard[column] = sms - (shared[column] - high[column]) })
  }))
  paintScale(ctx, painter, box, [`${formatCount(most)} SMs`], ["at most"])
}

// SMs from one place to another; where ranges count they are pale, with a line above.
function paintArea(ctx, painter, band, low, high, box) {
  const {tables: {header, sm_count: most}} = painter.view, shape = stepShape(low, high, box, most), linePx = most / (box.bottom - box.top)
  ctx.fillStyle = band.fill
  ctx.globalAlpha = header.counts_ranges ? OPEN_STRIP : 1
  ctx.fill(shape)
  ctx.globalAlpha = 1
  ctx.fillStyle = painter.looks.lines[band.hue * TINTS]
  if (header.counts_ranges) ctx.fill(stepShape(high.map((sms, column) => Math.max(low[column], sms - linePx)), high, box, most))
  hatchShape(ctx, painter, band.hatch, shape)
  labelSms(ctx, painter, band, {low, sms: high.map((sms, column) => sms - low[column])}, box)
}

/** What a strip tells at a place of the figure: a title and pairs of label and text; null where there is none. */
export function stripAt(view, px, py) {
  const {tables, store, nsPerPx, frame} = view, strip = view.parts.strips.find(({top, bottom}) => py >= frame.top + top && py <= frame.top + bottom)
  if (!strip || px > frame.right) return null
  if (strip.kind === "capture") return ["Kernels captured", [["about", "elsewhere there are ranges only"]]]
  const about = `of ${formatCount(tables.sm_count)} SMs, at most: a partition counts as a whole while work runs in it`
  if (px < frame.left) return ["SMs of partitions, at most", [["about", about], ...tables.bands.map(({label, letter}) => [letter || " ", label])]]
  const at = view.timeAt(px), sms = smShares(store, tables, at, at + nsPerPx, 1).map(([mean]) => Number(mean.toPrecision(4)))
  return ["SMs of partitions, at most", [["at", exactTime(at)], ...tables.bands.map(({label}, place) => [String(sms[place]), label]), ["about", about]]]
}

// When kernels were captured: elsewhere there are ranges only.
function paintCapture(ctx, {view, theme, texts}, box) {
  const {left, top, bottom} = box
  ctx.fillStyle = theme.grid
  ctx.fillRect(left, bottom, view.frame.right - left, 1)
  clipStrip(ctx, view, box, () => {
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
function labelSms(ctx, {view, texts}, band, {low, sms}, {left, bottom, top, columns}) {
  const scale = (bottom - top) / view.tables.sm_count
  let written = 0
  setPen(ctx, BAR_INK, 11, "left", "bold")
  for (let from = 0, to; from < columns; from = to) {
    to = runEnd(sms, low, from)
    if (to - from < SMS_LABEL_PX || sms[from] * scale < SMS_LABEL_HIGH_PX || Math.abs(sms[from] - written) < 0.5) continue
    written = sms[from]
    const text = `${band.letter} ${formatCount(written)}`.trim(), width = texts.width(ctx, text), middle = bottom - (low[from] + written / 2) * scale
    if (width + 8 > to - from) continue
    ctx.fillStyle = band.fill
    ctx.fillRect(left + from + 3, middle - 7, width + 4, 14)
    ctx.fillStyle = BAR_INK
    ctx.fillText(text, left + from + 5, middle + 0.5)
  }
}

// Where an area ends that has the same height and place from a column on; a gap between two spans does not end it.
function runEnd(sms, low, from) {
  const isSame = column => Math.abs(sms[column] - sms[from]) < 0.01 && Math.abs(low[column] - low[from]) < 0.01
  let to = from + 1
  for (let column = to; column < sms.length && column <= to + RUN_GAP_PX; column++) if (isSame(column)) to = column + 1
  return to
}

// The top of the scale: the most lanes that were busy at once. Where there are too many changes to know it, it is the highest
// mean of a px column that was drawn so far, and only grows, until lanes or the filter change.
export function busyPeak(view, lanes) {
  const {store, tables} = view
  const {filter, version} = store, laneCount = tables.lanes.length, known = view.peak
  const isSame = known.filter === filter && known.laneCount === laneCount
  if (!isSame || known.version !== version) {
    const exact = mostBusy(store, tables, view.isLive ? LIVE_PEAK_STEPS : PEAK_STEPS)
    view.peak = {filter, laneCount, version, isExact: exact !== null, most: exact ?? (isSame ? known.most : 0)}
  }
  const {peak} = view
  if (!peak.isExact) for (const count of lanes) if (count > peak.most + PEAK_SLACK) peak.most = Math.min(laneCount, Math.ceil(count - PEAK_SLACK))
  return peak
}

// The most lanes that were busy at once in the whole session, or null where finding it would cost too much.
function mostBusy(store, tables, limit) {
  const unions = unionsOf(store, tables)
  let steps = unions.laneSteps()
  if (!steps) {
    const lanes = unions.lanes()
    if (lanes.reduce((sum, {length}) => sum + length, 0) > limit) return null
    steps = new LaneSteps().update(-Infinity, lanes)
  } else if (steps.length > MAX_PEAK_STEPS) return null
  let most = 0
  for (let i = 0; i < steps.length; i++) if (steps.level[i] > most) most = steps.level[i]
  return most
}

const clipStrip = (ctx, {frame}, {left, top, bottom}, paint) => clipTo(ctx, left, top, frame.right, bottom, paint)

// The area between two step lines, given by the mean of each px column.
export function stepShape(low, high, {left, top, bottom}, most) {
  const shape = new Path2D(), scale = (bottom - top) / most
  const above = stepLine(high, left), below = stepLine(low, left)
  for (let i = 0; i < above.length; i += 2) shape.lineTo(above[i], bottom - above[i + 1] * scale)
  for (let i = below.length - 2; i >= 0; i -= 2) shape.lineTo(below[i], bottom - below[i + 1] * scale)
  shape.closePath()
  return shape
}

// Corners of a step line: x, value, x, value …
function stepLine(values, left) {
  const corners = [left, values[0]]
  let level = values[0]
  for (let column = 1; column < values.length; column++) {
    if (values[column] === level) continue
    const share = stepWithin(values, column), next = share === null ? values[column] : values[column + 1]
    const x = left + column + (share ?? 0)
    corners.push(x, level, x, next)
    level = next
  }
  corners.push(left + values.length, level)
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

// The most and 0 beside a strip, and what is counted, in the first words for which there is room.
export function paintScale(ctx, {view, theme, texts}, {left, top, bottom}, most, what) {
  ctx.fillStyle = theme.grid
  ctx.fillRect(left, bottom, view.frame.right - left, 1)
  ctx.fillRect(left - 5, top, 5, 1)
  ctx.fillRect(left - 5, bottom, 5, 1)
  const x = left - LABEL_GAP_PX, room = x - 2
  setPen(ctx, theme.ink, 12, "right")
  ctx.fillText(firstFit(ctx, texts, most, room), x, top + 5)
  const isLow = bottom - top < 40 // Then what is counted stands in the place of the 0.
  if (!isLow) ctx.fillText("0", x, bottom - 3)
  setPen(ctx, theme.soft, 11, "right")
  // On a phone the letters are a little narrower: half a word would say something else.
  ctx.fillText(what.find(text => texts.width(ctx, text) <= room) ?? what.at(-1), x, isLow ? bottom - 3 : top + 19, room)
}

export function firstFit(ctx, texts, words, room) {
  return words.find(text => texts.width(ctx, text) <= room) ?? texts.fit(ctx, words.at(-1) ?? "", room)
}
