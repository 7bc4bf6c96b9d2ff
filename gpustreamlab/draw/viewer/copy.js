// Copy a text also where the browser keeps its clipboard from the page: on plain http, and in frames of other sites.

import { makeNode } from "./nodes.js"

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
  try { isCopied = document.execCommand("copy") } catch { isCopied = false }
  if (isCopied) {
    offer.remove()
    focused?.focus?.({ preventScroll: true })
  }
  return isCopied
}
