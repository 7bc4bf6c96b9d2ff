// A picture that is written px by px: many narrow columns and bars take a fraction of the time that they take as shapes.

import { blend, parseColour } from "./theme.js"

const words = new Map() // By colour, then by opacity: four bytes of a px.

export class Pixels {
  constructor() { this.canvas = document.createElement("canvas") }

  /** Begin anew, with nothing in it. */
  resize(width, height) {
    if (this.width === width && this.height === height) return this.words.fill(0)
    Object.assign(this.canvas, {width, height})
    Object.assign(this, {width, height, data: new ImageData(width, height)})
    this.words = new Uint32Array(this.data.data.buffer)
  }

  rect(left, top, width, height, colour) {
    const word = wordOf(colour, 1), from = Math.max(0, left), to = Math.min(this.width, left + width), bottom = Math.min(this.height, top + height)
    for (let y = Math.max(0, top) * this.width; y < bottom * this.width; y += this.width) for (let x = from; x < to; x++) this.words[y + x] = word
  }

  /** Fill the area between two heights, given for equal columns, above a bottom; where there is anything it is a px high at least. */
  stack({scale, bottom, ...borders}, colour, alpha, mask) {
    const {width, words} = this, [low, high] = [borders.low, borders.high].map(withSteps), count = high.length, [plain, dark] = [wordOf(colour, alpha), mask && wordOf(blend("#000000", colour, 0.35), alpha)]
    for (let column = 0, left = 0; column < count; column++) {
      const right = Math.round((column + 1) * width / count), isAny = high[column] - low[column] > 1e-6
      const top = bottom - Math.max(Math.round(high[column] * scale), isAny && !low[column] ? 1 : 0), until = bottom - Math.round(low[column] * scale)
      for (let y = Math.max(0, top); y < until; y++) for (let x = left; x < right; x++) words[y * width + x] = mask?.isDark(x, y) ? dark : plain
      left = right
    }
  }

  paint() {
    this.canvas.getContext("2d").putImageData(this.data, 0, 0)
    return this.canvas
  }
}

/** A column in which one level goes over into another has one of them: a step stays one. */
function withSteps(values) {
  const stepped = values.slice(), isLevel = (one, other) => other === undefined || Math.abs(one - other) < 1e-3
  for (let column = 1; column + 1 < values.length; column++) {
    const mean = values[column], before = values[column - 1], after = values[column + 1]
    if ((before - mean) * (mean - after) <= 0 || !isLevel(before, values[column - 2]) || !isLevel(after, values[column + 2])) continue
    stepped[column] = Math.abs(mean - before) < Math.abs(mean - after) ? before : after
  }
  return stepped
}

function wordOf(colour, alpha) {
  const key = alpha === 1 ? colour : `${colour} ${alpha}`
  let word = words.get(key)
  if (word === undefined) {
    const [r, g, b] = parseColour(colour)
    words.set(key, word = (Math.round(255 * alpha) << 24 | b << 16 | g << 8 | r) >>> 0)
  }
  return word
}
