// Spans on their way from Python (draw/_columns.py) to the store: bytes, and a manifest that says how to read them.
//
// Every column is a number (all spans have it) or unsigned integers above a bias, of 1, 2, 4 or 8 bytes. The largest value
// of the type stands for the next of the column's exceptions, which are signed and of 8 bytes. In a deflated blob the first
// bytes of all values come first, then the second ones and so on: that is what packs well.

import { byPairs, mergeTimed } from "./arrays.js"

const UNSIGNED_ARRAYS = { 1: Uint8Array, 2: Uint16Array, 4: Uint32Array, 8: Float64Array }
const SIGNED_ARRAYS = { 1: Int8Array, 2: Int16Array, 4: Int32Array, 8: Float64Array }
export const SIGNED_COLUMNS = new Set(["thread", "queueing", "detail", "ownerName", "ownerLane", "workLead", "workTail", "waitedName"])
// What is known of device work, and what a span has of which nothing is. Batches and rows without any such span store none.
export const WORK_DEFAULTS = { detail: -1, size: 0, ownerName: -1, ownerLane: -1, workLead: 0, workTail: 0, workCount: 0, waitedName: -2 }
export const WORK_COLUMNS = Object.keys(WORK_DEFAULTS)
const TWO_TO_32 = 4294967296
const FROM_INDEX = 0, FROM_RANK = 2 // What places are told from; else from the previous one of the row.

/** Read a batch from a blob as it came from `pack_columns`, deflated or not. */
export async function readBatch(manifest, bytes) {
  if (!manifest.deflated) return unpackColumns(manifest, bytes)
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"))
  return unpackColumns(manifest, new Uint8Array(await new Response(stream).arrayBuffer()))
}

// Spans of some rows, in order of (row, start), as typed arrays. `runs` holds [row, from, to] of each row. Where no span stands
// for several ones, counts are 1 and busy times are durations: neither is stored.
export class SpanBatch {
  constructor(runs, columns) {
    this.length = columns.start.length
    this.hasWork = Boolean(columns.detail)
    Object.assign(this, { runs, count: null, busy: null, edges: null }, columns)
  }
}

/** Turn inflated bytes into a batch. */
export function unpackColumns(manifest, bytes) {
  const reader = new ColumnReader(manifest, bytes)
  let end = 0
  const runs = manifest.runs.map(([row, count]) => [row, end, (end += count)])
  const columns = readTimes(reader, runs)
  for (const name of ["name", "kind", "thread", "partition", "queueing"]) columns[name] = reader.column(name)
  if (manifest.columns.detail !== undefined) for (const name of WORK_COLUMNS) columns[name] = reader.column(name)
  columns.place = readPlaces(reader, columns.start, runs)
  if (manifest.columns.count !== 1) columns.count = reader.column("count")
  if (manifest.columns.busy !== null) columns.busy = Float64Array.from(reader.column("busy"))
  columns.edges = readEdges(manifest, bytes)
  return new SpanBatch(runs, columns)
}

/** Starts come as gaps behind the previous end of the row, the first of a row behind 0. */
function readTimes(reader, runs) {
  // Arrays of one type: a loop over many types is several times slower.
  const start = new Float64Array(reader.column("gap")), end = new Float64Array(reader.column("duration"))
  for (const [, from, to] of runs) {
    let time = 0
    for (let index = from; index < to; index++) {
      start[index] = time += start[index]
      end[index] = time += end[index]
    }
  }
  return { start, end }
}

/** Places come as steps from the index, from the previous place in the row, or from the rank by start. */
function readPlaces(reader, start, runs) {
  const { placeFrom, placeMost } = reader.columns, places = new Float64Array(reader.column("place"))
  if (placeFrom === FROM_INDEX) for (let index = 0; index < places.length; index++) places[index] += index
  else if (placeFrom === FROM_RANK) addRanks(places, start, runs)
  else {
    for (const [, from, to] of runs) {
      for (let index = from, place = 0; index < to; index++) places[index] = place += places[index]
    }
  }
  return placeMost < TWO_TO_32 ? new Uint32Array(places) : places
}

/** Add the rank of each span by start, then by index. */
function addRanks(places, start, runs) {
  const indices = new Uint32Array(start.length).map((_, index) => index)
  const lists = runs.map(([, from, to]) => ({ time: start.subarray(from, to), number: indices.subarray(from, to) }))
  byPairs(lists, mergeTimed)?.number.forEach((index, rank) => { places[index] += rank })
}

/**
 * Arrows from x0 on row0 to x1 on row1, of a kind; x0 comes as steps, x1 as the distance from x0.
 *
 * The places of the spans at their ends come alike; they are -1 where they are not known.
 */
function readEdges(manifest, bytes) {
  const reader = new ColumnReader({ ...manifest, ...manifest.edges }, bytes)
  const x0 = Float64Array.from(reader.column("step")), x1 = Float64Array.from(reader.column("width"))
  const place0 = Int32Array.from(reader.column("sourcePlace")), place1 = Int32Array.from(reader.column("targetPlace"))
  for (let index = 0, time = 0, place = -1; index < reader.n; index++) {
    x0[index] = time += x0[index]
    x1[index] += time
    place0[index] = place += place0[index]
    place1[index] += place
  }
  return { x0, row0: reader.column("source"), x1, row1: reader.column("target"), place0, place1, told: Uint8Array.from(reader.column("told")), kind: reader.column("kind"), length: reader.n }
}

class ColumnReader {
  constructor(manifest, bytes) {
    Object.assign(this, { bytes, n: manifest.n, columns: manifest.columns, isShuffled: manifest.deflated })
  }

  /** A column in the smallest typed array that holds it. */
  column(name) {
    const spec = this.columns[name]
    const isConstant = typeof spec === "number"
    const [least, most] = isConstant ? [spec, spec] : [spec.least, spec.most]
    const kind = smallestArray(least, most, SIGNED_COLUMNS.has(name) || least < 0)
    if (isConstant) return new kind(this.n).fill(spec)
    const raw = this.integers(spec.at, spec.bytes, this.n)
    // The conversion of a whole array is native, and fast whatever the types.
    const values = raw.constructor === kind ? raw : new kind(raw)
    const odd = spec.exceptions ? this.readExceptions(raw, spec) : []
    if (spec.bias) for (let index = 0; index < values.length; index++) values[index] += spec.bias
    for (const [index, value] of odd) values[index] = value
    return values
  }

  /** Where the exceptions stand, and their values. An array's indexOf finds the sign much faster than a loop does. */
  readExceptions(raw, spec) {
    const sign = 2 ** (8 * spec.bytes) - 1
    let index = -1
    const values = this.integers(spec.exceptionsAt, 8, spec.exceptions)
    return Array.from(values, value => [index = raw.indexOf(sign, index + 1), value])
  }

  /** The `count` integers of so many bytes at a place: unsigned ones, but of 8 bytes signed ones. */
  integers(at, width, count) {
    const bytes = new Uint8Array(width * count), packed = this.bytes.subarray(at, at + width * count)
    if (!this.isShuffled || width === 1) bytes.set(packed)
    else {
      for (let place = 0; place < width; place++) {
        for (let index = 0; index < count; index++) bytes[index * width + place] = packed[place * count + index]
      }
    }
    return width === 8 ? Float64Array.from(new BigInt64Array(bytes.buffer), Number) : new UNSIGNED_ARRAYS[width](bytes.buffer)
  }
}

function smallestArray(least, most, isSigned) {
  const arrays = isSigned ? SIGNED_ARRAYS : UNSIGNED_ARRAYS
  for (const width of [1, 2, 4]) {
    const limit = 2 ** (8 * width - (isSigned ? 1 : 0))
    if (most < limit && least >= (isSigned ? -limit : 0)) return arrays[width]
  }
  return Float64Array
}
