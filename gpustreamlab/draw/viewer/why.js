// Why work did not overlap: what draw/_why.py says, with its spans found in the store.

/**
 * The reasons that are known, or null: those of `view.why`, in whose `pieces` spans are hits, null where hidden or not there.
 *
 * A piece is {number, place, lane, since, start, late, other, call, text, fix}: `number` of its finding from 1, `place` in it.
 */
export function reasonsOf(view) {
  const { why, store, tables } = view
  if (!why) return null
  const key = `${store.version} ${tables.zero_ns} ${tables.lanes.length} ${tables.rows.length}`
  if (view.found?.key !== key || view.found.why !== why) view.found = { key, why, reasons: findReasons(view) }
  return view.found.reasons
}

function findReasons(view) {
  const { why, tables } = view
  // A live view may have other lanes and another zero than what was explained.
  const lanes = why.lanes.map(([name, host]) => tables.lanes.findIndex(lane => lane.name === name && lane.host === host))
  const moved = Number(BigInt(why.zero_ns) - BigInt(tables.zero_ns))
  const find = span => span ? findSpan(view, lanes[span[0]], span[1] + moved, span[2] + moved) : null
  const findings = why.findings.map(({ head, count, pieces }, at) => ({
    head, count, number: at + 1,
    pieces: pieces.map(({ late, other, call, since, text, fix }, place) => ({
      number: at + 1, place, lane: lanes[late[0]], since: since + moved, start: late[1] + moved,
      late: find(late), other: find(other), call: find(call), text, fix,
    })),
  }))
  // The longest piece of each finding comes first: it is the one that has a sign in any case.
  const pieces = findings.flatMap(finding => finding.pieces).sort((a, b) => Boolean(a.place) - Boolean(b.place))
  const gapWords = new Map(why.gaps.map(([lane, end, kind]) => [`${lanes[lane]} ${end + moved}`, why.gap_words[kind]]))
  return { findings, pieces, gapWords }
}

/** The span of a lane with these times; work before the range around it. */
function findSpan({ store, tables, laneRows }, lane, start, end) {
  let best = null
  for (const code of laneRows[lane] ?? []) {
    const row = store.row(code)
    for (let index = row.length ? row.firstFrom(start) : 0; index < row.length && row.start[index] === start; index++) {
      if (row.end[index] !== end) continue
      if (tables.kind_counted[row.kind[index]]) return { row: code, index }
      best ??= { row: code, index }
    }
  }
  return best
}

/** The piece that is shown, or null. */
export function shownPiece(view) {
  const { reason } = view
  return reason ? reasonsOf(view)?.findings[reason.number - 1]?.pieces[reason.place] ?? null : null
}

/** Show a piece and the work in front of it: both outlined, the gap between them marked. */
export function showPiece(view, { number, place, lane, since, start, late, other }) {
  if (late) view.show(late.row, late.index)
  else view.set("pinned", null)
  view.set("reason", { number, place })
  const [lateEnd, otherStart, otherEnd] = [endOf(view, late) ?? start, startOf(view, other) ?? since, endOf(view, other) ?? start]
  // Long work is cut, so that the gap stays in sight.
  const far = 3 * (start - since || lateEnd - start)
  const from = Math.max(Math.min(since, otherStart), since - far), to = Math.min(Math.max(lateEnd, otherEnd), start + far)
  view.setRange(from - 0.05 * (to - from), to + 0.05 * (to - from))
  if (other) scrollToBoth(view, lane, view.tables.rows[other.row].lane)
}

const startOf = ({ store }, hit) => hit ? store.row(hit.row).start[hit.index] : null
const endOf = ({ store }, hit) => hit ? store.row(hit.row).end[hit.index] : null

function scrollToBoth(view, ...codes) {
  const lanes = codes.map(code => view.tables.lanes[code]), { headPx } = view.parts
  const top = Math.min(...lanes.map(lane => lane.top)) - headPx, bottom = Math.max(...lanes.map(lane => lane.bottom))
  if (bottom - top <= view.lanesPx) view.scrollTo((top + bottom - view.lanesPx) / 2)
}
