// Boots the viewer in a frame of a notebook that holds no code: another frame has left it in the notebook's window, or will, see page.js.
// Until then, and where that frame is gone, the picture beside this frame is what is seen.
"use strict";
(() => {
  const NOTE_AFTER_MS = 4000, NOTE = "A still picture: this notebook's first timeline makes it one to zoom in. Where that one is gone, reload the page and run this cell again."
  const host = window.parent, {code: key} = document.currentScript.dataset, note = host.document.createElement("small")
  const add = (tag, text) => document.head.appendChild(Object.assign(document.createElement(tag), {textContent: text}))
  const run = () => {
    if (!host[key] || window.gslCode) return
    note.remove()
    const {style, boot} = window.gslCode = host[key]
    add("style", style)
    add("script", boot)
  }
  const leave = new AbortController()
  host.addEventListener(key, run, {signal: leave.signal})
  addEventListener("pagehide", () => leave.abort())
  setTimeout(() => { if (!window.gslCode) window.frameElement.before(Object.assign(note, {textContent: NOTE})) }, NOTE_AFTER_MS)
  run()
})()
