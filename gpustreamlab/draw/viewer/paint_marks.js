// Moments: changes of the layout, cells, marks of the user. A line through all, and a label where there is room.
const MARK_DASHES = {layout: [5, 3], cell: [1, 3], mark: []}

const markColour = (kind, theme) => kind === "layout" ? theme.warn : kind === "mark" ? theme.accent : theme.soft

function paintMarks(ctx, painter) {
  const {view, theme} = painter, {marks} = view.tables
  const first = firstMark(marks, view.x0), labels = []
  let last = -Infinity
  ctx.save()
  ctx.lineWidth = 1.5
  for (let i = first; i < marks.length && marks[i].time <= view.x1; i++) {
    const x = Math.round(view.pxAt(marks[i].time)) + 0.5
    if (x - last < 2) continue
    last = x
    ctx.strokeStyle = markColour(marks[i].kind, theme)
    ctx.setLineDash(MARK_DASHES[marks[i].kind] || [])
    ctx.beginPath()
    ctx.moveTo(x, view.frame.top)
    ctx.lineTo(x, view.frame.top + view.parts.innerPx)
    ctx.stroke()
    labels.push([marks[i], x])
  }
  ctx.restore()
  const free = view.tables.mark_rows.map(() => view.frame.left)
  for (const [mark, x] of labels) labelMark(ctx, painter, mark, x, free)
}

// The first mark at or after a time.
function firstMark(marks, time) {
  let low = 0, high = marks.length
  while (low < high) { const middle = (low + high) >> 1; if (marks[middle].time < time) low = middle + 1; else high = middle }
  return low
}

// On the first line that has room, to the right of the moment or, at the right end, to its left; lines of others pass behind.
function labelMark(ctx, {view, theme, texts}, {text, kind}, x, free) {
  setFont(ctx, 11, "bold")
  const width = texts.width(ctx, text) + 8, isRight = x + width <= view.frame.right, begin = isRight ? x : x - width
  const row = free.findIndex(limit => begin >= limit)
  if (row < 0) return
  free[row] = begin + width
  const middle = view.frame.top + view.tables.mark_rows[row]
  ctx.fillStyle = theme.paper
  ctx.fillRect(isRight ? x + 2 : begin, middle - 8, width - 2, 16)
  ctx.textAlign = isRight ? "left" : "right"
  ctx.textBaseline = "middle"
  ctx.fillStyle = markColour(kind, theme)
  ctx.fillText(text, isRight ? x + 4 : x - 4, middle)
}
