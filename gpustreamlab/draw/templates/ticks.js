const width = x_range.end - x_range.start
const [unit, scale] = width > 120e9 ? ["min", 60e9] : width >= 1e9 ? ["s", 1e9] : width >= 1e6 ? ["ms", 1e6] : width >= 1e3 ? ["µs", 1e3] : ["ns", 1]
const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) / scale : 1
const decimals = unit == "min" ? (step % 1 > 1e-9 ? 1 : 0) : Math.min(9, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)))
const options = {minimumFractionDigits: decimals, maximumFractionDigits: decimals}
return ((tick / scale) || 0).toLocaleString("en-US", options) + " " + unit
