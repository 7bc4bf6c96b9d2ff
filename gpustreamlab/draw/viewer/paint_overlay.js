// What follows the pointer or the user: outlines, the selection, and signs of what is out of view.
// It is on a layer of its own, so that the bars are not painted again for it.

import { clipLanes, setPen } from "./brush.js"
import { firstFit } from "./paint_card.js"
import { endOfHit } from "./rows.js"
import { formatCount, formatNs } from "./units.js"

export function paintOutlines(ctx, {view, theme}) {
  outline(ctx, view, view.pinned, theme.accent, theme.paper)
  outline(ctx, view, view.hovered, theme.ink, theme.paper)
}

// A frame around a hit, with paper beside it, so that it can be seen on every bar.
export function outline(ctx, view, hit, colour, paper) {
  const box = hit && boxOf(view, hit)
  if (!box) return
  clipLanes(ctx, view, view.frame.left, () => {
    for (const [width, style] of [[5, paper], [2, colour]]) {
      ctx.lineWidth = width
      ctx.strokeStyle = style
      ctx.strokeRect(box.left, box.top, box.width, box.height)
    }
  })
}

// Where a span, or several merged ones, are painted.
export function boxOf(view, hit) {
  const place = view.tables.rows[hit.row]
  if (!place) return null
  const columns = view.store.row(hit.row), first = hit.index ?? hit.first, last = hit.index ?? hit.last
  if (!(last < columns.length)) return null
  const left = Math.max(view.frame.left - 20, Math.round(view.pxAt(columns.start[first])))
  const right = Math.min(view.frame.right + 20, Math.round(view.pxAt(endOfHit(columns, first, last))))
  if (right < view.frame.left || left > view.frame.right) return null
  return {left, top: Math.round(view.yAt(place.top)), width: Math.max(1, right - left), height: Math.round(place.bottom - place.top)}
}

// What was selected, and how long it is.
export function paintSelection(ctx, painter) {
  const {view, theme} = painter
  if (!view.selection) return
  const {start, end} = view.selection
  tint(ctx, view, start, end, view.visibleLanes(), theme.accent, view.frame.top, view.lanesPx, (left, right) =>
    paintPill(ctx, painter, formatNs(end - start), (left + right) / 2, view.lanesTop() + 12, {fill: theme.accent, ink: theme.paper, isBold: true}))
}

// A window of time, tinted in some lanes, with lines at its ends; `paint` is told its borders in px.
export function tint(ctx, view, start, end, lanes, colour, top, height, paint = () => {}) {
  const left = Math.max(view.frame.left, view.pxAt(start)), right = Math.min(view.frame.right, view.pxAt(end))
  if (right <= left) return
  clipLanes(ctx, view, view.frame.left, () => {
    ctx.fillStyle = colour
    ctx.globalAlpha = 0.16
    for (const code of lanes) {
      const lane = view.tables.lanes[code]
      ctx.fillRect(left, view.yAt(lane.top), right - left, lane.bottom - lane.top)
    }
    ctx.globalAlpha = 1
    for (const x of [left, right - 1]) ctx.fillRect(x, top, 1, height)
    paint(left, right)
  })
}

// A short text on a ground of its own, within the frame.
export function paintPill(ctx, {view, texts}, text, x, middle, {fill, ink, isBold = false, line = null, right = view.frame.right}) {
  setPen(ctx, fill, 12, "center", isBold ? "bold" : "normal")
  const width = texts.width(ctx, text) + 16, {frame} = view
  const left = Math.min(Math.max(x - width / 2, frame.left + 2), Math.max(frame.left + 2, right - width - 2))
  ctx.beginPath()
  ctx.roundRect(left, middle - 10, width, 20, 10)
  ctx.fill()
  if (line) { ctx.strokeStyle = line; ctx.lineWidth = 1; ctx.stroke() }
  ctx.fillStyle = ink
  ctx.fillText(text, left + width / 2, middle + 0.5)
}

// How many lanes are out of view.
export function paintMoreLanes(ctx, painter) {
  const {view, theme} = painter, {frame} = view
  const say = (words, middle) => {
    setPen(ctx, theme.soft)
    paintPill(ctx, painter, firstFit(ctx, painter.texts, words, (frame.right - frame.left) / 2), frame.right - 4, middle, {fill: theme.paper, ink: theme.soft, line: theme.grid})
  }
  if (view.canScroll) {
    const {laneOrder} = view, seen = view.visibleLanes()
    const above = seen.length ? laneOrder.indexOf(seen.at(-1)) + 1 - seen.length : 0
    const word = laneOrder.some(code => view.tables.lanes[code].host) ? "lanes" : "streams"
    const isMostly = code => view.yAt((view.tables.lanes[code].top + view.tables.lanes[code].bottom) / 2) < view.lanesBottom()
    // A lane of which no more than its begin is seen is one that is looked for below.
    const count = Math.max(1, seen.filter(isMostly).length), below = laneOrder.length - above - count, shown = `${formatCount(count)} of ${formatCount(laneOrder.length)}`
    if (above) say([`▴ ${formatCount(above)} above`], view.lanesTop() + 12)
    const words = [`▾ ${shown} ${word} shown: scroll`, `▾ ${shown} ${word}`, `▾ ${shown}`]
    if (below) say(words, view.lanesBottom() - 12)
  }
}
