// The live timeline: takes updates of the kernel, holds the spans of all views of one model, and lets the viewer draw them.
// The viewer's bundle stands above this, as `gpustreamlab`, and kept.js.

const GONE_TEXT = "The kernel is gone. This is what had been recorded by then."
const STATE_WORDS = { live: "live", paused: "paused", failing: "waiting", closed: "closed", gone: "kernel gone" }
const SAVE_AFTER_MS = 400
const ABOUT = "How this was recorded, and what is missing"
const feeds = new Map()

// ---- BokehJS: once a page and version, however many timelines there are

function loadBokeh(model) {
  const version = model.get("bokeh_version")
  return (window.__gslBokehPromises ??= {})[version] ??= runBokeh(model.get("bokeh_gz"), version)
}

async function runBokeh(packed, version) {
  if (window.Bokeh?.version === version) return window.Bokeh
  const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text()
  const script = document.createElement("script")
  script.textContent = text
  document.head.appendChild(script)
  script.remove()
  // Where the page has another version already, it stays what `Bokeh` means, and holds this one by its number.
  return window.Bokeh[version] ?? window.Bokeh
}

// ---- The spans of one model, and all its views

const nonEmpty = entries => Object.keys(entries ?? {}).length ? entries : null

class Feed {
  constructor(model) {
    this.model = model
    this.store = new gpustreamlab.SpanStore({ capacity: model.get("capacity") })
    this.tables = null
    this.number = -1 // Of the last update taken.
    this.clearCount = -1 // Goes up where the session forgets its spans.
    this.isAsking = false // A snapshot is awaited: an update was lost.
    this.why = nonEmpty(model.get("found")) // Hazards; or why work did not overlap, as the kernel said when it was asked last.
    this.isGone = false
    this.merged = 0
    this.missed = 0
    this.pending = 0
    this.kept = model.get("view_state") ?? {} // What the view that was used last kept; the next one begins there.
    this.saving = 0
    this.views = new Set()
    this.loaded = this.takeSnapshot()
    this.listen()
  }

  listen() {
    const { model } = this
    this.offs = []
    const on = (event, listener) => {
      model.on(event, listener)
      this.offs.push(() => model.off(event, listener))
    }
    for (let place = 0; place < model.get("message_count"); place++) {
      on(`change:update_${place}`, () => this.loaded.then(() => this.take(model.get(`update_${place}`))))
    }
    on("change:snapshot", () => { this.loaded = this.loaded.then(() => this.takeSnapshot()) })
    on("change:status", () => this.showState())
    on("change:found", () => this.loaded.then(() => this.takeFound()))
    on("msg:custom", ({ why }) => { if (why !== undefined) this.setWhy(why) })
    on("comm_live_update", () => this.becomeGone())
    this.offs.push(keepOnSave(model, () => formsOf(this.views)))
    this.hearAnyway().catch(error => console.info(`A timeline that loads slowly may hear nothing of its kernel (${error}).`))
  }

  // Where a widget's script takes more than 2 s to load, as on a busy machine, anywidget 0.11 lets no message of the kernel through ever
  // after. So messages go past it, and those of before are asked for.
  async hearAnyway() {
    const { model } = this
    if (!model.widget_manager?.context) return
    const raw = await model.widget_manager.get_model(model.get("widget_id"))
    const { _handle_comm_msg: hear } = Object.getPrototypeOf(Object.getPrototypeOf(raw))
    if (!hear || !raw.comm) return
    raw.comm.on_msg(message => hear.call(raw, message))
    await this.loaded
    model.send({ ask: "snapshot", number: this.number })
  }

  // The kernel knows it too: a page that is loaded again begins there, and notes are read there.
  keep(view, property) {
    const before = JSON.stringify(this.kept)
    this.kept = gpustreamlab.readKept(view)
    if (JSON.stringify(this.kept) === before) return
    if (property === "notes") for (const { viewer } of this.views) if (viewer.view.notes !== view.notes) viewer.view.set("notes", view.notes)
    this.saving ||= setTimeout(() => {
      this.saving = 0
      this.model.set("view_state", this.kept)
      this.model.save_changes()
    }, SAVE_AFTER_MS)
  }

  stop() {
    clearTimeout(this.saving)
    for (const off of this.offs.splice(0)) off()
  }

  // Everything so far, as the kernel packed it when this page asked for the model's state.
  async takeSnapshot() {
    const { facts, blob } = this.model.get("snapshot") ?? {}
    if (!facts || facts.number <= this.number) return
    const batch = await gpustreamlab.readBatch(facts.manifest, bytesOf(blob))
    if (facts.number <= this.number && !this.isAsking) return
    this.isAsking = false
    this.number = facts.number
    this.renew(facts, () => {
      this.setTables(facts.tables)
      this.store.append(batch)
    })
    this.note(facts)
    this.takeWaiting()
  }

  // Updates that came while this page was being made.
  takeWaiting() {
    const { model } = this
    const waiting = []
    for (let place = 0; place < model.get("message_count"); place++) waiting.push(model.get(`update_${place}`))
    const fresh = waiting.filter(update => update && update.facts.number > this.number)
    for (const update of fresh.sort((a, b) => a.facts.number - b.facts.number)) this.take(update)
  }

  take(update) {
    const { facts, blob } = update
    if (facts.number <= this.number || this.isAsking) return
    if (facts.number !== this.number + 1) return this.askAgain()
    this.number = facts.number
    if (facts.is_cleared) this.renew(facts, () => this.add(facts, blob))
    else this.add(facts, blob)
    this.note(facts)
  }

  add(facts, blob) {
    if (facts.names) this.addNames(facts.names)
    if (facts.details) this.tables.details.splice(facts.details.from, facts.details.entries.length, ...facts.details.entries)
    if (facts.header && this.tables) Object.assign(this.tables.header, facts.header)
    if (facts.tables) this.setTables({ ...facts.tables, names: this.tables.names, name_styles: this.tables.name_styles, details: this.tables.details })
    if (facts.manifest.n) this.store.append(gpustreamlab.unpackColumns(facts.manifest, bytesOf(blob)))
  }

  // Take all spans anew. Where an earlier start has come, zero is there now, and what the reader looks at moves along.
  renew(facts, fill) {
    const before = facts.clear_count === this.clearCount ? this.tables.zero_ns : null
    const anchors = before === null ? [] : [...this.views].map(view => view.anchor())
    this.clearCount = facts.clear_count
    this.merged = 0
    if (before === null) this.missed = 0
    if (before === null && this.why) this.setWhy(null)
    this.store.clear()
    fill()
    const movedNs = before === null ? 0 : Number(BigInt(before) - BigInt(this.tables.zero_ns))
    if (!movedNs) return
    for (const moveBy of anchors) moveBy(movedNs)
  }

  // An update was lost. The kernel answers when it is not busy; until then the picture stays as it is.
  askAgain() {
    this.isAsking = true
    this.model.send({ ask: "snapshot" })
    this.showState()
  }

  // Hazards that were found since. Who has asked for more is told all of it anew.
  takeFound() {
    const found = nonEmpty(this.model.get("found"))
    if (!this.why || this.why.is_partial) this.setWhy(found)
    else if (found) this.model.send({ ask: "why" })
  }

  askWhy() {
    if (!this.isGone) return this.model.send({ ask: "why" })
    const nothing = { zero_ns: this.tables.zero_ns, lanes: [], findings: [], marks: [], gaps: [] }
    this.setWhy({ ...nothing, ...this.why, line: "The kernel is gone and cannot be asked. Run the notebook again." })
  }

  setWhy(why) {
    this.why = why
    for (const { viewer } of this.views) viewer.view.set("why", why)
  }

  // Names, and details of kernels, are only ever added: whoever has the array sees the new ones.
  addNames({ from, names, name_styles: styles }) {
    this.tables.names.splice(from, names.length, ...names)
    this.tables.name_styles.splice(from, styles.length, ...styles)
  }

  setTables(tables) {
    this.tables = tables
    this.store.setRows(tables.rows)
    for (const view of this.views) view.setTables(tables)
  }

  note({ now_ns: nowNs, pending, open = [], merged = 0, missed = 0 }) {
    Object.assign(this, { nowNs, pending, open })
    this.merged += merged
    this.missed += missed
    for (const view of this.views) view.appended()
  }

  becomeGone() {
    this.isGone = true
    this.showState()
  }

  showState() {
    for (const view of this.views) view.showState()
  }

  get state() {
    const { state = "live", text = "" } = this.model.get("status") ?? {}
    if (this.isGone && state !== "closed") return { state: "gone", text: GONE_TEXT }
    if (this.isAsking) return { state: "failing", text: "An update was lost on its way; it comes when the kernel is not busy." }
    return { state, text }
  }
}

function bytesOf(blob) {
  return blob ? new Uint8Array(blob.buffer, blob.byteOffset, blob.byteLength) : new Uint8Array(0)
}

function feedOf(model) {
  const key = model.get("widget_id")
  if (!feeds.has(key)) feeds.set(key, new Feed(model))
  return feeds.get(key)
}

// ---- What stays in a saved notebook, see kept.js

const KEPT_TEXT = "Saved while the session was open. Run the notebook again, and lab.timeline() is live."

function formsOf([view]) {
  if (!view) return null
  view.update() // It may be out of sight, where it is not kept up to date.
  const { root, title, sentence, badge } = view.head, lines = root.querySelectorAll("p:not([hidden], .gsl-live-banner)")
  const notes = view.viewer.view.notes.map(({ text }) => `Note: ${text}`)
  const textsOf = nodes => nodes.map(e => e.textContent).filter(Boolean)
  const above = textsOf([title, sentence, badge]), words = [...new Set([...above, ...textsOf([...lines]), ...notes, KEPT_TEXT])]
  const picture = pictureOf(view, words, above.length)
  return { ...(picture && { "image/png": picture }), "text/plain": words.join("\n") }
}

// What the view would show now, also where it is scrolled out of sight, between its heading and what else is said of it: it can stand alone.
function pictureOf(view, lines, headCount) {
  const { plotView, theme } = view.viewer
  plotView.repaint()
  view.noteSize()
  if (!view.size) return ""
  const { width, height, ratio, frame } = view.size, headPx = 19 * headCount + 12, footPx = 19 * (lines.length - headCount) + 12
  const makeCanvas = height => Object.assign(document.createElement("canvas"), { width, height })
  let { canvas } = plotView.canvas_view.primary
  if (!canvas.width || !plotView.is_displayed) { // Behind another tab the figure has no size: the lanes are painted as large as they were, and Bokeh's axis by hand.
    view.viewer.view.frame = frame
    const ctx = (canvas = makeCanvas(height)).getContext("2d")
    view.viewer.painter.paintMain(ctx, ratio)
    paintTicks(ctx, view.viewer)
  }
  const made = makeCanvas(height + (headPx + footPx) * ratio), ctx = made.getContext("2d")
  ctx.fillStyle = theme.paper
  ctx.fillRect(0, 0, width, made.height)
  ctx.drawImage(canvas, 0, headPx * ratio)
  ctx.scale(ratio, ratio)
  ctx.fillStyle = theme.ink
  lines.forEach((line, place) => {
    ctx.font = `${place ? "" : "bold "}13px system-ui, sans-serif`
    ctx.fillText(view.viewer.painter.texts.fit(ctx, line, width / ratio - 16), 8, 19 * place + 20 + (place < headCount ? 0 : height / ratio + 12))
  })
  return made.toDataURL("image/png").split(",")[1]
}

function paintTicks(ctx, { view, theme }) {
  const { x0, x1, frame } = view, width = x1 - x0, power = 10 ** Math.floor(Math.log10(width / 4))
  const step = [5, 2, 1].map(factor => factor * power).find(step => 4 * step <= width), ticks = []
  for (let place = Math.ceil(x0 / step); place * step <= x1; place++) ticks.push(place * step)
  Object.assign(ctx, { font: "12px system-ui, sans-serif", textAlign: "center", textBaseline: "middle", fillStyle: theme.ink })
  gpustreamlab.formatTicks(ticks, x0, width).forEach((text, place) => ctx.fillText(text, view.pxAt(ticks[place]), frame.bottom + 16))
}

// ---- One view: what stands above, and the viewer

class LiveView {
  constructor(feed, element) {
    this.feed = feed
    this.root = node("div", "gsl-live")
    this.root.gslView = this
    this.head = new Head(this.root)
    element.append(this.root)
    this.ending = new AbortController()
    gpustreamlab.followTheme(this.root, element, this.ending.signal)
    this.isSeen = true
    this.isDue = false
    this.observer = new IntersectionObserver(entries => this.seen(entries.at(-1).isIntersecting))
  }

  async start(Bokeh, item) {
    const { feed } = this
    await feed.loaded
    this.viewer = new gpustreamlab.Viewer({ element: this.root, Bokeh, item, tables: feed.tables, store: feed.store, live: true, askWhy: () => feed.askWhy() })
    await this.viewer.start()
    if (this.viewer.isDestroyed) return
    gpustreamlab.writeKept(this.viewer.view, feed.kept)
    if (feed.why) this.viewer.view.set("why", feed.why)
    const { view } = this.viewer
    for (const event of ["range", "state", "look"]) view.on(event, property => { if (property !== "hovered") feed.keep(view, property) })
    view.on("state", () => this.showHead())
    feed.views.add(this)
    this.observer.observe(this.root)
    this.viewer.onPainted(() => this.noteSize())
    this.showHead()
    this.appended()
    this.showState()
    this.isStarted = true
  }

  setTables(tables) {
    this.viewer.view.setTables(tables)
    this.showHead()
  }

  // Who does not see the picture need not draw it.
  appended() {
    this.isDue = true
    if (this.isSeen) this.update()
  }

  // How large the picture is, for when it is hidden.
  noteSize() {
    const { plotView, view } = this.viewer, { canvas } = plotView.canvas_view.primary
    if (canvas.width && plotView.is_displayed) {
      this.size = { width: canvas.width, height: canvas.height, ratio: plotView.canvas_view.pixel_ratio, frame: { ...view.frame } }
    }
  }

  update() {
    this.isDue = false
    const { nowNs, open: openWork } = this.feed
    Object.assign(this.viewer.view, { nowNs, openWork }).appended()
    this.showHead()
  }

  showHead() {
    this.head.show(this.feed, this.viewer.view)
  }

  // What the reader looks at, as a function that finds it again where all times have grown.
  anchor() {
    const { view } = this.viewer
    const { x0, x1, isFollowing, selection } = view
    const full = view.fullRange()
    const isWhole = x0 <= full.start && x1 >= full.end
    const pin = pinOf(view)
    return movedNs => {
      const later = ({ start, end, ...rest }) => ({ start: start + movedNs, end: end + movedNs, ...rest })
      view.nowNs += movedNs
      if (selection) view.set("selection", later(selection))
      const index = pin ? view.store.indexOf(pin.row, pin.start + movedNs, pin.place) : -1
      if (index >= 0) view.set("pinned", { row: pin.row, index })
      if (isWhole) view.fit()
      else if (!isFollowing) view.setRange(x0 + movedNs, x1 + movedNs)
    }
  }

  seen(isSeen) {
    this.isSeen = isSeen
    if (isSeen && this.isDue) this.update()
  }

  showState() {
    this.showHead()
    const { view } = this.viewer
    const isLive = this.feed.state.state === "live" || this.feed.state.state === "failing"
    // Nothing comes any more: there is nothing to follow, and nothing to pause.
    if (isLive) return
    for (const key of ["isFollowing", "isPaused", "isLive"]) if (view[key]) view.set(key, false)
    this.viewer.plotView.request_paint() // Without "now".
  }

  remove() {
    this.feed.views.delete(this)
    this.observer.disconnect()
    this.ending.abort()
    this.viewer?.destroy()
    this.root.remove()
  }
}

// The pinned span by what stays the same when others come before it; null where several are pinned as one.
function pinOf({ pinned, store }) {
  if (pinned?.index === undefined) return null
  const row = store.row(pinned.row)
  return { row: pinned.row, start: row.start[pinned.index], place: row.place[pinned.index] }
}

// Title, facts and state. Every text is set as text: names of spans and titles are never markup.
class Head {
  constructor(parent) {
    this.root = node("header", "gsl-head")
    this.title = node("h3", "")
    this.sentence = node("p", "gsl-finding")
    this.badge = node("span", "gsl-badge")
    this.state = node("span", "gsl-live-state")
    this.state.setAttribute("role", "status")
    this.lost = node("button", "gsl-lost")
    this.about = put(node("button", "gsl-about-button"), "i")
    this.sheet = node("section", "gsl-about")
    this.sheet.popover = "auto"
    for (const button of [this.lost, this.about]) {
      Object.assign(button, { type: "button", title: ABOUT, popoverTargetElement: this.sheet })
      button.dataset.lmSuppressShortcuts = "true"
    }
    this.about.setAttribute("aria-label", ABOUT)
    this.sheet.setAttribute("role", "dialog")
    this.sheet.setAttribute("aria-label", ABOUT)
    this.banner = node("p", "gsl-live-banner")
    this.root.append(this.title, this.sentence, this.badge, this.state, this.lost, this.about, this.sheet, this.banner)
    parent.append(this.root)
  }

  show(feed, { isPaused, isFollowing }) {
    const { header, notes, simulated } = feed.tables
    const { state: now, text } = feed.state
    const state = now === "live" && isPaused ? "paused" : now
    put(this.title, header.title)
    put(this.sentence, header.sentence)
    put(this.badge, header.badge)
    this.badge.classList.toggle("gsl-sim", Boolean(simulated))
    this.badge.classList.toggle("gsl-real", header.badge === "MEASURED")
    put(this.state, STATE_WORDS[state] + (state === "live" ? isFollowing ? ", follows now" : ", does not follow now" : ""))
    this.state.dataset.state = state
    put(this.banner, text)
    this.banner.hidden = !text
    const running = runningFacts(feed), missing = [...header.missing, ...notes, ...feedNotes(feed)]
    const lost = header.lost || (missing.length ? `${missing.length} note${missing.length === 1 ? "" : "s"}` : "")
    put(this.lost, [lost && `\u26a0 ${lost}`, ...running].filter(Boolean).join(" \u00b7 "))
    this.lost.title = running.length && simulated ? `${running[0]} alone. lab.synchronize() waits for the end.` : ABOUT
    this.lost.hidden = !lost && !running.length
    const facts = [[header.facts, ...running].join(" · "), header.tier, header.finding, header.source].filter(Boolean)
    const shown = JSON.stringify([missing, facts])
    if (this.shown === shown) return
    this.shown = shown
    const lines = (texts, name) => texts.map(line => put(node("p", name), line))
    this.sheet.replaceChildren(...lines(missing.map(line => `\u26a0 ${line}`), "gsl-missing"), ...lines(facts, ""))
  }
}

// Simulated time goes on with the calls of the cells, not by itself: what they leave behind has not ended before the next call.
function runningFacts({ pending, tables }) {
  if (!pending) return []
  const hint = tables.simulated ? ": simulated time passes in calls" : ""
  return [`${pending.toLocaleString("en-US")} not ended${hint}`]
}

// What this page shows less of than was recorded.
function feedNotes({ store, merged, missed }) {
  const notes = [], count = gpustreamlab.formatCount
  if (merged) notes.push(`${count(merged)} spans came too fast to be sent one by one and are merged with their neighbours, with exact counts and busy time; a saved file has them all`)
  if (missed) notes.push(`${count(missed)} spans were overwritten before they could be shown: raise Session(ring_size=...)`)
  if (store.evictedCount) notes.push(`the oldest ${count(store.evictedCount)} spans made room here: raise lab.timeline(capacity=...)`)
  return notes
}

function node(tag, name) {
  const made = document.createElement(tag)
  if (name) made.className = name
  return made
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text
  return element
}

// ---- What anywidget calls

export default {
  initialize({ model }) {
    const feed = feedOf(model)
    return () => {
      feed.stop()
      feeds.delete(model.get("widget_id"))
    }
  },

  async render({ model, el }) {
    const view = new LiveView(feedOf(model), el)
    try {
      await view.start(await loadBokeh(model), JSON.parse(model.get("item")))
    } catch (error) {
      el.append(put(node("p", "gsl-live-banner"), `The live timeline cannot be drawn in this browser (${error}).`))
      console.error(error)
    }
    return () => view.remove()
  },
}
