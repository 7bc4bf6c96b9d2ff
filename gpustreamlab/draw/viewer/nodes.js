// Elements of the viewer's own DOM. What comes from data goes in as text, never as HTML.

import { HATCH_LINES } from "./brush.js"

const HATCH_SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="6" height="6" viewBox="0 0 8 8"><path d="*" stroke="#101418" stroke-opacity=".5" fill="none"/></svg>'

/** Make an element: `facts` are attributes, `on…` listeners, `text` its text; the rest are its children. */
export function makeNode(tag, facts = {}, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(facts)) {
    if (name === "text") element.textContent = value
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (value === true) element.setAttribute(name, "")
    else if (value !== false && value != null) element.setAttribute(name, value)
  }
  if (isFocusable(element)) element.dataset.lmSuppressShortcuts = "true"
  element.append(...children.filter(child => child != null))
  return element
}

// JupyterLab asks the focused element itself whether it keeps its keys from the notebook's shortcuts.
function isFocusable(element) {
  return element.matches("button, input, textarea, [tabindex]")
}

/** Make a button; `label` is read aloud and shown as its tip, with the key that does the same. */
export function makeButton(text, { label = text, key = "", ...facts } = {}) {
  const title = key ? `${label} (${key})` : label
  return makeNode("button", { type: "button", title, "aria-label": label, "aria-keyshortcuts": key || null, text, ...facts })
}

/** A sample of a look: a colour, the hatch over it where there are hatches, and its shape where that is "hollow" or "open". */
export function makeSwatch({ fill, hatch, letter = "", shape = "" }) {
  const swatch = makeNode("i", { class: "gsl-swatch", "aria-hidden": "true", text: letter, "data-shape": shape })
  swatch.style.setProperty("--gsl-fill", fill)
  if (HATCH_LINES[hatch]) swatch.style.setProperty("--gsl-hatch", `url("data:image/svg+xml,${encodeURIComponent(HATCH_SVG.replace("*", HATCH_LINES[hatch]))}")`)
  return swatch
}

/** The viewer's root; it has the focus when keys are meant for the timeline. */
export function rootOf(viewer) {
  const element = viewer.element
  return element.matches(".gsl-viewer") ? element : element.querySelector(".gsl-viewer")
}

/** A part of the viewer by its class. */
export function partOf(viewer, name) {
  return rootOf(viewer).querySelector(`.gsl-${name}`)
}

/** Where a place of the window is in the figure, in its px. */
export function figurePoint(viewer, { x, y }) {
  const box = partOf(viewer, "figure").getBoundingClientRect()
  return { x: x - box.left, y: y - box.top }
}

/** The group of buttons in the bar that wraps as one. */
export function toolsOf(viewer) {
  const bar = partOf(viewer, "bar")
  return bar.querySelector(".gsl-tools") ?? bar.appendChild(makeNode("div", { class: "gsl-tools" }))
}

/** A place for short news beside the title of the axis, where nothing else is: so the picture does not move when there are some. */
export function newsOf(viewer) {
  const figure = partOf(viewer, "figure")
  return figure.querySelector(".gsl-news") ?? figure.appendChild(makeNode("div", { class: "gsl-news" }))
}

/** What the controls can ask of each other, by name: so none needs to know which others there are. */
export function commandsOf(viewer) {
  viewer.commands ??= {}
  return viewer.commands
}

/** Listen to an element and return a function that stops it. */
export function listen(element, type, listener, options) {
  element.addEventListener(type, listener, options)
  return () => element.removeEventListener(type, listener, options)
}

/** Call at once, then at most every so many ms, with the last call never lost; `stop` forgets a pending one. */
export function throttled(action, everyMs) {
  let timer = 0, last = -Infinity
  const call = () => {
    if (timer) return
    const waitMs = last + everyMs - performance.now()
    timer = setTimeout(() => {
      timer = 0
      last = performance.now()
      action()
    }, Math.max(0, waitMs))
  }
  call.stop = () => clearTimeout(timer)
  return call
}

/** Show an element above everything, where the browser can, so that no scrolling parent cuts it. */
export function openAbove(element) {
  element.hidden = false
  if (element.isConnected && element.popover && !element.matches(":popover-open")) element.showPopover()
}

export function closeAbove(element) {
  if (element.isConnected && element.popover && element.matches(":popover-open")) element.hidePopover()
  element.hidden = true
}

/** A sheet above the page, and what shuts it: Esc or another of its keys does, as does a click beside it. */
export function makeSheet(viewer, name, label, keys = ["Escape"]) {
  const sheet = makeNode("section", { class: `gsl-sheet gsl-${name}`, role: "dialog", "aria-label": label, tabindex: "-1", hidden: true })
  const shut = () => { closeAbove(sheet); rootOf(viewer).focus({ preventScroll: true }) }
  if ("popover" in sheet) sheet.popover = "auto"
  rootOf(viewer).append(sheet)
  sheet.addEventListener("toggle", event => { if (event.newState === "closed") sheet.hidden = true })
  sheet.addEventListener("keydown", event => {
    if (event.isComposing || !keys.includes(event.key)) return
    event.preventDefault()
    event.stopPropagation()
    shut()
  })
  return { sheet, shut }
}

/** Put a sheet at a place of the window, within the window, also when that becomes smaller. */
export function placeSheet(sheet, left, top) {
  const within = (px, side, size) => `max(4px, min(${px}px, ${side} - ${size + 4}px))`
  Object.assign(sheet.style, { inset: "auto", margin: "0", left: within(left, "100vw", sheet.offsetWidth), top: within(top, "100vh", sheet.offsetHeight) })
}

/** A text for the screen reader: what changed where nothing that has the focus did. */
export function announce(viewer, text) {
  const root = rootOf(viewer)
  let status = root.querySelector(".gsl-status")
  if (!status) root.append(status = makeNode("div", { class: "gsl-status gsl-out", role: "status", "aria-live": "polite" }))
  status.textContent = text
}
