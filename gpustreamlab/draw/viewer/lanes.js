// The lanes' names: what they tell, and what can be done with a lane or a group by mouse, by key and in a sheet of its own.

import { factList } from "./facts.js"
import { groupKey, hasDevices, laneKey } from "./layout.js"
import { listen, makeButton, makeNode, Sheet } from "./nodes.js"
import { CARET_PX, caretLeft, groupBoxes } from "./paint_lanes.js"
import { formatCount } from "./units.js"

const SETS = { folded: ["folded", "open"], hidden: ["hidden", "shown"] }

export function addLanes(viewer) {
  const { view } = viewer, figure = viewer.figureElement, commands = viewer.commands
  const showSheet = addSheet(viewer)
  let grip = null
  const down = event => {
    const point = viewer.pointOf(event), name = nameAt(view, point.x, point.y)
    if (!name || event.button || point.x >= view.frame.left && !name.idle) return
    event.stopImmediatePropagation() // Nothing is pinned or moved.
    grip = { ...name, point }
  }
  const up = event => {
    if (!grip) return
    event.stopImmediatePropagation()
    const { lane: code, group, idle, point } = grip, lane = view.planned.lanes[code]
    grip = null
    if (idle) return view.arrange({ idle: true })
    if (group) change(viewer, "folded", groupKey(group), group.label)
    else if (point.x < caretLeft(view) + CARET_PX) change(viewer, "folded", laneKey(lane), lane.name)
    else setTimeout(() => showSheet(code, event.clientY)) // The browser shuts what opens while the button goes up.
  }
  listen(figure, { pointerdown: down, pointerup: up, pointercancel: () => { grip = null } })
  commands.lane = () => showSheet(laneOfKeys(view))
  addChoices(viewer)
}

/** The name of a lane, or the line of a group, at a place of the figure: {lane} or {group}; null where there is none. */
export function nameAt(view, x, y) {
  if (y < view.lanesTop() || y >= view.lanesBottom()) return null
  const group = groupBoxes(view).find(([, { headTop, headPx }]) => y >= headTop && y < headTop + headPx)?.[0]
  if (group) return { group }
  const { idle } = view.tables
  if (idle && y >= view.yAt(idle.top) && y < view.yAt(idle.bottom)) return { idle }
  if (x >= view.frame.left) return null
  const lane = view.visibleLanes().find(code => {
    const { top, bottom } = view.tables.lanes[code]
    return y >= view.yAt(top) && y < view.yAt(bottom)
  })
  return lane === undefined ? null : { lane }
}

/** What a name stands for, in full: a title, pairs of label and text, and what a click does. */
export function nameFacts(view, { lane: code, group, idle }) {
  if (idle) return [idle.text, [], "Click: show them"]
  if (group) return [group.label, group.detail ? [["about", group.detail]] : [], `Click on its name: ${group.isFolded ? "open" : "fold"}`]
  const lane = view.planned.lanes[code], rows = view.laneRows[code].map(row => view.store.row(row))
  const spans = rows.reduce((sum, row) => sum + row.countSum(0, row.length - 1), 0)
  const facts = [
    ["group", view.planned.groups[lane.group]?.label ?? ""], ["about", lane.detail],
    ["host", lane.machine], ["device", hasDevices(view.planned) ? String(lane.device) : ""], ["spans", formatCount(spans)],
  ]
  return [lane.name, facts.filter(([, text]) => text), "Click: fold, hide"]
}

/** The lane that keys mean: the one whose name was chosen, else that of what is pinned, else the uppermost in view. */
function laneOfKeys(view) {
  const chosen = [view.lane, view.pinned && view.tables.rows[view.pinned.row].lane].find(code => view.laneOrder.includes(code))
  return chosen ?? view.visibleLanes()[0]
}

function change(viewer, set, key, name) {
  const isIn = !viewer.view.layout[set].has(key)
  viewer.view.setIn(set, key, isIn)
  viewer.announce(`${name} is ${SETS[set][isIn ? 0 : 1]}`)
}

/** The sheet of one lane: its facts, and what can be done with it; returns what shows it. */
function addSheet(viewer) {
  const { view } = viewer, sheet = new Sheet(viewer, "lane", "Lane"), { element } = sheet
  let does = {}
  const fill = () => {
    const lane = view.planned.lanes[view.lane], key = laneKey(lane), isIn = set => view.layout[set].has(key)
    const [title, facts] = nameFacts(view, { lane: view.lane })
    const put = set => () => { change(viewer, set, key, lane.name); if (isIn("hidden")) sheet.shut(); else fill() }
    does = { F: put("folded"), H: put("hidden"), ArrowUp: () => choose(-1), ArrowDown: () => choose(1) }
    const button = (text, key) => makeButton(text, { key, onclick: does[key] })
    sheet.fill(title, factList(facts), makeNode("p", { class: "gsl-does" },
      button(isIn("folded") ? "Open" : "Fold", "F"), button("Hide", "H")))
  }
  const choose = way => {
    const next = view.laneOrder[view.laneOrder.indexOf(view.lane) + way]
    if (next === undefined) return
    view.lane = next
    fill()
    viewer.announce(view.planned.lanes[next].name)
  }
  element.addEventListener("keydown", event => {
    const { key } = event, action = does[key.length === 1 ? key.toUpperCase() : key]
    event.stopPropagation()
    if (!action || event.altKey || event.ctrlKey || event.metaKey) return
    event.preventDefault()
    action()
    if (sheet.isOpen) element.focus({ preventScroll: true })
  })
  return (code, clientY) => {
    if (code === undefined) return
    view.lane = code
    fill()
    const { left, top } = viewer.figureElement.getBoundingClientRect()
    sheet.open({ left: left + view.frame.left, top: clientY ?? top + view.yAt(view.tables.lanes[code].top) })
  }
}

/** What the menu has of lanes and of moving, and what a link to this view keeps of it. */
function addChoices(viewer) {
  const { view, menu } = viewer, commands = viewer.commands
  if (view.isLive || view.planned.memory?.length) {
    menu.toggle("Lanes", { label: "Memory", get: () => view.layout.memory, set: memory => view.arrange({ memory }) })
  }
  menu.toggle("Lanes", { label: "Streams without work", get: () => view.layout.idle, set: idle => view.arrange({ idle }) })
  menu.action("Lanes", { label: "Fold or hide a lane", key: "L", run: () => { commands.closeMenu(); commands.lane() }, isOff: () => !view.laneOrder.length })
  menu.action("Lanes", { label: "Fold all lanes", run: () => view.arrange({ folded: new Set(view.planned.lanes.map(laneKey)) }) })
  menu.action("Lanes", { label: "Show all lanes", run: () => view.arrange({ hidden: new Set(), folded: new Set() }), isOff: () => !(view.layout.hidden.size + view.layout.folded.size) })
  menu.action("Moving", { label: "Show everything", key: "0", run: () => view.fit() })
  const plain = layout => JSON.stringify(layout, (_, value) => value instanceof Set ? [...value] : value), first = plain(view.layout)
  view.keep("lanes", () => plain(view.layout) === first ? null : JSON.parse(plain(view.layout)), kept => {
    const { memory, idle, ...sets } = kept ?? JSON.parse(first)
    const chosen = Object.fromEntries(Object.keys(SETS).map(name => [name, new Set(sets[name])]))
    view.arrange({ memory: memory === true, idle: idle === true, ...chosen })
  })
}
