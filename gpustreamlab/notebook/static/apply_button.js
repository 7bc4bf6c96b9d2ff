// The button that applies a tuning, and what came of it. kept.js stands above this.

export default {
  initialize: ({ model }) => keepOnSave(model),

  render({ model, el }) {
    const button = document.createElement("button"), said = document.createElement("pre")
    said.setAttribute("role", "status")
    button.type = "button"
    button.className = "jupyter-button gsl-apply-tuning"
    button.style.width = "auto"
    button.textContent = model.get("label")
    button.addEventListener("click", () => model.send("apply"))
    const show = () => {
      button.disabled = !model.get("is_feasible") || el.classList.contains("jupyter-widgets-disconnected")
      said.textContent = model.get("said")
    }
    for (const event of ["change:said", "comm_live_update"]) model.on(event, show)
    show()
    el.append(button, said)
    return () => ["change:said", "comm_live_update"].forEach(event => model.off(event, show))
  },
}
