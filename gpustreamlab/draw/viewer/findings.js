// What was found, in the drawer: one entry for each thing to change, with its gain, the line to copy, and its places in the picture.

import { copyText, makeButton, makeNode } from "./nodes.js"
import { formatCount } from "./units.js"
import { choosePieces, isTold, reasonsOf, showPiece, shownPiece } from "./why.js"

const BREAKS = /(?<=\))(?=\.)/ // Where a long line may go on below.
const ASKED = "Asked: the kernel answers when it is not busy."

/** Add the section and its button; `viewer.askWhy` asks for reasons where it is set. */
export function addFindings(viewer) {
  const { view, drawer, commands } = viewer, section = drawer.add("findings", "Findings"), state = { isAsked: false, foldsOpen: false }
  const ask = viewer.askWhy && (() => {
    state.isAsked = true
    viewer.askWhy()
    show(true)
  })
  const toggle = () => (!isTold(view) && ask ? ask() : drawer.toggle())
  const button = makeButton("Findings", { label: "Findings, and details of what is selected", class: "gsl-findings-button", "aria-expanded": "false", onclick: toggle })
  viewer.tools.append(button)
  function show(isAskedFor = false) {
    const nodes = sectionNodes(viewer, state, ask), count = state.isAsked ? 0 : reasonsOf(view).findings.filter(({ folds }) => !folds).length
    button.textContent = count ? `Findings ${formatCount(count)}` : ask && !view.why ? "Why?" : "Findings"
    drawer.fill(section, nodes, isAskedFor)
    press()
  }
  const items = () => section.querySelectorAll(".gsl-found-one")
  // Where one of its other places is shown, its own words.
  const press = () => items().forEach(item => {
    const number = Number(item.dataset.number), isShown = view.reason?.number === number, place = isShown ? view.reason.place : 0
    const { pieces } = reasonsOf(view).findings[number - 1], { text, fix } = pieces[place]
    item.querySelector(".gsl-reason").setAttribute("aria-pressed", String(isShown))
    item.querySelector(".gsl-says").textContent = text
    item.querySelector(".gsl-fix").textContent = fix
    const next = isShown && view.reason.isShown ? place + 1 : place
    item.querySelector(".gsl-go").textContent = pieces.length > 1 ? `Show ${(next % pieces.length) + 1} of ${formatCount(pieces.length)}` : "Show"
    if (isShown) bring(item)
  })
  // The focus stays where it is, unless it is on another reason.
  function bring(item) {
    const folds = item.closest("details"), focused = document.activeElement
    if (folds) folds.open = true
    drawer.bring(item)
    if (section.contains(focused) && !item.contains(focused)) item.querySelector(".gsl-reason").focus({ preventScroll: true })
  }
  commands.askWhy = ask
  commands.nextReason = () => {
    if (!view.why && ask) return ask()
    const { findings } = reasonsOf(view), next = findings[(view.reason?.number ?? 0) % (findings.length || 1)]
    if (!next) return
    showPiece(view, next.pieces[0])
    viewer.announce([next.head, next.pieces[0].text, next.pieces[0].fix].filter(Boolean).join(", "))
  }
  view.on("look", property => {
    if (property === "why") state.isAsked = false
    if (property === "why" || property === "notes") show()
    else if (property === "reason") press()
    else if (property === "drawer") button.setAttribute("aria-expanded", String(drawer.isOpen))
    // Who goes on to another span is done with the reason.
    else if (property === "pinned" && view.reason && view.pinned && !isPinned(view, shownPiece(view))) view.set("reason", null)
  })
  show()
}

const isPinned = ({ pinned }, piece) => Boolean(piece) && pinned?.row === piece.late?.row && pinned?.index === piece.late?.index

function sectionNodes(viewer, { isAsked }, ask) {
  const { view } = viewer, { line = "", notes = [], more = 0, bound = [] } = view.why ?? {}
  if (isAsked) return [makeNode("h3", { text: "Findings" }), makeNode("p", { text: ASKED })]
  const { findings } = reasonsOf(view), list = some => makeNode("ol", { class: "gsl-list-of-findings" }, ...some.map(finding => findingNode(viewer, finding)))
  if (!view.why && !findings.length) return []
  const open = findings.filter(({ folds }) => !folds), folded = findings.filter(({ folds }) => folds)
  const again = ask && view.why ? makeButton("Ask again", { label: "Ask again, of what ran until now", onclick: ask }) : null
  const folds = (summary, ...nodes) => makeNode("details", {}, makeNode("summary", { text: summary }), ...nodes)
  const rest = more ? [`… ${formatCount(more)} more: see ${view.isLive ? "lab" : "trace"}.explain().findings.`] : []
  return [
    makeNode("header", {}, makeNode("h3", { text: "Findings" }), again),
    ...(open.length ? [list(open)] : [makeNode("p", { class: "gsl-line", text: line, dir: "auto" })]),
    ...bound.map(text => makeNode("p", { class: "gsl-bound", text, dir: "auto" })),
    ...(folded.length ? [folds(`${formatCount(folded.length)} more without a known gain`, list(folded))] : []),
    ...(notes.length || rest.length || (open.length && line) ? [folds("How this was found", ...[...(open.length ? [line] : []), ...rest, ...notes].map(text => makeNode("p", { class: "gsl-note", text, dir: "auto" })))] : []),
  ]
}

/** A button with the sign of a finding and what it is. */
export function signButton({ head, kind = "cause", sign }, label, onclick) {
  const button = makeButton(head, { label, class: "gsl-reason", dir: "auto", onclick })
  button.prepend(makeNode("b", { class: "gsl-number", "data-kind": kind, text: sign }))
  return button
}

function findingNode(viewer, finding) {
  const { head, number, note, gain, count, code, lines } = finding, { view, commands } = viewer
  // Looked up anew: spans of a live view move.
  const now = () => reasonsOf(view).findings[number - 1].pieces
  const light = () => (view.reason?.number === number ? view.set("reason", null) : choosePieces(view, now()))
  const go = () => showPiece(view, now()[view.reason?.number === number && view.reason.isShown ? (view.reason.place + 1) % now().length : 0])
  const facts = [gain, count > 1 ? `${formatCount(count)} times` : ""].filter(Boolean).join(" · ")
  const text = lines.join("\n"), copy = lines.length ? makeButton("Copy", { label: `Copy ${text}`, onclick: () => copyText(text, copy, box) }) : null
  const box = lines.length ? makeNode("div", { class: "gsl-lines" }, makeNode("code", { dir: "ltr" }, ...text.split(BREAKS).flatMap((part, at) => at ? [makeNode("wbr"), part] : [part])), copy) : null
  const own = note ? [makeButton("Edit", { label: `Edit the note ${head}`, onclick: () => commands.editNote(note) }), makeButton("Delete", { label: `Delete the note ${head}`, onclick: () => commands.dropNote(note) })] : []
  return makeNode("li", { class: "gsl-found-one", "data-number": number }, signButton(finding, head, light),
    facts || code ? makeNode("p", { class: "gsl-gain" }, facts && `${facts} `, code ? makeNode("small", { text: code, dir: "auto" }) : null) : null,
    makeNode("p", { class: "gsl-says", dir: "auto" }), box, makeNode("p", { class: "gsl-fix", dir: "auto" }),
    makeNode("div", { class: "gsl-does" }, makeButton("Show", { label: `Show where: ${head}`, class: "gsl-go", onclick: go }), ...own))
}
