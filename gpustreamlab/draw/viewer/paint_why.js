// Signs in the picture: of causes of late work, hazards, strays, waits of the host, notes; and what is shown of the one that was chosen.

import { clipTo, setPen } from "./brush.js"
import { outline, paintPill, tint } from "./paint_overlay.js"
import { formatNs } from "./units.js"
import { reasonsOf, shownPiece } from "./why.js"

const SIGN_PX = 8.5, SMALL_SIGN_PX = 6.5
const NARROW_PX = 420 // Signs are small in a picture that is no wider, and stand on the upper edge of their row: else they hide bars.
const SIGN_STEP_PX = 2 * SIGN_PX + 2
const COUNTED_STEP_PX = 1.5 * SIGN_STEP_PX
const COLOURS = { hazard: "stray", stray: "stray", note: "accent" } // Others are warnings.
const FEW_SIGNS = 8 // So many leave the bars in sight.
const MOST_ASIDE = 4 // So many signs may stand beside each other where pieces begin together.

/**
 * The signs in view, as {piece, x, y, px, more}: the longest piece of each finding, and others where there is room, and they are few
 * or their finding is the chosen one. A sign stands for `more` pieces: of its finding, or such as have no room beside it.
 */
function signsIn(view) {
  const { left, right } = view.frame, told = new Map() // By finding: its sign.
  const taken = new Map([-1, ...view.visibleLanes()].map(lane => [lane, []])), signs = []
  const isNarrow = right - left <= NARROW_PX
  const isIn = ({ number, folds, lane, kind, start, end }) =>
    (!folds || number === view.reason?.number) && taken.has(lane) && view.pxAt(kind === "note" ? end : start) >= left && view.pxAt(start) <= right + SIGN_PX
  const pieces = reasonsOf(view).pieces.filter(isIn)
  for (const piece of pieces) {
    const own = pieces.length > FEW_SIGNS && piece.number !== view.reason?.number ? told.get(piece.number) : null
    if (own) {
      own.more += 1
      continue
    }
    const begin = view.pxAt(piece.start), places = taken.get(piece.lane)
    const { top, bottom } = (piece.late ? view.tables.rows[piece.late.row] : view.tables.lanes[piece.lane]) ?? {}
    const x = freePlace(places, Math.max(left, begin - SIGN_PX - 1), left, !piece.place)
    if (x === null) {
      const near = other => Math.abs(other.x - begin + SIGN_PX + 1)
      places.reduce((best, other) => near(other) < near(best) ? other : best).more += 1
      continue
    }
    // A note stands above what it is about; what is of no lane stands above all, wherever they are scrolled to.
    const y = piece.lane < 0 ? view.frame.top + SIGN_PX + 2 : piece.kind === "note" ? view.yAt(top) + SIGN_PX : view.yAt(isNarrow ? top : (top + bottom) / 2)
    if (piece.lane >= 0 && view.isUnderFold(x, y)) continue
    const sign = { piece, x, y, px: isNarrow ? SMALL_SIGN_PX : SIGN_PX, more: 0 }
    places.push(sign)
    signs.push(sign)
    told.set(piece.number, sign)
  }
  return signs
}

/** The longest piece of a finding may stand aside, but not on names; others need room for a count as well. */
function freePlace(places, from, least, isLongest) {
  const leastPx = isLongest ? SIGN_STEP_PX : COUNTED_STEP_PX
  const isFree = x => places.every(other => Math.abs(other.x - x) >= leastPx)
  const aside = Array.from({ length: isLongest ? MOST_ASIDE : 1 }, (_, step) => from - step * SIGN_STEP_PX)
  return aside.find(x => isFree(x) && x >= least) ?? null
}

export function paintSigns(ctx, { view, theme }) {
  const signs = signsIn(view)
  paintEach(ctx, view, theme, signs.filter(({ piece }) => piece.lane < 0))
  clipTo(ctx, 0, view.lanesTop() - SMALL_SIGN_PX, view.frame.right, view.lanesBottom(), () => paintEach(ctx, view, theme, signs.filter(({ piece }) => piece.lane >= 0))) // Those on the edge of the first row are whole.
}

function paintEach(ctx, view, theme, signs) {
  for (const { piece: { sign, place, kind, lane, start, end }, x, y, px, more } of signs) {
    const colour = theme[COLOURS[kind] ?? "warn"]
    if (kind === "note") { // A flag: its pole stands at its time, or it reaches to its end.
      const at = Math.max(view.frame.left, view.pxAt(start))
      ctx.fillStyle = colour
      ctx.fillRect(at - 1, y - SIGN_PX, 1.5, lane < 0 ? view.lanesPx - SIGN_PX / 2 : 2 * SIGN_PX)
      ctx.fillRect(at, y - SIGN_PX, Math.max(0, Math.min(view.pxAt(end), view.frame.right) - at), 2)
    }
    paintDisc(ctx, x, y, px + 1.5, theme.paper)
    paintDisc(ctx, x, y, px, colour)
    if (place) paintDisc(ctx, x, y, px - 1.5, theme.paper) // Hollow: not the longest of its finding.
    setPen(ctx, place ? colour : theme.paper, sign.length > 1 ? px + 1.5 : px + 2.5, "center", "bold")
    ctx.fillText(sign, x, y + 0.5)
    if (more) paintCount(ctx, more > 999 ? "999+" : `+${more}`, { x, y, px }, view.frame.right, { fill: colour, ground: theme.paper })
  }
}

/** How many more pieces a sign stands for: above it, so that no name is covered; beside a small one, which stands on its row's edge, or below. */
function paintCount(ctx, text, { x, y, px }, right, { fill, ground }) {
  setPen(ctx, ground, 10, "left", "bold")
  const width = ctx.measureText(text).width + 2, isSmall = px < SIGN_PX, beside = x + px + 1.5
  const left = Math.min(isSmall ? beside : x - width / 2, right - width), middle = !isSmall ? y - px - 4 : left < beside ? y + px + 6 : y
  ctx.fillRect(left, middle - 5, width, 10) // A bar behind it may have a colour near its own.
  ctx.fillStyle = fill
  ctx.fillText(text, left + 1, middle)
}

function paintDisc(ctx, x, y, radius, colour) {
  ctx.beginPath()
  ctx.arc(x, y, radius, 0, 2 * Math.PI)
  ctx.fillStyle = colour
  ctx.fill()
}

/** The sign at a place of the figure, or null. */
export function signAt(view, px, py) {
  if (py < view.frame.top || py >= view.lanesBottom()) return null
  return signsIn(view).find(({ x, y }) => Math.hypot(px - x, py - y) <= SIGN_PX + 1.5) ?? null
}

/** The gap that was clicked; or the chosen piece: since when its stream was idle, the work in front, the call that proves it. */
export function paintWhy(ctx, painter) {
  const { view, theme } = painter, piece = shownPiece(view)
  if (view.gap) paintGap(ctx, painter, view.gap, theme.accent)
  if (!piece) return
  for (const { late } of reasonsOf(view).findings[piece.number - 1].pieces) outline(ctx, view, late, theme[COLOURS[piece.kind] ?? "warn"], theme.paper)
  if (piece.since < piece.start) paintGap(ctx, painter, { lane: piece.lane, start: piece.since, end: piece.start }, theme.warn)
  for (const hit of [piece.other, piece.call]) outline(ctx, view, hit, theme.warn, theme.paper)
}

function paintGap(ctx, painter, { lane, start, end }, colour) {
  const { view, theme } = painter, { top, bottom } = view.tables.lanes[lane], text = `idle ${formatNs(end - start)}`
  tint(ctx, view, start, end, [lane], colour, view.yAt(top), bottom - top, (left, right) => {
    setPen(ctx, colour, 12, "center", "bold")
    if (painter.texts.width(ctx, text) + 2 * SIGN_STEP_PX > right - left) return // No room beside the sign.
    paintPill(ctx, painter, text, (left + right) / 2, view.yAt((top + bottom) / 2), { fill: colour, ink: theme.paper, isBold: true })
  })
}
