// Notes that the reader writes: of a moment or of a window, in one lane or in all. They are signs as findings are, see why.js.

import { traceTime, viewTime } from "./address.js"
import { timesOf } from "./facts.js"
import { copyText, makeButton, makeNode, Sheet } from "./nodes.js"

const SECTION = "Notes and links"

/** A note as it is kept, [time, end or null, lane or null, text], as the view has it; null for what is none. */
function readNote(view, entry) {
  try {
    const [time, end, stream, text] = entry
    const tidy = ns => traceTime(view, viewTime(view, ns))
    if (typeof text !== "string" || (end !== null && viewTime(view, end) < viewTime(view, time))) return null
    return { time: tidy(time), end: end === null ? null : tidy(end), stream: stream === null ? null : String(stream), text }
  } catch { return null }
}

/** Add the field in which notes are written, and what the menu has of them and of links. */
export function addNotes(viewer) {
  const { view, menu } = viewer, byTime = (a, b) => viewTime(view, a.time) - viewTime(view, b.time)
  const box = makeNode("input", { type: "text", maxlength: "500", "aria-label": "Note", placeholder: "Note", autocomplete: "off" })
  const sheet = new Sheet(viewer, "writing", "Write a note")
  const setNotes = notes => {
    view.set("reason", null) // Their numbers are others now.
    view.set("notes", notes)
  }
  const open = (note, old = null) => {
    const save = () => {
      const text = box.value.trim()
      setNotes([...view.notes.filter(one => one !== old), ...(text ? [{ ...note, text }] : [])].sort(byTime))
      sheet.shut()
    }
    box.value = note.text
    box.onkeydown = event => { if (event.key === "Enter" && !event.isComposing) save() }
    sheet.element.replaceChildren(box, makeButton("Save", { key: "Enter", onclick: save }))
    const { left, top } = viewer.figureElement.getBoundingClientRect()
    sheet.open({ left: left + view.pxAt(viewTime(view, note.time)), top: top + view.lanesTop() + 24 })
    box.focus()
    box.select()
  }
  const read = entries => entries.map(entry => readNote(view, entry)).filter(Boolean).sort(byTime)
  const first = read(viewer.notes ?? view.tables.written), entries = () => view.notes.map(({ time, end, stream, text }) => [time, end, stream, text])
  const write = at => open(newNote(view, at ?? (view.x0 + view.x1) / 2))
  view.set("notes", first)
  view.keep("notes", () => view.notes === first ? null : entries(), value => setNotes(value ? read(value) : first))
  Object.assign(viewer.commands, { note: write, editNote: note => open(note, note), dropNote: note => setNotes(view.notes.filter(other => other !== note)) })
  menu.action(SECTION, { label: "Write a note", key: "N", run: () => { viewer.commands.closeMenu(); write() } })
  if (viewer.address !== null) menu.action(SECTION, { label: "Copy link to this view", run: button => copyText(viewer.link(), button, menu.element) })
  if (viewer.savePage) menu.action(SECTION, { label: "Save page with notes", run: () => viewer.savePage(entries()) })
}

/** Of the pinned span, the gap or the selection, else of a moment. */
function newNote(view, at) {
  const { pinned, gap, selection, tables } = view
  const of = (start, end, lane) => ({ time: traceTime(view, start), end: end === null ? null : traceTime(view, end), stream: tables.lanes[lane]?.name ?? null, text: "" })
  if (pinned) return of(...timesOf(view, pinned), tables.rows[pinned.row].lane)
  if (gap) return of(gap.start, gap.end, gap.lane)
  if (selection) return of(selection.start, selection.end, -1)
  return of(at, null, -1)
}
