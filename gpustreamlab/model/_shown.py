"""Show a value's text instead of its fields, where IPython shows it without HTML."""

from __future__ import annotations

from typing import Any


def show_text(value: object, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's own signature
    """Print the text of ``str(value)``; a class takes this as its ``_repr_pretty_``, beside the repr of its fields."""
    printer.text("…" if cycle else str(value))
