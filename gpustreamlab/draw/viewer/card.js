// What the card did: how many SMs its work can have had, and its copies, as exact means of columns of time.

import { BlockSums, lowerBound, SUM_SPANS } from "./arrays.js"
import { addCoverage, countedKey, countingOf } from "./busy.js"

const MOST_CELLS = 24_000, MANY_SPANS = 20_000, WIDER = 3 // Rows times columns, and spans in view, beyond which columns are wider.
const SIGNS = { in: /htod/i, out: /dtoh/i, peer: /ptop/i } // By which names of copies tell their way, as in draw/_card.py.
const WAYS = Object.keys(SIGNS)
const uses = new WeakMap(), counterParts = new WeakMap()

/**
 * The layers of a row of the card, from the bottom: {lane, band, mean}, of all lanes of which `keyOf` says the same; `columns` is
 * about how many columns there may be.
 */
export function cardLayers(store, tables, row, x0, x1, columns, keyOf = lane => lane) {
  let use = uses.get(store)
  if (!use) uses.set(store, (use = new CardUse(store)))
  const parts = row.lines?.map(counterPart) ?? use.parts(tables, row.kind).filter(part => row.device < 0 || tables.lanes[part.row.lane]?.device === row.device)
  const seen = parts.reduce((sum, { start, length }) => sum + lowerBound(start, x1, 0, length) - lowerBound(start, x0, 0, length), 0)
  const most = Math.floor(MOST_CELLS / Math.max(1, parts.length)), count = Math.max(1, Math.min(Math.ceil(seen > MANY_SPANS ? columns / WIDER : columns), most))
  const layers = new Map()
  for (const part of parts) {
    const lane = part.row.lane, band = row.kind === "sms" ? tables.partitions[part.code]?.band ?? -1 : -1, key = `${band} ${keyOf(lane, band)}`
    if (!layers.has(key)) layers.set(key, { lane, band, mean: new Float64Array(count) })
    addCoverage(part, x0, x1, layers.get(key).mean)
  }
  const scale = count / (x1 - x0), place = ({ band, lane }) => (band < 0 ? 1e9 : band * 1e5) + (tables.lanes[lane].place ?? lane)
  for (const { mean } of layers.values()) for (let column = 0; column < count; column++) mean[column] = Math.max(0, mean[column] * scale)
  return [...layers.values()].sort((one, other) => place(one) - place(other))
}

/** Stack layers, never higher than `most`: each partition at the place of its own SMs, all else in what is free; [layer, low, high]. */
export function stackLayers(layers, own, most) {
  const count = layers[0]?.mean.length ?? 0, bands = own[0]?.length ?? 0, areas = [], free = []
  const plus = (low, values) => low.map((sms, column) => sms + values[column]), less = (high, values) => high.map((sms, column) => sms - values[column])
  let base = new Float64Array(count)
  for (let band = 0; band < bands; band++) {
    let high = base
    const limit = base.map((_, column) => own[column][band] || most)
    for (const [layer, sms] of sharedOut(layers.filter(layer => layer.band === band), limit)) areas.push([layer, high, (high = plus(high, sms))])
    const next = high.map((sms, column) => Math.max(sms, base[column] + own[column][band]))
    free.push([high, next])
    base = next
  }
  free.push([base, base.map(sms => Math.max(sms, most))])
  const room = free.reduce((sums, [low, top]) => plus(sums, less(top, low)), new Float64Array(count))
  for (const [layer, sms] of sharedOut(layers.filter(({ band }) => band < 0 || band >= bands), room)) {
    let left = sms
    for (const place of free) {
      const [low, top] = place, taken = left.map((wanted, column) => Math.min(wanted, top[column] - low[column]))
      if (!taken.some(one => one > 0)) continue
      place[0] = plus(low, taken)
      areas.push([layer, low, place[0]])
      left = less(left, taken)
    }
  }
  return areas
}

/** Layers, each with what it has in each column: more work than there is room for shares it. */
function sharedOut(layers, room) {
  const share = room.map((most, column) => Math.min(1, most / (layers.reduce((sum, { mean }) => sum + mean[column], 0) || 1)))
  return layers.map(layer => [layer, layer.mean.map((sms, column) => sms * share[column])])
}

/** A counter's line as work that takes each value until the next one. */
function counterPart(line) {
  if (!counterParts.has(line)) {
    const { lane, time, value } = line, sums = [0], end = [...time.slice(1), Infinity]
    for (let index = 0; index + 1 < time.length; index++) sums.push(sums[index] + value[index] * (end[index] - time[index]))
    counterParts.set(line, { row: { lane }, start: time, end, length: time.length, busySum: (i, j) => sums[j + 1] - sums[i], densityAt: index => value[index] })
  }
  return counterParts.get(line)
}

// The rows of a store, each with the partitions that its spans are of; brought up to date from what was appended since.
class CardUse {
  constructor(store) {
    this.store = store
    this.rows = []
    this.places = []
  }

  /** The parts of all rows of streams that have any weight of a kind. */
  parts(tables, kind) {
    if (this.tables !== tables) this.use(tables)
    const { store } = this
    this.rows.length = store.rows.length
    for (const code of store.rows.keys()) {
      const row = store.row(code), known = this.rows[code]
      if (row.lane < 0 || tables.lanes[row.lane]?.host) continue
      if (known?.row !== row || known.edits !== row.edits || known.length > row.length) this.rows[code] = { row, edits: row.edits, length: 0, parts: new Map() }
      this.take(this.rows[code])
    }
    return this.rows.flatMap(known => known ? [...known.parts.values()].filter(part => part.kind === kind) : [])
  }

  /** Other tables say the same of what is summed up already, unless places have other sizes or other spans count. */
  use(tables) {
    const places = tables.partitions.map(({ sms }) => sms), counted = `${countedKey(tables)} ${JSON.stringify(tables.cards)}`
    if (this.counted !== counted || this.places.some((sms, code) => sms !== places[code])) this.rows = []
    Object.assign(this, { tables, places, counted, counting: countingOf(tables) })
  }

  take(known) {
    const { row, length } = known, { isOnSms } = this.counting, copy = this.tables.kinds.indexOf("copy"), { kind: kinds, name: names, partition } = row
    for (let index = length; index < row.length; index++) {
      // Mostly they are as the one before: then nothing is looked up.
      if (index > length && kinds[index] === kinds[index - 1] && partition[index] === partition[index - 1] && (kinds[index] !== copy || names[index] === names[index - 1])) continue
      const way = kinds[index] === copy ? WAYS.find(sign => SIGNS[sign].test(this.tables.names[row.name[index]] ?? "")) : null
      // Ranges within ranges have the SMs of those around them.
      for (const kind of [isOnSms[kinds[index]] && !this.tables.rows[row.code]?.inner ? "sms" : null, way]) {
        const code = kind === "sms" ? row.partition[index] : 0
        if (kind && !known.parts.has(kind + code)) known.parts.set(kind + code, new Part(row, kind, code, this))
      }
    }
    if (length < row.length) for (const part of known.parts.values()) part.sums.forget(length)
    known.length = row.length
  }
}

// What a row's spans take of a card: of its SMs those that a grid fills, at most those of its place; of a copy engine all of it.
class Part {
  constructor(row, kind, code, use) {
    const { lanes, cards, partitions, kinds } = use.tables, card = cards.find(({ device }) => device === lanes[row.lane].device) ?? cards[0]
    Object.assign(this, { row, kind, code, use, sms: [], isName: [] })
    this.place = (code && partitions[code]?.sms) || card?.sms || 1 // Of no card that is known it is how many streams work.
    this.isKind = kinds.map((one, place) => kind === "sms" ? Boolean(use.counting.isOnSms[place]) : one === "copy")
    this.sums = new BlockSums(SUM_SPANS, (from, to) => this.add(from, to))
  }

  get start() { return this.row.start }
  get end() { return this.row.end }
  get length() { return this.row.length }
  busySum(i, j) { return this.sums.between(i, j + 1, this.length) }
  densityAt(index) { return this.weight(index) * this.row.densityAt(index) }

  add(from, to) {
    const { row } = this, { start, end, busy } = row
    let sum = 0
    for (let index = from; index < to; index++) sum += this.weight(index) * (busy ? busy[index] : end[index] - start[index])
    return sum
  }

  weight(index) {
    const { row, kind: way, use: { counting: { uncaptured }, tables } } = this, kind = row.kind[index]
    if (!this.isKind[kind]) return 0
    if (way !== "sms") return (this.isName[row.name[index]] ??= Number(SIGNS[way].test(tables.names[row.name[index]])))
    if (row.partition[index] !== this.code || uncaptured && !uncaptured(kind, row.start[index])) return 0
    const detail = row.hasWork ? row.detail[index] : -1
    return detail < 0 ? this.place : (this.sms[detail] ??= this.smsOf(tables.details[detail]))
  }

  smsOf([, grid, , , , , , fit] = []) {
    const blocks = grid ? grid[0] * grid[1] * grid[2] : 0
    return blocks && fit ? Math.min(this.place, Math.ceil(blocks / fit)) : this.place
  }
}
