// The drawer at the right, at the bottom where there is little width: findings, and what is selected. The picture stays as it is
// when it opens: time keeps its scale, and lanes their places.

import { timesOf } from "./facts.js"
import { makeButton, makeNode } from "./nodes.js"
import { reasonsOf } from "./why.js"

const WIDTH_PX = 336 // With the gap beside it, as in viewer.css.
const NARROW_PX = 860 // A viewer of less has it at the bottom.

/** Add it, before the picture is made: where there is room it is open from the start, so that a click takes none. */
export function addDrawer(viewer) {
  const { view, fills, opens, commands } = viewer, drawer = viewer.drawer = new Drawer(viewer)
  commands.shutDrawer = () => drawer.shut()
  if (opens && !drawer.isNarrow && (fills || reasonsOf(view).findings.some(({ folds }) => !folds))) {
    drawer.open()
    drawer.isUnasked = true
  }
}

class Drawer {
  constructor(viewer) {
    Object.assign(this, { viewer, isOpen: false, isUnasked: false, opener: null, hint: makeNode("p", { class: "gsl-note", text: "Click a bar, a gap of a lane, or a sign." }) })
    const close = makeButton("×", { label: "Shut the drawer", key: "Escape", class: "gsl-shut", onclick: () => { this.shut(); viewer.focus() } })
    this.element = makeNode("aside", { class: "gsl-drawer", role: "region", "aria-label": "Findings and details", tabindex: "0", hidden: true }, close, this.hint)
    viewer.body.append(this.element)
    const observer = new ResizeObserver(() => {
      if (this.isUnasked && this.isNarrow) this.shut() // At the bottom it would stand before lanes, and nobody asked for it.
      this.place()
    })
    observer.observe(viewer.element)
    viewer.atEnd(() => observer.disconnect())
    this.place()
  }

  /** Whether all of the run is in view. */
  get isWhole() {
    const { view } = this.viewer, { start, end } = view.extent()
    return view.x0 <= start && view.x1 >= end
  }

  /** How wide the picture is while it is open: what must not change then goes by that. */
  get leastPx() { return this.viewer.element.clientWidth - (this.isNarrow ? 0 : WIDTH_PX) }

  get isNarrow() { return this.viewer.element.clientWidth < NARROW_PX }

  /** Add a section, which is hidden where it has nothing to tell. */
  add(name, label) {
    const section = makeNode("section", { class: `gsl-section gsl-${name}`, "aria-label": label, hidden: true })
    this.element.append(section)
    return section
  }

  /** Fill a section, or empty it; `isAsked`: someone wants to read it, so it comes into sight. */
  fill(section, nodes, isAsked = false) {
    section.hidden = !nodes.length
    section.replaceChildren(...nodes)
    this.hint.hidden = [...this.element.children].some(child => child.tagName === "SECTION" && !child.hidden)
    if (nodes.length && isAsked) this.bring(section)
    else if (!nodes.length) queueMicrotask(() => { if (this.opener === section && section.hidden) this.shut() }) // Unless another comes in its place.
  }

  bring(section) {
    const wasOpen = this.isOpen
    this.open()
    this.isUnasked = false
    if (!wasOpen || this.opener) this.opener = section.closest("section") // With what it tells it goes again.
    const { top, bottom } = section.getBoundingClientRect(), own = this.element.getBoundingClientRect()
    if (top < own.top || bottom > own.bottom) this.element.scrollTop += Math.min(top - own.top, Math.max(top - own.top - 32, bottom - own.bottom))
  }

  toggle() { return this.isOpen ? this.shut() : this.open() }

  open() { if (!this.isOpen) this.set(true) }

  /** Whether there was anything to shut. */
  shut() {
    const wasOpen = this.isOpen
    if (wasOpen) this.set(false)
    return wasOpen
  }

  set(isOpen) {
    const { viewer: { view }, isWhole } = this
    this.isOpen = isOpen
    this.isUnasked = false
    this.opener = null
    this.keepScale(() => {
      this.element.hidden = !isOpen
      this.place()
    })
    if (!isOpen && isWhole) view.fit()
    view.emit("look", "drawer")
  }

  /** Make the picture wider or narrower at its right end, where time goes on or is cut. */
  keepScale(change) {
    const { view, figureElement: figure, plotView } = this.viewer, { x0, nsPerPx, frame } = view, before = figure.clientWidth
    change()
    const morePx = figure.clientWidth - before
    if (!morePx || !plotView) return
    view.frame = { ...frame, right: frame.right + morePx }
    view.setRange(x0, x0 + nsPerPx * (view.frame.right - frame.left))
    const [start, end] = view.pinned ? timesOf(view, view.pinned) : view.gap ? [view.gap.start, view.gap.end] : [x0, x0], width = view.x1 - x0
    if (start < view.x1 - 0.02 * width) return
    const by = Math.min(end, start + 0.9 * width) + 0.02 * width - view.x1 // What was clicked at that end stays in sight.
    view.setRange(x0 + by, x0 + by + width)
  }

  /** At the right as high as the window allows; at the bottom as a sheet. */
  place() {
    const { viewer: { element, body, fills }, isNarrow } = this
    Object.assign(element.dataset, { open: this.isOpen && !isNarrow, narrow: isNarrow })
    this.element.style.setProperty("--gsl-above", `${fills ? Math.round(body.getBoundingClientRect().top + window.scrollY) : 0}px`)
  }
}
