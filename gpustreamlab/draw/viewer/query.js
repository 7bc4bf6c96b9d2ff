// What a search means. A search is a Uint8Array by name code, 1 where the name matches, so that painting asks one number a span;
// what else was asked for (stream:, kind:, partition:, thread:, > and <) is a function in its property `also`.

import { isStray } from "./rows.js"

const UNIT_NS = { ns: 1, us: 1e3, "µs": 1e3, "μs": 1e3, ms: 1e6, s: 1e9, min: 60e9 }
const FIELD = /^(stream|lane|kind|partition|thread|name|is):(.*)$/is
const SOME_FIELD = /^([a-z]+):(?!:)/i // What looks like a field; "at::mm" is a name.
const LIMIT = /^([<>])=?(\d+(?:\.\d+)?|\.\d+)(ns|us|µs|μs|ms|s|min)$/i

/** Turn the text of the search box into a search, or null where it asks for nothing. */
export function compileSearch(text, tables) {
  const asked = parseSearch(text)
  if (!asked) return null
  const has = (value, words) => words.every(word => String(value).toLowerCase().includes(word))
  const codes = (values, words) => (words.length ? Uint8Array.from(values, value => has(value, words)) : null)
  const matches = Uint8Array.from(tables.names, name => has(name, asked.names))
  const lanes = codes(tables.lanes.map(lane => `${lane.name}\n${lane.label}`), asked.lanes)
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

/** What is wrong with a search, for people, or "": a word that looks like a field or a duration, is none, and is in no name. */
export function searchProblem(text, { names }) {
  const isInName = word => names.some(name => name.toLowerCase().includes(word.toLowerCase()))
  const odd = searchWords(text).find(word => !FIELD.test(word) && !LIMIT.test(word) && (SOME_FIELD.test(word) || /^[<>]=?[^<>=]/.test(word)) && !isInName(word))
  if (!odd) return ""
  const field = odd.match(SOME_FIELD)
  return field ? `no field ${field[1]}: name, stream, kind, partition, thread, is:stray` : `${odd} is not a duration: >1ms, <5us`
}

/** The words of a search; quotes hold words together, and "> 1 ms" is written with spaces as often as without. */
function searchWords(text) {
  return text.replace(/([<>]=?)\s*([\d.]+)\s*(ns|us|µs|μs|ms|s|min)(?=\s|$)/gi, "$1$2$3").match(/(?:[^\s"]|"[^"]*"?)+/g) ?? []
}

/** Split a search into what it asks of the name and of the rest; null where that is nothing, as in "kind:" before its value. */
function parseSearch(text) {
  const asked = { names: [], lanes: [], kinds: [], partitions: [], threads: [], traits: [], minNs: -Infinity, maxNs: Infinity }
  const places = { stream: "lanes", lane: "lanes", kind: "kinds", partition: "partitions", thread: "threads", name: "names", is: "traits" }
  const plain = []
  for (const word of searchWords(text)) {
    const field = word.match(FIELD), limit = word.match(LIMIT)
    const value = field?.[2].replaceAll('"', "").toLowerCase()
    if (field && value) asked[places[field[1].toLowerCase()]].push(value)
    else if (field || /^([<>]=?|"*)$/.test(word)) continue // Its value is still to be written.
    else if (limit && limit[1] === ">") asked.minNs = Number(limit[2]) * UNIT_NS[limit[3].toLowerCase()]
    else if (limit) asked.maxNs = Number(limit[2]) * UNIT_NS[limit[3].toLowerCase()]
    else plain.push(word)
  }
  if (plain.length) asked.names.push(plain.join(" ").replace(/^"(.*?)"?$/s, "$1").toLowerCase())
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
