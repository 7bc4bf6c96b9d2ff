// The switch of the arrows between spans.

import { commandsOf, makeButton, toolsOf } from "./nodes.js"

/** Add the button that shows and hides the waits, where there are any. */
export function addWaitsButton(viewer) {
  const { view } = viewer
  const toggle = () => view.store.edges.length && view.set("showsWaits", !view.showsWaits)
  const button = makeButton("Waits", { label: "Arrows from what was waited for to what waited", key: "E", class: "gsl-waits", onclick: toggle })
  toolsOf(viewer).append(button)
  const show = () => {
    button.hidden = !view.store.edges.length
    button.setAttribute("aria-pressed", String(view.showsWaits))
  }
  const offs = [view.on("data", show), view.on("look", property => property === "showsWaits" && show())]
  commandsOf(viewer).toggleWaits = toggle
  show()
  return () => {
    offs.forEach(off => off())
    button.remove()
  }
}
