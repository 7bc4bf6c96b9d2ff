// Spans on their way from Python (draw/_columns.py) to the store: bytes, and a manifest that says how to read them.
//
// Every column is a number (all spans have it) or unsigned integers above a bias, of 1, 2, 4 or 8 bytes. The largest value
// of the type stands for the next of the column's exceptions, which are signed and of 8 bytes. In a deflated blob the first
// bytes of all values come first, then the second ones and so on: that is what packs well.

import { byPairs, mergeTimed } from "./arrays.js"

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
  if (manifest.columns.busy !== null) columns.busy = reader.floats("busy")
  columns.edges = readEdges(manifest, bytes)
  return new SpanBatch(runs, columns)
}

/** Starts come as gaps behind the previous end of the row, the first of a row behind 0. */
function readTimes(reader, runs) {
  // Arrays of one type: a loop over many types is several times slower.
  const start = reader.floats("gap"), end = reader.floats("duration")
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
  const { placeFrom, placeMost } = reader.columns, places = reader.floats("place")
  if (placeFrom === FROM_INDEX) for (let index = 0; index < places.length; index++) places[index] = index
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
  const x0 = reader.floats("step"), x1 = reader.floats("width")
  const place0 = reader.floats("sourcePlace"), place1 = reader.floats("targetPlace")
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
    const spec = this.columns[name], isConstant = typeof spec === "number", [least, most] = isConstant ? [spec, spec] : [spec.least, spec.most]
    const kind = smallestArray(least, most, SIGNED_COLUMNS.has(name) || least < 0)
    if (isConstant) return new kind(this.n).fill(spec)
    if (spec.bytes === 1 && !spec.bias && !spec.exceptions) return new kind(this.bytes.subarray(spec.at, spec.at + this.n))
    return kind === Float64Array ? this.floats(name) : new kind(this.floats(name)) // Such a conversion is native.
  }

  /** The same as float64, whatever the values are. */
  floats(name) {
    const spec = this.columns[name]
    if (typeof spec === "number") return new Float64Array(this.n).fill(spec)
    const { bias, bytes: width } = spec, values = this.integers(spec.at, width, this.n), sign = 2 ** (8 * width) - 1
    if (!spec.exceptions && !bias) return values
    const odd = spec.exceptions ? this.integers(spec.exceptionsAt, 8, spec.exceptions) : []
    for (let index = 0, next = 0; index < values.length; index++) values[index] = values[index] === sign ? odd[next++] : values[index] + bias
    return values
  }

  /** The `count` integers of so many bytes at a place: unsigned ones, but of 8 bytes signed ones. */
  integers(at, width, count) {
    const { bytes } = this, [step, plane] = this.isShuffled ? [1, count] : [width, 1], values = new Float64Array(count), isHalf = width === 2
    for (let index = 0, first = at; index < count; index++, first += step) {
      if (isHalf) values[index] = bytes[first] | bytes[first + plane] << 8
      else {
        let value = width === 8 ? bytes[first + 7 * plane] << 24 >> 24 : 0
        for (let place = Math.min(width, 7) - 1; place >= 0; place--) value = value * 256 + bytes[first + place * plane]
        values[index] = value
      }
    }
    return values
  }
}

const smallestArray = (least, most, isSigned) => (isSigned ? [Int8Array, Int16Array, Int32Array] : [Uint8Array, Uint16Array, Uint32Array])
  .find(({ BYTES_PER_ELEMENT: size }) => most < 2 ** (8 * size - Number(isSigned)) && least >= (isSigned ? -(2 ** (8 * size - 1)) : 0)) ?? Float64Array
