// Live: what has not ended, of each lane from when its first range was opened until now, open at the end; and now itself.

import { clipLanes } from "./brush.js"
import { paintPill } from "./paint_overlay.js"

export function paintOpen(ctx, painter) {
  const { view, theme } = painter, { frame, tables } = view, now = Math.round(view.pxAt(view.nowNs)), right = Math.min(frame.right, now)
  if (!view.isLive || now < frame.left) return
  clipLanes(ctx, view, frame.left, () => {
    for (const [lane, name, since, count] of view.openWork) {
      const { top, bottom } = tables.rows[view.laneRows[lane]?.[0]] ?? tables.lanes[lane] ?? {}, left = Math.max(frame.left - 2, Math.round(view.pxAt(since)))
      if (top === undefined || right <= left) continue
      Object.assign(ctx, { strokeStyle: theme.ink, lineWidth: 1 }).setLineDash([4, 2])
      ctx.beginPath()
      for (const [x, y] of [[right, top], [left, top], [left, bottom - 1], [right, bottom - 1]]) ctx.lineTo(x + 0.5, Math.round(view.yAt(y)) + 0.5)
      ctx.stroke()
      ctx.setLineDash([])
      const text = `${tables.names[name] ?? ""}${count > 1 ? ` + ${count - 1} more` : ""}, not ended`
      paintPill(ctx, painter, text, (left + right) / 2, view.yAt((top + bottom) / 2), { fill: theme.paper, ink: theme.ink, line: theme.soft })
    }
  })
  if (now > frame.right) return
  ctx.fillStyle = theme.accent
  ctx.fillRect(now, frame.top, 1, view.parts.innerPx)
  paintPill(ctx, painter, "now", now, frame.top + view.parts.innerPx - 11, { fill: theme.accent, ink: theme.paper })
}
