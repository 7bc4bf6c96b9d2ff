// What is marked with a sign: what draw/_why.py found, with its spans found in the store; notes.

import { viewTime } from "./address.js"
import { formatNs } from "./units.js"

const SIGNS = { hazard: "!", stray: "S", wait: "W", dropped: "D", note: "N" } // Others are numbered.

/** Whether a program is wrong there, not only slow: that comes first. */
export const isFault = ({ kind }) => kind === "hazard" || kind === "stray"

/**
 * All findings, and notes as such, in whose `pieces` spans are hits, null where hidden or not there.
 *
 * A piece is {number, place, kind, sign, lane, since, start, end, late, other, call, text, fix}: `number` of its finding from 1,
 * `place` in it; `lane` is -1 where it is of none.
 */
export function reasonsOf(view) {
  const { why, store, tables, notes } = view
  const key = `${store.version} ${tables.zero_ns} ${tables.lanes.length} ${tables.rows.length}`
  if (view.found?.key !== key || view.found.why !== why || view.found.notes !== notes) view.found = { key, why, notes, reasons: findReasons(view) }
  return view.found.reasons
}

function findReasons(view) {
  const { tables } = view, why = view.why ?? { lanes: [], zero_ns: tables.zero_ns, findings: [], marks: [], gaps: [] }
  // A live view may have other lanes and another zero than what was explained.
  const lanes = why.lanes.map(([name, host]) => tables.lanes.findIndex(lane => lane.name === name && lane.host === host))
  const moved = Number(BigInt(why.zero_ns) - BigInt(tables.zero_ns))
  const find = span => span ? findSpan(view, lanes[span[0]], span[1] + moved, span[3]) : null
  const told = [...why.marks.filter(isFault), ...why.findings, ...why.marks.filter(mark => !isFault(mark))].map(({ pieces, ...finding }) => ({
    ...finding,
    pieces: pieces.map(({ late, other, call, since, text, fix }) => ({
      lane: lanes[late[0]] ?? -1, since: since + moved, start: late[1] + moved, end: late[2] + moved,
      late: find(late), other: find(other), call: find(call), text, fix,
    })),
  }))
  const findings = [...told, ...view.notes.map(note => noteFinding(view, note))]
  let causeCount = 0
  findings.forEach((finding, at) => {
    finding.number = at + 1
    finding.sign = SIGNS[finding.kind] ?? String(++causeCount)
    finding.pieces.forEach((piece, place) => Object.assign(piece, { number: at + 1, place, kind: finding.kind, sign: finding.sign, folds: finding.folds }))
  })
  // The longest piece of each finding comes first: it is the one that has a sign in any case. Faults stand next to their work.
  const order = piece => 2 * Boolean(piece.place) + !isFault(piece)
  const pieces = findings.flatMap(finding => finding.pieces).sort((a, b) => order(a) - order(b))
  const gapWords = new Map(why.gaps.map(([lane, end, kind]) => [`${lanes[lane]} ${end + moved}`, why.gap_words[kind]]))
  return { findings, pieces, gapWords }
}

function noteFinding(view, note) {
  const start = viewTime(view, note.time), end = note.end === null ? start : viewTime(view, note.end)
  const when = end > start ? `${formatNs(start)} to ${formatNs(end)}` : formatNs(start)
  const text = note.stream === null ? when : `${when}, ${note.stream}`
  const lane = view.tables.lanes.findIndex(({ name }) => name === note.stream)
  return { kind: "note", head: note.text, code: "", gain: "", lines: [], folds: false, count: 1, note, pieces: [{ lane, since: start, start, end, late: null, other: null, call: null, text, fix: "" }] }
}

/** The span of a lane with this number, which started then. */
function findSpan({ store, laneRows }, lane, start, number) {
  for (const row of laneRows[lane] ?? []) {
    const index = store.indexOf(row, start, number)
    if (index >= 0) return { row, index }
  }
  return null
}

/** Whether all is known that can be told: a live view tells of hazards alone where nobody has asked. */
export const isTold = ({ why }) => Boolean(why) && !why.is_partial

/** The piece that is shown, or null. */
export function shownPiece(view) {
  const { reason } = view
  return reason ? reasonsOf(view).findings[reason.number - 1]?.pieces[reason.place] ?? null : null
}

/** Light all places of a finding; the picture moves only where none of them is in sight. */
export function choosePieces(view, pieces) {
  view.set("pinned", null)
  view.set("reason", { number: pieces[0].number, place: 0 })
  if (!pieces.some(({ start, end }) => start <= view.x1 && end >= view.x0)) view.fit()
}

/** Show a piece and the work in front of it: both outlined, the gap between them marked. */
export function showPiece(view, { number, place, lane, since, start, end, late, other }) {
  if (late) view.show(late.row, late.index)
  else view.set("pinned", null)
  view.set("reason", { number, place, isShown: true })
  const [lateEnd, otherStart, otherEnd] = [endOf(view, late) ?? end, startOf(view, other) ?? since, endOf(view, other) ?? start]
  // Long work is cut, so that the gap stays in sight.
  const far = 3 * (start - since || lateEnd - start)
  const from = Math.max(Math.min(since, otherStart), since - far), to = Math.min(Math.max(lateEnd, otherEnd), start + far)
  const rim = 0.05 * (to - from) || (view.x1 - view.x0) / 2 // Of a moment the window stays as wide as it is.
  view.setRange(from - rim, to + rim)
  if (lane >= 0 && (other || !late)) scrollToBoth(view, lane, other ? view.tables.rows[other.row].lane : lane)
}

const startOf = ({ store }, hit) => hit ? store.row(hit.row).start[hit.index] : null
const endOf = ({ store }, hit) => hit ? store.row(hit.row).end[hit.index] : null

function scrollToBoth(view, ...codes) {
  const lanes = codes.map(code => view.tables.lanes[code]), { headPx } = view.parts
  const top = Math.min(...lanes.map(lane => lane.top)) - headPx, bottom = Math.max(...lanes.map(lane => lane.bottom))
  if (bottom - top <= view.lanesPx) view.scrollTo((top + bottom - view.lanesPx) / 2)
}
