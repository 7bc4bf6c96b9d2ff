// What a search means. A search is a Uint8Array by name code, 1 where the name matches, so that painting asks one number a span;
// what else was asked for (stream:, kind:, partition:, thread:, > and <) is a function in its property `also`.

import { isStray } from "./rows.js"

const UNIT_NS = { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, min: 60e9 }
const UNITS = Object.keys(UNIT_NS).join("|")
const FIELD = /^(stream|lane|kind|partition|thread|name|is):(.*)$/is
const SOME_FIELD = /^([a-z]+):(?!:)/i // What looks like a field; "at::mm" is a name.
const PATTERN = /^\/((?:\\.|[^/\\])+)\/([dgimsuvy]*)$/ // A regular expression.
const LIMIT = new RegExp(`^([<>])=?(\\d+(?:\\.\\d+)?|\\.\\d+)(${UNITS})$`, "i")
const SPACED_LIMIT = new RegExp(`([<>]=?)\\s*([\\d.]+)\\s*(${UNITS})(?=\\s|$)`, "gi")
// Repeats of what ends with a repeat, or of alternatives: the browser may search for years.
const NESTED = /(?:[+*}]|\|(?:[^()]|\([^()]*\))*)\)(?:[+*]|\{\d+,)/
const MOST_MS = 1000 // Then a search stops: other expressions are slow as well.
const PATTERN_LETTERS = 500 // Of longer texts an expression sees the beginning: some take a second for 3,000 letters, of each name.
const WORDS = /(?:[a-z]+:)?\/(?:\\.|[^/\\])+\/[dgimsuvy]*(?=\s|$)|(?:[^\s"]|"[^"]*"?)+/gi

/** Turn the text of the search box into a search, or null where it asks for nothing. */
export function compileSearch(text, tables) {
  const asked = parseSearch(text)
  if (!asked) return null
  const isFound = (texts, tests) => tests.every(test => [texts].flat().some(text => test(String(text))))
  const until = performance.now() + MOST_MS
  let isCut = false
  const found = (values, tests) => Uint8Array.from(values, value => !(isCut ||= performance.now() > until) && isFound(value, tests))
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
  return Object.assign(matches, { rowCount: tables.rows.length, isCut, also: also.length ? (row, i) => also.every(test => test(row, i)) : null })
}

/** What is wrong with a search, for people, or "": a regular expression that is none, or a word that looks like a field, a duration or the beginning of an expression, is none, and is in no name. */
export function searchProblem(text, { names }) {
  const words = searchWords(text), broken = words.map(patternProblem).find(Boolean)
  if (broken) return broken
  const isInName = word => names.some(name => name.toLowerCase().includes(word.toLowerCase()))
  const isPattern = word => PATTERN.test(word.replace(FIELD, "$2"))
  const odd = words.find(word => !FIELD.test(word) && !LIMIT.test(word) && !isPattern(word) && (SOME_FIELD.test(word) || /^([<>]=?[^<>=]|\/.)/.test(word)) && !isInName(word))
  if (!odd) return ""
  if (odd[0] === "/") return "a regular expression ends with / or /i"
  const field = odd.match(SOME_FIELD)
  return field ? `no field ${field[1]}: name, stream, kind, partition, thread, is:stray` : `${odd} is not a duration: >1ms, <5us`
}

/** What is wrong with a regular expression, and where: behind the longest beginning that is one. */
function patternProblem(word) {
  const [, source, flags] = word.replace(FIELD, "$2").match(PATTERN) ?? []
  if (!source) return ""
  const problem = until => { try { new RegExp(source.slice(0, until), flags) } catch (error) { return error.message.split(": ").at(-1) } return "" }
  const what = problem(source.length)
  if (!what) return NESTED.test(source) ? "a repeat of repeats or of alternatives may take for ever" : ""
  let end = source.length
  while (end > 0 && problem(end)) end--
  return `${what} at sign ${end + 1}, ${source.slice(end, end + 12)}`
}

/** A function that tells whether a text has a part, which is a regular expression or is meant in capitals as well. */
function partTest(part) {
  const [, source, flags] = part.match(PATTERN) ?? [], plain = part.replaceAll('"', "").toLowerCase()
  if (!source) return text => text.toLowerCase().includes(plain)
  const pattern = new RegExp(source, flags.replace(/[gy]/g, "")) // These would remember where the last text ended.
  return text => pattern.test(text.slice(0, PATTERN_LETTERS))
}

/** The words of a search; quotes and regular expressions hold words together, and "> 1 ms" is written with spaces as often as without. */
const searchWords = text => text.replace(SPACED_LIMIT, "$1$2$3").match(WORDS) ?? []

/** Split a search into tests of the name and of the rest; null where there are none, as in "kind:" before its value. */
function parseSearch(text) {
  const asked = { name: [], lane: [], kind: [], partition: [], thread: [], is: [], limits: [] }, plain = []
  for (const word of searchWords(text)) {
    const [, field, value] = word.match(FIELD) ?? [], [, way, size, unit] = word.match(LIMIT) ?? []
    if (value?.replaceAll('"', "")) asked[field.toLowerCase().replace("stream", "lane")].push(partTest(value))
    else if (PATTERN.test(word)) asked.name.push(partTest(word))
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
