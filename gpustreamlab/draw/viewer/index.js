// What is seen of the viewer from outside.

// By pages and widgets.
export { readKept, writeKept } from "./address.js"
export { readBatch, unpackColumns } from "./columns.js"
export { linkRanges } from "./view.js"
export { SpanStore } from "./store.js"
export { followTheme } from "./theme.js"
export { Viewer } from "./viewer.js"

// By tests, which look inside a page as it is.
export { SpanBatch } from "./columns.js"
export { timesOf } from "./facts.js"
export { binWidth } from "./lod.js"
export { headTime, paintEdges, paintOwnEdges, paintOwnLaunches } from "./paint_edges.js"
export { boxOf } from "./paint_overlay.js"
export { cardLayers, stackLayers } from "./card.js"
export { endOfHit, Row } from "./rows.js"
export { signAt } from "./paint_why.js"
export { formatCount, formatNs, formatSpeed, formatTicks } from "./units.js"
export { busyAround } from "./busy.js"
export { View } from "./view.js"
export { workWord } from "./facts.js"
