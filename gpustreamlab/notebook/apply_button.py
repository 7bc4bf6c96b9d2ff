"""A button below a tuning that shares out the SMs like the best candidate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import traitlets

from gpustreamlab.errors import GPUStreamLabError
from gpustreamlab.notebook.kept import KeptWidget, static_text

if TYPE_CHECKING:
    from gpustreamlab.tuning import Tuning


class ApplyButton(KeptWidget):
    """A button that applies a tuning, and says below what came of it.

    Parameters
    ----------
    tuning
        What was found.
    """

    _esm = static_text("kept.js", "apply_button.js")

    label = traitlets.Unicode().tag(sync=True)
    """What is on the button."""
    is_feasible = traitlets.Bool().tag(sync=True)
    """Whether it can be pressed."""
    said = traitlets.Unicode().tag(sync=True)
    """The layout that was applied, or why it was not."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        super().__init__(label=f"Apply {tuning.best.place}", is_feasible=tuning.is_feasible)
        self._say("")
        self.on_msg(lambda _widget, content, _buffers: self.apply() if content == "apply" else None)

    def apply(self) -> None:
        """Share out the SMs like the best candidate."""
        try:
            layout = self._tuning.apply()
        except GPUStreamLabError as error:
            self._say(str(error))
        else:
            self._say("The whole card: no partitions." if layout is None else str(layout))

    def _say(self, text: str) -> None:
        self.said = text
        self.forms = {"text/plain": text or f"{self.label}: with tuning.apply(), or by the button while the kernel runs."}
