// Find spans: what matches keeps its look, the rest is dimmed, Enter goes from one to the next in time.

import { isSpan } from "./facts.js"
import { makeButton, makeNode, throttled } from "./nodes.js"
import { compileSearch, searchIsStale, searchProblem } from "./query.js"
import { countMatches, nextMatch } from "./store.js"
import { formatCount } from "./units.js"

const SEARCH_EVERY_MS = 120
const RECOUNT_EVERY_MS = 500

export function addSearch(viewer) {
  const { view } = viewer
  const box = makeNode("input", {
    type: "search", placeholder: "Search  /", "aria-label": "Search spans", "aria-keyshortcuts": "/", spellcheck: "false", autocomplete: "off",
    title: "A part of a name, or stream:decode, kind:copy, partition:prefill, thread:main, is:stray, >1ms, <5us; Enter goes to the next, Shift+Enter to the previous",
  })
  const says = makeNode("output", { class: "gsl-problem", "aria-live": "polite", hidden: true }), found = makeNode("output", { class: "gsl-found", "aria-live": "polite" })
  const step = (text, label, key, direction) => makeButton(text, { label, key, class: "gsl-step", onclick: () => go(direction), hidden: true })
  const steps = [step("‹", "Previous match", "Shift+Enter", -1), step("›", "Next match", "Enter", 1)]
  const form = makeNode("div", { class: "gsl-search", role: "search" }, box, makeNode("div", {}, found, ...steps), says)
  viewer.bar.append(form)
  let total = 0, problem = ""

  function run() {
    problem = searchProblem(box.value, view.tables)
    box.setAttribute("aria-invalid", String(Boolean(problem)))
    view.set("matches", problem ? null : compileSearch(box.value, view.tables)) // What cannot be understood dims nothing.
    steps.forEach(button => { button.hidden = !view.matches })
    recount()
  }
  function recount() {
    total = countMatches(view.store)
    tell()
  }
  function tell() {
    says.textContent = problem
    says.hidden = !problem
    found.textContent = !view.matches ? "" : total ? matchPlace(view, total) : "none found"
  }
  function go(direction) {
    if (isStale()) run()
    if (!total) return
    const hit = nextMatch(view.store, matchOrigin(view, direction), direction) ?? nextMatch(view.store, null, direction)
    if (!hit) return
    view.show(hit.row, hit.index)
    tell()
  }
  function clear() {
    box.value = ""
    run()
  }
  const isStale = () => (view.matches ? searchIsStale(view.matches, view.tables) : Boolean(problem))
  const again = throttled(viewer, () => (isStale() ? run() : view.matches && recount()), RECOUNT_EVERY_MS)
  const keyed = event => {
    if (event.isComposing) return
    if (event.key === "Enter") {
      run()
      go(event.shiftKey ? -1 : 1)
    } else if (event.key === "Escape") {
      clear()
      viewer.focus()
    } else return
    event.preventDefault()
    event.stopPropagation()
  }
  box.addEventListener("input", throttled(viewer, run, SEARCH_EVERY_MS))
  box.addEventListener("keydown", keyed)
  box.addEventListener("search", () => box.value || run())
  view.on("data", again)
  view.on("look", tell)
  const commands = viewer.commands
  commands.search = () => { box.focus({ preventScroll: true }); box.select() }
  commands.searchFor = text => { box.value = text; run(); commands.search() }
  view.keep("search", () => box.value || null, text => { box.value = text ?? ""; run() })
  commands.clearSearch = () => Boolean(box.value) && (clear(), true)
}

/** "12 of 3,456": the place of the pinned span among the matches, in order of time. */
function matchPlace({ pinned, store, matches }, total) {
  if (!pinned || !isSpan(pinned) || !store.row(pinned.row).isMatch(pinned.index, matches)) return `${formatCount(total)} found`
  return `${formatCount(countMatches(store, pinned))} of ${formatCount(total)}`
}

/** Where the search goes on from: the pinned span, else the edge of the view. */
function matchOrigin({ pinned, x0, x1 }, direction) {
  if (!pinned) return { time: direction > 0 ? x0 : x1 }
  return { row: pinned.row, index: pinned.index ?? (direction > 0 ? pinned.last : pinned.first) }
}
