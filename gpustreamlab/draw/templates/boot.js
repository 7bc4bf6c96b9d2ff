"use strict";
(async () => {
  const $ = id => document.getElementById(id)
  const unpack = async id => {
    const bytes = Uint8Array.from(atob($(id).textContent.trim()), c => c.charCodeAt(0))
    $(id).remove()
    return await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text()
  }
  // A page within a notebook follows the notebook, where it may look; a page of its own follows the system.
  let host = null
  try { if (window.parent !== window && window.parent.document.body) host = window.parent.document.body } catch (error) { host = null }
  const system = window.matchMedia("(prefers-color-scheme: dark)")
  const dark = () => host && "jpThemeLight" in host.dataset ? host.dataset.jpThemeLight === "false" : host ? hostIsDark() : system.matches
  const hostIsDark = () => {
    const colour = window.parent.getComputedStyle(host).backgroundColor.match(/[\d.]+/g)
    if (!colour || colour.length < 3 || colour[3] === "0") return false
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 110
  }
  let models = []
  const paint = () => {
    const theme = dark() ? "dark" : "light"
    document.documentElement.dataset.theme = theme
    const style = getComputedStyle(document.documentElement)
    const ink = style.getPropertyValue("--ink").trim(), soft = style.getPropertyValue("--soft").trim()
    const grid = style.getPropertyValue("--grid").trim(), paper = style.getPropertyValue("--paper").trim(), warn = style.getPropertyValue("--warn").trim()
    for (const model of models) {
      if (/Axis$/.test(model.type))
        model.setv({major_label_text_color: ink, axis_label_text_color: soft, axis_line_color: grid, ...(model.major_tick_line_color && {major_tick_line_color: grid})})
      else if (model.type === "Grid") model.setv({grid_line_color: grid, grid_line_alpha: 0.7})
      else if (model.type === "GlyphRenderer" && model.name === "bars") model.glyph.setv({line_color: paper})
      else if (model.type === "GlyphRenderer" && model.name === "waits") model.glyph.setv(model.glyph.type === "Segment" ? {line_color: soft} : {fill_color: soft})
      else if (model.type === "HTMLLabel" && model.name === "group label") model.setv({text_color: ink})
      else if (model.type === "GlyphRenderer" && model.name === "mark lines") model.glyph.setv({line_color: warn})
      else if (model.type === "GlyphRenderer" && model.name === "mark labels") model.glyph.setv({text_color: warn})
      else if (model.type === "GlyphRenderer" && model.name === "empty") model.glyph.setv({text_color: ink})
    }
  }
  const fit = () => {
    const frame = window.frameElement
    if (!frame) return
    frame.style.height = Math.ceil(document.documentElement.getBoundingClientRect().height) + "px"
    const picture = frame.parentElement && frame.parentElement.querySelector("img.gsl-picture")
    if (picture) picture.style.display = "none"
  }
  // A notebook that changes its theme changes the frame's width twice within a moment. BokehJS 3.9 may then keep canvases of no
  // size under a layout that has one, until the width changes again: so it does, by a pixel.
  const canvases = root => [...root.querySelectorAll("*")].flatMap(e => e.tagName === "CANVAS" ? [e] : e.shadowRoot ? canvases(e.shadowRoot) : [])
  const revive = () => {
    const figure = $("gsl-figure")
    if (!figure.clientWidth || canvases(figure).every(canvas => canvas.width && canvas.height)) return
    figure.style.width = "calc(100% - 1px)"
    setTimeout(() => { figure.style.width = "" }, 200)
  }
  let due = 0
  const watch = () => { clearTimeout(due); due = setTimeout(revive, 400) }
  // BokehJS takes every turn of the wheel over a plot; over the lanes' names it shall scroll.
  const views = view => [view, ...(view.child_views || []).flatMap(views)]
  const overNames = event => Object.values(Bokeh.index.roots || Bokeh.index).flatMap(views).some(view => {
    if (!view.frame || !event.composedPath().includes(view.el)) return false
    return event.clientX < view.el.getBoundingClientRect().left + view.frame.bbox.left
  })
  try {
    paint()
    const script = document.createElement("script")
    script.textContent = await unpack("gsl-bokeh")
    document.head.appendChild(script)
    const item = JSON.parse(await unpack("gsl-data"))
    $("gsl-state").remove()
    await Bokeh.embed.embed_item(item, "gsl-figure")
    models = Bokeh.documents.flatMap(doc => [...doc._all_models.values()])
    paint()
    system.addEventListener("change", paint)
    document.addEventListener("wheel", event => { if (overNames(event)) event.stopImmediatePropagation() }, {capture: true, passive: true})
    if (host) new MutationObserver(paint).observe(host, {attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"]})
    new ResizeObserver(watch).observe(document.body)
    try { fit(); new ResizeObserver(fit).observe(document.body) } catch (error) { /* The frame belongs to another site: its height stays. */ }
    document.documentElement.dataset.drawn = "yes"
  } catch (error) {
    const state = $("gsl-state") || $("gsl-figure").appendChild(document.createElement("p"))
    state.textContent = "The interactive timeline cannot be drawn in this browser (" + error + "). The data is unharmed: open it with a current browser."
    console.error(error)
  }
})()
