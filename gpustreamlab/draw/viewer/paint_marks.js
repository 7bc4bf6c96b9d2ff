// Moments: changes of the layout, marks of the user, cells. A line through all, and a label where there is room. Live: what has not
// ended, and now.

import { clipLanes, setPen } from "./brush.js"
import { paintPill } from "./paint_overlay.js"

const MARK_DASHES = {layout: [5, 3], mark: [1.5, 3], cell: [1.5, 3]}
// Where moments are too near to each other, what was asked for comes before what happens anyway.
const MARK_RANKS = {layout: 0, mark: 1, cell: 2}
const MARK_HIT_PX = 4
const LINE_GAP_PX = 2

const markColour = (kind, theme) => kind === "layout" ? theme.warn : kind === "mark" ? theme.accent : theme.soft
const markRank = ({kind}) => MARK_RANKS[kind]

export function paintMarks(ctx, painter) {
  const {view} = painter, marks = marksBetween(view.tables.marks, view.x0, view.x1).sort((a, b) => markRank(a) - markRank(b) || a.time - b.time)
  paintMarkLines(ctx, painter, marks)
  const taken = view.tables.mark_rows.map(() => [])
  if (!taken.length) return
  for (const mark of marks) labelMark(ctx, painter, mark, taken)
}

const marksBetween = (marks, from, to) => marks.filter(({time}) => time >= from && time <= to)

const markPx = (view, mark) => Math.round(view.pxAt(mark.time)) + 0.5

function paintMarkLines(ctx, {view, theme}, marks) {
  const drawn = new Set()
  ctx.save()
  ctx.lineWidth = 1.5
  for (const mark of marks) {
    const x = markPx(view, mark)
    if (drawn.has(x)) continue
    for (let off = 1 - LINE_GAP_PX; off < LINE_GAP_PX; off++) drawn.add(x + off)
    ctx.strokeStyle = markColour(mark.kind, theme)
    ctx.setLineDash(MARK_DASHES[mark.kind])
    ctx.beginPath()
    ctx.moveTo(x, view.frame.top)
    ctx.lineTo(x, view.frame.top + view.parts.innerPx)
    ctx.stroke()
  }
  ctx.restore()
}

// On the first line that has room, to the right of the moment or, at the right end, to its left; lines of others pass behind.
function labelMark(ctx, {view, theme, texts}, mark, taken) {
  setPen(ctx, theme.paper, 11, "left", "bold")
  const x = markPx(view, mark), width = texts.width(ctx, mark.text) + 8
  const isRight = x + width <= view.frame.right, begin = isRight ? x : x - width, end = begin + width
  if (begin < view.frame.left - 1) return
  const row = taken.findIndex(labels => labels.every(([from, to]) => end <= from || begin >= to))
  if (row < 0) return
  taken[row].push([begin, end])
  const middle = view.frame.top + view.tables.mark_rows[row]
  ctx.fillRect(isRight ? x + 2 : begin, middle - 8, width - 2, 16)
  setPen(ctx, markColour(mark.kind, theme), 11, isRight ? "left" : "right", "bold")
  ctx.fillText(mark.text, isRight ? x + 4 : x - 4, middle)
}

// The marks whose lines are at most MARK_HIT_PX from a place of the figure, those first that are labelled first.
export function marksAt(view, px, py) {
  const {frame, nsPerPx} = view, at = view.timeAt(px), slackNs = MARK_HIT_PX * nsPerPx
  if (px < frame.left - MARK_HIT_PX || px > frame.right + MARK_HIT_PX || py < frame.top || py > frame.top + view.parts.innerPx) return []
  const near = marksBetween(view.tables.marks, Math.max(at - slackNs, view.x0), Math.min(at + slackNs, view.x1))
  return near.sort((a, b) => markRank(a) - markRank(b) || Math.abs(a.time - at) - Math.abs(b.time - at))
}

// Of each lane from when its first range was opened until now, open at the end; and now itself.
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
      paintPill(ctx, painter, text, (left + right) / 2, view.yAt((top + bottom) / 2), { fill: theme.paper, ink: theme.ink, line: theme.soft, right: right - 36 }) // Then "now".
    }
  })
  if (now > frame.right) return
  ctx.fillStyle = theme.accent
  ctx.fillRect(now, frame.top, 1, view.parts.innerPx)
  paintPill(ctx, painter, "now", now, frame.top + view.parts.innerPx - (view.canScroll ? 35 : 11), { fill: theme.accent, ink: theme.paper })
}
