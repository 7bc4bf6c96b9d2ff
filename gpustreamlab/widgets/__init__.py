"""Widgets for notebooks: made with anywidget, so they run in JupyterLab and Notebook without an extension of our own."""

from gpustreamlab.widgets._live_timeline import LiveTimeline, TimelineTarget
from gpustreamlab.widgets._partitioner import Partitioner
from gpustreamlab.widgets._target import PartitionTarget

__all__ = ["LiveTimeline", "PartitionTarget", "Partitioner", "TimelineTarget"]
