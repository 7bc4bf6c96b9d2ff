// What a search found, marked so that it stands out at every zoom: a line under each bar and each merged bin, ticks in the overview.

const HIT_PX = 3
const LEAST_PX = 5 // A hit of a px among a thousand spans is seen all the same.

/** Underline the bars that match, and the bins that hold a match. */
export function paintHits(ctx, { view, items, ratio, theme }, segments, { x, w }) {
  if (!view.matches) return
  const least = Math.round(LEAST_PX * ratio), high = Math.round(HIT_PX * ratio)
  ctx.setTransform(1, 0, 0, 1, 0, 0)
  ctx.fillStyle = theme.accent
  for (const { row, from, to, bottom } of segments) {
    const top = Math.round(bottom * ratio) - high
    for (let i = from; i < to; i++) {
      if (!view.store.matchCount(row, items.first[i], items.last[i])) continue
      const wide = Math.max(least, w[i] - 1)
      ctx.fillRect(Math.round(x[i] + (w[i] - wide) / 2), top, wide, high)
    }
  }
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0)
}

/** Mark in the overview where hits begin: `pxAt` and `timeAt` say which px is which time. */
export function paintHitTicks(ctx, map, bottom) {
  const { view, viewer, left, width } = map
  if (!view.matches) return
  const ticks = new Set()
  for (const { code } of view.store.rows) {
    const row = view.store.row(code)
    // One search a px at most, however many hits there are.
    for (let index = row.nextMatch(0, view.matches); index < row.length;) {
      const px = Math.floor(map.pxAt(row.start[index]))
      ticks.add(px)
      index = row.nextMatch(Math.max(index + 1, row.firstFrom(map.timeAt(px + 1))), view.matches)
    }
  }
  const shown = [...ticks].filter(px => px >= left && px < left + width)
  // On paper of their own: what is busy behind them is of nearly the same colour.
  for (const [colour, wide] of [[viewer.theme.paper, 4], [viewer.theme.accent, 2]]) {
    ctx.fillStyle = colour
    for (const px of shown) ctx.fillRect(px - wide / 2, bottom - 10, wide, 10)
  }
}
