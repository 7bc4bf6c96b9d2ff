// Waits as arrows: from the end of what was waited for to the start of what waited, or to where that had to wait within. All are
// grey; those of the span that is pinned or under the pointer are in ink, on the layer that follows the pointer.

import { clipLanes } from "./brush.js"
import { spanEndingAt, spanStartingAt } from "./waits.js"

const MAX_EDGES = 2000
const FEW_EDGES = 16 // So many leave the bars in sight; of more, only those of the span under the pointer are drawn.
const ARROW_PX = 5 // Twice as much fits between two lanes.

export function paintEdges(ctx, painter) {
  const {view, theme} = painter, {edges} = view.store
  painter.hiddenEdges = 0
  if (!view.showsWaits || !edges.length) return
  const found = edgesInView(view, edges)
  painter.hiddenEdges = found.total - found.places.length
  paintArrows(ctx, view, edges, found.places, {colour: theme.rim, width: 1})
}

// Full arrows of what is pinned or under the pointer, as far as they pass the window.
export function paintOwnEdges(ctx, {view, theme}) {
  if (view.showsWaits) paintOwn(ctx, view, view.store.edges, endsOf, {colour: theme.ink, width: 1.5})
}

// From the calls that launched to what they launched: only those of what is pinned or under the pointer, since there is one
// for each kernel.
export function paintOwnLaunches(ctx, {view, theme}) {
  // A launch leads from the start of a call.
  const startsOf = (view, hit) => { const ends = endsOf(view, hit); return ends && {...ends, endFrom: ends.startFrom, endTo: ends.startTo} }
  paintOwn(ctx, view, view.store.launches, startsOf, {colour: theme.accent, width: 1.5, dash: [4, 3]})
}

function paintOwn(ctx, view, edges, endsOf, look) {
  const ends = [view.pinned, view.hovered].map(hit => hit && endsOf(view, hit)).filter(Boolean), places = []
  const isShown = i => edges === view.store.launches || isEdgeShown(view.store, edges, i)
  for (let i = 0; ends.length && i < edges.length && places.length < MAX_EDGES; i++) {
    if (ends.some(end => isOwnEdge(edges, i, end)) && passesWindow(view, edges, i) && isShown(i)) places.push(i)
  }
  paintArrows(ctx, view, edges, places, look)
}

// When the spans of a hit start and end. What stands for several spans has arrows anywhere within.
function endsOf({store}, {row, index, first = index, last = index}) {
  const spans = store.row(row), {start, end, place, length} = spans
  if (!(last < length)) return null
  const isOne = first === last && spans.countAt(first) === 1
  return {row, place: isOne ? place[first] : -1, startFrom: start[first], startTo: isOne ? start[first] : end[last], endFrom: isOne ? end[first] : start[first], endTo: end[last]}
}

const isOwnEdge = ({row0, row1, x0, x1, place0, place1}, i, {row, place, startFrom, startTo, endFrom, endTo}) =>
  row0[i] === row && x0[i] >= endFrom && x0[i] <= endTo && isPlaceOf(place, place0[i]) ||
  row1[i] === row && x1[i] >= startFrom && x1[i] <= startTo && isPlaceOf(place, place1[i])

const isPlaceOf = (place, known) => place < 0 || known < 0 || place === known

// Whether anything of an arrow may be in view.
function passesWindow(view, {x0, x1, row0, row1}, i) {
  if (Math.max(x0[i], x1[i]) < view.x0 || Math.min(x0[i], x1[i]) > view.x1) return false
  const source = view.tables.rows[row0[i]], target = view.tables.rows[row1[i]]
  if (!arePlaced(view, row0[i], row1[i])) return false
  return view.isSeen({top: Math.min(source.top, target.top), bottom: Math.max(source.bottom, target.bottom)})
}

// Whether rows are known, and their lanes not hidden.
const arePlaced = ({tables: {rows}}, ...codes) => codes.every(code => rows[code]?.top >= 0)

// Arrows of which at least one end is in view. What only passes by would bury the bars.
function edgesInView(view, edges) {
  const {rows} = view.tables, {x0, x1, row0, row1} = edges, places = []
  const isSeen = new Uint8Array(rows.length)
  for (const lane of view.visibleLanes()) for (const row of view.laneRows[lane]) isSeen[row] = view.isSeen(rows[row])
  let total = 0
  for (let i = 0; i < edges.length; i++) {
    const isSource = isSeen[row0[i]] && x0[i] >= view.x0 && x0[i] <= view.x1
    if (!isSource && !(isSeen[row1[i]] && x1[i] >= view.x0 && x1[i] <= view.x1)) continue
    if (row0[i] === row1[i] || !arePlaced(view, row0[i], row1[i]) || !isEdgeShown(view.store, edges, i)) continue
    if (edges.told[i] && !view.store.filter) continue // Beside the one between the work in them, which a filter may hide.
    if (++total <= FEW_EDGES) places.push(i)
  }
  return {places: total > FEW_EDGES ? [] : places, total}
}

// Whether the spans at both ends are shown; looked up once for each state of the store.
function isEdgeShown(store, edges, i) {
  if (!store.filter) return true
  if (edges.shownVersion !== store.version) Object.assign(edges, {shown: new Map(), shownVersion: store.version})
  if (!edges.shown.has(i)) {
    const {row0, row1, x0, x1, place0, place1} = edges, source = spanEndingAt(store.row(row0[i]), x0[i], place0[i])
    edges.shown.set(i, source >= 0 && spanStartingAt(store.row(row1[i]), x1[i], place1[i]) >= 0)
  }
  return edges.shown.get(i)
}

function paintArrows(ctx, view, edges, places, {colour, width, dash = []}) {
  if (!places.length) return
  clipLanes(ctx, view, view.frame.left, () => {
    ctx.strokeStyle = ctx.fillStyle = colour
    ctx.lineWidth = width
    const lines = new Path2D(), heads = new Path2D()
    for (const place of places) addArrow(lines, heads, view, edges, place)
    ctx.setLineDash(dash)
    ctx.stroke(lines)
    ctx.fill(heads)
  })
}

function addArrow(lines, heads, view, edges, place) {
  const source = view.tables.rows[edges.row0[place]], target = view.tables.rows[edges.row1[place]]
  if (edges.row0[place] === edges.row1[place]) return
  const isDown = source.top <= target.top, way = isDown ? 1 : -1
  const y0 = view.yAt(isDown ? source.bottom : source.top), y1 = view.yAt(isDown ? target.top : target.bottom)
  const [x0, x1] = [edges.x0[place], headTime(view.store, edges, place)].map(time => nearPx(view, view.pxAt(time)))
  lines.moveTo(x0, y0)
  lines.lineTo(x1, y1)
  // Half a head: its tip is where the line ends, and heads of opposite ways lie on opposite sides of their lines.
  heads.moveTo(x1, y1)
  heads.lineTo(x1 - way * ARROW_PX, y1 - way * ARROW_PX)
  heads.lineTo(x1, y1 - way * ARROW_PX)
  heads.closePath()
}

// Where an arrow ends. A range that was told to wait after it had begun waited within, where what it waited for ended.
export function headTime(store, {row1, x0, x1, place1}, i) {
  if (x1[i] >= x0[i]) return x1[i]
  const row = store.row(row1[i]), index = spanStartingAt(row, x1[i], place1[i])
  return index < 0 ? x1[i] : Math.min(x0[i], row.end[index])
}

// Far outside, coordinates would be too large for a canvas.
export const nearPx = (view, px) => Math.max(-5000, Math.min(view.frame.right + 5000, px))
