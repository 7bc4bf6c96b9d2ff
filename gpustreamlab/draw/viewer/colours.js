// What colour tells, whether there are hatches, and whether waits are arrows: chosen in the menu "View".

import { colourBy } from "./brush.js"

const CHOICES = ["partition", "stream", "name", "duration"]

export function addColours(viewer) {
  const { view, menu } = viewer
  const options = CHOICES.filter(choice => choice !== "partition" || view.isLive || colourBy(view) === choice).map(choice => [choice, choice])
  const toggleWaits = viewer.commands.toggleWaits = () => view.set("showsWaits", !view.showsWaits)
  menu.choice("Bars", { label: "Colour", options, get: () => colourBy(view), set: choice => view.set("colour", choice) })
  menu.toggle("Bars", { label: "Hatches", get: () => view.hasHatches, set: isOn => view.set("hasHatches", isOn) })
  menu.toggle("Bars", { label: "Waits as arrows", key: "E", get: () => view.showsWaits, set: toggleWaits })
  view.keep("colour", () => view.colour, choice => view.set("colour", CHOICES.includes(choice) ? choice : null))
  view.keep("hatches", () => view.hasHatches || null, isOn => view.set("hasHatches", isOn === true))
  view.keep("waits", () => view.showsWaits && null, isOn => view.set("showsWaits", isOn !== false))
  view.on("look", property => { if (property === "hasHatches") viewer.useTheme() })
}
