// Elements of the viewer's own DOM. What comes from data goes in as text, never as HTML.

import { HATCH_LINES } from "./brush.js"

const CLICK_PX = 4
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
  // JupyterLab asks the focused element itself whether it keeps its keys from the notebook's shortcuts.
  if (element.matches("button, input, textarea, [tabindex]")) element.dataset.lmSuppressShortcuts = "true"
  element.append(...children.filter(child => child != null))
  return element
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

/** Hear events of an element by their names: before what is within it does, unless `options` say else. */
export function listen(element, heard, options = true) {
  for (const [type, listener] of Object.entries(heard)) element.addEventListener(type, listener, options)
}

/** Call back where the mouse is pressed and released at one place of the figure; else it drags. */
export function onClick({ figureElement: figure }, listener) {
  let down = null
  const pointerdown = event => { down = event.button ? null : event }
  const pointerup = up => {
    if (down && !up.button && Math.hypot(up.clientX - down.clientX, up.clientY - down.clientY) <= CLICK_PX) listener(up)
    down = null
  }
  listen(figure, { pointerdown, pointerup })
}

/** Call at once, then at most every so many ms, with the last call never lost, until the viewer ends. */
export function throttled(viewer, action, everyMs) {
  let timer = 0, last = -Infinity
  const call = () => {
    timer ||= setTimeout(() => {
      timer = 0
      last = performance.now()
      action()
    }, Math.max(0, last + everyMs - performance.now()))
  }
  viewer.atEnd(() => clearTimeout(timer))
  return call
}

/** A sheet above the page: Esc or another of its keys shuts it, as does a click beside it. */
export class Sheet {
  constructor(viewer, name, label, { keys = ["Escape"], back = () => viewer.element } = {}) {
    const facts = { role: "dialog", "aria-label": label, tabindex: "-1", popover: "auto" }
    Object.assign(this, { viewer, back, element: makeNode("section", { class: `gsl-sheet gsl-${name}`, ...facts }) })
    this.element.addEventListener("keydown", event => {
      if (event.isComposing || !keys.includes(event.key)) return
      event.preventDefault()
      event.stopPropagation()
      this.shut()
    })
    viewer.element.append(this.element)
  }

  /** Put a heading, a button that shuts it, and nodes into it. */
  fill(title, ...nodes) {
    const close = makeButton("Close", { key: "Escape", onclick: () => this.shut() })
    this.element.replaceChildren(makeNode("header", {}, makeNode("h3", { text: title, dir: "auto" }), close), ...nodes)
  }

  get isOpen() { return this.element.matches(":popover-open") }

  /** Open it in the middle of the window, or at a place of it: within, also when the window becomes smaller. */
  open({ top, left, right } = {}) {
    const { element, viewer } = this
    viewer.commands.hideTip()
    element.togglePopover(true)
    if (top !== undefined) {
      const within = (px, side, size) => `max(4px, min(${px}px, ${side} - ${size + 4}px))`
      const x = within(left ?? right - element.offsetWidth, "100vw", element.offsetWidth)
      Object.assign(element.style, { inset: "auto", margin: "0", left: x, top: within(top, "100vh", element.offsetHeight) })
    }
    element.focus({ preventScroll: true })
  }

  shut() {
    this.element.hidePopover()
    this.back()?.focus({ preventScroll: true })
  }
}

/** Copy `text`; where no way works, show it selected in a text area within `place`, so that Ctrl+C does. */
export async function copyText(text, button, place) {
  const says = button.textContent
  const isCopied = await navigator.clipboard?.writeText(text).then(() => true, () => false) || copyByCommand(text, place)
  if (!isCopied) return
  button.textContent = "Copied"
  setTimeout(() => { button.textContent = says }, 1500)
}

/** By the browser's own command; where that does not work either, the text stays selected, so that Ctrl+C does. */
function copyByCommand(text, place) {
  const focused = document.activeElement, area = makeNode("textarea", { readonly: true, rows: "3", "aria-label": "Text to copy" })
  const offer = makeNode("div", { class: "gsl-offer" }, makeNode("p", { text: "This page may not use the clipboard. Press Ctrl+C:" }), area)
  area.value = text
  place.querySelector(".gsl-offer")?.remove()
  place.append(offer)
  area.focus()
  area.select()
  let isCopied = false
  try { isCopied = document.execCommand("copy") } catch {}
  if (isCopied) {
    offer.remove()
    focused?.focus?.({ preventScroll: true })
  }
  return isCopied
}
