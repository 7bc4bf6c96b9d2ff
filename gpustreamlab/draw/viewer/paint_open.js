// Live: what has not ended, of each lane from when its first range was opened until now, open at the end; and now itself.

import { clipLanes } from "./brush.js"
import { paintPill } from "./paint_overlay.js"

export function paintOpen(ctx, painter) {
  const { view, theme } = painter, { frame, tables } = view, now = Math.round(view.pxAt(view.nowNs))
  if (!view.isLive || now < frame.left) return
  clipLanes(ctx, view, frame.left, () => {
    Object.assign(ctx, { strokeStyle: theme.ink, lineWidth: 1 })
    for (const [lane, name, since, count] of view.openWork) {
      const first = tables.rows[view.laneRows[lane]?.[0]] ?? tables.lanes[lane]
      const left = Math.max(frame.left - 2, Math.round(view.pxAt(since))) + 0.5, right = Math.min(frame.right, now)
      if (!first || right <= left) continue
      const top = Math.round(view.yAt(first.top)) + 0.5, bottom = Math.round(view.yAt(first.bottom)) - 0.5
      ctx.setLineDash([4, 2])
      ctx.beginPath()
      for (const [x, y] of [[right, top], [left, top], [left, bottom], [right, bottom]]) ctx.lineTo(x, y)
      ctx.stroke()
      const text = `${tables.names[name] ?? ""}${count > 1 ? ` + ${count - 1} more` : ""}, not ended`
      paintPill(ctx, painter, text, (left + right) / 2, (top + bottom) / 2, { fill: theme.paper, ink: theme.ink, line: theme.soft })
    }
  })
  if (now > frame.right) return
  ctx.fillStyle = theme.accent
  ctx.fillRect(now, frame.top, 1, view.parts.innerPx)
  paintPill(ctx, painter, "now", now, frame.top + view.parts.innerPx - 11, { fill: theme.accent, ink: theme.paper })
}
