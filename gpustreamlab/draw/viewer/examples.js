// Searches that find something in this timeline: all are made of one span of it.

import { laneText, nameOf } from "./names.js"

const EXAMPLE_LETTERS = 24
const DURATION_UNITS = [["s", 1e9], ["ms", 1e6], ["us", 1e3], ["ns", 1]]

/** What can be searched, as pairs of an example and what it means; of fields, those that the example span has. */
export function searchExamples(view) {
  const { store, tables } = view, found = exampleSpan(store)
  if (!found) return [["gemm", "Part of a name"], ["kind:copy >1ms", "Field and duration, both of them"]]
  const { row, index } = found, name = nameOf(view, row.name[index]), longer = `>${durationBelow(row.end[index] - row.start[index])}`
  const fields = [
    ["stream", laneText(tables.lanes[row.lane]), "Stream"],
    ["kind", tables.kinds[row.kind[index]], "Kind"],
    ["partition", tables.partitions[row.partition[index]]?.text, "Partition"],
    ["thread", tables.threads[row.thread[index]], "Thread that recorded it"],
  ].filter(([, value]) => value && quoted(value))
  return [
    [quoted(name) || "name:", "Part of a name; quotes hold words together"],
    [`/${(name.match(/\w+/)?.[0] ?? ".").slice(0, EXAMPLE_LETTERS)}/i`, "Regular expression; i ignores case"],
    ...fields.map(([field, value, about]) => [`${field}:${quoted(value)}`, about]),
    ...(view.strayCount ? [["is:stray", "Ran on another stream than its range had selected"]] : []),
    [longer, "Longer than; <5us shorter than; ns us ms s min"],
    [`${fields.length ? `${fields[0][0]}:${quoted(fields[0][1])} ` : ""}${longer}`, "All of it together"],
  ]
}

/** The longest of the first spans of the first row that has any. */
function exampleSpan(store) {
  const row = store.rows.map(({ code, length }) => (length ? store.row(code) : null)).find(shown => shown?.length)
  if (!row) return null
  let index = 0
  for (let at = 1; at < Math.min(row.length, 1000); at += 1) if (row.end[at] - row.start[at] > row.end[index] - row.start[index]) index = at
  return { row, index }
}

/** A part of a text as it is written in a search, or "" where it cannot be. */
function quoted(text) {
  const [word = ""] = [...text].slice(0, EXAMPLE_LETTERS).join("").split('"').filter(part => part.trim())
  return /^[\w.-]+$/.test(word) ? word : word && `"${word}"`
}

/** The round duration below one: 1.7 ms gives 1ms. */
function durationBelow(ns) {
  const [unit, unitNs] = DURATION_UNITS.find(([, size]) => ns >= size) ?? ["ns", 1]
  return ns >= 1 ? `${10 ** Math.floor(Math.log10(ns / unitNs))}${unit}` : "0ns"
}
