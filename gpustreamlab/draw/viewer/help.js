// The sheet of keys, of what the mouse does, and of what can be searched.

import { makeButton, makeNode, Sheet } from "./nodes.js"

const HELP_ROWS = [
  ["W  S", "Zoom in, out (at the pointer, else the middle)"],
  ["A  D", "Move to earlier, later"],
  ["F", "Fit what is pinned or selected; again: everything"],
  ["←  →", "Previous, next span of the row"],
  ["↑  ↓", "Row above, below: enclosing spans, then other lanes"],
  ["/", "Search; Enter next, Shift+Enter previous, Esc ends"],
  ["E", "Show, hide the waits (arrows)"],
  ["Y", "The next finding or note"],
  ["N", "Write a note: of what is pinned or selected, else at the pointer"],
  ["V", "How the picture looks"],
  ["L", "A lane: fold, hide"],
  ["PgUp  PgDn", "Scroll the lanes"],
  ["Esc", "Unpin, unselect, end the search, shut the drawer"],
]
const HELP_SEARCH_ROWS = [
  ['gemm  "step 3"', "Part of a name; quotes hold words together"],
  ["stream:decode  kind:copy", "Field: name, stream, kind, partition, thread"],
  ["is:stray", "Ran on another stream than its range had selected"],
  [">1ms  <5us", "Longer, shorter than; ns us ms s min"],
  ["kind:copy >1ms", "All of it together"],
]
const HELP_LIVE_ROWS = [["Space", "Pause, go on"], ["End", "Follow: stick to now"]]
const HELP_MOUSE_ROWS = [
  ["Drag", "Move; two fingers: zoom"],
  ["Ctrl+wheel", "Zoom (Mac: ⌘, or pinch); over the axis without Ctrl"],
  ["Wheel", "Scroll the lanes, or the page where it is higher than the window; with Shift the lanes"],
  ["Shift+drag", "Select a window, and tell how long it is; F zooms there"],
  ["Lane's name", "Click: fold, hide"],
  ["Click", "A span: its details; a gap of a lane: why it was idle"],
  ["Click in legend", "Hide, show; with Alt or Ctrl: only this"],
  ["Low bars", "Many spans, too narrow to draw apart: as high as the share of the time"],
]

export function addHelp(viewer) {
  const sheet = new Sheet(viewer, "help", "Keys and mouse", { keys: ["Escape", "?"] }), shut = () => sheet.shut()
  const button = makeButton("?", { label: "Keys and mouse", key: "?", class: "gsl-help-button", "aria-haspopup": "dialog", onclick: () => toggle() })
  viewer.tools.append(button)
  const toggle = () => {
    if (sheet.isOpen) return shut()
    const rows = [...HELP_ROWS, ...(viewer.view.isLive ? HELP_LIVE_ROWS : [])]
    const [keys, mouse, search] = [rows, HELP_MOUSE_ROWS, HELP_SEARCH_ROWS].map(listOf)
    sheet.fill("Keys and mouse", keys, mouse, makeNode("h4", { text: "Search" }), search)
    sheet.open()
  }
  viewer.commands.help = toggle
}

const listOf = rows => makeNode("dl", { class: "gsl-keys" }, ...rows.flatMap(([keys, text]) => [
  makeNode("dt", {}, ...keys.split("  ").map(key => makeNode("kbd", { text: key }))), makeNode("dd", { text }),
]))
