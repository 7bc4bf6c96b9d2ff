// Where lanes stand: what Python planned, in the groups and the order that were chosen here.

const FOLDED_PX = 16
const LAYER_GAP_PX = 1 // Above the memory of a lane, as in draw/_scene.py.
const AWAY_PX = -1e5 // Where lanes are that are not shown.

/** What can be chosen of the lanes; lanes and groups by their keys, which stay the same when the trace is drawn again. */
export const firstLayout = () => ({ memory: false, idle: false, folded: new Set(), hidden: new Set() })

export const laneKey = ({ name, host }) => host ? `host ${name}` : name
export const groupKey = ({ label }) => `group ${label.split(" · ")[0]}`

/**
 * Lay the lanes out: `tables` with places of their own, and `order` (codes of the shown lanes from the top). `hasSpans` tells of a lane whether anything ran on it. The line for lanes without work, where there are any, is `tables.idle`.
 */
export function layOut(planned, layout, hasSpans) {
  const { head_px: headPx, idle_px: idlePx } = planned
  const places = placesFromTop(planned), groups = groupLanes(planned, places.keys()), keys = planned.lanes.map(laneKey)
  const isIn = set => code => layout[set].has(keys[code]), isFolded = isIn("folded")
  // Memory is folded until it is asked for, and so is a lane that has nothing else: it is no stream at work.
  const isMemory = ([label]) => label === "memory", isShown = part => layout.memory || !isMemory(part)
  const isIdle = code => planned.lanes[code].parts.length ? !planned.lanes[code].parts.some(isShown) : !planned.lanes[code].host && !hasSpans(code)
  const isCounted = code => planned.lanes[code].counted // the card's rows show its counters
  const isAway = code => isCounted(code) || isIn("hidden")(code) || !layout.idle && isIdle(code)
  for (const group of groups) {
    group.isFolded = Boolean(group.label) && layout.folded.has(groupKey(group))
    group.loose = group.lanes.filter(code => !isAway(code))
    group.shown = group.isFolded ? [] : group.loose
  }
  // A partition on which nothing ran is still one.
  const headed = groups.filter(group => group.label && (group.loose.length || group.letter && group.lanes.every(isIdle)))
  const order = groups.flatMap(group => group.shown)
  const memoryPx = ({ parts }) => parts.filter(isMemory).reduce((sum, [, top, bottom]) => sum + bottom - top + LAYER_GAP_PX, 0)
  const high = code => {
    const lane = planned.lanes[code]
    return isFolded(code) ? FOLDED_PX : Math.max(lane.bottom - lane.top - (layout.memory ? 0 : memoryPx(lane)), FOLDED_PX)
  }
  const lanes = planned.lanes.map((lane, code) => ({ ...lane, place: places.get(code), top: AWAY_PX, bottom: AWAY_PX, parts: [], group: -1 }))
  let y = headPx
  const put = (code, group) => {
    const lane = lanes[code]
    Object.assign(lane, { group, folded: isFolded(code), top: y, bottom: y += high(code) })
    if (!lane.folded) lane.parts = planned.lanes[code].parts.filter(isShown).map(([label, ...borders]) => [label, ...borders.map(px => moved(code, px))])
  }
  const moved = (code, px) => lanes[code].top + px - planned.lanes[code].top
  const stripIn = ({ lane, ...strip }) =>
    bordersIn(layout.memory ? lanes[lane] : { folded: true }, px => moved(lane, px), strip)
  headed.forEach((group, place) => { group.place = place })
  const boxes = []
  for (const group of groups) {
    const top = y
    if (headed.includes(group)) y += group.head_bottom - group.top
    const headBottom = y
    for (const code of group.shown) put(code, group.place ?? -1)
    if (headed.includes(group)) boxes.push(boxOf(group, { top, head_bottom: headBottom, bottom: y }))
  }
  const count = layout.idle ? 0 : [...places.keys()].filter(code => isIdle(code) && !isCounted(code) && !isIn("hidden")(code)).length
  const idle = count ? { top: y, bottom: y += idlePx, text: `${count} stream${count === 1 ? "" : "s"} without work` } : null
  const tables = { ...planned, lanes, groups: boxes, rows: placeRows(planned, lanes, moved), height_px: y, idle }
  if (planned.memory) tables.memory = planned.memory.map(strip => ({ ...strip, ...stripIn(strip) }))
  return { tables, order }
}

function boxOf({ label, detail, fill, hatch, letter, loose, isFolded }, borders) {
  const count = `${loose.length} lane${loose.length === 1 ? "" : "s"} folded`, said = isFolded ? count : loose.length ? "" : "no work"
  return { label, fill, hatch, letter, isFolded, ...borders, detail: [said, detail].filter(Boolean).join(" · ") }
}

/** Rows go with their lane. A folded lane is one line: of its work, or of its ranges where it has no work. */
function placeRows(planned, lanes, moved) {
  const works = new Set(planned.rows.filter(row => !row.pale && row.bottom > row.top).map(row => row.lane))
  return planned.rows.map(row => {
    const lane = lanes[row.lane]
    if (!lane.folded) return { ...row, ...bordersIn(lane, px => moved(row.lane, px), row) }
    return row.pale && works.has(row.lane) ? { ...row, top: AWAY_PX, bottom: AWAY_PX } : { ...row, top: lane.top + 2, bottom: lane.bottom - 2 }
  })
}

const bordersIn = (lane, moved, { top, bottom }) =>
  lane.top === AWAY_PX || lane.folded ? { top: AWAY_PX, bottom: AWAY_PX } : { top: moved(top), bottom: moved(bottom) }

/** By code, the places of the lanes in Python's plan, from the top; they tell hues too: so no neighbours have the same. */
const placesFromTop = ({ lanes }) => new Map([...lanes.keys()].sort((a, b) => lanes[a].top - lanes[b].top).map((code, place) => [code, place]))

/** The groups from the top, each with its lanes in their order; threads of the host are the last. */
function groupLanes(planned, codes) {
  const groups = new Map()
  for (const code of codes) {
    const group = planned.groups[planned.lanes[code].group], key = group?.label ?? ""
    if (!groups.has(key)) groups.set(key, { ...group, lanes: [] })
    groups.get(key).lanes.push(code)
  }
  return [...groups.values()]
}

export const hasDevices = ({ lanes }) => new Set(lanes.filter(lane => !lane.host).map(lane => lane.device)).size > 1
