"""Libraries that follow the selected lane. None is imported here: an adapter works on a library that is loaded already."""

from gpustreamlab.adapters._followers import Adapters, Followers, LibraryState, adapters_table
from gpustreamlab.adapters._known import (
    GROUP,
    KNOWN,
    Adapter,
    AdapterFactory,
    LaneStream,
    Library,
    Obstacle,
    installed_version,
    library_of,
    obstacle_of,
    what_it_does,
)
from gpustreamlab.adapters._registry import core_view, cupy_view, numba_view, torch_view

__all__ = [
    "GROUP",
    "KNOWN",
    "Adapter",
    "AdapterFactory",
    "Adapters",
    "Followers",
    "LaneStream",
    "Library",
    "LibraryState",
    "Obstacle",
    "adapters_table",
    "core_view",
    "cupy_view",
    "installed_version",
    "library_of",
    "numba_view",
    "obstacle_of",
    "torch_view",
    "what_it_does",
]
