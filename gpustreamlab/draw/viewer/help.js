// The sheet of keys, of what the mouse does, and of what can be searched: examples that find something here, made of one span.

import { laneText, nameOf } from "./facts.js"
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
const EXAMPLE_LETTERS = 24
const DURATION_UNITS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]]
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

export function addHelp(viewer) {
  const sheet = new Sheet(viewer, "help", "Keys and mouse", { keys: ["Escape", "?"] }), shut = () => sheet.shut()
  const button = makeButton("?", { label: "Keys and mouse", key: "?", class: "gsl-help-button", "aria-haspopup": "dialog", onclick: () => toggle() })
  viewer.tools.append(button)
  const toggle = () => {
    if (sheet.isOpen) return shut()
    const rows = [...HELP_ROWS, ...(viewer.view.isLive ? HELP_LIVE_ROWS : [])]
    const title = makeNode("h4", { text: "Search, with examples of this timeline" })
    const lists = [rows, HELP_MOUSE_ROWS].map(own => listOf("", own.map(([keys, text]) => [keys.split("  ").map(key => makeNode("kbd", { text: key })), text])))
    sheet.fill("Keys and mouse", ...lists, title, exampleList(viewer, shut))
    sheet.open()
  }
  viewer.commands.help = toggle
}

const listOf = (name, rows) =>
  makeNode("dl", { class: `gsl-keys ${name}` }, ...rows.flatMap(([terms, text]) => [makeNode("dt", {}, ...terms), makeNode("dd", { text })]))

/** What can be searched; each example finds something here, and a click on it searches for it. */
function exampleList(viewer, shut) {
  const link = text => {
    const go = () => { shut(); viewer.commands.searchFor(text) }
    return makeButton(text, { label: `Search for ${text}`, class: "gsl-link", dir: "auto", onclick: go })
  }
  return listOf("gsl-examples", searchExamples(viewer.view).map(([text, about]) => [[link(text)], about]))
}

/** What can be searched, as pairs of an example and what it means; of fields, those that the example span has. */
function searchExamples(view) {
  const { store, tables } = view, found = exampleSpan(store)
  if (!found) return [["gemm", "Part of a name"], ["kind:copy >1ms", "Field and duration, both of them"]]
  const { row, index } = found, name = nameOf(view, row.name[index]), longer = `>${durationBelow(row.end[index] - row.start[index])}`
  const fields = [
    ["stream", laneText(tables.lanes[row.lane]), "Stream"],
    ["kind", tables.kinds[row.kind[index]], "Kind"],
    ["partition", tables.partitions[row.partition[index]]?.text, "Partition"],
    ["thread", tables.threads[row.thread[index]], "Thread that recorded it"],
  ].filter(([, value]) => value && quoted(value))
  return [
    [quoted(name) || "name:", "Part of a name; quotes hold words together"],
    [`/${(name.match(/\w+/)?.[0] ?? ".").slice(0, EXAMPLE_LETTERS)}/i`, "Regular expression; i ignores case"],
    ...fields.map(([field, value, about]) => [`${field}:${quoted(value)}`, about]),
    ...(view.strayCount ? [["is:stray", "Ran on another stream than its range had selected"]] : []),
    [longer, "Longer than; <5us shorter than; ns us ms s min"],
    [`${fields.length ? `${fields[0][0]}:${quoted(fields[0][1])} ` : ""}${longer}`, "All of it together"],
  ]
}

/** The longest of the first spans of the first row that has any. */
function exampleSpan(store) {
  const row = store.rows.map(({ code, length }) => (length ? store.row(code) : null)).find(shown => shown?.length)
  if (!row) return null
  let index = 0
  for (let at = 1; at < Math.min(row.length, 1000); at += 1) if (row.end[at] - row.start[at] > row.end[index] - row.start[index]) index = at
  return { row, index }
}

/** A part of a text as it is written in a search, or "" where it cannot be. */
function quoted(text) {
  const [word = ""] = [...text].slice(0, EXAMPLE_LETTERS).join("").split('"').filter(part => part.trim())
  return /^[\w.-]+$/.test(word) ? word : word && `"${word}"`
}

/** The round duration below one: 1.7 ms gives 1ms. */
function durationBelow(ns) {
  if (ns < 1) return "0ns"
  const [unit, unitNs] = DURATION_UNITS.find(([, size]) => ns >= size)
  return `${10 ** Math.floor(Math.log10(ns / unitNs))}${unit}`
}
