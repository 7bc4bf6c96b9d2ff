// Notes that the reader writes: of a moment or of a window, in one lane or in all. They are signs as findings are, see why.js.

import { traceTime, viewTime } from "./address.js"
import { copyText } from "./copy.js"
import { isSpan } from "./facts.js"
import { closeAbove, commandsOf, listen, makeButton, makeNode, openAbove, partOf, rootOf } from "./nodes.js"
import { endOfHit } from "./rows.js"

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

export const noteEntries = notes => notes.map(({ time, end, stream, text }) => [time, end, stream, text])

/** Add the field in which notes are written, and the commands `note` and `editNote`. */
export function addNotes(viewer) {
  const { view } = viewer, root = rootOf(viewer)
  const box = makeNode("input", { type: "text", maxlength: "500", "aria-label": "Note", placeholder: "Note", autocomplete: "off" })
  const save = makeButton("Save", { key: "Enter", onclick: () => keep() })
  const sheet = makeNode("section", { class: "gsl-sheet gsl-writing", role: "dialog", "aria-label": "Write a note", hidden: true }, box, save)
  if ("popover" in sheet) sheet.popover = "auto"
  root.append(sheet)
  const setNotes = notes => {
    view.set("reason", null) // Their numbers are others now.
    view.set("notes", notes)
  }
  const byTime = (a, b) => viewTime(view, a.time) - viewTime(view, b.time)
  const read = entries => entries.map(entry => readNote(view, entry)).filter(Boolean).sort(byTime)
  let note = null, old = null
  const open = (wanted, edited = null) => {
    [note, old] = [wanted, edited]
    box.value = wanted.text
    openAt(viewer, sheet, viewTime(view, wanted.time))
    box.select()
  }
  const keep = () => {
    const text = box.value.trim()
    setNotes([...view.notes.filter(one => one !== old), ...(text ? [{ ...note, text }] : [])].sort(byTime))
    shut()
  }
  const shut = () => {
    closeAbove(sheet)
    root.focus({ preventScroll: true })
  }
  const offs = [
    listen(sheet, "keydown", event => {
      event.stopPropagation()
      if (event.isComposing || (event.key !== "Enter" && event.key !== "Escape")) return
      event.preventDefault()
      if (event.key === "Escape") shut()
      else keep()
    }),
    listen(sheet, "toggle", event => { if (event.newState === "closed") sheet.hidden = true }),
  ]
  const first = read(viewer.notes ?? view.tables.written)
  view.set("notes", first)
  view.keep("notes", () => view.notes === first ? null : noteEntries(view.notes), value => setNotes(value ? read(value) : first))
  const write = at => open(newNote(view, at ?? (view.x0 + view.x1) / 2))
  Object.assign(commandsOf(viewer), { note: write, editNote: one => open(one, one), dropNote: one => setNotes(view.notes.filter(other => other !== one)) })
  viewer.menu.action(SECTION, { label: "Write a note", key: "N", run: () => { commandsOf(viewer).closeMenu(); write() } })
  if (viewer.address !== null) viewer.menu.action(SECTION, { label: "Copy link to this view", run: () => copyText(viewer.link(), makeNode("span"), viewer.menu.sheet) })
  if (viewer.savePage) viewer.menu.action(SECTION, { label: "Save page with notes", run: () => viewer.savePage(noteEntries(view.notes)) })
  return () => {
    offs.forEach(off => off())
    sheet.remove()
  }
}

/** Of the pinned span, the gap or the selection, else of a moment. */
function newNote(view, at) {
  const { pinned, gap, selection, store, tables } = view
  const of = (start, end, lane) => ({ time: traceTime(view, start), end: end === null ? null : traceTime(view, end), stream: tables.lanes[lane]?.name ?? null, text: "" })
  if (pinned) {
    const row = store.row(pinned.row), [first, last] = isSpan(pinned) ? [pinned.index, pinned.index] : [pinned.first, pinned.last]
    return of(row.start[first], endOfHit(row, first, last), tables.rows[pinned.row].lane)
  }
  if (gap) return of(gap.start, gap.end, gap.lane)
  if (selection) return of(selection.start, selection.end, selection.lanes.size === 1 ? [...selection.lanes][0] : -1)
  return of(at, null, -1)
}

function openAt(viewer, sheet, time) {
  const { view } = viewer, box = partOf(viewer, "figure").getBoundingClientRect()
  openAbove(sheet)
  const x = box.left + Math.min(view.frame.right, Math.max(view.frame.left, view.pxAt(time)))
  const y = Math.min(innerHeight - sheet.offsetHeight - 4, Math.max(4, box.top + view.lanesTop() + 24))
  Object.assign(sheet.style, { inset: "auto", margin: "0", left: `${Math.max(4, Math.min(x, innerWidth - sheet.offsetWidth - 4))}px`, top: `${y}px` })
}
