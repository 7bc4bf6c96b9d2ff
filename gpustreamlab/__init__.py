"""See and steer GPU concurrency from a notebook.

``import gpustreamlab as gsl`` loads nothing heavy; each public name is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpustreamlab.analysis import PartitionOptions, plan_partitions
    from gpustreamlab.cluster import Cluster
    from gpustreamlab.errors import ClusterError, GPUStreamLabError, PartitionError, PartitionWarning
    from gpustreamlab.magics import load_ipython_extension, unload_ipython_extension
    from gpustreamlab.model import Layout, WorkqueueOptions
    from gpustreamlab.node import Node
    from gpustreamlab.recorded import record
    from gpustreamlab.run.followed import live
    from gpustreamlab.session import Session
    from gpustreamlab.streams.stream import Event, Stream
    from gpustreamlab.timeline import Comparison, Timeline
    from gpustreamlab.trace import Trace, compare, load_trace, merge

__all__ = [
    "Cluster",
    "ClusterError",
    "Comparison",
    "Event",
    "GPUStreamLabError",
    "Layout",
    "Node",
    "PartitionError",
    "PartitionOptions",
    "PartitionWarning",
    "Session",
    "Stream",
    "Timeline",
    "Trace",
    "WorkqueueOptions",
    "__version__",
    "compare",
    "live",
    "load_ipython_extension",
    "load_trace",
    "merge",
    "plan_partitions",
    "record",
    "unload_ipython_extension",
]


_HOMES = {
    "Cluster": "cluster",
    "ClusterError": "errors",
    "Comparison": "timeline",
    "Event": "streams.stream",
    "GPUStreamLabError": "errors",
    "Layout": "model",
    "Node": "node",
    "PartitionError": "errors",
    "PartitionOptions": "analysis",
    "PartitionWarning": "errors",
    "Session": "session",
    "Stream": "streams.stream",
    "Timeline": "timeline",
    "Trace": "trace",
    "WorkqueueOptions": "model",
    "compare": "trace",
    "live": "run.followed",
    "load_ipython_extension": "magics",
    "load_trace": "trace",
    "merge": "trace",
    "plan_partitions": "analysis",
    "record": "recorded",
    "unload_ipython_extension": "magics",
}
_GUESSES = {
    "load_trace": "load open read view open_trace read_trace load_pytorch read_pytorch from_pytorch load_profile",
    "Session": "Lab start",
    "Node": "Nodes GPU GPUs",
    "compare": "diff",
    "record, or gpustreamlab run train.py in a shell": "run profile trace",
    "Session() for lab, and ask that": "on stream partition synchronize explain overlap tune hazards event xp doctor Partition",
}
_HOOKS = {"load_ipython_extension", "unload_ipython_extension"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        hint = "" if name[0] == "_" else _hint(name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    value: object = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    # `record` is the name of a room, too, which is there by now, and can be called: the name stays the same thing.
    return globals().setdefault(name, value)


def _hint(name: str) -> str:
    from gpustreamlab._util.words import guessed
    from gpustreamlab.errors import nearest_hint

    line = guessed(_GUESSES, name)
    return f". Use gpustreamlab.{line}" if line else f". {nearest_hint(name, __all__)}"


def __dir__() -> list[str]:
    """Name what users type, so that completion shows it alone: no submodules, and no hooks that IPython calls."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))} - _HOOKS)


__version__ = "0.1.0"
