"""Many processes, on one host or several, as one: calls and cells on all of them, one trace, on one clock."""

from __future__ import annotations

from gpustreamlab.cluster._mirror import EngineStatus
from gpustreamlab.cluster._outcomes import ByEngine, Outcomes
from gpustreamlab.cluster.cluster import Cluster

__all__ = ["ByEngine", "Cluster", "EngineStatus", "Outcomes"]
