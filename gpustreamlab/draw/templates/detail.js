// Level of detail: bars for what is at least MERGE_PX wide, one merged bar for what is narrower and close together.
// A merged bar of several names is grey, and a note says so as long as one is on the screen.
const MERGE_PX = 2, MIXED_FILL = "#8d99a6"
const after = (times, limit) => {
  let lo = 0, hi = times.length
  while (lo < hi) { const m = (lo + hi) >> 1; if (times[m] <= limit) lo = m + 1; else hi = m }
  return lo
}
// Several step functions on common times.
const sampled = (series, x0, x1, inner) => {
  const cuts = series.map(({time}) => { const first = Math.max(0, after(time, x0) - 1); return [first, Math.min(after(time, x1) + 1, time.length)] })
  const px = (x1 - x0) / inner, x = [], y = series.map(() => [])
  if (cuts.reduce((sum, [first, last]) => sum + last - first, 0) <= 2 * inner) {
    const times = new Set()
    series.forEach(({time}, s) => { for (let i = cuts[s][0]; i < cuts[s][1]; i++) times.add(time[i]) })
    x.push(...[...times].sort((a, b) => a - b))
    series.forEach(({time, count}, s) => {
      let i = cuts[s][0]
      for (const t of x) { while (i < cuts[s][1] && time[i] <= t) i++; y[s].push(i ? count[i - 1] : 0) }
    })
  } else {
    for (let c = 0; c < inner; c++) x.push(x0 + c * px)
    series.forEach(({time, count}, s) => {
      let i = cuts[s][0]
      for (let c = 0; c < inner; c++) {
        const a = x0 + c * px, b = a + px
        let sum = 0, at = a
        while (i + 1 < time.length && time[i + 1] <= b) { sum += (time[i + 1] - at) * (time[i] <= at ? count[i] : 0); at = time[i + 1]; i++ }
        sum += i < time.length && time[i] <= at ? (b - at) * count[i] : 0
        y[s].push(sum / px)
      }
    })
  }
  while (x.length < 2) { x.push(x1); y.forEach(v => v.push(0)) } // BokehJS 3.9 never comes back from drawing a step area of no points.
  return {x, y}
}
// Labels of the changes in view, on the first row that has room; a line without a label stays.
const placed = ({time, text, width}, x0, x1, px) => {
  const out = {x: [], y: [], text: [], align: [], shift: []}, free = mark_rows.map(() => x0)
  for (let i = 0; i < time.length; i++) {
    if (time[i] < x0 || time[i] > x1) continue
    const room = (width[i] + 8) * px, right = time[i] + room <= x1, begin = right ? time[i] : time[i] - room
    const row = free.findIndex(limit => begin >= limit)
    if (row < 0) continue
    free[row] = begin + room
    out.x.push(time[i]); out.y.push(mark_rows[row]); out.text.push(text[i])
    out.align.push(right ? "left" : "right"); out.shift.push(right ? 4 : -4)
  }
  return out
}
const draw = () => {
  lanes.__gsl_frame = 0
  const x0 = lanes.x_range.start, x1 = lanes.x_range.end, inner = lanes.inner_width
  if (!(inner > 0) || !(x1 > x0)) return
  const px = (x1 - x0) / inner, thin = MERGE_PX * px
  const {left, right, row, name, kind} = spans.data
  const bar = {left: [], right: [], top: [], bottom: [], fill: [], edge: [], place: []}
  const hatch = hatched.map(() => ({left: [], right: [], top: [], bottom: []}))
  const label = {x: [], y: [], text: [], colour: [], fill: []}
  const merged = {left: [], right: [], top: [], bottom: [], fill: [], count: [], longest: []}
  let open = -1, from = 0, to = 0, count = 0, longest = 0, mixed = false
  const emit = (i, a, b) => {
    const r = row[i], n = name[i], wide = b - a >= 5 * px
    bar.left.push(a); bar.right.push(b); bar.top.push(row_top[r]); bar.bottom.push(row_bottom[r])
    const fill = kind_fills[kind[i]] || fills[n], sign = wide ? kind_hatches[kind[i]] || hatches[n] : 0
    bar.fill.push(fill); bar.edge.push(wide ? 1 : 0); bar.place.push(i)
    if (sign) { const h = hatch[sign - 1]; h.left.push(a); h.right.push(b); h.top.push(row_top[r]); h.bottom.push(row_bottom[r]) }
    const begin = Math.max(a, x0), room = (Math.min(b, x1) - begin) / px - 10, text = names[n], fit = Math.floor(room / 6.6)
    if (row_bottom[r] - row_top[r] < 12 || fit < Math.min(4, text.length)) return
    label.x.push(begin + 5 * px); label.y.push((row_top[r] + row_bottom[r]) / 2); label.fill.push(fill)
    label.colour.push(fill == fills[n] ? texts[n] : "#101418")
    label.text.push(text.length <= fit ? text : text.slice(0, fit - 1) + "…")
  }
  const flush = () => {
    if (open < 0) return
    if (count == 1) emit(open, from, Math.max(to, from + thin))
    else {
      const r = row[open]
      merged.left.push(from); merged.right.push(Math.max(to, from + thin)); merged.top.push(row_top[r]); merged.bottom.push(row_bottom[r])
      merged.fill.push(mixed ? MIXED_FILL : kind_fills[kind[longest]] || fills[name[longest]]); merged.count.push(count); merged.longest.push(longest)
    }
    open = -1
  }
  for (let i = 0; i < left.length; i++) {
    const a = left[i], b = right[i]
    if (b < x0 || a > x1) continue
    if (b - a >= thin) { flush(); emit(i, a, b); continue }
    if (open >= 0 && row[i] == row[open] && a - to < px && Math.max(b, to) - from < 2 * thin) {
      count++; to = Math.max(to, b); mixed ||= name[i] != name[open]
      if (b - a > right[longest] - left[longest]) longest = i
    } else { flush(); open = longest = i; from = a; to = b; count = 1; mixed = false }
  }
  flush()
  bars.data = bar; labels.data = label; merges.data = merged
  const note = document.getElementById("gsl-merged")
  if (note) note.hidden = !merged.fill.includes(MIXED_FILL)
  hatched.forEach((source, index) => { source.data = hatch[index] })
  // The strips: every step where they are few, the mean of each pixel column where they are many.
  const busy = sampled([steps.data], x0, x1, inner)
  strip.data = {time: busy.x, count: busy.y[0], zero: busy.x.map(() => 0)}
  const used = sampled(sms.map(source => source.data), x0, x1, inner)
  let low = used.x.map(() => 0)
  stacks.forEach((source, index) => {
    const high = low.map((v, c) => v + used.y[index][c])
    source.data = {time: used.x, low, high}
    low = high
  })
  if (marks.length) marks[1].data = placed(marks[0].data, x0, x1, px)
}
// The bands of the partitions stand left of the frame, which would cut them off; the figure does so at its own border.
const view = has_groups && cb_context.index.find_one(lanes)
if (view) view.frame.el.style.overflow = "visible"
if (!lanes.__gsl_frame) lanes.__gsl_frame = requestAnimationFrame(draw)
