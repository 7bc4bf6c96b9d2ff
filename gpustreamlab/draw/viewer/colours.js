// What colour tells, and whether there are hatches: chosen in the menu "View".

import { colourBy } from "./brush.js"

const CHOICES = ["partition", "stream", "name", "duration"]

export function addColours(viewer) {
  const { view, menu } = viewer
  const options = CHOICES.filter(choice => choice !== "partition" || view.isLive || colourBy(view) === choice).map(choice => [choice, choice])
  menu.choice("Bars", { label: "Colour", options, get: () => colourBy(view), set: choice => view.set("colour", choice) })
  menu.toggle("Bars", { label: "Hatches", get: () => view.hasHatches, set: isOn => view.set("hasHatches", isOn) })
  view.keep("colour", () => view.colour, choice => view.set("colour", CHOICES.includes(choice) ? choice : null))
  view.keep("hatches", () => view.hasHatches || null, isOn => view.set("hasHatches", isOn === true))
  return view.on("look", property => { if (property === "hasHatches") viewer.useTheme() })
}
