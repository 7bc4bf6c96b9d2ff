// Waits as arrows: from the end of what was waited for to the start of what waited.
const MAX_EDGES = 2000
const ARROW_PX = 6

function paintEdges(ctx, painter) {
  const {view, theme} = painter, {edges} = view.store
  painter.hiddenEdges = 0
  if (!edges || !edges.length) return
  const found = edgesInView(view, edges)
  painter.hiddenEdges = found.total - found.places.length
  clipLanes(ctx, view, view.frame.left, () => {
    ctx.strokeStyle = ctx.fillStyle = theme.soft
    ctx.lineWidth = 1
    const lines = new Path2D(), heads = new Path2D()
    for (const place of found.places) addArrow(lines, heads, view, edges, place)
    ctx.stroke(lines)
    ctx.fill(heads)
  })
}

function edgesInView(view, edges) {
  const {rows} = view.tables, top = view.scrollPx, bottom = view.scrollPx + view.lanesPx, places = []
  let total = 0
  for (let i = 0; i < edges.length; i++) {
    const from = Math.min(edges.x0[i], edges.x1[i]), to = Math.max(edges.x0[i], edges.x1[i])
    if (to < view.x0 || from > view.x1) continue
    const source = rows[edges.row0[i]], target = rows[edges.row1[i]]
    if (!source || !target || Math.max(source.bottom, target.bottom) < top || Math.min(source.top, target.top) > bottom) continue
    total++
    if (places.length < MAX_EDGES) places.push(i)
  }
  return {places, total}
}

function addArrow(lines, heads, view, edges, place) {
  const source = view.tables.rows[edges.row0[place]], target = view.tables.rows[edges.row1[place]]
  const isDown = source.top <= target.top, way = isDown ? 1 : -1
  // Far outside, coordinates would be too large for a canvas.
  const x0 = Math.max(-5000, view.pxAt(edges.x0[place])), x1 = Math.min(view.frame.right + 5000, view.pxAt(edges.x1[place]))
  const y0 = view.yAt(isDown ? source.bottom : source.top), y1 = view.yAt(isDown ? target.top : target.bottom)
  if (edges.row0[place] === edges.row1[place]) return
  lines.moveTo(x0, y0)
  lines.lineTo(x1, y1 - way * ARROW_PX * 0.6)
  heads.moveTo(x1, y1)
  heads.lineTo(x1 - ARROW_PX / 2, y1 - way * ARROW_PX)
  heads.lineTo(x1 + ARROW_PX / 2, y1 - way * ARROW_PX)
  heads.closePath()
}
