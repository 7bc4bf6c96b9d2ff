"""A button below a tuning that shares out the SMs like the best candidate."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from gpustreamlab.errors import GPUStreamLabError

if TYPE_CHECKING:
    from gpustreamlab.tuning import Tuning


def apply_button(tuning: Tuning) -> Any:
    """Return a button that applies a tuning, and says below what came of it; None without ipywidgets."""
    try:
        from ipywidgets import HTML, Button, VBox
    except ImportError:
        return None
    button = Button(description=f"Apply {tuning.best.place}", layout={"width": "auto"}, disabled=not tuning.is_feasible)
    said = HTML()

    def apply(_: object) -> None:
        try:
            layout = tuning.apply()
        except GPUStreamLabError as error:
            said.value = f"<pre>{escape(str(error))}</pre>"
        else:
            said.value = f"<pre>{'The whole card: no partitions.' if layout is None else escape(str(layout))}</pre>"

    button.on_click(apply)
    return VBox([button, said])
