// Bars: a span that is wide enough for itself, or one bar for many that are not, paler where they leave gaps.

import { BAR_INK, BAR_PAPER, clipLanes, DIM_SHADE, PALE_SHADE, setFont, SHADES } from "./brush.js"
import { binWidth, decimate } from "./lod.js"
import { paintHits } from "./paint_hits.js"
import { isStray } from "./rows.js"
import { formatNs } from "./units.js"

const WIDE_PX = 4 // From here on a bar has an edge and a hatch.
const LABEL_MIN_PX = 26
const LONELY_PX = 3
const MOMENT_PX = 5 // Half the height of the sign of a span that took no time.
const CAP_PX = 2 // The line above a range that stands back beside kernels.
const STRAY_PX = 8 // The sign of work that left its stream.
const LEAST_DENSITY = 0.3 // A few narrow spans shall still be seen.

// Find what is in view, remember it for the pointer, and paint it.
export function paintBars(ctx, painter) {
  const {view, items, ratio} = painter
  items.length = 0
  const segments = collectItems(view, items)
  view.painted = {items, segments}
  clipLanes(ctx, view, view.frame.left, () => {
    ctx.setTransform(1, 0, 0, 1, 0, 0)
    const boxes = placeItems(painter, segments)
    fillBoxes(ctx, painter, segments, boxes)
    hatchBoxes(ctx, painter, segments, boxes)
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
    paintHits(ctx, painter, segments, boxes)
    labelBoxes(ctx, painter, segments, boxes)
    paintStrays(ctx, painter, segments, boxes)
    paintMoments(ctx, painter, segments, boxes)
  })
}

function collectItems(view, items) {
  const {store, tables} = view, bin = binWidth(view.nsPerPx), segments = []
  for (const lane of view.visibleLanes()) {
    for (const row of view.laneRows[lane]) {
      const top = view.yAt(tables.rows[row].top), bottom = view.yAt(tables.rows[row].bottom), from = items.length
      if (bottom <= view.lanesTop() || top >= view.lanesBottom()) continue
      decimate(store, row, view.x0, view.x1, bin, items)
      if (items.length > from) segments.push({row, from, to: items.length, top, bottom})
    }
  }
  return segments
}

// Left edges and widths in whole device px, and the time that each is painted over, by item; reused from paint to paint.
function placeItems(painter, segments) {
  const {view, items, ratio} = painter
  if (!painter.boxes || painter.boxes.x.length < items.length)
    painter.boxes = {x: new Int32Array(items.length * 2), w: new Int32Array(items.length * 2), ns: new Float64Array(items.length * 2)}
  const {x, w, ns} = painter.boxes, scale = ratio / view.nsPerPx, origin = view.frame.left * ratio
  const low = Math.floor(view.frame.left * ratio) - 4 * ratio, high = Math.ceil(view.frame.right * ratio) + 4 * ratio
  const least = Math.max(1, Math.round(ratio))
  for (const {from, to} of segments) {
    for (let i = from; i < to; i++) {
      // A gap of less than a px is none or one by chance: even spans would show stripes that are not there. It makes paler.
      const gap = i + 1 < to ? items.left[i + 1] - items.right[i] : Infinity, isJoined = gap >= 0 && gap * scale < 1
      const until = isJoined ? items.left[i + 1] : items.right[i]
      const left = Math.max(low, Math.round((items.left[i] - view.x0) * scale + origin))
      const right = Math.min(high, Math.round((until - view.x0) * scale + origin))
      x[i] = left
      w[i] = Math.max(least, right - left)
      ns[i] = Math.max(until - items.left[i], (isJoined ? least : w[i]) / scale)
    }
    widenLonely(painter.boxes, from, to, ratio, scale)
  }
  return painter.boxes
}

// A narrow bar with nothing beside it is easily missed: it gets as wide as can be seen.
function widenLonely({x, w, ns}, from, to, ratio, scale) {
  const wanted = LONELY_PX * ratio
  for (let i = from; i < to; i++) {
    if (w[i] >= wanted) continue
    const isLonely = (i === from || x[i - 1] + w[i - 1] + wanted <= x[i]) && (i === to - 1 || x[i] + 2 * wanted <= x[i + 1])
    if (!isLonely) continue
    ns[i] = Math.max(ns[i], wanted / scale)
    w[i] = Math.round(wanted)
  }
}

// How strong the colour of an item is, of SHADES: by the share of its px in which something ran.
function shadeOf(items, i, paintedNs) {
  const share = items.busy[i] / paintedNs
  return Math.round(SHADES * Math.min(1, Math.max(LEAST_DENSITY, share)))
}

function isItemMatch(painter, columns, row, i) {
  const {items, view} = painter
  if (items.first[i] === items.last[i]) return columns.isMatch(items.first[i], view.matches)
  return view.store.matchCount(row, items.first[i], items.last[i]) > 0
}

function fillBoxes(ctx, painter, segments, {x, w, ns}) {
  const {view, items, looks, ratio} = painter, narrowNs = LONELY_PX * view.nsPerPx
  const wide = WIDE_PX * ratio, edge = Math.max(1, Math.round(ratio))
  let set = null
  for (const segment of segments) {
    const columns = view.store.row(segment.row), {top, height} = devicePx(segment, ratio)
    for (let i = segment.from; i < segment.to; i++) {
      const pick = items.pick[i], code = looks.fill(looks.name(columns, pick), columns.kind[pick]), isWide = w[i] >= wide
      // A short span is no busier than those that are merged beside it, and looks so.
      const isFull = items.first[i] === items.last[i] && items.right[i] - items.left[i] >= narrowNs
      let shade = isFull ? SHADES : shadeOf(items, i, ns[i])
      if (columns.isPale) shade = Math.max(2, Math.round(shade * PALE_SHADE / SHADES))
      if (view.matches && !isItemMatch(painter, columns, segment.row, i)) shade = Math.min(shade, DIM_SHADE)
      const fill = looks.shades[code][shade]
      if (fill !== set) ctx.fillStyle = set = fill
      // The thin edge between two bars lets the paper through.
      ctx.fillRect(x[i], top, isWide ? w[i] - edge : w[i], height)
    }
    if (columns.isPale) capBoxes(ctx, painter, segment, {x, w})
    set = null
  }
}

// A full line above each range that stands back: so it is told by its colour, and where it begins and ends.
function capBoxes(ctx, painter, segment, {x, w}) {
  const {view, items, looks, ratio} = painter, columns = view.store.row(segment.row), {top} = devicePx(segment, ratio)
  const wide = WIDE_PX * ratio, edge = Math.max(1, Math.round(ratio)), cap = Math.round(CAP_PX * ratio)
  for (let i = segment.from; i < segment.to; i++) {
    if (w[i] < wide) continue
    const pick = items.pick[i], isDim = view.matches && !isItemMatch(painter, columns, segment.row, i)
    ctx.fillStyle = looks.shades[looks.fill(looks.name(columns, pick), columns.kind[pick])][isDim ? DIM_SHADE : SHADES]
    ctx.fillRect(x[i], top, w[i] - edge, cap)
  }
}

function devicePx({top, bottom}, ratio) {
  const first = Math.round(top * ratio)
  return {top: first, height: Math.max(1, Math.round(bottom * ratio) - first)}
}

function hatchBoxes(ctx, painter, segments, {x, w}) {
  const {view, items, looks, ratio, hatches} = painter, wide = (WIDE_PX + 1) * ratio, edge = Math.max(1, Math.round(ratio))
  const patterns = looks.hatches.map(sign => [BAR_INK, BAR_PAPER].map((colour, i) => hatches.get(ctx, sign, colour, i ? 0.35 : 0.26, ratio)))
  hatches.anchor(view.pxAt(0) * ratio % 65536, (view.frame.top - view.scrollPx) * ratio)
  for (const segment of segments) {
    const columns = view.store.row(segment.row), {top, height} = devicePx(segment, ratio)
    if (columns.isPale) continue
    for (let i = segment.from; i < segment.to; i++) {
      if (w[i] < wide || items.first[i] !== items.last[i]) continue
      const at = items.pick[i], name = looks.name(columns, at), kind = columns.kind[at], hatch = looks.hatch(name, kind)
      if (hatch < 0 || view.matches && !columns.isMatch(at, view.matches)) continue
      ctx.fillStyle = patterns[hatch][looks.text(name, kind) === BAR_INK ? 0 : 1]
      ctx.fillRect(x[i], top, w[i] - edge, height)
    }
  }
}

// Names in bars, where there is room, and how long the span took, where there is more.
function labelBoxes(ctx, painter, segments, {x, w}) {
  const {view, items, ratio} = painter, least = LABEL_MIN_PX * ratio
  setFont(ctx, 11)
  ctx.textAlign = "left"
  ctx.textBaseline = "middle"
  for (const {row, from, to, top, bottom} of segments) {
    if (bottom - top < 12) continue
    const columns = view.store.row(row)
    for (let i = from; i < to; i++) {
      if (w[i] < least || items.first[i] !== items.last[i]) continue
      const left = Math.max(x[i] / ratio, view.frame.left) + 5
      const right = Math.min((x[i] + w[i]) / ratio, view.frame.right) - 5
      labelBar(ctx, painter, columns, items.first[i], {left, room: right - left, middle: (top + bottom) / 2})
    }
  }
}

function labelBar(ctx, painter, columns, at, {left, room, middle}) {
  const {view, looks, texts} = painter, name = looks.name(columns, at), kind = columns.kind[at]
  const text = texts.fit(ctx, view.tables.names[columns.name[at]] ?? "", room)
  if (!text) return
  const used = texts.width(ctx, text), isDim = view.matches && !columns.isMatch(at, view.matches)
  const hasHatch = !columns.isPale && looks.hatch(name, kind) >= 0
  if (!isDim && hasHatch) {
    ctx.fillStyle = looks.fills[looks.fill(name, kind)]
    ctx.fillRect(left - 2, middle - 7, used + 4, 14)
  }
  ctx.fillStyle = isDim ? painter.theme.soft : looks.ink(columns, name, kind)
  ctx.fillText(text, left, middle + 0.5)
  const time = room - used < 50 ? "" : formatNs(columns.end[at] - columns.start[at])
  if (!time || isDim || texts.width(ctx, time) > room - used - 16) return
  const begin = left + used + 8
  if (hasHatch) {
    ctx.fillStyle = looks.fills[looks.fill(name, kind)]
    ctx.fillRect(begin - 2, middle - 7, texts.width(ctx, time) + 4, 14)
  }
  ctx.fillStyle = looks.ink(columns, name, kind)
  ctx.globalAlpha = 0.75
  ctx.fillText(time, begin, middle + 0.5)
  ctx.globalAlpha = 1
}

// A corner in the colour of warnings on each kernel, copy or fill that ran on another stream than its range had selected.
function paintStrays(ctx, painter, segments, {x, w}) {
  const {view, items, ratio, theme} = painter, corners = new Path2D()
  for (const {row, from, to, top, bottom} of segments) {
    const columns = view.store.row(row)
    if (!columns.hasWork) continue
    for (let i = from; i < to; i++) {
      if (!isStray(columns, items.pick[i])) continue
      const size = Math.min(STRAY_PX, bottom - top), right = Math.max(x[i] / ratio + size / 2, (x[i] + w[i]) / ratio - 1)
      corners.moveTo(right - size, top)
      corners.lineTo(right, top)
      corners.lineTo(right, top + size)
      corners.closePath()
    }
  }
  ctx.fillStyle = theme.stray
  ctx.fill(corners)
  ctx.lineWidth = 1.5
  ctx.strokeStyle = theme.paper
  ctx.stroke(corners)
}

// Spans that took no time, where one stands alone: a diamond on its line says that it is no short bar.
function paintMoments(ctx, painter, segments, {x, w}) {
  const {view, items, looks, ratio} = painter, lonely = Math.round(LONELY_PX * ratio)
  for (const {row, from, to, top, bottom} of segments) {
    const columns = view.store.row(row), middle = (top + bottom) / 2, half = Math.min(MOMENT_PX, (bottom - top) / 2)
    for (let i = from; i < to; i++) {
      if (items.right[i] > items.left[i] || items.first[i] !== items.last[i] || w[i] < lonely) continue
      const at = items.pick[i], left = x[i] / ratio + LONELY_PX / 2
      if (view.matches && !columns.isMatch(at, view.matches)) continue
      ctx.beginPath()
      ctx.moveTo(left - half, middle)
      ctx.lineTo(left, middle - half)
      ctx.lineTo(left + half, middle)
      ctx.lineTo(left, middle + half)
      ctx.closePath()
      ctx.fillStyle = looks.fills[looks.fill(looks.name(columns, at), columns.kind[at])]
      ctx.fill()
      ctx.lineWidth = 1
      ctx.strokeStyle = painter.theme.ink
      ctx.stroke()
    }
  }
}
