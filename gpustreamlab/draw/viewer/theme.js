// Colours from the page's style, so that the picture follows the theme of what surrounds it.

const THEME_DEFAULTS = {ink: "#1b1f24", soft: "#57606a", grid: "#d0d7de", paper: "#ffffff", warn: "#8a4b00", accent: "#0550ae", stray: "#c40d2e", rim: "#7d8792"}
export const FONT = "system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
// Who sees better with, or prints without colours, has hatches as a second sign.
const HATCH_MEDIA = ["(prefers-contrast: more)", "(forced-colors: active)", "print"]
// JupyterLab changes its attributes before the style sheet of the new theme has loaded.
const THEME_DELAYS_MS = [60, 300, 1000]

let onePixel = null

// Any colour of CSS as [r, g, b, alpha]: as the browser paints it, whatever notation it has.
export function parseColour(text) {
  if (/^#[0-9a-f]{6}$/i.test(text)) return [...[1, 3, 5].map(place => parseInt(text.slice(place, place + 2), 16)), 1]
  onePixel ??= new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true})
  onePixel.clearRect(0, 0, 1, 1)
  onePixel.fillStyle = "#000000"
  onePixel.fillStyle = text
  onePixel.fillRect(0, 0, 1, 1)
  const [r, g, b, alpha] = onePixel.getImageData(0, 0, 1, 1).data
  return [r, g, b, alpha / 255]
}

const isDarkColour = text => {
  const [r, g, b] = parseColour(text)
  return 0.299 * r + 0.587 * g + 0.114 * b < 128
}

// Whether what surrounds an element is dark: what JupyterLab says, else the first ground behind it that one cannot see through, else its ink.
function isDarkAround(element) {
  const {jpThemeLight} = element.ownerDocument.body.dataset
  if (jpThemeLight) return jpThemeLight === "false"
  for (let at = element; at; at = at.parentElement ?? at.getRootNode().host) {
    const ground = getComputedStyle(at).backgroundColor
    if (parseColour(ground)[3] > 0.5) return isDarkColour(ground)
  }
  return !isDarkColour(getComputedStyle(element).color)
}

// A page within a notebook follows the notebook, where it may look, as a widget does; a page of its own follows the system.
export function followTheme(root, around, signal) {
  const system = matchMedia("(prefers-color-scheme: dark)")
  const apply = () => {
    const theme = (around ? isDarkAround(around) : system.matches) ? "dark" : "light"
    if (root.dataset.theme === theme) return // Whoever watches it would be told for ever.
    root.dataset.theme = root.style.colorScheme = theme
  }
  apply()
  watchTheme(apply, signal, around?.ownerDocument)
}

// A colour over another one, as the eye sees it.
export function blend(over, under, alpha) {
  const a = parseColour(over), b = parseColour(under)
  return "#" + [0, 1, 2].map(i => Math.round(a[i] * alpha + b[i] * (1 - alpha)).toString(16).padStart(2, "0")).join("")
}

export function readTheme(element) {
  const probe = element.appendChild(document.createElement("i")), style = getComputedStyle(probe), theme = {}
  probe.style.forcedColorAdjust = "none" // The variables have the system's colours already.
  for (const [name, value] of Object.entries(THEME_DEFAULTS)) {
    probe.style.color = `var(--gsl-${name})` // Only where it is used is it one colour; outside a page it is none.
    const [r, g, b, alpha] = parseColour(style.color || value)
    theme[name] = alpha < 0.05 ? value : blend(`rgb(${r},${g},${b})`, "#ffffff", 1)
  }
  probe.remove()
  theme.isDark = isDarkColour(theme.paper)
  theme.shade = theme.isDark ? "rgba(160,170,180,0.09)" : "rgba(100,110,120,0.08)"
  theme.busy = theme.isDark ? "#5b9dbf" : "#7aa9c2"
  theme.memory = theme.isDark ? "#4f8f7a" : "#8cc9b4"
  theme.needsHatches = HATCH_MEDIA.some(media => matchMedia(media).matches)
  theme.key = JSON.stringify(theme)
  return theme
}

// Call back whenever what the theme depends on may have changed, until the signal.
export function watchTheme(callback, signal, page = document) {
  const queries = ["(prefers-color-scheme: dark)", ...HATCH_MEDIA].map(media => matchMedia(media))
  let timers = []
  const changed = () => {
    timers.forEach(clearTimeout)
    timers = THEME_DELAYS_MS.map(delay => setTimeout(callback, delay))
    callback()
  }
  const observer = new MutationObserver(changed)
  const attributes = {attributes: true, attributeFilter: ["class", "style", "data-theme", "data-jp-theme-light", "data-jp-theme-name"]}
  for (const node of [page.documentElement, page.body]) observer.observe(node, attributes)
  for (const query of queries) query.addEventListener("change", changed, {signal})
  signal.addEventListener("abort", () => { timers.forEach(clearTimeout); observer.disconnect() })
}

// Bokeh's own parts: the time axis, its grid, the buttons.
export function themePlot(plot, theme) {
  // The system's grey may be as strong as its ink: the grid would strike out the texts of bars.
  const alpha = matchMedia("(forced-colors: active)").matches ? 0.25 : 0.7
  for (const axis of plot.above)
    axis.setv({major_label_text_color: theme.ink, axis_line_color: theme.grid, major_tick_line_color: theme.grid})
  for (const part of plot.center)
    if (/Grid$/.test(part.type)) part.setv({grid_line_color: theme.grid, grid_line_alpha: alpha})
}
