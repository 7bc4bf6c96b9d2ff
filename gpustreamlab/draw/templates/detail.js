// Level of detail: bars for what is at least MERGE_PX wide, one merged bar for what is narrower and close together.
// A merged bar of several names is grey, and a note says so as long as one is on the screen.
const MERGE_PX = 2, MIXED_FILL = "#8d99a6"
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
  // The strip: every step where they are few, the mean of each pixel column where they are many.
  const t = steps.data.time, k = steps.data.count, x = [], y = []
  let lo = 0, hi = t.length
  while (lo < hi) { const m = (lo + hi) >> 1; if (t[m] <= x0) lo = m + 1; else hi = m }
  const first = Math.max(0, lo - 1)
  lo = first; hi = t.length
  while (lo < hi) { const m = (lo + hi) >> 1; if (t[m] <= x1) lo = m + 1; else hi = m }
  if (lo - first <= 2 * inner) for (let i = first; i < Math.min(lo + 1, t.length); i++) { x.push(t[i]); y.push(k[i]) }
  else {
    let i = first
    for (let c = 0; c < inner; c++) {
      const a = x0 + c * px, b = a + px
      let sum = 0, at = a
      while (i + 1 < t.length && t[i + 1] <= b) { sum += (t[i + 1] - at) * (t[i] <= at ? k[i] : 0); at = t[i + 1]; i++ }
      sum += (b - at) * (t[i] <= at ? k[i] : 0)
      x.push(a); y.push(sum / px)
    }
  }
  while (x.length < 2) { x.push(x1); y.push(0) } // BokehJS 3.9 never comes back from drawing a step area of no points.
  strip.data = {time: x, count: y, zero: x.map(() => 0)}
}
if (!lanes.__gsl_frame) lanes.__gsl_frame = requestAnimationFrame(draw)
