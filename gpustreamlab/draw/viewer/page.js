// Boots the viewer of a page: a file that opens offline, or a frame within a notebook.
"use strict";
(async () => {
  const boot = document.currentScript
  const element = id => document.getElementById(id)

  // Letters of 7 bits, see to_wide in draw/_columns.py; one above 127 mostly stands for a 0 before the letter 128 below it.
  const fromWide = texts => {
    const bytes = new Uint8Array(2 * texts.reduce((sum, {length}) => sum + length, 8)) // What nobody writes takes no memory.
    let count = 0, size = 0
    for (const text of texts) {
      for (let place = 0; place < text.length; place++) {
        const code = text.charCodeAt(place), letter = code & 127
        if (code > 127 && letter !== 0 && letter !== 13 && letter !== 60) count++
        bytes[count++] = letter
      }
    }
    for (let first = 0; first < count; first += 8) {
      for (let place = 0; place < 7; place++) bytes[size++] = bytes[first + place] << place + 1 | bytes[first + place + 1] >> 6 - place
    }
    return bytes.subarray(0, Math.floor(count * 7 / 8))
  }
  const packedBytes = id => {
    const parts = [element(id), ...element(id).children].filter(({type}) => type), texts = parts.map(({textContent}) => textContent)
    element(id).remove()
    return parts[0].type === "text/x-wide" ? fromWide(texts) : Uint8Array.from(atob(texts.join("")), letter => letter.charCodeAt(0))
  }
  const unpackedText = async id => {
    const stream = new Blob([packedBytes(id)]).stream().pipeThrough(new DecompressionStream("gzip"))
    return await new Response(stream).text()
  }
  const runScript = text => {
    const script = document.createElement("script")
    script.textContent = text
    document.head.appendChild(script)
    script.remove()
  }

  const frame = window.frameElement // None where a page is not in a frame, or in one of another site.
  // The viewer's code. Of a notebook's frames one holds it, and leaves it in the notebook's window for all others, see frame.js.
  const takeCode = async () => {
    if (window.gslCode) return window.gslCode
    const code = {style: document.querySelector("style").textContent, boot: boot.textContent}
    for (const name of ["bokeh", "viewer"]) code[name] = await unpackedText("gsl-" + name)
    if (!frame) return code
    window.parent[boot.dataset.code] = Object.assign(window.parent.Object(), code) // Of that window: it outlives this frame.
    window.parent.dispatchEvent(new Event(boot.dataset.code))
    return code
  }

  // The frame is as high as its content, and takes the place of the picture beside it.
  const fitFrame = () => {
    frame.style.height = Math.ceil(document.documentElement.getBoundingClientRect().height) + "px"
    const picture = frame.closest(".gpustreamlab-timeline")?.querySelector("img.gsl-picture")
    if (picture) picture.style.display = "none"
  }

  // A frame is part of a notebook; a page that compares has a second timeline.
  const isAlone = window.parent === window && !element("gsl-data-b")
  // Taken before anything of it is unpacked; its texts are shared, not copied.
  const source = document.documentElement.cloneNode(true)
  // The page as it came, with the notes that its reader wrote, which gpustreamlab.load_trace reads too.
  const savePage = (which, notes) => {
    const id = "gsl-notes" + which, page = source.querySelector("#" + id) ?? document.createElement("script")
    Object.assign(page, {id, type: "application/json", textContent: JSON.stringify(notes).replaceAll("<", "\\u003c")})
    source.querySelector("#gsl-data" + which).before(page)
    const link = document.createElement("a"), blob = new Blob(["<!DOCTYPE html>\n", source.outerHTML, "\n"], {type: "text/html"})
    Object.assign(link, {href: URL.createObjectURL(blob), download: decodeURIComponent(location.pathname.split("/").pop()) || "timeline.html"})
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000)
  }

  // What is printed is the static picture, which browsers without scripts show: the whole run, sharp on white, with its legend.
  addEventListener("beforeprint", () => {
    const kept = document.querySelector("noscript")
    if (!kept) return
    const print = element("gsl-print") ?? document.body.appendChild(Object.assign(document.createElement("div"), {id: "gsl-print"}))
    print.innerHTML = kept.textContent
  })

  const startViewer = async which => {
    const {Viewer, SpanStore, readBatch} = window.gpustreamlab
    const {item, tables, manifest} = JSON.parse(await unpackedText("gsl-data" + which))
    const batch = await readBatch(manifest, packedBytes("gsl-spans" + which))
    // What is in the file is there: nothing is cut.
    const store = new SpanStore({capacity: Math.max(1, batch.length), edgeCapacity: Math.max(1, batch.edges.length)})
    store.setRows(tables.rows)
    store.append(batch)
    const options = {fills: isAlone, opens: !element("gsl-timeline-b"), ...pageOptions(which)} // Two timelines keep one width.
    const viewer = new Viewer({element: element("gsl-timeline" + which), Bokeh, item, tables, store, ...options})
    await viewer.start()
    return viewer
  }
  // A frame within a notebook has no address or file of its own.
  const pageOptions = which => location.protocol === "about:" ? {} : {
    address: which ? "b." : "",
    notes: JSON.parse(element("gsl-notes" + which)?.textContent ?? "null"),
    savePage: notes => savePage(which, notes),
  }
  const startViewers = async () => {
    const {bokeh, viewer} = await takeCode()
    runScript(bokeh)
    runScript(viewer)
    window.gpustreamlab.followTheme(document.documentElement, frame, new AbortController().signal)
    window.gslViewer = await startViewer("")
    if (!element("gsl-data-b")) return
    window.gslViewerB = await startViewer("-b")
    window.gpustreamlab.linkRanges(window.gslViewer.view, window.gslViewerB.view)
  }

  try {
    await startViewers()
    element("gsl-state").remove()
    if (frame) fitFrame()
    if (frame) new ResizeObserver(fitFrame).observe(document.body) // Which says nothing while the cell is out of sight.
    document.documentElement.dataset.drawn = "yes"
  } catch (error) {
    element("gsl-state").textContent =
      "The interactive timeline cannot be drawn in this browser (" + error + "). The data is unharmed: open it with a current browser."
    console.error(error)
  }
})()
