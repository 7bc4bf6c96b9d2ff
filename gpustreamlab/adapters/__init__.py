"""Libraries that follow the selected stream. None is imported here: an adapter works on a library that is loaded already."""

from gpustreamlab.adapters._followers import Adapters, Followers, LibraryState, adapters_table, view_of
from gpustreamlab.adapters._known import (
    KNOWN,
    Library,
    Obstacle,
    installed_version,
    library_of,
    obstacle_of,
    what_it_does,
)

__all__ = [
    "KNOWN",
    "Adapters",
    "Followers",
    "Library",
    "LibraryState",
    "Obstacle",
    "adapters_table",
    "installed_version",
    "library_of",
    "obstacle_of",
    "view_of",
    "what_it_does",
]
