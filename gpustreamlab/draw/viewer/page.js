// Boots the viewer of a page: a file that opens offline, or a frame within a notebook.
"use strict";
(async () => {
  const element = id => document.getElementById(id)

  // Five letters of an alphabet of 85 for four bytes, see draw/_base85.py; a last group of n + 1 letters stands for n bytes.
  const ALPHABET = [...Array(94).keys()].map(place => String.fromCharCode(33 + place)).filter(sign => !"\"%&'-<>\\`".includes(sign))
  const digitOf = new Uint8Array(128)
  ALPHABET.forEach((sign, digit) => { digitOf[sign.charCodeAt(0)] = digit })
  const fromBase85 = text => {
    const letters = new TextEncoder().encode(text), groups = Math.ceil(letters.length / 5)
    const words = new DataView(new ArrayBuffer(4 * groups))
    for (let group = 0; group < groups; group++) {
      let word = 0
      for (let place = 5 * group; place < 5 * group + 5; place++) word = 85 * word + (digitOf[letters[place]] ?? 84)
      words.setUint32(4 * group, word)
    }
    return new Uint8Array(words.buffer, 0, Math.floor(letters.length * 4 / 5))
  }
  const packedBytes = id => {
    const text = element(id).textContent
    element(id).remove()
    return fromBase85(text)
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

  // A page within a notebook follows the notebook, where it may look; a page of its own follows the system.
  const findHost = () => {
    try { return window.parent !== window ? window.parent.document.body : null } catch { return null }
  }
  const isDarkColour = colour => {
    const parts = colour.match(/[\d.]+/g)
    return Boolean(parts) && parts.length >= 3 && parts[3] !== "0" && 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] < 110
  }
  const host = findHost(), system = window.matchMedia("(prefers-color-scheme: dark)")
  const isDark = () => {
    if (!host) return system.matches
    if ("jpThemeLight" in host.dataset) return host.dataset.jpThemeLight === "false"
    return isDarkColour(window.parent.getComputedStyle(host).backgroundColor)
  }
  const followTheme = () => {
    const apply = () => { document.documentElement.dataset.theme = isDark() ? "dark" : "light" }
    apply()
    system.addEventListener("change", apply)
    if (!host) return
    const attributeFilter = ["data-jp-theme-light", "data-jp-theme-name", "data-theme", "class"], observer = new MutationObserver(apply)
    for (const watched of [host, host.parentElement]) observer.observe(watched, {attributes: true, attributeFilter})
  }

  // The frame is as high as its content, and takes the place of the picture beside it.
  const fitFrame = () => {
    const frame = window.frameElement
    if (!frame) return
    frame.style.height = Math.ceil(document.documentElement.getBoundingClientRect().height) + "px"
    const picture = frame.parentElement && frame.parentElement.querySelector("img.gsl-picture")
    if (picture) picture.style.display = "none"
  }
  const keepFitting = () => {
    try {
      fitFrame()
      new ResizeObserver(fitFrame).observe(document.body)
    } catch { /* The frame belongs to another site: its height stays. */ }
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
    runScript(await unpackedText("gsl-bokeh"))
    runScript(await unpackedText("gsl-viewer"))
    window.gslViewer = await startViewer("")
    if (!element("gsl-data-b")) return
    window.gslViewerB = await startViewer("-b")
    window.gpustreamlab.linkRanges(window.gslViewer.view, window.gslViewerB.view)
  }

  try {
    followTheme()
    await startViewers()
    element("gsl-state").remove()
    keepFitting()
    document.documentElement.dataset.drawn = "yes"
  } catch (error) {
    element("gsl-state").textContent =
      "The interactive timeline cannot be drawn in this browser (" + error + "). The data is unharmed: open it with a current browser."
    console.error(error)
  }
})()
