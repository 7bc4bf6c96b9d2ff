// Draws the synced `view` and sends actions; it holds no truth of its own. Only a drag shows a preview until the kernel answers.

const BUSY_AFTER_MS = 300
const TYPING_MS = 150
const LOOK_EVERY_MS = 1000
const PAGE_STEPS = 4
const NARROW_COLUMNS = 2.5
const LETTERS_A_COLUMN = 2 // of a name, beside the count
const DEAD = ["dead", "terminating", "restarting", "autorestarting"]
const BUSY_TEXT = "The kernel is busy: waits for the running cell"
const DRAIN_TEXT = "The kernel is busy: waits for the running cell, or for the streams' work"
const GONE_TEXT = "The kernel is gone: this is the last state that was shown. Run the cell again."

export default () => {
  const link = makeLink()
  return {
    initialize({ model }) {
      const offs = [link.open(model), keepOnSave(model)]
      return () => offs.forEach(off => off())
    },
    render: ({ model, el }) => renderView(model, el, link),
  }
}

// ---- the link to the kernel: one for all views of a widget ------------------------------------------------------------------

function makeLink() {
  const client = Math.random().toString(36).slice(2)
  const watchers = new Set()
  let model = null, kernel = null, sent = 0, acked = 0, timer = null
  const link = {
    state: "idle", // idle, waiting, busy, gone
    busyText: BUSY_TEXT,
    open(opened) {
      model = opened
      model.on("msg:custom", message => message.client === client && ack(message.ack))
      model.on("comm_live_update", () => setTimeout(checkKernel))
      model.on("change:view", () => link.state === "gone" && settle())
      kernel = model.widget_manager?.kernel ?? null
      kernel?.statusChanged?.connect(checkKernel)
      return () => kernel?.statusChanged?.disconnect(checkKernel)
    },
    send(action, { quiet = false } = {}) {
      if (link.state === "gone") return acked
      sent += 1
      if (!quiet) link.busyText = action.do === "apply" || action.do === "verify" ? DRAIN_TEXT : BUSY_TEXT
      model.send({ action, seq: sent, client })
      if (!quiet && link.state === "idle") {
        change("waiting")
        timer = setTimeout(() => change("busy"), BUSY_AFTER_MS)
      }
      return sent
    },
    isDone: number => number <= acked,
    isIdle: () => sent === acked,
    lose() { change("gone") },
    watch(watcher) {
      watchers.add(watcher)
      return () => watchers.delete(watcher)
    },
  }
  function ack(number) {
    acked = Math.max(acked, number)
    if (link.isIdle()) settle()
    else watchers.forEach(watcher => watcher())
  }
  function settle() {
    acked = sent
    change("idle")
  }
  function change(state) {
    if (state !== "waiting") clearTimeout(timer)
    link.state = state
    watchers.forEach(watcher => watcher())
  }
  // A restart closes the comm and ipywidgets says so; a crash it does not tell, but the kernel's status does.
  function checkKernel() {
    if (!kernel || kernel.isDisposed || DEAD.includes(kernel.status)) change("gone")
  }
  return link
}

// ---- a view -----------------------------------------------------------------------------------------------------------------

function renderView(model, el, link) {
  if (el.classList.contains("jupyter-widgets-disconnected")) link.lose()
  const parts = buildFrame(el)
  const screen = { model, link, parts, preview: null, typed: new Map(), rows: new Map(), handles: new Map(), looked: -LOOK_EVERY_MS, looking: null }
  wireButtons(screen)
  const redraw = () => draw(screen)
  model.on("change:view", redraw)
  const unwatch = link.watch(redraw)
  parts.root.addEventListener("pointerenter", () => look(screen))
  parts.root.addEventListener("focusin", () => look(screen))
  redraw()
  look(screen)
  return () => {
    model.off("change:view", redraw)
    unwatch()
    clearTimeout(screen.looking)
  }
}

/** Ask what the session's streams are now, at most once a second; while the kernel is busy there is no use in asking twice. */
function look(screen) {
  const wait = screen.looked + LOOK_EVERY_MS - performance.now()
  clearTimeout(screen.looking)
  if (wait > 0) {
    screen.looking = setTimeout(() => look(screen), wait)
    return
  }
  if (!screen.link.isIdle()) return
  screen.looked = performance.now()
  screen.link.send({ do: "look" }, { quiet: true })
}

function buildFrame(el) {
  const root = make("section", { class: "gsl-part" })
  root.innerHTML = `
    <header class="gsl-head"><strong class="gsl-device"></strong><span class="gsl-sim" hidden>SIMULATED</span>
      <span class="gsl-facts"></span></header>
    <p class="gsl-obstacle" hidden></p>
    <div class="gsl-card"><div class="gsl-bands"></div><div class="gsl-field"><div class="gsl-cells" role="img"></div>
      <div class="gsl-handles"></div></div></div>
    <p class="gsl-hint"></p>
    <table class="gsl-rows"><thead><tr><th class="gsl-c-letter"><span class="gsl-out">Sign</span></th><th>Partition</th>
      <th>SMs asked for</th><th>SMs granted</th><th class="gsl-c-streams">Streams</th><th class="gsl-c-proof">Proof</th>
      <th><span class="gsl-out">Remove</span></th></tr></thead></table>
    <p class="gsl-whole" hidden></p>
    <div class="gsl-problem" role="alert" hidden></div>
    <div class="gsl-tools">
      <button type="button" class="gsl-add" title="Add a partition: half of the card, then the SMs in no partition, then half of the largest">+ Add partition</button>
      <label class="gsl-round">Round <select class="gsl-rounding"></select></label>
      <button type="button" class="gsl-off" title="No partitions: every stream may use the whole card. Takes effect with Apply">Off: whole card</button>
    </div>
    <div class="gsl-tools gsl-main">
      <button type="button" class="gsl-apply">Apply</button>
      <button type="button" class="gsl-revert" title="Back to the layout in use">Revert</button>
      <button type="button" class="gsl-verify" title="Run a short kernel on every stream and see which SMs it was on">Verify</button>
      <span class="gsl-detail"></span>
    </div>
    <p class="gsl-status" role="status" aria-live="polite"></p>
    <div class="gsl-python"><code tabindex="0" role="textbox" aria-readonly="true" aria-label="Python line that does the same"></code>
      <button type="button" class="gsl-copy" title="Copy the Python line that does the same">Copy</button></div>`
  el.replaceChildren(root)
  const parts = { root }
  for (const name of ["device", "sim", "facts", "obstacle", "bands", "field", "cells", "handles", "hint", "rows", "whole", "problem", "add",
    "rounding", "off", "apply", "revert", "verify", "detail", "status", "python", "copy"]) {
    parts[name] = root.querySelector(`.gsl-${name}`)
  }
  parts.code = parts.python.querySelector("code")
  keepKeys(root)
  return parts
}

function wireButtons(screen) {
  const { parts, link } = screen
  for (const [button, name] of [["add", "add"], ["off", "clear"], ["apply", "apply"], ["revert", "revert"], ["verify", "verify"]]) {
    parts[button].addEventListener("click", () => {
      flushTyping(screen)
      if (name === "revert") screen.typed.clear()
      link.send({ do: name })
    })
  }
  parts.rounding.addEventListener("change", () => link.send({ do: "set_rounding", text: parts.rounding.value }))
  parts.copy.addEventListener("click", () => copy(parts))
}

// ---- drawing ----------------------------------------------------------------------------------------------------------------

function draw(screen) {
  const view = screen.model.get("view")
  if (!view.device) return
  const { parts, link } = screen
  if (screen.preview && !screen.preview.isHeld && link.isDone(screen.preview.seq)) screen.preview = null
  const canEdit = view.can_edit && link.state !== "gone"
  const shown = withPreview(view, screen.preview)
  parts.root.setAttribute("aria-label", `SM partitions of ${view.device.name}`)
  setText(parts.device, view.device.name)
  setText(parts.facts, view.device.facts)
  parts.sim.hidden = !view.device.is_simulated
  setText(parts.obstacle, view.obstacle)
  parts.obstacle.hidden = !view.obstacle
  drawCard(screen, view, shown, canEdit)
  drawRows(screen, view, shown, canEdit)
  drawProblem(screen, view, canEdit)
  drawTools(screen, view, canEdit)
}

function drawTools(screen, view, canEdit) {
  const { parts, link } = screen
  const pending = link.state === "waiting" || link.state === "busy"
  parts.add.disabled = !canEdit
  parts.off.disabled = !canEdit || view.rows.length === 0
  parts.revert.disabled = !canEdit || !view.is_dirty
  parts.verify.disabled = !canEdit || !view.can_verify
  parts.apply.disabled = !canEdit || !view.apply.is_enabled
  parts.root.setAttribute("aria-busy", String(pending))
  setText(parts.apply, view.apply.label)
  setText(parts.detail, link.state === "gone" ? "" : view.apply.detail)
  parts.detail.classList.toggle("gsl-bad", Boolean(view.apply.is_refused))
  drawRoundings(parts.rounding, view, canEdit)
  setText(parts.code, view.python_line)
  parts.python.hidden = !view.python_line
  const text = link.state === "gone" ? GONE_TEXT : link.state === "busy" ? link.busyText : view.notice
  setText(parts.status, text)
  parts.status.dataset.kind = link.state === "gone" || (link.state !== "busy" && view.is_notice_bad) ? "bad" : link.state
  parts.root.dataset.link = link.state
}

function drawRoundings(select, view, canEdit) {
  if (select.options.length === 0) {
    for (const { value, text } of view.roundings) select.append(make("option", { value }, text))
  }
  if (select.value !== view.rounding) select.value = view.rounding
  select.disabled = !canEdit
}

/** Return the runs of cells, with a boundary that is being moved where the hand has it. */
function withPreview(view, preview) {
  const boundary = preview && view.boundaries.find(each => each.left === preview.left)
  const sms = new Map(view.runs.map(run => [run.key, run.sms]))
  if (boundary) {
    sms.set(boundary.left, preview.sms)
    if (boundary.right !== null) sms.set(boundary.right, boundary.both_sms - preview.sms)
  }
  return { sms, isPreview: Boolean(boundary), isLocated: !boundary && view.located.length > 0 }
}

function drawCard(screen, view, shown, canEdit) {
  const { cells, bands, field, root } = screen.parts
  const { sm_count: count, row_count: high, column_count: wide } = view.device
  root.style.setProperty("--gsl-wide", wide)
  root.style.setProperty("--gsl-high", high)
  root.classList.toggle("gsl-nearest", view.is_nearest_shown)
  while (cells.childElementCount < count) cells.append(make("i"))
  while (cells.childElementCount > count) cells.lastElementChild.remove()
  const rows = view.rows.filter(row => shown.sms.get(row.key))
  const inTurn = rows.flatMap(row => Array(shown.sms.get(row.key)).fill([row.key])).slice(0, count)
  const used = inTurn.length
  const owners = shown.isLocated ? view.located : inTurn
  const rowOf = new Map(rows.map(row => [row.key, row]))
  for (let cell = 0; cell < count; cell += 1) paintCell(cells.children[cell], (owners[cell] ?? []).map(key => rowOf.get(key)))
  root.classList.toggle("gsl-located", shown.isLocated)
  drawBands(bands, rows, shown, used, view)
  const listed = rows.map(row => `${row.name} ${shown.sms.get(row.key)} SMs`)
  const order = shown.isLocated ? "SMs by their ids, as they were seen: " : ""
  cells.setAttribute("aria-label", order + [...listed, `${count - used} SMs in no partition`].join(", "))
  field.classList.toggle("gsl-fixed", !canEdit)
  drawHandles(screen, view, shown, canEdit)
  drawHint(screen.parts.hint, view, shown, canEdit)
  setText(screen.parts.whole, view.whole_card)
  screen.parts.whole.hidden = !view.whole_card
}

function paintCell(cell, [row, ...others]) {
  setText(cell, row ? [row, ...others].map(each => each.letter).join("+") : "")
  cell.classList.toggle("gsl-used", Boolean(row))
  cell.classList.toggle("gsl-shared", others.length > 0)
  cell.style.setProperty("--gsl-fill", row?.fill ?? "")
}

/** Write each partition's name and count above its cells. */
function drawBands(bands, rows, shown, used, view) {
  const { sm_count: count, column_count: wide } = view.device
  const texts = rows.map(row => ({ letter: row.letter, fill: row.fill, name: row.name || "?", sms: shown.sms.get(row.key) }))
  if (count > used) texts.push({ letter: "", fill: "", name: used ? "in no partition" : "no partitions", sms: count - used })
  while (bands.childElementCount < texts.length) bands.append(make("span"))
  while (bands.childElementCount > texts.length) bands.lastElementChild.remove()
  let place = 0
  texts.forEach((text, number) => {
    const band = bands.children[number]
    const from = columnOf(place, view), to = columnOf(place + text.sms, view)
    band.style.left = `${(100 * from) / wide}%`
    band.style.width = `${(100 * (to - from)) / wide}%`
    band.style.setProperty("--gsl-fill", text.fill || "var(--gsl-none)")
    band.title = `${text.name}: ${text.sms} SMs`
    const isNarrow = to - from < NARROW_COLUMNS && text.name.length > LETTERS_A_COLUMN * (to - from)
    const label = isNarrow && text.letter ? text.letter : text.name
    if (band.dataset.text !== `${label} ${text.sms}`) {
      band.dataset.text = `${label} ${text.sms}`
      band.replaceChildren(make("b", {}, label), make("em", {}, String(text.sms)))
    }
    place += text.sms
  })
}

/** Return the column before which so many SMs stand; the last column may be short, and the card ends with it. */
function columnOf(sms, { device }) {
  return sms === device.sm_count ? device.column_count : sms / device.row_count
}

function drawHint(hint, view, shown, canEdit) {
  const movable = view.boundaries.some(boundary => boundary.stops.length > 1)
  let text = ""
  if (view.is_nearest_shown) text = "Pale: the nearest plan that works, not yet asked for."
  else if (view.problem) text = "The card as it was before: what is asked for now gives no plan."
  else if (canEdit && movable) text = `One cell is one SM${shown.isLocated ? ", by its id" : ""}. Drag a boundary, or focus it and use the arrow keys.`
  else if (canEdit && view.rows.length === 0) text = "One cell is one SM, and every stream may use all of them. Add a partition to share them out."
  setText(hint, text)
}

// ---- boundaries -------------------------------------------------------------------------------------------------------------

function drawHandles(screen, view, shown, canEdit) {
  const { handles, parts } = screen
  dropGone(handles, view.boundaries.map(boundary => boundary.left))
  let start = 0
  for (const [place, boundary] of view.boundaries.entries()) {
    if (!handles.has(boundary.left)) handles.set(boundary.left, makeHandle(screen, boundary.left))
    const handle = handles.get(boundary.left)
    putBefore(parts.handles, handle, parts.handles.children[place]) // Tab walks from left to right
    const sms = shown.sms.get(boundary.left)
    placeHandle(handle, start, sms, boundary, view, shown, canEdit)
    start += sms
  }
}

function makeHandle(screen, key) {
  const handle = make("div", { class: "gsl-handle", role: "slider", "aria-orientation": "horizontal" })
  handle.append(make("span", { class: "gsl-lower" }), make("span", { class: "gsl-upper" }), make("span", { class: "gsl-step" }), make("span", { class: "gsl-grip" }))
  keepKeys(handle)
  handle.addEventListener("pointerdown", event => startDrag(screen, key, handle, event))
  handle.addEventListener("keydown", event => steer(screen, key, event))
  return handle
}

/** Put a boundary behind the last cell of its partition: upright, with a step where that is within a column; else above the cells. */
function placeHandle(handle, start, sms, boundary, view, shown, canEdit) {
  const { row_count: high, column_count: wide } = view.device
  const place = start + sms, inside = shown.isLocated ? 0 : place % high, column = columnOf(place - inside, view)
  const isMovable = canEdit && boundary.stops.length > 1
  handle.hidden = boundary.stops.length < 2 && boundary.right === null && sms === boundary.both_sms
  handle.style.left = `${(100 * column) / wide}%`
  handle.style.setProperty("--gsl-inside", inside / high)
  handle.classList.toggle("gsl-stepped", inside > 0)
  handle.classList.toggle("gsl-high", inside >= high / 2)
  handle.classList.toggle("gsl-fixed", !isMovable)
  handle.tabIndex = isMovable ? 0 : -1
  const other = boundary.both_sms - sms
  const values = {
    "aria-label": boundary.label,
    "aria-valuemin": boundary.stops[0],
    "aria-valuemax": boundary.stops.at(-1),
    "aria-valuenow": sms,
    "aria-valuetext": `${boundary.left_name} ${sms} SMs, ${boundary.right_name} ${other} SMs`,
    "aria-disabled": String(!isMovable),
  }
  for (const [name, value] of Object.entries(values)) handle.setAttribute(name, value)
  handle.title = isMovable ? `${values["aria-valuetext"]}\nDrag, or use the arrow keys` : values["aria-valuetext"]
}

function findBoundary(screen, key) {
  return screen.model.get("view").boundaries.find(boundary => boundary.left === key)
}

function startDrag(screen, key, handle, event) {
  if (event.button !== 0 || handle.classList.contains("gsl-fixed")) return
  event.preventDefault()
  handle.focus({ preventScroll: true })
  handle.setPointerCapture(event.pointerId)
  const boundary = findBoundary(screen, key)
  const before = screen.preview?.left === key ? screen.preview.sms : boundary.left_sms
  const home = placeOf(screen, event) - before
  const stop = new AbortController()
  const listen = (name, action) => handle.addEventListener(name, action, { signal: stop.signal })
  const end = sms => {
    stop.abort()
    moveTo(screen, key, sms, { isHeld: false })
  }
  listen("pointermove", move => moveTo(screen, key, placeOf(screen, move) - home, { isHeld: true }))
  listen("pointerup", up => end(placeOf(screen, up) - home))
  listen("pointercancel", () => end(before))
  listen("keydown", press => {
    if (press.key !== "Escape") return
    press.preventDefault()
    end(before)
  })
}

/** Return the place on the card, in SMs, under a pointer. */
function placeOf(screen, event) {
  const { row_count: high, column_count: wide } = screen.model.get("view").device
  const box = screen.parts.cells.getBoundingClientRect()
  return ((event.clientX - box.left) / box.width) * wide * high
}

function steer(screen, key, event) {
  const boundary = findBoundary(screen, key)
  if (!boundary || boundary.stops.length < 2) return
  const now = screen.preview?.left === key ? screen.preview.sms : boundary.left_sms
  const stops = boundary.stops, last = stops.length - 1
  const at = Math.max(0, stops.indexOf(nearest(stops, now)))
  const steps = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, PageDown: at - PAGE_STEPS, PageUp: at + PAGE_STEPS, Home: 0, End: last }
  if (!(event.key in steps)) return
  event.preventDefault()
  event.stopPropagation()
  moveTo(screen, key, stops[Math.min(last, Math.max(0, steps[event.key]))], { isHeld: false })
}

/** Show a boundary at the stop nearest to a wish, and ask the kernel for it; while one drags, only if the kernel keeps up. */
function moveTo(screen, key, wish, { isHeld }) {
  const boundary = findBoundary(screen, key)
  if (!boundary) return
  const sms = nearest(boundary.stops, wish)
  const before = screen.preview?.left === key ? screen.preview : { sms: boundary.left_sms, seq: 0 }
  const isNew = sms !== before.sms
  const mustSend = isHeld ? isNew && screen.link.state === "idle" : isNew || sms !== boundary.left_sms || !screen.link.isIdle()
  const seq = mustSend ? screen.link.send({ do: "move_boundary", left: key, sms }) : before.seq
  screen.preview = { left: key, sms, seq, isHeld }
  draw(screen)
}

function nearest(stops, wish) {
  return stops.reduce((best, stop) => (Math.abs(stop - wish) < Math.abs(best - wish) ? stop : best))
}

// ---- rows -------------------------------------------------------------------------------------------------------------------

function drawRows(screen, view, shown, canEdit) {
  const { rows, parts } = screen
  parts.rows.hidden = view.rows.length === 0
  dropGone(rows, view.rows.map(row => row.key))
  view.rows.forEach((values, place) => {
    if (!rows.has(values.key)) rows.set(values.key, makeRow(screen, values.key))
    const row = rows.get(values.key)
    putBefore(parts.rows, row.body, parts.rows.tBodies[place])
    drawRow(screen, row, values, view, shown, canEdit)
  })
}

function makeRow(screen, key) {
  const body = make("tbody")
  const id = `gsl-${Math.random().toString(36).slice(2)}`
  body.innerHTML = `<tr><td class="gsl-c-letter"><span class="gsl-letter"></span></td>
    <td><input class="gsl-name" type="text" spellcheck="false" autocomplete="off" aria-label="Name" aria-describedby="${id}"></td>
    <td><input class="gsl-request" type="text" inputmode="numeric" spellcheck="false" autocomplete="off" aria-label="SMs asked for"
      title="SMs (96), a share of the card (25% or 0.25), or rest" aria-describedby="${id}"></td>
    <td class="gsl-granted"><b></b> <span></span></td><td class="gsl-c-streams"></td><td class="gsl-c-proof"></td>
    <td><button type="button" class="gsl-remove">×</button></td></tr>
    <tr class="gsl-fault" hidden><td></td><td colspan="6" id="${id}"></td></tr>`
  const find = name => body.querySelector(`.gsl-${name}`)
  keepKeys(body)
  const row = { body, letter: find("letter"), name: find("name"), request: find("request"), granted: find("granted"), streams: find("c-streams"), proof: find("c-proof"), remove: find("remove"), fault: find("fault") }
  wireField(screen, row.name, key, "set_name")
  wireField(screen, row.request, key, "set_request")
  row.remove.addEventListener("click", () => screen.link.send({ do: "remove", key }))
  return row
}

function drawRow(screen, row, values, view, shown, canEdit) {
  const sms = shown.sms.get(values.key)
  setText(row.letter, values.letter)
  row.letter.style.setProperty("--gsl-fill", values.fill)
  fillField(screen, row.name, values.name, canEdit)
  fillField(screen, row.request, values.request, canEdit)
  const isPreview = shown.isPreview && sms !== values.granted_sms
  const granted = view.is_nearest_shown || values.granted_sms === null ? "–" : String(isPreview ? sms : values.granted_sms)
  setText(row.granted.querySelector("b"), granted)
  setText(row.granted.querySelector("span"), isPreview ? "preview" : values.difference)
  row.granted.classList.toggle("gsl-differs", !isPreview && values.requested_sms !== values.granted_sms)
  setText(row.streams, values.streams.join(", ") || "none")
  row.streams.classList.toggle("gsl-none", values.streams.length === 0)
  setText(row.proof, values.renamed_from ? `was ${values.renamed_from}; ${values.proof}` : values.proof)
  row.proof.classList.toggle("gsl-bad", values.is_proof_bad)
  row.remove.disabled = !canEdit
  row.remove.setAttribute("aria-label", `Remove ${values.name}`)
  row.remove.title = `Remove ${values.name}: its SMs are then in no partition`
  row.name.setAttribute("aria-invalid", String(values.is_name_bad))
  row.request.setAttribute("aria-invalid", String(values.is_request_bad))
  row.fault.hidden = !values.problem
  drawFault(screen, row.fault.lastElementChild, values.problem, view.problem, canEdit)
}

function drawProblem(screen, view, canEdit) {
  const isLoose = view.problem !== null && view.problem.key === null
  screen.parts.problem.hidden = !isLoose
  drawFault(screen, screen.parts.problem, isLoose ? view.problem.text : "", view.problem, canEdit)
}

/** Say what is wrong, with the nearest plan that works to click on. */
function drawFault(screen, box, text, problem, canEdit) {
  const nearestPlan = text && problem ? problem.nearest : ""
  const sign = `${text}|${nearestPlan}|${canEdit}`
  if (box.dataset.sign === sign) return
  box.dataset.sign = sign
  box.replaceChildren(make("span", {}, text))
  if (!nearestPlan || !canEdit) return
  const button = make("button", { type: "button", class: "gsl-use" }, `Use ${nearestPlan}`)
  keepKeys(button)
  button.addEventListener("click", () => {
    screen.typed.clear()
    screen.link.send({ do: "use_nearest" })
  })
  box.append(" ", button)
}

// ---- fields -----------------------------------------------------------------------------------------------------------------

/** Send what is typed shortly after; Enter and leaving the field send at once. Until the kernel has it, the field is the user's. */
function wireField(screen, field, key, name) {
  const send = () => {
    const entry = screen.typed.get(field)
    if (!entry || entry.seq !== null) return
    clearTimeout(entry.timer)
    entry.seq = screen.link.send({ do: name, key, text: field.value })
  }
  field.addEventListener("input", () => {
    clearTimeout(screen.typed.get(field)?.timer)
    screen.typed.set(field, { seq: null, send, timer: setTimeout(send, TYPING_MS) })
  })
  field.addEventListener("change", send)
  field.addEventListener("keydown", event => event.key === "Enter" && send())
}

function flushTyping(screen) {
  for (const entry of screen.typed.values()) entry.send()
}

function fillField(screen, field, text, canEdit) {
  const entry = screen.typed.get(field)
  if (entry && entry.seq !== null && screen.link.isDone(entry.seq)) screen.typed.delete(field)
  // The kernel trims what is typed: a space at the end of the field that has the focus is no reason to move the cursor.
  const own = field.getRootNode().activeElement === field ? field.value.trim() : field.value
  if (!screen.typed.has(field) && own !== text) field.value = text
  field.readOnly = !canEdit
}

// ---- small things -----------------------------------------------------------------------------------------------------------

/** Copy the line; where the browser does not let a page do that, it is selected. */
async function copy({ code, copy: button }) {
  const isCopied = await navigator.clipboard?.writeText(code.textContent).then(() => true, () => false)
  if (!isCopied) {
    window.getSelection().selectAllChildren(code)
    code.focus()
  }
  setText(button, isCopied ? "Copied" : "Press Ctrl+C")
  setTimeout(() => setText(button, "Copy"), 2000)
}

function dropGone(nodes, live) {
  for (const [key, node] of nodes) if (!live.includes(key) && nodes.delete(key)) (node.body ?? node).remove()
}

function putBefore(parent, node, next = null) {
  if (node !== next) parent.insertBefore(node, next)
}

function make(tag, attributes = {}, text = "") {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value)
  if (text) element.textContent = text
  return element
}

/** Keep keys from the notebook's own shortcuts, which would else take arrows and Enter: asked of the focused element itself. */
function keepKeys(root) {
  for (const element of [root, ...root.querySelectorAll("button, input, select, code")]) element.dataset.lmSuppressShortcuts = "true"
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text
}
