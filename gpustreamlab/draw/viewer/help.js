// The sheet of keys, of what the mouse does, and of what can be searched.

import { searchExamples } from "./examples.js"
import { makeButton, makeNode, Sheet } from "./nodes.js"

const HELP_ROWS = [
  ["W  S", "Zoom in, out (at the pointer, else the middle)"],
  ["A  D", "Move to earlier, later"],
  ["F", "Fit what is pinned or selected; again: everything"],
  ["←  →", "Previous, next span of the row"],
  ["↑  ↓", "Row above, below: enclosing spans, then other lanes"],
  ["/", "Search; Enter next, Shift+Enter previous, Esc ends"],
  ["M or R", "Ruler: click twice; Enter takes the pinned span"],
  ["T", "Totals by name, stream, partition; again: closes"],
  ["E", "Show, hide the waits (arrows)"],
  ["Y", "The next sign: why, hazard, stray, wait, note"],
  ["N", "Write a note: of what is pinned or selected, else at the pointer"],
  ["V", "How the picture looks"],
  ["L", "A lane: fold, pin, hide, move"],
  ["Alt+↑  Alt+↓", "Move the lane up, down"],
  ["PgUp  PgDn", "Scroll the lanes"],
  ["Esc", "Leave ruler, unpin, unselect, end the search"],
]
const HELP_LIVE_ROWS = [["Space", "Pause, go on"], ["End", "Follow: stick to now"]]
const HELP_MOUSE_ROWS = [
  ["Drag", "Move; two fingers: zoom"],
  ["Ctrl+wheel", "Zoom (Mac: ⌘, or pinch); after a click into the picture without Ctrl"],
  ["Wheel", "Scroll the page; over the lanes' names: the lanes"],
  ["Shift+drag", "Select a window and lanes: totals and overlap"],
  ["Alt+drag", "Zoom to a window"],
  ["Lane's name", "Click: fold, pin, hide, move; drag: move"],
  ["Click", "Pin a span: its details below; a gap of a lane: why it was idle"],
  ["Click in legend", "Hide, show; with Alt or Ctrl: only this"],
]

/** Add the help button and the sheet that it opens. */
export function addHelp(viewer) {
  const sheet = new Sheet(viewer, "help", "Keys and mouse", { keys: ["Escape", "?"] }), shut = () => sheet.shut()
  const close = makeButton("Close", { key: "Escape", onclick: shut })
  const head = makeNode("header", {}, makeNode("h3", { text: "Keys and mouse" }), close)
  const button = makeButton("?", { label: "Keys and mouse", key: "?", class: "gsl-help-button", "aria-haspopup": "dialog", onclick: () => toggle() })
  viewer.tools.append(button)
  const toggle = () => {
    if (sheet.isOpen) return shut()
    const rows = [...HELP_ROWS, ...(viewer.view.isLive ? HELP_LIVE_ROWS : [])]
    const title = makeNode("h4", { text: "Search, with examples of this timeline" })
    sheet.element.replaceChildren(head, keyList(rows), keyList(HELP_MOUSE_ROWS), title, exampleList(viewer, shut))
    sheet.open()
  }
  viewer.commands.help = toggle
}

function keyList(rows) {
  const list = makeNode("dl", { class: "gsl-keys" })
  for (const [keys, text] of rows) {
    const term = makeNode("dt")
    for (const key of keys.split("  ")) term.append(makeNode("kbd", { text: key }))
    list.append(term, makeNode("dd", { text }))
  }
  return list
}

/** What can be searched; each example finds something here, and a click on it searches for it. */
function exampleList(viewer, shut) {
  const list = makeNode("dl", { class: "gsl-keys gsl-examples" })
  for (const [text, about] of searchExamples(viewer.view)) {
    const go = () => { shut(); viewer.commands.searchFor(text) }
    list.append(makeNode("dt", {}, makeButton(text, { label: `Search for ${text}`, class: "gsl-link", dir: "auto", onclick: go })), makeNode("dd", { text: about }))
  }
  return list
}
