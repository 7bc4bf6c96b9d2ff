// Bars: solid where work ran, a pale band where a range holds work that is drawn below it, an outline where it is known to have
// waited, pale and open at the ends where nobody knows when in it work ran. Spans that are too narrow for a bar are drawn as load:
// as high as the share of the time in which they lasted.

import { BAR_INK, clipLanes, DIM_SHADE, HOLLOW, OPEN, openShade, setPen, SHADES, SOLID } from "./brush.js"
import { binWidth, decimate } from "./lod.js"
import { Pixels } from "./pixels.js"
import { isStray } from "./rows.js"

const WIDE_PX = 4 // From here on a span has a bar of its own.
const LABEL_MIN_PX = 12
const NUMBERS = /(?<![^\s_\-#:/.=[(])[0-9]+(?![^\s_\-:/.,\])])/g // Those that stand by themselves, as in analysis.name_group.
const MIN_LABELLED_PX = 11, HALF_TEXT_PX = 6
const LEAST_LETTERS = 4 // Of a name that is cut.
const LONELY_PX = 3
const MOMENT_PX = 5 // Half the height of the sign of a span that took no time.
const FADE_PX = 4, FADE_STEPS = 4 // Steps in which an open end fades out.
const LEAST_LOAD_PX = 2 // A little load shall still be seen.
const STRAY_PX = 8 // The sign of work that left its stream.
const HIT_PX = 2, LEAST_HIT_PX = 5 // The line under what a search found: also one among a thousand spans is seen.

// Find what is in view, remember it for the pointer, and paint it.
export function paintBars(ctx, painter) {
  const {view, items, ratio} = painter, segments = collectItems(view, items)
  view.painted.segments.push(...segments)
  clipLanes(ctx, view, view.frame.left, () => {
    ctx.setTransform(1, 0, 0, 1, 0, 0)
    const boxes = placeItems(painter, segments)
    fillBoxes(ctx, painter, segments, boxes)
    if (view.matches) paintHits(ctx, painter, segments, boxes)
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
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
      if (items.length > from) segments.push({row, columns: store.row(row), from, to: items.length, top, bottom})
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
  // What goes on beyond the frame has its end, and what fades there, out of sight.
  const beyond = 24 * ratio, low = Math.floor(view.frame.left * ratio - beyond), high = Math.ceil(view.frame.right * ratio + beyond)
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

function eachItem(segments, visit) {
  for (const segment of segments) for (let i = segment.from; i < segment.to; i++) visit(i, segment)
}

// Whether anything of an item is searched for.
const isMatch = ({view, items}, {row}, i) => view.store.matchCount(row, items.first[i], items.last[i]) > 0

const isOne = ({first, last}, i) => first[i] === last[i]

function fillBoxes(ctx, painter, segments, {x, w, ns}) {
  const {view, items, looks, ratio, hatches} = painter, edge = Math.max(1, Math.round(ratio)), pale = openShade(painter.theme)
  const isNarrow = i => w[i] < WIDE_PX * ratio || !isOne(items, i)
  paintNarrow(ctx, painter, segments, {x, w, ns}, {isNarrow, edge, pale})
  eachItem(segments, (i, segment) => {
    if (isNarrow(i)) return
    const {columns, top, height} = devicePx(segment, ratio), at = items.first[i], shape = looks.shape(columns, at)
    const isDim = view.matches && !isMatch(painter, segment, i)
    const full = shape === OPEN || columns.isPale ? (isDim ? 1 : pale) : isDim ? DIM_SHADE : SHADES
    const code = looks.code(columns, at), box = {left: x[i], top, width: w[i] - edge, height, edge}
    if (shape === HOLLOW && columns.isPale && !isDim) {
      ctx.fillStyle = looks.shades[code][pale + 2]
      ctx.fillRect(x[i], top, w[i] - edge, height)
    }
    if (shape !== SOLID) outlineBox(ctx, box, isDim ? looks.shades[code][DIM_SHADE] : looks.lines[code], shape === OPEN)
    if (shape === HOLLOW) return
    ctx.fillStyle = looks.shades[code][full]
    if (shape === OPEN) openBox(ctx, box, looks.shades[code], full, ratio)
    else ctx.fillRect(x[i], top, w[i] - edge, height)
    if (isDim || !painter.hasHatch(looks.hatch(columns, at))) return
    ctx.fillStyle = hatches.get(ctx, looks.hatch(columns, at), ratio)
    ctx.fillRect(x[i], top, w[i] - edge, height)
  })
}

// What is too narrow for a bar of its own, below all that is not.
function paintNarrow(ctx, painter, segments, {x, w, ns}, {isNarrow, edge, pale}) {
  const {view, items, looks, ratio} = painter, {frame: {left, right}} = view, [originX, originY] = [left, view.lanesTop()].map(px => Math.round(px * ratio))
  const pixels = painter.narrow ??= new Pixels()
  pixels.resize(Math.max(1, Math.round(right * ratio) - originX), Math.max(1, Math.round(view.lanesBottom() * ratio) - originY))
  eachItem(segments, (i, segment) => {
    if (!isNarrow(i)) return
    const {columns, top, height} = devicePx(segment, ratio), at = items.first[i]
    const isDim = view.matches && !isMatch(painter, segment, i), share = Math.min(1, items.busy[i] / ns[i])
    const isHollow = !view.tables.lanes[columns.lane].host && (columns.isPale || looks.shape(columns, at) === OPEN)
    const load = Math.max(Math.min(height, Math.round(LEAST_LOAD_PX * ratio)), Math.round(share * height)), y = top + height - load - originY, code = looks.load(columns, at)
    pixels.rect(x[i] - originX, y, w[i], load, looks.shades[code][isDim ? (isHollow ? 1 : DIM_SHADE) : isHollow ? pale : SHADES])
    if (isHollow) for (const line of [y, y + load - edge]) pixels.rect(x[i] - originX, line, w[i], edge, isDim ? looks.shades[code][DIM_SHADE] : looks.lines[code])
  })
  ctx.drawImage(pixels.paint(), originX, originY)
}

// A line under the bars that match, and the bins that hold a match: what a search found stands out at every zoom.
function paintHits(ctx, painter, segments, {x, w}) {
  const least = Math.round(LEAST_HIT_PX * painter.ratio), high = Math.round(HIT_PX * painter.ratio)
  ctx.fillStyle = painter.theme.accent
  eachItem(segments, (i, segment) => {
    if (!isMatch(painter, segment, i)) return
    const wide = Math.max(least, w[i] - 1)
    ctx.fillRect(Math.round(x[i] + (w[i] - wide) / 2), Math.round(segment.bottom * painter.ratio) - high, wide, high)
  })
}

// The lines around a box; an open one has none at its ends.
function outlineBox(ctx, {left, top, width, height, edge}, colour, isOpen) {
  ctx.fillStyle = colour
  for (const y of [top, top + height - edge]) ctx.fillRect(left, y, width, edge)
  if (!isOpen) for (const x of [left, left + width - edge]) ctx.fillRect(x, top, edge, height)
}

// A box between its lines, which fades out at both ends.
function openBox(ctx, {left, top, width, height, edge}, shades, full, ratio) {
  const step = Math.min(Math.round(FADE_PX * ratio), Math.floor(width / (2 * FADE_STEPS + 2))), fade = step * FADE_STEPS
  ctx.fillRect(left + fade, top + edge, width - 2 * fade, height - 2 * edge)
  for (let place = 0; place < FADE_STEPS && step; place++) {
    ctx.fillStyle = shades[Math.round(full * (place + 1) / (FADE_STEPS + 2))]
    for (const x of [left + place * step, left + width - (place + 1) * step]) ctx.fillRect(x, top + edge, step, height - 2 * edge)
  }
}

function devicePx({columns, top, bottom}, ratio) {
  const first = Math.round(top * ratio)
  return {columns, top: first, height: Math.max(1, Math.round(bottom * ratio) - first)}
}

// Names in the middle of bars: whole where there is room, else what tells them apart.
function labelBoxes(ctx, painter, segments, {x, w}) {
  const {view, view: {frame}, items, ratio} = painter, low = view.lanesTop() + HALF_TEXT_PX, high = view.lanesBottom() - HALF_TEXT_PX
  setPen(ctx, BAR_INK, 11)
  eachItem(segments, (i, {columns, top, bottom}) => {
    if ((top + bottom) / 2 < low || (top + bottom) / 2 > high) return // Half a name says nothing.
    if (view.isUnderFold((x[i] + w[i]) / ratio, bottom) || bottom - top < MIN_LABELLED_PX || w[i] < LABEL_MIN_PX * ratio || !isOne(items, i)) return
    const left = Math.max(x[i] / ratio, frame.left) + 2, right = Math.min((x[i] + w[i]) / ratio, frame.right) - 3
    labelBar(ctx, painter, columns, items.first[i], {left, room: right - left, middle: (top + bottom) / 2})
  })
}

function labelBar(ctx, painter, columns, at, {left, room, middle}) {
  const {view, looks, texts, theme} = painter, text = barText(ctx, texts, view.tables.names[columns.name[at]] ?? "", room)
  if (!text) return
  const used = texts.width(ctx, text), isDim = view.matches && !columns.isMatch(at, view.matches), isSolid = looks.shape(columns, at) === SOLID
  const from = left + (room - used) / 2
  // A box below keeps the letters apart from the lines of a hatch.
  if (isSolid && !isDim && painter.hasHatch(looks.hatch(columns, at))) {
    ctx.fillStyle = looks.fills[looks.code(columns, at)]
    ctx.fillRect(from - 2, middle - 7, used + 4, 14)
  }
  ctx.fillStyle = isDim ? theme.soft : isSolid ? BAR_INK : theme.ink
  ctx.fillText(text, from, middle + 0.5)
}

// A name, or what there is room for: a copy's way without "memcpy", then the number that tells it from others, or its begin.
function barText(ctx, texts, name, room) {
  if (texts.width(ctx, name) <= room) return name
  const short = shortName(name), number = short.match(NUMBERS)?.at(-1)
  if (short !== name && texts.width(ctx, short) <= room) return short
  if (number === undefined) return leastFit(texts.fit(ctx, short, room))
  return texts.width(ctx, number) <= room ? number : ""
}

// Of a function of C++ its own name, without templates and namespaces.
const shortName = name => {
  const plain = name.replace(/^(memcpy|memset|void)\s+/i, "")
  return plain.includes("::") || /<.*>/.test(plain) ? plain.match(/^[\w:]+/)?.[0].split("::").at(-1) || plain : plain
}

const leastFit = text => text.length < LEAST_LETTERS && text.endsWith("…") ? "" : text

// A corner in the colour of warnings on each kernel, copy or fill that ran on another stream than its range had selected.
function paintStrays(ctx, {items, ratio, theme}, segments, {x, w}) {
  let corners = ""
  eachItem(segments.filter(({columns}) => columns.hasWork), (i, {columns, top, bottom}) => {
    if (!isStray(columns, items.first[i])) return
    const size = Math.min(STRAY_PX, bottom - top), right = Math.max(x[i] / ratio + size / 2, (x[i] + w[i]) / ratio - 1)
    corners += `M${right - size} ${top}h${size}v${size}z`
  })
  paintShape(ctx, corners, theme.stray, theme.paper, 1.5)
}

// Spans that took no time, where one stands alone: a diamond on its line says that it is no short bar.
function paintMoments(ctx, painter, segments, {x, w}) {
  const {view, items, looks, ratio} = painter, lonely = Math.round(LONELY_PX * ratio)
  eachItem(segments, (i, segment) => {
    if (items.right[i] > items.left[i] || !isOne(items, i) || w[i] < lonely) return
    if (view.matches && !isMatch(painter, segment, i)) return
    const {columns, top, bottom} = segment, half = Math.min(MOMENT_PX, (bottom - top) / 2), left = x[i] / ratio + LONELY_PX / 2
    const path = `M${left - half} ${(top + bottom) / 2}l${half} ${-half}l${half} ${half}l${-half} ${half}z`
    paintShape(ctx, path, looks.fills[looks.code(columns, items.first[i])], painter.theme.ink, 1)
  })
}

function paintShape(ctx, path, fill, line, width) {
  const shape = new Path2D(path)
  Object.assign(ctx, {fillStyle: fill, strokeStyle: line, lineWidth: width})
  ctx.fill(shape)
  ctx.stroke(shape)
}
