"""Widgets of which a saved notebook keeps what they showed last: made with anywidget, so without an extension of our own."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from gpustreamlab.errors import MissingExtraError, TraceFileError
from gpustreamlab.model import write_file_whole

try:
    import anywidget
    import traitlets
except ImportError as _error:
    raise MissingExtraError(
        f"Widgets need the package anywidget, which cannot be imported ({_error}). Install it with: pip install "
        "'gpustreamlab[notebook]' - or draw a picture of now: lab.timeline(live=False)",
        name="anywidget",
    ) from _error

__all__ = ["KeptWidget", "static_text", "traitlets", "write_notebook_page"]

_STATIC = Path(__file__).parent / "static"


def static_text(*names: str) -> str:
    """Return files of the widgets, one below the other."""
    return "\n".join((_STATIC / name).read_text(encoding="utf-8") for name in names)


class KeptWidget(anywidget.AnyWidget):
    """A widget whose script, below that of ``kept.js``, keeps a picture when the notebook is saved."""

    widget_id = traitlets.Unicode().tag(sync=True)  # The id of its model, under which the notebook's metadata keep the picture
    forms = traitlets.Dict().tag(sync=True)
    """What it shows now for those who show no widgets, by mime type: ``text/plain``, and perhaps ``image/svg+xml``."""

    def __init__(self, **traits: Any) -> None:
        widget_id = uuid.uuid4().hex
        super().__init__(model_id=widget_id, widget_id=widget_id, **traits)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle and ({**bundle[0], **self.forms}, bundle[1])


# What a page shows of an output, the first that it has. A widget of ours has a picture beside it, others only their name.
_FORMS = ["text/html", "image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/latex", "application/javascript",
          "application/vnd.jupyter.widget-view+json", "text/plain"]  # fmt: skip


def write_notebook_page(source: Path, target: Path) -> None:
    """Write a saved notebook as one HTML page, in which widgets are pictures that need no script.

    Raises
    ------
    TraceFileError
        If it is no notebook, or the page cannot be written.
    """
    import nbformat  # which come with JupyterLab
    from nbconvert import HTMLExporter
    from traitlets.config import Config

    try:
        exporter: Any = HTMLExporter(config=Config({"NbConvertBase": {"display_data_priority": _FORMS}}))  # type: ignore[no-untyped-call]
        page, _ = exporter.from_filename(str(source))
    except (OSError, ValueError, LookupError, AttributeError, TypeError, nbformat.ValidationError) as error:
        raise TraceFileError(f"{str(source)!r} cannot be read as a notebook: {error}") from error
    write_file_whole(target, lambda partial: partial.write_text(page, encoding="utf-8"))
