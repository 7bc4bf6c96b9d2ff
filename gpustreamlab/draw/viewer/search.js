// Find spans: what matches keeps its look, the rest is dimmed, Enter goes from one to the next in time.

import { isSpan } from "./facts.js"
import { countMatches, nextMatch } from "./matches.js"
import { commandsOf, listen, makeButton, makeNode, partOf, rootOf, throttled } from "./nodes.js"
import { compileSearch, matchNumber, searchIsStale, searchProblem } from "./query.js"
import { formatCount } from "./units.js"

const SEARCH_AFTER_MS = 120
const RECOUNT_EVERY_MS = 500

/** Add the search box. */
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
  partOf(viewer, "bar").append(form)
  const state = { matches: null, total: 0, problem: "" }

  function run() {
    state.problem = searchProblem(box.value, view.tables)
    // What cannot be understood dims nothing.
    state.matches = state.problem ? null : compileSearch(box.value, view.tables)
    box.setAttribute("aria-invalid", String(Boolean(state.problem)))
    view.set("matches", state.matches)
    steps.forEach(button => { button.hidden = !state.matches })
    recount()
  }
  function recount() {
    state.total = countMatches(view.store)
    tell()
  }
  function tell() {
    says.textContent = state.problem
    says.hidden = !state.problem
    found.textContent = !state.matches ? "" : state.total ? matchPlace(view, state) : "none found"
  }
  function go(direction) {
    if (isStale()) run()
    if (!state.total) return
    const hit = nextMatch(view.store, matchOrigin(view, direction), direction) ?? nextMatch(view.store, null, direction)
    if (!hit) return
    view.show(hit.row, hit.index)
    tell()
  }
  function clear() {
    box.value = ""
    run()
  }
  let timer = 0
  const typed = () => { clearTimeout(timer); timer = setTimeout(run, SEARCH_AFTER_MS) }
  const now = () => { clearTimeout(timer); run() }
  const isStale = () => (state.matches ? searchIsStale(state.matches, view.tables) : Boolean(state.problem))
  const again = throttled(() => (isStale() ? run() : state.matches && recount()), RECOUNT_EVERY_MS)
  const keyed = event => {
    if (event.isComposing) return
    if (event.key === "Enter") {
      now()
      go(event.shiftKey ? -1 : 1)
    } else if (event.key === "Escape") {
      clearTimeout(timer)
      clear()
      rootOf(viewer).focus({ preventScroll: true })
    } else return
    event.preventDefault()
    event.stopPropagation()
  }
  const offs = [
    listen(box, "input", typed), listen(box, "keydown", keyed), listen(box, "search", () => box.value || now()),
    view.on("data", again), view.on("look", tell),
  ]
  const commands = commandsOf(viewer)
  commands.search = () => { box.focus({ preventScroll: true }); box.select() }
  commands.searchFor = text => { box.value = text; now(); commands.search() }
  view.keep("search", () => box.value || null, text => { box.value = text ?? ""; now() })
  commands.clearSearch = () => (box.value ? (clear(), true) : false)
  return () => {
    offs.forEach(off => off())
    clearTimeout(timer)
    again.stop()
    form.remove()
  }
}

/** "12 of 3,456": the place of the pinned span among the matches, in order of time. */
function matchPlace(view, state) {
  const total = formatCount(state.total), pinned = view.pinned
  if (!pinned || !isSpan(pinned) || !view.store.row(pinned.row).isMatch(pinned.index, state.matches)) return `${total} found`
  return `${formatCount(matchNumber(view.store, pinned))} of ${total}`
}

/** Where the search goes on from: the pinned span, else the edge of the view. */
function matchOrigin({ pinned, x0, x1 }, direction) {
  if (!pinned) return { time: direction > 0 ? x0 : x1 }
  return { row: pinned.row, index: pinned.index ?? (direction > 0 ? pinned.last : pinned.first) }
}
