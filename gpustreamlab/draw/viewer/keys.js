// Keys as in Perfetto and chrome://tracing.

import { isSpan, timesOf } from "./facts.js"
import { addHelp } from "./help.js"
import { listen } from "./nodes.js"

const ZOOM_STEP = 1.5
const PAN_STEP = 0.2
const PAGE_STEP = 0.8
const MOVES = new Set(["w", "a", "s", "d"]) // The tip stays, and tells what comes under the pointer.
const SCROLLS = /^(Arrow|Page|Home|End)/
const NOTEBOOKS = ".jp-LabShell, .jp-Notebook, .jp-OutputArea, .notebook_app, .vscode-body, [data-vscode-theme-kind]"

/** Let keys steer the viewer while it has the focus, or the pointer is over it, or nothing else is on the page. */
export function addKeys(viewer) {
  const root = viewer.element, figure = viewer.figureElement
  // Bokeh's canvas takes the focus, too, and then keys would go to an element that does not tell JupyterLab to leave them.
  viewer.plotView?.canvas_view?.events_el?.removeAttribute("tabindex")
  for (const part of figure.children) part.dataset.lmSuppressShortcuts = "true"
  const state = { pointer: null }
  addHelp(viewer)
  const keyed = event => {
    if (!isForTimeline(event, root, state)) return
    const action = keyAction(viewer, event, state)
    if (!action) return
    event.preventDefault()
    event.stopPropagation()
    if (!MOVES.has(event.key.toLowerCase())) viewer.commands.hideTip()
    action()
  }
  document.addEventListener("keydown", keyed, { signal: viewer.signal })
  const pointed = event => { state.pointer = event }
  listen(root, { pointerenter: pointed, pointerleave: () => { state.pointer = null } }, false)
  // Who clicks into the picture means the timeline; else a part of Bokeh's would take the focus. Controls take it themselves.
  const mousedown = event => { event.preventDefault(); viewer.focus() }
  listen(figure, { pointermove: pointed, mousedown })
}

/** Whether a key is meant for the timeline: not while a text is written, nor with a modifier that the browser or the notebook uses. */
function isForTimeline(event, root, state) {
  if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return false
  const target = event.composedPath()[0]
  // A sheet has keys of its own, and the drawer scrolls where it has the focus itself.
  if (isWriting(target) || target.closest?.(".gsl-sheet") || (target.matches?.(".gsl-drawer") && SCROLLS.test(event.key))) return false
  if (event.key === "Escape" && document.body.popover !== undefined && document.querySelector(".gsl-about:popover-open")) return false // The browser shuts it.
  if (root.contains(target) || root.contains(event.target)) return true
  const hasNoFocus = target === document.body || target === document.documentElement || (isPageOfOne() && target.closest?.(".gsl-head"))
  if (!hasNoFocus || document.querySelector(NOTEBOOKS)) return false
  return Boolean(state.pointer) || (isPageOfOne() && !isForScrolling(event))
}

/** Whether the page is there for one timeline: keys need no click and no pointer then. A frame may be part of a notebook. */
const isPageOfOne = () => window.parent === window && document.querySelectorAll(".gsl-viewer").length === 1

/** Whether a key scrolls the page, which is higher than the window. */
function isForScrolling({ key }) {
  const { scrollHeight, clientHeight } = document.documentElement
  return scrollHeight > clientHeight && (key === " " || /^(ArrowUp|ArrowDown|Page|Home|End)/.test(key))
}

function isWriting(target) {
  return target.isContentEditable || target.tagName === "TEXTAREA" || target.tagName === "SELECT" ||
    (target.tagName === "INPUT" && !/^(button|checkbox|radio|range|reset|submit)$/.test(target.type))
}

/** What a key does, or undefined. Letters go by what they say, and by their place where the keyboard writes no Latin. */
function keyAction(viewer, event, state) {
  const { view } = viewer, commands = viewer.commands
  const isOnControl = event.composedPath()[0].matches?.("button, a, summary, input")
  if (isOnControl && (event.key === " " || event.key === "Enter")) return undefined
  const letter = /^[a-z]$/i.test(event.key) || !/^Key/.test(event.code) ? event.key.toLowerCase() : event.code.slice(3).toLowerCase()
  if (event.shiftKey && event.key.length > 1) return undefined
  const at = () => pointerTime(viewer, state), zoomIn = () => view.zoomBy(1 / ZOOM_STEP, at()), zoomOut = () => view.zoomBy(ZOOM_STEP, at())
  return {
    w: zoomIn, "+": zoomIn, "=": zoomIn, s: zoomOut, "-": zoomOut,
    a: () => view.panBy(-PAN_STEP), d: () => view.panBy(PAN_STEP),
    f: () => fitNext(view), 0: () => view.fit(),
    arrowleft: () => stepSpan(view, -1), arrowright: () => stepSpan(view, 1),
    arrowup: () => stepRow(view, -1), arrowdown: () => stepRow(view, 1),
    pageup: view.canScroll ? () => view.scrollTo(view.scrollPx - PAGE_STEP * view.lanesPx) : undefined,
    pagedown: view.canScroll ? () => view.scrollTo(view.scrollPx + PAGE_STEP * view.lanesPx) : undefined,
    "/": commands.search, n: () => commands.note(at()), e: commands.toggleWaits, v: commands.menu, l: commands.lane, y: commands.nextReason, "?": commands.help,
    " ": view.isLive ? commands.pause : undefined, end: view.isLive ? commands.follow : undefined,
    escape: () => leaveOne(viewer),
  }[letter]
}

/** The time under the pointer, or undefined where that is not over the picture: then the middle is meant. */
function pointerTime(viewer, { pointer }) {
  if (!pointer) return undefined
  const { view } = viewer
  const { x } = viewer.pointOf(pointer)
  return x >= view.frame.left && x <= view.frame.right ? view.timeAt(x) : undefined
}

/** Fit the pinned span, or the selection; where that is in view already, everything. */
function fitNext(view) {
  const { pinned, gap, selection, x0, x1 } = view
  if (pinned) view.fitAround(...timesOf(view, pinned))
  else if (gap) view.fitAround(gap.start, gap.end)
  else if (selection) view.setRange(selection.start, selection.end)
  if (view.x0 === x0 && view.x1 === x1) view.fit()
}

/** Esc undoes one thing at a time, the latest kind first. */
function leaveOne(viewer) {
  const { view } = viewer, commands = viewer.commands
  const chosen = ["pinned", "reason", "gap"].filter(key => view[key])
  if (chosen.length) return chosen.forEach(key => view.set(key, null))
  const other = ["lit", "selection"].find(key => view[key])
  if (other) return view.set(other, null)
  if (!commands.clearSearch()) commands.shutDrawer()
}

/** Pin the previous or next span of the pinned one's row. */
function stepSpan(view, direction) {
  const from = view.pinned
  if (!from) return pinFirst(view)
  const edge = isSpan(from) ? from.index : direction > 0 ? from.last : from.first
  const index = edge + direction
  if (index >= 0 && index < view.store.row(from.row).length) view.show(from.row, index)
}

/** Pin the span nearest in time in the row above or below that has any: the enclosing one, then the lane above. */
function stepRow(view, direction) {
  const from = view.pinned
  if (!from) return pinFirst(view)
  const rows = rowsFromTop(view), [start, end] = timesOf(view, from), middle = (start + end) / 2
  for (let place = rows.indexOf(from.row) + direction; place >= 0 && place < rows.length; place += direction) {
    if (view.store.row(rows[place]).length) return view.show(rows[place], nearestSpan(view.store, rows[place], middle))
  }
}

/** Nothing is pinned yet: take the span nearest the middle, in the uppermost row in view that has any. */
function pinFirst(view) {
  const rows = rowsFromTop(view).filter(code => view.store.row(code).length)
  const shown = rows.find(code => view.tables.rows[code].bottom > view.scrollPx) ?? rows[0]
  if (shown !== undefined) view.show(shown, nearestSpan(view.store, shown, (view.x0 + view.x1) / 2))
}

function rowsFromTop({ tables: { rows } }) {
  return rows.map((_, code) => code).filter(code => rows[code].top >= 0).sort((a, b) => rows[a].top - rows[b].top || a - b)
}

/** The span of a row that runs at a time, or else the nearest to it. */
function nearestSpan(store, code, time) {
  const row = store.row(code), at = row.indexAt(time)
  if (at < 0) return 0
  if (at + 1 >= row.length || row.end[at] >= time) return at
  return time - row.end[at] <= row.start[at + 1] - time ? at : at + 1
}
