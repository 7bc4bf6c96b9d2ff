// What is chosen in a view, as a JSON object: a link to it has that in the page's address, a notebook in the widget's state.

import { throttled } from "./nodes.js"
import { pinAnchor } from "./pins.js"

const WRITE_EVERY_MS = 300 // Browsers refuse addresses that change more often.
const HIDDEN = ["hiddenNames", "hiddenKinds", "hiddenPartitions"]

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
  const { view } = viewer
  keepView(view)
  if (viewer.address === null) return () => {}
  const own = key => key.startsWith(viewer.address) && /^\w+$/.test(key.slice(viewer.address.length))
  const id = traceId(view)
  const read = () => {
    const given = parse(location.hash)
    const state = Object.fromEntries([...given].filter(([key]) => own(key)).map(([key, value]) => [key.slice(viewer.address.length), value]))
    if (state.of === id) writeKept(view, state)
  }
  const write = () => {
    const state = readKept(view), others = [...parse(location.hash)].filter(([key]) => !own(key))
    const mine = Object.keys(state).length ? Object.entries({ of: id, ...state }).map(([key, value]) => [viewer.address + key, value]) : []
    const text = [...others, ...mine].map(([key, value]) => `${key}=${valueText(value)}`).join("&")
    const { pathname, search, hash } = location
    if (text === hash.slice(1)) return
    try { history.replaceState(history.state, "", text ? `#${text}` : pathname + search) } catch { /* The browser refuses: the view is the same without. */ }
  }
  const later = throttled(write, WRITE_EVERY_MS)
  viewer.link = () => { write(); return location.href }
  addEventListener("hashchange", read)
  const offs = ["range", "look", "state"].map(event => view.on(event, property => { if (property !== "hovered") later() }))
  read()
  return () => {
    offs.forEach(off => off())
    removeEventListener("hashchange", read)
    later.stop()
  }
}

/** The keys and values of an address; none where it is malformed. */
function parse(hash) {
  try {
    return new Map(hash.slice(1).split("&").filter(Boolean).map(part => {
      const [, key, text] = /^([^=]+)=(.*)$/s.exec(part).map(one => decodeURIComponent(one))
      return [key, valueOf(text)]
    }))
  } catch { return new Map() }
}

/** JSON, but a text without its quotation marks, where it can be told from all else. */
function valueText(value) {
  const text = typeof value === "string" && valueOf(value) === value ? value : JSON.stringify(value)
  return encodeURIComponent(text).replace(/%(2C|3A|2F|40|5B|5D|7B|7D|7C|3D)/g, decodeURIComponent)
}

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
  view.keep("hide", () => HIDDEN.some(name => view[name].size) ? HIDDEN.map(name => [...view[name]]) : null, value => {
    HIDDEN.forEach((name, place) => view.set(name, new Set(value?.[place])))
  })
  view.keep("waits", () => view.showsWaits ? null : false, value => view.set("showsWaits", value ?? true))
  view.keep("pin", () => {
    if (!view.pinned) return null
    const { hit, starts, places } = pinAnchor(view, view.pinned)
    return [hit.row, starts.map(ns => traceTime(view, ns)), places]
  }, value => {
    if (!value) return view.set("pinned", null)
    const [row, times, places] = value, starts = times.map(time => viewTime(view, time))
    const at = starts.map((start, place) => view.tables.rows[row] ? view.store.indexOf(row, start, places[place]) : -1)
    if (at.length && !at.includes(-1)) view.set("pinned", at.length > 1 ? { row, first: at[0], last: at[1] } : { row, index: at[0] })
  })
  view.keep("sel", () => view.selection && [...times(view.selection), ...(view.selection.lanes?.size < view.tables.lanes.length ? [[...view.selection.lanes]] : [])], value => {
    if (!value) return view.set("selection", null)
    const [start, end] = value.slice(0, 2).map(time => viewTime(view, time)), lanes = (value[2] ?? [...view.tables.lanes.keys()]).filter(code => view.tables.lanes[code])
    if (start < end) view.set("selection", { start, end, lanes: new Set(lanes) })
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
