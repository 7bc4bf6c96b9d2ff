// Where the time of the whole run went: one bar above the picture; a click on a piece lights its places.

import { makeNode } from "./nodes.js"
import { formatNs } from "./units.js"

/** Add the bar, as soon as it is known; in a live view that is when the kernel was asked. */
export function addWent(viewer) {
  const { view } = viewer, element = makeNode("section", { class: "gsl-went", "aria-label": "Where the time went", hidden: true }), key = makeNode("small")
  viewer.element.prepend(element)
  const told = () => ({ pieces: [], said: "", ...view.why?.went }), buttons = () => [...element.querySelectorAll(".gsl-share")]
  const show = () => {
    const { pieces, said } = told(), light = piece => view.set("lit", view.lit === piece ? null : piece)
    element.hidden = !pieces.length
    if (view.lit && !pieces.includes(view.lit)) view.set("lit", null)
    element.replaceChildren(makeNode("h3", { text: "Where the time went" }), makeNode("div", { class: "gsl-shares" }, ...pieces.map(piece => pieceNode(piece, () => light(piece)))), makeNode("p", {}, said, key))
    fit()
    press()
  }
  // Pieces that are too narrow for their words have a letter, which is explained below.
  const fit = () => {
    for (const button of buttons()) delete button.dataset.letter
    const narrow = buttons().filter(button => [...button.querySelectorAll("span, b")].some(({ scrollWidth, clientWidth }) => scrollWidth > clientWidth))
    narrow.forEach((button, place) => { button.dataset.letter = String.fromCharCode(97 + place) })
    key.replaceChildren(...narrow.flatMap(({ dataset: { letter: text }, textContent }) => [makeNode("b", { text }), ` ${textContent}`.replaceAll(" ", "\u00a0") + "  "]))
  }
  const press = () => buttons().forEach((button, place) => button.setAttribute("aria-pressed", String(view.lit === told().pieces[place])))
  view.on("look", property => { if (property === "why") show(); else if (property === "lit") press() })
  show()
  const observer = new ResizeObserver(fit)
  observer.observe(element)
  viewer.atEnd(() => observer.disconnect())
}

function pieceNode({ label, about, fill, ns }, onclick) {
  const text = `${label} ${formatNs(ns)}`, title = `${text}: ${about}. Click to see where`
  const button = makeNode("button", { type: "button", class: "gsl-share", title, "aria-label": title, onclick }, makeNode("span", { class: "gsl-what" }, makeNode("span", { text: label }), " ", makeNode("b", { text: formatNs(ns) })))
  button.style.flexGrow = String(ns)
  button.style.setProperty("--gsl-fill", fill === "none" ? "transparent" : fill)
  button.classList.toggle("gsl-nothing", fill === "none")
  return button
}

/** Light the places of the chosen piece, over all lanes and the card. */
export function paintLit(ctx, { view, theme }) {
  if (!view.lit) return
  const { frame } = view
  ctx.fillStyle = theme.accent
  for (const [start, end] of view.lit.places) {
    const left = Math.max(frame.left, view.pxAt(start)), right = Math.min(frame.right, view.pxAt(end)), wide = Math.max(1, right - left)
    if (right < frame.left || left > frame.right) continue
    ctx.globalAlpha = 0.18
    ctx.fillRect(left, frame.top, wide, view.parts.innerPx)
    ctx.globalAlpha = 1
    ctx.fillRect(left, frame.top, wide, 3)
  }
}
