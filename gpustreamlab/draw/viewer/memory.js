// The memory of a lane over time, below its rows: what is in use as an area, what is reserved as a line above it.

import { upperBound } from "./arrays.js"
import { clipLanes, setPen } from "./brush.js"
import { exactTime } from "./facts.js"
import { nearPx } from "./paint_edges.js"
import { formatBytes, formatNs } from "./units.js"

export function paintMemory(ctx, painter) {
  eachStrip(ctx, painter, (strip, box) => paintMemoryStrip(ctx, painter, strip, box))
}

// What a strip's height stands for, over the lines of marks.
export function paintMemoryLabels(ctx, painter) {
  eachStrip(ctx, painter, (strip, {top}) => labelMemory(ctx, painter, strip, top))
}

function eachStrip(ctx, {view}, paint) {
  const shown = (view.tables.memory ?? []).filter(({top, bottom}) => view.yAt(bottom) > view.lanesTop() && view.yAt(top) < view.lanesBottom())
  if (!shown.length) return
  clipLanes(ctx, view, view.frame.left, () => {
    for (const strip of shown) paint(strip, {top: view.yAt(strip.top) + 2, bottom: view.yAt(strip.bottom) - 1})
  })
}

function paintMemoryStrip(ctx, {view, theme}, strip, {top, bottom}) {
  const most = strip.most || 1, y = value => bottom - (bottom - top) * value / most
  for (const line of strip.lines) {
    const path = memoryPath(view, line, y)
    if (!path) continue
    ctx.lineWidth = line.filled ? 1 : 1.5
    ctx.strokeStyle = line.filled ? theme.memory : theme.soft
    if (line.filled) {
      const area = new Path2D(path.line)
      area.lineTo(path.to, bottom)
      area.lineTo(path.from, bottom)
      ctx.fillStyle = theme.memory
      ctx.globalAlpha = 0.6
      ctx.fill(area)
      ctx.globalAlpha = 1
    }
    ctx.stroke(path.line)
  }
}

function labelMemory(ctx, {view, theme, texts}, strip, top) {
  setPen(ctx, theme.paper, 11, "right")
  ctx.textBaseline = "top"
  const text = `max ${strip.most_text}`, width = texts.width(ctx, text)
  ctx.globalAlpha = 0.8
  ctx.fillRect(view.frame.right - width - 8, top, width + 6, 13)
  ctx.globalAlpha = 1
  ctx.fillStyle = theme.soft
  ctx.fillText(text, view.frame.right - 5, top + 1)
}

// The steps of a line within the window, or null where it begins later.
function memoryPath(view, {time, value}, y) {
  const line = new Path2D(), first = Math.max(0, upperBound(time, view.x0, 0, time.length) - 1)
  if (!time.length || time[first] > view.x1) return null
  const from = nearPx(view, view.pxAt(Math.max(time[first], view.x0)))
  let level = y(value[first]), x = from
  line.moveTo(from, level)
  for (let i = first + 1; i < time.length && time[i] <= view.x1; i++) {
    x = view.pxAt(time[i])
    line.lineTo(x, level)
    line.lineTo(x, level = y(value[i]))
  }
  // Nothing is known to have changed since.
  const to = nearPx(view, view.pxAt(Math.min(view.x1, view.extent().end)))
  line.lineTo(Math.max(x, to), level)
  return {line, from, to: Math.max(x, to)}
}

/** What the memory strip at a place of the figure tells of that moment: {lane, time, facts}, or null. */
export function memoryAt(view, px, py) {
  const {frame} = view
  if (px < frame.left || px > frame.right || py < view.lanesTop() || py >= view.lanesBottom()) return null
  const strip = (view.tables.memory ?? []).find(({top, bottom}) => py >= view.yAt(top) && py < view.yAt(bottom))
  if (!strip) return null
  const at = view.timeAt(px)
  const facts = strip.lines.map(({label, time, value}) => {
    const index = upperBound(time, at, 0, time.length) - 1
    return [label, index < 0 ? "" : `${formatBytes(value[index])}, since ${formatNs(time[index])}`]
  }).filter(([, text]) => text)
  return facts.length ? {lane: strip.lane, at, facts: [["at", exactTime(at)], ...facts.reverse()]} : null
}
