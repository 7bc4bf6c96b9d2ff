// The lanes' names: what they tell, and what can be done with a lane or a group by mouse, by key and in a sheet of its own.

import { factList } from "./facts.js"
import { groupKey, hasDevices, laneKey } from "./layout.js"
import { announce, closeAbove, commandsOf, figurePoint, listen, makeButton, makeNode, openAbove, partOf, placeSheet, rootOf } from "./nodes.js"
import { CARET_PX, caretLeft, groupBoxes } from "./paint_lanes.js"
import { formatCount } from "./units.js"

const DRAG_PX = 5
const SETS = { folded: ["folded", "open"], pinned: ["pinned at the top", "not pinned any more"], hidden: ["hidden", "shown"] }

/** Fold, pin, hide, move and group lanes. */
export function addLanes(viewer) {
  const { view } = viewer, figure = partOf(viewer, "figure"), commands = commandsOf(viewer)
  const sheet = addSheet(viewer)
  const state = { grip: null }
  const pointOf = event => figurePoint(viewer, { x: event.clientX, y: event.clientY })
  const down = event => {
    const point = pointOf(event), name = nameAt(view, point.x, point.y)
    if (!name || event.button || point.x >= view.frame.left) return
    event.stopImmediatePropagation() // Nothing is pinned or moved.
    state.grip = { ...name, point, isMoving: false }
  }
  const move = event => {
    const { grip } = state, point = pointOf(event)
    if (!grip) return
    if (grip.lane === undefined || event.pointerType === "touch" || Math.abs(point.y - grip.point.y) < DRAG_PX && !grip.isMoving) return
    event.stopImmediatePropagation()
    grip.isMoving = true
    const target = nameAt(view, 0, point.y)?.lane, place = code => view.laneOrder.indexOf(code)
    if (target === undefined || target === grip.lane) return
    // Only past its middle: a high lane that has just been passed may still be under the pointer.
    const { top, bottom } = view.tables.lanes[target], isPast = point.y > (view.yAt(top) + view.yAt(bottom)) / 2
    if (isPast === place(target) > place(grip.lane)) moveTo(viewer, grip.lane, target)
  }
  const up = event => {
    const { grip } = state
    state.grip = null
    if (!grip) return
    event.stopImmediatePropagation()
    if (grip.isMoving) sayPlace(viewer, grip.lane)
    else if (grip.group) change(viewer, "folded", groupKey(grip.group), grip.group.label)
    else if (grip.point.x < caretLeft(view) + CARET_PX) change(viewer, "folded", laneKey(view.planned.lanes[grip.lane]), view.planned.lanes[grip.lane].name)
    else setTimeout(() => sheet.show(grip.lane, event)) // The browser shuts what opens while the button goes up.
  }
  const offs = [
    listen(figure, "pointerdown", down, true), listen(figure, "pointermove", move, true), listen(figure, "pointerup", up, true),
    listen(figure, "pointercancel", () => { state.grip = null }, true),
  ]
  Object.assign(commands, { lane: () => sheet.show(laneOfKeys(view)), moveLane: way => stepLane(viewer, laneOfKeys(view), way) })
  addChoices(viewer)
  return () => { offs.forEach(off => off()); sheet.remove() }
}

/** The name of a lane, or the line of a group, at a place of the figure: {lane} or {group}; null where there is none. */
export function nameAt(view, x, y) {
  if (y < view.lanesTop() || y >= view.lanesBottom()) return null
  const isPinned = y < view.frame.top + view.pinnedPx
  const group = !isPinned && groupBoxes(view).find(([, { headTop, headPx }]) => y >= headTop && y < headTop + headPx)?.[0]
  if (group) return { group }
  if (x >= view.frame.left) return null
  const lane = view.visibleLanes().find(code => {
    const { top, bottom } = view.tables.lanes[code]
    return top < view.pinnedPx === isPinned && y >= view.yAt(top) && y < view.yAt(bottom)
  })
  return lane === undefined ? null : { lane }
}

/** What a name stands for, in full: a title, pairs of label and text, and what a click does. */
export function nameFacts(view, { lane: code, group }) {
  if (group) return [group.label, group.detail ? [["about", group.detail]] : [], `Click on its name: ${group.isFolded ? "open" : "fold"}`]
  const lane = view.planned.lanes[code], spans = view.laneRows[code].reduce((sum, row) => sum + view.store.countSum(row, 0, view.store.row(row).length - 1), 0)
  const facts = [
    ["group", view.planned.groups[lane.group]?.label ?? ""], ["about", lane.detail],
    ["device", hasDevices(view.planned) ? String(lane.device) : ""], ["spans", formatCount(spans)],
  ]
  return [lane.name, facts.filter(([, text]) => text), "Click: fold, pin, hide, move; drag: move"]
}

/** The lane that keys mean: the one whose name was chosen, else that of what is pinned, else the uppermost in view. */
function laneOfKeys(view) {
  const chosen = [view.lane, view.pinned && view.tables.rows[view.pinned.row].lane].find(code => view.laneOrder.includes(code))
  return chosen ?? view.visibleLanes()[0]
}

function change(viewer, set, key, name) {
  const isIn = !viewer.view.layout[set].has(key)
  viewer.view.setIn(set, key, isIn)
  announce(viewer, `${name} is ${SETS[set][isIn ? 0 : 1]}`)
}

/** Put a lane where another one is that is in the same group. */
function moveTo({ view }, lane, target) {
  if (view.tables.lanes[lane].group !== view.tables.lanes[target].group) return
  const isDown = view.laneOrder.indexOf(target) > view.laneOrder.indexOf(lane)
  view.moveLane(lane, isDown ? view.sequence[view.sequence.indexOf(target) + 1] : target)
}

function stepLane(viewer, lane, way) {
  const { view } = viewer, target = view.laneOrder[view.laneOrder.indexOf(lane) + way]
  if (target === undefined) return
  view.lane = lane
  moveTo(viewer, lane, target)
  sayPlace(viewer, lane)
}

function sayPlace(viewer, lane) {
  const { planned, laneOrder } = viewer.view
  announce(viewer, `${planned.lanes[lane].name}, lane ${laneOrder.indexOf(lane) + 1} of ${laneOrder.length}`)
}

/** The sheet of one lane: its facts, and what can be done with it. */
function addSheet(viewer) {
  const { view } = viewer, root = rootOf(viewer)
  const sheet = makeNode("section", { class: "gsl-sheet gsl-lane", role: "dialog", "aria-label": "Lane", tabindex: "-1", hidden: true })
  if ("popover" in sheet) sheet.popover = "auto"
  root.append(sheet)
  const shut = () => { closeAbove(sheet); root.focus({ preventScroll: true }) }
  const fill = () => {
    const lane = view.planned.lanes[view.lane], key = laneKey(lane), isIn = set => view.layout[set].has(key)
    const [title, facts] = nameFacts(view, view), does = set => () => { change(viewer, set, key, lane.name); if (isIn("hidden")) shut(); else fill() }
    const step = way => () => { stepLane(viewer, view.lane, way); fill() }
    sheet.does = { f: does("folded"), p: does("pinned"), h: does("hidden"), ArrowUp: () => choose(-1), ArrowDown: () => choose(1), Escape: shut }
    sheet.replaceChildren(
      makeNode("header", {}, makeNode("h3", { text: title, dir: "auto" }), makeButton("Close", { key: "Escape", onclick: shut })), factList(facts),
      makeNode("p", { class: "gsl-does" },
        makeButton(isIn("folded") ? "Open" : "Fold", { key: "F", onclick: sheet.does.f }), makeButton(isIn("pinned") ? "Unpin" : "Pin at the top", { key: "P", onclick: sheet.does.p }),
        makeButton("Hide", { key: "H", onclick: sheet.does.h }), makeButton("Up", { label: "Move up", key: "Alt+ArrowUp", onclick: step(-1) }),
        makeButton("Down", { label: "Move down", key: "Alt+ArrowDown", onclick: step(1) })),
    )
  }
  const choose = way => {
    const next = view.laneOrder[view.laneOrder.indexOf(view.lane) + way]
    if (next === undefined) return
    view.lane = next
    fill()
    announce(viewer, view.planned.lanes[next].name)
  }
  const keyed = event => {
    const isMove = event.altKey && /^Arrow(Up|Down)$/.test(event.key), action = isMove ? () => { stepLane(viewer, view.lane, event.key === "ArrowUp" ? -1 : 1); fill() } : sheet.does[event.key.length === 1 ? event.key.toLowerCase() : event.key]
    event.stopPropagation()
    if (!action || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    action()
    if (!sheet.hidden) sheet.focus({ preventScroll: true })
  }
  const offs = [listen(sheet, "keydown", keyed), listen(sheet, "toggle", event => { if (event.newState === "closed") sheet.hidden = true })]
  return {
    show(code, event) {
      if (code === undefined) return
      commandsOf(viewer).hideTip?.()
      view.lane = code
      fill()
      openAbove(sheet)
      const box = partOf(viewer, "figure").getBoundingClientRect(), y = event?.clientY ?? box.top + view.yAt(view.tables.lanes[code].top)
      placeSheet(sheet, box.left + view.frame.left, y)
      sheet.focus({ preventScroll: true })
    },
    remove() { offs.forEach(off => off()); sheet.remove() },
  }
}

/** What the menu has of lanes and of moving, and what a link to this view keeps of it. */
function addChoices(viewer) {
  const { view, menu } = viewer, commands = commandsOf(viewer), { threads = [] } = view.planned
  // What will come of a live view, nobody knows yet.
  const ways = [["partition", "partition"], ...(hasDevices(view.planned) ? [["device", "device"]] : []), ...(view.isLive || threads.length > 1 ? [["thread", "thread"]] : []), ["none", "none"]]
  menu.choice("Lanes", {
    label: "height", options: [["auto", "fitting"], ["compact", "compact"], ["normal", "normal"], ["tall", "tall"]],
    get: () => view.layout.density, set: density => view.arrange({ density }),
  })
  menu.choice("Lanes", { label: "groups", options: ways, get: () => view.layout.groupBy, set: groupBy => view.arrange({ groupBy }) })
  menu.action("Lanes", { label: "Fold, pin, hide or move a lane", key: "L", run: () => { commands.closeMenu(); commands.lane() }, isOff: () => !view.laneOrder.length })
  menu.action("Lanes", { label: "Show all lanes", run: () => view.arrange({ hidden: new Set(), folded: new Set() }), isOff: () => !view.layout.hidden.size && !view.layout.folded.size })
  menu.action("Lanes", { label: "Order of first work", run: () => view.arrange({ order: [], pinned: new Set() }), isOff: () => !view.layout.order.length && !view.layout.pinned.size })
  menu.choice("Moving", { label: "drag", options: [["move", "moves"], ["select", "selects (Shift)"], ["zoom", "zooms (Alt)"]], get: () => view.dragDoes, set: value => { view.dragDoes = value } })
  for (const [label, key, run] of [["Zoom in", "W", () => view.zoomBy(1 / 1.5)], ["Zoom out", "S", () => view.zoomBy(1.5)], ["Show everything", "0", () => view.fit()]]) menu.action("Moving", { label, key, run })
  const plain = layout => JSON.stringify(layout, (_, value) => value instanceof Set ? [...value] : value), first = plain(view.layout)
  view.keep("lanes", () => plain(view.layout) === first ? null : JSON.parse(plain(view.layout)), kept => {
    const { density, groupBy, order, ...sets } = kept ?? JSON.parse(first)
    view.arrange({ density, groupBy, order, ...Object.fromEntries(Object.entries(sets).map(([name, keys]) => [name, new Set(keys)])) })
  })
}
