// What stays of a widget in a notebook that is saved while its kernel runs. This stands above the script of each widget.

const VIEW_MIME = "application/vnd.jupyter.widget-view+json"
const STATE_MIME = "application/vnd.jupyter.widget-state+json"
const PICTURES = { "image/png": data => `data:image/png;base64,${data}`, "image/svg+xml": data => `data:image/svg+xml,${encodeURIComponent(data)}` }
const KEPT_BY = "gpustreamlab"
// A widget without a kernel has the sign of a broken link above it; this one says itself what it is.
const UNBROKEN = "<style>.jupyter-widgets-disconnected:has(.gsl-kept)::before { display: none }</style>"

// Without a kernel JupyterLab looks a widget up in the notebook's metadata, and else says "model not found". What it finds there is
// Jupyter's own widget for HTML, with the same id and a picture: so VS Code and nbconvert show it, too, and nothing of ours has to run.
// `takeForms` returns what the widget shows now, by mime type: text, and a picture of those above; null where it shows nothing.
function keepOnSave(model, takeForms = () => model.get("forms")) {
  const context = model.widget_manager?.context, id = model.get("widget_id") // JupyterLab and Notebook 7 have a context.
  if (!context?.saveState?.connect || !context.model?.setMetadata) return () => {}
  const save = (_, state) => {
    if (state !== "started") return
    try {
      keepForms(context.model, id, takeForms)
    } catch (error) {
      console.info(`The notebook is saved without a picture of a widget (${error}).`)
    }
  }
  context.saveState.connect(save)
  return () => context.saveState.disconnect(save)
}

function keepForms(notebook, id, takeForms) {
  const all = notebook.getMetadata("widgets") ?? {}
  const before = all[STATE_MIME]?.state ?? {}
  const shown = shownModels(notebook)
  const state = Object.fromEntries(Object.entries(before).filter(([id, entry]) => entry.state?.kept_by !== KEPT_BY || shown.has(id)))
  const forms = shown.has(id) ? takeForms() : null
  if (forms) {
    state[id] = keptModel(forms)
    shown.get(id).forEach(place => renewStatic(...place, forms))
  }
  if (!Object.keys(state).length && !Object.keys(before).length) return
  if (Object.keys(state).length) all[STATE_MIME] = { version_major: 2, version_minor: 0, ...all[STATE_MIME], state }
  else delete all[STATE_MIME]
  if (Object.keys(all).length) notebook.setMetadata("widgets", { ...all })
  else notebook.deleteMetadata("widgets")
}

// The widgets that are the output of a cell: by id in which cells, and as which of their outputs.
function shownModels(notebook) {
  const places = new Map()
  for (const cell of notebook.cells) {
    for (let place = 0; place < (cell.outputs?.length ?? 0); place++) {
      const id = cell.outputs.get(place).data?.[VIEW_MIME]?.model_id
      places.set(id, [...(places.get(id) ?? []), [cell, place]])
    }
  }
  return places
}

// For those who show no widgets (GitHub, nbviewer): what the kernel sent was of when the cell ran. It is changed in the file only; on
// the page the widget stays as it is.
function renewStatic(cell, place, forms) {
  const { data, ...output } = cell.outputs.get(place).toJSON()
  cell.sharedModel.updateOutputs(place, place + 1, [{ ...output, data: { [VIEW_MIME]: data[VIEW_MIME], ...forms } }], "silent-change")
}

function keptModel(forms) {
  const mime = Object.keys(PICTURES).find(mime => forms[mime]), text = forms["text/plain"]
  const shown = document.createElement(mime ? "img" : "pre")
  shown.className = "gsl-kept"
  if (mime) Object.assign(shown, { src: PICTURES[mime](forms[mime]), alt: text, style: "max-width:100%" })
  else shown.textContent = text
  const module = "@jupyter-widgets/controls", version = "2.0.0"
  const own = { _model_module: module, _model_module_version: version, _model_name: "HTMLModel", _view_module: module, _view_module_version: version, _view_name: "HTMLView" }
  return { model_name: "HTMLModel", model_module: module, model_module_version: version, state: { ...own, value: UNBROKEN + shown.outerHTML, kept_by: KEPT_BY } }
}

