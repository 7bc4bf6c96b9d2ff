// What is in view, and what is marked in it. Everything that the viewer's parts share goes through here; it knows no Bokeh.

import { firstLayout, groupKey, laneKey, layOut } from "./layout.js"

const LANES_MAX_PX = 520 // Lanes that are higher scroll within, until it is known how much room there is.
const LANES_MIN_PX = 60 // Below the card.
const LANES_GAP_PX = 6 // Between the lanes and the strip below them.
const CAPTURE_STRIP_PX = 12
const NO_HEAD = { card_rows: [], head_px: 0, idle_px: 18 } // Of tables without a card.
export const MIN_WINDOW_NS = 10
const EMPTY_WINDOW_NS = 1e6 // What a session in which nothing ran yet shows.
const FOLD_PX = [280, 32]
const HIT_PX = 3 // How far a pointer may be off.
export const FILTER_KEYS = new Set(["hiddenNames", "hiddenKinds", "hiddenPartitions", "hiddenStreams"])
const STATE_KEYS = new Set(["isLive", "isFollowing", "isPaused"])

// Where the parts of the figure are, in px from the top of its frame.
function planParts(tables, roomPx) {
  const stripPx = tables.capture?.shown ? LANES_GAP_PX + CAPTURE_STRIP_PX : 0, headPx = tables.head_px
  const lanesPx = Math.max(headPx + LANES_MIN_PX, Math.min(roomPx - stripPx, Math.round(tables.height_px)))
  const capture = stripPx ? {top: lanesPx + LANES_GAP_PX, bottom: lanesPx + stripPx} : null
  return {lanesPx, headPx, capture, innerPx: lanesPx + stripPx}
}

export class View {
  constructor(tables, store) {
    this.store = store
    this.listeners = new Map()
    this.frame = {left: 0, top: 0, right: 1, bottom: 1}
    this.scrollPx = 0
    this.layout = firstLayout()
    this.roomPx = LANES_MAX_PX // Of the card, the lanes and the strip.
    this.lane = null // Whose name was chosen: keys mean it.
    for (const group of FILTER_KEYS) this[group] = new Set() // Codes of what is not shown; of streams those of their lanes.
    this.matches = this.selection = this.pinned = this.hovered = null
    this.gap = this.reason = null // The gap that was clicked; the piece of a finding that is shown.
    this.why = tables.why ?? null // Live: null until it was asked for.
    this.lit = null // The piece of the run's time whose places are lit.
    this.notes = [] // What the reader wrote, as {time, end, stream, text}: times of the trace, end and stream may be null.
    this.found = null // Spans of both, see reasonsOf.
    this.strayCount = 0 // Work that left its stream, as the legend counted last.
    this.showsWaits = true // Arrows between spans.
    this.colour = null // What colour tells; null: partitions, or streams where there are none.
    this.isLive = this.isFollowing = this.isPaused = this.hasHatches = false
    this.nowNs = 0 // Live: the session's clock, where it is later than the last span.
    this.openWork = [] // Live, of each lane: its code, the name of the first range that has not ended, since when, and how many.
    this.painted = null // The items of the last paint.
    this.kept = new Map() // What a link to this view, and a saved notebook, keep: by key how it is read and set.
    this.adoptTables(tables)
    this.fit()
  }

  adoptTables(told) {
    const planned = this.planned = {...NO_HEAD, ...told}
    this.laneRows = planned.lanes.map(() => [])
    planned.rows.forEach((row, code) => this.laneRows[row.lane].push(code))
    const {tables, order} = layOut(planned, this.layout, code => this.hasSpans(code))
    Object.assign(this, {tables, laneOrder: order})
    this.parts = planParts(tables, this.roomPx) // Marks and the card stay above lanes that scroll.
    this.lanesPx = this.parts.lanesPx
    this.scrollPx = this.clampScroll(this.scrollPx)
  }

  // Lay the lanes out anew, after a change of what was chosen or of the room.
  arrange(changes) {
    Object.assign(this.layout, changes)
    this.adoptTables(this.planned)
    this.emit("data", "tables")
  }

  // Put a key into one of the layout's sets, or take it out.
  setIn(set, key, isIn) {
    const keys = new Set(this.layout[set])
    keys[isIn ? "add" : "delete"](key)
    this.arrange({[set]: keys})
  }

  setRoom(roomPx) {
    if (this.roomPx === roomPx) return
    const {lanesPx, pinned} = this
    this.roomPx = roomPx
    this.adoptTables(this.planned)
    if (pinned && this.lanesPx < lanesPx && this.tables.rows[pinned.row].bottom - this.scrollPx > this.lanesPx) this.scrollToRow(pinned.row)
    if (this.lanesPx !== lanesPx) this.emit("data", "tables")
  }

  // Show a lane that is hidden, or whose group is folded.
  reveal(code) {
    const lane = this.planned.lanes[code]
    if (this.layout.hidden.has(laneKey(lane))) this.setIn("hidden", laneKey(lane), false)
    if (!this.laneOrder.includes(code)) for (const group of this.tables.groups.filter(one => one.isFolded)) this.setIn("folded", groupKey(group), false)
  }

  // Keep a part of the view: `read` returns a JSON value, null where it is as at first; `write` takes what `read` returned.
  keep(key, read, write) { this.kept.set(key, {read, write}) }

  on(event, listener) {
    if (!this.listeners.has(event)) this.listeners.set(event, new Set())
    this.listeners.get(event).add(listener)
  }

  emit(event, detail) {
    for (const listener of [...(this.listeners.get(event) || [])]) listener(detail)
  }

  // From the first start to the last end, with a margin.
  fullRange() {
    const {start, end} = this.extent()
    const width = end - start || EMPTY_WINDOW_NS
    return {start: start - 0.01 * width, end: start + 1.01 * width}
  }

  extent() {
    const has = this.store.length > 0
    const start = has ? Math.min(0, this.store.firstNs) : 0
    return {start, end: Math.max(this.tables.extent_ns, has ? this.store.lastNs : 0, this.nowNs, start)}
  }

  // From the first start to the last end on any stream: what threads of the host called before and after is no work.
  streamExtent() {
    const rows = this.usedStreams().flatMap(lane => this.laneRows[lane]).map(code => this.store.ownRow(code)).filter(row => row.length)
    if (!rows.length) return this.extent()
    return {start: Math.min(...rows.map(row => row.start[0])), end: Math.max(...rows.map(row => row.lastEnd()))}
  }

  // Whether anything ran, or has begun, on a lane.
  hasSpans(lane) { return this.laneRows[lane].some(code => this.store.ownRow(code)?.length) || this.openWork.some(([open]) => open === lane) }

  // Codes of the streams on which anything ran.
  usedStreams() { return this.laneOrder.filter(lane => !this.tables.lanes[lane].host && this.hasSpans(lane)) }

  // How far a window may reach.
  bounds() {
    const {start, end} = this.extent(), full = end - start || EMPTY_WINDOW_NS
    return {low: start - 0.1 * full, high: start + 1.1 * full}
  }

  // A window that is neither too narrow nor outside what there is.
  clampRange(x0, x1) {
    const {low, high} = this.bounds()
    const width = Math.min(high - low, Math.max(MIN_WINDOW_NS, x1 - x0))
    const middle = (x0 + x1) / 2, begin = Math.min(high - width, Math.max(low, width === x1 - x0 ? x0 : middle - width / 2))
    return [begin, begin + width]
  }

  setRange(x0, x1) {
    if (!(x1 > x0) || !Number.isFinite(x1 - x0)) return
    const [begin, end] = this.clampRange(x0, x1)
    if (begin === this.x0 && end === this.x1) return
    this.x0 = begin
    this.x1 = end
    this.emit("range")
  }

  fit() {
    const {start, end} = this.fullRange()
    this.setRange(start, end)
  }

  // With a rim on both sides.
  fitAround(start, end, share = 0.1) {
    const rim = Math.max((end - start) * share, 2)
    this.setRange(start - rim, end + rim)
  }

  // A factor below 1 zooms in.
  zoomBy(factor, atNs = (this.x0 + this.x1) / 2) {
    const width = Math.max(MIN_WINDOW_NS, (this.x1 - this.x0) * factor), share = (atNs - this.x0) / (this.x1 - this.x0)
    this.setRange(atNs - share * width, atNs + (1 - share) * width)
  }

  panBy(fraction) {
    const step = fraction * (this.x1 - this.x0)
    this.setRange(this.x0 + step, this.x1 + step)
  }

  clampScroll(px) { return Math.max(0, Math.min(px, this.tables.height_px - this.lanesPx)) || 0 }

  scrollTo(px) {
    const clamped = this.clampScroll(Math.round(px))
    if (clamped !== this.scrollPx) this.set("scrollPx", clamped)
  }

  // Where it is said how many lanes are shown.
  isUnderFold(x, y) { return this.canScroll && y > this.lanesBottom() - FOLD_PX[1] && x > this.frame.right - FOLD_PX[0] }

  get canScroll() { return this.tables.height_px > this.lanesPx + 0.5 }
  get nsPerPx() { return (this.x1 - this.x0) / Math.max(1, this.frame.right - this.frame.left) }

  timeAt(px) { return this.x0 + (px - this.frame.left) * this.nsPerPx }
  pxAt(ns) { return this.frame.left + (ns - this.x0) / this.nsPerPx }
  lanesTop() { return this.frame.top + this.parts.headPx }
  lanesBottom() { return this.frame.top + this.lanesPx }
  yAt(lanePx) { return this.frame.top + lanePx - this.scrollPx }
  isSeen({top, bottom}) { return bottom > this.scrollPx + this.parts.headPx && top < this.scrollPx + this.lanesPx }

  // Codes of the lanes in view, from the top.
  visibleLanes() { return this.laneOrder.filter(code => this.isSeen(this.tables.lanes[code])) }

  // Whether a place of the figure is within its frame, no more than so many px below its top.
  isOver({x, y}, highPx = this.parts.innerPx) {
    const {left, right, top} = this.frame
    return x >= left && x <= right && y >= top && y < top + highPx
  }

  hitAt(px, py) {
    if (!this.painted || px < this.frame.left - HIT_PX || px > this.frame.right + HIT_PX) return null
    if (py < this.lanesTop() || py >= this.lanesBottom()) return null
    return nearestItem(this.painted, px, py, this)
  }

  // Bring a span into view, as little as needed, and pin it.
  show(row, index) {
    const columns = this.store.row(row), start = columns.start[index], end = columns.end[index], width = this.x1 - this.x0
    const px = (end - start) / this.nsPerPx
    if (end - start > width) this.fitAround(start, end, 0.05)
    else if (px < 4) this.fitAround(start, end, 5.5)
    else if (start < this.x0 || end > this.x1) this.setRange((start + end - width) / 2, (start + end + width) / 2)
    this.reveal(this.tables.rows[row].lane)
    this.scrollToRow(row)
    this.set("pinned", {row, index})
  }

  scrollToRow(row) {
    const {top, bottom} = this.tables.rows[row], headPx = this.parts.headPx + (this.tables.lanes[this.tables.rows[row].lane].group >= 0 ? 20 : 0)
    if (top - this.scrollPx < headPx) this.scrollTo(top - headPx - 8)
    else if (bottom - this.scrollPx > this.lanesPx) this.scrollTo(bottom - this.lanesPx + 12)
  }

  // Set one of the properties that are drawn; the event's detail is its name.
  set(property, value) {
    this[property] = value
    if (FILTER_KEYS.has(property)) this.applyFilter()
    if (property === "matches") this.store.setMatches(value)
    this.emit(STATE_KEYS.has(property) ? "state" : "look", property)
  }

  applyFilter() {
    const {hiddenNames: names, hiddenKinds: kinds, hiddenPartitions: partitions, hiddenStreams: lanes} = this
    this.store.setFilter({names, kinds, partitions, lanes})
    this.hovered = this.pinned = null // Their places in the rows are others now.
  }

  setTables(tables) {
    this.adoptTables(tables)
    this.store.setRows(tables.rows)
    this.emit("data", "tables")
  }

  appended() {
    // A lane on which work begins is no longer folded with those without.
    if (this.tables.idle && this.planned.lanes.some((_, code) => !this.laneOrder.includes(code) && this.hasSpans(code))) {
      const {laneOrder} = this
      this.adoptTables(this.planned)
      if (this.laneOrder.length !== laneOrder.length) this.emit("data", "tables")
    }
    this.emit("data", "spans")
  }
}

// The painted item under a pointer: a span before a merged one, the later painted of two, and at most HIT_PX beside.
function nearestItem(painted, px, py, view) {
  const {items, segments} = painted, at = view.timeAt(px), slackNs = HIT_PX * view.nsPerPx
  let best = null, bestCost = Infinity
  for (const {row, from, to, top, bottom} of segments) {
    if (py < top - 1 || py > bottom + 1) continue
    for (let i = to - 1; i >= from; i--) {
      const offNs = at < items.left[i] ? items.left[i] - at : at > items.right[i] ? at - items.right[i] : 0
      if (offNs > slackNs) continue
      const isMerged = items.first[i] !== items.last[i]
      const cost = offNs / slackNs + (isMerged ? 0.5 : 0)
      // What was painted later lies above: an equal cost in a later row wins, within a row the first found, from its end.
      if (best && best.row === row ? cost < bestCost : cost <= bestCost) { bestCost = cost; best = {row, i, isMerged} }
    }
  }
  if (!best) return null
  const {row, i, isMerged} = best
  return isMerged ? {row, first: items.first[i], last: items.last[i], count: items.count[i]} : {row, index: items.first[i]}
}

/** Let two views of one page follow each other's range. Both count their time from their own first span. */
export function linkRanges(first, second) {
  let isFollowing = false
  const follow = (leader, follower) => leader.on("range", () => {
    // What the follower says of its own move is no new move: one that it had to narrow would narrow the leader as well.
    if (isFollowing) return
    isFollowing = true
    try { follower.setRange(leader.x0, leader.x1) } finally { isFollowing = false }
  })
  follow(first, second)
  follow(second, first)
  second.setRange(first.x0, first.x1)
}
