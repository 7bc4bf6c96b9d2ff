// Times and counts for people: the same words as gpustreamlab.analysis.format_ns.

const FIRST_MINUTE_NS = 120e9

// What lies half-way goes to the even number, as in Python.
const toFixedEven = (value, digits) => {
  const scale = 10 ** digits, low = Math.floor(value * scale)
  const isTie = (low + 0.5) / scale === value
  return (isTie && low % 2 === 0 ? low / scale : value).toFixed(digits)
}

const grouped = text => text.replace(/\B(?<!\..*)(?=(\d{3})+(\.|$))/g, ",")

const threeDigits = value => grouped(toFixedEven(value, value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2))

export function formatNs(ns) {
  if (ns < 0) return "-" + formatNs(-ns)
  if (!(ns < Infinity)) return "-"
  if (ns < 999.5) return Number(ns.toPrecision(3)) + " ns"
  if (ns < 999.5e3) return threeDigits(ns / 1e3) + " µs"
  if (ns < 999.5e6) return threeDigits(ns / 1e6) + " ms"
  return ns < FIRST_MINUTE_NS * 0.9995 ? threeDigits(ns / 1e9) + " s" : threeDigits(ns / 60e9) + " min"
}

export const formatCount = count => grouped(String(Math.round(count))) // Not by the browser: its tables take 20 ms to load.

const TICK_UNITS = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9], ["min", 60e9]]

// The unit in which a window of this width is marked.
const tickUnit = widthNs => TICK_UNITS[widthNs > FIRST_MINUTE_NS ? 4 : widthNs >= 1e9 ? 3 : widthNs >= 1e6 ? 2 : widthNs >= 1e3 ? 1 : 0]

// Far from 0 and zoomed in, all ticks begin with the same digits: those are written once, as the base, and ticks count from it.
export function tickBase(startNs, widthNs) {
  if (!(widthNs > 0) || Math.abs(startNs) < 2000 * widthNs) return 0
  const step = 10 ** Math.ceil(Math.log10(widthNs))
  return Math.floor(startNs / step) * step
}

export function formatTicks(ticks, startNs, widthNs) {
  const [unit, scale] = tickUnit(widthNs), base = tickBase(startNs, widthNs)
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) / scale : 1
  const wanted = unit === "min" ? (step % 1 > 1e-9 ? 1 : 0) : Math.ceil(-Math.log10(step) - 1e-9)
  const digits = Math.min(9, Math.max(0, wanted || 0))
  return ticks.map(tick => {
    const text = grouped(Math.abs((tick - base) / scale).toFixed(digits))
    const sign = tick < base && /[1-9]/.test(text) ? "-" : base ? "+" : ""
    return `${sign}${text} ${unit}`
  })
}

// All digits of the base, in seconds: "12.345 678 s".
export function formatBase(baseNs) {
  const [whole, part] = (Math.abs(baseNs) / 1e9).toFixed(9).replace(/\.?0+$/, "").split(".")
  return `${baseNs < 0 ? "-" : ""}${grouped(whole)}${part ? "." + part.replace(/\d{3}(?=\d)/g, "$&\u202f") : ""} s`
}

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"]

/** A number of bytes with three digits and its unit; as draw/_legend.format_bytes. */
export function formatBytes(bytes) {
  let place = 0
  while (Math.abs(bytes) >= 1023.5 && place < BYTE_UNITS.length - 1) { bytes /= 1024; place += 1 }
  return `${bytes.toFixed(place === 0 || Math.abs(bytes) >= 100 ? 0 : Math.abs(bytes) >= 10 ? 1 : 2)} ${BYTE_UNITS[place]}`
}

const SPEED_UNITS = ["GB/s", "MB/s", "kB/s"]

/** Bytes in a ns, which are GB in a second, with three digits and a unit: "4,250 GB/s", "12.0 MB/s". */
export function formatSpeed(bytesPerNs) {
  let place = 0
  while (bytesPerNs < 0.9995 && place < SPEED_UNITS.length - 1) { bytesPerNs *= 1000; place += 1 }
  return `${threeDigits(bytesPerNs)} ${SPEED_UNITS[place]}`
}
