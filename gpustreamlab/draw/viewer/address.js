// What is chosen in a view, as a JSON object: a link to it has that in the page's address, a notebook in the widget's state.

import { pinAnchor } from "./facts.js"
import { throttled } from "./nodes.js"
import { FILTER_KEYS } from "./view.js"

const WRITE_EVERY_MS = 300 // Browsers refuse addresses that change more often.

/** A time of the picture on the trace's clock, in whole ns: as text where a number cannot hold it. */
export function traceTime({ tables }, ns) {
  const time = BigInt(tables.zero_ns) + BigInt(Math.round(ns)), number = Number(time)
  return Number.isSafeInteger(number) ? number : String(time)
}

/** A time of the trace in the picture, in ns. */
export const viewTime = ({ tables }, time) => Number(BigInt(time) - BigInt(tables.zero_ns))

/** What is other than at first, by its key. */
export function readKept(view) {
  const kept = [...view.kept].map(([key, { read }]) => [key, read()])
  return Object.fromEntries(kept.filter(([, value]) => value !== null && value !== undefined))
}

/** Set what `readKept` returned. What cannot be set, of a newer version or damaged, is left as it is. */
export function writeKept(view, state) {
  for (const [key, { read, write }] of view.kept) {
    const value = state[key] ?? null
    try { if (value !== null || read() !== null) write(value) } catch (error) { console.info(`Of the view "${key}" is not restored (${error}).`) }
  }
}

/** Keep what this module knows of; and where `viewer.address` is set, the page's address has all that is kept, each key after it. */
export function addAddress(viewer) {
  const { view, address: lead } = viewer
  keepView(view)
  if (lead === null) return
  const id = traceId(view), parts = () => [...new URLSearchParams(location.hash.slice(1))]
  const isOwn = ([key]) => key.startsWith(lead) && /^\w+$/.test(key.slice(lead.length))
  const read = () => {
    const state = Object.fromEntries(parts().filter(isOwn).map(([key, text]) => [key.slice(lead.length), valueOf(text)]))
    if (state.of === id) writeKept(view, state)
  }
  const write = () => {
    const kept = Object.entries(readKept(view)), own = kept.length ? [["of", id], ...kept] : []
    const all = [...parts().filter(part => !isOwn(part)), ...own.map(([key, value]) => [lead + key, textOf(value)])]
    const hash = all.map(([key, text]) => `${key}=${escapeText(text)}`).join("&")
    if (hash === location.hash.slice(1)) return
    try { history.replaceState(history.state, "", `${location.pathname}${location.search}${hash && "#"}${hash}`) } catch { /* Where the browser refuses, the view is the same. */ }
  }
  const later = throttled(viewer, write, WRITE_EVERY_MS)
  viewer.link = () => { write(); return location.href }
  window.addEventListener("hashchange", read, { signal: viewer.signal })
  for (const event of ["range", "look", "state"]) view.on(event, property => { if (property !== "hovered") later() })
  read()
}

/** JSON, but a text without its quotation marks, where it can be told from all else. */
const textOf = value => typeof value === "string" && valueOf(value) === value ? value : JSON.stringify(value)
const escapeText = text => encodeURIComponent(text).replace(/%(2C|3A|2F|40|5B|5D|7B|7D)/g, decodeURIComponent)

function valueOf(text) {
  try { return JSON.parse(text) } catch { return text }
}

/** Tells the traces of two pages apart: a link to one of them changes nothing in the other. */
function traceId({ tables, store }) {
  const text = [tables.zero_ns, tables.epoch_unix_ns, tables.extent_ns, store.spanCount, tables.names.length].join()
  let hash = 2166136261
  for (const sign of text) hash = Math.imul(hash ^ sign.charCodeAt(0), 16777619)
  return `t${(hash >>> 0).toString(36)}`
}

function keepView(view) {
  const times = ({ start, end }) => [start, end].map(ns => traceTime(view, ns))
  view.keep("hidden", () => view.store.filter ? [...FILTER_KEYS].map(key => [...view[key]]) : null, value => [...FILTER_KEYS].forEach((key, place) => view.set(key, new Set(value?.[place]))))
  view.keep("pin", () => {
    if (view.pinned?.index === undefined) return null // Several that are drawn as one are others at another zoom.
    const { hit: { row }, starts, places } = pinAnchor(view, view.pinned)
    return [row, traceTime(view, starts[0]), places[0]]
  }, value => {
    const index = value && view.tables.rows[value[0]] ? view.store.indexOf(value[0], viewTime(view, value[1]), value[2]) : -1
    view.set("pinned", index < 0 ? null : { row: value[0], index })
  })
  view.keep("sel", () => view.selection && times(view.selection), value => {
    const [start, end] = value ? value.map(time => viewTime(view, time)) : []
    view.set("selection", start < end ? { start, end } : null)
  })
  view.keep("sign", () => view.reason && [view.reason.number, view.reason.place], value => view.set("reason", value && { number: value[0], place: value[1] }))
  if (view.isLive) view.keep("live", () => view.isFollowing && !view.isPaused ? null : [view.isFollowing, view.isPaused], value => {
    view.set("isFollowing", value?.[0] ?? true)
    view.set("isPaused", value?.[1] ?? false)
  })
  view.keep("y", () => view.scrollPx || null, value => view.scrollTo(Number(value) || 0))
  view.keep("t", () => {
    const { start, end } = view.fullRange(), isWhole = view.x0 <= start && view.x1 >= end
    return isWhole || view.isFollowing ? null : times({ start: view.x0, end: view.x1 })
  }, value => value ? view.setRange(...value.map(time => viewTime(view, time))) : view.fit())
}
