// The panel "Why?": what `trace.explain()` prints, and all else that has a sign on the timeline; a click shows where.

import { makeButton, makeNode } from "./nodes.js"
import { formatCount } from "./units.js"
import { isTold, reasonsOf, showPiece, shownPiece } from "./why.js"

const ASKED = "Asked: the kernel answers when it is not busy."
const HINT = "Click a reason, its sign in the picture, or a gap of a lane.", MORE_HINT = " Hollow signs are more of the same reason, +n stands for n more."

/** Add the panel and its button, where reasons are known or can be asked for: `viewer.askWhy` does, where it is set. */
export function addWhy(viewer) {
  const { view } = viewer
  const panel = makeNode("section", { class: "gsl-panel gsl-why", "aria-label": "Why work did not overlap", hidden: true })
  viewer.panels.prepend(panel)
  const state = { isShown: true, isAsked: false }
  const ask = viewer.askWhy && (() => {
    Object.assign(state, { isAsked: true, isShown: true })
    viewer.askWhy()
    show()
  })
  const toggle = async () => {
    if (!isTold(view) && ask) return ask()
    // Below many lanes it may be out of sight: who presses the button wants to see it.
    if (!panel.hidden && !await isSeen(panel)) return panel.scrollIntoView({ block: "nearest" })
    state.isShown = !state.isShown
    show()
  }
  const button = makeButton("Why?", { label: "Why work did not overlap", class: "gsl-why-button", onclick: toggle })
  viewer.tools.append(button)
  function show() {
    button.hidden = !view.why && !ask && !view.notes.length
    panel.hidden = !state.isShown || !(view.why || state.isAsked || view.notes.length)
    button.setAttribute("aria-pressed", String(!panel.hidden))
    panel.replaceChildren(...(panel.hidden ? [] : panelNodes(viewer, state, ask)))
    press()
  }
  // Where one of the other pieces is shown, its own figures.
  const press = () => panel.querySelectorAll(".gsl-reasons > li").forEach((item, at) => {
    const isShown = view.reason?.number === at + 1, { text, fix } = reasonsOf(view).findings[at].pieces[isShown ? view.reason.place : 0]
    const [button, says, does] = item.children
    button.setAttribute("aria-pressed", String(isShown))
    if (isShown) showItem(item, button)
    says.textContent = text
    does.textContent = fix
  })
  // Within its lists: the page stays where it is, and so does the focus where it is not on another reason.
  function showItem(item, button) {
    if (item.parentElement.contains(document.activeElement)) button.focus({ preventScroll: true })
    for (const list of [item.parentElement, viewer.panels]) {
      const own = item.getBoundingClientRect(), { top, bottom } = list.getBoundingClientRect()
      list.scrollTop += own.top < top ? own.top - top : Math.max(0, Math.min(own.bottom - bottom, own.top - top))
    }
  }
  const commands = viewer.commands
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
    // Who goes on to another span is done with the reason.
    else if (property === "pinned" && view.reason && !isPinned(view, shownPiece(view))) view.set("reason", null)
  })
  show()
}

/** Whether more than a rim of an element is in sight. */
const isSeen = element => new Promise(done => {
  const watch = new IntersectionObserver(([{ intersectionRect: seen, boundingClientRect: own }]) => {
    watch.disconnect()
    done(seen.height >= Math.min(40, own.height / 2))
  })
  watch.observe(element)
})

const isPinned = ({ pinned }, piece) => Boolean(piece) && pinned?.row === piece.late?.row && pinned?.index === piece.late?.index

function panelNodes(viewer, { isAsked }, ask) {
  const { view } = viewer
  const again = ask && view.why ? makeButton("Ask again", { label: "Ask again, of what ran until now", onclick: ask }) : null
  const head = makeNode("header", {}, makeNode("h3", { text: view.why || isAsked ? "Why?" : "Notes" }), makeNode("p", { text: isAsked ? ASKED : view.why?.line ?? "" }), again)
  if (isAsked) return [head]
  const { findings } = reasonsOf(view), { notes = [], more = 0, bound = [] } = view.why ?? {}
  const all = [...(more ? [`… ${formatCount(more)} more: see ${view.isLive ? "lab" : "trace"}.explain().findings.`] : []), ...(findings.length ? [HINT + (findings.some(({ pieces }) => pieces.length > 1) ? MORE_HINT : "")] : []), ...notes]
  const list = makeNode("ol", { class: "gsl-reasons" }, ...findings.map(finding => findingNode(viewer, finding)))
  const lines = bound.map(text => makeNode("p", { class: "gsl-bound", text, dir: "auto" }))
  return [head, ...(findings.length ? [list] : []), ...lines, ...(all.length ? [makeNode("p", { class: "gsl-note", text: all.join(" ") })] : [])]
}

/** A button with the sign of a finding and what it is. */
export function signButton({ head, kind = "cause", sign }, label, onclick) {
  const button = makeButton(head, { label, class: "gsl-reason", dir: "auto", onclick })
  button.prepend(makeNode("b", { class: "gsl-number", "data-kind": kind, text: sign }))
  return button
}

function findingNode(viewer, finding) {
  const { head, number, note } = finding
  const { view, figureElement: figure } = viewer, commands = viewer.commands
  // Looked up anew: spans of a live view move. A second click goes to its next piece.
  const go = () => {
    const { pieces } = reasonsOf(view).findings[number - 1], { reason } = view
    showPiece(view, pieces[reason?.number === number ? (reason.place + 1) % pieces.length : 0])
    const { bottom, height } = figure.getBoundingClientRect()
    if (bottom < height / 2) figure.scrollIntoView({ block: "nearest" }) // The list is long: what it tells of would be out of sight.
  }
  const own = note ? [makeButton("Edit", { label: `Edit the note ${head}`, onclick: () => commands.editNote(note) }), makeButton("Delete", { label: `Delete the note ${head}`, onclick: () => commands.dropNote(note) })] : []
  return makeNode("li", {}, signButton(finding, head, go), makeNode("p", { dir: "auto" }), makeNode("p", { class: "gsl-fix", dir: "auto" }), ...own)
}
