// Copy a text also where the browser keeps its clipboard from the page: on plain http, and in frames of other sites.

import { makeNode } from "./nodes.js"

/** Copy `text`; where no way works, show it selected in a text area within `place`, so that Ctrl+C does. */
export async function copyText(text, button, place) {
  const says = button.textContent
  const isCopied = (await copyByClipboard(text)) || copyByCommand(text, place)
  if (isCopied) {
    button.textContent = "Copied"
    setTimeout(() => { button.textContent = says }, 1500)
  } else {
    offerText(text, place)
  }
  return isCopied
}

async function copyByClipboard(text) {
  try {
    if (!navigator.clipboard) return false
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return false
  }
}

function copyByCommand(text, place) {
  const focused = document.activeElement
  const area = makeNode("textarea", { class: "gsl-out", "aria-hidden": "true", tabindex: "-1" })
  area.value = text
  place.append(area)
  area.select()
  let isCopied = false
  try { isCopied = document.execCommand("copy") } catch { isCopied = false }
  area.remove()
  focused?.focus?.({ preventScroll: true })
  return isCopied
}

function offerText(text, place) {
  place.querySelector(".gsl-offer")?.remove()
  const area = makeNode("textarea", { readonly: true, rows: "3", "aria-label": "Text to copy" })
  area.value = text
  place.append(makeNode("div", { class: "gsl-offer" }, makeNode("p", { text: "This page may not use the clipboard. Press Ctrl+C:" }), area))
  area.focus()
  area.select()
}
