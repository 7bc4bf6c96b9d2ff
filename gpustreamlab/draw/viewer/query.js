// What a search means. A search is a Uint8Array by name code, 1 where the name matches, so that painting asks one number a span;
// what else was asked for (stream:, kind:, partition:, thread:, > and <) is a function in its property `also`.

import { isStray } from "./rows.js"

const UNIT_NS = { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, min: 60e9 }
const FIELD = /^(stream|lane|kind|partition|thread|name|is):(.*)$/is
const SOME_FIELD = /^([a-z]+):(?!:)/i // What looks like a field; "at::mm" is a name.
const PATTERN = /^\/((?:\\.|[^/\\])+)\/([dgimsuvy]*)$/ // A regular expression.
const LIMIT = /^([<>])=?(\d+(?:\.\d+)?|\.\d+)(ns|us|µs|μs|ms|s|min)$/i

/** Turn the text of the search box into a search, or null where it asks for nothing. */
export function compileSearch(text, tables) {
  const asked = parseSearch(text)
  if (!asked) return null
  const has = (texts, tests) => tests.every(test => [texts].flat().some(text => test(String(text))))
  const codes = (values, tests) => (tests.length ? Uint8Array.from(values, value => has(value, tests)) : null)
  const matches = Uint8Array.from(tables.names, name => has(name, asked.names))
  const lanes = codes(tables.lanes.map(lane => [lane.name, lane.label]), asked.lanes)
  matches.rows = lanes && Uint8Array.from(tables.rows, row => lanes[row.lane])
  matches.rowCount = tables.rows.length
  matches.also = alsoAsked(matches.rows, {
    kind: codes(tables.kinds, asked.kinds),
    partition: codes(tables.partitions.map(partition => partition.text), asked.partitions),
    thread: codes(tables.threads, asked.threads),
  }, asked)
  return matches
}

/** A function that tells whether a span has all that is asked of more than its name; null where nothing is. */
function alsoAsked(rows, columns, { minNs, maxNs, traits }) {
  const asked = Object.entries(columns).filter(([, codes]) => codes)
  if (!rows && !asked.length && !traits.length && minNs === -Infinity && maxNs === Infinity) return null
  return (row, i) => {
    if (rows && !rows[row.code]) return false
    for (const [column, codes] of asked) if (!codes[row[column][i]]) return false
    if (traits.length && !traits.every(trait => "stray".startsWith(trait) && isStray(row, i))) return false
    const duration = row.end[i] - row.start[i]
    return duration >= minNs && duration <= maxNs
  }
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
  if (!what) return ""
  let end = source.length
  while (end > 0 && problem(end)) end--
  return `${what} at sign ${end + 1}, ${source.slice(end, end + 12)}`
}

/** A function that tells whether a text has a part, which is a regular expression or is meant in capitals as well. */
function partTest(part) {
  const [, source, flags] = part.match(PATTERN) ?? [], plain = part.replaceAll('"', "").toLowerCase()
  if (!source) return text => text.toLowerCase().includes(plain)
  const pattern = new RegExp(source, flags.replace(/[gy]/g, "")) // These would remember where the last text ended.
  return text => pattern.test(text)
}

/** The words of a search; quotes and regular expressions hold words together, and "> 1 ms" is written with spaces as often as without. */
function searchWords(text) {
  return text.replace(/([<>]=?)\s*([\d.]+)\s*(ns|us|µs|μs|ms|s|min)(?=\s|$)/gi, "$1$2$3").match(/(?:[a-z]+:)?\/(?:\\.|[^/\\])+\/[dgimsuvy]*(?=\s|$)|(?:[^\s"]|"[^"]*"?)+/gi) ?? []
}

/** Split a search into what it asks of the name and of the rest; null where that is nothing, as in "kind:" before its value. */
function parseSearch(text) {
  const asked = { names: [], lanes: [], kinds: [], partitions: [], threads: [], traits: [], minNs: -Infinity, maxNs: Infinity }
  const places = { stream: "lanes", lane: "lanes", kind: "kinds", partition: "partitions", thread: "threads", name: "names", is: "traits" }
  const plain = []
  for (const word of searchWords(text)) {
    const field = word.match(FIELD), limit = word.match(LIMIT)
    const value = field?.[2].replaceAll('"', ""), place = field && places[field[1].toLowerCase()]
    if (field && value) asked[place].push(place === "traits" ? value.toLowerCase() : partTest(field[2]))
    else if (PATTERN.test(word)) asked.names.push(partTest(word))
    else if (field || /^([<>]=?|"*)$/.test(word)) continue // Its value is still to be written.
    else if (limit && limit[1] === ">") asked.minNs = Number(limit[2]) * UNIT_NS[limit[3].toLowerCase()]
    else if (limit) asked.maxNs = Number(limit[2]) * UNIT_NS[limit[3].toLowerCase()]
    else plain.push(word)
  }
  if (plain.length) asked.names.push(partTest(plain.join(" ").replace(/^"(.*?)"?$/s, "$1")))
  const isAnything = Object.values(asked).some(value => value.length || Number.isFinite(value))
  return isAnything ? asked : null
}

/** Whether names or rows came since the search was compiled. */
export function searchIsStale(matches, tables) {
  return matches.length !== tables.names.length || matches.rowCount !== tables.rows.length
}

/** How many of the spans that match what the store searches for start before a span, or are it: its number among them. */
export function matchNumber(store, { row: code, index }) {
  const { start: starts } = store.row(code), start = starts[index]
  let count = 0
  for (const { code: other } of store.rows) {
    const row = store.row(other)
    if (!row.length) continue
    // In order of time, then of rows, as nextMatch goes.
    const last = other === code ? index : other < code ? row.indexAt(start) : row.firstFrom(start) - 1
    if (last >= 0) count += store.matchCount(other, 0, last)
  }
  return count
}
