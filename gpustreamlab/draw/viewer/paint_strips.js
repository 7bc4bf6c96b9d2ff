// Strips below the lanes: SMs in use by partition, stacked, and how many lanes are busy. Each px column shows its exact mean.
const PEAK_SLACK = 0.02
const SMS_LABEL_PX = 38, SMS_LABEL_HIGH_PX = 13 // An area of that size is labelled with its SMs.

function paintStrips(ctx, painter) {
  const {view} = painter, columns = Math.max(1, Math.round(view.frame.right - view.frame.left))
  for (const strip of view.parts.strips) {
    const box = {left: view.frame.left, top: view.frame.top + strip.top, bottom: view.frame.top + strip.bottom, columns}
    if (strip.kind === "sms") paintSms(ctx, painter, box)
    else paintBusy(ctx, painter, box)
  }
}

function paintSms(ctx, painter, box) {
  const {view, hatches, ratio} = painter, {tables, store} = view
  const stack = smShares(store, tables, view.x0, view.x1, box.columns), low = new Float64Array(box.columns)
  clipStrip(ctx, view, box, () => {
    tables.bands.forEach((band, place) => {
      const high = stack[place].map((sms, column) => low[column] + sms)
      const shape = stepShape(low, high, box, tables.sm_count)
      ctx.fillStyle = band.fill
      ctx.fill(shape)
      if (band.hatch in HATCH_LINES) hatchShape(ctx, hatches.get(ctx, band.hatch, BAR_INK, 0.3, ratio), shape, ratio)
      labelSms(ctx, painter, band, {low, sms: stack[place]}, box)
      low.set(high)
    })
  })
  paintScale(ctx, painter, box, `${formatCount(tables.sm_count)} SMs`, "in use")
}

// Write a number of SMs where it begins to be another one than written before, if it stays for long enough.
function labelSms(ctx, {view, texts}, band, {low, sms}, {left, bottom, top, columns}) {
  const scale = (bottom - top) / view.tables.sm_count
  let written = 0
  setFont(ctx, 11, "bold")
  ctx.textAlign = "left"
  ctx.textBaseline = "middle"
  for (let from = 0, to; from < columns; from = to) {
    for (to = from + 1; to < columns && Math.abs(sms[to] - sms[from]) < 0.01 && Math.abs(low[to] - low[from]) < 0.01;) to++
    if (to - from < SMS_LABEL_PX || sms[from] * scale < SMS_LABEL_HIGH_PX || Math.abs(sms[from] - written) < 0.5) continue
    written = sms[from]
    const text = `${band.letter} ${formatCount(written)}`.trim(), width = texts.width(ctx, text), middle = bottom - (low[from] + written / 2) * scale
    if (width + 8 > to - from) continue
    ctx.fillStyle = band.fill
    ctx.fillRect(left + from + 3, middle - 7, width + 4, 14)
    ctx.fillStyle = BAR_INK
    ctx.fillText(text, left + from + 5, middle + 0.5)
  }
}

// A canvas paints a pattern in its own px; these are device px.
function hatchShape(ctx, pattern, shape, ratio) {
  const matrix = new DOMMatrix([1 / ratio, 0, 0, 1 / ratio, 0, 0])
  pattern.setTransform(matrix)
  ctx.fillStyle = pattern
  ctx.fill(shape)
}

function paintBusy(ctx, painter, box) {
  const {view, theme} = painter
  const {lanes} = busyShares(view.store, view.tables, view.x0, view.x1, box.columns)
  const most = busyPeak(view, lanes)
  clipStrip(ctx, view, box, () => {
    ctx.fillStyle = theme.busy
    ctx.fill(stepShape(new Float64Array(box.columns), lanes, box, most || 1))
  })
  // Where columns hold several changes, their means are no numbers of streams that ever were busy at once.
  const isMean = lanes.reduce((sum, count) => sum + (Math.abs(count - Math.round(count)) > 1e-3), 0) > lanes.length / 4
  paintScale(ctx, painter, box, most ? `${formatCount(most)} busy` : "busy", most ? isMean ? "on average" : "streams" : "")
}

// The most lanes that were busy at once in what was drawn so far: the scale only ever grows, until the lanes change.
function busyPeak(view, lanes) {
  if (view.peakOf !== view.tables.lanes.length) { view.peak = 0; view.peakOf = view.tables.lanes.length }
  // Far from 0, times of less than a ns are not exact.
  for (const count of lanes) if (count > view.peak + PEAK_SLACK) view.peak = Math.ceil(count - PEAK_SLACK)
  return view.peak
}

function clipStrip(ctx, view, {left, top, bottom}, paint) {
  ctx.save()
  ctx.beginPath()
  ctx.rect(left, top, view.frame.right - left, bottom - top)
  ctx.clip()
  paint()
  ctx.restore()
}

// The area between two step lines; columns of one height are one step.
function stepShape(low, high, {left, top, bottom}, most) {
  const shape = new Path2D(), scale = (bottom - top) / most, n = high.length
  let from = 0
  while (from < n) {
    if (high[from] - low[from] <= 1e-9) { from++; continue }
    let to = from
    while (to < n && high[to] - low[to] > 1e-9) to++
    stepOutline(shape, low, high, {from, to, left, bottom, scale})
    from = to
  }
  return shape
}

function stepOutline(shape, low, high, {from, to, left, bottom, scale}) {
  shape.moveTo(left + from, bottom - low[from] * scale)
  for (let column = from; column < to; column++) {
    const y = bottom - high[column] * scale
    if (column === from || high[column] !== high[column - 1]) shape.lineTo(left + column, y)
    if (column === to - 1 || high[column] !== high[column + 1]) shape.lineTo(left + column + 1, y)
  }
  for (let column = to - 1; column >= from; column--) {
    const y = bottom - low[column] * scale
    if (column === to - 1 || low[column] !== low[column + 1]) shape.lineTo(left + column + 1, y)
    if (column === from || low[column] !== low[column - 1]) shape.lineTo(left + column, y)
  }
  shape.closePath()
}

// The most and 0 beside a strip, and what is counted.
function paintScale(ctx, {view, theme, texts}, {left, top, bottom}, most, what) {
  ctx.fillStyle = theme.grid
  ctx.fillRect(left, bottom, view.frame.right - left, 1)
  ctx.fillRect(left - 5, top, 5, 1)
  ctx.fillRect(left - 5, bottom, 5, 1)
  setFont(ctx, 12)
  ctx.textAlign = "right"
  ctx.textBaseline = "middle"
  const x = left - LABEL_GAP_PX, room = x - 2
  ctx.fillStyle = theme.ink
  ctx.fillText(texts.fit(ctx, most, room), x, top + 5)
  ctx.fillText("0", x, bottom - 3)
  if (bottom - top < 40) return
  setFont(ctx, 11)
  ctx.fillStyle = theme.soft
  ctx.fillText(texts.fit(ctx, what, room), x, top + 19)
}
