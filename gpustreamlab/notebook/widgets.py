"""Widgets for notebooks: made with anywidget, so they run in JupyterLab and Notebook without an extension of our own."""

from gpustreamlab.errors import MissingExtraError

try:
    import anywidget as _anywidget  # noqa: F401 - whether it is there
except ImportError as _error:
    raise MissingExtraError(
        f"Widgets need the package anywidget, which cannot be imported ({_error}). Install it with: pip install "
        "'gpustreamlab[notebook]' - or draw a picture of now: lab.timeline(live=False)",
        name="anywidget",
    ) from _error

from gpustreamlab.notebook.apply_button import ApplyButton
from gpustreamlab.notebook.live_timeline import LiveTimeline, TimelineTarget
from gpustreamlab.notebook.partitioner import Partitioner, PartitionTarget

__all__ = ["ApplyButton", "LiveTimeline", "PartitionTarget", "Partitioner", "TimelineTarget"]
