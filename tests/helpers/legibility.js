// Measures in a live page what a person needs to read and to press it: see legibility.py. Two parts: `listen` goes into the page
// before its own scripts and hears what canvases are told to paint; `measure` looks at all of it, with a picture of the window.

function listen() {
  const pen = CanvasRenderingContext2D.prototype, shape = Path2D.prototype
  const canvases = new Set(), states = new WeakMap(), paths = new WeakMap()
  const stateOf = ctx => {
    if (!states.has(ctx)) states.set(ctx, { clip: null, clips: [], path: newPath() })
    canvases.add(ctx.canvas)
    ctx.canvas.gslPainted ??= { texts: [], marks: [] }
    return states.get(ctx)
  }
  const newPath = () => ({ left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity, subs: [], isSlanted: false, at: null, rects: 0 })
  const extend = (path, x, y) => {
    const sub = path.subs.at(-1)
    if (path.at && Math.abs(x - path.at[0]) > 1 && Math.abs(y - path.at[1]) > 1) path.isSlanted = true
    for (const box of sub ? [path, sub] : [path]) {
      box.left = Math.min(box.left, x)
      box.right = Math.max(box.right, x)
      box.top = Math.min(box.top, y)
      box.bottom = Math.max(box.bottom, y)
    }
    path.at = [x, y]
  }
  const begin = (path, x, y) => {
    path.at = null
    path.subs.push({ left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity })
    extend(path, x, y)
  }
  const steps = {
    moveTo: (path, x, y) => begin(path, x, y),
    lineTo: (path, x, y) => (path.subs.length ? extend : begin)(path, x, y),
    rect: (path, x, y, w, h) => { begin(path, x, y); path.at = null; extend(path, x + w, y + h); path.at = null; path.rects += 1 },
    arc: (path, x, y, r) => { begin(path, x - r, y - r); path.at = null; extend(path, x + r, y + r); path.at = null },
    quadraticCurveTo: (path, _x, _y, x, y) => extend(path, x, y),
    bezierCurveTo: (path, _a, _b, _c, _d, x, y) => extend(path, x, y),
    roundRect: (path, x, y, w, h) => steps.rect(path, x, y, w, h),
  }
  const hook = (proto, name, before, after) => {
    const original = proto[name]
    proto[name] = function (...values) {
      before?.(this, ...values)
      const result = original.apply(this, values)
      after?.(this, ...values)
      return result
    }
  }
  const pathOf = made => { if (!paths.has(made)) paths.set(made, newPath()); return paths.get(made) }
  for (const [name, step] of Object.entries(steps)) {
    hook(pen, name, (ctx, ...values) => step(stateOf(ctx).path, ...values))
    hook(shape, name, (made, ...values) => step(pathOf(made), ...values))
  }
  hook(pen, "beginPath", ctx => { stateOf(ctx).path = newPath() })
  hook(pen, "save", ctx => { const state = stateOf(ctx); state.clips.push(state.clip) })
  hook(pen, "restore", ctx => { const state = stateOf(ctx); if (state.clips.length) state.clip = state.clips.pop() })
  hook(pen, "clip", ctx => {
    const state = stateOf(ctx)
    if (state.path.rects !== 1) return
    const box = toDevice(ctx, state.path)
    state.clip = state.clip ? { left: Math.max(box.left, state.clip.left), top: Math.max(box.top, state.clip.top), right: Math.min(box.right, state.clip.right), bottom: Math.min(box.bottom, state.clip.bottom) } : box
  })
  const toDevice = (ctx, { left, top, right, bottom }) => {
    const matrix = ctx.getTransform(), corners = [[left, top], [right, top], [left, bottom], [right, bottom]].map(([x, y]) => matrix.transformPoint({ x, y }))
    const xs = corners.map(({ x }) => x), ys = corners.map(({ y }) => y)
    return { left: Math.min(...xs), top: Math.min(...ys), right: Math.max(...xs), bottom: Math.max(...ys) }
  }
  const isIn = (inner, outer) => inner.left >= outer.left - 0.5 && inner.right <= outer.right + 0.5 && inner.top >= outer.top - 0.5 && inner.bottom <= outer.bottom + 0.5
  const wipe = (ctx, box) => {
    const painted = ctx.canvas.gslPainted
    if (!painted) return
    painted.texts = painted.texts.filter(item => !isIn(item.box, box))
    painted.marks = painted.marks.filter(item => !isIn(item.box, box))
  }
  const everything = { left: -Infinity, top: -Infinity, right: Infinity, bottom: Infinity }
  hook(pen, "clearRect", (ctx, x, y, w, h) => {
    const box = toDevice(ctx, { left: x, top: y, right: x + w, bottom: y + h })
    const isAll = box.left <= 2 && box.top <= 2 && box.right >= ctx.canvas.width - 2 && box.bottom >= ctx.canvas.height - 2
    wipe(ctx, isAll ? everything : box)
  })
  hook(pen, "fillRect", (ctx, x, y, w, h) => {
    const isOpaque = typeof ctx.fillStyle === "string" && ctx.fillStyle[0] === "#" && ctx.globalAlpha === 1
    if (isOpaque && w > 6 && h > 6 && ctx.canvas.gslPainted?.texts.length) wipe(ctx, toDevice(ctx, { left: x, top: y, right: x + w, bottom: y + h }))
  })
  for (const side of ["width", "height"]) {
    const { get, set } = Object.getOwnPropertyDescriptor(HTMLCanvasElement.prototype, side)
    Object.defineProperty(HTMLCanvasElement.prototype, side, {
      get, configurable: true, set(value) {
        if (this.gslPainted) this.gslPainted = { texts: [], marks: [] }
        const ctx = canvases.has(this) ? this.getContext("2d") : null
        if (ctx) states.delete(ctx)
        set.call(this, value)
      },
    })
  }
  const measureText = pen.measureText
  const fillText = pen.fillText
  pen.fillText = function (text, x, y, most = Infinity) {
    if (most === Infinity) fillText.call(this, text, x, y)
    else fillText.call(this, text, x, y, most)
    const state = stateOf(this), size = measureText.call(this, text), scale = Math.min(1, most / size.width)
    const box = toDevice(this, { left: x - size.actualBoundingBoxLeft * scale, right: x + size.actualBoundingBoxRight * scale, top: y - size.actualBoundingBoxAscent, bottom: y + size.actualBoundingBoxDescent })
    if (!text.trim() || typeof this.fillStyle !== "string") return
    const item = { text, box, clip: state.clip, font: this.font, colour: this.fillStyle, alpha: this.globalAlpha }
    const { texts } = this.canvas.gslPainted
    if (!texts.some(other => other.text === text && Math.abs(other.box.left - box.left) < 1 && Math.abs(other.box.top - box.top) < 1)) texts.push(item)
  }
  for (const name of ["stroke", "fill"]) hook(pen, name, (ctx, made) => {
    const state = stateOf(ctx), path = made instanceof Path2D ? pathOf(made) : state.path, colour = ctx[`${name}Style`]
    const { marks } = ctx.canvas.gslPainted
    if (typeof colour !== "string" || !path.subs.length || marks.length > 3000) return
    const sides = path.subs.map(sub => [sub.right - sub.left, sub.bottom - sub.top])
    const wide = Math.max(...sides.map(([side]) => side)), high = Math.max(...sides.map(([, side]) => side))
    marks.push({ name, path, colour, alpha: ctx.globalAlpha, width: ctx.lineWidth, wide, high, isSlanted: path.isSlanted, box: toDevice(ctx, path), clip: state.clip })
  })
  window.gslCanvases = () => [...canvases].filter(canvas => canvas.isConnected && canvas.gslPainted)
}

async function measure({ picture, root: rootSelector }) {
  const found = [], cut = []
  const report = (fault, text, more = "") => found.push([fault, String(text).trim().replace(/\s+/g, " ").slice(0, 60), String(more)])
  const scope = document.querySelector(rootSelector) ?? document.body
  const bytes = Uint8Array.from(atob(picture), letter => letter.charCodeAt(0))
  const image = await createImageBitmap(new Blob([bytes]))
  const pen = new OffscreenCanvas(image.width, image.height).getContext("2d", { willReadFrequently: true })
  pen.drawImage(image, 0, 0)
  const ratio = image.width / innerWidth, pixels = pen.getImageData(0, 0, image.width, image.height).data

  // ---- colours
  const swatch = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true })
  const parsed = new Map()
  const parse = text => {
    if (!parsed.has(text)) {
      swatch.clearRect(0, 0, 1, 1)
      swatch.fillStyle = text
      swatch.fillRect(0, 0, 1, 1)
      const [r, g, b, a] = swatch.getImageData(0, 0, 1, 1).data
      parsed.set(text, [r, g, b, a / 255])
    }
    return parsed.get(text)
  }
  const over = (ink, alpha, ground) => [0, 1, 2].map(i => ink[i] * ink[3] * alpha + ground[i] * (1 - ink[3] * alpha))
  const linear = value => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4)
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
  const contrast = (one, other) => {
    const [most, least] = [light(one), light(other)].sort((p, q) => q - p)
    return (most + 0.05) / (least + 0.05)
  }
  const near = (one, other) => [0, 1, 2].every(i => Math.abs(one[i] - other[i]) < 24)
  /** The colours that fill at least a sixth of a box, the commonest first: what is behind the text, which itself covers less than most of it. */
  const groundsOf = ({ left, top, right, bottom }, ink) => {
    const counts = new Map()
    let all = 0
    for (let y = Math.max(0, Math.floor(top * ratio)); y < Math.min(image.height, Math.ceil(bottom * ratio)); y++) {
      for (let x = Math.max(0, Math.floor(left * ratio)); x < Math.min(image.width, Math.ceil(right * ratio)); x++) {
        const at = 4 * (y * image.width + x), key = (pixels[at] << 16) | (pixels[at + 1] << 8) | pixels[at + 2]
        counts.set(key, (counts.get(key) ?? 0) + 1)
        all++
      }
    }
    const sorted = [...counts].sort((one, other) => other[1] - one[1]).map(([key, count]) => [[key >> 16, (key >> 8) & 255, key & 255], count / all])
    const grounds = sorted.filter(([colour, share]) => share > 0.6 || !near(colour, ink))
    return grounds.filter(([, share], place) => place === 0 || share > 1 / 6).map(([colour]) => colour)
  }

  // ---- what is where
  const roots = root => [root, ...[...root.querySelectorAll("*")].filter(e => e.shadowRoot).flatMap(e => roots(e.shadowRoot))]
  const scopes = [scope, ...roots(scope).slice(1)]
  const stackAt = (root, x, y) => root.elementsFromPoint(x, y).filter(e => root === document || e.getRootNode() === root)
    .flatMap(e => (e.shadowRoot ? [...stackAt(e.shadowRoot, x, y), e] : [e]))
  const styles = new Map()
  const styleOf = element => { if (!styles.has(element)) styles.set(element, getComputedStyle(element)); return styles.get(element) }
  const parentOf = element => element.parentElement ?? element.getRootNode().host ?? null
  const ancestors = element => { const all = []; for (let e = element; e; e = parentOf(e)) all.push(e); return all }
  const isSeen = (element, x, y) => {
    if (x < 0 || y < 0 || x >= innerWidth || y >= innerHeight) return false
    const own = new Set(ancestors(element))
    for (const other of stackAt(document, x, y)) {
      if (own.has(other) || element.contains(other)) return true
      const { backgroundColor, backgroundImage } = styleOf(other)
      if (parse(backgroundColor)[3] > 0.5 || backgroundImage !== "none") return false
    }
    return true
  }
  const isHiddenForEyes = element => ancestors(element).some(e => {
    const { clipPath, opacity } = styleOf(e)
    return clipPath === "inset(50%)" || Number(opacity) === 0
  })
  const middle = ({ left, top, right, bottom }) => [(left + right) / 2, (top + bottom) / 2]
  const cross = (one, other) => ({ left: Math.max(one.left, other.left), top: Math.max(one.top, other.top), right: Math.min(one.right, other.right), bottom: Math.min(one.bottom, other.bottom) })
  const wide = ({ left, right }) => right - left, high = ({ top, bottom }) => bottom - top
  const says = (element, text) => ancestors(element).some(e => [e.title, e.dataset?.tip].some(tip => tip?.includes(text.trim())))
  const items = []

  // ---- texts of the document
  const addText = (element, text, box, { node = null, colour = null } = {}) => {
    const style = styleOf(element)
    let shown = box, cutBy = null
    for (const e of ancestors(element)) {
      if (e === document.body || e === document.documentElement) break
      const { overflowX, overflowY, position } = styleOf(e)
      if (overflowX !== "visible" || overflowY !== "visible") {
        const frame = e.getBoundingClientRect()
        const within = cross(shown, { left: frame.left + e.clientLeft - 1, top: frame.top + e.clientTop - 1, right: frame.right + 1, bottom: frame.bottom + 1 })
        const scrolls = /auto|scroll/.test(overflowX + overflowY)
        if (!scrolls && (wide(within) < wide(shown) - 1.5 || high(within) < high(shown) * 0.75)) cutBy ??= e
        shown = within
      }
      if (position === "fixed") break
    }
    if (cutBy && !says(element, text)) report("clipped", text, `by ${cutBy.className || cutBy.tagName}`)
    if (wide(shown) < 1 || high(shown) < 1) return
    if (shown.right > innerWidth + 1 || shown.left < -1) report("clipped", text, "by the window")
    const ink = node ? { left: shown.left, right: shown.right, top: shown.top + 0.2 * high(shown), bottom: shown.bottom - 0.2 * high(shown) } : shown
    const alpha = ancestors(element).reduce((product, e) => product * Number(styleOf(e).opacity), 1)
    const px = parseFloat(style.fontSize), isBig = px >= 24 || (px >= 18.66 && Number(style.fontWeight) >= 700)
    // What is scrolled partly out is measured where it is in.
    const isOff = element.closest("[disabled], [aria-disabled=true]") || high(shown) < high(box) - 1.5
    items.push({ text, node, element, box: ink, colour: colour ?? (element.ownerSVGElement ? style.fill : style.color), alpha, least: isOff ? 0 : isBig ? 3 : 4.5 })
  }
  for (const root of scopes) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT)
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement
      if (!element || !node.data.trim() || /^(SCRIPT|STYLE|TITLE|OPTION|TEXTAREA)$/i.test(element.tagName)) continue
      if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) || isHiddenForEyes(element)) continue
      const range = document.createRange()
      range.selectNodeContents(node)
      for (const rect of range.getClientRects()) if (rect.width > 1) addText(element, node.data, rect, { node })
    }
    for (const field of root.querySelectorAll("input:not([type=radio], [type=checkbox]), textarea, select")) {
      const text = field.value || field.placeholder
      if (!text || !field.checkVisibility() || isHiddenForEyes(field)) continue
      const { left, right, top, bottom } = field.getBoundingClientRect(), style = styleOf(field)
      if (field.scrollWidth > field.clientWidth + 1 && document.activeElement !== field && !says(field, text)) report("clipped", text, "by its field")
      const box = { left: left + parseFloat(style.paddingLeft), right: right - parseFloat(style.paddingRight), top: top + 4, bottom: bottom - 4 }
      addText(field, text, box, { colour: field.value ? null : getComputedStyle(field, "::placeholder").color })
    }
  }

  // ---- texts and marks of canvases
  const still = document.head.appendChild(document.createElement("style"))
  still.textContent = "* { pointer-events: auto !important }"
  for (const canvas of gslCanvases()) {
    if (!scopes.some(root => root.contains(canvas)) || !canvas.checkVisibility() || !canvas.width) continue
    const frame = canvas.getBoundingClientRect(), scale = frame.width / canvas.width
    const place = ({ left, top, right, bottom }) => ({ left: frame.left + left * scale, top: frame.top + top * scale, right: frame.left + right * scale, bottom: frame.top + bottom * scale })
    for (const { text, box, clip, font, colour, alpha } of canvas.gslPainted.texts) {
      const whole = place(box), shown = cross(whole, cross(clip ? place(clip) : frame, frame))
      if (wide(shown) < 1 || high(shown) < 1 || !isSeen(canvas, ...middle(shown))) continue
      const lost = Math.max(wide(whole) - wide(shown), whole.right - innerWidth, -whole.left)
      if (lost > 1.5) report("clipped", text, `by its canvas, ${lost.toFixed(0)} px`)
      else if (cross(whole, frame).bottom < whole.bottom - 1.5 || cross(whole, frame).top > whole.top + 1.5) report("clipped", text, "by its canvas, above or below")
      if (high(shown) < 0.6 * high(whole)) continue // scrolled half out of the lanes
      if (text.endsWith("…")) cut.push([text, ...middle(shown)])
      const px = parseFloat(font.match(/([\d.]+)px/)?.[1] ?? 12)
      items.push({ text, element: canvas, box: shown, colour, alpha, least: px >= 24 ? 3 : 4.5 })
    }
    const paper = ancestors(canvas).map(e => parse(styleOf(e).backgroundColor)).find(([, , , a]) => a > 0.9) ?? [255, 255, 255, 1]
    const best = new Map()
    for (const { path, colour, alpha, width, wide: w, high: h, isSlanted, name, box, clip } of canvas.gslPainted.marks) {
      const shown = cross(place(box), cross(clip ? place(clip) : frame, frame))
      if (wide(shown) < 1 && high(shown) < 1) continue
      const isSign = name === "fill" ? w <= 24 && h <= 24 && w > 2 && h > 2 : isSlanted && width >= 1
      if (!isSign && !best.has(path)) continue
      const ratioHere = contrast(over(parse(colour), alpha, paper), paper)
      if (!best.has(path) || best.get(path)[0] < ratioHere) best.set(path, [ratioHere, name, colour, shown])
    }
    // A rim around a sign is no sign of its own.
    for (const [path, [ratioHere, , , shown]] of best) {
      const [x, y] = middle(shown)
      const isRim = [...best.values()].some(([other, , , box]) => other > ratioHere && Math.hypot(middle(box)[0] - x, middle(box)[1] - y) < 3)
      if (isRim) best.delete(path)
    }
    for (const [ratioHere, name, colour, shown] of best.values()) {
      if (ratioHere < 2.95) report("contrast of a mark", `${name} ${colour}`, `${ratioHere.toFixed(1)} at ${middle(shown).map(Math.round)}`)
    }
  }

  // ---- contrast and overlaps
  for (const { text, element, box, colour, alpha, least } of items) {
    const [x, y] = middle(box)
    if (![box.left + 1, x, box.right - 1].every(place => [box.top - 1, y, box.bottom].every(height => isSeen(element, place, height)))) continue
    const ink = parse(colour)
    const grounds = groundsOf({ left: box.left - 2, top: box.top - 1, right: box.right + 2, bottom: box.bottom + 1 }, ink)
    const ratios = grounds.map(ground => contrast(over(ink, alpha, ground), ground))
    const worst = Math.min(...ratios)
    if (worst < least - 0.05) report("contrast", text, `${worst.toFixed(1)}, ${colour} on rgb(${grounds[ratios.indexOf(worst)]})`)
  }
  for (let one = 0; one < items.length; one++) {
    for (let other = one + 1; other < items.length; other++) {
      const shared = cross(items[one].box, items[other].box)
      if (items[one].node && items[one].node === items[other].node) continue // a text that turns its direction
      if (wide(shared) <= 2 || high(shared) <= 3) continue
      if ([items[one], items[other]].every(({ element }) => isSeen(element, ...middle(shared)))) report("overlap", items[one].text, `and ${items[other].text.trim().slice(0, 40)}`)
    }
  }
  still.remove()

  // ---- controls
  const NAMED_APART = /^(dialog|img|region)$/ // Roles whose name is not what they contain.
  const nameOf = element => {
    const refs = (element.getAttribute("aria-labelledby") ?? "").split(/\s+/).filter(Boolean).map(id => element.getRootNode().getElementById?.(id)?.textContent ?? "")
    const labels = [...(element.labels ?? [])].map(label => label.textContent)
    const spoken = node => [...node.childNodes].map(child => (child.nodeType === 3 ? child.data : child.nodeType !== 1 || child.ariaHidden === "true" ? "" : (child.ariaLabel ?? child.alt ?? spoken(child)))).join("")
    const texts = [...refs, element.getAttribute("aria-label"), ...labels, /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) || NAMED_APART.test(element.role) ? "" : spoken(element), element.title, element.placeholder, element.alt]
    return texts.find(text => text?.trim())?.trim() ?? ""
  }
  const NATIVE = "button, input, select, textarea, a[href], summary"
  const PRESSED = /^(button|slider|checkbox|radio|switch|tab|menuitem\w*|option|link|textbox|searchbox|combobox|scrollbar|spinbutton|treeitem)$/
  for (const root of scopes) {
    for (const element of [...(root === scope ? [scope] : []), ...root.querySelectorAll(`${NATIVE}, [role], [tabindex]`)]) {
      if (!element.matches(`${NATIVE}, [role], [tabindex]`) || !element.checkVisibility({ visibilityProperty: true }) || isHiddenForEyes(element)) continue
      const role = element.getAttribute("role") ?? "", isNative = element.matches(NATIVE), isPressed = isNative || PRESSED.test(role)
      const what = `${element.tagName.toLowerCase()}.${element.className} ${nameOf(element)}`
      if (!isNative && !role && element.tabIndex >= 0) report("no role", what)
      if ((isPressed || element.tabIndex >= 0 || NAMED_APART.test(role)) && !nameOf(element)) report("no name", what)
      if (!isPressed || element.disabled) continue
      const boxes = [element, ...(element.labels ?? [])].map(e => e.getBoundingClientRect())
      const [w, h] = [Math.max(...boxes.map(wide)), Math.max(...boxes.map(high))]
      const isInSentence = styleOf(element).display === "inline" && element.parentElement.textContent.trim() !== element.textContent.trim()
      if ((w < 23.5 || h < 23.5) && !isInSentence) report("small", what, `${w.toFixed(0)}x${h.toFixed(0)}`)
      if (!/^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) || /radio|checkbox/.test(element.type)) continue
      const { borderTopColor, borderTopWidth } = styleOf(element), ground = ancestors(parentOf(element)).map(e => parse(styleOf(e).backgroundColor)).find(([, , , a]) => a > 0.9) ?? [255, 255, 255, 1]
      const edge = parseFloat(borderTopWidth) ? contrast(over(parse(borderTopColor), 1, ground), ground) : 1
      if (!element.readOnly && edge < 2.95) report("contrast of a mark", `border of ${what}`, edge.toFixed(1))
    }
  }
  return { found, cut, counted: items.length }
}
