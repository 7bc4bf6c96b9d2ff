const three = v => v >= 99.95 ? Math.round(v).toLocaleString("en-US") : v.toFixed(v >= 9.995 ? 1 : 2)
const time = ns => {
  if (ns < 0) return "-" + time(-ns)
  if (ns < 999.5) return ns.toFixed(0) + " ns"
  if (ns < 999.5e3) return three(ns / 1e3) + " µs"
  if (ns < 999.5e6) return three(ns / 1e6) + " ms"
  return ns < 119.94e9 ? three(ns / 1e9) + " s" : three(ns / 60e9) + " min"
}
