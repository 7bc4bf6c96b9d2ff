// What a search means. A search is a Uint8Array by name code, 1 where the name matches, so that painting asks one number a span;
// what else was asked for (stream:, kind:, partition:, thread:, > and <) is a function in its property `also`.

import { isStray } from "./rows.js"

const UNIT_NS = { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, min: 60e9 }
const UNITS = Object.keys(UNIT_NS).join("|")
const FIELD = /^(stream|lane|kind|partition|thread|name|is):(.*)$/is
const SOME_FIELD = /^([a-z]+):(?!:)/i // What looks like a field; "at::mm" is a name.
const LIMIT = new RegExp(`^([<>])=?(\\d+(?:\\.\\d+)?|\\.\\d+)(${UNITS})$`, "i")
const SPACED_LIMIT = new RegExp(`([<>]=?)\\s*([\\d.]+)\\s*(${UNITS})(?=\\s|$)`, "gi")
const WORDS = /(?:[^\s"]|"[^"]*"?)+/g

/** Turn the text of the search box into a search, or null where it asks for nothing. */
export function compileSearch(text, tables) {
  const asked = parseSearch(text)
  if (!asked) return null
  const isFound = (texts, tests) => tests.every(test => [texts].flat().some(text => test(String(text))))
  const found = (values, tests) => Uint8Array.from(values, value => isFound(value, tests))
  const laneNames = tables.lanes.map(({ name, label }) => [name, label]), also = []
  // Who writes the name of a stream means the stream, where no span is named so.
  let matches = found(tables.names, asked.name)
  if (!matches.includes(1) && found(laneNames, asked.name).includes(1)) {
    asked.lane.push(...asked.name.splice(0))
    matches = found(tables.names, asked.name)
  }
  const lanes = found(laneNames, asked.lane)
  if (asked.lane.length) also.push(row => lanes[row.lane])
  const columns = { kind: tables.kinds, partition: tables.partitions.map(({ text }) => text), thread: tables.threads }
  for (const [column, values] of Object.entries(columns)) {
    const codes = found(values, asked[column])
    if (asked[column].length) also.push((row, i) => codes[row[column][i]])
  }
  if (asked.is.length) also.push(isFound("stray", asked.is) ? isStray : () => false)
  for (const isWithin of asked.limits) also.push((row, i) => isWithin(row.end[i] - row.start[i]))
  return Object.assign(matches, { rowCount: tables.rows.length, also: also.length ? (row, i) => also.every(test => test(row, i)) : null })
}

/** What is wrong with a search, for people, or "": a word that looks like a field or a duration, is none, and is in no name. */
export function searchProblem(text, { names }) {
  const isInName = word => names.some(name => name.toLowerCase().includes(word.toLowerCase()))
  const odd = searchWords(text).find(word => !FIELD.test(word) && !LIMIT.test(word) && (SOME_FIELD.test(word) || /^[<>]=?[^<>=]/.test(word)) && !isInName(word))
  if (!odd) return ""
  const field = odd.match(SOME_FIELD)
  return field ? `no field ${field[1]}: name, stream, kind, partition, thread, is:stray` : `${odd} is not a duration: >1ms, <5us`
}

/** A function that tells whether a text has a part, in capitals as well. */
function partTest(part) {
  const plain = part.replaceAll('"', "").toLowerCase()
  return text => text.toLowerCase().includes(plain)
}

/** The words of a search; quotes hold words together, and "> 1 ms" is written with spaces as often as without. */
const searchWords = text => text.replace(SPACED_LIMIT, "$1$2$3").match(WORDS) ?? []

/** Split a search into tests of the name and of the rest; null where there are none, as in "kind:" before its value. */
function parseSearch(text) {
  const asked = { name: [], lane: [], kind: [], partition: [], thread: [], is: [], limits: [] }, plain = []
  for (const word of searchWords(text)) {
    const [, field, value] = word.match(FIELD) ?? [], [, way, size, unit] = word.match(LIMIT) ?? []
    if (value?.replaceAll('"', "")) asked[field.toLowerCase().replace("stream", "lane")].push(partTest(value))
    else if (field || /^([<>]=?|"*)$/.test(word)) continue // Its value is still to be written.
    else if (way) {
      const limitNs = Number(size) * UNIT_NS[unit.toLowerCase()]
      asked.limits.push(way === ">" ? ns => ns >= limitNs : ns => ns <= limitNs)
    } else plain.push(word)
  }
  if (plain.length) asked.name.push(partTest(plain.join(" ").replace(/^"(.*?)"?$/s, "$1")))
  return Object.values(asked).some(tests => tests.length) ? asked : null
}

/** Whether names or rows came since the search was compiled. */
export function searchIsStale(matches, tables) {
  return matches.length !== tables.names.length || matches.rowCount !== tables.rows.length
}
