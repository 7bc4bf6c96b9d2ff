// The menu "View": what is chosen once and stays, so that the bar has room for what is used all the time.

import { colourBy } from "./brush.js"
import { makeButton, makeNode, Sheet } from "./nodes.js"

const CHOICES = ["partition", "stream", "name"]

/** Add the menu; controls that come after it put their choices in by `viewer.menu`. */
export function addMenu(viewer) {
  const { view } = viewer
  const button = makeButton("View", { label: "View: how the picture looks", key: "V", class: "gsl-menu-button", "aria-haspopup": "dialog", "aria-expanded": "false", onclick: () => toggle() })
  const sheet = new Sheet(viewer, "menu", "How the picture looks"), shut = () => sheet.shut()
  viewer.tools.append(button)
  viewer.menu = new Menu(sheet.element)
  const toggle = () => {
    if (sheet.isOpen) return shut()
    viewer.menu.show()
    const { right, bottom } = button.getBoundingClientRect()
    sheet.open({ right, top: bottom + 4 })
  }
  sheet.element.addEventListener("toggle", event => button.setAttribute("aria-expanded", String(event.newState === "open")))
  view.on("look", () => { if (sheet.isOpen) viewer.menu.show() })
  Object.assign(viewer.commands, { menu: toggle, closeMenu: shut })
}

/** Its sections, in the order in which they were first named. */
class Menu {
  constructor(element) {
    this.element = element
    this.sections = new Map()
    this.shows = []
  }

  /** One of several values: `options` are a value, its text, and what tells whether it is there; `get` and `set` read and write it. */
  choice(section, { label, options, get, set }) {
    const name = `gsl-${++choices}`
    const inputs = options.map(([value, text, isThere = () => true]) => {
      const input = makeNode("input", { type: "radio", name, onchange: () => set(value) }), entry = makeNode("label", {}, input, text)
      this.shows.push(() => { input.checked = get() === value; entry.hidden = !isThere() })
      return entry
    })
    this.add(section, makeNode("fieldset", {}, makeNode("legend", { text: label }), ...inputs))
  }

  toggle(section, { label, key = "", get, set }) {
    const input = makeNode("input", { type: "checkbox", "aria-keyshortcuts": key || null, onchange: () => set(input.checked) })
    this.shows.push(() => { input.checked = get() })
    this.add(section, makeNode("label", {}, input, label, key ? makeNode("kbd", { text: key }) : null))
  }

  /** Something that is done at once; `isOff` tells when it cannot be. */
  action(section, { label, key = "", run, isOff = () => false }) {
    const button = makeButton(label, { key, onclick: () => { run(button); this.show() } })
    this.shows.push(() => { button.disabled = isOff() })
    this.add(section, button)
  }

  add(section, node) {
    if (!this.sections.has(section)) {
      const part = makeNode("div", { class: "gsl-section", role: "group", "aria-label": section }, makeNode("h4", { text: section }))
      this.sections.set(section, part)
      this.element.append(part)
    }
    this.sections.get(section).append(node)
  }

  /** Let all controls show what is chosen now. */
  show() { for (const show of this.shows) show() }
}

let choices = 0

/** What colour tells, whether there are hatches, and whether waits are arrows. */
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
