// What names, lanes and calls are called on the screen.

import { hueCount } from "./brush.js"

export function nameOf(view, code) {
  return view.tables.names[code] ?? "(no name)"
}

export function laneOf(view, rowCode) {
  return view.tables.lanes[view.tables.rows[rowCode].lane]
}

/** What a lane is called on the screen. */
export function laneText(lane) {
  return lane.label || lane.name
}

/** The class of calls of the host that a name stands for, or "". */
export function callLabel({ tables }, code) {
  return tables.call_styles[(tables.name_styles[code]?.[0] ?? 0) - hueCount(tables) - 1]?.[0] ?? ""
}
