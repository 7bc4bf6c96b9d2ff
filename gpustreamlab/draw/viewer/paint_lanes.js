// Lanes without their bars: shades, the partitions' lines and bands, names.

import { BAND_PX, BAR_INK, clipLanes, colourBy, hatchShape, laneHue, setPen, TINT, TINTS } from "./brush.js"
import { blend } from "./theme.js"

export const LABEL_GAP_PX = 10
export const CARET_PX = 14
const FIRST_PX = 12 // From the border of a lane to the middle of its first row.
const HALF_PX = 6 // Half the height of a name.

// Every second lane is shaded, so that the eye finds the way from a bar to its label; beside each is its colour.
export function paintShades(ctx, {view, theme, looks}) {
  const {frame: {left, right}, tables} = view, by = colourBy(view)
  clipLanes(ctx, view, 0, () => {
    for (const code of view.visibleLanes()) {
      const {top, bottom} = tables.lanes[code]
      ctx.fillStyle = theme.shade
      if (view.laneOrder.indexOf(code) % 2) ctx.fillRect(left, view.yAt(top), right - left, bottom - top)
      ctx.fillStyle = looks.fills[laneHue(tables, by, code) * TINTS]
      ctx.fillRect(left - 5, view.yAt(top) + 2, 3, bottom - top - 4)
    }
  })
}

// A partition's line stays at the top as long as one of its lanes is in view.
export function paintGroups(ctx, painter) {
  const {view} = painter
  clipLanes(ctx, view, 0, () => {
    for (const [group, box] of groupBoxes(view)) paintGroup(ctx, painter, group, box)
  })
}

// The groups in view, each with where it is and where its line is.
export function groupBoxes(view) {
  const lanesTop = view.lanesTop(), boxes = []
  for (const group of view.tables.groups) {
    const top = view.yAt(group.top), bottom = view.yAt(group.bottom), headPx = group.head_bottom - group.top
    if (bottom <= lanesTop || top >= view.lanesBottom()) continue
    boxes.push([group, {top, bottom, headPx, headTop: Math.min(Math.max(top, lanesTop), bottom - headPx)}])
  }
  return boxes
}

// A small triangle: what is folded opens to the right.
export function paintCaret(ctx, x, middle, isFolded) {
  const [a, b] = isFolded ? [[-2.5, -4.5], [3.5, 0]] : [[-4.5, -2.5], [0, 3.5]]
  ctx.beginPath()
  ctx.moveTo(x + a[0], middle + a[1])
  ctx.lineTo(x + b[0], middle + b[1])
  ctx.lineTo(x + (isFolded ? a[0] : -a[0]), middle + (isFolded ? -a[1] : a[1]))
  ctx.fill()
}

function paintGroup(ctx, painter, group, {top, bottom, headPx, headTop}) {
  const {view, theme} = painter, {frame} = view
  ctx.fillStyle = blend(group.fill, theme.paper, TINT)
  ctx.fillRect(BAND_PX, headTop, frame.right - BAND_PX, headPx)
  const band = new Path2D(`M0 ${top}h${BAND_PX}V${bottom - 1}H0z`)
  ctx.fillStyle = group.fill
  ctx.fill(band)
  hatchShape(ctx, painter, group.hatch, band)
  const middle = headTop + headPx / 2, left = BAND_PX + 18, room = frame.right - left - 6
  if (group.letter) {
    ctx.fillStyle = group.fill // No hatch behind the letter.
    ctx.fillRect(3, middle - 8, BAND_PX - 6, 16)
    setPen(ctx, BAR_INK, 12, "center", "bold")
    ctx.fillText(group.letter, BAND_PX / 2, middle, BAND_PX - 4)
  }
  setPen(ctx, theme.ink, 12, "left", "bold")
  paintCaret(ctx, BAND_PX + 9, middle, group.isFolded)
  const label = painter.texts.fit(ctx, group.label, room), used = painter.texts.width(ctx, label) + 16
  ctx.fillText(label, left, middle)
  setPen(ctx, theme.ink)
  ctx.fillText(painter.texts.fit(ctx, group.detail, room - used), left + used, middle)
}

// Where the triangle of a lane begins, by which it is folded.
export const caretLeft = view => view.tables.groups.length ? BAND_PX + 2 : 0

// Names beside the first rows of the lanes, as far as there is room between them; that of a tall lane stays in view with it.
export function paintLaneLabels(ctx, painter) {
  const {view, theme} = painter, {frame, tables} = view
  const left = caretLeft(view) + CARET_PX, right = frame.left - LABEL_GAP_PX, room = right - left
  let free = view.lanesTop() - 4
  clipLanes(ctx, view, 0, () => {
    for (const code of view.visibleLanes()) {
      const {label, detail, group, parts = [], top, bottom, folded} = tables.lanes[code]
      // The line of its group stays above it.
      const least = view.lanesTop() + (group >= 0 ? groupHeadPx(tables, group) : 0), half = HALF_PX
      for (const [text, from, to] of parts.slice(1)) paintPartLabel(ctx, painter, text, view.yAt((from + to) / 2), least, room)
      const middle = Math.min(Math.max(view.yAt(top) + FIRST_PX, least + half), view.yAt(bottom) - half)
      if (middle - half < free - 1 && bottom - top < 2 * half || middle + half > view.lanesBottom() + 3 || middle - half < least - 3) continue
      free = middle + half
      ctx.fillStyle = theme.soft
      paintCaret(ctx, left - CARET_PX / 2, middle, folded)
      paintName(ctx, painter, label, detail, {right, middle, room})
    }
  })
}

const groupHeadPx = ({groups}, group) => groups[group] ? groups[group].head_bottom - groups[group].top : 0

// A name, and behind it what is not ordinary, where there is room for both.
function paintName(ctx, {theme, texts}, label, detail, {right, middle, room}) {
  setPen(ctx, theme.soft, 12, "right")
  const text = detail && ` · ${detail}`, used = texts.width(ctx, text)
  const fits = text && texts.width(ctx, label) + used <= room
  if (fits) ctx.fillText(text, right, middle)
  ctx.fillStyle = theme.ink
  ctx.fillText(texts.fit(ctx, label, room, true), fits ? right - used : right, middle)
}

// What the memory of a lane is.
function paintPartLabel(ctx, {view, theme, texts}, text, middle, least, room) {
  if (middle - 6 < least || middle + 6 > view.lanesBottom()) return
  setPen(ctx, theme.soft, 11, "right")
  ctx.fillText(texts.fit(ctx, text, room), view.frame.left - LABEL_GAP_PX, middle)
}
