// Live views: stick to now, or hold the picture while data arrives.

import { makeButton, makeNode } from "./nodes.js"
import { formatCount } from "./units.js"

const FOLLOW_NS = 10e9 // A session shorter than that is shown whole; of a longer one the end, unless the reader zooms.
const FOLLOW_MARGIN = 0.02 // Room right of now, as a share of the width.
const NEARLY_NS = 1

/** Add the buttons of a live view; others need none. */
export function addFollow(viewer) {
  const { view } = viewer
  if (!view.isLive) return
  const follow = makeButton("Follow", { label: "Follow: stick to now", key: "End", onclick: () => startFollowing() })
  const pause = makeButton("Pause", { label: "Pause the picture while data arrives", key: "Space", onclick: () => togglePause() })
  const says = makeNode("output", { class: "gsl-came", "aria-live": "off" })
  const group = makeNode("span", { class: "gsl-follow" }, follow, pause)
  viewer.tools.prepend(group)
  viewer.news.prepend(says)
  const state = { seen: 0, wasFollowing: false, isMoving: false, widthNs: null }

  function startFollowing() {
    if (view.isPaused) view.set("isPaused", false)
    setFollowing(true)
  }
  function togglePause() {
    if (!view.isPaused) state.wasFollowing = view.isFollowing
    view.set("isPaused", !view.isPaused)
    setFollowing(!view.isPaused && state.wasFollowing)
  }
  function setFollowing(isOn) {
    view.set("isFollowing", isOn)
    stick()
  }
  function stick() {
    if (!view.isFollowing || view.isPaused) return
    state.isMoving = true
    view.setRange(...followRange(view, state.widthNs))
    state.isMoving = false
  }
  // Who moves or zooms away from now wants to look at something; who keeps now in view goes on following, as near as they zoomed.
  function moved() {
    if (state.isMoving || !view.isFollowing) return
    const full = view.fullRange()
    if (view.x1 < view.extent().end - NEARLY_NS) view.set("isFollowing", false)
    else state.widthNs = view.x0 <= full.start + NEARLY_NS ? null : view.x1 - view.x0
  }
  function show() {
    group.hidden = !view.isLive
    follow.setAttribute("aria-pressed", String(view.isFollowing))
    pause.setAttribute("aria-pressed", String(view.isPaused))
    pause.textContent = view.isPaused ? "Go on" : "Pause"
    const came = spansSoFar(view.store) - state.seen
    says.textContent = view.isPaused ? `Paused, ${formatCount(came)} new ${came === 1 ? "span" : "spans"}` : ""
  }
  function changed(property) {
    if (property === "isPaused" && view.isPaused) state.seen = spansSoFar(view.store)
    show()
  }
  view.on("range", moved)
  view.on("state", changed)
  view.on("data", () => { stick(); show() })
  Object.assign(viewer.commands, { follow: startFollowing, pause: togglePause })
  show()
}

/** The window that sticks to now: of the width that the reader chose, else of the whole session or its last seconds. */
function followRange(view, widthNs) {
  const full = view.fullRange(), { end } = view.extent()
  if (widthNs === null && full.end - full.start <= FOLLOW_NS) return [full.start, full.end]
  const width = widthNs ?? FOLLOW_NS, edge = end + FOLLOW_MARGIN * width
  return [edge - width, edge]
}

/** All spans that ever came, also those that went again. */
const spansSoFar = store => store.spanCount + store.evictedCount
